"""The load explorer: controls set, picture read; a newer change ends what still runs; without vLLM it shows what was recorded."""

from __future__ import annotations

import re

import pytest
from needs import lacking

from workshop.course.notebooks import extra_servers
from workshop.course.topics import recorded_data
from workshop.course.widgets.load.view import RECORDED, LoadExplorer, picture, steps
from workshop.servers.vllm_main import installed


@pytest.fixture(scope="module")
def explorer():
    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")
    return LoadExplorer("llama-3.1-8b", gpu="h100", rate=2, answer=16)


def aria_label(html: str) -> str:
    return re.search(r'aria-label="([^"]+)"', html)[1]


def test_it_draws_while_it_computes_and_ends_with_the_whole_load(explorer):
    seen = []
    explorer.picture.observe(lambda change: seen.append(change["new"]), "value")
    explorer.controls["rate"].value = 32
    assert explorer.settled() and "computing" in seen[0]
    assert f"{len(explorer.result.requests)} requests in 10 s" in seen[-1]
    assert len(seen) >= 2 and "It keeps up" in aria_label(seen[-1])


def test_a_newer_change_ends_what_still_runs(explorer):
    explorer.controls["rate"].value = 96
    explorer.controls["rate"].value = 1
    assert explorer.settled()
    assert len(explorer.result.requests) < 30
    assert f"{len(explorer.result.requests)} requests in 10 s" in explorer.picture.value


def test_what_does_not_fit_is_said_at_once_and_mended_by_another_choice(explorer):
    explorer.controls["model"].value = "llama-3.1-70b"
    assert "does not fit on 1 × h100" in explorer.picture.value
    explorer.controls["gpus"].value = 4
    assert explorer.settled() and explorer.result.model == "llama-3.1-70b"
    assert "4 × h100" in explorer.picture.value
    explorer.controls["model"].value = "llama-3.1-8b"
    explorer.controls["gpus"].value = 1
    assert explorer.settled()


def test_without_vllm_it_shows_recorded_loads_and_says_so(monkeypatch):
    monkeypatch.setattr(extra_servers, "installed", lambda: ("", ""))
    monkeypatch.delenv("WORKSHOP_VLLM_PYTHON", raising=False)
    explorer = LoadExplorer()
    assert list(explorer.controls) == ["load"] and explorer.settled()
    assert "vLLM is not installed here" in explorer.picture.value
    name = next(name for name in recorded_data.read(RECORDED) if "70b on h200: burst" in name)
    explorer.controls["load"].value = name
    # the record's row (docs/simulate.md)
    assert "first token after 15,412 ms" in explorer.picture.value


def test_each_recorded_load_has_what_the_picture_shows():
    # light, heavy and burst of the records that have them (benchmarks/simulate/compare.py)
    assert len(recorded_data.read(RECORDED)) == 52
    for record in recorded_data.read(RECORDED).values():
        assert aria_label(picture(record)) and len(record["busiest"]) > 10


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


def test_a_step_is_as_wide_as_it_takes():
    drawn = steps([(0.0, 0.1, 4000, 2), (0.1, 0.12, 0, 8)])
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', drawn)]
    assert widths[0] == pytest.approx(5 * widths[1], rel=0.1)
