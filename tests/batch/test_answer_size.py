"""An answer has a largest size, and no encoding: a server or a proxy gone wild does not fill the memory."""

from __future__ import annotations

import json
import zlib

import odd_answers
import pytest
import wire_stub

from workshop import batch
from workshop.batch.read.rows import CHAT, COMPLETIONS, EMBEDDINGS, InputRow

MIB = 1 << 20
SPACES = " " * 128  # the longest token of Llama 3 and of GPT-4's vocabulary
CHOICE = {"index": 0, "text": "x" * (3 * MIB), "finish_reason": "stop"}
BOMB = zlib.compress(bytes(100 * MIB))


def largest_answer(tokens: int, samples: int, logprobs: int) -> bytes:
    """Return the largest chat completion of so many tokens, as vLLM writes its fields."""
    entry = {"token": SPACES, "logprob": -12.345678901234567, "bytes": [32] * 128}
    position = {**entry, "top_logprobs": [entry] * logprobs}
    message = {"role": "assistant", "content": SPACES * tokens}
    positions = []
    if logprobs:
        positions = [position] * tokens
    choice = {"message": message, "logprobs": {"content": positions}}
    return json.dumps({"choices": [choice] * samples}).encode()


def test_the_largest_honest_answer_is_below_the_limit():
    for tokens, samples, logprobs in ((5000, 1, 0), (300, 3, 20), (1, 64, 5), (1, 1, 0)):
        largest_bytes = len(largest_answer(tokens, samples, logprobs))
        for max_tokens in (tokens, float(tokens), str(tokens)):  # a server takes all three
            body = {"max_tokens": max_tokens, "logprobs": bool(logprobs), "top_logprobs": logprobs}
            row = InputRow(0, 1, "a", CHAT, json.dumps(body), samples=samples)
            assert largest_bytes <= row.most_bytes(None) < 32 * MIB, body


def test_the_limit_follows_the_context_where_a_row_names_no_tokens():
    row = InputRow(0, 1, "a", CHAT, "{}")
    assert row.most_bytes(2048) < 4 * MIB < 100 * MIB < row.most_bytes(None) < 200 * MIB
    everything = InputRow(0, 1, "a", COMPLETIONS, '{"max_tokens": 1000000000, "logprobs": -1}')
    assert everything.most_bytes(2048) > 2048 * 150_000 * 70  # a whole vocabulary at each token
    more = InputRow(0, 1, "a", COMPLETIONS, '{"max_tokens": 16}', more_tokens=64_000)
    assert more.most_bytes(None) > 64_000 * 1000
    vectors = json.dumps([[-0.12345678901234567] * 8192] * 50)
    assert InputRow(0, 1, "a", EMBEDDINGS, "{}", samples=50).most_bytes(None) > len(vectors)


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
def test_an_answer_without_an_end_is_given_up_and_its_row_says_why(status, ask, workshop_home):
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
    limit = InputRow(0, 1, "", COMPLETIONS, '{"max_tokens":5,"prompt":"a"}').most_bytes(64)
    assert f"no answer to this row can have over {limit:,}" in message
    assert sum(sent) < 2 * (limit + 16 * MIB)  # of two attempts; the rest waits in sockets


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
