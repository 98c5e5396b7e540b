"""How a model runs on GPUs: call it for a plan; it also holds the catalogue and the formulas, which are pure.

A plan says which split (tensor × pipeline parallel), what fills each GPU (GiB), how many tokens of KV cache are left,
how fast one stream is (tokens/s), and the `vllm serve` command, with reasons.

>>> from workshop import plan
>>> p = plan("llama-3.1-70b", "h200", max_model_len=32768)
>>> p.fits, p.gpus
(True, 2)
>>> model = plan.load_model("llama-3.1-8b")         # the facts of its config.json
>>> plan.kv_cache_bytes_per_token(model)            # 2 × 32 layers × 8 KV heads × 128 × 2 bytes
131072
"""

from workshop.lazy import call, lazily

_ROOMS = ("calculators", "catalog", "communication", "hardware", "machines")
_ROOMS += ("memory", "parallelism", "quantised", "ranks", "rules")
_HOMES = {room: f"{__name__}.{room}" for room in _ROOMS}
_HOMES |= {name: f"{__name__}.catalog:{name}" for name in ("load_model", "load_gpu")}
_HOMES |= {name: f"{__name__}.memory:{name}" for name in ("parameters", "weight_bytes", "kv_cache_bytes_per_token")}
__getattr__, __dir__ = lazily(__name__, _HOMES)
call(__name__, "parallelism.plan")
