"""A server, or a proxy in front of it, that sends answers twice or mixes them up: no row gets another's answer."""

from __future__ import annotations

import json
import random

import needs
import pytest
import wire_stub

from workshop import batch
from workshop.batch.read.rows import CHAT, COMPLETIONS, EMBEDDINGS

N = 300


def with_its_own_id(request):
    """As a server that ignores X-Request-Id: every answer has an id of its own."""
    return wire_stub.answer(request, id=f"chatcmpl-{request.number:032x}")


def without_id(request):
    body = json.loads(wire_stub.answer(request).body)
    del body["id"]
    return wire_stub.Reply(json.dumps(body).encode())


def refusing_at_first(reply, share=0.3):
    """Three of ten rows are refused once, before they are answered."""
    seen = set()

    def some(request):
        if request.text in seen or int(request.text.split()[1]) % 10 >= 10 * share:
            return reply(request)
        seen.add(request.text)
        return wire_stub.Reply(b'{"error": {"message": "busy"}}', 500)

    return some


@pytest.fixture
def ask(wire, run):
    """Return a function that has rows answered by a server that sends a share of its answers twice.

    It returns the server, the summary and the frame of the answers.
    """

    def ask(reply, share=0.0, rows=N, concurrency=16, url=COMPLETIONS):
        chance = random.Random(needs.SEED)

        def doubled(request):
            answer = reply(request)
            if chance.random() < share:
                pauses = (0, 0.0002, 0.001, chance.random() * 0.01)
                answer.again_after_s = (chance.choice(pauses),)
            return answer

        server = wire(doubled)
        texts = [as_row(url, f"row {number}") for number in range(rows)]
        summary = run(server, texts, concurrency=concurrency)
        return server, summary, batch.load(summary.output)

    return ask


def as_row(url, text):
    content = {
        COMPLETIONS: {"prompt": text},
        CHAT: {"messages": [{"role": "user", "content": text}]},
        EMBEDDINGS: {"input": text},
    }
    return {"custom_id": text, "url": url, "body": content[url]}


@pytest.mark.parametrize("reply", [wire_stub.answer, with_its_own_id, without_id])
def test_no_row_gets_the_answer_to_another(reply, ask):
    server, summary, frame = ask(reply, 1.0)
    assert (summary.exit_code, len(frame)) == (0, N)
    assert list(frame.text) == list(frame.custom_id)
    assert len(server.asked) < 1.1 * N


def test_refusals_that_come_twice_shift_no_answers(ask):
    _, summary, frame = ask(refusing_at_first(wire_stub.answer), 1.0)
    assert (summary.exit_code, len(frame)) == (0, N) and list(frame.text) == list(frame.custom_id)


def test_a_row_goes_out_under_its_key_and_again_under_another_id(ask, answers):
    server, summary, _ = ask(refusing_at_first(wire_stub.answer, 0.1), rows=3)
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
def test_an_answer_without_its_row_is_refused_once_the_server_named_one(other_id, url, ask, capsys):
    first = []

    def reply(request):
        first.append(wire_stub.answer(request))
        if request.number not in (2, 3):
            return first[-1]
        if other_id == "the first's":
            return first[0]
        return wire_stub.Reply(json.dumps(json.loads(first[0].body) | {"id": other_id}).encode())

    server, summary, frame = ask(reply, rows=6, concurrency=1, url=url)
    assert summary.exit_code == 0 and len(set(frame.request_id)) == len(frame) == 6
    assert len(server.asked) == 8
    # the third came over a used connection; after it each row has a connection of its own
    assert server.asked[2].on_connection > 1
    assert {request.on_connection for request in server.asked[3:]} == {1}
    assert capsys.readouterr().err.count("sent the answer to another request") == 1


def test_the_first_answers_are_refused_too_if_they_name_other_rows(ask):
    waiting = []

    def reply(request):
        waiting.append(request)
        answer = wire_stub.answer(waiting[0] if request.number == 1 else request)
        answer.after_s = 0.2 if request.number == 0 else 0.0
        return answer

    _, summary, frame = ask(reply, rows=8, concurrency=2)
    assert summary.exit_code == 0 and list(frame.text) == list(frame.custom_id)


def test_one_server_that_names_rows_binds_no_other(wire, run):
    naming, other = wire(), wire(with_its_own_id)
    summary = run((naming, other), 40, concurrency=4)
    frame = batch.load(summary.output)
    assert summary.new == 40 and list(frame.text) == list(frame.prompt)
    assert naming.asked and other.asked and len(naming.asked) + len(other.asked) == 40


def test_an_id_may_have_anything_around_the_rows(ask):
    forms = ("cmpl-{}", "chatcmpl-{}-0", "{}", "gateway/7/{}/again")

    def reply(request):
        form = forms[request.number % len(forms)]
        return wire_stub.answer(request, id=form.format(request.headers["x-request-id"]))

    server, summary, _ = ask(reply, rows=40, concurrency=1)
    assert summary.exit_code == 0 and len(server.asked) == 40
    assert server.connections < 10  # all rows but the first share one


def test_a_server_that_gives_every_row_the_answer_to_another_leaves_errors(ask, answers):
    first = []

    def reply(request):
        first.append(wire_stub.answer(request))
        return first[0]

    _, summary, _ = ask(reply, rows=2, concurrency=1)
    assert (summary.answered, summary.errors, summary.exit_code) == (1, 1, 1)
    message = answers(summary.errors_file)[0]["error"]["message"]
    assert "the answer to another request (6 attempts)" in message


def test_a_refusal_that_came_twice_refuses_no_other_row(ask, answers):
    def reply(request):
        if request.text == "row 3":
            return wire_stub.Reply(
                b'{"error": {"message": "too long"}}', 400, again_after_s=(0.0005,)
            )
        return wire_stub.answer(request)

    _, summary, frame = ask(reply, rows=200, concurrency=1)
    assert [line["row"] for line in answers(summary.errors_file)] == [3] and len(frame) == 199
