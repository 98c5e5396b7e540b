"""The workshop's small Llama: weights, tokenizer, and the code that made them.

This folder is itself a Hugging Face model folder, so `vllm serve` takes its path. Importing the package
imports nothing heavy: torch and transformers are needed by `train` and `evaluate` alone.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
"""The model folder: config.json, tokenizer.json, model-*.safetensors."""
