"""What is known of a model beyond its config.json: what vLLM's own classes said, or how large its checkpoint is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from workshop.plan.weight import ExpertSplit


@dataclass(frozen=True)
class BuiltGroup:
    """Layers that share a block table, as vLLM grouped them. kind: the class of its KV-cache spec."""

    kind: str
    layers: tuple[int, ...]  # how many on each pipeline stage
    block_size: int
    page_bytes: int
    size: int  # tokens of a window or chunk; 0 without
    blocks_per_request: int  # at the max_model_len that was asked for


@dataclass(frozen=True)
class Built:
    """One split of a model, built on the meta device. Bytes of one rank; one entry a pipeline stage where it is a tuple.

    Attributes:
        loaded_bytes: parameters and buffers in the blocks that PyTorch's allocator hands out for them.
        pool_bytes_per_block: a block of every layer of the longest group.
        bytes_per_token: KV cache over all ranks, copies counted once.
        kv_bytes_each: of one cached element.
        experts: how they were shared out beside tensor parallelism; None: not.
    """

    tp: int
    pp: int
    loaded_bytes: tuple[int, ...]
    pool_bytes_per_block: tuple[int, ...]
    groups: tuple[BuiltGroup, ...]
    bytes_per_token: int
    kv_bytes_each: int
    experts: ExpertSplit | None = None


@dataclass(frozen=True)
class Exact:
    """What is known, and from where. basis: exact (built now, or earlier on this machine), recorded, or estimate.

    scale: of the weights, for splits that were not built: those of one rank over what the config alone makes of them.
    """

    basis: str
    source: str
    builds: tuple[Built, ...] = ()
    scale: float = 1.0

    def of(self, tp: int, pp: int) -> Built | None:
        """Return what is known of a split; its KV cache is the same however experts are shared out."""
        return next((b for b in self.builds if (b.tp, b.pp) == (tp, pp)), None)

    def weights_of(self, tp: int, pp: int, experts: ExpertSplit | None) -> Built | None:
        """Return what is known of the weights of a split."""
        return next((b for b in self.builds if (b.tp, b.pp, b.experts) == (tp, pp, experts)), None)

    def without_builds(self) -> Exact:
        """Return what still holds when the weights are stored in another way: their number."""
        return replace(self, basis="estimate", builds=())
