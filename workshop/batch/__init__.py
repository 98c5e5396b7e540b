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

from workshop.lazy import lazily

# No module is called like what it gives: importing `workshop.batch.run` would put the module in its place.
_HOMES = {name: f"{__name__}.online:{name}" for name in ("run", "Batch")}
_HOMES |= {name: f"{__name__}.offline:{name}" for name in ("run_offline", "OfflineBatch")}
_HOMES |= {name: f"{__name__}.progress:{name}" for name in ("Progress", "Summary")}
_HOMES |= {
    "load": f"{__name__}.answers:load",
    "merge": f"{__name__}.shards:merge",
    "Limits": f"{__name__}.send:Limits",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)  # so that --help needs neither aiohttp nor pandas
