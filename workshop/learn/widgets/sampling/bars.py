"""The bars of the next token: what is drawn of a distribution under some settings. Pure: numbers in, numbers out.

A token keeps its row and the axis its end while sliders move: both come from the model's own distribution, which no
slider changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workshop.use.distribution import entropy_bits
from workshop.use.sampling import Pipeline, Step, Token

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
    result: Pipeline, shown: list[Token], label: Callable[[Token], str], *, pinned: Pipeline | None = None, generated=()
) -> Bars:
    """Return what is to be drawn of one pipeline (and of a second one, for comparison); `generated` are tokens."""
    generated, first, last = list(generated), result.steps[0], result.steps[-1]
    model, sampled, pin = _share(first), _share(last), pinned and _share(pinned.steps[-1])
    rows = [
        Bar(label(t), model(t), sampled(t), pin and pin(t), _removed_by(result, t), generated.count(t)) for t in shown
    ]
    axis = next(end for end in AXES if end >= min(1.0, 1.5 * max(row.model for row in rows)))
    shares = zip(*((row.model, row.sampled, row.pinned or 0.0) for row in rows), strict=True)
    rest = [max(0.0, 1.0 - sum(each)) for each in shares]
    others = Bar("all others", *rest[:2], pin and rest[2])
    chain = tuple((step.name, len(step.probabilities)) for step in result.steps)
    bits = (entropy_bits(first.probabilities), entropy_bits(last.probabilities))
    return Bars(tuple(rows), axis, others, chain, bits, first.outside, len(result.border))


def _share(step: Step) -> Callable[[Token], float]:
    """Return a token's share of the whole distribution, what is not listed included."""
    return lambda token: step.probabilities.get(token, 0.0) * (1.0 - step.outside)


def _removed_by(result: Pipeline, token: Token) -> str:
    return next((step.name for step in result.steps if token not in step.probabilities), "")
