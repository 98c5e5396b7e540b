"""The guided experiments of notebook 4: each changes on the screen what its text says, with the teaching model."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets")

from workshop.client.sampling_settings import DEFAULTS, Settings
from workshop.course.topics import abstracts
from workshop.course.widgets.sampling.source import TeachingModel
from workshop.course.widgets.sampling.view import SLIDERS, SamplingExplorer
from workshop.errors import BadInput

LABEL = abstracts.prompt(abstracts.load()[480]["text"])
ROOT = "Think of numbers.\nA root is a"


@pytest.fixture(scope="module")
def model() -> TeachingModel:
    return TeachingModel()


def bars(explorer: SamplingExplorer) -> dict[str, float]:
    """Return what the bars show: the probability of each token by its text."""
    tokens = explorer.result.probabilities
    return {explorer.source.text((token,)): p for token, p in tokens.items()}


def test_temperature_0_leaves_one_bar(model):
    explorer = SamplingExplorer(model, LABEL, show=("temperature",))
    before = explorer.picture.value
    explorer.sliders["temperature"].value = 0
    assert list(bars(explorer)) == [" psychology"]
    assert explorer.picture.value != before


def test_temperature_2_shrinks_the_longest_bar_and_grows_the_short_ones(model):
    explorer = SamplingExplorer(model, LABEL, show=("temperature",))
    before = bars(explorer)
    ranked = sorted(before, key=before.__getitem__, reverse=True)
    assert {text.strip() for text in ranked[:8]} == set(abstracts.FIELDS), "the best eight"
    explorer.sliders["temperature"].value = 2
    after = bars(explorer)
    assert max(after, key=after.__getitem__) == ranked[0], "temperature keeps the order"
    assert 0.5 < after[ranked[0]] / before[ranked[0]] < 0.7
    assert after[ranked[7]] > before[ranked[7]]
    assert 0.05 < 1 - sum(after[text] for text in ranked[:8]) < 0.13, "tokens that are no labels"


def test_top_k_2_leaves_two_bars_and_top_p_cuts_again(model):
    explorer = SamplingExplorer(model, LABEL, show=("temperature", "top_k", "top_p", "min_p"))
    explorer.sliders["top_k"].value = 2
    assert list(bars(explorer).values()) == pytest.approx(
        [0.73, 0.27], abs=0.02
    )  # as served, in 16 bits
    explorer.sliders["top_p"].value = 0.7
    assert list(bars(explorer)) == [" psychology"]
    explorer.set(DEFAULTS)
    explorer.sliders["top_p"].value = 0.7
    assert len(bars(explorer)) == 2, "without top_k there would be two"


def test_min_p_takes_the_tail_of_temperature_2_away(model):
    explorer = SamplingExplorer(model, LABEL, show=("temperature", "min_p"))
    explorer.sliders["temperature"].value = 2
    assert len(bars(explorer)) > 8000
    explorer.sliders["min_p"].value = 0.1
    assert len(bars(explorer)) == 5
    assert {text.strip() for text in bars(explorer)} < set(abstracts.FIELDS)


def test_a_frequency_penalty_shrinks_the_bar_of_a_token_that_repeats(model):
    """The course's first prompt showed nothing: the ten sampled tokens had no bar to shrink."""
    explorer = SamplingExplorer(model, ROOT, show=("frequency_penalty",), best_tokens=10)
    assert model.text(tuple(explorer.output)) == " number that, when multiplied by itself some"
    before, picture = bars(explorer), explorer.picture.value
    explorer.sliders["frequency_penalty"].value = 1
    after = bars(explorer)
    assert before[" number"] > 0.4 and after[" number"] < 0.8 * before[" number"], (
        "a bar that everybody sees shrinks"
    )
    assert after[" numbers"] > before[" numbers"] + 0.05, "the prompt does not count"
    assert explorer.picture.value != picture


def test_a_presence_penalty_counts_a_repeated_token_once(model):
    explorer = SamplingExplorer(model, ROOT, show=("presence_penalty",), best_tokens=18)
    before = bars(explorer)
    explorer.sliders["presence_penalty"].value = 1
    once = bars(explorer)
    explorer.set(Settings(frequency_penalty=1))
    twice = bars(explorer)
    assert twice[" number"] < once[" number"] < before[" number"]


def visible(explorer: SamplingExplorer) -> set[str]:
    """Return the sliders that are somewhere on the page."""
    names = set()
    waiting = [explorer]
    while waiting:
        widget = waiting.pop()
        waiting += getattr(widget, "children", ())
        names |= {name for name, slider in explorer.sliders.items() if slider is widget}
    return names


def test_the_explorer_is_built_up_slider_by_slider(subtests):
    for show in [("temperature",), ("top_k", "top_p"), ("min_p",), "temperature"]:
        with subtests.test(str(show)):
            explorer = SamplingExplorer(show=show)
            assert visible(explorer) == ({show} if isinstance(show, str) else set(show))
            assert explorer.settings == DEFAULTS, "what is hidden is off"
            assert visible(SamplingExplorer()) == set(SLIDERS)


def test_sliders_stand_in_the_order_in_which_they_are_named():
    explorer = SamplingExplorer(show=("temperature", "top_p", "min_p"))
    shown = [row[0] for row in explorer.control_rows()]
    assert shown == [explorer.sliders[name] for name in ("temperature", "top_p", "min_p")]


def test_a_part_of_the_explorer_says_less_than_the_whole(subtests):
    for show, is_whole in [(None, True), (("temperature",), False), (("top_k", "min_p"), False)]:
        with subtests.test(str(show)):
            explorer = SamplingExplorer(show=show)
            assert ("equally likely tokens" in explorer.picture.value) == is_whole
            assert "Tokens that may come: " in explorer.picture.value


def test_a_slider_that_does_not_exist_is_one_sentence(subtests):
    for show in [("heat",), (), ("temperature", "top_q")]:
        with subtests.test(str(show)):
            with pytest.raises(BadInput) as error:
                SamplingExplorer(show=show)
            assert "temperature, min_p, top_k" in error.value.remedy
