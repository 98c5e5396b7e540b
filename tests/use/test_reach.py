"""Which way a request takes: web proxies, keys, and addresses that are none."""

from __future__ import annotations

import httpx
import odd_answers
import openai
import pytest
from odd_answers import MODELS, encoded

import workshop
from workshop.errors import BadInput, WorkshopError
from workshop.launch import records
from workshop.launch.records import ServerRecord


@pytest.fixture
def server(workshop_home):
    with odd_answers.sound() as server:
        yield server


@pytest.fixture
def proxy(monkeypatch):
    """A web proxy in the environment, which keeps what it sees."""
    proxy = odd_answers.Server()
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.root)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield proxy
    proxy.close()


def test_a_server_with_a_record_is_asked_past_every_proxy(server, proxy, monkeypatch):
    """Also by what a learner sends with httpx and openai themselves."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "example.org")  # and is put back
    records.write(ServerRecord(name="a", url=server.url, model="m", api_key="secret", state="ready"))
    client = workshop.connect()
    client.complete("San")
    client.get("/openapi.json")
    with pytest.raises(WorkshopError, match="breaks off"):  # it answered without a stream
        list(client.complete("San", stream=True))
    httpx.post(f"{client.url}/completions", headers=client.headers, json={})
    openai.OpenAI(base_url=client.url, api_key="secret", max_retries=0).completions.create(model="m", prompt="x")
    assert proxy.seen == [] and len(server.seen) > 5


def test_this_machine_is_never_asked_through_a_proxy(server, proxy, monkeypatch, capsys):
    monkeypatch.setenv("WORKSHOP_URL", server.url)
    workshop.connect().complete("San")
    assert proxy.seen == [] and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("url", "sees"), [("http://gpu.example:8000/v1", "can read the key"), ("https://gpu.example/v1", "not the key")]
)
def test_an_address_outside_goes_through_the_proxy_that_is_named(url, sees, proxy, monkeypatch, capsys):
    proxy.answers["http://gpu.example:8000/v1/models"] = encoded(MODELS)
    monkeypatch.setenv("WORKSHOP_URL", url)
    monkeypatch.setenv("WORKSHOP_API_KEY", "secret")
    if url.startswith("https"):
        with pytest.raises(WorkshopError):
            workshop.connect()
        assert "secret" not in str(proxy.seen) and proxy.seen
    else:
        assert workshop.connect().model == "m" and proxy.seen
    (said,) = capsys.readouterr().err.splitlines()
    assert sees in said and proxy.root.removeprefix("http://") in said and "no_proxy=gpu.example" in said


def test_a_proxy_that_cannot_be_used_is_a_sentence_without_its_password(monkeypatch):
    monkeypatch.setenv("WORKSHOP_URL", "http://gpu.example:8000/v1")
    monkeypatch.setenv("ALL_PROXY", "socks5://me:password@127.0.0.1:9")
    with pytest.raises(BadInput, match="socks5 is no web proxy") as error:
        workshop.connect()
    assert "password" not in str(error.value)
    monkeypatch.setenv("no_proxy", "gpu.example")
    with pytest.raises(WorkshopError, match="does not answer"):
        workshop.connect()


@pytest.mark.parametrize(("key", "good"), [("", True), (" secret\n", True), ("sé", False), ("a\nb", False)])
def test_a_key_is_sent_as_it_is_or_refused_without_being_shown(key, good, server, monkeypatch):
    monkeypatch.setenv("WORKSHOP_URL", server.url)
    monkeypatch.setenv("WORKSHOP_API_KEY", key)
    if good:
        assert workshop.connect().record.api_key == key.strip()
        assert server.seen[0][1].get("Authorization") == (f"Bearer {key.strip()}" if key else None)
    else:
        with pytest.raises(BadInput, match="characters that no key has") as error:
            workshop.connect()
        assert key not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://[::1/v1",
        "http://a b/v1",
        "http://h:99999/v1",
        "http://h:x/v1",
        "http://h\n/v1",
        "ftp://h/v1",
        "http://h:0/v1",
        "http://ada:se@cret@h/v1",  # as httpx takes it, it would go in the place of the key
    ],
)
def test_an_address_that_is_none_is_refused(url, monkeypatch):
    monkeypatch.setenv("WORKSHOP_URL", url)
    with pytest.raises(BadInput, match="no address") as error:
        workshop.connect()
    assert "cret" not in str(error.value) and "se@" not in error.value.message
