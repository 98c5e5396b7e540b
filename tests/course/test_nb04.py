"""Notebook 4 counts labels."""

from __future__ import annotations

from workshop.course.notebooks import nb04


def test_bars_have_the_same_rows_the_best_label_first_and_no_label_last():
    hot = [" San", "ors", " biology", " biology", " physics", " W"]
    counts = nb04.counts_of_labels({"cold": [" physics"] * 5, "hot": hot})
    assert counts == {
        "cold": {"physics": 5, "biology": 0, "no label": 0},
        "hot": {"physics": 1, "biology": 2, "no label": 3},
    }
    assert all(list(rows) == ["physics", "biology", "no label"] for rows in counts.values())


def test_each_answer_is_a_square_in_the_line_of_its_temperature():
    drawn = nb04.draws({"cold": [" physics"] * 3, "hot": [" physics", " San", " biology"]})
    assert repr(drawn) == "cold: physics 3. hot: physics 1, biology 1, no label 1."
