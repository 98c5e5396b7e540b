"""Notebook 03's helpers: the script part by part, a submission where there is SLURM, the failures
to diagnose.

Without SLURM the same calls show the plan and the recorded start, so that the notebook runs
everywhere.

>>> from workshop.course import nb03
>>> nb03.steps().rows[2]
('start_engine', 'srun: one vLLM on every node; each checks GPUs, memory, disk and model before loading')
>>> nb03.moments(nb03.recorded_text("70b"))[-1].kv_cache_tokens       # what that start's log says
1229264
"""

import re
import shlex
from functools import cache

import httpx
import ipywidgets as widgets
from IPython.display import display

from workshop.course import recorded_data
from workshop.course.exercise_sets.e03_server import CAUSES
from workshop.course.tables import WORDS, Table
from workshop.course.widgets.controls import View
from workshop.course.widgets.loading.view import LoadingView, moments, recorded_text
from workshop.course.widgets.server.view import status
from workshop.errors import BadInput, WorkshopError
from workshop.servers import records
from workshop.servers.local import TEACHING_FOLDER
from workshop.servers.programs import ask
from workshop.servers.records import ServerRecord
from workshop.servers.slurm import status as slurm_status
from workshop.servers.slurm import submit as slurm
from workshop.vllm_package import installed, is_cpu

__all__ = [
    "CAUSES",
    "FAILURES",
    "body",
    "by_hand",
    "directives",
    "grep",
    "hand_started",
    "moments",
    "record",
    "recorded_text",
    "steps",
    "submission",
    "submit",
    "tail",
    "watch",
    "where",
]

DIRECTIVES = WORDS["directives"]
STEPS = WORDS["steps"]
FAILURES = WORDS["failures"]
HAND_PORT = 8123  # of the server that a learner starts by hand
HAND_KV_BYTES = 64 * 2**20
NOISE = re.compile(r"ulimit|FutureWarning|UserWarning|nanobind|leaked|warnings\.warn")


@cache
def available() -> bool:
    return ask("sinfo", "--noheader", within_s=10).code == 0


def where() -> str:
    """Return one sentence: on a cluster or not, and what that means for this notebook."""
    starts = "the starts of 70B and 405B are recorded ones."
    if not available():
        return (
            "No SLURM answers here: submit() shows what it would do, "
            f"the server is the one of notebook 00, and {starts}"
        )
    shared = _class_server()
    if shared:
        return (
            f"A SLURM cluster answers here, and your class shares the server {shared!r}: "
            f"submit() starts no job, and {starts}"
        )
    return (
        "A SLURM cluster answers here: submit() below starts a real job (settings: slurm/site.sh)."
    )


def by_hand() -> str:
    """Return the line that starts the teaching model in a terminal, in vLLM's own words.

    The CPU build's `vllm` command does not find its package by its name; our module starts the same
    program.
    """
    command = ["vllm"]
    if is_cpu(*installed()):
        command = ["python", "-m", "workshop.servers.vllm_main"]
    command += ["serve", str(TEACHING_FOLDER), "--host", "127.0.0.1", "--port", str(HAND_PORT)]
    command += ["--enforce-eager", "--kv-cache-memory-bytes", str(HAND_KV_BYTES)]
    return shlex.join(command)


def hand_started(port: int = HAND_PORT) -> str:
    """Return in one sentence whether the server that was started by hand answers on this machine's
    port.
    """
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=5)
        model = answer.json()["data"][0]
    except (httpx.HTTPError, ValueError, LookupError):
        return (
            f"Nothing answers on port {port} yet. "
            "Start the server, wait for its last line, then run this cell again."
        )
    longest = f"up to {model['max_model_len']:,} tokens per request"
    return f"✓ Your server answers on port {port}: {model['id']}, {longest}."


def directives(name: str) -> Table:
    """Return the #SBATCH lines of a script, each with its meaning."""
    lines = re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?", _script(name), flags=re.MULTILINE)
    rows = [(f"--{key}", value or "", DIRECTIVES.get(key, "")) for key, value in lines]
    return Table(("option", "value", "meaning"), rows)


def body(name: str) -> str:
    """Return the script without its comments on top and its #SBATCH lines: what bash runs."""
    text = _script(name)
    return text[text.index("# The job runs a copy") :].rstrip()


def steps() -> Table:
    """Return the five steps of every script, and what each does."""
    return Table(("step", "what it does"), list(STEPS.items()))


def _script(name: str) -> str:
    path = slurm.scripts_folder() / f"{name}.sbatch"
    if not path.is_file():
        names = sorted(script.stem for script in path.parent.glob("*.sbatch"))
        raise BadInput(f"There is no script {name!r}.", f"There are: {', '.join(names)}.")
    return path.read_text(encoding="utf-8")


def submission(name: str, **options) -> Table:
    """Return what `workshop slurm submit NAME --dry-run` says: the plan's reasons, and the command."""
    planned = slurm.prepare(slurm.Request(name, **options))
    rows = [("plan", reason) for reason in planned.reasons]
    rows += [("advice", advice) for advice in planned.advice]
    rows.append(("command", planned.command))
    return Table(("", "what and why"), rows)


def submit(name: str, **options) -> str:
    """Submit where there is SLURM, once; return the job's number, or 'recorded' where there is
    none.

    In a class that shares a server it is 'recorded', too: thirty learners are not to start thirty
    of them.
    """
    if not available():
        return "recorded"
    running = []
    for record in records.own():
        if record.where == "slurm" and record.state != "failed" and not record.in_doubt:
            running.append(record)
    if running:
        return str(running[-1].job_id)  # running the cell again must not cost four more GPUs
    if _class_server():
        return "recorded"
    return slurm.submit(slurm.prepare(slurm.Request(name, **options)))


def _class_server() -> str:
    """Return the name of a server that is shared with this learner; '' if there is none."""
    for record in records.shared():
        if record.state != "failed":
            return record.name
    return ""


def watch(job: str, name: str = "70b"):
    """Follow a job until its server is ready (a WorkshopError says why it ended before); a recorded
    start without a job.
    """
    if job == "recorded":
        return LoadingView(name)
    shown = widgets.HTML()
    display(View(shown))
    now = slurm_status.follow(
        job, lambda progress: shown.set_trait("value", status(None, progress)), print
    )
    if now.server != "ready":
        raise WorkshopError(
            f"Job {job} ended: {now.error or now.state}", now.remedy or f"Its words: {now.output}"
        )
    return Table(("", ""), [("server", now.url), ("node", now.nodes), ("log", now.output)])


def record(server: ServerRecord) -> Table:
    """Return a server's record without its key, field by field."""
    rows = []
    for key, value in server.public().items():
        if value not in (None, ""):
            rows.append((key, str(value)))
    return Table(("field", "value"), rows)


def tail(letter: str, lines: int = 5) -> Table:
    """Return the last lines of one of the five failed starts, as `tail error_<job>.out` shows them."""
    return _matching(letter, re.compile(""), lines)


def grep(letter: str, pattern: str) -> Table:
    """Return the lines of a failed start that match a regular expression, as `grep -n PATTERN`
    does.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise BadInput(
            f"{pattern!r} is no regular expression: {error}.", "A plain word is one: 'Error'."
        ) from None
    return _matching(letter, compiled)


def _matching(letter: str, pattern: re.Pattern, last: int = 0) -> Table:
    if letter not in FAILURES:
        raise BadInput(f"There is no failure {letter!r}.", f"There are: {', '.join(FAILURES)}.")
    text = (recorded_data.DATA / "logs" / "failures" / FAILURES[letter]).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not NOISE.search(line)]
    rows = []
    for number, line in enumerate(lines, 1):
        if pattern.search(line):
            rows.append((str(number), line[:220]))
    rows = rows[-last:] or [("–", "no line matches")]
    return Table(("line", f"log {letter}, {len(lines)} lines"), rows, ["muted"] * len(rows))
