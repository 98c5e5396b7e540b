"""A GET that ends: certificates are loaded where there is something to check."""

import httpx
import pytest

from workshop.engine import http


def test_certificates_are_checked_wherever_there_are_some(monkeypatch, subtests):
    made, usual = [], httpx.AsyncClient
    monkeypatch.setattr(
        httpx, "AsyncClient", lambda **arguments: made.append(arguments) or usual(**arguments)
    )
    for address, options, checked in [
        ("http://127.0.0.1:1/metrics", {}, False),
        (
            "http://127.0.0.1:1/openapi.json",
            {"verify": True, "proxy": None, "follow_redirects": False},
            False,
        ),
        ("https://127.0.0.1:1/metrics", {}, True),
        ("http://127.0.0.1:1/api", {"follow_redirects": True}, True),  # it may be sent on to https
        ("http://127.0.0.1:1/metrics", {"proxy": "https://127.0.0.1:1"}, True),
    ]:
        with subtests.test(f"{address} {options}"):
            with pytest.raises(httpx.ConnectError):
                http.get(address, trust_env=False, **options)
            assert made.pop()["verify"] is checked
