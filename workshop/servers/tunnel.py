"""Reach a server on a cluster's node from a laptop, through ssh and the login node.

A laptop cannot reach a compute node directly, so `ssh -L` forwards a port of the laptop. The
server's key is read over ssh from its record in the home folder on the cluster, and written into a
record of the laptop's own (0600). When the server starts again on another node, the tunnel is
opened anew under the same address.
"""

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from workshop import timestamps
from workshop.errors import BadInput, WorkshopError
from workshop.servers import records
from workshop.servers.host import machine, processes
from workshop.servers.local import claims
from workshop.servers.local.answering import alive, answers
from workshop.servers.local.supervise import end
from workshop.servers.records import ServerRecord, record_file

WAIT_S = 20.0
LOOK_EVERY_S = 5.0  # at the server, through the tunnel


def command_for(record: ServerRecord, login: str, port: int) -> list[str]:
    """Return the ssh command that makes the server appear at 127.0.0.1:port, or ends."""
    address = urlsplit(record.url)
    host = address.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    options = "ssh -N -o ExitOnForwardFailure=yes -o ServerAliveInterval=30 -L"
    return [*options.split(), f"127.0.0.1:{port}:{host}:{address.port or 80}", login]


def checked_login(login: str) -> str:
    """Return `user@host` or `host`, or refuse what ssh could take for an option."""
    if not re.fullmatch(r"[A-Za-z0-9_][\w.@-]*", login):
        raise BadInput(f"{login!r} is no login node.", "Give user@login.example.edu, as for ssh.")
    return login


def fetch(login: str, name: str | None) -> ServerRecord:
    """Return the record of the ready server on the cluster, read over ssh from its home folder.

    Raises WorkshopError: ssh fails, no record can be read, or as `ready_server` does.
    """
    # Each record on a line of its own, whatever the login files there print before and in between.
    script = (
        'for f in "${WORKSHOP_HOME:-$HOME/.workshop}"/servers/*.json; '
        'do [ -f "$f" ] && { echo; tr -d "\\n" <"$f"; echo; }; done; true'
    )
    remote = f"sh -c {shlex.quote(script)}"  # the login's own shell may be tcsh or fish
    by_hand = f"Try it by hand: ssh {login}"
    try:
        done = subprocess.run(
            ["ssh", checked_login(login), remote], stdout=subprocess.PIPE, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or "no answer within 120 s"
        raise WorkshopError(f"ssh to {login} did not work: {why}.", by_hand) from None
    if done.returncode:
        raise WorkshopError(f"ssh to {login} ended with exit code {done.returncode}.", by_hand)
    cluster_records, unreadable = _records_in(done.stdout.decode("utf-8", errors="replace"))
    if unreadable and not cluster_records:
        raise WorkshopError(
            f"{unreadable} server records came from {login} over ssh, "
            "and none of them can be read.",
            f"See what it prints: ssh {login} workshop servers",
        )
    return ready_server(cluster_records, name, login)


def _records_in(text: str) -> tuple[list[ServerRecord], int]:
    """Return the records in the output of ssh, and the number of unreadable ones."""
    cluster_records: list[ServerRecord] = []
    unreadable = 0
    for line in text.split("\n"):
        if not line.startswith("{"):
            continue
        try:
            cluster_records.append(ServerRecord(**record_file.checked(json.loads(line))))
        except (ValueError, RecursionError):
            unreadable += 1
    return cluster_records, unreadable


def ready_server(cluster_records: list[ServerRecord], name: str | None, login: str) -> ServerRecord:
    """Return the one ready server of that name, or of any name if `name` is None.

    Raises:
        WorkshopError: no server is ready, or several are; it names all servers with their states.
    """
    ready = records.ready_among(record for record in cluster_records if name in (None, record.name))
    if ready and (len(ready) == 1 or ready[0].in_doubt):  # its own address tells
        return ready[0]
    names = ", ".join(f"{record.name} ({record.state})" for record in cluster_records) or "none"
    if ready:
        raise WorkshopError(
            f"Several servers are ready on {login}: {names}.", "Say which: workshop tunnel NAME …"
        )
    server = "server"
    if name is not None:
        server = f"server {name!r}"
    raise WorkshopError(f"No {server} is ready on {login}.", f"Known there: {names}.")


def open_tunnel(
    record: ServerRecord,
    login: str,
    port: int | None,
    ready: Callable[[ServerRecord], None] = lambda record: None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Open the tunnel and keep it open until it is interrupted.

    `connect()` on this machine finds it meanwhile. A server that starts again elsewhere is
    followed, under the same address here. ready: called each time that the server answers through
    it, with the record of this machine; say: told when the server is gone.
    """
    port = port or machine.free_port("127.0.0.1")
    here = {
        "url": f"http://127.0.0.1:{port}/v1",
        "where": "local",
        "host": socket.gethostname(),
        "log": "",
    }
    nobody = {"pid": None, "process_started": None, "state": "starting"}
    begun = {
        "boot_id": records.boot_id(),
        "started": timestamps.now("milliseconds"),
        "job_id": None,
    }
    claim = claims.claim(replace(record, **here, **nobody, **begun))
    process = None
    try:
        while True:
            ssh_command = command_for(record, login, port)
            process = subprocess.Popen(ssh_command, stdin=subprocess.DEVNULL)
            born = processes.started(process.pid)
            local = claim.write(pid=process.pid, process_started=born)
            _wait(process, ssh_command, local, login)
            ready(claim.write(state="ready"))
            moved = _moved(process, claim.record, record, login, say)
            end(process, claim.record)
            record = moved
            claim.write(**nobody, api_key=record.api_key, model=record.model)
    finally:
        end(process, claim.record)
        claim.forget()
        claim.give_back()


def _moved(
    process: subprocess.Popen,
    local: ServerRecord,
    record: ServerRecord,
    login: str,
    say: Callable[[str], None],
) -> ServerRecord:
    """Return the server's new record once it has another address or key.

    Raises:
        WorkshopError: ssh has ended.
    """
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            problem = (
                f"The tunnel through {login} has ended (exit code {process.wait(LOOK_EVERY_S)})."
            )
            shows = "`workshop servers` on the cluster shows whether the server still runs"
            raise WorkshopError(problem, f"Open it again; {shows}.")
        if not alive(urljoin(local.url, "/health"), LOOK_EVERY_S):
            try:
                now = fetch(login, record.name)
                if (now.url, now.api_key) != (record.url, record.api_key):
                    return now
            except WorkshopError as error:
                say(f"{error.message} It is looked for again.")


def _wait(
    process: subprocess.Popen[bytes], ssh_command: list[str], local: ServerRecord, login: str
) -> None:
    """Return once the server answers through the tunnel.

    Raises:
        WorkshopError: ssh ends before that, or the server does not answer in time.
    """
    answered = processes.until(lambda: process.poll() is not None or answers(local), WAIT_S)
    if process.poll() is not None:
        remedy = f"Try it by hand: {shlex.join(ssh_command)}"
        raise WorkshopError(f"ssh to {login} ended with exit code {process.returncode}.", remedy)
    if not answered:
        remedy = "Does the login node reach the server's node? On it: workshop servers"
        raise WorkshopError(
            f"{local.name} does not answer through {login} within {WAIT_S:.0f} s.", remedy
        )


def explain(record: ServerRecord, login: str, port: int) -> list[str]:
    """Return the lines that tell a user how to reach the server from a laptop and from VS Code.

    Args:
        record: the server's record on the cluster.
        login: `user@host` of the cluster's login node, as for ssh.
        port: the port of the laptop under which the server will appear.
    """
    record_file_path = path_of(record.name)
    read_key = shlex.join(["ssh", login, "cat", shlex.quote(str(record_file_path))])
    return [
        f"From a laptop (leave it open; then use http://127.0.0.1:{port}/v1):",
        f"  {shlex.join(command_for(record, login, port))}",
        f"The key is in {record_file_path} on the cluster: {read_key}",
        "VS Code, Remote-SSH to any node of the cluster (the server's or another): "
        "nothing to do, connect() finds it.",
        f"VS Code on the laptop: the tunnel above, WORKSHOP_URL=http://127.0.0.1:{port}/v1 "
        "and WORKSHOP_API_KEY.",
    ]


def path_of(name: str) -> Path:
    """Return where the record of a server lies: this user's own, else one shared with them."""
    own = records.path_of(name)
    if own.exists():
        return own
    shared_folder = Path(os.path.expanduser(os.environ.get("WORKSHOP_SHARED", "")))
    return shared_folder / own.name
