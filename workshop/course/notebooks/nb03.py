"""Notebook 03's helpers: plan, script and log of a start, and failures to diagnose.

Without SLURM the same calls show the plan and the recorded start, so that the notebook runs
everywhere.

>>> from workshop.course.notebooks import nb03
>>> "#SBATCH --gpus-per-node=1" in nb03.plain("llama-3.1-8b", gpu="h100", max_model_len=8192)
True
>>> nb03.timeline(nb03.START_8B, gpu="h100")
56 seconds: weights 5 s, compiling 19 s, profiling 7 s, warming up and graphs 25 s.
>>> nb03.moments(nb03.recorded_text("70b"))[-1].kv_cache_tokens       # what that start's log says
1229264
"""

import re
import shlex
import sys
import textwrap
from functools import cache
from pathlib import Path

import httpx
import ipywidgets as widgets
from inference_planner import load_gpu
from IPython.display import display

from workshop.course.drawing import chart
from workshop.course.drawing.tables import WORDS, Table
from workshop.course.exercises.sets.e03_server import CAUSES
from workshop.course.topics import recorded_data, starts
from workshop.course.widgets.controls import View
from workshop.course.widgets.loading.view import (
    RECORDED,
    LoadingView,
    moments,
    recorded_text,
    stages,
)
from workshop.course.widgets.server.view import status
from workshop.engine.log import read as read_log
from workshop.engine.log import text_of
from workshop.engine.log.lines import parse_line
from workshop.engine.planning import plan
from workshop.engine.reconcile.compare import reconcile
from workshop.errors import BadInput, WorkshopError
from workshop.home import home, private_folder
from workshop.servers import records
from workshop.servers.host.programs import run
from workshop.servers.local import TEACHING_FOLDER
from workshop.servers.records import ServerRecord
from workshop.servers.slurm import status as slurm_status
from workshop.servers.slurm.submit import submission as slurm
from workshop.servers.slurm.submit.plain import render
from workshop.vllm_package import installed, is_cpu

__all__ = [
    "CAUSES",
    "FAILURES",
    "LOGS",
    "START_8B",
    "TEACHING_FOLDER",
    "body",
    "by_hand",
    "compared",
    "directives",
    "grep",
    "hand_log",
    "hand_started",
    "log_lines",
    "moments",
    "plain",
    "prepare",
    "reconcile",
    "record",
    "recorded_text",
    "script_parts",
    "start_seconds",
    "submit",
    "suspects",
    "tail",
    "tails",
    "timeline",
    "watch",
    "where",
    "where_causes_stand",
]

DIRECTIVES = WORDS["directives"]
FAILURES = WORDS["failures"]
HAND_LOG = "by_hand.log"
HAND_PORT = 8123  # of the server that a learner starts by hand
HAND_PROMPT = "A server is a"
HAND_KV_BYTES = 64 * 2**20
LOGS = recorded_data.DATA / "logs"
START_8B = LOGS / "llama-3.1-8b_vllm-0.32.0_h100.log"  # of the story's model, on one H100
START_BY_HAND = LOGS / "teaching_model_by_hand.log"
LOG_LINES = (  # of a start: a pattern, and what the first line that matches it means
    (r"Using max model len", "The longest request that is allowed, in tokens."),
    (r"(Model loading|Loading weights) took", "The weights are in memory."),
    (r"torch\.compile took", "Code for this model and this GPU has been made."),
    (r"Available KV cache memory|for KV cache on node", "This memory is for the KV cache."),
    (r"KV cache size:", "This is how many tokens fit into it."),
    (r"init engine .* took", "The engine is ready."),
    (r"Application startup complete", "The server answers from now on."),
)
SCRIPT_PARTS = (  # what matters of the plain script: a pattern, and what its match says
    (r"#SBATCH --nodes=\d+", "one machine of the cluster"),
    (r"#SBATCH --gpus-per-node=\d+", "with one GPU: the plan says so"),
    (r"#SBATCH --mem=\w+", "and this much main memory, beside the GPU's own"),
    (r"#SBATCH --time=\S+", "the time that the job asks for"),
    (r"conda activate \S+", "makes “vllm” known; each site has its own"),
    (r"export MODEL=\S+", "the model"),
    (r"VLLM_API_KEY=\$\(.*\)", "the key that clients send; only you may read its file"),
    (r"^srun", "runs the server on each node of the job"),
    (r"vllm serve \S+", "starts the server"),
    (r"--max-model-len \d+", "the longest request: prompt and answer, in tokens"),
)
LOG_LINE = re.compile(
    r"(?:(?P<date>\d\d-\d\d) (?P<clock>\d\d:\d\d:\d\d) \[\S+\] |INFO: +)(?P<text>.*)"
)
QUANTITIES = (  # rows of a reconciliation, in the order of starts.Memory
    "weights per GPU",
    "overhead per GPU",
    "available KV cache per GPU",
    "KV cache size",
)
RECORD_FIELDS = ("url", "api_key", "host", "log", "state")  # those that a learner needs
NOISE = re.compile(r"ulimit|FutureWarning|UserWarning|nanobind|leaked|warnings\.warn")


@cache
def available() -> bool:
    return run("sinfo", "--noheader", within_s=10).code == 0


def where() -> str:
    """Return whether this is a cluster, and what that means for this notebook."""
    if not available():
        return "No SLURM answers here: nothing is submitted,\nand the starts are recorded ones."
    shared = _class_server()
    if shared:
        return (
            f"A SLURM cluster answers here, and your class shares\nthe server {shared!r}: "
            "submit() starts no job,\nand the starts are recorded ones."
        )
    return "A SLURM cluster answers here: submit() below starts a real job."


def by_hand() -> str:
    """Return the line that starts the teaching model in a terminal, in vLLM's own words.

    The CPU build's `vllm` command does not find its package by its name; our module starts the same
    program. `tee -i` shows the log and writes it into a file; Ctrl+C stops vLLM alone.
    """
    command = ["vllm"]
    if is_cpu(*installed()):
        # a terminal of another JupyterLab may have another `python`
        command = [sys.executable, "-m", "workshop.servers.vllm_main"]
    command += ["serve", str(TEACHING_FOLDER), "--host", "127.0.0.1", "--port", str(HAND_PORT)]
    command += ["--enforce-eager", "--kv-cache-memory-bytes", str(HAND_KV_BYTES)]
    log = private_folder("logs") / HAND_LOG
    return f"{shlex.join(command)} 2>&1 | tee -i {shlex.quote(str(log))}"


def hand_log() -> Path:
    """Return the log of the start by hand; a recorded one as long as the learner has none."""
    own_log = home() / "logs" / HAND_LOG
    if own_log.is_file() and "KV cache size" in text_of(own_log):
        return own_log
    return START_BY_HAND


def hand_started(port: int = HAND_PORT) -> str:
    """Return whether the server that was started by hand answers on this machine's port, and what."""
    url = f"http://127.0.0.1:{port}/v1"
    try:
        model = httpx.get(f"{url}/models", timeout=5).json()["data"][0]["id"]
        request = {"model": model, "prompt": HAND_PROMPT, "max_tokens": 20, "temperature": 0}
        answer = httpx.post(f"{url}/completions", json=request, timeout=60).json()
        line = answer["choices"][0]["text"].split("\n")[0]
    except (httpx.HTTPError, ValueError, LookupError):
        return (
            f"Nothing answers on port {port} yet. "
            "Wait for\n“Application startup complete.” and run this cell again,\n"
            "or go on with the recorded start."
        )
    return f"✓ Your server answers on port {port}:\n{HAND_PROMPT}{line} …"


def directives(name: str) -> Table:
    """Return the #SBATCH lines of a script, each with its meaning."""
    lines = re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?", _script(name), flags=re.MULTILINE)
    rows = [(f"--{key}", value or "", DIRECTIVES.get(key, "")) for key, value in lines]
    return Table(("option", "value", "meaning"), rows)


def body(name: str) -> str:
    """Return the script without its comments on top and its #SBATCH lines: what bash runs."""
    text = _script(name)
    return text[text.index("# The job runs a copy") :].rstrip()


def _script(name: str) -> str:
    path = slurm.scripts_folder() / f"{name}.sbatch"
    if not path.is_file():
        names = sorted(script.stem for script in path.parent.glob("*.sbatch"))
        raise BadInput(f"There is no script {name!r}.", f"There are: {', '.join(names)}.")
    return path.read_text(encoding="utf-8")


def plain(name: str, **settings) -> str:
    """Return slurm/plain.sbatch, filled in for the plan of a model with these settings."""
    return render(plan(name, **settings))


def script_parts(script: str) -> Table:
    """Return the parts of the plain script that matter, each with its meaning."""
    rows = []
    for pattern, meaning in SCRIPT_PARTS:
        match = re.search(pattern, script, re.MULTILINE)
        if match:
            rows.append((match[0], meaning))
    return Table(("in the script", "in plain words"), rows)


def prepare(name: str, **options) -> slurm.Submission:
    """Return what `workshop slurm submit NAME` would submit: its plan, its script, its options."""
    return slurm.prepare(slurm.SubmitRequest(name, **options))


def log_lines(log: Path, *only: str) -> Table:
    """Return the few lines of a log that tell how a start went, each with its meaning.

    Args:
        log: what vLLM has printed.
        only: of these lines those with one of these texts.
    """
    lines = text_of(log).splitlines()
    rows = []
    for pattern, meaning in LOG_LINES:
        for line in lines:
            match = LOG_LINE.search(line)
            if match and re.search(pattern, match["text"]):
                if not only or any(text in line for text in only):
                    rows.append((match["clock"] or "", match["text"][:120], meaning))
                break
    return Table(("time", log.name, "in plain words"), rows)


def start_seconds(log: Path) -> float:
    """Return the seconds from the first dated line of a log to the one that says “ready”."""
    return stages(text_of(log))[-1].end_s


def timeline(log: Path, gpu: str) -> chart.Picture:
    """Draw the seconds of a start by its log, stage by stage, and how the memory of a GPU fills.

    gpu: catalog name.
    """
    facts = read_log(log)
    sizes = {"weights": facts.weights_gib or 0.0, "KV cache": facts.available_kv_gib or 0.0}
    drawn = []
    for stage in stages(text_of(log)):
        gib = sizes.get(stage.filled_with, 0.0)
        drawn.append(
            starts.StartStage(stage.name, stage.end_s - stage.begin_s, stage.filled_with, gib)
        )
    return starts.timeline(drawn, load_gpu(gpu).engine_gib)


def compared(log: Path, gpu: str) -> chart.Picture:
    """Draw the memory of one GPU twice: as the plan has it, and as the log reports it.

    gpu: catalog name.
    """
    rows = {row.quantity: row for row in reconcile(log, gpu=gpu).rows}
    planned = [rows[quantity].predicted or 0 for quantity in QUANTITIES]
    reported = [rows[quantity].actual or 0 for quantity in QUANTITIES]
    memories = {"the plan": starts.StartMemory(*planned), "the log": starts.StartMemory(*reported)}
    return starts.beside(memories, load_gpu(gpu).engine_gib)


def submit(name: str, **options) -> str:
    """Submit the job once, and return its number.

    Without SLURM nothing is submitted, and the number is "recorded".

    In a class that shares a server it is 'recorded', too: thirty learners are not to start thirty
    of them.
    """
    if not available():
        return "recorded"
    running = []
    for record in (*records.own(), *records.waiting()):
        if record.where == "slurm" and record.state != "failed" and not record.in_doubt:
            running.append(record)
    if running:
        return str(running[-1].job_id)  # running the cell again must not cost four more GPUs
    if _class_server():
        return "recorded"
    return slurm.submit(prepare(name, **options)).job_id


def _class_server() -> str:
    """Return the name of a server that is shared with this learner; '' if there is none."""
    for record in records.shared():
        if record.state != "failed":
            return record.name
    return ""


def watch(job: str, name: str = "70b"):
    """Follow a job until its server is ready (a WorkshopError says why it ended before).

    Without a job a recorded start is shown, to play.
    """
    if job == "recorded":
        return LoadingView(name.removeprefix("llama-3.1-"))
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
    """Return the fields of a server's record that a learner needs; of its key, that there is one."""
    fields = {**server.public(), "api_key": "(hidden)"}
    rows = [(key, fields[key]) for key in RECORD_FIELDS if fields[key]]
    return Table(("field", "value"), rows)


def tail(letter: str, lines: int = 5) -> Table:
    """Return the last lines of one of the five failed starts, shown as those of `grep`."""
    return _matching(letter, re.compile(""), lines)


def tails(lines: int = 2) -> Table:
    """Return the last lines of all five failed starts in one table."""
    rows = []
    for letter in FAILURES:
        rows += [(letter, *row) for row in tail(letter, lines).rows]
    return Table(("log", "line", "text"), rows, ["muted"] * len(rows))


def grep(name: str, pattern: str) -> Table:
    """Return the lines of a log that match a regular expression, as `grep -n PATTERN` does.

    Those of a failed start are shown as the reader of logs takes them: without process, level, time
    and source file in front, so that the message has room.

    name: a failed start (A to E), or a recorded one (70b).
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise BadInput(
            f"{pattern!r} is no regular expression: {error}.", "A plain word is one: 'Error'."
        ) from None
    return _matching(name, compiled)


def suspects() -> Table:
    """Return the causes of which one failed each start."""
    return Table(("word", "cause"), list(CAUSES.items()))


def where_causes_stand() -> chart.Picture:
    """Draw the five failed starts: where each log names its cause, and where it ends."""
    logs = {}
    for letter, name in FAILURES.items():
        error = read_log(LOGS / "failures" / name).error
        lines = _lines(letter)
        for number, line in enumerate(lines, 1):
            if error and error.line[:60] in line:
                logs[letter] = starts.FailedLog(len(lines), number)
                break
    return starts.causes(logs)


def _lines(name: str) -> list[str]:
    """Return the lines of a failed or a recorded start, without those that say nothing."""
    if name in FAILURES:
        text = (LOGS / "failures" / FAILURES[name]).read_text(encoding="utf-8")
    elif name in RECORDED:
        text = recorded_text(name)
    else:
        names = ", ".join([*FAILURES, *RECORDED])
        raise BadInput(f"There is no log {name!r}.", f"There are: {names}.")
    return [line for line in text.splitlines() if line.strip() and not NOISE.search(line)]


def _matching(name: str, pattern: re.Pattern, last: int = 0) -> Table:
    lines = _lines(name)
    rows = []
    for number, line in enumerate(lines, 1):
        if pattern.search(line):
            if name in FAILURES:
                line = parse_line(line).text
            rows.append((str(number), textwrap.shorten(line, 220, placeholder=" …")))
    rows = rows[-last:] or [("–", "no line matches")]
    return Table(("line", f"log {name}, {len(lines)} lines"), rows, ["muted"] * len(rows))
