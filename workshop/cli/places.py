"""A plan for a place: Kubernetes or a VM.

`workshop kubernetes` prints manifests, `workshop vm` a systemd unit and container lines.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from workshop.cli.plan_options import plan_options
from workshop.cli.say import say
from workshop.errors import BadInput

if TYPE_CHECKING:
    from inference_planner.answer.parallelism import Plan

COUNT = click.IntRange(1)
FEW_REQUESTS = 2.0  # at once: below it a server is practically for one
POSITIVE = click.FloatRange(min=0, min_open=True)
# place -> the options that belong to it alone
PLACES: dict[str, dict[str, dict[str, Any]]] = {
    "kubernetes": {
        "output": {"metavar": "FOLDER", "help": "write a kustomize base and overlay there."},
        "pvc_size": {
            "type": COUNT,
            "help": "GiB of the volume of the weights.  [default: computed]",
        },
        "storage_class": {"help": "of that volume.  [default: the cluster's]"},
        "load_gb_per_s": {
            "type": float,
            "help": "speed of that volume, for a start's budget.  [default: 0.25]",
        },
        "openshift": {"is_flag": True, "help": "no user of ours, and a Route."},
        "replicas": {"type": COUNT, "help": "servers behind one Service.  [default: 1]"},
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
    "vm": {
        "download_dir": {
            "metavar": "FOLDER",
            "help": "where the weights go.  [default: /mnt/models]",
        },
        "disk_gb": {
            "type": POSITIVE,
            "help": "size of its disk in GB; refused if the weights do not fit.",
        },
    },
}


def place_command(place: str, about: str) -> click.Command:
    """Return the command of a place.

    It takes the plan's options and its own, and prints the plan as that place needs it.
    """
    own_options = list(_own_options(place))
    own_names = [option.name for option in own_options]

    def run(model: str, gpu: str | None, **options: Any) -> None:
        values = {name: options.pop(name) for name in own_names}
        print_for(place, model, gpu, options, _only_given(values))

    params: list[click.Parameter] = [click.Argument(["model"])]
    for option in plan_options():
        if option.name not in ("listed", "as_json", "explain"):  # they print something else
            params.append(option)
    params += own_options
    return click.Command(place, params=params, callback=run, help=about)


def print_for(
    place: str, model: str | None, gpu: str | None, options: dict[str, Any], own: dict[str, Any]
) -> None:
    """Plan, and print or write the plan for a place: "kubernetes" or "vm".

    Args:
        options: the plan's settings.
        own: the place's own options.
    """
    from inference_planner.arguments import required

    from workshop.engine import exact

    model, gpu = required(model, gpu, options["gpu_memory_gib"])
    if gpu is None:
        raise BadInput(
            f"workshop {place} asks for GPUs by their name, and --gpu-memory alone has none.",
            "Give --gpu as well.",
        )
    plan = exact.plan(model, gpu, **options)
    if plan.nodes > 1 and plan.data_parallel_size > 1:
        raise BadInput(
            f"workshop {place} makes nothing for replicas on several nodes.",
            "Take the command of the plan.",
        )
    if place == "vm":
        _print_unit(plan, own)
    else:
        _print_manifests(plan, own)
    _warn_of_few_requests(plan)


def _warn_of_few_requests(plan: Plan) -> None:
    """Warn on stderr, beside what goes to a file, where hardly one request runs at a time.

    The lines are comments, so that they do no harm where both streams go into one file.
    """
    if not plan.kv_cache_tokens or plan.max_concurrency >= FEW_REQUESTS:
        return
    say(f"# ! Only {_requests_at_once(plan)}: others wait.", fg="yellow", err=True)
    say("# → A shorter --max-model-len, or more GPUs, lets more run at once.", err=True)


def _print_unit(plan: Plan, own: dict[str, Any]) -> None:
    from workshop.servers import vm

    click.echo(vm.render(vm.Case(plan, **own)))


def _print_manifests(plan: Plan, own: dict[str, Any]) -> None:
    from workshop.servers import kubernetes

    folder = own.pop("output", None)
    options = kubernetes.Options(**own)
    if folder is None:
        click.echo(kubernetes.render(plan, options), nl=False)
        return
    for path in kubernetes.write(plan, folder, options):
        say(f"  {path}")
    say(f"  {_requests_at_once(plan)}")
    name = kubernetes.Case(plan, options).name
    say(f"✓ kubectl apply -k {shlex.quote(f'{folder}/overlays/{name}')}", fg="green")


def _requests_at_once(plan: Plan) -> str:
    return f"{plan.max_concurrency:.2f} requests of {plan.max_model_len:,} tokens at once"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _own_options(place: str) -> Iterator[click.Option]:
    """Yield the options of a place beside the plan's."""
    yield click.Option(["--name"], help="Name of the server.")
    for name, keywords in PLACES[place].items():
        help_text = keywords["help"]
        capitalized = help_text[:1].upper() + help_text[1:]
        yield click.Option([_flag(name)], **{**keywords, "help": capitalized})


def _only_given(values: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were on the command line, also those with the value 0."""
    named = {}
    for name, value in values.items():
        if value is not None and value is not False and value != ():
            named[name] = value
    return named
