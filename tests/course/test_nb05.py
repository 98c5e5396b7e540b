"""Notebook 5 compares whole texts: the sums of their tokens' logprobs."""

from __future__ import annotations

import math

import pytest

from workshop.course import nb05

# Probabilities of each word after those before it, chosen by hand.
AFTER = {
    "A cat is a": 0.7,
    "A cat is an": 0.1,
    "A cat is a tool": 0.01,
    "A cat is an animal": 0.02,
}


class Server:
    """A client of a model that gives each text of AFTER its probability, and any other 0.5 a word."""

    def complete(self, text: str, **settings: object) -> dict:
        prompt_words = text.split()
        prompt: list[dict | None] = [None]
        for number, word in enumerate(prompt_words, 1):
            probability = AFTER.get(" ".join(prompt_words[:number]), 0.5)
            prompt.append({str(number): {"logprob": math.log(probability), "decoded_token": word}})
        return {"choices": [{"prompt_logprobs": prompt}]}


LLM = Server()


def test_a_text_has_the_product_of_its_words():
    assert nb05.text_logprob(LLM, "A cat is a tool") == pytest.approx(  # pyright: ignore
        math.log(0.5 * 0.5 * 0.5 * 0.7 * 0.01)
    )


def test_the_rarer_article_loses_although_its_noun_is_more_probable():
    # a tool: 0.7 × 0.01 = 0.007; an animal: 0.1 × 0.02 = 0.002
    assert nb05.most_probable(nb05.scored(LLM, "A cat", ("an animal", "a tool"))) == "a tool"  # pyright: ignore
    assert nb05.article_and_noun(LLM, "A cat", "an animal") == pytest.approx((0.1, 0.02))  # pyright: ignore


def test_each_label_has_four_things():
    labels = list(nb05.KINDS.values())
    assert {label: labels.count(label) for label in labels} == {
        "a city": 4,
        "an animal": 4,
        "a tool": 4,
    }


@pytest.mark.live
def test_by_the_noun_alone_a_chisel_is_an_animal_as_the_notebook_says(client):
    labels = sorted(set(nb05.KINDS.values()))
    wrong = {}
    for thing, right in nb05.KINDS.items():
        nouns = {label: nb05.article_and_noun(client, thing, label)[1] for label in labels}
        label = max(nouns, key=nouns.__getitem__)
        if label != right:
            wrong[thing] = label
    assert wrong == {"A chisel": "an animal"}
