"""The simulator's clock: how long a step takes that prefills some requests and decodes others.

A step takes the longer of reading the weights and multiplying with them (the roofline). On top of
that come attention over the cached tokens, attention among the new tokens, small kernels, messages
between GPUs, and Python on the host. The constants are those of the planner
(planner/inference_planner/speed/roofline.py) and of `clock_constants`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from inference_planner.memory.learned import speed_ratio
from inference_planner.model.attention import layers
from inference_planner.model.attention.base import States
from inference_planner.model.kv_cache import kv_dtype_bytes
from inference_planner.speed import roofline as speed
from inference_planner.speed.kernels import (
    FP8,
    FP8_BLOCKS,
    MXFP4,
    card,
    experts_kernel,
    is_tuned,
    kernels,
)
from inference_planner.split.communication import traffic
from inference_planner.split.deployment import Deployment

from workshop.simulate import clock_constants as fitted

LEAST_TILE_ROWS = 16
MANY_TOKENS = 10**6  # so many that only arithmetic and bytes count, and every fixed cost is lost
SCAN_OPERATIONS = 6  # a token and element of the state: it is written to, kept and read from

# The work of a request in a step: (new tokens, tokens computed before).
Work = tuple[int, int]


@dataclass(frozen=True)
class Layers:
    """The attention layers of one kind; `size` is the tokens of the window, inf for all."""

    cached_token_ms: float  # to read one cached token in all of them
    pair_ms: float  # for one new token to attend to one other token
    size: float = inf

    def pairs(self, new: int, before: int) -> float:
        """Return how many pairs (new token, token it attends to) there are in all.

        Each new token sees one token more than the one before it, until `size` tokens are in sight.
        """
        growing = min(new, max(0, self.size - before))
        pairs = growing * (before + growing / 2)
        full = 0
        if new > growing:
            full = (new - growing) * self.size
        return pairs + full

    def ms(self, work: list[Work]) -> float:
        """Return the ms to attend to what is cached, and among the new tokens of prompts."""
        cached = 0
        pairs = 0
        for new, before in work:
            cached += min(before + new, self.size)
            if new > 1:
                pairs += self.pairs(new, before)
        return cached * self.cached_token_ms + pairs * self.pair_ms


@dataclass(frozen=True)
class Clock:
    """The times of a step's parts, over all pipeline stages: the GPU's first, then the host's."""

    weights_ms: float  # to read the weights that every step needs
    token_ms: float  # arithmetic of one token
    fixed_ms: float  # small kernels, latency of collectives, sampling
    request_ms: float = 0.0  # each further request
    attention: tuple[Layers, ...] = ()
    message_ms: float = 0.0  # the bytes of one token between GPUs
    scan_token_ms: float = 0.0  # one token in the scans of recurrent layers
    rows: int = 1  # rows of a tile: tokens are multiplied in whole tiles
    ramp: float = 0.0  # share of token_ms that each of the first RAMP_TOKENS costs extra
    odd_ms: float = 0.0  # extra where the number of tiles is odd and above 1
    experts_ms: float = 0.0  # to read all experts once
    chosen_experts: float = 0.0  # share of the experts that one token chooses
    sharing: int = 1  # engines that share the experts, each with as many tokens
    experts_variation: float = speed.EXPERTS_VARIATION  # how unevenly they are chosen
    experts_sort_ms: float = 0.0  # to sort tokens by expert, where there are two or more
    host_step_ms: float = 0.0
    host_request_ms: float = 0.0
    piecewise_ms: float = 0.0  # to launch a step that prefills
    eager_ms: float = 0.0  # to launch a step of more tokens than the largest CUDA graph
    launch_waits: float = 0.0  # share of a launch that the GPUs wait for
    largest_graph: int = 512  # tokens
    way_in_s: float = 0.0  # from the client to the engine
    way_token_s: float = 0.0  # each token of a prompt on that way
    way_out_s: float = 0.0  # from the engine to the client
    stages: int = 1

    def arrives_s(self, sent_s: float, prompt_tokens: int) -> float:
        """Return when the engine has a request."""
        return sent_s + self.way_in_s + prompt_tokens * self.way_token_s

    def gpu_ms(self, work: list[Work]) -> float:
        """Return how long the GPUs are busy with a step, in ms."""
        tokens = sum(new for new, _ in work)
        ms = self._products_ms(tokens) + tokens * self.message_ms
        ms += self._odd_tiles_ms(tokens)
        ms += self._fixed_ms(tokens, len(work))
        for kind in self.attention:
            ms += kind.ms(work)
        return ms + self.launch_waits * self._launch_ms(work)

    def _products_ms(self, tokens: int) -> float:
        """Return the ms to read or to multiply weights and experts, whichever is longer."""
        chosen = speed.chosen_experts(
            self.chosen_experts, tokens * self.sharing, self.experts_variation
        )
        read_ms = self.weights_ms + self.experts_ms * chosen
        rows = self._rows(tokens) + self.ramp * min(tokens, fitted.RAMP_TOKENS)
        return max(read_ms, rows * self.token_ms + tokens * self.scan_token_ms)

    def _rows(self, tokens: int) -> int:
        """Return the rows that are multiplied: whole tiles; a single one shrinks by powers of 2.

        Source: vLLM 0.32.0, csrc/quantization/w8a8/cutlass: tiles of 16 to 128 rows are chosen by
        the tokens.
        """
        if tokens >= self.rows:
            return self._tiles(tokens) * self.rows
        return min(self.rows, max(LEAST_TILE_ROWS, 1 << (tokens - 1).bit_length()))

    def _tiles(self, tokens: int) -> int:
        return -(-tokens // self.rows)

    def _odd_tiles_ms(self, tokens: int) -> float:
        tiles = self._tiles(tokens)
        if tiles > 1 and tiles % 2 == 1:
            return self.odd_ms
        return 0.0

    def _fixed_ms(self, tokens: int, requests: int) -> float:
        sort_ms = self.experts_sort_ms if tokens > 1 else 0.0
        return self.fixed_ms + (requests - 1) * self.request_ms + sort_ms

    def host_ms(self, work: list[Work]) -> tuple[float, float]:
        """Return the host's ms: (before the first kernel, launching kernels while the GPU runs)."""
        return self.host_step_ms + len(work) * self.host_request_ms, self._launch_ms(work)

    def _launch_ms(self, work: list[Work]) -> float:
        """Return the ms to launch a step's kernels: 0 with a full CUDA graph, most without any."""
        tokens = 0
        prefills = False
        for new, _ in work:
            tokens += new
            prefills = prefills or new > 1
        if tokens > self.largest_graph:
            return self.eager_ms
        if prefills:
            return self.piecewise_ms
        return 0.0


def of(deployment: Deployment, host: float = 1.0, *, http: bool = True) -> Clock:
    """Return the clock of a deployment.

    Args:
        host: how long its host takes for Python and launches, relative to that of the recorded
            H100.
        http: requests are texts that come by HTTP; otherwise tokens, from the engine's own process.
    """
    way_ms = host * (fitted.CLIENT_MS + (fitted.HTTP_MS if http else 0.0))
    terms_ms = _terms_ms(deployment, 1)
    states_ms = terms_ms.get("states", 0.0)
    sent_ms, message_ms = _messages_ms(deployment)
    token_ms = _token_ms(deployment)
    chosen_experts, experts_ms = _experts(deployment, terms_ms.get("experts", 0.0))
    piecewise_scans_ms, eager_scans_ms = _scans_launch_ms(deployment)
    fp8 = _multiplies_in_fp8(deployment)
    return Clock(
        weights_ms=terms_ms["weights"],
        token_ms=token_ms,
        fixed_ms=terms_ms["small kernels"]
        + terms_ms["step"]
        + terms_ms.get("offloaded weights", 0.0)
        + states_ms
        + sent_ms
        - message_ms,
        request_ms=_request_ms(deployment) + states_ms,
        attention=_attention(deployment),
        message_ms=message_ms,
        scan_token_ms=_scan_token_ms(deployment),
        rows=fitted.FP8_TILE_ROWS if fp8 else 1,
        ramp=0.0 if fp8 else fitted.RAMP_SHARE,
        odd_ms=fitted.FP8_ODD_TILES * fitted.FP8_TILE_ROWS * token_ms if fp8 else 0.0,
        experts_ms=experts_ms,
        chosen_experts=chosen_experts,
        sharing=deployment.dp,
        experts_sort_ms=_moe_layers(deployment) * fitted.EXPERTS_SORT_MS,
        host_step_ms=host * speed.host_step_ms(deployment.settings.version),
        host_request_ms=host * fitted.HOST_REQUEST_MS,
        piecewise_ms=host * (_piecewise_ms(deployment) + piecewise_scans_ms) / deployment.pp,
        eager_ms=(_eager_ms(deployment, host) + host * eager_scans_ms) / deployment.pp,
        launch_waits=deployment.settings.version.launch_waits,
        largest_graph=deployment.settings.largest_graph,
        way_in_s=way_ms / 2e3,
        way_token_s=host * fitted.TEXT_TOKEN_MS / 1e3 if http else 0.0,
        way_out_s=way_ms / 2e3,
        stages=deployment.pp,
    )


def _terms_ms(deployment: Deployment, batch: int) -> dict[str, float]:
    """Return the planner's terms of a decoding step without context, by name, in ms."""
    ratio = speed_ratio(deployment)  # of what was measured here, if a log was kept
    return {
        term.name: term.ms / ratio
        for term in speed.decode_terms(deployment, batch=batch, context=0)
    }


def _multiplies_in_fp8(deployment: Deployment) -> bool:
    quantization = deployment.model.quantization
    return bool(quantization and quantization.activation_bits == 8 and deployment.gpu.fp8_tflops)


# Linear layers and experts


def _token_ms(deployment: Deployment) -> float:
    """Return the ms of one of many tokens, at the share of the peak that large products reach."""
    share = fitted.PREFILL_SHARE
    if deployment.model.moe:
        share = fitted.EXPERTS_PREFILL_SHARE
    elif _multiplies_in_fp8(deployment):
        share = fitted.FP8_PREFILL_SHARE
    measured = [used.measurement.products_share for used in kernels(deployment)]
    share = measured[-1] or share
    arithmetic_ms = _terms_ms(deployment, MANY_TOKENS)["arithmetic"]  # at speed.MATMUL_SHARE
    return arithmetic_ms / MANY_TOKENS * speed.MATMUL_SHARE / share


def _request_ms(deployment: Deployment) -> float:
    """Return the GPU's time for each further request, without its recurrent states."""
    if _multiplies_in_fp8(deployment):
        return fitted.FP8_REQUEST_LAYER_MS * deployment.model.num_hidden_layers
    return fitted.REQUEST_MS


def _moe_layers(deployment: Deployment) -> int:
    if deployment.model.moe is None:
        return 0
    return len(deployment.model.moe.layers)


def _experts(deployment: Deployment, one_token_ms: float) -> tuple[float, float]:
    """Return the share of the experts that one token chooses, and the time to read all, in ms.

    `one_token_ms` is the planner's: of what a step of one token on each engine reads.
    """
    moe = deployment.model.moe
    if moe is None:
        return 0.0, 0.0
    share = moe.token_share
    return share, one_token_ms / speed.chosen_experts(share, deployment.dp)


# Attention and recurrent layers


def _attention(deployment: Deployment) -> tuple[Layers, ...]:
    """Return the attention layers, grouped by kind and window; recurrent layers have none."""
    model = deployment.model
    gpu = deployment.gpu
    element_bytes = kv_dtype_bytes(model, deployment.settings.kv_cache_dtype)
    byte_ms = 1 / (gpu.bandwidth_gb_s * 1e6) / (fitted.KV_SHARE * card(gpu).kv_share)
    pair_operations = 4 * model.num_attention_heads * model.head_dim / deployment.tp
    pair_ms = pair_operations / (gpu.bf16_tflops * 1e9) / fitted.ATTENTION_SHARE
    groups = []
    for (kind, size), count in Counter(layers(model)).items():
        if not kind.keeps_states:
            token_bytes = kind.read_bytes(model, deployment.tp, element_bytes)
            groups.append(Layers(count * token_bytes * byte_ms, count * pair_ms, size or inf))
    return tuple(groups)


def _scanning_layers(deployment: Deployment) -> Iterator[tuple[States, int]]:
    """Yield the states of each kind of recurrent layer, and how many layers there are."""
    for (kind, _), count in Counter(layers(deployment.model)).items():
        states = kind.states(deployment.model, deployment.tp)
        if states and states.recurrence_elements:  # a short convolution has no scan
            yield states, count


def _scans_launch_ms(deployment: Deployment) -> tuple[float, float]:
    """Return the ms to launch the scans of a step that prefills: (with a graph, without one)."""
    with_graph_ms = without_graph_ms = 0.0
    mamba_ms = deployment.settings.version.mamba_launch_ms
    for states, count in _scanning_layers(deployment):
        with_graph_ms += count * (fitted.DELTA_LAUNCH_MS if states.has_delta_rule else mamba_ms)
        without_graph_ms += count * (fitted.DELTA_EAGER_MS if states.has_delta_rule else mamba_ms)
    return with_graph_ms, without_graph_ms


def _scan_token_ms(deployment: Deployment) -> float:
    """Return the ms of one token in all scans."""
    peak = deployment.gpu.bf16_tflops * 1e9 * fitted.SCAN_SHARE
    elements = sum(
        count * states.recurrence_elements for states, count in _scanning_layers(deployment)
    )
    return SCAN_OPERATIONS * elements / deployment.tp / peak


# Communication


def _messages_ms(deployment: Deployment) -> tuple[float, float]:
    """Return the messages between GPUs: (of a step with one token, the bytes of each token)."""
    one_token_ms = _traffic_ms(deployment, 1)
    many_tokens_ms = _traffic_ms(deployment, MANY_TOKENS)
    return one_token_ms, (many_tokens_ms - one_token_ms) / (MANY_TOKENS - 1)


def _traffic_ms(deployment: Deployment, tokens: int) -> float:
    """Return how long the messages of a step with so many tokens take, in ms."""
    return sum(message.ms for message in traffic(deployment, tokens))


# Launching kernels from Python


def _launched_layers(deployment: Deployment) -> float:
    """Return how many dense layers would take as long to launch as this model's layers."""
    count = deployment.model.num_hidden_layers + (fitted.EXPERTS_LAUNCH_FACTOR - 1) * _moe_layers(
        deployment
    )
    if _multiplies_in_fp8(deployment) and not deployment.settings.version.fast_eager_launch:
        return count * fitted.FP8_LAUNCH_FACTOR
    return count


def _experts_launch_ms(deployment: Deployment) -> tuple[float, float]:
    """Return the ms that the experts add to a usual layer's launch: (with a graph, without one)."""
    experts = experts_kernel(deployment.model, deployment.gpu, deployment.settings.moe_backend)
    if experts is None:
        return 0.0, 0.0
    count = _moe_layers(deployment)
    if (experts.name, experts.weights) == ("CUTLASS", FP8):
        return count * fitted.CUTLASS_EXPERTS_MS, count * fitted.CUTLASS_EXPERTS_EAGER_MS
    if (experts.name, experts.weights) == ("Triton", FP8_BLOCKS):
        return 0.0, count * fitted.FP8_BLOCK_EXPERTS_EAGER_MS
    if (experts.name, experts.weights) == ("Triton", MXFP4):
        return 0.0, count * fitted.MXFP4_EXPERTS_EAGER_MS
    # EXPERT_PARALLEL_EAGER_FACTOR was fitted to experts that have no tuned file
    if is_tuned(deployment) is False and deployment.dp == 1:
        return 0.0, count * fitted.UNTUNED_EXPERTS_EAGER_MS
    return 0.0, 0.0


def _piecewise_ms(deployment: Deployment) -> float:
    """Return the launch of a step that prefills and has graphs, apart from recurrent layers."""
    with_graph_ms, _ = _experts_launch_ms(deployment)
    return _launched_layers(deployment) * fitted.PIECEWISE_LAYER_MS + with_graph_ms


def _eager_ms(deployment: Deployment, host: float) -> float:
    """Return the launch of a step without a graph, apart from recurrent layers.

    The host's factor is left out for newer versions, whose launch was fitted without it.
    """
    fast = deployment.settings.version.fast_eager_launch
    layer_ms = fitted.FAST_EAGER_LAYER_MS if fast else host * fitted.EAGER_LAYER_MS
    launch_ms = _launched_layers(deployment) * layer_ms
    if fast:  # older versions' FP8_LAUNCH_FACTOR has it
        launch_ms += _experts_launch_ms(deployment)[1]
    if deployment.dp > 1 and deployment.model.moe:
        launch_ms *= fitted.EXPERT_PARALLEL_EAGER_FACTOR
    if deployment.tp > 1:
        launch_ms *= fitted.EAGER_RANKS_FACTOR
    return launch_ms
