"""Servers that are not as one would like them: short lists, gone; and none at all.

The servers here answer HTTP with vLLM's own shapes and refusals; the client is the course's own.
"""

from __future__ import annotations

import http.server
import math
import threading

import pytest

pytest.importorskip("openai")

from small_server import Handler

from workshop.client.client import Client
from workshop.client.reach import CHECK_ADDRESS
from workshop.course.widgets.sampling.source import ServerSource
from workshop.course.widgets.sampling.view import SamplingExplorer
from workshop.errors import BadInput
from workshop.servers.records import ServerRecord

LOGPROBS = {7: math.log(0.5), 8: math.log(0.3), 9: math.log(0.15), 10: math.log(0.05)}
TEXTS = {7: " seven", 8: " eight", 9: " nine", 10: " ten", 1: "<s>"}


class Answers(Handler):
    """Answers as the class attributes of a test say."""

    limit, requests = 3, ()

    def do_GET(self):
        self.reply({}, 404)

    def do_POST(self):
        body = self.body()
        type(self).requests = (*self.requests, (self.path, body))
        if self.path == "/detokenize":
            return self.reply({"prompt": "".join(TEXTS[token] for token in body["tokens"])})
        k = body["logprobs"]
        if k > self.limit:
            return self.refuse(
                400,
                f"Requested sample logprobs of {k}, which is greater than max allowed: {self.limit}",
            )
        return self.reply(self.completion(k, body))

    def refuse(self, code, message):
        error = {"message": message, "type": "BadRequestError", "param": None, "code": code}
        self.reply({"error": error}, code)

    def completion(self, k, body):
        ids = body.get("return_tokens_as_token_ids")
        name = (lambda token: f"token_id:{token}") if ids else TEXTS.__getitem__
        top = {name(token): value for token, value in list(LOGPROBS.items())[: max(k, 1)]}
        choice = {
            "index": 0,
            "text": " seven",
            "finish_reason": "length",
            "token_ids": [7],
            "prompt_token_ids": [1],
            "logprobs": {
                "tokens": [name(7)],
                "token_logprobs": [LOGPROBS[7]],
                "top_logprobs": [top],
                "text_offset": [0],
            },
        }
        return {
            "id": "1",
            "object": "text_completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
        }


@pytest.fixture
def serve(workshop_home):
    """Return a function that starts a server with the given ways, and returns (client, handler, stop)."""
    running = []

    def start(**ways):
        handler = type("Ways", (Answers,), {"requests": (), **ways})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        running.append(server)
        url = f"http://127.0.0.1:{server.server_port}/v1"
        client = Client(
            ServerRecord(name="t", url=url, model="m", api_key="k", where="given", state="ready")
        )

        def stop():
            server.shutdown()
            server.server_close()

        return client, handler, stop

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def test_a_server_that_lists_three_is_asked_for_three(serve):
    client, handler, _ = serve(limit=3)
    source = ServerSource(client)
    position = source.position("one")
    assert position.logprobs == {7: LOGPROBS[7], 8: LOGPROBS[8], 9: LOGPROBS[9]}
    assert position.ceiling == pytest.approx(LOGPROBS[9])
    assert position.prompt == (1,)
    assert [
        body["logprobs"] for path, body in handler.requests if path.endswith("completions")
    ] == [8192, 3]
    assert "3 most probable" in source.describe()


def test_the_explorer_says_how_much_such_a_list_cannot_see(serve):
    client, *_ = serve(limit=3)
    explorer = SamplingExplorer(client, "one")
    assert (
        "5.0 % of the model's probability lies on tokens that are not listed"
        in explorer.picture.value
    )
    assert "--max-logprobs" in explorer.head.value


def test_what_was_generated_goes_back_as_token_ids_not_as_text(serve):
    client, handler, _ = serve(limit=100)
    source = ServerSource(client)
    source.position("one")
    source.position("one", (7, 8))
    assert handler.requests[-1][1]["prompt"] == [1, 7, 8]
    count = len(handler.requests)
    source.position("one", (7, 8))
    assert len(handler.requests) == count  # stepping back is free


def test_a_server_that_goes_away_is_named(serve):
    client, _, stop = serve(limit=100)
    explorer = SamplingExplorer(client, "one")
    stop()
    explorer.sliders["temperature"].value = 0.5
    assert explorer.banner.value == ""
    explorer.sample()
    assert "does not answer" in explorer.banner.value
    assert CHECK_ADDRESS in explorer.banner.value  # its address was given: it is no server of ours


def test_an_empty_prompt_is_not_sent(serve):
    client, handler, _ = serve()
    with pytest.raises(BadInput, match="prompt is empty"):
        ServerSource(client).position("")
    assert handler.requests == ()


def test_without_a_server_the_explorer_computes_the_teaching_model():
    explorer = SamplingExplorer()
    assert "all 8,192 tokens" in explorer.head.value
    for _ in range(3):
        explorer.take_best()
    assert len(explorer.output) == 3
    explorer.prompt.value = ""
    assert "prompt is empty" in explorer.banner.value
    explorer.prompt.value = "Boston is a"
    assert explorer.output == [] and explorer.banner.value == ""
    explorer.sliders["top_k"].value = 2
    assert len(explorer.result.probabilities) == 2
