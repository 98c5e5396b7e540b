"""The load explorer: how long users wait under a load, as the simulation predicts it."""

import operator
import threading
from collections.abc import Mapping, Sequence

import ipywidgets as widgets
from inference_planner.catalog import load_gpu

from workshop.course.drawing import html
from workshop.course.drawing.html import Html, panel, tiles, verdict
from workshop.course.notebooks import extra_servers
from workshop.course.topics import recorded_data
from workshop.course.widgets import controls as make
from workshop.course.widgets.metrics.view import chart
from workshop.engine.planning import plan
from workshop.errors import WorkshopError
from workshop.simulate.arrivals import drawn
from workshop.simulate.load import on_plan
from workshop.simulate.report import Simulation

# Loads that were measured on a GPU, by name (benchmarks/simulate/compare.py).
RECORDED = "simulated.json"
SECONDS = 10.0  # of simulated time
SPREAD = 0.5  # lengths are drawn from this share of the given one up to as much above it
NO_VLLM = (
    "vLLM is not installed here, so nothing is simulated: "
    "these are loads that were simulated earlier, and measured on a GPU."
)
TIMES = {
    "ttft": "to the first token",
    "tpot": "between two tokens",
    "e2el": "to the whole answer",
}


def picture(figures: Mapping, note: str = "") -> Html:
    """Return the picture of a simulation.

    `figures` is what `Simulation.to_dict` returns. `note` stands beside the verdict.
    """
    times = figures["over_time"]
    if figures["keeps_up"]:
        sign, look, head = "✓", "good", "It keeps up."
    else:
        sign, look, head = "✗", "bad", "Requests pile up."
        note = f"{_grows(times)} {note}"
    running = ("running", "blue", times["running"])
    waiting = ("waiting", "orange", times["waiting"])
    usage = ("KV cache", "kv", [100 * share for share in times["kv_cache_usage"]])
    label = f"{head} First token after {_ms(figures, 'ttft', 'p50')},"
    label += f" tokens every {_ms(figures, 'tpot', 'p50')},"
    label += f" KV cache up to {figures['kv_cache_usage_max']:.0%} full"
    return panel(
        verdict(sign, look, head, f" {note}"),
        tiles(_tiles(figures), 5),
        chart("Requests", "", times["t_s"], [running, waiting]),
        chart("KV cache in use", "%", times["t_s"], [usage], last=True),
        label=label,
    )


def _tiles(figures: Mapping) -> list[tuple[str, str, str]]:
    """Return the times and the rate of a simulation, each with its meaning and a note."""
    items = []
    for name, meaning in TIMES.items():
        median, p95 = _ms(figures, name, "p50"), _ms(figures, name, "p95")
        items.append((median, f"{meaning}, half of them", f"95 of 100: {p95}"))
    rate = f"{figures['tokens_per_s']:,.0f}"
    items.append((rate, "tokens a second", f"{figures['gpus']} × {figures['gpu']}"))
    return items


def _grows(times: Mapping[str, Sequence[float]]) -> str:
    """Return a sentence on unfinished requests: when most of them are, and in half that time.

    Unfinished requests run or wait.
    """
    at_s = times["t_s"]
    unfinished = list(map(operator.add, times["running"], times["waiting"]))
    most = unfinished.index(max(unfinished))
    half_s = at_s[most] / 2
    half = min(range(len(at_s)), key=lambda look: abs(at_s[look] - half_s))
    before = f"{unfinished[half]} after {at_s[half]:.1f} s"
    return f"Unfinished: {before} → {unfinished[most]} after {at_s[most]:.1f} s."


def _ms(figures: Mapping, name: str, which: str) -> str:
    ms = figures[f"{name}_ms"][which]
    if ms is None:
        return "–"
    if ms < 100:
        return f"{ms:,.1f} ms"
    if ms < 10_000:
        return f"{ms:,.0f} ms"
    return f"{ms / 1e3:,.0f} s"


class LoadExplorer(make.Explorer[Simulation | dict | None]):
    """The waiting times of many users: 10 s of requests, simulated on the plan's clock.

    The scheduler is vLLM's own, with the plan's KV cache.

    The button simulates, in a thread: other cells run meanwhile. Without vLLM the explorer shows
    recorded loads, and says so.

    >>> from workshop.course.widgets.load.view import LoadExplorer
    >>> explorer = LoadExplorer("llama-3.1-8b", gpu="h100", rate=8)
    >>> explorer.simulate()                         # doctest: +SKIP
    >>> explorer.result.keeps_up                    # doctest: +SKIP
    True

    Args:
        model: a catalog name, or a folder with a config.json.
        **case: where the other controls stand at first: gpu, gpus, rate, prompt, answer, weights,
            max_num_batched_tokens, max_num_seqs.
    """

    def __init__(
        self,
        model: str = "llama-3.1-8b",
        *,
        gpu: str = "h100",
        gpus: int = 1,
        rate: float = 8,
        prompt: int = 300,
        answer: int = 128,
        weights: str = "",
        max_num_batched_tokens: int = 8192,
        max_num_seqs: int = 256,
    ):
        self.live = extra_servers.simulates()
        look = {"button_style": "primary", "icon": "play"}
        self.button = make.button("Simulate", self.start, "120px", **look)
        precisions = (("as published", ""), ("fp8, made while loading", "fp8"))
        rates = (0.5, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96)
        budgets = (512, 1024, 2048, 4096, 8192, 16384)
        sequences = (8, 16, 32, 64, 128, 256, 1024)
        controls = {
            "model": make.models(model),
            "gpu": make.gpus(gpu),
            "gpus": make.steps("GPUs", (1, 2, 4, 8), gpus),
            "rate": make.steps("requests/s", rates, rate),
            "prompt": make.steps("prompt", (32, 128, 300, 1000, 2000, 4000, 7000), prompt),
            "answer": make.steps("answer", (16, 64, 128, 256, 512, 1000), answer),
            "weights": make.choice("weights", precisions, weights),
            "max_num_batched_tokens": make.steps("tokens a step", budgets, max_num_batched_tokens),
            "max_num_seqs": make.steps("at once", sequences, max_num_seqs),
        }
        if not self.live:
            loads = list(recorded_data.read(RECORDED))
            controls = {"load": make.choice("recorded load", loads, loads[0])}
        super().__init__(controls, label_px=96)

    def control_rows(self) -> list[tuple[widgets.Widget, ...]]:
        rows = super().control_rows()
        if self.live:
            rows.append((self.button,))
        return rows

    def compute(self) -> Simulation | dict | None:
        """Return the recorded load; with vLLM None until the button is clicked."""
        if self.live:
            return None
        return recorded_data.read(RECORDED)[self.values["load"]]

    def start(self) -> None:
        """Simulate in a thread. Until it is done, the controls stay as they are."""
        if self.button.disabled:  # a second click
            return
        self._set_disabled(True)
        self.picture.value = panel("computing …")
        threading.Thread(target=self.simulate, daemon=True).start()

    def simulate(self) -> None:
        """Simulate what the controls say, and draw it."""
        try:
            self.result = self._simulated()
            self.picture.value = self.picture_of(self.result)
        except WorkshopError as error:
            self.picture.value = html.alert(error)
        finally:
            self._set_disabled(False)

    def _simulated(self) -> Simulation:
        values = self.values
        prompt = _around(values["prompt"])
        answer = _around(values["answer"])
        p = plan(
            values["model"],
            values["gpu"],
            tensor_parallel_size=values["gpus"],
            quantization=values["weights"] or None,
            max_model_len=max(2048, prompt[1] + answer[1]),
            max_num_batched_tokens=values["max_num_batched_tokens"],
            max_num_seqs=values["max_num_seqs"],
        )
        load = drawn(rate=values["rate"], seconds=SECONDS, prompt=prompt, output=answer)
        return on_plan(p, load)

    def _set_disabled(self, is_disabled: bool) -> None:
        for control in (self.button, *self.controls.values()):
            control.disabled = is_disabled

    def picture_of(self, result: Simulation | dict | None) -> str:
        if result is None:
            return panel(
                "Not simulated yet: set the controls, then click Simulate. "
                "The first time, vLLM's scheduler takes a few seconds to start."
            )
        if isinstance(result, dict):
            measured = result["measured"]
            p50, p95 = measured["ttft_ms_p50"], measured["ttft_ms_p95"]
            ttft = f"first token after {p50:,.0f} ms, 95 of 100 after {p95:,.0f} ms."
            return picture(result, f"{NO_VLLM} Measured here: {ttft}")
        requests = f"{len(result.requests):,} requests in {SECONDS:.0f} s"
        return picture(result.to_dict(), f"{requests}, {result.steps:,} steps.")

    def sentences(self) -> Mapping[str, str]:
        if not self.live:
            return {"load": "model, GPU and load, as they were measured."}
        values = self.values
        gpu = load_gpu(values["gpu"])
        return {
            "gpu": f"{gpu.engine_gib:.0f} GiB for the engine, {gpu.bandwidth_gb_s:,.0f} GB/s.",
            "gpus": "tensor parallel: each holds a part of every layer.",
            "rate": f"at random moments, for {SECONDS:.0f} s.",
            "prompt": "{:,} to {:,} tokens.".format(*_around(values["prompt"])),
            "answer": "{:,} to {:,} tokens.".format(*_around(values["answer"])),
            "max_num_batched_tokens": "max_num_batched_tokens: a long prompt is cut into such "
            "pieces.",
            "max_num_seqs": "max_num_seqs: requests of one step; the others wait.",
        }


def _around(length: int) -> tuple[int, int]:
    return max(1, int(length * (1 - SPREAD))), int(length * (1 + SPREAD))
