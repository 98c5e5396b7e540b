"""Write "editions" of the training text.

An edition is the whole corpus once, as pages: entries that belong together, a stretch of a speech or a play,
questions with answers, lists. Every edition phrases and orders things anew (seeded by its number), so that
many passes over few facts teach the facts and not one wording. Standard library only.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from dataclasses import dataclass

from benchmarks.teaching_model import dialogue, labels
from benchmarks.teaching_model.corpus import Corpus, Fact, Namer
from benchmarks.teaching_model.sentences import Entry, Page, Segment, describe


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
