"""Chooses the server, and how to reach it so that the key goes to that server alone.

A server with a record is on this machine or in this cluster, so it is reached directly, whatever
http_proxy says. An address that the user gives may lie outside. With https, the environment's web
proxy is used, with a note: it sees only the address. With plain http it would see the key and every
prompt, so it is used only if the user names it in WORKSHOP_PROXY. `no_proxy` counts for both.
Redirects are never followed, as they may lead to another host.

`proxy_to` decides which proxy is used, `tls` which certificates are trusted; every client takes
both from here.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from workshop.engine.http import PROXY_VARIABLE, trusted_proxy
from workshop.errors import BadInput, WorkshopError, plain
from workshop.servers import records
from workshop.servers.records import ServerRecord
from workshop.servers.records.record_file import SUSPENDED

if TYPE_CHECKING:
    import ssl

SPARE_FILES = 200  # what a run has open beside its connections
CHECK_ADDRESS = "Check the address, and that the server runs there; it ends in /v1."
START = "Start one: `workshop serve --background`, or run the panel of notebook 00_start."


def find(name: str | None = None) -> ServerRecord:
    """Return the record that `connect` uses, without a request to the server.

    Raises as `connect` does.
    """
    url = os.environ.get("WORKSHOP_URL")
    if url and name is None:
        return record_of_address(url, "WORKSHOP_URL")
    return ready_server(name)


def record_at(name: str | None, url: str | None) -> ServerRecord:
    """Return the record of the server of this name, or at this address, or of the only one.

    Raises BadInput: both are given; else as `connect` does.
    """
    if name and url:
        raise BadInput("--name and --url are both given.", "Give one of the two.")
    if url is None:
        return find(name)
    return record_of_address(url, "--url")


def record_of_address(url: str, source: str) -> ServerRecord:
    """Return a record of an address that the user gives; the key is WORKSHOP_API_KEY."""
    url = url.rstrip("/")
    try:
        parts = urlsplit(url)
        good = (
            parts.scheme in ("http", "https")
            and parts.hostname
            and "@" not in parts.netloc
            and parts.port != 0
        )
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise BadInput(
            f"{source} is {url!r}, which is no address.",
            "Use http://HOST:PORT/v1; key: WORKSHOP_API_KEY.",
        )
    key = os.environ.get("WORKSHOP_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise BadInput(
            "WORKSHOP_API_KEY holds characters that no key has.",
            "Set it to the server's key alone.",
        )
    if not url.endswith("/v1"):
        url = f"{url}/v1"
    return ServerRecord(name=source, url=url, model="", api_key=key, where="given", state="ready")


class SeveralServers(WorkshopError):
    """Several servers are ready, and none was named.

    `command_remedy` is the remedy on a command line.
    """

    def __init__(self, names: list[str]):
        super().__init__(
            f"Several servers are running: {', '.join(names)}.",
            f"Choose one: connect({names[0]!r}).",
        )
        self.command_remedy = f"Choose one with --name, such as --name {names[0]}."


class StillStarting(WorkshopError):
    """The server is being started. `record` is its record, and `look(name)` reads it again."""

    def __init__(self, record: ServerRecord, look: Callable[[str], ServerRecord | None]):
        super().__init__(
            f"The server {record.name!r} is still starting.",
            "Wait until `workshop servers` says ready, then connect() again.",
        )
        self.record = record
        self.look = look


def ready_server(name: str | None = None) -> ServerRecord:
    """Return the record of the one server that is ready: the one called `name`, if that is given.

    Raises WorkshopError: there is none, there are several, or it is still starting or has failed.
    """
    failed = None
    doubtful = None
    for candidates, look in (
        (records.own(), records.read),
        (records.shared(), records.read_shared),
    ):
        named = [record for record in candidates if name in (None, record.name)]
        ready = records.ready_among(named)
        if ready and ready[0].in_doubt:  # as all of them are
            doubtful = doubtful or ready[0]
        elif len(ready) == 1:
            return ready[0]
        elif ready:
            raise SeveralServers([record.name for record in ready])
        last = named[-1] if named else None
        if last is not None and last.state == "starting":
            raise StillStarting(last, look)
        # a start of one's own that failed does not hide the server of the class
        failed = failed or last
    if doubtful:  # its own address tells
        return doubtful
    if failed:
        raise _ended(failed)
    if name:
        others = records.ready()
        raise records.unknown(name, others, "" if others else START)
    raise WorkshopError("No server is known here.", START)


choose = ready_server  # as cli/servers.py and cli/tunnel.py call it


def _ended(record: ServerRecord) -> WorkshopError:
    """Return the error for a server that has failed, or that SLURM has suspended."""
    if record.state == SUSPENDED:
        problem = f"The server {record.name!r} is {record.reason}"
        return WorkshopError(problem, "Wait, or use another: `workshop servers` lists them.")
    start = START
    if record.where == "slurm":
        start = "Submit it again: workshop slurm submit."
    problem = f"The server {record.name!r} has failed: {record.reason}."
    return WorkshopError(problem, f"{start} Its own words are in {record.log}.")


def silent(record: ServerRecord, cause: str, remedy: str = "") -> WorkshopError:
    """Return the error for a server that does not answer: what is known of it, and what to do.

    The record is read again, so that its own process, or SLURM's queue, has its say.

    Args:
        cause: '' or what the connection said.
        remedy: what is known to help; '' if nothing is.
    """
    now = None
    is_own = False
    if record.where != "given":
        with contextlib.suppress(WorkshopError):
            own = records.read(record.name)
            is_own = own is not None and own.api_key == record.api_key
            now = own if is_own else records.read_shared(record.name)
    if now is not None and now.state in (SUSPENDED, "failed"):
        return _ended(now)
    problem = f"The server at {record.url} does not answer"
    if cause:
        problem += f" ({cause})"
    if not remedy and record.where == "given":
        remedy = CHECK_ADDRESS
    if not remedy and is_own:
        remedy = (
            f"It was not stopped. See how it is: `workshop servers {record.name}`; what it says: "
            f"`workshop logs {record.name}`; end it: `workshop stop {record.name}`."
        )
    if not remedy and now is not None:
        remedy = (
            "It is shared with you: ask whoever shared it, or use another (`workshop servers`)."
        )
    return WorkshopError(f"{problem}.", remedy or START)


def proxy_to(url: str) -> str | None:
    """Return the web proxy for an address that the user gave, and name it on stderr.

    None: no proxy is used.

    Raises BadInput: it is a proxy of a kind that is not supported.
    """
    from urllib.request import proxy_bypass_environment  # pyright: ignore[reportAttributeAccessIssue]  (typeshed lacks it)

    parts = urlsplit(url)
    host = parts.hostname or ""
    if proxy_bypass_environment(parts.netloc.rpartition("@")[2]) or _this_machine(host):
        return None
    proxy, variable = _named_proxy(parts.scheme)
    if not proxy:
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    place = urlsplit(proxy)
    shown = f"{_host_and_port(place)} ({variable})"
    if parts.scheme == "http" and variable != PROXY_VARIABLE:
        note = f"{url} is asked directly: the web proxy {shown} could read the key and every prompt"
        _say(f"{note}. {PROXY_VARIABLE}=http://HOST:PORT names a proxy that may.")
        return None
    direct = f"no_proxy={host}"
    if place.scheme not in ("http", "https") or not place.hostname:
        problem = f"{url} lies behind the proxy {shown}, and {place.scheme} is no web proxy."
        raise BadInput(
            problem, f"Set {direct} to ask it directly, or give a proxy that begins with http://."
        )
    sees = "it can read the key and every prompt"
    if parts.scheme == "https":
        sees = "it sees the address, not the key"
    _say(f"{url} is asked through the web proxy {shown}: {sees}. {direct} asks it directly.")
    return proxy


def _named_proxy(scheme: str) -> tuple[str, str]:
    """Return the web proxy that the environment names for a scheme, and the variable that names it.

    The proxy is '' if there is none.
    """
    from urllib.request import getproxies_environment

    proxy = trusted_proxy()
    if proxy:
        return proxy, PROXY_VARIABLE
    proxies = getproxies_environment()
    variable = scheme if proxies.get(scheme) else "all"
    return proxies.get(variable, ""), f"{variable}_proxy"


def _host_and_port(place: SplitResult) -> str:
    """Return "host:port" of an address, without its user name and password.

    The default port is 80.
    """
    try:
        return f"{place.hostname}:{place.port or 80}"
    except ValueError:
        return str(place.hostname)


def tls() -> ssl.SSLContext | None:
    """Return the TLS settings with the certificates that the user names.

    None: the usual certificates count.
    """
    import ssl

    file = os.environ.get("SSL_CERT_FILE")
    folder = os.environ.get("SSL_CERT_DIR")
    if not file and not folder:
        return None
    try:
        return ssl.create_default_context(cafile=file or None, capath=folder or None)
    except (OSError, ssl.SSLError) as error:
        problem = f"The certificates of SSL_CERT_FILE={file or ''} SSL_CERT_DIR={folder or ''} cannot be read ({error})."
        raise BadInput(
            problem, "Give a file of certificates in PEM, or unset the variable."
        ) from None


def options(proxy: str | None) -> dict:
    """Return the options for httpx's and openai's clients.

    With them a client uses this proxy alone, and follows no redirect.
    """
    return {"trust_env": False, "proxy": proxy, "follow_redirects": False, "verify": tls() or True}


def remedy_for(error: BaseException, url: str) -> str:
    """Return what to do about a server that cannot be reached because of TLS.

    '' if the cause is another one.
    """
    text = _text_of(error)
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate" in text.lower():
        if "Hostname mismatch" in text or "doesn't match" in text or "not valid for" in text:
            return "Its certificate is for another name: give the address with the name that the certificate has."
        if "expired" in text:
            return "Its certificate has expired: whoever runs the server renews it. Check this machine's date, too."
        return ("Its certificate is signed by nobody whom this machine trusts: ask whoever runs the server for the "
                "certificate of the signing authority (PEM), and set SSL_CERT_FILE to that file.")  # fmt: skip
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:  # plain HTTP answered
        return f"It does not speak TLS: give the address as http{url.removeprefix('https')}."
    if is_tls(error):
        return (
            "The TLS connection failed: check the address, and whether a proxy stands in between."
        )
    return ""


def is_tls(error: BaseException) -> bool:
    """Return True if a connection failed because of TLS; a retry does not help then."""
    text = _text_of(error)
    return "[SSL" in text or "SSLError" in text or "CertificateError" in text


def _text_of(error: BaseException) -> str:
    """Return the names and texts of an error and of its causes, one a line."""
    lines: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(lines) < 8:
        lines.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__ or cause.__context__
    return "\n".join(lines)


def redirected(url: str, status: int, location: str | None) -> WorkshopError | None:
    """Return the error for an answer that redirects to another address.

    None if the answer is no redirect.
    """
    if not 300 <= status < 400:
        return None
    problem = f"{url} answers {status} and leads to {(location or 'nowhere')[:200]}, where no key is sent."
    return WorkshopError(problem, "Give the address of the server itself, which ends in /v1.")


def keep_off_proxies(url: str) -> None:
    """Let every HTTP library of this process connect to this server directly.

    Learners' requests carry its key, which a proxy must not see.
    """
    from urllib.request import (
        getproxies_environment,
        proxy_bypass_environment,  # pyright: ignore[reportAttributeAccessIssue]  (typeshed lacks it)
    )

    host = urlsplit(url).hostname
    if host and getproxies_environment() and not proxy_bypass_environment(host):
        hosts = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
        if hosts:
            hosts += ","
        hosts += host
        os.environ["no_proxy"] = hosts
        os.environ["NO_PROXY"] = hosts


def _this_machine(host: str) -> bool:
    """Return True if a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@functools.cache
def _say(sentence: str) -> None:
    """Print a note on stderr, once in a process."""
    print(f"! {plain(sentence)}", file=sys.stderr)


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files for `count` more connections, as far as it goes."""
    import resource  # here, as a browser has none

    open_files = len(os.listdir("/dev/fd")) + count + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < open_files:
        if hard >= 0:  # a negative limit is none
            open_files = min(open_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard))
