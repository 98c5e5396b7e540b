"""The teaching model's arithmetic in NumPy: what vLLM computes for a Llama, short enough to read.

It needs no torch, so that a light session can quantize the model and see what that costs. Weights are read as
float32; `through` sees, and may change, every Linear's input and what goes into the KV cache.
"""

from __future__ import annotations

import itertools
import json
import re
import struct
import unicodedata
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from workshop.errors import BadInput
from workshop.teaching_model import FOLDER

Through = Callable[[str, np.ndarray], np.ndarray]
"""Takes a name and an array, and returns what the model continues with: the array itself, or a quantized approximation."""
SEQUENCES_AT_ONCE = 2  # through the model: their logits take memory
LINEAR = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Return the float32 tensors of a file of bfloat16 ones: 8 bytes of length, a JSON header, then plain bytes.

    A bfloat16 number is the upper half of a float32. Raises BadInput for another dtype.
    """
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise BadInput(
                f"{path.name}: {name} is {entry['dtype']}.", "Only bfloat16 (BF16) is read here."
            )
        start, end = entry["data_offsets"]
        halves = np.frombuffer(body[start:end], dtype="<u2")
        tensors[name] = (halves.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
    return tensors


@lru_cache(maxsize=2)
def _read(folder: Path) -> tuple[dict[str, np.ndarray], dict]:
    tensors: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors |= read_safetensors(path)
    return tensors, json.loads((folder / "config.json").read_text(encoding="utf-8"))


def load(folder: Path = FOLDER) -> Llama:
    """Return the teaching model, 11.7 million parameters, or its draft, 2.4 million: load(DRAFT)."""
    tensors, config = _read(folder)
    return Llama(dict(tensors), config)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Return float32 numbers rounded to the nearest bfloat16 (ties to even)."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


class Llama:
    """A Llama with its weights by their names in the checkpoint.

    Args:
        weights: float32, shapes as in the checkpoint: a Linear is [outputs, inputs].
        config: the fields of config.json.
        through: called with (name, array) for every Linear's input ("model.layers.0.mlp.up_proj") and for what the
            KV cache keeps ("model.layers.0.k_cache", "…v_cache").
    """

    def __init__(
        self, weights: dict[str, np.ndarray], config: Mapping, through: Through | None = None
    ):
        self.weights = weights
        self.config = config
        self.through = through or (lambda name, x: x)

    def linear_names(self) -> list[str]:
        """Return the names of the Linear layers, without ".weight". Quantization changes these alone."""
        return [
            f"model.layers.{i}.{part}"
            for i in range(self.config["num_hidden_layers"])
            for part in LINEAR
        ]

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.through(name, x) @ self.weights[f"{name}.weight"].T

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        scale = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.config["rms_norm_eps"])
        return x * scale * self.weights[f"{name}.weight"]

    def logits(self, ids: np.ndarray, cache: list | None = None) -> np.ndarray:
        """Return the logits of the next token at every position.

        Args:
            ids: token ids of shape [sequences, length]; all sequences are equally long.
            cache: an empty list at first; it keeps K and V of each layer, and a later call goes on behind them.
        Returns: float32 of shape [sequences, length, vocab_size].
        """
        # the head is tied
        return self.hidden(ids, cache) @ self.weights["model.embed_tokens.weight"].T

    def hidden(self, ids: np.ndarray, cache: list | None = None) -> np.ndarray:
        """Return what the head reads: float32 of shape [sequences, length, hidden_size]. Arguments as of logits."""
        x = self.weights["model.embed_tokens.weight"][ids]
        layers = self.config["num_hidden_layers"]
        if cache is not None and not cache:
            cache += [None] * layers
        for i in range(layers):
            name = f"model.layers.{i}"
            x = x + self._attention(i, self._norm(f"{name}.input_layernorm", x), cache)
            h = self._norm(f"{name}.post_attention_layernorm", x)
            gate = self._linear(f"{name}.mlp.gate_proj", h)
            up = self._linear(f"{name}.mlp.up_proj", h)
            x = x + self._linear(f"{name}.mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
        return self._norm("model.norm", x)

    def _attention(self, i: int, h: np.ndarray, cache: list | None) -> np.ndarray:
        c, name = self.config, f"model.layers.{i}"
        heads, groups, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        q, k, v = (
            self._linear(f"{name}.self_attn.{p}_proj", h).reshape(*h.shape[:2], -1, size)
            for p in "qkv"
        )
        before = 0 if cache is None or cache[i] is None else cache[i][0].shape[1]
        at = np.arange(before, before + h.shape[1])
        q, k = rotate(q, at, c["rope_theta"]), rotate(k, at, c["rope_theta"])
        k, v = self.through(f"{name}.k_cache", k), self.through(f"{name}.v_cache", v)
        if cache is not None:
            if before:
                k, v = np.concatenate([cache[i][0], k], 1), np.concatenate([cache[i][1], v], 1)
            cache[i] = (k, v)
        # query heads that share a KV head
        q = q.reshape(*h.shape[:2], groups, heads // groups, size)
        k, v = k.transpose(0, 2, 3, 1)[:, :, None], v.transpose(0, 2, 1, 3)[:, :, None]
        scores = q.transpose(0, 2, 3, 1, 4) @ k / np.float32(np.sqrt(size))
        scores += np.where(np.arange(k.shape[-1]) > at[:, None], np.float32(-1e30), np.float32(0))
        mixed = softmax(scores) @ v
        return self._linear(
            f"{name}.self_attn.o_proj", mixed.transpose(0, 3, 1, 2, 4).reshape(*h.shape[:2], -1)
        )


def rotate(x: np.ndarray, positions: np.ndarray, theta: float) -> np.ndarray:
    """Apply rotary position embeddings to [sequences, length, heads, head_dim]."""
    half = x.shape[-1] // 2
    angle = positions[:, None] / theta ** (np.arange(half) / half)
    cos, sin = (f(angle).astype(np.float32)[:, None] for f in (np.cos, np.sin))
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def softmax(x: np.ndarray) -> np.ndarray:
    """Return exp(x) divided by its sum over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def token_losses(model: Llama, ids: np.ndarray) -> np.ndarray:
    """Return -ln p of every token after the first, of sequences [sequences, length]: [sequences, length - 1] nats."""
    losses = []
    for start in range(0, len(ids), SEQUENCES_AT_ONCE):
        part = ids[start : start + SEQUENCES_AT_ONCE]
        logits = model.logits(part[:, :-1])
        top = logits.max(-1, keepdims=True)
        logsum = top[..., 0] + np.log(np.exp(logits - top).sum(-1))
        next_ids = part[:, 1:, None].astype(np.int64)
        losses.append(logsum - np.take_along_axis(logits, next_ids, -1)[..., 0])
    return np.concatenate(losses)


def perplexity(model: Llama, ids: np.ndarray) -> float:
    """Return exp of the mean loss: the number of equally likely tokens between which the model has to choose."""
    return float(np.exp(token_losses(model, ids).mean(dtype=np.float64)))


def complete(model: Llama, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Return the greedy continuation of each prompt, up to max_tokens or the end-of-text token, which is left out.

    Prompts of one length go through together, so that no padding is needed.
    """
    eos = model.config["eos_token_id"]
    continuations: list[list[int]] = [[] for _ in prompts]
    by_length: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(index)
    for indices in by_length.values():
        ids = np.array([prompts[index] for index in indices])
        cache: list = []
        steps: list[list[int]] = []
        ended = np.zeros(len(indices), bool)
        while len(steps) < max_tokens and not ended.all():
            ids = model.logits(ids, cache)[:, -1:].argmax(-1)
            ended |= ids[:, 0] == eos
            steps.append(ids[:, 0].tolist())
        for index, row in zip(indices, zip(*steps, strict=True), strict=True):
            end = row.index(eos) if eos in row else len(row)
            continuations[index] = list(row[:end])
    return continuations


@lru_cache(maxsize=1)
def _pieces() -> tuple[dict[int, str], dict[str, int]]:
    """Return (id to token, character to byte): byte-level BPE writes each byte as a printable character."""
    tokenizer = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = {i: token for token, i in tokenizer["model"]["vocab"].items()}
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return tokens, {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


BEGIN = 0  # <|begin_of_text|>, which every text gets
SPECIAL = re.compile(r"(<\|begin_of_text\|>|<\|end_of_text\|>)")
# Words as byte-level BPE cuts them, over the classes of characters that `_class` gives
WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[a-z]+| ?0+| ?[!']+|[ \t]+(?![^ \t])|[ \t]+")


def _class(character: str) -> str:
    """Return a stand-in for a character's class: a letter, 0 of a number, a space, a tab of other white space, or !."""
    if character.isspace():
        return " " if character == " " else "\t"
    if character in "dlmrestv'":  # of a contraction: 's, 're
        return character
    return {"L": "a", "N": "0"}.get(unicodedata.category(character)[0], "!")


@lru_cache(maxsize=1)
def _merges() -> tuple[dict[str, int], dict[tuple[str, str], int], dict[int, str]]:
    """Return (token to id, pair of tokens to the rank of its merge, byte to character)."""
    model = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    ranks = {}
    for rank, pair in enumerate(model["merges"]):
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        ranks[left, right] = rank
    _, byte_of = _pieces()
    return model["vocab"], ranks, {byte: character for character, byte in byte_of.items()}


def encode(text: str) -> list[int]:
    """Return the token ids of a text, the begin-of-text token first, as the model's tokenizer cuts it."""
    ids_of, ranks, character_of = _merges()
    ids = [BEGIN]
    for part in SPECIAL.split(text):
        if SPECIAL.fullmatch(part):
            ids.append(BEGIN if "begin" in part else BEGIN + 1)
            continue
        for match in WORD.finditer("".join(map(_class, part))):
            word = part[match.start() : match.end()].encode()
            ids += [
                ids_of[token] for token in _merged([character_of[byte] for byte in word], ranks)
            ]
    return ids


def _merged(parts: list[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Return the parts of a word after all merges, the merge of the lowest rank first."""
    while len(parts) > 1:
        pairs = list(itertools.pairwise(parts))
        best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        place = pairs.index(best)
        parts[place : place + 2] = ["".join(best)]
    return parts


def decode(ids: list[int]) -> str:
    """Return the text of token ids; special tokens (begin and end of text) have none."""
    tokens, byte_of = _pieces()
    special = ("<|begin_of_text|>", "<|end_of_text|>")
    parts = (tokens.get(i, "") for i in ids)
    return bytes(byte_of[c] for part in parts if part not in special for c in part).decode(
        errors="replace"
    )
