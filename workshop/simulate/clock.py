"""The plan's clock: how long one step takes that prefills some requests and decodes others.

The time of a step is the larger of reading the weights and multiplying with them (the roofline), and then the rest:
attention over what is cached, arithmetic of attention among new tokens, small kernels, messages between GPUs, Python.
All constants are the plan's (planner/inference_planner/speed.py, fitted to single streams and batches on H200) but those below.
"""

from collections import Counter
from dataclasses import dataclass
from math import inf

from inference_planner import speed
from inference_planner.attention import layers, mamba
from inference_planner.communication import traffic
from inference_planner.deployment import Deployment
from inference_planner.kv_cache import kv_dtype_bytes

ATTENTION_SHARE = 0.5  # of peak FLOP/s, FlashAttention-3 at 1k to 4k tokens, head dim 128 (arXiv 2407.08608, figure 5)
# Fitted to six loads of Llama 3.1 8B on one H100 (benchmarks/simulate/records), vLLM 0.25.1:
PREFILL_SHARE = 0.73  # of peak FLOP/s that products with thousands of rows reach
KV_SHARE = 1.0  # of peak bandwidth at which many requests' cache is read
REQUEST_MS = 0.0134  # of the GPU, for one more request in a step
HOST_STEP_MS = 2.35  # Python, from one step's answers to the next step's first kernel
HOST_REQUEST_MS = 0.038  # and for one more request in it
PIECES_LAYER_MS = (
    0.31  # to launch a layer where attention stands outside the CUDA graphs: a step that prefills
)
EAGER_LAYER_MS = (
    0.85  # to launch a layer where there is no graph: a step of more tokens than the largest
)
WAY_MS = 2.4  # of a request through AsyncLLM, in and out
# Fitted to six loads of Qwen3 30B A3B on one H200; the load in which a step stood still for a second does not count:
EXPERTS_PREFILL_SHARE = 0.52
EXPERTS_MANY_MS = 0.02  # a layer, to sort tokens by expert where there is more than one
EXPERTS_LAUNCH = 1.4  # times the kernels of a dense layer
# Fitted to the light and the middle load of Llama 3.1 70B in FP8 on one H200; its burst and shared prefix are a test:
FP8_PREFILL_SHARE = 0.64
FP8_ROWS = 128  # of a tile: products of fewer rows take as long as a whole one
FP8_ODD_TILES = 3  # tiles' time more where the rows fill an odd number of them, from three on; seen, not explained
FP8_LAUNCH = 1.5  # times the kernels of a dense layer: activations are quantised before each product (0.25.1)
# a layer: decoding of 1, 16 and 64 requests, recorded before the loads (8B is a test)
FP8_REQUEST_MS = 0.05 / 80
# Fitted to loads of Nemotron Nano 9B v2 on one H200, vLLM 0.32.0, the first to light and middle, the second to its burst
# and long prompts; heavy and the shared prefix are a test:
MAMBA_PIECES_MS = 2.65  # to launch a Mamba layer's scan in a step that prefills: Triton kernels, outside the graphs
DELTA_PIECES_MS = (
    1.2  # a delta net's in a step with a graph, fitted to a lone prompt of Qwen3-Next (0.33.0)
)
SCAN_SHARE = 0.048  # of the peak: what Triton's scan of a Mamba layer reaches
# Under vLLM 0.32.0, fitted to 8B with its defaults at 30 requests a second on one H200; the same with fewer tokens a
# step, with an FP8 KV cache and on an H100, whose host took as long, are a test. FP8's kernels of its own are then gone
# (70B FP8 on two H200):
EAGER_LAYER_MS_0_32 = 0.77
# Fitted to the busy load of 8B on two H200, TP 2, 0.32.0:
EAGER_RANKS = 0.8  # times that, where each rank launches in a process of its own
# Fitted to 8B with steps of 512 tokens and an FP8 KV cache on one H200, 0.32.0; the same on an H100 is a test:
RAMP = 0.15  # so many times a token's time on top of it, as products of few rows leave a part of the GPU idle,
RAMP_TOKENS = 512  # for each of the first
# Fitted to the heavy load of Qwen3 30B A3B on two H200, data parallel, vLLM 0.32.0; its other loads are a test:
DEALT_OUT_EAGER = 1.46  # times the launch of a step without a graph, where replicas share experts
MANY = 10**6  # tokens: so many that only arithmetic and bytes count


@dataclass(frozen=True)
class Layers:
    """Attention layers of one kind. size: tokens of the window or chunk, inf where the whole context is seen."""

    cached_token_ms: float  # to read one cached token in all of them
    pair_ms: float  # for one new token to attend to one other
    size: float = inf

    def pairs(self, new: int, before: int) -> float:
        """Return how many tokens the new ones attend to in all: so many more each, until `size` are in sight."""
        more = min(new, max(0, self.size - before))
        return more * (before + more / 2) + ((new - more) * self.size if new > more else 0)


@dataclass(frozen=True)
class Clock:
    """What the parts of a step take, on all pipeline stages in turn: first the GPU's, then the host's."""

    weights_ms: float  # to read the weights that every step needs
    token_ms: float  # arithmetic of one token
    fixed_ms: float  # small kernels, latency of collectives, sampling
    request_ms: float = 0.0  # of one more request
    attention: tuple[Layers, ...] = ()
    message_ms: float = 0.0  # one token's bytes between GPUs
    scan_token_ms: float = 0.0  # of one token in the scans of recurrent layers
    rows: int = 1  # tokens are multiplied in tiles of so many
    ramp: float = 0.0  # times token_ms more, for each of the first RAMP_TOKENS
    odd_ms: float = 0.0  # more where tiles are odd in number and more than one
    experts_ms: float = 0.0  # to read all experts once
    idle_experts: float = 0.0  # share of them that one token leaves idle
    experts_many_ms: float = 0.0  # to sort tokens by expert, where there is more than one
    host_step_ms: float = 0.0
    host_request_ms: float = 0.0
    pieces_ms: float = 0.0  # to launch a step that prefills
    eager_ms: float = 0.0  # to launch a step of more tokens than the largest CUDA graph
    largest_graph: int = 512
    way_in_s: float = 0.0  # from the client to the engine
    way_out_s: float = 0.0  # from the engine to the client
    stages: int = 1

    def gpu_ms(self, work: list[tuple[int, int]]) -> float:
        """Return how long the GPUs are busy. work: (new tokens, tokens computed before) of each request."""
        tokens = sum(new for new, _ in work)
        read_ms = self.weights_ms + self.experts_ms * (1 - self.idle_experts**tokens)
        tiles = -(-tokens // self.rows)
        rows = tiles * self.rows + self.ramp * min(tokens, RAMP_TOKENS)
        ms = (
            max(read_ms, rows * self.token_ms + tokens * self.scan_token_ms)
            + tokens * self.message_ms
        )
        ms += self.odd_ms if tiles % 2 and tiles > 1 else 0.0
        ms += (
            self.fixed_ms
            + (len(work) - 1) * self.request_ms
            + (self.experts_many_ms if tokens > 1 else 0.0)
        )
        for kind in self.attention:
            cached = sum(min(before + new, kind.size) for new, before in work)
            pairs = sum(kind.pairs(new, before) for new, before in work if new > 1)
            ms += cached * kind.cached_token_ms + pairs * kind.pair_ms
        return ms

    def host_ms(self, work: list[tuple[int, int]]) -> tuple[float, float]:
        """Return (before the first kernel, launching kernels one by one): the second runs beside the GPU."""
        launch = 0.0
        if sum(new for new, _ in work) > self.largest_graph:
            launch = self.eager_ms
        elif any(new > 1 for new, _ in work):
            launch = self.pieces_ms
        return self.host_step_ms + len(work) * self.host_request_ms, launch


def _scans(d: Deployment) -> tuple[float, float, float]:
    """Return ms to launch the scans of a step that prefills, with a CUDA graph and without; of a token in them."""
    s = d.model.mamba
    # a state is written to, kept, read from
    count, operations = len(s.layers), 6 * s.inner * s.d_state / d.tp
    token_ms = count * operations / (d.gpu.bf16_tflops * 1e9) / SCAN_SHARE
    return (
        count * (DELTA_PIECES_MS if s.delta else MAMBA_PIECES_MS),
        count * MAMBA_PIECES_MS,
        token_ms,
    )


def of(d: Deployment, host: float = 1.0) -> Clock:
    """Return the clock of a deployment. host: how long its host takes for Python and launches, against that H100's."""
    m, gpu = d.model, d.gpu
    fp8 = bool(m.quantization and m.quantization.activation_bits == 8 and gpu.fp8_tflops)
    share = EXPERTS_PREFILL_SHARE if m.moe else FP8_PREFILL_SHARE if fp8 else PREFILL_SHARE
    one = {t.name: t.ms for t in speed.decode_terms(d, batch=1, context=0)}
    many = {t.name: t.ms for t in speed.decode_terms(d, batch=MANY, context=0)}
    sent_ms, sent_many_ms = (sum(t.ms for t in traffic(d, tokens)) for tokens in (1, MANY))
    message_ms = (sent_many_ms - sent_ms) / (MANY - 1)
    read_ms = kv_dtype_bytes(m, d.settings.kv_cache_dtype) / (gpu.bandwidth_gb_s * 1e6) / KV_SHARE
    pair_ms = (
        4 * m.num_attention_heads * m.head_dim / d.tp / (gpu.bf16_tflops * 1e9) / ATTENTION_SHARE
    )
    moe_layers = len(m.moe.layers) if m.moe else 0
    scan_ms, eager_scan_ms, scan_token_ms = _scans(d) if m.mamba else (0.0,) * 3
    state_ms = one.get("states", 0.0)
    old = not d.settings.version.fast_eager_launch
    launched = (m.num_hidden_layers + (EXPERTS_LAUNCH - 1) * moe_layers) * (
        FP8_LAUNCH if fp8 and old else 1
    )
    eager_ms = launched * (host * EAGER_LAYER_MS if old else EAGER_LAYER_MS_0_32)
    eager_ms *= DEALT_OUT_EAGER if d.dp > 1 and m.moe else 1
    eager_ms *= EAGER_RANKS if d.tp > 1 and not old else 1
    token_ms = many["arithmetic"] / MANY * speed.MATMUL_SHARE / share
    request_ms = FP8_REQUEST_MS * m.num_hidden_layers if fp8 else REQUEST_MS
    kinds = Counter(layers(m)).items()
    # all replicas' tokens count
    idle = (1 - m.moe.experts_per_token / m.moe.num_experts) ** d.dp if m.moe else 0.0
    return Clock(
        weights_ms=one["weights"],
        token_ms=token_ms,
        fixed_ms=one["small kernels"] + one["step"] + state_ms + sent_ms - message_ms,
        request_ms=request_ms + state_ms,
        attention=tuple(
            Layers(n * kind.token_elements(m, d.tp) * read_ms, n * pair_ms, size or inf)
            for (kind, size), n in kinds
            if kind is not mamba
        ),
        message_ms=message_ms,
        scan_token_ms=scan_token_ms,
        rows=FP8_ROWS if fp8 else 1,
        ramp=0.0 if fp8 else RAMP,
        odd_ms=FP8_ODD_TILES * FP8_ROWS * token_ms if fp8 else 0.0,
        experts_ms=one.get("experts", 0.0) / (1 - idle),
        idle_experts=idle,
        experts_many_ms=moe_layers * EXPERTS_MANY_MS,
        host_step_ms=host * HOST_STEP_MS,
        host_request_ms=host * HOST_REQUEST_MS,
        pieces_ms=host * (launched * PIECES_LAYER_MS + scan_ms),
        eager_ms=eager_ms + host * eager_scan_ms,
        largest_graph=d.settings.largest_graph,
        way_in_s=host * WAY_MS / 2e3,
        way_out_s=host * WAY_MS / 2e3,
        stages=d.pp,
    )
