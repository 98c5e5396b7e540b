"""Requests of `workshop slurm submit`, and the scripts of slurm/ that have a model of their own."""

from dataclasses import dataclass

# for a model without a script of its own: the fewest that hold it
NODES_TRIED = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class SubmitRequest:
    """The settings that a person requests; None: the script's or the plan's choice.

    what: a script's name (70b), a catalog name, a Hub id, or a model's folder.
    trace: the engine notes what it does, step by step.
    vllm: more flags of `vllm serve`.
    sbatch_args: options of sbatch.
    anyway: also what cannot work as far as we know.
    """

    what: str
    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    time: str | None = None
    pipeline: bool = False
    learners: int = 0
    trace: bool = False
    name: str | None = None
    max_model_len: int | None = None
    vllm: tuple[str, ...] = ()
    sbatch_args: tuple[str, ...] = ()
    anyway: bool = False


@dataclass(frozen=True)
class Recipe:
    """The settings that a script requests by default; those of model.sbatch let the plan choose.

    model: a name on the Hub, or a folder; its last part is the folder's name below WORKSHOP_MODELS.
    nodes: numbers of nodes to try in turn; the last one is what the script itself requests. split:
    "tensor": tensor parallel over all GPUs; "pipeline": tensor parallel in a node, one stage a
    node.
    """

    model: str
    nodes: tuple[int, ...] = NODES_TRIED
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    split: str = ""


RECIPES = {
    "70b": Recipe("meta-llama/Llama-3.1-70B-Instruct", (1,), 32768, 0.90, "pipeline"),
    "405b": Recipe("meta-llama/Llama-3.1-405B-Instruct", (2, 4), 16384, 0.92, "tensor"),
    "405b-fp8": Recipe("meta-llama/Llama-3.1-405B-Instruct-FP8", (2,), 16384, 0.92, "pipeline"),
}


def model_of(name: str) -> str:
    """Return the model of the script with that name; any other name is a model's already."""
    recipe = RECIPES.get(name)
    if recipe:
        return recipe.model
    return name
