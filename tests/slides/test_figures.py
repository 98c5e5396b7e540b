"""The deck's numbers and figures are what arithmetic says, and its answers those that were given."""

from __future__ import annotations

import math
import re

import deck
import figures
import pytest
import values
from drawings import engine, network, parallel, recorded

# What values() says, beside arithmetic that is written out here from each config.json and from the published tables.
EXPECTED = {
    "405b.weights_gb": "810",
    "8b.exact_gb": f"{8_030_261_248 * 2 / 1e9:.1f}",
    "8b.exact_gib": f"{8_030_261_248 * 2 / 2**30:.1f}",
    "70b.exact_gib": f"{70_553_706_496 * 2 / 2**30:.1f}",
    "405b.kv_full": f"{2 * 126 * 8 * 128 * 2 * 131072 / 2**30:.2f}",
    "gib.percent": "7%",
    "nvlink.both": f"{18 * 25 * 2}",  # NVIDIA H100 SXM: 18 links, 25 GB/s each way
    "nvlink.pair": f"{18 * 25 // 3}",  # notebook 2
    "ib.gb_s": f"{400 / 8:g}",
    "nvlink.times_ib": "nine",
    "405b.allreduce_count": f"{2 * 126}",
    "405b.allreduce_kib": f"{16384 * 2 / 1024:g}",
    "405b.allreduce_mib": f"{2 * 126 * 16384 * 2 / 2**20:.1f}",
    "70b.single": "82",
    "405b.single": "31",
    "70b.limit": f"{4 * 4.8e12 / (70_553_706_496 * 2):.0f}",
    "70b.tuned": "92",
    "70b.small_kib": f"{8192 * 2 / 1024:g}",
    "70b.tpot_ms": f"{1000 / 82.0:.1f}",
    "h200.more": f"{4.8 / 3.35:.1f}",
    "slide.20_p": f"{math.exp(-4.005917549133301):.1%}",
    "slide.49_p": f"{math.exp(-1.7559176683425903):.1%}",
    "slide.san_p": f"{math.exp(-8.533774375915527):.2%}",
    "slide.question_p": f"{math.exp(-1.1587743759155273):.1%}",
    "slide.san_rank": "284",
    "falcon.heads": "71",
    "mixtral.used": "two",
    "mixtral.experts": "8",
    "oss.window": "128",
    "jamba.attention": f"{32 // 8}",
    "minicpm.kv": f"{40 * 2 * 36 * 64 * 2 / 1024:.0f}",
    "fill.abstracts": "881",
    "tonight.at_once": f"{450_976 // 512}",  # tokens of the log
}


def test_numbers_are_what_arithmetic_says():
    computed = values.values()
    assert {name: computed[name] for name in EXPECTED} == EXPECTED


def test_what_was_published_is_what_the_slides_said():
    assert (values.PUBLISHED["then.70b"], values.PUBLISHED["then.405b"]) == ("50", "18–20")


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_committed_figure_is_what_workshop_draws_now(name, node):
    committed = (figures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert committed == figures.FIGURES[name]().svg(), "run: python slides/figures.py"


def test_every_figure_is_used_and_says_in_words_what_it_shows(node):
    used = {
        name
        for slide in (*deck.slides("workshop"), *deck.slides("day_two"))
        for name in re.findall(r"\{\{figure (\w+)\}\}", slide.source)
    }
    assert used == set(figures.FIGURES) == {path.stem for path in figures.FOLDER.glob("*.svg")}
    descriptions = [draw().words for draw in figures.FIGURES.values()]
    assert min(map(len, descriptions)) > 60 and len(set(descriptions)) == len(descriptions)


def test_limits_by_bandwidth_are_what_a_hand_computes():
    assert round(engine.limit_tokens_per_s("70b-tp4")) == round(4 * 4800 / 141.107) == 136
    assert round(engine.limit_tokens_per_s("405b-fp8-tp4")) == 47


def test_tensor_parallel_over_nodes_pays_on_a_fast_network_only():
    fast, slow = (network.stream_tokens_per_s(name) for name in ("infiniband-ndr", "ethernet-25g"))
    assert fast["TP 16"] > 1.2 * fast["TP 8 × PP 2"] and slow["TP 16"] < slow["TP 8 × PP 2"]
    # an all-reduce of a prompt over the network: 2·15/16 of its bytes at 8 · 50 GB/s, 252 times, and 252 latencies of 35 µs
    by_hand = 252 * (2 * 15 / 16 * 8192 * 16384 * 2 / 400e9 + 35e-6)
    assert network.prompt_s("infiniband-ndr")["TP 16"] == pytest.approx(by_hand, rel=1e-3)


def test_the_bubble_is_the_one_of_the_formula():
    # (p - 1) / (m + p - 1), GPipe
    idle = (parallel.STAGES - 1) / (parallel.REQUESTS + parallel.STAGES - 1)
    assert f"{idle:.0%}" in parallel.bubble().words


def test_continuous_batching_does_the_same_work_in_fewer_steps():
    static, continuous = engine._slots(False), engine._slots(True)
    work = [
        sum(end - start for jobs in slots for _, start, end in jobs)
        for slots, _ in (static, continuous)
    ]
    assert work == [sum(engine.LENGTHS)] * 2
    assert continuous[1] < static[1] and continuous[1] >= sum(engine.LENGTHS) / 4


def test_recorded_answers_name_their_server_and_command():
    answers = recorded.answers()
    assert answers["command"].endswith("slides/recorder.py answers") and all(
        answers[key] for key in ("vllm_version", "hardware", "date")
    )


def test_recorded_logprobs_show_what_the_slide_says():
    logprobs = {
        k: record["answer"]["choices"][0]["logprobs"]
        for k, record in recorded.answers()["logprobs"].items()
    }
    assert logprobs["None"] is None
    assert [len(top) for top in logprobs["0"]["top_logprobs"]] == [1, 1, 1]
    assert logprobs["0"]["tokens"] == logprobs["3"]["tokens"]  # the same seed
    for token, top in zip(logprobs["3"]["tokens"], logprobs["3"]["top_logprobs"], strict=True):
        assert token in top and len(top) in (3, 4)
    assert 4 in map(len, logprobs["3"]["top_logprobs"]), (
        "the slide shows a token that was not among the three best"
    )


def test_the_first_prompt_token_has_no_logprob_and_the_next_ones_are_the_prompts():
    prompt_logprobs = recorded.answers()["prompt_logprobs"]["answer"]["choices"][0][
        "prompt_logprobs"
    ]
    assert prompt_logprobs[0] is None
    assert (
        "".join(
            next(iter(candidates.values()))["decoded_token"] for candidates in prompt_logprobs[1:]
        ).strip()
        == "San Francisco is a"
    )


@pytest.mark.live
def test_the_server_still_says_what_was_recorded(client):
    now = client.complete(
        "San Francisco is a", max_tokens=1, temperature=0, prompt_logprobs=1
    ).model_dump()
    then = recorded.answers()["prompt_logprobs"]["answer"]["choices"][0]
    assert now["choices"][0]["text"] == then["text"]
    # Another processor moves logits by up to 0.2, and with them which of two near ones is the more probable.
    for a, b in zip(
        now["choices"][0]["prompt_logprobs"][1:], then["prompt_logprobs"][1:], strict=True
    ):
        both = a.keys() & b.keys()
        assert both, "the prompt's own token is in each"
        assert all(a[key]["logprob"] == pytest.approx(b[key]["logprob"], abs=0.5) for key in both)
