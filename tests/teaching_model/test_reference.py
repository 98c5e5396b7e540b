"""The arithmetic in NumPy is the model's: its logits are those of Transformers, its text the tokenizer's."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from needs import SEED

from workshop.errors import BadInput
from workshop.teaching_model import FOLDER, reference, schemes

ROWS = json.loads((FOLDER / "prompts.json").read_text(encoding="utf-8"))


def test_it_has_all_parameters(model):
    # 11.7 million, as its card says
    assert sum(w.size for w in model.weights.values()) == 11_702_208
    assert len(model.linear_names()) == 4 * 7


def test_logits_are_those_of_transformers(model):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    ids = schemes.text("glosses")[:2, :64]
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)).logits.numpy()
    assert np.abs(model.logits(ids) - expected).max() < 2e-3


def test_a_cache_changes_nothing(model):
    ids, cache = schemes.text("known")[:2, :24], []
    first, rest = model.logits(ids[:, :10], cache), model.logits(ids[:, 10:], cache)
    assert np.allclose(np.concatenate([first, rest], 1), model.logits(ids), atol=1e-3)


def test_it_completes_as_listed(model):
    wanted = [row for row in ROWS if row["prompt"] in ("San Francisco is a", "Boston is a")]
    prompts = [schemes.prompts()[ROWS.index(row)] for row in wanted]
    for row, ids in zip(wanted, reference.complete(model, prompts, 16), strict=True):
        assert row["completion"].startswith(reference.decode(ids)[:40])


def test_decode_is_the_tokenizers(model):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    for text in ("Zürich, naïve, 北京", "two  spaces\n\nand lines\t.", "🙂🚀"):
        assert reference.decode(tokenizer.encode(text).ids) == text
    assert [tokenizer.encode(row["prompt"]).ids for row in ROWS] == schemes.prompts()


def test_encode_is_the_tokenizers():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    generator = random.Random(SEED)
    characters = " \n\tab'sdé你²9_.-<|\u00a0\u0301👍Ⅷ"
    texts = ["", "don't we'll 'S", "a<|end_of_text|> b", *(row["prompt"] for row in ROWS)]
    for _ in range(200):
        texts.append("".join(generator.choices(characters, k=30)))
    for text in texts:
        assert reference.encode(text) == tokenizer.encode(text).ids, text


def test_uniform_logits_have_the_vocabulary_as_perplexity(model):
    flat = reference.Llama(
        {**model.weights, "model.norm.weight": np.zeros(448, np.float32)}, model.config
    )
    assert reference.perplexity(flat, schemes.text("known")[:1, :32]) == pytest.approx(
        8192, rel=1e-4
    )


def test_bfloat16_rounds_ties_to_even_as_torch_does():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(SEED).normal(size=10_000).astype(np.float32)
    x[:2] = [1 + 2**-8, 1 + 3 * 2**-8]  # exactly between two bfloat16 numbers
    theirs = torch.from_numpy(x).to(torch.bfloat16).to(torch.float32).numpy()
    assert (reference.to_bfloat16(x) == theirs).all()


def test_only_bfloat16_is_read(tmp_path):
    header = b'{"w":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}'
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    with pytest.raises(BadInput, match="F16"):
        reference.read_safetensors(tmp_path / "x.safetensors")
