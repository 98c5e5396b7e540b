"""The fewest GPUs of every kind that serve every model of the catalog, and the command.

All of it is arithmetic over `plan`. The rows of the catalog are recorded (data/hardware.json), since
they take 1,352 plans (docs/hardware.py): `recorded` reads them.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_planner.answer.builds import with_records
from inference_planner.answer.parallelism import Plan, plan
from inference_planner.catalog import list_models, load_gpu, load_model
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GIB
from inference_planner.errors import BadInput
from inference_planner.model.attention import Attention, layers, main_kind
from inference_planner.model.kv_cache import kv_cache_bytes_per_token
from inference_planner.model.weights import active_parameters, parameters, weight_bytes
from inference_planner.split.deployment import prepare

GPUS = ("t4", "a10g", "l4", "a100-40gb", "a100-80gb", "h100", "h200", "b200")
RECORD = Path(__file__).parents[1] / "data" / "hardware.json"
CONTEXT = 8192  # tokens of the one request that must fit; less where the model reads less
MOST = 16  # two nodes of eight

# The beginning of a catalog name → the family it is listed under, in the order of the list.
FAMILIES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "mixtral": "Mixtral",
    "qwen": "Qwen",
    "deepseek": "DeepSeek",
    "falcon": "Falcon",
    "yi": "Yi",
    "tinyllama": "Llama",
    "minicpm3": "MiniCPM3",
    "minicpm": "MiniCPM",
    "jamba": "Jamba",
}
OTHERS = "Others"


@dataclass(frozen=True)
class HardwarePlace:
    """The fewest GPUs of one kind that hold a model and one request."""

    gpu: str
    gpus: int = 0  # 0: it does not run there, and `reason` says why
    reason: str = ""
    plan: Plan | None = None  # None where gpus is 0, and in a recorded row
    too_many: bool = False  # it needs more GPUs than were looked for
    command: str = ""  # of the plan, as are the sizes
    tensor_parallel_size: int = 0
    pipeline_parallel_size: int = 0


@dataclass(frozen=True)
class HardwareRow:
    """One model of the table. Sizes in GiB of 2**30 bytes, and KiB of 2**10."""

    model: str
    family: str
    architecture: str
    parameters: int
    active_parameters: int
    weights_gib: float
    kv_kib_per_token: float
    max_position_embeddings: int
    source: str
    places: tuple[HardwarePlace, ...]
    sizes_by: str = ""  # the vLLM whose classes gave the sizes; "" for those of formulas

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as `workshop models --json` prints it."""
        result = dict(self.__dict__)
        del result["places"], result["sizes_by"]
        places: dict[str, Any] = {}
        for place in self.places:
            places[place.gpu] = {
                "gpus": place.gpus,
                "reason": place.reason,
                "command": place.command,
                "tensor_parallel_size": place.tensor_parallel_size,
                "pipeline_parallel_size": place.pipeline_parallel_size,
            }
        result["smallest"] = places
        return result


def family(name: str) -> str:
    """Return the family of a catalog name."""
    for start, title in FAMILIES.items():
        if name.startswith(start):
            return title
    return OTHERS


def families() -> list[str]:
    """Return the families in the table's order."""
    return [*dict.fromkeys(FAMILIES.values()), OTHERS]


def architecture(model: ModelConfig) -> str:
    """Return what the layers are, in a few words: "GQA 64/8", "MLA, 256 experts, 8 a token"."""
    parts = [main_kind(model).describe(model)]
    sizes: dict[Attention, list[int]] = {}
    for kind, size in layers(model):
        sizes.setdefault(kind, []).append(size)
    for kind in sizes:
        description = kind.describe_layers(sizes[kind], model.num_hidden_layers)
        if description:
            parts.append(description)
    if model.moe:
        parts.append(f"{model.moe.num_experts} experts, {model.moe.experts_per_token} a token")
    if model.quantization:
        parts.append(f"{model.quantization.method}, {model.quantization.weight_bits} bit")
    return ", ".join(parts)


def smallest(
    model: str | ModelConfig,
    gpu: str,
    *,
    context: int = CONTEXT,
    make_plan: Callable[..., Plan] = plan,
    **settings: object,
) -> HardwarePlace:
    """Return the fewest GPUs, up to MOST, for a model and a request of `context` tokens or all.

    Args:
        make_plan: `plan`, or a function with the same arguments.
        settings: anything else that `plan` takes, for example quantization="fp8".
    """
    config = load_model(model)
    card = load_gpu(gpu)
    max_model_len = min(context, config.max_position_embeddings)
    try:
        result = make_plan(config, card, max_model_len=max_model_len, **settings)
    except BadInput as error:  # no bfloat16, no kernels: not a matter of memory
        return HardwarePlace(card.name, 0, f"{error.message} {error.remedy}")
    if result.deployment.refused:
        return HardwarePlace(card.name, 0, result.deployment.refused)
    if not result.fits or result.gpus > MOST:
        return HardwarePlace(card.name, 0, f"More than {MOST} × {card.title}.", too_many=True)
    return HardwarePlace(
        gpu=card.name,
        gpus=result.gpus,
        plan=result,
        command=result.command,
        tensor_parallel_size=result.tensor_parallel_size,
        pipeline_parallel_size=result.pipeline_parallel_size,
    )


@lru_cache(maxsize=512)
def row(
    model: str | ModelConfig,
    gpus: tuple[str, ...] = GPUS,
    context: int = CONTEXT,
    make_plan: Callable[..., Plan] = plan,
) -> HardwareRow:
    """Return one model's row. Raises BadInput for a model or GPU that is not known."""
    # with what is recorded of a model without formulas
    config = with_records(prepare(model, "b300")).model
    count = parameters(config)
    if config.exact and not config.quantization:
        count = weight_bytes(config) // 2
    active = count
    if config.moe:
        active = min(count, active_parameters(config))
    places: list[HardwarePlace] = []
    for gpu in gpus:
        places.append(smallest(config, gpu, context=context, make_plan=make_plan))
    return HardwareRow(
        model=config.name,
        family=family(config.name),
        architecture=architecture(config),
        parameters=count,
        active_parameters=active,
        weights_gib=weight_bytes(config) / GIB,
        kv_kib_per_token=kv_cache_bytes_per_token(config) / 1024,
        max_position_embeddings=config.max_position_embeddings,
        source=config.source,
        places=tuple(places),
        sizes_by=config.exact.source if config.exact else "",
    )


def table(
    names: Sequence[str | ModelConfig] = (),
    gpus: Sequence[str] = GPUS,
    context: int = CONTEXT,
) -> list[HardwareRow]:
    """Return the rows of these models, or of all, by family and then by size."""
    return in_order(row(name, tuple(gpus), context) for name in names or list_models())


def in_order(rows: Iterable[HardwareRow]) -> list[HardwareRow]:
    """Return rows by family and then by size."""
    order = families()
    return sorted(rows, key=lambda line: (order.index(line.family), line.parameters, line.model))


@lru_cache(maxsize=1)
def recorded() -> dict[str, HardwareRow]:
    """Return the catalog's rows on GPUS, with CONTEXT tokens, by model and without plans."""
    rows: dict[str, HardwareRow] = {}
    for entry in json.loads(RECORD.read_text(encoding="utf-8")):
        places = tuple(HardwarePlace(**place) for place in entry.pop("places"))
        rows[entry["model"]] = HardwareRow(**entry, places=places)
    return rows


def names_of(family_name: str) -> list[str]:
    """Return the catalog names of a family (in any case). Raises BadInput naming the families."""
    titles = {title.lower(): title for title in families()}
    if family_name.lower() not in titles:
        raise BadInput(
            f"There is no family {family_name!r}.", f"Choose from: {', '.join(families())}."
        )
    return [name for name in list_models() if family(name) == titles[family_name.lower()]]


def size_words(count: int) -> str:
    """Return a number of parameters as people say it: "8.0 B", "494 M"."""
    if count >= 1e9:
        return f"{count / 1e9:,.1f} B"
    return f"{count / 1e6:,.0f} M"
