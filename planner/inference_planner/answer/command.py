"""The command of a plan: flags as data, from which a line, a script or a manifest is made."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from inference_planner.catalog.config import present
from inference_planner.errors import BadInput, PlannerError
from inference_planner.model import adapters
from inference_planner.releases.moe_backends import AUTO
from inference_planner.split.deployment import Deployment
from inference_planner.split.settings import batch_defaults

if TYPE_CHECKING:
    from inference_planner.answer.plan_result import Plan

# vLLM 0.32.0 loads these methods only with that flag: DEPRECATED_QUANTIZATION_METHODS,
# layers/quantization.
DEPRECATED = ("fbgemm_fp8",)
ALLOWED = "--allow-deprecated-quantization"


class Unservable(BadInput):
    """vLLM does not serve such a model, with any split."""


def served(deployment: Deployment) -> str:
    """Return the model as `vllm serve` takes it: its Hub id, or the folder of one without."""
    if deployment.model.hub_ids:
        return deployment.model.hub_ids[0]
    return deployment.model.location or deployment.model.name


def stand_in(deployment: Deployment) -> str:
    """Return a placeholder for a quantized checkpoint that the user has to name, or "".

    vLLM makes some formats (FP8) while it loads a checkpoint in 16 bits. Others (AWQ, GPTQ) need a
    checkpoint that is already in that format. Source: vLLM 0.32.0, model_loader/weight_utils.py
    get_quant_config ("Cannot find the config file for awq").
    """
    quantization = deployment.model.quantization
    if not deployment.quantization or not quantization:
        return ""
    if quantization.online or not quantization.from_flag:
        return ""
    return f"MODEL_QUANTIZED_WITH_{quantization.method.upper().replace('-', '_')}"


def check_starts(plan: Plan) -> None:
    """Raise BadInput if vLLM would refuse to load the model of a plan.

    Raises Unservable if it has no class for it.
    """
    deployment = plan.deployment
    if deployment.refused:
        raise Unservable(
            deployment.refused,
            "Give a model whose architecture vLLM has, or a GPU that it serves itself.",
        )
    if stand_in(deployment):
        method = present(deployment.model.quantization).method
        raise BadInput(
            f"vLLM cannot make {method} weights while it loads {served(deployment)}.",
            "Give the Hub id or the config.json of a checkpoint that is already quantized so.",
        )


def check_fits(plan: Plan) -> None:
    """Raise PlannerError if the model does not fit; its remedy is the nearest that does."""
    if not plan.fits:
        raise PlannerError(
            f"{plan.model} does not fit on {plan.gpus} × {plan.gpu}: {plan.reasons[-1]}",
            " ".join(plan.advice),
        )


def flags(deployment: Deployment) -> dict[str, str]:
    """Return flags of `vllm serve` and their values ("" for none), but those taken anyway."""
    model, settings = deployment.model, deployment.settings
    tokens, seqs = batch_defaults(deployment.gpu, "serve", settings.version)
    # flag -> its value, and what vLLM takes without the flag
    values: dict[str, tuple[object, object]] = {
        "--tensor-parallel-size": (deployment.tp, None),
        "--pipeline-parallel-size": (deployment.pp, 1),
        "--data-parallel-size": (deployment.dp, 1),
        "--decode-context-parallel-size": (deployment.dcp, 1),
        "--max-model-len": (
            "auto" if settings.fits_length else settings.max_model_len,
            model.default_model_len or model.max_position_embeddings,
        ),
        "--gpu-memory-utilization": (
            f"{settings.gpu_memory_utilization:g}",
            f"{settings.version.default_utilization:g}",
        ),
        "--max-num-batched-tokens": (
            settings.max_num_batched_tokens,
            min(tokens, settings.max_num_seqs * settings.max_model_len),
        ),
        "--max-num-seqs": (settings.max_num_seqs, min(seqs, settings.max_num_batched_tokens)),
        "--dtype": (settings.dtype, "auto"),
        "--kv-cache-dtype": (settings.kv_cache_dtype, "auto"),
        "--quantization": (deployment.quantization, None),
    }
    needed: dict[str, str] = {}
    for flag, (value, default) in values.items():
        if value is not None and value != default:
            needed[flag] = str(value)
    if deployment.ep:
        needed["--enable-expert-parallel"] = ""
    if settings.enforce_eager:
        needed["--enforce-eager"] = ""
    if settings.compilation.config:
        needed["--compilation-config"] = settings.compilation.config
    if settings.kv_cache_memory_bytes:
        needed["--kv-cache-memory-bytes"] = str(settings.kv_cache_memory_bytes)
    if settings.cpu_offload_gb:
        needed["--cpu-offload-gb"] = f"{settings.cpu_offload_gb:g}"
    if settings.disable_custom_all_reduce:
        needed["--disable-custom-all-reduce"] = ""
    if settings.enable_prefix_caching is not None:
        no = "" if settings.enable_prefix_caching else "no-"
        needed[f"--{no}enable-prefix-caching"] = ""
    if settings.moe_backend != AUTO:
        needed["--moe-backend"] = settings.moe_backend
    if settings.limit_mm_per_prompt:
        needed["--limit-mm-per-prompt"] = json.dumps(dict(settings.limit_mm_per_prompt))
    if settings.language_model_only or model.text_of:
        needed["--language-model-only"] = ""
    if settings.skip_mm_profiling:
        needed["--skip-mm-profiling"] = ""
    if settings.draft:
        needed["--speculative-config"] = settings.draft.config
    if settings.adapters:
        needed |= adapters.flags(settings.adapters)
    if model.overrides:
        needed["--hf-overrides"] = model.overrides
    if model.quantization and model.quantization.method in DEPRECATED:
        needed[ALLOWED] = ""
    return needed


def _node_flags(deployment: Deployment) -> dict[str, str]:
    """Return the flags that differ between nodes, with shell variables; workers add --headless.

    vLLM derives the replicas of a node from them. --data-parallel-start-rank would end the single
    API server for all replicas.
    """
    if deployment.nodes == 1:
        return {}
    return {
        "--nnodes": str(deployment.nodes),
        "--node-rank": "$NODE_RANK",
        "--master-addr": "$HEAD_NODE",
    }


def flag_words(flags: dict[str, str]) -> list[str]:
    """Return flags and values as the words of a command line."""
    arguments: list[str] = []
    for flag, value in flags.items():
        arguments.append(flag)
        if value:
            arguments.append(value)
    return arguments


def command_of(deployment: Deployment) -> str:
    """Return the `vllm serve` line of every node; "" if vLLM has no class for the architecture."""
    if deployment.refused:
        return ""
    line = [
        "vllm",
        "serve",
        stand_in(deployment) or served(deployment),
        *flag_words(flags(deployment) | _node_flags(deployment)),
    ]
    # quoted for the shell, but for its variables
    return " ".join(word if word.startswith("$") else shlex.quote(word) for word in line)
