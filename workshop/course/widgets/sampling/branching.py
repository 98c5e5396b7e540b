"""The branching of a text into its next words: the stem is the text, and a branch is as wide as its word is probable.

Shares in, HTML out. A picture replaces the one before it, so each carries
both states: the old one in the variables that end in 0, from which CSS glides to the new one.
docs/site/live/first_words.js draws the same in a page; tests/browser/test_first_page.py compares.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from workshop.course.drawing.html import Html, div, join, span, tag

LABEL_PX = 18  # height of a row whose word has no probability
WHOLE_PX = 88  # what a probability of 1 adds: the height of the stem
THINNEST_PX = 0.7  # a branch that can still be seen
GLIDE_S = 0.3  # as long as in style.css
STEM_CHARACTERS = 26  # of the text's end, beside the stem
NOTHING = Html()


class SliderSteps:
    """The steps of a picture: those of a slider that is dragged come fast, one after the other."""

    def __init__(self) -> None:
        self._last = 0.0

    def come_fast(self) -> bool:
        """Note a step; return True if the glide of the one before it is not over yet."""
        before, self._last = self._last, time.monotonic()
        return self._last - before < GLIDE_S


@dataclass(frozen=True)
class Word:
    """One row: a word with its share of the probability now and in the picture before."""

    name: Html
    share: float
    before: float = 0.0
    more: Html = NOTHING  # what stands behind the name
    look: str = "blue"


@dataclass(frozen=True)
class BranchPlace:
    """Places of a word's branch: where it leaves the stem and where it ends, in pixels from the top."""

    begin: float
    end: float
    height: float  # of its row
    width: float  # of its branch


def places(shares: Sequence[float]) -> list[BranchPlace]:
    """Return the places of words by their shares; all rows together have the same height for any shares."""
    begin = (height(len(shares)) - WHOLE_PX * sum(shares)) / 2
    top = 0.0
    result = []
    for share in shares:
        width = share * WHOLE_PX
        row = LABEL_PX + width
        result.append(BranchPlace(begin + width / 2, top + row / 2, row, width))
        begin += width
        top += row
    return result


def height(rows: int) -> float:
    """Return the height of the picture in pixels."""
    return rows * LABEL_PX + WHOLE_PX


def end_of(text: str) -> str:
    """Return the last words of a text, as they stand beside the stem."""
    line = " ".join(text.split())
    if len(line) <= STEM_CHARACTERS:
        return line
    cut = line[-STEM_CHARACTERS:]
    if " " in cut:
        cut = cut[cut.index(" ") + 1 :]
    return f"… {cut}"


def branching(
    text: str,
    next_words: Sequence[Word],
    head: Html = NOTHING,
    *,
    look: str = "",
    is_still: bool = False,
) -> Html:
    """Return the picture: the end of the text, a branch for each word, and the words with what stands behind them.

    Args:
        text: what the words follow.
        next_words: from top to bottom.
        head: what stands above the words.
        look: further classes of the picture.
        is_still: it does not glide: a slider that is dragged moves it in small steps already.
    """
    classes = ["branching", look]
    if not is_still:
        classes.append("glides")
    now = places([word.share for word in next_words])
    before = places([word.before for word in next_words])
    branches, rows = [], []
    for word, new, old in zip(next_words, now, before, strict=True):
        branches.append(_branch(word, new, old))
        place = f"height:{new.height:.1f}px;--h0:{old.height:.1f}px"
        color = f" bg-{word.look}" if word.share else ""
        node = tag("i", cls=f"node{color}")
        rows.append(div(node, word.name, word.more, cls="word", style=place))
    whole = height(len(next_words))
    flow = Html(
        f'<svg class="flow" viewBox="0 0 1 {whole}" preserveAspectRatio="none" aria-hidden="true" '
        f'style="height:{whole}px">{join(branches)}</svg>'
    )
    stem = div(span(end_of(text), cls="text"), tag("i", cls="trunk bg-blue"), cls="stem")
    return div(
        div(head, cls="head"),
        stem,
        flow,
        div(*rows, cls="words"),
        cls=" ".join(filter(None, classes)),
    )


def _branch(word: Word, new: BranchPlace, old: BranchPlace) -> Html:
    """Return a branch: a curve from the stem to its word, placed by a transform, which CSS can move."""
    place = f"transform:{_transform(new)};stroke-width:{_width(new)}"
    place += f";--t0:{_transform(old)};--w0:{_width(old)}"
    return Html(f'<path class="of-{word.look}" d="M0 0C.5 0 .5 1 1 1" style="{place}"/>')


def _transform(place: BranchPlace) -> str:
    rise = place.end - place.begin
    if abs(rise) < 0.01:  # a transform that flattens the curve would hide it
        rise = 0.01
    return f"translateY({place.begin:.2f}px) scaleY({rise:.2f})"


def _width(place: BranchPlace) -> str:
    if place.width == 0:
        return "0px"
    return f"{max(THINNEST_PX, place.width):.2f}px"
