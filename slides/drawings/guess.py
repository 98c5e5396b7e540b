"""Speculation: a draft guesses, one step checks; how many tokens a step gives, and why that fades as the batch grows."""

from __future__ import annotations

from functools import cache

from drawings.canvas import BLUE, GREEN, HAIR, INK, ORANGE, PALE, SOFT, VERMILLION, Canvas
from drawings.charts import Chart, chart
from workshop.course.topics import speculation
from workshop.engine.planning import plan

GUESSES = (1, 3, 5)  # tokens that the draft guesses
TARGET, DRAFT, GPU, SPLIT = "llama-3.1-70b", "llama-3.2-1b", "h100", 4
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ACCEPTED = 0.7  # share of the guesses that the model agrees with, in the chart of batches


def tokens_a_step(accepted: float, guesses: int) -> float:
    """Return the tokens that a step gives on average, if each guess is right with the same probability: 1 + a + a² + …

    Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192, equation 1.
    """
    return sum(accepted**n for n in range(guesses + 1))


@cache
def speedup(batch: int, guesses: int) -> float:
    """Return how many times as fast a batch decodes with a draft, by the plan, as in notebook 12."""
    target, draft = (
        plan(model, GPU, tensor_parallel_size=SPLIT).deployment for model in (TARGET, DRAFT)
    )
    return speculation.speedup(target, draft, batch, guesses, tokens_a_step(ACCEPTED, guesses))


GUESSED, RIGHT = ("a", "city", "on", "the", "bay"), ("a", "city", "in")


def guess() -> Canvas:
    """A draft writes five tokens, the model checks them in one step, and keeps what it agrees with."""
    c = Canvas(
        400,
        "A small draft model guesses five tokens, one after the other: a, city, on, the, bay. The large model checks all five in one "
        "step. It agrees with the first two, writes 'in' in place of 'on', and the rest is thrown away: one step, three tokens.",
    )
    x, w = 300, 150
    c.text(0, 74, "the draft guesses", 23, bold=True).text(
        0, 104, "small, five quick steps", 20, fill=SOFT
    )
    c.text(0, 214, "the model checks", 23, bold=True).text(
        0, 244, "large, one step for all", 20, fill=SOFT
    )
    c.text(0, 342, "what stays", 23, bold=True).text(
        0, 372, "as if there were no draft", 20, fill=SOFT
    )
    for n, word in enumerate(GUESSED):
        at = x + n * (w + 12)
        c.label(at, 44, w, 66, word, ORANGE, size=24, ink=INK)
        accepted, wrong = n < len(RIGHT) - 1, n == len(RIGHT) - 1
        c.arrow(
            at + w / 2,
            114,
            at + w / 2,
            176,
            GREEN if accepted else VERMILLION if wrong else HAIR,
            3,
        )
        verdict = "✓" if accepted else f"✗ {RIGHT[-1]}" if wrong else "thrown away"
        c.label(at, 184, w, 66, verdict, PALE, size=24 if n < len(RIGHT) else 20, stroke=GREEN if accepted else VERMILLION if wrong else HAIR,
                ink=INK if n < len(RIGHT) else SOFT, bold=accepted)  # fmt: skip
        if n < len(RIGHT):
            c.arrow(at + w / 2, 254, at + w / 2, 306, GREEN if accepted else BLUE, 3)
            c.label(at, 312, w, 66, RIGHT[n], BLUE, size=24, bold=True)
    return c.text(x + 3 * (w + 12), 352, f"{len(RIGHT)} tokens in one large step", 22, bold=True)


def guess_tokens() -> Chart:
    """Tokens a step against the share of guesses that are accepted."""
    shares = [n / 50 for n in range(51)]
    description = "; ".join(
        f"with {k} guesses {tokens_a_step(0.5, k):.2f} at one half, {tokens_a_step(0.8, k):.2f} at 0.8"
        for k in GUESSES
    )
    with chart(
        400,
        f"Tokens a step against the share of guesses that are accepted: {description}. If all are right: one more than guesses.",
    ) as c:
        for k, colour in zip(GUESSES, (BLUE, GREEN, VERMILLION), strict=True):
            c.axes.plot(shares, [tokens_a_step(share, k) for share in shares], color=colour)
            c.axes.annotate(
                f"{k} guess{'es' * (k > 1)}",
                (1, k + 1),
                (8, -6),
                textcoords="offset points",
                color=colour,
            )
        c.axes.set(
            xlabel="share of the guesses that the model accepts",
            ylabel="tokens a step",
            xlim=(0, 1),
            ylim=(0.6, 6.4),
        )
    return c


def guess_batch() -> Chart:
    """The gain of a draft against requests at once."""
    rows = {k: [speedup(batch, k) for batch in BATCHES] for k in GUESSES}
    description = "; ".join(
        f"{k} guesses {gains[0]:.2f} times at one request, {gains[-1]:.2f} at {BATCHES[-1]}"
        for k, gains in rows.items()
    )
    with chart(
        400, f"Speed with a draft against speed without, by requests at once: {description}."
    ) as c:
        c.axes.axhline(1, color=SOFT, linewidth=2, linestyle=(0, (3, 3)))
        for (k, gains), colour in zip(rows.items(), (BLUE, GREEN, VERMILLION), strict=True):
            c.axes.plot(
                BATCHES, gains, color=colour, marker="o", label=f"{k} guess{'es' * (k > 1)}"
            )
        c.axes.set_xscale("log", base=2)
        c.axes.set_xticks(BATCHES, map(str, BATCHES))
        c.axes.set(
            xlabel="requests at once",
            ylabel="times as fast",
            ylim=(0, None),
            yticks=(0, 0.5, 1, 1.5, 2),
        )
        c.axes.legend(loc="lower left")
    return c


FIGURES = {"guess": guess, "guess_tokens": guess_tokens, "guess_batch": guess_batch}
