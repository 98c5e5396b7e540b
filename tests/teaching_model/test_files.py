"""The model folder is what vLLM, tensor parallelism and the course rely on. No torch needed."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest

from workshop.teaching_model import DRAFT, FOLDER

DTYPE_BYTES = {"BF16": 2}


def read_json(name: str) -> dict:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def shards() -> list[Path]:
    return sorted(FOLDER.glob("model-*-of-*.safetensors"))


def header(path: Path) -> dict:
    """Return the header of a safetensors file: 8 bytes of length, then JSON."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return {
            name: t for name, t in json.loads(file.read(length)).items() if name != "__metadata__"
        }


def test_config_is_a_llama_that_two_ranks_and_two_stages_divide():
    config = read_json("config.json")
    assert config["architectures"] == ["LlamaForCausalLM"] and config["model_type"] == "llama"
    assert config["num_attention_heads"] % 2 == 0 and config["num_key_value_heads"] % 2 == 0
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert config["num_hidden_layers"] % 2 == 0
    assert config["vocab_size"] % 64 == 0 and config["intermediate_size"] % 2 == 0
    assert config["head_dim"] * config["num_attention_heads"] == config["hidden_size"]
    assert config["max_position_embeddings"] >= 2048
    assert config["torch_dtype"] == "bfloat16"


def test_weights_are_in_several_shards_of_at_most_40_mb_in_all():
    assert len(shards()) >= 2
    assert sum(path.stat().st_size for path in shards()) <= 40_000_000
    assert {path.name.split("-of-")[1] for path in shards()} == {f"{len(shards()):05d}.safetensors"}


def test_index_names_exactly_the_tensors_that_the_shards_hold():
    weight_map = {name: path.name for path in shards() for name in header(path)}
    index = read_json("model.safetensors.index.json")
    assert index["weight_map"] == weight_map
    sizes = [
        t["data_offsets"][1] - t["data_offsets"][0]
        for path in shards()
        for t in header(path).values()
    ]
    assert index["metadata"]["total_size"] == sum(sizes)


def test_shards_are_complete_files_of_bfloat16():
    for path in shards():
        tensors = header(path)
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
        assert path.stat().st_size == 8 + length + max(
            t["data_offsets"][1] for t in tensors.values()
        )
        assert {t["dtype"] for t in tensors.values()} == {"BF16"}


def test_tensors_have_the_shapes_that_the_config_says():
    config = read_json("config.json")
    tensors = {name: t["shape"] for path in shards() for name, t in header(path).items()}
    hidden, kv = config["hidden_size"], config["num_key_value_heads"] * config["head_dim"]
    assert tensors["model.embed_tokens.weight"] == [config["vocab_size"], hidden]
    assert config["tie_word_embeddings"] is True and "lm_head.weight" not in tensors
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        assert tensors[prefix + "self_attn.q_proj.weight"] == [hidden, hidden]
        assert tensors[prefix + "self_attn.k_proj.weight"] == [kv, hidden]
        assert tensors[prefix + "self_attn.v_proj.weight"] == [kv, hidden]
        assert tensors[prefix + "mlp.down_proj.weight"] == [hidden, config["intermediate_size"]]
    layers = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    assert len(layers) == config["num_hidden_layers"]


@pytest.fixture(scope="module")
def tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def test_tokenizer_puts_begin_of_text_first(tokenizer):
    config = read_json("config.json")
    ids = tokenizer.encode("San Francisco is a").ids
    assert ids[0] == config["bos_token_id"] == tokenizer.token_to_id("<|begin_of_text|>")
    assert ids.count(config["bos_token_id"]) == 1
    assert config["eos_token_id"] == tokenizer.token_to_id("<|end_of_text|>")
    assert tokenizer.get_vocab_size() == config["vocab_size"]


def test_any_text_round_trips(tokenizer, subtests):
    for text in [
        "San Francisco is a ",
        "two  spaces\n\nand lines\t.",
        "Zürich, naïve, Ελλάδα, 北京, مرحبا",
        "🙂🚀👩‍🔬 emoji",
        "",
        " ",
    ]:
        with subtests.test(text):
            assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=True) == text


def test_chat_template_renders_the_training_format():
    jinja2 = pytest.importorskip("jinja2")
    config = read_json("tokenizer_config.json")
    template = jinja2.Environment().from_string(config["chat_template"])
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is Boston?"},
        {"role": "assistant", "content": "A city."},
        {"role": "user", "content": "What is a dog?"},
    ]
    text = template.render(messages=messages, bos_token=config["bos_token"], eos_token=config["eos_token"],
                           add_generation_prompt=True)  # fmt: skip
    assert text == ("<|begin_of_text|>Question: What is Boston?\nAnswer: A city.<|end_of_text|>"
                    "Question: What is a dog?\nAnswer:")  # fmt: skip


def test_no_sampling_defaults_hide_in_the_generation_config():
    assert read_json("generation_config.json") == {"bos_token_id": 0, "eos_token_id": 1}


def test_model_card_credits_the_sources():
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for credit in (
        "Open English WordNet",
        "Namenet",
        "CC BY 4.0",
        "WordNet License",
        "Princeton",
        "public domain",
    ):
        assert credit in card, credit
    assert (
        Path(__file__).parents[2] / "benchmarks" / "teaching_model" / "training_log.txt"
    ).stat().st_size > 1000


def test_the_draft_has_the_models_tokens_and_a_fifth_of_its_weights():
    config = json.loads((DRAFT / "config.json").read_text(encoding="utf-8"))
    for same in (
        "architectures",
        "vocab_size",
        "bos_token_id",
        "eos_token_id",
        "max_position_embeddings",
    ):
        assert config[same] == read_json("config.json")[same]
    weights = DRAFT / "model.safetensors"
    assert weights.stat().st_size < 5_000_000 and {
        t["dtype"] for t in header(weights).values()
    } == {"BF16"}
    whole, small = (
        sum(math.prod(t["shape"]) for f in files for t in header(f).values())
        for files in (shards(), [weights])
    )
    assert 0.19 < small / whole < 0.21
    assert (
        Path(__file__).parents[2] / "benchmarks" / "teaching_model" / "draft_training_log.txt"
    ).stat().st_size > 1000
