"""The plan's clock: what a step takes follows the plan's own figures and hand arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from inference_planner.speed import roofline as speed
from inference_planner.split.deployment import prepare

from workshop.engine import measured_runs as recorded
from workshop.engine.planning import plan
from workshop.simulate import clock
from workshop.simulate import clock_constants as fitted
from workshop.simulate.arrivals import drawn
from workshop.simulate.load import on_plan

ROOT = Path(__file__).parents[2]
# of an H200's bandwidth: what cuBLAS reaches with one row (23 runs), and Triton's experts
WEIGHTS_SHARE = 0.833
EXPERTS_SHARE = 0.878


def test_one_decoding_request_takes_what_the_plan_says_of_a_single_stream():
    d = prepare("llama-3.1-8b", "h200", max_model_len=8192)
    planned_ms = sum(term.ms for term in speed.decode_terms(d, batch=1, context=160))
    assert clock.of(d).gpu_ms([(1, 159)]) == pytest.approx(planned_ms, rel=0.01)


def test_a_large_prefill_is_arithmetic():
    """Llama 3.1 8B: 2 × 8.03e9 FLOP a token; H100: 989e12 FLOP/s dense bf16 (NVIDIA), of which PREFILL_SHARE."""
    d = prepare("llama-3.1-8b", "h100", max_model_len=8192)
    products_ms = 2 * 8.03e9 * 8192 / 989e12 / fitted.PREFILL_SHARE * 1e3
    # 4 × 32 heads × 128 × 32 layers FLOP a pair of tokens; 8192² / 2 pairs
    attention_ms = 4 * 32 * 128 * 32 * 8192**2 / 2 / 989e12 / fitted.ATTENTION_SHARE * 1e3
    assert clock.of(d).gpu_ms([(8192, 0)]) == pytest.approx(products_ms + attention_ms, rel=0.03)


def test_products_of_a_card_reach_as_much_of_what_was_published_of_it_as_on_an_h100():
    """RTX 5090: 254 TFLOP/s, rated 209.5; H100: 792.1, rated 989 (catalog/gpus.json names both sources)."""
    d = prepare("llama-3.1-8b", "rtx-5090", dtype="bfloat16", max_model_len=8192)
    h100 = prepare("llama-3.1-8b", "h100", max_model_len=8192)
    published = clock.of(d).token_ms * 254, clock.of(h100).token_ms * 792.1
    assert published[0] == pytest.approx(published[1], rel=0.01)


def test_256_requests_at_once_on_a_card_that_nobody_measured_here_are_in_their_interval():
    """15,367 tokens/s were published of Qwen3-4B on an RTX 5090."""
    planned = plan("qwen3-4b", "rtx-5090", max_model_len=32768, tensor_parallel_size=1)
    load = drawn(burst=256, prompt=(19, 19), output=(127, 127))
    interval = on_plan(planned, load).tokens_per_s_interval
    assert interval.low < 15_367 < interval.high


def test_offloaded_weights_are_read_over_pcie_in_every_step():
    """A PCIe 5.0 slot of 16 lanes has 63 GB/s (32 GT/s, 128b/130b), of which 80 % are taken."""
    settings = {"max_model_len": 8192}
    part = clock.of(prepare("llama-3.1-8b", "h100", cpu_offload_gb=4, **settings))
    whole = clock.of(prepare("llama-3.1-8b", "h100", **settings))
    for work in [(1, 159)], [(2048, 0)]:
        more_s = (part.gpu_ms(work) - whole.gpu_ms(work)) / 1e3
        assert 4 * 2**30 / more_s == pytest.approx(0.8 * 63e9, rel=0.01)


def test_what_is_cached_costs_its_bytes():
    """131,072 bytes a token (2 × 32 layers × 8 heads × 128 × 2); H100: 3.35e12 bytes a second."""
    ticking = clock.of(prepare("llama-3.1-8b", "h100", max_model_len=8192))
    more_ms = ticking.gpu_ms([(1, 8000)]) - ticking.gpu_ms([(1, 4000)])
    assert more_ms == pytest.approx(4000 * 131072 / 3.35e12 / fitted.KV_SHARE * 1e3, rel=0.01)


def test_a_sliding_window_is_all_that_its_layers_read():
    """Gemma 2 9B: every second of 42 layers sees 4,096 tokens (its config.json)."""
    ticking = clock.of(prepare("gemma-2-9b", "h100", max_model_len=8192))
    at = [ticking.gpu_ms([(1, context)]) for context in (3000, 4000, 6000, 7000)]
    assert at[1] - at[0] == pytest.approx(2 * (at[3] - at[2]), rel=0.01)


def test_tensor_parallel_halves_the_work_and_adds_messages():
    d = prepare("llama-3.1-70b", "h200", max_model_len=8192)
    two, four = (clock.of(d.split(tp, 1)) for tp in (2, 4))
    assert four.token_ms == pytest.approx(two.token_ms / 2)
    assert four.message_ms > two.message_ms > 0
    assert four.gpu_ms([(4096, 0)]) > two.gpu_ms([(4096, 0)]) / 2


def test_more_tokens_touch_more_experts():
    """Mixtral: 2 of 8 experts a token; with 1 token 2/8 are read, with 16 nearly all."""
    ticking = clock.of(prepare("mixtral-8x7b", "h200", max_model_len=8192))
    expert_bytes = 2 * 3 * 4096 * 14336  # config.json, bfloat16; H200: 4.8e12 bytes a second
    assert ticking.experts_ms == pytest.approx(32 * 8 * expert_bytes / 4.8e9 / EXPERTS_SHARE)
    single, many = ticking.gpu_ms([(1, 0)]), ticking.gpu_ms([(1, 0)] * 16)
    read_ms = (speed.chosen_experts(0.25, 16) - 0.25) * ticking.experts_ms
    each_ms = ticking.request_ms + ticking.attention[0].cached_token_ms
    assert many - single == pytest.approx(read_ms + ticking.experts_sort_ms + 15 * each_ms)
    assert ticking.gpu_ms([(16, 0)]) - single > read_ms, "also where they are one request's"


def test_fp8_multiplies_rows_in_tiles():
    """Llama 3.1 70B FP8, H200: what whole answers say of steps of 200, 320 and 480 rows (docs/simulate.md), in ms."""
    ticking = clock.of(prepare("llama-3.1-70b", "h200", quantization="fp8", max_model_len=8192))
    for rows, recorded_ms in ((200, 36), (320, 92), (480, 62)):
        work = [(rows, 0)]
        assert max(ticking.gpu_ms(work), ticking.host_ms(work)[1]) == pytest.approx(
            recorded_ms, rel=0.15
        )
    assert ticking.gpu_ms([(129, 0)]) == pytest.approx(ticking.gpu_ms([(256, 0)]), rel=0.01)
    assert clock.of(prepare("llama-3.1-70b", "h200", max_model_len=8192)).rows == 1


def test_a_step_beyond_the_largest_cuda_graph_is_launched_kernel_by_kernel():
    ticking = clock.of(prepare("llama-3.1-8b", "h100", max_model_len=8192))
    decode, mixed, large = (
        ticking.host_ms(work)[1] for work in ([(1, 99)], [(512, 0)], [(513, 0)])
    )
    assert decode == 0 < mixed < large
    # graphs of up to twice those
    few = clock.of(prepare("llama-3.1-8b", "h100", max_model_len=8192, max_num_seqs=64))
    assert (
        few.host_ms([(1, 99), (127, 0)])[1] == mixed
        and few.host_ms([(1, 99), (128, 0)])[1] == large
    )


def launch_ms(model: str, gpu: str, version: str, **sizes: int) -> float:
    """Return how long a layer of a step without a graph takes to launch."""
    d = replace(prepare(model, gpu, max_model_len=8192, vllm_version=version), **sizes)
    return clock.of(d).eager_ms / d.model.num_hidden_layers


def test_launching_a_layer_takes_what_was_fitted():
    """0.85 ms (0.25.1), 0.77 (0.32.0); two ranks take 0.8 of that, engines of experts 1.46."""
    old, new = "0.25.1", "0.32.0"
    assert launch_ms("llama-3.1-8b", "h100", old) == pytest.approx(0.85)
    assert launch_ms("llama-3.1-8b", "h200", old, tp=2) == pytest.approx(0.8 * 0.85)
    assert (
        launch_ms("llama-3.1-8b", "h200", new)
        == launch_ms("llama-3.1-8b", "h200", new, dp=2)
        == pytest.approx(0.77)
    )
    assert launch_ms("llama-3.1-8b", "h200", new, tp=2) == pytest.approx(0.8 * 0.77)
    assert launch_ms("mixtral-8x7b", "h200", new) == pytest.approx(1.4 * 0.77)
    assert launch_ms("mixtral-8x7b", "h200", new, dp=2) == pytest.approx(1.46 * 1.4 * 0.77)


def test_before_0_20_the_gpus_wait_for_half_a_launch_but_not_before_0_14():
    """Half: 0.15 to 0.19 of docs/speed.md. Before 0.14 the GPUs wait for every step's host."""
    waits = {}
    for version in ("0.12.0", "0.19.0", "0.25.1"):
        ticking = clock.of(prepare("llama-3.1-8b", "h100", vllm_version=version))
        without = replace(ticking, launch_waits=0.0)
        waited_ms = ticking.gpu_ms([(1024, 0)]) - without.gpu_ms([(1024, 0)])
        waits[version] = waited_ms / ticking.eager_ms
    assert waits == pytest.approx({"0.12.0": 0.0, "0.19.0": 0.5, "0.25.1": 0.0})


def test_a_hosts_factor_counts_for_all_that_python_does():
    """Fitted to 8B on one H100: 2.35 ms a step, 0.038 more for each request, 2.4 ms of way in and out."""
    deployment = prepare("llama-3.1-8b", "h200", max_model_len=8192)
    for factor in (1, 0.7, 2):
        ticking = clock.of(deployment, factor, http=False)
        assert ticking.host_ms([(1, 99)] * 10) == (pytest.approx(factor * (2.35 + 0.38)), 0)
        assert ticking.way_in_s == ticking.way_out_s == pytest.approx(factor * 0.0012)
        assert ticking.arrives_s(1.0, 8192) == 1.0 + ticking.way_in_s


@pytest.mark.parametrize(("prompt", "measured_ms"), [(1024, 10.1), (8192, 41.0)])
def test_a_text_waits_for_http_and_for_its_tokens(prompt, measured_ms):
    """One lone request's first token at its client, less the engine's part of it (docs/gpu.md, what HTTP adds)."""
    ticking = clock.of(prepare("llama-3.1-8b", "h200", max_model_len=16384))
    way_ms = 1e3 * (ticking.arrives_s(0.0, prompt) + ticking.way_out_s)
    assert way_ms == pytest.approx(measured_ms, rel=0.15)


def test_a_delta_nets_scan_is_launched_sooner_than_mambas_and_blocks_of_fp8_later():
    """0.31 ms a layer with a graph, 0.77 without, 1.4 times with experts; 27 scans in 31 layers, 36 in 48.

    A lone prompt of Qwen3-Next 80B FP8 takes 71 ms (h200_qwen3-next-80b-a3b-fp8_loads), 64 of them to launch.
    """
    mamba = clock.of(prepare("nemotron-nano-9b-v2", "h200", max_model_len=8192))
    assert (mamba.piecewise_ms, mamba.eager_ms) == pytest.approx(
        (31 * 0.31 + 27 * 2.65, 31 * 0.77 + 27 * 2.65)
    )
    delta = clock.of(prepare("qwen3-next-80b-a3b-fp8", "h200", max_model_len=8192), 0.5)
    assert delta.piecewise_ms == pytest.approx(0.5 * (48 * 1.4 * 0.31 + 36 * 1.2))
    assert 2 * delta.piecewise_ms == pytest.approx(64, rel=0.02)
    assert delta.eager_ms == pytest.approx(48 * 1.4 * 0.77 + 48 * 0.45 + 0.5 * 36 * 1.6)


def test_a_scan_is_launched_sooner_by_a_newer_release_and_a_short_convolution_has_none():
    newer = prepare("nemotron-nano-9b-v2", "h200", max_model_len=8192, vllm_version="0.33.0")
    assert clock.of(newer).piecewise_ms == pytest.approx(31 * 0.31 + 27 * 0.8)
    convolutions = prepare("lfm2.5-8b-a1b", "h200", max_model_len=8192, vllm_version="0.33.0")
    assert clock.of(convolutions).piecewise_ms == pytest.approx((24 + 0.4 * 22) * 0.31)


def test_engines_that_share_experts_read_more_of_them():
    """Mixtral: a token chooses 2 of 8; one of each of two engines as many as two tokens of one."""
    d = prepare("mixtral-8x7b", "h200", max_model_len=8192)
    single, two = (clock.of(replace(d, dp=engines)) for engines in (1, 2))
    assert single.chosen_experts == two.chosen_experts == 0.25
    assert (single.sharing, two.sharing) == (1, 2)


def test_tokens_choose_some_experts_more_often_than_others(subtests):
    """Of 256 experts of which a token chooses 8, evenly 64 tokens would read 87 %, 512 all."""
    share = 8 / 256
    assert speed.chosen_experts(share, 1) == pytest.approx(share)
    for tokens, evenly in ((2, 0.062), (64, 0.869), (512, 1.0)):
        with subtests.test(tokens=tokens):
            assert speed.chosen_experts(share, tokens, 0) == pytest.approx(evenly, abs=0.001)
            assert share < speed.chosen_experts(share, tokens) < evenly
    assert speed.chosen_experts(share, 100_000) > 0.99
    assert speed.chosen_experts(0.0, 7) == 0  # a dense model


def test_new_tokens_attend_to_what_a_window_of_eight_leaves():
    ticking = clock.Clock(0.0, 0.0, 0.0, attention=(clock.Layers(0.0, 1.0, size=8),))
    rows = [
        (4, 0, 8),  # half of 4², as without a window
        (4, 100, 32),  # each sees 8
        (8, 4, 56),  # 4 from 4 to 8, 4 of 8: 4 × 6 + 4 × 8
        (100, 0, 768),  # 8 up to 8, 92 of 8: 32 + 736
    ]
    for new, before, pairs in rows:
        assert ticking.gpu_ms([(new, before)]) == pairs, (new, before)


def test_a_step_is_never_shorter_for_more_work():
    ticking = clock.of(prepare("llama-3.1-8b", "h100", max_model_len=8192))
    works = [[(1, 10)] * n for n in (1, 2, 50, 300)] + [[(600, 0)] + [(1, 10)] * 300]
    times = [ticking.gpu_ms(work) for work in works]
    assert times == sorted(times)


def test_a_hybrid_launches_its_scans_and_carries_its_states():
    """Nemotron Nano: 27 Mamba layers; 128 heads × 80 × 128 in 32 bit and three columns of 12,288 in 16 a request."""
    d = plan(
        "nemotron-nano-9b-v2", "h200", max_model_len=8192, vllm_version="0.32.0"
    ).deployment  # with its record
    dense = clock.of(prepare("llama-3.1-8b", "h200", max_model_len=8192))
    hybrid = clock.of(d)
    assert hybrid.request_ms - dense.request_ms == pytest.approx(
        2 * 27 * 5_316_608 / 4.8e9 / WEIGHTS_SHARE, rel=1e-3
    )
    decoding, reading = [(1, 300)] * 8, [(200, 0), *[(1, 300)] * 7]
    assert (
        hybrid.host_ms(decoding)[1] == 0
        and hybrid.host_ms(reading)[1] > dense.host_ms(reading)[1] + 27
    )


def test_a_scan_is_of_the_tokens_and_products_are_of_whole_tiles():
    """130 tokens fill two tiles of 128 rows, and 130 places of the scan: 256 × 1 + 130 × 3. One token fills a tile of 16."""
    ticking = clock.Clock(0.0, 1.0, 0.0, rows=128, scan_token_ms=3.0)
    assert (ticking.gpu_ms([(1, 9)]), ticking.gpu_ms([(130, 0)])) == (16 + 3, 256 + 390)
    fp8 = clock.of(plan("qwen3-next-80b-a3b-fp8", "h200", max_model_len=8192).deployment)
    assert fp8.rows == 128 and fp8.scan_token_ms == pytest.approx(
        36 * 6 * 4096 * 128 / 989.5e9 / 0.048, rel=1e-3
    )


def test_a_hybrids_gpu_is_as_long_busy_with_prompts_and_answers_as_was_profiled():
    job = json.loads((ROOT / "benchmarks/gpu/jobs/hybrid_steps.json").read_text())[0]
    of_h100 = clock.of(recorded.plan_of({**job, "gpu": "h100"}).deployment)
    for profile in json.loads((ROOT / "tests/data/gpu/records/hybrid_steps_h100.json").read_text())[
        "profiles"
    ]:
        busy_ms = 0.0
        for step in profile["steps"]:
            answers = [(1, 270)] * step["decoding"]
            tokens_per_prompt = step["prompt_tokens"] // max(step["prompts"], 1)
            busy_ms += step["count"] * of_h100.gpu_ms(
                answers + [(tokens_per_prompt, 0)] * step["prompts"]
            )
        assert busy_ms == pytest.approx(profile["gpu_busy_ms"], rel=0.14), profile["asked"]
