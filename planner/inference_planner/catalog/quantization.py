"""Read `quantization_config` of config.json, or vLLM's `--quantization` names, as one Quantization."""

# q the fields of a quantization_config
import re
from dataclasses import replace
from typing import Any

from inference_planner.catalog.config import Quantization
from inference_planner.catalog.fields import Fields, nearest
from inference_planner.errors import BadInput
from inference_planner.json_values import as_object
from inference_planner.module_patterns import LONGEST_PATTERN, is_searchable

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
}
# the language model's layers, as checkpoints of multimodal and hybrid models name them (a dot may be escaped)
LAYERS = re.compile(
    r"\b(model\\?\.language_model|language_model\\?\.model|backbone)(?=\\?\.layers)"
)


def from_name(name: str) -> Quantization:
    """Return the layout that `--quantization NAME` means for a 16-bit checkpoint.

    fp8 and experts_int8 can be made by vLLM while loading; the others need a checkpoint, whose usual layout is taken.
    """
    if name not in METHODS:
        remedy = f"{nearest(name, {n: n for n in METHODS})}Choose from: {', '.join(METHODS)}."
        raise BadInput(f"quantization {name!r} is not known.", remedy)
    return replace(METHODS[name], asked=True)


def check_stored(q: Quantization, name: str) -> None:
    """Raise BadInput where a checkpoint is quantized in another way than `--quantization NAME` says.

    Source: vLLM 0.32.0, config/model.py _verify_quantization; ModelOpt's and gpt-oss's override what is asked for.
    """
    wanted = from_name(name).method.removesuffix("_marlin")
    stored = q.method.removesuffix("_marlin")
    if wanted != stored and not stored.startswith(("modelopt", "mxfp4")):
        problem = f"The checkpoint is quantized with {q.method}, and vLLM refuses --quantization {name} for it."
        remedy = "Leave --quantization out, or give a checkpoint that is not quantized."
        raise BadInput(problem, remedy)


def from_config(q: Fields) -> Quantization:
    """Read `quantization_config` (or `compression_config`): what it says beside the method's usual layout.

    Raises BadInput for a method that is not known.
    """
    # ModelOpt's hf_quant_config.json
    legacy = "modelopt" if q.object("quantization").has("quant_algo") else ""
    method = q.text("quant_method", legacy).lower().replace("_", "-")
    # None only for a method that is refused below
    usual: Any = METHODS.get(method.replace("-", "_"))
    ignore = _ignored(q, "modules_to_not_convert", "ignored_layers", "ignore")
    if method == "fp8":
        online = not q.flag("is_checkpoint_fp8_serialized", True)
        return replace(usual, block=_block(q, "weight_block_size"), ignore=ignore, online=online)
    if method in ("fbgemm-fp8", "mxfp4"):
        return replace(usual, ignore=ignore)
    if method in ("awq", "gptq", "awq-marlin", "gptq-marlin"):
        name = "group_size" if q.has("group_size") else "q_group_size"
        group_size = q.int(name, 128, least=-1)
        return replace(
            METHODS[method.split("-")[0]],
            weight_bits=q.first_int("bits", "w_bit", default=4),
            ignore=ignore,
            group_size=max(0, group_size),  # -1: one scale a row
            zero_points=usual.zero_points and q.flag("zero_point", True),
        )
    if method == "compressed-tensors":
        return _compressed_tensors(q, ignore)
    if method == "modelopt":
        inner = q.object("quantization") if q.has("quantization") else q
        ignore = _ignored(inner, "exclude_modules") or ignore
        scheme = as_object(inner.raw.get("kv_cache_scheme")) or {}
        of_8_bits = scheme.get("num_bits") == 8
        kv = "fp8" if of_8_bits or inner.text("kv_cache_quant_algo", "") == "FP8" else "auto"
        more: dict[str, Any] = {"ignore": ignore, "kv_cache_dtype": kv}
        algorithm = inner.text("quant_algo", "").upper()
        groups_of_bits: dict[int, Fields] = {}
        for group in _config_groups(q):
            bits = group.object("weights").int("num_bits", 8)
            groups_of_bits[bits] = group
        if "NVFP4" in algorithm or (algorithm == "MIXED_PRECISION" and 4 in groups_of_bits):
            modules_of_4_bits = _targets(groups_of_bits.get(4))
            modules_of_8_bits = _targets(groups_of_bits.get(8))
            return Quantization(
                "modelopt_fp4",
                4,
                group_size=16,
                eight=modules_of_8_bits,
                head="lm_head" in modules_of_4_bits,
                **more,
            )
        return replace(usual, **more)
    remedy = "It has them for fp8, fbgemm_fp8, compressed-tensors, modelopt, awq, gptq and mxfp4."
    raise BadInput(
        f"{q.where}: the plan has no formulas for {q.inside}quant_method {method[:40]!r}.", remedy
    )


def _config_groups(q: Fields) -> list[Fields]:
    """Return the entries of `config_groups`."""
    groups = q.object("config_groups")
    return [groups.object(name) for name in groups.raw]


def _targets(group: Fields | None) -> tuple[str, ...]:
    """Return the modules that a group of `config_groups` quantizes."""
    if group is None:
        return ()
    return _ignored(group, "targets")


def _ignored(q: Fields, *names: str) -> tuple[str, ...]:
    """Return the first list of modules that stay in 16 bit; patterns that search for hours are refused."""
    name = next((name for name in names if q.raw.get(name)), names[0])
    patterns = q.list(name, str)
    for pattern in patterns:
        if len(pattern) > LONGEST_PATTERN:
            q.is_not(name, pattern, f"a name or pattern of at most {LONGEST_PATTERN:,} characters")
        if pattern.startswith("re:") and not is_searchable(pattern[3:]):
            q.is_not(name, pattern, "an expression with few repetitions, none in another")
    return tuple(LAYERS.sub("model", pattern) for pattern in patterns)


def _block(q: Fields, name: str) -> tuple[int, int] | None:
    """Return the rows and columns that share one scale; None if the field is missing."""
    sizes = q.list(name, int)
    if sizes and (len(sizes) != 2 or min(sizes) < 1):
        q.is_not(name, sizes, "rows and columns")
    return (sizes[0], sizes[1]) if sizes else None


def _compressed_tensors(q: Fields, ignore: tuple[str, ...]) -> Quantization:
    groups = _config_groups(q)
    weights = next((group.object("weights") for group in groups if group.raw.get("weights")), None)
    if not weights or not weights.has("num_bits"):
        q.refuse("config_groups", "names no weights with num_bits")
    activations = groups[0].object("input_activations")
    strategy = weights.text("strategy", "channel")
    stored_group_size = max(0, weights.int("group_size", 0, least=-1))
    group_size = {"tensor": -1, "channel": 0}.get(strategy, stored_group_size)
    kv_cache = q.object("kv_cache_scheme")
    return Quantization(
        "compressed-tensors",
        weights.int("num_bits"),
        group_size=group_size,
        ignore=ignore,
        block=_block(weights, "block_structure") if strategy == "block" else None,
        activation_bits=activations.int("num_bits", 16),
        zero_points=not weights.flag("symmetric", True),
        kv_cache_dtype="fp8" if kv_cache.int("num_bits", 16) == 8 else "auto",
    )
