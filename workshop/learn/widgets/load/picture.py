"""What a load finds on a plan: waiting times, requests and KV cache over time, the fullest steps. Pure: numbers in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.learn.chart import Axes, box, path, svg, text
from workshop.learn.html import Html, bold, div, join, panel, tag, tiles, verdict
from workshop.learn.widgets import style
from workshop.learn.widgets.metrics.picture import chart

WIDTH, LEFT, LANE, GAP = 820, 64, 46, 18


def picture(said: Mapping, note: str = "", *, done: bool = True) -> Html:
    """Return the picture of a simulation, as `Simulation.to_dict` has it with `busiest`; note: beside its verdict."""
    times, most = said["over_time"], said["kv_cache_usage_max"]
    running = ("running", "blue", times["running"])
    waiting = ("waiting", "orange", times["waiting"])
    usage = ("KV cache", "kv", [100 * share for share in times["kv_cache_usage"]])
    figures = [(_ms(said, name, "p50"), f"{what}, half of them", f"95 of 100: {_ms(said, name, 'p95')}") for name, what in
               (("ttft", "to the first token"), ("tpot", "between two tokens"), ("e2el", "to the whole answer"))]  # fmt: skip
    figures.append((f"{said['tokens_per_s']:,.0f}", "tokens a second", f"{said['gpus']} × {said['gpu']}"))
    sign, kind, head = ("✓", "good", "It keeps up.") if said["keeps_up"] else ("✗", "bad", "Requests pile up.")
    sign, kind, head = (sign, kind, head) if done else ("…", "open", "So far:")
    label = f"{head} First token after {_ms(said, 'ttft', 'p50')}, tokens every {_ms(said, 'tpot', 'p50')}, KV cache up to {most:.0%} full"
    return panel(
        verdict(sign, kind, head, f" {note}"),
        tiles(figures, 5),
        chart("Requests", "", times["t_s"], [running, waiting], last=False),
        chart("KV cache in use", "%", times["t_s"], [usage], last=True),
        steps(said["busiest"]),
        label=label,
    )


def _ms(said: Mapping, name: str, which: str) -> str:
    if (ms := said[f"{name}_ms"][which]) is None:
        return "–"
    return f"{ms:,.1f} ms" if ms < 100 else f"{ms:,.0f} ms" if ms < 10_000 else f"{ms / 1e3:,.0f} s"


def steps(busiest: Sequence[Sequence[float]]) -> Html:
    """Return the fullest steps as boxes, as wide as they take: tokens of prompts above, tokens of answers below."""
    if not busiest:
        return join([])
    begin_s, end_s = busiest[0][0], busiest[-1][1]
    most = [max(1, *(step[lane] for step in busiest)) for lane in (2, 3)]
    parts = []
    for lane, colour in enumerate((style.ORANGE, style.GREEN)):
        top = 8 + lane * (LANE + GAP)
        axes = Axes(LEFT, top, WIDTH - 12, top + LANE, end_s, most[lane], begin_s)
        parts.append(path(f"M{axes.left} {axes.bottom}H{axes.right}", style.LINE))
        parts.append(axes.y_ticks((0, most[lane]), "{:,.0f}".format))
        for began_s, ended_s, *tokens in busiest:
            x, y = axes.x(began_s), axes.y(tokens[lane])
            parts.append(box(x, y, max(0.8, axes.x(ended_s) - x - 0.6), axes.bottom - y, colour, radius=0))
    for x, anchor, second in ((LEFT, "start", begin_s), (WIDTH - 12, "end", end_s)):
        parts.append(text(x, 2 * LANE + GAP + 24, f"{second:.2f} s", anchor=anchor, size=11, fill=style.MUTED))
    names = [tag("b", " ■ tokens of prompts", cls="ink-orange"), tag("b", " ■ tokens of answers", cls="ink-green")]
    title = f"The {len(busiest)} fullest steps in a row, each as wide as it takes"
    return join([div(bold(title), *names, cls="name-of-chart"), svg("".join(parts), WIDTH, 2 * LANE + GAP + 30)])
