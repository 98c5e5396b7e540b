"""The truth test: 2,000 samples of the live server a setting and prompt, against the distribution that we compute."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("scipy")
pytestmark = pytest.mark.live
PATH = Path(__file__).parents[2] / "benchmarks" / "sampling" / "truth.py"


def load():
    """Import the benchmark: its cases, prompts and seeds are the ones of the table in docs/sampling.md."""
    spec = importlib.util.spec_from_file_location("sampling_truth", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


truth = load()

# Every run of the tests draws for these: one of each kind, and all that a wrong order is tried on. WORKSHOP_TRUTH=all
# draws for every setting of docs/sampling.md, as benchmarks/sampling/truth.py does.
ALL = os.environ.get("WORKSHOP_TRUTH") == "all"
ENOUGH = {"greedy", "everything off", "top_k 20, temperature 1.5", "top_p 0.9, temperature 0.6",
          "min_p 0.02, top_k 12, top_p 0.9, temperature 1.4", truth.CASES[-1].name,
          *(case for case, _ in truth.WRONG.values())}
CASES = [case for case in truth.CASES if ALL or case.name in ENOUGH]

_servers: dict[str, truth.Server] = {}   # samples are drawn once and serve several tests


@pytest.fixture
def server_truth(client):
    """The live server, as the truth test asks it."""
    return _servers.setdefault(client.url, truth.Server(client))


def test_there_are_enough_of_them():
    assert len(CASES) >= 12 and {case.name for case in CASES} >= ENOUGH
    assert len(truth.PROMPTS) >= 5
    assert truth.SAMPLES >= 2000


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_vllm_samples_what_we_compute(server_truth, case):
    number = len(truth.CASES) * len(truth.PROMPTS)
    for prompt in truth.PROMPTS:
        outcome = truth.compare(server_truth, case, prompt)
        assert min(1.0, outcome.p * number) >= truth.LEAST, outcome
        assert outcome.samples == (1 if case.settings.greedy else truth.SAMPLES)


@pytest.mark.parametrize("name", truth.WRONG)
def test_a_wrong_order_is_found_out(server_truth, name):
    case_name, compute = truth.WRONG[name]
    case = next(case for case in truth.CASES if case.name == case_name)
    number = len(truth.CASES) * len(truth.PROMPTS)
    failed = [prompt for prompt in truth.PROMPTS
              if truth.compare(server_truth, case, prompt, compute).p * number < truth.LEAST]
    assert len(failed) >= 3, f"only {failed} tell the wrong order from the right one"


def test_min_tokens_takes_the_end_away_where_it_is_likely(client):
    """The table's prompts hardly ever end after a token; this one nearly always does."""
    from collections import Counter

    from workshop.use.logprobs import next_token_logprobs
    from workshop.use.sampling import pipeline
    from workshop.use.sampling_settings import Settings
    question = "Question: What is Boston?\nAnswer:"
    context = question + client.complete(question, max_tokens=60, temperature=0).choices[0].text
    answer = client.complete(context, max_tokens=1, temperature=0, logprobs=-1, return_tokens_as_token_ids=True)
    logprobs = next_token_logprobs(answer)
    assert logprobs[1] > -0.7, "the end is likely here"
    found = client.complete(context, max_tokens=2, min_tokens=2, n=truth.SAMPLES, seed=5, temperature=1.3,
                            return_token_ids=True)
    counts = Counter(choice.token_ids[0] for choice in found.choices)
    right = pipeline(logprobs, Settings(temperature=1.3, min_tokens=2), stop_tokens=[1])
    statistic, freedom, _ = truth.chi_square(counts, right)
    assert truth.chi2.sf(statistic, freedom) >= truth.LEAST
    statistic, freedom, _ = truth.chi_square(counts, pipeline(logprobs, Settings(temperature=1.3)))
    assert truth.chi2.sf(statistic, freedom) < truth.LEAST, "without min_tokens the test fails"


def test_the_tables_cases_are_compared_in_more_than_one_cell(server_truth):
    """A test of one cell cannot fail."""
    outcomes = [truth.compare(server_truth, case, prompt) for case in CASES for prompt in truth.PROMPTS
                if not case.settings.greedy]
    single = [one for one in outcomes if one.cells < 2]
    assert len(single) <= len(outcomes) / 10, single


def test_all_logprobs_come_with_ids_and_sum_to_one(client):
    import math

    from workshop.use.logprobs import next_token_logprobs
    answer = client.complete("San Francisco is a", max_tokens=1, logprobs=-1, return_tokens_as_token_ids=True)
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
    prompts = ["Question: What is Boston?\nAnswer: Boston is a city. " * count for count in range(20, 140, 4)]
    answer = client.complete(prompts, max_tokens=2, seed=1, temperature=1.0)
    assert len(answer.choices) == len(prompts)
    assert client.complete("Still there?", max_tokens=1).choices
