"""A model that no formula and no record knows."""

from __future__ import annotations

import json
from pathlib import Path

NEW = {
    "architectures": ["SuperNovaForCausalLM"],
    "model_type": "supernova",
    "torch_dtype": "bfloat16",
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 8192,
    "vocab_size": 50000,
    "max_position_embeddings": 8192,
}


def folder(tmp_path: Path, config: dict = NEW) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path
