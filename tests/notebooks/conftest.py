"""The cores of notebooks, each run once for all tests, with SmolLM2's recorded answers in the place of a server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from notebook_shell import CoreCell, run_core
from recorded_model import KEY, recorded_server


@pytest.fixture(scope="session")
def core_of(tmp_path_factory) -> Callable[[str], list[CoreCell]]:
    """Return a function that gives the cells of a notebook's core as they ran."""
    done: dict[str, list[CoreCell]] = {}
    with recorded_server() as url:

        def core(notebook: str) -> list[CoreCell]:
            if notebook not in done:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv("WORKSHOP_URL", url)
                    patch.setenv("WORKSHOP_API_KEY", KEY)
                    patch.setenv("WORKSHOP_HOME", str(tmp_path_factory.mktemp(notebook)))
                    patch.delenv("WORKSHOP_STRICT", raising=False)
                    done[notebook] = list(run_core(notebook))
            return done[notebook]

        yield core
