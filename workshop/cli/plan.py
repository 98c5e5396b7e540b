import shlex
import sys
from collections.abc import Iterator
from typing import Any

import click
from inference_planner import words
from inference_planner.arguments import ARGUMENTS, tokens
from inference_planner.parallelism import Plan

from workshop.cli.say import say
from workshop.engine import exact
from workshop.errors import BadInput

GIVEN, POSITIVE = click.IntRange(1), click.FloatRange(min=0, min_open=True)
# place -> what its flag does, and the options that belong to it alone
PLACES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "kubernetes": (
        "Print manifests instead, for kubectl apply -f -.",
        {
            "output": {"metavar": "FOLDER", "help": "write a kustomize base and overlay there."},
            "pvc_size": {
                "type": GIVEN,
                "help": "GiB of the volume of the weights.  [default: computed]",
            },
            "storage_class": {"help": "of that volume.  [default: the cluster's]"},
            "load_gb_per_s": {
                "type": float,
                "help": "speed of that volume, for a start's budget.  [default: 0.25]",
            },
            "openshift": {"is_flag": True, "help": "no user of ours, and a Route."},
            "replicas": {"type": GIVEN, "help": "servers behind one Service.  [default: 1]"},
            "image": {"help": "from a registry of your own.  [default: vllm/vllm-openai]"},
            "pull_secret": {"metavar": "NAME", "help": "the Secret for that registry."},
            "hf_endpoint": {"metavar": "URL", "help": "a mirror of the Hub for the download."},
            "node_selector": {
                "multiple": True,
                "metavar": "KEY=VALUE",
                "help": "of the nodes, not the GPU's.  Repeatable.",
            },
            "ingress": {"metavar": "HOST", "help": "an Ingress with TLS (Secret NAME-tls)."},
            "http_route": {
                "metavar": "HOST",
                "help": "an HTTPRoute (Gateway API) to it, with --gateway.",
            },
            "gateway": {"metavar": "NAME", "help": "the Gateway of that route, or NAMESPACE/NAME."},
            "priority_class": {"metavar": "NAME", "help": "of the server's pods."},
            "queue": {"metavar": "NAME", "help": "a LocalQueue of Kueue."},
            "rdma": {"metavar": "RESOURCE", "help": "one a pod, as rdma/ib, between nodes."},
        },
    ),
    "vm": (
        "Print a systemd unit and container lines instead, for one machine.",
        {
            "download_dir": {
                "metavar": "FOLDER",
                "help": "where the weights go.  [default: /mnt/models]",
            },
            "disk_gb": {
                "type": POSITIVE,
                "help": "size of its disk in GB; refused if the weights do not fit.",
            },
        },
    ),
    "machines": ("Print which common cloud VMs hold the model (no --gpu needed).", {}),
}
HOMES = {name: (place,) for place, (_, own) in PLACES.items() for name in own} | {
    "name": ("kubernetes", "vm")
}


class Tokens(click.ParamType):
    """A whole number; 8k is 8,000 and 8K is 8,192, as vLLM reads its own flags."""

    name = "integer"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            return tokens(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def arguments() -> Iterator[click.Option]:
    for flags, how in ARGUMENTS.items():
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
        yield click.Option([*flags, *filter(None, [how.get("dest")])], **own)
    yield click.Option(
        ["--exact/--no-exact"],
        default=None,
        help="Ask vLLM's own classes.  [default: where formulas lack]",
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def place_options(place: str) -> Iterator[click.Option]:
    """Yield the options of `workshop kubernetes` or `workshop vm` beside the plan's own."""
    yield click.Option(["--name"], help="Name of the server.")
    for name, settings in PLACES[place][1].items():
        help_text = settings["help"]
        yield click.Option(
            [_flag(name)], **{**settings, "help": help_text[:1].upper() + help_text[1:]}
        )


def old_place_options() -> Iterator[click.Option]:
    """Yield --kubernetes and --vm with their options, which moved to commands of their own; hidden, for one release."""
    yield click.Option(["--name"], hidden=True)
    for place, (about, own) in PLACES.items():
        yield click.Option([_flag(place)], is_flag=True, help=about, hidden=place != "machines")
        for name, settings in own.items():
            yield click.Option([_flag(name)], **{**settings, "hidden": True})


def take(given: dict[str, Any], as_json: bool) -> tuple[str, dict[str, Any]]:
    """Take the places' options out of `given`; return (the place or "", its options); refuse two at once."""
    chosen = [place for place in PLACES if given.pop(place)]
    place = chosen[0] if chosen else ""
    if others := chosen[1:] or (["json"] if as_json and place in ("kubernetes", "vm") else []):
        raise BadInput(f"--{others[0]} and --{place} print different things.", "Give one of them.")
    values = {name: given.pop(name) for name in HOMES}
    found = {name: value for name, value in values.items() if is_given(value)}
    for name in found:  # 0 was given
        if place not in HOMES[name]:
            places = " and ".join(f"--{home}" for home in HOMES[name])
            raise BadInput(
                f"{_flag(name)} belongs to {places}.", f"Add --{HOMES[name][0]}, or leave it out."
            )
    return place, found


def show(place: str, plan: Plan, given: dict[str, Any]) -> None:
    """Print, or write, the plan in its place."""
    if place == "vm":
        from workshop.servers import vm

        click.echo(vm.render(vm.Case(plan, **given)), nl=False)
        click.echo()
        return
    from workshop.servers import kubernetes

    folder = given.pop("output", None)
    chosen = kubernetes.Options(**given)
    if folder is None:
        click.echo(kubernetes.render(plan, chosen), nl=False)
        return
    for path in kubernetes.write(plan, folder, chosen):
        say(f"  {path}")
    name = kubernetes.Case(plan, chosen).name
    say(f"✓ kubectl apply -k {shlex.quote(f'{folder}/overlays/{name}')}", fg="green")


@click.command(params=[*arguments(), *old_place_options()])
@click.argument("model", required=False)
def command(model, gpu, listed, as_json, explain, **options) -> None:
    """Predict memory, parallelism and speed of MODEL on GPUs.

    MODEL is a catalogue name (llama-3.1-70b), its Hub id, or a folder or file with a Hugging Face config.json.
    Exit code 0 if it fits, 1 if not, 2 for wrong use. Not counted: a draft (--speculative-config), adapters (--enable-lora).

    \b
      workshop plan llama-3.1-70b --gpu h100 --gpus-per-node 4
      workshop plan ./my-model --gpu h200 --max-model-len 32K --json
      workshop plan llama-3.3-70b --machines

    Manifests and units from the same options: workshop kubernetes, workshop vm.
    """
    place, chosen = take(options, as_json)
    if listed or place not in ("kubernetes", "vm"):
        if place == "machines" and options["exact"] is None:
            options["exact"] = False  # one plan for each of many machines
        shown = {
            "listed": listed,
            "on_machines": place == "machines",
            "as_json": as_json,
            "explain": explain,
        }
        sys.exit(words.answer(click.echo, model, gpu, make_plan=exact.plan, **shown, **options))
    show_in(place, model, gpu, options, chosen)


def is_given(value: object) -> bool:
    """Return True for an option that was on the command line, also if it was 0."""
    return value is not None and value is not False and value != ()


def show_in(
    place: str, model: str | None, gpu: str | None, options: dict[str, Any], chosen: dict[str, Any]
) -> None:
    """Plan, and print or write the plan for a place: "kubernetes" or "vm".

    Args:
        options: the plan's settings.
        chosen: the place's own options.
    """
    result = words.planned(model, gpu, options, exact.plan)
    if result.nodes > 1 and result.data_parallel_size > 1:
        raise BadInput(
            f"workshop {place} makes nothing for replicas on several nodes.",
            "Take the command of the plan.",
        )
    show(place, result, chosen)


def place_command(place: str, about: str) -> click.Command:
    """Return the command of a place: the plan's options and its own, and the plan printed as that place needs it."""
    own = [option.name for option in place_options(place)]
    left_out = {"listed", "as_json", "explain"}  # they print something else

    def run(model: str, gpu: str | None, **options: Any) -> None:
        values = {name: options.pop(name) for name in own}
        chosen = {name: value for name, value in values.items() if is_given(value)}
        show_in(place, model, gpu, options, chosen)

    params: list[click.Parameter] = [click.Argument(["model"])]
    params += [option for option in arguments() if option.name not in left_out]
    params += place_options(place)
    return click.Command(place, params=params, callback=run, help=about)
