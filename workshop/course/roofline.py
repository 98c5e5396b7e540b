"""The roofline of a GPU: what a step can reach by its arithmetic intensity, and what recorded runs did.

>>> from workshop.course import roofline
>>> from inference_planner.deployment import prepare
>>> d = prepare("llama-3.1-8b", "h100", max_model_len=8192)
>>> round(roofline.critical_tokens(d))           # fewer tokens a step wait for memory, more for arithmetic
295
>>> "decoding" in roofline.picture("h200").words
True
"""

# d deployment, m model
import math
from dataclasses import dataclass

from inference_planner import speed
from inference_planner.attention import grouped
from inference_planner.catalog import load_gpu
from inference_planner.communication import traffic
from inference_planner.deployment import Deployment, prepare
from inference_planner.kv_cache import kv_bytes_for_context
from inference_planner.weights import active_parameters, whole_bytes

from workshop.course import recordings
from workshop.course.chart import Axes, Picture, dot, line, path, text
from workshop.course.widgets import style
from workshop.engine import measured_runs as recorded

BATCHES = (16, 64, 256)  # of the recorded runs
DECODED_AT = (
    320  # tokens of context in the middle of their answers: prompts of 256, 128 tokens each
)
BURST = (256, 1024)  # requests at once and tokens of each, in the recorded bursts


@dataclass(frozen=True)
class Point:
    """One recorded step or run. intensity in FLOP a byte; tflops a GPU, of useful work."""

    name: str
    kind: str  # decoding, prefill
    intensity: float
    tflops: float
    fp8: bool


def flops(d: Deployment, tokens: int, context: int = 0) -> float:
    """Return the FLOP of a step over all GPUs: two a parameter and token, and attention to `context` tokens each."""
    m = d.model
    seen = sum(len(mine) * kind.cached_tokens(context, size) for kind, size, mine in grouped(m))
    return tokens * (2 * active_parameters(m) + 4 * m.num_attention_heads * m.head_dim * seen)


def intensity(d: Deployment, tokens: int, context: int = 0) -> float:
    """Return FLOP a byte of a step of `tokens` requests that decode: weights read once, each one's KV cache.

    With experts all weights count as read, which is so for large batches only.
    """
    kv, _ = kv_bytes_for_context(d.model, context, d.settings.kv_cache_dtype)
    return flops(d, tokens, context) / (whole_bytes(d.model) + tokens * kv)


def critical_tokens(d: Deployment) -> float:
    """Return the tokens of a step at which arithmetic takes as long as reading the weights, at both peaks."""
    ridge = speed.peak_tflops(d.model, d.gpu) * 1e12 / (d.gpu.bandwidth_gb_s * 1e9)  # FLOP a byte
    return ridge * whole_bytes(d.model) / (2 * active_parameters(d.model))


def messages(d: Deployment, tokens: int) -> dict[str, tuple[float, float]]:
    """Return kind of message → (ms of one step, share of its arithmetic and reading, at the plan's speed)."""
    terms = speed.decode_terms(d, batch=tokens, context=0)
    work_ms = sum(t.ms for t in terms if t.name in ("weights", "arithmetic", "experts"))
    return {t.what: (t.ms, t.ms / work_ms) for t in traffic(d, tokens)}


def points() -> list[Point]:
    """Return the recorded runs on H200: decoding of 16, 64 and 256 requests, and the bursts of prompts."""
    found = []
    for run in recorded.runs():
        d = recorded.plan_of(run).deployment
        if d.gpu.name != "h200" or d.pp > 1 or d.model.moe:
            continue
        for batch in BATCHES:
            if rate := run.get(f"batch{batch}_decode_tok_s"):
                tflops = rate * flops(d, 1, DECODED_AT) / d.gpus / 1e12
                found.append(
                    _point(
                        f"{run['name']}, {batch} at once", "decoding", d, batch, DECODED_AT, tflops
                    )
                )
    for name, load in recordings.read("simulated.json").items():
        if load["gpu"] == "h200" and "burst" in name:
            fp8 = "--quantization fp8" in load["command"]
            d = prepare(load["model"], "h200", quantization="fp8" if fp8 else None).split(
                load["gpus"], 1
            )
            count, length = BURST
            # decoding goes on beside it
            rate = 0.95 * count * length / (load["measured"]["ttft_ms_p95"] / 1e3)
            found.append(
                _point(name, "prefill", d, 8192, 0, rate * flops(d, 1, length // 2) / d.gpus / 1e12)
            )
    return found


def _point(name: str, kind: str, d: Deployment, tokens: int, context: int, tflops: float) -> Point:
    fp8 = speed.peak_tflops(d.model, d.gpu) > d.gpu.bf16_tflops
    return Point(name, kind, intensity(d, tokens, context), tflops, fp8)


def picture(gpu: str = "h200") -> Picture:
    """Draw the roofs of a GPU on logarithmic axes; on an H200 with what was recorded."""
    g, shown = load_gpu(gpu), points() if load_gpu(gpu).name == "h200" else []
    log = math.log10
    axes = Axes(64, 40, 700, 330, log(20_000), log(4000), log(1), log(1))
    parts = [text(64, 18, f"{g.title}: what a step can reach", bold=True, size=13)]
    roofs = [("bf16", g.bf16_tflops, style.BLUE), ("FP8", g.fp8_tflops, style.PURPLE)]
    for name, peak, colour in (roof for roof in roofs if roof[1]):
        ridge = peak * 1e3 / g.bandwidth_gb_s
        corner = [(1, g.bandwidth_gb_s / 1e3), (ridge, peak), (20_000, peak)]
        parts.append(
            line(axes.points((log(x) for x, _ in corner), (log(y) for _, y in corner)), colour, 2)
        )
        parts.append(
            text(axes.x(2.8), axes.y(log(peak)) - 6, f"{name}: {peak:,.0f} TFLOP/s", size=11)
        )
        parts.append(
            path(f"M{axes.x(log(ridge)):.1f} {axes.y(log(peak)):.1f}V330", colour, dash="3 4")
        )
    slope = axes.x(0.6), axes.y(log(g.bandwidth_gb_s / 1e3) + 0.8)
    parts.append(
        text(*slope, f"{g.bandwidth_gb_s:,.0f} GB/s", anchor="end", size=11, fill=style.MUTED)
    )
    for point in shown:
        colour, edge = (
            (style.PURPLE if point.fp8 else style.BLUE),
            ("none" if point.kind == "decoding" else style.TEXT),
        )
        place = axes.x(log(point.intensity)), axes.y(log(point.tflops))
        parts.append(
            dot(*place, 5, colour, stroke=edge, title=f"{point.name}: {point.tflops:,.0f} TFLOP/s")
        )
    for y, edge, words in (
        ((296, "none", "decoding"), (314, style.TEXT, "reading prompts")) if shown else ()
    ):
        parts += [
            dot(560, y, 5, style.BLUE, stroke=edge),
            text(572, y + 4, words, size=11, fill=style.MUTED),
        ]
    ticks, power = [0, 1, 2, 3, 4], lambda exponent: f"{10**exponent:,.0f}"
    parts += [path("M64 40V330H700"), axes.x_ticks(ticks, power), axes.y_ticks(ticks[:4], power)]
    parts.append(
        text(
            382, 366, "FLOP for each byte that is read", anchor="middle", size=12, fill=style.MUTED
        )
    )
    parts.append(text(64, 34, "TFLOP/s of one GPU", size=11, fill=style.MUTED))
    kinds = ", ".join(
        f"{sum(p.kind == kind for p in shown)} of {kind}" for kind in ("decoding", "prefill")
    )
    words = f"Roofline of one {g.title}: {g.bandwidth_gb_s:,.0f} GB/s up to {g.bf16_tflops:,.0f} TFLOP/s. Recorded: {kinds}."
    return Picture("".join(parts), 720, 376, words)
