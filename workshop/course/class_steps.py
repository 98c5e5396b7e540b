"""The requests that a class sends to a server, without sending them.

They are the requests of the notebooks, cut to what the server allows, or as arrivals for the
simulation. No function here sends or reads anything.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from workshop.batch.rows import CHAT, COMPLETIONS
from workshop.course import abstracts, nb06
from workshop.simulate.arrivals import Arrival

CITIES = ("San Francisco is a", "Boston is a", "Chicago is a", "NYC is a")
OPENINGS = (
    *CITIES,
    "The king said to the",
    "Once upon a time",
    "To be, or not to",
    "The capital of California is",
)
TEXT = "San Francisco is a port in western California near the Golden Gate. Boston is on the moon."
LABELLED = tuple(abstracts.prompt(row["text"]) for row in abstracts.load()[:8])
QUESTIONS = ("What is Boston?", "Who was Abraham Lincoln?", "What is a hammer?")
ALL_LOGPROBS = 8192  # what the sampling explorer asks for first
EVERY_S = 10.0  # between two cells, where the time is not given
BUNCH_S = 8.0  # everybody runs a cell within so many seconds, half of them within a sixth of it
CHARACTERS_A_TOKEN = 4  # of English text, with the vocabularies of today's models
TEMPLATE_TOKENS = 20  # that a chat template adds


@dataclass(frozen=True)
class Allowed:
    """The limits of the server; None where it sets no limit, or names none."""

    max_model_len: int | None = None
    max_logprobs: int | None = None
    chat: bool = True
    # of a text, as the server counted them
    prompt_tokens: Mapping[str, int] = field(default_factory=dict)
    # of one learner, on a server for a class (`slurm submit --learners`)
    max_sequences: int | None = None
    max_tokens: int | None = None
    at_a_time: int | None = None

    # … and how such a server puts it, after the number
    SAID: ClassVar = {
        "at_a_time": "requests at a time",
        "max_tokens": "tokens an answer",
        "max_sequences": "sequences a request",
    }


@dataclass(frozen=True)
class Ask:
    """One request: the body is what the endpoint takes, without the model."""

    path: str
    body: dict
    text: str

    @property
    def stream(self) -> bool:
        """True if its tokens come one by one.

        vLLM sends prompt_logprobs only with a whole answer.
        """
        return self.body["max_tokens"] > 1 and "prompt_logprobs" not in self.body


@dataclass(frozen=True)
class Cell:
    """One cell as a learner runs it: its requests, `at_once` of them at a time.

    `notebook` is '' for a request of the learner's own.
    """

    notebook: str
    name: str
    asks: tuple[Ask, ...]
    at_once: int = 1

    @property
    def title(self) -> str:
        return f"{self.notebook} {self.name}".strip()


def ask(text: str, **sampling) -> Ask:
    return Ask(COMPLETIONS, {"prompt": text, **sampling}, text)


def chat(question: str, **sampling) -> Ask:
    return Ask(CHAT, {"messages": [{"role": "user", "content": question}], **sampling}, question)


def course(dice: random.Random) -> list[Cell]:
    """Return what one learner runs, in order: the cells that send requests to the server."""
    own, question, seed = dice.choice(OPENINGS), dice.choice(QUESTIONS), dice.randrange(1000)
    temperatures = []
    for temperature in (0.2, 0.7, 1, 1.5):
        temperatures.append(ask(own, max_tokens=12, temperature=temperature))
    explorer = ask(own, max_tokens=1, temperature=0, logprobs=ALL_LOGPROBS)
    samples = ask(own, max_tokens=24, n=20, seed=seed, temperature=1.0)
    labelled = []
    for text in LABELLED:
        labelled.append(ask(text, max_tokens=1, temperature=0, prompt_logprobs=0))
    prompt_logprobs = ask(TEXT, max_tokens=1, temperature=0, prompt_logprobs=5)
    answers = []
    for text in QUESTIONS:
        prompt = f"Question: {text}\nAnswer:"
        answers.append(ask(prompt, max_tokens=30, temperature=0, logprobs=3))
    first = ask(CITIES[0], max_tokens=16, temperature=0)
    last = chat(question, max_tokens=40, temperature=0.7)
    return [
        Cell("00", "first request", (first,)),
        Cell("04", "four temperatures", tuple(temperatures)),
        Cell("04", "explorer", (explorer,)),
        Cell("04", "20 completions", (samples,)),
        Cell("05", "prompt logprobs", (prompt_logprobs, *labelled)),
        Cell("05", "answers with logprobs", tuple(answers)),
        Cell("06", "12 prompts, 4 at once", _timeline(), at_once=4),
        Cell("", "chat", (last,)),
    ]


def _timeline() -> tuple[Ask, ...]:
    """Return the requests of notebook 06's timeline; answers have exactly nb06.LENGTHS tokens."""
    asks = []
    for number, length in enumerate(nb06.LENGTHS):
        exactly = {"max_tokens": length, "min_tokens": length, "ignore_eos": True}
        asks.append(ask(CITIES[number % 4], **exactly, temperature=1.0))
    return tuple(asks)


def cut(cells: list[Cell], allowed: Allowed) -> list[Cell]:
    """Return the cells as this server allows them: with shorter or fewer requests.

    A cell is left out if the server allows none of its requests.
    """
    shortened = []
    for cell in cells:
        possible = []
        for ask in cell.asks:
            fitted_ask = fitted(ask, allowed)
            if fitted_ask is not None:
                possible.append(fitted_ask)
        if possible:
            at_once = min(cell.at_once, allowed.at_a_time or cell.at_once)
            shortened.append(replace(cell, asks=tuple(possible), at_once=at_once))
    return shortened


def fitted(ask: Ask, allowed: Allowed) -> Ask | None:
    """Return the request within the server's limits; None if it cannot be asked there at all."""
    if ask.path == CHAT and not allowed.chat:
        return None
    body = dict(ask.body)
    longest = allowed.max_tokens or body["max_tokens"]
    if allowed.max_model_len is not None:
        if ask.text not in allowed.prompt_tokens:  # the server refused it even for one token
            return None
        longest = min(longest, allowed.max_model_len - allowed.prompt_tokens[ask.text])
    if longest < 1:
        return None
    for name in ("max_tokens", "min_tokens"):
        if name in body:
            body[name] = min(body[name], longest)
    for name in ("logprobs", "prompt_logprobs"):
        if name in body and allowed.max_logprobs is not None:
            body[name] = min(body[name], allowed.max_logprobs)
    if "n" in body and allowed.max_sequences:
        body["n"] = min(body["n"], allowed.max_sequences)
    return replace(ask, body=body)


def starts(count: int, every_s: float, dice: random.Random) -> list[float]:
    """Return when one learner runs each of `count` cells, in seconds.

    A learner starts soon after everybody was told to.
    """
    bunch_s = min(BUNCH_S, 0.8 * every_s)
    times_s = []
    for number in range(count):
        times_s.append(number * every_s + bunch_s * dice.betavariate(1, 4))
    return times_s


def arrivals(learners: int, seconds: float | None, seed: int) -> list[Arrival]:
    """Return the requests of a class, in order: every cell of every learner.

    `n` samples are n requests with one prompt.

    All requests of a cell come at once, also where a learner's own limit would hold some back: the
    worst case.
    """
    arrivals = []
    for learner in range(learners):
        dice = random.Random(f"{seed} {learner}")
        cells = course(dice)
        every_s = min(EVERY_S, (seconds or EVERY_S * len(cells)) / len(cells))
        for cell, at in zip(cells, starts(len(cells), every_s, dice), strict=True):
            for number, ask in enumerate(cell.asks):
                tokens = _prompt_tokens(ask)
                name = f"{learner} {cell.name} {number}"
                arrival = Arrival(at, tokens, ask.body["max_tokens"], name, tokens)
                arrivals += [arrival] * ask.body.get("n", 1)
    return sorted(arrivals, key=lambda arrival: arrival.arrival_s)


def _prompt_tokens(ask: Ask) -> int:
    """Return about how many tokens a request's prompt has."""
    tokens = len(ask.text) // CHARACTERS_A_TOKEN + 1
    if "messages" in ask.body:
        tokens += TEMPLATE_TOKENS
    return tokens
