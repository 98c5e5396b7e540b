"""What few bits do to one matrix of the teaching model: a row of it, its likeness, the error, the size. No view."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from workshop.teaching_model import quantize, reference

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = {"32 inputs": 32, "64 inputs": 64, "a whole row": -1}
SHOWN = 32  # weights of the row that are drawn


@dataclass(frozen=True)
class Bits:
    """A matrix at so many bits.

    Attributes:
        weights, likeness: SHOWN numbers of one row, before and after.
        levels: the numbers that codes can stand for where these weights are.
        error: ‖ΔW‖ / ‖W‖ of the whole matrix.
        bits_per_weight: with the scales.
    """

    bits: int
    group: str
    weights: np.ndarray
    likeness: np.ndarray
    levels: np.ndarray
    error: float
    bits_per_weight: float


@lru_cache(maxsize=1)
def matrix(name: str = "model.layers.1.mlp.gate_proj") -> np.ndarray:
    """Return a Linear's weight of the teaching model, float32 [outputs, inputs]."""
    return reference.load().weights[f"{name}.weight"]


@lru_cache(maxsize=64)
def likeness(bits: int, group: str) -> tuple[quantize.Quantized, np.ndarray, float]:
    """Return the matrix rounded to nearest, symmetric; its numbers; and their error."""
    w, q = matrix(), quantize.round_to_nearest(matrix(), bits, GROUPS[group])
    whole = q.dequantize()
    return q, whole, float(np.linalg.norm(whole - w) / np.linalg.norm(w))


def bits_case(bits: int, group: str, row: int) -> Bits:
    """Return what is drawn. Raises KeyError for a group that is not one of GROUPS."""
    w, (q, whole, error) = matrix(), likeness(bits, group)
    levels = np.arange(-(2 ** (bits - 1)), 2 ** (bits - 1)) * q.scales[row, 0]
    return Bits(bits, group, w[row, :SHOWN], whole[row, :SHOWN], levels, error, 8 * q.stored_bytes / w.size)
