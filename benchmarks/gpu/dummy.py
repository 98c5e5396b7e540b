"""A model folder that vLLM serves with dummy weights: a catalogue entry's config.json, and a tokenizer of its size."""

from __future__ import annotations

import json
from pathlib import Path


def write(name: str, folder: Path) -> Path:
    """Write the folder of a catalogue model and return it. Its words are "t0 t1 t2 …", one for each id.

    What such a model says means nothing; how long it takes is what the real one takes. Start it with
    `--load-format dummy`.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    from workshop.plan.catalog import load_model

    raw = load_model(name).raw
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    vocabulary = {f"t{number}": number for number in range(raw["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder
