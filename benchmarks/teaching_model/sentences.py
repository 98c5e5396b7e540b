"""Turn dictionary glosses into plain English sentences.

A gloss is a fragment: "largest city in Illinois; a bustling Great Lakes port that …". A sentence needs a
subject, a verb and articles: "Chicago is the largest city in Illinois. It is a bustling Great Lakes port …".
The rules are few and shallow; what they cannot turn is left out. Standard library only.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from benchmarks.teaching_model.measure import word_set

Segment = list[str]
"""Pieces that are tokenized apart and joined: two pieces where a prompt might end in a space."""
Page = list[Segment]
"""Segments, each of which ends with the end-of-text token; the page begins with the begin-of-text token."""

MASS_LEXNAMES = {
    "noun.substance", "noun.cognition", "noun.attribute", "noun.state", "noun.feeling",
    "noun.phenomenon", "noun.food", "noun.act", "noun.process", "noun.possession",
}  # fmt: skip
GENERIC_LEXNAMES = {"noun.animal", "noun.artifact", "noun.plant", "noun.body"}

DETERMINERS = word_set(
    "a an the any one some someone something somebody anything anyone two three four five six seven each every "
    "several many either all no that those this these what when where who whoever his her its their in of to at "
    "with by more about both such half"
)
DEFINITE = word_set(
    "capital site home seat birthplace headquarters scene national state provincial chief last first second third "
    "largest smallest highest longest biggest oldest deepest tallest busiest best most main principal "
    "former center type easternmost westernmost northernmost southernmost same usual"
)
STOP_HEAD = word_set(
    "of in on at by for from to with that which who whose whom having used containing consisting made located as "
    "between where when and or noted known found built designed given especially during under over native "
    "resembling relating caused usually often characterized domesticated"
)
UNCOUNTED = word_set(
    "anything something nothing clothing bedding lodging piping wiring tubing fencing webbing during being"
)
BE_STARTS = word_set(
    "a an the one located situated noted known famous used considered named built important popular often usually "
    "sometimes formerly now regarded identified remembered site home center seat part capital birthplace "
    "headquarters scene chief largest smallest highest longest second third former divided surrounded bordered "
    "native endangered found made eaten grown commercial industrial state national provincial"
)
PASSIVE = word_set(
    "assassinated born elected killed executed portrayed worshipped called defeated exiled buried beheaded "
    "canonized murdered married crowned awarded imprisoned"
)
ACTIVE = word_set(
    "has was is became made led founded wrote helped established discovered invented won instituted "
    "served studied advocated introduced formulated demonstrated perfected created died resigned commanded "
    "developed gained achieved saved contains includes extends consists flows rises arises occurs lives feeds "
    "can must may does declared proposed defended composed painted designed directed organized ruled fought "
    "conquered explored succeeded supported opposed believed"
)
ACTIVE_THINGS = word_set(
    "has was is became contains includes extends consists flows rises arises occurs lives feeds can must may does "
    "gained achieved"
)
MADE = word_set(
    "established founded created discovered invented developed introduced formed colonized annexed"
)
PRONOUNS = word_set("he she it his her its they their")
DATES = re.compile(r"\s*\((?:(?:circa|ca\.|c\.) )?(\d{3,4})(\?)?-(\d{3,4})\)\s*$")


@dataclass(frozen=True)
class Entry:
    """One synset: a meaning, the names it goes by, its gloss and examples."""

    source: str
    pos: str
    lexname: str
    members: tuple[str, ...]
    definition: str
    examples: tuple[str, ...]

    @property
    def is_place(self) -> bool:
        return self.lexname == "noun.location" and self.source == "namenet"

    @property
    def is_person(self) -> bool:
        return self.lexname == "noun.person" and self.source == "namenet"


def capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def indefinite(phrase: str) -> str:
    """Return the phrase with "a" or "an" before it, by sound as far as spelling tells."""
    an = re.match(
        r"(?i)(?!uni|eu|use|usu|one\b|once|ut[ie]|ura|u\.)(?:[aeiou]|hour|hono|heir)", phrase
    )
    return ("an " if an else "a ") + phrase


def split_clauses(gloss: str) -> list[str]:
    """Split a gloss at its semicolons, leaving those within brackets alone."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(gloss):
        depth += (char == "(") - (char == ")")
        if char == ";" and depth == 0:
            parts.append(gloss[start:i].strip())
            start = i + 1
    parts.append(gloss[start:].strip())
    return [part.rstrip(".:") for part in parts if part]


def split_qualifier(gloss: str) -> tuple[str, str]:
    """Return ("Greek mythology", rest) for "(Greek mythology) rest", else ("", gloss)."""
    match = re.match(r"\(([^()]{3,40})\)\s+(.+)", gloss, re.S)
    return (match[1], match[2]) if match else ("", gloss)


def head_is_plural(phrase: str) -> bool:
    head = ""
    for word in phrase.split():
        if word.strip(",(").lower() in STOP_HEAD or word.startswith("("):
            break
        head = word.strip(",")
        if word.endswith(","):
            break
    return head.endswith("s") and not head.endswith(("ss", "us", "is"))


def is_countable(first: str, lexname: str) -> bool:
    """Return whether a gloss that begins with a word in -ing is about a thing: "measuring instrument"."""
    return lexname in GENERIC_LEXNAMES and first not in UNCOUNTED


def noun_phrase(phrase: str, lexname: str) -> str:
    """Give a gloss the article that it lacks: "largest city in Illinois" -> "the largest city in Illinois"."""
    first = phrase.split(" ", 1)[0].strip(",").lower()
    if first in DETERMINERS or first.endswith(("'s", "s'")):
        return phrase
    if first in DEFINITE or re.fullmatch(r"\d+(st|nd|rd|th)", first):
        return "the " + phrase
    if head_is_plural(phrase) or (first.endswith("ing") and not is_countable(first, lexname)):
        return phrase
    if lexname in MASS_LEXNAMES and not phrase[:1].isupper():
        return phrase
    return indefinite(phrase)


def subject_of(name: str, entry: Entry, rng: random.Random) -> str:
    """Return the name as the subject of a sentence: "San Francisco", "A dog", "Gold", "The lion"."""
    if name[:1].isupper() or re.search(r"[A-Z]", name):
        takes_the = re.search(
            r"(River|Ocean|Sea|Bridge|Islands|States|Mountains|Empire|War|Revolution)$", name
        )
        return f"The {name}" if takes_the and rng.random() < 0.5 else capitalise(name)
    if entry.lexname in MASS_LEXNAMES or head_is_plural(name):
        return capitalise(name)
    if entry.lexname in GENERIC_LEXNAMES and rng.random() < 0.15:
        return f"The {name}"
    return capitalise(indefinite(name))


def as_kind(phrase: str, rng: random.Random) -> str:
    """Turn "the largest city in Illinois" into "a city in Illinois": what is left is as true."""
    match = re.match(
        r"(?:the )?(?:\w+ )?(?:largest|smallest|highest|longest|oldest|busiest) (?:and \w+ )?"
        r"(city|state|island|port|country|town|lake|river|mountain|planet|province|continent)\b(.*)",
        phrase,
    )
    if match:
        return f"a {match[1]}{match[2]}"
    match = re.match(
        r"(?:the )?((?:state|national|provincial) )?capital (?:and largest city )?(of .+)", phrase
    )
    if match:
        return f"a city and the {match[1] or ''}capital {match[2]}"
    return phrase


REGION = re.compile(r"\b[A-Z][a-z]+(?: [A-Z][a-z]+)*")


def region_of(name: str, clause: str) -> str | None:
    """Return the one proper name in a place's first clause, which tells where it is.

    None with no or several, and where it is part of the place's own name.
    """
    regions = set(REGION.findall(clause))
    if len(regions) != 1:
        return None
    region = regions.pop()
    return None if region in name or name in region else region


def where(name: str, entry: Entry) -> str | None:
    """Return "Tabriz is in Iran." of a place; None where its gloss does not say it so plainly."""
    region = region_of(name, split_clauses(entry.definition)[0])
    if region and re.search(rf"\b(?:in|of) (?:\w+ ){{0,3}}{region}\b", entry.definition):
        return f"{name} is in {region}."
    return None


def follow_up(clause: str, name: str, entry: Entry, verb: str) -> str | None:
    """Return a clause after the first as a sentence of its own, or None where no rule fits."""
    first = clause.split(" ", 1)[0].strip(",").lower()
    pronoun = name if entry.is_person else "It"
    if first in PRONOUNS or re.match(
        r"(an?|the|one) (\w+ ){1,3}(is|was|are|were|plays|marks|wins|has|have)\b", clause
    ):
        return capitalise(clause) + "."
    if first in PASSIVE:
        return f"{pronoun} was {clause}."
    if first in (ACTIVE if entry.is_person else ACTIVE_THINGS):
        return f"{pronoun} {clause}."
    if first in MADE and not entry.is_person:
        return f"It was {clause}."
    if first in BE_STARTS or re.fullmatch(r"\d+(st|nd|rd|th)", first):
        be = (
            "was"
            if first in ("formerly", "former") or (entry.is_person and verb == "was")
            else "is"
        )
        plain = first.endswith("ed") or first in {"famous", "important", "popular", "native", "made", "found",
                                                  "built", "known", "often", "usually", "sometimes", "now",
                                                  "formerly", "eaten", "grown", "part", "commercial",
                                                  "industrial"}  # fmt: skip
        return f"{pronoun} {be} {clause if plain else noun_phrase(clause, entry.lexname)}."
    return None


def describe_noun(name: str, entry: Entry, rng: random.Random, *, plain: bool = False) -> str:
    """Return one to five sentences that say what `name` is.

    Args:
        plain: the gloss in its own order and in full, with semicolons where no rule fits; otherwise the phrasing
            varies with rng.
    """
    qualifier, gloss = split_qualifier(entry.definition)
    dates = DATES.search(gloss) if entry.is_person else None
    clauses = split_clauses(gloss[: dates.start()] if dates else gloss)
    if not clauses:
        return f"{name}."
    verb = "was" if dates and (plain or rng.random() < 0.8) else "is"
    roll = 0.5 if plain else rng.random()
    kinds = [i for i, clause in enumerate(clauses[1:], 1) if clause.startswith(("a ", "an "))]
    if kinds and roll < 0.3 and not clauses[0].startswith(("a ", "an ")):
        clauses.insert(0, clauses.pop(kinds[0]))
    first = noun_phrase(clauses[0], entry.lexname)
    if roll > 0.7:
        first = as_kind(first, rng)
        if (
            len(clauses) > 1
            and re.fullmatch(r"an? [\w ]+", first)
            and clauses[1].startswith("located")
        ):
            first += " " + clauses.pop(1)
    sentences = [f"{subject_of(name, entry, rng)} {verb} {first}"]
    if qualifier and (plain or rng.random() < 0.4):
        sentences[0] = (
            f"In {qualifier}, {sentences[0][:1].lower() + sentences[0][1:] if sentences[0][:2] in ('A ', 'An', 'Th') else sentences[0]}"
        )
    if dates and (plain or rng.random() < 0.6):
        sentences[0] += f" ({dates[1]}-{dates[3]})"
    sentences[0] += "."
    if not plain and rng.random() < 0.12:
        return sentences[0]
    for clause in clauses[1:]:
        more = follow_up(clause, name, entry, verb)
        if more:
            sentences.append(more)
        elif plain:
            sentences[-1] = sentences[-1][:-1] + f"; {clause}."
    if dates and not dates[2] and rng.random() < 0.25:
        sentences.append(f"{name} was born in {dates[1]} and died in {dates[3]}.")
    return " ".join(sentences)


def describe(name: str, entry: Entry, rng: random.Random, *, plain: bool = False) -> str:
    """Return sentences on one entry: "To run is to …", "Cohesive means …", "A dog is …", examples now and then."""
    if entry.pos == "n":
        text = describe_noun(name, entry, rng, plain=plain)
    elif entry.pos == "v":
        text = f"To {name} is to {entry.definition.rstrip('.:')}."
    else:
        text = f"{capitalise(name)} means {entry.definition.rstrip('.:')}."
    if entry.examples and (plain or rng.random() < 0.4):
        example = (entry.examples[0] if plain else rng.choice(entry.examples)).strip().strip('"')
        text += f" {capitalise(example)}" + ("" if example[-1:] in ".!?" else ".")
    return text
