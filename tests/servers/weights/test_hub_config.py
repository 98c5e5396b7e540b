"""A model that the catalog does not have: its config.json comes from the Hub, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hub_server import HUB_ID, FakeHub

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
TODAY = f"hf download {HUB_ID} config.json --local-dir Tiny-Llama"


@pytest.fixture
def hub():
    fake = FakeHub(HUB_ID, {"config.json": json.dumps(TINY).encode()})
    yield fake
    fake.close()


@pytest.fixture
def workshop(hub, tmp_path):
    def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess:
        environment = {name: value for name, value in os.environ.items() if name[:3] != "HF_"}
        environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), **changes}
        return subprocess.run(
            [sys.executable, "-m", "workshop", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
        )

    return run


def test_the_config_is_fetched_once_and_the_command_names_the_hub_id(hub, workshop):
    first = workshop("plan", HUB_ID, "--gpu", "h100", "--json")
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("\n") == 1 and f"config.json of {HUB_ID}" in first.stderr
    plan = json.loads(first.stdout)
    assert plan["kv_bytes_per_token"] == 2 * 16 * 8 * 64 * 2
    assert plan["command"].startswith(f"vllm serve {HUB_ID}")
    requests = len(hub.tokens)
    second = workshop("plan", HUB_ID, "--gpu", "h100", "--json")
    assert second.returncode == 0 and not second.stderr
    assert len(hub.tokens) == requests, "the second plan reads the copy"
    assert json.loads(second.stdout) == plan


def test_formats_beside_the_config_are_read(hub, workshop, tmp_path):
    """ModelOpt writes the quantization into hf_quant_config.json; vLLM reads it there too."""
    whole = json.loads(workshop("plan", HUB_ID, "--gpu", "h100", "--json").stdout)
    hub.files["hf_quant_config.json"] = json.dumps(
        {
            "producer": {"name": "modelopt"},
            "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]},
        }
    ).encode()
    quantized = workshop(
        "plan", HUB_ID, "--gpu", "h100", "--json", HF_HOME=str(tmp_path / "second")
    )
    assert json.loads(quantized.stdout)["weights_gib_per_gpu"] < 0.7 * whole["weights_gib_per_gpu"]


@pytest.mark.parametrize("arguments", [("--machines",), ("--gpu", "h100", "--as", "vllm")])
def test_every_form_of_a_plan_fetches(workshop, arguments):
    done = workshop("plan", HUB_ID, *arguments)
    assert done.returncode == 0, done.stderr


def test_a_gated_model_names_the_command_that_lets_in(hub, workshop):
    hub.gated = "hf_right"
    done = workshop("plan", HUB_ID, "--gpu", "h100")
    assert done.returncode == 1 and "is gated" in done.stderr and "hf auth login" in done.stderr
    assert done.stderr.count("\n") == 2
    assert workshop("plan", HUB_ID, "--gpu", "h100", HF_TOKEN="hf_right").returncode == 0


def test_a_model_that_the_hub_lacks_names_the_command_that_lists_the_like(workshop):
    done = workshop("plan", "lab/Tiny-Lama", "--gpu", "h100")
    assert done.returncode == 1 and "knows no model lab/Tiny-Lama" in done.stderr
    assert "hf models ls --search Tiny-Lama" in done.stderr


def test_a_repository_without_a_config_says_so(hub, workshop):
    hub.files.clear()
    done = workshop("plan", HUB_ID, "--gpu", "h100")
    assert done.returncode == 1 and f"{HUB_ID} has no config.json" in done.stderr
    assert f"hf models ls {HUB_ID}" in done.stderr


@pytest.mark.parametrize(
    "changes", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:1"}]
)
def test_without_a_network_the_command_that_gets_it_is_printed(workshop, changes):
    done = workshop("plan", HUB_ID, "--gpu", "h100", **changes)
    assert done.returncode == 2 and TODAY in done.stderr
    assert done.stderr.count("\n") == 2


def test_a_page_in_place_of_the_config_is_no_config(hub, workshop):
    hub.page = "all"
    done = workshop("plan", HUB_ID, "--gpu", "h100")
    assert done.returncode == 2 and TODAY in done.stderr


def test_a_simulation_fetches_as_a_plan_does(workshop):
    """One that is refused once the model is known."""
    done = workshop("simulate", HUB_ID, "--gpu", "h100", "--burst", "2", "--max-model-len", "1M")
    assert done.returncode == 2 and f"config.json of {HUB_ID}" in done.stderr, done.stderr
    assert "Tiny-Llama reads up to 131072 tokens" in done.stderr


def test_a_name_of_the_catalog_asks_nobody(hub, workshop):
    assert workshop("plan", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100").returncode == 0
    assert not hub.tokens
