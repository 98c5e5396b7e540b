"""PyTorch's caching allocator, as far as it decides what "Model loading took … GiB" says.

The engine counts allocated blocks, and a block can be larger than what was asked for: sizes are
rounded, and while loading, vLLM sets max_split_size_mb=20, so that a block of 20 MiB or more is
never split but handed out whole. A temporary that was freed while the model was built may thus be
reused by a smaller weight and counted in full.

Source: PyTorch c10/cuda/CUDACachingAllocator.cpp (2.11); vLLM 0.25.1 v1/worker/gpu_worker.py
load_model.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

from inference_planner.catalog.gpus import MIB

MIN_BLOCK = 512  # every size is a multiple of it
SMALL = MIB  # requests up to this come from segments of 2 MiB
LARGE_SEGMENT = 20 * MIB  # requests below MIN_LARGE come from these
MIN_LARGE = 10 * MIB  # larger requests get a segment of their own, rounded to ROUND_LARGE
ROUND_LARGE = 2 * MIB
MAX_SPLIT_WHILE_LOADING = 20 * MIB
# Before 0.20: Gemma 3 1B (0.13.0), Llama 3.1 8B (0.10.1) and gpt-oss 20B (0.19.0) print what blocks
# make that are split, 0.04, 0.02 and 0.08 GiB less (benchmarks/accuracy).
ALWAYS_SPLIT = 1 << 60


class Allocator:
    """Counts allocated block bytes. Small requests (up to 1 MiB) pack well and count as they are.

    Freed neighbours are not merged: what is freed while loading are whole segments.

    Args:
        most_split: bytes of the blocks from which on they are handed out whole.
    """

    def __init__(self, most_split: int = MAX_SPLIT_WHILE_LOADING) -> None:
        self.most_split = most_split
        self.allocated = 0
        self.free_blocks: list[int] = []  # sizes of free large blocks, ascending

    def alloc(self, size: int) -> int:
        """Allocate `size` bytes; return the size of the block that was handed out, for free()."""
        size = -(-size // MIN_BLOCK) * MIN_BLOCK
        if size <= SMALL:
            self.allocated += size
            return size
        new = LARGE_SEGMENT if size < MIN_LARGE else -(-size // ROUND_LARGE) * ROUND_LARGE
        block = self._reuse(size) or new
        if size < self.most_split and block - size > SMALL:
            insort(self.free_blocks, block - size)
            block = size
        self.allocated += block
        return block

    def alloc_all(self, sizes: Iterable[int]) -> None:
        for size in sizes:
            self.alloc(size)

    def _reuse(self, size: int) -> int:
        """Take the smallest free block that is large enough, if it may be split or fits."""
        i = bisect_left(self.free_blocks, size)
        if i == len(self.free_blocks):
            return 0
        block = self.free_blocks[i]
        if size < self.most_split <= block or (
            size >= self.most_split and block >= size + LARGE_SEGMENT
        ):
            return 0
        return self.free_blocks.pop(i)

    def free(self, block: int) -> None:
        self.allocated -= block
        if block > SMALL:
            insort(self.free_blocks, block)
