"""The planner's page says of its form what `plan` says; the browser is in tests/browser/test_plan_page.py."""

from __future__ import annotations

import json

import pytest
from inference_planner import plan
from inference_planner.request import NAMES
from live import pages, plan_page


def answer(**fields: str) -> str:
    return plan_page.answer(json.dumps({"model": "llama-3.1-70b", "gpu": "h100", **fields}))


def test_the_form_has_every_setting_of_a_plan():
    form = pages.form()
    assert all(form.count(f' name="{name}"') == 1 for name in ("model", "gpu", "config", *NAMES))


def test_texts_of_the_form_become_settings():
    settings = plan_page.settings(
        {
            "max_model_len": "8K",
            "nodes": "2",
            "gpu_memory_utilization": "0.9",
            "enforce_eager": "yes",
            "enable_prefix_caching": "no",
            "dtype": "auto",
            "quantization": "",
        }
    )
    assert settings == {
        "max_model_len": 8192,
        "nodes": 2,
        "gpu_memory_utilization": 0.9,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "dtype": "auto",
    }


def test_a_plan_is_drawn_with_its_figures_and_its_command():
    expected = plan("llama-3.1-70b", "h100")
    drawn = answer()
    assert 'class="verdict good"' in drawn and f"{expected.kv_cache_tokens:,}" in drawn
    assert "<code>--tensor-parallel-size</code> 4" in drawn


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"gpus_per_node": "1"}, "llama-3.1-70b does not fit"),
        ({"tensor_parallel_size": "3"}, "3 does not divide the 64 attention heads"),
        ({"max_model_len": "long"}, "is not a whole number"),
        (
            {
                "model": "qwen3.5-35b-a3b",
                "tensor_parallel_size": "1",
                "max_num_seqs": "1024",
                "max_model_len": "32K",
            },
            "vLLM would refuse to start",
        ),
        ({"config": "hello"}, "is not JSON"),
        ({"config": "[]"}, "has no object"),
        ({"gpu": "<b>"}, "&lt;b&gt;"),
    ],
)
def test_what_does_not_fit_or_cannot_be_is_said(fields, sentence):
    drawn = answer(**fields)
    assert 'class="verdict bad"' in drawn and sentence in drawn
    assert "<pre>" not in drawn, "no command that would fail"


def test_a_config_that_is_pasted_takes_the_place_of_the_model(monkeypatch, tmp_path):
    monkeypatch.setattr(plan_page, "PASTED", tmp_path)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "_name_or_path": "me/../own model",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 128,
    }
    assert "ownmodel fits" in answer(config=json.dumps(config))
    assert (tmp_path / "ownmodel" / "config.json").is_file()
