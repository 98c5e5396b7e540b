"""The explorer without a browser: set a trait, read the readout."""

from __future__ import annotations

import itertools
import math
import random
import re

import pytest
from needs import SEED

pytest.importorskip("ipywidgets")

from workshop.client.sampling import pipeline
from workshop.client.sampling_settings import Settings
from workshop.course.drawing import html
from workshop.course.widgets.sampling.branching import (
    GLIDE_S,
    LABEL_PX,
    WHOLE_PX,
    end_of,
    height,
    places,
)
from workshop.course.widgets.sampling.picture import (
    AXES,
    bars,
    effects,
    percent,
    picture,
    rows_shown,
    token_label,
)
from workshop.course.widgets.sampling.source import EMPTY, Position
from workshop.course.widgets.sampling.view import SamplingExplorer
from workshop.errors import WorkshopError

TEXTS = {0: " port", 1: " city", 2: "\n", 3: "�", 4: "<|end_of_text|>", 5: "<b>&"}


class Made:
    """A source of made-up distributions that can go away."""

    def __init__(self, size: int = 6):
        generator = random.Random(SEED)
        logits = (
            [4.0, 3.5, 2.0, 1.0, 0.5, 0.0]
            if size == 6
            else [generator.gauss(0, 3) for _ in range(size)]
        )
        total = math.log(math.fsum(map(math.exp, logits)))
        self.logprobs = dict(
            sorted(((t, x - total) for t, x in enumerate(logits)), key=lambda item: -item[1])
        )
        self.gone = False
        self.requests = []

    def describe(self) -> str:
        return "made up"

    def position(self, prompt, output=()):
        self.requests.append((prompt, output))
        if self.gone:
            raise WorkshopError("The server does not answer.", "Start it again.")
        if not prompt:
            raise EMPTY
        return Position(self.logprobs)

    def text(self, tokens):
        return "".join(TEXTS.get(token, f" t{token}") for token in tokens)


@pytest.fixture
def explorer():
    return SamplingExplorer(Made())


def labels(html_text: str) -> list[str]:
    """Return the rows' names in their order."""
    return re.findall(r'title="([^"]*)">', html_text)


class TestBars:
    def test_a_slider_moves_the_bars_at_once(self, explorer):
        before = explorer.picture.value
        explorer.sliders["temperature"].value = 0.5
        assert explorer.picture.value != before
        expected = pipeline(explorer.source.logprobs, Settings(temperature=0.5))
        assert explorer.result.probabilities == expected.probabilities

    def test_rows_keep_their_order(self, explorer):
        rows = labels(explorer.picture.value)
        for name, value in (
            ("temperature", 2.0),
            ("top_k", 2),
            ("top_p", 0.3),
            ("min_p", 0.4),
            ("temperature", 0.0),
        ):
            explorer.sliders[name].value = value
            assert labels(explorer.picture.value)[:6] == rows[:6]

    def test_a_removed_token_says_which_parameter_removed_it(self, explorer):
        explorer.sliders["top_k"].value = 3
        assert explorer.picture.value.count("cut by top_k") == 3
        explorer.sliders["temperature"].value = 0
        assert explorer.picture.value.count("not the best: greedy") == 5

    def test_numbers_are_said_to_screen_readers(self, explorer):
        explorer.sliders["temperature"].value = 0
        assert 'aria-label="Next token: port 100 %"' in explorer.picture.value

    def test_text_of_tokens_is_escaped(self, explorer):
        assert "<b>&" not in explorer.picture.value
        assert "&lt;b&gt;&amp;" in explorer.picture.value

    def test_what_is_drawn_is_what_is_computed(self):
        source = Made(500)
        result = pipeline(source.logprobs, Settings(temperature=1.3, top_k=20))
        drawn = bars(result, rows_shown(result.steps[0].probabilities, []), str)
        assert sum(row.sampled for row in drawn.rows) + drawn.others.sampled == pytest.approx(1)
        assert drawn.rows[0].model == pytest.approx(math.exp(max(source.logprobs.values())))
        left = [(step.name, len(step.probabilities)) for step in drawn.result.steps]
        assert left == [("model", 500), ("temperature", 500), ("top_k", 20)]
        assert drawn.axis in AXES
        assert drawn.axis >= drawn.rows[0].model

    def test_what_is_longer_than_the_axis_is_marked(self):
        """The axis fits the tokens; all others together may hold more than any of them."""
        result = pipeline(dict.fromkeys(range(100), math.log(0.01)), Settings())
        drawn = bars(result, list(range(8)), str)
        assert drawn.axis == 0.01
        assert drawn.others.sampled == pytest.approx(0.92)
        assert picture(drawn, "One of").count("longer than the axis") == 1

    def test_a_bar_as_thin_as_a_hair_has_no_outline(self):
        """An outline of 1 pixel would be all that is seen of it."""
        shares = {0: 0.6, 1: 0.392, 2: 0.004, 3: 0.004}
        result = pipeline({t: math.log(p) for t, p in shares.items()}, Settings())
        drawn = bars(result, list(shares), str)
        assert picture(drawn, "One of").count('class="model"') == 2

    def test_a_generated_token_gets_a_row_and_a_count(self, explorer):
        explorer._append(1)
        explorer._append(1)
        assert "×2" in explorer.picture.value

    def test_a_truncated_list_says_what_it_cannot_see(self):
        listed = {0: math.log(0.5), 1: math.log(0.2)}
        result = pipeline(listed, Settings())
        drawn = bars(result, [0, 1], str)
        assert drawn.rows[0].sampled == pytest.approx(0.5)  # not 0.71: the rest is elsewhere
        assert "30 % of the model's probability lies on tokens that are not listed" in picture(
            drawn, "San Francisco is a"
        )

    def test_the_axis_fits_the_longest_bar(self, explorer):
        axes = []
        for temperature in (1, 2, 0):
            explorer.sliders["temperature"].value = temperature
            axes.append(explorer._drawn.axis)
            most = max(max(row.model, row.sampled) for row in explorer._drawn.rows)
            assert axes[-1] == min(end for end in AXES if end >= most)
        assert axes == [0.6, 0.6, 1.0], "53 % of the model; at temperature 0 all of it"


class TestBranching:
    SHARES = ((0.5, 0.3, 0.2), (1.0, 0.0, 0.0), (0.4, 0.3, 0.3))

    def test_a_branch_is_as_wide_as_its_word_is_probable(self):
        for shares in self.SHARES:
            widths = [place.width for place in places(shares)]
            assert widths == pytest.approx([WHOLE_PX * share for share in shares])

    def test_the_picture_keeps_its_height_and_branches_do_not_overlap_at_their_ends(self):
        for shares in self.SHARES:
            drawn = places(shares)
            assert sum(place.height for place in drawn) == pytest.approx(height(3))
            for first, second in itertools.pairwise(drawn):
                between = (first.width + second.width) / 2
                assert second.begin - first.begin == pytest.approx(between)
                assert second.end - first.end == pytest.approx(between + LABEL_PX)

    def test_a_picture_glides_from_the_one_before(self, explorer):
        old = explorer.picture.value
        explorer.sliders["temperature"].value = 0.5
        new = explorer.picture.value
        assert re.findall(r"--h0:([\d.]+px)", new) == re.findall(
            r"[ \"]height:([\d.]+px);--h0", old
        )
        assert re.findall(r"--t0:([^;]+);", new) == re.findall(r'"transform:([^;]+);', old)
        assert re.findall(r"--h0:([\d.]+px)", new) != re.findall(
            r"[ \"]height:([\d.]+px);--h0", new
        )

    def test_the_stylesheet_has_the_same_heights(self):
        assert f".stem>.trunk{{flex:none;width:5px;height:{WHOLE_PX}px" in html.SHEET.replace(
            " > ", ">"
        )
        assert f"calc(100% - {LABEL_PX}px)" in html.SHEET
        assert html.SHEET.count(f"{GLIDE_S:g}s ease-out".lstrip("0")) == 3

    def test_who_wants_less_motion_sees_none(self):
        moving = re.findall(r"[^{}]*\.glides [^{}]*{[^{}]*animation:", html.SHEET)
        quiet = html.SHEET.index("@media (prefers-reduced-motion:no-preference)")
        end = html.SHEET.index("}}", html.SHEET.index("animation:workshop-bar"))
        assert len(moving) == 3
        assert all(quiet < html.SHEET.index(rule) < end for rule in moving)

    def test_the_end_of_the_text_stands_beside_the_stem(self, subtests):
        for text, shown in [
            ("San Francisco is a", "San Francisco is a"),
            ("Abstract: We count.\nField:", "Abstract: We count. Field:"),
            ("one two three four five six seven", "… three four five six seven"),
            ("x" * 99, "… " + "x" * 26),
        ]:
            with subtests.test(text):
                assert end_of(text) == shown


class TestWords:
    def test_each_slider_says_what_it_does_now(self, subtests):
        for settings, name, says in [
            (Settings(), "temperature", "unchanged"),
            (Settings(temperature=0), "temperature", "Greedy"),
            (Settings(temperature=0.5), "temperature", "now 4:1"),
            (Settings(temperature=2), "temperature", "now 1.4:1"),
            (Settings(temperature=0.01), "temperature", "million"),
            (Settings(top_k=0), "top_k", "Off"),
            (Settings(top_k=-1), "top_k", "Off"),
            (Settings(top_k=2), "top_k", "2 most probable"),
            (Settings(top_k=10**6), "top_k", "removes nothing"),
            (Settings(top_p=0.9), "top_p", "holds 90 %"),
            (Settings(top_p=0.01), "top_p", "1 token"),
            (Settings(min_p=0.1), "min_p", "less than 10 %"),
            (Settings(min_p=0), "min_p", "Off"),
            (Settings(frequency_penalty=1), "frequency_penalty", "Nothing has been generated yet"),
            (
                Settings(frequency_penalty=-2),
                "frequency_penalty",
                "raises its logit by 2: its odds × 7.4",
            ),
            (Settings(temperature=0, top_k=3), "top_k", "greedy takes one"),
        ]:
            with subtests.test(str(settings)):
                result = pipeline(Made().logprobs, settings)
                assert says in effects(settings, result, generated=0)[name]

    def test_each_slider_says_where_people_set_it(self, explorer):
        for name, sentence in explorer.says.items():
            assert "Usual" in sentence.value, name

    def test_tokens_that_are_no_text_are_shown_in_words(self):
        shown = {
            " city": "·city",
            "\n": "⏎",
            "  ": "··",
            "": "▯ (no text)",
            "�": "▯ (part of a character)",
            "👍": "👍",
        }
        assert {text: token_label(text) for text in shown} == shown

    def test_probabilities_read_well(self):
        read = {
            1.0: "100 %",
            0.9996: "100 %",
            0.314: "31 %",
            0.0996: "10 %",
            0.0421: "4.2 %",
            0.0003: "0.03 %",
        }
        read |= {1e-7: "< 0.01 %", 0.0: "0 %"}
        assert {p: percent(p) for p in read} == read


class TestWriting:
    def test_sample_append_step_back_start_again(self, explorer):
        explorer.sample()
        explorer.sample()
        assert len(explorer.output) == 2
        assert explorer.source.requests[-1] == ("San Francisco is a", tuple(explorer.output))
        first = explorer.output[0]
        explorer.step_back()
        assert explorer.output == [first]
        explorer.ask()
        assert explorer.output == []
        explorer.step_back()
        assert explorer.output == []

    def test_the_same_seed_draws_the_same_tokens(self):
        runs = []
        for _ in range(2):
            sampler = SamplingExplorer(Made(200))
            sampler.seed.value = 7
            for _ in range(5):
                sampler.sample()
            runs.append(sampler.output)
        assert runs[0] == runs[1]

    def test_take_the_best(self, explorer):
        explorer.take_best()
        assert explorer.output == [0]
        assert " port" in explorer.story.value

    def test_after_the_end_nothing_is_appended(self, explorer):
        explorer._append(4)
        explorer.sample()
        assert explorer.output == [4]
        assert "ended its text" in explorer.banner.value

    def test_frequency_penalty_counts_what_was_generated(self, explorer):
        explorer.sliders["frequency_penalty"].value = 2.0
        before = explorer.result.probabilities[0]
        explorer._append(0)
        assert explorer.result.probabilities[0] < before

    def test_a_new_prompt_starts_again(self, explorer):
        explorer.sample()
        explorer.prompt.value = "Boston is a"
        assert explorer.output == []
        assert explorer.source.requests[-1] == ("Boston is a", ())

    def test_a_prompt_of_several_lines_has_a_box_of_several_lines(self):
        for prompt, kind in (("Abstract: We\nField:", "Textarea"), ("Boston is a", "Text")):
            explorer = SamplingExplorer(Made(), prompt)
            assert type(explorer.prompt).__name__ == kind
            assert explorer.source.requests == [(prompt, ())]

    def test_the_box_of_a_part_of_the_explorer_shows_one_line(self):
        prompt = "Abstract: We\nField:"
        assert SamplingExplorer(Made(), prompt, show=("temperature",)).prompt.rows == 1
        assert SamplingExplorer(Made(), prompt).prompt.rows == 3


class TestBadInput:
    def test_an_empty_prompt_says_so_and_keeps_the_picture(self, explorer):
        picture = explorer.picture.value
        explorer.prompt.value = ""
        assert "prompt is empty" in explorer.banner.value
        assert explorer.picture.value == picture
        explorer.prompt.value = "again"
        assert explorer.banner.value == ""

    def test_a_server_that_goes_away_while_a_slider_is_dragged(self, explorer):
        explorer.source.gone = True
        explorer.sliders["temperature"].value = 0.3  # needs no server
        assert explorer.banner.value == ""
        picture = explorer.picture.value
        explorer.sample()
        assert "does not answer" in explorer.banner.value
        assert "Start it again" in explorer.banner.value
        assert explorer.output == []
        assert explorer.picture.value == picture
        explorer.source.gone = False
        explorer.sample()
        assert len(explorer.output) == 1
        assert explorer.banner.value == ""

    def test_no_server_from_the_beginning(self):
        source = Made()
        source.gone = True
        sampler = SamplingExplorer(source)
        assert "does not answer" in sampler.banner.value
        sampler.sliders["top_k"].value = 3
        sampler.sample()


@pytest.mark.live
class TestLive:
    def test_what_is_drawn_is_the_servers_whole_vocabulary(self, client):
        explorer = SamplingExplorer(client)
        assert "all 8,192 tokens" in explorer.head.value
        explorer.sample()
        assert len(explorer.output) == 1
        assert explorer.source.text(tuple(explorer.output)) in explorer.story.value.replace(
            "&#x27;", "'"
        )
        assert explorer.banner.value == ""

    def test_greedy_steps_write_what_the_server_writes(self, client):
        explorer = SamplingExplorer(client, "San Francisco is a")
        for _ in range(6):
            explorer.take_best()
        answer = client.complete("San Francisco is a", max_tokens=6, temperature=0)
        assert explorer.source.text(tuple(explorer.output)) == answer.choices[0].text

    def test_an_emoji_is_whole_again_once_all_its_pieces_are_there(self, client):
        explorer = SamplingExplorer(client, "I like 👍")
        ids = explorer.source.position("I like 👍").prompt
        assert explorer.source.text(ids).endswith("👍")
        assert "�" in explorer.source.text(ids[-1:])
