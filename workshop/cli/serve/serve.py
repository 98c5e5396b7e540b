import click

from workshop import python_process
from workshop.cli.say import Bar


class Forwarding(click.Command):
    """Splits the arguments into ours and vLLM's.

    A value of an unknown flag is not taken for MODEL.

    vLLM's names have underscores and its flags dashes: both are taken.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_value: dict[str, bool] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option):
                takes_value |= dict.fromkeys(param.opts, not param.is_flag)
        own_arguments, vllm_arguments, queue = [], [], list(args)
        while queue:
            arg = queue.pop(0)
            name, equals, value = arg.partition("=")
            flag = name.replace("_", "-")
            if flag == "--help" and value:
                _explain_flag(ctx, arg)
            if flag in takes_value:
                own_arguments.append(flag + equals + value)
                if takes_value[flag] and not equals and queue:
                    own_arguments.append(queue.pop(0))
            elif arg.startswith("-") and len(arg) > 1:
                vllm_arguments.append(arg)
                # a flag may take several values
                while not equals and queue and not _is_flag(queue[0]):
                    vllm_arguments.append(queue.pop(0))
            else:
                own_arguments.append(arg)
        ctx.obj = tuple(vllm_arguments)
        return super().parse_args(ctx, own_arguments)


def _explain_flag(ctx: click.Context, help_argument: str) -> None:
    """Let vLLM explain a flag of its own, and exit. Without vLLM nothing happens."""
    import subprocess

    from workshop.servers import local

    if local.engine_device():
        command = python_process.command("workshop.servers.vllm_main", "serve", help_argument)
        ctx.exit(subprocess.call(command, env=python_process.environment()))


def _is_flag(text: str) -> bool:
    return text.startswith("-") and not text.lstrip("-").replace(".", "", 1).isdigit()


@click.command(cls=Forwarding, options_metavar="[OPTIONS] [any flag of vllm serve]")
@click.argument("model", required=False)
@click.option("--name", help="Name of the server's record; by default the model's.")
@click.option("--port", type=int, help="By default a free one from 8000 on.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="0.0.0.0 to let other machines in."
)
@click.option(
    "--background",
    is_flag=True,
    help="Return when the server answers a completion, and leave it running.",
)
@click.option(
    "--tensor-parallel-size",
    type=click.IntRange(min=1),
    help="GPUs (on a CPU: processes) that share each layer.",
)
@click.option(
    "--learners",
    type=click.IntRange(min=0),
    default=0,
    help="Size of the class: sets limits for each learner, so that nobody starves the others: docs/security.md.",
)
@click.option(
    "--trace",
    help="Write what the engine does to this new file, a JSON line a step: see workshop xray.",
)
@click.option("--force", is_flag=True, help="With --trace: replace an older trace of that name.")
@click.option(
    "--anyway", is_flag=True, help="Also send flags that this release of vLLM does not take."
)
@click.pass_context
def command(ctx: click.Context, model, background, tensor_parallel_size, **options) -> None:
    """Start vLLM on this machine's GPUs if there are any, and on its CPU otherwise.

    MODEL comes first: a folder, a Hub id, smollm2 (fetched once, 93 MB: a published model that fits a
    laptop), or nothing for the teaching model. Flags that are not
    listed here go to `vllm serve`, if its release knows them: --help=NAME explains one, --help=all
    every one. Only this machine is let in unless --host says otherwise. Every path but /health
    needs the server's key, which `workshop.connect()` finds by itself.
    """
    from workshop.servers import local
    from workshop.servers.flags import unchecked
    from workshop.servers.local import supervise
    from workshop.vllm_package import installed

    vllm_args: tuple[str, ...] = ctx.obj
    if tensor_parallel_size:
        vllm_args = ("--tensor-parallel-size", str(tensor_parallel_size), *vllm_args)
    own_flags = [flag for param in ctx.command.params for flag in param.opts]
    launch = local.prepare(
        model,
        vllm_args=vllm_args,
        own_flags=own_flags,
        say=lambda line: click.echo(line, err=True),
        **options,
    )
    for word in filter(None, (launch.note, unchecked(vllm_args, installed()[1]))):
        click.echo(f"! {word}", err=True)

    def ready(record) -> None:
        bar.close()
        click.echo(
            f"✓ {record.name} answers at {record.url}. Its log: {record.log}. Ctrl-C stops it."
        )

    with Bar(f"Starting {launch.served}") as bar:
        if background:
            record = supervise.start(launch, bar)
            bar.close()
            click.echo(
                f"✓ {record.name} answers at {record.url}. Stop it: workshop stop {record.name}"
            )
        else:
            supervise.run(launch, bar, ready)
            click.echo(f"{launch.name} is stopped.")
