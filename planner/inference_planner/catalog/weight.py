"""One weight: its shape, and what a tensor-parallel rank holds of it.

Source: vLLM 0.25.1, model_executor/layers/linear.py and vocab_parallel_embedding.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

VOCAB_PADDING = 64  # vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE


class ExpertSplit(NamedTuple):
    """Over how many ranks experts are split.

    Each expert's matrices are cut over `cut` ranks, whole experts are dealt to `dealt` ranks, and
    shared experts are cut over `shared` ranks.
    """

    cut: int
    dealt: int
    shared: int


@dataclass(frozen=True)
class Weight:
    """One tensor of shape [copies, rows, cols].

    `split` names how a tensor-parallel rank gets its share.

    split: column (rows / TP), row (cols / TP), qkv (query rows / TP, KV rows / min(TP, KV heads)),
    vocab (padded rows / TP), vector (rows / TP, no cols), replicated.
    """

    name: str
    rows: int
    cols: int = 1
    split: str = "replicated"
    copies: int = 1  # experts
    quantizable: bool = False
    bias: bool = False
    kv_heads: int = 0  # for qkv
    kv_rows: int = 0  # rows of K and V together, for qkv
    bytes_each: int = 0  # 0: the model's dtype
    # if quantized, it stands in memory once more, in the model's dtype
    has_decoded_copy: bool = False
    shards: int = 1  # logical parts with a scale each (q, k, v; gate, up)

    @property
    def is_expert(self) -> bool:
        """True for a matrix or bias of the routed experts, of which `copies` stand side by side."""
        return self.name.startswith("mlp.experts")

    def elements(self) -> int:
        """Elements in the checkpoint: neither padded nor replicated."""
        elements = self.copies * self.rows * self.cols
        if self.bias:
            elements += self.rows
        return elements

    def distributed(self, tp: int, experts: ExpertSplit | None) -> tuple[Weight, int]:
        """Return the weight with the copies of one rank, and the ranks that share each of them."""
        if experts is None:
            return self, tp
        if self.is_expert:
            return replace(self, copies=-(-self.copies // experts.dealt)), experts.cut
        if self.name.startswith("mlp.shared_experts"):
            return self, experts.shared
        return self, tp

    def shape_on_rank(self, tp: int) -> tuple[int, int]:
        """Rows and columns of one copy on one of `tp` ranks."""
        if self.split == "qkv":
            kv = self.kv_rows // min(tp, self.kv_heads)
            return (self.rows - self.kv_rows) // tp + kv, self.cols
        if self.split == "vocab":
            return -(-self.rows // VOCAB_PADDING) * VOCAB_PADDING // tp, self.cols
        if self.split in ("column", "vector"):
            return -(-self.rows // tp), self.cols
        if self.split == "row":
            return self.rows, -(-self.cols // tp)
        return self.rows, self.cols

    def bias_on_rank(self, tp: int) -> int:
        if not self.bias:
            return 0
        if self.split == "row":
            return self.rows
        return self.shape_on_rank(tp)[0]
