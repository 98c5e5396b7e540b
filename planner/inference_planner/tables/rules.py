"""Rules of thumb and published tables, digit by digit, beside the arithmetic."""

import math
from dataclasses import dataclass

from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GIB
from inference_planner.errors import BadInput
from inference_planner.model.kv_cache import kv_cache_bytes_per_token
from inference_planner.model.weights import parameters

REQUEST_TOKENS = 128_000  # "128k" in the Llama 3.1 announcement's table is 128,000, not 131,072
H100_GB = 80
BYTES = {"Float16": 2.0, "Float8": 1.0, "INT4": 0.5}
# Llama 3.1's sizes in 10**9 parameters as the table rounds them, and the catalog's names.
SIZES = {"8B": (8, "llama-3.1-8b"), "70B": (70, "llama-3.1-70b"), "405B": (405, "llama-3.1-405b")}
# The table was made when 405B had 16 KV heads; its config.json has 8 today.
TABLE_KV_HEADS = {"8B": 8, "70B": 8, "405B": 16}


def rule_of_thumb_gb(billion_parameters: float, bits: float) -> float:
    """Return M = P · 4 / (32 / Q) · 1.2 in GB, of P · 10**9 parameters in Q bits.

    Source: "Inference memory calculation" of the workshop's first document. It knows neither
    context nor requests.
    """
    if billion_parameters <= 0 or not 0 < bits <= 64:
        remedy = "Give a positive number of parameters and 1 to 64 bits."
        raise BadInput(f"{billion_parameters} × 10**9 parameters of {bits} bits cannot be.", remedy)
    return billion_parameters * 4 / (32 / bits) * 1.2


def weights_gb(billion_parameters: float, precision: str) -> float:
    """Return GB (10**9 bytes) of weights: parameters times bytes, nothing else."""
    if precision not in BYTES:
        raise BadInput(
            f"precision {precision!r} is not known.", f"Choose from: {', '.join(BYTES)}."
        )
    return billion_parameters * BYTES[precision]


def weights_table() -> dict[str, dict[str, str]]:
    """Return "Memory Needed for Model Weights": GB as printed (202.5 as 203), by size and precision."""
    return {
        size: {p: f"{math.floor(weights_gb(billions, p) + 0.5)} GB" for p in BYTES}
        for size, (billions, _) in SIZES.items()
    }


def kv_request_gib(
    model: ModelConfig, tokens: int = REQUEST_TOKENS, kv_heads: int | None = None
) -> float:
    """Return GiB of KV cache for one request; kv_heads replaces the config's number."""
    token_bytes = kv_cache_bytes_per_token(model)
    return (
        token_bytes
        * (kv_heads or model.num_key_value_heads)
        / model.num_key_value_heads
        * tokens
        / GIB
    )


def kv_table() -> dict[str, str]:
    """Return "Memory for KV Cache for 128k token request" as printed: GB that are GiB.

    15.625 is printed as 15.62.
    """
    return {
        size: f"{kv_request_gib(load_model(name), kv_heads=TABLE_KV_HEADS[size]):.2f}"
        for size, (_, name) in SIZES.items()
    }


def h100s_for_both(size: str) -> float:
    """Return "Number of H100s needed for both". The table adds (weights in GB + KV in GiB) / 80."""
    billions, name = SIZES[size]
    return (
        weights_gb(billions, "Float16")
        + kv_request_gib(load_model(name), kv_heads=TABLE_KV_HEADS[size])
    ) / H100_GB


def h100_table() -> dict[str, str]:
    """Return the table's column: 0.40 is printed as 1, because there is no part of a GPU."""
    return {
        size: f"{h100s_for_both(size):.2f}" if h100s_for_both(size) > 1 else "1" for size in SIZES
    }


def h100s_needed(size: str) -> tuple[int, int]:
    """Return "at least" for weights, and for a request: 2 and 3 for 70B, 11 and 12 for 405B."""
    return math.ceil(weights_gb(SIZES[size][0], "Float16") / H100_GB), math.ceil(
        h100s_for_both(size)
    )


@dataclass(frozen=True)
class Difference:
    """A published number that differs from today's arithmetic, and the reason."""

    what: str
    published: str
    today: str
    why: str


def differences() -> list[Difference]:
    """Return where the tables are approximate or outdated."""
    small = load_model("llama-3.1-8b")
    large = load_model("llama-3.1-405b")
    h100 = load_gpu("h100")
    kv = kv_request_gib(small) * GIB / 1e9
    visible_memory = f"the engine sees {h100.engine_bytes / 1e9:.0f} GB"
    counts = "15.62 counts GiB of 2**30 bytes, for 128,000 tokens"
    heads = "the table counts 16 KV heads; config.json has 8"
    exact = f"{parameters(large):,} parameters, not 405,000,000,000"
    rounded = f"the name counts GiB, about: {visible_memory}; vLLM takes 92 % of it"
    whole = f"{kv_request_gib(small, 131072):.2f} GiB"
    return [
        Difference("KV cache of a 128k request, 8B", "15.62 GB", f"{kv:.2f} GB", counts),
        Difference(
            "the same for the model's whole context",
            "128k",
            whole,
            "the model reads 131,072 tokens",
        ),
        Difference(
            "KV cache of a 128k request, 405B",
            "123.05 GB",
            f"{kv_request_gib(large):.2f} GiB",
            heads,
        ),
        Difference("weights, 405B", "810 GB", f"{2 * parameters(large) / 1e9:.1f} GB", exact),
        Difference("memory of one H100", "80 GB", f"{h100.engine_gib:.1f} GiB", rounded),
    ]
