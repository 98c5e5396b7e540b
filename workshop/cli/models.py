import click
from inference_planner import hardware
from inference_planner.catalog import list_models, load_gpu, load_model
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
    chosen = [
        load_model(name)
        for name in names or (hardware.names_of(family) if family else list_models())
    ]
    if only_names:
        found = [m.name for m in chosen]
        return say_json(found) if as_json else click.echo("\n".join(found))
    kinds = tuple(load_gpu(gpu).name for gpu in gpus) or hardware.GPUS
    longest = max(m.max_position_embeddings for m in chosen)
    if max_model_len and max_model_len > longest:
        raise BadInput(
            f"No such model reads {max_model_len:,} tokens.",
            f"Give --max-model-len {longest} or less.",
        )
    with waiting("Planning each model on each GPU …"):
        rows = hardware.table(chosen, kinds, max_model_len or hardware.CONTEXT, exact.plan)
    if as_json:
        say_json([r.to_dict() for r in rows])
    else:
        _show(rows, kinds, max_model_len or hardware.CONTEXT)


def _show(rows: list, kinds: tuple[str, ...], context: int) -> None:
    from rich.table import Table

    screen, out = console(), Table(box=None, pad_edge=False, header_style="dim")
    out.add_column("model", no_wrap=True)
    for title in ("parameters", "weights GiB", "KV KiB", *kinds):
        out.add_column(title, justify="right", no_wrap=True)
    for r in rows:
        cells = (
            str(p.gpus) if p.gpus else "[dim]–[/]" if p.too_many else "[red]✗[/]" for p in r.places
        )
        sizes = size_words(r.parameters), f"{r.weights_gib:,.1f}", f"{r.kv_kib_per_token:,.4g}"
        out.add_row(f"[bold]{r.model}[/]", *sizes, *cells)
    # every GPU, also in a pipe or a small terminal
    console(least=console(1000).measure(out).maximum).print(out)
    marks = "–: more than 16. ✗: it does not run there."
    held = (
        f"GPUs that hold the model and one request of {context:,} tokens, or of all that it reads."
    )
    screen.print(f"\n[dim]{held} {marks}[/]")
    screen.print("[dim]The whole plan, with its command: workshop plan MODEL --gpu GPU[/]")
    for place in rows[0].places if len(rows) == 1 else ():
        if not place.gpus and not place.too_many:
            screen.print(f"[dim]{place.gpu}: {shown(place.reason)}[/]")
