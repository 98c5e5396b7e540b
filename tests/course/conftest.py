"""Fixtures of the tests of single notebooks: no vLLM on this machine, and a notebook's cells run one after the other."""

from __future__ import annotations

from collections.abc import Callable

import cells
import pytest

from workshop.course.notebooks import extra_servers


@pytest.fixture
def without_vllm(monkeypatch) -> None:
    """Let the notebooks' helpers find no vLLM."""
    monkeypatch.delenv("WORKSHOP_VLLM_PYTHON", raising=False)
    monkeypatch.setattr(extra_servers, "installed", lambda: ("", ""))


@pytest.fixture
def run_to_its_end(without_vllm, monkeypatch, capsys) -> Callable[[str], tuple[dict, str]]:
    """Return a function that runs a notebook without vLLM, and returns its names and what it printed."""
    monkeypatch.setenv("WORKSHOP_STRICT", "1")  # solutions run before any try; a wrong one raises

    def run(file_name: str) -> tuple[dict, str]:
        names: dict = {}
        for source in cells.code(file_name.removesuffix(".ipynb")):
            exec(source, names)
        return names, capsys.readouterr().out

    return run
