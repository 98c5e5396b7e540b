"""What is compiled for no browser can be imported, and says so when it is used."""

from __future__ import annotations


def missing(module: str):
    """Return the __getattr__ of such a module."""

    def get(name: str):
        raise ModuleNotFoundError(
            f"{module} is not in this page's Python: run this cell in JupyterLab (make workshop)."
        )

    return get
