"""docs/models.md, whole, from the catalogue: `workshop models --markdown > docs/models.md`."""

from __future__ import annotations

from workshop.plan.catalog import load_gpu
from workshop.plan.hardware import CONTEXT, GPUS, MOST, Place, Row, families, size_words, table

INTRO = f"""# Models
Every model of the catalogue, from the facts of its `config.json`, and the fewest GPUs that serve it. Made by
`workshop models --markdown`; a test compares. On the command line: `workshop models --family qwen --gpu l4`, and
`workshop plan MODEL --gpu GPU` for the whole plan. vLLM runs many more models: give `workshop plan` a folder with a
`config.json` instead of a name.

- **weights**: GiB as published, or as its `quantization_config` stores them.
- **KV**: KiB that one token of context takes in the cache, all layers, in 16 bit.
- **a GPU's column**: how many of it hold the weights, the engine's overheads and **one** request of {CONTEXT:,} tokens
  (or of all that the model reads), at most {MOST}. More GPUs hold more requests. “–”: more than {MOST}. “✗”: that GPU
  lacks the kernels, whatever its memory.
- T4: no bfloat16, so the command says `--dtype half`, and models that overflow in float16 (Gemma) do not run.
"""


def page() -> str:
    """Return the page, the same for the same catalogue."""
    rows = table()
    parts = [INTRO]
    for title in families():
        mine = [r for r in rows if r.family == title]
        parts += [f"## {title}\n", *_sizes(mine), "", *_commands(mine), ""]
    parts += ["## Where the facts are from\n", "| model | source |", "|---|---|"]
    parts += [f"| {r.model} | {r.source} |" for r in rows]
    return "\n".join(parts) + "\n"


def _sizes(rows: list[Row]) -> list[str]:
    head = ["model", "layers", "parameters", "weights GiB", "KV KiB"] + [g.upper().replace("GB", "") for g in GPUS]
    out = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    for r in rows:
        active = f" ({size_words(r.active_parameters)} a token)" if r.active_parameters < r.parameters else ""
        cells = [
            r.model,
            r.architecture,
            size_words(r.parameters) + active,
            f"{r.weights_gib:,.1f}",
            f"{r.kv_kib_per_token:,.4g}",
            *(_count(p) for p in r.places),
        ]
        out.append("| " + " | ".join(cells) + " |")
    return out


def _count(place: Place) -> str:
    return str(place.gpus) if place.gpus else "–" if place.reason.startswith("More") else "✗"


def _commands(rows: list[Row]) -> list[str]:
    """The command of each model on the kind of GPU of which it needs fewest, the smallest of those."""
    out = []
    for r in rows:
        best = min((p for p in r.places if p.gpus), key=lambda p: p.gpus, default=None)
        if best:
            out.append(f"{best.plan.command}   # {best.gpus} × {load_gpu(best.gpu).title}")
    return ["```bash", *out, "```"] if out else []
