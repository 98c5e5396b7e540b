"""`workshop tunnel`: a server on a cluster's node under an address of this machine, which stays when the server moves.

From a laptop ssh carries it through the login node, as the address of a node means nothing outside. The server's key
comes over ssh as well, from the record in the home folder, and goes into a record of the laptop's own (0600).
On the cluster itself every connection is passed on to where the server is at that moment, by its record: a program
that knows only an address keeps it.
"""

import asyncio
import contextlib
import json
import os
import re
import shlex
import socket
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from workshop.errors import BadInput, WorkshopError
from workshop.servers import machine, processes, record_file, records
from workshop.servers.local import claims
from workshop.servers.local.answering import alive, answers
from workshop.servers.local.supervise import end
from workshop.servers.records import ServerRecord

WAIT_S = 20.0
LOOK_EVERY_S = 5.0  # at the server, through the tunnel
CONNECT_S = 5.0
CHUNK_BYTES = 2**16
BROKEN_LOOK_S = 1.0
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
RETRY_S = 5  # told to clients that find no server; OpenAI's try again by themselves


def command_for(record: ServerRecord, login: str, port: int) -> list[str]:
    """Return the ssh command that makes the server appear at 127.0.0.1:port; it ends when it cannot do that."""
    address = urlsplit(record.url)
    host = f"[{address.hostname}]" if ":" in address.hostname else address.hostname
    options = "ssh -N -o ExitOnForwardFailure=yes -o ServerAliveInterval=30 -L"
    return [*options.split(), f"127.0.0.1:{port}:{host}:{address.port or 80}", login]


def checked_login(login: str) -> str:
    """Return `user@host` or `host`, or refuse what ssh could take for an option."""
    if not re.fullmatch(r"[A-Za-z0-9_][\w.@-]*", login):
        raise BadInput(f"{login!r} is no login node.", "Give user@login.example.edu, as for ssh.")
    return login


def fetch(login: str, name: str | None) -> ServerRecord:
    """Return the record of the ready server on the cluster, read over ssh from the home folder there."""
    # Each record on a line of its own, whatever the login files there print before and in between.
    remote = 'for f in "${WORKSHOP_HOME:-$HOME/.workshop}"/servers/*.json; do [ -f "$f" ] && { echo; tr -d "\\n" <"$f"; echo; }; done; true'
    remote = f"sh -c {shlex.quote(remote)}"  # the login's own shell may be tcsh or fish
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
    found, broken = _records_in(done.stdout.decode("utf-8", errors="replace"))
    if broken and not found:
        said = f"{broken} server records came from {login} over ssh, and none of them can be read."
        raise WorkshopError(said, f"See what it prints: ssh {login} workshop servers")
    return choose(found, name, login)


def _records_in(text: str) -> tuple[list[ServerRecord], int]:
    """Return the records among the lines that ssh brought, and how many more were no good."""
    found, broken = [], 0
    for line in text.split("\n"):
        if line.startswith("{"):
            try:
                found.append(ServerRecord(**record_file.checked(json.loads(line))))
            except (ValueError, RecursionError):
                broken += 1
    return found, broken


def choose(found: list[ServerRecord], name: str | None, where: str) -> ServerRecord:
    """Return the one ready server (of that name), or say which there are."""
    ready = [record for record in found if record.state == "ready" and name in (None, record.name)]
    if len(ready) == 1:
        return ready[0]
    names = ", ".join(f"{record.name} ({record.state})" for record in found) or "none"
    if ready:
        raise WorkshopError(
            f"Several servers are ready on {where}: {names}.", "Say which: workshop tunnel NAME …"
        )
    raise WorkshopError(
        f"No server{f' {name!r}' if name else ''} is ready on {where}.", f"Known there: {names}."
    )


def open_tunnel(
    record: ServerRecord,
    login: str,
    port: int | None,
    ready: Callable[[ServerRecord], None] = lambda record: None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Open the tunnel and keep it open until it is interrupted; `connect()` on this machine finds it meanwhile.

    A server that starts again elsewhere is followed, under the same address here. ready: called each time that the
    server answers through it, with the record of this machine; say: told when the server is gone.
    """
    port = port or machine.free_port("127.0.0.1")
    here = {
        "url": f"http://127.0.0.1:{port}/v1",
        "where": "local",
        "host": socket.gethostname(),
        "log": "",
    }
    nobody = {"pid": None, "process_started": None, "state": "starting"}
    begun = {"boot_id": records.boot_id(), "started": records.now(), "job_id": None}
    claim, process = claims.claim(replace(record, **here, **nobody, **begun)), None
    try:
        while True:
            process = subprocess.Popen(command_for(record, login, port), stdin=subprocess.DEVNULL)
            _wait(
                process,
                claim.write(pid=process.pid, process_started=processes.started(process.pid)),
                login,
            )
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
    """Return the server's new record once it has another address or key; raise a WorkshopError when ssh ends."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            said = f"The tunnel through {login} has ended (exit code {process.wait(LOOK_EVERY_S)})."
            shows = "`workshop servers` on the cluster shows whether the server still runs"
            raise WorkshopError(said, f"Open it again; {shows}.")
        if not alive(urljoin(local.url, "/health"), LOOK_EVERY_S):
            try:
                now = fetch(login, record.name)
                if (now.url, now.api_key) != (record.url, record.api_key):
                    return now
            except WorkshopError as error:
                say(f"{error.message} It is looked for again.")


def _wait(process: subprocess.Popen, local: ServerRecord, login: str) -> None:
    answered = processes.until(lambda: process.poll() is not None or answers(local), WAIT_S)
    if process.poll() is not None:
        remedy = f"Try it by hand: {shlex.join(process.args)}"
        raise WorkshopError(f"ssh to {login} ended with exit code {process.returncode}.", remedy)
    if not answered:
        remedy = "Does the login node reach the server's node? On it: workshop servers"
        raise WorkshopError(
            f"{local.name} does not answer through {login} within {WAIT_S:.0f} s.", remedy
        )


def explain(record: ServerRecord, login: str, port: int) -> list[str]:
    """Return what to do by hand, a line each, for a laptop and for VS Code."""
    file = path_of(record.name)
    return [
        f"From a laptop (leave it open; then use http://127.0.0.1:{port}/v1):",
        f"  {shlex.join(command_for(record, login, port))}",
        f"The key is in {file} on the cluster: {shlex.join(['ssh', login, 'cat', shlex.quote(str(file))])}",
        "VS Code, Remote-SSH to any node of the cluster (the server's or another): nothing to do, connect() finds it.",
        f"VS Code on the laptop: the tunnel above, WORKSHOP_URL=http://127.0.0.1:{port}/v1 and WORKSHOP_API_KEY.",
    ]


def forward(name: str, port: int, opened: Callable[[], None] = lambda: None) -> None:
    """Pass connections to 127.0.0.1:port on to the server `name`, until interrupted; call `opened` once it listens."""
    try:
        asyncio.run(_forwarding(name, port, opened))
    except OSError:
        raise WorkshopError(
            f"Port {port} is taken, or not yours to use.", "Give another --port, or none."
        ) from None


def path_of(name: str) -> Path:
    """Return where the record of a server lies: this user's own, else one that was shared with them."""
    own = records.path_of(name)
    return (
        own
        if own.exists()
        else Path(os.path.expanduser(os.environ.get("WORKSHOP_SHARED", ""))) / own.name
    )


def record_of(name: str) -> ServerRecord:
    """Return the record of a ready server as it stands; no queue is asked."""
    try:
        record = records.load(path_of(name))
    except FileNotFoundError:
        raise WorkshopError(f"The server {name} is stopped.") from None
    if record.state != "ready":
        raise WorkshopError(
            f"The server {name} is {record.state}{f': {record.reason}' if record.reason else ''}."
        )
    return record


async def _forwarding(name: str, port: int, opened: Callable[[], None]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError), contextlib.closing(writer):
            try:
                far = await _connected(await asyncio.to_thread(record_of, name))
            except WorkshopError as error:
                writer.write(_refusal(error))
                writer.write_eof()
                # Closing before the request is read would reset the connection, and the answer would be lost.
                await asyncio.wait_for(_discard(reader), CONNECT_S)
                return
            await _join((reader, writer), far)

    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        opened()
        await server.serve_forever()


async def _connected(record: ServerRecord) -> Connection:
    address = urlsplit(record.url)
    try:
        return await asyncio.wait_for(
            asyncio.open_connection(address.hostname, address.port or 80), CONNECT_S
        )
    except (OSError, asyncio.TimeoutError):  # noqa: UP041
        raise WorkshopError(f"{record.name} does not answer at {record.url}.") from None


async def _join(near: Connection, far: Connection) -> None:
    """Pass everything on in both directions, until both sides have ended.

    An end of one direction is passed on as such (the other direction goes on), and a reset as a reset: an answer that
    broke off must not look complete.
    """
    whole = False
    try:
        async with asyncio.TaskGroup() as tasks:
            watches = [tasks.create_task(_watch(writer)) for _, writer in (near, far)]
            pumps = [
                tasks.create_task(_pump(near[0], far[1])),
                tasks.create_task(_pump(far[0], near[1])),
            ]
            await asyncio.wait(pumps)
            for watch in watches:
                watch.cancel()
        whole = True
    except* OSError:
        pass
    finally:
        if not whole:
            _reset(near[1])
            _reset(far[1])
        far[1].close()


async def _watch(writer: asyncio.StreamWriter) -> None:
    """Raise a ConnectionResetError once a connection is broken, also while nothing is read from it or written to it."""
    connection = writer.get_extra_info("socket")
    while True:
        await asyncio.sleep(BROKEN_LOOK_S)
        if connection.fileno() >= 0 and connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise ConnectionResetError


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of what one side sends; an OSError if either side's connection breaks."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection so that its other side sees a reset, not an end; what waits to be sent is dropped."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):  # it is closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    writer.transport.abort()


async def _discard(reader: asyncio.StreamReader) -> None:
    """Read to the end of what one side sends, and keep nothing of it."""
    while await reader.read(CHUNK_BYTES):
        pass


def _refusal(error: WorkshopError) -> bytes:
    body = json.dumps(
        {"error": {"message": str(error), "type": "server_not_ready", "code": 503}}
    ).encode()
    head = f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {RETRY_S}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
