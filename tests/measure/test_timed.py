"""The sender of timed requests: its times are those of the server, and an answer that is none is an error."""

from __future__ import annotations

import time

import odd_answers
import pytest
import small_server
from odd_answers import COMPLETION, LOGIN, encoded

from workshop.client.client import Client
from workshop.errors import BadInput, WorkshopError
from workshop.measure import points, timed
from workshop.servers.records import ServerRecord
from workshop.simulate.arrivals import Arrival

FIRST_S, GAP_S = 0.15, 0.1  # of the paced server
SLACK_S = 0.08  # of a busy machine


def client_of(url: str) -> Client:
    return Client(
        ServerRecord(name="stand-in", url=url, model="m", api_key="secret", state="ready")
    )


def send(url: str, *bodies: dict, at_once: int = 1, within_s: float = 5.0) -> list[timed.Timed]:
    async def together():
        async with timed.TimedSender(client_of(url), within_s) as sender:
            learner = {"X-Workshop-Learner": "7"}
            return await timed.send_together(sender, bodies, at_once, learner)

    return timed.run(together())


@pytest.fixture
def paced():
    """A server whose tokens come at known times, and the prompts that it was sent."""
    prompts = []

    class Paced(small_server.Handler):
        def do_POST(self):
            body = self.body()
            prompts.append(body.get("prompt"))
            self.begin_stream()
            if "messages" in body:
                self.piece(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
            time.sleep(FIRST_S)
            for number in range(body["max_tokens"]):
                if number:
                    time.sleep(GAP_S)
                text = {"delta": {"content": "a"}} if "messages" in body else {"text": "a"}
                self.piece(choices=[{"index": 0, "token_ids": [number], **text}])
            details = {"cached_tokens": 3}
            counts = {"prompt_tokens": 5, "completion_tokens": body["max_tokens"]}
            self.piece(choices=[], usage={**counts, "prompt_tokens_details": details})
            self.wfile.write(b"data: [DONE]\n\n")

        def piece(self, **data):
            self.event(data)

    with small_server.serving(Paced) as url:
        yield f"{url}/v1", prompts


@pytest.mark.parametrize("text", [{"prompt": "x"}, {"messages": []}], ids=["completion", "chat"])
def test_the_times_of_tokens_are_those_at_which_the_server_sent_them(paced, text):
    (answer,) = send(paced[0], {**text, "max_tokens": 4})
    outcome = answer.outcome()
    assert FIRST_S <= outcome.ttft_ms / 1e3 < FIRST_S + SLACK_S
    assert outcome.tpot_ms / 1e3 == pytest.approx(GAP_S, abs=SLACK_S / 3)
    assert len(answer.tokens_s) == 4 and answer.ended_s >= answer.tokens_s[-1]
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.hit_tokens) == (5, 4, 3)
    assert answer.token_ids == [0, 1, 2, 3]


def test_a_measurement_returns_no_cookie_that_a_server_or_its_proxy_sets():
    cookies = []

    class Sticky(small_server.Handler):
        def do_POST(self):
            self.body()
            cookies.append(self.headers["Cookie"])
            self.send_response(503)
            self.send_header("Set-Cookie", "route=server-1")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with small_server.serving(Sticky) as url:  # of an address without a name, aiohttp keeps none
        named = url.replace("127.0.0.1", "localhost")
        send(f"{named}/v1", *({"prompt": "x", "max_tokens": 1} for _ in range(2)))
    assert cookies == [None, None]


def test_no_more_requests_are_sent_at_once_than_told_and_in_their_order(paced):
    answers = send(paced[0], *({"prompt": [n], "max_tokens": 1} for n in range(4)), at_once=2)
    sent_s = [answer.sent_s for answer in answers]
    assert sent_s[1] - sent_s[0] < SLACK_S and sent_s[2] >= min(a.ended_s for a in answers[:2])
    assert sent_s == sorted(sent_s) and sorted(paced[1]) == [[0], [1], [2], [3]]


def test_a_turn_is_sent_after_its_answer_and_has_it_in_its_prompt(paced):
    load = [
        Arrival(0.1, 4, 2, pieces=(("system", 4),), answer="first"),
        Arrival(0.0, 9, 1, pieces=(("system", 4), ("first", 2)), follows=0, think_s=0.2),
    ]

    async def turns():
        async with timed.TimedSender(client_of(paced[0])) as sender:
            return await timed.send_load(sender, load)

    first, second = timed.run(turns())
    assert first.sent_s >= 0.1 and 0.19 <= second.sent_s - first.ended_s < 0.2 + SLACK_S
    prompt, later = paced[1]
    assert later[:6] == [*prompt, 0, 1] and len(later) == 9


def test_a_closed_loop_sends_the_next_request_after_an_answer_and_a_seed_repeats_the_prompts(paced):
    load = points.Load(requests=4, prompt_tokens=3, output_tokens=1, concurrency=2).arrivals(0)

    async def twice():
        async with timed.TimedSender(client_of(paced[0])) as sender:
            return [await timed.send_load(sender, load, seed) for seed in (5, 5)]

    answers, _ = timed.run(twice())
    sent_s = sorted(answer.sent_s for answer in answers)
    assert sent_s[1] - sent_s[0] < SLACK_S
    assert sent_s[2] >= min(answer.ended_s for answer in answers)
    assert all(len(prompt) == 3 for prompt in paced[1])
    assert sorted(paced[1][:4]) == sorted(paced[1][4:])
    assert len(set(map(tuple, paced[1]))) == 4


@pytest.fixture(scope="module")
def odd():
    with odd_answers.sound() as server:
        yield server


def stream(body: dict) -> bytes:
    return b"data: " + encoded(body) + b"\n\ndata: [DONE]\n\n"


def test_an_answer_that_is_none_is_named(odd):
    """It may be one that `received` refuses, or odd in a field that is read here alone."""
    choice = {"index": 0, "text": "x", "token_ids": 7}
    cached = {"prompt_tokens_details": {"cached_tokens": "many"}}
    for more, raw in (
        ({"prompt_logprobs": 0}, LOGIN),
        ({}, stream({**COMPLETION, "choices": [{"index": [], "text": "x"}]})),
        ({}, stream({**COMPLETION, "choices": [choice]})),
        ({}, stream({**COMPLETION, "usage": cached})),
    ):
        odd.answers["/v1/completions"] = raw
        (answer,) = send(odd.url, {"prompt": "x", "max_tokens": 1, **more})
        assert answer.error and "answers with" in answer.error.message, raw
        assert len(answer.error.message) < 400
    headers = odd.seen[-1][1]
    assert (headers["Authorization"], headers["X-Workshop-Learner"]) == ("Bearer secret", "7")


def test_a_failed_request_is_one_sentence(odd):
    rows = [
        (b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n', "a stream that breaks off"),
        (b"data: [DONE]\n\n", "an empty answer"),
        (b'data: {"error": {"message": "the engine died"}}\n\n', "the engine died"),
        ("HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n", r"refused the request \(429\)"),
        (
            "HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n",
            "does not accept this key|wants a key",
        ),
        (
            "HTTP/1.1 307 No\r\nLocation: http://b/\r\nContent-Length: 0\r\n\r\n",
            "leads to http://b",
        ),
        ("", "does not answer"),
    ]
    for reply, problem in rows:
        odd.answers["/v1/completions"] = reply
        (answer,) = send(odd.url, {"prompt": "x", "max_tokens": 2})
        with pytest.raises(WorkshopError, match=problem):
            answer.outcome()


def test_an_answer_that_does_not_come_ends_in_time(paced):
    (answer,) = send(paced[0], {"prompt": "x", "max_tokens": 60}, within_s=0.5)
    assert "did not answer within 0.5 s" in str(answer.error)
    assert 0.5 <= answer.ended_s < 0.5 + 2 * SLACK_S


@pytest.mark.live
def test_the_live_server_counts_what_is_sent(client):
    exactly = {"max_tokens": 8, "min_tokens": 8, "ignore_eos": True, "return_token_ids": True}
    prompt = {"prompt": "San Francisco is a", **exactly}

    async def ask():
        async with timed.TimedSender(client) as sender:
            streamed = await sender.send(prompt)
            samples = await sender.send({**prompt, "n": 3, "temperature": 1})
            whole = await sender.send({**prompt, "max_tokens": 1, "min_tokens": 1, "prompt_logprobs": 0})  # fmt: skip
            refused = await sender.send({"prompt": "x", "max_tokens": -1})
            return streamed, samples, whole, refused

    streamed, samples, whole, refused = timed.run(ask())
    assert (streamed.prompt_tokens, streamed.output_tokens, len(streamed.token_ids)) == (5, 8, 8)
    assert 0 < streamed.outcome().ttft_ms < streamed.outcome().e2el_ms
    assert samples.output_tokens == 24 and samples.outcome(3).output_tokens == 8
    assert whole.tokens_s == [whole.tokens_s[0]] and whole.output_tokens == 1
    assert isinstance(refused.error, BadInput) and "max_tokens" in refused.error.message
