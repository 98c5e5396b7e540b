"""What is drawn of each token: its logprob, raw or processed, and its alternatives, best first. No widgets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workshop.use.logprobs import Row, processed
from workshop.use.sampling_settings import Settings

LONGEST_LIST = 12


@dataclass(frozen=True)
class Cell:
    """One token as drawn: `logprob` is raw or processed, as the viewer is told; `listed` its alternatives."""

    row: Row
    logprob: float | None
    listed: tuple[tuple[str, float, int | None], ...]  # text, logprob, rank

    @property
    def bits(self) -> float | None:
        """The surprise."""
        return None if self.logprob is None else -self.logprob / math.log(2) + 0.0


def cells(rows: Sequence[Row], settings: Settings | None = None) -> list[Cell]:
    """Return what is to be drawn; with settings the completion's logprobs are processed (the prompt has none)."""
    found, so_far = [], []
    for row in rows:
        listed: Mapping[str, float] = {one.token: one.logprob for one in row.alternatives}
        logprob = row.logprob
        if row.part == "completion":
            if settings is not None and listed and logprob is not None:
                listed = processed(row, settings, output_tokens=so_far)
                logprob = listed[row.token]
            so_far.append(row.token)
        ranks = {one.token: one.rank for one in row.alternatives}
        best_first = sorted(listed.items(), key=lambda item: -item[1])[:LONGEST_LIST]
        if row.token in listed and all(token != row.token for token, _ in best_first):
            best_first.append((row.token, listed[row.token]))
        found.append(Cell(row, logprob, tuple((token, value, ranks[token]) for token, value in best_first)))
    return found
