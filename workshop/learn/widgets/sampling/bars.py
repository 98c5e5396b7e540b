"""The bars of the next token: what is drawn of a distribution under some settings. Pure: numbers in, numbers out.

A token keeps its row and the axis its end while sliders move: both come from the model's own distribution, which no
slider changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workshop.use.distribution import entropy_bits
from workshop.use.sampling import Pipeline, Token

ROWS = 14
AXES = (0.05, 0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Bar:
    """One row: the model's probability, the sampled one, and that of the pinned settings (None without)."""

    label: str
    model: float
    sampled: float
    pinned: float | None = None
    removed_by: str = ""
    generated: int = 0


@dataclass(frozen=True)
class Bars:
    """All rows, and what stands below them."""

    rows: tuple[Bar, ...]
    axis: float  # the probability at the right end
    others: Bar
    other_tokens: int
    chain: tuple[tuple[str, int], ...]  # parameter → tokens left
    bits: tuple[float, float]  # entropy of the model's and of the sampled distribution
    outside: float = 0.0  # share of the model's distribution that is not listed
    border: int = 0


def rows_shown(model: dict[Token, float], generated: Iterable[Token], count: int = ROWS) -> list[Token]:
    """Return which tokens get a row: the model's most probable, and what was generated (penalties move these)."""
    ranked = sorted(model, key=model.__getitem__, reverse=True)  # nearly free: it arrives sorted
    shown = ranked[:count]
    for token in dict.fromkeys(reversed(list(generated))):
        if token in model and token not in shown and len(shown) < count + 2:
            shown.append(token)
    return shown


def bars(
    result: Pipeline,
    shown: list[Token],
    label: Callable[[Token], str],
    *,
    pinned: Pipeline | None = None,
    generated: Iterable[Token] = (),
) -> Bars:
    """Return what is to be drawn of one pipeline (and of a second one, for comparison)."""
    generated = list(generated)
    model, last = result.steps[0], result.steps[-1]
    scale, visible = 1.0 - model.outside, 1.0 - last.outside
    rows = tuple(
        Bar(
            label(token),
            model.probabilities.get(token, 0.0) * scale,
            last.probabilities.get(token, 0.0) * visible,
            _of(pinned, token),
            _removed_by(result, token),
            generated.count(token),
        )
        for token in shown
    )
    top = max(row.model for row in rows)
    axis = next(end for end in AXES if end >= min(1.0, 1.5 * top))
    others = Bar(
        "all others",
        max(0.0, 1.0 - sum(row.model for row in rows)),
        max(0.0, 1.0 - sum(row.sampled for row in rows)),
        None if pinned is None else max(0.0, 1.0 - sum(row.pinned or 0.0 for row in rows)),
    )
    left = len(last.probabilities) - sum(row.sampled > 0 for row in rows)
    chain = tuple((step.name, len(step.probabilities)) for step in result.steps)
    return Bars(
        rows,
        axis,
        others,
        left,
        chain,
        (entropy_bits(model.probabilities), entropy_bits(last.probabilities)),
        model.outside,
        len(result.border),
    )


def _of(pinned: Pipeline | None, token: Token) -> float | None:
    if pinned is None:
        return None
    last = pinned.steps[-1]
    return last.probabilities.get(token, 0.0) * (1.0 - last.outside)


def _removed_by(result: Pipeline, token: Token) -> str:
    if token in result.steps[-1].probabilities:
        return ""
    return next((step.name for step in result.steps if token not in step.probabilities), "")
