"""Asks a server the questions of a task with lm-evaluation-harness, and reads the answers.

`lm-eval` runs in a process of its own, against the OpenAI-compatible address. It writes a line for
each question (`samples_TASK_….jsonl`), which `read` returns. `compare` sets two such runs side by
side.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workshop import python_process, this_package
from workshop.errors import BadInput, WorkshopError
from workshop.measure import paired
from workshop.servers.records.record_file import ServerRecord

TASKS = this_package.DATA / "evaluation"
TEACHING_TASK = "teaching_places"
SAMPLES = "samples_*.jsonl"
INSTALL = 'Install it: pip install "lm-eval[api]". The extra `eval` of this package has it too.'


@dataclass(frozen=True)
class TaskAnswer:
    """One question and what came of it. right: 0 or 1, as the task's judge decided."""

    prompt: str
    text: str
    right: int


@dataclass(frozen=True)
class Evaluation:
    """The answers of one server to one task. answers: by the hash of the question."""

    task: str
    metric: str
    answers: dict[str, TaskAnswer]

    @property
    def right(self) -> int:
        """The number of right answers."""
        return sum(answer.right for answer in self.answers.values())


def installed() -> bool:
    """Return whether lm-evaluation-harness can be run here."""
    return importlib.util.find_spec("lm_eval") is not None


def command(
    server: ServerRecord,
    model: str,
    folder: Path,
    *,
    tasks: str = TEACHING_TASK,
    task_folder: Path = TASKS,
    concurrency: int = 16,
    limit: int | None = None,
    chat: bool = False,
    more: Sequence[str] = (),
) -> list[str]:
    """Return the arguments of `lm-eval run`, without the key, which it reads from OPENAI_API_KEY.

    Args:
        tasks: names of lm-eval's tasks, with commas between them.
        task_folder: where lm-eval looks for tasks of your own.
        limit: how many questions of each task; all by default.
        chat: send each question as a user's message.
        more: further flags of lm-eval, as they are.
    """
    endpoint = "chat/completions" if chat else "completions"
    model_arguments = {
        "model": model,
        "base_url": f"{server.url.rstrip('/')}/{endpoint}",
        "num_concurrent": str(concurrency),
        "max_retries": "2",
        "tokenizer_backend": "None",
    }
    pairs = [f"{name}={value}" for name, value in model_arguments.items()]
    arguments = ["run", "--model", f"local-{endpoint.replace('/', '-')}"]
    arguments += ["--model_args", ",".join(pairs)]
    arguments += ["--tasks", tasks, "--include_path", str(task_folder)]
    arguments += ["--output_path", str(folder), "--log_samples"]
    if limit is not None:
        arguments += ["--limit", str(limit)]
    if chat:
        arguments.append("--apply_chat_template")
    return [*arguments, *more]


def run(server: ServerRecord, model: str, folder: Path, **options) -> Evaluation:
    """Ask the server all questions and return its answers; options: those of `command`.

    Raises:
        WorkshopError: lm-eval is not installed, or it failed; its last line says why.
    """
    if not installed():
        raise WorkshopError("lm-evaluation-harness (lm-eval) is not installed here.", INSTALL)
    arguments = command(server, model, folder, **options)
    changes = {"OPENAI_API_KEY": server.api_key or "none", "TOKENIZERS_PARALLELISM": "false"}
    if options.get("tasks", TEACHING_TASK) == TEACHING_TASK:
        changes["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run(
        python_process.command("lm_eval", *arguments),
        env=python_process.environment(changes),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        reason = python_process.last_line(done.stderr)
        raise WorkshopError(f"lm-eval failed: {reason}", f"Run it yourself: {shown(arguments)}")
    return read(folder)


def shown(arguments: Sequence[str]) -> str:
    """Return the command as a person types it."""
    return shlex.join(["lm-eval", *arguments])


def read(path: Path, metric: str | None = None) -> Evaluation:
    """Return lm-eval's answers from a file of samples, or the newest of a folder.

    Args:
        metric: which of the task's figures decides; by default its first.

    Raises:
        BadInput: there are none, or of several tasks, or the metric is not 0 or 1 for each
            question.
    """
    file = _samples_file(path)
    rows = _rows(file)
    task_metric = metric or _first_metric(path, rows[0])
    # A task may read each answer in several ways: the first counts.
    only_filter = rows[0].get("filter")
    answers: dict[str, TaskAnswer] = {}
    for row in rows:
        if row.get("filter") == only_filter:
            answers[str(row.get("doc_hash", row.get("doc_id")))] = _answer(path, row, task_metric)
    return Evaluation(_task_name(file), task_metric, answers)


def compare(before: Evaluation, after: Evaluation) -> paired.Comparison:
    """Return what changed on the questions that both have answered.

    Raises BadInput: the two have no question in common.
    """
    common = [key for key in before.answers if key in after.answers]
    if not common:
        raise BadInput(
            f"The runs of {before.task} and {after.task} have no question in common.",
            "Compare two runs of the same task.",
        )
    right_before = []
    right_after = []
    for key in common:
        right_before.append(before.answers[key].right)
        right_after.append(after.answers[key].right)
    return paired.compare(right_before, right_after)


def changed(before: Evaluation, after: Evaluation) -> list[tuple[TaskAnswer, TaskAnswer]]:
    """Return the answers that one run has right and the other wrong, in pairs."""
    pairs = []
    for key, answer in before.answers.items():
        other = after.answers.get(key)
        if other is not None and other.right != answer.right:
            pairs.append((answer, other))
    return pairs


def has_samples(path: Path) -> bool:
    """Return whether lm-eval has kept answers there."""
    return path.is_file() or any(path.rglob(SAMPLES))


def _samples_file(path: Path) -> Path:
    """Return the newest file of samples below a folder, or the file itself."""
    if path.is_file():
        return path
    files = sorted(path.rglob(SAMPLES), key=lambda file: file.stat().st_mtime)
    if not files:
        raise BadInput(
            f"{path} holds no answers of lm-eval ({SAMPLES}).",
            "Run `workshop evaluate FOLDER`, or lm-eval with --output_path FOLDER --log_samples.",
        )
    tasks = sorted({_task_name(file) for file in files})
    if len(tasks) > 1:
        raise BadInput(
            f"{path} holds answers to several tasks: {', '.join(tasks)}.",
            "Name one of its files.",
        )
    return files[-1]


def _task_name(file: Path) -> str:
    """Return the task of samples_TASK_2026-11-25T16-30-00.123456.jsonl."""
    return file.stem.removeprefix("samples_").rpartition("_")[0]


def _rows(file: Path) -> list[dict]:
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise BadInput(
                f"Line {number} of {file} is not a sample of lm-eval.", "Evaluate again."
            )
        rows.append(row)
    if not rows:
        raise BadInput(f"{file} is empty.", "Evaluate again.")
    return rows


def _first_metric(path: Path, row: dict) -> str:
    metrics = row.get("metrics")
    if not isinstance(metrics, list) or not metrics:
        raise BadInput(f"The samples of {path} name no metric.", "Use lm-eval 0.4.5 or newer.")
    return str(metrics[0])


def _answer(path: Path, row: dict, metric: str) -> TaskAnswer:
    value = row.get(metric)
    if value not in (0, 1):
        raise BadInput(
            f"{metric!r} of {path} is {value!r}: it does not say right or wrong.",
            f"Choose another with --metric. There are: {', '.join(map(str, row.get('metrics', [])))}.",
        )
    return TaskAnswer(_first_text(row.get("arguments")), _first_text(row.get("resps")), int(value))


def _first_text(value: object) -> str:
    """Return the first text in lm-eval's nested lists and dicts, such as [["an answer"]]."""
    while isinstance(value, (list, tuple, dict)) and value:
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return value if isinstance(value, str) else ""
