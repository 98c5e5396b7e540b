"""Which server is meant, and how it is reached: the key goes to that server, and to nobody between or behind it.

A server with a record is asked directly, whatever http_proxy says: it is on this machine or in this cluster. An
address that the user gives may lie outside. With https, the environment's web proxy counts, and that is said: the proxy
sees the address alone. With plain http it would see the key and every prompt, so it is used only if the user names it in
WORKSHOP_PROXY. `no_proxy` counts for both. No redirect is followed, as it may lead to another host.

`proxy_to` owns this decision, `tls` the one which certificates are trusted: every client takes both from here.
"""

import functools
import ipaddress
import os
import ssl
import sys
from urllib.parse import SplitResult, urlsplit
from urllib.request import (
    getproxies_environment,
    proxy_bypass_environment,  # pyright: ignore[reportAttributeAccessIssue]  (typeshed lacks it)
)

from workshop.engine.http import PROXY_VARIABLE, trusted_proxy
from workshop.errors import BadInput, WorkshopError, plain
from workshop.servers import records
from workshop.servers.records import ServerRecord

CHECK_ADDRESS = "Check the address, and that the server runs there; it ends in /v1."
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
            f"{said_by} is {url!r}, which is no address.",
            "Use http://HOST:PORT/v1; key: WORKSHOP_API_KEY.",
        )
    key = os.environ.get("WORKSHOP_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise BadInput(
            "WORKSHOP_API_KEY holds characters that no key has.",
            "Set it to the server's key alone.",
        )
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
            raise WorkshopError(
                f"Several servers are running: {names}.", f"Choose one: connect({ready[0].name!r})."
            )
        doubtful = doubtful or next((record for record in named if record.in_doubt), None)
        if named and (record := named[-1]).state == "starting":
            said = f"The server {record.name!r} is still starting."
            raise WorkshopError(
                said, "Wait until `workshop servers` says ready, then connect() again."
            )
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
    host = parts.hostname or ""
    if proxy_bypass_environment(parts.netloc.rpartition("@")[2]) or _this_machine(host):
        return None
    proxy, variable = _named_proxy(parts.scheme)
    if not proxy:
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    place = urlsplit(proxy)
    shown, direct = f"{_host_and_port(place)} ({variable})", f"no_proxy={host}"
    if parts.scheme == "http" and variable != PROXY_VARIABLE:
        direct = (
            f"{url} is asked directly: the web proxy {shown} could read the key and every prompt"
        )
        _say(f"{direct}. {PROXY_VARIABLE}=http://HOST:PORT names a proxy that may.")
        return None
    if place.scheme not in ("http", "https") or not place.hostname:
        said = f"{url} lies behind the proxy {shown}, and {place.scheme} is no web proxy."
        raise BadInput(
            said, f"Set {direct} to ask it directly, or give a proxy that begins with http://."
        )
    sees = (
        "it sees the address, not the key"
        if parts.scheme == "https"
        else "it can read the key and every prompt"
    )
    _say(f"{url} is asked through the web proxy {shown}: {sees}. {direct} asks it directly.")
    return proxy


def _named_proxy(scheme: str) -> tuple[str, str]:
    """Return (the web proxy that the environment names for a scheme, or '', and the variable that names it)."""
    if own := trusted_proxy():
        return own, PROXY_VARIABLE
    named = getproxies_environment()
    variable = scheme if named.get(scheme) else "all"
    return named.get(variable, ""), f"{variable}_proxy"


def _host_and_port(place: SplitResult) -> str:
    try:
        return f"{place.hostname}:{place.port or 80}"
    except ValueError:
        return str(place.hostname)


def tls() -> ssl.SSLContext | None:
    """Return what to check a server's certificate with, where the user names certificates; None: the usual ones."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not file and not folder:
        return None
    try:
        return ssl.create_default_context(cafile=file or None, capath=folder or None)
    except (OSError, ssl.SSLError) as error:
        said = f"The certificates of SSL_CERT_FILE={file or ''} SSL_CERT_DIR={folder or ''} cannot be read ({error})."
        raise BadInput(said, "Give a file of certificates in PEM, or unset the variable.") from None


def options(proxy: str | None) -> dict:
    """Return what httpx's and openai's clients are made with, so that they obey no proxy but this, and no redirect."""
    return {"trust_env": False, "proxy": proxy, "follow_redirects": False, "verify": tls() or True}


def remedy_for(error: BaseException, url: str) -> str:
    """Return what to do about a server that cannot be reached: one of ours, or one that the user gave an address of."""
    words = _words_of(error)
    if "CERTIFICATE_VERIFY_FAILED" in words or "certificate" in words.lower():
        if "Hostname mismatch" in words or "doesn't match" in words or "not valid for" in words:
            return "Its certificate is for another name: give the address with the name that the certificate has."
        if "expired" in words:
            return "Its certificate has expired: whoever runs the server renews it. Check this machine's date, too."
        return ("Its certificate is signed by nobody whom this machine trusts: ask whoever runs the server for the "
                "certificate of the signing authority (PEM), and set SSL_CERT_FILE to that file.")  # fmt: skip
    if any(
        words_of_plain in words
        for words_of_plain in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
    ):
        return f"It does not speak TLS: give the address as http{url.removeprefix('https')}."
    if is_tls(error):
        return (
            "The TLS connection failed: check the address, and whether a proxy stands in between."
        )
    return ""


def is_tls(error: BaseException) -> bool:
    """Whether a connection failed because of TLS, which no waiting mends."""
    words = _words_of(error)
    return "[SSL" in words or "SSLError" in words or "CertificateError" in words


def _words_of(error: BaseException) -> str:
    """Return the names and texts of an error and of what caused it."""
    words: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(words) < 8:
        words.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__ or cause.__context__
    return "\n".join(words)


def redirected(url: str, status: int, location: str | None) -> WorkshopError | None:
    """Return the error for an answer that sends the asker, and the key, elsewhere; None if it is no such answer."""
    if not 300 <= status < 400:
        return None
    said = f"{url} answers {status} and leads to {(location or 'nowhere')[:200]}, where no key is sent."
    return WorkshopError(said, "Give the address of the server itself, which ends in /v1.")


def keep_off_proxies(url: str) -> None:
    """Let every HTTP library of this process ask this server directly: what learners send themselves has its key."""
    host, listed = (
        urlsplit(url).hostname,
        os.environ.get("no_proxy", os.environ.get("NO_PROXY", "")),
    )
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
