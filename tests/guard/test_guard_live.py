"""Every route that the running vLLM has, by its own word, refuses whoever comes without the key."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.live
WRONG = (
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Bearer"},
    {"X-API-Key": "x"},
    {"api-key": "x"},
)


@pytest.fixture(scope="module")
def routes(server) -> list[str]:
    """All paths of /openapi.json and of the log's "Available routes" (neither has all of them)."""
    root = server.url.removesuffix("/v1")
    headers = {"Authorization": f"Bearer {server.api_key}"}
    published = set(httpx.get(f"{root}/openapi.json", headers=headers, timeout=90).json()["paths"])
    logged = set(re.findall(r"Route: (\S+), (?:Methods|Endpoint):?", Path(server.log).read_text()))
    assert len(published) > 10 and len(logged) > 20, "both lists were found"
    return sorted(published | logged)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_route_but_health_answers_without_the_key(server, routes, method):
    root = server.url.removesuffix("/v1")
    answered = {}
    with httpx.Client(timeout=90) as http:
        for route in routes:
            path = re.sub(r"\{[^}]*\}", "x", route)
            for headers in WRONG:
                status = http.request(method, root + path, headers=headers, json={}).status_code
                if status != 401 and path != "/health":
                    answered[f"{method} {path} {headers}"] = status
    assert not answered


def test_health_answers_everybody_and_tells_nothing(server):
    answer = httpx.get(server.url.replace("/v1", "/health"), timeout=90)
    assert answer.status_code == 200 and len(answer.content) < 100


def test_a_websocket_needs_the_key_as_well(server):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    with pytest.raises(InvalidStatus) as refused:
        connect(server.url.replace("http", "ws") + "/realtime", open_timeout=60)
    assert refused.value.response.status_code in (401, 403)


def test_the_key_opens_what_learners_need(server, routes):
    headers = {"Authorization": f"Bearer {server.api_key}"}
    root = server.url.removesuffix("/v1")
    for path in ("/v1/models", "/metrics", "/version"):
        assert httpx.get(root + path, headers=headers, timeout=90).status_code == 200


def test_the_log_and_the_process_list_hold_no_key(server):
    import psutil

    assert server.api_key not in Path(server.log).read_text()
    for process in psutil.process_iter(["cmdline", "environ"]):
        assert server.api_key not in " ".join(process.info["cmdline"] or [])
        assert server.api_key not in str(process.info["environ"] or {})


def test_an_endless_head_without_the_key_ends_the_connection(server):
    import socket
    from urllib.parse import urlsplit

    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=90) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        with pytest.raises(ConnectionError):
            for number in range(64):
                stranger.sendall(b"X-%d: " % number + b"a" * 2**20 + b"\r\n")
