import sys
from dataclasses import asdict
from pathlib import Path

import click

from workshop.cli.plan import Tokens
from workshop.cli.say import Bar, json_option, say, say_json
from workshop.launch.flags import words
from workshop.launch.slurm import status as slurm_status
from workshop.launch.slurm import submit as slurm

SHOWN = ("command", "arguments", "environment", "reasons", "advice", "fits")


@click.group
def command() -> None:
    """Servers on a SLURM cluster: plan, submit, watch. Settings of the cluster: slurm/site.sh."""


@command.command(context_settings={"ignore_unknown_options": True})
@click.argument("model")
@click.option("--nodes", "-N", type=int, help="Nodes, all used; by default the script's or the plan's.")
@click.option(
    "--gpus-per-node",
    type=int,
    help="GPUs a node, all used; by default the script's, or as many of 4 as the plan needs.",
)
@click.option("--gpu", help="GPU to plan for, by its name in the catalogue; by default h100.")
@click.option("--pipeline", is_flag=True, help="TP inside a node and one pipeline stage a node (405b: TP 4 × PP 4).")
@click.option("--ray", is_flag=True, help="Start vLLM through Ray instead of its own multi-node start.")
@click.option("--time", help="Time limit, HH:MM:SS.")
@click.option("--max-model-len", type=Tokens(), help="Longest request, prompt and answer, in tokens.")
@click.option("--learners", type=click.IntRange(0), default=0, help="Size of the class: sets limits for each learner.")
@click.option("--name", help="Name of job and server; by default the script's.")
@click.option(
    "--vllm", "vllm", multiple=True, metavar="FLAGS", help="More flags of `vllm serve`, quoted; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Print the reasons, the command and the script; submit nothing.")
@json_option('{"job_id", "command", "script", "arguments", "environment", "reasons", "advice", "fits"}')
@click.argument("sbatch_args", nargs=-1, type=click.UNPROCESSED)
def submit(model, vllm, dry_run, as_json, sbatch_args, **options) -> None:
    """Submit a server of MODEL: 70b, 405b, 405b-fp8, a catalogue name, or a folder.

    What stands after MODEL and is not listed here goes to sbatch as it is (--partition=…, --qos=…).
    """
    request = slurm.Request(what=model, vllm=words(vllm), sbatch_args=sbatch_args, **options)
    submission = slurm.prepare(request)
    job_id = None if dry_run else slurm.submit(submission)
    if as_json:
        facts = {name: getattr(submission, name) for name in SHOWN}
        say_json({"job_id": job_id, **facts, "script": str(submission.script)})
    else:
        _print(submission, dry_run)
        if job_id:
            say(f"✓ job {job_id}", fg="green")
            say(f"Watch it: workshop slurm logs {job_id} --follow")
    sys.exit(0 if submission.fits else 1)


def _print(submission, dry_run: bool) -> None:
    for reason in submission.reasons:
        say(f"· {reason}")
    for advice in submission.advice:
        say(f"→ {advice}", fg="yellow")
    say(f"\n  {submission.command}\n")
    if dry_run:
        say(f"# {submission.script}", dim=True)
        click.echo(submission.script.read_text())
        if not submission.fits:
            say("✗ The plan does not fit: nothing would be submitted.", fg="red", err=True)


@command.command
@click.argument("job")
@json_option("The job's state, stage, address, error and files.")
def status(job: str, as_json: bool) -> None:
    """Show where JOB (its number, or the name of its server) is: queue, loading, address, or the first real error."""
    now = slurm_status.status(slurm_status.resolve(job))
    say_json(asdict(now)) if as_json else _show(now)
    sys.exit(1 if now.error else 0)


@command.command
@click.argument("job")
@click.option("--follow", "-f", is_flag=True, help="Until the server is ready, or the job has ended.")
def logs(job: str, follow: bool) -> None:
    """Show what JOB (its number, or the name of its server) has said: all of it, or with --follow as it comes."""
    number = slurm_status.resolve(job)
    if not follow:
        now = slurm_status.status(number)
        for path in filter(None, (now.output, now.error_file)):
            say(f"==> {path} <==", bold=True)
            click.echo(Path(path).read_text(errors="replace"))
        sys.exit(0)
    with Bar(f"Job {number}") as bar:
        now = slurm_status.follow(number, bar, lambda text: say(f"  {text[:200]}", err=True))
    _show(now)
    sys.exit(0 if now.fraction == 1.0 else 1)


def _show(now) -> None:
    where = f" on {now.nodes}" if now.nodes else ""
    times = f", {now.elapsed} elapsed" if now.elapsed else ""
    times += f", {now.left} left" if now.left else ""
    say(f"Job {now.job_id} {now.name}: {now.state}{where}{times}" + (f" ({now.reason})" if now.reason else ""))
    if now.error:
        say(f"✗ {now.error}", fg="red")
        if now.remedy:
            say(f"→ {now.remedy}")
    elif now.server == "ready":
        say(f"✓ ready at {now.url}", fg="green")
        say(f"In a notebook: workshop.connect(); stop it: workshop stop {now.name}")
    else:
        say(f"{now.fraction:4.0%} {now.message}")
    if now.output:
        say(f"Its words: {now.output}")
