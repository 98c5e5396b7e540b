from __future__ import annotations

import sys

import click

from workshop.cli.plan_options import Tokens
from workshop.cli.say import json_option, say, say_json, say_remedy

SHOWN = ("command", "arguments", "settings", "reasons", "advice", "fits")


class WithSbatchOptions(click.Command):
    """A command that passes on to sbatch whatever is no option of its own.

    What the words mean is for sbatch to say: in -AN25 there is an account, and no number of nodes.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Part the words, and give click its own in a form that it cannot misread."""
        own, positional, passed = self._parted(args, set(ctx.help_option_names))
        if positional:
            own += ["--", *positional, *passed]
        return super().parse_args(ctx, own)

    def _parted(self, args: list[str], helps: set[str]) -> tuple[list[str], list[str], list[str]]:
        """Return this command's options, MODEL with stray words, and sbatch's options."""
        from workshop.servers.slurm import options as sbatch_options

        own, positional, passed = [], [], []
        waiting = list(args)
        while waiting:
            word = waiting.pop(0)
            if word == "--":
                passed += waiting
                break
            if word in helps:
                own.append(word)
            elif sbatch_options.is_option(word):
                ours, theirs = self._take(word, waiting)
                own += ours
                passed += theirs
            else:
                positional.append(word)
        return own, positional, passed

    def _take(self, word: str, waiting: list[str]) -> tuple[list[str], list[str]]:
        """Return (this command's words, sbatch's words) of a word that holds options.

        Words that are values of the options belong to them.
        """
        from workshop.servers.slurm import options as sbatch_options

        name, equals, value = word.partition("=")
        option = self._own(name) or self._own(f"--{sbatch_options.full_name(name[2:])}")
        if option and word.startswith("--"):
            if equals or option.is_flag or not waiting:
                return [option.opts[0] + equals + value], []
            return [f"{option.opts[0]}={waiting.pop(0)}"], []
        own: list[str] = []
        passed: list[str] = []
        for sbatch_option in sbatch_options.take(word, waiting):
            option = self._own(sbatch_option.arguments[0][:2])
            if option is None:
                passed += sbatch_option.arguments
            elif sbatch_option.value is None:
                own.append(option.opts[0])
            else:
                own.append(f"{option.opts[0]}={sbatch_option.value}")
        return own, passed

    def _own(self, name: str) -> click.Option | None:
        for param in self.params:
            if isinstance(param, click.Option) and name in param.opts:
                return param
        return None


@click.group()
def command() -> None:
    """Servers on a SLURM cluster.

    The settings of the cluster are in slurm/site.sh, or in your own file (`site`). A job is a
    server like others: workshop servers, logs, stop.
    """


@command.command(cls=WithSbatchOptions)
@click.argument("model")
@click.option(
    "--nodes", "-N", type=int, help="Nodes, all used; by default the script's or the plan's."
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
@click.argument("sbatch_args", nargs=-1, type=click.UNPROCESSED)
def submit(model, vllm, dry_run, as_json, sbatch_args, **options) -> None:
    """Submit a server of MODEL: 70b, 405b, 405b-fp8, a catalog name, or a folder.

    Options that are not listed here go to sbatch as they are (--partition=…, -A lab, -M cluster).
    """
    from inference_planner.catalog.gpus import split_count

    from workshop.servers import flags
    from workshop.servers.slurm.submit import submission as slurm

    if options["gpu"]:
        options["gpu"], count = split_count(options["gpu"])
        options["gpus_per_node"] = options["gpus_per_node"] or count
    request = slurm.Request(what=model, vllm=flags.split(vllm), sbatch_args=sbatch_args, **options)
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
