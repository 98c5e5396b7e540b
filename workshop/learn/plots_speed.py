"""Pictures of speed: where the time of one token goes, beside the limit; what many requests at once bring. SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping

from workshop.learn.plots import FRAME, Picture, svg_box, svg_text
from workshop.learn.widgets import style
from workshop.plan import recorded
from workshop.plan.catalog import load_gpu, load_model
from workshop.plan.speed import bandwidth_limit_tokens_per_s

PARTS = (    # name, colour, kinds of kernels (benchmarks/gpu/kernels.py)
    ("reading the weights, at full bandwidth", style.BLUE, ()),
    ("matrix products, the rest", style.SKY, ("matrix products",)),
    ("all-reduce", style.ORANGE, ("all-reduce",)),
    ("attention, KV cache write", style.GREEN, ("attention", "KV cache write")),
    ("norms, rope, activation", style.PURPLE, ("norms, rope, activation",)),
    ("sampling and the rest", style.YELLOW, ("sampling", "other", "copies", "quantise")),
    ("the GPU waits", style.GREY, ()),
)


def step_parts(name: str) -> dict[str, float]:
    """Return ms of one decoding step of a recorded run by PARTS; they add up to 1000 / its tokens a second."""
    run = recorded.tuned(name)
    kinds = run["kernels"]["by_kind"]
    limit = 1e3 / bandwidth_limit_tokens_per_s(load_model(run["model"]), load_gpu("h200"), run["tp"])
    parts = {part: sum(kinds.get(kind, [0])[0] for kind in names) for part, _, names in PARTS}
    parts[PARTS[0][0]] = limit
    parts[PARTS[1][0]] -= limit
    parts[PARTS[-1][0]] = max(0.0, 1e3 / run["single_tok_s"] - sum(parts.values()))
    return parts


def step_time(runs: tuple[tuple[str, str], ...] = (("70b-tp4-unfused", "as vLLM starts it"),
                                                   ("70b-tp4-best", "tuned"))) -> Picture:
    """Draw the time of one token of 70B on 4 H200, part by part: the limit, as vLLM starts, and tuned."""
    first = step_parts(runs[0][0])
    rows = [("the limit", {PARTS[0][0]: first[PARTS[0][0]]})] + [(label, step_parts(name)) for name, label in runs]
    left, width, drawn, words = 150, 600, [], []
    per_ms = (width - 110) / max(sum(parts.values()) for _, parts in rows)
    for number, (label, parts) in enumerate(rows):
        x, y, total = left, 14 + number * 46, sum(parts.values())
        drawn.append(svg_text(left - 12, y + 20, label, anchor="end", bold=True))
        for part, colour, _ in PARTS:
            if part in parts:
                drawn.append(svg_box(x, y, max(parts[part] * per_ms - 1, 0.5), 30, colour))
                x += parts[part] * per_ms
        drawn.append(svg_text(x + 8, y + 13, f"{total:.1f} ms", bold=True))
        drawn.append(svg_text(x + 8, y + 27, f"{1e3 / total:.0f} tokens/s", size=11, fill=style.MUTED))
        words.append(f"{label}: {total:.1f} ms a token, of these " + ", ".join(
            f"{part} {ms:.1f}" for part, ms in parts.items()))
    y = 14 + len(rows) * 46 + 14
    for number, (part, colour, _) in enumerate(PARTS):
        column, row = number % 3, number // 3
        x = 10 + column * 255
        drawn += [svg_box(x, y + row * 22 - 10, 12, 12, colour), svg_text(x + 18, y + row * 22, part)]
    return Picture("".join(drawn), left + width + 20, y + 56, "Llama 3.1 70B on 4 H200, one stream. "
                   + ". ".join(words) + ".")


def latency_throughput(sweep: Mapping[int, tuple[float, float]]) -> Picture:
    """Draw what many requests at once cost and bring: a point for each number at once, named by it.

    Args:
        sweep: requests at once → (tokens/s of all together, seconds that one request takes).
    """
    width, height, left, right, bottom, top = 640, 270, 64, 96, 44, 26
    points = [(seconds, rate, at_once) for at_once, (rate, seconds) in sorted(sweep.items())]
    ends = [_round_up(max(values)) for values in zip(*[point[:2] for point in points], strict=True)]

    def at(seconds: float, rate: float) -> tuple[float, float]:
        return (left + (width - left - right) * seconds / ends[0],
                height - bottom - (height - bottom - top) * rate / ends[1])

    foot, edge = height - bottom, width - right
    drawn = [f'<path d="M{left} {top}V{foot}H{edge}" stroke="{FRAME}" fill="none"/>',
             svg_text(left, 12, "throughput: tokens/s of all together", size=11, fill=style.MUTED),
             svg_text(edge, height - 6, "latency: seconds that one request takes", anchor="end", size=11,
                      fill=style.MUTED)]
    for share in (0, 0.5, 1):
        x, y = at(share * ends[0], share * ends[1])
        drawn += [svg_text(left - 6, y + 4, f"{share * ends[1]:,.0f}", anchor="end", size=11, fill=style.MUTED),
                  svg_text(x, foot + 16, f"{share * ends[0]:.3g}", anchor="middle", size=11, fill=style.MUTED)]
    places = [at(seconds, rate) for seconds, rate, _ in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    drawn.append(f'<polyline points="{line}" fill="none" stroke="{style.BLUE}" stroke-width="2" stroke-opacity=".5"/>')
    for (x, y), (seconds, rate, at_once), (_, after) in zip(places, points, [*places[1:], places[-1]], strict=True):
        clear = y - 8 if after > y else y + 14        # of the line to the next point
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{style.BLUE}"><title>{rate:,.0f} tokens/s, '
                  f"{seconds:.2f} s</title></circle>", svg_text(x + 10, clear, f"{at_once} at once", bold=True)]
    words = ", ".join(f"{at_once} at once {rate:,.0f} tokens/s and {seconds:.2f} s"
                      for seconds, rate, at_once in points)
    return Picture("".join(drawn), width, height, f"Throughput against latency: {words}.")


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 10.0
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))
