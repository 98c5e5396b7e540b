"""Compute the memory sliders: one case, its memory on each GPU, a verdict and remedies.

There are no widgets here.

Split, memory, remedies and command are workshop.plan's; this module adds up what is asked for.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from inference_planner.answer import advise, choose
from inference_planner.answer.builds import with_records
from inference_planner.catalog import load_model
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig
from inference_planner.ground import intervals
from inference_planner.ground.basis import Ground, ground
from inference_planner.memory.fit import Fit, fit
from inference_planner.model import kv_cache
from inference_planner.refusals import Finding, check, with_seqs_that_start
from inference_planner.request import PlanRequest
from inference_planner.split.deployment import Deployment, deployment_of
from inference_planner.split.measured_start import Start

from workshop.course.drawing.readable_numbers import counted, gib
from workshop.engine.planning import kept_starts
from workshop.errors import BadInput

GPU_COUNTS = (1, 2, 4, 8, 16, 32)
CONTEXTS = tuple(1024 * 2**n for n in range(8))  # 1,024 … 131,072 tokens
WEIGHTS = ("as published", "fp8", "awq")
CHANGES = {  # a rule of advise → what it changes
    "kv_fp8": "an fp8 KV cache",
    "weights_fp8": "fp8 weights",
    "weights_awq": "4-bit weights (awq)",
}


@dataclass(frozen=True)
class MemoryCase:
    """The values of the sliders.

    `context` tokens for each of `requests`; `weights` is one of WEIGHTS.
    """

    model: str = "llama-3.1-8b"
    gpu: str = "h100"
    gpus: int = 1
    weights: str = "as published"
    kv_cache_dtype: str = "auto"
    context: int = 8192
    requests: int = 16
    gpu_memory_utilization: float = 0.92


@dataclass(frozen=True)
class MemoryStage:
    """The memory of one GPU of a pipeline stage, in bytes.

    `room` is what is left for the KV cache, and may be below 0.
    """

    gpus: tuple[int, int]  # first and last GPU of the stage
    weights: int
    overhead: int
    room: int
    requested_kv: int  # KV cache of all requests at full context

    @property
    def used(self) -> int:
        return max(0, min(self.requested_kv, self.room))

    @property
    def needed(self) -> int:
        return self.weights + self.overhead + self.requested_kv


@dataclass(frozen=True)
class Memory:
    """Everything the picture shows.

    States: fits, waits (some requests wait), refused (vLLM would not start).
    """

    case: MemoryCase
    deployment: Deployment
    fit: Fit
    stages: tuple[MemoryStage, ...]
    request_bytes: int  # one request at full context, on the tightest GPU

    @property
    def max_concurrency(self) -> float:
        return self.fit.capacity.max_concurrency

    @property
    def tightest(self) -> MemoryStage:
        return min(self.stages, key=lambda stage: stage.room - stage.requested_kv)

    @cached_property
    def refusals(self) -> list[Finding]:
        """The reasons for which vLLM would refuse to start, as the plan says them."""
        return check(self.deployment)

    @cached_property
    def ground(self) -> Ground:
        """The distance of the case from what was measured, as the plan says it."""
        return ground(self.deployment)

    @cached_property
    def tokens(self) -> intervals.Interval:
        """The low and the high value of the tokens of KV cache, as the plan has them."""
        half = intervals.spread(self.deployment, self.fit, self.ground)
        return intervals.capacities(self.deployment, self.fit, half.available_gib).tokens

    @property
    def state(self) -> str:
        if self.refusals:
            return "refused"
        if self.max_concurrency >= self.case.requests:
            return "fits"
        return "waits"


def weight_words(model: ModelConfig, weights: str) -> str:
    """Return the precision in words: "bfloat16, 2 bytes per weight"."""
    q = model.quantization
    if weights != "as published":
        q = quant.from_name(weights)
    if q is None:
        return f"{model.dtype}, {DTYPE_BYTES[model.dtype]} bytes per weight"
    return f"{q.method}, {q.weight_bits} bits per weight"


def deployment(case: MemoryCase) -> Deployment:
    """Return the plan's deployment of a case, split over all of its GPUs.

    Raises:
        BadInput: the case is impossible.
    """
    return _deployment(case, kept_starts(exact=False))


@lru_cache(maxsize=512)
def _deployment(case: MemoryCase, learned: tuple[Start, ...]) -> Deployment:
    model = load_model(case.model)
    quantization = None
    if case.weights != "as published":
        quantization = case.weights
    request = PlanRequest(
        quantization=quantization,
        kv_cache_dtype=case.kv_cache_dtype,
        gpu_memory_utilization=case.gpu_memory_utilization,
        max_model_len=min(case.context, model.max_position_embeddings),
    )
    deployment = deployment_of(model, case.gpu, request, learned)
    return with_seqs_that_start(choose.split_over(with_records(deployment), case.gpus))


def memory(case: MemoryCase) -> Memory:
    """Return the memory of a case.

    Raises:
        BadInput: a name is unknown, or a number is out of range.
    """
    if isinstance(case.requests, bool) or not isinstance(case.requests, int) or case.requests < 1:
        wrong = f"requests is {case.requests!r}, and must be a whole number from 1."
        raise BadInput(wrong, "Give how many at a time.")
    d = deployment(replace(case, requests=1))  # requests change nothing that vLLM sets aside
    f = fit(d)
    blocks = kv_cache.blocks_per_request(f.layout)
    stages, request_bytes = [], []
    for i, layers in enumerate(d.stages):
        per_request = kv_cache.pool_bytes_per_block(f.layout, tuple(layers)) * blocks
        request_bytes.append(per_request)
        stage = MemoryStage(
            gpus=(i * f.tp, (i + 1) * f.tp - 1),
            weights=f.weights[i],
            overhead=f.overhead[i],
            room=f.available[i],
            requested_kv=per_request * case.requests,
        )
        stages.append(stage)
    return Memory(case, d, f, tuple(stages), request_bytes[f.tightest])


def verdict(result: Memory, remedy: bool = True) -> str:
    """Return the verdict in one sentence, and the nearest remedy in another, if it is wanted."""
    case = result.case
    if result.state == "fits":
        spare = int(result.max_concurrency) - case.requests
        more = "and not one more"
        if spare:
            more = f"there is room for {spare:,} more"
        load = f"{counted(case.requests, 'request')} of {case.context:,} tokens at once"
        return f"It fits: {load}; {more}."
    problem = _problem(result)
    if not remedy:
        return problem
    changes = remedies(case)[:2]
    if not changes:
        return f"{problem} No single change here helps."
    return f"{problem} Nearest remedy: {', or '.join(changes)}."


def _problem(result: Memory) -> str:
    """Return why a case does not fit, or not all at once, in a sentence."""
    case, stage = result.case, result.tightest
    gpu = "each GPU"
    if case.gpus == 1:
        gpu = "the GPU"
    if stage.room <= 0:
        needed = f"weights and work space need {gib(stage.weights + stage.overhead)} of {gpu}"
        return f"It does not fit: {needed}, and vLLM may use {gib(result.fit.requested)}."
    if result.fit.holds_a_request and result.refusals:
        return f"vLLM would refuse to start: {result.refusals[0].what}."
    if result.state == "refused":
        request = f"one request of {case.context:,} tokens"
        needed = f"{request} needs {gib(result.request_bytes)} of KV cache"
        rest = f"{gib(stage.room)} of {gpu} are left for it"
        return f"vLLM would refuse to start: {needed}, and {rest}."
    concurrent = f"{int(result.max_concurrency):,} of the {case.requests:,} requests"
    return f"It starts, but {concurrent} fill the KV cache at full length; the others wait."


def remedies(case: MemoryCase) -> tuple[str, ...]:
    """Return the single changes that would make the whole case fit, the cheapest first."""
    return _remedies(case, kept_starts(exact=False))


@lru_cache(maxsize=256)
def _remedies(case: MemoryCase, learned: tuple[Start, ...]) -> tuple[str, ...]:
    deployment = _deployment(replace(case, requests=1), learned)
    remedies = []
    for rule in (advise.kv_fp8, advise.weights_fp8, advise.more_gpus, advise.weights_awq):
        gpus = _enough_gpus(rule(deployment), case.requests)
        if gpus:
            remedies.append(CHANGES.get(rule.__name__, f"{gpus} GPUs"))
    shorter = [length for length in CONTEXTS if length < deployment.settings.max_model_len]
    for length in reversed(shorter):
        if _concurrency(deployment.with_settings(max_model_len=length)) >= case.requests:
            remedies.append(f"a context of {length:,} tokens")
            break
    at_a_time = _concurrency(deployment)
    if 1 <= at_a_time < case.requests:
        remedies.append(f"{counted(int(at_a_time), 'request')} at a time")
    return tuple(remedies)


def _enough_gpus(changes: Iterable[advise.Change], requests: int) -> int:
    """Return the GPUs of the first change after which all requests fit; 0 if none does."""
    for change in changes:
        if change.after.gpus in GPU_COUNTS and _concurrency(change.after) >= requests:
            return change.after.gpus
    return 0


def _concurrency(deployment: Deployment) -> float:
    f = fit(deployment)
    if f.holds_a_request:
        return f.capacity.max_concurrency
    return 0.0
