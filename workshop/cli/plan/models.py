from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from workshop.cli.say import json_option, say_json, waiting
from workshop.errors import BadInput, plain

if TYPE_CHECKING:
    from inference_planner.catalog import ModelConfig
    from inference_planner.tables import hardware

TOO_MANY = "–"
NOT_THERE = "✗"


@click.command()
@click.argument("names", nargs=-1, metavar="[MODEL …]")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    help="Only this GPU; may be given again.  [default: eight kinds]",
)
@click.option(
    "--family",
    help="Only this family: llama, mistral, mixtral, qwen, deepseek, falcon, yi, minicpm, …",
)
@click.option(
    "--max-model-len",
    type=click.IntRange(min=1),
    help="Tokens of the one request that must fit.  [default: 8192]",
)
@json_option("Print data instead of text.")
@click.option("--gpus", "cards", is_flag=True, help="List the GPUs that are known, and no models.")
def command(names, gpus, family, max_model_len, as_json, cards) -> None:
    """List the catalog: what each model needs, and how many GPUs of each kind serve it.

    \b
      workshop models --family qwen
      workshop models llama-3.1-70b mixtral-8x7b --gpu l4 --gpu h100
      workshop models --gpus
    """
    from inference_planner.catalog import list_models, load_gpu, load_model
    from inference_planner.tables import hardware

    if cards:
        _list_cards(gpus, as_json)
        return
    catalog = list_models()
    models: list[str | ModelConfig] = []
    if not names:
        models += hardware.names_of(family) if family else catalog
    for name in names:
        models.append(name if name in catalog else load_model(name))
    kinds = tuple(load_gpu(gpu).name for gpu in gpus) or hardware.GPUS
    if max_model_len:
        _check_longest(models, max_model_len)
    context = max_model_len or hardware.CONTEXT
    rows = _rows(models, kinds, context)
    if as_json:
        say_json([row.to_dict() for row in rows])
    else:
        _show(rows, kinds, context)


def _list_cards(chosen: Sequence[str], as_json: bool) -> None:
    """Print the GPUs of the catalog, or those of `chosen`, with what they have."""
    from inference_planner.catalog import list_gpus, load_gpu

    cards = [load_gpu(name) for name in chosen or list_gpus()]
    if as_json:
        say_json([asdict(card) for card in cards])
    else:
        name_width = max(len(card.name) for card in cards)
        head = f"{'GPU':{name_width}}  {'GiB':>6}  {'GB/s':>6}  {'TFLOPS':>6}  {'between GPUs':<26}"
        click.secho(f"{head}in full", dim=True)
        for card in cards:
            link = card.link
            if card.link_gb_s:
                link += f", {card.link_gb_s:,.0f} GB/s"
            sizes = f"{card.engine_gib:6,.1f}  {_known(card.bandwidth_gb_s)}"
            name = click.style(f"{card.name:{name_width}}", bold=True)
            speed = _known(card.bf16_tflops)
            click.echo(f"{name}  {sizes}  {speed}  {link:<26}{card.title}")
        click.secho(
            "\nGiB as vLLM sees them, GB/s of that memory, dense bf16 TFLOPS (fp16 on a T4).",
            dim=True,
        )


def _known(number: float) -> str:
    """Return a figure of a card in six places; a sign where it is not known."""
    if number:
        return f"{number:6,.0f}"
    return f"{TOO_MANY:>6}"


def _check_longest(models: Sequence[str | ModelConfig], max_model_len: int) -> None:
    """Raise BadInput if no model reads so many tokens."""
    from inference_planner.catalog import load_model

    longest = max(load_model(model).max_position_embeddings for model in models)
    if max_model_len > longest:
        raise BadInput(
            f"No such model reads {max_model_len:,} tokens.",
            f"Give --max-model-len {longest} or less.",
        )


def _rows(
    models: Sequence[str | ModelConfig], kinds: tuple[str, ...], context: int
) -> list[hardware.HardwareRow]:
    """Return the rows of the table: the recorded ones if all that is shown is recorded, else planned."""
    from inference_planner.tables import hardware

    if context == hardware.CONTEXT and set(kinds) <= set(hardware.GPUS):
        recorded = hardware.recorded()
        names = [model for model in models if isinstance(model, str)]
        if len(names) == len(models):
            return hardware.in_order([_of_kinds(recorded[name], kinds) for name in names])
    from workshop.engine import planning

    with waiting("Planning each model on each GPU …"):
        rows = [hardware.row(model, kinds, context, planning.plan) for model in models]
    return hardware.in_order(rows)


def _of_kinds(row: hardware.HardwareRow, kinds: tuple[str, ...]) -> hardware.HardwareRow:
    """Return a recorded row with these kinds of GPU alone, in their order."""
    places = {place.gpu: place for place in row.places}
    return replace(row, places=tuple(places[kind] for kind in kinds))


def _gpus_of(place: hardware.HardwarePlace) -> str:
    """Return how many GPUs hold a model; a sign where none or too many do."""
    if place.gpus:
        return str(place.gpus)
    if place.too_many:
        return TOO_MANY
    return NOT_THERE


def _show(rows: list[hardware.HardwareRow], kinds: tuple[str, ...], context: int) -> None:
    """Print the table. rich would take a second for its 2,000 cells."""
    from inference_planner.tables.hardware import size_words

    heads = ("model", "parameters", "weights GiB", "KV KiB", *kinds)
    lines: list[tuple[str, ...]] = []
    for row in rows:
        sizes = (f"{row.weights_gib:,.1f}", f"{row.kv_kib_per_token:,.4g}")
        counts = map(_gpus_of, row.places)
        lines.append((plain(row.model), size_words(row.parameters), *sizes, *counts))
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    click.secho("  ".join(_aligned(heads, widths)), dim=True)
    for cells in lines:
        name, *others = _aligned(cells, widths)
        click.echo("  ".join([click.style(name, bold=True), *map(_coloured, others)]))
    marks = f"{TOO_MANY}: more than 16. {NOT_THERE}: it does not run there."
    explanation = (
        f"GPUs that hold the model and one request of {context:,} tokens, or of all that it reads."
    )
    click.secho(f"\n{explanation} {marks}", dim=True)
    click.secho("The whole plan, with its command: workshop plan MODEL --gpu GPU", dim=True)
    if len(rows) != 1:
        return
    for place in rows[0].places:
        if not place.gpus and not place.too_many:
            click.secho(f"{place.gpu}: {plain(place.reason)}", dim=True)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the cells of a line in the widths of their columns: the name left, the rest right."""
    name = cells[0].ljust(widths[0])
    others = zip(cells[1:], widths[1:], strict=True)
    return [name, *(cell.rjust(width) for cell, width in others)]


def _coloured(cell: str) -> str:
    """Return a cell with the colour of its sign."""
    if cell.endswith(TOO_MANY):
        return click.style(cell, dim=True)
    if cell.endswith(NOT_THERE):
        return click.style(cell, fg="red")
    return cell
