"""Write a quantized teaching model as a checkpoint that vLLM loads, in the format that each method has.

    export.write(schemes.quantize(model, "int4-gptq", inputs), folder)

Needs torch and safetensors (extra `local`). compressed-tensors holds INT8, FP8 and INT4; GPTQ and AWQ have formats of
their own, which pack eight 4-bit codes into one int32, each in its own order.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from workshop.errors import BadInput
from workshop.teaching_model import FOLDER
from workshop.teaching_model.quantize import Quantized
from workshop.teaching_model.schemes import QuantizedModel

FORMATS = {
    "none": "bf16",
    "fp8": "compressed-tensors",
    "int8": "compressed-tensors",
    "rtn": "compressed-tensors",
    "gptq": "gptq",
    "awq": "awq",
}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which output goes into which nibble, least first
OTHER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def write(result: QuantizedModel, folder: Path, *, dequantized: bool = False) -> Path:
    """Write the checkpoint and return its folder; dequantized: in bfloat16, with the values that the codes stand for.

    Raises:
        BadInput: a scheme that no checkpoint format has (fewer than 4 bits); dequantized works for all.
    """
    scheme, weights = result.scheme, result.model.weights
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    tensors = {name: torch.from_numpy(w).to(torch.bfloat16) for name, w in weights.items()}
    if not dequantized and result.parts:
        if scheme.bits not in (4, 8):
            raise BadInput(
                f"There is no checkpoint format of vLLM for {scheme.bits} bits here.",
                "Write it with dequantized=True.",
            )
        config["quantization_config"] = quantization_config(result)
        for name, part in result.parts.items():
            del tensors[f"{name}.weight"]
            tensors |= {
                f"{name}.{key}": t.contiguous() for key, t in packed(part, scheme.method).items()
            }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    for name in OTHER_FILES:
        shutil.copy2(FOLDER / name, folder / name)
    return folder


def quantization_config(result: QuantizedModel) -> dict:
    """Return what config.json says of it, as the tools that make such checkpoints write it."""
    s = result.scheme
    if s.method == "gptq":
        return {
            "quant_method": "gptq",
            "bits": s.bits,
            "group_size": s.group_size,
            "desc_act": False,
            "sym": True,
            "lm_head": False,
        }
    if s.method == "awq":
        return {
            "quant_method": "awq",
            "bits": s.bits,
            "group_size": s.group_size,
            "zero_point": True,
            "version": "gemm",
        }
    if s.method in ("fp8", "int8"):
        kind = "float" if s.method == "fp8" else "int"
        number = {"num_bits": 8, "type": kind, "symmetric": True}
        group = {
            "targets": ["Linear"],
            "weights": {**number, "strategy": "channel", "dynamic": False},
            "input_activations": {**number, "strategy": "token", "dynamic": True},
        }
        form = f"{kind}-quantized"
    else:
        rows = (
            {"strategy": "channel"}
            if s.group_size == -1
            else {"strategy": "group", "group_size": s.group_size}
        )
        group = {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False, **rows},
        }
        form = "pack-quantized"
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def packed(part: Quantized, method: str) -> dict[str, torch.Tensor]:
    """Return one Linear's tensors under the names of its format."""
    scales = torch.from_numpy(np.ascontiguousarray(part.scales))
    if method in ("fp8", "int8"):
        kind = torch.float8_e4m3fn if method == "fp8" else torch.int8
        weight = torch.from_numpy(np.ascontiguousarray(part.codes)).to(kind)
        return {"weight": weight, "weight_scale": scales.to(torch.bfloat16)}
    if method == "gptq":  # codes go down the inputs; a zero point is stored less one
        groups, outputs = part.scales.shape[1], part.scales.shape[0]
        return {
            "qweight": nibbles(part.codes.T + 8, axis=0),
            "scales": scales.T.to(torch.float16),
            "qzeros": nibbles(np.full((groups, outputs), 7), axis=1),
            "g_idx": torch.arange(part.codes.shape[1], dtype=torch.int32) // part.group_size,
        }
    if method == "awq":  # codes go along the outputs
        return {
            "qweight": nibbles(part.codes.T, axis=1, order=AWQ_ORDER),
            "scales": scales.T.to(torch.float16),
            "qzeros": nibbles(part.zeros.T, axis=1, order=AWQ_ORDER),
        }
    return {
        "weight_packed": nibbles(part.codes + 8, axis=1),
        "weight_scale": scales.to(torch.bfloat16),
        "weight_shape": torch.tensor(part.codes.shape),
    }


def nibbles(codes: np.ndarray, axis: int, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Pack eight codes from 0 to 15 along an axis into one int32; order[n] is the code in nibble n, least first."""
    eights = (
        np.moveaxis(codes, axis, -1).astype(np.uint32).reshape(*np.delete(codes.shape, axis), -1, 8)
    )
    packed_codes = sum(eights[..., place] << np.uint32(4 * n) for n, place in enumerate(order))
    return torch.from_numpy(
        np.ascontiguousarray(np.moveaxis(packed_codes, -1, axis)).astype(np.uint32).view(np.int32)
    )
