"""docs/models.md, whole, from the catalogue: `workshop models --markdown > docs/models.md`."""

# r row, p place
from collections.abc import Iterable

from workshop.plan.catalog import load_gpu
from workshop.plan.hardware import CONTEXT, GPUS, MOST, Row, families, size_words, table

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
- T4: no bfloat16, so the command says `--dtype half`, and models that overflow in float16 (Gemma, GLM-4) do not run.
"""

LEFT_OUT = """
## Left out
No `config.json` was at hand, and Transformers' defaults are no published model's: Command A, Falcon-H1, GLM-4.6, Granite 4
hybrid, InternVL 3, Kimi Linear, LFM2, Mistral Small 3.1 and later, Mistral Large 3, Phi-4-mini. vLLM 0.32.0 does not know the
architecture that the config names: MiniMax M3 (text), Step 3.7 Flash. The config does not say its method: Qwen3 32B FP8 static.
Which modules stay in 16 bit is not in the file at hand: Nemotron 3 Super and Ultra in FP8 and in NVFP4.
Megabytes of module names: MiniMax M3 NVFP4, Nemotron 3.5 Lightning NVFP4. Give `workshop plan` the folder of such a model.
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
    return "\n".join(parts) + "\n" + LEFT_OUT


def _sizes(rows: list[Row]) -> list[str]:
    head = ["model", "layers", "parameters", "weights GiB", "KV KiB"] + [g.upper().replace("GB", "") for g in GPUS]
    out = [_line(head), "|---|---|" + "---:|" * (len(head) - 2)]
    for r in rows:
        active = f" ({size_words(r.active_parameters)} a token)" if r.active_parameters < r.parameters else ""
        sizes = size_words(r.parameters) + active, f"{r.weights_gib:,.1f}", f"{r.kv_kib_per_token:,.4g}"
        gpus = (str(p.gpus) if p.gpus else "–" if p.too_many else "✗" for p in r.places)
        out.append(_line((r.model, r.architecture, *sizes, *gpus)))
    return out


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _commands(rows: list[Row]) -> list[str]:
    """The command of each model on the kind of GPU of which it needs fewest, the smallest of those."""
    best = (min((p for p in r.places if p.gpus), key=lambda p: p.gpus, default=None) for r in rows)
    out = [f"{p.plan.command}   # {p.gpus} × {load_gpu(p.gpu).title}" for p in best if p]
    return ["```bash", *out, "```"] if out else []
