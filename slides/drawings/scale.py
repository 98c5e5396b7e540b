"""From one server to many: what a step costs, replicas, experts, prefill apart, and how many GPUs a load needs."""

from __future__ import annotations

from inference_planner.catalog import load_model
from inference_planner.model.weights import weight_bytes
from inference_planner.speed import roofline as speed
from inference_planner.split.deployment import Deployment, prepare

from drawings.canvas import (
    BLUE,
    FREE,
    GPUS,
    GREEN,
    HAIR,
    INK,
    KV_CACHE,
    ORANGE,
    PALE,
    SKY,
    SOFT,
    VERMILLION,
    Canvas,
)
from drawings.charts import Chart, chart
from drawings.recorded import recorded
from workshop.course.topics import roofline

STEP = ("llama-3.1-8b", "h100")
TOKENS = [2**n for n in range(14)]


def step_deployment() -> Deployment:
    """Return the model and GPU of the chart of a step's time."""
    return prepare(*STEP, max_model_len=8192)


def step_time() -> Chart:
    """What one step takes at the GPU's peaks, by the tokens in it: reading the weights, or arithmetic."""
    d = step_deployment()
    reading = weight_bytes(d.model) / (d.gpu.bandwidth_gb_s * 1e6)
    arithmetic = [roofline.flops(d, n) / (speed.peak_tflops(d.model, d.gpu) * 1e9) for n in TOKENS]
    critical = roofline.critical_tokens(d)
    description = (f"Milliseconds of one step against its tokens, for {d.model.name} on one {d.gpu.title}, at the peaks of its data sheet. Reading "
             f"the weights takes {reading:.1f} ms, whether the step has 1 token or {critical:.0f}. With more tokens arithmetic "
             f"takes longer: {arithmetic[-1]:.0f} ms for {TOKENS[-1]:,}.")  # fmt: skip
    with chart(420, description) as c:
        c.axes.axvspan(1, critical, color=BLUE, alpha=0.08, linewidth=0)
        c.axes.axvspan(critical, TOKENS[-1], color=ORANGE, alpha=0.12, linewidth=0)
        c.axes.plot(
            TOKENS, [reading] * len(TOKENS), color=BLUE, linestyle=(0, (2, 1.5)), linewidth=3
        )
        c.axes.plot(TOKENS, arithmetic, color=ORANGE, linestyle=(0, (2, 1.5)), linewidth=3)
        c.axes.plot(
            sorted([*TOKENS, critical]),
            [max(reading, reading * n / critical) for n in sorted([*TOKENS, critical])],
            color=INK,
        )
        c.axes.set_xscale("log", base=2)
        c.axes.set_yscale("log")
        c.axes.set_xticks(TOKENS[::2], [f"{n:,}" for n in TOKENS[::2]])
        c.axes.set_yticks([1, 10, 100], ["1", "10", "100"])
        c.axes.minorticks_off()
        c.axes.set(
            xlabel="tokens in the step",
            ylabel="ms of the step",
            xlim=(1, TOKENS[-1]),
            ylim=(0.6, 300),
        )
        c.axes.text(2, 11, "decode: waits for memory", color=BLUE, fontweight="bold")
        c.axes.text(2, 7.2, f"{reading:.1f} ms, however few tokens", color=SOFT)
        c.axes.text(
            6200,
            1.1,
            "prefill: waits for arithmetic",
            color="#8a5f00",
            fontweight="bold",
            ha="right",
        )
        c.axes.text(critical, 0.72, f" {critical:.0f} tokens", color=SOFT)
    return c


def replicas() -> Canvas:
    """One router before three whole servers; requests of one conversation go to the server that knows its prefix."""
    c = Canvas(
        400,
        "People send requests to one address. A router sends each to one of three replicas: whole servers, each with all weights and a "
        "KV cache of its own. Round robin takes turns, least busy looks at queues, prefix-aware sends a chat where its beginning is cached.",
    )
    for n, colour in enumerate((BLUE, GREEN, VERMILLION)):
        y = 40 + n * 124
        c.dot(34, y + 30, 18, colour).box(14, y + 54, 40, 30, colour, radius=12)
        c.arrow(66, y + 44, 246, 200, colour, 3)
        c.arrow(474, 200, 640, y + 44, colour, 3)
        c.box(648, y, 488, 100, PALE, stroke=HAIR, radius=10)
        c.label(662, y + 14, 150, 72, "weights", BLUE, size=21, bold=True)
        c.text(832, y + 34, "KV cache", 20, fill=SOFT)
        for k in range(8):
            c.box(832 + k * 37, y + 46, 32, 38, colour if k < 3 + n else FREE, radius=4)
    c.label(252, 158, 216, 84, "router", "#ffffff", size=27, bold=True, stroke=INK)
    c.text(360, 276, "one address", 20, fill=SOFT, anchor="middle")
    return c.text(892, 24, "replicas: the same model, three times", 21, bold=True, anchor="middle")


def experts() -> Canvas:
    """Data parallel attention, experts spread over the ranks: each token travels to its experts and back."""
    m = load_model("qwen3-30b-a3b")
    count, used, ranks = m.moe.num_experts, m.moe.experts_per_token, 4
    c = Canvas(
        400,
        f"Four GPUs. Each has its own requests, attention and KV cache: data parallel. The {count} experts of a layer lie apart, {count // ranks} "
        f"a GPU: expert parallel. In each layer a token goes to its {used} experts, on whichever GPU they are, and comes back: two all-to-all.",
    )
    w = 266
    for n, colour in enumerate(GPUS):
        x = n * (w + 24)
        c.text(x, 24, f"GPU {n}", 22, bold=True)
        c.label(x, 42, w, 66, "requests, attention", colour, size=21, bold=True)
        c.box(x, 114, w, 36, KV_CACHE, radius=5).text(
            x + w / 2, 139, "KV cache of its own", 20, anchor="middle"
        )
        for to in range(ranks):
            c.line([(x + w / 2, 158), (to * (w + 24) + w / 2, 262)], colour, 2.5)
        c.box(x, 268, w, 92, PALE, stroke=HAIR, radius=8)
        for k in range(16):
            c.box(
                x + 13 + k % 8 * 31,
                280 + k // 8 * 36,
                26,
                30,
                SKY if (k * 7 + n * 3) % 5 == 0 else FREE,
                radius=4,
            )
        c.text(
            x + w / 2,
            390,
            f"experts {n * count // ranks} to {(n + 1) * count // ranks - 1}",
            20,
            anchor="middle",
            fill=SOFT,
        )
    return c


def apart() -> Canvas:
    """Prefill on some GPUs, decode on others; the KV cache goes over the network in between."""
    c = Canvas(
        390,
        "Prefill and decode apart. One server reads prompts, which is arithmetic. It sends the KV cache of each prompt over the network. "
        "Another server writes the answers, which is reading memory. A long prompt no longer stops those who are being answered.",
    )
    for x, title, under, colour, task in (
        (0, "prefill servers", "many tokens a step: arithmetic", ORANGE, "reads the prompts"),
        (696, "decode servers", "one token a request: memory", BLUE, "writes the answers"),
    ):
        c.text(x, 26, title, 25, bold=True).text(x, 56, under, 20, fill=SOFT)
        for n in range(2):
            c.label(
                x,
                76 + n * 112,
                440,
                96,
                task,
                colour,
                size=24,
                bold=True,
                ink=INK if colour == ORANGE else "",
            )
    for k in range(5):
        c.box(462 + k * 44, 156, 36, 46, KV_CACHE, radius=5)
    c.text(568, 140, "KV cache", 21, anchor="middle", bold=True)
    c.arrow(450, 226, 688, 226, INK, 4)
    c.text(568, 256, "NVLink, InfiniBand", 20, anchor="middle", fill=SOFT)
    c.text(0, 346, "ttft: more prefill servers", 24, bold=True)
    return c.text(696, 346, "tpot: more decode servers", 24, bold=True)


def capacity() -> Chart:
    """Share of the requests that are served in time, against requests a second: simulated."""
    recording = recorded("capacity")
    shares = {
        int(n): {int(rate): 100 * share for rate, share in rows.items()}
        for n, rows in recording["shares"].items()
    }
    description = "; ".join(
        f"{n} replicas: " + ", ".join(f"{share:.0f} % at {rate}" for rate, share in rows.items())
        for n, rows in shares.items()
    )
    with chart(
        410,
        f"Share of the requests that are served in time, by requests a second, simulated: {description}.",
    ) as c:
        c.axes.axhline(95, color=SOFT, linewidth=2, linestyle=(0, (3, 3)))
        for (n, rows), colour in zip(shares.items(), (BLUE, GREEN, VERMILLION), strict=True):
            gpus = n * recording["tensor_parallel_size"]
            c.axes.plot(
                list(rows),
                list(rows.values()),
                color=colour,
                marker="o",
                label=f"{n} replica{'s' * (n > 1)}, {gpus} H100",
            )
        c.axes.set(
            xlabel="requests a second, of all people",
            ylabel="% served in time",
            ylim=(0, 104),
            yticks=(0, 25, 50, 75, 95),
        )
        c.axes.legend(loc="lower left")
    return c


FIGURES = {
    "step_time": step_time,
    "replicas": replicas,
    "experts": experts,
    "apart": apart,
    "capacity": capacity,
}
