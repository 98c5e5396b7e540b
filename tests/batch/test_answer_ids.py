"""A server, or a proxy in front of it, that mixes answers up: no row gets the answer to another."""

from __future__ import annotations

import json

import pytest
import wire_stub

from workshop import batch
from workshop.batch.read.rows import CHAT, COMPLETIONS, EMBEDDINGS


@pytest.fixture
def ask(wire, run):
    """Return a function that has rows answered; it returns the server and the summary."""

    def ask(reply, rows, concurrency=1, url=COMPLETIONS):
        server = wire(reply)
        texts = [as_row(url, f"row {number}") for number in range(rows)]
        return server, run(server, texts, concurrency=concurrency)

    return ask


def as_row(url, text):
    content = {
        COMPLETIONS: {"prompt": text},
        CHAT: {"messages": [{"role": "user", "content": text}]},
        EMBEDDINGS: {"input": text},
    }
    return {"custom_id": text, "url": url, "body": content[url]}


def test_a_row_goes_out_under_its_key_and_again_under_another_id(ask, answers):
    def busy_at_first(request):
        if request.number == 0:
            return wire_stub.Reply(b'{"error": {"message": "busy"}}', 500)
        return wire_stub.answer(request)

    server, summary = ask(busy_at_first, 3)
    keys = {line["custom_id"]: line["key"] for line in answers(summary.output)}
    sent = sorted((request.text, request.headers["x-request-id"]) for request in server.asked)
    ids = [
        f"{keys[f'row {n}']}-workshop-{number}" for n, number in [(0, 1), (0, 2), (1, 1), (2, 1)]
    ]
    assert [request_id for _, request_id in sent] == ids


@pytest.mark.parametrize(
    ("url", "other_id"),
    [
        (COMPLETIONS, None),
        (CHAT, f"chatcmpl-{0:032x}-workshop-1-0"),
        (EMBEDDINGS, 7),
        (COMPLETIONS, "the first's"),
    ],
)
def test_an_answer_without_its_row_is_refused_once_the_server_named_one(other_id, url, ask):
    first = []

    def reply(request):
        first.append(wire_stub.answer(request))
        if request.number not in (2, 3):
            return first[-1]
        if other_id == "the first's":
            return first[0]
        return wire_stub.Reply(json.dumps(json.loads(first[0].body) | {"id": other_id}).encode())

    server, summary = ask(reply, 6, url=url)
    frame = batch.load(summary.output)
    assert summary.exit_code == 0 and len(set(frame.request_id)) == len(frame) == 6
    assert len(server.asked) == 8


def test_the_first_answer_is_refused_too_if_it_names_another_row(ask):
    waiting = []

    def reply(request):
        waiting.append(request)
        answer = wire_stub.answer(waiting[0] if request.number == 1 else request)
        answer.after_s = 0.2 if request.number == 0 else 0.0
        return answer

    _, summary = ask(reply, 8, concurrency=2)
    frame = batch.load(summary.output)
    assert summary.exit_code == 0 and list(frame.text) == list(frame.custom_id)


def test_a_server_that_gives_every_row_the_answer_to_another_leaves_errors(ask, answers):
    first = []

    def reply(request):
        first.append(wire_stub.answer(request))
        return first[0]

    _, summary = ask(reply, 2)
    assert (summary.answered, summary.errors, summary.exit_code) == (1, 1, 1)
    message = answers(summary.errors_file)[0]["error"]["message"]
    assert "the answer to another request (6 attempts)" in message


def test_one_server_that_names_rows_binds_no_other(wire, run):
    naming = wire()
    other = wire(lambda request: wire_stub.answer(request, id=f"chatcmpl-{request.number:032x}"))
    summary = run((naming, other), 40, concurrency=4)
    frame = batch.load(summary.output)
    assert summary.new == 40 and list(frame.text) == list(frame.prompt)
    assert naming.asked and other.asked and len(naming.asked) + len(other.asked) == 40


def test_an_id_may_have_anything_around_the_rows(ask):
    forms = ("cmpl-{}", "chatcmpl-{}-0", "{}", "gateway/7/{}/again")

    def reply(request):
        form = forms[request.number % len(forms)]
        return wire_stub.answer(request, id=form.format(request.headers["x-request-id"]))

    server, summary = ask(reply, 40)
    assert summary.exit_code == 0 and len(server.asked) == 40
