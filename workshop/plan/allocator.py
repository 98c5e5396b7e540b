"""PyTorch's caching allocator, as far as it decides what "Model loading took … GiB" says.

The engine counts allocated blocks, and a block can be larger than what was asked for: sizes are rounded, and while
loading, vLLM sets max_split_size_mb=20, so that a block of 20 MiB or more is never split but handed out whole.
A temporary that was freed while the model was built may thus be reused by a smaller weight and counted in full.

Source: PyTorch c10/cuda/CUDACachingAllocator.cpp (2.11); vLLM 0.25.1 v1/worker/gpu_worker.py load_model.
"""

from __future__ import annotations

from bisect import bisect_left, insort

MIB = 1 << 20
MIN_BLOCK = 512               # every size is a multiple of it
SMALL = MIB                   # requests up to this come from 2 MiB segments
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB      # requests below MIN_LARGE come from these
MIN_LARGE = 10 * MIB          # larger requests get a segment of their own, rounded to ROUND_LARGE
ROUND_LARGE = 2 * MIB
MAX_SPLIT_WHILE_LOADING = 20 * MIB


class Allocator:
    """Counts allocated block bytes. Freed neighbours are not merged: loading frees whole segments only."""

    def __init__(self, max_split: int = MAX_SPLIT_WHILE_LOADING):
        self.max_split, self.allocated = max_split, 0
        self.small: list[int] = []        # sizes of free blocks, ascending
        self.large: list[int] = []

    def alloc(self, size: int) -> int:
        """Allocate `size` bytes; return the size of the block that was handed out, for free()."""
        if size <= 0:
            return 0
        size = -(-size // MIN_BLOCK) * MIN_BLOCK
        pool = self.small if size <= SMALL else self.large
        block = self._reuse(pool, size) or self._segment(size)
        rest = block - size
        split = rest >= MIN_BLOCK if size <= SMALL else size < self.max_split and rest > SMALL
        if split:
            insort(pool, rest)
            block = size
        self.allocated += block
        return block

    def _reuse(self, pool: list[int], size: int) -> int:
        """Take the smallest free block that is large enough, within the limits for unsplittable blocks."""
        i = bisect_left(pool, size)
        if i == len(pool):
            return 0
        block = pool[i]
        if size < self.max_split <= block:
            return 0
        if size >= self.max_split and block >= size + LARGE_SEGMENT:
            return 0
        return pool.pop(i)

    @staticmethod
    def _segment(size: int) -> int:
        if size <= SMALL:
            return SMALL_SEGMENT
        if size < MIN_LARGE:
            return LARGE_SEGMENT
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def free(self, block: int, small: bool = False) -> None:
        if block:
            self.allocated -= block
            insort(self.small if small else self.large, block)
