from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from workshop.cli.plan_options import Tokens
from workshop.cli.say import json_option, say, say_json, say_remedy

SHOWN = ("command", "arguments", "settings", "reasons", "advice", "fits")


@click.group()
def command() -> None:
    """Servers on a SLURM cluster.

    The settings of the cluster are in slurm/site.sh, or in your own file (`site`). A job is a
    server like others: workshop servers, logs, stop.
    """


# No short options, -h neither: in -AN25 there is an account, and no number of nodes.
@command.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="MODEL [SBATCH OPTIONS]")
@click.option(
    "--nodes", type=int, help="Nodes, all used (also -N); by default the script's or the plan's."
)
@click.option(
    "--gpus-per-node",
    type=int,
    help="GPUs a node, all used; by default the script's, or as many of 4 as the plan needs.",
)
@click.option(
    "--gpu", help="GPU to plan for, by its name in the catalog; by default SLURM's, or h100."
)
@click.option(
    "--pipeline",
    is_flag=True,
    help="TP inside a node and one pipeline stage a node (405b: TP 4 × PP 4).",
)
@click.option("--time", help="Time limit, HH:MM:SS.")
@click.option(
    "--max-model-len", type=Tokens(), help="Longest request, prompt and answer, in tokens."
)
@click.option(
    "--learners",
    type=click.IntRange(0),
    default=0,
    help="Size of the class: sets limits for each learner.",
)
@click.option(
    "--trace",
    is_flag=True,
    help="Note what the engine does, step by step: workshop xray NAME.",
)
@click.option("--name", help="Name of job and server; by default the script's.")
@click.option(
    "--vllm",
    "vllm",
    multiple=True,
    metavar="FLAGS",
    help="More flags of `vllm serve`, quoted; may be repeated.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the reasons, the command and the script; submit nothing."
)
@click.option(
    "--anyway",
    is_flag=True,
    help="Submit also what cannot work as things are, and flags that this release of vLLM does not take.",
)
@json_option(
    '{"job_id", "cluster", "command", "script", "arguments", "settings", "reasons", "advice", "fits"}'
)
@click.pass_context
def submit(ctx, arguments, vllm, dry_run, as_json, **options) -> None:
    """Submit a server of MODEL: 70b, 405b, 405b-fp8, a catalog name, or a folder.

    Options that are not listed here go to sbatch (--partition=…, -A lab, -M cluster); those of a
    plugin need a "=".
    """
    from inference_planner.catalog.gpus import split_count

    from workshop.servers import flags
    from workshop.servers.slurm.submit import submission as slurm

    model, sbatch_args = _parted(ctx, arguments, options)
    if options["gpu"]:
        options["gpu"], count = split_count(options["gpu"])
        options["gpus_per_node"] = options["gpus_per_node"] or count
    request = slurm.SubmitRequest(
        what=model, vllm=flags.split(vllm), sbatch_args=sbatch_args, **options
    )
    submission = slurm.prepare(request)
    job = None if dry_run else slurm.submit(submission)
    if as_json:
        data: dict[str, object] = {"job_id": None, "cluster": ""}
        if job:
            data = {"job_id": job.job_id, "cluster": job.cluster}
        for name in SHOWN:
            data[name] = getattr(submission, name)
        data["script"] = str(submission.script)
        say_json(data)
    else:
        _print(submission, dry_run)
    if job and not as_json:
        where = f" (cluster {job.cluster})" if job.cluster else ""
        say(f"✓ job {job.job_id}{where}", fg="green")
        if job.standing and job.standing.remedy:
            say(f"! {job.standing.sentence}", fg="yellow")
            say_remedy(job.standing.remedy)
        say(f"Watch it: workshop logs {job.job_id} --follow")
    if not submission.fits:
        sys.exit(1)


def _parted(
    ctx: click.Context, arguments: Sequence[str], own: dict[str, Any]
) -> tuple[str, tuple[str, ...]]:
    """Return MODEL and sbatch's options. Options of ours, in one of sbatch's spellings, go to `own`."""
    from workshop.servers.slurm import options as sbatch_options

    parsed, rest = sbatch_options.read(arguments)
    types = {param.name: param for param in ctx.command.params}
    passed = []
    for option in parsed:
        name = option.name.replace("-", "_")
        if name in own:
            own[name] = types[name].type_cast_value(ctx, option.value)
        elif name == "help":
            click.echo(ctx.get_help())
            ctx.exit()
        else:
            passed.append(option)
    models = [word for word in rest if not word.startswith("-")]
    if not models:
        raise click.UsageError("Missing argument 'MODEL'.", ctx)
    rest.remove(models[0])
    return models[0], (*sbatch_options.written(passed), *rest)


def _print(submission, dry_run: bool) -> None:
    for reason in submission.reasons:
        say(f"· {reason}")
    for advice in submission.advice:
        say_remedy(advice, fg="yellow")
    say(f"\n  {submission.command}\n")
    if dry_run:
        say(f"# {submission.script}", dim=True)
        click.echo(submission.script.read_text())
        if not submission.fits:
            say("✗ The plan does not fit: nothing would be submitted.", fg="red", err=True)


@command.command
def site() -> None:
    """Make your own site.sh, in your own folder, and print where it is: edit it there.

    It counts instead of the one that came with the workshop. An upgrade never touches it, nor does
    this command.
    """
    from workshop.servers.slurm import site as slurm_site

    path, is_new = slurm_site.make_own_file()
    if is_new:
        say("Edit its lines marked EDIT; then workshop doctor checks it.", err=True)
    else:
        say("It is there already, and stays as it is.", err=True)
    click.echo(path)
