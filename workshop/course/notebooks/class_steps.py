"""The requests that the notebooks send, as one learner of a class runs them.

`workshop bench --class` sends them. No function here sends anything.
"""

import random

from workshop.course.notebooks import nb06
from workshop.course.topics import abstracts
from workshop.measure.classes import ClassStep

CITIES = ("San Francisco is a", "Boston is a", "Chicago is a", "NYC is a")
OPENINGS = (
    *CITIES,
    "The king said to the",
    "Once upon a time",
    "To be, or not to",
    "The capital of California is",
)
TEXT = "San Francisco is a port in western California near the Golden Gate. Boston is on the moon."
# The prompts that notebook 5 labels, and how many of them one request has.
LABELED = tuple(abstracts.prompt(row["text"]) for row in abstracts.load()[::10])
LABELED_TOGETHER = 25
QUESTIONS = ("What is Boston?", "Who was Abraham Lincoln?", "What is a hammer?")
ALL_LOGPROBS = 8192  # what the sampling explorer asks for first


def of_learner(dice: random.Random) -> list[ClassStep]:
    """Return what one learner runs, in order: the cells that send requests to the server."""
    own, question, seed = dice.choice(OPENINGS), dice.choice(QUESTIONS), dice.randrange(1000)
    temperatures = []
    for temperature in (0.2, 0.7, 1, 1.5):
        temperatures.append({"prompt": own, "max_tokens": 12, "temperature": temperature})
    one_token = {"max_tokens": 1, "temperature": 0}
    read = [{"prompt": TEXT, **one_token, "prompt_logprobs": 5}]
    for text in LABELED[:8]:
        read.append({"prompt": text, **one_token, "prompt_logprobs": 0})
    labels = []
    for first in range(0, len(LABELED), LABELED_TOGETHER):
        prompts = list(LABELED[first : first + LABELED_TOGETHER])
        label = {"max_tokens": 4, "temperature": 0, "stop": ["\n"], "logprobs": 0}
        labels.append({"prompt": prompts, **label})
    answers = []
    for text in QUESTIONS:
        prompt = f"Question: {text}\nAnswer:"
        answers.append({"prompt": prompt, "max_tokens": 30, "temperature": 0, "logprobs": 3})
    timeline = []
    for number, tokens in enumerate(nb06.LENGTHS):
        exactly = {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
        timeline.append({"prompt": CITIES[number % 4], **exactly, "temperature": 1.0})
    message = {"role": "user", "content": question}
    return [
        ClassStep("00 first request", [{"prompt": CITIES[0], "max_tokens": 16, "temperature": 0}]),
        ClassStep("04 four temperatures", temperatures),
        ClassStep("04 explorer", [{"prompt": own, **one_token, "logprobs": ALL_LOGPROBS}]),
        ClassStep(
            "04 20 completions",
            [{"prompt": own, "max_tokens": 24, "n": 20, "seed": seed, "temperature": 1.0}],
        ),
        ClassStep("05 prompt logprobs", read),
        ClassStep("05 200 labels", labels),
        ClassStep("05 answers with logprobs", answers),
        ClassStep("06 12 prompts, 4 at once", timeline, at_once=4),
        ClassStep("chat", [{"messages": [message], "max_tokens": 40, "temperature": 0.7}]),
    ]
