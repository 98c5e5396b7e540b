"""Real requests on one time axis: who waited, who ran beside whom.

Continuous batching, seen from outside.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

from workshop.course.figure import figure


@dataclass(frozen=True)
class Span:
    """One request; times in seconds since the first was sent, as the client saw them."""

    name: str
    sent: float
    first: float  # token
    ended: float
    tokens: int  # that were generated
    # when each piece of the answer came: a token, or several where the client was slow
    seen: tuple[float, ...] = ()

    @property
    def ttft_s(self) -> float:
        return self.first - self.sent

    @property
    def e2el_s(self) -> float:
        return self.ended - self.sent


def ask(
    client, prompts: Sequence[str], at_once: int, max_tokens: Sequence[int], **sampling
) -> list[Span]:
    """Send the prompts through `at_once` threads, and return what happened when.

    Each answer has exactly its max_tokens.
    """
    began = time.monotonic()

    def send(number: int, prompt: str, tokens: int) -> Span:
        sent = time.monotonic() - began
        stream = client.complete(
            prompt, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, stream=True, **sampling
        )
        times_s = []
        for _ in stream:
            times_s.append(time.monotonic() - began)
        if not times_s:
            times_s.append(time.monotonic() - began)
        name = f"{number}: {tokens} tokens"
        return Span(name, sent, times_s[0], times_s[-1], tokens, tuple(times_s))

    jobs = zip(prompts, max_tokens, strict=True)
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda number, job: send(number, *job), count(1), jobs))


def parts(spans: Sequence[Span]) -> dict[str, dict[str, float]]:
    """Return three times of each request, in seconds.

    Before it was sent (without a name), until its first token, and from the first to the last
    token.
    """
    before, waiting, answering = {}, {}, {}
    for span in spans:
        before[span.name] = span.sent
        waiting[span.name] = span.ttft_s
        answering[span.name] = span.ended - span.first
    return {"": before, "sent, no token yet": waiting, "tokens come": answering}


def draw(spans: Sequence[Span]):
    """Draw a bar for each request on one time axis: the wait for a token, then the tokens."""
    total = max(span.ended for span in spans)
    description = f"Timeline of {len(spans)} requests over {total:.2f} seconds."
    for span in spans:
        description += f" {span.name}: sent at {span.sent:.2f}, first token {span.first:.2f},"
        description += f" ended {span.ended:.2f}."
    title = f"{len(spans)} requests in {total:.1f} seconds"
    seconds = "seconds since the first was sent"
    return figure(parts(spans), "stacked", xlabel=seconds, title=title, description=description)
