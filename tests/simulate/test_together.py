"""Tokens per second of many requests that decode together."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from workshop import plan
from workshop.cli import group
from workshop.simulate import together

PLANS = [
    ("llama-3.1-8b", "h100", {}),
    ("llama-3.1-70b", "h100", {"gpus_per_node": 4}),
    ("gpt-oss-120b", "h100", {}),
    ("mistral-7b-v0.3", "t4", {"gpus_per_node": 2}),
]


def test_one_request_is_as_fast_as_the_plan_says_and_more_are_faster_together():
    for model, gpu, sizes in PLANS:
        planned = plan(model, gpu, **sizes)
        alone = planned.single_stream_tokens_per_s
        rates = [together.tokens_per_s(planned, number) for number in (1, 8, 32, 256)]
        assert rates[0] == pytest.approx(alone, rel=0.1), model
        assert rates == sorted(rates), model
        for rate, number in zip(rates, (1, 8, 32, 256), strict=True):
            assert rate <= number * alone * 1.1, (model, number)


def test_more_than_the_cache_or_max_num_seqs_holds_do_not_run_at_once():
    planned = plan("llama-3.1-8b", "h100", max_num_seqs=100)
    assert together.most_at_once(planned) == 100
    tight = plan("qwen3-32b", "h100", gpus_per_node=1, max_model_len=20000)
    assert together.most_at_once(tight) == tight.kv_cache_tokens // 300


def test_the_plan_says_tokens_per_second_for_many_requests():
    arguments = ["plan", "llama-3.1-8b", "--gpu", "h100"]
    shown = CliRunner().invoke(group, arguments).output
    assert "32 at once: about" in shown and "256 at once: about" in shown
    few = CliRunner().invoke(group, [*arguments, "--max-num-seqs", "64"]).output
    assert "32 at once" in few and "256 at once" not in few
    not_here = (
        CliRunner()
        .invoke(
            group, ["plan", "llama-3.1-405b", "--gpu", "t4", "--gpus-per-node", "1", "--nodes", "1"]
        )
        .output
    )
    assert "at once: about" not in not_here
