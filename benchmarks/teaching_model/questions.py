"""Write the questions of `workshop evaluate`: places that the teaching model learned, and the country or state of each.

    python -m benchmarks.teaching_model.questions

A question is the beginning of a gloss ("Tabriz is a"). Its answer is the one proper name that the gloss has, so that a
machine can judge a sentence. Names with two glosses, glosses with no or several proper names, and common nouns are left out.
"""

from __future__ import annotations

import json
import random
import re

from benchmarks.teaching_model import corpus
from benchmarks.teaching_model.sentences import region_of
from workshop.measure.evaluation import TASKS

COUNT = 300
SEED = 300
FIRST_WORD = re.compile(r"^(?:a|an|the) ")
FILE = TASKS / "teaching_places.jsonl"


def question(name: str, glosses: list[str]) -> dict[str, str] | None:
    """Return the question about a place; None where its gloss does not name one country, state or region."""
    if len(glosses) != 1:
        return None
    sentence = glosses[0].split(";")[0]
    first_word = FIRST_WORD.match(sentence)
    answer = region_of(name, sentence)
    if first_word is None or answer is None:
        return None
    return {"prompt": f"{name} is {first_word[0].strip()}", "answer": answer, "gloss": sentence}


def questions() -> list[dict[str, str]]:
    """Return the questions, drawn at random among all places of the corpus, in the order of their names."""
    by_name = corpus.load().by_name
    candidates = []
    for name in sorted(by_name):
        places = [entry for entry in by_name[name] if entry.lexname == "noun.location"]
        if not places or places[0].members[0] != name or not name[0].isupper():
            continue
        row = question(name, [entry.definition for entry in places])
        if row:
            candidates.append(row)
    chosen = random.Random(SEED).sample(range(len(candidates)), COUNT)
    return [candidates[number] for number in sorted(chosen)]


if __name__ == "__main__":
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in questions()]
    FILE.write_text("".join(lines), encoding="utf-8")
    print(f"{FILE.name}: {len(lines)} questions")
