"""`workshop bench` reads the energy counter around a load, after the warm-up. The NVML here is a fake one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pytest
import small_server
from small_nvml import fake_nvml

from workshop.cli.use import bench_table
from workshop.measure import points
from workshop.measure.points import Point
from workshop.servers.host import gpus
from workshop.servers.host.gpus import Gpu
from workshop.servers.records.record_file import ServerRecord
from workshop.simulate.report import Outcome

GPU = "GPU-a"
WARMUP_TOKENS = 2  # of these tests
MILLIJOULES = 3000  # of each request of the planted server
(SESSIONS,) = points.session_loads(
    [2],
    {"turns": (3, 3), "think_s": 0.01}
    | {"system": 8, "prompt": (4, 4), "tool": (4, 4), "output": (5, 5)},
)


class Planted:
    """A server whose GPU takes some energy for each request, and what was asked of it in order."""

    def __init__(self) -> None:
        self.counters = {GPU: 1_000_000}
        self.requests = 0
        self.prompt_tokens = 0
        self.log: list[str] = []

    def answered(self, requests: int, prompt_tokens: int) -> None:
        """Count requests, and the energy that they took."""
        self.requests += requests
        self.prompt_tokens += prompt_tokens
        self.counters[GPU] += requests * MILLIJOULES

    def metrics(self) -> str:
        counters = {
            "request_success": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "prefix_cache_hits": self.prompt_tokens // 2,
        }
        lines = []
        for name, value in counters.items():
            lines.append(f"# TYPE vllm:{name} counter\nvllm:{name}_total {float(value)}\n")
        return "".join(lines)

    def answer(self, body: dict) -> str:
        self.answered(1, len(body["prompt"]))
        prompt_tokens, tokens = len(body["prompt"]), body["max_tokens"]
        self.log.append("warm-up" if tokens == WARMUP_TOKENS else "turn")
        pieces: list[dict] = [{"choices": [{"index": 0, "text": "a", "token_ids": [7]}]}] * tokens
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
        pieces.append({"choices": [], "usage": usage})
        return "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces) + "data: [DONE]\n\n"


@pytest.fixture
def planted(monkeypatch) -> Planted:
    server = Planted()
    monkeypatch.setattr(points, "WARMUP_TOKENS", WARMUP_TOKENS)
    monkeypatch.setattr(gpus, "visible", lambda: [Gpu("H100", 1, 1, uuid=GPU)])
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(server.counters))
    return server


@pytest.fixture
def record(planted) -> Iterator[ServerRecord]:
    class Answers(small_server.Handler):
        def do_GET(self):
            planted.log.append("/metrics")
            self.reply(planted.metrics())

        def do_POST(self):
            self.reply(planted.answer(self.body()))

    with small_server.serving(Answers) as url:
        yield ServerRecord(name="one", url=f"{url}/v1", model="m", api_key="", pid=os.getpid())


def in_text(point: Point) -> str:
    return bench_table.as_text("m", [point], predicts=False)


def test_a_point_counts_the_joules_of_its_load_without_the_warm_up(planted, record):
    load = points.Load(requests=20, prompt_tokens=16, output_tokens=32, concurrency=4)
    point = points.measure(record, "m", load)
    assert point.to_dict()["energy"]["joules"] == 20 * MILLIJOULES / 1000
    assert point.to_dict()["energy"]["joules_per_token"] == round(3 / 32, 4)
    assert "· 4 at once: 0.09 joules per written token" in in_text(point)
    turns = ["turn"] * 20
    assert planted.log == ["warm-up"] * points.WARMUPS + ["/metrics", *turns, "/metrics"]


def test_sessions_count_the_joules_of_their_turns_without_the_warm_up(planted, record):
    point = points.measure(record, "m", SESSIONS)
    assert point.load.requests == 6
    assert point.to_dict()["energy"]["joules"] == 6 * MILLIJOULES / 1000
    assert point.to_dict()["energy"]["joules_per_token"] == 3 / 5
    assert "· 2 sessions: 0.60 joules per written token" in in_text(point)
    turns = ["turn"] * 6
    assert planted.log == ["warm-up"] * points.WARMUPS + ["/metrics", *turns, "/metrics"]
    assert "other requests" not in [fault.kind for fault in point.faults]


def test_a_server_on_another_machine_has_no_energy(planted, record):
    elsewhere = ServerRecord(**{**vars(record), "where": "slurm"})
    point = points.measure(elsewhere, "m", SESSIONS)
    assert point.energy is None and "joules" not in in_text(point)


def test_the_predicted_goodput_of_sessions_stands_beside_the_measured_one(planted, record):
    def simulate(arrivals):
        outcomes = []
        for number, arrival in enumerate(arrivals):
            first_s = 2.0 if number else 0.5  # the first request alone has its token within 1 s
            outcome = Outcome(0.0, arrival.prompt_tokens, first_s, 4.0, arrival.output_tokens)
            outcomes.append(outcome)
        return outcomes

    point = points.measure(record, "m", SESSIONS, slo="ttft=1s", simulate=simulate)
    assert point.predicted is not None
    assert point.predicted["goodput_per_s"] == pytest.approx(1 / 4)
    assert point.goodput_per_s == pytest.approx(6 / point.seconds)
    without = points.measure(record, "m", SESSIONS, simulate=simulate)
    assert without.predicted is not None and without.predicted["goodput_per_s"] is None
