"""Servers that are not as one would like them: short lists, chat only, gone; and recordings.

The servers here answer HTTP with vLLM's own shapes and refusals; the client is the course's own.
"""

from __future__ import annotations

import http.server
import math
import threading

import pytest

pytest.importorskip("openai")

from small_server import Handler

from benchmarks.sampling import record as recorder
from workshop.client.client import Client
from workshop.client.reach import CHECK_ADDRESS
from workshop.client.sampling_settings import Settings
from workshop.course.widgets.sampling.source import RecordedSource, ServerSource
from workshop.course.widgets.sampling.view import SamplingExplorer
from workshop.errors import BadInput, WorkshopError
from workshop.servers.records import ServerRecord

LOGPROBS = {7: math.log(0.5), 8: math.log(0.3), 9: math.log(0.15), 10: math.log(0.05)}
TEXTS = {7: " seven", 8: " eight", 9: " nine", 10: " ten", 1: "<s>"}


class Answers(Handler):
    """Answers as the class attributes of a test say."""

    limit, completions, chat_logprobs, requests = 3, True, True, ()

    def do_GET(self):
        self.reply({}, 404)

    def do_POST(self):
        body = self.body()
        type(self).requests = (*self.requests, (self.path, body))
        if self.path == "/detokenize":
            return self.reply({"prompt": "".join(TEXTS[token] for token in body["tokens"])})
        chat = self.path == "/v1/chat/completions"
        if not chat and not self.completions:
            return self.refuse(404, "Not Found")
        k = body.get("top_logprobs" if chat else "logprobs") or 0
        if k > self.limit:
            return self.refuse(
                400,
                f"Requested sample logprobs of {k}, which is greater than max allowed: {self.limit}",
            )
        return self.reply(self.chat(k, body) if chat else self.completion(k, body))

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
            "choices": [{**choice, "index": i} for i in range(body.get("n", 1))],
        }

    def chat(self, k, body):
        top = [
            {"token": TEXTS[token], "logprob": value, "bytes": []}
            for token, value in LOGPROBS.items()
        ][:k]
        content = [{"token": " seven", "logprob": LOGPROBS[7], "bytes": [], "top_logprobs": top}]
        return {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": index,
                    "finish_reason": "length",
                    "message": {"role": "assistant", "content": " seven"},
                    "logprobs": {"content": content},
                }
                for index in range(body.get("n", 1))
            ],
        }


@pytest.fixture
def serve(workshop_home):
    """Return a function that starts a server with the given ways, and returns (client, handler, stop)."""
    running = []

    def start(**ways):
        handler = type("Ways", (Answers,), {"requests": (), **ways})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
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


def test_a_chat_only_server_is_used_through_chat(serve):
    client, handler, _ = serve(completions=False, limit=4)
    explorer = SamplingExplorer(client, "one")
    assert explorer.banner.value == ""
    assert "through chat" in explorer.head.value
    assert list(explorer.result.probabilities) == [" seven", " eight", " nine", " ten"]
    explorer.take_best()
    path, body = handler.requests[-1]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": " seven"},
    ]
    assert body["continue_final_message"] is True
    explorer.completions.run()
    assert "differ" in explorer.completions.picture.value


def test_a_model_that_is_not_there_is_not_taken_for_a_chat_only_server(serve, monkeypatch):
    client, handler, _ = serve(completions=False)
    monkeypatch.setattr(
        handler,
        "refuse",
        lambda self, code, message: Answers.refuse(self, 404, "The model `m` does not exist."),
    )
    with pytest.raises(WorkshopError, match="does not exist"):
        ServerSource(client).position("one")


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
    with pytest.raises(BadInput, match="prompt is empty"):
        ServerSource(client).complete("", (), Settings(), n=1, seed=1, max_tokens=2)
    assert handler.requests == ()


class TestRecordings:
    @pytest.fixture
    def path(self, serve, tmp_path):
        client, *_ = serve(limit=100)
        about = {"vllm_version": "0.32.0", "hardware": "none", "command": "x"}
        recorder.record(ServerSource(client), ["one"], tmp_path / "r.json", **about)
        return tmp_path / "r.json"

    def test_a_recording_gives_back_what_the_server_said(self, path):
        source = RecordedSource(path)
        assert source.prompts == ("one",)
        assert source.position("one").logprobs == pytest.approx(LOGPROBS, abs=1e-4)
        assert source.position("one", (8,)).logprobs == pytest.approx(LOGPROBS, abs=1e-4)
        assert source.text((7, 8)) == " seven eight"
        assert len(source.complete("one", (), Settings(), n=20, seed=1, max_tokens=24)) == 20

    def test_its_end_is_said(self, path):
        source = RecordedSource(path)
        with pytest.raises(WorkshopError, match="recording ends here"):
            source.position("one", (7,) * 9)
        with pytest.raises(WorkshopError, match=r"not recorded.*temperature=0.7"):
            source.complete("one", (), Settings(temperature=0.33), n=1, seed=1, max_tokens=1)
        with pytest.raises(BadInput, match="'two' was not recorded"):
            source.position("two")

    def test_a_file_that_is_no_recording(self, tmp_path):
        (tmp_path / "x.json").write_text("not json")
        with pytest.raises(BadInput, match="no recording"):
            RecordedSource(tmp_path / "x.json")
        with pytest.raises(WorkshopError, match="cannot be read"):
            RecordedSource(tmp_path / "y.json")


class TestTheCoursesOwnRecording:
    def test_the_explorer_works_without_a_server(self):
        explorer = SamplingExplorer()
        assert "Recorded" in explorer.head.value
        assert explorer.prompt.value == "San Francisco is a"
        for _ in range(3):
            explorer.take_best()
        assert len(explorer.output) == 3
        explorer.ask()
        explorer.sliders["temperature"].value = 0.7
        explorer.completions.run()
        assert "of 20</b> differ" in explorer.completions.picture.value
        explorer.same_seed.run()
        assert "5 of 5" not in explorer.same_seed.picture.value

    def test_every_prompt_has_a_first_position_and_all_presets(self):
        source = RecordedSource()
        assert len(source.prompts) >= 4
        for prompt in source.prompts:
            position = source.position(prompt)
            mass = sum(map(math.exp, position.logprobs.values()))
            assert 0.3 < mass <= 1.001
            for settings in recorder.PRESETS:
                assert source.complete(prompt, (), settings, n=20, seed=1, max_tokens=24)

    def test_it_says_where_it_comes_from(self):
        data = RecordedSource()._data
        assert all(data[key] for key in ("model", "vllm_version", "hardware", "command", "date"))


@pytest.mark.live
def test_a_recording_of_the_live_server_agrees_with_it(client, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "BRANCHES", (2, 1))
    live = ServerSource(client)
    recorder.record(
        live,
        ["Boston is a"],
        tmp_path / "r.json",
        vllm_version="0.32.0",
        hardware="CPU",
        command="test",
    )
    recorded = RecordedSource(tmp_path / "r.json").position("Boston is a").logprobs
    full = live.position("Boston is a").logprobs
    assert recorded == pytest.approx({token: full[token] for token in recorded}, abs=1e-4)
