"""Whatever a server answers, the client gives a whole answer or one sentence that names what came."""

from __future__ import annotations

import contextlib
import functools
import json

import odd_answers
import pytest
from hypothesis import example, given, settings
from odd_answers import BROKEN_MODELS, CHOICE, COMPLETION, LOGIN, encoded

import workshop
from workshop import batch
from workshop.client import logprobs
from workshop.client.client import Client
from workshop.errors import BadInput, WorkshopError
from workshop.measure import timed
from workshop.servers.records import ServerRecord

CHAT = {
    **COMPLETION,
    "object": "chat.completion",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}
    ],
}


@pytest.fixture
def server(workshop_home):
    with odd_answers.sound() as server:
        server.answers["/v1/chat/completions"] = encoded(CHAT)
        yield server


def client_of(server) -> Client:
    return Client(
        ServerRecord(name="a", url=server.url, model="m", api_key="secret", state="ready")
    )


@pytest.fixture
def client(server):
    return client_of(server)


def with_choice(**fields) -> bytes:
    """Return a completion whose choice has other fields."""
    return encoded({**COMPLETION, "choices": [{**CHOICE, **fields}]})


# Bodies that nobody may count as an answer to one prompt, and what is said of them.
BROKEN = (
    (LOGIN, "an HTML page"),
    (b"", "nothing"),
    (b"[]", "JSON that is a list"),
    (encoded(COMPLETION)[:-9], "EOF while parsing"),
    (encoded(COMPLETION) * 2, "trailing characters"),
    (encoded(COMPLETION).decode().encode("utf-16"), "UTF-8"),
    (encoded(COMPLETION).replace(b'"created": 1', b'"created": NaN'), "expected value"),
    (b'{"choices": ' + b"[" * 100_000, "recursion"),
    (with_choice(text="\ud83d"), "hex escape"),
    (encoded({**COMPLETION, "choices": []}), "0 choices"),
    (encoded({**COMPLETION, "choices": [CHOICE, {**CHOICE, "index": 1}]}), "2 choices, and 1"),
    (encoded({**COMPLETION, "usage": "x"}), "usage that cannot be used"),
    (with_choice(text=["x"]), r"choices\.0\.text that cannot be used"),
    (with_choice(text=None), "a choice without text or message"),
    (with_choice(index=7), r"choices numbered \[7\]"),
)


def test_what_came_is_named(server, client):
    for body, says in BROKEN:
        server.answers["/v1/completions"] = body
        with pytest.raises(WorkshopError, match=f"answers with .*{says}") as error:
            client.complete("San")
        assert len(str(error.value)) < 400, body


def test_the_content_type_decides_nothing(server, client):
    for kind in ("text/html", "application/octet-stream", ""):
        server.answers["/v1/completions"] = encoded(COMPLETION), kind
        assert client.complete("San").choices[0].text == " city"
        server.answers["/v1/completions"] = LOGIN, kind
        with pytest.raises(WorkshopError, match="HTML"):
            client.complete("San")


def test_as_many_answers_as_were_asked_for(server, client):
    for expected, sent, good in ((3, 3, True), (3, 1, False), (3, 4, False), (1, 3, False)):
        choices = [{**COMPLETION["choices"][0], "index": index} for index in range(sent)]
        server.answers["/v1/completions"] = encoded({**COMPLETION, "choices": choices})
        if good:
            assert len(client.complete("San", n=expected).choices) == expected
            assert len(client.complete(["a", "b", "c"]).choices) == expected
            assert len(client.complete([[1, 2], [3], [4]], extra_body={"n": 1}).choices) == expected
        else:
            with pytest.raises(WorkshopError, match=f"{sent} choices, and {expected}"):
                client.complete("San", n=expected)


def test_a_chat_is_checked_as_a_completion_is(server, client):
    assert client.chat("hello").choices[0].message.content == "hello"
    for message in (None, "x", [], {"content": 3}):
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        server.answers["/v1/chat/completions"] = encoded({**CHAT, "choices": [choice]})
        with pytest.raises(WorkshopError, match="answers with"):
            client.chat("hello")


BROKEN_CONNECTIONS = (
    odd_answers.cut_in_chunks(encoded(COMPLETION)),
    "",
    "nonsense\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{",
    "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    "HTTP/1.1 204 No Content\r\n\r\n",
)


def test_a_broken_connection_is_one_sentence(server, client):
    for wire in BROKEN_CONNECTIONS:
        server.answers["/v1/completions"] = server.answers["/v1/models"] = wire
        for ask in (
            client.models,
            lambda: client.complete("San"),
            lambda: list(client.complete("San", stream=True)),
        ):
            with pytest.raises(WorkshopError):
                ask()


BROKEN_PIECES = (
    "{",
    '"x"',
    "[" * 5000,
    '{"error": {}}',
    '{"error": {"message": "boom"}}',
    "{}",
    '{"choices": null}',
)


def test_a_stream_of_broken_pieces_is_a_sentence(server, client):
    for piece in BROKEN_PIECES:
        server.answers["/v1/completions"] = f"data: {piece}\n\n".encode(), "text/event-stream"
        with pytest.raises(WorkshopError) as error, client.complete("San", stream=True) as stream:
            list(stream)
        assert client.url in str(error.value) or "boom" in str(error.value), piece


def test_a_stream_is_that_of_openai(server, client):
    pieces = "".join(f"data: {json.dumps(COMPLETION)}\n\n" for _ in range(3)) + "data: [DONE]\n\n"
    server.answers["/v1/completions"] = pieces.encode(), "text/event-stream"
    stream = client.complete("San", stream=True)
    assert [piece.choices[0].text for piece in stream] == [
        " city"
    ] * 3 and stream.response.status_code == 200


def test_connect_names_what_is_no_list_of_models(server, monkeypatch):
    monkeypatch.setenv("WORKSHOP_URL", server.url)
    for body in BROKEN_MODELS:
        server.answers["/v1/models"] = body
        with pytest.raises(WorkshopError, match=r"answers with|serves no model") as error:
            workshop.connect()
        assert len(str(error.value)) < 400, body


@pytest.mark.parametrize("kind", ["drips", "floods"])
def test_an_answer_without_an_end_is_one_sentence(kind, server, monkeypatch):
    server.answers["/v1/models"] = odd_answers.ENDLESS[kind]
    monkeypatch.setattr(
        "workshop.client.client.CONNECT_TIMEOUT_S", 60.0 if kind == "floods" else 0.5
    )
    monkeypatch.setenv("WORKSHOP_URL", server.url)
    with pytest.raises(
        WorkshopError, match=r"its answer has (no end within 0\.5 s|more than 64 MiB)"
    ):
        workshop.connect()


def test_a_schema_that_is_none_forbids_nothing(server):
    in_place = b'{"components": {"schemas": {"CompletionRequest": {"properties": "top_k"}}}}'
    for schema in (LOGIN, b"[]", b'{"components": {"schemas": 3}}', in_place):
        server.answers["/openapi.json"] = schema
        assert client_of(server).complete("San", top_k=3).choices[0].text == " city", schema


def test_a_schema_that_failed_once_is_asked_for_again(server):
    schema = b'{"components": {"schemas": {"CompletionRequest": {"properties": {"top_k": {}}}}}}'
    server.answers["/openapi.json"] = LOGIN
    client = client_of(server)
    client.complete("San", temprature=0)
    server.answers["/openapi.json"] = schema
    with pytest.raises(BadInput, match="temprature"):
        client.complete("San", temprature=0)


def timed_outcome(client: Client) -> None:
    """Ask as `workshop bench` does."""

    async def sent():
        async with timed.TimedSender(client) as sender:
            return await sender.send({"prompt": "x", "max_tokens": 1})

    timed.run(sent()).outcome()


def test_no_redirect_is_followed(server, client, tmp_path):
    (tmp_path / "in.txt").write_text("San\n")
    ask_a_batch = functools.partial(batch.run, tmp_path / "in.txt", url=server.url)
    asks = {
        "/v1/completions": (
            lambda: client.complete("San"),
            lambda: client.complete("San", stream=True),
            lambda: timed_outcome(client),
            lambda: ask_a_batch(tmp_path / "completions.jsonl"),
        ),
        "/v1/chat/completions": (
            lambda: client.chat("x"),
            lambda: ask_a_batch(tmp_path / "chats.jsonl", chat=True),
        ),
        "/v1/models": (client.models, lambda: ask_a_batch(tmp_path / "out.jsonl")),
    }
    with contextlib.closing(odd_answers.Server()) as other:
        for path, ways in asks.items():
            server.answers[path] = odd_answers.redirect(f"{other.url}/completions")
            for ask in ways:
                with pytest.raises(WorkshopError, match=f"leads to {other.url}"):
                    ask()
        assert other.seen == []


def test_any_name_of_a_learner_can_be_sent(server, monkeypatch):
    monkeypatch.setenv("LOGNAME", "zoë\nx")
    Client(ServerRecord(name="a", url=server.url, model="m", api_key="k", state="ready")).models()
    assert server.seen[0][1]["X-Workshop-Learner"] == "zo%C3%AB%0Ax"


def test_a_stream_that_ends_before_its_text_is_a_sentence(server, client):
    piece = {**COMPLETION, "choices": [{**COMPLETION["choices"][0], "finish_reason": None}]}
    server.answers["/v1/completions"] = (
        f"data: {json.dumps(piece)}\n\n".encode(),
        "text/event-stream",
    )
    with pytest.raises(WorkshopError, match="breaks off"):
        list(client.complete("San", stream=True))


@settings(max_examples=100, deadline=None)
@given(body=odd_answers.mutated)
@example(body={"choices": {"0": 1}})
@example(
    body={"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [], "top_logprobs": None}}]}
)
@example(body={"choices": [{"logprobs": {"content": [{}]}}]})
@example(body={"choices": [{"text": "x"}], "prompt_logprobs": [{"a": {"logprob": "x"}}]})
@example(
    body={
        "choices": [
            {"logprobs": {"tokens": ["a"], "token_logprobs": ["x"], "top_logprobs": [{"b": None}]}}
        ]
    }
)
def test_logprobs_of_any_answer_are_rows_or_a_sentence(body):
    with contextlib.suppress(BadInput):
        assert all(row.part in ("prompt", "completion") for row in logprobs.rows(body))
