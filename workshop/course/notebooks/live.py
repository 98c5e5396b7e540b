"""Servers that a notebook starts on this machine.

Start and stop them, read their log and metrics, and send requests that are timed.

>>> from workshop import connect, live
>>> llm = connect()
>>> look = live.metrics.fetch(llm.url, llm.record.api_key)
>>> look.kv_cache_tokens > 10_000                    # places in its KV cache
True
>>> spans = live.timeline.ask(llm, ["Boston is a"] * 2, at_once=2, max_tokens=[4, 8])
>>> [span.tokens for span in spans]
[4, 8]
"""

import time
from pathlib import Path

import psutil
from inference_planner.catalog.gpus import GIB, MIB

from workshop.client.client import Client, connect
from workshop.course.drawing.tables import Table
from workshop.course.notebooks import extra_servers
from workshop.course.notebooks.extra_servers import stop
from workshop.course.topics import recorded_data, timeline
from workshop.engine import log, metrics, trace
from workshop.errors import WorkshopError
from workshop.home import private_folder
from workshop.servers import local, records
from workshop.servers.host import machine
from workshop.servers.local import TEACHING_FOLDER, supervise
from workshop.servers.records import ServerRecord

__all__ = [
    "TEACHING_FOLDER",
    "bring_back",
    "lab",
    "lab_trace",
    "log",
    "make_room",
    "metrics",
    "small_server",
    "start",
    "stop",
    "timeline",
    "trace",
    "workers",
]

LAB = "lab"
RECORDED_LAB = recorded_data.DATA / "traces" / "engine_lab.jsonl"  # of notebook 11, 2 cores
TRACED_WITHIN_S = 30.0  # a trace is written half a second late, on a busy machine later
SMALL = "small-kv"
# 10,240 tokens of the teaching model: one request of its whole length, and a little
SMALL_KV_CACHE_BYTES = 10 * MIB
# all four processes took 2.1 GiB (PSS) with TP 2 and 2.3 with PP 2: slack
NEEDED_BYTES = int(2.8 * GIB)
ROLES = {
    "EngineCore": "engine core: scheduler and block tables",
    "Worker": "worker: one rank's weights and KV cache",
}


def make_room(needed_bytes: int = NEEDED_BYTES) -> list[str]:
    """Stop this user's own teaching servers until two more ranks fit; return their names."""
    stopped = []
    for record in records.own():
        free_bytes = machine.memory_available_bytes()
        if free_bytes >= needed_bytes:
            break
        is_ready = record.where == "local" and record.state == "ready"
        if is_ready and record.model == local.TEACHING_MODEL:
            print(f"{free_bytes / GIB:.1f} GiB are free:", supervise.stop(record.name))
            stopped.append(record.name)
    free = f"{machine.memory_available_bytes() / GIB:.1f} GiB of memory are free"
    print(f"{free}; two ranks need about {needed_bytes / GIB:.1f} GiB.")
    return stopped


def bring_back(names: list[str]) -> None:
    """Start again what make_room stopped."""
    for name in names:
        if records.read(name) is None:
            supervise.start(local.prepare(name=name))
            print(f"{name} answers again.")


def start(name: str, *vllm_args: str, trace: Path | None = None) -> ServerRecord:
    """Start the teaching model under `name` with these flags, and print where it answers.

    See extra_servers.start.
    """
    record = extra_servers.start(name, *vllm_args, trace=trace)
    print(f"{name} answers at {record.url}; its log is {record.log}")
    return record


def workers(record: ServerRecord) -> Table:
    """Return the processes of a server: what each is, and its memory.

    Memory is the PSS, in which shared pages are divided among the processes that use them.
    """
    main = psutil.Process(record.pid)
    processes = [(main, "API server", "answers HTTP; no weights")]
    for process in main.children(recursive=True):
        name = process.name()
        for key, role in ROLES.items():
            if key in name:
                processes.append((process, name.removeprefix("VLLM::"), role))
    rows = []
    for process, name, role in processes:
        memory = process.memory_full_info()
        mib = getattr(memory, "pss", memory.rss) / MIB
        rows.append((name, str(process.pid), f"{mib:,.0f}", role))
    return Table(("process", "pid", "MiB", "what it is"), rows)


def small_server(kv_cache_bytes: int = SMALL_KV_CACHE_BYTES) -> Client:
    """Return a client of a server whose KV cache is small enough to see it fill.

    Without vLLM, return a client of the usual server.
    """
    if extra_servers.why_recorded():
        return connect()
    record = records.read(SMALL)
    if record is None or record.state != "ready":
        extra_servers.start(SMALL, "--kv-cache-memory-bytes", str(kv_cache_bytes))
    return connect(SMALL)


def lab(*vllm_args: str) -> Client | None:
    """Start a server with these flags and a trace; return a client of it.

    Return None without vLLM, or without memory for the server.
    """
    why = extra_servers.why_recorded(1)
    if why:
        print(f"{why}. What follows is recorded: the same requests to the same server.")
        return None
    stop(LAB)
    _trace_file().unlink(missing_ok=True)  # of the lab of another notebook
    return connect(start(LAB, *vllm_args, trace=_trace_file()).name)


def lab_trace(lab: Client | None) -> Path:
    """Return the lab's trace once all answers so far are in it; of None the recorded one."""
    if lab is None:
        return RECORDED_LAB
    answered = metrics.fetch(lab.url, lab.record.api_key).requests_total or 0
    growing = trace.Trace(_trace_file())
    until = time.monotonic() + TRACED_WITHIN_S
    ended = 0  # requests, as far as the trace has them
    while True:
        for step in growing.more():
            ended += len(step.finished)
        if ended >= answered:
            return growing.path
        if time.monotonic() > until:
            raise WorkshopError(
                "The trace of the lab has ended too soon.", f"Its log says why: {lab.record.log}"
            )
        time.sleep(0.1)


def _trace_file() -> Path:
    return private_folder("logs") / f"{LAB}.trace.jsonl"
