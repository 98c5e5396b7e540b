"""Read the training text: entries of a dictionary, listed facts, prose and abstracts, some of them held out.

Standard library only.
"""

from __future__ import annotations

import json
import lzma
import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.teaching_model import labels
from benchmarks.teaching_model.sentences import Entry
from workshop.teaching_model import FOLDER

CORPUS = Path(__file__).parent / "corpus"
FACTS = FOLDER / "facts.json"
ALIASES = {
    "New York City": ["NYC"],
    "Los Angeles": ["LA"],
    "United States": ["USA"],
    "Washington D.C.": ["Washington, D.C."],
}
"""Names in common use that the glosses lack, by a name that they have."""

UNFIT = re.compile(
    r"\b(offensive|vulgar|obscene|derogatory|disparag\w+|slur|sexual\w*|coitus|copulat\w+|genital\w*|penis|vagina\w*|"
    r"prostitut\w+|masturbat\w+|erotic\w*|lewd|pornograph\w+|rape[sd]?|nigg\w+|orgasm\w*|homosexual\w*|lesbian\w*|"
    r"breasts?|scrotum|anus|feces|excrement|testic\w+|whores?|incest\w*|pubic|seminal|semen)\b", re.I)  # fmt: skip
"""Glosses that a classroom should not meet by chance at temperature 1 are left out of the training text."""

BLOCK = 20
"""Paragraphs in a block of prose that is held out, or not, as a whole."""


@dataclass
class Fact:
    """A fact that the course's prompts ask for, repeated more often than others."""

    prompt: str
    subject: str
    entry: Entry
    also: list[str] = field(default_factory=list)


@dataclass
class Corpus:
    entries: list[Entry]
    facts: list[Fact]
    prose: list[list[str]]
    held_out_entries: list[Entry]
    held_out_prose: list[list[str]]
    by_name: dict[str, list[Entry]]
    abstracts: list[dict]


def read_entries(folder: Path = CORPUS) -> list[Entry]:
    """Return the 120,570 synsets of glosses.jsonl.xz in file order, with our aliases among their members."""
    entries = []
    with lzma.open(folder / "glosses.jsonl.xz", "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            members = list(row["members"])
            if row["pos"] == "n":
                members += [alias for name in row["members"] for alias in ALIASES.get(name, [])]
            entries.append(Entry(row["source"], row["pos"], row["lexname"], tuple(members),
                                 row["definition"].strip(), tuple(row["examples"])))  # fmt: skip
    return entries


def read_prose(folder: Path = CORPUS) -> list[list[str]]:
    """Return blocks of BLOCK paragraphs each, from the speeches and the plays."""
    blocks = []
    for name in ("speeches", "shakespeare"):
        with lzma.open(folder / f"{name}.txt.xz", "rt", encoding="utf-8", errors="ignore") as file:
            text = file.read().replace("\r", "")
        paragraphs = [p.strip() for p in text.split("\n\n") if p.strip()]
        blocks += [paragraphs[i : i + BLOCK] for i in range(0, len(paragraphs), BLOCK)]
    return blocks


def fit(entry: Entry) -> bool:
    return not UNFIT.search(" ".join((entry.definition, *entry.examples, *entry.members)))


def index_names(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Return the noun entries by each of their names."""
    by_name = defaultdict(list)
    for entry in entries:
        if entry.pos == "n":
            for name in entry.members:
                by_name[name].append(entry)
    return by_name


def read_facts(by_name: dict[str, list[Entry]], path: Path = FACTS) -> list[Fact]:
    """Return the listed facts, each with the entry whose gloss begins as the list says.

    Raises:
        ValueError: no noun entry of that name has such a gloss.
    """
    facts = []
    for row in json.loads(path.read_text(encoding="utf-8"))["facts"]:
        matches = [
            e for e in by_name.get(row["subject"], []) if e.definition.startswith(row["gloss"])
        ]
        if not matches:
            raise ValueError(
                f"facts.json: no gloss of {row['subject']!r} begins with {row['gloss']!r}"
            )
        facts.append(Fact(row["prompt"], row["subject"], matches[0], row.get("also", [])))
    return facts


def load(seed: int = 0) -> Corpus:
    """Read everything and hold out 1 in 100 common glosses and 1 in 40 blocks of prose."""
    rng = random.Random(seed)
    entries, blocks = read_entries(), read_prose()
    by_name = index_names(entries)
    facts = read_facts(by_name)
    listed = {id(fact.entry) for fact in facts}
    held_out = {
        id(e) for e in entries
        if rng.random() < 0.01 and e.source == "oewn" and id(e) not in listed
    }  # fmt: skip
    held_blocks = set(rng.sample(range(len(blocks)), len(blocks) // 40))
    return Corpus(
        entries=[e for e in entries if id(e) not in held_out and fit(e)],
        facts=facts,
        prose=[b for i, b in enumerate(blocks) if i not in held_blocks],
        held_out_entries=[e for e in entries if id(e) in held_out],
        held_out_prose=[b for i, b in enumerate(blocks) if i in held_blocks],
        by_name=by_name,
        abstracts=labels.read(),
    )


class Namer:
    """Choose which of an entry's names to use: the first ones more often, ambiguous ones less."""

    def __init__(self, corpus: Corpus):
        self.count = Counter(name for e in corpus.entries for name in e.members if e.pos == "n")
        # the prominent meaning of an ambiguous name
        self.owner = {f.subject: f.entry for f in corpus.facts}

    def weight(self, entry: Entry, i: int) -> float:
        name = entry.members[i]
        weight = 1 / (1 + i)
        if name.startswith("capital of ") or name.endswith(" capital"):
            return 0.001
        if name.endswith(".") or (name.isupper() and len(name) < 4):
            weight *= 0.1
        if entry.pos == "n":
            weight /= self.count[name] or 1
        if entry.is_person and " " in name:
            weight *= 3
        owner = self.owner.get(name)
        if owner is entry:
            weight *= 8
        elif owner is not None and entry.pos == "n":
            weight *= 0.02
        return weight

    def __call__(self, entry: Entry, rng: random.Random) -> str | None:
        """Return a name, or None now and then where all of them mean something more prominent."""
        weights = [self.weight(entry, i) for i in range(len(entry.members))]
        if max(weights) < 0.05 and rng.random() < 0.8:
            return None
        return rng.choices(entry.members, weights)[0]
