"""The command of a deployment: flags as data, of which the shell line, a script and a manifest are views."""

# d deployment, m model, s settings
import shlex

from inference_planner.catalog.config import present
from inference_planner.deployment import Deployment
from inference_planner.errors import BadInput
from inference_planner.settings import UTILIZATION, batch_defaults

# vLLM 0.32.0 loads them only if it is told to: DEPRECATED_QUANTIZATION_METHODS, model_executor/layers/quantization
DEPRECATED, ALLOWED = ("fbgemm_fp8",), "--allow-deprecated-quantization"


class Unservable(BadInput):
    """vLLM does not serve such a model, however it is split."""


def served(d: Deployment) -> str:
    """Return what `vllm serve` is given: the Hub id, or the folder of a model without one."""
    return d.model.hub_ids[0] if d.model.hub_ids else d.model.location or d.model.name


def stand_in(d: Deployment) -> str:
    """Return what stands for a checkpoint in a form that vLLM cannot make while it loads; '' where this one will do.

    Source: vLLM 0.32.0, model_loader/weight_utils.py get_quant_config ("Cannot find the config file for awq").
    """
    q = d.model.quantization
    if not d.quantization or q is None or not q.asked or q.online:
        return ""
    return f"MODEL_QUANTIZED_WITH_{q.method.upper().replace('-', '_')}"


def check_starts(d: Deployment) -> None:
    """Raise BadInput where vLLM would refuse to load the model, and Unservable where it has no class for it."""
    if d.refused:
        raise Unservable(d.refused, "Give a model whose architecture vLLM has.")
    if stand_in(d):
        remedy = "Give the Hub id or the config.json of a checkpoint that is quantised so already."
        raise BadInput(
            f"vLLM cannot make {present(d.model.quantization).method} weights while it loads {served(d)}.",
            remedy,
        )


def flags(d: Deployment) -> dict[str, str]:
    """Return the flags of `vllm serve` and their values ('' for a flag alone); what it does anyway is left out."""
    m, s = d.model, d.settings
    tokens, seqs = batch_defaults(d.gpu, "serve", s.version)
    said = {
        "--tensor-parallel-size": (d.tp, None),
        "--pipeline-parallel-size": (d.pp, 1),
        "--data-parallel-size": (d.dp, 1),
        "--decode-context-parallel-size": (d.dcp, 1),
        "--max-model-len": (s.max_model_len, m.default_model_len or m.max_position_embeddings),
        "--gpu-memory-utilization": (f"{s.gpu_memory_utilization:g}", f"{UTILIZATION:g}"),
        "--max-num-batched-tokens": (s.max_num_batched_tokens, min(tokens, seqs * s.max_model_len)),
        "--max-num-seqs": (s.max_num_seqs, min(seqs, s.max_num_batched_tokens)),
        "--dtype": (s.dtype, "auto"),
        "--kv-cache-dtype": (s.kv_cache_dtype, "auto"),
        "--quantization": (d.quantization, None),
    }
    out = {
        flag: str(value)
        for flag, (value, default) in said.items()
        if value is not None and value != default
    }
    old = bool(m.quantization) and m.quantization.method in DEPRECATED
    alone = {"--enable-expert-parallel": d.ep, "--enforce-eager": s.enforce_eager, ALLOWED: old}
    return out | {flag: "" for flag, given in alone.items() if given}


def node_flags(d: Deployment) -> dict[str, str]:
    """Return the flags that differ from node to node, as the shell says them: NODE_RANK from 0, workers --headless.

    From them vLLM finds a node's replicas, too; --data-parallel-start-rank would end the one API server for all.
    """
    if d.nodes == 1:
        return {}
    return {"--nnodes": str(d.nodes), "--node-rank": "$NODE_RANK", "--master-addr": "$HEAD_NODE"}


def words(found: dict[str, str]) -> list[str]:
    """Return flags and values as the words of a command line."""
    return [word for flag, value in found.items() for word in ((flag, value) if value else (flag,))]


def command(d: Deployment) -> str:
    """Return the `vllm serve` line; over nodes it runs on each. '' where vLLM has no class for the architecture."""
    line = ["vllm", "serve", stand_in(d) or served(d), *words(flags(d) | node_flags(d))]
    return (
        ""
        if d.refused
        else " ".join(word if word.startswith("$") else shlex.quote(word) for word in line)
    )
