"""Which server is meant, and how it is reached: the key goes to that server, and to nobody between or behind it.

A server with a record is asked directly, whatever http_proxy says: it is on this machine or in this cluster. An
address that the user gives may lie outside, so the environment's web proxy counts, and that is said. No redirect is
followed, as it may lead to another host.
"""

import functools
import ipaddress
import os
import ssl
import sys
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment

from workshop.errors import BadInput, WorkshopError, plain
from workshop.launch import records
from workshop.launch.records import ServerRecord

START = "Start one: `workshop serve --background`, or run the panel of notebook 00_start."


def find(name: str | None = None) -> ServerRecord:
    """Return the record that `connect` uses, without asking the server; raises as `connect` does."""
    url = os.environ.get("WORKSHOP_URL")
    return given(url, "WORKSHOP_URL") if url and name is None else choose(name)


def given(url: str, said_by: str) -> ServerRecord:
    """Return a record of an address that the user gives; the key is WORKSHOP_API_KEY."""
    url = url.rstrip("/")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise BadInput(f"{said_by} is {url!r}, which is no address.", "Use http://HOST:PORT/v1; key: WORKSHOP_API_KEY.")
    key = os.environ.get("WORKSHOP_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise BadInput("WORKSHOP_API_KEY holds characters that no key has.", "Set it to the server's key alone.")
    url = url if url.endswith("/v1") else f"{url}/v1"
    return ServerRecord(name=said_by, url=url, model="", api_key=key, where="given", state="ready")


def choose(name: str | None = None) -> ServerRecord:
    """Return the record of the one server that is ready (the one called `name`, if given), or say why not."""
    failed = doubtful = None
    for found in (records.own(), records.shared()):
        named = [record for record in found if name in (None, record.name)]
        ready = [record for record in named if record.state == "ready" and not record.in_doubt]
        if len(ready) == 1:
            return ready[0]
        if ready:
            names = ", ".join(record.name for record in ready)
            raise WorkshopError(f"Several servers are running: {names}.", f"Choose one: connect({ready[0].name!r}).")
        doubtful = doubtful or next((record for record in named if record.in_doubt), None)
        if named and (record := named[-1]).state == "starting":
            said = f"The server {record.name!r} is still starting."
            raise WorkshopError(said, "Wait until `workshop servers` says ready, then connect() again.")
        if named:  # a start of one's own that failed does not hide the server of the class
            failed = failed or record
    if doubtful:  # its own address tells
        return doubtful
    if failed:
        said = f"The server {failed.name!r} has failed: {failed.reason}."
        raise WorkshopError(said, f"{START} Its own words are in {failed.log}.")
    which = f" called {name!r}" if name else ""
    raise WorkshopError(f"No server{which} is known here.", START)


def proxy_to(url: str) -> str | None:
    """Return the web proxy through which an address that the user gave is asked, having said so; None: directly.

    Raises BadInput: it is a proxy of a kind that is not supported.
    """
    parts = urlsplit(url)
    host, named = parts.hostname or "", getproxies_environment()
    variable = parts.scheme if named.get(parts.scheme) else "all"
    if not named.get(variable) or proxy_bypass_environment(parts.netloc.rpartition("@")[2]) or _this_machine(host):
        return None
    proxy = named[variable] if "://" in named[variable] else f"http://{named[variable]}"
    place = urlsplit(proxy)
    shown, direct = f"{place.hostname}:{place.port or 80} ({variable}_proxy)", f"no_proxy={host}"
    if place.scheme not in ("http", "https") or not place.hostname:
        said = f"{url} lies behind the proxy {shown}, and {place.scheme} is no web proxy."
        raise BadInput(said, f"Set {direct} to ask it directly, or give a proxy that begins with http://.")
    sees = "it sees the address, not the key" if parts.scheme == "https" else "it can read the key and every prompt"
    _say(f"{url} is asked through the web proxy {shown}: {sees}. {direct} asks it directly.")
    return proxy


def options(proxy: str | None) -> dict:
    """Return what httpx's and openai's clients are made with, so that they obey no proxy but this, and no redirect."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    verify = ssl.create_default_context(cafile=file, capath=folder) if file or folder else True
    return {"trust_env": False, "proxy": proxy, "follow_redirects": False, "verify": verify}


def redirected(url: str, status: int, location: str | None) -> WorkshopError | None:
    """Return the error for an answer that sends the asker, and the key, elsewhere; None if it is no such answer."""
    if not 300 <= status < 400:
        return None
    said = f"{url} answers {status} and leads to {(location or 'nowhere')[:200]}, where no key is sent."
    return WorkshopError(said, "Give the address of the server itself, which ends in /v1.")


def keep_off_proxies(url: str) -> None:
    """Let every HTTP library of this process ask this server directly: what learners send themselves has its key."""
    host, listed = urlsplit(url).hostname, os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    if host and getproxies_environment() and not proxy_bypass_environment(host):
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, (listed, host)))


def _this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@functools.cache
def _say(sentence: str) -> None:
    print(f"! {plain(sentence)}", file=sys.stderr)
