"""Many prompts: a file in, every answer once in a file out; run it again, and it goes on.

Each line of the output is one answer with its prompt's place (`row`), tokens and seconds; `load`
makes a table of it.

>>> from workshop import batch, connect
>>> model = connect().model                 # a server has to run
>>> _ = open("prompts.json", "w").write('["San Francisco is a", "Boston is a"]')
>>> batch.run("prompts.json", "answers.jsonl", max_tokens=8).answered
2
>>> len(batch.load("answers.jsonl"))
2
"""

from typing import TYPE_CHECKING

from workshop.lazy import lazily

if TYPE_CHECKING:  # so that editors know the types of what is imported on demand
    from workshop.batch.keep.answers import load as load
    from workshop.batch.keep.shards import merge as merge
    from workshop.batch.offline import OfflineBatch as OfflineBatch
    from workshop.batch.offline import run_offline as run_offline
    from workshop.batch.online import Batch as Batch
    from workshop.batch.online import run as run
    from workshop.batch.progress import Progress as Progress
    from workshop.batch.progress import Summary as Summary
    from workshop.batch.send.attempts import Limits as Limits

# No module is called like what it gives: importing `workshop.batch.run` would put the module in its
# place.
_HOMES = {name: f"{__name__}.online:{name}" for name in ("run", "Batch")}
_HOMES |= {name: f"{__name__}.offline:{name}" for name in ("run_offline", "OfflineBatch")}
_HOMES |= {name: f"{__name__}.progress:{name}" for name in ("Progress", "Summary")}
_HOMES |= {
    "load": f"{__name__}.keep.answers:load",
    "merge": f"{__name__}.keep.shards:merge",
    "Limits": f"{__name__}.send.attempts:Limits",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)  # so that --help needs neither aiohttp nor pandas
