"""Guess what somebody who typed an unknown command or flag meant."""

import difflib
from collections.abc import Collection

import click

# What people type who come from other tools.
COMMANDS = {
    "log": "logs",
    "chat": "ask",
    "complete": "ask",
    "prompt": "ask",
    "query": "ask",
    "run": "serve",
    "start": "serve",
    "up": "serve",
    "list": "servers",
    "ls": "servers",
    "ps": "servers",
    "status": "servers",
    "kill": "stop",
    "cancel": "stop",
    "down": "stop",
    "download": "prefetch",
    "pull": "prefetch",
    "notebook": "lab",
    "jupyter": "lab",
    "run-batch": "batch",
    "check": "doctor",
    "key": "keys",
}
# Commands that are now an option of another one, and what belongs to all servers alike.
PHRASES = {
    "kubernetes": "plan MODEL --gpu GPU --as kubernetes",
    "k8s": "plan MODEL --gpu GPU --as kubernetes",
    "vm": "plan MODEL --gpu GPU --as systemd",
    "systemd": "plan MODEL --gpu GPU --as systemd",
    "classroom": "bench --class N",
    "tune": "simulate MODEL --search",
    "test": "progress --before",
    "gpus": "models --gpus",
    "cards": "models --gpus",
    "slurm list": "servers",
    "slurm status": "servers NAME",
    "slurm logs": "logs NAME",
    "slurm stop": "stop NAME",
    "slurm cancel": "stop NAME",
    "slurm script": "plan MODEL --gpu GPU --as sbatch",
    "keys rm": "keys revoke",
    "keys remove": "keys revoke",
    "keys delete": "keys revoke",
    "keys ls": "keys list",
    "keys new": "keys add",
}
FLAGS = {
    "--gpus": "--gpus-per-node",
    "--num-gpus": "--gpus-per-node",
    "--tp": "--tensor-parallel-size",
    "--pp": "--pipeline-parallel-size",
    "--context": "--max-model-len",
    "--ctx": "--max-model-len",
    "--server": "--name",
}


def command(word: str, names: Collection[str], group: str = "") -> str | None:
    """Return the command, or the whole phrase, that was probably meant; None if none is near.

    Args:
        names: of the commands that there are.
        group: the command that `word` stood behind, such as "slurm"; "" for none.
    """
    word = word.lower()
    phrase = f"{group} {word}".strip()
    if phrase in PHRASES:
        return PHRASES[phrase]
    if not group and word in COMMANDS:
        return COMMANDS[word]
    near = difflib.get_close_matches(word, names, n=1)
    near += [name for name in names if len(word) > 1 and name.startswith(word)]
    if not near:
        return None
    return f"{group} {near[0]}".strip()


def flag(error: click.NoSuchOption) -> click.UsageError:
    """Return click's error, or one that names the flag that is called otherwise here."""
    proposal = FLAGS.get(error.option_name)
    if proposal is None or error.ctx is None:
        return error
    if not any(proposal in param.opts for param in error.ctx.command.params):
        return error
    return click.UsageError(f"{error.message} Did you mean {proposal!r}?", error.ctx)


class Group(click.Group):
    """A group of commands whose error for an unknown one names the nearest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command."""
        names = self.list_commands(ctx)
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if not args or args[0] in names:
                raise
        group = "" if ctx.parent is None else ctx.info_name or ""
        remedy = f"{ctx.command_path} --help lists the commands."
        nearest = command(args[0], names, group)
        if nearest:
            remedy = f"Did you mean `workshop {nearest}`? {remedy}"
        ctx.fail(f"No such command {args[0]!r}. {remedy}")
