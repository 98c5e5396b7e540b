"""`quantization_config` of config.json, and vLLM's `--quantization` names, as one Quantization."""

from __future__ import annotations

from collections.abc import Mapping

from workshop.errors import BadInput
from workshop.plan.catalog.config import Quantization

# What `--quantization` may say, with the layout that the usual checkpoint of that name has.
METHODS = {
    "fp8": Quantization("fp8", 8, activation_bits=8),
    "fbgemm_fp8": Quantization("fbgemm_fp8", 8, group_size=0, activation_bits=8),
    "modelopt": Quantization("modelopt", 8, static_activations=True, activation_bits=8),
    "compressed-tensors": Quantization("compressed-tensors", 8, group_size=0, activation_bits=8),
    "experts_int8": Quantization("experts_int8", 8, group_size=0, experts_only=True, online=True),
    "awq": Quantization("awq", 4, group_size=128, zero_points=True),
    "awq_marlin": Quantization("awq_marlin", 4, group_size=128, zero_points=True),
    "gptq": Quantization("gptq", 4, group_size=128),
    "gptq_marlin": Quantization("gptq_marlin", 4, group_size=128),
    "mxfp4": Quantization("mxfp4", 4, group_size=32, experts_only=True),
    "bitsandbytes": Quantization("bitsandbytes", 4, group_size=64),
}


def from_name(name: str) -> Quantization:
    """Return the layout that `--quantization NAME` means for a 16-bit checkpoint.

    fp8 and experts_int8 can be made by vLLM while loading; the others need a checkpoint, whose usual layout is taken.
    """
    if name not in METHODS:
        import difflib
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"Nearest: {near[0]}. " if near else ""
        raise BadInput(f"quantization {name!r} is not known.", f"{hint}Choose from: {', '.join(METHODS)}.")
    method = METHODS[name]
    if name == "fp8":
        return Quantization("fp8", 8, activation_bits=8, online=True)
    return method


def from_config(raw: Mapping, where: str) -> Quantization:
    """Read `quantization_config` (or `compression_config`); a method that is not known is refused by name."""
    method = str(raw.get("quant_method", "")).lower().replace("_", "-")
    ignore = tuple(raw.get("modules_to_not_convert") or raw.get("ignored_layers") or raw.get("ignore") or ())
    if method == "fp8":
        block = raw.get("weight_block_size")
        return Quantization("fp8", 8, block=tuple(block) if block else None, ignore=ignore, activation_bits=8,
                            static_activations=raw.get("activation_scheme") == "static",
                            online=raw.get("is_checkpoint_fp8_serialized") is False)
    if method == "fbgemm-fp8":
        return Quantization("fbgemm_fp8", 8, group_size=0, ignore=ignore, activation_bits=8)
    if method in ("awq", "gptq", "awq-marlin", "gptq-marlin"):
        name = method.split("-")[0]
        return Quantization(name, int(raw.get("bits") or raw.get("w_bit") or 4), ignore=ignore,
                            group_size=int(raw.get("group_size") or raw.get("q_group_size") or 128),
                            zero_points=name == "awq" and raw.get("zero_point", True))
    if method == "mxfp4":
        return Quantization("mxfp4", 4, group_size=32, ignore=ignore, experts_only=True)
    if method == "bitsandbytes":
        bits = 4 if raw.get("load_in_4bit") or raw.get("_load_in_4bit") else 8
        return Quantization("bitsandbytes", bits, group_size=64, ignore=ignore)
    if method == "compressed-tensors":
        return _compressed_tensors(raw, ignore, where)
    if method == "modelopt":
        inner = raw.get("quantization") or raw
        if "NVFP4" in str(inner.get("quant_algo", "")).upper():
            return Quantization("modelopt_fp4", 4, group_size=16, ignore=tuple(inner.get("exclude_modules") or ignore))
        return Quantization("modelopt", 8, ignore=tuple(inner.get("exclude_modules") or ignore), activation_bits=8,
                            static_activations=True)
    raise BadInput(f"{where}: quantization_config.quant_method {raw.get('quant_method')!r} is not known.",
                   "Known: fp8, fbgemm_fp8, compressed-tensors, modelopt, awq, gptq, mxfp4, bitsandbytes.")


def _compressed_tensors(raw: Mapping, ignore: tuple[str, ...], where: str) -> Quantization:
    groups = raw.get("config_groups") or {}
    weights = next((g["weights"] for g in groups.values() if g.get("weights")), None)
    if not weights or not weights.get("num_bits"):
        raise BadInput(f"{where}: quantization_config.config_groups names no weights with num_bits.",
                       "Give the config.json as the model's authors published it.")
    acts = next((g.get("input_activations") for g in groups.values()), None) or {}
    strategy = weights.get("strategy", "channel")
    block = tuple(weights["block_structure"]) if strategy == "block" and weights.get("block_structure") else None
    group = {"tensor": -1, "channel": 0}.get(strategy, int(weights.get("group_size") or 0))
    kv = raw.get("kv_cache_scheme") or {}
    return Quantization("compressed-tensors", int(weights["num_bits"]), group_size=group, block=block, ignore=ignore,
                        static_activations=bool(acts) and not acts.get("dynamic", False),
                        activation_bits=int(acts.get("num_bits", 16)) if acts else 16,
                        zero_points=not weights.get("symmetric", True),
                        kv_cache_dtype="fp8" if kv.get("num_bits") == 8 else "auto")
