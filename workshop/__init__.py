"""Distributed LLM inference with vLLM: plan, launch, use, reconcile, learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workshop.use.client import Client

__version__ = "0.1.0"


def connect(name: str | None = None) -> Client:
    """Return a client of the running server; see `workshop.use.client.connect`."""
    from workshop.use.client import connect as _connect  # openai takes 0.5 s to import: only when needed

    return _connect(name)
