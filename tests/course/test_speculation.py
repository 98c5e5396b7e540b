"""Notebook 12's guesses: the walk against hand counts, and foretold acceptance lengths against recorded servers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from inference_planner.catalog.read import from_dict
from needs import lacking

from workshop.course.notebooks import nb12
from workshop.course.topics import speculation
from workshop.engine import measured_runs as recorded
from workshop.engine.planning import plan

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plain():
    return speculation.ask(None, "no guesses")


def test_a_step_writes_the_right_guesses_before_the_first_wrong_one_and_one_token_more():
    row = [True, True, False, False, True, True, True, True, True]
    # ✓✓· then · then ✓✓✓ and one more, and ✓ at the end
    assert speculation.lengths([row], guesses=3) == [3, 1, 4, 2]
    assert speculation.lengths([row, row], guesses=1) == 2 * [2, 1, 1, 2, 2, 2]
    assert speculation.lengths([[True], [], [False]], guesses=4) == [2, 1]


def test_with_independent_guesses_the_walk_has_the_length_of_the_formula():
    """(1 - 0.7^5) / (1 - 0.7) = 2.7731; of 40,000 tokens the mean of some 14,000 steps is within 0.05 of it."""
    row = (np.random.default_rng(0).random(40_000) < 0.7).tolist()
    assert np.mean(speculation.lengths([row], guesses=4)) == pytest.approx(2.7731, abs=0.05)


def test_the_reference_chooses_what_the_server_wrote(plain):
    """Bfloat16 rounds otherwise than float32: a token in a hundred may be another one."""
    same = [
        token == chosen
        for prompt, answer in plain.answers
        for token, chosen in zip(
            answer,
            speculation.choices([*prompt, *answer], "target")[len(prompt) - 1 : -1],
            strict=True,
        )
    ]
    assert np.mean(same) > 0.97


def test_the_recorded_server_wrote_as_many_tokens_a_step_as_foretold_along_its_answers(subtests):
    for temperature in [0, 1]:
        with subtests.test(str(temperature)):
            counted = speculation.ask(None, "draft", temperature=temperature)
            foretold = np.mean(speculation.lengths(speculation.agreement(counted), guesses=4))
            assert foretold == pytest.approx(1 + counted.accepted / counted.drafts, rel=0.05)
            assert (
                sum(counted.accepted_at) == counted.accepted
                and counted.drafted == 4 * counted.drafts
            )


def test_a_draft_that_is_the_model_itself_is_right_and_its_guesses_cost_as_much(plain):
    counted = speculation.ask(None, "itself")
    assert counted.accepted > 0.97 * counted.drafted
    target = plan("llama-3.1-70b", "h100", tensor_parallel_size=4).deployment
    assert 0.9 < speculation.speedup(target, target, 1, 4, tokens_a_step=5) <= 1


def test_guesses_are_free_while_the_step_is_memory_bound_and_then_are_not():
    """An H100 computes 989e12 FLOP/s and reads 3.35e12 B/s, so bf16 weights keep 295 tokens waiting at both peaks."""
    target = plan("llama-3.1-70b", "h100", tensor_parallel_size=4).deployment
    assert speculation.step_ms(target, 1, 5) == pytest.approx(
        speculation.step_ms(target, 1), rel=0.02
    )
    assert speculation.step_ms(target, 200, 5) > 2 * speculation.step_ms(target, 200)


MEASURED_AT = 320  # tokens of a request in the recorded batches: prompts of 256, 128 more


def test_a_draft_model_without_cuda_graphs_makes_a_gpu_slower_as_measured(subtests):
    for requests, off in [(1, 0.05), (8, 0.05), (32, 0.05), (128, 0.12), (256, 0.06)]:
        with subtests.test(str(requests)):
            alone, drafted = (
                recorded.tuned(name) for name in ("8b-no-guesses", "8b-draft-1b-accept-2.8")
            )
            measured = (
                drafted[f"batch{requests}_decode_tok_s"] / alone[f"batch{requests}_decode_tok_s"]
            )
            target, draft = (
                plan(model, "h200", max_model_len=8192).deployment
                for model in ("llama-3.1-8b", "llama-3.2-1b")
            )
            foretold = speculation.speedup(
                target, draft, requests, 4, 2.8, graphs=False, context=MEASURED_AT
            )
            assert foretold == pytest.approx(measured, rel=off)
            assert measured < 0.6 and (
                speculation.speedup(target, draft, requests, 4, 2.8) > 1
            ) is (requests < 128)


def test_eagles_guesses_pay_for_as_many_users_as_were_measured(subtests):
    for requests, off in [(1, 0.05), (8, 0.07), (32, 0.06), (128, 0.04), (256, 0.04)]:
        with subtests.test(str(requests)):
            alone, guessed = (
                recorded.tuned(name) for name in ("8b-no-guesses-0.33", "8b-eagle3-accept-2.8")
            )
            measured = (
                guessed[f"batch{requests}_decode_tok_s"] / alone[f"batch{requests}_decode_tok_s"]
            )
            target = plan(
                "llama-3.1-8b", "h200", max_model_len=8192, vllm_version="0.33.0"
            ).deployment
            config = guessed["extra"]["speculative_config"]["model"]
            layer = {
                **config,
                "architectures": ["LlamaForCausalLM"],
                "vocab_size": config["draft_vocab_size"],
            }
            draft = plan(from_dict(layer, name="eagle3"), "h200", max_model_len=2048).deployment
            foretold = speculation.speedup(target, draft, requests, 4, 2.8, context=MEASURED_AT)
            assert foretold == pytest.approx(measured, rel=off) and (foretold < 1) is (measured < 1)


NGRAM = {
    "h200": ("8b-no-guesses-again", "8b-ngram-accept-2.0"),
    "h100": ("h100-8b-no-guesses", "h100-8b-ngram-accept-2.0"),
}


def test_guesses_from_the_text_stop_paying_where_they_did(subtests):
    """Two tokens a step: 1.4 times as fast for one, slower from 128 on, where the check has no CUDA graph."""
    for gpu, requests, off in [
        # host
        *[
            ("h200", 1, 0.05),
            ("h200", 8, 0.06),
            ("h200", 32, 0.05),
            ("h200", 128, 0.3),
            ("h200", 256, 0.15),
        ],
        *[
            ("h100", 1, 0.02),
            ("h100", 8, 0.04),
            ("h100", 32, 0.02),
            ("h100", 128, 0.04),
            ("h100", 256, 0.05),
        ],
    ]:
        with subtests.test(str(gpu)):
            alone, guessed = (recorded.tuned(name) for name in NGRAM[gpu])
            measured = (
                guessed[f"batch{requests}_decode_tok_s"] / alone[f"batch{requests}_decode_tok_s"]
            )
            target = plan("llama-3.1-8b", gpu, max_model_len=8192).deployment
            foretold = speculation.speedup(target, None, requests, 4, 2.0, context=MEASURED_AT)
            assert foretold == pytest.approx(measured, rel=off) and (foretold < 1) is (measured < 1)


def test_the_plans_step_of_many_requests_takes_as_long_as_measured(subtests):
    for gpu in ["h100", "h200"]:
        for requests in [1, 8, 32, 128, 256]:
            with subtests.test(f"{gpu}, {requests}"):
                run = recorded.tuned(NGRAM[gpu][0])
                step = speculation.step_ms(
                    plan("llama-3.1-8b", gpu, max_model_len=8192).deployment,
                    requests,
                    context=MEASURED_AT,
                )
                assert step == pytest.approx(
                    1e3 * requests / run[f"batch{requests}_decode_tok_s"], rel=0.06
                )


# The table of docs/gpu.md: tokens/s against those of the same server without a draft, for 1, 32 and 128 users.
MEASURED = {
    "Llama 3.2 1B, vLLM 0.32.0": (2.8, 0.47, 0.50, 0.37),
    "n-gram, vLLM 0.32.0": (2.0, 1.41, 1.16, 0.65),
    "EAGLE-3, vLLM 0.33.0": (2.8, 2.02, 1.73, 0.70),
}


def test_the_table_of_drafts_has_what_was_measured(subtests):
    for draft in MEASURED:
        with subtests.test(str(draft)):
            row = nb12.measured_drafts()[draft]
            columns = ("tokens per step", "1 user", "32 users", "128 users")
            assert tuple(row[column] for column in columns) == pytest.approx(
                MEASURED[draft], abs=0.005
            )


def test_the_notebook_quotes_its_table_as_it_is():
    text = (ROOT / "notebooks" / "12_guess_and_check.ipynb").read_text()
    assert "one user *slower* (0.47)" in text and "writes 2.8 tokens" in text


def test_vllm_plans_ahead_by_default_and_never_on_a_cpu():
    """Notebook 12 says so, and reads a recorded run in place of one on the learner's machine."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        lacking("vLLM is not installed")
        return
    folder = Path(spec.origin).parent
    scheduler = (folder / "config" / "scheduler.py").read_text()
    assert "async_scheduling: bool | None = None" in scheduler
    whole = (folder / "config" / "vllm.py").read_text()
    unset = whole[whole.index("elif self.scheduler_config.async_scheduling is None:") :]
    assert "Enable async scheduling unless there is an incompatible option." in unset
    assert (
        "scheduler_config.async_scheduling = False" in (folder / "platforms" / "cpu.py").read_text()
    )
