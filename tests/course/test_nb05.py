"""Notebook 5 compares whole texts by the sums of their tokens' logprobs, and a confidence with the share that is right."""

from __future__ import annotations

import math
import re

import pytest

from benchmarks.teaching_model import labels as learned
from benchmarks.teaching_model.abstracts.select import UNSEEN
from workshop.course.notebooks import nb05
from workshop.course.topics import abstracts
from workshop.course.widgets import style

# Probabilities of a label's words, chosen by hand; any other word has 0.5.
PROBABILITIES = {"biology": 0.6, "physics": 0.1, "life": 0.5, "science": 0.9}


class Answer:
    """An answer of the server, which gives its plain data."""

    def __init__(self, data: dict):
        self.data = data

    def model_dump(self) -> dict:
        return self.data


class Server:
    """A client of a model that gives each word its probability, whatever stands before it."""

    def complete(self, prompts: list[str], **settings: object) -> Answer:
        choices = []
        for text in prompts:
            prompt: list[dict | None] = [None]
            for number, word in enumerate(text.split(), 1):
                logprob = math.log(PROBABILITIES.get(word, 0.5))
                prompt.append({str(number): {"logprob": logprob, "decoded_token": word}})
            choices.append({"prompt_logprobs": prompt})
        return Answer({"choices": choices})


def test_the_label_of_the_most_probable_text_is_chosen_and_two_words_lose():
    scored = nb05.scored(Server(), "Bees fly.", ("physics", "life science", "biology"))  # pyright: ignore
    assert {label: len(rows) for label, rows in scored.items()} == {
        "physics": 6,
        "life science": 7,
        "biology": 6,
    }
    assert nb05.most_probable(scored) == "biology"
    del scored["biology"]
    assert nb05.most_probable(scored) == "life science"  # 0.5 × 0.9 is more than 0.1


LABELS = [(0.1, "a", "b"), (0.7, "a", "a"), (0.64, "a", "b"), (1.0, "a", "a")]


def test_groups_have_the_mean_confidence_the_share_right_and_their_count():
    assert nb05.groups(LABELS) == [
        pytest.approx((0.1, 0.0, 1)),
        pytest.approx((0.67, 0.5, 2)),
        pytest.approx((1.0, 1.0, 1)),
    ]


def test_a_summary_has_the_means_over_all_labels():
    assert nb05.summary(LABELS) == {
        "mean confidence": 0.61,
        "share right": 0.5,
        "distance": 0.11,  # (0.1 + 2 × 0.17) / 4
        "in each group": [1, 2, 1],
    }


def test_the_diagram_has_a_line_for_each_name_and_the_diagonal():
    drawn = nb05.diagram({"every tenth": LABELS * nb05.FEWEST})
    assert drawn.words.endswith("every tenth: 0.10 → 0.00, 0.67 → 0.50, 1.00 → 1.00.")
    points = [(line.get_xdata()[-1], line.get_ydata()[-1]) for line in drawn.axes[0].lines]
    assert points == [pytest.approx((1, 1))] * 2
    is_turned = {text.get_text(): text.get_rotation() > 0 for text in drawn.axes[0].texts}
    assert is_turned == {"every tenth": False, nb05.DIAGONAL: True}


def test_the_diagram_leaves_small_groups_out_as_the_notebook_says():
    drawn = nb05.diagram({"few": LABELS, "nine and ten": LABELS * 5 + [(0.1, "a", "b")] * 4})
    assert drawn.words.endswith("share right. nine and ten: 0.67 → 0.50.")
    assert len(drawn.axes[0].lines) == 2


def test_a_strip_has_a_dot_for_each_label_and_counts_the_mistakes_before_its_line():
    labels = sorted(LABELS)  # 0.1 and 0.64 are mistakes
    drawn = nb05.strip(labels, least_sure=1)
    assert drawn.words == (
        "2 of 4 labels are right. 1 of 2 mistakes are among the 1 least sure. "
        "The mistakes: 0.10 a (right: b), 0.64 a (right: b)."
    )
    dots = re.findall(
        r'<circle cx="([\d.]+)" cy="[\d.]+" r="[\d.]+" fill="(#\w+)"><title>', drawn.svg
    )
    places = {(float(x), colour) for x, colour in dots}
    assert [colour for _, colour in sorted(places)] == [style.ORANGE] * 2 + [style.GREY] * 2
    line = float(re.search(r'd="M([\d.]+) 46V', drawn.svg)[1])  # pyright: ignore
    assert sum(x < line for x, _ in places) == 1
    assert "mistakes: none" in nb05.strip([(0.5, "a", "a")], least_sure=1).words


def test_a_position_is_shown_with_logprobs_of_four_digits():
    san = {"24661": {"logprob": -8.533774375915527, "rank": 284, "decoded_token": "San"}}
    assert nb05.rounded(san)["24661"] == {"logprob": -8.5338, "rank": 284, "decoded_token": "San"}
    assert nb05.rounded({" port": -0.693147}) == {" port": -0.6931}
    assert nb05.rounded(None) is None


def test_the_new_topics_are_those_that_training_left_out():
    assert nb05.NEW_TOPICS == UNSEEN
    assert sum(row["topic"] in nb05.NEW_TOPICS for row in abstracts.load()) == 200


def test_the_model_has_learned_children_as_psychology_as_the_notebook_says():
    fields = [row["field"] for row in learned.read() if "children" in row["text"].lower()]
    assert (len(fields), fields.count("psychology")) == (100, 87)


@pytest.mark.live
def test_a_capital_letter_takes_the_labels_away_as_the_notebook_says(client):
    rows = [
        next(row for row in abstracts.load() if row["field"] == field) for field in abstracts.FIELDS
    ]
    right = []
    for form in (str, str.capitalize):
        labels = [form(field) for field in abstracts.FIELDS]
        chosen = [nb05.most_probable(nb05.scored(client, row["text"], labels)) for row in rows]
        right.append(sum(map(str.__eq__, chosen, labels)))
    assert right[0] == 8 and right[1] <= 4


def test_the_table_of_a_prompt_has_the_token_and_the_most_probable_one():
    position = {
        "24661": {"logprob": -8.533774375915527, "rank": 284, "decoded_token": "San"},
        "14924": {"logprob": -1.1587743759155273, "rank": 1, "decoded_token": "Question"},
    }
    answer = {"choices": [{"prompt_logprobs": [None, position]}]}
    assert nb05.prompt_table(answer).rows == [
        ("(the first token)", "None", "", "", ""),
        ("'San'", "-8.5338", "284", "'Question'", "-1.1588"),
    ]
