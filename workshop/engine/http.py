"""One GET of what a server says of itself, which ends whatever the server does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

PROXY_VARIABLE = "WORKSHOP_PROXY"  # the user's own word: this proxy may see what is sent
LARGEST_BYTES = 1 << 26  # what vLLM publishes of itself has less than a tenth of that


def trusted_proxy() -> str | None:
    """Return the web proxy that may see a key over plain HTTP: the user's own, not `http_proxy`."""
    return os.environ.get(PROXY_VARIABLE, "").strip() or None


def get(address: str, timeout_s: float = 5.0, **options) -> tuple[httpx.Response, bytes]:
    """Return (answer, its whole body); `options` are those of an httpx client.

    No web proxy of the environment counts: a key may be among the headers.
    `client.transport.proxy_to` says which proxy does. httpx's own limits are for each piece of an
    answer: one that drips holds its reader for ever, one that floods takes all memory. Raises
    httpx.HTTPError, also where the whole takes more than `timeout_s` or LARGEST_BYTES.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    import httpx

    plain = address.startswith("http:") and not (
        options.get("proxy") or options.get("follow_redirects")
    )
    options.setdefault("trust_env", False)
    # all the world's certificates take 20 ms to load
    options["verify"] = not plain and options.get("verify", True)

    async def ask() -> tuple[httpx.Response, bytes]:
        async with httpx.AsyncClient(timeout=timeout_s, **options) as client:
            return await request(client, "GET", address)

    # a notebook's main thread has an event loop already
    with ThreadPoolExecutor(1, "workshop-get") as thread:
        try:
            return thread.submit(asyncio.run, asyncio.wait_for(ask(), timeout_s)).result()
        except TimeoutError:
            raise httpx.ReadTimeout(f"its answer has no end within {timeout_s:g} s") from None


async def request(
    client: httpx.AsyncClient, method: str, address: str, **content
) -> tuple[httpx.Response, bytes]:
    """Return (answer, its whole body); `content` is that of httpx's `stream`, such as json=…

    Raises httpx.HTTPError, also where the body has more than LARGEST_BYTES.
    """
    import httpx

    body = bytearray()
    async with client.stream(method, address, **content) as answer:
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > LARGEST_BYTES:
                raise httpx.ReadError(f"its answer has more than {LARGEST_BYTES >> 20} MiB")
    return answer, bytes(body)
