"""Decide which answers are worth another attempt, and when.

The statuses are those of openai-python (3.52, `_base_client._should_retry`), with 425 of RFC 8470.
"""

from collections.abc import Mapping

from workshop.client import received
from workshop.client.strict_json import Malformed

TRY_AGAIN = frozenset({408, 409, 425, 429})  # and every status from 500
BUSY = frozenset({429, 503, 529})  # the server wants fewer requests at once
# of proxies and tunnels, whose server is away
GATEWAY = frozenset({502, 503, 504, *range(520, 531)})
PAGES = frozenset({200, 404, 410})  # with an HTML page: a tunnel that is closed, or a login page
LONGEST_PAUSE_S = 86_400.0  # nobody means more than a day


def can_help(status: int) -> bool:
    """Return True if a retry can help after an answer with this status."""
    return status >= 500 or status in TRY_AGAIN


def is_outage(status: int, raw: bytes) -> bool:
    """Return True if a proxy answered for its server, or it was a 429: no row is at fault then."""
    if status == 429:
        return True
    if status < 400 and status != 200:
        return False
    if status in GATEWAY:
        return True
    if raw.lstrip()[:1] == b"<":
        return status >= 500 or status in PAGES
    return status == 404 and _is_no_json(raw)  # "default backend - 404" of a Kubernetes ingress


def pause_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the server asks to wait (`Retry-After`, up to a day).

    None if it does not say, says 0 or less, or names a date.
    """
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return min(seconds, LONGEST_PAUSE_S) if seconds > 0 else None


def _is_no_json(raw: bytes) -> bool:
    try:
        received.body(raw)
    except Malformed:
        return True
    return False
