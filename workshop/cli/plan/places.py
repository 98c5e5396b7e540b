"""A plan as what starts it: `workshop plan … --as PLACE`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from workshop.cli.plan.model_argument import with_config
from workshop.cli.say import say
from workshop.errors import BadInput

if TYPE_CHECKING:
    from inference_planner.answer.parallelism import Plan

COUNT = click.IntRange(1)
FEW_REQUESTS = 2.0  # at once: below it a server is practically for one
POSITIVE = click.FloatRange(min=0, min_open=True)
# place -> the options that belong to it alone
PLACES: dict[str, dict[str, dict[str, Any]]] = {
    "vllm": {},
    "sbatch": {},
    "kubernetes": {
        "output": {"metavar": "FOLDER", "help": "write a kustomize base and overlay there."},
        "claim": {
            "metavar": "NAME",
            "help": "a PersistentVolumeClaim with the model, in place of a download.",
        },
        "model_path": {"metavar": "PATH", "help": "the model's folder in that claim."},
        "guard_image": {
            "metavar": "IMAGE",
            "help": "made from kubernetes/Dockerfile: all paths guarded, and a hung engine found."
            "  [default: vLLM's own --api-key]",
        },
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
    },
    "systemd": {
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


def options() -> Iterator[click.Option]:
    """Yield the options that belong to places alone."""
    yield click.Option(["--name"], help="Name of the server, or of the job.")
    for own_options in PLACES.values():
        for name, keywords in own_options.items():
            help_text = keywords["help"]
            capitalized = help_text[:1].upper() + help_text[1:]
            yield click.Option([_flag(name)], **{**keywords, "help": capitalized})


def title_of(name: str) -> str:
    """Return the title of the help's section in which an option stands."""
    if name == "name":
        return "With --as"
    for place, own_options in PLACES.items():
        if name in own_options:
            return f"With --as {place}"
    return "Options"


def check_alone(**others: bool) -> None:
    """Raise BadInput where --as stands beside an option that prints something else."""
    for name, is_there in others.items():
        if is_there:
            flag = _flag(name.removeprefix("as_"))
            raise BadInput(f"--as and {flag} print different things.", "Give one of them.")


def checked(place: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a place that were on the command line, also those with the value 0.

    Raises BadInput: one belongs to another place.

    Args:
        place: a name of PLACES; "" for none.
        values: of all options of `options`.
    """
    result = {}
    for name, value in values.items():
        if value is None or value is False or value == ():
            continue
        homes = [other for other in PLACES if name == "name" or name in PLACES[other]]
        if place not in homes:
            remedy = f"Give --as {homes[-1]} as well, or leave it out."
            raise BadInput(f"{_flag(name)} belongs to --as {' or '.join(homes)}.", remedy)
        result[name] = value
    return result


def print_for(
    place: str,
    model: str | None,
    gpu: str | None,
    settings: dict[str, Any],
    own: dict[str, Any],
) -> None:
    """Plan, and print or write what starts the plan.

    Args:
        place: a name of PLACES.
        settings: of the plan.
        own: the place's own options.
    """
    from inference_planner.answer.command import check_fits, check_starts
    from inference_planner.arguments import required

    from workshop.engine import planning

    model, gpu = required(model, gpu, settings["gpu_memory_gib"])
    if gpu is None and place != "vllm":
        raise BadInput(
            f"--as {place} asks for GPUs by their name, and --gpu-memory alone has none.",
            "Give --gpu as well.",
        )
    plan = planning.plan(with_config(model), gpu, **settings)
    check_fits(plan)
    check_starts(plan)
    if plan.nodes > 1 and plan.data_parallel_size > 1:
        raise BadInput(
            f"--as {place} makes nothing for replicas on several nodes.",
            "Take the command of the plan.",
        )
    PRINTERS[place](plan, own)
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

    click.echo(vm.render(vm.VmServer(plan, **own)))


def _print_manifests(plan: Plan, own: dict[str, Any]) -> None:
    from workshop.servers import kubernetes

    folder = own.pop("output", None)
    options = kubernetes.Options(**own)
    command = shlex.join(["workshop", *sys.argv[1:]])
    if folder is None:
        click.echo(kubernetes.render(plan, options, command), nl=False)
        return
    for path in kubernetes.write(plan, folder, options, command):
        say(f"  {path}")
    say(f"  {_requests_at_once(plan)}")
    name = kubernetes.KubernetesServer(plan, options).name
    say(f"✓ kubectl apply -k {shlex.quote(f'{folder}/overlays/{name}')}", fg="green")


def _requests_at_once(plan: Plan) -> str:
    return f"{plan.max_concurrency:.2f} requests of {plan.deployment.settings.max_model_len:,} tokens at once"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _print_command(plan: Plan, own: dict[str, Any]) -> None:
    served = ""
    if own:
        served = f" --served-model-name {shlex.quote(own['name'])}"
    click.echo(plan.command + served)


def _print_script(plan: Plan, own: dict[str, Any]) -> None:
    from workshop.servers.slurm import site
    from workshop.servers.slurm.submit import plain

    click.echo(plain.render(plan, site=site.environment(), **own), nl=False)


PRINTERS = {
    "vllm": _print_command,
    "sbatch": _print_script,
    "kubernetes": _print_manifests,
    "systemd": _print_unit,
}
NAMES = [option.name or "" for option in options()]
