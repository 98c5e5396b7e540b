"""The checks of notebook 02, its pictures, and the table of its workers."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ipywidgets")

from workshop.launch.local import TEACHING_FOLDER
from workshop.learn import pictures
from workshop.learn.exercise_sets.e02_parallelism import DECIDED, EXERCISES, toy
from workshop.plan.catalog import load_model
from workshop.plan.memory import kv_cache_bytes_per_token
from workshop.plan.parallelism import plan


def parts(halves):
    x, w1, w2 = toy()
    return tuple(np.maximum(x @ w1[:, half], 0) @ w2[half] for half in halves)


HALVES = (slice(0, 4), slice(4, 8))


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("parallelism.nvlink", 900),
        ("parallelism.partial_sums", parts(HALVES)),
        ("parallelism.partial_sums", parts((slice(0, None, 2), slice(1, None, 2)))),  # any split will do
        ("parallelism.decide", DECIDED),
        ("parallelism.all_reduce_bytes", 8_257_536),
        ("parallelism.tokens_tp2", 131072),
    ],
)
def test_right_answers_pass(key, answer):
    assert EXERCISES[key].test(answer) is None


@pytest.mark.parametrize(
    ("key", "answer", "says"),
    [
        ("parallelism.nvlink", 450, "one direction"),
        ("parallelism.nvlink", 225, "three neighbours"),
        ("parallelism.partial_sums", parts((slice(0, 8), slice(0, 8))), "whole already"),
        ("parallelism.partial_sums", parts((slice(0, 4), slice(0, 4))), "must match"),
        ("parallelism.partial_sums", [sum(parts(HALVES)) / 2] * 2, "other columns"),
        ("parallelism.partial_sums", 3, "both partial results"),
        ("parallelism.partial_sums", (np.ones(4), np.ones(4)), "shape"),
        ("parallelism.decide", {**DECIDED, "D": (4, 1)}, "71"),
        ("parallelism.decide", {**DECIDED, "D": (1, 1)}, "too small"),
        ("parallelism.decide", {**DECIDED, "C": (2, 8)}, "other way"),
        ("parallelism.decide", {**DECIDED, "C": (16, 1)}, "fast network"),
        ("parallelism.decide", {"A": (1, 1)}, "all of"),
        ("parallelism.decide", {**DECIDED, "B": 4}, "give (tensor"),
        ("parallelism.all_reduce_bytes", 4_128_768, "two all-reduces"),
        ("parallelism.all_reduce_bytes", 7.875, "MiB"),
        ("parallelism.tokens_tp2", 65536, "one rank"),
    ],
)
def test_wrong_answers_are_told_what_is_off(key, answer, says):
    assert says in EXERCISES[key].test(answer)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("A", ("llama-3.1-8b", "h100", 1, 1)),
        ("B", ("llama-3.3-70b", "h100", 4, 1)),
        ("C", ("llama-3.1-405b", "h100", 8, 2)),
        ("D", ("falcon-7b", "t4", 4, 1)),
    ],
)
def test_the_plan_decides_as_the_rule_does(name, case):
    model, gpu, per_node, nodes = case
    found = plan(model, gpu, gpus_per_node=per_node, nodes=nodes, max_model_len=2048)
    assert (found.tensor_parallel_size, found.pipeline_parallel_size) == DECIDED[name]


def test_what_is_asked_of_the_log_follows_from_the_teaching_models_shape():
    # config.json: 4 layers, 2 KV heads of 32, 2 bytes: 1,024 bytes a token on one rank
    assert kv_cache_bytes_per_token(load_model(TEACHING_FOLDER)) == 1024
    assert 64 * 2**20 // 512 == 131072


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        (pictures.kinds(), "Five ways"),
        (pictures.links(), "75 GB/s each way"),
        (pictures.megatron(), "one all-reduce adds"),
    ],
)
def test_pictures_say_their_words(picture, says):
    assert says in repr(picture)
    assert "<svg" in picture._repr_html_()


def test_the_links_are_drawn_without_the_sum_that_the_exercise_asks_for():
    svg = pictures.links().svg
    assert svg.count(f'stroke="{pictures.style.GREEN}" stroke-width="3"') == 2 * 6, (
        "four GPUs make six pairs, in each of two nodes"
    )
    assert "75 GB/s" in svg and "900" not in svg
