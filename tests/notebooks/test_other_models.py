"""Notebooks 4, 5 and 7 run with any model, so what holds for the teaching model alone says so.

They run with the recorded answers of SmolLM2, which has never learned to label an abstract.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import cells

from workshop.course.exercises.checking import reasons
from workshop.course.topics import abstracts

NOTEBOOKS = ("04_sampling", "05_logprobs", "07_offline_batching")

FOLD = re.compile(
    r"<details><summary>(?:What you should see|Answer)</summary>(.*?)</details>", re.DOTALL
)
# A share, a count, or a token that some model wrote.
FIGURE = re.compile(r"\d ?%|\b\d+ of \d|“[^”]+”|\b\d+\.\d+\b")
# Folds with a figure that no model decides, and where it is from.
OF_ANY_MODEL = {
    ("04_sampling", "Shares that agree within"): "the standard deviation of a share",
    ("04_sampling", "Some texts differ from one word on"): "of how requests are batched",
    ("07_offline_batching", "The line that begins with"): "speed, of any model",
}


def folds(notebook: str) -> list[str]:
    """Return the texts below "What you should see" and "Answer", without their markup."""
    return [
        " ".join(re.sub(r"<[^>]+>", "", fold).split())
        for cell in cells.cells(notebook)
        for fold in FOLD.findall(cell.source)
    ]


def is_of_any_model(notebook: str, fold: str) -> bool:
    return any(name == notebook and fold.startswith(start) for name, start in OF_ANY_MODEL)


def test_a_figure_of_the_teaching_model_is_said_to_be_its_own(subtests):
    for notebook in NOTEBOOKS:
        with subtests.test(notebook):
            with_figures = [fold for fold in folds(notebook) if FIGURE.search(fold)]
            assert len(with_figures) >= 2
            silent = [
                fold
                for fold in with_figures
                if "teaching model" not in fold and not is_of_any_model(notebook, fold)
            ]
            assert silent == []


def test_no_exception_is_left_over():
    for notebook, start in OF_ANY_MODEL:
        assert any(fold.startswith(start) and FIGURE.search(fold) for fold in folds(notebook)), (
            start
        )


# A share, a count or a fall that somebody counted; quotes and round numbers may be an instruction.
CLAIM = re.compile(r"\d ?%|\b\d+ of \d|\b\d\.\d\d|\bfrom \d+ to \d+")


def behind_folds(notebook: str) -> list[str]:
    """Return the paragraphs that stand behind a fold about the teaching model, up to the next heading."""
    paragraphs = []
    for cell in cells.cells(notebook):
        parts = re.split(r"(<details>.*?</details>)", cell.source, flags=re.DOTALL)
        for fold, behind in zip(parts[1::2], parts[2::2], strict=True):
            if "teaching model" in fold:
                before_heading = re.split(r"^#", behind, flags=re.MULTILINE)[0]
                paragraphs += [part for part in before_heading.split("\n\n") if part.strip()]
    return paragraphs


def test_what_stands_behind_a_fold_takes_no_figure_of_the_teaching_model_for_a_fact(subtests):
    for notebook in NOTEBOOKS:
        with subtests.test(notebook):
            claims = [text for text in behind_folds(notebook) if CLAIM.search(text)]
            assert [text for text in claims if "teaching model" not in text] == []


def test_another_model_is_named_with_the_way_back_to_the_teaching_model(core_of, subtests):
    for notebook in NOTEBOOKS:
        with subtests.test(notebook):
            [done] = [done for done in core_of(notebook) if "connect()" in done.cell.source]
            assert "smollm2 answers" in done.ran.text
            assert 'connect("teaching-model")' in done.ran.text
    teaching = abstracts.model_note(SimpleNamespace(model="teaching-model"))
    assert "teaching model answers" in teaching and "connect" not in teaching


# What SmolLM2's recorded answers come to, read in what the cells show.
RESULTS = {
    "sampling.of_200": "200 tokens",
    "sampling.coldest": "1",
    "sampling.hotter": "shorter, still the longest",
    "sampling.two_cuts": "2",
    "sampling.space": "something else",
    "logprobs.odd_word": "moon",
    "logprobs.more_surprising": "alphabetical",
    "logprobs.least_sure": "no more than half",
    "logprobs.new_topics": "no: it stays as high",
    "offline.choices": "fewer than 30",
    "offline.how_long": "half a minute",
}
OF_CHANCE = {"sampling.of_30"}  # 30 draws without a seed, of a token with 37 %


def test_a_verdict_is_of_the_model_that_answered(core_of, subtests):
    shown = {}
    for notebook in NOTEBOOKS:
        for done in core_of(notebook):
            keys = re.findall(r'predict\("([\w.]+)", result=', done.cell.source)
            results = re.findall(r"Result: (.+?)(?:, as |\.(?:\s|$))", done.ran.text)
            shown |= dict(zip(keys, results, strict=True))
    assert {key: shown[key] for key in shown.keys() - OF_CHANCE} == RESULTS


def test_no_reason_of_a_verdict_is_a_figure_of_one_model():
    for key in RESULTS.keys() | OF_CHANCE:
        _, reason = reasons().get(key, ("", ""))
        assert not CLAIM.search(reason) and "two thirds" not in reason, key


def test_what_the_cells_show_is_what_smollm2_has_answered(core_of, subtests):
    for notebook, source, text in [
        ("04_sampling", "seed {seed}", "seed 20:  Johnson"),
        ("05_logprobs", "nb05.prompt_table(of_prompt)", "(the first token) None"),
        ("05_logprobs", "nb05.strip(", "0 of 200 labels are right."),
        ("07_offline_batching", "rehearsal = ", "17 of 50 labels are right"),
        ("07_offline_batching", "longer = ", "4 of 50 labels are right"),
    ]:
        with subtests.test(source):
            shown = [done.ran.text for done in core_of(notebook) if source in done.cell.source]
            assert len(shown) == 1 and text in shown[0]
