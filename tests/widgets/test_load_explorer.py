"""The load explorer: controls set, button clicked, picture read; without vLLM it shows what was recorded."""

from __future__ import annotations

import re
import threading

import pytest
from needs import lacking

from workshop.course.notebooks import extra_servers
from workshop.course.topics import recorded_data
from workshop.course.widgets.load.view import RECORDED, LoadExplorer, picture
from workshop.vllm_package import installed


@pytest.fixture(scope="module")
def explorer():
    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")
    return LoadExplorer("llama-3.1-8b", gpu="h100", rate=2, answer=16)


def aria_label(html: str) -> str:
    return re.search(r'aria-label="([^"]+)"', html)[1]


def test_the_button_simulates_the_whole_load_beside_the_cells(explorer):
    assert "click Simulate" in explorer.picture.value and explorer.result is None
    explorer.controls["rate"].value = 32
    drawn = []
    explorer.picture.observe(lambda change: drawn.append(change["new"]), "value")
    done = threading.Event()
    explorer.button.observe(lambda change: change["new"] or done.set(), "disabled")
    explorer.button.click()
    assert done.wait(120) and "computing" in drawn[0] and len(drawn) == 2
    assert f"{len(explorer.result.requests)} requests in 10 s" in drawn[1]
    assert "It keeps up" in aria_label(drawn[1])


def test_a_change_takes_the_old_picture_away(explorer):
    explorer.simulate()
    explorer.controls["rate"].value = 1
    assert "click Simulate" in explorer.picture.value and explorer.result is None


def test_what_does_not_fit_is_said_and_mended_by_another_choice(explorer):
    explorer.controls["model"].value = "llama-3.1-70b"
    explorer.simulate()
    assert "does not fit on 1 × h100" in explorer.picture.value
    explorer.controls["gpus"].value = 4
    explorer.simulate()
    assert explorer.result.model == "llama-3.1-70b"
    assert "4 × h100" in explorer.picture.value


def test_without_vllm_it_shows_recorded_loads_and_says_so(monkeypatch):
    monkeypatch.setattr(extra_servers, "installed", lambda: ("", ""))
    monkeypatch.delenv("WORKSHOP_VLLM_PYTHON", raising=False)
    explorer = LoadExplorer()
    assert list(explorer.controls) == ["load"]
    assert "vLLM is not installed here" in explorer.picture.value
    name = next(name for name in recorded_data.read(RECORDED) if "70b on h200: burst" in name)
    explorer.controls["load"].value = name
    # the record's row (docs/simulate.md)
    assert "first token after 15,412 ms" in explorer.picture.value


def test_each_recorded_load_has_what_the_picture_shows():
    # light, heavy and burst of the records that have them (benchmarks/simulate/compare.py)
    assert len(recorded_data.read(RECORDED)) == 52
    for record in recorded_data.read(RECORDED).values():
        assert aria_label(picture(record))


def test_the_verdict_says_which_requests_pile_up():
    load = recorded_data.read(RECORDED)["llama-3.1-8b on h100: light, 121 requests (vLLM 0.25.1)"]
    times = {
        "t_s": [0.0, 5.0, 10.0, 15.0],
        "running": [1, 30, 65, 2],
        "waiting": [0] * 4,
        "kv_cache_usage": [0.1] * 4,
    }
    piled = load | {"over_time": times, "keeps_up": False}
    assert "Unfinished: 30 after 5.0 s → 65 after 10.0 s." in picture(piled)
    assert "Unfinished" not in picture(piled | {"keeps_up": True})
