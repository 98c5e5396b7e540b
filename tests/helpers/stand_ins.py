"""Stand-ins for commands of a system, which a test puts at the front of PATH."""

from __future__ import annotations

import json
from pathlib import Path

LLAMA_70B = {  # of its config.json
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}


def stand_in(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)


def downloaded(models: Path) -> Path:
    """Return a folder of models in which Llama 3.1 70B has its config.json and something for weights."""
    folder = models / "Llama-3.1-70B-Instruct"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA_70B))
    (folder / "model.safetensors").write_bytes(b"weights")
    return models
