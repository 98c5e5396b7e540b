"""What notebook 02's answers rest on, and its pictures."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets")

from inference_planner.catalog import load_model
from inference_planner.model.kv_cache import kv_cache_bytes_per_token

from workshop.course.drawing import plots
from workshop.course.exercises.sets.e02_parallelism import DECIDED
from workshop.course.widgets import style
from workshop.engine.planning import plan
from workshop.servers.local import TEACHING_FOLDER


def test_the_plan_decides_as_the_rule_does(subtests):
    for name, case in [
        ("A", ("llama-3.1-8b", "h100", 4, 1)),
        ("B", ("llama-3.3-70b", "h100", 4, 1)),
        ("C", ("llama-3.1-405b", "h100", 8, 2)),
        ("D", ("falcon-7b", "t4", 4, 1)),
    ]:
        with subtests.test(name):
            model, gpu, per_node, nodes = case
            chosen_plan = plan(model, gpu, gpus_per_node=per_node, nodes=nodes, max_model_len=2048)
            assert (
                chosen_plan.tensor_parallel_size,
                chosen_plan.pipeline_parallel_size,
            ) == DECIDED[name]


def test_what_is_asked_of_the_log_follows_from_the_teaching_models_shape():
    # config.json: 4 layers, 2 KV heads of 32, 2 bytes: 1,024 bytes a token on one rank
    assert kv_cache_bytes_per_token(load_model(TEACHING_FOLDER)) == 1024
    assert 64 * 2**20 // 512 == 131072


def test_pictures_say_their_words(subtests):
    for picture, says in [
        (plots.kinds(), "Five ways"),
        (plots.links(), "150 GB/s each way"),
        (plots.megatron(), "one all-reduce adds"),
    ]:
        with subtests.test(str(picture)):
            assert says in repr(picture)
            assert "<svg" in picture._repr_html_()


def test_the_links_are_drawn_without_the_sum_that_the_exercise_asks_for():
    svg = plots.links().svg
    assert svg.count(f'stroke="{style.GREEN}" stroke-width="3"') == 2 * 6, (
        "four GPUs make six pairs, in each of two nodes"
    )
    assert "150 GB/s" in svg and "1800" not in svg and "1,800" not in svg
