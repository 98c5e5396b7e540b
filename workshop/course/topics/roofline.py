"""The roofline of a GPU: what a step can reach by its arithmetic intensity, and recorded runs.

>>> from workshop.course.topics import roofline
>>> from inference_planner.split.deployment import prepare
>>> d = prepare("llama-3.1-8b", "h100", max_model_len=8192)
>>> round(roofline.critical_tokens(d))           # fewer tokens a step wait for memory, more for arithmetic
295
>>> "decoding" in roofline.picture("h200").words
True
"""

import math
from dataclasses import dataclass

from inference_planner.catalog import GPU, load_gpu
from inference_planner.model.attention import grouped
from inference_planner.model.kv_cache import kv_bytes_for_context
from inference_planner.model.weights import active_parameters, weight_bytes
from inference_planner.speed import roofline as speed
from inference_planner.split.communication import traffic
from inference_planner.split.deployment import Deployment, prepare

from workshop.course.drawing.chart import Axes, Picture, dot, line, path, text
from workshop.course.topics import recorded_data
from workshop.course.widgets import style
from workshop.engine import measured_runs as recorded

BATCHES = (16, 64, 256)  # of the recorded runs
# Tokens of context in the middle of their answers: prompts of 256, 128 tokens each.
DECODED_AT = 320
BURST = (256, 1024)  # requests at once and tokens of each, in the recorded bursts


@dataclass(frozen=True)
class RooflinePoint:
    """One recorded step or run. intensity in FLOP a byte; tflops a GPU, of useful work."""

    name: str
    kind: str  # decoding, prefill
    intensity: float
    tflops: float
    fp8: bool


def flops(deployment: Deployment, tokens: int, context: int = 0) -> float:
    """Return the FLOP of a step over all GPUs: two for each parameter and token, and attention.

    Each token attends to `context` tokens.
    """
    model = deployment.model
    attended_tokens = 0  # tokens that one token attends to, over all layers
    for kind, window, layers in grouped(model):
        attended_tokens += len(layers) * kind.cached_tokens(context, window)
    return tokens * (
        2 * active_parameters(model)
        + 4 * model.num_attention_heads * model.head_dim * attended_tokens
    )


def intensity(deployment: Deployment, tokens: int, context: int = 0) -> float:
    """Return the FLOP per byte of a step in which `tokens` requests decode.

    Weights are read once, and the KV cache of each request.

    With experts all weights count as read, which is so for large batches only.
    """
    kv, _ = kv_bytes_for_context(deployment.model, context, deployment.settings.kv_cache_dtype)
    return flops(deployment, tokens, context) / (weight_bytes(deployment.model) + tokens * kv)


def critical_tokens(deployment: Deployment) -> float:
    """Return the tokens of a step at which arithmetic takes as long as reading the weights.

    Both are counted at their peaks.
    """
    # FLOP a byte.
    ridge = (
        speed.peak_tflops(deployment.model, deployment.gpu)
        * 1e12
        / (deployment.gpu.bandwidth_gb_s * 1e9)
    )
    return ridge * weight_bytes(deployment.model) / (2 * active_parameters(deployment.model))


def messages(deployment: Deployment, tokens: int) -> dict[str, tuple[float, float]]:
    """Return kind of message → (ms of one step, share of the step's arithmetic and reading).

    The times are those of the plan's speed.
    """
    work_ms = 0.0
    for term in speed.decode_terms(deployment, batch=tokens, context=0):
        if term.name in ("weights", "arithmetic", "experts"):
            work_ms += term.ms
    times = {}
    for message in traffic(deployment, tokens):
        times[message.what] = (message.ms, message.ms / work_ms)
    return times


def points() -> list[RooflinePoint]:
    """Return the recorded runs on H200: 16, 64 and 256 requests decoding, bursts of prompts."""
    return _decoding_points() + _prefill_points()


def _decoding_points() -> list[RooflinePoint]:
    points = []
    for run in recorded.runs():
        deployment = recorded.plan_of(run).deployment
        if deployment.gpu.name != "h200" or deployment.pp > 1 or deployment.model.moe:
            continue
        for batch in BATCHES:
            rate = run.get(f"batch{batch}_decode_tok_s")
            if rate:
                name = f"{run['name']}, {batch} at once"
                tflops = rate * flops(deployment, 1, DECODED_AT) / deployment.gpus / 1e12
                points.append(_point(name, "decoding", deployment, batch, DECODED_AT, tflops))
    return points


def _prefill_points() -> list[RooflinePoint]:
    points = []
    requests, length = BURST
    for name, load in recorded_data.read("simulated.json").items():
        if load["gpu"] != "h200" or "burst" not in name:
            continue
        quantization = None
        if "--quantization fp8" in load["command"]:
            quantization = "fp8"
        deployment = prepare(load["model"], "h200", quantization=quantization).split(
            load["gpus"], 1
        )
        # decoding goes on beside it
        rate = 0.95 * requests * length / (load["measured"]["ttft_ms_p95"] / 1e3)
        tflops = rate * flops(deployment, 1, length // 2) / deployment.gpus / 1e12
        points.append(_point(name, "prefill", deployment, 8192, 0, tflops))
    return points


def _point(
    name: str, kind: str, deployment: Deployment, tokens: int, context: int, tflops: float
) -> RooflinePoint:
    fp8 = speed.peak_tflops(deployment.model, deployment.gpu) > deployment.gpu.bf16_tflops
    return RooflinePoint(name, kind, intensity(deployment, tokens, context), tflops, fp8)


def picture(gpu: str = "h200") -> Picture:
    """Draw the roofs of a GPU on logarithmic axes; on an H200 with what was recorded."""
    g = load_gpu(gpu)
    log = math.log10
    axes = Axes(52, 40, 466, 290, log(20_000), log(4000), log(1), log(1))
    parts = [text(52, 18, f"{g.title}: what a step can reach", bold=True, size=13)]
    parts += _roof(g, axes, "bf16", g.bf16_tflops, style.BLUE)
    if g.fp8_tflops:
        parts += _roof(g, axes, "FP8", g.fp8_tflops, style.PURPLE)
    x, y = axes.x(0.75), axes.y(log(g.bandwidth_gb_s / 1e3) + 0.35)
    bandwidth = f"{g.bandwidth_gb_s:,.0f} GB/s"
    parts.append(text(x, y, bandwidth, size=11, fill=style.MUTED))
    recorded_points = []
    if g.name == "h200":
        recorded_points = points()
    kinds = []
    for point in recorded_points:
        kinds.append(point.kind)
        parts.append(_dot(point, axes))
    if recorded_points:
        parts += _key(252, "none", "decoding") + _key(270, style.TEXT, "reading prompts")
    ticks = [0, 1, 2, 3, 4]
    parts.append(path("M52 40V290H466"))
    parts += [axes.x_ticks(ticks, _power), axes.y_ticks(ticks[:4], _power)]
    below = "FLOP for each byte that is read"
    parts.append(text(259, 326, below, anchor="middle", size=12, fill=style.MUTED))
    parts.append(text(52, 34, "TFLOP/s of one GPU", size=11, fill=style.MUTED))
    description = (
        f"Roofline of one {g.title}: {bandwidth} up to {g.bf16_tflops:,.0f} TFLOP/s. Recorded: "
        f"{kinds.count('decoding')} of decoding, {kinds.count('prefill')} of prefill."
    )
    return Picture("".join(parts), 480, 336, description, most_pixels=560)


def _power(exponent: float) -> str:
    return f"{10**exponent:,.0f}"


def _roof(g: GPU, axes: Axes, name: str, peak: float, colour: str) -> list[str]:
    """Draw what bandwidth and arithmetic allow in one format; a dashed line is where they meet."""
    ridge = peak * 1e3 / g.bandwidth_gb_s
    xs = map(math.log10, (1, ridge, 20_000))
    ys = map(math.log10, (g.bandwidth_gb_s / 1e3, peak, peak))
    ridge_x, peak_y = axes.x(math.log10(ridge)), axes.y(math.log10(peak))
    return [
        line(axes.points(xs, ys), colour, 2),
        text(axes.x(2.8), peak_y - 6, f"{name}: {peak:,.0f} TFLOP/s", size=11),
        path(f"M{ridge_x:.1f} {peak_y:.1f}V290", colour, dash="3 4"),
    ]


def _dot(point: RooflinePoint, axes: Axes) -> str:
    colour = style.BLUE
    if point.fp8:
        colour = style.PURPLE
    edge = style.TEXT
    if point.kind == "decoding":
        edge = "none"
    x, y = axes.x(math.log10(point.intensity)), axes.y(math.log10(point.tflops))
    return dot(x, y, 5, colour, stroke=edge, title=f"{point.name}: {point.tflops:,.0f} TFLOP/s")


def _key(y: float, edge: str, name: str) -> list[str]:
    """Draw what the edge of a dot means."""
    label = text(372, y + 4, name, size=11, fill=style.MUTED)
    return [dot(360, y, 5, style.BLUE, stroke=edge), label]
