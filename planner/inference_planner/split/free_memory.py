"""The memory of a GPU that is free for vLLM: beside CUDA's context, and beside other processes."""

import math

from inference_planner.catalog.gpus import GPU, checked_gib
from inference_planner.errors import BadInput

# vLLM looks at the free memory after its CUDA context has taken some. Logs say 46.99 of 47.37,
# 78.84 of 79.25, 139.21 of 139.81 GiB free: the most of these, so that what the plan takes is free.
CONTEXT_GIB = 0.6
# CPU and GPU share the memory of a GB10, Thor or Strix Halo. With nothing else running 101 to 102 of
# a GB10's 121.7 GiB were free on some (0.87 never started), 114.5 on another, and two started with
# 0.9 and 0.92. vLLM's own default is meant for a card that has its memory to itself, so the plan
# takes its own. (vllm issue 46307; benchmarks/accuracy has the logs.)
UNIFIED_FREE = 0.945  # of the memory, at most
UNIFIED_OFTEN_FREE = 0.83  # of the memory, also on those
UNIFIED_UTILIZATION = 0.8


def most_free_bytes(gpu: GPU) -> int:
    """Return what can be free on a GPU before vLLM starts, where nothing else uses it."""
    if gpu.unified_memory:
        return round(UNIFIED_FREE * gpu.engine_bytes)
    return gpu.engine_bytes


def share_of_free(gpu: GPU, free_gib: float) -> float:
    """Return the largest gpu_memory_utilization beside another process, in hundredths.

    vLLM refuses to start if that share of all memory is more than what is free (v1/worker/utils.py
    request_memory).

    Args:
        free_gib: free on each GPU before the start, in GiB.

    Raises BadInput: free_gib is no number above 0, more than the GPU has, or too little for CUDA
    itself.
    """
    total = gpu.engine_gib
    free = checked_gib("free_gib", free_gib)
    if free > total + 0.005:  # logs round to hundredths
        raise BadInput(
            f"free_gib is {free:g}, and {gpu.title} has {total:.2f} GiB.",
            "Give what is free on one GPU: nvidia-smi shows it.",
        )
    share = min(1.0, math.floor((free - CONTEXT_GIB) / total * 100) / 100)
    if share <= 0:
        raise BadInput(
            f"free_gib is {free:g} of {total:.2f}: beside CUDA's own "
            f"{CONTEXT_GIB:g} GiB it leaves vLLM nothing.",
            "End the other process (nvidia-smi names it), or give another GPU.",
        )
    return share
