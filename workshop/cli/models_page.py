"""The page of all models, as `workshop models --markdown` prints it."""

# r row, p place
from collections.abc import Iterable
from pathlib import Path

from inference_planner.catalog import load_gpu
from inference_planner.hardware import CONTEXT, GPUS, MOST, Row, families, size_words, table

PAGE = Path(__file__).with_suffix(".md")  # the words around the tables


def page() -> str:
    """Return the page; the same catalog gives the same page."""
    rows, parts = table(), []
    for title in families():
        mine = [r for r in rows if r.family == title]
        parts += [f"## {title}\n", *_sizes(mine), "", *_commands(mine), ""]
    parts += ["## Where the facts are from\n", "| model | source |", "|---|---|"]
    parts += [f"| {r.model} | {r.source} |" for r in rows]
    return PAGE.read_text(encoding="utf-8").format(
        context=CONTEXT, most=MOST, tables="\n".join(parts)
    )


def _sizes(rows: list[Row]) -> list[str]:
    head = ["model", "layers", "parameters", "weights GiB", "KV KiB"] + [
        g.upper().replace("GB", "") for g in GPUS
    ]
    out = [_line(head), "|---|---|" + "---:|" * (len(head) - 2)]
    for r in rows:
        active = (
            f" ({size_words(r.active_parameters)} a token)"
            if r.active_parameters < r.parameters
            else ""
        )
        sizes = (
            size_words(r.parameters) + active,
            f"{r.weights_gib:,.1f}",
            f"{r.kv_kib_per_token:,.4g}",
        )
        gpus = (str(p.gpus) if p.gpus else "–" if p.too_many else "✗" for p in r.places)
        out.append(_line((r.model, r.architecture, *sizes, *gpus)))
    return out


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _commands(rows: list[Row]) -> list[str]:
    """Return the command of each model on the kind of GPU of which it needs the fewest, as a block of code."""
    lines = []
    for row in rows:
        places = [place for place in row.places if place.plan is not None and place.gpus]
        if not places:
            continue
        best = min(places, key=lambda place: place.gpus)
        if best.plan is not None:
            lines.append(f"{best.plan.command}   # {best.gpus} × {load_gpu(best.gpu).title}")
    if not lines:
        return []
    return ["```bash", *lines, "```"]
