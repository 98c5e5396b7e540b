"""From deck/NAME/*.md to one Marp document a deck: slides, their notes, minutes and words, and what `{{…}}` stands for."""

from __future__ import annotations

import html
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from snippets import snippets
from values import values

from workshop.course.exercises.checking import all_exercises

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.append(str(ROOT / "docs"))
import glossary  # noqa: E402      docs/glossary.py

# For a class that jumps from exercise to exercise: the cell needs those above it.
JUMP = "Jumped here? <em>Run → Run All Above Selected Cell</em>."
# Of headings whose cells need none above, where one may submit a job.
OTHER_JUMPS = {"When it fails": "Jumped here? <em>Begin at this heading</em>."}
FRONT = """---
marp: true
theme: workshop
math: mathjax
paginate: true
lang: en
title: {title}
---

"""
NOTE = re.compile(r"<!-- (\d+(?:\.\d+)?) min\. (.*?) -->", re.DOTALL)
PLACEHOLDER = re.compile(r"\{\{(.+?)\}\}")
UNREAD = re.compile(
    r"<!--.*?-->|<div class=\"agenda.*?</div>|<figure.*?</figure>|<pre.*?</pre>|<code.*?</code>",
    re.DOTALL,
)
# The decks: a folder of deck/, and the agenda's items: the number of its notebook, title, what it holds, and the
# files that it counts.
DECKS = {
    "workshop": (
        ("0", "Get ready", "tonight's task, a first answer", ("0",)),
        ("1", "Does it fit?", "weights, KV cache", ("1",)),
        ("3", "How do we start it?", "a server on a cluster; a break", ("3",)),
        ("4", "Which settings?", "one token at a time", ("4",)),
        ("5", "How sure is it?", "log probabilities, a confidence", ("5",)),
        ("7", "All of them, and nothing lost", "a file of prompts", ("7",)),
    ),
    "day_two": (
        ("2", "Many GPUs", "405B, links, tensor and pipeline parallel", ("1",)),
        ("6", "Many prompts", "threads, asyncio, waves", ("2",)),
        ("10", "A chat", "templates, streaming, answers of a given form, tools", ("3",)),
        ("11", "Inside the engine", "batches, chunks, prefixes, preemption", ("4",)),
        ("12", "Guess and check", "speculation: several tokens a step", ("5",)),
        ("13", "Scale out", "replicas, experts, prefill apart, how many GPUs", ("6",)),
        ("★", "Capstone", "your model, your GPUs, your file", ("7",)),
        ("4, 5", "Deeper", "penalties, more logprobs", ("8",)),
    ),
}


@dataclass(frozen=True)
class Slide:
    """One slide: deck and file it is from, its Markdown, its minutes and what the speaker says."""

    deck: str
    part: str
    number: int
    source: str
    minutes: float
    note: str

    @property
    def title(self) -> str:
        """Its heading."""
        match = re.search(r"^# (.+)$", self.source, re.MULTILINE)
        return match[1] if match else ""

    @property
    def wheres(self) -> list[tuple[str, str, list[str]]]:
        """Where its exercises are: notebook, heading, keys."""
        placeholders = PLACEHOLDER.findall(self.source)
        return [
            _where_parts(text.removeprefix("where "))
            for text in placeholders
            if text.startswith("where ")
        ]


@cache
def slides(deck: str) -> tuple[Slide, ...]:
    """Return a deck's slides in order. Raises ValueError for one without a note that begins with its minutes."""
    deck_slides = []
    for path in sorted((HERE / "deck" / deck).glob("*.md")):
        for source in re.split(r"\n\n---\n", path.read_text(encoding="utf-8").strip()):
            note = NOTE.search(source)
            if not note:
                raise ValueError(f"{path.name}: no note with minutes in: {source.strip()[:60]!r}")
            deck_slides.append(
                Slide(
                    deck, path.stem, len(deck_slides) + 1, source.strip(), float(note[1]), note[2]
                )
            )
    return tuple(deck_slides)


@cache
def first_words() -> dict[Slide, list[str]]:
    """Return the glossary's terms that a slide is the first to use; what the first deck has said, the second does not repeat."""
    out, seen = {}, set()
    for slide in (slide for deck in DECKS for slide in slides(deck)):
        read = UNREAD.sub(" ", fill(NOTE.sub("", slide.source), slide))
        out[slide] = [
            term
            for term in glossary.terms(re.sub(r"^#+ ", "", read, flags=re.MULTILINE))
            if term not in seen
        ]
        seen.update(out[slide])
    return out


def note(slide: Slide) -> str:
    """Return what the speaker says, and what each word means that is new."""
    meanings = [f"{term}: {glossary.TERMS[term]['says']}" for term in first_words()[slide]]
    return fill(slide.note, slide) + "".join(
        f"\n\n{paragraph}" for paragraph in meanings and ["Words that are new:", *meanings]
    )


def _where_parts(text: str) -> tuple[str, str, list[str]]:
    notebook, heading, keys = (part.strip() for part in text.split("|"))
    return notebook, heading, keys.split()


def _where(text: str, minutes: float) -> str:
    notebook, heading, keys = _where_parts(text)
    calls = []
    for key in keys:
        name = "check" if key in all_exercises() else "predict"
        calls.append(f'<code>{name}("{key}")</code>')
    shown = " ".join(calls)
    return (
        f'<div class="where"><b>{minutes:g} min</b><span>{notebook}.ipynb → '
        f"<strong>{html.escape(heading)}</strong></span><span>{shown}</span>"
        f"<span>{OTHER_JUMPS.get(heading, JUMP)}</span></div>"
    )


def _agenda(now: str, deck: str) -> str:
    rows = []
    for number, title, under, files in DECKS[deck]:
        minutes = sum(s.minutes for s in slides(deck) if s.part[0] in files)
        cls = " now" if number == now else ""
        rows.append(
            f'<span class="n{cls}">{number}</span><span class="t{cls}">{title}<small>{under}</small></span>'
            f'<span class="m">{minutes:.0f} min</span>'
        )
    return f'<div class="agenda{" some" if now != "0" else ""}">' + "".join(rows) + "</div>"


def _figure(name: str) -> str:
    return (
        f"<figure>{(HERE / 'figures' / f'{name}.svg').read_text(encoding='utf-8').strip()}</figure>"
    )


@cache
def _known() -> dict[str, str]:
    return {**values(), **snippets()}


def fill(text: str, slide: Slide | None = None) -> str:
    """Return a slide's text with every `{{…}}` replaced. Raises KeyError for a name that nobody computes."""

    def replacement(match: re.Match) -> str:
        kind, _, rest = match[1].partition(" ")
        if kind == "figure":
            return _figure(rest)
        if kind == "agenda":
            return _agenda(rest, slide.deck)
        if kind == "where":
            return _where(rest, slide.minutes)
        return _known()[match[1]]

    return PLACEHOLDER.sub(replacement, text)


def document(deck: str) -> str:
    """Return a deck as Marp Markdown, notes as comments."""
    out = []
    for slide in slides(deck):
        body = fill(NOTE.sub("", slide.source), slide)
        out.append(f"{body.strip()}\n\n<!--\n{slide.minutes:g} min. {note(slide)}\n-->")
    return FRONT.replace("{title}", slides(deck)[0].title) + "\n\n---\n\n".join(out) + "\n"


def run_sheet(deck: str) -> str:
    """Return what the speaker says, slide after slide, with the time at which each begins."""
    out, clock = ["# Run sheet", ""], 0.0
    for slide in slides(deck):
        time = f"{int(clock // 60)}:{int(clock % 60):02d}"
        title = fill(slide.title, slide)
        out.append(
            f"**{time}** · {slide.number}. {title} · {slide.minutes:g} min  \n{note(slide)}\n"
        )
        clock += slide.minutes
    return "\n".join(out)
