"""An answer has a largest size, and no encoding: a server or a proxy gone wild does not fill the memory."""

from __future__ import annotations

import zlib

import odd_answers
import pytest
import wire_stub

from workshop import batch
from workshop.batch.send import sending

MIB = 1 << 20
CHOICE = {"index": 0, "text": "x" * (3 * MIB), "finish_reason": "stop"}
BOMB = zlib.compress(bytes(100 * MIB))


@pytest.fixture
def ask(run, answers):
    """Return a function that asks a server one row, twice at most.

    It returns the summary and the messages of the file of errors.
    """

    def ask(server, max_tokens=5):
        summary = run(server, ["a"], max_tokens=max_tokens, attempts=2)
        lines = answers(summary.errors_file) if summary.errors else []
        return summary, [line["error"]["message"] for line in lines]

    return ask


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "502 Bad Gateway"])
def test_an_answer_without_an_end_is_given_up_and_its_row_says_why(
    status, ask, workshop_home, monkeypatch
):
    monkeypatch.setattr(sending, "MOST_BYTES", 4 * MIB)
    sent = []

    def flood():
        yield f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n\r\n".encode()
        while True:
            sent.append(65536)
            yield b" " * 65536

    with odd_answers.sound() as server:
        server.answers["/v1/completions"] = flood
        summary, (message,) = ask(server)
    assert (summary.answered, summary.errors, summary.exit_code) == (0, 1, 1)
    assert "more than 4,194,304 bytes" in message
    assert sum(sent) < 2 * (4 + 16) * MIB  # of two attempts; the rest waits in sockets


def test_a_compressed_answer_is_refused_unread(wire, ask):
    for encoding in ("deflate", "gzip", "br", "gzip, gzip", "x-odd"):
        headers = {"Content-Encoding": encoding}
        server = wire(lambda _, headers=headers: wire_stub.Reply(BOMB, headers=headers))
        summary, (message,) = ask(server)
        assert summary.answered == 0 and f"Content-Encoding '{encoding}'" in message
        assert {request.headers["accept-encoding"] for request in server.asked} == {"identity"}


def test_a_large_answer_that_was_asked_for_is_kept(wire, ask):
    def large(request):
        reply = wire_stub.answer(request, choices=[CHOICE])
        reply.headers["Content-Encoding"] = "Identity"
        return reply

    summary, _ = ask(wire(large), max_tokens=4000)
    assert summary.exit_code == 0 and len(batch.load(summary.output).text[0]) == 3 * MIB
