"""JupyterLab on the learner's copy of the course, with a server behind it; both end together."""

import contextlib
import functools
import os
import secrets
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from workshop import preloaded
from workshop.errors import WorkshopError
from workshop.home import home, new_log
from workshop.lab import jupyter, learner_copies
from workshop.servers import local, records
from workshop.servers.host import machine, processes
from workshop.servers.local import supervise
from workshop.servers.local.answering import alive
from workshop.servers.records import ServerRecord
from workshop.vllm_package import installed

FIRST = "00_start.ipynb"
FIRST_PORT = 8888
JUPYTER_WAIT_S = 600.0  # thirty that start at once on one login node are slow


@dataclass
class Lab:
    """A running JupyterLab."""

    process: subprocess.Popen
    url: str
    port: int = FIRST_PORT
    # the claim on the port, until JupyterLab listens
    port_claim: socket.socket | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        """The file of its output: one for each port, as a person may have two labs."""
        return home() / "logs" / _log_name(self.port)

    def let_go(self) -> None:
        """Give up the claim on the port."""
        if self.port_claim:
            self.port_claim.close()


def start_jupyter(folder: Path, port: int | None = None, host: str = "127.0.0.1") -> Lab:
    """Start JupyterLab on the folder; the token is in its environment, not on its command line.

    Without a port it gets a free one, from 8888 on.
    """
    port, port_claim = machine.claim_port(host, port, FIRST_PORT)
    token = secrets.token_hex(16)
    try:
        folder = folder.absolute()
        command = jupyter.command(folder, host, port, FIRST)
        environment = jupyter.environment(token)
        log = new_log(_log_name(port))
        # Its terminals begin where it does: beside the notebooks.
        process = processes.spawn(command, log, env=environment, cwd=folder)
    except BaseException:
        port_claim.close()
        raise
    address = host
    if ":" in host:  # IPv6
        address = f"[{host}]"
    url = f"http://{address}:{port}/lab/tree/{FIRST}?token={token}"
    return Lab(process, url, port=port, port_claim=port_claim)


def _log_name(port: int) -> str:
    return f"jupyterlab-{port}.log"


def wait_for_jupyter(lab: Lab) -> None:
    """Return when JupyterLab answers; raise with its last words if it ends instead."""
    status = lab.url.replace(f"lab/tree/{FIRST}", "api/status")

    def ended() -> bool:
        return lab.process.poll() is not None

    def answers() -> bool:
        return _listens(lab) and alive(status, 2.0)

    answered = processes.until(lambda: ended() or answers(), JUPYTER_WAIT_S)
    if answered and not ended():
        lab.let_go()
        return
    lines = lab.log.read_text(errors="replace").strip().splitlines() or ["no word"]
    remedy = f"Its own words are in {lab.log}."
    if not ended():
        raise WorkshopError(f"JupyterLab did not answer within {JUPYTER_WAIT_S:.0f} s.", remedy)
    raise WorkshopError(f"JupyterLab did not start: {lines[-1][:200]}", remedy)


def _listens(lab: Lab) -> bool:
    """Return whether this JupyterLab has the port; True where the system does not say."""
    try:
        connections = psutil.Process(lab.process.pid).net_connections("tcp")
    except (psutil.Error, OSError):
        return True
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == lab.port:
            return True
    return False


def _begin_server() -> Callable[[supervise.Report], str]:
    """Begin to start the server that the notebooks will use, where there is need and vLLM.

    Return what waits for it, and says in a sentence what came of it.
    """
    url = os.environ.get("WORKSHOP_URL")
    ready_servers = records.ready()
    if url:
        sentence = f"✓ Notebooks use the server that WORKSHOP_URL names: {url}"
    elif ready_servers:
        sentence = f"✓ Notebooks use the server {ready_servers[0].name!r} at {ready_servers[0].url}"
    elif not installed()[0]:
        sentence = (
            "✓ No local server here (vLLM is not installed): set WORKSHOP_URL and "
            "WORKSHOP_API_KEY, or\nWORKSHOP_SHARED, to use one elsewhere. Everything that needs "
            "no server works."
        )
    else:
        try:
            start = supervise.begin(local.prepare(), with_parent=True)
        except WorkshopError as error:
            sentence = _failure_sentence(error)
        else:
            return functools.partial(_wait_for_server, start)
    return lambda report: sentence


def _wait_for_server(start: supervise.LocalStart, report: supervise.Report) -> str:
    try:
        record = start.wait(report)
    except WorkshopError as error:
        return _failure_sentence(error)
    return f"✓ The server {record.name!r} answers at {record.url}"


def _failure_sentence(error: WorkshopError) -> str:
    """Return a sentence on a server that did not start, or on the one that another lab starts."""
    try:
        other = supervise.follow(local.TEACHING_MODEL)
    except WorkshopError:
        other = None
    if other is not None and other.state == "ready":
        return (
            f"✓ Notebooks use the server {other.name!r} at {other.url}; "
            "it ends with whoever started it."
        )
    return f"✗ No server: {error.message}\n→ {error.remedy}\n  The notebooks open all the same."


def _start_preloaded() -> subprocess.Popen | None:
    """Start the process from which servers are forked; return None where there is one, or no need."""
    try:
        environment = local.preloaded_environment()
    except WorkshopError:  # the server's own start says why
        return None
    if environment is None:
        return None
    with new_log("preloaded.log") as log:
        return preloaded.start(environment, log.fileno())


def run(
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    server: bool = True,
    browser: bool = True,
    report: supervise.Report = lambda progress: None,
    say: Callable[[str], None] = print,
) -> None:
    """Run the lab until a signal ends it; then nothing that it started is left.

    A server that does not start is only reported: the course goes on without. Without a port,
    JupyterLab gets the first free one from 8888.
    """
    folder, held_back = learner_copies.copy_notebooks()
    os.environ[records.LAB_VARIABLE] = secrets.token_hex(8)
    lab = None
    vllm = None
    wait_for_server = None
    with supervise.stop_signals():
        try:
            if server:
                vllm = _start_preloaded()
                wait_for_server = _begin_server()
            lab = _open_jupyter(folder, port, host)
            say(_ready_sentence(lab, folder, held_back, ends_server=bool(_servers_of_this_lab())))
            display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
            if browser and (display or sys.platform in ("darwin", "win32")):
                webbrowser.open(lab.url)
            if wait_for_server:
                say(wait_for_server(report))
            _wait_for_end(lab)
        except supervise.Stopped:
            say("\nStopping …")
        finally:
            _end(lab, say)
            if vllm is not None:
                preloaded.stop(vllm)
            os.environ.pop(records.LAB_VARIABLE, None)


def _open_jupyter(folder: Path, port: int | None, host: str) -> Lab:
    """Return a JupyterLab that answers."""
    lab = start_jupyter(folder, port, host)
    try:
        wait_for_jupyter(lab)
    except BaseException:
        lab.let_go()
        supervise.end(lab.process, log=str(lab.log))
        raise
    return lab


def _wait_for_end(lab: Lab) -> None:
    """Return when JupyterLab was shut down from its own menu; raise if it broke off."""
    code = lab.process.wait()
    if code:
        how = f"with exit code {code}"
        if code < 0:
            how = f"by signal {-code}"
        raise WorkshopError(f"JupyterLab ended {how}.", f"Its own words are in {lab.log}.")


def _ready_sentence(lab: Lab, folder: Path, held_back: list[str], ends_server: bool) -> str:
    lines = [
        f"✓ JupyterLab is open on your copy of the notebooks ({folder}):",
        "",
        f"    {lab.url}",
        "",
    ]
    if held_back:
        lines.append(
            f"  There is a newer {', '.join(held_back)}; yours is kept. "
            f"Get the new one: workshop fresh {held_back[0]}"
        )
    if ends_server:
        lines.append("  Ctrl-C ends JupyterLab and the server.")
    else:
        lines.append("  Ctrl-C ends JupyterLab.")
    return "\n".join(lines)


def _end(lab: Lab | None, say: Callable[[str], None]) -> None:
    """End JupyterLab with its kernels, and the servers that we started, or one of its notebooks."""
    ours = _servers_of_this_lab()
    if lab is not None:
        lab.let_go()
        supervise.end(lab.process, log=str(lab.log))
    for record in ours:
        with contextlib.suppress(WorkshopError):
            say(supervise.stop(record.name))


def _servers_of_this_lab() -> list[ServerRecord]:
    """Return the servers that this lab, one of its notebooks or one of its terminals has started."""
    servers: list[ServerRecord] = []
    for record in records.own():
        ours = record.lab != "" and record.lab == os.environ.get(records.LAB_VARIABLE)
        if ours and records.is_here(record) and record.state != "failed":
            servers.append(record)
    return servers
