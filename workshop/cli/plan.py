import shlex
import sys
from collections.abc import Iterator
from typing import Any

import click

from workshop.cli.say import say
from workshop.errors import BadInput
from workshop.plan import words
from workshop.plan.arguments import ARGUMENTS, tokens
from workshop.plan.parallelism import Plan

GIVEN, POSITIVE = click.IntRange(1), click.FloatRange(min=0, min_open=True)
# place -> what its flag does, and the options that belong to it alone
PLACES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "kubernetes": (
        "Print manifests instead, for kubectl apply -f -.",
        {
            "output": {"metavar": "FOLDER", "help": "write a kustomize base and overlay there."},
            "pvc_size": {"type": GIVEN, "help": "GiB of the volume of the weights.  [default: computed]"},
            "storage_class": {"help": "of that volume.  [default: the cluster's]"},
            "load_gb_per_s": {"type": float, "help": "speed of that volume, for a start's budget.  [default: 0.25]"},
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
            "http_route": {"metavar": "HOST", "help": "an HTTPRoute (Gateway API) to it, with --gateway."},
            "gateway": {"metavar": "NAME", "help": "the Gateway of that route, or NAMESPACE/NAME."},
            "priority_class": {"metavar": "NAME", "help": "of the server's pods."},
            "queue": {"metavar": "NAME", "help": "a LocalQueue of Kueue."},
            "rdma": {"metavar": "RESOURCE", "help": "one a pod, as rdma/ib, between nodes."},
        },
    ),
    "vm": (
        "Print a systemd unit and container lines instead, for one machine.",
        {
            "download_dir": {"metavar": "FOLDER", "help": "where the weights go.  [default: /mnt/models]"},
            "disk_gb": {"type": POSITIVE, "help": "size of its disk in GB; refused if the weights do not fit."},
        },
    ),
    "machines": ("Print which common cloud VMs hold the model (no --gpu needed).", {}),
}
HOMES = {name: (place,) for place, (_, own) in PLACES.items() for name in own} | {"name": ("kubernetes", "vm")}


class Tokens(click.ParamType):
    """A whole number; 8k is 8,000 and 8K is 8,192, as vLLM reads its own flags."""

    name = "integer"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
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
        ["--exact/--no-exact"], default=None, help="Ask vLLM's own classes.  [default: where formulas lack]"
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def of_places() -> Iterator[click.Option]:
    yield click.Option(["--name"], help="--kubernetes, --vm: name of the server.")
    for place, (about, own) in PLACES.items():
        yield click.Option([_flag(place)], is_flag=True, help=about)
        for name, more in own.items():
            yield click.Option([_flag(name)], **{**more, "help": f"--{place}: {more['help']}"})


def take(given: dict[str, Any], as_json: bool) -> tuple[str, dict[str, Any]]:
    """Take the places' options out of `given`; return (the place or "", its options); refuse two at once."""
    chosen = [place for place in PLACES if given.pop(place)]
    place = chosen[0] if chosen else ""
    if others := chosen[1:] or (["json"] if as_json and place in ("kubernetes", "vm") else []):
        raise BadInput(f"--{others[0]} and --{place} print different things.", "Give one of them.")
    values = {name: given.pop(name) for name in HOMES}
    found = {name: value for name, value in values.items() if value is not None and value is not False and value != ()}
    for name in found:  # 0 was given
        if place not in HOMES[name]:
            places = " and ".join(f"--{home}" for home in HOMES[name])
            raise BadInput(f"{_flag(name)} belongs to {places}.", f"Add --{HOMES[name][0]}, or leave it out.")
    return place, found


def show(place: str, plan: Plan, given: dict[str, Any]) -> None:
    """Print, or write, the plan in its place."""
    if place == "vm":
        from workshop.launch import vm

        click.echo(vm.render(vm.Case(plan, **given)), nl=False)
        click.echo()
        return
    from workshop.launch import kubernetes

    folder = given.pop("output", None)
    chosen = kubernetes.Options(**given)
    if folder is None:
        click.echo(kubernetes.render(plan, chosen), nl=False)
        return
    for path in kubernetes.write(plan, folder, chosen):
        say(f"  {path}")
    name = kubernetes.Case(plan, chosen).name
    say(f"✓ kubectl apply -k {shlex.quote(f'{folder}/overlays/{name}')}", fg="green")


@click.command(params=[*arguments(), *of_places()])
@click.argument("model", required=False)
def command(model, gpu, listed, as_json, explain, **options) -> None:
    """Predict memory, parallelism and speed of MODEL on GPUs.

    MODEL is a catalogue name (llama-3.1-70b), its Hub id, or a folder or file with a Hugging Face config.json.
    Exit code 0 if it fits, 1 if not, 2 for wrong use. Not counted: a draft (--speculative-config), adapters (--enable-lora).

    \b
      workshop plan llama-3.1-70b --gpu h100 --gpus-per-node 4
      workshop plan ./my-model --gpu h200 --max-model-len 32K --json
      workshop plan mistral-7b-v0.3 --gpu t4 --gpus-per-node 2 --kubernetes | kubectl apply -f -
      workshop plan llama-3.3-70b --machines
    """
    place, chosen = take(options, as_json)
    if listed or place not in ("kubernetes", "vm"):
        shown = {"listed": listed, "on_machines": place == "machines", "as_json": as_json, "explain": explain}
        sys.exit(words.answer(click.echo, model, gpu, **shown, **options))
    result = words.planned(model, gpu, options)
    if result.nodes > 1 and result.data_parallel_size > 1:
        raise BadInput(f"--{place} makes nothing for replicas on several nodes.", "Take the command of the plan.")
    show(place, result, chosen)
