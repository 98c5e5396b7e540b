"""A GET that ends: certificates are loaded where there is something to check."""

import httpx
import pytest

from workshop.engine import http


@pytest.mark.parametrize(
    ("address", "options", "checked"),
    [
        ("http://127.0.0.1:1/metrics", {}, False),
        (
            "http://127.0.0.1:1/openapi.json",
            {"verify": True, "proxy": None, "follow_redirects": False},
            False,
        ),
        ("https://127.0.0.1:1/metrics", {}, True),
        ("http://127.0.0.1:1/api", {"follow_redirects": True}, True),  # it may be sent on to https
        ("http://127.0.0.1:1/metrics", {"proxy": "https://127.0.0.1:1"}, True),
    ],
)
def test_certificates_are_checked_wherever_there_are_some(monkeypatch, address, options, checked):
    made, usual = [], httpx.AsyncClient
    monkeypatch.setattr(
        httpx, "AsyncClient", lambda **arguments: made.append(arguments) or usual(**arguments)
    )
    with pytest.raises(httpx.ConnectError):
        http.get(address, trust_env=False, **options)
    assert made[0]["verify"] is checked
