"""A key for each learner: made once, and refused within seconds when it is taken back."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import stat
import time
from pathlib import Path

import httpx
import pytest
from asgi_client import answer_of
from click.testing import CliRunner

from workshop.cli.teach.keys import command
from workshop.errors import BadInput, WorkshopError
from workshop.guard import auth, keys


@pytest.fixture
def guard(workshop_home, monkeypatch):
    """A guard of a server whose record lies in this test's home; its application answers with what it is told to."""
    monkeypatch.setattr(keys, "REREAD_S", 0.0)
    record = workshop_home / "servers" / "one.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"api_key": "owner"}))
    monkeypatch.setenv(auth.RECORD_VARIABLE, str(record))

    async def app(scope, receive, send):
        app.scope, app.body = scope, (await receive()).get("body", b"")
        await send({"type": "http.response.body", "body": b"{}", "more_body": True})

    return auth.RequireKey(app)


def ask(guard, key: str, body: object = None, *, path="/v1/completions", headers=(), **options):
    data = json.dumps(body or {}).encode()
    all_headers = [("authorization", f"Bearer {key}"), *headers]
    return asyncio.run(answer_of(guard, path, data, headers=all_headers, **options))


def refused(sent) -> bool:
    return sent[0].get("status") == 401


def test_a_key_opens_until_it_is_revoked(guard):
    key = keys.add("ada")
    assert (
        not refused(ask(guard, key))
        and refused(ask(guard, key + "x"))
        and not refused(ask(guard, "owner"))
    )
    keys.revoke("ada")
    assert refused(ask(guard, key)) and not refused(ask(guard, "owner"))
    assert not refused(ask(guard, keys.add("ada"))) and refused(ask(guard, key)), (
        "a new key, not the old one"
    )


def test_the_file_holds_no_key_and_is_ones_own(guard, workshop_home):
    key = keys.add("ada")
    path = workshop_home / "keys.json"
    assert key not in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key not in json.dumps(keys.listed())


def test_the_limits_of_a_class_know_who_asks(guard):
    ask(guard, keys.add("ada"), headers=[("X-Workshop-Learner", "somebody-else")])
    named = [
        value for name, value in guard.app.scope["headers"] if name.lower() == b"x-workshop-learner"
    ]
    assert named == [b"ada"]


STRANGE = ({"stream": "perhaps"}, {"stream": 2}, {"stream": True, "stream_options": 3})
STRANGE += ({"stream": True, "stream_options": {"include_usage": "perhaps"}},)


@pytest.mark.parametrize("body", STRANGE, ids=str)
def test_a_strange_request_passes_as_it_came(guard, body):
    ask(guard, keys.add("ada"), body)
    assert guard.app.body == json.dumps(body).encode()


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        ([1], "/v1/completions", 400),
        ({"stream": float("nan")}, "/v1/completions", 400),
        ({"n": 33}, "/v1/completions", 400),
        ({"max_tokens": 5000}, "/v1/chat/completions", 400),
        ({"response_format": {"schema": {"maxItems": 10**9}}}, "/v1/chat/completions", 400),
        ({}, "/sleep", 403),
        ({}, "/invocations", 403),
    ],
    ids=str,
)
def test_learners_with_keys_have_the_limits_of_a_class_and_the_owner_has_none(
    guard, body, path, status
):
    """Also on a server that was started without --learners."""
    sent = ask(guard, keys.add("ada"), body, path=path)
    assert sent[0]["status"] == status and dict(sent[0]["headers"])[b"x-workshop-limits"]
    assert not hasattr(guard.app, "body"), "the engine did not see it"
    ask(guard, "owner", body, path=path)
    assert guard.app.body == json.dumps(body or {}).encode()


def test_a_websocket_is_closed_to_a_learner_and_open_to_the_owner(guard):
    sent = ask(guard, keys.add("ada"), path="/v1/realtime", kind="websocket")
    assert sent[0]["reason"] == "not open in this class" and not hasattr(guard.app, "scope")
    ask(guard, "owner", path="/v1/realtime", kind="websocket")
    assert guard.app.scope["type"] == "websocket"


GOOD = {"sha256": "0" * 64, "created": "2026-01-01T00:00:00Z", "revoked": None}
ODD = [
    "",
    "[]",
    '{"ada": 3}',
    '{"ada": {}}',
    json.dumps({"bob": GOOD, "ada": {"sha256": "0" * 64}}),
]


def spoil(path, how):
    """Put something in the place of a file; return what it holds then."""
    path.unlink(missing_ok=True)
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "link to nothing":
        path.symlink_to(path.with_name("nowhere"))
    elif how == "not text":
        path.write_bytes(b'{"ad\xff": {}}')
    else:
        path.write_text(how)
    return path.read_bytes() if path.is_file() else how


@pytest.mark.parametrize(
    "how", [*ODD, "folder", "pipe", "link to nothing", "not text"], ids=lambda how: how[:40]
)
def test_a_file_that_cannot_be_read_whole_is_refused_and_kept(guard, workshop_home, how):
    ada, bob = keys.add("ada"), keys.add("bob")
    keys.revoke("bob")
    path = workshop_home / "keys.json"
    good = path.read_bytes()
    before = spoil(path, how)
    for command_ in (lambda: keys.add("eve"), lambda: keys.revoke("ada"), keys.listed):
        with pytest.raises(WorkshopError, match=r"keys\.json") as refused_:
            command_()
        assert "Repair it" in refused_.value.remedy and "\n" not in refused_.value.message
    assert not path.is_file() or path.read_bytes() == before
    assert refused(ask(guard, ada)) and not refused(ask(guard, "owner")), (
        "this server has read no good table"
    )

    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.write_bytes(good)
    assert not refused(ask(guard, ada)) and refused(ask(guard, bob))


def test_a_file_that_is_unreadable_for_a_moment_is_refused_and_kept(workshop_home, monkeypatch):
    keys.add("ada")
    before = (workshop_home / "keys.json").read_bytes()
    for error in (errno.EACCES, errno.EIO, errno.ESTALE, errno.ETIMEDOUT):

        def fails(*_, code=error, **__):
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr("inference_planner.files.open", fails, raising=False)
            with pytest.raises(WorkshopError, match=os.strerror(error)):
                keys.read_table(workshop_home / "keys.json")
    assert (workshop_home / "keys.json").read_bytes() == before
    keys.add("bob")
    assert [entry["name"] for entry in keys.listed()] == ["ada", "bob"]


def test_no_file_is_an_empty_table(workshop_home):
    assert keys.listed() == []


def test_a_disk_that_is_full_costs_no_key(workshop_home, monkeypatch):
    keys.add("ada")
    before = (workshop_home / "keys.json").read_bytes()
    replace = os.replace

    def full(source, target):
        if Path(target).name == "keys.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(WorkshopError, match="No space"):
        keys.revoke("ada")
    assert (workshop_home / "keys.json").read_bytes() == before


def test_a_running_server_keeps_the_last_good_table_and_says_so_once(guard, workshop_home, capsys):
    ada, bob = keys.add("ada"), keys.add("bob")
    keys.revoke("bob")
    assert not refused(ask(guard, ada))
    path = workshop_home / "keys.json"
    good = path.read_bytes()
    for how in (good[:100].decode(), "", "pipe"):
        spoil(path, how)
        assert (
            not refused(ask(guard, ada))
            and refused(ask(guard, bob))
            and refused(ask(guard, "stranger"))
        )
    stderr = capsys.readouterr().err
    assert stderr.count("keys.json") == 1 and "stay valid until it is repaired" in stderr
    path.unlink()
    path.write_bytes(good)
    keys.revoke("ada")
    assert refused(ask(guard, ada))
    path.unlink()
    assert refused(ask(guard, ada)) and not capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "a" * 65, "a\n", "Zoë"])
def test_a_name_that_cannot_be_one_is_refused(workshop_home, name):
    with pytest.raises(BadInput, match=r"cannot be a learner's name.*from a to z"):
        keys.add(name)


def test_a_second_key_and_a_stranger_are_refused_with_what_is_there(workshop_home):
    keys.add("ada")
    with pytest.raises(BadInput, match="ada has a key already"):
        keys.add("ada")
    with pytest.raises(WorkshopError, match="Nobody called 'bob'") as error:
        keys.revoke("bob")
    assert "ada" in error.value.remedy


def test_the_command_line_says_the_same_as_data_and_in_words(workshop_home):
    run = CliRunner().invoke
    made = json.loads(run(command, ["add", "ada", "--json"]).output)
    assert list(made) == ["ada"] and len(made["ada"]) >= 32
    listed = json.loads(run(command, ["list", "--json"]).output)
    assert [entry["name"] for entry in listed] == ["ada"] and made["ada"] not in str(listed)
    assert json.loads(run(command, ["revoke", "ada", "--json"]).output) == {
        "name": "ada",
        "revoked": True,
    }
    assert "revoked" in run(command, ["list"]).output


@pytest.mark.live
def test_a_running_server_takes_a_new_key_and_refuses_it_within_5_seconds(
    server, live_home, monkeypatch
):
    monkeypatch.setenv("WORKSHOP_HOME", str(live_home))
    key = keys.add("learner.1")
    body = {"model": server.model, "prompt": "The sea", "max_tokens": 6, "min_tokens": 6}

    def status(**more) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.post(
            f"{server.url}/completions", headers=headers, json={**body, **more}, timeout=60
        )

    deadline = time.monotonic() + 5
    while status().status_code == 401 and time.monotonic() < deadline:
        time.sleep(0.2)
    answer, stream = status(), status(stream=True)
    assert answer.status_code == 200 and '"usage"' not in stream.text

    keys.revoke("learner.1")
    revoked = time.monotonic()
    while status().status_code != 401:
        assert time.monotonic() - revoked < 5
        time.sleep(0.2)
