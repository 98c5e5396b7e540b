"""The places of `workshop plan`: --kubernetes, --vm and --machines, and the options that belong to each."""

import shlex
from collections.abc import Callable
from typing import Any

import click

from workshop.cli.say import say
from workshop.errors import BadInput
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


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def options(command: Callable) -> Callable:
    found = [click.option("--name", help="--kubernetes, --vm: name of the server.")]
    for place, (about, own) in PLACES.items():
        found.append(click.option(_flag(place), is_flag=True, help=about))
        for name, more in own.items():
            found.append(click.option(_flag(name), **{**more, "help": f"--{place}: {more['help']}"}))
    for option in reversed(found):
        command = option(command)
    return command


def take(given: dict[str, Any], as_json: bool) -> tuple[str, dict[str, Any]]:
    """Take the places' options out of `given`; return (the place or "", its options).

    Raises BadInput for two at once, or an option of another place.
    """
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
    """Print, or write, the plan in its place.

    Raises WorkshopError where it does not fit, the options cannot be, or the folder cannot be written.
    """
    if place == "vm":
        from workshop.launch import vm

        click.echo(vm.render(vm.Case(plan, **given)), nl=False)
        click.echo()
        return
    from workshop.launch import kubernetes

    folder = given.pop("output", None)
    size = {"pvc_gib": given.pop("pvc_size")} if "pvc_size" in given else {}
    chosen = kubernetes.Options(**given, **size)
    if folder is None:
        click.echo(kubernetes.render(plan, chosen), nl=False)
        return
    for path in kubernetes.write(plan, folder, chosen):
        say(f"  {path}")
    name = kubernetes.Case(plan, chosen).name
    say(f"✓ kubectl apply -k {shlex.quote(f'{folder}/overlays/{name}')}", fg="green")
