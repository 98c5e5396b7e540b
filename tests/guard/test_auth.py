"""The guard: nothing but /health without the key, whatever the shape of the request."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from asgi_client import answer_of
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from workshop.guard import asgi, auth
from workshop.home import write_private


@pytest.fixture
def guard(tmp_path, monkeypatch):
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"api_key": "right"}))
    monkeypatch.setenv(auth.RECORD_VARIABLE, str(record))

    async def app(scope, receive, send):
        await send({"type": "passed"})

    return auth.RequireKey(app)


def ask(guard, path="/v1/models", **options):
    return asyncio.run(answer_of(guard, path, **{"method": "GET", **options}))


def passed(sent) -> bool:
    return sent == [{"type": "passed"}]


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Bearer right")],
        [("Authorization", "bearer right")],
        [("authorization", "Bearer  right ")],
        [("X-Api-Key", "right")],
        [("api-key", " right")],
        [("authorization", "Bearer right"), ("x-api-key", "right"), ("api-key", "right")],
        [("authorization", "Bearer "), ("x-api-key", "right")],
        [("authorization", "Basic of-a-proxy"), ("x-api-key", "right")],
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_the_key_opens(guard, headers, kind):
    assert passed(ask(guard, headers=headers, kind=kind))


def test_two_different_keys_are_refused_as_such(guard):
    _, body = ask(guard, headers=[("authorization", "Bearer right"), ("x-api-key", "other")])
    assert "two different keys" in json.loads(body["body"])["error"]["message"]


def test_what_is_behind_the_guard_never_sees_a_key(guard):
    async def app(scope, receive, send):
        app.headers = scope["headers"]

    guard.app = app
    ask(
        guard,
        headers=[
            ("Authorization", "Bearer right"),
            ("X-API-Key", "right"),
            ("api-key", "right"),
            ("x-y", "z"),
        ],
    )
    assert app.headers == [(b"x-y", b"z")]


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
        [("x-api-key", "wrong")],
        [("api-key", "")],
        [("x-api-key", "Bearer right")],
        [("x-goog-api-key", "right")],
        [("authorization", "Bearer wrong"), ("authorization", "Bearer right")],
        [("authorization", "Bearer right"), ("x-api-key", "wrong")],
        [("authorization", "Bearer wrong"), ("x-api-key", "right")],
        [("x-api-key", "right"), ("api-key", "other")],
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


def test_a_new_key_in_the_file_counts_and_a_broken_or_missing_file_changes_nothing(
    guard, tmp_path, monkeypatch
):
    monkeypatch.setattr(auth, "REREAD_S", 0.0)
    record = tmp_path / "record.json"

    def opens(key: str) -> bool:
        return passed(ask(guard, headers=[("authorization", f"Bearer {key}")]))

    write_private(record, json.dumps({"api_key": "new"}))
    assert opens("new") and not opens("right")
    for text in ("{", json.dumps({"api_key": ""}), json.dumps({})):
        record.write_text(text)
        assert opens("new") and not opens("")
    record.unlink()
    assert opens("new")


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
    (tmp_path / "record.json").write_text('{"api_key": ""}')
    monkeypatch.delenv(auth.KEY_FILE_VARIABLE)
    monkeypatch.setenv(auth.RECORD_VARIABLE, str(tmp_path / "record.json"))
    with pytest.raises(ValueError, match="unguarded"):
        auth.RequireKey(None)


def test_two_files_alone_guard_where_no_other_part_of_the_workshop_is(tmp_path):
    package = tmp_path / "workshop" / "guard"
    package.mkdir(parents=True)
    for file in (auth.__file__, asgi.__file__):
        (package / Path(file).name).write_text(Path(file).read_text())
    (tmp_path / "key").write_text("right")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport asyncio\nfrom workshop.guard import auth\n"
        "sent = []\nasync def send(m): sent.append(m)\n"
        "asyncio.run(auth.RequireKey(None)({'type': 'http', 'path': '/metrics', 'headers': []}, None, send))\n"
        "print(auth.__file__, sent[0]['status'])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        env={auth.KEY_FILE_VARIABLE: str(tmp_path / "key")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [str(package / "auth.py"), "401"], done.stderr


def test_a_scrapers_key_opens_the_metrics_alone(guard, tmp_path, monkeypatch):
    (tmp_path / "metrics-key").write_text("scraper\n")
    monkeypatch.setenv(auth.METRICS_KEY_FILE_VARIABLE, str(tmp_path / "metrics-key"))
    two = auth.RequireKey(guard.app)
    scraper = [("authorization", "Bearer scraper")]
    assert passed(ask(two, "/metrics", headers=scraper)) and passed(
        ask(two, "/a/metrics", headers=scraper, root_path="/a")
    )
    assert not passed(ask(two, "/v1/models", headers=scraper)) and not passed(
        ask(guard, "/metrics", headers=scraper)
    )
    assert not passed(ask(two, "/metrics", kind="websocket", headers=scraper))


def test_an_empty_scrapers_key_opens_nothing(guard, tmp_path, monkeypatch):
    (tmp_path / "metrics-key").write_text("\n")
    monkeypatch.setenv(auth.METRICS_KEY_FILE_VARIABLE, str(tmp_path / "metrics-key"))
    assert not passed(
        ask(auth.RequireKey(guard.app), "/metrics", headers=[("authorization", "Bearer ")])
    )


# What a browser asks before a page of another origin may send JSON with a key.
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}
PAGE = "https://page.example"


def guarded_by(keeper, **cors) -> TestClient:
    """A client of a Starlette application with the middlewares in vLLM's order: CORS first, so innermost."""
    app = Starlette(
        routes=[
            Route(
                "/v1/models", lambda request: JSONResponse({}), methods=["GET", "POST", "OPTIONS"]
            )
        ]
    )
    app.add_middleware(CORSMiddleware, **{"allow_methods": ["*"], "allow_headers": ["*"], **cors})
    app.add_middleware(keeper)
    return TestClient(app)


def vllms_own(app):
    """Stand in for vLLM 0.32's AuthenticationMiddleware, which passes every OPTIONS request on."""
    return app


CORS_HEADERS = (
    "access-control-allow-origin",
    "access-control-allow-methods",
    "access-control-allow-headers",
)
CORS_HEADERS += ("access-control-allow-credentials", "access-control-max-age")


@pytest.mark.parametrize("cors", [{"allow_origins": ["*"]}, {"allow_origins": ["*"], "allow_credentials": True},
                                  {"allow_origins": [PAGE]}, {"allow_origins": []},
                                  {"allow_origins": [PAGE], "allow_methods": ["GET"]},
                                  {"allow_origins": [PAGE], "allow_headers": ["x-other"]}])  # fmt: skip
@pytest.mark.parametrize("origin", [PAGE, "https://stranger.example", "null"])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_preflight_is_answered_as_vllm_with_its_own_key_does(guard, cors, origin, method):
    headers = {**PREFLIGHT, "Origin": origin, "Access-Control-Request-Method": method}
    ours = guarded_by(auth.RequireKey, **cors).options("/v1/models", headers=headers)
    theirs = guarded_by(vllms_own, **cors).options("/v1/models", headers=headers)
    assert ours.status_code == theirs.status_code and ours.text == theirs.text
    for name in CORS_HEADERS:
        assert ours.headers.get(name) == theirs.headers.get(name)


@pytest.mark.parametrize("headers", [{}, {"Origin": PAGE}, PREFLIGHT, {"Origin": "", **PREFLIGHT}])
def test_any_other_options_request_needs_the_key(guard, headers):
    client = guarded_by(auth.RequireKey, allow_origins=["*"])
    assert client.options("/v1/models", headers=headers).status_code == 401


def test_a_preflight_needs_the_key_where_the_application_has_no_cors(guard):
    app = Starlette(
        routes=[Route("/v1/models", lambda request: JSONResponse({}), methods=["OPTIONS"])]
    )
    app.add_middleware(auth.RequireKey)
    assert (
        TestClient(app).options("/v1/models", headers={"Origin": PAGE, **PREFLIGHT}).status_code
        == 401
    )


@pytest.mark.parametrize(
    ("origin", "readable"), [(PAGE, True), ("https://stranger.example", False)]
)
@pytest.mark.parametrize("key", ["right", "wrong"])
def test_a_page_of_an_allowed_origin_can_read_the_answer_and_the_refusal(
    guard, origin, readable, key
):
    client = guarded_by(auth.RequireKey, allow_origins=[PAGE])
    answer = client.get("/v1/models", headers={"Origin": origin, "x-api-key": key})
    assert answer.status_code == (200 if key == "right" else 401)
    allowed = answer.headers.get_list("access-control-allow-origin")
    assert allowed == ([PAGE] if readable else [])
