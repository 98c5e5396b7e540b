"""vLLM's own refusals, word for word as version 0.32 sent them, and what we add."""

from __future__ import annotations

import pytest

from workshop.client.refusals import logprobs_limit, remedy
from workshop.errors import BadInput

KNOWN = (
    (
        "Requested sample logprobs of 9000, which is greater than max allowed: 20 (parameter=logprobs, value=9000)",
        "Ask for at most 20, or start the server with `--max-logprobs 9000`",
    ),
    ("Requested prompt logprobs of 30, which is greater than max allowed: 20", "at most 20"),
    (
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
        "prompt is empty",
    ),
    ("You must pass at least one prompt", "prompt is empty"),
    ("n must be 1 when using greedy sampling, got 3.", "leave n at 1"),
    (
        "temperature must be in [0, 2], got 3.0. (parameter=temperature, value=3.0)",
        "0 (greedy) to 2",
    ),
    ("temperature must be non-negative, got -1.0.", "0 (greedy) to 2"),
    ("top_p must be in (0, 1], got 0.0.", "top_k=1"),
    ("top_k must be 0 (disable), or at least 1, got -2.", "0 or -1"),
    ("min_p must be in [0, 1], got 2.0.", "0 (off) to 1"),
    ("frequency_penalty must be in [-2, 2], got 3.0.", "-2 to 2"),
    ("min_tokens must be less than or equal to max_tokens=2, got 5.", "Raise max_tokens"),
    (
        "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template",
        "not chat",
    ),
    ("`logprobs` must be a positive value. (parameter=logprobs, value=-1)", "such as 20"),
)


def test_a_refusal_comes_with_what_to_do():
    for message, helps in KNOWN:
        assert helps in remedy(message), message


def test_what_nobody_knows_gets_no_invented_remedy():
    assert remedy("Something new.") == ""


def test_the_limit_can_be_read_from_the_refusal():
    assert (
        logprobs_limit("Requested sample logprobs of 30, which is greater than max allowed: 20")
        == 20
    )
    assert logprobs_limit("top_p must be in (0, 1], got 0.0.") is None


@pytest.mark.live
def test_the_live_servers_refusals_are_known(client):
    for bad in (
        {"temperature": -1},
        {"temperature": 3},
        {"top_p": 0},
        {"top_k": -2},
        {"min_p": 2},
        {"frequency_penalty": 3},
        {"logprobs": 100_000},
        {"min_tokens": 9, "max_tokens": 2},
        {"n": 2, "temperature": 0},
    ):
        with pytest.raises(BadInput) as refused:
            client.complete("San Francisco", **{"max_tokens": 10, **bad})
        assert refused.value.remedy, bad
