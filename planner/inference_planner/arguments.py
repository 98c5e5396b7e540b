"""The options of `inference-planner` and `workshop plan`: one table, in the terms of argparse."""

import re
from argparse import BooleanOptionalAction
from collections.abc import Mapping
from typing import Any

from inference_planner.errors import BadInput

UNITS = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20}


def tokens(text: str) -> int:
    """Read a whole number; 8k is 8,000 and 8K is 8,192, as vLLM reads its own flags.

    Raises ValueError: the text is not such a number.
    """
    digits = text.strip().replace(",", "").replace("_", "")
    number = re.fullmatch(r"(-?\d{1,15})([kKmM]?)", digits)
    if not number:
        raise ValueError(f"{text[:40]!r} is not a whole number (131072, 128K and 128k are).")
    return int(number[1]) * UNITS[number[2]]


def required(
    model: str | None, gpu: str | None, gpu_memory_gib: float | None = None
) -> tuple[str, str | None]:
    """Return the model and the GPU, which may be given by its memory alone. Raises BadInput: one of them is missing."""
    has_gpu = bool(gpu) or gpu_memory_gib is not None
    if model and has_gpu:
        return model, gpu or None
    missing = "--gpu" if model else "MODEL"
    example = "For example: llama-3.1-70b --gpu h100 --gpus-per-node 4."
    raise BadInput(f"{missing} is missing.", example)


def check_no_card(settings: Mapping[str, object]) -> None:
    """Raise BadInput if a card is described beside --machines, which have GPUs of their own."""
    for name, flag in (("gpu_memory_gib", "--gpu-memory"), ("free_gib", "--free-gib")):
        if settings.get(name) is not None:
            raise BadInput(
                "--machines have GPUs of their own, and all of their memory is free.",
                f"Leave {flag} out.",
            )


FLAG = {"action": "store_true"}
# flags -> what argparse's add_argument takes
ARGUMENTS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--gpu",): {"help": "GPU name, as `--list-gpus` prints them: h100, h200, a100-80gb, …"},
    ("--gpu-memory",): {"type": float, "dest": "gpu_memory_gib", "metavar": "GIB", "help": "Memory of one GPU as vLLM sees it, for a card of another size or without a name."},
    ("--free-gib",): {"type": float, "metavar": "GIB", "help": "GiB free on each GPU, where another process holds the rest."},
    ("--gpus-per-node",): {"type": int, "help": "GPUs in one node.  [default: 8]"},
    ("--nodes",): {"type": int, "help": "Nodes that may be used."},
    ("--tensor-parallel-size", "-tp"): {"type": int, "help": "Without it the plan chooses."},
    ("--pipeline-parallel-size", "-pp"): {"type": int, "help": "Without it the plan chooses."},
    ("--data-parallel-size", "-dp"): {"type": int, "help": "Replicas that share their experts.  [default: 1]"},
    ("--enable-expert-parallel", "-ep"): {**FLAG, "help": "Deal whole experts out over TP × DP GPUs."},
    ("--decode-context-parallel-size", "-dcp"): {"type": int, "help": "Ranks that share a KV head's tokens.  [default: 1]"},
    ("--dtype",): {"default": "auto", "help": "auto, bfloat16, float16 or float32."},
    ("--quantization", "-q"): {"help": "vLLM's name: fp8, awq, gptq, …; a quantization_config counts as given."},
    ("--kv-cache-dtype",): {"default": "auto", "help": "auto, bfloat16, float16, fp8, fp8_e4m3 or fp8_e5m2."},
    ("--max-model-len",): {"type": tokens, "help": "Tokens of one request, with its answer.  [default: the model's]"},
    ("--gpu-memory-utilization",): {"type": float, "help": "Share of the GPU that vLLM takes.  [default: vLLM's, 0.92; 0.9 before 0.21]"},
    ("--max-num-batched-tokens",): {"type": tokens, "help": "Tokens of one step.  [default: vLLM's for this GPU]"},
    ("--max-num-seqs",): {"type": tokens, "help": "Requests of one step.  [default: vLLM's for this GPU]"},
    ("--limit-mm-per-prompt",): {"metavar": "JSON", "help": "Most images, videos, … in a prompt, as vLLM takes it: '{\"image\": 4, \"video\": 0}', or image=4,video=0."},
    ("--language-model-only",): {**FLAG, "help": "Do not load a multimodal model's encoder."},
    ("--hf-overrides",): {"metavar": "JSON", "help": "Fields that replace those of config.json, such as rope_scaling for YaRN."},
    ("--speculative-config", "-sc"): {"metavar": "JSON", "help": "Draft tokens, as vLLM takes it: '{\"method\": \"mtp\", \"num_speculative_tokens\": 2}'."},
    ("--spec-method",): {"help": "Its method: mtp, eagle, eagle3, draft_model, ngram, suffix."},
    ("--spec-model",): {"help": "Its draft: a folder with a config.json, or a Hub id."},
    ("--spec-tokens",): {"type": int, "help": "Its number of draft tokens in a step."},
    ("--enable-lora",): {**FLAG, "help": "Make buffers for LoRA adapters."},
    ("--max-loras",): {"type": int, "help": "Adapters in one batch.  [default: 1]"},
    ("--max-lora-rank",): {"type": int, "help": "Largest rank of an adapter.  [default: 16]"},
    ("--max-cpu-loras",): {"type": int, "help": "Adapters in the CPU's memory.  [default: --max-loras]"},
    ("--fully-sharded-loras",): {**FLAG, "help": "Split both matrices of an adapter by tensor parallelism."},
    ("--lora-dtype",): {"help": "Of the adapters' buffers: auto, float16 or bfloat16.  [default: auto]"},
    ("--enable-prefix-caching",): {"action": BooleanOptionalAction, "default": None, "help": "Keep the blocks of finished prompts; a hybrid's requests then hold further states.  [default: vLLM's]"},
    ("--moe-backend",): {"help": "Kernels of experts: triton, marlin, cutlass, deep_gemm, flashinfer_trtllm, …  [default: vLLM's]"},
    ("--enforce-eager",): {**FLAG, "help": "No CUDA graphs."},
    ("--vllm-version",): {"help": "Version whose formulas are used.  [default: 0.32.0]"},
    ("--usage",): {"choices": ["serve", "llm"], "help": "serve (default) or llm: whose defaults."},
    ("--network",): {"default": "infiniband-ndr", "help": "Link between nodes."},
    ("--explain",): {**FLAG, "help": "Show every overhead and every part of a step, with its source."},
    ("--list-models",): {"dest": "listed", "action": "store_const", "const": "models", "help": "Print the catalog's models."},
    ("--list-gpus",): {"dest": "listed", "action": "store_const", "const": "gpus", "help": "Print the catalog's GPUs."},
    ("--json",): {**FLAG, "dest": "as_json", "help": "Print data instead of text."},
}  # fmt: skip
