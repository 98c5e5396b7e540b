"""A trace as the X-ray's page takes it: short names, what is new in each step, a sentence or two, a question. Pure."""

import json
import string
from collections.abc import Iterable
from dataclasses import replace
from importlib.resources import files
from itertools import takewhile

from workshop.course import recordings
from workshop.course.widgets import style
from workshop.course.widgets.xray.questions import Asker, listed, verb
from workshop.engine.trace import Pool, Step, reasons
from workshop.errors import plain

RECORDED = recordings.DATA / "traces" / "teaching_model.jsonl"
WHOLE_POOL = (
    128  # blocks that are all drawn; of a larger pool half as many, and those that are ever taken
)
MOST_STEPS = 2000  # of one page: it stays quick, and below some megabytes
PARTS = ("page.html", "page.css", "trace.js", "picture.js", "page.js")
# of requests, in turn
COLOURS = "blue", "orange", "green", "purple", "sky", "vermillion", "yellow", "grey"


class Replay:
    """Steps one after the other, as the page has them. A request is called A, B, … Z, A1, … in the order of coming.

    Args:
        about: what the page says of itself.
        first: number of the first step that is drawn; those before only fill the pool.
    """

    def __init__(self, about: str = "", first: int | None = None):
        # left_out: beyond MOST_STEPS
        self.about, self.first, self.steps, self.left_out = plain(about), first, [], 0
        # names: long → short
        self.pool, self.asker, self.names, self._cells = Pool(), Asker(), {}, set()
        self._facts, self._tables, self._waiting = (
            {"budget": 0, "pool": 0, "block_size": 0},
            {},
            None,
        )

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
        more = f" · {self.left_out:,} later steps are left out" if self.left_out else ""
        pool = self._facts["pool"]
        whole = pool if pool <= WHOLE_POOL else WHOLE_POOL // 2
        return {
            "about": self.about + more,
            "first": self.first or 0,
            "since": since,
            **self._facts,
            "colours": COLOURS,
            # a client chooses them
            "names": [[short, long[:100]] for long, short in self.names.items()],
            "cells": sorted(self._cells.union(range(1, whole + 1))) if whole < pool else pool,
            "steps": self.steps[since:],
        }

    def _added(self, step: Step) -> dict:
        """Return what happens in a step. rows: [request, prefill, decode, computed, hit, drafted, accepted]; requests are numbers."""
        step, rows = self._short(step), []
        for one in step.requests:
            tokens = (
                one.prefill_tokens,
                one.decode_tokens,
                one.computed_tokens,
                one.prefix_hit_tokens,
            )
            rows.append([number(one.id), *tokens, one.drafted, one.accepted])
        question = self.asker.question(step, self.pool)
        came = [
            f"{name} arrives with a prompt of {tokens:,} tokens." for name, tokens in step.arrived
        ]
        said = [*came, *reasons(step, self.pool), *work(step, self.pool, self.asker.lost)]
        self.asker.lost.update(step.preempted)
        self.pool.add(step)
        self._cells.update(step.taken)
        return {
            "t": step.time_s,
            "usage": round(step.kv_cache_usage, 4),
            "rows": rows,
            **{
                key: [number(name) for name in getattr(step, key)]
                for key in ("preempted", "finished")
            },
            "taken": step.taken,
            "freed": step.freed,
            **{key: [block for block, _ in getattr(step, key)] for key in ("stored", "removed")},
            "said": said,
            "question": question,
        }

    def _changed(self) -> dict:
        """Return the queue if it is another, and [request, blocks kept of those it held, *new ones] of each table that is.

        -1 in place of the blocks kept: it holds none any more.
        """
        changed = [[number(name), -1] for name in self._tables if name not in self.pool.tables]
        for name, blocks in self.pool.tables.items():
            before = self._tables.get(name, [])
            kept = sum(
                1
                for _ in takewhile(
                    lambda pair: pair[0] == pair[1], zip(before, blocks, strict=False)
                )
            )
            if name not in self._tables or kept < max(len(before), len(blocks)):
                changed.append([number(name), kept, *blocks[kept:]])
        self._tables = {name: list(blocks) for name, blocks in self.pool.tables.items()}
        queue, self._waiting = self._waiting, list(self.pool.waiting)
        waiting = None if queue == self._waiting else [number(name) for name in self._waiting]
        return {"tables": changed, "waiting": waiting}

    def _short(self, step: Step) -> Step:
        came = (*(name for name, _ in step.arrived), *(one.id for one in step.requests))
        for name in (*came, *step.finished, *step.preempted):
            self.names.setdefault(name, letters(len(self.names)))
        requests = tuple(replace(one, id=self.names[one.id]) for one in step.requests)
        arrived = tuple((self.names[name], tokens) for name, tokens in step.arrived)
        finished, preempted = (
            tuple(map(self.names.get, names)) for names in (step.finished, step.preempted)
        )
        return replace(
            step, requests=requests, arrived=arrived, finished=finished, preempted=preempted
        )


def letters(count: int) -> str:
    """Return the short name of the request that came after `count` others."""
    turn, letter = divmod(count, 26)
    return string.ascii_uppercase[letter] + (str(turn) if turn else "")


def number(name: str) -> int:
    """Return how many requests came before this one."""
    return string.ascii_uppercase.index(name[0]) + 26 * int(name[1:] or 0)


def work(step: Step, before: Pool, lost: Iterable[str]) -> list[str]:
    """Return what a step computes; why it does so is trace.reasons. lost: who had been preempted."""
    decode = [one.id for one in step.requests if one.decode_tokens and not one.drafted]
    said = [f"{listed(decode)} {verb(decode, 'get')} the next token."] if decode else []
    for one in step.requests:
        if one.drafted:
            said.append(
                f"{one.id} computes {one.decode_tokens} tokens, {one.drafted} of them guesses of the draft."
            )
        if one.prefill_tokens:
            again = one.id in lost and one.id not in before.tables
            what = "again, which its preemption lost" if again else "of its prompt"
            said.append(f"{one.id} computes {one.prefill_tokens:,} tokens {what}.")
    return [" ".join(said)] if said else []


def page(drawn: dict) -> str:
    """Return the page: one file that asks for nothing elsewhere."""
    folder = files("workshop.course.widgets.xray")
    colours = "".join(f"--{name}:{value};" for name, value in style.NAMES.items())
    html, look, *scripts = (folder.joinpath(name).read_text(encoding="utf-8") for name in PARTS)
    style_sheet = f":root {{ {colours} }}\n{look}"
    for place, text in (
        ("style", style_sheet),
        ("script", "".join(scripts)),
        ("trace", packed(drawn)),
    ):
        html = html.replace(f"/* {place} */", text, 1)
    return html


def packed(what: object) -> str:
    """Return JSON that may stand in a page."""
    return json.dumps(what, separators=(",", ":")).replace("<", "\\u003c")
