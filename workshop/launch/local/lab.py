"""JupyterLab on the learner's copy of the course, with a server behind it; both end together."""

import contextlib
import os
import secrets
import subprocess
import sys
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from workshop.errors import WorkshopError
from workshop.launch import local, machine, processes, records
from workshop.launch.home import home, new_log
from workshop.launch.local import course, supervise
from workshop.launch.local.answering import alive
from workshop.launch.records import ServerRecord
from workshop.launch.vllm_main import installed

FIRST, LOG = "00_start.ipynb", "jupyterlab.log"
SETTINGS = Path(__file__).parent / "jupyter_settings"  # defaults: no question about news, all cells rendered
JUPYTER_WAIT_S = 120.0


@dataclass
class Lab:
    """A running JupyterLab."""

    process: subprocess.Popen
    url: str
    log: Path = field(default_factory=lambda: home() / "logs" / LOG)


def start_jupyter(folder: Path, port: int | None = None, host: str = "127.0.0.1") -> Lab:
    """Start JupyterLab on the folder; the token is in its environment, not on its command line."""
    if port is not None and not machine.port_is_free(host, port):
        raise WorkshopError(f"Port {port} is taken.", "Give JupyterLab another --port, or none.")
    port = port or machine.free_port(host, 8888)
    token = secrets.token_hex(16)
    server = {"ip": host, "port": port, "port_retries": 0, "root_dir": folder}
    lab = {"default_url": f"/lab/tree/{FIRST}", "app_settings_dir": SETTINGS, "news_url": None}
    lab["check_for_updates_class"] = "jupyterlab.NeverCheckForUpdate"
    command = [sys.executable, "-m", "jupyterlab", "--no-browser"]
    command += [f"--ServerApp.{name}={value}" for name, value in server.items()]
    command += [f"--LabApp.{name}={value}" for name, value in lab.items()]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    process = processes.spawn(command, new_log(LOG), env={**os.environ, "JUPYTER_TOKEN": token})
    return Lab(process, f"http://{host}:{port}/lab/tree/{FIRST}?token={token}")


def wait_for_jupyter(lab: Lab) -> None:
    """Return when JupyterLab answers; raise with its last words if it ends instead."""
    status, ended = lab.url.replace(f"lab/tree/{FIRST}", "api/status"), lambda: lab.process.poll() is not None
    if processes.until(lambda: ended() or alive(status, 2.0), JUPYTER_WAIT_S) and not ended():
        return
    last = (lab.log.read_text(errors="replace").strip().splitlines() or ["no word"])[-1]
    raise WorkshopError(f"JupyterLab did not start: {last[:200]}", f"Its own words are in {lab.log}.")


def _server_sentence(report: supervise.Report) -> str:
    """Return a sentence on the server that the notebooks will find, which is started here if there is none."""
    if url := os.environ.get("WORKSHOP_URL"):
        return f"✓ Notebooks use the server that WORKSHOP_URL names: {url}"
    if known := records.ready():
        return f"✓ Notebooks use the server {known[0].name!r} at {known[0].url}"
    if not installed()[0]:
        return "✓ No local server here (vLLM is not installed): set WORKSHOP_URL and WORKSHOP_API_KEY, or\nWORKSHOP_SHARED, to use one elsewhere. Everything that needs no server works."
    try:
        record = supervise.start(local.prepare(), report, with_parent=True)
    except WorkshopError as error:
        return f"✗ No server: {error.message}\n→ {error.remedy}\n  The notebooks open all the same."
    return f"✓ The server {record.name!r} answers at {record.url}"


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

    A server that does not start is only said: the course goes on without.
    """
    began = records.now()
    folder, held = course.copy_notebooks()
    lab = None
    with supervise.stop_signals():
        try:
            lab = start_jupyter(folder, port, host)
            if server:
                say(_server_sentence(report))
            wait_for_jupyter(lab)
            say(_ready_sentence(lab, folder, held))
            display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
            if browser and (display or sys.platform in ("darwin", "win32")):
                webbrowser.open(lab.url)
            lab.process.wait()
        except supervise.Stopped:
            say("\nStopping …")
        finally:
            _end(lab, began, say)


def _ready_sentence(lab: Lab, folder: Path, held: list[str]) -> str:
    lines = [f"✓ JupyterLab is open on your copy of the notebooks ({folder}):", "", f"    {lab.url}", ""]
    if held:
        lines.append(f"  There is a newer {', '.join(held)}; yours is kept. Get the new one: workshop fresh {held[0]}")
    return "\n".join([*lines, "  Ctrl-C ends JupyterLab and the server."])


def _end(lab: Lab | None, began: str, say: Callable[[str], None]) -> None:
    """End JupyterLab with its kernels, and the servers that were started since, by us or from one of its notebooks."""
    ours = [record for record in records.own() if record.started >= began and _started_here(record, lab)]
    if lab is not None:
        supervise.end(lab.process, log=str(lab.log))
    for record in ours:
        with contextlib.suppress(WorkshopError):
            say(supervise.stop(record.name))


def _started_here(record: ServerRecord, lab: Lab | None) -> bool:
    """Return whether the server's watcher is a child of this process, or has the token of this JupyterLab."""
    if not records.is_here(record) or record.pid is None or record.state == "failed":
        return False
    with contextlib.suppress(psutil.Error, OSError):
        watcher = psutil.Process(record.pid).parent()
        return watcher is not None and (
            watcher.ppid() == os.getpid()
            or (lab is not None and lab.url.endswith(f"?token={watcher.environ().get('JUPYTER_TOKEN')}"))
        )
    return False
