"""The recorded runs of vLLM (the planner's data/runs, and data/tuning here): what the plan is measured against, and what tuning found."""

from pathlib import Path

from inference_planner.basis import runs
from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.quantization import from_name
from inference_planner.catalog.read import from_dict
from inference_planner.parallelism import Plan
from inference_planner.speed import bandwidth_limit_tokens_per_s

from workshop.engine.exact import plan

DATA = Path(__file__).parents[1] / "data"  # the logs of these runs, and what else was recorded
TUNING = DATA / "tuning"


def tuning() -> list[dict]:
    """Return every run of the tuning log (docs/gpu.md): what was changed, the speeds, and a step's kernels by kind.

    "layers" is there where fewer than all layers were measured; "kernels" has ms of one decoding step on rank 0.
    """
    return runs(TUNING)


def tuned(name: str) -> dict:
    """Return the run of that name in the tuning log."""
    return next(run for run in tuning() if run["name"] == name)


def measured(name: str) -> dict:
    """Return the run of that name; of several, one that was measured with up to 256 requests at once."""
    return max(
        (run for run in runs() if run["name"] == name), key=lambda run: "batch256_tok_s" in run
    )


def limit_tokens_per_s(run: dict) -> float:
    """Return tokens/s of one stream if reading all weights once a token at full bandwidth were all that takes time."""
    m = model_of(run)
    if quantization := run.get("extra", {}).get("quantization"):
        m = m.with_quantization(from_name(quantization))
    return bandwidth_limit_tokens_per_s(m, load_gpu(run["gpu"]), run["tp"])


def model_of(run: dict) -> ModelConfig:
    """Return the run's model as its config.json was."""
    config = run.get("config", {})
    base = {} if "architectures" in config else load_model(run["model"]).raw
    return from_dict({**base, **config}, name=run["name"]) if config else load_model(run["model"])


def plan_of(run: dict, **changes: object) -> Plan:
    """Return the plan by the formulas alone for a run, of the LLM class on an H200 where it says nothing else; `changes` replace arguments."""
    settings = {
        "usage": "llm",
        "tensor_parallel_size": run["tp"],
        "pipeline_parallel_size": run["pp"],
    }
    settings |= (
        {name: run[name] for name in ("max_model_len", "vllm_version")} | run["extra"] | changes
    )
    return plan(model_of(run), run.get("gpu", "h200"), **{"learned": (), **settings})
