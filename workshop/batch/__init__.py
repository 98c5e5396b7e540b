"""Many prompts: a file in, every answer once in a file out. Run it again after an interruption, and it goes on.

Each line of the output is one answer with its prompt's place (`row`), tokens and seconds; `load` makes a table of it.

>>> from workshop import batch, connect
>>> model = connect().model                 # a server has to run
>>> _ = open("prompts.json", "w").write('["San Francisco is a", "Boston is a"]')
>>> batch.run("prompts.json", "answers.jsonl", max_tokens=8).answered
2
>>> len(batch.load("answers.jsonl"))
2
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workshop.batch.answers import load
    from workshop.batch.offline import run_offline
    from workshop.batch.online import run
    from workshop.batch.progress import Progress, Summary
    from workshop.batch.shards import merge

# No module is called like what it gives: importing `workshop.batch.run` would put the module in its place.
_PLACES = {
    "run": "online",
    "Batch": "online",
    "load": "answers",
    "merge": "shards",
    "run_offline": "offline",
    "Progress": "progress",
    "Summary": "progress",
    "Limits": "send",
}
__all__ = ["Progress", "Summary", "load", "merge", "run", "run_offline"]


def __getattr__(name: str):
    """Import what is asked for when it is: aiohttp and pandas are not needed to plan or to look at --help."""
    import importlib

    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
