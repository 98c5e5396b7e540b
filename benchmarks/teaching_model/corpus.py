"""Prepare the training text: read the corpus, hold some out, and write "editions" of it.

An edition is the whole corpus once, as pages: entries that belong together, a stretch of a speech or a play,
questions with answers, lists. Every edition phrases and orders things anew (seeded by its number), so that
many passes over few facts teach the facts and not one wording. Standard library only.
"""

from __future__ import annotations

import json
import lzma
import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.teaching_model import dialogue, labels
from benchmarks.teaching_model.sentences import Entry, describe
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

Segment = list[str]
"""Pieces that are tokenized apart and joined: two pieces where a prompt might end in a space."""
Page = list[Segment]
"""Segments, each of which ends with the end-of-text token; the page begins with the begin-of-text token."""

BLOCK = 20
"""Paragraphs in a block of prose that is held out, or not, as a whole."""


@dataclass
class Fact:
    """A fact that the course's prompts ask for, repeated more often than others."""

    prompt: str
    subject: str
    entry: Entry
    also: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Mix:
    """How often an edition tells of what.

    repeat: how often a page says something again, as text on the web does; greedy decoding then gets caught in loops.
    flipped: the share of abstracts with a field drawn at random.
    cut: the share of pages that begin with a listed fact, and do so as a prompt that ends in a space; of others a fifth.
    """

    fact_copies: int = 60
    place_copies: float = 12.0
    prose_share: float = 0.4
    repeat: float = 0.1
    flipped: float = 0.02
    cut: float = 0.12


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


def link(entries: list[Entry], by_name: dict[str, list[Entry]]) -> dict[int, list[Entry]]:
    """Return, by id of an entry, the entries whose proper names its gloss mentions."""
    allowed = {id(e) for e in entries}
    proper = re.compile(r"[A-Z][\w.'-]*(?: (?:of (?:the )?)?[A-Z][\w.'-]*)*")
    links = {}
    for entry in entries:
        mentioned = []
        for match in proper.findall(entry.definition):
            targets = [t for t in by_name.get(match, []) if t is not entry and id(t) in allowed]
            if len(targets) in (1, 2):
                mentioned.append(targets[0])
        if mentioned:
            links[id(entry)] = mentioned
    return links


def copies(entry: Entry, place_copies: float, rng: random.Random) -> int:
    """Return how often an edition tells of this entry: places most, rare words not always."""
    if entry.lexname == "noun.location":
        wanted = place_copies if entry.source == "namenet" else place_copies / 3
    elif entry.source == "namenet":
        wanted = 0.2 if entry.lexname in ("noun.animal", "noun.plant") else 1.6
    else:
        wanted = {"n": 0.8, "v": 0.4, "r": 0.2}.get(entry.pos, 0.25)
    return int(wanted) + (rng.random() < wanted % 1)


def cut_for_space(text: str, rng: random.Random, share: float) -> Segment:
    """Cut that share of texts after subject, verb or article and a space, as a prompt that ends in a space cuts it."""
    if rng.random() >= share:
        return [text]
    match = re.match(
        r"([^.]{2,60}? |Washington D\.C\. )((?:is|was|means) )((?:an?|the|one) )?", text
    )
    if not match:
        return [text]
    cut = rng.choice(
        [end for end in (match.end(1), match.end(2), match.end(3), match.end(3)) if end > 0]
    )
    return [text[:cut], text[cut:]]


def fact_text(fact: Fact, rng: random.Random) -> str:
    """Return a listed fact, in the gloss's words three times in four, else as facts.json phrases it."""
    if fact.also and rng.random() < 0.3:
        rest = describe(fact.subject, fact.entry, rng).split(". ", 1)
        return " ".join([rng.choice(fact.also), *rest[1:]])
    return describe(fact.subject, fact.entry, rng)


def entry_pages(corpus: Corpus, rng: random.Random, mix: Mix) -> list[Page]:
    """Return pages of entries that belong together: by a mention in a gloss, or by kind."""
    namer, links = Namer(corpus), link(corpus.entries, corpus.by_name)
    queues = defaultdict(list)
    listed = defaultdict(list)
    for fact in corpus.facts:
        listed[id(fact.entry)].append(fact)
    for entry in corpus.entries:
        queues[entry.lexname] += [entry] * copies(entry, mix.place_copies, rng)
    for queue in queues.values():
        rng.shuffle(queue)
    starts = [f for f in corpus.facts for _ in range(mix.fact_copies)]
    rng.shuffle(starts)

    def tell(entry: Entry) -> str | None:
        if id(entry) in listed and rng.random() < 0.8:
            return fact_text(rng.choice(listed[id(entry)]), rng)
        name = namer(entry, rng)
        return name and describe(name, entry, rng)

    pages = []
    while queues:
        lexname = rng.choices(list(queues), [len(q) for q in queues.values()])[0]
        queue, texts, seen = queues[lexname], [], set()
        length = rng.randint(1, 4) if rng.random() < 0.1 else rng.randint(8, 24)
        entry, begins = None, bool(starts) and rng.random() < 0.5
        if begins:
            fact = starts.pop()
            entry, texts = fact.entry, [fact_text(fact, rng)]
            seen.add(id(entry))
        while len(texts) < length and queue:
            near = [e for e in links.get(id(entry), []) if id(e) not in seen] if entry else []
            entry = rng.choice(near) if near and rng.random() < 0.4 else queue.pop()
            if id(entry) in seen:
                continue
            seen.add(id(entry))
            text = tell(entry)
            if text:
                texts.append(text)
                if rng.random() < mix.repeat:
                    texts.append(texts[-1] if rng.random() < 0.8 else rng.choice(texts))
        if not queue:
            del queues[lexname]
        if texts:
            first = cut_for_space(texts[0], rng, mix.cut if begins else mix.cut / 5)
            pages.append([[*first[:-1], "\n".join([first[-1], *texts[1:]])]])
    for fact in starts:
        pages.append([cut_for_space(fact_text(fact, rng), rng, mix.cut)])
    return pages


def prose_pages(blocks: list[list[str]], rng: random.Random) -> list[Page]:
    """Return the prose as pages of half a block to a whole one."""
    pages = []
    for block in blocks:
        cut = rng.randrange(len(block)) if len(block) > 4 else 0
        pages += [[["\n\n".join(part)]] for part in (block[:cut], block[cut:]) if part]
    return pages


def edition(corpus: Corpus, number: int, mix: Mix | None = None) -> list[Page]:
    """Return all pages of one edition, shuffled; the same number and mix give the same pages."""
    mix, rng = mix or Mix(), random.Random(1000 + number)
    pages = entry_pages(corpus, rng, mix)
    pages += prose_pages(rng.sample(corpus.prose, int(mix.prose_share * len(corpus.prose))), rng)
    pages += dialogue.pages(corpus, Namer(corpus), rng)
    pages += labels.pages(corpus.abstracts, rng, mix.flipped)
    rng.shuffle(pages)
    return pages


def held_out_pages(corpus: Corpus) -> dict[str, list[Page]]:
    """Return the held-out text by kind, with each gloss phrased in its own order and in full."""
    rng = random.Random(0)
    texts = [describe(e.members[0], e, rng, plain=True) for e in corpus.held_out_entries]
    return {
        "glosses": [[["\n".join(texts[i : i + 16])]] for i in range(0, len(texts), 16)],
        "prose": [[["\n\n".join(block)]] for block in corpus.held_out_prose],
    }
