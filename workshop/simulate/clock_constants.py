"""The fitted constants of the simulator's clock: value, unit, meaning, and the loads of the fit.

Each block names its source: a paper, or a record in tests/data/simulate/records together with the
loads that stayed out of the fit and test it (docs/simulate.md has both tables). The unit ends the
name: `_MS` is milliseconds, `_SHARE` a share of a peak, `_TOKENS` and `_ROWS` count, `_FACTOR`
multiplies. Constants of single streams and of batches on H200 are the planner's own
(planner/inference_planner/speed/roofline.py).
"""

# Source: FlashAttention-3 (arXiv 2407.08608), figure 5: 1k to 4k tokens, head dim 128.
ATTENTION_SHARE = 0.5  # share of peak FLOP/s: attention among new tokens

# Fitted to six loads of Llama 3.1 8B on one H100, vLLM 0.25.1 (h100_llama-3.1-8b).
PREFILL_SHARE = 0.73  # share of peak FLOP/s: dense matrix products with thousands of rows
KV_SHARE = 1.0  # share of peak bandwidth: reading the KV cache of many requests
REQUEST_MS = 0.0134  # ms of the GPU: each further request in a step
HOST_REQUEST_MS = 0.038  # ms of the host: each request in a step
PIECEWISE_LAYER_MS = 0.31  # ms a layer: launch with piecewise CUDA graphs (a step that prefills)
EAGER_LAYER_MS = 0.85  # ms a layer: launch without a graph (more tokens than the largest graph)
CLIENT_MS = 2.4  # ms a request: the way through AsyncLLM, in and out together

# Measured on one H200, vLLM 0.33.0 (docs/gpu.md, what HTTP adds): what a lone request of Llama 3.1 8B
# waits longer at its client than in the engine, with a prompt of 128, of 1,024 and 8,192 tokens.
HTTP_MS = 2.4  # ms a request: on top of CLIENT_MS, in and out together
TEXT_TOKEN_MS = 0.004  # ms a token of a prompt: until its text is tokens, in a thread of its own

# Fitted to six loads of Qwen3 30B A3B on one H200 (h200_qwen3-30b-a3b), without the load in which
# one step stood still for a second.
EXPERTS_PREFILL_SHARE = 0.52  # share of peak FLOP/s: expert products with thousands of rows
EXPERTS_SORT_MS = 0.02  # ms a MoE layer: sorting tokens by expert in a step of two tokens or more
EXPERTS_LAUNCH_FACTOR = 1.4  # times a dense layer's launch: a MoE layer has more kernels

# Fitted to the light and middle loads of Llama 3.1 70B in FP8 on one H200 (h200_llama-3.1-70b-fp8).
# Its burst and its shared prefix are the test.
FP8_PREFILL_SHARE = 0.64  # share of peak FLOP/s: FP8 matrix products with thousands of rows
FP8_TILE_ROWS = 128  # rows of a tile: a product of fewer rows takes as long as a whole tile
FP8_ODD_TILES = 3  # tiles of extra time where rows fill 3, 5, 7 … tiles; observed, not explained
FP8_LAUNCH_FACTOR = 1.5  # times a dense layer's launch: activations are quantized apart (0.25.1)
# From decoding 1, 16 and 64 requests, recorded before the loads; 8B is the test.
FP8_REQUEST_LAYER_MS = 0.05 / 80  # ms a layer: each further request in a step

# Fitted to loads of Nemotron Nano 9B v2 on one H200, vLLM 0.32.0 (h200_nemotron-nano-9b-v2_0.32),
# burst and long prompts. Heavy and the shared prefix are the test. What launching such a scan takes
# is a column of the releases (mamba_launch_ms), fitted to its light and middle loads.
SCAN_SHARE = 0.048  # share of peak FLOP/s: Triton's scan of a Mamba layer

# Fitted to lone prompts on one H200, vLLM 0.33.0 (kinds_h200_0.33_third): of Qwen3.6 35B, which has
# such layers and experts in 16 bit, and of Qwen3 30B A3B in FP8 blocks, which has none. Qwen3-Next,
# which has both, would have 2.0 without a graph, and Qwen3.6 1.2; its loads are the test
# (h200_qwen3-next-80b-a3b-fp8).
DELTA_LAUNCH_MS = 1.2  # ms a gated delta net layer: launching its scan in a step with a graph
DELTA_EAGER_MS = 1.6  # the same in a step without one
# ms a layer with experts whose FP8 weights share a scale in blocks (Triton), in a step without a
# graph, on top of a usual layer with experts: quantizing and sorting.
FP8_BLOCK_EXPERTS_EAGER_MS = 0.45

# Fitted to prompts of 2,048 tokens of gpt-oss-120b on two H100 and of Llama 4 Scout on four (vLLM
# 0.33.0), whose experts have no tuned file, against the loads of gpt-oss-20b and -120b and of Qwen3
# 30B on H100 (no tuned file either): the prompts alone say twice as much, those loads less. The
# tiles are not the reason (docs/gpu.md measures the kernels with both): launching is. ms a layer
# with experts, in a step without a graph.
MXFP4_EXPERTS_EAGER_MS = 0.7
UNTUNED_EXPERTS_EAGER_MS = 0.5

# Fitted to the chat load of GLM-4.5-Air FP8 on two H100, vLLM 0.32.0
# (h100_glm-4.5-air-fp8_tp2_0.32). Its batch of 64 is the test. ms a layer with experts on top of a
# usual one, where CUTLASS multiplies experts in FP8: a step with a graph, and one without.
CUTLASS_EXPERTS_MS = 0.09
CUTLASS_EXPERTS_EAGER_MS = 2.4

# Fitted to 8B with its defaults at 30 requests a second on one H200, vLLM 0.32.0
# (h200_llama-3.1-8b_slo_default). The tests: fewer tokens a step, an FP8 KV cache, and an H100,
# whose host took as long. FP8 needs no factor any more (70B FP8 on two H200).
FAST_EAGER_LAYER_MS = 0.77  # ms a layer: as EAGER_LAYER_MS, of releases with fast_eager_launch

# Fitted to the busy load of 8B on two H200, tensor parallel 2, vLLM 0.32.0
# (h200_llama-3.1-8b_tp2_two). Public points of Qwen3 32B on eight H100 (0.12) say less, not more.
EAGER_RANKS_FACTOR = 0.8  # times that launch, where each rank launches in a process of its own

# Fitted to 8B with steps of 512 tokens and an FP8 KV cache on one H200, vLLM 0.32.0
# (h200_llama-3.1-8b_slo_kv8_512). The same on an H100 is the test. Products of few rows leave a
# part of the GPU idle.
RAMP_SHARE = 0.15  # share of a token's time that each of the first RAMP_TOKENS tokens costs extra
RAMP_TOKENS = 512  # tokens

# Fitted to the heavy load of Qwen3 30B A3B on two H200, data parallel, vLLM 0.32.0
# (h200_qwen3-30b-a3b_dp2_0.32). Its other loads are the test.
EXPERT_PARALLEL_EAGER_FACTOR = 1.46  # times the eager launch; data-parallel ranks share experts
