"""Quantize one matrix: round to nearest, GPTQ, AWQ's scales, and 8-bit floats. NumPy, written to be read.

A Linear's weight W is [outputs, inputs]; it turns inputs x into x @ W.T. Everything here stores W in few bits with
scales beside it. What differs is which rounding errors are made: GPTQ and AWQ look at inputs (calibration), and spend
the error where the inputs are small. H = mean of x xᵀ over calibration tokens, [inputs, inputs], is all they keep.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workshop.errors import BadInput
from workshop.teaching_model.reference import to_bfloat16

SCALE_BYTES = 2  # vLLM's checkpoints keep scales in 16 bit
# 4 bits of exponent, 3 of mantissa, no infinity (Micikevicius et al., arXiv 2209.05433)
E4M3_LARGEST = 448.0


@dataclass(frozen=True)
class Quantized:
    """A quantized weight: integer codes, and a scale for each group of inputs of each output."""

    # [outputs, inputs], integers; from -2**(bits-1) on, or from 0 on with zero points
    codes: np.ndarray
    scales: np.ndarray  # [outputs, groups], what one step of a code is worth
    # [outputs, groups], the code that means 0; None: symmetric, code 0 means 0
    zeros: np.ndarray | None
    bits: int
    group_size: int

    def dequantize(self) -> np.ndarray:
        """Return the float32 weight [outputs, inputs] that the codes stand for."""
        codes = self.codes.astype(np.float32)
        if self.zeros is not None:
            codes = codes - np.repeat(self.zeros, self.group_size, 1)
        return codes * np.repeat(self.scales, self.group_size, 1)

    @property
    def stored_bytes(self) -> int:
        """Bytes in a checkpoint: codes packed without gaps, scales in 16 bit, zero points as wide as codes."""
        stored_codes = self.codes.size
        if self.zeros is not None:
            stored_codes += self.zeros.size
        code_bytes = -(-stored_codes * self.bits // 8)
        return code_bytes + self.scales.size * SCALE_BYTES


def group_of(inputs: int, group_size: int) -> int:
    """Return how many inputs share a scale; -1 asks for one scale a row.

    Raises BadInput: the group does not divide the inputs; the groups that do are named.
    """
    if group_size == -1:
        return inputs
    if group_size < 1 or inputs % group_size:
        sizes = [str(size) for size in (32, 64, 128, 256) if inputs % size == 0]
        remedy = f"Choose from: {', '.join([*sizes, '-1'])} (-1: one scale a row)."
        raise BadInput(f"A group of {group_size} does not divide {inputs} inputs.", remedy)
    return group_size


def scales_of(
    w: np.ndarray, bits: int, symmetric: bool = True
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return (scale, zero) of each row of w, so that its smallest and largest number have codes.

    Symmetric: scale = max |w| / (2**(bits-1) - 0.5). Otherwise the 2**bits codes span from the least to the greatest.

    Raises BadInput: fewer than 2 bits, or more than 8.
    """
    if not 2 <= bits <= 8:
        raise BadInput(f"{bits} bits cannot be.", "Choose 2 to 8 bits.")
    if symmetric:
        scale = np.abs(w).max(1) / (2 ** (bits - 1) - 0.5)
        return _stored(scale), None
    low = np.minimum(w.min(1), 0)
    high = np.maximum(w.max(1), 0)
    scale = _stored((high - low) / (2**bits - 1))
    return scale, np.clip(np.round(-low / scale), 0, 2**bits - 1).astype(np.float32)


def _stored(scale: np.ndarray) -> np.ndarray:
    """Scales as a checkpoint keeps them: bfloat16, and never 0 (a row of zeros has any scale)."""
    return to_bfloat16(np.where(scale == 0, 1, scale))


def encode(w: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, bits: int) -> np.ndarray:
    """Return the nearest codes of w [rows, columns], with a scale (and zero) a row."""
    if zero is None:
        return np.clip(np.round(w / scale[:, None]), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return np.clip(np.round(w / scale[:, None]) + zero[:, None], 0, 2**bits - 1)


def round_to_nearest(
    w: np.ndarray, bits: int, group_size: int = -1, symmetric: bool = True
) -> Quantized:
    """Return w with every number at its nearest code. It needs no calibration and is the baseline of all methods."""
    group = group_of(w.shape[1], group_size)
    parts = w.astype(np.float32).reshape(-1, group)  # a group is a row of its own
    scale, zero = scales_of(parts, bits, symmetric)
    codes = encode(parts, scale, zero, bits).reshape(w.shape).astype(np.int16)
    shape = (w.shape[0], w.shape[1] // group)
    if zero is not None:
        zero = zero.reshape(shape)
    return Quantized(codes, scale.reshape(shape), zero, bits, group)


def gptq(
    w: np.ndarray, hessian: np.ndarray, bits: int, group_size: int = -1, damp: float = 0.01
) -> Quantized:
    """Return w quantized column by column. Later columns compensate for the error of each column.

    hessian: H, [inputs, inputs]. With U the upper Cholesky factor of H⁻¹, rounding column j by e is answered best
    (least change of the outputs) by taking e / U[j, j] · U[j, j+1:] off the columns to its right.
    Source: GPTQ, arXiv 2210.17323, algorithm 1; damp is its 1 % of the mean diagonal.
    """
    group = group_of(w.shape[1], group_size)
    h = hessian.astype(np.float64) + damp * np.mean(np.diag(hessian)) * np.eye(len(hessian))
    upper = np.linalg.cholesky(np.linalg.inv(h)).T
    left = w.astype(np.float64).copy()  # what is still to be stored
    codes = np.zeros(w.shape, np.int16)
    scales = np.zeros((w.shape[0], w.shape[1] // group), np.float32)
    for start in range(0, w.shape[1], group):
        block = slice(start, start + group)
        scale, _ = scales_of(left[:, block], bits)
        scales[:, start // group] = scale
        errors = np.zeros((w.shape[0], group))
        for j in range(start, start + group):
            codes[:, j] = encode(left[:, j : j + 1], scale, None, bits)[:, 0]
            error = (left[:, j] - codes[:, j] * scale) / upper[j, j]
            left[:, j + 1 : block.stop] -= error[:, None] * upper[j, j + 1 : block.stop]
            errors[:, j - start] = error
        left[:, block.stop :] -= errors @ upper[block, block.stop :]
    return Quantized(codes, scales, None, bits, group)


def output_error(w: np.ndarray, approximation: np.ndarray, hessian: np.ndarray) -> float:
    """Return the mean squared change of the outputs, over calibration tokens, summed over outputs: tr(ΔW H ΔWᵀ)."""
    change = (approximation - w).astype(np.float64)
    return float(np.sum((change @ hessian) * change))


def awq_scales(
    matrices: Sequence[np.ndarray],
    hessian: np.ndarray,
    size: np.ndarray,
    bits: int,
    group_size: int,
) -> tuple[np.ndarray, float]:
    """Return (a factor for each input, the best exponent). Columns are stored larger by the factor, inputs smaller.

    A column that meets large inputs is made larger before rounding, so its error is relatively smaller. The factor is
    size**alpha, with alpha of a grid from 0 (plain rounding) to 1; the least change of outputs wins.

    Args:
        matrices: the Linears that read the same input (q, k, v; gate, up).
        size: mean of |x| of each input.
    Source: AWQ, arXiv 2306.00978, section 3.2. Its search for clipping is left out.
    """
    best = (np.ones(len(size), np.float32), 0.0)
    least_error = np.inf
    for alpha in np.linspace(0, 1, 21):
        factor = np.maximum(size, 1e-4) ** alpha
        factor = (factor / np.sqrt(factor.max() * factor.min())).astype(np.float32)
        error = 0.0
        for w in matrices:
            rounded = round_to_nearest(w * factor, bits, group_size, symmetric=False)
            error += output_error(w, rounded.dequantize() / factor, hessian)
        if error < least_error:
            best = (factor, float(alpha))
            least_error = error
    return best


def to_e4m3(x: np.ndarray) -> np.ndarray:
    """Return the nearest 8-bit floats (E4M3): 8 steps between two powers of two, up to 448, where it saturates."""
    x = np.clip(x, -E4M3_LARGEST, E4M3_LARGEST)
    exponent = np.frexp(np.maximum(np.abs(x), 2.0**-6))[1] - 1  # below 2**-6 steps no longer shrink
    step = np.ldexp(np.float32(1), exponent - 3)
    return (np.round(x / step) * step).astype(np.float32)


def float8_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (8-bit floats, scales) with one scale a row (the last axis), so that each row's largest is 448."""
    scale = _row_scales(x, E4M3_LARGEST)
    return to_e4m3(x / scale), scale


def int8_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (whole numbers from -127 to 127, scales) with one scale a row (the last axis)."""
    scale = _row_scales(x, 127.0)
    return np.clip(np.round(x / scale), -127, 127), scale


def _row_scales(x: np.ndarray, largest: float) -> np.ndarray:
    most = np.abs(x).max(-1, keepdims=True)
    return to_bfloat16(np.where(most == 0, 1, most / largest))
