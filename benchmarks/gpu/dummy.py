"""A model folder that vLLM serves with dummy weights: a catalog entry's config.json, and a tokenizer of its size."""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = (
    64  # ids left free: the tokenizers of some families add their own special tokens at the end
)


def write(name: str, folder: Path, differs: dict | None = None) -> Path:
    """Write the folder of a catalog model and return it; `differs`: fields of its config.json.

    Its tokenizer reads a token a byte, and fills the vocabulary with words that no text has. What such a model says
    means nothing; how long it takes is what the real one takes. Start it with `--load-format dummy`.
    """
    from inference_planner.catalog import load_model
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    raw = {**load_model(name).raw, **(differs or {})}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Ġ: a space
    vocabulary = letters + [
        f"Ġ{number}" for number in range(len(letters), raw["vocab_size"] - SPECIAL)
    ]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(vocabulary)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return folder
