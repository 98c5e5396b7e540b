"""Real requests on one time axis: who waited, who ran beside whom.

Continuous batching, seen from outside.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workshop.course.drawing.figure import figure


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
    """Send the prompts, `at_once` at a time, and return what happened when.

    Each answer has exactly its max_tokens.

    Raises WorkshopError: a request has no answer.
    """
    from workshop.measure import timed  # here, as notebooks in a browser only draw

    bodies = []
    for prompt, tokens in zip(prompts, max_tokens, strict=True):
        exactly = {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
        bodies.append({"prompt": prompt, **exactly, **sampling})

    async def send() -> list[timed.Timed]:
        async with timed.TimedSender(client) as sender:
            return await timed.send_together(sender, bodies, at_once)

    spans = []
    for number, (answer, tokens) in enumerate(zip(timed.run(send()), max_tokens, strict=True), 1):
        if answer.error:
            raise answer.error
        name, seen = f"{number}: {tokens} tokens", tuple(answer.tokens_s)
        spans.append(Span(name, answer.sent_s, seen[0], seen[-1], tokens, seen))
    return spans


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
