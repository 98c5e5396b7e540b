"""From deck/*.md to one Marp document: slides, their notes and minutes, and what `{{…}}` stands for."""

from __future__ import annotations

import base64
import html
import re
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from snippets import code, snippets
from values import values

from workshop.learn.exercises import all_exercises

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FRONT = """---
marp: true
theme: workshop
math: mathjax
paginate: true
lang: en
title: Distributed LLM inference with vLLM
---

"""
NOTE = re.compile(r"<!-- (\d+(?:\.\d+)?) min\. (.*?) -->", re.DOTALL)
PLACEHOLDER = re.compile(r"\{\{(.+?)\}\}")
# The agenda's items: title, what it holds, and the files of deck/ that it counts.
AGENDA = (
    ("1", "Basics of distributed inference", "memory, many GPUs, vLLM, speed", ("1", "2", "3")),
    ("2", "vLLM for online inference", "a server, requests, log probabilities, many prompts", ("4", "5")),
    ("3", "vLLM for offline inference", "batches that lose nothing, other models", ("6",)),
)


@dataclass(frozen=True)
class Slide:
    """One slide: the file it is from, its Markdown, its minutes and what the speaker says."""

    part: str
    number: int
    source: str
    minutes: float
    note: str

    @property
    def title(self) -> str:
        """Its heading."""
        found = re.search(r"^# (.+)$", self.source, re.MULTILINE)
        return found[1] if found else ""

    @property
    def wheres(self) -> list[tuple[str, str, list[str]]]:
        """Where its exercises are: notebook, heading, keys."""
        found = PLACEHOLDER.findall(self.source)
        return [_where_parts(text.removeprefix("where ")) for text in found if text.startswith("where ")]


@cache
def slides() -> tuple[Slide, ...]:
    """Return all slides in order. Raises ValueError for one without a note that begins with its minutes."""
    found = []
    for path in sorted((HERE / "deck").glob("*.md")):
        for source in re.split(r"\n\n---\n", path.read_text(encoding="utf-8").strip()):
            note = NOTE.search(source)
            if not note:
                raise ValueError(f"{path.name}: no note with minutes in: {source.strip()[:60]!r}")
            found.append(Slide(path.stem, len(found) + 1, source.strip(), float(note[1]), note[2]))
    return tuple(found)


def _where_parts(text: str) -> tuple[str, str, list[str]]:
    notebook, heading, keys = (part.strip() for part in text.split("|"))
    return notebook, heading, keys.split()


def _where(text: str, minutes: float) -> str:
    notebook, heading, keys = _where_parts(text)
    checks = " ".join(f'<code>check("{key}", …)</code>' for key in keys if key in all_exercises())
    return (
        f'<div class="where"><b>{minutes:g} min</b><span>notebooks/{notebook}.ipynb → '
        f"<strong>{html.escape(heading)}</strong></span><span>{checks}</span></div>"
    )


def _agenda(now: str) -> str:
    rows = []
    for number, title, under, files in AGENDA:
        minutes = round(sum(s.minutes for s in slides() if s.part[0] in files))
        cls = " now" if number == now else ""
        rows.append(
            f'<span class="n{cls}">{number}</span><span class="t{cls}">{title}<small>{under}</small></span>'
            f'<span class="m">{minutes} min</span>'
        )
    return f'<div class="agenda{" some" if now != "0" else ""}">' + "".join(rows) + "</div>"


def _figure(name: str) -> str:
    return f"<figure>{(HERE / 'figures' / f'{name}.svg').read_text(encoding='utf-8').strip()}</figure>"


def _picture(text: str) -> str:
    """A screenshot, cut to left, top, width, height in its own pixels, in an SVG of its own."""
    file, crop, words = (part.strip() for part in text.split("|"))
    data = base64.b64encode((ROOT / file).read_bytes()).decode()
    width, height = struct.unpack(">II", (ROOT / file).read_bytes()[16:24])  # PNG: the header's first two numbers
    _, _, wide, tall = map(int, crop.split())
    return (
        f'<figure class="shot"><svg viewBox="0 0 {wide} {tall}" width="{wide * 2}" height="{tall * 2}" role="img" '
        f'aria-label="{html.escape(words)}"><svg width="{wide}" height="{tall}" viewBox="{crop}">'
        f'<image href="data:image/png;base64,{data}" width="{width}" height="{height}"/></svg>'
        f'<rect width="{wide}" height="{tall}" fill="none" stroke="#d0d7de" stroke-width="2"/></svg></figure>'
    )


@cache
def _known() -> dict[str, str]:
    return {**values(), **snippets()}


def fill(text: str, minutes: float = 0) -> str:
    """Return text with every `{{…}}` replaced. Raises KeyError for a name that nobody computes."""

    def one(match: re.Match) -> str:
        kind, _, rest = match[1].partition(" ")
        if kind == "figure":
            return _figure(rest)
        if kind == "picture":
            return _picture(rest)
        if kind == "agenda":
            return _agenda(rest)
        if kind == "where":
            return _where(rest, minutes)
        if kind == "code":
            file, _, span = rest.partition(" ")
            return code(file, *(part.strip() for part in span.split("..")))
        return _known()[match[1]]

    return PLACEHOLDER.sub(one, text)


def document() -> str:
    """Return the whole deck as Marp Markdown, notes as comments."""
    out = []
    for slide in slides():
        body = fill(NOTE.sub("", slide.source), slide.minutes)
        out.append(f"{body.strip()}\n\n<!--\n{slide.minutes:g} min. {fill(slide.note)}\n-->")
    return FRONT + "\n\n---\n\n".join(out) + "\n"


def run_sheet() -> str:
    """Return what the speaker says, slide after slide, with the time at which each begins."""
    out, clock = ["# Run sheet", ""], 0.0
    for slide in slides():
        time = f"{int(clock // 60)}:{int(clock % 60):02d}"
        out.append(f"**{time}** · {slide.number}. {fill(slide.title)} · {slide.minutes:g} min  \n{fill(slide.note)}\n")
        clock += slide.minutes
    return "\n".join(out)
