"""What rows of test_every_check share: tests/course/rows has a file of them a notebook, with its name.

ROWS = {key: (right answers, wrong answers, each with words that it gets)}; typical wrong answers are in the set itself.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

URL = "http://127.0.0.1:8000/v1"
# of the manifest of notebook 8
MANIFEST_FAULTS = ["dtype", "startup", "shm", "volume", "key"]
# 59, 59, 79, 186 and 176 GiB for the 228.4 of notebook 8's model
TOO_SMALL_MACHINES = [
    "Standard_NC64as_T4_v3",
    "g4dn.12xlarge",
    "Standard_NC24ads_A100_v4",
    "Standard_NC80adis_H100_v5",
    "g5.48xlarge",
]
OUTPUT = object()  # stands for the path of a batch's output: four lines, one of them twice


def response(tokens: int = 16, reason: str = "stop", stop: str | None = ".") -> dict:
    """A server's answer to the teaching model's five tokens of "San Francisco is a", as JSON has it."""
    usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    return {
        "choices": [{"text": " city", "finish_reason": reason, "stop_reason": stop}],
        "usage": usage,
    }


class Typed:
    """The same as openai's package gives it."""

    def __init__(self, data: dict):
        self.model_dump = lambda: data


def rows_of(notebook: str) -> dict:
    """Return the rows of a notebook (`01_memory`)."""
    path = Path(__file__).parents[1] / "course" / "rows" / f"{notebook}.py"
    spec = importlib.util.spec_from_file_location(f"rows_{notebook}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ROWS
