"""Run vLLM's own scheduler and KV-cache manager without a model.

vLLM's code decides which requests are in a step, with how many tokens, which blocks they take and
share, and which are preempted. Only the model's answers are made up. The worker process alone makes
an Engine. This module and engine.trace_writer are the only ones of the simulator that touch vLLM's
internals.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_planner.model import attention

from workshop import install_words
from workshop.engine.trace_writer import Recorder
from workshop.errors import WorkshopError
from workshop.vllm_package import WITHOUT_A_MODEL, installed
from workshop.workarounds import no_gpu_platform

KNOWN_VERSIONS = ("0.32.0",)
ANSWER = 7  # the token that every request samples
ENVIRONMENT = {**WITHOUT_A_MODEL, "OMP_NUM_THREADS": "1"}
# of Rules, that vLLM takes as they are
FLAGS = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "enable_prefix_caching",
)
# a config.json that vLLM knows: only lengths matter
CONFIG = Path(__file__).resolve().parents[1] / "teaching_model"


@dataclass(frozen=True)
class Rules:
    """The settings of the scheduler, under the names of vLLM's flags."""

    num_gpu_blocks: int
    block_size: int = 16
    # (kind as the plan has it, tokens of its window or chunk) of each group of layers with its own
    # block table
    groups: tuple[tuple[str, int], ...] = (("full", 0),)
    max_model_len: int = 8192
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    pipeline_parallel_size: int = 1
    # of a request, in each group of states; a third is kept in the step that reads the prompt
    state_blocks: int = 2
    # another server prefilled the prompts: their KV cache is loaded, except the last token's
    prefilled: bool = False

    @property
    def keeps_states(self) -> bool:
        """True if a hybrid model's states are cached for requests with the same prefix."""
        has_states = any(attention.kind_named(kind).keeps_states for kind, _ in self.groups)
        return self.enable_prefix_caching and has_states


@dataclass
class ScheduledStep:
    """One step as vLLM's scheduler decided it."""

    # (request, its tokens, tokens computed before, whether it samples a token)
    work: list[tuple[str, int, int, bool]]
    preempted: list[str]
    # request that runs for the first time → tokens of its prompt that the prefix cache had
    hits: dict[str, int]
    running: int  # once it is scheduled, as are the next two
    waiting: int
    kv_cache_usage: float  # a share, 0 to 1
    output: Any  # vLLM's SchedulerOutput
    began_s: float = 0.0  # on the first GPU

    def tokens(self) -> list[tuple[int, int]]:
        """Return (new tokens, tokens computed before) of each request."""
        return [(new, before) for _, new, before, _ in self.work]


class Engine:
    """The scheduler of one engine core.

    Raises:
        WorkshopError: vLLM is not installed, or its version is unknown.
    """

    def __init__(self, rules: Rules):
        check_installed()
        os.environ.update(ENVIRONMENT)
        no_gpu_platform.apply()
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import Request
        from vllm.v1.structured_output import StructuredOutputManager

        self._request = Request
        self._sampling = SamplingParams
        self._answer = ModelRunnerOutput
        self._answer_tokens: dict[str, int] = {}
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(rules.block_size, sha256)
        config = _vllm_config(rules)
        groups = []
        for index, (kind, size) in enumerate(rules.groups):
            groups.append(KVCacheGroupSpec([f"group{index}"], _spec(kind, size, rules)))
        scheduler_class = AsyncScheduler if rules.async_scheduling else Scheduler
        self._scheduler = scheduler_class(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                rules.num_gpu_blocks, kv_cache_tensors=[], kv_cache_groups=groups
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=max(group.kv_cache_spec.block_size for group in groups),
            hash_block_size=rules.block_size,
            log_stats=True,
        )
        # what a GPU runs; here it only decides when pipelines decode
        self._scheduler.use_v2_model_runner = True

    def add(
        self, name: str, prompt: list[int], max_tokens: int, answer_token: int | None = None
    ) -> None:
        """Add a request to those that wait; `answer_token` is what it samples, if that matters."""
        if answer_token is not None:
            self._answer_tokens[name] = answer_token
        sampling = self._sampling(max_tokens=max_tokens, ignore_eos=True)
        request = self._request(
            name, prompt, sampling, None, arrival_time=0.0, block_hasher=self._hasher
        )
        self._scheduler.add_request(request)

    def trace(self, write: Callable[[dict], None], now: Callable[[], float]) -> None:
        """Give each step to `write` from now on, as `workshop serve --trace` notes it."""
        Recorder(self._scheduler, write, now)

    def schedule(self) -> ScheduledStep:
        """Return the next step; its work is empty where nothing can run now."""
        scheduler = self._scheduler
        output = scheduler.schedule()
        work = []
        for name, tokens in output.num_scheduled_tokens.items():
            request = scheduler.requests[name]
            computed_before = request.num_computed_tokens - tokens
            samples = not request.is_prefill_chunk
            work.append((name, tokens, computed_before, samples))
        hits = {}
        for new_request in output.scheduled_new_reqs:
            hits[new_request.req_id] = new_request.num_computed_tokens
        return ScheduledStep(
            work=work,
            preempted=list(output.preempted_req_ids or ()),
            hits=hits,
            running=len(scheduler.running),
            waiting=self.unfinished - len(scheduler.running),
            kv_cache_usage=scheduler.kv_cache_manager.usage,
            output=output,
        )

    def update(self, step: ScheduledStep) -> list[tuple[str, int]]:
        """Give the scheduler the step's answers; return (request, its new tokens)."""
        names = []
        indices = {}
        sampled_tokens = []
        for index, (name, _, _, samples) in enumerate(step.work):
            names.append(name)
            indices[name] = index
            token = self._answer_tokens.get(name, ANSWER)
            sampled_tokens.append([token] if samples else [])
        answer = self._answer(
            req_ids=names,
            req_id_to_index=indices,
            sampled_token_ids=sampled_tokens,
            pooler_output=[],
        )
        received = []
        for engine_outputs in self._scheduler.update_from_output(step.output, answer).values():
            for output in engine_outputs.outputs:
                received.append((output.request_id, len(output.new_token_ids)))
        return received

    @property
    def unfinished(self) -> int:
        return self._scheduler.get_num_unfinished_requests()


def check_installed() -> None:
    """Raise WorkshopError unless this Python has a vLLM whose scheduler is known."""
    version = installed()[1].split("+")[0]
    if not version:
        problem = "vLLM is not installed here, and the simulation runs vLLM's own scheduler."
        remedy = (
            f"On Linux `{install_words.setup_command()}` installs it for the CPU; "
            "or set WORKSHOP_VLLM_PYTHON to a Python that has it."
        )
        raise WorkshopError(problem, remedy)
    if version not in KNOWN_VERSIONS:
        remedy = f"Set WORKSHOP_VLLM_PYTHON to a Python with one of: {', '.join(KNOWN_VERSIONS)}."
        raise WorkshopError(
            f"The scheduler of vLLM {version} is not known to the simulation.", remedy
        )


def _vllm_config(rules: Rules):
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    overrides = {"max_position_embeddings": rules.max_model_len}
    flags = {}
    for name in FLAGS:
        flags[name] = getattr(rules, name)
    if rules.prefilled:  # vLLM's own stand-in for a cache that comes over the network
        flags["kv_transfer_config"] = KVTransferConfig(
            kv_connector="DecodeBenchConnector", kv_role="kv_consumer"
        )
    config = EngineArgs(
        str(CONFIG), skip_tokenizer_init=True, hf_overrides=overrides, **flags
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = rules.num_gpu_blocks
    # as MambaModelConfig.verify_and_update_config, where prefixes are cached
    if rules.keeps_states:
        config.cache_config.mamba_cache_mode = "align"
    config.parallel_config.pipeline_parallel_size = rules.pipeline_parallel_size
    config.scheduler_config.async_scheduling = rules.async_scheduling
    return config


def _spec(kind: str, size: int, rules: Rules):
    """Return vLLM's description of a group of layers, with some page: bytes are the plan's."""
    import torch
    from vllm.v1 import kv_cache_interface

    layer = attention.kind_named(kind)
    spec = layer.simulator_spec(
        size,
        block_size=rules.block_size,
        max_model_len=rules.max_model_len,
        state_blocks=rules.state_blocks if rules.keeps_states else 0,
    )
    if layer.keeps_states:
        page = {"shapes": ((16,),), "dtypes": (torch.bfloat16,)}
    else:
        page = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.bfloat16}
    return getattr(kv_cache_interface, spec.name)(**spec.arguments, **page)
