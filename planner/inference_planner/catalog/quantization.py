"""Read `quantization_config`, or vLLM's `--quantization` names, as one Quantization."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inference_planner.catalog.config import Quantization
from inference_planner.catalog.fields import Fields, nearest
from inference_planner.errors import BadInput
from inference_planner.files import as_object

# What `--quantization` may say, with the layout that the usual checkpoint of that name has.
METHODS = {
    "fp8": Quantization("fp8", 8, activation_bits=8, online=True),
    "fbgemm_fp8": Quantization("fbgemm_fp8", 8, group_size=0, activation_bits=8),
    "modelopt": Quantization("modelopt", 8, activation_bits=8),
    "compressed-tensors": Quantization("compressed-tensors", 8, group_size=0, activation_bits=8),
    "experts_int8": Quantization("experts_int8", 8, group_size=0, experts_only=True, online=True),
    "awq": Quantization("awq", 4, group_size=128, zero_points=True),
    "awq_marlin": Quantization("awq_marlin", 4, group_size=128, zero_points=True),
    "gptq": Quantization("gptq", 4, group_size=128),
    "gptq_marlin": Quantization("gptq_marlin", 4, group_size=128),
    "mxfp4": Quantization("mxfp4", 4, group_size=32, experts_only=True),
    "modelopt_fp4": Quantization("modelopt_fp4", 4, group_size=16, scale_bytes=1),
    "mxfp8": Quantization("mxfp8", 8, group_size=32, scale_bytes=1, activation_bits=8, online=True),
    "fp8_per_tensor": Quantization("fp8", 8, activation_bits=8, online=True),
    "fp8_per_channel": Quantization("fp8", 8, group_size=0, activation_bits=8, online=True),
    "fp8_per_block": Quantization("fp8", 8, block=(128, 128), activation_bits=8, online=True),
    "int8_per_channel_weight_only": Quantization("int8", 8, group_size=0, online=True),
    "inc": Quantization("auto-round", 4, group_size=128),
    "torchao": Quantization("torchao", 8, group_size=0),
    "quark": Quantization("quark", 8, activation_bits=8),
}
EIGHT = 8  # bits
# names of vLLM for what another entry has
SAME = {
    "auto_gptq": "gptq",
    "auto_awq": "awq",
    "moe_wna16": "gptq",
    "modelopt_mxfp8": "mxfp8",
    "modelopt_mixed": "modelopt_fp4",
    "gpt_oss_mxfp4": "mxfp4",
    "auto-round": "inc",
    "auto_round": "inc",
    "intel/auto_round": "inc",
    "compressed_tensors": "compressed-tensors",
}
# Formats that vLLM reads with a package of its own: bitsandbytes since 0.28.0 (pull request 43529),
# GGUF (39612).
PLUGINS = {"bitsandbytes": "vllm-bnb-plugin", "gguf": "vllm-gguf-plugin"}
# 4 bits in blocks of 64 with a scale in 32 bits: NF4, as it is made while loading
BITSANDBYTES = Quantization("bitsandbytes", 4, group_size=64, scale_bytes=4, online=True)
# Formats that older releases had, and 0.32.0 has not (model_executor/layers/quantization).
REMOVED = (
    "aqlm",
    "hqq",
    "marlin",
    "gptq_marlin_24",
    "squeezellm",
    "qqq",
    "deepspeedfp",
    "eetq",
    "exl2",
    "tpu_int8",
    "ptpc_fp8",
    "petit_nvfp4",
    "rtn",
    "ipex",
    "neuron_quant",
    "bitblas",
    "gptq_bitblas",
)
# the language model's layers, as checkpoints of multimodal and hybrid models name them (a dot may
# be escaped)
LAYERS = re.compile(
    r"\b(model\\?\.language_model|language_model\\?\.model|backbone)(?=\\?\.layers)"
)


def from_name(name: str) -> Quantization:
    """Return the layout that `--quantization NAME` means for a 16-bit checkpoint.

    fp8 and experts_int8 can be made by vLLM while loading; the others need a checkpoint, whose
    usual layout is taken.
    """
    name = SAME.get(name, name)
    check_readable(name, f"--quantization {name}:")
    if name == "bitsandbytes":
        return replace(BITSANDBYTES, from_flag=True)
    if name not in METHODS:
        remedy = f"{nearest(name, {n: n for n in METHODS})}Choose from: {', '.join(METHODS)}."
        raise BadInput(f"quantization {name!r} is not known.", remedy)
    return replace(METHODS[name], from_flag=True)


def canonical(name: str) -> str:
    """Return a method's name as --quantization takes it: inc for auto-round, with a hyphen."""
    other = SAME.get(name, name)
    if other in ("inc", "compressed-tensors"):
        return other
    return name


def check_readable(method: str, where: str) -> None:
    """Raise BadInput for a format that vLLM no longer has, or that a plan cannot size.

    Args:
        where: how the sentence begins: the file or the flag that names the format.
    """
    method = method.replace("-", "_")
    if method in REMOVED:
        raise BadInput(
            f"{where} vLLM 0.32.0 no longer reads {method} weights.",
            "Give the same model in awq, gptq, fp8 or compressed-tensors.",
        )
    if method == "gguf":
        raise BadInput(
            f"{where} GGUF files hold layers of several formats, which a plan cannot size.",
            "Plan the model that they were made from, with --quantization awq for about 4 bits. "
            f"vLLM reads GGUF with the package {PLUGINS['gguf']} only.",
        )


def check_stored(quantization: Quantization, name: str) -> None:
    """Raise BadInput where `--quantization NAME` contradicts the checkpoint.

    Source: vLLM 0.32.0, config/model.py _verify_quantization; ModelOpt's and gpt-oss's override
    what is asked for.
    """
    flag_method = from_name(name).method.removesuffix("_marlin")
    stored = quantization.method.removesuffix("_marlin")
    if flag_method != stored and not stored.startswith(("modelopt", "mxfp4")):
        problem = (
            f"The checkpoint is quantized with {quantization.method}, and vLLM "
            f"refuses --quantization {name} for it."
        )
        remedy = "Leave --quantization out, or give a checkpoint that is not quantized."
        raise BadInput(problem, remedy)


def from_config(fields: Fields) -> Quantization:
    """Read `quantization_config` or `compression_config` as changes of the method's usual layout.

    Raises BadInput for a method that is not known.
    """
    # ModelOpt's hf_quant_config.json
    default_method = ""
    if fields.object("quantization").has("quant_algo"):
        default_method = "modelopt"
    method = fields.text("quant_method", default_method).lower().replace("_", "-")
    alias = SAME.get(method.replace("-", "_"), method)
    method = alias.replace("_", "-")
    check_readable(method, f"{fields.where}:")
    # None only for a method that is refused below
    usual: Any = METHODS.get(method.replace("-", "_")) or METHODS.get(method)
    ignore = _ignored(fields, "modules_to_not_convert", "ignored_layers", "ignore")
    if method == "fp8":
        online = not fields.flag("is_checkpoint_fp8_serialized", True)
        return replace(
            usual, block=_block(fields, "weight_block_size"), ignore=ignore, online=online
        )
    if method in ("fbgemm-fp8", "mxfp4"):
        return replace(usual, ignore=ignore)
    if method in ("awq", "gptq", "awq-marlin", "gptq-marlin"):
        return _awq_or_gptq(fields, METHODS[method.split("-")[0]], ignore)
    if method == "compressed-tensors":
        return _compressed_tensors(fields, ignore)
    if method == "modelopt":
        return _modelopt(fields, usual, ignore)
    if method == "modelopt-fp4":
        return replace(usual, ignore=_ignored(fields, "exclude_modules", "ignore"))
    if method == "mxfp8":
        return replace(usual, ignore=ignore, online=False)
    if method in OTHERS:
        return OTHERS[method](fields)
    remedy = (
        "It has them for fp8, mxfp8, fbgemm_fp8, compressed-tensors, modelopt, awq, gptq, "
        "auto-round, torchao, quark, bitsandbytes and mxfp4."
    )
    raise BadInput(
        f"{fields.where}: the plan has no formulas for {fields.inside}quant_method {method[:40]!r}.",
        remedy,
    )


def _awq_or_gptq(fields: Fields, usual: Quantization, ignore: tuple[str, ...]) -> Quantization:
    """Read what AWQ or GPTQ has written: the bits and the rows that share a scale."""
    name = "q_group_size"
    if fields.has("group_size"):
        name = "group_size"
    group_size = fields.int(name, 128, least=-1)
    return replace(
        usual,
        weight_bits=fields.first_int("bits", "w_bit", default=4),
        ignore=ignore,
        group_size=max(0, group_size),  # -1: one scale a row
        zero_points=usual.zero_points and fields.flag("zero_point", True),
    )


def _modelopt(fields: Fields, usual: Quantization, ignore: tuple[str, ...]) -> Quantization:
    """Read what NVIDIA's ModelOpt has written: FP8, NVFP4, or some modules in each of them."""
    inner = fields
    if fields.has("quantization"):
        inner = fields.object("quantization")
    ignore = _ignored(inner, "exclude_modules") or ignore
    scheme = as_object(inner.raw.get("kv_cache_scheme")) or {}
    kv_cache_dtype = "auto"
    if scheme.get("num_bits") == 8 or inner.text("kv_cache_quant_algo", "") == "FP8":
        kv_cache_dtype = "fp8"
    groups_of_bits: dict[int, Fields] = {}
    for group in _config_groups(fields):
        bits = group.object("weights").int("num_bits", 8)
        groups_of_bits[bits] = group
    algorithm = inner.text("quant_algo", "").upper()
    if "NVFP4" not in algorithm and not (algorithm == "MIXED_PRECISION" and 4 in groups_of_bits):
        return replace(usual, ignore=ignore, kv_cache_dtype=kv_cache_dtype)
    return Quantization(
        "modelopt_fp4",
        4,
        group_size=16,
        scale_bytes=1,
        eight=_targets(groups_of_bits.get(8)),
        head="lm_head" in _targets(groups_of_bits.get(4)),
        ignore=ignore,
        kv_cache_dtype=kv_cache_dtype,
    )


def _config_groups(fields: Fields) -> list[Fields]:
    """Return the entries of `config_groups`."""
    groups = fields.object("config_groups")
    return [groups.object(name) for name in groups.raw]


def _targets(group: Fields | None) -> tuple[str, ...]:
    """Return the modules that a group of `config_groups` quantizes."""
    if group is None:
        return ()
    return _ignored(group, "targets")


def _ignored(fields: Fields, *names: str) -> tuple[str, ...]:
    """Return the first list of modules that stay in 16 bit.

    Raises BadInput for a pattern that is no regular expression.
    """
    name = next((candidate for candidate in names if fields.raw.get(candidate)), names[0])
    patterns = fields.list(name, str)
    for pattern in patterns:
        if pattern.startswith("re:"):
            try:
                re.compile(pattern[3:])
            except (re.error, RecursionError, OverflowError):
                fields.is_not(name, pattern, "a regular expression")
    return tuple(LAYERS.sub("model", pattern) for pattern in patterns)


def _block(fields: Fields, name: str) -> tuple[int, int] | None:
    """Return the rows and columns that share one scale; None if the field is missing."""
    sizes = fields.list(name, int)
    if sizes and (len(sizes) != 2 or min(sizes) < 1):
        fields.is_not(name, sizes, "rows and columns")
    if not sizes:
        return None
    return sizes[0], sizes[1]


def _compressed_tensors(fields: Fields, ignore: tuple[str, ...]) -> Quantization:
    groups = _config_groups(fields)
    weights: Fields | None = None
    for group in groups:
        if group.raw.get("weights"):
            weights = group.object("weights")
            break
    if not weights or not weights.has("num_bits"):
        fields.refuse("config_groups", "names no weights with num_bits")
    activations = groups[0].object("input_activations")
    strategy = weights.text("strategy", "channel")
    stored_group_size = max(0, weights.int("group_size", 0, least=-1))
    group_size = {"tensor": -1, "channel": 0}.get(strategy, stored_group_size)
    kv_cache = fields.object("kv_cache_scheme")
    weight_bits = weights.int("num_bits")
    block = None
    if strategy == "block":
        block = _block(weights, "block_structure")
    activation_bits = activations.int("num_bits", 16)
    zero_points = not weights.flag("symmetric", True)
    is_float = weights.text("type", "int") == "float"
    # Of NVFP4, MXFP4 and MXFP8 (schemes/compressed_tensors_w4a4_nvfp4.py, vLLM 0.32.0).
    scale_bytes = 1 if is_float and group_size > 0 else 0
    kv_cache_dtype = "auto"
    if kv_cache.int("num_bits", 16) == 8:
        kv_cache_dtype = "fp8"
    return Quantization(
        "compressed-tensors",
        weight_bits,
        group_size=group_size,
        ignore=ignore,
        block=block,
        scale_bytes=scale_bytes,
        activation_bits=activation_bits,
        integers=weight_bits == activation_bits == EIGHT and not is_float,
        zero_points=zero_points,
        kv_cache_dtype=kv_cache_dtype,
    )


def _bitsandbytes(fields: Fields) -> Quantization:
    """Read bitsandbytes: 4 bits in blocks of 64, or 8 bits with one scale a row."""
    ignore = _ignored(fields, "llm_int8_skip_modules")
    if fields.flag("load_in_8bit") and not fields.flag("load_in_4bit"):
        return Quantization("bitsandbytes", 8, group_size=0, ignore=ignore)
    return replace(BITSANDBYTES, ignore=ignore, online=False)


def _auto_round(fields: Fields) -> Quantization:
    """Read Intel's AutoRound, which vLLM packs as GPTQ or AWQ. Source: layers/quantization/inc."""
    group_size = fields.int("group_size", 128, least=-1)
    ignore: list[str] = []
    layers = fields.object("extra_config")
    for name in layers.raw:
        if layers.object(name).int("bits", 4) >= 16:
            ignore.append(name)
    listed = {"names": ignore}
    scale_bytes = 0
    if "fp" in fields.text("data_type", "int") and group_size > 0:
        scale_bytes = 1
    return Quantization(
        "auto-round",
        fields.int("bits", 4),
        group_size=max(0, group_size),
        scale_bytes=scale_bytes,
        zero_points=not fields.flag("sym", True),
        ignore=_ignored(Fields(listed, fields.where, fields.inside), "names"),
    )


# torchao's classes -> bits of a weight, and of an activation
TORCHAO = {
    "int4weightonly": (4, 16),
    "int8weightonly": (8, 16),
    "float8weightonly": (8, 16),
    "int8dynamicactivationint8weight": (8, 8),
    "float8dynamicactivationfloat8weight": (8, 8),
    "float8staticactivationfloat8weight": (8, 8),
    "int8dynamicactivationint4weight": (4, 8),
    "int8dynamicactivationintxweight": (4, 8),
    "float8dynamicactivationint4weight": (4, 8),
    "intxweightonly": (4, 16),
}


def _torchao(fields: Fields) -> Quantization:
    """Read PyTorch's own quantization, whose class names the format.

    Source: layers/quantization/torchao.py.
    """
    kind = fields.object("quant_type").object("default")
    name = kind.text("_type", "")
    data = kind.object("_data")
    if name in ("ModuleFqnToConfig", "FqnToConfig"):
        modules_name = "fqn_to_config"
        if name == "ModuleFqnToConfig":
            modules_name = "module_fqn_to_config"
        modules = data.object(modules_name)
        kind = modules.object("_default")
        name = kind.text("_type", "")
        data = kind.object("_data")
    plain_name = name.lower().removesuffix("config").replace("_", "")
    if plain_name not in TORCHAO:
        fields.refuse("quant_type", f"is {name[:60]!r}, of which the plan does not know the bits")
    weight_bits, activation_bits = TORCHAO[plain_name]
    group_size = 0
    if weight_bits == 4:
        group_size = data.positive("group_size", default=128)
    return Quantization(
        "torchao",
        weight_bits,
        group_size=group_size,
        zero_points=plain_name == "int4weightonly",
        activation_bits=activation_bits,
        ignore=_ignored(fields, "modules_to_not_convert"),
    )


# Quark's dtypes -> bits
QUARK = {"fp8": 8, "int8": 8, "uint8": 8, "int4": 4, "uint4": 4, "fp4": 4, "fp6": 6}


def _quark(fields: Fields) -> Quantization:
    """Read AMD's Quark: one format for all layers but those excluded.

    Source: layers/quantization/quark.
    """
    usual = fields.object("global_quant_config")
    weight = usual.object("weight")
    inputs = usual.object("input_tensors")
    weight_bits = _quark_bits(weight)
    if not weight_bits:
        fields.refuse("global_quant_config", "names no weight with a dtype of 4, 6 or 8 bits")
    groups = {"per_tensor": -1, "per_channel": 0}
    stored = weight.positive("group_size", default=32)
    scale_bytes = 0
    if weight.text("dtype", "").startswith(("fp4", "fp6")):
        scale_bytes = 1
    kv_cache_dtype = "auto"
    if fields.object("export").raw.get("kv_cache_group"):
        kv_cache_dtype = "fp8"
    return Quantization(
        "quark",
        weight_bits,
        group_size=groups.get(weight.text("qscheme", ""), stored),
        scale_bytes=scale_bytes,
        activation_bits=_quark_bits(inputs) or 16,
        integers="int8" in weight.text("dtype", "") and _quark_bits(inputs) == EIGHT,
        ignore=_ignored(fields, "exclude"),
        kv_cache_dtype=kv_cache_dtype,
    )


def _quark_bits(tensor: Fields) -> int:
    """Return the bits of one element; 0 for a tensor that is not quantized."""
    dtype = tensor.text("dtype", "")
    for name, bits in QUARK.items():
        if dtype.startswith(name):
            return bits
    return 0


OTHERS: dict[str, Callable[[Fields], Quantization]] = {
    "bitsandbytes": _bitsandbytes,
    "inc": _auto_round,
    "torchao": _torchao,
    "quark": _quark,
}
