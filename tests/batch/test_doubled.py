"""A server, or a proxy in front of it, that sends answers twice: no row gets the answer to another one."""

from __future__ import annotations

import json
import random

import aiohttp
import needs
import pytest
import wire_stub

from workshop import batch

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


def run(reply, share, wire, quick, tmp_path, rows=N, concurrency=16):
    chance = random.Random(needs.SEED)

    def doubled(request):
        answer = reply(request)
        if chance.random() < share:
            answer.again_after_s = (chance.choice((0, 0.0002, 0.001, chance.random() * 0.01)),)
        return answer

    (tmp_path / "in.txt").write_text("".join(f"row {number}\n" for number in range(rows)))
    server = wire(doubled)
    path, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    summary = batch.run(path, out, url=server.url, limits=quick, concurrency=concurrency)
    return server, summary, batch.load(out)


@pytest.mark.parametrize("share", [1.0, 0.02])
@pytest.mark.parametrize("reply", [wire_stub.answer, with_its_own_id, without_id])
def test_no_row_gets_the_answer_to_another(reply, share, wire, quick, tmp_path):
    server, summary, frame = run(reply, share, wire, quick, tmp_path)
    assert (summary.exit_code, len(frame)) == (0, N)
    assert list(frame.text) == list(frame.prompt)
    assert len(server.asked) < 1.1 * N


@pytest.mark.parametrize("reply", [wire_stub.answer, with_its_own_id])
def test_refusals_that_come_twice_shift_no_answers(reply, wire, quick, tmp_path):
    _, summary, frame = run(refusing_at_first(reply), 1.0, wire, quick, tmp_path)
    assert (summary.exit_code, len(frame)) == (0, N) and list(frame.text) == list(frame.prompt)


def test_a_row_goes_out_under_its_key_and_again_under_another_id(wire, quick, tmp_path, answers):
    failed = set()

    def reply(request):
        if request.text == "row 1" and request.text not in failed:
            failed.add(request.text)
            return wire_stub.Reply(b"{}", 500)
        return wire_stub.answer(request)

    server, _, _ = run(reply, 0, wire, quick, tmp_path, rows=3)
    keys = {line["row"]: line["key"] for line in answers(tmp_path / "out.jsonl")}
    sent = [(request.text, request.headers["x-request-id"]) for request in server.asked]
    assert sorted(sent) == sorted(
        [(f"row {n}", keys[n]) for n in range(3)] + [("row 1", f"{keys[1]}-2")]
    )


def test_an_answer_that_names_another_row_is_refused_and_its_connection_closed(
    wire, quick, tmp_path, capsys
):
    first = []

    def reply(request):
        first.append(wire_stub.answer(request))
        return first[0] if request.number == 1 else first[-1]

    server, summary, frame = run(reply, 0, wire, quick, tmp_path, rows=5, concurrency=1)
    assert summary.exit_code == 0 and list(frame.text) == list(frame.prompt)
    wrong, again = server.asked[1:3]
    # over a connection of its own
    assert wrong.text == again.text == "row 1" and again.on_connection == 1
    assert wrong.on_connection > 1 and server.lost[0] == wrong.connection
    assert "sent an answer twice" in capsys.readouterr().err


def test_a_server_that_gives_every_row_the_answer_to_another_leaves_errors(
    wire, quick, tmp_path, answers
):
    first = []

    def reply(request):
        first.append(wire_stub.answer(request))
        return first[0]

    (tmp_path / "in.txt").write_text("a\nb\n")
    summary = batch.run(
        tmp_path / "in.txt",
        tmp_path / "out.jsonl",
        url=wire(reply).url,
        limits=quick,
        concurrency=1,
    )
    assert (summary.answered, summary.errors, summary.exit_code) == (1, 1, 1)
    assert (
        "the answer to another row (6 attempts)"
        in answers(summary.errors_file)[0]["error"]["message"]
    )


def test_a_server_whose_answers_are_equal_is_asked_once_a_row(wire, quick, tmp_path):
    """It answers "yes" without an id, and means it."""
    equal = {"choices": [{"index": 0, "text": "yes", "finish_reason": "stop"}]}
    server, summary, frame = run(
        lambda _: wire_stub.Reply(json.dumps(equal).encode()), 0, wire, quick, tmp_path, 100, 4
    )
    assert summary.exit_code == 0 and list(frame.text) == ["yes"] * 100
    assert len(server.asked) <= 100 + 4


def test_a_refusal_that_came_twice_refuses_no_other_row(wire, quick, tmp_path, answers):
    def reply(request):
        if request.text == "row 3":
            return wire_stub.Reply(
                b'{"error": {"message": "too long"}}', 400, again_after_s=(0.0005,)
            )
        return wire_stub.answer(request)

    _, summary, frame = run(reply, 0, wire, quick, tmp_path, rows=200, concurrency=1)
    assert [line["row"] for line in answers(summary.errors_file)] == [3] and len(frame) == 199


def test_bytes_that_nobody_asked_for_close_the_connection(wire, quick, tmp_path):
    """The second answer comes while no request is on its way; then the next one is sent."""
    import asyncio

    from workshop.batch.servers import Server

    server = wire(lambda request: wire_stub.Reply(b"{}", again_after_s=(0.01,)))

    async def twice():
        batch_server = Server(server.url, "")
        batch_server.connect(5)
        for count in (1, 2):
            async with batch_server.post("/v1/completions", data=b'{"prompt": "x"}') as answer:
                await answer.read()
            while server.sent_again < count:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
        await batch_server.close()

    asyncio.run(twice())
    assert [request.on_connection for request in server.asked] == [1, 1]


def test_a_connection_that_is_clean_is_used_again(wire, quick, tmp_path):
    server, _, _ = run(wire_stub.answer, 0, wire, quick, tmp_path, rows=200, concurrency=4)
    assert server.connections < 10


def test_aiohttp_still_takes_a_connection_out_of_its_pool_there():
    """connections.CleanConnector stands in this place, which is not aiohttp's public interface."""
    assert aiohttp.TCPConnector._get.__code__.co_varnames[:3] == ("self", "key", "traces")
