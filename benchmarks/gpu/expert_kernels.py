"""Time vLLM's Triton kernel of experts with the tiles of its tuned files and with its default tiles.

    python benchmarks/gpu/expert_kernels.py OUT.json

For each shape (experts, width of an expert, hidden size, experts a token) in 16 bits and in FP8 with blocks of 128, and
each number of tokens: ms on the GPU (a CUDA graph, replayed) with both, and ms that Python takes to launch it. Tokens
choose their experts at random. A shape without a tuned file has the default tiles alone. Needs one GPU and vLLM.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.fused_moe import override_config
from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config
from vllm.model_executor.layers.fused_moe.fused_moe import (
    fused_experts,
    get_default_config,
    get_moe_configs,
)

BLOCK = 128
TOKENS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192)
SHAPES = {  # experts of a rank, width of a rank's part, hidden size, experts a token
    "qwen3-30b-a3b, TP 1": (128, 768, 2048, 8),
    "qwen3-30b-a3b, TP 2": (128, 384, 2048, 8),
    "glm-4.5-air, TP 1": (128, 1408, 4096, 8),
    "glm-4.5-air, TP 2": (128, 704, 4096, 8),
    "qwen3-235b-a22b, TP 4": (128, 384, 4096, 8),
    "qwen3-235b-a22b, TP 2": (128, 768, 4096, 8),
    "mixtral-8x7b, TP 1": (8, 14336, 4096, 2),
    "mixtral-8x7b, TP 2": (8, 7168, 4096, 2),
    "llama-4-scout, TP 4": (16, 2048, 5120, 1),
    "llama-4-scout, TP 2": (16, 4096, 5120, 1),
    "minimax-m2, TP 4": (256, 384, 3072, 8),
    "deepseek-v3, TP 8": (256, 256, 7168, 8),
    "qwen3-next-80b, TP 1": (512, 512, 2048, 10),
}


def milliseconds(call: Callable[[], object]) -> tuple[float, float]:
    """Return (GPU, launch) of a call in ms: a replayed graph, and Python until the call returns."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    launches = []
    for _ in range(10):
        begin = time.perf_counter()
        call()
        launches.append(1000 * (time.perf_counter() - begin))
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(10):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
    return round(statistics.median(times), 4), round(statistics.median(launches), 4)


def weights(
    shape: tuple[int, int, int, int], fp8: bool
) -> tuple[torch.Tensor, torch.Tensor, object]:
    """Return both weights of all experts and the settings of their quantization."""
    experts, width, hidden, _ = shape
    kind = torch.float8_e4m3fn if fp8 else torch.bfloat16
    up = (
        torch.randn(experts, 2 * width, hidden, device="cuda", dtype=torch.bfloat16)
        .mul_(0.02)
        .to(kind)
    )
    down = (
        torch.randn(experts, hidden, width, device="cuda", dtype=torch.bfloat16).mul_(0.02).to(kind)
    )
    if not fp8:
        return up, down, None
    scales = [
        torch.ones(
            experts, -(-weight.shape[1] // BLOCK), -(-weight.shape[2] // BLOCK), device="cuda"
        )
        for weight in (up, down)
    ]
    config = fp8_w8a8_moe_quant_config(
        w1_scale=scales[0], w2_scale=scales[1], block_shape=[BLOCK, BLOCK]
    )
    return up, down, config


def weights_of(fp8: bool) -> str:
    """Return how the weights are called in the record."""
    return "fp8 blocks" if fp8 else "bf16"


def rows_of(name: str, shape: tuple[int, int, int, int], fp8: bool) -> list[dict]:
    """Return a row for each number of tokens."""
    experts, width, hidden, chosen = shape
    dtype, block = ("fp8_w8a8", [BLOCK, BLOCK]) if fp8 else (None, None)
    blocks = (BLOCK, BLOCK) if fp8 else (0, 0)
    files = get_moe_configs(experts, width, dtype, *blocks)
    up, down, quantization = weights(shape, fp8)
    rows = []
    for tokens in TOKENS:
        states = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
        ids = torch.rand(tokens, experts, device="cuda").topk(chosen).indices.to(torch.int32)
        shares = torch.full((tokens, chosen), 1 / chosen, device="cuda")

        def call(states=states, ids=ids, shares=shares) -> torch.Tensor:
            return fused_experts(states, up, down, shares, ids, quant_config=quantization)

        default = get_default_config(tokens, experts, width, hidden, chosen, dtype, block)
        with override_config(default):
            default_ms, launch_ms = milliseconds(call)
        row = {
            "shape": name,
            "experts": experts,
            "width": width,
            "hidden": hidden,
            "experts_per_token": chosen,
            "weights": weights_of(fp8),
            "tokens": tokens,
            "default_ms": default_ms,
            "launch_ms": launch_ms,
        }
        if files:
            row["tuned_ms"], _ = milliseconds(call)
        rows.append(row)
    return rows


def main() -> None:
    """Time all shapes, and write after each what is there so far."""
    rows, failures = [], {}
    for fp8 in (False, True):
        for name, shape in SHAPES.items():
            try:
                rows += rows_of(name, shape, fp8)
            except (
                Exception
            ) as error:  # one shape that a kernel refuses is no reason to lose the others
                failures[f"{name}, {weights_of(fp8)}"] = repr(error)[:300]
            torch.cuda.empty_cache()
            whole = {
                "gpu": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "rows": rows,
                "failures": failures,
            }
            Path(sys.argv[1]).write_text(json.dumps(whole))
            print(f"{time.process_time():6.0f} s  {name}  fp8={fp8}", flush=True)


if __name__ == "__main__":
    with set_current_vllm_config(VllmConfig()):
        main()
