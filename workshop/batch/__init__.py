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
__getattr__, __dir__ = lazily(  # so that --help needs neither aiohttp nor pandas
    __name__,
    {
        "run": "workshop.batch.online:run",
        "Batch": "workshop.batch.online:Batch",
        "load": "workshop.batch.answers:load",
        "merge": "workshop.batch.shards:merge",
        "run_offline": "workshop.batch.offline:run_offline",
        "OfflineBatch": "workshop.batch.offline:OfflineBatch",
        "Progress": "workshop.batch.progress:Progress",
        "Summary": "workshop.batch.progress:Summary",
        "Limits": "workshop.batch.send:Limits",
    },
)
