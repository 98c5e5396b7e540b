"""Part 2: the probabilities of one token, what sampling parameters do to them, and log probabilities."""

from __future__ import annotations

import math

from drawings.canvas import (
    BLUE,
    FREE,
    GREEN,
    HAIR,
    INK,
    LARGE,
    ORANGE,
    PALE,
    PURPLE,
    SMALL,
    SOFT,
    VERMILLION,
    WIDTH,
    Canvas,
)
from drawings.recorded import answers
from workshop.use.logprobs import next_token_logprobs, rows
from workshop.use.sampling import next_token_probabilities

SHOWN = 8


def next_token(**settings) -> dict[str, float]:
    """Return token → probability after "San Francisco is a", as vLLM would sample with these settings."""
    return next_token_probabilities(next_token_logprobs(answers()["next_token"]["answer"]), **settings)


def shown(token: str) -> str:
    """A token as the figures write it: without the space in front; a space alone is visible."""
    return token.strip() or "␣"


def best(count: int = SHOWN) -> list[str]:
    """Return the most probable next tokens."""
    model = next_token()
    return sorted(model, key=model.get, reverse=True)[:count]


def _bars(c: Canvas, x: float, y: float, width: float, settings: dict, *, words: bool = True, row: float = 40,
          full: float = 1.0) -> None:
    """Draw the best tokens' bars: the model's own as an outline, what is sampled filled."""
    model, sampled = next_token(), next_token(**settings)
    left = x + (96 if words else 0)
    per = (width - (96 if words else 0) - 84) / full
    for n, token in enumerate(best()):
        top = y + n * row
        share = sampled.get(token, 0.0)
        if words:
            c.text(left - 12, top + row * 0.62, shown(token), 21, anchor="end")
        if share:
            c.box(left, top + 4, max(2, share * per), row - 10, BLUE, radius=3)
        c.box(left, top + 4, model[token] * per, row - 10, "none", stroke="#46505a", line=2, radius=3)
        c.text(left + max(share, model[token]) * per + 8, top + row * 0.62, f"{share:.0%}" if share >= 0.005 else
               ("0" if not share else "<1%"), 19, fill=INK if share else SOFT)


def token_loop() -> Canvas:
    """A decoder-only model writes one token, and reads it again: the teaching model's own distribution."""
    model, listed = next_token(), best(4)
    c = Canvas(372, "A decoder-only model reads San Francisco is a, and gives every token of its vocabulary a "
                    "probability: "
               + ", ".join(f"{shown(t)} {model[t]:.0%}" for t in listed) + ". One is drawn, appended to the text, "
                                                                            "and the "
               "model runs again.")
    for n, word in enumerate(("San", "Francisco", "is", "a")):
        c.label(n * 122, 110, 114, 60, word, PALE, stroke=HAIR)
    c.arrow(494, 140, 552, 140)
    c.label(560, 66, 196, 148, "Llama", BLUE, size=LARGE, bold=True, radius=12)
    c.arrow(762, 140, 812, 140)
    c.text(830, 38, "a probability for every token", SMALL, fill=SOFT)
    for n, token in enumerate(listed):
        y = 56 + n * 36
        c.text(908, y + 22, shown(token), 21, anchor="end")
        c.box(918, y + 2, model[token] / model[listed[0]] * 140, 27, GREEN if n == 0 else FREE, radius=3)
        c.text(926 + model[token] / model[listed[0]] * 140, y + 22, f"{model[token]:.0%}", 19)
    c.text(908, 56 + 4 * 36 + 20, "…", 21, anchor="end")
    c.line([(970, 206), (970, 306), (657, 306), (657, 222)], VERMILLION, 3.5, head=True)
    c.label(730, 278, 170, 56, listed[0].strip(), GREEN, bold=True, size=23)
    return c.text(700, 362, "one is drawn, and read again", SMALL, fill=SOFT)


def order() -> Canvas:
    """The sampler's order, from logits to one token."""
    steps = (("logits", "one a token", INK), ("penalties", "what came\nbefore", PURPLE), ("temperature",
                                                                                          "wider or\nnarrower", ORANGE),
             ("min_p", "share of\nthe best", BLUE), ("top_k", "the k best", BLUE), ("top_p", "the best that\nhold p",
                                                                                    BLUE),
             ("draw", "one token", GREEN))
    c = Canvas(220, "The order in which vLLM applies the sampling parameters: " + ", ".join(name for name, _,
                                                                                            _ in steps) + ".")
    width, gap = 144, 21
    for n, (name, under, fill) in enumerate(steps):
        x = n * (width + gap)
        c.label(x, 10, width, 74, name, fill, size=21, bold=True, radius=10)
        for k, line in enumerate(under.split("\n")):
            c.text(x + width / 2, 120 + k * 27, line, 20, fill=SOFT, anchor="middle")
        if n:
            c.arrow(x - gap + 2, 47, x - 5, 47, INK, 2.5)
    first, last = 3 * (width + gap), 5 * (width + gap) + width
    c.line([(first, 170), (first, 182), (last, 182), (last, 170)], BLUE)
    return c.text((first + last) / 2, 210, "cut the tail", 20, anchor="middle", bold=True)


def temperatures() -> Canvas:
    """The same distribution at three temperatures."""
    c = Canvas(420, "")
    said = []
    full = max(next_token(temperature=0.5).values())
    for n, temperature in enumerate((0.5, 1.0, 1.5)):
        x = n * 368 + (96 if n else 0)
        c.text(x + (0 if n else 96), 28, f"temperature {temperature:g}", 25, bold=True)
        _bars(c, x, 48, 408 if n == 0 else 300, {"temperature": temperature}, words=n == 0, full=full)
        sampled = next_token(temperature=temperature)
        said.append(f"at {temperature:g}: " + ", ".join(f"{shown(t)} {sampled[t]:.1%}" for t in best(3)))
    c.legend(96, 408, [("dashed:#46505a", "what the model says"), (BLUE, "what is sampled from")])
    c.words = "Probabilities of the next token after San Francisco is a, by temperature. " + "; ".join(said) + "."
    return c


def cuts() -> Canvas:
    """top_k, top_p and min_p on the same distribution."""
    cases = ({"top_k": 2}, {"top_p": 0.8}, {"min_p": 0.05})
    c = Canvas(420, "")
    full = max(max(next_token(**case).values()) for case in cases)
    said = []
    for n, case in enumerate(cases):
        x = n * 368 + (96 if n else 0)
        name, value = next(iter(case.items()))
        c.text(x + (0 if n else 96), 28, f"{name} = {value:g}", 25, bold=True)
        _bars(c, x, 48, 408 if n == 0 else 300, case, words=n == 0, full=full)
        said.append(f"{name} {value:g} keeps {len(next_token(**case))} tokens")
        c.text(x + (0 if n else 96), 402, f"{len(next_token(**case))} tokens left", 21, fill=SOFT)
    c.words = "What three parameters leave of the same distribution: " + "; ".join(said) + "."
    return c


def logprob_scale() -> Canvas:
    """Probabilities and their natural logarithms on one scale."""
    c = Canvas(250, "")
    marks = ((1.0, "certain"), (0.5, "a coin toss"), (0.1, "one in ten"), (0.01, "one in a hundred"),
             (0.001, "one in a thousand"))
    lowest = -7.2
    c.line([(40, 100), (WIDTH - 40, 100)], INK, 3)
    for p, words in marks:
        x = WIDTH - 70 - math.log(p) / lowest * (WIDTH - 200)
        c.dot(x, 100, 9, BLUE).text(x, 70, f"{math.log(p) + 0:.2f}" if p < 1 else "0", 30, anchor="middle", bold=True)
        c.text(x, 142, f"{p:g}", 24, anchor="middle")
        lines = words.rsplit(" ", 1) if len(words) > 10 else [words]
        for k, line in enumerate(lines):
            c.text(x, 176 + 26 * k, line, 20, anchor="middle", fill=SOFT)
    c.text(0, 24, "logprob = ln(probability)", 22, fill=SOFT)
    c.words = "Log probabilities: " + "; ".join(f"probability {p:g}, {w}: {math.log(p) + 0:.2f}" for p,
                                                w in marks) + "."
    return c


def surprise() -> Canvas:
    """The surprise of each token of a text, in bits, as the teaching model sees it."""
    tokens = [row for row in rows(answers()["surprise"]["answer"]) if row.part == "prompt" and row.logprob is not None]
    bits = ", ".join(f"{r.token.strip()} {r.surprise_bits:.1f}" for r in tokens)
    c = Canvas(380, f"Surprise in bits, token by token: {bits}.")
    step, most = WIDTH / len(tokens), max(r.surprise_bits for r in tokens)
    for n, row in enumerate(tokens):
        x, tall = n * step, row.surprise_bits / most * 230
        doubtful = n == max(range(len(tokens)), key=lambda k: tokens[k].surprise_bits * (k > 4))
        c.box(x + 4, 272 - tall, step - 8, max(tall, 2), VERMILLION if doubtful else BLUE, radius=3)
        c.text(x + step / 2, 262 - tall, f"{row.surprise_bits:.0f}", 19, anchor="middle")
        c.raw(f'<g transform="translate({x + step / 2 + 6:.1f} 292) rotate(45)">').text(0, 0, row.token.strip(),
                                                                                        19).raw("</g>")
    return c.line([(0, 272), (WIDTH, 272)], INK, 2)


FIGURES = {
    "token_loop": token_loop,
    "order": order,
    "temperatures": temperatures,
    "cuts": cuts,
    "logprob_scale": logprob_scale,
    "surprise": surprise,
}
