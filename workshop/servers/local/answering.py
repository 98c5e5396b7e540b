"""Ask a server for a completion: does it answer with its model, and can waiting change that?"""

import contextlib
import json

import httpx

from workshop.engine import http
from workshop.errors import WorkshopError
from workshop.servers import hang
from workshop.servers.records import ServerRecord

REFUSALS = (400, 404, 422, 501)  # HTTP: waiting does not change these


def alive(address: str, within_s: float) -> bool:
    """Return whether a GET of an address that needs no key succeeds, past a site's web proxy."""
    with contextlib.suppress(httpx.HTTPError):
        return http.get(address, within_s, trust_env=False)[0].is_success
    return False


def answers(record: ServerRecord) -> bool:
    """Return whether the server completes one token with the model that it should.

    Raises:
        WorkshopError: it refuses.
    """
    body = {"model": record.model, **hang.ONE_TOKEN["/v1/completions"]}
    key = {"Authorization": f"Bearer {record.api_key}"}
    try:  # never through a site's web proxy, nor where a redirect leads: the key is for this server
        answer = httpx.post(
            f"{record.url}/completions", json=body, headers=key, timeout=60, trust_env=False
        )
        if answer.status_code not in REFUSALS:
            return answer.status_code == 200 and answer.json()["model"] == record.model
    except (
        httpx.HTTPError,
        httpx.InvalidURL,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ):
        return False
    raise _refused(record, answer)


def _refused(record: ServerRecord, answer: httpx.Response) -> WorkshopError:
    message = answer.content[:2000].decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        body = json.loads(message)
        message = body.get("detail") or body["error"]["message"] or ""
    message = (str(message).strip().splitlines() or ["no word"])[0][:160].rstrip(".")
    why = (
        f"The server is up, but refuses to complete a prompt with {record.model} "
        f"({answer.status_code}): {message}."
    )
    if "does not exist" in message:
        return WorkshopError(why, "Another server took this port: `workshop servers` lists yours.")
    return WorkshopError(
        why, "Serve a model that generates text, with its tokenizer; an embedding model does not."
    )
