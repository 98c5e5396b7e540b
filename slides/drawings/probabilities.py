"""Part 2: the probabilities of one token, what sampling parameters do to them, and log probabilities."""

from __future__ import annotations

import math

from matplotlib.patches import Patch

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
from drawings.charts import Chart, chart
from drawings.recorded import answers, recorded
from workshop.client.logprobs import next_token_logprobs, rows
from workshop.client.sampling import next_token_probabilities
from workshop.course.drawing.figure import draw

SHOWN = 8
VOCABULARY = 8192  # tokens of the teaching model
TEMPERATURES = (0.5, 1.0, 1.5)


def next_token(**settings) -> dict[str, float]:
    """Return token → probability after "San Francisco is a", as vLLM would sample with these settings."""
    return next_token_probabilities(
        next_token_logprobs(answers()["next_token"]["answer"]), **settings
    )


def shown(token: str) -> str:
    """A token as the figures write it: without the space in front; a space alone is visible."""
    return token.strip() or "␣"


def best(count: int = SHOWN) -> list[str]:
    """Return the most probable next tokens."""
    model = next_token()
    return sorted(model, key=model.get, reverse=True)[:count]


def _panels(cases: list[dict], description: str, under: list[str]) -> Chart:
    """Draw the best tokens for each case: the model's own probability as an outline, what is sampled filled."""
    model, tokens = next_token(), best()
    with chart(420, description, panels=len(cases)) as c:
        for axes, case, below in zip(c.panels, cases, under, strict=True):
            sampled = next_token(**case)
            draw(axes, {shown(token): 100 * sampled.get(token, 0.0) for token in tokens}, "barh")
            axes.barh(
                range(len(tokens)),
                [100 * model[token] for token in tokens],
                0.7,
                fill=False,
                ec=SOFT,
                lw=2,
            )
            for label, token in zip(axes.texts, tokens, strict=True):
                share = sampled.get(token, 0.0)
                label.xy = (100 * max(share, model[token]), label.xy[1])
                label.set_text(f"{share:.0%}" if share >= 0.005 else "<1%" if share else "0")
            name, value = next(iter(case.items()))
            axes.set_title(f"{name} {value:g}")
            axes.set(xlim=(0, 100), xticks=(), xlabel=below)
            if axes is not c.axes:
                axes.set_yticks([])
        handles = [Patch(fill=False, ec=SOFT, lw=2), Patch(color=BLUE)]
        c.figure.legend(
            handles,
            ["what the model says", "what is sampled from"],
            loc="outside lower left",
            ncols=2,
        )
    return c


def token_loop() -> Canvas:
    """A decoder-only model writes one token, and reads it again: the teaching model's own distribution."""
    model, listed = next_token(), best(4)
    c = Canvas(
        372,
        "A decoder-only model reads San Francisco is a, and gives every token of its vocabulary a "
        "probability: "
        + ", ".join(f"{shown(t)} {model[t]:.0%}" for t in listed)
        + ". One is drawn, appended to the text, "
        "and the "
        "model runs again.",
    )
    for n, word in enumerate(("San", "Francisco", "is", "a")):
        c.label(n * 122, 110, 114, 60, word, PALE, stroke=HAIR)
    c.arrow(494, 140, 552, 140)
    c.label(560, 66, 196, 148, "Llama", BLUE, size=LARGE, bold=True, radius=12)
    c.arrow(762, 140, 812, 140)
    c.text(830, 38, "a probability for every token", SMALL, fill=SOFT)
    for n, token in enumerate(listed):
        y = 56 + n * 36
        c.text(908, y + 22, shown(token), 21, anchor="end")
        c.box(
            918,
            y + 2,
            model[token] / model[listed[0]] * 140,
            27,
            GREEN if n == 0 else FREE,
            radius=3,
        )
        c.text(926 + model[token] / model[listed[0]] * 140, y + 22, f"{model[token]:.0%}", 19)
    c.text(908, 56 + 4 * 36 + 20, "…", 21, anchor="end")
    c.line([(970, 206), (970, 306), (657, 306), (657, 222)], VERMILLION, 3.5, head=True)
    c.label(730, 278, 170, 56, listed[0].strip(), GREEN, bold=True, size=23)
    return c.text(700, 362, "one is drawn, and read again", SMALL, fill=SOFT)


def order() -> Canvas:
    """The sampler's order, from logits to one token."""
    steps = (
        ("logits", "one a token", INK),
        ("penalties", "what came\nbefore", PURPLE),
        ("temperature", "divides; then\nsoftmax", ORANGE),
        ("min_p", "share of\nthe best", BLUE),
        ("top_k", "the k best", BLUE),
        ("top_p", "the best that\nhold p", BLUE),
        ("draw", "one token", GREEN),
    )
    c = Canvas(
        220,
        "What vLLM does with the scores, from the left: "
        + ", ".join(name for name, _, _ in steps)
        + ".",
    )
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


def temperatures() -> Chart:
    """The same distribution at three temperatures."""
    descriptions = [f"at {t:g}: " + ", ".join(f"{shown(token)} {next_token(temperature=t)[token]:.1%}" for token in best(3))
            for t in TEMPERATURES]  # fmt: skip
    description = f"Probabilities of the next token after San Francisco is a, by temperature. {'; '.join(descriptions)}."
    return _panels(
        [{"temperature": t} for t in TEMPERATURES], description, [""] * len(TEMPERATURES)
    )


def cuts() -> Chart:
    """min_p, top_k and top_p on the same distribution."""
    cases = [{"min_p": 0.05}, {"top_k": 2}, {"top_p": 0.8}]
    left = [len(next_token(**case)) for case in cases]
    descriptions = [f"{name} {value:g} keeps {count} tokens" for case, count in zip(cases, left, strict=True)
            for name, value in case.items()]  # fmt: skip
    description = (
        f"What three parameters leave of the same distribution: {'; '.join(descriptions)}."
    )
    labels = [f"{count} tokens left" for count in left]
    labels[0] += f": {0.05 * max(next_token().values()):.1%} or more"  # this share of the best
    return _panels(cases, description, labels)


def logprob_scale() -> Canvas:
    """Probabilities and their natural logarithms on one scale."""
    c = Canvas(250, "")
    marks = (
        (1.0, "certain"),
        (0.5, "a coin toss"),
        (0.1, "one in ten"),
        (0.01, "one in a hundred"),
        (0.001, "one in a thousand"),
    )
    lowest = -7.2
    c.line([(40, 100), (WIDTH - 40, 100)], INK, 3)
    for p, meaning in marks:
        x = WIDTH - 70 - math.log(p) / lowest * (WIDTH - 200)
        c.dot(x, 100, 9, BLUE).text(
            x, 70, f"{math.log(p) + 0:.2f}" if p < 1 else "0", 30, anchor="middle", bold=True
        )
        c.text(x, 142, f"{p:g}", 24, anchor="middle")
        lines = meaning.rsplit(" ", 1) if len(meaning) > 10 else [meaning]
        for k, line in enumerate(lines):
            c.text(x, 176 + 26 * k, line, 20, anchor="middle", fill=SOFT)
    c.text(0, 24, "logprob = ln(probability)", 22, fill=SOFT)
    c.words = (
        "Log probabilities: "
        + "; ".join(f"probability {p:g}, {w}: {math.log(p) + 0:.2f}" for p, w in marks)
        + "."
    )
    return c


def surprise() -> Chart:
    """The surprise of each token of a text, in bits, as the teaching model sees it."""
    tokens = [
        row
        for row in rows(answers()["surprise"]["answer"])
        if row.part == "prompt" and row.logprob is not None
    ]
    bits = [row.surprise_bits for row in tokens]
    doubtful = max(range(5, len(tokens)), key=bits.__getitem__)  # the first words could be any
    description = ", ".join(f"{row.token.strip()} {row.surprise_bits:.1f}" for row in tokens)
    with chart(380, f"Surprise in bits, token by token: {description}.") as c:
        colours = [VERMILLION if n == doubtful else BLUE for n in range(len(tokens))]
        drawn = c.axes.bar(range(len(tokens)), bits, 0.86, color=colours)
        c.axes.bar_label(drawn, [f"{value:.0f}" for value in bits], padding=4)
        texts = [row.token.strip() for row in tokens]
        c.axes.set_xticks(
            range(len(tokens)), texts, rotation=-45, ha="left", rotation_mode="anchor", color=INK
        )
        c.axes.set(ylabel="surprise in bits", yticks=(), xlim=(-0.6, len(tokens) - 0.4))
    return c


def prompts() -> Chart:
    """Right labels of notebook 7's sample, by its two prompts."""
    outcome = recorded("prompts")
    right = {
        "… Field:": outcome["short"]["right"],
        "… Field, one of\nastronomy, …:": outcome["long"]["right"],
    }
    described = "; ".join(f"{row}: {count}" for row, count in right.items()).replace("\n", " ")
    title = f"Right labels of {outcome['rows']} by the end of the prompt."
    with chart(250, f"{title} {described}.") as c:
        draw(c.axes, right, "barh")
        colors = (BLUE, VERMILLION)
        for bar, label, fill, count in zip(
            c.axes.patches, c.axes.texts, colors, right.values(), strict=True
        ):
            bar.set_facecolor(fill)
            label.set(text=f"{count} of {outcome['rows']}", size=28)
    return c


def perplexities() -> Chart:
    """The perplexities of notebook 5's four texts, and of a blind guess, on a scale of factors."""
    names = {"plain": "a sentence", "alphabetical": "its words, sorted", "German": "German",
             "cat": "the cat's text"}  # fmt: skip
    measured = recorded("perplexities")["perplexities"]
    values = {names[name]: measured[name] for name in names}
    described = ", ".join(f"{name} {value:,}" for name, value in values.items())
    with chart(300, f"Perplexities: {described}; a blind guess {VOCABULARY:,}.") as c:
        draw(c.axes, values, "barh")
        c.axes.set(xscale="log", xlim=(1, 4e7))
        c.axes.set_xticks((1, 100, 10_000, 1_000_000), ("1", "100", "10,000", "a million"))
        c.axes.minorticks_off()
        for bar, label, (name, value) in zip(
            c.axes.patches, c.axes.texts, values.items(), strict=True
        ):
            bar.set_facecolor(VERMILLION if name == names["cat"] else BLUE)
            label.set(text=f"{value:,}", size=24)
        c.axes.axvline(VOCABULARY, color=INK, linestyle="--", linewidth=2)
        c.axes.text(VOCABULARY, -0.65, f"a blind guess: {VOCABULARY:,}", size=20, ha="center")
    return c


def one_word() -> Canvas:
    """Notebook 5's abstract about asthma, with either of two words: its most probable label, and how sure."""
    labels = recorded("one_word")["labels"]
    best = {word: max(listed.items(), key=lambda item: item[1]) for word, listed in labels.items()}
    c = Canvas(
        190,
        "An abstract about asthma, one word changed: "
        + "; ".join(f"with “{word}” {label} {p:.1%}" for word, (label, p) in best.items())
        + ".",
    )
    for n, (word, (label, p)) in enumerate(best.items()):
        y = 8 + n * 96
        c.text(0, y + 47, "… the health outcomes of", SMALL)
        c.label(270, y + 12, 140, 54, word, ORANGE, bold=True, size=23)
        c.text(424, y + 47, "who …", SMALL)
        c.arrow(500, y + 39, 556, y + 39)
        c.text(740, y + 47, label, SMALL, anchor="end", bold=True)
        c.box(756, y + 20, 280 * p, 38, BLUE, radius=3)
        c.text(770 + 280 * p, y + 47, f"{p:.1%}", 19)
    return c


FIGURES = {
    "one_word": one_word,
    "token_loop": token_loop,
    "order": order,
    "temperatures": temperatures,
    "cuts": cuts,
    "logprob_scale": logprob_scale,
    "surprise": surprise,
    "perplexities": perplexities,
    "prompts": prompts,
}
