"""Notebooks 4, 5 and 7 run with any model, so what holds for the teaching model alone says so."""

from __future__ import annotations

import re

import cells

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
    for notebook in ["04_sampling", "05_logprobs", "07_offline_batching"]:
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
