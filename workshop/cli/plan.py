"""`workshop plan`: predict memory, parallelism and speed of a model on GPUs."""

import sys
from collections.abc import Callable

import click

from workshop.cli import plan_places
from workshop.errors import BadInput
from workshop.plan import words
from workshop.plan.arguments import ARGUMENTS, tokens


class Tokens(click.ParamType):
    """A whole number; 8k is 8,000 and 8K is 8,192, as vLLM reads its own flags."""

    name = "integer"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return tokens(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def arguments(command: Callable) -> Callable:
    for flags, how in reversed(ARGUMENTS.items()):
        own = {"help": how["help"]}
        if "const" in how:
            own["flag_value"] = how["const"]
        elif "action" in how:
            own["is_flag"] = True
        elif "choices" in how:
            own["type"] = click.Choice(how["choices"])
        else:
            kind = Tokens() if how.get("type") is tokens else how.get("type")
            own |= {"type": kind, "default": how.get("default"), "show_default": "default" in how}
        command = click.option(*flags, *filter(None, [how.get("dest")]), **own)(command)
    return command


@click.command()
@click.argument("model", required=False)
@arguments
@click.option("--exact/--no-exact", default=None, help="Ask vLLM's own classes.  [default: where formulas lack]")
@plan_places.options
def command(model, gpu, listed, as_json, explain, **options) -> None:
    """Predict memory, parallelism and speed of MODEL on GPUs.

    MODEL is a catalogue name (llama-3.1-70b), its Hub id, or a folder or file with a Hugging Face config.json.
    Exit code 0 if it fits, 1 if not, 2 for wrong use.

    \b
      workshop plan llama-3.1-70b --gpu h100 --gpus-per-node 4
      workshop plan ./my-model --gpu h200 --max-model-len 32K --json
      workshop plan mistral-7b-v0.3 --gpu t4 --gpus-per-node 2 --kubernetes | kubectl apply -f -
      workshop plan llama-3.3-70b --machines
    """
    place, chosen = plan_places.take(options, as_json)
    if listed or place not in ("kubernetes", "vm"):
        shown = {"listed": listed, "on_machines": place == "machines", "as_json": as_json, "explain": explain}
        sys.exit(words.answer(click.echo, model, gpu, **shown, **options))
    result = words.planned(model, gpu, options)
    if result.nodes > 1 and result.data_parallel_size > 1:
        raise BadInput(f"--{place} makes nothing for replicas on several nodes.", "Take the command of the plan.")
    plan_places.show(place, result, chosen)
