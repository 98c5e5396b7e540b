"""The places of `workshop plan`: --kubernetes, --vm and --machines, and the options that belong to each."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from workshop.cli.say import console, say, shown
from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    from workshop.plan.parallelism import Plan

WIDTH = 116  # of the table of machines
PLACES = ("kubernetes", "vm", "machines")
BELONGS = {
    "output": "kubernetes",
    "pvc_size": "kubernetes",
    "storage_class": "kubernetes",
    "openshift": "kubernetes",
    "load_gb_per_s": "kubernetes",
    "replicas": "kubernetes",
    "image": "kubernetes",
    "pull_secret": "kubernetes",
    "hf_endpoint": "kubernetes",
    "node_selector": "kubernetes",
    "ingress": "kubernetes",
    "priority_class": "kubernetes",
    "queue": "kubernetes",
    "rdma": "kubernetes",
    "download_dir": "vm",
    "disk_gb": "vm",
}


def options(command: Callable) -> Callable:
    """Add the options of all places to a command."""
    for option in reversed(
        (
            click.option("--kubernetes", is_flag=True, help="Print manifests instead, for kubectl apply -f -."),
            click.option("--output", metavar="FOLDER", help="--kubernetes: write a kustomize base and overlay there."),
            click.option(
                "--pvc-size",
                type=click.IntRange(1),
                metavar="GIB",
                help="--kubernetes: size of the volume of the weights.  [default: computed]",
            ),
            click.option("--storage-class", help="--kubernetes: of that volume.  [default: the cluster's]"),
            click.option(
                "--load-gb-per-s",
                type=float,
                help="--kubernetes: speed of that volume, for the budget of a start.  [default: 0.25]",
            ),
            click.option(
                "--replicas", type=click.IntRange(1), help="--kubernetes: servers behind one Service.  [default: 1]"
            ),
            click.option("--image", help="--kubernetes: from a registry of your own.  [default: vllm/vllm-openai]"),
            click.option("--pull-secret", metavar="NAME", help="--kubernetes: the Secret for that registry."),
            click.option("--hf-endpoint", metavar="URL", help="--kubernetes: a mirror of the Hub for the download."),
            click.option(
                "--node-selector",
                multiple=True,
                metavar="KEY=VALUE",
                help="--kubernetes: a label of the nodes, instead of the GPU's.  Repeatable.",
            ),
            click.option("--ingress", metavar="HOST", help="--kubernetes: an Ingress with TLS (Secret NAME-tls)."),
            click.option("--priority-class", metavar="NAME", help="--kubernetes: of the server's pods."),
            click.option("--queue", metavar="NAME", help="--kubernetes: a LocalQueue of Kueue."),
            click.option("--rdma", metavar="RESOURCE", help="--kubernetes: one a pod, as rdma/ib, between nodes."),
            click.option("--openshift", is_flag=True, help="--kubernetes: no user of ours, and a Route."),
            click.option(
                "--vm", is_flag=True, help="Print a systemd unit and container lines instead, for one machine."
            ),
            click.option(
                "--download-dir", metavar="FOLDER", help="--vm: where the weights go.  [default: /mnt/models]"
            ),
            click.option(
                "--disk-gb",
                type=click.FloatRange(min=0, min_open=True),
                help="--vm: size of its disk in GB; refused if the weights do not fit.",
            ),
            click.option("--name", help="--kubernetes, --vm: name of the server."),
            click.option(
                "--machines", is_flag=True, help="Print which common cloud VMs hold the model (no --gpu needed)."
            ),
        )
    ):
        command = option(command)
    return command


def take(given: dict[str, Any], as_json: bool) -> tuple[str, dict[str, Any]]:
    """Take the places' options out of `given`; return (the place or "", its options).

    Raises:
        BadInput: two at once, or an option of another place.
    """
    found = {name: given.pop(name) for name in (*PLACES, *BELONGS, "name")}
    chosen = [name for name in PLACES if found.pop(name)]
    if as_json and set(chosen) - {"machines"}:
        raise BadInput(f"--json and --{chosen[0]} print different things.", "Give one of them.")
    if len(chosen) > 1:
        raise BadInput(f"--{chosen[0]} and --{chosen[1]} print different things.", "Give one of them.")
    place = chosen[0] if chosen else ""
    for name, home in BELONGS.items():
        if _given(found[name]) and home != place:
            raise BadInput(f"--{name.replace('_', '-')} belongs to --{home}.", f"Add --{home}, or leave it out.")
    if found["name"] and place not in ("kubernetes", "vm"):
        raise BadInput("--name belongs to --kubernetes and --vm.", "Add one of them, or leave it out.")
    return place, {name: value for name, value in found.items() if _given(value)}


def _given(value: object) -> bool:
    return value is not None and value is not False and value != ()  # 0 was given


def show(place: str, plan: Plan, given: dict[str, Any]) -> None:
    """Print, or write, the plan in its place.

    Raises:
        WorkshopError: the plan does not fit there, or the folder cannot be written.
        BadInput: the options cannot be.
    """
    if place == "vm":
        from workshop.launch import vm

        click.echo(vm.render(vm.Case(plan, **given)), nl=False)
        click.echo()
        return
    from workshop.launch import kubernetes

    folder = given.pop("output", None)
    names = {"pvc_size": "pvc_gib"}
    chosen = kubernetes.Options(**{names.get(name, name): value for name, value in given.items()})
    if folder is None:
        click.echo(kubernetes.render(plan, chosen), nl=False)
        return
    for path in kubernetes.write(plan, folder, chosen):
        say(f"  {path}")
    name = kubernetes.Case(plan, chosen).name
    say(f"✓ kubectl apply -k {shlex.quote(f'{folder}/overlays/{name}')}", fg="green")


def machines(model: str, settings: dict[str, Any], as_json: bool) -> None:
    """Print which of the catalogue's machines hold the model.

    Raises:
        WorkshopError: none of them does.
    """
    from workshop.plan import machines as catalogue

    offers = catalogue.offers(model, **settings)
    if as_json:
        click.echo(
            json.dumps(
                [
                    {
                        **vars(offer.machine),
                        "fits": offer.fits,
                        "why": offer.why,
                        "command": offer.plan.command if offer.fits else "",
                    }
                    for offer in offers
                ],
                indent=1,
            )
        )
    else:
        _table(offers)
    if not any(offer.fits for offer in offers):
        raise WorkshopError(
            f"None of these {len(offers)} machines holds {model}.",
            "Several nodes may: workshop plan MODEL --gpu h100 --nodes 2, with SLURM or Kubernetes.",
        )


def _table(offers: list) -> None:
    from rich.table import Table

    table = Table(
        "", "machine", "GPUs", "vCPU", "memory", "local disk", "requests", "tokens/s", box=None, padding=(0, 1)
    )
    for offer in (offer for offer in offers if offer.fits):
        m, p = offer.machine, offer.plan
        table.add_row(
            "[green]✓[/]",
            f"{m.name} [dim]{m.provider}[/]",
            f"{p.gpus} of {m.gpus} × {m.gpu}",
            str(m.vcpus),
            f"{m.memory_gib:,} GiB",
            f"{m.local_disk_gb / 1000:.1f} TB",
            f"{p.max_concurrency:.1f}",
            f"{p.single_stream_tokens_per_s:.0f}",
        )
    out = console(least=WIDTH)
    out.print()
    if table.row_count:
        out.print(table)
        length = next(offer.plan.max_model_len for offer in offers if offer.fits)
        out.print(
            f"\n  [dim]requests: of {length:,} tokens at once; tokens/s: for one of them alone; "
            "the OS disk is extra.[/]"
        )
    out.print()
    for offer in (offer for offer in offers if not offer.fits):
        m = offer.machine
        out.print(f" [red]✗[/]  {m.name} [dim]{m.provider}[/], {m.gpus} × {m.gpu}: {shown(offer.why)}")
    out.print()
