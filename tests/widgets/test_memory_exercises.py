"""What notebook 01 starts from and shows: the sliders' case, the recorded runs, its pictures' words."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets")

from inference_planner.answer import choose
from inference_planner.split.deployment import prepare

from workshop import MemorySliders
from workshop.course.drawing import plots
from workshop.course.exercises.checking import all_exercises
from workshop.course.exercises.sets.e01_memory import TIGHT
from workshop.course.widgets.memory.case import MemoryCase, memory
from workshop.course.widgets.reconcile.view import recorded_errors

TIGHT_CASE = MemoryCase(**TIGHT)


def test_the_exercise_starts_where_some_have_to_wait():
    assert memory(TIGHT_CASE).state == "waits"


def test_the_exercise_does_not_say_its_own_answer():
    assert "fp8 KV cache" in MemorySliders(**TIGHT).picture.value
    html = MemorySliders(**TIGHT, remedies=False).picture.value
    assert "the others wait" in html and "emedy" not in html and "8 GPUs" not in html


def test_the_plan_needs_as_many_h100_as_the_exercise_says():
    fewest = choose.fewest(prepare("llama-3.3-70b", "h100", max_model_len=65536)).gpus
    assert all_exercises()["memory.fewest_h100"].test(fewest) is None


def test_every_recorded_run_on_a_gpu_is_compared():
    errors = recorded_errors()
    assert len(errors) >= 11
    assert all(len(run) == 4 for run in errors.values())
    # what the notebook says of the others: they miss sliding windows, MLA and an fp8 KV cache
    assert errors["llama-3.1-8b, fp8 KV"]["llm-d-planner"] < -40
    assert errors["deepseek-v2-lite"]["hf-mem"] < -80


def test_pictures_say_their_words_and_draw_what_they_count():
    picture = plots.kv_caching()
    assert "15 pairs of keys and values without a cache, 5 with one" in repr(picture)
    assert picture.svg.count(f'fill="{plots.style.VERMILLION}"') == 15 + 5 + 1  # and the legend
