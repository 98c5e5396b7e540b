"""How far an estimate is from vLLM's own classes: at most 5 % for every kind that the planner still estimates."""

from collections.abc import Iterator

import pytest
from inference_planner import builds, plan
from inference_planner.attention import grouped
from inference_planner.catalog import list_models, load_model
from inference_planner.catalog.config import Built, ModelConfig
from inference_planner.catalog.estimate import unknown_part
from inference_planner.catalog.families import FAMILIES
from inference_planner.catalog.read import from_dict
from inference_planner.errors import BadInput
from inference_planner.ranks import stage_bytes

WORST = 0.05


def recorded() -> Iterator[tuple[ModelConfig, Built]]:
    """Yield every recorded model without formulas, with its build on one rank."""
    for name in list_models():
        model = load_model(name)
        if model.architecture in FAMILIES:
            continue
        for described in builds.records()[builds.digest(model.raw)]["builds"]:
            build = builds.built(described)
            if build.tp == build.pp == 1:
                yield model, build


RECORDED = list(recorded())


def errors(model: ModelConfig, build: Built) -> tuple[float, float]:
    """Return how far the estimate is off: (weights, KV cache of a token), as shares of what vLLM's class has."""
    weights = stage_bytes(model, 1, 1, 0) / build.loaded_bytes[0] - 1
    token_bytes = sum(
        len(layers) * kind.token_bytes(model, 1, build.kv_bytes_each)
        for kind, _, layers in grouped(model)
    )
    return abs(weights), abs(token_bytes / build.bytes_per_token - 1)


@pytest.mark.parametrize(
    ("model", "build"),
    [(m, b) for m, b in RECORDED if not unknown_part(m.raw, has_checkpoint=False)],
    ids=lambda value: value.name if isinstance(value, ModelConfig) else "",
)
def test_what_is_estimated_is_near_the_class(model, build):
    assert max(errors(model, build)) <= WORST


@pytest.mark.parametrize("part", ["its encoder of images or sound", "its compressed attention"])
def test_what_is_not_estimated_would_be_far_off(part):
    of_part = [(m, b) for m, b in RECORDED if unknown_part(m.raw, has_checkpoint=False) == part]
    assert max(max(errors(model, build)) for model, build in of_part) > WORST


@pytest.mark.parametrize("name", ["qwen3-vl-2b", "deepseek-v4-flash"])
def test_a_kind_without_an_estimate_gets_one_sentence_and_the_command(name):
    raw = {**load_model(name).raw, "architectures": ["SuperNovaForCausalLM"], "model_type": "nova"}
    with pytest.raises(BadInput, match="formulas do not know SuperNovaForCausalLM") as refused:
        plan(from_dict(raw, name=name), "h200")
    assert "workshop plan MODEL --exact" in refused.value.remedy


def test_what_is_recorded_is_planned():
    assert plan("qwen3-vl-2b", "h200").sizes_from == "recorded"
