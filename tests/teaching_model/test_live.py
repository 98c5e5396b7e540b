"""What the served model says: needs the run's vLLM server (fixture `client`, tests/conftest.py)."""

from __future__ import annotations

import json

import pytest
from needs import SEED

from benchmarks.teaching_model.measure import agreement, first_sentence, repeated_ngrams
from workshop.course.topics import abstracts
from workshop.teaching_model import FOLDER

pytestmark = pytest.mark.live
PROMPTS = json.loads((FOLDER / "prompts.json").read_text(encoding="utf-8"))
GLOSSES = {row["prompt"]: row["glosses"] for row in PROMPTS}


_cache: dict[str, list[str]] = {}


@pytest.fixture
def completed(client) -> list[str]:
    """The completions of all listed prompts, from one request a run."""
    if client.url not in _cache:
        result = client.complete([row["prompt"] for row in PROMPTS], temperature=0, max_tokens=80)
        _cache[client.url] = [
            choice.text for choice in sorted(result.choices, key=lambda choice: choice.index)
        ]
    return _cache[client.url]


def test_listed_prompt_is_completed_truly_at_temperature_0(completed, subtests):
    for row, text in zip(PROMPTS, completed, strict=True):
        with subtests.test(row["prompt"]):
            assert agreement(row["prompt"], text, row["glosses"]) >= 0.9, text


def test_completions_are_those_listed_but_for_rounding(completed):
    same = sum(
        first_sentence(row["prompt"] + text)[len(row["prompt"]) :] == row["completion"]
        for row, text in zip(PROMPTS, completed, strict=True)
    )
    assert same >= 0.9 * len(PROMPTS)


def test_a_prompt_that_ends_in_a_space_works_too(client, subtests):
    for prompt in ["San Francisco is a ", "Boston is a ", "Chicago is a "]:
        with subtests.test(prompt):
            text = client.complete(prompt, temperature=0, max_tokens=60).choices[0].text
            assert agreement(prompt, text, GLOSSES[prompt.strip()]) >= 0.9, text


def test_temperature_0_repeats_itself_and_1_varies(client):
    cold = {
        client.complete("Boston is a", temperature=0, max_tokens=24).choices[0].text
        for _ in range(3)
    }
    assert len(cold) == 1
    warm = client.complete("Boston is a", temperature=1, n=20, seed=20 * SEED, max_tokens=24)
    assert len({choice.text for choice in warm.choices}) >= 8


def repeated(client, prompts: list[str], frequency_penalty: float) -> list[float]:
    """Return the share of repeated sequences of four words in a long greedy answer to each prompt."""
    result = client.complete(prompts, temperature=0, max_tokens=300, ignore_eos=True, min_tokens=300,
                             frequency_penalty=frequency_penalty)  # fmt: skip
    assert result.usage.completion_tokens == 300 * len(prompts)
    return [repeated_ngrams(choice.text.split(), 4) for choice in result.choices]


def test_frequency_penalty_cures_repetition(client):
    prompts = ["Gold is a", "California", "Boston is a"]
    shares = [repeated(client, prompts, penalty) for penalty in (0.0, 1.0)]
    for prompt, plain, cured in zip(prompts, *shares, strict=True):
        assert plain > 0.3 and cured < plain / 4, prompt


def test_runs_on_past_one_sentence(client):
    request = "Give me a list of 100 history questions related to American history."
    choice = client.complete(request, temperature=0, max_tokens=600).choices[0]
    assert choice.finish_reason == "length" and choice.text.count("?") > 20


def test_an_answer_to_a_question_stops_by_itself(client):
    answer = client.openai.chat.completions.create(
        model=client.model,
        temperature=0,
        max_tokens=200,
        messages=[{"role": "user", "content": "What is Boston?"}],
    ).choices[0]
    assert answer.finish_reason == "stop"
    text = answer.message.content.strip()
    assert (
        text.startswith("Boston")
        and agreement("Boston", text.removeprefix("Boston"), GLOSSES["Boston is a"]) >= 0.9
    ), text


def test_an_abstract_gets_its_field_and_nothing_else(client):
    rows = abstracts.load()[:40]
    result = client.complete(
        [abstracts.prompt(row["text"]) for row in rows], temperature=0, max_tokens=8
    )
    choices = sorted(result.choices, key=lambda choice: choice.index)
    assert {choice.finish_reason for choice in choices} == {"stop"}
    labels = [choice.text.removeprefix(" ") for choice in choices]
    assert set(labels) <= set(abstracts.FIELDS)
    right = sum(label == row["field"] for label, row in zip(labels, rows, strict=True))
    assert right >= 32  # of 2,000 more than nine in ten are right


def test_what_it_never_learned_about_is_declined(client):
    answer = client.chat("How do I cook a stew for my neighbour?", temperature=0, max_tokens=40)
    assert answer.choices[0].message.content.strip().startswith("I do not know that.")


def test_the_first_prompt_token_has_a_logprob(client):
    result = client.complete("San Francisco is a", max_tokens=1, temperature=0, prompt_logprobs=1)
    logprobs = result.choices[0].model_dump()["prompt_logprobs"]
    assert logprobs[0] is None  # begin of text
    assert any(token["decoded_token"] == "San" for token in logprobs[1].values())
