"""The split that is chosen, and what is refused; the strategies are those of vLLM's guide to distributed serving."""

from __future__ import annotations

import re

import pytest
from inference_planner.answer.choose import executor, split_over, splits
from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.read import from_dict
from inference_planner.split.communication import RING_SHARE, compare_splits, traffic
from inference_planner.split.deployment import partition_layers, prepare
from inference_planner.split.ranks import tp_problem

from workshop.engine.planning import plan
from workshop.errors import BadInput


def split(*args, **kwargs) -> tuple[int, int, int, bool]:
    p = plan(*args, **kwargs)
    return p.tensor_parallel_size, p.pipeline_parallel_size, p.nodes, p.fits


def test_a_model_that_fits_on_one_gpu_is_not_distributed():
    assert split("llama-3.1-8b", "h100", gpus_per_node=4) == (1, 1, 1, True)


def test_in_one_node_the_tensor_parallel_size_is_its_gpus():
    assert split("llama-3.1-70b", "h100", gpus_per_node=4) == (4, 1, 1, True)


def test_kv_heads_are_divided_or_copied_evenly():
    """Llama 3.2 3B has 24 attention heads and 8 KV heads (config.json)."""
    for tp, why in [(3, "3 does not divide the 8 KV"), (12, "12 is not a multiple of the 8 KV")]:
        with pytest.raises(BadInput, match=why):
            plan("llama-3.2-3b", "h100", tensor_parallel_size=tp)
            pytest.fail(f"{tp} was taken")


def test_what_a_checkpoint_leaves_in_16_bit_may_be_cut_anywhere():
    """Qwen2.5 14B's MLP of 13,824 is 8 ranks of 13.5 groups of 128; its attention of 5,120 of 5 (config.json)."""
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    raw = load_model("qwen2.5-14b").raw
    awq_but_mlp = {**awq, "modules_to_not_convert": ["mlp.down_proj"]}
    assert "groups of 128" in tp_problem(
        from_dict({**raw, "quantization_config": awq}, name="awq"), 8
    )
    assert tp_problem(from_dict({**raw, "quantization_config": awq_but_mlp}, name="awq"), 8) == ""


def test_over_nodes_the_pipeline_parallel_size_is_their_number():
    assert split("llama-3.1-405b", "h100", gpus_per_node=4, nodes=4) == (4, 4, 4, True)
    assert split("llama-3.1-405b", "h100", gpus_per_node=8, nodes=2) == (8, 2, 2, True)


def test_gpus_that_do_not_divide_the_model_become_pipeline_stages():
    """71 heads of Falcon 7B on 2 GPUs, and 64 heads of Llama 70B on 3."""
    assert split("falcon-7b", "t4", gpus_per_node=2) == (1, 2, 1, True)
    assert split(
        "llama-3.1-70b",
        "h200",
        gpus_per_node=3,
        max_model_len=8192,
        dtype="bfloat16",
        gpu_memory_utilization=0.9,
    )[:2] in ((1, 3), (1, 1))


def test_without_hardware_the_reason_names_the_heads_not_nodes_that_are_not_there():
    falcon = plan("falcon-7b", "t4", max_model_len=2048)
    assert (falcon.tensor_parallel_size, falcon.nodes) == (1, 1)
    reasons = " ".join(falcon.reasons)
    # Falcon 7B's config.json: 71 heads
    assert "71 attention heads" in reasons and "over nodes" not in reasons


def test_405b_in_bf16_does_not_fit_on_eight_h100_and_the_plan_says_what_would():
    p = plan("llama-3.1-405b", "h100", gpus_per_node=8)
    assert not p.fits and p.available_kv_gib_per_gpu == 0
    assert any("fp8" in a for a in p.advice) and any("16 ×" in a for a in p.advice)


EIGHT_STAGES = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 8,
    "gpus_per_node": 8,
    "nodes": 1,
}


@pytest.mark.parametrize(
    "model, gpu, settings, lines",
    [
        # 4 GPUs where 1 would do; too long a request; weights and cache in FP8; stages where the first is too large
        ("llama-3.1-8b", "h100", {"gpus_per_node": 4, "nodes": 1, "tensor_parallel_size": 4}, 4),
        ("llama-3.1-70b", "h100", {"gpus_per_node": 2, "nodes": 1, "tensor_parallel_size": 2}, 3),
        ("llama-3.1-70b", "h100-nvl", {"gpus_per_node": 1, "nodes": 1, "max_model_len": 65536}, 2),
        (
            "llama-3.1-405b-fp8",
            "h100",
            {**EIGHT_STAGES, "max_model_len": 4096, "gpu_memory_utilization": 0.8},
            2,
        ),
    ],
)
def test_a_plan_with_the_flags_that_are_advised_has_what_the_advice_says(
    model, gpu, settings, lines
):
    now = plan(model, gpu, **settings)
    sizes = {
        f"{kind}_parallel_size": getattr(now, f"{kind}_parallel_size")
        for kind in ("tensor", "pipeline")
    }
    assert len(now.advice) == lines
    for line in now.advice:
        flags = re.findall(r"--([a-z-]+) ([\w.]*\w)", line)
        changed = {
            name.replace("-", "_"): float(v) if "." in v else int(v) if v.isdigit() else v
            for name, v in flags
        }
        if match := re.search(r"on (\d+) node\(s\) of", line):
            changed["nodes"] = int(match[1])
        then = plan(model, gpu, **settings | sizes | changed)
        assert then.fits, line
        assert ("a small cost in precision" in line) == ("--kv-cache-dtype fp8 holds" in line)
        if match := re.search(r"(holds|adds) ([\d,]+) tokens", line):
            before = now.kv_cache_tokens if match[1] == "adds" else 0
            assert f"{then.kv_cache_tokens - before:,}" == match[2]
        if match := re.match(r"(?:The same )?(\d+) ×", line):
            assert then.gpus == int(match[1])
        if match := re.search(r"([\d.]+) GiB of KV cache", line):
            assert then.available_kv_gib_per_gpu == pytest.approx(float(match[1]), abs=0.05)
        if match := re.search(r"with (\d+)% of the tokens/s", line):
            share = then.single_stream_tokens_per_s / now.single_stream_tokens_per_s
            assert share == pytest.approx(int(match[1]) / 100, abs=0.006)


def test_one_gpu_is_no_tensor_parallelism():
    alone = plan("llama-3.3-70b", "h100", gpus_per_node=1, nodes=1)
    assert not alone.fits and not any("Tensor parallel" in reason for reason in alone.reasons)


def test_a_request_that_is_too_long_is_answered_with_the_length_that_fits():
    p = plan("llama-3.3-70b", "h100-nvl", gpus_per_node=2)
    assert not p.fits
    length = int(
        next(a for a in p.advice if "--max-model-len" in a).split("--max-model-len ")[1].split()[0]
    )
    advised, longer = (
        plan("llama-3.3-70b", "h100-nvl", gpus_per_node=2, max_model_len=tokens)
        for tokens in (length, length + 64)
    )
    assert advised.fits and not advised.may_not_start
    assert longer.fits and longer.may_not_start


def test_uneven_layers_go_where_vllm_puts_them():
    """vllm/distributed/utils.py get_pp_indices: the rest to the stages before the last, counted from the end."""
    for layers, stages, sizes in [
        (126, 4, [31, 32, 32, 31]),
        (32, 5, [6, 6, 7, 7, 6]),
        (80, 2, [40, 40]),
        (61, 8, [7, 7, 8, 8, 8, 8, 8, 7]),
        (7, 3, [2, 3, 2]),
    ]:
        assert [len(r) for r in partition_layers(layers, stages)] == sizes, (layers, stages)


WRONG = [
    {"tensor_parallel_size": 3},
    {"tensor_parallel_size": 0},
    {"tensor_parallel_size": -2},
    {"pipeline_parallel_size": 33},
    {"gpus_per_node": 0},
    {"nodes": -1},
    {"max_model_len": 0},
    {"max_model_len": 131073},
    {"gpu_memory_utilization": 0},
    {"gpu_memory_utilization": 1.2},
    {"gpu_memory_utilization": -0.5},
    {"max_num_batched_tokens": -1},
    {"max_num_seqs": 0},
    {"max_num_seqs": 512, "max_num_batched_tokens": 256},
    {"dtype": "int3"},
    {"kv_cache_dtype": "fp3"},
    {"quantization": "fp7"},
    {"vllm_version": "0.1.0"},
    {"usage": "other"},
    {"network": "string"},
    {"tensor_parallel_size": 8, "gpus_per_node": 4, "nodes": 1},
]


def test_wrong_numbers_are_refused_with_a_remedy():
    for kwargs in WRONG:
        with pytest.raises(BadInput) as caught:
            plan("llama-3.1-8b", "h100", **kwargs)
            pytest.fail(f"{kwargs} was taken")
        assert caught.value.message and caught.value.remedy, kwargs


def test_the_defaults_are_those_of_each_usage_and_version():
    """vllm/engine/arg_utils.py get_batch_defaults of both tags."""

    def tokens(gpu, **kwargs):
        return plan("llama-3.2-1b", gpu, **kwargs).deployment.settings.max_num_batched_tokens

    assert (tokens("h200", usage="llm"), tokens("h200")) == (16384, 8192)
    assert (tokens("a100-80gb", usage="llm"), tokens("a100-80gb")) == (8192, 2048)
    assert tokens("b200") == 16384 and tokens("b200", vllm_version="0.25.1") == 8192


def test_the_command_says_what_vllm_serve_would_not_take_by_itself():
    p = plan(
        "llama-3.1-70b",
        "h200",
        tensor_parallel_size=4,
        kv_cache_dtype="fp8",
        max_model_len=32768,
        gpu_memory_utilization=0.9,
        usage="llm",
    )
    for part in (
        "meta-llama/Llama-3.1-70B",
        "--tensor-parallel-size 4",
        "--kv-cache-dtype fp8",
        "--max-model-len 32768",
        "--gpu-memory-utilization 0.9",
        "--max-num-batched-tokens 16384",
    ):
        assert part in p.command
    assert "--max-num-batched-tokens" not in plan("llama-3.1-8b", "h200").command
    assert "--nnodes 2" in plan("llama-3.1-405b", "h100", gpus_per_node=8, nodes=2).command


def test_tensor_parallel_alone_over_nodes_sends_more():
    options = compare_splits(load_model("llama-3.1-405b"), load_gpu("h100"), 4, 4)
    both, alone = options["TP 4 × PP 4"], options["TP 16"]
    assert sum(t.ms for t in alone) > sum(t.ms for t in both)
    assert [t.what for t in both] == ["all-reduce", "point-to-point"]


def test_a_ring_over_nodes_has_the_ports_of_all_its_gpus():
    for network, gpus_of_a_node, gb_s in [
        ("infiniband-ndr", 8, 400),  # 350 were measured on H200: NVIDIA/nccl-tests, issue 283
        ("infiniband-ndr", 4, 200),
        ("infiniband-ndr", 1, 50),
        ("ethernet-100g", 8, 12.5),
        ("nvlink", 8, 450),
    ]:
        splits = compare_splits(
            load_model("llama-3.1-405b"), load_gpu("h100"), gpus_of_a_node, 2, 8192, network=network
        )
        (reduced,) = splits[f"TP {2 * gpus_of_a_node}"]
        assert reduced.gb_s == gb_s, (network, gpus_of_a_node)
        ranks = 2 * gpus_of_a_node
        reached_gb_s = RING_SHARE * gb_s if network == "nvlink" else gb_s
        expected_ms = (
            reduced.count * 2 * (ranks - 1) / ranks * reduced.bytes_each / reached_gb_s / 1e6
        )
        latency_ms = reduced.count * 0.15
        assert expected_ms < reduced.ms < expected_ms + latency_ms, (network, gpus_of_a_node)


def test_stages_share_the_one_port_of_an_ethernet_node():
    """Both tensors of 8,192 tokens leave a node: 537 MB at 12.5 GB/s; by eight ports an eighth."""
    model, gpu = load_model("llama-3.1-405b"), load_gpu("h100")
    for network, ms in (("ethernet-100g", 43.0), ("infiniband-ndr", 1.36)):
        handed = compare_splits(model, gpu, 8, 2, 8192, network=network)["TP 8 × PP 2"][1]
        assert handed.what == "point-to-point" and handed.ms == pytest.approx(ms, rel=0.01)


def test_an_all_reduce_is_two_a_layer_of_the_hidden_size():
    t = traffic(prepare("llama-3.1-70b", "h100", gpus_per_node=4).split(4, 1), tokens=10)[0]
    assert (t.count, t.bytes_each) == (160, 10 * 8192 * 2)


def test_kv_heads_are_copied_where_tensor_parallel_is_wider():
    narrow, wide = (plan("llama-3.1-8b", "h100", tensor_parallel_size=tp) for tp in (8, 16))
    assert wide.ranks[0].kv_heads == narrow.ranks[0].kv_heads == 1
    assert any("times" in a for a in wide.advice)


def test_every_node_has_as_many_ranks_as_vllm_starts_there():
    """vLLM 0.32.0, engine/arg_utils.py: "--nnodes must evenly divide the total world size"; a node has its share of it."""
    with pytest.raises(BadInput, match="3 GPUs cannot be shared out evenly over 2 nodes of 2"):
        plan(
            "llama-3.1-8b",
            "h100",
            tensor_parallel_size=1,
            pipeline_parallel_size=3,
            gpus_per_node=2,
            nodes=2,
        )
    across = plan(
        "llama-3.1-8b",
        "h100",
        tensor_parallel_size=4,
        pipeline_parallel_size=3,
        gpus_per_node=8,
        nodes=2,
    )
    assert [r.node for r in across.ranks] == [0] * 6 + [1] * 6
    assert "across nodes" in across.reasons[0] and across.communication[0].link == "InfiniBand NDR"
    large = prepare("llama-3.1-405b", "h100")
    assert {split.tp for split in splits(large, 12)} == {1, 2} and not splits(large, 13)
    assert split_over(large, 13).gpus == 12


def test_who_starts_the_workers():
    """vllm/config/parallel.py, 0.25.1."""
    for gpus, nodes, name in [(1, 1, "uni"), (4, 1, "mp"), (16, 2, "mp")]:
        assert executor(gpus, nodes)[0] == name, name


def test_the_command_names_the_model_as_it_was_asked_for(tmp_path):
    import json

    (tmp_path / "config.json").write_text(json.dumps(dict(load_model("gpt2").raw)))
    assert f"vllm serve {tmp_path} " in plan(tmp_path, "h100").command
    hub_id = "meta-llama/Llama-3.1-8B-Instruct"
    assert f"vllm serve {hub_id} " in plan(hub_id, "h100").command


def test_experts_in_groups_may_be_cut_and_the_padded_checkpoint_serves_on_eight():
    """vLLM's moe_wna16 halves an expert's groups; Qwen padded its quantized 72B to 29,696 for eight ranks."""
    assert plan("qwen3-30b-a3b-gptq-int4", "h100", tensor_parallel_size=4).fits
    for model in ("qwen2.5-72b-awq", "qwen2.5-72b-gptq-int4"):
        assert plan(model, "l4", tensor_parallel_size=8, max_model_len=8192).fits
