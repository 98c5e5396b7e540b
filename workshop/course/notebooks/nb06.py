"""For notebook 06: the same prompts through Transformers alone.

Where Transformers is missing, steps are counted instead of seconds.

>>> from workshop.course.notebooks import nb06
>>> nb06.slots([3, 1], at_once=2)
[(3, 0), (1, 2)]
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from workshop.course.topics.timeline import Span
from workshop.teaching_model import FOLDER

LENGTHS = [120, 20, 40, 10, 90, 30, 10, 60, 20, 100, 40, 10]  # tokens of twelve answers
TURNS = 2  # of each way with Transformers: the faster one counts


@dataclass(frozen=True)
class TimedAnswers:
    """The time or the steps of some answers, and their tokens.

    `unit` is "seconds", or "steps" where Transformers is missing and no time can be measured.
    `computed_tokens` also counts tokens after the end of an answer, which nobody asked for.
    """

    took: float
    unit: str
    written_tokens: int
    computed_tokens: int

    def __str__(self) -> str:
        if self.unit == "steps":
            return f"{self.took:,.0f} steps"
        return f"{self.took:.2f} seconds, {self.written_tokens / self.took:.0f} tokens/s"


def has_transformers() -> bool:
    """Return True if Transformers and PyTorch are installed; they come with the local server."""
    return all(map(importlib.util.find_spec, ("torch", "transformers")))


def one_after_another(prompts: Sequence[str], lengths: Sequence[int]) -> TimedAnswers:
    """Write each answer alone, with Transformers."""
    return batches(prompts, lengths, at_once=1)


def batches(prompts: Sequence[str], lengths: Sequence[int], at_once: int) -> TimedAnswers:
    """Write the answers with Transformers in static batches.

    A batch is padded, and ends with its longest answer. The faster of two turns counts: other work
    on the machine can only make one slower.

    Args:
        lengths: tokens of each answer.
        at_once: prompts in a batch.
    """
    longest = []
    for start in range(0, len(lengths), at_once):
        longest.append(max(lengths[start : start + at_once]))
    computed_tokens = at_once * sum(longest)
    if not has_transformers():
        return TimedAnswers(sum(longest), "steps", sum(lengths), computed_tokens)
    _generate(prompts[:1], 2)  # the first one loads the model; it does not count
    took_s = []
    for _ in range(TURNS):
        began = time.perf_counter()
        for number, tokens in enumerate(longest):
            _generate(prompts[number * at_once : (number + 1) * at_once], tokens)
        took_s.append(time.perf_counter() - began)
    return TimedAnswers(min(took_s), "seconds", sum(lengths), computed_tokens)


def served(spans: Sequence[Span], at_once: int) -> TimedAnswers:
    """Return what vLLM took for the answers, in the same unit as Transformers.

    Args:
        spans: the requests, as `live.timeline.ask` returns them.
        at_once: threads that sent them. Counted in steps, a free place takes the next answer at
            once.
    """
    tokens = sum(span.tokens for span in spans)
    if has_transformers():
        return TimedAnswers(max(span.ended for span in spans), "seconds", tokens, tokens)
    places = [0] * at_once
    for span in spans:
        places[places.index(min(places))] += span.tokens
    return TimedAnswers(max(places), "steps", tokens, tokens)


def slots(lengths: Sequence[int], at_once: int) -> list[tuple[int, int]]:
    """Return (tokens, steps in which its place is empty) for each answer of static batches."""
    places = []
    for start in range(0, len(lengths), at_once):
        batch = lengths[start : start + at_once]
        for length in batch:
            places.append((length, max(batch) - length))
    return places


def _generate(prompts: Sequence[str], tokens: int) -> None:
    """Write so many tokens behind each prompt, in one padded batch."""
    import torch

    model, tokenizer = _loaded()
    inputs = tokenizer(list(prompts), return_tensors="pt", padding=True)
    with torch.inference_mode():
        model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)


@cache
def _loaded() -> tuple[Any, Any]:  # Transformers chooses both classes when it reads the folder
    """Return the teaching model and its tokenizer.

    The tokenizer pads on the left, so that an answer begins behind its prompt.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # "Loading weights: 100%" of 38 small tensors
    tokenizer = AutoTokenizer.from_pretrained(FOLDER, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.bfloat16)
    return model, tokenizer
