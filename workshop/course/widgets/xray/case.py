"""A trace as the page of the X-ray takes it.

Each step has short names, what is new, a sentence or two, and a question.
"""

import json
import string
from collections.abc import Iterable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from workshop.client import answer_ids
from workshop.course.topics import recorded_data
from workshop.course.widgets import style
from workshop.course.widgets.xray.questions import Asker, listed, verb
from workshop.engine.trace import Pool, RequestStep, Step, reasons
from workshop.errors import plain
from workshop.servers import records
from workshop.servers.records.record_file import NAME

RECORDED = recorded_data.DATA / "traces" / "teaching_model.jsonl"
# Blocks that are all drawn; of a larger pool half as many, and those that are ever taken.
WHOLE_POOL = 128
MOST_STEPS = 2000  # of one page: it stays quick, and below some megabytes
LABEL_CHARS = 12  # of a learner's name beside the letter of a row
PARTS = ("page.html", "page.css", "trace.js", "picture.js", "page.js")
# of requests, in turn
COLOURS = "blue", "orange", "green", "purple", "sky", "vermillion", "yellow", "grey"


def trace_file(trace: str | Path) -> Path:
    """Return the file of a trace: `trace` itself, or that of this user's server of that name.

    Raises BadInput: there is neither.
    """
    path = Path(trace).expanduser()
    if path.exists() or not NAME.fullmatch(str(trace)):
        return path
    return records.trace_of(str(trace))


class Replay:
    """Steps one after the other, as the page has them.

    A request is called A, B, … Z, A1, … in the order of coming.

    Args:
        about: what the page says of itself.
        first: number of the first step that is drawn; those before only fill the pool.
    """

    def __init__(self, about: str = "", first: int | None = None):
        self.about = plain(about)
        self.first = first
        self.steps: list[dict] = []
        self.left_out = 0  # steps beyond MOST_STEPS
        self.is_followed = False  # the page begins at the last step, and stays there
        self.pool = Pool()
        self.asker = Asker()
        self.names: dict[str, str] = {}  # long → short
        self._cells: set[int] = set()
        self._facts = {"budget": 0, "pool": 0, "block_size": 0}
        self._tables: dict[str, list[int]] = {}
        self._waiting: list[str] | None = None

    def extend(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if self.first is None:
                self.first = step.step
            if len(self.steps) >= MOST_STEPS:
                self.left_out += 1
                continue
            new = self._added(step)
            if step.step >= self.first:
                if not self.steps:  # what the steps before it add up to is new as well
                    new |= {"stored": list(self.pool.hashes), "removed": []}
                    self._tables, self._waiting = {}, None
                self.steps.append(new | self._changed())
                self._facts = {
                    "budget": step.budget,
                    "pool": step.num_blocks,
                    "block_size": step.block_size,
                }

    def data(self, since: int = 0) -> dict:
        """Return what the page draws, of the steps from place `since` on."""
        about = self.about
        if self.left_out:
            about += f" · {self.left_out:,} later steps are left out"
        names = []
        for long, short in self.names.items():
            # a client chooses its long name
            names.append([short, long[:100], answer_ids.by(long)[:LABEL_CHARS]])
        return {
            "about": about,
            "first": self.first or 0,
            "since": since,
            "follow": self.is_followed,
            **self._facts,
            "colours": COLOURS,
            "names": names,
            "cells": self._drawn_cells(),
            "steps": self.steps[since:],
        }

    def _drawn_cells(self) -> int | list[int]:
        """Return how many blocks are drawn, if all are.

        Of a large pool, return the numbers of the blocks that are drawn.
        """
        pool = self._facts["pool"]
        if pool <= WHOLE_POOL:
            return pool
        return sorted(self._cells.union(range(1, WHOLE_POOL // 2 + 1)))

    def _added(self, step: Step) -> dict:
        """Return what happens in a step.

        A row is [request, prefill, decode, computed, hit, drafted, accepted]; requests are numbers.
        """
        step = self._short(step)
        question = self.asker.question(step, self.pool)
        sentences = []
        for name, tokens in step.arrived:
            sentences.append(f"{name} arrives with a prompt of {tokens:,} tokens.")
        sentences += reasons(step, self.pool)
        sentences += work(step, self.pool, self.asker.lost)
        self.asker.lost.update(step.preempted)
        self.pool.add(step)
        self._cells.update(step.taken)
        return {
            "t": step.time_s,
            "usage": round(step.kv_cache_usage, 4),
            "rows": [_row(request) for request in step.requests],
            "preempted": list(map(number, step.preempted)),
            "finished": list(map(number, step.finished)),
            "taken": step.taken,
            "freed": step.freed,
            "stored": [block for block, _ in step.stored],
            "removed": [block for block, _ in step.removed],
            "said": sentences,
            "question": question,
        }

    def _changed(self) -> dict:
        """Return the queue if it has changed, and each block table that has changed.

        A table is [request, blocks kept of those it held, *new ones].

        -1 in place of the blocks kept: it holds none any more.
        """
        changed = []
        for name in self._tables:
            if name not in self.pool.tables:
                changed.append([number(name), -1])
        for name, blocks in self.pool.tables.items():
            before = self._tables.get(name, [])
            same = 0  # blocks at the beginning that are the same as before
            while same < min(len(before), len(blocks)) and before[same] == blocks[same]:
                same += 1
            if name not in self._tables or same < max(len(before), len(blocks)):
                changed.append([number(name), same, *blocks[same:]])
        self._tables = {name: list(blocks) for name, blocks in self.pool.tables.items()}
        waiting = list(self.pool.waiting)
        is_same_queue = waiting == self._waiting
        self._waiting = waiting
        queue = None
        if not is_same_queue:
            queue = list(map(number, waiting))
        return {"tables": changed, "waiting": queue}

    def _short(self, step: Step) -> Step:
        """Return the step with short names; who is new gets one, first those that arrive."""
        arrived = []
        for name, tokens in step.arrived:
            arrived.append((self._short_name(name), tokens))
        requests = []
        for request in step.requests:
            requests.append(replace(request, id=self._short_name(request.id)))
        return replace(
            step,
            requests=tuple(requests),
            arrived=tuple(arrived),
            finished=tuple(map(self._short_name, step.finished)),
            preempted=tuple(map(self._short_name, step.preempted)),
        )

    def _short_name(self, name: str) -> str:
        """Return the short name of a request; a new request gets the next one."""
        return self.names.setdefault(name, letters(len(self.names)))


def _row(request: RequestStep) -> list[int]:
    """Return the numbers of a request in a step, as the page has them."""
    return [
        number(request.id),
        request.prefill_tokens,
        request.decode_tokens,
        request.computed_tokens,
        request.prefix_hit_tokens,
        request.drafted,
        request.accepted,
    ]


def letters(count: int) -> str:
    """Return the short name of the request that came after `count` others."""
    turn, letter = divmod(count, 26)
    if not turn:
        return string.ascii_uppercase[letter]
    return f"{string.ascii_uppercase[letter]}{turn}"


def number(name: str) -> int:
    """Return how many requests came before this one."""
    return string.ascii_uppercase.index(name[0]) + 26 * int(name[1:] or 0)


def work(step: Step, before: Pool, lost: Iterable[str]) -> list[str]:
    """Return what a step computes; trace.reasons says why.

    `lost` are the requests that had been preempted.
    """
    sentences = []
    decode = []
    for request in step.requests:
        if request.decode_tokens and not request.drafted:
            decode.append(request.id)
    if decode:
        sentences.append(f"{listed(decode)} {verb(decode, 'get')} the next token.")
    for request in step.requests:
        name = request.id
        if request.drafted:
            guesses = f"{request.drafted} of them guesses of the draft"
            sentences.append(f"{name} computes {request.decode_tokens} tokens, {guesses}.")
        if request.prefill_tokens:
            again = name in lost and name not in before.tables
            part = "of its prompt"
            if again:
                part = "again, which its preemption lost"
            sentences.append(f"{name} computes {request.prefill_tokens:,} tokens {part}.")
    if sentences:
        return [" ".join(sentences)]
    return []


def page(drawn: dict) -> str:
    """Return the page: one file that asks for nothing elsewhere."""
    folder = files("workshop.course.widgets.xray")
    html, look, *scripts = [folder.joinpath(name).read_text(encoding="utf-8") for name in PARTS]
    colours = ""
    for name, value in style.NAMES.items():
        colours += f"--{name}:{value};"
    contents = {
        "style": f":root {{ {colours} }}\n{look}",
        "script": "".join(scripts),
        "trace": packed(drawn),
    }
    for place, text in contents.items():
        html = html.replace(f"/* {place} */", text, 1)
    return html


def packed(what: object) -> str:
    """Return JSON that may stand in a page."""
    return json.dumps(what, separators=(",", ":")).replace("<", "\\u003c")
