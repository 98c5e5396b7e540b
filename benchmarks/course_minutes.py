"""Compute how long the notebooks take a slow reader: from what is in them, and from the clock where they wait.

python benchmarks/course_minutes.py                 # the table, and where a stated time differs
python benchmarks/course_minutes.py --run           # measure waiting and outputs again (starts a server, about 20 minutes)
python benchmarks/course_minutes.py --write         # write the minutes into the notebooks' heads and the README

Words are read at 180 a minute. Solutions and what is folded are not counted, but for "What you should see"; what stands
below "Deeper" is optional, and not counted either. A line of code takes 5 seconds, a line of output 2, a picture 30,
one that plays for 4 to 18 seconds (GpuField, LoadingView) 45, a widget 120. A prediction takes 20 seconds, a concept question 30
beside its words, an exercise three minutes. Waiting is the time that the cells ran, measured with vLLM on two CPU cores;
a notebook that is not in the file of measured times counts none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from workshop.course.exercises import checking

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
MEASURED = ROOT / "workshop" / "data" / "course_minutes.json"
WORDS_A_MINUTE = 180
CODE_LINE_S, OUTPUT_LINE_S, PICTURE_S, PLAYED_S, WIDGET_S = 5, 2, 30, 45, 120
PREDICTION_S, QUESTION_S, EXERCISE_S = 20, 30, 180
MOST_LINES = 12  # of one output that anybody reads
# What is folded is left out, but for what everybody opens after a cell.
FOLDED = re.compile(r"<details><summary>(?!What you should see).*?</details>", re.DOTALL)
TAG = re.compile(r"<[^>]+>|\]\([^)]*\)|[#*`|$]")
CHECK = re.compile(r'check\("([\w.]+)"')
HEAD = re.compile(r"(?m)^(\d+)( minutes · needs: )")
ROUND_TO = 5  # minutes that are stated


@dataclass(frozen=True)
class Times:
    """The seconds that a notebook takes, by what takes them."""

    reading: float
    code: float
    answers: float  # predictions, questions, exercises
    outputs: float
    waiting: float

    @property
    def minutes(self) -> int:
        """All together, rounded as notebooks state it."""
        seconds = self.reading + self.code + self.answers + self.outputs + self.waiting
        return max(ROUND_TO, ROUND_TO * round(seconds / 60 / ROUND_TO))


def word_count(text: str) -> int:
    """Return how many words a reader sees: no tags, targets of links or signs of markup."""
    visible = TAG.sub(" ", FOLDED.sub(" ", text))
    return len([word for word in visible.split() if re.search(r"\w", word)])


def cells(name: str) -> list[dict]:
    """Return the cells of a notebook of the course without those under a collapsed heading ("Deeper")."""
    every = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    shown, collapsed = [], 0  # the level of the heading that hides what follows
    for cell in every:
        heading = re.match(r"#+(?= )", "".join(cell["source"]))
        level = len(heading[0]) if heading and cell["cell_type"] == "markdown" else 0
        if collapsed and not 0 < level <= collapsed:
            continue
        collapsed = level if cell["metadata"].get("jp-MarkdownHeadingCollapsed") else 0
        shown.append(cell)
    return shown


def is_hidden(cell: dict) -> bool:
    """Return whether a cell's code is collapsed."""
    return bool(cell["metadata"].get("jupyter", {}).get("source_hidden"))


def written(name: str) -> tuple[float, float, float]:
    """Return the seconds for reading, for code and for answers, from the notebook and its exercises."""
    reading = code = answers = 0.0
    every = checking.all_exercises()
    for cell in cells(name):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            reading += 60 * word_count(text) / WORDS_A_MINUTE
            continue
        if is_hidden(cell):
            continue
        lines = [line for line in text.splitlines() if line.strip()]
        code += CODE_LINE_S * len(lines)
        answers += PREDICTION_S * len(re.findall(r'predict\("[\w.]+", \(', text))
        for key in set(CHECK.findall(text)):
            answers += _answer_s(every[key])
    return reading, code, answers


def _answer_s(exercise: checking.Exercise) -> float:
    if not exercise.options:
        return EXERCISE_S
    count = word_count(exercise.title)
    for text, why in exercise.options.values():
        count += word_count(text) + word_count(why) / len(exercise.options)
    return QUESTION_S + 60 * count / WORDS_A_MINUTE


def measured() -> dict[str, dict[str, float]]:
    """Return the seconds of outputs and of waiting that were measured, by notebook."""
    if not MEASURED.is_file():
        return {}
    return json.loads(MEASURED.read_text(encoding="utf-8"))["notebooks"]


def times(name: str) -> Times:
    """Return what a notebook takes."""
    reading, code, answers = written(name)
    ran = measured().get(name, {"outputs": 0.0, "waiting": 0.0})
    return Times(reading, code, answers, ran["outputs"], ran["waiting"])


def names() -> list[str]:
    return sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


def stated(name: str) -> int:
    """Return the minutes that the head of a notebook states."""
    match = HEAD.search("".join(cells(name)[0]["source"]))
    if match is None:
        raise SystemExit(f"The head of {name} states no minutes.")
    return int(match[1])


def run(chosen: Iterable[str]) -> None:
    """Run notebooks beside a server, and keep the time of their cells and the size of their outputs."""
    import tempfile

    from workshop.servers import local
    from workshop.servers.local import supervise

    with tempfile.TemporaryDirectory(prefix="course-minutes-") as folder:
        os.environ["WORKSHOP_HOME"] = folder
        os.environ["WORKSHOP_STRICT"] = "1"
        server = supervise.start(local.prepare())
        try:
            for name in chosen:
                keep(name, _run_one(name))
        finally:
            supervise.stop(server.name)


def keep(name: str, seconds: dict[str, float]) -> None:
    """Write what was measured of one notebook into the file."""
    notebooks = measured() | {name: seconds}
    about = "Seconds; vLLM 0.32.0 on two CPU cores. Written by benchmarks/course_minutes.py --run."
    ordered = {key: notebooks[key] for key in sorted(notebooks)}
    content = {"about": about, "date": date.today().isoformat(), "notebooks": ordered}
    MEASURED.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _run_one(name: str) -> dict[str, float]:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    core = {cell["id"] for cell in cells(name)}  # without "Deeper", which is run, but not counted
    began: dict[int, float] = {}
    waiting = outputs = 0.0

    def starts(cell, cell_index: int) -> None:
        began[cell_index] = time.monotonic()

    def ends(cell, cell_index: int, execute_reply: dict) -> None:
        nonlocal waiting
        # A solution that nobody opens takes no time.
        if cell.id in core and "solution" not in cell.metadata.get("tags", []):
            waiting += time.monotonic() - began[cell_index]

    client = NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        on_cell_execute=starts,
        on_cell_executed=ends,
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    )
    try:
        client.execute()
    except Exception as error:  # what a learner reads and waits for until then still counts
        print(f"{name} does not run to its end: {str(error).strip().splitlines()[-1][:200]}")
    for cell in notebook.cells:
        if cell.id not in core:
            continue
        # The buttons of a question or a prediction are counted as answers.
        if cell.cell_type == "code" and not re.search(
            r"\b(check|predict|course_map)\(", cell.source
        ):
            outputs += sum(_output_s(output) for output in cell.outputs)
    print(f"{name}: {waiting:.0f} s of waiting, {outputs:.0f} s of outputs", flush=True)
    return {"outputs": round(outputs), "waiting": round(waiting)}


def _output_s(output: dict) -> float:
    """Return the seconds that a reader gives to one output."""
    data = output.get("data", {})
    if "application/vnd.jupyter.widget-view+json" in data:
        if str(data.get("text/plain", "")).startswith(("GpuField(", "LoadingView(")):
            return PLAYED_S
        return WIDGET_S
    html = str(data.get("text/html", ""))
    if "<svg" in html or "image/png" in data:
        return PICTURE_S
    text = output.get("text") or data.get("text/plain", "")
    if "<table" in html:
        return OUTPUT_LINE_S * min(html.count("<tr"), MOST_LINES)
    if html:
        return 60 * min(word_count(html), 60) / WORDS_A_MINUTE
    return OUTPUT_LINE_S * min(len(text.splitlines()), MOST_LINES)


def write(chosen: Iterable[str]) -> None:
    """Write the computed minutes into heads and the README's table."""
    readme = ROOT / "README.md"
    table = readme.read_text(encoding="utf-8")
    for name in chosen:
        if name not in measured():
            raise SystemExit(f"{name} was never measured: first run it with --run {name}.")
        minutes = times(name).minutes
        path = NOTEBOOKS / f"{name}.ipynb"
        notebook = json.loads(path.read_text(encoding="utf-8"))
        head = "".join(notebook["cells"][0]["source"])
        renewed = HEAD.sub(rf"{minutes}\2", head, count=1)
        if renewed != head:
            notebook["cells"][0]["source"] = renewed.splitlines(keepends=True)
            text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
            path.write_text(text, encoding="utf-8")
        row = re.compile(rf"(?m)^(\| \[[^]]*\]\(notebooks/{name}\.ipynb\) \|.*\| )\d+( \|)$")
        table = row.sub(rf"\g<1>{minutes}\2", table)
    readme.write_text(table, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", action="store_true", help="measure waiting and outputs again")
    parser.add_argument("--write", action="store_true", help="write heads and the README's table")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("names", nargs="*", help="notebooks, such as 01_memory; by default all")
    options = parser.parse_args()
    chosen = options.names or names()
    if options.run:
        run(chosen)
    if options.write:
        write(chosen)
    if options.json:
        print(
            json.dumps(
                {name: asdict(times(name)) | {"minutes": times(name).minutes} for name in chosen}
            )
        )
        return 0
    print(f"{'notebook':<24}{'words':>7}{'code':>6}{'tasks':>7}{'output':>8}{'waiting':>9}{'minutes':>9}{'stated':>8}")  # fmt: skip
    for name in chosen:
        notebook_times = times(name)
        parts = (
            notebook_times.reading,
            notebook_times.code,
            notebook_times.answers,
            notebook_times.outputs,
            notebook_times.waiting,
        )
        columns = "".join(
            f"{part / 60:>{width}.0f}" for part, width in zip(parts, (7, 6, 7, 8, 9), strict=True)
        )
        print(f"{name:<24}{columns}{notebook_times.minutes:>9}{stated(name):>8}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
