"""A class on a plan: the course's cells as a load for the simulation, before anybody pays for the GPUs."""

from __future__ import annotations

import random

from workshop.classroom.plan import course, starts
from workshop.classroom.run import EVERY_S
from workshop.simulate.arrivals import Arrival

CHARACTERS_A_TOKEN = 4  # of English text, with the vocabularies of today's models
TEMPLATE_TOKENS = 20  # that a chat template adds


def arrivals(learners: int, seconds: float | None, seed: int) -> list[Arrival]:
    """Return what a class sends, in order: every cell of every learner; `n` samples are n requests with one prompt.

    All requests of a cell come at once, also where a learner's own limit would hold some back: the worst case.
    """
    found = []
    for learner in range(learners):
        dice = random.Random(f"{seed} {learner}")
        cells = course(dice)
        every_s = min(EVERY_S, (seconds or EVERY_S * len(cells)) / len(cells))
        for cell, at in zip(cells, starts(len(cells), every_s, dice), strict=True):
            for number, ask in enumerate(cell.asks):
                tokens = len(ask.text) // CHARACTERS_A_TOKEN + 1 + TEMPLATE_TOKENS * ("messages" in ask.body)
                name = f"{learner} {cell.name} {number}"
                found += [Arrival(at, tokens, ask.body["max_tokens"], name, tokens)] * ask.body.get("n", 1)
    return sorted(found, key=lambda one: one.arrival_s)
