from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workshop.cli.say import json_option, say, say_json, waiting
from workshop.cli.use.ask import connect
from workshop.errors import BadInput

if TYPE_CHECKING:
    from workshop.measure.evaluation import Evaluation
    from workshop.measure.paired import Comparison

SHOWN = 5  # questions that got worse, in the text
CHANCE = 0.05  # a p-value below it is called a difference


@click.command
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    help="An earlier OUTPUT: compares question by question, with an exact test.",
)
@click.option("--name", help="Name of a server that `workshop servers` lists, where several run.")
@click.option("--url", help="Server, ending in /v1. Key: WORKSHOP_API_KEY.")
@click.option("--model", help="Name that requests give; by default the server's.")
@click.option(
    "--tasks",
    default="teaching_places",
    show_default=True,
    help="A task of lm-eval, such as gsm8k. Most of its tasks are downloaded from the Hub.",
)
@click.option(
    "--task-folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where your own tasks lie (YAML).",
)
@click.option("--chat", is_flag=True, help="Send each question as a user's message.")
@click.option("--limit", type=click.IntRange(min=1), help="Ask only the first questions.")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Requests at once.",
)
@click.option("--metric", help="Figure of the task that decides; by default its first.")
@click.option("--lm-eval", "more", default="", help="Further flags: '--num_fewshot 5'.")
@json_option("{task, metric, questions, right, comparison, changed}")
def command(
    output: Path,
    against: Path | None,
    name: str | None,
    url: str | None,
    model: str | None,
    task_folder: Path | None,
    metric: str | None,
    more: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Ask a server the questions of a task with lm-evaluation-harness.

    Is it still as good as before?

    OUTPUT is a new folder for the answers. If it holds answers already, they are read and nobody is
    asked.

    \b
      workshop evaluate before
      workshop evaluate after --name quantized --against before
    """
    from workshop.measure import evaluation

    try:
        further = shlex.split(more)
    except ValueError as error:
        raise BadInput(
            f"--lm-eval {more!r} cannot be read: {error}.", "Close its quotes."
        ) from None
    if not evaluation.has_samples(output):
        server = connect(name, url)
        with waiting(f"asking {server.url} …"):
            evaluation.run(
                server.record,
                model or server.model,
                output,
                task_folder=task_folder or evaluation.TASKS,
                more=further,
                **options,
            )
    after = evaluation.read(output, metric)
    before = evaluation.read(against, metric) if against else None
    if as_json:
        say_json(_data(after, before))
    else:
        say(as_text(after, before))


def _data(after: Evaluation, before: Evaluation | None) -> dict[str, Any]:
    """Return what --json prints; comparison is None without --against."""
    from workshop.measure import evaluation

    data: dict[str, Any] = {
        "task": after.task,
        "metric": after.metric,
        "questions": len(after.answers),
        "right": after.right,
        "comparison": None,
        "changed": [],
    }
    if before:
        data["comparison"] = evaluation.compare(before, after).to_dict()
        for old, new in evaluation.changed(before, after):
            data["changed"].append(
                {
                    "prompt": new.prompt,
                    "before": old.text,
                    "after": new.text,
                    "right_after": bool(new.right),
                }
            )
    return data


def as_text(after: Evaluation, before: Evaluation | None) -> str:
    """Return the result as lines: what is right, and with an earlier run what changed."""
    from workshop.measure import evaluation

    questions = len(after.answers)
    lines = [f"{after.task}: {after.right} of {questions} right ({after.right / questions:.1%})"]
    if before is None:
        return "\n".join(lines)
    comparison = evaluation.compare(before, after)
    low, high = comparison.interval
    lines += [
        f"before: {comparison.right_before} of the same {comparison.questions} questions",
        f"{comparison.worse} got worse, {comparison.better} got better",
        f"difference {comparison.difference:+.1%} (95 %: {low:+.1%} to {high:+.1%})",
        f"exact test (McNemar): p = {comparison.p_value:.2g}",
        verdict(comparison),
    ]
    worse = [pair for pair in evaluation.changed(before, after) if not pair[1].right]
    for old, new in worse[:SHOWN]:
        lines.append(f"  {new.prompt}{old.text.rstrip()}")
        lines.append(f"  → {new.text.strip()}")
    if len(worse) > SHOWN:
        lines.append(f"  … and {len(worse) - SHOWN} more: --json has all.")
    return "\n".join(lines)


def verdict(comparison: Comparison) -> str:
    """Return what the test allows one to say."""
    low, _ = comparison.interval
    if comparison.p_value < CHANCE:
        word = "worse" if comparison.worse > comparison.better else "better"
        return f"→ It is {word}: chance alone would rarely do this."
    return f"→ No difference is shown. It may still be up to {-low * 100:.1f} points worse."
