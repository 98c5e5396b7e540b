import click
from inference_planner import hardware
from inference_planner.catalog import ModelConfig, list_models, load_gpu, load_model
from inference_planner.hardware import size_words

from workshop.cli import models_page
from workshop.cli.say import console, json_option, say_json, shown, waiting
from workshop.engine import exact
from workshop.errors import BadInput


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
@click.option("--names", "only_names", is_flag=True, help="Print the names alone.")
@json_option("Print data instead of text.")
@click.option("--markdown", is_flag=True, help="Print a page of all models.")
def command(names, gpus, family, max_model_len, only_names, as_json, markdown) -> None:
    """List the catalog: what each model needs, and how many GPUs of each kind serve it.

    \b
      workshop models --family qwen
      workshop models llama-3.1-70b mixtral-8x7b --gpu l4 --gpu h100
    """
    if markdown:
        click.echo(models_page.page(), nl=False)
        return
    if not names and family:
        names = hardware.names_of(family)
    models = [load_model(name) for name in names or list_models()]
    if only_names:
        _print_names(models, as_json)
        return
    kinds = tuple(load_gpu(gpu).name for gpu in gpus) or hardware.GPUS
    longest = 0
    for model in models:
        longest = max(longest, model.max_position_embeddings)
    if max_model_len and max_model_len > longest:
        raise BadInput(
            f"No such model reads {max_model_len:,} tokens.",
            f"Give --max-model-len {longest} or less.",
        )
    with waiting("Planning each model on each GPU …"):
        rows = hardware.table(models, kinds, max_model_len or hardware.CONTEXT, exact.plan)
    if as_json:
        say_json([row.to_dict() for row in rows])
    else:
        _show(rows, kinds, max_model_len or hardware.CONTEXT)


def _print_names(models: list[ModelConfig], as_json: bool) -> None:
    names = [model.name for model in models]
    if as_json:
        say_json(names)
    else:
        click.echo("\n".join(names))


def _gpus_of(place: hardware.Place) -> str:
    """Return how many GPUs hold a model, with rich's colours; a sign where none or too many do."""
    if place.gpus:
        return str(place.gpus)
    if place.too_many:
        return "[dim]–[/]"
    return "[red]✗[/]"


def _show(rows: list[hardware.Row], kinds: tuple[str, ...], context: int) -> None:
    from rich.table import Table

    screen = console()
    out = Table(box=None, pad_edge=False, header_style="dim")
    out.add_column("model", no_wrap=True)
    for title in ("parameters", "weights GiB", "KV KiB", *kinds):
        out.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        parameters = size_words(row.parameters)
        sizes = (parameters, f"{row.weights_gib:,.1f}", f"{row.kv_kib_per_token:,.4g}")
        out.add_row(f"[bold]{row.model}[/]", *sizes, *map(_gpus_of, row.places))
    # every GPU, also in a pipe or a small terminal
    console(least=console(1000).measure(out).maximum).print(out)
    marks = "–: more than 16. ✗: it does not run there."
    explanation = (
        f"GPUs that hold the model and one request of {context:,} tokens, or of all that it reads."
    )
    screen.print(f"\n[dim]{explanation} {marks}[/]")
    screen.print("[dim]The whole plan, with its command: workshop plan MODEL --gpu GPU[/]")
    if len(rows) != 1:
        return
    for place in rows[0].places:
        if not place.gpus and not place.too_many:
            screen.print(f"[dim]{place.gpu}: {shown(place.reason)}[/]")
