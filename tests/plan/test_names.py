"""Names of checkpoints: which model they mean, how it is quantized, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from inference_planner import errors, plan
from inference_planner.catalog import list_models, load_model
from inference_planner.catalog.gpus import split_count
from inference_planner.catalog.names import read_name

# Hub ids of public recipes for vLLM, each with the model of the catalog that it means; "" for those
# whose shapes the catalog does not have
IDS = json.loads((Path(__file__).parents[1] / "data" / "model_ids.json").read_text())["ids"]
DENSE = "meta-llama/Llama-3.1-70B-Instruct"
EXPERTS = "Qwen/Qwen3-30B-A3B"
# bits of a weight with its scales, by the end of the name
FORMATS = {
    "FP8": 8,
    "FP8-dynamic": 8,
    "quantized.w8a8": 8,
    "AWQ": 4.25,
    "GPTQ-Int4": 4.125,
    "quantized.w4a16": 4.125,
    "NVFP4": 4.5,
    "MXFP4": 4.25,
    "bnb-4bit": 4.5,
}
# 16-bit weights: embeddings and lm_head, and of experts often the attention
LEFT_IN_16_BIT = 0.06
# Names that round, or count otherwise: billions of parameters by the model's card or index
BY_CARD = {
    "mimo-7b-base": 7.83,  # with its layer for multi-token prediction
    "ministral-3-14b": 13.5,
    "ministral-3-3b": 3.4,
    "ministral-3-8b": 8.4,
    "nemotron-3-nano-30b-a3b": 31.6,
    "nemotron-3-nano-30b-a3b-nvfp4": 31.6,
    "nemotron-3-nano-omni-30b-a3b": 31.6,
    "nemotron-3.5-lightning-30b-a3b": 31.6,
    "ernie-4.5-0.3b": 0.36,
    "ernie-4.5-21b-a3b": 21.8,
    "ernie-4.5-vl-28b-a3b": 15.24,
}
SIZE = re.compile(r"-(\d+(?:\.\d+)?)([mbt])(?=-|$)")
UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}


@pytest.mark.parametrize("model_id", IDS)
def test_an_id_is_planned_or_refused_with_the_command_for_its_config(model_id):
    if IDS[model_id]:
        result = plan(model_id, "b300")
        model = result.config
        assert (model.derived_from or model.name, result.model_id()) == (IDS[model_id], model_id)
        return
    with pytest.raises(errors.BadInput) as caught:
        load_model(model_id)
    folder = model_id.rpartition("/")[2]
    assert f"hf download {model_id} config.json --local-dir {folder}" in caught.value.remedy
    assert f"workshop plan ./{folder}" in caught.value.remedy
