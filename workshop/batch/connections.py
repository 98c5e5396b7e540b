"""Connections to a server that are used again only where nothing waits in them.

A server, or a proxy in front of it, that sends an answer twice leaves the second one in the
connection. There it would be taken for the answer to the next row.
"""

import select

import aiohttp


class CleanConnector(aiohttp.TCPConnector):
    """Closes a connection instead of using it again if unexpected bytes wait in it.

    No request of ours asked for these bytes.
    """

    async def _get(self, key, traces):
        # aiohttp has no public place for this. tests/batch/test_doubled.py fails if a later version
        # has another one.
        connection = await super()._get(key, traces)
        while connection is not None and _holds_bytes(connection.protocol):
            connection.close()
            connection = await super()._get(key, traces)
        return connection


def _holds_bytes(protocol) -> bool:
    """Return True if bytes came since the last answer: read by aiohttp, or still with the system."""
    if protocol.should_close:
        return True
    socket = protocol.transport.get_extra_info("socket")
    if socket is None:
        return False
    waiting = select.poll()
    waiting.register(socket.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


class Response(aiohttp.ClientResponse):
    """An answer that knows its connection after it was read, when others may use that again."""

    _used = None

    async def start(self, connection):
        self._used = connection.protocol
        return await super().start(connection)

    def close_connection(self) -> None:
        """Close the connection that this came over; whoever uses it now is told that it broke."""
        if self._used is not None:
            self._used.close()


def close_connection(answer: aiohttp.ClientResponse) -> None:
    """Close the connection of an answer.

    The answer comes from a session of ours: all of its answers are of the class `Response`.
    """
    if isinstance(answer, Response):
        answer.close_connection()
