"""The truth test: 2,000 samples of the live server a setting and prompt, against the distribution that we compute."""

from __future__ import annotations

import math
import os
from collections import Counter
from itertools import product

import pytest
import truth
from needs import SEED

from workshop.client.logprobs import next_token_logprobs
from workshop.client.sampling import pipeline
from workshop.client.sampling_settings import Settings

pytestmark = pytest.mark.live

# Every run of the tests draws for these on one prompt: the simplest, all settings at once, and what wrong orders are
# tried on.
# WORKSHOP_TRUTH=all draws for every setting and prompt of docs/sampling.md, as benchmarks/sampling/truth.py does.
ALL = os.environ.get("WORKSHOP_TRUTH") == "all"
ENOUGH = {"greedy", "everything off", truth.CASES[-1].name}
TRIED_WRONG = {case for case, _ in truth.WRONG.values()}
CASES = [case for case in truth.CASES if ALL or case.name in ENOUGH | TRIED_WRONG]
PROMPTS = truth.PROMPTS if ALL else truth.PROMPTS[:1]
COMPARED = list(product(CASES, PROMPTS))

_servers: dict[str, truth.Server] = {}  # samples are drawn once and serve several tests


@pytest.fixture
def server_truth(client):
    """The live server, as the truth test asks it."""
    return _servers.setdefault(client.url, truth.Server(client, SEED))


def test_there_are_enough_of_them_and_no_more_than_the_false_alarms_are_counted_for():
    assert len(CASES) >= 10 and {case.name for case in CASES} >= ENOUGH | TRIED_WRONG
    assert len(truth.PROMPTS) >= 5
    assert truth.SAMPLES >= 2000
    assert len(truth.CASES) * len(truth.PROMPTS) + 1 <= truth.COMPARISONS  # and min_tokens
    assert len(truth.WRONG) * len(truth.PROMPTS) * truth.MISSED < 0.001


def test_vllm_samples_what_we_compute(server_truth):
    for case, prompt in COMPARED:
        outcome = truth.compare(server_truth, case, prompt)
        assert not outcome.alarm, (case.name, outcome)
        assert outcome.samples == (1 if case.settings.greedy else truth.SAMPLES), case.name


def test_a_wrong_order_is_found_out(server_truth):
    for name, (case_name, compute) in truth.WRONG.items():
        case = next(case for case in truth.CASES if case.name == case_name)
        outcomes = [truth.compare(server_truth, case, prompt, compute) for prompt in PROMPTS]
        telling = [comparison for comparison in outcomes if comparison.missed <= truth.MISSED]
        enough = min(2, len(PROMPTS))
        assert len(telling) >= enough, f"{name} cannot be told apart: {outcomes}"
        assert all(comparison.alarm for comparison in telling), (name, telling)


def test_min_tokens_takes_the_end_away_where_it_is_likely(client):
    """The table's prompts hardly ever end after a token; this one nearly always does."""
    question = "Question: What is Boston?\nAnswer:"
    whole = client.complete(question, max_tokens=60, temperature=0).choices[0]
    assert whole.finish_reason == "stop", "so the end is the most probable token here"
    answer = client.complete(
        question + whole.text,
        max_tokens=1,
        temperature=0,
        logprobs=-1,
        return_tokens_as_token_ids=True,
    )
    response = client.complete(
        question + whole.text,
        max_tokens=2,
        min_tokens=2,
        n=500,
        temperature=1.3,
        seed=SEED * 500,
        return_token_ids=True,
    )
    counts = Counter(choice.token_ids[0] for choice in response.choices)
    right, without = (
        pipeline(
            next_token_logprobs(answer), Settings(temperature=1.3, min_tokens=n), stop_tokens=[1]
        )
        for n in (2, 0)
    )
    for tried, alarm in ((right, False), (without, True)):
        groups = [truth.group(counts, tried.probabilities, right.probabilities)]
        assert (truth.missed(groups, truth.ALARM) <= truth.MISSED) is alarm
        assert (
            truth.chance(truth.evidence(groups), truth.freedom(groups)) < truth.ALARM
        ) is alarm, counts


def test_the_tables_cases_are_compared_in_more_than_one_cell(server_truth):
    """A test of one cell cannot fail."""
    outcomes = [
        truth.compare(server_truth, case, prompt)
        for case, prompt in COMPARED
        if not case.settings.greedy
    ]
    single = [comparison for comparison in outcomes if comparison.cells < 2]
    assert len(single) <= len(outcomes) / 10, single


def test_all_logprobs_come_with_ids_and_sum_to_one(client):
    answer = client.complete(
        "San Francisco is a", max_tokens=1, logprobs=-1, return_tokens_as_token_ids=True
    )
    logprobs = next_token_logprobs(answer)
    assert all(isinstance(token, int) for token in logprobs)
    assert math.fsum(map(math.exp, logprobs.values())) == pytest.approx(1.0, abs=1e-4)


def test_n_samples_of_one_seed_are_those_of_the_seeds_that_follow(client):
    """What the same-seed panel relies on when it shows recorded answers."""
    both = client.complete("San Francisco is a", max_tokens=8, n=2, seed=1, temperature=1.0)
    second = client.complete("San Francisco is a", max_tokens=8, n=1, seed=2, temperature=1.0)
    assert both.choices[1].text == second.choices[0].text


def test_seeded_answers_to_long_prompts_do_not_end_the_server(client):
    """The CPU engine of 0.32.0 dies if such a prompt is computed in pieces; our defaults compute it whole."""
    prompts = [
        "Question: What is Boston?\nAnswer: Boston is a city. " * count
        for count in range(20, 140, 4)
    ]
    answer = client.complete(prompts, max_tokens=2, seed=1, temperature=1.0)
    assert len(answer.choices) == len(prompts)
    assert client.complete("Still there?", max_tokens=1).choices
