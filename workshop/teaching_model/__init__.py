"""The workshop's small Llama: weights, tokenizer, and its arithmetic in NumPy.

This folder is itself a Hugging Face model folder, so `vllm serve` takes its path. What made it is in
benchmarks/teaching_model.
"""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
"""The model folder: config.json, tokenizer.json, model-*.safetensors."""
DRAFT = FOLDER / "draft"
"""The folder of a model a fifth of its size, which proposes draft tokens. Same tokenizer; made by benchmarks' draft.py."""
