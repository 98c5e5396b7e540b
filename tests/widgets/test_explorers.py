"""Each control of an explorer that computes at once changes the picture, and has its sentence."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets")

from inference_planner.catalog import list_models

from workshop.course.widgets.bits.view import BitsExplorer
from workshop.course.widgets.controls import MORE, TEN_MODELS, models
from workshop.course.widgets.kv_cache.view import KvCacheExplorer
from workshop.course.widgets.memory.view import MemorySliders
from workshop.course.widgets.parallelism.view import ParallelismExplorer
from workshop.course.widgets.sampling.view import SamplingExplorer

EXPLORERS = (BitsExplorer, KvCacheExplorer, MemorySliders, ParallelismExplorer, SamplingExplorer)


def other_value(control) -> object:
    """Return a value that the control may have, and has not: the last, or else the first."""
    if hasattr(control, "options"):
        options = [item[1] if isinstance(item, tuple) else item for item in control.options]
        values = [option for option in (options[-1], options[0]) if option != MORE]
    else:
        values = [control.max, control.min]
    return next(value for value in values if value != control.value)


def test_every_control_changes_the_picture(subtests):
    for explorer_class in EXPLORERS:
        with subtests.test(str(explorer_class)):
            unchanged = []
            for name in explorer_class().controls:
                explorer = explorer_class()
                before = explorer.picture.value
                control = explorer.controls[name]
                control.value = other_value(control)
                if explorer.picture.value == before:
                    unchanged.append(name)
            assert not unchanged


def test_every_control_is_said_in_words(subtests):
    for explorer_class in [c for c in EXPLORERS if c is not BitsExplorer]:
        with subtests.test(str(explorer_class)):
            explorer = explorer_class()
            assert set(explorer.sentences()) == set(explorer.controls)
            assert all(sentence.value for sentence in explorer.says.values())


def test_a_list_of_models_begins_with_ten_and_shows_all_on_demand():
    models_list, seen = models("llama-3.1-70b"), []
    models_list.observe(lambda change: seen.append(change["new"]), "value")
    assert models_list.options == (*TEN_MODELS, MORE) and set(TEN_MODELS) <= set(list_models())
    models_list.index = len(TEN_MODELS)  # as the page does it
    assert models_list.value == "llama-3.1-70b" and not seen, "no other model is drawn"
    assert set(models_list.options) == set(list_models())
    assert models_list.options[models_list.index] == "llama-3.1-70b"
    models_list.value = "gpt2"
    assert seen == ["gpt2"]


def test_a_model_that_is_not_among_the_ten_is_in_its_list():
    assert models("falcon-7b").options[:2] == ("falcon-7b", TEN_MODELS[0])
