"""Say what would help: changes of a deployment, and the advice of a plan.

Each change is a flag of vLLM and the deployment after it.

A rule yields the changes that this GPU and this model allow, the smallest first. The plan, the
widgets and the reconciliation with a log choose among them; nobody else decides what would help.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from inference_planner.answer import choose
from inference_planner.answer.builds import with_builds
from inference_planner.answer.plan_result import Plan
from inference_planner.catalog.gpus import GIB
from inference_planner.errors import BadInput
from inference_planner.ground.intervals import surely_holds_a_request
from inference_planner.memory import fit as memory
from inference_planner.model.attention import grouped, main_kind
from inference_planner.model.kv_cache import kv_cache_bytes_per_token, kv_dtype_bytes
from inference_planner.refusals import check, refused_arguments, with_seqs_that_start
from inference_planner.speed import roofline as speed
from inference_planner.split.capability import cache_refusal
from inference_planner.split.deployment import Deployment
from inference_planner.split.free_memory import share_of_free
from inference_planner.split.ranks import context_sizes, tp_problem

HIGH_UTILIZATION = 0.95
SMALL_BATCH = 2048  # vLLM's own max_num_batched_tokens on small GPUs
FEW_SEQS = 256  # vLLM's own max_num_seqs there
MOST_GPUS = 256
FP8_UNITS = 8.9  # compute capability from which a GPU has them
WORTH = 1.2  # Times the KV-cache tokens. For less than that another split is not worth a change.
SMALL_GAIN = 0.01  # of the KV-cache tokens; less is not mentioned


@dataclass(frozen=True)
class Change:
    """One change: the rule that made it, its flag and value, and the deployment after it."""

    rule: str
    flag: str
    value: object
    after: Deployment
    note: str = ""  # what it costs, or where it runs
    with_it: str = ""  # a second flag that belongs to it

    @property
    def flags(self) -> str:
        """The flags as they are typed, with --max-num-seqs where vLLM would refuse its default."""
        parts = [str(self.flag), str(self.value), self.with_it]
        seqs = with_seqs_that_start(self.after).settings.max_num_seqs
        if seqs < self.after.settings.max_num_seqs:
            parts.append(f"--max-num-seqs {seqs}")
        return " ".join(part for part in parts if part)

    @cached_property
    def fit(self) -> memory.Fit:
        """The memory of the deployment after the change."""
        return memory.fit(self.after)

    @property
    def fits(self) -> bool:
        """True if vLLM starts after it, also at the low end of the memory's interval.

        A default of max_num_seqs can be lowered.
        """
        if not memory.may_fit(self.after, self.after.gpus):
            return False
        return surely_holds_a_request(self.after) and not self.is_refused

    @property
    def is_refused(self) -> bool:
        """True if vLLM would refuse to start after it."""
        return bool(check(with_seqs_that_start(self.after)))

    @property
    def tokens(self) -> int:
        """The KV-cache tokens after the change, of all replicas together."""
        return self.after.dp * self.fit.capacity.tokens


Rule = Callable[[Deployment], Iterator[Change]]


def kv_fp8(deployment: Deployment) -> Iterator[Change]:
    """Store K and V in 8 bits, if an attention kernel of this GPU reads FP8."""
    text_only = deployment.settings.language_model_only
    if cache_refusal(deployment.model, deployment.gpu.capability, "fp8", text_only):
        return
    selector_knows_all = all(
        kind.keeps_states or kind.selected_by(deployment.model, size)
        for kind, size, _ in grouped(deployment.model)
    )
    if not selector_knows_all and deployment.gpu.capability < FP8_UNITS:
        return
    element_bytes = kv_dtype_bytes(deployment.model, deployment.settings.kv_cache_dtype)
    if kv_cache_bytes_per_token(deployment.model) and element_bytes > 1:
        after = deployment.with_settings(kv_cache_dtype="fp8")
        note = "check the answers: K and V have 8 bits"
        yield Change("kv_fp8", "--kv-cache-dtype", "fp8", after, note)


def weights_fp8(deployment: Deployment) -> Iterator[Change]:
    """Round the weights of a checkpoint in 16 bits to 8 while loading, if the GPU has kernels."""
    return _quantized_weights(deployment, "fp8", "check the answers: weights have 8 bits")


def weights_awq(deployment: Deployment) -> Iterator[Change]:
    """Take a checkpoint with 4-bit weights instead, if the GPU has kernels for it."""
    return _quantized_weights(
        deployment, "awq", "another checkpoint, of 4 bits a weight: check the answers"
    )


def _quantized_weights(deployment: Deployment, method: str, note: str) -> Iterator[Change]:
    if deployment.model.quantization is not None:
        return
    try:
        after = deployment.quantized(method)
        # A group would lie on two ranks.
        if tp_problem(after.model, deployment.tp, deployment.experts_cut(deployment.tp)):
            return
        built = deployment.model.exact
        if built and built.builds:
            after = with_builds(after, built.basis, built.source, built.builds)
    except BadInput:  # this GPU has no kernels for it
        return
    yield Change(f"weights_{method}", "--quantization", method, after, note)


def utilization(deployment: Deployment, share: float = HIGH_UTILIZATION) -> Iterator[Change]:
    """Let the engine use a larger share of a GPU's memory, unless the CPU uses it, too."""
    if deployment.gpu.unified_memory or deployment.settings.kv_cache_memory_bytes:
        return
    if deployment.free_gib is not None:
        share = min(share, share_of_free(deployment.gpu, deployment.free_gib))
    if share > deployment.settings.gpu_memory_utilization + 0.004:
        after = deployment.with_settings(gpu_memory_utilization=share)
        note = "if nothing else runs on the GPU"
        yield Change("utilization", "--gpu-memory-utilization", share, after, note)


def small_batch(deployment: Deployment) -> Iterator[Change]:
    """Compute fewer tokens in a step. The activations of the profile run then take less memory."""
    if deployment.settings.max_num_batched_tokens <= SMALL_BATCH:
        return
    seqs = min(deployment.settings.max_num_seqs, FEW_SEQS)
    after = deployment.with_settings(max_num_batched_tokens=SMALL_BATCH, max_num_seqs=seqs)
    note = "long prompts are then read in more steps"
    flag = "--max-num-batched-tokens"
    yield Change("small_batch", flag, SMALL_BATCH, after, note, f"--max-num-seqs {seqs}")


def eager(deployment: Deployment) -> Iterator[Change]:
    """Capture no CUDA graphs."""
    if deployment.settings.has_graphs:
        after = deployment.with_settings(enforce_eager=True)
        note = "no CUDA graphs: each token takes longer"
        yield Change("eager", "--enforce-eager", "", after, note)


def more_gpus(deployment: Deployment) -> Iterator[Change]:
    """Use more GPUs: a part of a node, a node, more nodes. NCCL cannot join slices of a GPU."""
    if deployment.gpu.is_slice:
        return
    node = deployment.gpus_per_node
    sizes = [part for part in (2, 4) if part < node]
    sizes += range(node, MOST_GPUS + 1, node)
    for gpus in sizes:
        if gpus > deployment.replica_gpus and choose.splits(deployment, gpus):
            yield _split_change("more_gpus", choose.split_over(deployment, gpus), f"on {gpus} GPUs")


def other_split(deployment: Deployment) -> Iterator[Change]:
    """Split the model over the same GPUs in another way."""
    for after in choose.splits(deployment, deployment.replica_gpus):
        if (after.tp, after.pp) != (deployment.tp, deployment.pp):
            yield _split_change("other_split", after, "on the same GPUs")


def _split_change(rule: str, after: Deployment, note: str) -> Change:
    pipeline = f"--pipeline-parallel-size {after.pp}"
    return Change(rule, "--tensor-parallel-size", after.tp, after, note, pipeline)


def replicas(deployment: Deployment, gpus: int) -> Iterator[Change]:
    """Run a MoE model data and expert parallel on so many GPUs, in the sizes with most tokens."""
    if not deployment.model.moe or deployment.dp > 1:
        return
    changes: list[Change] = []
    for tp in range(1, gpus // 2 + 1):
        if gpus % tp or tp_problem(deployment.model, tp, 1):
            continue
        after = replace(deployment, tp=tp, pp=1, dp=gpus // tp, ep=True, dcp=1)
        if after.uneven:
            continue
        flags = f"--data-parallel-size {after.dp} --enable-expert-parallel"
        note = f"on {gpus} GPUs"
        change = Change("replicas", "--tensor-parallel-size", tp, after, note, flags)
        if change.fit.holds_a_request:
            changes.append(change)
    if changes:
        yield max(changes, key=lambda change: (change.tokens, change.after.tp))


def context(deployment: Deployment) -> Iterator[Change]:
    """Let ranks with copies of the same KV heads store different tokens."""
    copies = main_kind(deployment.model).copies(deployment.model, deployment.tp)
    if deployment.dcp == 1 and copies in context_sizes(deployment.model, deployment.tp):
        after = replace(deployment, dcp=copies)
        yield Change("context", "--decode-context-parallel-size", copies, after)


def shorter(deployment: Deployment) -> Iterator[Change]:
    """Lower max_model_len to the longest request that fits at the low end of the interval, too."""
    longest = memory.longest_context(deployment, surely_holds_a_request)
    if 0 < longest < deployment.settings.max_model_len:
        after = deployment.with_settings(max_model_len=longest)
        yield Change("shorter", "--max-model-len", longest, after)


def cache_bytes(deployment: Deployment) -> Iterator[Change]:
    """Give the KV cache as many bytes as one request takes, if its bytes were given."""
    if deployment.settings.kv_cache_memory_bytes:
        needed = memory.fit(deployment).needed
        after = deployment.with_settings(kv_cache_memory_bytes=needed)
        yield Change("cache_bytes", "--kv-cache-memory-bytes", needed, after)


def first_fit(deployment: Deployment, *rules: Rule) -> Change | None:
    """Return the first change of these rules after which the deployment fits."""
    for rule in rules:
        for change in rule(deployment):
            if change.fits:
                return change
    return None


def advise(plan: Plan) -> list[str]:
    """Return what would make the plan better, or the nearest changes with which it would fit."""
    if not plan.fit.has_cache:
        return []
    if plan.fits:
        return [
            *_shared_memory(plan),
            *_more_tokens(plan),
            *_other_gpus(plan),
            *_few_requests(plan),
        ]
    if plan.fit.holds_a_request or refused_arguments(plan.deployment):
        return list(_without_refusals(plan))
    return _nearest(plan)


def _without_refusals(plan: Plan) -> Iterator[str]:
    """Yield how to avoid what vLLM refuses before it looks at a memory that is too small."""
    for finding in plan.refusals:
        if finding.flag and not plan.fit.holds_a_request:
            yield f"Before its memory is asked for, vLLM refuses this: {finding.what}; not with {finding.flag}."
        elif finding.flag:
            yield f"With {finding.flag} vLLM starts; now {finding.what}."
        else:
            yield f"vLLM refuses this: {finding.what}."


def _nearest(plan: Plan) -> list[str]:
    deployment = plan.deployment
    title = deployment.gpu.title
    advice: list[str] = []
    if plan.fit.loads:
        room = plan.fit.available[plan.fit.tightest] / GIB
        for change in shorter(deployment):
            advice.append(
                f"With {change.flags} it fits on these {deployment.gpus} GPU(s), also at the low "
                f"end of the range: they have room for about {room:.1f} GiB of KV cache."
            )
    larger = first_fit(deployment, cache_bytes)
    if larger:
        tokens = f"{plan.deployment.settings.max_model_len:,} tokens"
        advice.append(f"One request of {tokens} needs {larger.flags}.")
    smaller = first_fit(deployment, small_batch)
    if smaller:
        advice.append(f"With {smaller.flags} it fits on the same GPUs: {smaller.note}.")
    advice += _fewer_bits(plan)
    split = first_fit(deployment, other_split)
    if split:
        advice.append(f"The same {deployment.gpus} × {title} hold it with {split.flags}.")
    more = first_fit(deployment, more_gpus)
    if more:
        nodes = f"on {more.after.nodes} node(s) of {deployment.gpus_per_node}"
        advice.append(f"{more.after.gpus} × {title} hold it: {more.flags} {nodes}.")
    if plan.intervals["max_concurrency"].high >= 1:
        half = plan.spread.room_gib
        advice.append(
            f"It may fit as it is: what is left may be off by {half:.1f} GiB on each GPU."
        )
    if advice:
        return advice
    if deployment.gpu.is_slice:
        return [f"One {title} does not hold it: choose a larger GPU."]
    return [f"No split over up to {MOST_GPUS} × {title} holds it: choose a larger GPU."]


def _fewer_bits(plan: Plan) -> Iterator[str]:
    """Yield the flags for FP8 weights or KV cache with which the plan fits on the same GPUs."""
    deployment = plan.deployment
    smaller = first_fit(deployment, kv_fp8, weights_fp8)
    if smaller:
        what = "FP8 weights"
        if smaller.rule == "kv_fp8":
            what = "an FP8 KV cache"
        yield f"With {what} ({smaller.flags}) it fits on the same GPUs."
        return
    for weights in weights_fp8(deployment):
        both = first_fit(weights.after, kv_fp8)
        if both:
            flags = f"--quantization fp8 {both.flags}"
            yield f"With FP8 weights and KV cache ({flags}) it fits on the same GPUs."
            return


def _shared_memory(plan: Plan) -> Iterator[str]:
    """Yield what is left to the host where CPU and GPU share the memory."""
    gpu = plan.deployment.gpu
    if gpu.unified_memory:
        left = gpu.engine_gib - plan.fit.requested / GIB
        yield (
            f"CPU and GPU share these {gpu.engine_gib:.0f} GiB: vLLM leaves {left:.0f} GiB to the "
            "system and all other programs, and with too little the machine hangs. Beside a large "
            "program lower --gpu-memory-utilization."
        )


def _accepted(changes: Iterable[Change]) -> Iterator[Change]:
    """Yield the changes after which vLLM would not refuse to start."""
    return (change for change in changes if not change.is_refused)


def _more_tokens(plan: Plan) -> Iterator[str]:
    """Yield the settings that leave more room for the KV cache."""
    now = plan.kv_cache_tokens
    for change in _accepted(kv_fp8(plan.deployment)):
        tokens = change.fit.capacity.tokens
        times = f"{tokens / max(1, now):.1f} times"
        yield f"{change.flags} holds {tokens:,} tokens ({times}), at a small cost in precision."
    for change in _accepted(utilization(plan.deployment)):
        more = change.fit.capacity.tokens - now
        yield f"{change.flags} adds {more:,} tokens, {change.note}."
    for change in _accepted(small_batch(plan.deployment)):
        more = change.fit.capacity.tokens - now
        if more > SMALL_GAIN * now:
            yield f"{change.flags} adds {more:,} tokens; {change.note}."


def _few_requests(plan: Plan) -> Iterator[str]:
    if plan.max_concurrency < 2 and not plan.deployment.settings.fits_length:
        length = plan.deployment.settings.max_model_len
        requests = f"Fewer than two requests of {length:,} tokens fit at once"
        yield f"{requests}. More GPUs or shorter requests help."


def _other_gpus(plan: Plan) -> Iterator[str]:
    """Yield what other numbers of GPUs, or other splits of these, would bring."""
    deployment = plan.deployment
    kind = main_kind(deployment.model)
    copies = kind.copies(deployment.model, deployment.tp)
    if copies > 1:
        share = kind.describe_share(deployment.model, deployment.tp)
        stored = f"Each of {deployment.tp} GPUs stores {share}"
        yield (
            f"{stored}, so each key and value is stored {copies} times. "
            "Pipeline parallelism would store it once."
        )
        if deployment.model.moe:
            yield from _instead_of_copies(plan)
    idle = plan.world_size - deployment.gpus
    if idle >= deployment.gpus:
        servers = f"{idle // deployment.gpus} more server(s) with the same split would use them"
        yield f"{idle} GPU(s) stay idle. {servers}, each with its own requests (data parallelism)."
    fewer = choose.fewest(deployment, deployment.replica_gpus - 1, surely_holds_a_request)
    if fewer:
        flags = _split_change("fewer_gpus", fewer, "").flags
        enough = f"{fewer.gpus} × {deployment.gpu.title} are enough: {flags}"
        if not plan.deployment.model.pooling:
            enough += f", with {_speed_share(plan, fewer)} of the tokens/s for one request"
        yield f"{enough}."


def _speed_share(plan: Plan, other: Deployment) -> str:
    if not other.gpu.has_known_speed:
        return "an unknown share"
    share = speed.decode_tokens_per_s(other) / plan.single_stream_tokens_per_s
    return f"{share:.0%}"


def _instead_of_copies(plan: Plan) -> Iterator[str]:
    """Yield splits of a MoE model that hold more tokens than several servers of this one."""
    deployment = plan.deployment
    gpus = plan.world_size or deployment.gpus
    servers = gpus // deployment.gpus
    now = plan.kv_cache_tokens * servers
    on_servers = ""
    if servers > 1:
        on_servers = f" on {servers} such servers"
    for change in replicas(deployment, gpus):
        if change.tokens > WORTH * now:
            than = f"{change.tokens:,} tokens in all {change.note} instead of {now:,}{on_servers}"
            cost = (
                f"at {_speed_share(plan, change.after)} of the tokens/s for one request (estimated)"
            )
            yield (
                f"For many requests, {change.flags} holds {than}, {cost}. Each replica has its "
                "own attention and KV cache, and all share the experts."
            )
    if deployment.model.exact:  # Other kinds of caches were not tried.
        return
    for change in context(deployment):
        tokens = change.fit.capacity.tokens
        yield (
            f"For long contexts, {change.flags} stores each key and value once: {tokens:,} tokens "
            f"on these {deployment.gpus} GPUs. The time of its messages was not measured."
        )
