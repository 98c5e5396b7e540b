"""The recorded runs of vLLM: the planner's data/runs, and those of tuning in data/tuning here."""

from pathlib import Path

from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import load_gpu
from inference_planner.catalog.quantization import from_name
from inference_planner.ground.basis import model_of, runs
from inference_planner.speed.roofline import bandwidth_limit_tokens_per_s

from workshop.engine.planning import plan

DATA = Path(__file__).parents[1] / "data"  # the logs of these runs, and what else was recorded
TUNING = DATA / "tuning"


def tuning() -> list[dict]:
    """Return every run of the tuning log (docs/gpu.md): the change, the speeds, a step's kernels.

    "layers" is there if fewer than all layers were measured; "kernels" has the ms of one decoding
    step on rank 0.
    """
    return runs(TUNING)


def tuned(name: str) -> dict:
    """Return the run of that name in the tuning log."""
    runs_of_name = [run for run in tuning() if run["name"] == name]
    return runs_of_name[0]


def measured(name: str) -> dict:
    """Return the run of that name; of several, one that was measured with up to 256 requests."""
    runs_of_name = [run for run in runs() if run["name"] == name]
    return max(runs_of_name, key=lambda run: "batch256_tok_s" in run)


def limit_tokens_per_s(run: dict) -> float:
    """Return the tokens/s of one stream if a token took only the reading of all weights.

    The weights are read once for each token, at full bandwidth.
    """
    model = model_of(run)
    quantization = run.get("extra", {}).get("quantization")
    if quantization:
        model = model.with_quantization(from_name(quantization))
    return bandwidth_limit_tokens_per_s(model, load_gpu(run["gpu"]), run["tp"])


def plan_of(run: dict, **changes: object) -> Plan:
    """Return the plan of a run, by the formulas alone.

    A run that says nothing else is of the LLM class on an H200.

    Args:
        changes: arguments of `plan` that replace those of the run.
    """
    settings = {
        "learned": (),
        "usage": "llm",
        "tensor_parallel_size": run["tp"],
        "pipeline_parallel_size": run["pp"],
        "max_model_len": run["max_model_len"],
        "vllm_version": run["vllm_version"],
        **run["extra"],
        **changes,
    }
    return plan(model_of(run), run.get("gpu", "h200"), **settings)
