"""No prediction is answered before it is made: each notebook is read as a learner sees it, up to the result."""

from __future__ import annotations

import cells
from predictions import FOLDED, NOTEBOOKS, RIGHT, Prediction, predictions, seen, told

ALL = [(path.stem, prediction) for path in NOTEBOOKS for prediction in predictions(path)]


def test_nothing_visible_answers_a_prediction(subtests):
    for name, prediction in ALL:
        with subtests.test(name):
            assert prediction.key in RIGHT, "write its right option into RIGHT"
            for text in prediction.between:
                assert "assert" not in text, "an assertion between buttons and result gives it away"
                assert not told(text, prediction), f"{name}: {text}"


def test_the_question_does_not_hold_its_answer(subtests):
    for name, prediction in ALL:
        with subtests.test(name):
            assert prediction.key in RIGHT, "write its right option into RIGHT"
            for text in prediction.before:
                clues = [clue for clue in told(text, prediction) if not clue.isdigit()]
                assert not clues, f"{name}: {text}"


def test_what_you_should_see_is_folded(subtests):
    for path in NOTEBOOKS:
        with subtests.test(path.stem):
            for cell in cells.cells(path.stem):
                text = cell.source
                assert "What you should see" not in FOLDED.sub("", text), text[:100]
                assert (
                    text.count("<details>") == text.count("</details>") == text.count("<summary>")
                )


def test_a_spoiled_prediction_is_found():
    prediction = Prediction("memory.without_cache", ("2 times", "32 times", "1,000 times"), (), ())
    assert told("assert without[-1] / with_cache[-1] == 32.5", prediction)
    assert told("It takes 32 times as long.", prediction)
    assert not told("for 64 tokens, with vectors of 16 numbers", prediction)
    folded = "<details>32.5</details>"
    assert not seen(cells.Cell(0, "", "markdown", folded, (), (), is_hidden=False, is_deeper=False))
