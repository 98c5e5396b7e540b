"""The way of a request to its server: proxies, certificates, redirects, open connections.

A server with a record is on this machine or in this cluster, so it is reached directly, whatever
http_proxy says. An address that the user gives may lie outside. With https, the environment's web
proxy is used, with a note: it sees only the address. With plain http it would see the key and every
prompt, so it is used only if the user names it in WORKSHOP_PROXY. `no_proxy` counts for both.
Redirects are never followed, as they may lead to another host.

httpx and openai take `options`, aiohttp takes `session`. `engine.http` bounds what a single GET may
take; the rooms below the client use it too.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from workshop.engine.http import PROXY_VARIABLE, trusted_proxy
from workshop.errors import BadInput, WorkshopError, plain

if TYPE_CHECKING:
    import ssl

    import aiohttp

SPARE_FILES = 200  # what a run has open beside its connections


def proxy_to(url: str) -> str | None:
    """Return the web proxy for an address that the user gave, or None; name it on stderr.

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
    """Return the environment's web proxy for a scheme, or '', and the variable that names it."""
    from urllib.request import getproxies_environment

    proxy = trusted_proxy()
    if proxy:
        return proxy, PROXY_VARIABLE
    proxies = getproxies_environment()
    variable = scheme if proxies.get(scheme) else "all"
    return proxies.get(variable, ""), f"{variable}_proxy"


def _host_and_port(place: SplitResult) -> str:
    """Return "host:port" of an address (port 80 if it has none), without user name and password."""
    try:
        return f"{place.hostname}:{place.port or 80}"
    except ValueError:
        return str(place.hostname)


def tls() -> ssl.SSLContext | None:
    """Return the TLS settings with the certificates that the user names; None: the usual ones.

    Raises BadInput: the certificates cannot be read.
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
    """Return options for httpx's and openai's clients: this proxy alone, and no redirects."""
    return {"trust_env": False, "proxy": proxy, "follow_redirects": False, "verify": tls() or True}


# uvicorn closes a connection that rests for 5 s; a request over one that is closing is lost
IDLE_S = 1.0


def session(
    *, answer_s: float, connect_s: float, reuses: bool = True, **options: Any
) -> aiohttp.ClientSession:
    """Return an aiohttp session without cookies and without the environment's proxy.

    It follows redirects unless a request says otherwise. Call it inside the event loop.

    Args:
        answer_s: how long a whole answer may take.
        connect_s: how long a connection may take.
        reuses: whether a connection is used again, if it has rested for less than IDLE_S.
        options: those of aiohttp's ClientSession.
    """
    import aiohttp  # here, as notebooks in a browser have none

    connector = aiohttp.TCPConnector(
        limit=0,
        ttl_dns_cache=300,
        keepalive_timeout=IDLE_S if reuses else None,
        force_close=not reuses,
        ssl=tls() or True,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=answer_s, sock_connect=connect_s),
        **options,
    )


def remedy_for(error: BaseException, url: str) -> str:
    """Return what to do about a server that TLS keeps from being reached; '' for other causes."""
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
    """Return the error for an answer that redirects to another address; None if it does not."""
    if not 300 <= status < 400:
        return None
    problem = f"{url} answers {status} and leads to {(location or 'nowhere')[:200]}, where no key is sent."
    return WorkshopError(problem, "Give the address of the server itself, which ends in /v1.")


def keep_off_proxies(url: str) -> None:
    """Let every HTTP library of this process, whose requests carry the key, go past web proxies."""
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
