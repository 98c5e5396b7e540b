"""What recorder.py recorded: answers of the teaching model's server, and simulations."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path


@cache
def recorded(name: str) -> dict:
    """Return a file of recorded/: answers, chat, prompts, one_word or capacity."""
    return json.loads(
        (Path(__file__).parents[1] / "recorded" / f"{name}.json").read_text(encoding="utf-8")
    )


def answers() -> dict:
    """Return what recorder.py recorded of the teaching model's server."""
    return recorded("answers")
