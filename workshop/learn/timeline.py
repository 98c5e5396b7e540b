"""Real requests on one time axis: who waited, who ran beside whom. Continuous batching, seen from outside."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from workshop.learn.widgets import style

WIDTH, ROW, LEFT = 820, 20, 110


@dataclass(frozen=True)
class Span:
    """One request; times in seconds since the first was sent.

    Attributes:
        sent, first, ended: sent by the client, first token seen, last token seen.
        tokens: that were generated.
    """

    name: str
    sent: float
    first: float
    ended: float
    tokens: int

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.first - self.sent

    @property
    def e2el_s(self) -> float:
        """End-to-end latency."""
        return self.ended - self.sent


def ask(client, prompts: Sequence[str], at_once: int, max_tokens: Sequence[int], **sampling) -> list[Span]:
    """Send the prompts through `at_once` threads, streaming, and return what happened when.

    Args:
        max_tokens: of each prompt: exactly so many tokens are generated.
    """
    began = time.monotonic()

    def one(job: tuple[int, str, int]) -> Span:
        number, prompt, tokens = job
        sent = time.monotonic() - began
        stream = client.complete(prompt, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, stream=True, **sampling)
        first = None
        for _ in stream:
            first = time.monotonic() - began if first is None else first
        ended = time.monotonic() - began
        return Span(f"{number}: {tokens} tokens", sent, first if first is not None else ended, ended, tokens)

    jobs = [
        (number, prompt, tokens) for number, (prompt, tokens) in enumerate(zip(prompts, max_tokens, strict=True), 1)
    ]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, jobs))


def timeline_html(spans: Sequence[Span]) -> str:
    """Return the picture: a bar a request, pale until its first token, full while tokens come."""
    total = max(span.ended for span in spans)
    width, height = WIDTH - LEFT - 12, ROW * len(spans)
    text = f'font-size="11" fill="{style.TEXT}" font-family="{html.escape(style.FONT, quote=True)}"'

    def x(seconds: float) -> float:
        return LEFT + width * seconds / total

    bars = []
    for number, span in enumerate(spans):
        y, middle = number * ROW + 3, number * ROW + 14
        bars.append(f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end" {text}>{html.escape(span.name)}</text>')
        for start, end, colour, opacity in (
            (span.sent, span.first, style.ORANGE, 0.55),
            (span.first, span.ended, style.BLUE, 1),
        ):
            bars.append(
                f'<rect x="{x(start):.1f}" y="{y}" width="{max(1.0, x(end) - x(start)):.1f}" height="{ROW - 6}" '
                f'rx="2" fill="{colour}" fill-opacity="{opacity}"/>'
            )
    axis = "".join(
        f'<line x1="{x(total * part):.0f}" x2="{x(total * part):.0f}" y1="0" y2="{height}" '
        f'stroke="{style.LINE}" stroke-dasharray="2 4"/><text x="{x(total * part):.0f}" y="{height + 14}" '
        f'text-anchor="{anchor}" {text}>{total * part:.2f} s</text>'
        for part, anchor in ((0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1, "end"))
    )
    said = html.escape(
        f"Timeline of {len(spans)} requests over {total:.2f} seconds. "
        + " ".join(
            f"{span.name}: sent at {span.sent:.2f}, first token {span.first:.2f}, ended {span.ended:.2f}."
            for span in spans
        ),
        quote=True,
    )
    legend = (
        f'<span style="color:{style.BLUE}">■</span> tokens come &nbsp; '
        f'<span style="color:{style.ORANGE};opacity:.7">■</span> sent, no token yet'
    )
    return style.panel(
        f'<div style="font-size:12px;margin-bottom:4px">{legend}</div><svg viewBox="0 0 {WIDTH} '
        f'{height + 18}" width="100%" style="max-width:{WIDTH}px" aria-hidden="true">{axis}'
        f"{''.join(bars)}</svg>",
        label=said,
    )


class Timeline:
    """Spans that draw themselves in a notebook."""

    def __init__(self, spans: Sequence[Span]):
        self.spans = list(spans)

    def __repr__(self) -> str:
        return "\n".join(
            f"{span.name:>16}  sent {span.sent:6.2f} s  first token {span.first:6.2f} s  ended {span.ended:6.2f} s"
            for span in self.spans
        )

    def _repr_html_(self) -> str:
        return timeline_html(self.spans)
