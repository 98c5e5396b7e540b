"""What a learner of a class sends is what the notebooks send, everybody within a few seconds."""

from __future__ import annotations

import json
import random
from pathlib import Path

from needs import SEED

from workshop.course.notebooks import class_steps, nb06
from workshop.measure import classes
from workshop.measure.classes import ClassStep, Timetable

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
STEPS = {step.name: step for step in class_steps.of_learner(random.Random(1))}


def sources(name: str) -> str:
    cells = json.loads(next(NOTEBOOKS.glob(f"{name}*.ipynb")).read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells)


def timetable(learners: int, **more) -> Timetable:
    options = {"taken": STEPS, "seconds": None, "seed": SEED, **more}
    return Timetable(learners, class_steps.of_learner, **options)


def test_the_requests_are_those_of_the_notebooks():
    assert "nb06.LENGTHS" in sources("06"), "the timeline's lengths"
    assert [request["max_tokens"] for request in STEPS["06 12 prompts, 4 at once"].requests] == (
        nb06.LENGTHS
    )
    assert all(f'"{question}"' in sources("05") for question in class_steps.QUESTIONS)
    assert class_steps.TEXT in sources("05")
    assert all(f'"{city}"' in sources("06") for city in class_steps.CITIES)
    labels = STEPS["05 200 labels"].requests
    assert [len(request["prompt"]) for request in labels] == [25] * 8
    assert "all_abstracts[::10]" in sources("05") and "some[first:first + 25]" in sources("05")
    sampling = [f"{name}={json.dumps(labels[0][name])}" for name in labels[0] if name != "prompt"]
    assert f"llm.complete(prompts, {', '.join(sampling)})" in sources("05")
    (first,) = STEPS["00 first request"].requests
    assert first == {"prompt": "San Francisco is a", "max_tokens": 16, "temperature": 0}


def test_one_seed_is_one_class_and_learners_differ():
    assert timetable(1).of_learner(7) == timetable(1).of_learner(7)
    learners = timetable(20)
    assert len({str([step for _, step in learners.of_learner(n)]) for n in range(20)}) > 5


def test_everybody_runs_a_step_within_seconds():
    times_s = [[begin_s for begin_s, _ in timetable(1).of_learner(n)] for n in range(500)]
    for turn in range(len(STEPS)):
        after_s = sorted(learner[turn] - turn * classes.EVERY_S for learner in times_s)
        assert after_s[0] >= 0 and after_s[-1] <= classes.BUNCH_S
        assert after_s[250] < 2, "half of them within two seconds"


def test_less_time_makes_steps_follow_faster_and_more_lets_them_begin_again():
    for seconds, steps, last_s in ((None, 9, 88), (45.0, 9, 44), (180.0, 18, 178)):
        turns = timetable(1, seconds=seconds).of_learner(0)
        assert [step.name for _, step in turns] == (2 * list(STEPS))[:steps], seconds
        assert last_s - classes.BUNCH_S < turns[-1][0] < last_s, seconds


def test_a_learner_sends_no_more_log_probabilities_than_the_server_gives():
    (request,) = STEPS["04 explorer"].requests
    taken = {"04 explorer": ClassStep("04 explorer", [{**request, "logprobs": 20}])}
    ((_, step),) = timetable(1, taken=taken).of_learner(0)
    assert step.requests[0]["logprobs"] == 20
