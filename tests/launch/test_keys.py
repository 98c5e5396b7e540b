"""A key for each learner: made once, refused within seconds when it is taken back, and what was used is written down."""

from __future__ import annotations

import asyncio
import json
import stat
import time

import httpx
import pytest
from click.testing import CliRunner

from workshop.cli.keys import command
from workshop.errors import BadInput
from workshop.launch import auth, keys


@pytest.fixture
def guard(workshop_home, monkeypatch):
    """A guard of a server whose record lies in this test's home; its application answers with what it is told to."""
    monkeypatch.setattr(keys, "REREAD_S", 0.0)
    monkeypatch.setattr(keys, "WRITE_S", 0.0)
    record = workshop_home / "servers" / "one.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"api_key": "owner"}))
    monkeypatch.setenv(auth.RECORD_VARIABLE, str(record))

    async def app(scope, receive, send):
        app.scope, app.body = scope, (await receive()).get("body", b"")
        for part in app.answer:
            await send({"type": "http.response.body", "body": part, "more_body": True})

    app.answer = (b"{}",)
    made = auth.RequireKey(app)
    made.answers = lambda *parts: setattr(app, "answer", parts)
    return made


def ask(guard, key: str, body: object = None, *, path="/v1/completions", method="POST", headers=()):
    sent = []

    async def receive():
        return {"type": "http.request", "body": json.dumps(body or {}).encode()}

    async def send(message):
        sent.append(message)

    given = [(b"authorization", f"Bearer {key}".encode()), *headers]
    scope = {"type": "http", "path": path, "method": method, "headers": given}

    async def all_of_it():
        await guard(scope, receive, send)
        await asyncio.sleep(0)  # the ledger's write comes after the answer

    asyncio.run(all_of_it())
    return sent


def refused(sent) -> bool:
    return sent[0].get("status") == 401


def test_a_key_opens_until_it_is_revoked(guard):
    key = keys.add("ada")
    assert not refused(ask(guard, key)) and refused(ask(guard, key + "x")) and not refused(ask(guard, "owner"))
    keys.revoke("ada")
    assert refused(ask(guard, key)) and not refused(ask(guard, "owner"))
    assert not refused(ask(guard, keys.add("ada"))) and refused(ask(guard, key)), "a new key, not the old one"


def test_the_file_holds_no_key_and_is_ones_own(guard, workshop_home):
    key = keys.add("ada")
    path = workshop_home / "keys.json"
    assert key not in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key not in json.dumps(keys.listed())


def test_the_limits_of_a_class_know_who_asks(guard):
    ask(guard, keys.add("ada"), headers=[(b"X-Workshop-Learner", b"somebody-else")])
    named = [value for name, value in guard.app.scope["headers"] if name.lower() == b"x-workshop-learner"]
    assert named == [b"ada"]


@pytest.mark.parametrize(
    ("path", "usage"),
    [
        ("/v1/completions", b'"usage":{"prompt_tokens":7,"total_tokens":12,"completion_tokens":5,"x":null}'),
        ("/v1/messages", b'"usage": {"input_tokens": 7, "output_tokens": 5}'),
    ],
)
def test_the_ledger_has_what_vllm_reports(guard, path, usage):
    key = keys.add("ada")
    lie = rb'"text":"\"usage\":{\"prompt_tokens\":900,\"completion_tokens\":900}",'
    guard.answers(b"{" + lie + usage + b"}")
    for _ in range(3):
        ask(guard, key, path=path)
    ask(guard, "owner", path=path)
    (entry,) = keys.listed()
    assert (entry["requests"], entry["prompt_tokens"], entry["completion_tokens"]) == (3, 21, 15)
    assert entry["last_used"] and entry["revoked"] is None


EVENTS = (
    b'data: {"choices":[{"text":" a"}]}\n\n',
    b'data: {"choices":[{"text":" b"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":9}}\n\n',
    b"data: [DONE]\n\n",
)


@pytest.mark.parametrize("asked", [False, True])
def test_a_stream_is_counted_and_looks_as_it_was_asked_for(guard, asked):
    key = keys.add("ada")
    guard.answers(*EVENTS)
    options = {"stream_options": {"include_usage": True}} if asked else {}
    sent = [message["body"] for message in ask(guard, key, {"prompt": "x", "stream": True, **options})]
    assert json.loads(guard.app.body)["stream_options"] == {"include_usage": True}
    assert sent == [event for event in EVENTS if asked or b'"choices":[]' not in event]
    assert keys.listed()[0]["completion_tokens"] == 9


def test_a_stream_that_breaks_counts_what_was_sent(guard):
    key = keys.add("ada")
    guard.answers(*EVENTS[:2])
    ask(guard, key, {"prompt": "x", "stream": True})
    assert keys.listed()[0]["completion_tokens"] == 2


@pytest.mark.parametrize("body", [[1], {"stream": "yes"}, {"stream": True, "stream_options": 3}])
def test_a_strange_request_passes_as_it_came(guard, body):
    ask(guard, keys.add("ada"), body)
    assert json.loads(guard.app.body) == body


@pytest.mark.parametrize("text", ["", "[]", '{"ada": 3}', "{"])
def test_a_spoiled_file_of_keys_opens_nothing_and_stops_nobody_else(guard, workshop_home, text):
    key = keys.add("ada")
    (workshop_home / "keys.json").write_text(text)
    assert refused(ask(guard, key)) and not refused(ask(guard, "owner"))


def test_serving_goes_on_where_the_ledger_cannot_be_written(guard, workshop_home, capsys):
    key = keys.add("ada")
    (workshop_home / "ledger").write_text("in the way")
    assert not refused(ask(guard, key))
    assert "ledger" in capsys.readouterr().err
    assert keys.listed()[0]["requests"] == 0


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "a" * 65, "a\n", "Zoë"])
def test_a_name_that_cannot_be_one_is_refused(workshop_home, name):
    with pytest.raises(BadInput, match=r"cannot be a learner's name.*from a to z"):
        keys.add(name)


def test_a_second_key_and_a_stranger_are_refused_with_what_is_there(workshop_home):
    keys.add("ada")
    with pytest.raises(BadInput, match="ada has a key already"):
        keys.add("ada")
    with pytest.raises(BadInput, match="Nobody called 'bob'") as error:
        keys.revoke("bob")
    assert "ada" in error.value.remedy


def test_the_command_line_says_the_same_as_data_and_in_words(workshop_home):
    run = CliRunner().invoke
    made = json.loads(run(command, ["add", "ada", "--json"]).output)
    assert made["name"] == "ada" and len(made["api_key"]) >= 32
    listed = json.loads(run(command, ["list", "--json"]).output)
    assert [each["name"] for each in listed] == ["ada"] and made["api_key"] not in str(listed)
    assert json.loads(run(command, ["revoke", "ada", "--json"]).output) == {"name": "ada", "revoked": True}
    assert "revoked" in run(command, ["list"]).output


@pytest.mark.live
def test_a_running_server_takes_a_new_key_counts_its_tokens_and_refuses_it_within_5_seconds(
    server, live_home, monkeypatch
):
    monkeypatch.setenv("WORKSHOP_HOME", str(live_home))
    key = keys.add("learner.1")
    body = {"model": server.model, "prompt": "The sea", "max_tokens": 6, "min_tokens": 6}

    def status(**more) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.post(f"{server.url}/completions", headers=headers, json={**body, **more}, timeout=60)

    deadline = time.monotonic() + 5
    while status().status_code == 401 and time.monotonic() < deadline:
        time.sleep(0.2)
    answer, stream = status(), status(stream=True)
    assert answer.status_code == 200 and '"usage"' not in stream.text
    each = answer.json()["usage"]["prompt_tokens"]
    deadline = time.monotonic() + 10
    while (used := keys.listed()[0])["requests"] < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert used["prompt_tokens"] == each * used["requests"] and used["completion_tokens"] == 6 * used["requests"]

    keys.revoke("learner.1")
    revoked = time.monotonic()
    while status().status_code != 401:
        assert time.monotonic() - revoked < 5
        time.sleep(0.2)
