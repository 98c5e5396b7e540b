"""What would help: one table of changes, each a flag of vLLM and the deployment after it, and who asks for them.

A rule returns the changes that this GPU and this model allow, the nearest first. The plan, the sliders, the explorer
and the reading of logs ask here and choose among them; none decides for itself.
"""

# d deployment, f fit
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from inference_planner import choose, speed
from inference_planner.attention import main_kind
from inference_planner.builds import with_builds
from inference_planner.catalog.gpus import GIB
from inference_planner.deployment import Deployment
from inference_planner.errors import BadInput
from inference_planner.kv_cache import kv_cache_bytes_per_token, kv_dtype_bytes
from inference_planner.memory import fit, longest_context, may_fit
from inference_planner.ranks import context_sizes, tp_problem
from inference_planner.settings import kv_cache_capability

HIGH_UTILIZATION = 0.95
SMALL_BATCH, FEW_SEQS = 2048, 256  # vLLM's own defaults on small GPUs
MOST_GPUS = 256
WORTH = 1.2  # times the tokens: for less nobody changes how a model is split


@dataclass(frozen=True)
class Change:
    """One change: its rule, the words of the flag, the deployment after it, and what it costs."""

    rule: str
    flag: str
    value: object
    after: Deployment
    note: str = ""
    with_it: str = ""  # a second flag that belongs to it

    @property
    def words(self) -> str:
        """The flags as they are typed."""
        return " ".join(str(word) for word in (self.flag, self.value, self.with_it) if word != "")

    @property
    def fits(self) -> bool:
        return may_fit(self.after, self.after.gpus) and fit(self.after).fits


def kv_fp8(d: Deployment) -> Iterator[Change]:
    """Keep K and V in 8 bits, where the model has some, and an attention kernel of this GPU can read them."""
    wide = (
        kv_cache_bytes_per_token(d.model) and kv_dtype_bytes(d.model, d.settings.kv_cache_dtype) > 1
    )
    if wide and d.gpu.capability >= kv_cache_capability(d.model, "fp8"):
        after = d.with_settings(kv_cache_dtype="fp8")
        yield Change(
            "kv_fp8", "--kv-cache-dtype", "fp8", after, "check the answers: K and V have 8 bits"
        )


def _quantised(d: Deployment, method: str, note: str) -> Iterator[Change]:
    if d.model.quantization is None:
        try:
            after, x = d.quantised(method), d.model.exact
            # its groups would lie on two ranks
            if tp_problem(after.model, d.tp, d.experts_cut(d.tp)):
                return
            after = with_builds(after, x.basis, x.source, x.builds) if x and x.builds else after
            yield Change(f"weights_{method}", "--quantization", method, after, note)
        except BadInput:  # no kernels for it on this GPU
            return


def weights_fp8(d: Deployment) -> Iterator[Change]:
    """Round the weights to 8 bits while loading, where the checkpoint is not quantised and the GPU has kernels."""
    return _quantised(d, "fp8", "check the answers: weights have 8 bits")


def weights_awq(d: Deployment) -> Iterator[Change]:
    """Take a checkpoint of 4 bits a weight instead, where the GPU has kernels for it."""
    return _quantised(d, "awq", "another checkpoint, of 4 bits a weight: check the answers")


def utilization(d: Deployment, share: float = HIGH_UTILIZATION) -> Iterator[Change]:
    """Let the engine take more of the GPU."""
    if share > d.settings.gpu_memory_utilization + 0.004:
        after = d.with_settings(gpu_memory_utilization=share)
        yield Change(
            "utilization",
            "--gpu-memory-utilization",
            share,
            after,
            "if nothing else runs on the GPU",
        )


def small_batch(d: Deployment) -> Iterator[Change]:
    """Read fewer tokens in a step: the profile run, and so the room it takes, becomes smaller."""
    if d.settings.max_num_batched_tokens > SMALL_BATCH:
        after = d.with_settings(
            max_num_batched_tokens=SMALL_BATCH, max_num_seqs=min(d.settings.max_num_seqs, FEW_SEQS)
        )
        note, seqs = (
            "long prompts are then read in more steps",
            f"--max-num-seqs {after.settings.max_num_seqs}",
        )
        yield Change("small_batch", "--max-num-batched-tokens", SMALL_BATCH, after, note, seqs)


def eager(d: Deployment) -> Iterator[Change]:
    """Capture no CUDA graphs."""
    if not d.settings.enforce_eager:
        after = d.with_settings(enforce_eager=True)
        yield Change(
            "eager", "--enforce-eager", "", after, "no CUDA graphs: each token takes longer"
        )


def more_gpus(d: Deployment) -> Iterator[Change]:
    """Use more GPUs: a part of a node, a node, more nodes. NCCL joins no slices."""
    node = d.gpus_per_node
    numbers = [n for n in (2, 4) if n < node] + list(range(node, MOST_GPUS + 1, node))
    for gpus in numbers:
        if gpus > d.replica_gpus and not d.gpu.is_slice and choose.splits(d, gpus):
            after = choose.spread(d, gpus)
            yield _split("more_gpus", after, f"on {gpus} GPUs")


def _split(rule: str, after: Deployment, note: str) -> Change:
    return Change(
        rule,
        "--tensor-parallel-size",
        after.tp,
        after,
        note,
        f"--pipeline-parallel-size {after.pp}",
    )


def other_split(d: Deployment) -> Iterator[Change]:
    """Use the same GPUs in another way."""
    for after in choose.splits(d, d.replica_gpus):
        if (after.tp, after.pp) != (d.tp, d.pp):
            yield _split("other_split", after, "on the same GPUs")


def replicas(d: Deployment, gpus: int) -> Iterator[Change]:
    """Let replicas share the experts of a MoE model: of all sizes over so many GPUs, the one that keeps most tokens."""
    m, sizes = d.model, (tp for tp in range(1, gpus // 2 + 1) if gpus % tp == 0)
    if m.moe and d.dp == 1:
        tried = [
            replace(d, tp=tp, pp=1, dp=gpus // tp, ep=True, dcp=1)
            for tp in sizes
            if not tp_problem(m, tp, 1)
        ]
        if fitting := [each for each in tried if not each.uneven and fit(each).fits]:
            after = max(fitting, key=lambda each: (each.dp * fit(each).capacity.tokens, each.tp))
            words = f"--data-parallel-size {after.dp} --enable-expert-parallel"
            yield Change(
                "replicas", "--tensor-parallel-size", after.tp, after, f"on {gpus} GPUs", words
            )


def context(d: Deployment) -> Iterator[Change]:
    """Let the ranks that keep copies of K and V share out the tokens instead."""
    copies = _copies(d)
    if d.dcp == 1 and copies in context_sizes(d.model, d.tp):
        yield Change("context", "--decode-context-parallel-size", copies, replace(d, dcp=copies))


def shorter(d: Deployment) -> Iterator[Change]:
    """Admit shorter requests only: the longest that fits."""
    longest = longest_context(d)
    if 0 < longest < d.settings.max_model_len:
        after = d.with_settings(max_model_len=longest)
        yield Change("shorter", "--max-model-len", longest, after)


Rule = Callable[[Deployment], Iterator[Change]]


def first_fit(d: Deployment, *rules: Rule) -> Change | None:
    """Return the first change of these rules after which the deployment fits."""
    return next((change for rule in rules for change in rule(d) if change.fits), None)


def advise(choice: choose.Choice) -> list[str]:
    """Return what would make the plan better; where it does not fit, the nearest things that would."""
    d = choice.deployment
    return list(_better(d, choice.world)) if fit(d).fits else _nearest(d)


def _nearest(d: Deployment) -> list[str]:
    f, title = fit(d), d.gpu.title
    out: list[str] = []
    for change in shorter(d) if f.loads else ():
        left = f.available[f.tightest] / GIB
        out.append(
            f"With {change.words} it fits on these {d.gpus} GPU(s): {left:.1f} GiB of KV cache hold that much."
        )
    if smaller := first_fit(d, kv_fp8, weights_fp8):
        what = "an FP8 KV cache" if smaller.rule == "kv_fp8" else "FP8 weights"
        out.append(f"With {what} ({smaller.words}) it fits on the same GPUs.")
    elif both := next(
        (second for first in weights_fp8(d) for second in kv_fp8(first.after) if second.fits), None
    ):
        out.append(
            f"With FP8 weights and KV cache (--quantization fp8 {both.words}) it fits on the same GPUs."
        )
    if split := first_fit(d, other_split):
        out.append(f"The same {d.gpus} × {title} hold it with {split.words}.")
    if more := first_fit(d, more_gpus):
        nodes = f"on {more.after.nodes} node(s) of {d.gpus_per_node}"
        out.append(f"{more.after.gpus} × {title} hold it: {more.words} {nodes}.")
    none = (
        f"One {title} does not hold it"
        if d.gpu.is_slice
        else f"No split over up to {MOST_GPUS} × {title} holds it"
    )
    return out or [f"{none}: choose a larger GPU."]


def _better(d: Deployment, world: int) -> Iterator[str]:
    now, length = fit(d).capacity, d.settings.max_model_len
    for change in (change for rule in (kv_fp8, utilization, small_batch) for change in rule(d)):
        tokens = fit(change.after).capacity.tokens
        more, times = tokens - now.tokens, tokens / max(1, now.tokens)
        if change.rule == "kv_fp8":
            yield f"{change.words} holds {tokens:,} tokens ({times:.1f} times), at a small cost in precision."
        elif change.rule == "utilization":
            yield f"{change.words} adds {more:,} tokens, {change.note}."
        elif more > 0.01 * now.tokens:
            yield f"{change.words} adds {more:,} tokens; {change.note}."
    yield from _about_gpus(d, world)
    if now.max_concurrency < 2:
        yield f"Fewer than two requests of {length:,} tokens fit at once; more GPUs help, or shorter requests."


def _copies(d: Deployment) -> int:
    kind = main_kind(d.model)
    return d.tp * kind.token_elements(d.model, d.tp) // kind.token_elements(d.model)


def _about_gpus(d: Deployment, world: int) -> Iterator[str]:
    """world: the GPUs that there are; 0 where nobody said."""
    if _copies(d) > 1:
        held = f"Each of {d.tp} GPUs keeps {main_kind(d.model).held(d.model, d.tp)}, so everything is kept {_copies(d)} times"
        yield f"{held}: pipeline parallelism would keep it once."
        yield from _instead_of_copies(d, world or d.gpus) if d.model.moe else ()
    idle = world - d.gpus
    if idle >= d.gpus:
        servers = f"{idle // d.gpus} more server(s) like this one would use them"
        yield f"{idle} GPU(s) stay idle: {servers}, each with its own requests (data parallel)."
    if fewer := choose.fewest(d, d.replica_gpus - 1):
        how = f"{_split('fewer_gpus', fewer, '').words}, with {_slower(d, fewer)} of the speed for one stream"
        yield f"{fewer.gpus} × {d.gpu.title} hold it as well: {how}."


def _slower(d: Deployment, other: Deployment) -> str:
    return f"{speed.decode_tokens_per_s(other) / speed.decode_tokens_per_s(d):.0%}"


def _instead_of_copies(d: Deployment, gpus: int) -> Iterator[str]:
    """Say of a MoE model what keeps more tokens on so many GPUs than servers of this split."""
    servers = gpus // d.gpus
    now = fit(d).capacity.tokens * servers
    for change in replicas(d, gpus):
        tokens = change.after.dp * fit(change.after).capacity.tokens
        if tokens > WORTH * now:
            than = f"{tokens:,} tokens in all {change.note} instead of {now:,}{f' on {servers} such servers' if servers > 1 else ''}"
            cost = f"at {_slower(d, change.after)} of the speed for one stream (estimated)"
            yield f"For many users, {change.words} holds {than}, {cost}: attention and cache are each replica's own, experts are shared."
    for change in context(d) if not d.model.exact else ():  # other kinds of caches were not tried
        tokens = fit(change.after).capacity.tokens
        yield f"For long contexts, {change.words} shares out what is copied: {tokens:,} tokens on these {d.gpus} GPUs; what its messages cost was not measured."
