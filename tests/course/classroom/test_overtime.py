"""A class that is given less time than its cells need still tries each cell once, and comes to a verdict."""

from __future__ import annotations

import asyncio
import time

import pytest

from workshop.course.classroom import plan as classroom_plan
from workshop.course.classroom import run
from workshop.course.classroom.report import Report


@pytest.mark.parametrize(
    ("cell_s", "cells_tried"),
    [(0.01, 8), (0.13, 8), (1.0, 2)],
    ids=["in time", "late", "hopelessly late"],
)
def test_a_late_learner_runs_each_cell_once_within_twice_the_time(cell_s, cells_tried, monkeypatch):
    monkeypatch.setattr(run, "THINK_S", (0.0, 0.0))
    room = run.Classroom(1, 10.0)
    room.seconds = 0.8
    room._allowed = classroom_plan.Allowed()
    room.result = Report(1, 0.0, "stub", "http://127.0.0.1:9/v1")
    room.result.every_s = 0.1
    tried = []

    async def ask(ask, cell, number, places):
        if cell.title not in tried:
            tried.append(cell.title)
            await asyncio.sleep(cell_s)

    monkeypatch.setattr(room, "_ask", ask)
    room._began = time.monotonic()
    asyncio.run(room._learner(0))
    assert len(tried) == cells_tried
