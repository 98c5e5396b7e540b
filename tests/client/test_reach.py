"""Which way a request takes: web proxies, keys, and addresses that are none."""

from __future__ import annotations

import contextlib

import httpx
import odd_answers
import openai
import pytest
from odd_answers import COMPLETION, MODELS, encoded

import workshop
from workshop import batch
from workshop.client import client, reach, transport
from workshop.engine import http, metrics
from workshop.errors import BadInput, WorkshopError
from workshop.measure import timed
from workshop.servers import records
from workshop.servers.records import ServerRecord


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
    records.write(
        ServerRecord(name="a", url=server.url, model="m", api_key="secret", state="ready")
    )
    client = workshop.connect()
    client.complete("San")
    client.get("/openapi.json")
    with pytest.raises(WorkshopError, match="breaks off"):  # it answered without a stream
        list(client.complete("San", stream=True))
    httpx.post(f"{client.url}/completions", headers=client.headers, json={})
    openai.OpenAI(base_url=client.url, api_key="secret", max_retries=0).completions.create(
        model="m", prompt="x"
    )
    assert proxy.seen == [] and len(server.seen) > 5


def test_this_machine_is_never_asked_through_a_proxy(server, proxy, monkeypatch, capsys):
    monkeypatch.setenv("WORKSHOP_URL", server.url)
    workshop.connect().complete("San")
    assert proxy.seen == [] and capsys.readouterr().err == ""


def test_https_goes_through_the_proxy_that_is_named(proxy, monkeypatch, capsys):
    monkeypatch.setenv("WORKSHOP_URL", "https://gpu.example/v1")
    monkeypatch.setenv("WORKSHOP_API_KEY", "secret")
    with pytest.raises(WorkshopError):
        workshop.connect()
    assert "secret" not in str(proxy.seen) and proxy.seen
    (message,) = capsys.readouterr().err.splitlines()
    assert (
        "not the key" in message
        and proxy.root.removeprefix("http://") in message
        and "no_proxy=gpu.example" in message
    )


OUTSIDE = "http://gpu.localhost:8000/v1"  # no loopback address by its looks, and no name that is asked of others


def send_timed(llm) -> None:
    """Send a request as `workshop bench` does."""

    async def sent():
        async with timed.TimedSender(llm) as sender:
            return await sender.send({"prompt": "x", "max_tokens": 1})

    timed.run(sent())


def everything_that_asks(url, tmp_path):
    """Ask a server in every way that has the key; nobody answers."""
    (tmp_path / "in.txt").write_text("x\n")
    with contextlib.suppress(WorkshopError):
        workshop.connect()
    record = reach.record_of_address(url, "WORKSHOP_URL")
    llm = client.Client(record)
    for ask in (
        lambda: llm.get("/version"),
        lambda: llm.complete("San"),
        lambda: llm.http.get(f"{llm.url}/models"),
        lambda: llm.openai.models.list(),
        lambda: metrics.fetch(url, "secret"),
        lambda: http.get(f"{url}/models", 1.0, headers=llm.headers),
        lambda: send_timed(llm),
        lambda: batch.run(tmp_path / "in.txt", tmp_path / "out.jsonl", url=url),
    ):
        with contextlib.suppress(WorkshopError, httpx.HTTPError, openai.OpenAIError):
            ask()


def test_plain_http_goes_through_no_proxy_of_the_environment(
    proxy, monkeypatch, capsys, tmp_path, workshop_home
):
    """It would read the key."""
    monkeypatch.setenv("WORKSHOP_URL", OUTSIDE)
    monkeypatch.setenv("WORKSHOP_API_KEY", "secret")
    everything_that_asks(OUTSIDE, tmp_path)
    assert proxy.seen == []
    messages = capsys.readouterr().err
    assert (
        "asked directly" in messages
        and "could read the key" in messages
        and "WORKSHOP_PROXY" in messages
    )


def test_what_a_learner_sends_over_plain_http_goes_through_no_proxy_either(
    server, proxy, monkeypatch
):
    # the stub stands for a server elsewhere
    monkeypatch.setattr(transport, "_this_machine", lambda host: False)
    monkeypatch.setenv("WORKSHOP_URL", server.url)
    monkeypatch.setenv("WORKSHOP_API_KEY", "secret")
    llm = workshop.connect()
    httpx.post(f"{llm.url}/completions", headers=llm.headers, json={})
    openai.OpenAI(base_url=llm.url, api_key="secret", max_retries=0).completions.create(
        model="m", prompt="x"
    )
    assert proxy.seen == []


def test_plain_http_goes_through_the_proxy_that_the_user_names(
    proxy, monkeypatch, capsys, tmp_path
):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name)
    proxy.answers["http://gpu.example:8000/v1/models"] = encoded(MODELS)
    proxy.answers["http://gpu.example:8000/v1/completions"] = encoded(COMPLETION)
    monkeypatch.setenv("WORKSHOP_URL", "http://gpu.example:8000/v1")
    monkeypatch.setenv("WORKSHOP_PROXY", proxy.root.removeprefix("http://"))
    llm = workshop.connect()
    assert llm.model == "m" and proxy.seen
    (message,) = capsys.readouterr().err.splitlines()
    assert (
        "can read the key" in message
        and "(WORKSHOP_PROXY)" in message
        and "no_proxy=gpu.example" in message
    )
    (tmp_path / "in.txt").write_text("x\n")
    seen_before = len(proxy.seen)
    send_timed(llm)
    assert len(proxy.seen) == seen_before + 1
    summary = batch.run(tmp_path / "in.txt", tmp_path / "out.jsonl", url=llm.url)
    assert summary.exit_code == 0


def test_no_proxy_counts_for_the_users_own_proxy(proxy, monkeypatch):
    monkeypatch.setenv("WORKSHOP_PROXY", proxy.root)
    for listed in ("gpu.example", ".example", "*"):
        monkeypatch.setenv("no_proxy", listed)
        assert transport.proxy_to("http://gpu.example:8000/v1") is None
        assert transport.proxy_to("https://gpu.example/v1") is None


def test_a_proxy_that_cannot_be_used_is_a_sentence_without_its_password(monkeypatch):
    monkeypatch.setenv("WORKSHOP_URL", "https://gpu.example:8000/v1")
    monkeypatch.setenv("ALL_PROXY", "socks5://me:password@127.0.0.1:9")
    with pytest.raises(BadInput, match="socks5 is no web proxy") as error:
        workshop.connect()
    assert "password" not in str(error.value)
    monkeypatch.setenv("no_proxy", "gpu.example")
    with pytest.raises(WorkshopError, match="does not answer"):
        workshop.connect()


def test_a_key_is_sent_as_it_is_or_refused_without_being_shown(server, monkeypatch):
    monkeypatch.setenv("WORKSHOP_URL", server.url)
    for key, sent in (("", None), (" secret\n", "Bearer secret")):
        monkeypatch.setenv("WORKSHOP_API_KEY", key)
        assert workshop.connect().record.api_key == key.strip()
        assert server.seen[-1][1].get("Authorization") == sent
    for key in ("sé", "a\nb"):
        monkeypatch.setenv("WORKSHOP_API_KEY", key)
        with pytest.raises(BadInput, match="characters that no key has") as error:
            workshop.connect()
        assert key not in str(error.value)


NO_ADDRESSES = (
    "http://",
    "http://[::1/v1",
    "http://a b/v1",
    "http://h:99999/v1",
    "http://h\n/v1",
    "ftp://h/v1",
    "http://h:0/v1",
    "http://ada:se@cret@h/v1",  # as httpx takes it, it would go in the place of the key
)


def test_an_address_that_is_none_is_refused(monkeypatch):
    for url in NO_ADDRESSES:
        monkeypatch.setenv("WORKSHOP_URL", url)
        with pytest.raises(BadInput, match="no address") as error:
            workshop.connect()
        assert "cret" not in str(error.value) and "se@" not in error.value.message, url
