"""Put the teaching model's figures into its card and docs/figures.md, after evaluate --write.

python benchmarks/teaching_model/card.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]
from benchmarks.page_tables import with_tables  # noqa: E402
from benchmarks.teaching_model.measure import LOOP_PROMPTS  # noqa: E402
from workshop.teaching_model import FOLDER  # noqa: E402

CARD, FIGURES = FOLDER / "README.md", FOLDER / "figures.json"
PAGE = Path(__file__).parents[2] / "docs" / "figures.md"
ROW = re.compile(r"^\| the teaching model: .*$", re.MULTILINE)


def of(text: str) -> str:
    """Return "1,889 of 2,000 (94 %)" for "1889/2000"."""
    part, whole = map(int, text.split("/"))
    return f"{part:,} of {whole:,} ({part / whole:.0%})".replace("%", " %")


def table(figures: dict) -> str:
    """Return the rows of the card, a measure each."""
    loops = [figures[f"repeated_4grams_frequency_penalty_{penalty}"][0] for penalty in (0.0, 1.0)]
    rows = {
        "labels of the course's 2,000 abstracts right": of(figures["labels_right"]),
        "the same, of ten topics that it never saw": of(figures["labels_right_of_unseen_topics"]),
        "expected calibration error of the labels, ten bins": f"{figures['labels_calibration_error']:.3f}",
        "mistakes among the least sure tenth of the labels": of(
            figures["labels_mistakes_among_the_least_sure_tenth"]
        ),
        "where ten places of the core are (chat)": of(figures["core_places_right"]),
        "country or state of 50 places drawn, and of the 300 of `workshop evaluate`": (
            f"{of(figures['drawn_places_right'])}, {of(figures['task_places_right'])}"
        ),
        "questions about other subjects that it declines": of(figures["other_subjects_declined"]),
        "listed prompts right at temperature 0 (at least 0.9 of the content words in the gloss, or in a sentence of ours)": of(
            figures["facts_right"]
        ),
        "the same, with a space at the end of the prompt": of(
            figures["facts_right_trailing_space"]
        ),
        "300 places drawn, at least half of the content words right: `X is`, `X is a`": (
            f"{figures['places_right_is']:.0%}, {figures['places_right_is_a']:.0%}".replace(
                "%", " %"
            )
        ),
        f"repeated 4-grams in 300 greedy tokens after “{LOOP_PROMPTS[0]}”, `frequency_penalty` 0, 1": (
            f"{loops[0]:.0%}, {loops[1]:.0%}".replace("%", " %")
        ),
        "held-out loss, glosses (of common words, never trained on)": (
            f"{figures['held_out_loss_glosses']:.2f} nats a token"
        ),
        "held-out loss, prose": f"{figures['held_out_loss_prose']:.2f} nats a token",
    }
    return "\n".join(["| measure | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items())])


def row(figures: dict) -> str:
    """Return the teaching model's row of docs/figures.md."""
    measures = (
        f"labels of {of(figures['labels_right'])} abstracts right, expected calibration error "
        f"{figures['labels_calibration_error']:.3f}; {of(figures['task_places_right'])} places drawn at random; "
        f"{of(figures['facts_right'])} listed prompts true at temperature 0"
    )
    card = "[its card](../workshop/teaching_model/README.md)"
    return f"| the teaching model: {figures['parameters'] / 1e6:.1f} M parameters, 23 MB | {measures} | {card} |"


def pages(figures: dict) -> dict[Path, str]:
    """Return the card and docs/figures.md, renewed."""
    page = PAGE.read_text(encoding="utf-8")
    return {
        CARD: with_tables(CARD.read_text(encoding="utf-8"), figures=table(figures)),
        PAGE: ROW.sub(lambda match: row(figures), page),
    }


if __name__ == "__main__":
    for path, text in pages(json.loads(FIGURES.read_text(encoding="utf-8"))).items():
        path.write_text(text, encoding="utf-8")
