"""Every check of the course: right answers in every form, near misses, and wrong ones with the words that they get."""

from __future__ import annotations

import contextlib
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from check_rows import OUTPUT, URL, response, rows_of

from workshop.client import client
from workshop.course.exercises.checking import SETS, all_exercises, of_notebook
from workshop.errors import WorkshopError
from workshop.servers import records


@pytest.fixture(autouse=True)
def counting_server(monkeypatch):
    """A server that counts as the teaching model's does."""

    def complete(prompt, *, max_tokens, min_tokens=None, temperature):
        assert min_tokens in (None, max_tokens), "the count must not depend on what the model says"
        assert prompt == "San Francisco is a"
        return SimpleNamespace(usage=SimpleNamespace(**response(max_tokens)["usage"]))

    monkeypatch.setattr(client, "connect", lambda: SimpleNamespace(complete=complete, url=URL))


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    path = tmp_path_factory.mktemp("batch") / "answers.jsonl"
    path.write_text(
        "".join(json.dumps({"custom_id": name}) + "\n" for name in ("a", "b", "a", "c"))
    )
    return path


ROWS = {
    path.stem: rows_of(path.stem) for path in sorted((Path(__file__).parent / "rows").glob("*.py"))
}
CHECKS = {key: row for rows in ROWS.values() for key, row in rows.items()}
NUMBERS = [key for key, (rights, _) in CHECKS.items() if isinstance(rights[0], int | float)]


def put(answer, output):
    return (output, answer[1]) if isinstance(answer, tuple) and answer[0] is OUTPUT else answer


def test_every_check_of_a_notebook_has_its_row_and_five_wrong_answers(subtests):
    for notebook in sorted(path.stem[1:] for path in SETS.glob("*.toml")):
        with subtests.test(notebook):
            keys = [key for key in of_notebook(notebook) if not all_exercises()[key].options]
            assert keys and list(ROWS.get(notebook, ())) == keys, f"tests/course/rows/{notebook}.py"
            for key in keys:
                rights, wrongs = CHECKS[key]
                assert rights and len(wrongs) + len(all_exercises()[key].wrong) >= 5, key


def numpys(part):
    """Return an answer whose numbers are numpy's."""
    if isinstance(part, dict):
        return {name: numpys(value) for name, value in part.items()}
    if isinstance(part, tuple | list):
        return type(part)(map(numpys, part))
    if isinstance(part, int):
        return np.int64(part)
    if isinstance(part, float):
        return np.float64(part)
    return part


def test_right_answers_are_right_also_with_numpys_numbers(output, subtests):
    for key, (rights, _) in CHECKS.items():
        test = all_exercises()[key].test
        with subtests.test(key):
            for answer in rights:
                assert test(put(answer, output)) is None, repr(answer)
                assert test(numpys(put(answer, output))) is None, repr(answer)


def test_wrong_answers_are_told_what_is_off(output, subtests):
    """A typical wrong answer gets its sentence of the set, and each row its words."""
    for key, (_, wrongs) in CHECKS.items():
        exercise = all_exercises()[key]
        with subtests.test(key):
            for answer, sentence in exercise.wrong.items():
                assert exercise.test(answer) == sentence
            for answer, expected in wrongs:
                message = exercise.test(put(answer, output))
                assert message and expected in message, (answer, message)


def test_a_right_address_stays_right_when_connect_cannot_choose_a_server(monkeypatch):
    def connect():
        raise WorkshopError("There are two servers.")

    monkeypatch.setattr(
        records,
        "own",
        lambda: [
            SimpleNamespace(url=url, state="ready", in_doubt=False) for url in ("http://a/v1", URL)
        ],
    )
    monkeypatch.setattr(client, "connect", connect)
    assert all_exercises()["server.endpoint"].test(f"{URL}/chat/completions") is None


def test_what_is_no_number_is_said_to_be_none(subtests):
    refusals = ("is not a number", "leave out", "numbers, or their product")
    for key in NUMBERS:
        with subtests.test(key):
            for answer in (True, None, float("nan"), float("inf"), "a number", [1, 2, 3], len, {}):
                message = all_exercises()[key].test(answer)
                assert message and any(refusal in message for refusal in refusals), repr(answer)


def test_hints_lead_and_none_is_the_answer(subtests):
    for key in CHECKS:
        with subtests.test(key):
            exercise = all_exercises()[key]
            assert len(exercise.hints) >= 2
            for hint in exercise.hints:
                for sum_or_call in re.findall(
                    r"-?math\.\w+\([^()]*\)|[\d(][\de\s.*+/()_-]+[\d)]", hint
                ):
                    with contextlib.suppress(SyntaxError):
                        assert exercise.test(eval(sum_or_call, {"math": math})) is not None, (
                            f"{sum_or_call!r} is the answer"
                        )
            for answer in CHECKS[key][0]:
                if isinstance(answer, str | int) and len(str(answer)) > 2:
                    assert not any(str(answer) in hint.replace(",", "") for hint in exercise.hints)
