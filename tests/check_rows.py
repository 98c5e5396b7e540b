"""What rows of test_every_check share: tests/course/rows has a file of them a notebook, with its name.

ROWS = {key: (right answers, wrong answers, each with words that it gets)}
"""

from __future__ import annotations

URL = "http://127.0.0.1:8000/v1"
OUTPUT = object()  # stands for the path of a batch's output: four lines, one of them twice


def response(
    tokens: int = 16, reason: str = "stop", stop: str | None = ".", prompt: int = 5
) -> dict:
    """A server's answer, as JSON has it."""
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    return {
        "choices": [{"text": " city", "finish_reason": reason, "stop_reason": stop}],
        "usage": usage,
    }


class Typed:
    """The same as openai's package gives it."""

    def __init__(self, data: dict):
        self.model_dump = lambda: data
