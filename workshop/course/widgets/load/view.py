"""The load explorer: how long users wait under a load, as the simulation predicts it.

The picture is drawn while the simulation runs.
"""

import operator
import threading
from collections.abc import Mapping, Sequence

from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import load_gpu

from workshop.course.drawing import html
from workshop.course.drawing.chart import Axes, box, path, svg
from workshop.course.drawing.html import Html, bold, div, join, legend, panel, tiles, verdict
from workshop.course.notebooks import extra_servers
from workshop.course.topics import recorded_data
from workshop.course.widgets import controls as make
from workshop.course.widgets import style
from workshop.course.widgets.metrics.view import chart
from workshop.engine.exact import plan
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
WIDTH, LEFT, LANE, GAP = 820, 64, 46, 18


def picture(figures: Mapping, note: str = "", *, done: bool = True) -> Html:
    """Return the picture of a simulation.

    `figures` is what `Simulation.to_dict` returns, with `busiest`. `note` stands beside the
    verdict.
    """
    times = figures["over_time"]
    if not done:
        sign, look, head = "…", "open", "So far:"
    elif figures["keeps_up"]:
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
        steps(figures["busiest"]),
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


def steps(busiest: Sequence[Sequence[float]]) -> Html:
    """Return the fullest steps as boxes, each as wide as its time.

    Tokens of prompts are above, tokens of answers below.
    """
    if not busiest:
        return join([])
    begin_s, end_s = busiest[0][0], busiest[-1][1]
    parts = []
    for lane, colour in enumerate((style.ORANGE, style.GREEN)):
        tokens = [step[2 + lane] for step in busiest]
        most = max(1, *tokens)
        top = 8 + lane * (LANE + GAP)
        axes = Axes(LEFT, top, WIDTH - 12, top + LANE, end_s, most, begin_s)
        parts.append(path(f"M{axes.left} {axes.bottom}H{axes.right}", style.LINE))
        parts.append(axes.y_ticks((0, most), "{:,.0f}".format))
        for step, count in zip(busiest, tokens, strict=True):
            x, y = axes.x(step[0]), axes.y(count)
            width = max(0.8, axes.x(step[1]) - x - 0.6)
            parts.append(box(x, y, width, axes.bottom - y, colour, radius=0))
    parts.append(axes.x_ticks((begin_s, end_s), "{:.2f} s".format, inside=True))
    names = legend((("bg-orange", "tokens of prompts"), ("bg-green", "tokens of answers")))
    title = f"The {len(busiest)} fullest steps in a row, each as wide as it takes"
    head = div(bold(title), names, cls="name-of-chart")
    return join([head, svg("".join(parts), WIDTH, 2 * LANE + GAP + 30)])


class LoadExplorer(make.Explorer[Simulation | dict | None]):
    """The waiting times of many users: 10 s of requests, simulated on the plan's clock.

    The scheduler is vLLM's own, with the plan's KV cache.

    The simulation runs in a process of its own: the picture is drawn while it computes, and a newer
    change ends it. Without vLLM it shows recorded loads, and says so.

    >>> from workshop.course.widgets.load.view import LoadExplorer
    >>> explorer = LoadExplorer("llama-3.1-8b", gpu="h100", rate=8)
    >>> explorer.settled()                          # a cell need not wait
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
        self._newest = 0
        self._lock = threading.Lock()
        self._idle = threading.Event()
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

    def compute(self) -> Simulation | dict | None:
        """Return the last simulation while a new one runs; a recorded one without vLLM."""
        self._newest += 1  # what still runs is given up
        if not self.live:
            self._idle.set()
            return recorded_data.read(RECORDED)[self.values["load"]]
        values = self.values
        longest_request = _around(values["prompt"])[1] + _around(values["answer"])[1]
        p = plan(
            values["model"],
            values["gpu"],
            tensor_parallel_size=values["gpus"],
            quantization=values["weights"] or None,
            max_model_len=max(2048, longest_request),
            max_num_batched_tokens=values["max_num_batched_tokens"],
            max_num_seqs=values["max_num_seqs"],
        )
        self._idle.clear()
        threading.Thread(target=self._simulate, args=(self._newest, p, values), daemon=True).start()
        return self.result

    def _simulate(self, turn: int, plan: Plan, values: Mapping) -> None:
        """Simulate, in a thread; draw what is known so far until a newer turn begins."""

        def show(simulation: Simulation, note: str = "") -> bool:
            with self._lock:
                if turn != self._newest:
                    return False
                self.result = simulation
                figures = {**simulation.to_dict(), "busiest": simulation.busiest}
                self.picture.value = picture(figures, note or "computing …", done=bool(note))
                return True

        load = drawn(
            rate=values["rate"],
            seconds=SECONDS,
            prompt=_around(values["prompt"]),
            output=_around(values["answer"]),
        )
        try:
            simulation = on_plan(plan, load, seen=show)
            if simulation:
                requests = f"{len(load):,} requests in {SECONDS:.0f} s"
                show(simulation, f"{requests}, {simulation.steps:,} steps.")
        except WorkshopError as error:
            if turn == self._newest:
                self.picture.value = html.alert(error)
        finally:
            if turn == self._newest:
                self._idle.set()

    def picture_of(self, result: Simulation | dict | None) -> str:
        if isinstance(result, dict):
            measured = result["measured"]
            p50, p95 = measured["ttft_ms_p50"], measured["ttft_ms_p95"]
            ttft = f"first token after {p50:,.0f} ms, 95 of 100 after {p95:,.0f} ms."
            return picture(result, f"{NO_VLLM} Measured here: {ttft}")
        if result is None:
            return html.panel("Starting vLLM's scheduler: a few seconds, once.")
        return self.picture.value  # until there is something new

    def settled(self, timeout_s: float = 120) -> bool:
        """Wait until what the controls say is simulated; return whether it is."""
        return self._idle.wait(timeout_s)

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
