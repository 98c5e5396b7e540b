"""Write the token ids that quantization is measured with: workshop/data/quantization/text.npz.

    python benchmarks/quantization/text.py

Needs `tokenizers` (extra `local`). Held-out text is the teaching model's own: it was never trained on.
"""

from __future__ import annotations

import json
import random

import numpy as np
from tokenizers import Tokenizer

from benchmarks.teaching_model import corpus, editions
from benchmarks.teaching_model.sentences import Page
from workshop.teaching_model import FOLDER
from workshop.teaching_model.schemes import TEXT

LENGTH = 256
CALIBRATION, KNOWN = 128, 32  # sequences


def stream(tokenizer: Tokenizer, pages: list[Page]) -> list[int]:
    """Return the pages' ids one after the other, each between begin and end of text."""
    ids = []
    for page in pages:
        ids.append(tokenizer.token_to_id("<|begin_of_text|>"))
        for segment in page:
            for piece in segment:
                ids += tokenizer.encode(piece, add_special_tokens=False).ids
            ids.append(tokenizer.token_to_id("<|end_of_text|>"))
    return ids


def sequences(ids: list[int], most: int | None = None) -> np.ndarray:
    count = min(len(ids) // LENGTH, most or len(ids))
    return np.array(ids[: count * LENGTH], dtype=np.uint16).reshape(count, LENGTH)


def main() -> None:
    """Tokenize and write."""
    tokenizer, data = Tokenizer.from_file(str(FOLDER / "tokenizer.json")), corpus.load()
    held_out = editions.held_out_pages(data)
    pages = editions.edition(data, 1000)  # training text, in a wording of its own
    random.Random(0).shuffle(pages)
    ids = stream(tokenizer, pages[:4000])
    prompts = [
        tokenizer.encode(row["prompt"]).ids
        for row in json.loads((FOLDER / "prompts.json").read_text())
    ]
    width = max(map(len, prompts))
    arrays = {
        "glosses": sequences(stream(tokenizer, held_out["glosses"])),
        "prose": sequences(stream(tokenizer, held_out["prose"])),
        "calibration": sequences(ids, CALIBRATION),
        "known": sequences(ids[CALIBRATION * LENGTH :], KNOWN),
        "prompts": np.array([p + [0] * (width - len(p)) for p in prompts], dtype=np.uint16),
        "prompt_lengths": np.array([len(p) for p in prompts], dtype=np.uint16),
    }
    np.savez_compressed(TEXT, **arrays)
    print({name: array.shape for name, array in arrays.items()}, TEXT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
