"""The experts and GPUs for which vLLM has tuned files, as benchmarks/moe_configs.py recorded them.

Where it has none, it logs "Using default MoE config" and multiplies experts with default tiles.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_planner.releases.moe_backends import BITS_16, FP8, FP8_BLOCKS, INT8, WEIGHT_ONLY

FILE = Path(__file__).with_suffix(".json")
# The catalog's name of a GPU -> its name in vLLM's files, which is that of the driver.
DEVICES = {
    "a100-40gb": "A100-SXM4-40GB",
    "a100-80gb": "A100-SXM4-80GB",
    "h100": "H100_80GB_HBM3",
    "h100-pcie": "H100_PCIe",
    "h200": "H200",
    "h200-nvl": "H200",  # vLLM reads the H200's for the whole family
    "h20": "H20",
    "b200": "B200",
    "b300": "B300_SXM6_AC",
    "gb200": "GB200",
    "gb10": "GB10",
    "l20": "L20",
    "l40s": "L40S",
    "rtx-4090": "GeForce_RTX_4090",
    "rtx-pro-6000": "RTX_PRO_6000_Blackwell_Server_Edition",
    # of which no file names the GPU
    "l4": "L4",
    "a10g": "A10G",
    "rtx-5090": "GeForce_RTX_5090",
    "rtx-3090": "GeForce_RTX_3090",
    "h100-nvl": "H100_NVL",
}
STORED = {
    BITS_16: "16 bit",
    FP8: "fp8_w8a8",
    FP8_BLOCKS: "fp8_w8a8 in blocks of 128",
    INT8: "int8_w8a16",
    WEIGHT_ONLY: "int4_w4a16",
}


@lru_cache(maxsize=1)
def recorded() -> dict[str, Any]:
    """Return the recorded table as data."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def is_tuned(gpu: str, experts: int, width: int, weights: str) -> bool | None:
    """Return whether vLLM has a tuned file, or None where the GPU's name there is unknown.

    Args:
        gpu: the catalog's name of a GPU.
        experts: of a rank.
        width: of a rank's part of an expert (its intermediate size).
        weights: how they are stored, as `moe_backends.stored_as` says it.
    """
    device = DEVICES.get(gpu)
    if device is None or weights not in STORED:
        return None
    shapes = recorded().get(device, {}).get(STORED[weights], [])
    return f"{experts}x{width}" in shapes
