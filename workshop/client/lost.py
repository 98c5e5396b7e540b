"""In a notebook, the cells after one that lost its server say the same as that one.

They lack what it would have computed: without this they fail with `IndexError: list index out of range`.
"""

from __future__ import annotations

import sys
from typing import Any

from workshop.errors import WorkshopError


def remember(error: WorkshopError) -> None:
    """Let each cell that fails from now on say that the server is gone."""
    current = shell()
    if current is None:
        return

    def show(shell: Any, kind: type, value: BaseException, trace: Any, tb_offset=None) -> None:
        if not isinstance(value, WorkshopError):
            consequence = f"This cell needs what it would have answered ({kind.__name__}: {value})."
            value = WorkshopError(error.message, f"{consequence} {error.remedy}".strip())
        shell.showtraceback((type(value), value, trace), tb_offset=tb_offset)

    current.set_custom_exc((Exception,), show)


def forget() -> None:
    """Let cells fail as usual: a server answers."""
    current = shell()
    if current is not None and current.custom_exceptions:
        current.set_custom_exc((), None)


def shell() -> Any:
    """Return IPython's shell; None outside of IPython."""
    if "IPython" not in sys.modules:
        return None
    return sys.modules["IPython"].get_ipython()
