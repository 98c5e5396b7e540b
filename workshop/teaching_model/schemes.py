"""Quantize the whole teaching model with one scheme of a list, and count the bytes of the checkpoint.

result = schemes.quantize(reference.load(), "int4-awq", schemes.calibrate(reference.load()))
reference.perplexity(result.model, schemes.text("glosses"))
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from workshop.errors import BadInput
from workshop.teaching_model import quantize as q
from workshop.teaching_model.reference import LINEAR, Llama, Through, to_bfloat16

TEXT = Path(str(files("workshop"))) / "data" / "quantization" / "text.npz"
"""Token ids: glosses and prose (held out), known (learned by heart), calibration, and the listed prompts."""
SAME_INPUT = {
    "self_attn.k_proj": "self_attn.q_proj",
    "self_attn.v_proj": "self_attn.q_proj",
    "mlp.up_proj": "mlp.gate_proj",
}
ROWS = {"fp8": q.float8_rows, "int8": q.int8_rows}  # 8 bits, one scale a row
SEQUENCES_AT_ONCE = 4  # through the model, of the calibration text
GROUP = 64  # 128, the usual one, divides 1152 inputs but not 448


@dataclass(frozen=True)
class Scheme:
    """The storage of weights, activations and the KV cache.

    method: none, fp8, int8, rtn, gptq or awq.
    """

    method: str = "none"
    bits: int = 16
    group_size: int = -1
    activations: str = ""  # "", fp8, int8: rounded before every Linear, one scale a token
    kv_cache: str = ""  # "", fp8: E4M3 with scale 1, as vLLM keeps it without calibration
    description: str = ""
    symmetric: bool = True


SCHEMES = {
    "bf16": Scheme(description="as published"),
    "fp8": Scheme(
        "fp8", 8, activations="fp8", description="FP8 W8A8: 8-bit floats, a scale a row and a token"
    ),
    "int8": Scheme(
        "int8",
        8,
        activations="int8",
        description="INT8 W8A8: whole numbers, a scale a row and a token",
    ),
    "fp8-kv": Scheme(kv_cache="fp8", description="FP8 KV cache, weights as published"),
    "int4-rtn": Scheme("rtn", 4, GROUP, description="INT4 W4A16, rounded to nearest"),
    "int4-gptq": Scheme("gptq", 4, GROUP, description="INT4 W4A16, GPTQ"),
    "int4-awq": Scheme(
        "awq", 4, GROUP, symmetric=False, description="INT4 W4A16, AWQ: with zero points"
    ),
    "int4-rtn-row": Scheme(
        "rtn", 4, -1, description="INT4, rounded to nearest, one scale a row instead of 64 inputs"
    ),
    "int3-rtn": Scheme("rtn", 3, GROUP, description="INT3, rounded to nearest"),
    "int3-gptq": Scheme("gptq", 3, GROUP, description="INT3, GPTQ"),
    "int2-rtn": Scheme("rtn", 2, GROUP, description="INT2, rounded to nearest"),
}


@dataclass(frozen=True)
class Inputs:
    """Statistics of a Linear's inputs from calibration. hessian: mean of x xᵀ; size: mean of |x|; both over tokens."""

    hessian: np.ndarray
    size: np.ndarray


@dataclass(frozen=True)
class QuantizedModel:
    """A quantized model, and what its checkpoint stores."""

    scheme: Scheme
    model: Llama  # computes with what the codes stand for, and rounds activations and KV cache as the scheme says
    parts: dict[str, q.Quantized]  # each quantized Linear's codes and scales
    stored_bytes: int  # of the checkpoint's tensors


@lru_cache(maxsize=8)
def text(name: str) -> np.ndarray:
    """Return token ids [sequences, 256] of glosses, prose, known or calibration.

    Raises BadInput: there is no such text.
    """
    with np.load(TEXT) as arrays:
        if name not in arrays:
            raise BadInput(f"There is no text {name!r}.", f"Choose from: {', '.join(arrays)}.")
        return arrays[name].astype(np.int64)


def prompts() -> list[list[int]]:
    """Return the token ids of the prompts in prompts.json, in its order."""
    lengths = text("prompt_lengths")
    return [ids[:length].tolist() for ids, length in zip(text("prompts"), lengths, strict=True)]


def calibrate(model: Llama, ids: np.ndarray | None = None) -> dict[str, Inputs]:
    """Run the model over calibration text once, and return the statistics of each Linear's inputs."""
    if ids is None:
        ids = text("calibration")
    sums: dict[str, list[np.ndarray]] = {}

    def watch(name: str, x: np.ndarray) -> np.ndarray:
        if not name.endswith("_cache") and name == _first_reader(name):
            flat = x.reshape(-1, x.shape[-1])
            width = x.shape[-1]
            totals = sums.setdefault(name, [np.zeros((width, width)), np.zeros(width)])
            totals[0] += flat.T @ flat
            totals[1] += np.abs(flat).sum(0)
        return x

    watched = Llama(model.weights, model.config, watch)
    for start in range(0, len(ids), SEQUENCES_AT_ONCE):
        watched.hidden(ids[start : start + SEQUENCES_AT_ONCE])
    inputs = {}
    for name in model.linear_names():
        hessian, size = sums[_first_reader(name)]
        inputs[name] = Inputs(hessian / ids.size, size / ids.size)
    return inputs


def _first_reader(name: str) -> str:
    """Return the first of the Linears that read the same input as this one: "….mlp.gate_proj" for "….mlp.up_proj"."""
    *layer, part = name.split(".", 3)
    return ".".join([*layer, SAME_INPUT.get(part, part)])


def quantize(
    model: Llama, scheme: str | Scheme, inputs: dict[str, Inputs] | None = None
) -> QuantizedModel:
    """Return the model with its Linears quantized. Embeddings and norms stay as they are, as in vLLM.

    Raises BadInput: an unknown scheme, a group that does not divide, or GPTQ and AWQ without calibration.
    """
    s = scheme_of(scheme)
    if s.method in ("gptq", "awq") and inputs is None:
        message = f"{s.method} chooses its errors by the inputs, and there is no calibration."
        raise BadInput(message, "Give inputs=calibrate(model).")
    weights = dict(model.weights)
    if s.method == "awq" and inputs is not None:
        fold_awq(weights, model, inputs, s)
    parts: dict[str, q.Quantized] = {}
    if s.method != "none":
        for name in model.linear_names():
            statistics = inputs[name] if inputs else None
            part = _quantize_linear(weights[f"{name}.weight"], s, statistics)
            parts[name] = part
            weights[f"{name}.weight"] = part.dequantize()
    stored_bytes = 0
    for name, w in model.weights.items():
        part = parts.get(name.removesuffix(".weight"))
        stored_bytes += part.stored_bytes if part else 2 * w.size
    return QuantizedModel(s, Llama(weights, model.config, _through(s)), parts, stored_bytes)


def scheme_of(scheme: str | Scheme) -> Scheme:
    """Return a scheme by its name. Raises BadInput: an unknown name."""
    if isinstance(scheme, Scheme):
        return scheme
    if scheme not in SCHEMES:
        raise BadInput(
            f"The scheme {scheme!r} is not known.", f"Choose from: {', '.join(SCHEMES)}."
        )
    return SCHEMES[scheme]


def _quantize_linear(w: np.ndarray, s: Scheme, inputs: Inputs | None) -> q.Quantized:
    if s.method in ROWS:
        codes, scales = ROWS[s.method](w)
        return q.Quantized(codes, scales, zeros=None, bits=8, group_size=w.shape[1])
    if s.method == "gptq" and inputs is not None:
        return q.gptq(w, inputs.hessian, s.bits, s.group_size)
    return q.round_to_nearest(w, s.bits, s.group_size, s.symmetric)


def fold_awq(
    weights: dict[str, np.ndarray], model: Llama, inputs: dict[str, Inputs], s: Scheme
) -> None:
    """Scale the columns of each Linear up and its inputs down by the same factor, so that the model stays the same.

    q, k, v and gate, up get their inputs from a norm; down gets them from up. o_proj stays as it is, because 7 query
    heads share each output of v_proj.
    """
    for i in range(model.config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        for maker, readers in (
            ("mlp.up_proj", ["mlp.down_proj"]),
            ("input_layernorm", LINEAR[:3]),
            ("post_attention_layernorm", ["mlp.gate_proj", "mlp.up_proj"]),
        ):
            statistics = inputs[f"{at}.{readers[0]}"]
            matrices = [weights[f"{at}.{reader}.weight"] for reader in readers]
            factor, _ = q.awq_scales(
                matrices, statistics.hessian, statistics.size, s.bits, s.group_size
            )
            for reader in readers:
                weights[f"{at}.{reader}.weight"] = weights[f"{at}.{reader}.weight"] * factor
            w = weights[f"{at}.{maker}.weight"]
            divisor = factor if w.ndim == 1 else factor[:, None]
            weights[f"{at}.{maker}.weight"] = to_bfloat16(w / divisor)


def _through(s: Scheme) -> Through:
    def through(name: str, x: np.ndarray) -> np.ndarray:
        if name.endswith("_cache"):
            return q.to_e4m3(x) if s.kv_cache == "fp8" else x
        if not s.activations:
            return x
        codes, scales = ROWS[s.activations](x)
        return codes * scales

    return through


def weight_error(model: Llama, result: QuantizedModel) -> float:
    """Return ‖ΔW‖ / ‖W‖ over all Linears; NaN for AWQ, whose weights are scaled on purpose."""
    if result.scheme.method == "awq":
        return float("nan")
    squared_error = 0.0
    squared_weights = 0.0
    for name, part in result.parts.items():
        w = model.weights[f"{name}.weight"]
        squared_error += float(np.sum((part.dequantize() - w) ** 2))
        squared_weights += float(np.sum(w**2))
    return (squared_error / squared_weights) ** 0.5 if squared_weights else 0.0
