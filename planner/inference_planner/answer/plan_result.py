"""The `Plan` that `plan()` returns, with its split, its memory, its messages and its times."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from inference_planner.answer.choose import executor
from inference_planner.catalog.gpus import GIB
from inference_planner.ground import intervals
from inference_planner.ground.basis import Ground, sizes_from
from inference_planner.ground.doubts import doubts
from inference_planner.memory.fit import Fit
from inference_planner.memory.overheads import Overhead
from inference_planner.model import drafts
from inference_planner.model.kv_cache import kv_cache_bytes_per_token, kv_dtype_bytes
from inference_planner.refusals import (
    Finding,
    may_exceed_state_blocks,
    room_for_cache,
    seqs_that_start,
)
from inference_planner.speed.kernels import Kernel, kernels
from inference_planner.speed.roofline import Term
from inference_planner.split.communication import Traffic
from inference_planner.split.deployment import Deployment
from inference_planner.split.ranks import Rank
from inference_planner.split.settings import Settings

# The keys of `workshop plan --json`, in its order. Ranks and settings follow.
JSON_KEYS = (
    "model",
    "gpu",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "nodes",
    "gpus",
    "fits",
    "weights_gib_per_gpu",
    "overhead_gib_per_gpu",
    "available_kv_gib_per_gpu",
    "kv_bytes_per_token",
    "kv_cache_tokens",
    "max_concurrency",
    "single_stream_tokens_per_s",
    "command",
    "reasons",
    "advice",
    "decode_context_parallel_size",
    "learners_at_once",
    "num_gpu_blocks",
    "block_size",
    "max_model_len",
    "gpus_per_node",
    "executor",
    "vllm_version",
    "gpu_memory_gib",
    "requested_gib_per_gpu",
    "overheads",
    "communication",
    "decode",
    "basis",
    "sizes_from",
    "free_gib",
    "exact",
    "source",
    "refusals",
    "pooling",
    "kernels",
)
# The figures that have a low and a high value beside them, as `…_low` and `…_high`.
UNCERTAIN = (
    "weights_gib_per_gpu",
    "overhead_gib_per_gpu",
    "available_kv_gib_per_gpu",
    "kv_cache_tokens",
    "max_concurrency",
    "single_stream_tokens_per_s",
    "learners_at_once",
    "num_gpu_blocks",
)


def has_speed(deployment: Deployment) -> bool:
    """Return True if the model generates text and the bandwidth of the card is known."""
    return deployment.gpu.has_known_speed and not deployment.model.pooling


SPEEDS = ("single_stream_tokens_per_s", "learners_at_once")  # None where the bandwidth is unknown


@dataclass(frozen=True)
class Plan:
    """One way to run a model: the split, what fits, how fast one request is, and the command.

    Every number follows from the values that the plan carries. Sizes per GPU are those of the
    pipeline stage with the least room, in GiB of 2**30 bytes. If the memory is too small,
    capacities and speeds are 0.
    """

    deployment: Deployment  # the model, the GPU, vLLM's settings and the sizes of the split
    fit: Fit
    communication: list[Traffic]  # the messages of a step that computes one token
    ranks: list[Rank]
    ground: Ground  # how far the case is from what was measured: see ground/basis.py
    refusals: list[Finding]  # why vLLM would refuse to start, and the flags that avoid it
    decode: list[Term] = field(default_factory=list[Term])  # the times of one decoding step
    # Requests that arrive together and get their first token within 5 s: see speed/roofline.py.
    learners_at_once: int = 0
    world_size: int = 0  # GPUs available; 0 where that is unknown, or the sizes were given
    reasons: list[str] = field(default_factory=list[str])
    advice: list[str] = field(default_factory=list[str])
    command: str = ""  # empty if vLLM has no class for the architecture

    @property
    def model(self) -> str:
        return self.deployment.model.name

    @property
    def gpu(self) -> str:
        return self.deployment.gpu.name

    @property
    def tensor_parallel_size(self) -> int:
        return self.deployment.tp

    @property
    def pipeline_parallel_size(self) -> int:
        return self.deployment.pp

    @property
    def data_parallel_size(self) -> int:
        return self.deployment.dp

    @property
    def nodes(self) -> int:
        return self.deployment.nodes

    @property
    def gpus(self) -> int:
        return self.deployment.gpus

    @property
    def fits(self) -> bool:
        """True if one request of max_model_len fits, and vLLM refuses no setting (refusals.py)."""
        return self.fit.holds_a_request and not self.refusals

    @property
    def has_speed(self) -> bool:
        return has_speed(self.deployment)

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels that vLLM takes for the products, with what they were measured to reach."""
        return kernels(self.deployment) if self.has_speed else []

    @property
    def starts(self) -> bool:
        """True if the plan fits, and vLLM has a class for the architecture."""
        return self.fits and bool(self.command)

    @property
    def weights_gib_per_gpu(self) -> float:
        return self.fit.weights[self.fit.tightest] / GIB

    @property
    def overhead_gib_per_gpu(self) -> float:
        """Activations, CUDA graphs and everything else that is neither weights nor KV cache."""
        return self.fit.overhead[self.fit.tightest] / GIB

    @property
    def available_kv_gib_per_gpu(self) -> float:
        """The memory left for the KV cache, also if too little for one request; at least 0."""
        return max(0, self.fit.available[self.fit.tightest]) / GIB

    @property
    def kv_bytes_per_token(self) -> int:
        """KV-cache bytes of a token for model and draft, before tensor parallelism."""
        if not self.fit.has_cache:
            return 0
        settings = self.deployment.settings
        element_bytes = kv_dtype_bytes(self.deployment.model, settings.kv_cache_dtype)
        size = kv_cache_bytes_per_token(self.deployment.model, settings.kv_cache_dtype)
        return size + drafts.cache_bytes_per_token(
            self.deployment.model, settings.draft, element_bytes
        )

    @property
    def kv_cache_tokens(self) -> int:
        """The tokens that vLLM will print as "GPU KV cache size", of one replica."""
        if not self.fit.holds_a_request or not self.fit.has_cache:
            return 0
        return self.fit.capacity.tokens

    @property
    def max_concurrency(self) -> float:
        """The requests of max_model_len in the KV cache, as vLLM's "Maximum concurrency"."""
        if not self.fit.holds_a_request or not self.fit.has_cache:
            return 0.0
        return self.fit.capacity.max_concurrency

    @property
    def num_gpu_blocks(self) -> int:
        if not self.fit.holds_a_request or not self.fit.has_cache:
            return 0
        return self.fit.capacity.blocks

    @property
    def single_stream_tokens_per_s(self) -> float:
        """Output tokens per second of a single request; 0 if the speed of the GPU is unknown."""
        if not self.fit.holds_a_request or not self.decode:
            return 0.0
        return 1e3 / sum(term.ms for term in self.decode)

    @property
    def executor(self) -> str:
        """The executor of the workers: `uni`, or `mp` for multiprocessing, also over nodes."""
        return executor(self.deployment.replica_gpus, self.nodes)[0]

    @property
    def requested_gib_per_gpu(self) -> float:
        """GiB of a GPU that vLLM may use: gpu_memory_utilization of its memory."""
        return self.fit.requested / GIB

    @property
    def overheads(self) -> list[Overhead]:
        """The parts of overhead_gib_per_gpu, each with its reason and source."""
        return list(self.fit.overheads[self.fit.tightest])

    @property
    def basis(self) -> str:
        """The distance from what was measured (`Basis`), and the model it is derived from."""
        if self.deployment.model.derived_from:
            return f"{self.ground.basis}, derived from {self.deployment.model.derived_from}"
        return self.ground.basis

    @property
    def sizes_from(self) -> str:
        """The origin of weights and KV cache (`SizesFrom`), and the model it is derived from."""
        origin = sizes_from(self.deployment)
        if origin == "derived":
            return f"derived from {self.deployment.model.derived_from}"
        return origin

    @property
    def exact(self) -> bool:
        """True if vLLM's own class was built for this plan."""
        exact = self.deployment.model.exact
        return bool(exact and exact.basis == "exact" and self.sizes_from == "exact")

    @property
    def source(self) -> str:
        """The vLLM whose class gave the sizes, or what an estimate rests on; "" for formulas."""
        exact = self.deployment.model.exact
        return exact.source if exact else ""

    @cached_property
    def spread(self) -> intervals.Spread:
        """The half widths of the intervals of memory and time."""
        return intervals.spread(self.deployment, self.fit, self.ground)

    @cached_property
    def intervals(self) -> dict[str, intervals.Interval]:
        """The low and high value of each figure in UNCERTAIN, for nine of ten measured ones."""
        half = self.spread
        free_gib = self.fit.available[self.fit.tightest] / GIB
        cache = intervals.capacities(self.deployment, self.fit, half.available_gib)
        speed = intervals.of_speed(self.single_stream_tokens_per_s, half.time_share)
        requests = intervals.of_speed(self.learners_at_once, half.time_share)
        if not self.fit.has_cache:
            none = intervals.around(0.0, 0.0)
            cache = replace(cache, tokens=intervals.whole(none), max_concurrency=none)
            cache = replace(cache, blocks=intervals.whole(none))
        return {
            "weights_gib_per_gpu": intervals.around(self.weights_gib_per_gpu, half.weights_gib),
            "overhead_gib_per_gpu": intervals.around(self.overhead_gib_per_gpu, half.overhead_gib),
            "available_kv_gib_per_gpu": intervals.around(free_gib, half.available_gib),
            "kv_cache_tokens": cache.tokens,
            "max_concurrency": cache.max_concurrency,
            "single_stream_tokens_per_s": speed,
            "learners_at_once": intervals.whole(requests),
            "num_gpu_blocks": cache.blocks,
        }

    @property
    def may_not_start(self) -> bool:
        """True if it fits, but would not at one end of its intervals."""
        return bool(self.start_doubt)

    @cached_property
    def start_doubt(self) -> str:
        """Say what is missing at one end of the intervals of a plan that fits, and what is safer; or ""."""
        if not self.fits or not self.kv_cache_tokens:
            return ""
        settings = self.deployment.settings
        at_low_end = "at the low end of the range there"
        if settings.kv_cache_memory_bytes:
            if room_for_cache(self.deployment) < self.spread.room_gib * GIB:
                return (
                    "at the high end of weights and overhead the bytes of --kv-cache-memory-bytes "
                    "are not free. Fewer are safer."
                )
        elif settings.fits_length:
            if self.intervals["num_gpu_blocks"].low < 1:
                return f"{at_low_end} is no room for a KV cache."
        elif self.intervals["max_concurrency"].low < 1:
            return (
                f"{at_low_end} is no room for one request of {settings.max_model_len:,} tokens. "
                "A shorter --max-model-len is safer."
            )
        if may_exceed_state_blocks(self.deployment):
            return (
                f"{at_low_end} are fewer blocks than max_num_seqs {settings.max_num_seqs:,}. "
                f"--max-num-seqs {seqs_that_start(self.deployment)} is safer."
            )
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as `workshop plan --json` prints it."""
        deployment = self.deployment
        decided = {
            "enable_expert_parallel": deployment.ep,
            "decode_context_parallel_size": deployment.dcp,
            "block_size": self.fit.layout.block_size,
            "max_model_len": deployment.settings.max_model_len,
            "gpus_per_node": deployment.gpus_per_node,
            "vllm_version": deployment.settings.vllm_version,
            "gpu_memory_gib": deployment.gpu.engine_gib,
            "free_gib": deployment.free_gib,
            "pooling": deployment.model.pooling,
        }
        data: dict[str, Any] = {}
        for key in JSON_KEYS:
            is_unknown = key in SPEEDS and not self.has_speed
            data[key] = None
            if not is_unknown:
                data[key] = decided[key] if key in decided else getattr(self, key)
            if key not in UNCERTAIN:
                continue
            data[f"{key}_low"] = None
            data[f"{key}_high"] = None
            if not is_unknown:
                interval = self.intervals[key]
                data[f"{key}_low"] = interval.low
                data[f"{key}_high"] = interval.high
        data["refusals"] = [asdict(finding) for finding in self.refusals]
        data["doubts"] = [doubt.name for doubt in doubts(self.deployment, self.ground)]
        data["overheads"] = [asdict(overhead) for overhead in self.overheads]
        data["communication"] = [asdict(message) for message in self.communication]
        data["kernels"] = [used.to_dict() for used in self.kernels]
        data["decode"] = [asdict(term) for term in self.decode]
        data["ranks"] = [
            {**vars(rank), "layers": [rank.layers.start, rank.layers.stop]} for rank in self.ranks
        ]
        data["settings"] = _settings_data(self.deployment.settings)
        return data


def _settings_data(settings: Settings) -> dict[str, Any]:
    """Return the settings as plain data; those of a draft as vLLM takes them."""
    data = asdict(replace(settings, draft=None))
    del data["draft"]
    data["speculative_config"] = None
    if settings.draft:
        data["speculative_config"] = json.loads(settings.draft.config)
    return data
