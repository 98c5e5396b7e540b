"""`workshop bench` finds each planted fault, and says nothing where none is: a server that counts, and result files."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import small_server

from workshop.engine.metrics import Metrics
from workshop.measure import checks, points, results
from workshop.servers.records.record_file import ServerRecord
from workshop.simulate.report import Outcome
from workshop.simulate.sessions import Sessions, drawn_sessions

PROMPT_TOKENS = 1024
ANSWER = 'data: {"choices": [{"index": 0, "text": "a"}]}\n\ndata: [DONE]\n\n'


class Counters:
    """What a planted server has counted."""

    def __init__(self) -> None:
        self.requests = 40
        self.prompt_tokens = 40_000
        self.hits = 1600
        self.hidden = False

    def page(self) -> str:
        rows = {
            "vllm:request_success": self.requests,
            "vllm:prompt_tokens": self.prompt_tokens,
            "vllm:prefix_cache_hits": self.hits,
        }
        lines = []
        for name, value in rows.items():
            lines.append(f"# TYPE {name} counter\n{name}_total {float(value)}\n")
        return "".join(lines)


class Server:
    """A server of a few lines: it answers warm-ups and shows its counters."""

    def __init__(self, stack: ExitStack):
        counters = Counters()

        class Answers(small_server.Handler):
            def do_GET(self):
                self.reply(counters.page(), 404 if counters.hidden else 200)

            def do_POST(self):
                self.body()
                counters.requests += 1
                counters.prompt_tokens += PROMPT_TOKENS
                self.reply(ANSWER)

        self.counters = counters
        url = stack.enter_context(small_server.serving(Answers)) + "/v1"
        self.record = ServerRecord(name="one", url=url, model="m", api_key="")


class PlantedLoad:
    """Stands for the sender: it counts what a load of these properties would leave behind."""

    def __init__(self, counters: Counters, plant: dict):
        self.counters = counters
        self.plant = plant

    async def send(self, client, arrivals, seed) -> list[Outcome]:
        sent = len(arrivals)
        if self.plant.get("restarts"):
            self.counters.requests = 0
        self.counters.requests += sent + self.plant.get("others", 0)
        self.counters.prompt_tokens += sent * PROMPT_TOKENS
        self.counters.hits += int(self.plant.get("hits", 0.0) * sent * PROMPT_TOKENS)
        gap_s = arrivals[-1].arrival_s / sent
        if "sends_a_second" in self.plant:
            gap_s = 1 / self.plant["sends_a_second"]
        answer_s = self.plant.get("answer_ms", 900.0) / 1e3
        outcomes = []
        for number in range(sent):
            sent_s = number * gap_s
            outcomes.append(Outcome(sent_s, PROMPT_TOKENS, sent_s + 0.1, sent_s + answer_s, 64))
        return outcomes


def watch_of(plant: dict) -> type[points.LoadWatch]:
    """Return a watch to which the client took the planted share of a core."""

    class Watch(points.LoadWatch):
        def __exit__(self, *reasons: object) -> None:
            super().__exit__(*reasons)
            self.cpu_share = plant.get("cpu_share", 0.3)

    return Watch


def measured(plant: dict, **load) -> list[str]:
    """Return the kinds of faults of a measured point."""
    return [fault.kind for fault in point_of(plant, **load).faults]


def point_of(plant: dict, slo=None, simulate=None, **load) -> points.Point:
    """Return a measured point."""
    with ExitStack() as stack:
        server = Server(stack)
        server.counters.hidden = plant.get("hidden", False)
        options = {"requests": 100, "prompt_tokens": PROMPT_TOKENS, "output_tokens": 64, **load}
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(points, "send", PlantedLoad(server.counters, plant).send)
        patch.setattr(points, "LoadWatch", watch_of(plant))
        planted_load = points.Load(**options)
        return points.measure(server.record, "m", planted_load, slo=slo, simulate=simulate)


def of_vllm(**changes) -> dict:
    requests = changes.get("num_prompts", 200)
    return {
        "model_id": "m",
        "num_prompts": requests,
        "completed": requests,
        "request_rate": 4.0,
        "max_concurrency": None,
        "duration": 52.0,
        "total_input_tokens": 204_800,
        "output_throughput": 512.5,
        "start_times": [number / 4 for number in range(requests)],
        "p99_e2el_ms": 2100.0,
        "seed": "4711",  # of --metadata seed=4711
        **changes,
    }


def read(tmp_path, *files: dict) -> list[str]:
    """Return the kinds of faults of result files."""
    paths = []
    for number, content in enumerate(files):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(content))
    kinds = []
    for measurement in results.read(paths):
        kinds += [fault.kind for fault in measurement.faults]
    return kinds


Case = Callable[..., list[str]]

FAULTY: dict[str, tuple[str, Case]] = {
    "same seed again": ("prefix cache", lambda _: measured({"hits": 0.97}, concurrency=8)),
    "shared prefix": ("prefix cache", lambda _: measured({"hits": 0.12}, rate=4.0)),
    "somebody else": ("other requests", lambda _: measured({"others": 3}, concurrency=8)),
    "restart": ("restarted", lambda _: measured({"restarts": True}, concurrency=8)),
    "client at its limit": ("slow client", lambda _: measured({"cpu_share": 0.97}, concurrency=64)),
    "client too late": ("slow client", lambda _: measured({"sends_a_second": 20}, rate=50.0)),
    "too few requests": ("too short", lambda _: measured({}, concurrency=8, requests=40)),
    "load ends early": ("too short", lambda _: measured({"answer_ms": 30_000}, rate=10.0)),
    "gateway": ("no metrics", lambda _: measured({"hidden": True}, concurrency=8)),
    "vllm, same prompts": ("prefix cache", lambda tmp: read(tmp, of_vllm(), of_vllm())),
    "vllm, default seed": ("seed unknown", lambda tmp: read(tmp, of_vllm(seed=None))),
    "vllm, few requests": ("too short", lambda tmp: read(tmp, of_vllm(num_prompts=30))),
    "vllm, failed": ("unanswered", lambda tmp: read(tmp, of_vllm(completed=171))),
    "vllm, late": (
        "slow client",
        lambda tmp: read(tmp, of_vllm(request_rate=40.0, p99_e2el_ms=900.0)),
    ),
}
CLEAN: dict[str, Case] = {
    "one at a time": lambda _: measured({}, concurrency=1),
    "many at once": lambda _: measured({}, concurrency=64, requests=400),
    "a rate": lambda _: measured({}, rate=4.0),
    "a slow rate": lambda _: measured({"answer_ms": 4000}, rate=0.5),
    "a busy client": lambda _: measured({"cpu_share": 0.8}, concurrency=64),
    "a client that is a little late": lambda _: measured({"sends_a_second": 47}, rate=50.0),
    "a few hits": lambda _: measured({"hits": 0.008}, concurrency=8),
    "vllm": lambda tmp: read(tmp, of_vllm()),
    "vllm, two seeds": lambda tmp: read(tmp, of_vllm(), of_vllm(seed="815")),
    "vllm, concurrency": lambda tmp: read(
        tmp, of_vllm(request_rate="inf", max_concurrency=16, start_times=[])
    ),
}


def test_a_planted_fault_is_found_and_no_other(tmp_path):
    for name, (kind, case) in FAULTY.items():
        assert set(case(tmp_path)) == {kind}, name


def test_a_fault_says_how_large_it_is():
    for plant, load, says in (
        ({"hits": 0.4}, {"concurrency": 8}, "40% of the prompts' tokens"),
        ({"restarts": True}, {"concurrency": 8}, "started again during the measurement"),
        ({}, {"concurrency": 8, "requests": 40}, "100 or more"),
        ({"answer_ms": 30_000}, {"rate": 10.0}, "before the server was as full as it gets"),
    ):
        (fault,) = point_of(plant, **load).faults
        assert says in fault.sentence, plant


def test_a_clean_measurement_has_no_fault(tmp_path):
    for name, case in CLEAN.items():
        assert case(tmp_path) == [], name


def half_in_time(arrivals):
    """Give half of the requests their first token within a second."""
    outcomes = []
    for number, arrival in enumerate(arrivals):
        first_s = arrival.arrival_s + 0.5 + number % 2
        outcomes.append(Outcome(arrival.arrival_s, 256, first_s, first_s + 1.0, 64))
    return outcomes


def test_the_limits_reach_the_prediction_of_a_load_of_random_prompts():
    predicted = point_of({}, rate=4.0, slo="ttft=1s", simulate=half_in_time).predicted
    assert predicted is not None and predicted["prefix_hit_share"] == 0.0
    # 50 of the 100 requests, in the 25 s that they take to arrive and the last one to be answered
    assert predicted["goodput_per_s"] == pytest.approx(2.0, rel=0.1)
    predicted = point_of({}, rate=4.0, simulate=half_in_time).predicted
    assert predicted is not None and predicted["goodput_per_s"] is None


def test_turns_share_what_came_before_and_lose_it_by_a_fault():
    options = Sessions(sessions=3, turns=(4, 4), system=100, prompt=(50, 50), tool=(20, 20), output=(10, 10))  # fmt: skip
    returning = checks.returning_share(drawn_sessions(options))
    # prompts of 150, 180, 210, 240: the system prompt returns in the first of two sessions, and all but the 20 new
    assert returning == pytest.approx((2 * 100 + 3 * (160 + 190 + 220)) / (3 * 780))
    before = Metrics(0.0, prompt_tokens_total=0, prefix_hits_total=0)
    intact = Metrics(0.0, prompt_tokens_total=2340, prefix_hits_total=1700)
    lost = Metrics(0.0, prompt_tokens_total=2340, prefix_hits_total=300)
    assert checks.hits_of_sessions(before, intact, returning) == (1700 / 2340, None)
    _, fault = checks.hits_of_sessions(before, lost, returning)
    assert fault is not None and fault.kind == "prefixes lost"
    assert "82% of the prompts' tokens came again in later turns, and 13%" in fault.sentence
