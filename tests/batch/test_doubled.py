"""A server, or a proxy in front of it, that sends answers twice or mixes them up: no row gets another's answer."""

from __future__ import annotations

import json
import random

import needs
import pytest
import wire_stub

from workshop import batch
from workshop.batch.read.rows import CHAT, COMPLETIONS, EMBEDDINGS

N = 600


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


def run(reply, share, wire, quick, tmp_path, rows=N, concurrency=16, url=COMPLETIONS):
    """Answer rows by a server that sends a share of its answers twice; return (server, summary, frame)."""
    chance = random.Random(needs.SEED)

    def doubled(request):
        answer = reply(request)
        if chance.random() < share:
            answer.again_after_s = (chance.choice((0, 0.0002, 0.001, chance.random() * 0.01)),)
        return answer

    server = wire(doubled)
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(f"{json.dumps(as_row(url, f'row {n}'))}\n" for n in range(rows)))
    summary = batch.run(path, out, url=server.url, limits=quick, concurrency=concurrency)
    return server, summary, batch.load(out)


def as_row(url, text):
    content = {
        COMPLETIONS: {"prompt": text},
        CHAT: {"messages": [{"role": "user", "content": text}]},
        EMBEDDINGS: {"input": text},
    }
    return {"custom_id": text, "url": url, "body": content[url]}


@pytest.mark.parametrize("share", [1.0, 0.02])
@pytest.mark.parametrize("reply", [wire_stub.answer, with_its_own_id, without_id])
def test_no_row_gets_the_answer_to_another(reply, share, wire, quick, tmp_path):
    server, summary, frame = run(reply, share, wire, quick, tmp_path)
    assert (summary.exit_code, len(frame)) == (0, N)
    assert list(frame.text) == list(frame.custom_id)
    assert len(server.asked) < 1.1 * N


@pytest.mark.parametrize("reply", [wire_stub.answer, with_its_own_id])
def test_refusals_that_come_twice_shift_no_answers(reply, wire, quick, tmp_path):
    _, summary, frame = run(refusing_at_first(reply), 1.0, wire, quick, tmp_path)
    assert (summary.exit_code, len(frame)) == (0, N) and list(frame.text) == list(frame.custom_id)


def test_a_row_goes_out_under_its_key_and_again_under_another_id(wire, quick, tmp_path, answers):
    server, _, _ = run(refusing_at_first(wire_stub.answer, 0.1), 0, wire, quick, tmp_path, rows=3)
    keys = {line["custom_id"]: line["key"] for line in answers(tmp_path / "out.jsonl")}
    sent = sorted((request.text, request.headers["x-request-id"]) for request in server.asked)
    ids = [
        f"{keys[f'row {n}']}-workshop-{number}" for n, number in [(0, 1), (0, 2), (1, 1), (2, 1)]
    ]
    assert [request_id for _, request_id in sent] == ids


@pytest.mark.parametrize("url", [COMPLETIONS, CHAT, EMBEDDINGS])
@pytest.mark.parametrize(
    "other_id", ["own", None, 7, f"cmpl-{0:032x}", f"chatcmpl-{0:032x}-workshop-1-0", "the first's"]
)
def test_an_answer_without_its_row_is_refused_once_the_server_named_one(
    other_id, url, wire, quick, tmp_path, capsys
):
    first = []

    def reply(request):
        first.append(wire_stub.answer(request))
        if request.number not in (2, 3):
            return first[-1]
        if other_id == "the first's":
            return first[0]
        return wire_stub.Reply(json.dumps(json.loads(first[0].body) | {"id": other_id}).encode())

    server, summary, frame = run(reply, 0, wire, quick, tmp_path, 6, 1, url)
    assert summary.exit_code == 0 and len(set(frame.request_id)) == len(frame) == 6
    assert [request.text for request in server.asked] == [
        f"row {n}" for n in (0, 1, 2, 2, 2, 3, 4, 5)
    ]
    # the second came over a used connection; after it each row has a connection of its own
    assert server.asked[2].on_connection > 1
    assert {request.on_connection for request in server.asked[3:]} == {1}
    assert capsys.readouterr().err.count("sent the answer to another request") == 1


def test_the_first_answers_are_refused_too_if_they_name_other_rows(wire, quick, tmp_path):
    waiting = []

    def reply(request):
        waiting.append(request)
        answer = wire_stub.answer(waiting[0] if request.number == 1 else request)
        answer.after_s = 0.2 if request.number == 0 else 0.0
        return answer

    _, summary, frame = run(reply, 0, wire, quick, tmp_path, 8, 2)
    assert summary.exit_code == 0 and list(frame.text) == list(frame.custom_id)


def test_one_server_that_names_rows_binds_no_other(wire, quick, tmp_path):
    naming, other, out = wire(), wire(with_its_own_id), tmp_path / "out.jsonl"
    (tmp_path / "in.txt").write_text("".join(f"row {number}\n" for number in range(40)))
    urls = (naming.url, other.url)
    assert batch.run(tmp_path / "in.txt", out, url=urls, limits=quick, concurrency=4).new == 40
    assert list(batch.load(out).text) == list(batch.load(out).prompt)
    assert naming.asked and other.asked and len(naming.asked) + len(other.asked) == 40


@pytest.mark.parametrize("form", ["cmpl-{}", "chatcmpl-{}-0", "{}", "gateway/7/{}/again"])
def test_an_id_may_have_anything_around_the_rows(form, wire, quick, tmp_path):
    def reply(request):
        return wire_stub.answer(request, id=form.format(request.headers["x-request-id"]))

    server, summary, _ = run(reply, 0, wire, quick, tmp_path, 40, 1)
    assert summary.exit_code == 0 and len(server.asked) == 40
    assert server.connections < 10  # all rows but the first share one


def test_a_server_that_gives_every_row_the_answer_to_another_leaves_errors(
    wire, quick, tmp_path, answers
):
    first = []

    def reply(request):
        first.append(wire_stub.answer(request))
        return first[0]

    _, summary, _ = run(reply, 0, wire, quick, tmp_path, 2, 1)
    assert (summary.answered, summary.errors, summary.exit_code) == (1, 1, 1)
    message = answers(summary.errors_file)[0]["error"]["message"]
    assert "the answer to another request (6 attempts)" in message


def test_a_refusal_that_came_twice_refuses_no_other_row(wire, quick, tmp_path, answers):
    def reply(request):
        if request.text == "row 3":
            return wire_stub.Reply(
                b'{"error": {"message": "too long"}}', 400, again_after_s=(0.0005,)
            )
        return wire_stub.answer(request)

    _, summary, frame = run(reply, 0, wire, quick, tmp_path, rows=200, concurrency=1)
    assert [line["row"] for line in answers(summary.errors_file)] == [3] and len(frame) == 199
