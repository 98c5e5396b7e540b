"""An address that stays: every connection to it goes to where the server is at that moment, by its record.

A server that starts again, on another node, keeps its name; a program that knows only an address is given this one.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from workshop.errors import WorkshopError
from workshop.launch import records
from workshop.launch.records import ServerRecord

CONNECT_S = 5.0
CHUNK_BYTES = 2**16
RETRY_S = 5  # told to clients that find no server; OpenAI's try again by themselves


def run(name: str, port: int, opened: Callable[[], None] = lambda: None) -> None:
    """Pass connections to 127.0.0.1:port on to the server `name`, until interrupted; call `opened` once it listens."""
    try:
        asyncio.run(_serve(name, port, opened))
    except OSError:
        raise WorkshopError(f"Port {port} is taken, or not yours to use.", "Give another --port, or none.") from None


def record_of(name: str) -> ServerRecord:
    """Return the record of a ready server of this user's, or shared with them, as it stands; no queue is asked."""
    record = records.stored(name)
    if record is None:
        with contextlib.suppress(FileNotFoundError):
            record = records.load(Path(os.environ.get("WORKSHOP_SHARED", "")).expanduser() / f"{name}.json")
    if record is None:
        raise WorkshopError(f"The server {name} is stopped.")
    if record.state != "ready":
        raise WorkshopError(f"The server {name} is {record.state}{f': {record.reason}' if record.reason else ''}.")
    return record


async def _serve(name: str, port: int, opened: Callable[[], None]) -> None:

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError), contextlib.closing(writer):
            try:
                far_reader, far = await _connected(await asyncio.to_thread(record_of, name))
            except WorkshopError as error:
                writer.write(_refusal(error))
                writer.write_eof()
                await asyncio.wait_for(reader.read(), CONNECT_S)  # the answer to a request that was not read is lost
                return
            with contextlib.closing(far):
                await asyncio.gather(_pump(reader, far), _pump(far_reader, writer))

    async with await asyncio.start_server(passed_on, "127.0.0.1", port) as server:
        opened()
        await server.serve_forever()


async def _connected(record: ServerRecord) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(record.url)
    try:
        return await asyncio.wait_for(asyncio.open_connection(address.hostname, address.port or 80), CONNECT_S)
    except (OSError, asyncio.TimeoutError):  # noqa: UP041
        raise WorkshopError(f"{record.name} does not answer at {record.url}.") from None


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


def _refusal(error: WorkshopError) -> bytes:
    body = json.dumps({"error": {"message": str(error), "type": "server_not_ready", "code": 503}}).encode()
    head = f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {RETRY_S}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
