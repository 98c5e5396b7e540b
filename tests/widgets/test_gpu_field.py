"""The field of a GPU holds what the plan says, square by square, and its pages turn without a kernel."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

pytest.importorskip("ipywidgets")

import ipywidgets as widgets

from workshop import GpuField, plan
from workshop.course.widgets.gpu_field.case import Frame, story
from workshop.course.widgets.gpu_field.picture import (
    Box,
    FieldStage,
    boxes,
    is_over,
    picture,
    requests,
    rim,
    rows,
)
from workshop.errors import BadInput

# config.json of Llama 3.1: 8B has 32 layers, 70B has 80; both 8 KV heads of 128 numbers, K and V, 2 bytes.
# Their weights are counted in planner/inference_planner/catalog/models.json.
ABSTRACT_GIB = 512 * 2 * 32 * 8 * 128 * 2 / 2**30
THESIS_GIB = 128_000 * 2 * 80 * 8 * 128 * 2 / 2**30
WEIGHTS_8B_GIB = 2 * 8_030_261_248 / 2**30
WEIGHTS_70B_GIB = 2 * 70_553_706_496 / 2**30


def area(drawn: list[Box]) -> float:
    """Return how many squares rectangles cover; each square is inset by 0.04 on each side."""
    return sum(box.width * box.height for box in drawn) / 0.92**2


@pytest.fixture(scope="module")
def abstracts() -> tuple[Frame, ...]:
    return story("llama-3.1-8b", "h100", tokens=512, max_model_len=8192)


@pytest.fixture(scope="module")
def theses() -> tuple[Frame, ...]:
    return story("llama-3.1-70b", "h100", tokens=128_000)


class TestStory:
    def test_a_request_is_the_bytes_that_its_config_says(self, abstracts):
        split = abstracts[-1].split
        assert split.request == ABSTRACT_GIB == 64 / 1024
        assert split.weights == pytest.approx(WEIGHTS_8B_GIB, abs=0.05)  # and a small table
        assert (split.squares, round(split.usable, 1)) == (80, 72.9)  # 92 % of 79.2 GiB

    def test_everything_has_come_in_its_order(self, abstracts):
        come = [(f.has_weights, f.has_work_space, f.requests > 0, f.is_waiting) for f in abstracts]
        assert come == sorted(come)
        assert come[0] == (False,) * 4
        assert come[-1] == (True,) * 4

    def test_requests_come_until_one_must_wait(self, abstracts):
        counts = [frame.requests for frame in abstracts]
        assert counts == [0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 881, 881]
        full = abstracts[-1]
        left = full.split.kv_room - full.requests * ABSTRACT_GIB
        assert 0 <= left < ABSTRACT_GIB
        assert full.text == "Full: request 882 must wait until one of these 881 is done."

    def test_the_plan_of_the_notebook_is_that_of_the_field(self, abstracts):
        planned = plan("llama-3.1-8b", "h100", max_model_len=8192)
        split = abstracts[-1].split
        assert split.room == planned.kv_cache_tokens // 512
        assert split.kv_room == pytest.approx(planned.available_kv_gib_per_gpu, abs=0.001)

    def test_70b_overflows_one_gpu_has_no_room_on_two_and_is_served_by_four(self, theses):
        assert sorted({frame.split.gpus for frame in theses}) == [1, 2, 4]
        single, two, four = (
            [frame for frame in theses if frame.split.gpus == gpus] for gpus in (1, 2, 4)
        )
        assert single[-1].split.weights == pytest.approx(WEIGHTS_70B_GIB, abs=0.1)
        assert not single[-1].is_waiting
        assert single[-1].top > single[-1].split.squares
        assert two[-1].is_waiting
        assert two[-1].requests == 0
        assert 2 * two[-1].split.kv_room < THESIS_GIB
        assert four[-1].is_waiting
        assert four[-1].requests == 3
        assert 3 < 4 * four[-1].split.kv_room / THESIS_GIB < 4

    def test_the_weights_are_cut_into_equal_parts(self, theses):
        for frame in theses:
            whole = frame.split.gpus * frame.split.weights
            assert whole == pytest.approx(WEIGHTS_70B_GIB, rel=0.002)

    def test_fewer_bits_fit_on_the_card(self):
        _, *formats = story("llama-3.1-70b", "h100", bits=(16, 8, 4))
        gib = [frame.split.weights for frame in formats]
        assert gib[0] == pytest.approx(WEIGHTS_70B_GIB, abs=0.1)
        assert gib[0] / 2 < gib[1] < 80  # a little more than half: some parts stay in 16 bits
        assert gib[0] / 4 < gib[2] < gib[1]
        assert [" fit" in frame.text for frame in formats] == [False, True, True]

    def test_a_story_ends_where_it_is_told_to(self):
        frames = story("llama-3.2-1b", requests=64)
        assert frames[-1].requests == 64
        assert not frames[-1].is_waiting

    def test_what_cannot_be_drawn_gets_a_sentence(self, subtests):
        for wrong, sentence in [
            ({"tokens": 0}, "tokens is 0"),
            ({"tokens": 9000, "max_model_len": 8192}, "longer than max_model_len"),
            ({"requests": True}, "requests is True"),
            ({"bits": (16, 5)}, "bits is 5"),
            ({"model": "gpt-oss-20b", "bits": (16,)}, "not published in 16 bits"),
        ]:
            with subtests.test(str(wrong)), pytest.raises(BadInput, match=sentence):
                GpuField(**wrong)


class TestDrawing:
    def test_a_part_covers_as_many_squares_as_it_has_gib(self, abstracts, subtests):
        for begin, end in [(0, 7.145), (7.145, 22.15), (75.6, 95.1), (3.2, 3.7)]:
            for strips in [1, 4]:
                with subtests.test(f"{begin}, {strips}"):
                    drawn = boxes(begin, end, abstracts[0].split, strips)
                    assert area(drawn) == pytest.approx(end - begin, abs=0.02)

    def test_sixteen_abstracts_are_the_cells_of_a_square(self, abstracts):
        full = abstracts[-1]
        drawn = requests(full, range(full.requests))
        assert all(len(cell) == 1 for cell in drawn)
        corners = {(round(c.x, 3), round(c.y, 3)) for (c,) in drawn}
        assert len(corners) == 881
        assert all(0 <= cell.y < rows(full.split) for (cell,) in drawn)

    def test_who_waits_is_above_the_line(self, abstracts, theses):
        for frame in (abstracts[-1], theses[-1]):
            assert min(box.y for box in requests(frame, [frame.requests])[0]) < 0
            assert min(box.y for box in requests(frame, [0])[0]) >= 0

    def test_a_card_whose_last_row_is_short_is_full_at_its_last_square(self):
        _, poured = story("llama-3.1-8b", "rtx-4090", bits=(16,))
        assert (poured.split.squares, rows(poured.split)) == (24, 2)
        whole = boxes(0, 26, poured.split)
        assert [is_over(box, poured.split) for box in whole] == [False] * 24 + [True] * 2
        assert rim(poured.split, 1) == "M0 0h4v1h16"

    def test_each_frame_says_in_words_what_it_shows(self, theses):
        stage = FieldStage.of(theses)
        drawn = picture(theses[-1], theses[-2], stage)
        label = re.search(r'role="img" aria-label="([^"]*)"', drawn)[1]
        assert label.startswith(
            "Full: request 4 must wait until one of these 3 is done. On each GPU"
        )
        assert "weights 32.9 GiB, work space 2.6 GiB, KV cache 29.3 GiB" in label

    def test_every_colour_of_every_frame_is_in_its_legend(self, abstracts, theses):
        keys = {
            "free": "bg-empty",
            "reserve": "reserve",
            "weights": "bg-weights",
            "work": "bg-overhead",
            "kv": "bg-kv",
            "second": "second",
            "over": "too-much",
            "waits": "waits",
        }
        seen = set()
        for frames in (abstracts, theses, story("llama-3.1-70b", "h100", bits=(16, 8, 4))):
            stage = FieldStage.of(frames)
            for frame in frames:
                field, legend = picture(frame, None, stage).split("</svg>")
                looks = set(" ".join(re.findall(r'<path class="([^"]*)"', field)).split())
                drawn = looks.intersection(keys)
                missing = {look for look in drawn if f"{keys[look]} edge" not in legend}
                assert not missing, frame.text
                seen |= drawn
                assert "GiB" in field + frame.text and "80 GB<" not in field
        assert seen == set(keys)

    def test_only_what_is_new_moves(self, abstracts, theses):
        stage = FieldStage.of(abstracts)
        weights = picture(abstracts[1], abstracts[0], stage)
        assert weights.count("weights drops") == 16  # 15 GiB from within a square
        later = picture(abstracts[4], abstracts[3], stage)
        assert re.findall(r'class="(\w+) drops"', later) == ["kv"]
        before, cut = next(pair for pair in pairwise(theses) if pair[1].split.gpus == 2)
        moved = picture(cut, before, FieldStage.of(theses))
        assert "drops" not in moved
        assert moved.count("weights recut") == 2 * 66  # 65.7 GiB from within the eighth square

    def test_nothing_jumps_between_frames(self, theses):
        stage = FieldStage.of(theses)
        pairs = zip(theses, (None, *theses), strict=False)
        heights = {re.search(r'viewBox="([^"]*)"', picture(f, b, stage))[1] for f, b in pairs}
        assert len(heights) == 1


class TestView:
    def test_the_browser_turns_the_pages(self):
        field = GpuField("llama-3.1-8b", tokens=512)
        pages = field.pages
        assert isinstance(pages, widgets.Stack)
        assert len(pages.children) == len(field.frames) == field.step.max + 1 == field.play.max + 1
        links = [(link.source, link.target) for link in field._links]
        assert links == [
            ((field.play, "value"), (field.step, "value")),
            ((field.step, "value"), (pages, "selected_index")),
        ]

    def test_the_slider_says_which_frame_it_is(self):
        field = GpuField(requests=4)
        field.step.value = field.step.max
        assert field.frame.requests == 4
        assert field.frame.text in field.pages.children[-1].value

    def test_motion_is_left_out_for_who_wants_none(self):
        sheet = GpuField(requests=1).children[0].value
        quiet = re.search(r"@media \(prefers-reduced-motion:reduce\){(.*?)}}", sheet)[1]
        assert ".drops" in quiet
        assert ".recut" in quiet
        assert "animation:none" in quiet
        assert "@keyframes drops{from{" in sheet
