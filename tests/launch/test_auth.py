"""The guard: nothing but /health without the key, whatever the shape of the request."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from workshop.launch import auth


@pytest.fixture
def guard(tmp_path, monkeypatch):
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"api_key": "right"}))
    monkeypatch.setenv(auth.RECORD_VARIABLE, str(record))

    async def app(scope, receive, send):
        await send({"type": "passed"})

    return auth.RequireKey(app)


def ask(guard, path="/v1/models", *, kind="http", headers=(), method="GET", root_path=""):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": kind,
        "path": path,
        "method": method,
        "root_path": root_path,
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    asyncio.run(guard(scope, None, send))
    return sent


def passed(sent) -> bool:
    return sent == [{"type": "passed"}]


@pytest.mark.parametrize(
    "headers",
    [[("authorization", "Bearer right")], [("Authorization", "bearer right")], [("authorization", "Bearer  right ")]],
)
def test_the_key_opens(guard, headers):
    assert passed(ask(guard, headers=headers))


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer wrong")],
        [("authorization", "Bearer rightx")],
        [("authorization", "Basic right")],
        [("authorization", "right")],
        [("x-api-key", "right")],
        [("authorization", "Bearer wrong"), ("authorization", "Bearer right")],
    ],
)
def test_anything_else_is_refused_and_says_how(guard, headers):
    start, body = ask(guard, headers=headers)
    assert start["status"] == 401
    assert "Bearer" in json.loads(body["body"])["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/tokenize",
        "/invocations",
        "/health/",
        "/healthx",
        "//health",
        "/v1/health",
        "/HEALTH",
        "/health/../metrics",
        "",
    ],
)
def test_only_health_is_open(guard, path):
    assert ask(guard, path)[0]["status"] == 401
    assert passed(ask(guard, "/health"))
    assert passed(ask(guard, "/proxy/health", root_path="/proxy"))


@pytest.mark.parametrize("path", ["/v1/realtime", "/health"])
def test_websockets_are_guarded_too(guard, path):
    assert ask(guard, path, kind="websocket")[0]["type"] == "websocket.close"
    assert passed(ask(guard, path, kind="websocket", headers=[("authorization", "Bearer right")]))


def test_an_empty_key_serves_nobody(tmp_path, monkeypatch):
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"api_key": ""}))
    monkeypatch.setenv(auth.RECORD_VARIABLE, str(record))
    with pytest.raises(ValueError, match="unguarded"):
        auth.RequireKey(None)


def test_where_there_is_no_record_the_key_comes_from_a_file_of_its_own(tmp_path, monkeypatch):
    key = tmp_path / "api-key"
    key.write_text("right\n")  # as a Secret made from `openssl rand` has it
    monkeypatch.delenv(auth.RECORD_VARIABLE, raising=False)
    monkeypatch.setenv(auth.KEY_FILE_VARIABLE, str(key))

    async def app(scope, receive, send):
        await send({"type": "passed"})

    guard = auth.RequireKey(app)
    assert passed(ask(guard, headers=[("authorization", "Bearer right")]))
    assert ask(guard)[0]["status"] == 401


def test_no_file_or_an_empty_one_serves_nobody(tmp_path, monkeypatch):
    monkeypatch.delenv(auth.RECORD_VARIABLE, raising=False)
    monkeypatch.delenv(auth.KEY_FILE_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="unguarded"):
        auth.RequireKey(None)
    (tmp_path / "empty").write_text("\n")
    monkeypatch.setenv(auth.KEY_FILE_VARIABLE, str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="unguarded"):
        auth.RequireKey(None)


def test_the_file_alone_guards_where_no_other_part_of_the_workshop_is(tmp_path):
    (tmp_path / "guard.py").write_text(Path(auth.__file__).read_text())
    (tmp_path / "key").write_text("right")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport asyncio, guard\nsent = []\n"
        "async def send(m): sent.append(m)\n"
        "asyncio.run(guard.RequireKey(None)({'type': 'http', 'path': '/metrics', 'headers': []}, None, send))\n"
        "print(sent[0]['status'])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        env={auth.KEY_FILE_VARIABLE: str(tmp_path / "key")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "401", done.stderr


def test_a_scrapers_key_opens_the_metrics_alone(guard, tmp_path, monkeypatch):
    (tmp_path / "metrics-key").write_text("scraper\n")
    monkeypatch.setenv(auth.METRICS_KEY_FILE_VARIABLE, str(tmp_path / "metrics-key"))
    two = auth.RequireKey(guard.app)
    scraper = [("authorization", "Bearer scraper")]
    assert passed(ask(two, "/metrics", headers=scraper)) and passed(
        ask(two, "/a/metrics", headers=scraper, root_path="/a")
    )
    assert not passed(ask(two, "/v1/models", headers=scraper)) and not passed(ask(guard, "/metrics", headers=scraper))
    assert not passed(ask(two, "/metrics", kind="websocket", headers=scraper))


def test_an_empty_scrapers_key_opens_nothing(guard, tmp_path, monkeypatch):
    (tmp_path / "metrics-key").write_text("\n")
    monkeypatch.setenv(auth.METRICS_KEY_FILE_VARIABLE, str(tmp_path / "metrics-key"))
    assert not passed(ask(auth.RequireKey(guard.app), "/metrics", headers=[("authorization", "Bearer ")]))
