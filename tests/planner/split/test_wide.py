"""Data and expert parallelism: experts shared by all replicas, attention and KV cache each replica's own.

What vLLM does: its guides "Data Parallel Deployment" and "Expert Parallel Deployment" (docs.vllm.ai), and
fused_moe/config.py FusedMoEParallelConfig.make of 0.32.0, whose examples the second test repeats.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from inference_planner.catalog.gpus import GIB
from inference_planner.speed.roofline import decode_terms
from inference_planner.split.communication import traffic

from workshop.cli.plan.plan import command
from workshop.engine.planning import plan
from workshop.errors import BadInput

# Qwen3 30B-A3B's config.json: 48 layers of 128 experts, each of 3 matrices of 768 × 2048; 30,532,122,624 parameters
EXPERTS_BYTES = 2 * 48 * 128 * 3 * 768 * 2048
OTHER_BYTES = 2 * 30_532_122_624 - EXPERTS_BYTES
KV_BYTES_PER_TOKEN = 2 * 48 * 4 * 128 * 2  # K and V of 4 heads of 128 in 16 bit


def wide(tp: int, dp: int, ep: bool = True, model: str = "qwen3-30b-a3b", **more):
    sizes = {"tensor_parallel_size": tp, "data_parallel_size": dp, "enable_expert_parallel": ep}
    return plan(
        model, "h100", **{**sizes, "pipeline_parallel_size": 1, "max_model_len": 8192, **more}
    )


def test_experts_are_divided_by_the_replicas_and_all_else_is_copied():
    for dp in [2, 4, 8]:
        for ep in [True, False]:
            p = wide(1, dp, ep)
            assert p.weights_gib_per_gpu * GIB == pytest.approx(
                OTHER_BYTES + EXPERTS_BYTES / dp, rel=0.005
            ), (dp, ep)
            assert p.gpus == dp == len(p.ranks) and [r.dp_rank for r in p.ranks] == list(
                range(dp)
            ), (dp, ep)


def test_experts_are_cut_or_dealt_as_in_vllms_own_examples():
    for tp, dp, ep, cut, dealt in [
        (2, 1, True, 1, 2),
        (1, 2, True, 1, 2),
        (2, 2, True, 1, 4),
        (1, 2, False, 2, 1),
        (2, 2, False, 4, 1),
    ]:
        split = wide(tp, dp, ep).deployment.expert_split
        assert (split.cut, split.dealt) == (cut, dealt), (tp, dp, ep)


def test_with_tensor_parallelism_attention_is_halved_and_experts_go_over_all_gpus():
    p = wide(2, 4)
    assert p.gpus == 8 and p.tensor_parallel_size == 2
    # router, norms and rope are on every rank; they are a small part
    assert p.weights_gib_per_gpu * GIB == pytest.approx(
        OTHER_BYTES / 2 + EXPERTS_BYTES / 8, rel=0.015
    )


def test_the_kv_cache_is_one_replicas():
    p = wide(1, 8)
    assert p.kv_cache_tokens * KV_BYTES_PER_TOKEN == pytest.approx(
        p.available_kv_gib_per_gpu * GIB, rel=1e-3
    )
    assert any("in each replica" in reason for reason in p.reasons)


def test_replicas_of_a_dense_model_are_copies():
    single = plan("llama-3.1-8b", "h100", tensor_parallel_size=1, pipeline_parallel_size=1)
    four = plan("llama-3.1-8b", "h100", tensor_parallel_size=1, data_parallel_size=4)
    assert four.gpus == 4 and four.weights_gib_per_gpu == single.weights_gib_per_gpu
    assert four.kv_cache_tokens == single.kv_cache_tokens


def test_all_reduces_inside_a_node_take_nccl_where_vllm_0_25_1_is_on_several():
    """0.25.1 turned its own all-reduce off with --nnodes; 0.32.0 does not."""
    single, replicas = (
        plan("llama-3.1-70b", "h100", tensor_parallel_size=4, data_parallel_size=dp)
        for dp in (1, 4)
    )
    assert replicas.nodes == 2 and "--nnodes" in replicas.command
    assert replicas.single_stream_tokens_per_s == single.single_stream_tokens_per_s
    stages = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "max_model_len": 8192}
    old, new = (
        plan("llama-3.1-405b", "h100", vllm_version=v, **stages).communication[0]
        for v in ("0.25.1", "0.32.0")
    )
    assert old.ms - new.ms == pytest.approx(252 * (18 - 6.6) / 1e3)  # two a layer


def test_experts_that_do_not_divide_leave_the_fullest_rank_one_more():
    """Qwen1.5-MoE-A2.7B: 60 experts of 3 × 1408 × 2048 in 24 layers; over 8 ranks, 4 of them hold 8 and 4 hold 7."""
    expert_bytes = 2 * 24 * 3 * 1408 * 2048
    eight, sixty = (
        wide(1, 8, model="qwen1.5-moe-a2.7b"),
        wide(1, 1, False, model="qwen1.5-moe-a2.7b"),
    )
    assert (sixty.weights_gib_per_gpu - eight.weights_gib_per_gpu) * GIB == pytest.approx(
        52 * expert_bytes, rel=0.005
    )


# model, tp, dp, ep → bytes of one rank in PyTorch's blocks: vLLM 0.32.0's own class, built on the meta device
# (workshop.engine.exact.worker with jobs of these sizes); DeepSeek's without DeepGEMM's workspace of 32 MiB
BUILT = [
    ("qwen1.5-moe-a2.7b", 1, 8, True, 7_042_498_560),
    ("qwen1.5-moe-a2.7b", 2, 4, True, 5_213_634_560),
    ("qwen1.5-moe-a2.7b", 2, 2, False, 8_183_189_504),
    ("qwen1.5-moe-a2.7b", 4, 1, True, 7_268_769_792),
    ("deepseek-v2-lite", 1, 8, True, 6_272_116_736),
    ("deepseek-v2-lite", 2, 4, True, 5_439_285_248),  # its shared experts are whole on every rank
    ("deepseek-v2-lite", 2, 2, False, 8_601_252_864),
    ("deepseek-v2-lite", 4, 1, True, 7_929_391_104),
    ("qwen3-30b-a3b", 1, 8, True, 10_341_625_856),
    ("qwen3-30b-a3b", 2, 4, True, 8_814_899_200),
    ("qwen3-30b-a3b", 2, 2, False, 16_062_631_936),
    ("qwen3-30b-a3b", 4, 1, True, 15_299_293_184),
]


def test_weights_are_those_of_vllms_own_class():
    for model, tp, dp, ep, built in BUILT:
        p = wide(tp, dp, ep, model, vllm_version="0.25.1")
        workspace = 2**25 if p.deployment.model.mla else 0
        assert p.weights_gib_per_gpu * GIB - workspace == pytest.approx(built, rel=0.002), (
            model,
            tp,
            dp,
            ep,
        )


def test_a_latents_weights_come_without_a_workspace_under_the_newer_version():
    """DeepSeek V2 Lite on one H200, vLLM 0.32.0: what loading took (tests/data/gpu/records/families_0.32_h200.json)."""
    p = plan(
        "deepseek-v2-lite",
        "h200",
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        max_model_len=32768,
    )
    assert p.weights_gib_per_gpu * GIB == pytest.approx(31_481_968_128, rel=1e-5)


def test_tokens_travel_to_the_experts_of_all_replicas_and_back():
    d = wide(1, 4).deployment
    sent = next(t for t in traffic(d, tokens=10) if t.what == "all-to-all")
    assert (sent.count, sent.bytes_each) == (2 * 48, 3 * 10 * 2048 * 2)
    # one replica: the all-reduce does
    assert not [t for t in traffic(wide(4, 1).deployment) if t.what == "all-to-all"]


def test_a_step_says_that_the_busiest_rank_decides():
    doubts = {t.name: t.uncertainty for t in decode_terms(wide(1, 8).deployment)}
    assert "busiest" in doubts["experts"]
    assert wide(1, 8).sizes_from == "estimate"


def test_the_command_has_the_flags_and_the_nodes_their_own():
    arguments = shlex.split(wide(1, 8).command)
    assert (
        arguments[arguments.index("--data-parallel-size") + 1] == "8"
        and "--enable-expert-parallel" in arguments
    )
    two = shlex.split(wide(1, 16).command)
    # arg_utils.py, 0.32.0: a start rank on a node that is not headless means hybrid load balancing, an API server a node
    assert two[two.index("--nnodes") + 1] == "2" and "--data-parallel-start-rank" not in two
    assert "--data-parallel-size" not in plan("llama-3.1-8b", "h100").command


def test_without_sizes_the_fewest_gpus_a_replica_are_taken():
    """DeepSeek V3 has 671 GB of FP8 weights: 8 replicas of one H200 (141 GB) share the experts, some 82 GB each.

    With vLLM's 1,024 requests the CUDA graphs of 128 heads, whole on each GPU, would leave no room.
    """
    p = plan(
        "deepseek-v3",
        "h200",
        data_parallel_size=8,
        enable_expert_parallel=True,
        max_model_len=4096,
        max_num_seqs=512,
    )
    assert (p.tensor_parallel_size, p.gpus, p.fits) == (1, 8, True)


IMPOSSIBLE = [
    ("llama-3.1-8b", {"enable_expert_parallel": True}, "no experts"),
    ("qwen1.5-moe-a2.7b", {"data_parallel_size": 3, "tensor_parallel_size": 1}, "1408"),
    ("qwen1.5-moe-a2.7b", {"data_parallel_size": 3}, "1408.*--enable-expert-parallel"),
    ("qwen1.5-moe-a2.7b", {"data_parallel_size": 3, "pipeline_parallel_size": 2}, "1408"),
    (
        "qwen3-235b-a22b-fp8",
        {"tensor_parallel_size": 8},
        "Choose from: 1, 2, 4.*Or add --enable-expert-parallel",
    ),
    ("qwen3-30b-a3b", {"data_parallel_size": 0}, "data_parallel_size"),
    (
        "qwen3-30b-a3b",
        {"data_parallel_size": 4, "tensor_parallel_size": 4, "gpus_per_node": 8},
        "DP 4 needs 16",
    ),
    (
        "llama-3.1-70b",
        {"data_parallel_size": 3, "tensor_parallel_size": 4, "pipeline_parallel_size": 1},
        "3 replicas of 4 .* evenly over 2 nodes of 8",
    ),
    (
        "llama-3.1-8b",
        {"tensor_parallel_size": 8, "decode_context_parallel_size": 2},
        "1 copies",
    ),
    (
        "llama-3.1-405b",
        {"tensor_parallel_size": 16, "decode_context_parallel_size": 4},
        "2 copies",
    ),
    (
        "deepseek-v3",
        {"tensor_parallel_size": 8, "decode_context_parallel_size": 3},
        "does not share",
    ),
    (
        "gpt-oss-20b",
        {"tensor_parallel_size": 16, "decode_context_parallel_size": 2},
        "sliding windows",
    ),
    ("deepseek-v3", {"decode_context_parallel_size": 8}, "tensor_parallel_size 1"),
    # a remedy that is one: replicas of a dense model have no experts, and -ep does not divide 32 heads by 3
    (
        "qwen2.5-7b",
        {"tensor_parallel_size": 3, "data_parallel_size": 2},
        "28 attention heads.*1, 2, 4",
    ),
    (
        "qwen3-30b-a3b",
        {"tensor_parallel_size": 3, "enable_expert_parallel": True},
        "32 attention heads.*1, 2, 4",
    ),
    # vLLM: "The input size is not aligned with the quantized weight shape": 29,568 are 231 groups of 128
    (
        "qwen2.5-72b",
        {"tensor_parallel_size": 2, "quantization": "awq"},
        "29568.*groups of 128.*Choose from: 1",
    ),
    ("qwen2.5-0.5b", {"tensor_parallel_size": 2, "quantization": "gptq"}, "896.*groups of 128"),
    # vLLM: "Pipeline parallelism is not supported for this model"; 12 heads of GLM-4.1V's encoder; Ernie's tied head
    ("gemma-3n-e4b", {"pipeline_parallel_size": 2}, "cannot cut Gemma3n.*at most 1"),
    ("glm-4.1v-9b", {"tensor_parallel_size": 8}, "12 is not divisible by 8.*1, 2, 4. Or"),
    ("ernie-4.5-21b-a3b", {"pipeline_parallel_size": 2}, "cannot cut"),
]


def test_what_cannot_be_is_refused_in_a_sentence():
    for model, sizes, message in IMPOSSIBLE:
        with pytest.raises(BadInput, match=message):
            plan(model, "h100", **sizes)
            pytest.fail(f"{(model, sizes)} was taken")


# vLLM's rule: tensor parallel ranks above the KV heads keep copies, of which dcp share out the tokens (a latent is one)
def test_ranks_that_share_out_the_context_keep_as_many_times_the_tokens():
    for model, tp, dcp in [
        ("deepseek-v3", 16, 16),
        ("deepseek-v3", 16, 4),
        ("llama-3.1-405b", 16, 2),
    ]:
        sizes = {
            "tensor_parallel_size": tp,
            "pipeline_parallel_size": 1,
            "max_model_len": 65536,
            "gpus_per_node": 16,
        }
        copied, shared = (
            plan(model, "h200", **sizes),
            plan(model, "h200", decode_context_parallel_size=dcp, **sizes),
        )
        assert shared.kv_cache_tokens == pytest.approx(dcp * copied.kv_cache_tokens, rel=1e-3), (
            model,
            tp,
        )
        assert shared.available_kv_gib_per_gpu == copied.available_kv_gib_per_gpu, (model, tp)
        arguments = shlex.split(shared.command)
        assert arguments[arguments.index("--decode-context-parallel-size") + 1] == str(dcp), (
            model,
            tp,
        )
        assert "--decode-context-parallel-size" not in copied.command and any(
            "Decode context parallelism" in r for r in shared.reasons
        ), (model, tp)


def test_the_command_line_takes_them():
    arguments = [
        "qwen3-30b-a3b",
        "--gpu",
        "h100",
        "--data-parallel-size",
        "4",
        "--enable-expert-parallel",
        "--json",
    ]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    data = json.loads(done.output)
    assert (data["gpus"], data["data_parallel_size"], data["enable_expert_parallel"]) == (
        4,
        4,
        True,
    )


def advised(lines: list[str], beginning: str) -> tuple[dict[str, str], str]:
    """Return the flags of the line of advice that begins so, and the line."""
    line = next(line for line in lines if line.startswith(beginning))
    flags = re.findall(r"(--[a-z-]+)(?: (\d+))?", line)
    return dict(flags), line


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("model", ["deepseek-v3", "qwen3-235b-a22b"])
def test_where_ranks_keep_copies_replicas_that_share_experts_are_advised_and_are_the_best(
    model, nodes
):
    """DeepSeek's latent has no heads to divide; Qwen3 235B has 4 KV heads for 8 ranks (their config.json)."""
    p = plan(model, "h200", gpus_per_node=8, nodes=nodes, exact=False)
    # the fastest for one stream
    assert (p.tensor_parallel_size, p.data_parallel_size, p.gpus) == (8, 1, 8)
    flags, line = advised(p.advice, "For many requests")
    tp, dp = (int(flags[f"--{kind}-parallel-size"]) for kind in ("tensor", "data"))
    assert tp * dp == 8 * nodes and "--enable-expert-parallel" in flags
    rest = {
        "enable_expert_parallel": True,
        "gpus_per_node": 8,
        "nodes": nodes,
        "pipeline_parallel_size": 1,
        "exact": False,
    }
    sizes = [
        {"tensor_parallel_size": 8 * nodes // n, "data_parallel_size": n, **rest}
        for n in (2, 4, 8, 16)[: 3 + nodes // 2]
    ]
    tokens = {
        s["data_parallel_size"]: s["data_parallel_size"] * plan(model, "h200", **s).kv_cache_tokens
        for s in sizes
    }
    assert tokens[dp] == max(tokens.values()) > 1.2 * nodes * p.kv_cache_tokens
    assert f"{tokens[dp]:,} tokens" in line


def test_for_long_contexts_the_copies_are_shared_out():
    p = plan("deepseek-v3", "h200", gpus_per_node=8, exact=False)
    flags, line = advised(p.advice, "For long contexts")
    assert flags == {"--decode-context-parallel-size": "8"}
    shared = plan(
        "deepseek-v3", "h200", tensor_parallel_size=8, decode_context_parallel_size=8, exact=False
    )
    assert f"{shared.kv_cache_tokens:,} tokens" in line


def test_experts_that_tensor_parallelism_would_cut_are_said_to_be_whole_with_the_flag():
    """Qwen3 235B FP8: 1,536 columns over 8 ranks are 192, no multiple of its 128-wide blocks."""
    p = plan("qwen3-235b-a22b-fp8", "h200", gpus_per_node=8, exact=False)
    assert any("not possible without --enable-expert-parallel" in reason for reason in p.reasons)


def test_where_there_are_no_experts_or_nothing_is_kept_twice_nothing_of_it_is_said():
    for model in ["llama-3.1-405b", "qwen2.5-72b", "mixtral-8x22b", "gpt-oss-120b"]:
        p = plan(model, "h200", gpus_per_node=8, exact=False)
        assert p.fits and not [line for line in p.advice if "expert" in line], model


NAMES = {
    "DeepSeek V3": "deepseek-v3",
    "Qwen3 235B-A22B FP8": "qwen3-235b-a22b-fp8",
    "gpt-oss 120B": "gpt-oss-120b",
}
FLAGS = {"TP": "tensor_parallel_size", "PP": "pipeline_parallel_size", "DP": "data_parallel_size"}
PAGE = Path(__file__).parents[3] / "docs/exact.md"
FLAGS |= {"DCP": "decode_context_parallel_size"}


def test_the_page_says_what_the_plan_says():
    """docs/exact.md, "Wide": every row of the table."""
    text = PAGE.read_text().split("## Wide")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line[:2] == "| "
    ][1:]
    model = ""
    for name, gpus, sizes, weights, tokens, speed in rows:
        model = NAMES.get(name, model)
        parallel_sizes = {
            FLAGS[kind]: int(n) for kind, n in re.findall(r"\b(TP|PP|DP|DCP) (\d+)", sizes)
        }
        defaults = {
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "enable_expert_parallel": "EP" in sizes,
        }
        p = plan(
            model,
            "h200",
            gpus_per_node=8,
            nodes=2,
            max_model_len=32768,
            exact=False,
            **{**defaults, **parallel_sizes},
        )
        servers = int(gpus) // p.gpus
        assert servers == (8 if "servers" in sizes else 1), (model, sizes)
        assert (
            f"{p.weights_gib_per_gpu:.1f}" == weights
            and f"{p.single_stream_tokens_per_s:.0f}" in speed
        ), (model, sizes)
        assert f"{p.kv_cache_tokens * p.data_parallel_size * servers:,}" == tokens, (model, sizes)
    assert len(rows) >= 12


def test_the_page_says_with_how_many_requests_deepseek_fits_eight_replicas():
    text = PAGE.read_text()
    at_most = re.search(r"With `--max-num-seqs (\d+)` it fits, with ([\d,]+) tokens in all", text)
    for requests, fits in ((2 * int(at_most[1]), False), (int(at_most[1]), True)):
        p = plan(
            "deepseek-v3",
            "h200",
            tensor_parallel_size=1,
            data_parallel_size=8,
            enable_expert_parallel=True,
            max_model_len=32768,
            max_num_seqs=requests,
            exact=False,
        )
        assert p.fits == fits
    assert at_most[2] == f"{8 * p.kv_cache_tokens:,}"


def test_a_replica_of_many_nodes_is_not_said_to_be_on_two():
    with pytest.raises(BadInput, match=r"2 replicas of 32 .* evenly over 8 nodes of 8,"):
        plan("qwen3-30b-a3b", "h200", tensor_parallel_size=32, data_parallel_size=2)
