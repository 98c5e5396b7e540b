"""What the memory sliders compute: one case, its memory on each GPU, a verdict and the nearest remedies. No widgets.

Split, memory, remedies and command are workshop.plan's; this module adds up what is asked for.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from inference_planner import advise, choose, intervals, kv_cache, ranks
from inference_planner.basis import Ground, ground
from inference_planner.builds import known
from inference_planner.catalog import load_model
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig
from inference_planner.deployment import Deployment, prepare
from inference_planner.learned import Start
from inference_planner.memory import Fit, fit
from inference_planner.refusals import Finding, check, with_seqs_that_start

from workshop.course.numbers import counted, gib
from workshop.engine.exact import kept_starts
from workshop.errors import BadInput

GPU_COUNTS = (1, 2, 4, 8, 16, 32)
CONTEXTS = tuple(1024 * 2**n for n in range(8))  # 1,024 … 131,072 tokens
WEIGHTS = ("as published", "fp8", "awq")


@dataclass(frozen=True)
class Case:
    """What the sliders say. `context` tokens for each of `requests`; `weights` is one of WEIGHTS."""

    model: str = "llama-3.1-8b"
    gpu: str = "h100"
    gpus: int = 1
    weights: str = "as published"
    kv_cache_dtype: str = "auto"
    context: int = 8192
    requests: int = 16
    gpu_memory_utilization: float = 0.92


@dataclass(frozen=True)
class Stage:
    """The memory of one GPU of a pipeline stage, in bytes; `room` is what is left for the KV cache (may be < 0)."""

    gpus: tuple[int, int]  # first and last GPU of the stage
    weights: int
    overhead: int
    room: int
    asked: int  # KV cache of all requests at full context

    @property
    def used(self) -> int:
        return max(0, min(self.asked, self.room))

    @property
    def needed(self) -> int:
        return self.weights + self.overhead + self.asked


@dataclass(frozen=True)
class Memory:
    """Everything the picture shows. States: fits, waits (some requests wait), refused (vLLM would not start)."""

    case: Case
    deployment: Deployment
    fit: Fit
    stages: tuple[Stage, ...]
    request_bytes: int  # one request at full context, on the tightest GPU

    @property
    def max_concurrency(self) -> float:
        return self.fit.capacity.max_concurrency

    @property
    def tightest(self) -> Stage:
        return min(self.stages, key=lambda s: s.room - s.asked)

    @cached_property
    def refusals(self) -> list[Finding]:
        """Why vLLM would refuse to start, as the plan says it."""
        return check(self.deployment)

    @cached_property
    def ground(self) -> Ground:
        """How far the case is from what was measured, as the plan says it."""
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
        return "fits" if self.max_concurrency >= self.case.requests else "waits"


def weight_words(m: ModelConfig, weights: str) -> str:
    """Return the precision in words: "bfloat16, 2 bytes a weight"."""
    q = m.quantization if weights == "as published" else quant.from_name(weights)
    if q is None:
        return f"{m.dtype}, {DTYPE_BYTES[m.dtype]} bytes a weight"
    return f"{q.method}, {q.weight_bits} bits a weight"


def deployment(case: Case) -> Deployment:
    """Return what the plan makes of a case, its split over all of its GPUs; BadInput for what cannot be."""
    return _deployment(case, kept_starts(exact=False))


@lru_cache(maxsize=512)
def _deployment(case: Case, learned: tuple[Start, ...]) -> Deployment:
    m = load_model(case.model)
    settings = {
        "quantization": None if case.weights == "as published" else case.weights,
        "kv_cache_dtype": case.kv_cache_dtype,
        "gpu_memory_utilization": case.gpu_memory_utilization,
        "max_model_len": min(case.context, m.max_position_embeddings),
    }
    return with_seqs_that_start(
        choose.spread(known(prepare(m, case.gpu, learned=learned, **settings)), case.gpus)
    )


def memory(case: Case) -> Memory:
    """Return the memory of a case; BadInput for a name that is not known, or a number out of range."""
    if isinstance(case.requests, bool) or not isinstance(case.requests, int) or case.requests < 1:
        raise BadInput(
            f"requests is {case.requests!r}, and must be a whole number from 1.",
            "Give how many at a time.",
        )
    d = deployment(replace(case, requests=1))  # requests change nothing that vLLM sets aside
    m, f = d.model, fit(d)
    blocks = kv_cache.blocks_per_request(f.layout)
    stages, requests = [], []
    for i, layers in enumerate(ranks.partition_layers(m.num_hidden_layers, f.pp)):
        requests.append(kv_cache.pool_bytes_per_block(f.layout, tuple(layers)) * blocks)
        mine, asked = (f.weights[i], f.overhead[i], f.available[i]), requests[i] * case.requests
        stages.append(Stage((i * f.tp, (i + 1) * f.tp - 1), *mine, asked))
    return Memory(case, d, f, tuple(stages), requests[f.tightest])


def verdict(result: Memory, remedy: bool = True) -> str:
    """Return the verdict in one sentence, and the nearest remedy in another, if it is wanted."""
    case, stage, concurrent = result.case, result.tightest, int(result.max_concurrency)
    whose = "the GPU" if case.gpus == 1 else "each GPU"
    if result.state == "fits":
        spare = concurrent - case.requests
        more = f"there is room for {spare:,} more" if spare else "and not one more"
        return f"It fits: {counted(case.requests, 'request')} of {case.context:,} tokens at once; {more}."
    if stage.room <= 0:
        needed = f"weights and overhead need {gib(stage.weights + stage.overhead)} of {whose}"
        what = f"It does not fit: {needed}, and vLLM may use {gib(result.fit.requested)}."
    elif result.fit.fits and result.refusals:
        what = f"vLLM would refuse to start: {result.refusals[0].what}."
    elif result.state == "refused":
        needed = (
            f"one request of {case.context:,} tokens needs {gib(result.request_bytes)} of KV cache"
        )
        what = f"vLLM would refuse to start: {needed}, and {gib(stage.room)} of {whose} are left for it."
    else:
        full = f"{concurrent:,} of the {case.requests:,} requests fill the KV cache at full length"
        what = f"It starts, but {full}; the others wait."
    if not remedy:
        return what
    found = remedies(case)
    return f"{what} {'Nearest remedy: ' + ', or '.join(found[:2]) if found else 'No single change here helps'}."


def remedies(case: Case) -> tuple[str, ...]:
    """Return the single changes that would make the whole case fit, the cheapest for the asker first."""
    return _remedies(case, kept_starts(exact=False))


@lru_cache(maxsize=256)
def _remedies(case: Case, learned: tuple[Start, ...]) -> tuple[str, ...]:
    d, found = _deployment(replace(case, requests=1), learned), []
    words = {
        "kv_fp8": "an fp8 KV cache",
        "weights_fp8": "fp8 weights",
        "weights_awq": "4-bit weights (awq)",
    }
    for rule in (advise.kv_fp8, advise.weights_fp8, advise.more_gpus, advise.weights_awq):
        enough = (
            c.after
            for c in rule(d)
            if c.after.gpus in GPU_COUNTS and _concurrency(c.after) >= case.requests
        )
        if after := next(enough, None):
            found.append(words.get(rule.__name__, f"{after.gpus} GPUs"))
    shorter = (
        d.with_settings(max_model_len=c) for c in reversed(CONTEXTS) if c < d.settings.max_model_len
    )
    if after := next((one for one in shorter if _concurrency(one) >= case.requests), None):
        found.append(f"a context of {after.settings.max_model_len:,} tokens")
    if 1 <= (alone := _concurrency(d)) < case.requests:
        found.append(f"{counted(int(alone), 'request')} at a time")
    return tuple(found)


def _concurrency(d: Deployment) -> float:
    f = fit(d)
    return f.capacity.max_concurrency if f.fits else 0.0
