"""Servers that answer nonsense, are started anew, or lead elsewhere: no wrong count, no key for others."""

from __future__ import annotations

import json
from dataclasses import replace

import odd_answers
import pytest
from hypothesis import example, given, settings
from odd_answers import BROKEN, BROKEN_MODELS, COMPLETION, MODELS, encoded

from workshop import batch
from workshop.batch import session
from workshop.batch.read.rows import CHAT, COMPLETIONS
from workshop.batch.send import servers
from workshop.client import received
from workshop.errors import BadInput, WorkshopError
from workshop.servers import records
from workshop.servers.records import ServerRecord


@pytest.fixture
def server(workshop_home):
    with odd_answers.sound() as server:
        yield server


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"row {number}\n" for number in range(12)))
    return path


def test_no_broken_answer_counts_and_each_is_named(tmp_path, faulty, quick, answers, monkeypatch):
    monkeypatch.setattr(session, "HOPELESS", 10_000)
    names = list(BROKEN)
    path = tmp_path / "in.json"
    path.write_text(
        json.dumps([f"{what} {number}" for number in range(len(names)) for what in ("good", "bad")])
    )
    faults = {f"bad {number}": (200, BROKEN[name]) for number, name in enumerate(names)}
    server = faulty(lambda prompt, times: faults.get(prompt), model="m")
    summary = batch.run(
        path, tmp_path / "out.jsonl", url=server.url, limits=replace(quick, attempts=2)
    )
    assert (summary.answered, summary.errors, summary.exit_code) == (len(names), len(names), 1)
    assert all(
        line["response"]["body"]["choices"][0]["text"].startswith(" good")
        for line in answers(summary.output)
    )
    messages = {line["row"]: line["error"]["message"] for line in answers(summary.errors_file)}
    assert all("answers with" in messages[2 * number + 1] for number in range(len(names)))
    assert "HTML page" in messages[1] and len(batch.load(summary.output)) == len(names)


def test_as_many_samples_as_were_asked_for_or_none(prompts, tmp_path, faulty, quick):
    choices = [{"index": number, "text": "x", "finish_reason": "stop"} for number in range(2)]
    server = faulty(
        lambda prompt, times: (200, encoded({"choices": choices})) if prompt == "row 3" else None
    )
    summary = batch.run(
        prompts,
        tmp_path / "out.jsonl",
        url=server.url,
        samples=3,
        temperature=1.0,
        limits=replace(quick, attempts=2),
    )
    assert (summary.answered, summary.errors) == (11, 1) and len(
        batch.load(summary.output)
    ) == 11 * 3
    assert "2 choices, and 3 should be there" in summary.errors_file.read_text()
    assert "the first because of: " in str(summary) and "2 choices, and 3 should be there" in str(
        summary
    )


@pytest.mark.parametrize("body", BROKEN_MODELS, ids=lambda body: repr(body)[:30])
def test_what_serves_no_models_is_no_server(body, server, prompts, tmp_path):
    server.answers["/v1/models"] = body
    with pytest.raises(WorkshopError, match=r"/models answers 200 with|serves nothing"):
        batch.run(prompts, tmp_path / "out.jsonl", url=server.url)


@pytest.mark.parametrize(
    "version", [b"", b"[]", b'{"version": 3}', odd_answers.LOGIN, "nonsense\r\n\r\n"]
)
def test_a_version_and_metrics_that_are_none_do_no_harm(version, server, prompts, tmp_path):
    server.answers["/version"] = server.answers["/metrics"] = version
    assert batch.run(prompts, tmp_path / "out.jsonl", url=server.url).exit_code == 0


@pytest.mark.parametrize(
    "wire",
    [
        odd_answers.cut_in_chunks(encoded(COMPLETION)),
        "nonsense\r\n\r\n",
    ],
    ids=["cut in chunks", "nonsense"],
)
def test_a_broken_connection_is_an_error_of_its_row(wire, server, tmp_path, quick):
    (tmp_path / "in.txt").write_text("a\n")
    server.answers["/v1/completions"] = wire
    summary = batch.run(
        tmp_path / "in.txt",
        tmp_path / "out.jsonl",
        url=server.url,
        limits=replace(quick, attempts=2, deaths=2),
    )
    assert (summary.answered, summary.errors) == (0, 1)


def test_an_answer_without_an_end_is_an_error_of_its_row(server, tmp_path, quick):
    (tmp_path / "in.txt").write_text("a\n")
    server.answers["/v1/completions"] = odd_answers.ENDLESS["drips"]
    limits = replace(quick, attempts=2, read_timeout_s=0.3)
    summary = batch.run(tmp_path / "in.txt", tmp_path / "out.jsonl", url=server.url, limits=limits)
    assert (summary.answered, summary.errors) == (0, 1) and "no answer in" in summary.reason


def test_a_list_of_models_without_an_end_is_one_sentence(server, prompts, tmp_path):
    server.answers["/v1/models"] = odd_answers.ENDLESS["floods"]
    with pytest.raises(WorkshopError, match="has more than 64 MiB"):
        batch.run(prompts, tmp_path / "out.jsonl", url=server.url)


@settings(max_examples=200, deadline=None)
@given(body=odd_answers.mutated)
@example(body={"choices": [{"text": "x", "finish_reason": {}}]})
@example(body={"choices": [{"text": "x", "index": 0}], "usage": {"prompt_tokens": True}})
def test_any_mutation_is_an_answer_with_whole_counts_or_a_sentence(body):
    try:
        answer = received.answer(encoded(body))
    except received.Malformed as bad:
        assert len(str(bad)) < 300
        return
    assert len(answer.choices) == 1 and type(answer.choices[0]["text"]) is str
    assert type(answer.prompt_tokens) is type(answer.completion_tokens) is int


def test_no_redirect_is_followed(server, prompts, tmp_path):
    other = odd_answers.Server()
    try:
        for path in ("/v1/completions", CHAT, "/v1/models"):
            server.answers[path] = odd_answers.redirect(f"{other.root}{path}")
            with pytest.raises(WorkshopError, match=f"leads to {other.root}"):
                batch.run(prompts, tmp_path / "out.jsonl", url=server.url, chat=path == CHAT)
        assert other.seen == []
    finally:
        other.close()


def test_a_batch_goes_through_no_web_proxy(server, prompts, tmp_path, monkeypatch):
    proxy = odd_answers.Server()
    for name in ("http_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.root)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    try:
        records.write(
            ServerRecord(name="a", url=server.url, model="m", api_key="secret", state="ready")
        )
        for place, url in enumerate([(), server.url, server.url.replace("127.0.0.1", "localhost")]):
            assert batch.run(prompts, tmp_path / f"{place}.jsonl", url=url).exit_code == 0
        assert proxy.seen == [] and server.seen
        assert all("Bearer secret" in str(headers) for _, headers, _ in server.seen)
    finally:
        proxy.close()


def test_an_address_outside_is_asked_through_the_proxy_that_is_named(
    prompts, tmp_path, monkeypatch, capsys
):
    proxy = odd_answers.Server()
    try:
        proxy.answers = {
            "http://gpu.example:8001/v1/models": encoded(MODELS),
            "http://gpu.example:8001/v1/completions": encoded(COMPLETION),
        }
        monkeypatch.setenv("WORKSHOP_PROXY", proxy.root)
        monkeypatch.delenv("no_proxy", raising=False)
        summary = batch.run(prompts, tmp_path / "out.jsonl", url="http://gpu.example:8001")
        assert summary.exit_code == 0 and len(proxy.seen) > 12
        assert "gpu.example:8001" in capsys.readouterr().err
    finally:
        proxy.close()


@pytest.mark.parametrize(
    "url", ["http://", "http://h:99999", "http://a b", "h:8000", "http://[::1"]
)
def test_an_address_that_is_none_is_refused(url, prompts, tmp_path, workshop_home):
    with pytest.raises(BadInput, match="no address"):
        batch.run(prompts, tmp_path / "out.jsonl", url=url)


class Keyed(odd_answers.Server):
    """Takes one key; after `change_after` answers it takes another, and tells `then`."""

    def __init__(self, key="old", change_after=None, then=lambda: None):
        super().__init__()
        self.key, answered = key, []
        outer = self

        class Answers(dict):
            def get(self, path, default=None):
                if outer.seen[-1][1].get("Authorization") != f"Bearer {outer.key}":
                    body = '{"error": "Unauthorized"}'
                    return f"HTTP/1.1 401 Unauthorized\r\nContent-Length: {len(body)}\r\n\r\n{body}"
                answered.append(path)
                if len(answered) == change_after:
                    then()  # a record is written before its server listens
                    outer.key = "new"
                return encoded({"/v1/models": MODELS, COMPLETIONS: COMPLETION}.get(path, {}))

        self.answers = Answers()


def write_record(server, key="old", **changes):
    records.write(
        ServerRecord(
            **{
                "name": "a",
                "url": server.url,
                "model": "m",
                "api_key": key,
                "state": "ready",
                **changes,
            }
        )
    )


@pytest.mark.parametrize("state", ["starting", "ready"])
@pytest.mark.parametrize("by_url", [False, True])
def test_a_server_that_was_started_anew_with_another_key_is_gone_on_with(
    state, by_url, prompts, tmp_path, quick, workshop_home
):
    server = Keyed(change_after=5, then=lambda: write_record(server, "new", state=state))
    try:
        write_record(server)
        summary = batch.run(
            prompts, tmp_path / "out.jsonl", url=server.url if by_url else (), limits=quick
        )
        assert (summary.exit_code, summary.answered) == (0, 12)
    finally:
        server.close()


def test_while_there_is_no_record_the_batch_waits_for_it(prompts, tmp_path, workshop_home, quick):
    server = Keyed(change_after=5, then=lambda: records.remove("a"))
    again = []

    def report(progress):
        if progress.message.startswith("waiting") and not again:
            again.append(write_record(server, "new"))

    try:
        write_record(server)
        summary = batch.run(
            prompts, tmp_path / "out.jsonl", limits=replace(quick, patience_s=20.0), report=report
        )
        assert summary.exit_code == 0 and again
    finally:
        server.close()


def test_a_server_that_came_back_on_another_port_is_gone_on_with(
    prompts, tmp_path, faulty, quick, monkeypatch
):
    monkeypatch.setattr(servers, "READ_AGAIN_S", 0.05)
    second = odd_answers.Server()
    second.answers = {"/v1/models": encoded(MODELS), "/v1/completions": encoded(COMPLETION)}
    first = faulty(lambda prompt, times: die() if prompt == "row 6" else None, model="m")

    def die():
        write_record(second, "new")
        first.close()
        return "drop"

    try:
        write_record(first)
        summary = batch.run(
            prompts, tmp_path / "out.jsonl", limits=replace(quick, patience_s=20.0), concurrency=1
        )
        assert summary.exit_code == 0 and second.seen and "Bearer new" in str(second.seen[-1][1])
        assert "Bearer old" not in str(second.seen)
    finally:
        second.close()


def test_a_key_that_the_user_gave_is_refused_at_once_by_its_name(
    prompts, tmp_path, workshop_home, monkeypatch
):
    server = Keyed(key="right")
    try:
        write_record(server, "right")
        monkeypatch.setenv("WORKSHOP_API_KEY", "wrong")
        with pytest.raises(WorkshopError, match="the key that WORKSHOP_API_KEY holds"):
            batch.run(prompts, tmp_path / "out.jsonl", url=server.url)
        assert len(server.seen) == 1
        # its record has the right one
        assert batch.run(prompts, tmp_path / "out.jsonl").exit_code == 0
        write_record(server, "wrong")
        with pytest.raises(WorkshopError, match="refuses the key"):
            batch.run(prompts, tmp_path / "other.jsonl")
    finally:
        server.close()


@pytest.mark.parametrize(
    ("status", "remedy"), [(400, "Correct what it says"), (500, "Look at the server's log")]
)
def test_a_run_in_which_every_row_fails_says_whose_fault_it_is(
    prompts, tmp_path, faulty, quick, monkeypatch, status, remedy
):
    monkeypatch.setattr(session, "HOPELESS", 5)
    body = encoded({"error": {"message": "no"}})
    server = faulty(lambda prompt, times: (status, body), model="m")
    limits = replace(quick, attempts=1)
    with pytest.raises(WorkshopError, match="rows all failed") as failed:
        batch.run(prompts, tmp_path / "out.jsonl", url=server.url, limits=limits)
    assert failed.value.remedy.startswith(remedy)
