"""Choose the course's 2,000 abstracts, and those that the teaching model learns from, of what SmolLM2 wrote.

    python -m benchmarks.teaching_model.abstracts.select abstracts.jsonl.gz

Writes workshop/data/abstracts.jsonl and benchmarks/teaching_model/corpus/abstracts.jsonl.xz, and prints how many texts each
rule dropped. The topics of UNSEEN are in the first alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import math
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

from workshop.course.topics.abstracts import NEW_TOPICS as UNSEEN

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
COURSE = ROOT / "workshop" / "data" / "abstracts.jsonl"
TRAINING = HERE.parent / "corpus" / "abstracts.jsonl.xz"
COUNT, UNSEEN_COUNT = (
    2000,
    200,
)  # abstracts of the course; of them from topics that training never saw
WORDS = range(38, 126)
SENTENCES = range(2, 9)
# About the request instead of its topic, or addresses and lists.
ABOUT_ITSELF = re.compile(
    r"here(?: is|'s| are| we have) |\bsentences?\b|\bparagraphs?\b|\bwords\)|\bessay|in bold|\btitled?\b|\babstracts?\b|"
    r"https?:|www\.|@|\bI(?:'m| am| can)\b|\byou(?:r)?\b|sorry|\[|\]|\*|#|\"|original text|bullet|summary of",
    re.IGNORECASE,
)
NAMES_ITS_FIELD = {
    "biology": r"\bbiolog(?:y|ists?)\b",
    "medicine": r"\bmedicine\b",
    "physics": r"\bphysic(?:s|ists?)\b",
    "astronomy": r"\bastronom(?:y|ers?)\b",
    "chemistry": r"\bchemist(?:ry|s)\b",
    "computing": r"\bcomput(?:ing|er science|er scientists?)\b",
    "geology": r"\bgeolog(?:y|ists?)\b",
    "psychology": r"\bpsycholog(?:y|ists?)\b",
}
REPEATED = 0.12  # share of 4-grams that come twice
ALIKE = 0.3  # share of 5-grams that another text has, too
FOLDS = 10


def words_of(text: str) -> list[str]:
    """Return the words in small letters."""
    return re.findall(r"[a-z]+(?:[-'][a-z]+)*", text.lower())


def grams(tokens: list[str], size: int) -> list[tuple[str, ...]]:
    """Return the runs of `size` words."""
    return [tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1)]


def first_paragraph(row: dict) -> str:
    """Return a text's first paragraph on one line, up to its last whole sentence where the text was cut off."""
    first, *others = row["text"].strip().split("\n\n")
    text = re.sub(r"\s+", " ", first).strip()
    if row["ended"] or others:
        return text
    return text[: text.rfind(". ") + 1]


def fault(row: dict) -> str:
    """Return why a text is no abstract that a reader would take for one; '' if it is."""
    text, tokens = row["text"], words_of(row["text"])
    if len(tokens) not in WORDS:
        return "length"
    if not re.fullmatch(r"[A-Z].*\.", text):
        return "broken end or beginning"
    if len(re.findall(r"[.!?](?= [A-Z]|$)", text)) not in SENTENCES:
        return "sentences"
    if ABOUT_ITSELF.search(text):
        return "about itself"
    if not text.isascii() and re.search(r"[^\x00-\x7f–—’‘“”é×°±μ]", text):
        return "signs"
    if re.search(NAMES_ITS_FIELD[row["field"]], text, re.IGNORECASE):
        return "names its field"
    runs = grams(tokens, 4)
    if 1 - len(set(runs)) / len(runs) > REPEATED:
        return "repetition"
    return ""


def without_doubles(rows: list[dict]) -> list[dict]:
    """Return the rows whose 5-grams are mostly their own."""
    owners: set[tuple[str, ...]] = set()
    distinct = []
    for row in rows:
        runs = set(grams(words_of(row["text"]), 5))
        if len(runs & owners) <= ALIKE * len(runs):
            distinct.append(row)
            owners |= runs
    return distinct


def drifted(rows: list[dict], label: str, best: int) -> set[int]:
    """Return the indices of rows whose words do not say their label, by naive Bayes that did not see the row's fold.

    best: the label must be among so many of the most probable ones.
    """
    bags = [set(words_of(row["text"])) for row in rows]
    fold_of = [random.Random(number).randrange(FOLDS) for number in range(len(rows))]
    everywhere: dict[str, Counter] = defaultdict(Counter)
    texts: Counter = Counter(row[label] for row in rows)
    for row, bag in zip(rows, bags, strict=True):
        everywhere[row[label]].update(bag)
    result: set[int] = set()
    for fold in range(FOLDS):
        counts = {name: Counter(counter) for name, counter in everywhere.items()}
        sizes = Counter(texts)
        members = [number for number, its in enumerate(fold_of) if its == fold]
        for number in members:
            counts[rows[number][label]].subtract(bags[number])
            sizes[rows[number][label]] -= 1
        for number in members:
            scores = {
                name: sum(
                    math.log((counter[word] + 0.5) / (sizes[name] + 1)) for word in bags[number]
                )
                for name, counter in counts.items()
            }
            if rows[number][label] not in sorted(scores, key=scores.__getitem__)[-best:]:
                result.add(number)
    return result


def chosen(rows: list[dict]) -> tuple[list[dict], Counter]:
    """Return the rows that pass every rule, and how many each rule dropped."""
    dropped: Counter = Counter()
    good = []
    for row in rows:
        row = {**row, "text": first_paragraph(row)}
        why = fault(row)
        if why:
            dropped[why] += 1
        else:
            good.append(row)
    whole = without_doubles(good)
    dropped["near-duplicate"] = len(good) - len(whole)
    away = drifted(whole, "topic", 10) | drifted(whole, "field", 1)
    dropped["drifted from its topic"] = len(away)
    return [row for number, row in enumerate(whole) if number not in away], dropped


def split(rows: list[dict]) -> tuple[list[dict], list[dict]]:
    """Return the course's abstracts in a drawn order, and the others but for the unseen topics."""
    draw = random.Random(2000)
    draw.shuffle(rows)
    unseen: dict[str, list[dict]] = defaultdict(list)
    seen: dict[str, list[dict]] = defaultdict(list)
    for row in rows:
        if row["topic"] in UNSEEN:
            unseen[row["topic"]].append(row)
        else:
            seen[row["field"]].append(row)
    course = [row for topic in UNSEEN for row in unseen[topic][: UNSEEN_COUNT // len(UNSEEN)]]
    by_field = Counter(row["field"] for row in course)
    for field, members in seen.items():
        wanted = COUNT // len(seen) - by_field[field]
        course += members[:wanted]
        del members[:wanted]
    draw.shuffle(course)
    return course, [row for members in seen.values() for row in members]


def main() -> None:
    """Choose, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("written", type=Path)
    with gzip.open(parser.parse_args().written, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    good, dropped = chosen(rows)
    course, training = split(good)
    with COURSE.open("w", encoding="utf-8") as file:
        for number, row in enumerate(course):
            line = {"id": number, "text": row["text"], "field": row["field"], "topic": row["topic"]}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    with lzma.open(TRAINING, "wt", encoding="utf-8", preset=9) as file:
        for row in training:
            line = {name: row[name] for name in ("text", "field", "topic")}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    print(
        f"{len(rows)} written, {dict(dropped.most_common())}; {len(good)} good: {len(course)} of the course, {len(training)} to learn"
    )
    print(sorted(Counter(row["field"] for row in good).items()))


if __name__ == "__main__":
    main()
