"""The page of all models, as `workshop models --markdown` prints it."""

from collections.abc import Iterable
from pathlib import Path

from inference_planner.catalog import load_gpu
from inference_planner.tables.hardware import (
    CONTEXT,
    GPUS,
    MOST,
    Place,
    Row,
    families,
    in_order,
    recorded,
    size_words,
)

PAGE = Path(__file__).with_suffix(".md")  # the words around the tables


def page() -> str:
    """Return the page of what is recorded of the catalog."""
    rows = in_order(recorded().values())
    parts = []
    for title in families():
        of_family = [row for row in rows if row.family == title]
        parts += [f"## {title}\n", *_sizes(of_family), "", *_commands(of_family), ""]
    parts += ["## Where the facts are from\n", "| model | source |", "|---|---|"]
    for row in rows:
        parts.append(f"| {row.model} | {row.source} |")
    return PAGE.read_text(encoding="utf-8").format(
        context=CONTEXT, most=MOST, tables="\n".join(parts)
    )


def _sizes(rows: list[Row]) -> list[str]:
    """Return the table of models: their sizes, and how many GPUs of each kind hold them."""
    head = ["model", "layers", "parameters", "weights GiB", "KV KiB"]
    for gpu in GPUS:
        head.append(gpu.upper().replace("GB", ""))
    lines = [_line(head), "|---|---|" + "---:|" * (len(head) - 2)]
    for row in rows:
        parameters = size_words(row.parameters)
        if row.active_parameters < row.parameters:
            parameters += f" ({size_words(row.active_parameters)} a token)"
        sizes = (parameters, f"{row.weights_gib:,.1f}", f"{row.kv_kib_per_token:,.4g}")
        lines.append(_line((row.model, row.architecture, *sizes, *map(_gpus_of, row.places))))
    return lines


def _gpus_of(place: Place) -> str:
    """Return how many GPUs hold a model; a sign where none or too many do."""
    if place.gpus:
        return str(place.gpus)
    if place.too_many:
        return "–"
    return "✗"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _commands(rows: list[Row]) -> list[str]:
    """Return the command of each model, as a block of code.

    It is for the kind of GPU of which the model needs the fewest.
    """
    lines = []
    for row in rows:
        places = [place for place in row.places if place.gpus]
        if places:
            best = min(places, key=lambda place: place.gpus)
            lines.append(f"{best.command}   # {best.gpus} × {load_gpu(best.gpu).title}")
    if not lines:
        return []
    return ["```bash", *lines, "```"]
