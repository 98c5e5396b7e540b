"""The differences between vLLM releases: one row each, whose columns are named behaviors.

Code asks for a behavior (`settings.version.counts_all_allocations`) and never compares version
strings; what no behavior hangs on is compared by the functions below, and nowhere else. A new
release is a new row. Sources are paths of vLLM's own tree at the release's tag;
sizes were measured on an H200.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from inference_planner.catalog.gpus import MIB
from inference_planner.errors import BadInput


@dataclass(frozen=True)
class Version:
    """The behaviors of one vLLM release that the planner's numbers depend on.

    Attributes:
        large_gpu_defaults: 16,384 tokens a step and 1,024 requests on GPUs of 160 GiB and more
            (engine/arg_utils.py, get_batch_defaults).
        blackwell_graph_tokens: the largest batch with a CUDA graph on compute capability 10
            (config/vllm.py).
        counts_all_allocations: memory is read from cudaMemGetInfo, so that tables of requests and
            repacked weights count against the KV cache (v1/worker/gpu_worker.py).
        model_runner_v2_for_all: every model takes model runner V2 (config/vllm.py,
            use_v2_model_runner).
        compiles_in_profile_run: kernels are compiled, and timed, inside the profile run.
        matrix_workspaces: how often the matrix library's scratch space counts. 0: the first product
            comes before vLLM starts to count (init_device).
        sampler_logits: what the sampler keeps beside the logits in 16 bit (v1/worker/gpu/sample).
        graphs_are_estimated: memory for CUDA graphs is set aside with model runner V2, too
            (v1/worker/gpu/cudagraph_utils.py).
        caches_states: requests keep a further Mamba state for others with the same prefix, so
            hybrids have a prefix cache (config/model.py, is_prefix_caching_supported).
        counts_batches_in_flight: a sliding window keeps the tokens of every batch that is under way
            (VllmConfig.max_in_flight_tokens).
        loads_deep_gemm: a workspace comes with DeepGEMM while weights are loaded
            (utils/deep_gemm.py).
        gather_opens_communicator: the first gather of logits opens a communicator of its own in the
            profile run.
        custom_all_reduce_on_nodes: the custom all-reduce stays on if several nodes are started by
            --nnodes (config/parallel.py).
        fast_eager_launch: eager layers are launched at the pace that was measured under 0.32.0.
        scales_yarn: YaRN allows its original positions times the factor, whatever
            max_position_embeddings says (config/model.py, _get_and_verify_max_len; pull request
            56446 ended it).
        graphs_of_whole_steps: with draft tokens, numbers of requests get a CUDA graph beside the
            usual numbers of tokens; before, those numbers are rounded up to whole requests
            (config/vllm.py, uniform_decode_sizes).
        may_keep_freed_blocks: a block that the profile run has freed may count, because a small one
            was cut out of it (gpu_worker.py, without _scoped_allocator_max_split).
        loads_whole_blocks: while weights are loaded, large blocks of memory are not split
            (max_split_size_mb; allocator.py has the logs of those that split).
        kernels_at_load_bytes, kernels_at_profile_bytes: CUDA modules that a worker of its own loads
            after the first snapshot, and those that the profile run touches first.
        model_runner_v2_for_dense: dense models run with the newer model runner by default. Public
            starts of 70B and 14B on H200 under 0.18 and 0.19 have the older one's peak.
        default_utilization: gpu_memory_utilization where none is given (config/cache.py).
        graphs_are_profiled: memory for CUDA graphs is set aside with model runner V1. vLLM's own
            line calls it "enabled (default since v0.21.0)" (gpu_worker.py).
        fits_encoder_outputs: the profile run keeps the embeddings of an image, video or sound as
            they are. Before, those of each took as much as all of a step may (pull request 29386,
            "Fix overallocation in MM profiling").
        has_longest_videos: a video for Qwen3-VL may have the 153,600 tokens that a log of 0.11.0
            names, and not only the 12,288 of later logs.
        divides_tokens_by_groups: the logged tokens of the KV cache are divided by the number of
            groups of layers, so that those of a hybrid are too few. The maximum concurrency is
            right (v1/core/kv_cache_utils.py).
        refuses_mixed_cache_dtype: a KV cache in 16 bit must have the model's own dtype
            (config/vllm.py, _reject_mismatched_float_kv_cache).
        bounds_sparse_workspace: what sparse attention gathers and scores takes less: peaks.py,
            kept_workspace. Releases before 0.33.0 were not read for it.
        refuses_eagle3_over_stages: many models have no EAGLE-3 beside pipeline stages
            (v1/worker/gpu/spec_decode/eagle/eagle3_utils.py). Releases before 0.32.0 were not read
            for it.
        needs_block_per_state: max_num_seqs may not exceed the blocks for states
            (config/compilation.py, pull request 38270 of March 2026; 0.19.0 is without it, by
            pull request 551 of the recipes).
        schedules_ahead: a step is scheduled while the one before it runs (async_scheduling). It is
            the default since 0.14.0 (its release notes); before, the GPUs wait for the host.
        launch_waits: share of the launch of a step that prefills, for which the GPUs wait: 0 in the
            loads at home (0.25.1 to 0.33.0). First tokens of the public points of 0.15 to 0.19
            (docs/speed.md) say half, on hosts of which nothing is known; those of 0.12, where the
            GPUs wait for every step, say no more than that.
        fused_all_reduce_bytes: three buffers of FlashInfer's all-reduce that is fused with a norm, each
            rounded up to the 512 MiB of a multicast object. vLLM fuses them on Hopper and Blackwell
            since 0.17.0 (config/vllm.py, enable_allreduce_rms_fusion); FlashInfer 0.6.4 to 0.6.8,
            which come with 0.17 to 0.21, round so (comm/trtllm_ar.py and mnnvl.py), 0.6.11, of
            0.22.0, does not. Seven public starts on four GPUs (0.18.0) had 1.60 to 1.65 GiB less.
        rounds_ungated_experts: FP8 experts without a gate have a width of whole 128
            (quantization/utils/flashinfer_utils.py).
        mxfp4_layer_us: what the small kernels of a layer with 4-bit experts take longer than those
            of a usual one: three runs of gpt-oss on Hopper, and 94 public points of 0.15 and 0.18.
        fp8_blocks_layer_us: the same of a layer with experts in FP8 blocks: 0 in Qwen3-Next on an
            H200 (0.33.0), less with each release in 221 public points of MiniMax M2.5 (0.16, 0.18,
            0.19).
        mamba_launch_ms: launching a Mamba layer's scan in a step that prefills. Nemotron Nano 9B v2
            on an H200 (0.32.0, and taken for those before); 0.5 to 1.1 in Nemotron 3 Nano, Jamba
            1.5 Mini and Granite 4.0 H Small on an H200 (0.33.0).
    """

    name: str
    large_gpu_defaults: bool
    blackwell_graph_tokens: int
    counts_all_allocations: bool
    model_runner_v2_for_all: bool
    compiles_in_profile_run: bool
    matrix_workspaces: int
    sampler_logits: Literal[
        "copy in 32 bit", "16 bit alone", "copy in 32 bit and rows of scratch", "sorted in 32 bit"
    ]
    graphs_are_estimated: bool
    caches_states: bool
    counts_batches_in_flight: bool
    loads_deep_gemm: bool
    gather_opens_communicator: bool
    custom_all_reduce_on_nodes: bool
    fast_eager_launch: bool
    kernels_at_load_bytes: int
    kernels_at_profile_bytes: int
    scales_yarn: bool = False
    graphs_of_whole_steps: bool = True
    may_keep_freed_blocks: bool = False
    loads_whole_blocks: bool = True
    model_runner_v2_for_dense: bool = True
    default_utilization: float = 0.92
    graphs_are_profiled: bool = True
    fits_encoder_outputs: bool = True
    has_longest_videos: bool = False
    divides_tokens_by_groups: bool = False
    refuses_mixed_cache_dtype: bool = False
    bounds_sparse_workspace: bool = False
    refuses_eagle3_over_stages: bool = False
    needs_block_per_state: bool = True
    schedules_ahead: bool = True
    launch_waits: float = 0.0
    fused_all_reduce_bytes: int = 0
    rounds_ungated_experts: bool = True
    mxfp4_layer_us: float = 23.0
    fp8_blocks_layer_us: float = 0.0
    mamba_launch_ms: float = 2.65


V0_25_1 = Version(
    name="0.25.1",
    large_gpu_defaults=False,
    blackwell_graph_tokens=512,
    counts_all_allocations=False,
    model_runner_v2_for_all=False,
    compiles_in_profile_run=True,
    matrix_workspaces=1,
    sampler_logits="copy in 32 bit",
    graphs_are_estimated=False,
    caches_states=False,
    counts_batches_in_flight=False,
    loads_deep_gemm=True,
    gather_opens_communicator=True,
    custom_all_reduce_on_nodes=False,
    fast_eager_launch=False,
    kernels_at_load_bytes=162 * MIB,
    kernels_at_profile_bytes=68 * MIB,
    scales_yarn=True,
    graphs_of_whole_steps=False,
)
# Read at each tag: config/vllm.py, config/model.py, config/parallel.py, engine/arg_utils.py,
# utils/mem_utils.py, v1/kv_cache_interface.py, v1/worker/gpu_worker.py,
# v1/worker/gpu/{model_runner,cudagraph_utils}.py and v1/worker/gpu/sample/sampler.py. What a row
# does not name is as in the row before it, where those files say nothing of it: the sizes of CUDA
# modules, DeepGEMM's workspace, the pace of eager layers.
V0_26_0 = replace(
    V0_25_1,
    name="0.26.0",
    sampler_logits="16 bit alone",  # works in place
    caches_states=True,
    counts_batches_in_flight=True,
)
V0_27_1 = replace(
    V0_26_0,
    name="0.27.1",
    counts_all_allocations=True,
    may_keep_freed_blocks=True,
    custom_all_reduce_on_nodes=True,
    # Qwen3-32B on two GPUs (0.27.1) and Qwen3.8-27B on two (0.28.0) leave no room for such buffers;
    # 70B on two H200 (0.32.0) had none
    gather_opens_communicator=False,
)
V0_28_0 = replace(
    V0_27_1,
    name="0.28.0",
    large_gpu_defaults=True,
    blackwell_graph_tokens=1024,
)
V0_29_0 = replace(
    V0_28_0,
    name="0.29.0",
    model_runner_v2_for_all=True,
    graphs_are_estimated=True,
    graphs_of_whole_steps=True,
)
V0_30_0 = replace(V0_29_0, name="0.30.0", scales_yarn=False)  # read; none of the columns differs
V0_31_0 = replace(
    V0_30_0,
    name="0.31.0",
    compiles_in_profile_run=False,
    # one workspace was traced (0.32.0), and blocks that the allocator keeps in part are as large
    matrix_workspaces=2,
    loads_deep_gemm=False,
    fast_eager_launch=True,
    # gpu_worker.py, _scoped_allocator_max_split. The sizes are those of 0.32.0: read in both, the
    # other files do not differ in a column.
    may_keep_freed_blocks=False,
)
V0_32_0 = replace(V0_31_0, name="0.32.0", refuses_eagle3_over_stages=True)
V0_33_0 = replace(
    V0_32_0,
    name="0.33.0",
    matrix_workspaces=0,
    # it samples once more with top_k and top_p
    sampler_logits="copy in 32 bit and rows of scratch",
    kernels_at_load_bytes=70 * MIB,  # the matrix library's modules are loaded before the snapshot
    kernels_at_profile_bytes=2 * MIB,
    refuses_mixed_cache_dtype=True,
    bounds_sparse_workspace=True,
    mamba_launch_ms=0.8,
)
ROWS = (V0_25_1, V0_26_0, V0_27_1, V0_28_0, V0_29_0, V0_30_0, V0_31_0, V0_32_0, V0_33_0)
# 0.10 to 0.19, which were not read: the formulas of the oldest row, with what a later release says
# of them. `is_outside` is True for all of them, and for 0.20 to 0.24. A log of 0.20.0 sets graphs
# aside and counts 0.9 among the arguments that are no default.
# The newer model runner came to dense models one family after another: to Llama and Mistral with
# 0.23.0, to all with 0.25.0 (their release notes).
BEFORE_0_23 = replace(V0_25_1, name="0.22.0", model_runner_v2_for_dense=False)
BEFORE_0_22 = replace(BEFORE_0_23, name="0.21.0", fused_all_reduce_bytes=3 * 512 * MIB)
BEFORE_0_20 = replace(
    BEFORE_0_22,
    name="0.19.0",
    default_utilization=0.9,
    loads_whole_blocks=False,
    graphs_are_profiled=False,
    divides_tokens_by_groups=True,
    needs_block_per_state=False,
    launch_waits=0.5,
    mxfp4_layer_us=-4.0,
    fp8_blocks_layer_us=12.0,
)
# The profile run sorts the logits, until a Triton kernel for top_k and top_p (pull request 33538,
# February 2026). Logs of 0.10.0 to 0.11.2 have it, those of 0.18 and 0.19 not.
BEFORE_0_17 = replace(
    BEFORE_0_20,
    name="0.16.0",
    sampler_logits="sorted in 32 bit",
    fused_all_reduce_bytes=0,
    rounds_ungated_experts=False,
    fp8_blocks_layer_us=50.0,
)
BEFORE_0_14 = replace(BEFORE_0_17, name="0.13.0", schedules_ahead=False, launch_waits=0.0)
BEFORE_0_12 = replace(
    BEFORE_0_14, name="0.11.0", fits_encoder_outputs=False, has_longest_videos=True
)
TABLE = {version.name: version for version in ROWS}
# Each row stands for the releases before its key that no row above it stands for.
OLDER_ROWS = {
    "0.12": BEFORE_0_12,
    "0.14": BEFORE_0_14,
    "0.17": BEFORE_0_17,
    "0.20": BEFORE_0_20,
    "0.22": BEFORE_0_22,
    "0.23": BEFORE_0_23,
}
OLDEST = "0.10"  # the first release that a plan is made for
RELEASE = re.compile(r"\d{1,3}(\.\d{1,3}){1,3}(\.?(post|rc|dev)\d{1,4})?")
# what a build between two releases has behind the release that it becomes: 0.23.1rc1.dev531+ga65f93
DEVELOPMENT = re.compile(r"((\.?rc\d+)?\.dev\d+)?(\+[a-zA-Z0-9.]+)?$")
DEFAULT = V0_32_0.name  # what the workshop's extras `gpu` and `local` pin


def get(name: str) -> Version:
    """Return the row of a release ("v0.32.0" is 0.32.0), or of its minor's nearest patch.

    Releases from 0.10 on that are older than the table take the nearest row: `is_outside` says so.

    Raises BadInput: the planner has no formulas for it.
    """
    plain_name = plain(name)
    if plain_name in TABLE:
        return TABLE[plain_name]
    is_release = RELEASE.fullmatch(plain_name) is not None
    if is_release and (is_outside(plain_name) or has_own_formulas(plain_name)):
        return row_of(plain_name)
    newest = list(TABLE)[-1]
    raise BadInput(
        f"There are no formulas for vLLM {plain_name[:40]}.",
        f"Give a release from {OLDEST} to {newest}, such as {DEFAULT}.",
    )


@lru_cache(maxsize=256)
def row_of(name: str) -> Version:
    """Return the row that stands for a release: before 0.10, which `get` refuses, the oldest."""
    for first_after, row in OLDER_ROWS.items():
        if numbers(name) and is_before(name, first_after):
            return row
    return TABLE[nearest_formulas(name)]


def nearest(name: str) -> str:
    """Return the release whose row a plan of another release takes: its own, or the nearest."""
    return row_of(name).name


def nearest_formulas(name: str) -> str:
    """Return the release that has formulas of its own and is nearest to another release."""
    target = numbers(name)[:2]

    def distance(other: str) -> list[int]:
        return [
            abs(ours - theirs) for ours, theirs in zip(numbers(other)[:2], target, strict=False)
        ]

    return min(TABLE, key=distance)


def name_for_plan(name: str) -> str:
    """Return the name by which `get` takes an older release: its first three numbers."""
    return ".".join(map(str, numbers(name)[:3]))


def has_own_formulas(name: str) -> bool:
    """Return True if a row of the table is of the same minor release."""
    return same_minor(nearest_formulas(name), name)


def is_too_old(name: str) -> bool:
    """Return True for a release before 0.10: it is not planned, and its logs are not compared."""
    return is_before(name, OLDEST)


def is_outside(name: str) -> bool:
    """Return True from 0.10 up to the table, where figures are another release's."""
    return not is_too_old(name) and numbers(name)[:2] < numbers(V0_25_1.name)[:2]


# Comparisons of names that no behavior hangs on: what a user or a log says of the release.


def plain(name: str) -> str:
    """Return a release's name without the v of its tag, and that of a development version."""
    return DEVELOPMENT.sub("", name.removeprefix("v"))


@lru_cache(maxsize=256)
def numbers(name: str) -> tuple[int, ...]:
    """Return a version as numbers that can be compared: 0.8.5.post1 is (0, 8, 5, 1)."""
    return tuple(int(part) for part in re.findall(r"\d+", name))


def is_before(name: str, other: str) -> bool:
    """Return True if a release came before another."""
    return numbers(name) < numbers(other)


def same_minor(name: str, other: str) -> bool:
    """Return True for two releases of the same 0.x."""
    return numbers(name)[:2] == numbers(other)[:2]


def older(name: str, other: str) -> str:
    """Return the older one of two releases."""
    return name if is_before(name, other) else other


def is_between(name: str, first: str, last: str) -> bool:
    """Return True if the minor release of a name is neither before `first` nor after `last`."""
    return numbers(first) <= numbers(name)[:2] <= numbers(last)


def names_release(name: str, full_name: str) -> bool:
    """Return True if a name such as 0.32 is of the release of a full name (0.32.0.post1)."""
    beginning = numbers(name)[:3]
    return numbers(full_name)[: len(beginning)] == beginning


def is_later_minor(name: str, minor: str) -> bool:
    """Return True if a release came after every patch of a minor release such as 0.18."""
    return numbers(name)[:2] > numbers(minor)
