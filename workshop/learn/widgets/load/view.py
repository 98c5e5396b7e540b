"""The load explorer: rate, lengths, GPUs, flags → what users wait for, as the simulation finds it; drawn while it computes."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from workshop.errors import WorkshopError
from workshop.learn import html, labs, recordings
from workshop.learn.widgets import controls as make
from workshop.learn.widgets.load.picture import picture
from workshop.plan.catalog import load_gpu
from workshop.plan.parallelism import Plan, plan
from workshop.simulate.arrivals import drawn
from workshop.simulate.load import on_plan
from workshop.simulate.report import Simulation

SECONDS = 10.0  # of simulated time
RATES = (0.5, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96)
PROMPTS = (32, 128, 300, 1000, 2000, 4000, 7000)
ANSWERS = (16, 64, 128, 256, 512, 1000)
BATCHED = (512, 1024, 2048, 4096, 8192, 16384)
SEQUENCES = (8, 16, 32, 64, 128, 256, 1024)
WEIGHTS = (("as published", ""), ("fp8, made while loading", "fp8"))
SPREAD = 0.5  # lengths are drawn from this share of the given one up to as much above it
NO_VLLM = "vLLM is not installed here, so nothing is simulated: these are loads that were simulated earlier, and measured on a GPU."


def recorded() -> dict[str, dict]:
    """Return simulations of loads that were measured on a GPU, by name (benchmarks/simulate/compare.py)."""
    return recordings.read("simulated.json")


class LoadExplorer(make.Explorer):
    """What many users wait for: vLLM's own scheduler with the plan's KV cache, 10 s of requests, on the plan's clock.

    The simulation runs in a process of its own: the picture is drawn while it computes, and a newer change ends it.
    Without vLLM it shows recorded loads, and says so.

    >>> from workshop.learn.widgets.load.view import LoadExplorer
    >>> explorer = LoadExplorer("llama-3.1-8b", gpu="h100", rate=8)
    >>> explorer.settled()                          # a cell need not wait
    >>> explorer.result.keeps_up                    # doctest: +SKIP
    True

    Args:
        model: a catalogue name, or a folder with a config.json.
        **case: where the other controls stand at first: gpu, gpus, rate, prompt, answer, weights,
            max_num_batched_tokens, max_num_seqs.
    """

    def __init__(self, model: str = "llama-3.1-8b", *, gpu: str = "h100", gpus: int = 1, rate: float = 8,
                 prompt: int = 300, answer: int = 128, weights: str = "",
                 max_num_batched_tokens: int = 8192, max_num_seqs: int = 256):  # fmt: skip
        self.live = labs.simulates()
        self._newest, self._lock, self._idle = 0, threading.Lock(), threading.Event()
        controls = {
            "model": make.models(model),
            "gpu": make.gpus(gpu),
            "gpus": make.steps("GPUs", (1, 2, 4, 8), gpus),
            "rate": make.steps("requests/s", RATES, rate),
            "prompt": make.steps("prompt", PROMPTS, prompt),
            "answer": make.steps("answer", ANSWERS, answer),
            "weights": make.choice("weights", WEIGHTS, weights),
            "max_num_batched_tokens": make.steps("tokens a step", BATCHED, max_num_batched_tokens),
            "max_num_seqs": make.steps("at once", SEQUENCES, max_num_seqs),
        }
        if not self.live:
            controls = {"load": make.choice("recorded load", recorded(), next(iter(recorded())))}
        super().__init__(controls, label_px=96)

    def compute(self) -> Simulation | dict | None:
        """Return the last simulation, while the new one is under way; the recorded one where there is no vLLM."""
        self._newest += 1  # what still runs is given up
        if not self.live:
            self._idle.set()
            return recorded()[self.said["load"]]
        said = self.said
        limits = {name: said[name] for name in ("max_num_batched_tokens", "max_num_seqs")}
        limits["max_model_len"] = max(2048, _around(said["prompt"])[1] + _around(said["answer"])[1])
        weights = said["weights"] or None
        p = plan(said["model"], said["gpu"], tensor_parallel_size=said["gpus"], quantization=weights, **limits)
        self._idle.clear()
        threading.Thread(target=self._simulate, args=(self._newest, p, said), daemon=True).start()
        return self.result

    def _simulate(self, turn: int, p: Plan, said: Mapping) -> None:
        def shown(found: Simulation, note: str = "") -> bool:
            with self._lock:
                if turn != self._newest:
                    return False
                self.result = found
                said = {**found.to_dict(), "busiest": found.busiest}
                self.picture.value = picture(said, note or "computing …", done=bool(note))
                return True

        load = drawn(rate=said["rate"], seconds=SECONDS, prompt=_around(said["prompt"]), output=_around(said["answer"]))
        try:
            if found := on_plan(p, load, seen=shown):
                shown(found, f"{len(load):,} requests in {SECONDS:.0f} s, {found.steps:,} steps.")
        except WorkshopError as error:
            if turn == self._newest:
                self.picture.value = html.alert(error)
        finally:
            if turn == self._newest:
                self._idle.set()

    def picture_of(self, result: Simulation | dict | None) -> str:
        if isinstance(result, dict):
            p50, p95 = (result["measured"][f"ttft_ms_{p}"] for p in ("p50", "p95"))
            measured = f"Measured here: first token after {p50:,.0f} ms, 95 of 100 after {p95:,.0f} ms."
            return picture(result, f"{NO_VLLM} {measured}")
        if result is None:
            return html.panel("Starting vLLM's scheduler: a few seconds, once.")
        return self.picture.value  # until there is something new

    def settled(self, timeout_s: float = 120) -> bool:
        """Wait until what the controls say is simulated; return whether it is."""
        return self._idle.wait(timeout_s)

    def words(self) -> Mapping[str, str]:
        if not self.live:
            return {"load": "model, GPU and load, as they were measured."}
        said, gpu = self.said, load_gpu(self.said["gpu"])
        return {
            "gpu": f"{gpu.engine_gib:.0f} GiB for the engine, {gpu.bandwidth_gb_s:,.0f} GB/s.",
            "gpus": "tensor parallel: each holds a part of every layer.",
            "rate": f"at random moments, for {SECONDS:.0f} s.",
            "prompt": "{:,} to {:,} tokens.".format(*_around(said["prompt"])),
            "answer": "{:,} to {:,} tokens.".format(*_around(said["answer"])),
            "max_num_batched_tokens": "max_num_batched_tokens: a long prompt is cut into such pieces.",
            "max_num_seqs": "max_num_seqs: requests of one step; the others wait.",
        }


def _around(length: int) -> tuple[int, int]:
    return max(1, int(length * (1 - SPREAD))), int(length * (1 + SPREAD))
