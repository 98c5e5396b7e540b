"""Servers that answer nonsense, are started anew, or lead elsewhere: no wrong count, no key for others."""

from __future__ import annotations

import contextlib

import odd_answers
import pytest
from hypothesis import example, given, settings
from odd_answers import COMPLETION, MODELS, encoded
from openai.types import Completion

from workshop import batch
from workshop.batch import session
from workshop.batch.read.rows import COMPLETIONS
from workshop.batch.send import servers
from workshop.client import received
from workshop.errors import WorkshopError
from workshop.servers import records
from workshop.servers.records import ServerRecord

N = 12


@pytest.fixture
def server(workshop_home):
    with odd_answers.sound() as server:
        yield server


def test_as_many_samples_as_were_asked_for_or_none(faulty, run):
    choices = [{"index": number, "text": "x", "finish_reason": "stop"} for number in range(2)]
    body = encoded({"choices": choices})
    server = faulty(lambda prompt, times: (200, body) if prompt == "row 3" else None)
    summary = run(server, N, samples=3, temperature=1.0, attempts=2)
    assert (summary.answered, summary.errors) == (N - 1, 1)
    assert len(batch.load(summary.output)) == (N - 1) * 3
    says = "2 choices, and 3 should be there"
    assert says in summary.errors_file.read_text() and "the first because of: " in str(summary)
    assert says in str(summary)


def test_what_serves_no_models_is_no_server(server, run):
    for body in (odd_answers.LOGIN, b'{"data": []}'):
        server.answers["/v1/models"] = body
        with pytest.raises(WorkshopError, match=r"/models answers 200 with|serves nothing"):
            run(server, N)


def test_a_version_and_metrics_that_are_none_do_no_harm(server, run):
    for number, body in enumerate((b'{"version": 3}', odd_answers.LOGIN, "nonsense\r\n\r\n")):
        server.answers["/version"] = server.answers["/metrics"] = body
        assert run(server, N, f"{number}.jsonl").exit_code == 0, body


@pytest.mark.parametrize(
    ("wire", "says"),
    [
        (encoded({**COMPLETION, "usage": "x"}), "answers with usage that cannot be used"),
        (odd_answers.cut_in_chunks(encoded(COMPLETION)), "cut"),
        ("nonsense\r\n\r\n", "the connection broke 3 times"),
        (odd_answers.ENDLESS["drips"], "no answer in"),
    ],
    ids=["odd usage", "cut in chunks", "nonsense", "without an end"],
)
def test_a_broken_answer_is_an_error_of_its_row(wire, says, server, run):
    server.answers["/v1/completions"] = wire
    summary = run(server, 1, attempts=2, deaths=3, read_timeout_s=0.3)
    assert (summary.answered, summary.errors) == (0, 1) and says in summary.reason


def read_answer(raw: bytes) -> None:
    """Read an answer that comes whole, as batch, bench and client do."""
    answer = received.answer(raw)
    assert len(answer.choices) == 1 and type(answer.choices[0]["text"]) is str
    assert type(answer.prompt_tokens) is type(answer.completion_tokens) is int
    assert Completion.construct(**answer.body).choices[0].text == answer.choices[0]["text"]


def read_piece(raw: bytes) -> None:
    """Read a piece of a stream, as bench and client do."""
    piece = received.body(raw)
    assert all(type(index) is int and type(text) is str for index, text in received.pieces(piece))
    assert all(type(tokens) is int for tokens in received.usage(piece))


@settings(max_examples=200, deadline=None)
@given(body=odd_answers.mutated)
@example(body={"choices": [{"text": "x", "finish_reason": {}}]})
@example(body={"choices": [{"text": "x", "index": 0}], "usage": {"prompt_tokens": True}})
@example(body={**COMPLETION, "id": 3, "model": None, "object": [], "created": "x"})
@example(body={**COMPLETION, "choices": [{"index": 0, "delta": "x"}]})
def test_any_mutation_is_an_answer_with_whole_counts_or_a_sentence(body):
    for read in (read_answer, read_piece):
        try:
            read(encoded(body))
        except received.Malformed as bad:
            assert len(str(bad)) < 300


@pytest.fixture
def other():
    with contextlib.closing(odd_answers.Server()) as server:
        yield server


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
                # several threads answer at once: none may see exactly this number
                if outer.key == key and change_after and len(answered) >= change_after:
                    then()  # a record is written before its server listens
                    outer.key = "new"
                return encoded({"/v1/models": MODELS, COMPLETIONS: COMPLETION}.get(path, {}))

        self.answers = Answers()


@pytest.fixture
def keyed(workshop_home):
    with contextlib.ExitStack() as ending:
        yield lambda **options: ending.enter_context(contextlib.closing(Keyed(**options)))


def write_record(server, key="old", state="ready"):
    records.write(ServerRecord(name="a", url=server.url, model="m", api_key=key, state=state))


@pytest.mark.parametrize(("state", "by_url"), [("starting", False), ("ready", True)])
def test_a_server_that_was_started_anew_with_another_key_is_gone_on_with(state, by_url, keyed, run):
    server = keyed(change_after=5, then=lambda: write_record(server, "new", state=state))
    write_record(server)
    summary = run(server if by_url else (), N)
    assert (summary.exit_code, summary.answered) == (0, N)


def test_while_there_is_no_record_the_batch_waits_for_it(keyed, run):
    server = keyed(change_after=5, then=lambda: records.remove("a"))
    again = []

    def report(progress):
        if progress.message.startswith("waiting") and not again:
            again.append(write_record(server, "new"))

    write_record(server)
    assert run((), N, patience_s=20.0, report=report).exit_code == 0 and again


def test_a_server_that_came_back_on_another_port_is_gone_on_with(other, faulty, run, monkeypatch):
    monkeypatch.setattr(servers, "READ_AGAIN_S", 0.05)
    other.answers = {"/v1/models": encoded(MODELS), COMPLETIONS: encoded(COMPLETION)}
    first = faulty(lambda prompt, times: die() if prompt == "row 6" else None, model="m")

    def die():
        write_record(other, "new")
        first.close()
        return "drop"

    write_record(first)
    assert run((), N, patience_s=20.0, concurrency=1).exit_code == 0
    assert other.seen and "Bearer new" in str(other.seen[-1][1])
    assert "Bearer old" not in str(other.seen)


def test_a_key_that_the_user_gave_is_refused_at_once_by_its_name(keyed, run, monkeypatch):
    server = keyed(key="right")
    write_record(server, "right")
    monkeypatch.setenv("WORKSHOP_API_KEY", "wrong")
    with pytest.raises(WorkshopError, match="the key that WORKSHOP_API_KEY holds"):
        run(server, N)
    assert len(server.seen) == 1
    assert run((), N).exit_code == 0  # its record has the right one
    write_record(server, "wrong")
    with pytest.raises(WorkshopError, match="refuses the key"):
        run((), N, "other.jsonl")


@pytest.mark.parametrize(
    ("status", "remedy"), [(400, "Correct what it says"), (500, "Look at the server's log")]
)
def test_a_run_in_which_every_row_fails_says_whose_fault_it_is(
    status, remedy, faulty, run, monkeypatch
):
    monkeypatch.setattr(session, "HOPELESS", 5)
    body = encoded({"error": {"message": "no"}})
    server = faulty(lambda prompt, times: (status, body), model="m")
    with pytest.raises(WorkshopError, match="rows all failed") as failed:
        run(server, N, attempts=1)
    assert failed.value.remedy.startswith(remedy)
