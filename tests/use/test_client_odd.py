"""Whatever a server answers, the client gives a whole answer or one sentence that names what came."""

from __future__ import annotations

import contextlib
import json

import httpx
import odd_answers
import openai
import pytest
from hypothesis import HealthCheck, example, given, settings
from odd_answers import BROKEN, BROKEN_MODELS, COMPLETION, LOGIN, MODELS, encoded

import workshop
from workshop.errors import BadInput, WorkshopError
from workshop.launch import records
from workshop.launch.records import ServerRecord
from workshop.use import logprobs
from workshop.use.client import Client

CHAT = {
    **COMPLETION,
    "object": "chat.completion",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
}
quiet = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def server(workshop_home):
    server = odd_answers.Server()
    server.answers = {
        "/v1/models": encoded(MODELS),
        "/v1/completions": encoded(COMPLETION),
        "/v1/chat/completions": encoded(CHAT),
    }
    yield server
    server.close()


@pytest.fixture
def client(server):
    return Client(ServerRecord(name="a", url=server.url, model="m", api_key="secret", state="ready"))


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_what_is_no_answer_is_one_sentence(body, server, client):
    server.answers["/v1/completions"] = body
    with pytest.raises(WorkshopError, match="answers with") as error:
        client.complete("San")
    assert len(str(error.value)) < 400


def test_what_came_is_named(server, client):
    for body, says in (
        (LOGIN, "an HTML page"),
        (b"", "nothing"),
        (BROKEN["choices []"], "0 choices"),
        (BROKEN["usage 'x'"], "a usage that is text"),
        (BROKEN["UTF-16"], "UTF-8"),
    ):
        server.answers["/v1/completions"] = body
        with pytest.raises(WorkshopError, match=says):
            client.complete("San")


@pytest.mark.parametrize("kind", ["text/html", "text/plain", "application/octet-stream", ""])
def test_the_content_type_decides_nothing(kind, server, client):
    server.answers["/v1/completions"] = encoded(COMPLETION), kind
    try:
        assert client.complete("San").choices[0].text == " city"
    except WorkshopError as error:
        assert "answers with" in str(error)
    server.answers["/v1/completions"] = LOGIN, kind
    with pytest.raises(WorkshopError, match="HTML"):
        client.complete("San")


def test_as_many_answers_as_were_asked_for(server, client):
    for asked, sent, good in ((3, 3, True), (3, 1, False), (3, 4, False), (1, 3, False)):
        choices = [{**COMPLETION["choices"][0], "index": index} for index in range(sent)]
        server.answers["/v1/completions"] = encoded({**COMPLETION, "choices": choices})
        if good:
            assert len(client.complete("San", n=asked).choices) == asked
            assert len(client.complete(["a", "b", "c"]).choices) == asked
            assert len(client.complete([[1, 2], [3], [4]], extra_body={"n": 1}).choices) == asked
        else:
            with pytest.raises(WorkshopError, match=f"{sent} choices, and {asked}"):
                client.complete("San", n=asked)


def test_a_chat_is_checked_as_a_completion_is(server, client):
    assert client.chat("hello").choices[0].message.content == "hello"
    for message in (None, "x", [], {"content": 3}):
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        server.answers["/v1/chat/completions"] = encoded({**CHAT, "choices": [choice]})
        with pytest.raises(WorkshopError, match="answers with"):
            client.chat("hello")


@quiet
@given(body=odd_answers.mutated)
@example(body={**COMPLETION, "model": None})
@example(body={**COMPLETION, "id": 3, "object": [], "created": "x"})
def test_any_mutation_is_a_whole_answer_or_a_sentence(body, server, client):
    server.answers["/v1/completions"] = encoded(body)
    try:
        answer = client.complete("San", logprobs=1)
    except WorkshopError:
        return
    assert len(answer.choices) == 1 and isinstance(answer.choices[0].text, str)


@pytest.mark.parametrize(
    "wire",
    [
        odd_answers.cut_in_chunks(encoded(COMPLETION)),
        "",
        "nonsense\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{",
        "HTTP/1.1 999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        "HTTP/1.1 204 No Content\r\n\r\n",
    ],
    ids=lambda wire: repr(wire)[:30],
)
def test_a_broken_connection_is_one_sentence(wire, server, client, monkeypatch):
    server.answers["/v1/completions"] = server.answers["/v1/models"] = wire
    for ask in (client.models, lambda: client.complete("San"), lambda: list(client.complete("San", stream=True))):
        with pytest.raises(WorkshopError):
            ask()


@pytest.mark.parametrize(
    "line",
    [
        "data: {",
        "data: [1",
        'data: "x"',
        "data: " + "[" * 5000,
        'data: {"error": {}}',
        "data: " + "9" * 5000,
        'data: {"error": {"message": "boom"}}',
        "data: {}",
        'data: {"choices": null}',
    ],
)
def test_a_stream_gives_pieces_or_a_sentence(line, server, client):
    server.answers["/v1/completions"] = f"{line}\n\n".encode(), "text/event-stream"
    try:
        with client.complete("San", stream=True) as stream:
            list(stream)
    except WorkshopError as error:
        assert client.url in str(error) or "boom" in str(error)


def test_a_stream_is_that_of_openai(server, client):
    pieces = "".join(f"data: {json.dumps(COMPLETION)}\n\n" for _ in range(3)) + "data: [DONE]\n\n"
    server.answers["/v1/completions"] = pieces.encode(), "text/event-stream"
    stream = client.complete("San", stream=True)
    assert [piece.choices[0].text for piece in stream] == [" city"] * 3 and stream.response.status_code == 200


@pytest.mark.parametrize("body", BROKEN_MODELS, ids=lambda body: repr(body)[:30])
def test_connect_names_what_is_no_list_of_models(body, server, monkeypatch):
    server.answers["/v1/models"] = body
    monkeypatch.setenv("WORKSHOP_URL", server.url)
    with pytest.raises(WorkshopError, match=r"answers with|serves no model") as error:
        workshop.connect()
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    "schema",
    [
        b"[]",
        LOGIN,
        b'{"components": []}',
        b'{"components": {"schemas": 3}}',
        b'{"components": {"schemas": {"CompletionRequest": {"properties": "top_k"}}}}',
    ],
)
def test_a_schema_that_is_none_forbids_nothing(schema, server, client):
    server.answers["/openapi.json"] = schema
    assert client.complete("San", top_k=3).choices[0].text == " city"


@pytest.mark.parametrize("config", ["", "[]", '{"vocab_size": "many"}', "{}", '{"text_config": 3}', "[" * 9999])
def test_a_model_folder_that_cannot_be_read_asks_for_a_number(config, server, client, tmp_path):
    said = '{"error": {"message": "`logprobs` must be a positive value"}}'
    server.answers["/v1/completions"] = f"HTTP/1.1 400 No\r\nContent-Length: {len(said)}\r\n\r\n{said}"
    server.answers["/v1/models"] = encoded({"data": [{"id": "m", "root": str(tmp_path)}]})
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(BadInput, match="does not know logprobs=-1"):
        client.complete("San", logprobs=-1)


def test_no_redirect_is_followed(server, client):
    other = odd_answers.Server()
    try:
        for path in server.answers:
            server.answers[path] = odd_answers.redirect(f"{other.url}/completions")
        for ask in (
            client.models,
            lambda: client.complete("San"),
            lambda: client.chat("x"),
            lambda: client.complete("San", stream=True),
        ):
            with pytest.raises(WorkshopError, match=f"leads to {other.url}"):
                ask()
        assert other.seen == []
    finally:
        other.close()


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


def test_any_name_of_a_learner_can_be_sent(server, monkeypatch):
    monkeypatch.setenv("LOGNAME", "zoë\nx")
    Client(ServerRecord(name="a", url=server.url, model="m", api_key="k", state="ready")).models()
    assert server.seen[0][1]["X-Workshop-Learner"] == "zo%C3%AB%0Ax"


def test_a_stream_that_ends_before_its_text_is_a_sentence(server, client):
    piece = {**COMPLETION, "choices": [{**COMPLETION["choices"][0], "finish_reason": None}]}
    server.answers["/v1/completions"] = f"data: {json.dumps(piece)}\n\n".encode(), "text/event-stream"
    with pytest.raises(WorkshopError, match="breaks off"):
        list(client.complete("San", stream=True))


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
    ],
)
def test_an_address_that_is_none_is_refused(url, monkeypatch):
    monkeypatch.setenv("WORKSHOP_URL", url)
    with pytest.raises(BadInput, match="no address"):
        workshop.connect()


@quiet
@given(body=odd_answers.mutated)
@example(body={"choices": {"0": 1}})
@example(body={"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [], "top_logprobs": None}}]})
@example(body={"choices": [{"logprobs": {"content": [{}]}}]})
@example(body={"choices": [{"text": "x"}], "prompt_logprobs": [{"a": {"logprob": "x"}}]})
@example(body={"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": ["x"], "top_logprobs": [{"b": None}]}}]})
def test_logprobs_of_any_answer_are_rows_or_a_sentence(body):
    with contextlib.suppress(BadInput):
        assert all(row.part in ("prompt", "completion") for row in logprobs.rows(body))
