from __future__ import annotations

import contextlib
import difflib
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from workshop.batch.keep.cut_answers import ENDED_IN_LENGTH, RETRY_FACTOR
from workshop.cli.say import Bar, Seconds, json_option, say, say_json
from workshop.cli.serve.serve import Forwarding
from workshop.errors import BadInput

if TYPE_CHECKING:
    from workshop.batch.progress import Progress, Summary
    from workshop.servers.progress import TaskProgress

# of people and of SLURM: the first lets it end in order
SIGNALS = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT
LINE_S = 10.0  # between lines where there is no terminal


def sampling_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each sampling parameter that has a kind.

    click lists the last one added first.
    """
    from workshop.client.sampling_settings import PARAMETERS

    for name, parameter in reversed(PARAMETERS.items()):
        if parameter.kind is not None:
            flag = "--" + name.replace("_", "-")
            option = click.option(flag, name, type=parameter.kind, help=parameter.help)
            function = option(function)
    return function


@click.command(cls=Forwarding, options_metavar="[OPTIONS]")
@click.argument("input", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "--url",
    multiple=True,
    help="Server, ending in /v1; more than once for several. By default the one that connect() finds. Key: WORKSHOP_API_KEY.",
)
@click.option("--name", help="Name of a server that `workshop servers` lists, where several run.")
@click.option("--model", help="Name that requests give; with --offline a folder or Hub id.")
@click.option(
    "--accept-model",
    multiple=True,
    help="Another name under which the server may answer, such as a proxy's; may be given more than once.",
)
@click.option(
    "--concurrency",
    type=int,
    help="Requests at once to each server; by default found from /metrics.",
)
@click.option("--samples", type=int, default=1, show_default=True, help="Answers to each prompt.")
@click.option(
    "--offline",
    is_flag=True,
    help="No server: vLLM's engine in this process. Other flags go to the engine, for example --tensor-parallel-size 4.",
)
@click.option(
    "--retry",
    type=click.Choice([ENDED_IN_LENGTH]),
    help=f"Answer rows again that ended in length, with {RETRY_FACTOR} times the tokens. Their answers stay until then.",
)
@click.option(
    "--trace", help="With --offline: write what the engine does to this file, one JSON line a step."
)
@click.option(
    "--skip-bad", is_flag=True, help="Leave malformed rows out instead of refusing the file."
)
@click.option("--column", help="Field or column that holds the prompts.")
@click.option(
    "--shard", help="Every so-many-th row only, such as 2/8: for job arrays; each has its OUTPUT."
)
@click.option(
    "--merge",
    is_flag=True,
    help="INPUT is a folder of such outputs: put them together into OUTPUT.",
)
@click.option("--chat", is_flag=True, help="Send plain prompts as a user's message.")
@click.option(
    "--stop", multiple=True, help="End an answer before this text; may be given more than once."
)
@click.option(
    "--sampling", "more", help="Any other sampling parameters, as JSON: '{\"ignore_eos\": true}'."
)
@sampling_options
@click.option(
    "--patience",
    type=Seconds(1),
    default=120.0,
    show_default=True,
    help="Seconds to wait for a server that is away, hangs, or refuses every request (429).",
)
@json_option("Print how it ended as JSON.")
@click.option(
    "--check", is_flag=True, help="Only read INPUT and what OUTPUT has, and say what is wrong."
)
@click.pass_context
def command(
    ctx: click.Context,
    input: Path,
    output: Path,
    merge: bool,
    as_json: bool,
    check: bool,
    **options,
) -> None:
    """Answer every prompt of INPUT exactly once, into OUTPUT.

    Run it again, and it goes on where it ended.

    INPUT: .json (an array of strings), .txt (a prompt a line), .jsonl (any fields, or OpenAI's
    batch format), .csv, .tsv or .parquet (--column); all but .parquet also with .gz behind it.
    OUTPUT: .jsonl (OpenAI's batch format) or .parquet. Beside it: OUTPUT.errors.jsonl (rows without
    an answer, and why) and OUTPUT.meta.json (what it came from).

    Exit codes: 0 every row is answered, 1 some are not, 2 wrong use, 75 interrupted (SIGTERM,
    SIGUSR1, Ctrl-C) with everything kept: run it again.
    """
    from workshop.servers.host.processes import on_signals
    from workshop.servers.progress import TaskProgress

    if merge:
        return _merge(input, output)
    with Bar(input.name, LINE_S, bare=True) as bar:
        bar(TaskProgress(0.0, "reading the input"))
        batch = _batch(ctx, input, output, report=lambda now: bar(_shown(now)), **options)
        if check:
            with batch.prepared():
                return
        # SLURM's word may come twice, or when the last row is answered: neither may end the program.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        with on_signals(SIGNALS, batch.stop):
            summary = batch.run()
    if as_json:
        say_json({**summary.to_dict(), "exit_code": summary.exit_code})
    else:
        _print_summary(summary)
    sys.exit(summary.exit_code)


def _print_summary(summary: Summary) -> None:
    """Print how a batch ended, and what to do about answers that were cut."""
    from workshop.batch.progress import EXIT_INTERRUPTED

    signs = {0: "✓", EXIT_INTERRUPTED: "…"}
    say(f"{signs.get(summary.exit_code, '✗')} {summary}.")
    if summary.exit_code == EXIT_INTERRUPTED:
        say("→ Run the same command again: it goes on.")
    elif summary.finish_reasons.get(ENDED_IN_LENGTH, 0) and not summary.full:
        say("→ Answers that ended in length are cut. The same command with --retry length")
        say(f"  answers them again with {RETRY_FACTOR} times the tokens.")


def _shown(now: Progress) -> TaskProgress:
    """Return the state of a batch as the terminal's bar shows it."""
    from workshop.batch.progress import summary_line
    from workshop.servers.progress import TaskProgress

    return TaskProgress(now.fraction, f"{now.done:,}/{now.rows:,} · {summary_line(now)}")


def _merge(folder: Path, output: Path) -> None:
    from workshop import batch as batch_package
    from workshop.batch.keep.paths import Paths, read_meta

    count = batch_package.merge(folder, output)
    paths = Paths(output)
    record = read_meta(paths) or {"input": {}}
    rows = record["input"].get("rows", count)
    without = ""
    if count < rows:
        without = f"; {rows - count:,} rows have none: see {paths.errors}"
    click.echo(f"✓ {count:,} answers are in {output}{without}.")


def _batch(
    ctx: click.Context,
    input: Path,
    output: Path,
    *,
    offline,
    url,
    name,
    accept_model,
    stop,
    more,
    patience,
    trace,
    **options,
):
    from workshop import batch as batch_package

    engine_args: tuple[str, ...] = ctx.obj or ()
    if engine_args and not offline:
        _refuse_unknown(ctx, engine_args[0])
    if offline and accept_model:
        raise BadInput(
            "--accept-model is about a server's answers, and --offline has no server.",
            "Leave it out.",
        )
    if offline and (url or name):
        flag = "--url" if url else "--name"
        raise BadInput(f"--offline needs no server, and {flag} names one.", "Give one of the two.")
    if trace and not offline:
        problem = "--trace is the engine's, and without --offline it is a server's."
        raise BadInput(problem, "workshop serve has --trace, too.")
    options |= more_sampling(more)
    if stop:
        options["stop"] = list(stop)
    if offline:
        return batch_package.OfflineBatch(
            input, output, engine_args=engine_args, trace=trace, **options
        )
    limits = batch_package.Limits(patience_s=patience)
    return batch_package.Batch(
        input, output, url=url, name=name, accept_model=accept_model, limits=limits, **options
    )


def _refuse_unknown(ctx: click.Context, flag: str) -> None:
    flags: list[str] = []
    for param in ctx.command.params:
        flags += param.opts
    near = difflib.get_close_matches(flag, flags, n=1)
    remedy = "`workshop batch --help` lists them; flags of the engine need --offline."
    if near:
        remedy = f"Did you mean {near[0]}?"
    raise BadInput(f"There is no flag {flag}.", remedy)


def more_sampling(text: str | None) -> dict:
    """Return the sampling parameters of --sampling. Raises BadInput: it is no JSON object."""
    with contextlib.suppress(ValueError):
        parameters = json.loads(text or "{}")
        if isinstance(parameters, dict):
            return parameters
    raise BadInput(f"--sampling {text!r} is no JSON object.", "Give for example '{\"top_k\": 5}'.")
