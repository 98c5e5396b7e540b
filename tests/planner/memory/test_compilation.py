"""--compilation-config: what it changes is computed, what it may change is a doubt, a wrong value is refused."""

from __future__ import annotations

import json

import pytest
from command_line import run
from inference_planner import errors, plan
from inference_planner.answer import report
from inference_planner.arguments import with_json
from inference_planner.memory import overheads

PLACE = {"tensor_parallel_size": 1, "max_model_len": 8192}


def planned(config: object = None, model: str = "llama-3.1-8b", gpu: str = "h100", **settings):
    return plan(model, gpu, compilation_config=config, **{**PLACE, **settings})


def graphs_gib(p) -> float:
    return (
        sum(
            part.bytes
            for part in overheads.overheads(p.deployment, 0)
            if part.name == "CUDA graphs"
        )
        / 2**30
    )


def doubts(p) -> str:
    return " ".join(json.loads(report.plan_json(p))["doubts"])


@pytest.fixture(scope="module")
def default():
    return planned()


def test_no_graphs_take_no_memory_and_each_token_takes_longer(default):
    eager = planned(enforce_eager=True)
    none = planned('{"cudagraph_mode": "NONE"}')
    assert graphs_gib(none) == graphs_gib(eager) == 0 < graphs_gib(default)
    # --enforce-eager compiles nothing, either: no compiled embedding is in the peak
    assert eager.overhead_gib_per_gpu < none.overhead_gib_per_gpu < default.overhead_gib_per_gpu
    assert none.single_stream_tokens_per_s == eager.single_stream_tokens_per_s
    assert none.single_stream_tokens_per_s < default.single_stream_tokens_per_s
    both = planned('{"mode": 0, "cudagraph_mode": "none"}')
    assert both.overhead_gib_per_gpu == eager.overhead_gib_per_gpu


def test_without_compilation_graphs_of_whole_steps_remain(default):
    """config/vllm.py _normalize_piecewise_cudagraph_mode: FULL_AND_PIECEWISE becomes FULL_DECODE_ONLY."""
    alone = planned('{"mode": 0}')
    decode_only = planned({"cudagraph_mode": "FULL_DECODE_ONLY"})
    assert 0 < graphs_gib(alone) == graphs_gib(decode_only) < graphs_gib(default)
    assert alone.single_stream_tokens_per_s == default.single_stream_tokens_per_s
    assert (
        planned('{"mode": 0, "cudagraph_mode": "PIECEWISE"}').deployment.settings.decode_graphs
        == "none"
    )


def test_graphs_in_pieces_hold_no_partial_sums_and_a_token_takes_longer(default):
    pieces = planned({"cudagraph_mode": "PIECEWISE"})
    assert pieces.overhead_gib_per_gpu < default.overhead_gib_per_gpu
    assert pieces.single_stream_tokens_per_s < default.single_stream_tokens_per_s
    assert "CUDA graphs in pieces" in doubts(pieces)


def test_fewer_sizes_take_less_memory(default):
    few = planned({"cudagraph_capture_sizes": [8, 4, 2, 1, 4]})
    assert few.deployment.settings.graph_sizes == [1, 2, 4, 8]
    assert few.deployment.settings.largest_graph == 8
    assert few.overhead_gib_per_gpu < default.overhead_gib_per_gpu
    smaller = planned({"max_cudagraph_capture_size": 64})
    assert max(smaller.deployment.settings.graph_sizes) == 64
    assert few.overhead_gib_per_gpu < smaller.overhead_gib_per_gpu < default.overhead_gib_per_gpu


def test_vllms_default_written_out_changes_nothing_but_the_command(default):
    written = planned({"mode": 3, "cudagraph_mode": "FULL_AND_PIECEWISE"})
    assert written.kv_cache_tokens == default.kv_cache_tokens
    assert written.command != default.command


def test_the_command_has_it_as_vllm_reads_it():
    command = planned({"cudagraph_mode": "PIECEWISE"}).command
    assert """--compilation-config '{"cudagraph_mode": "PIECEWISE"}'""" in command


def test_a_field_without_a_formula_is_passed_on_with_a_doubt(default):
    plain = planned({"cache_dir": "/tmp/x"})
    assert doubts(plain) == doubts(default)
    passes = planned({"pass_config": {"fuse_norm_quant": True}})
    assert "settings of the compiler" in doubts(passes)
    assert passes.kv_cache_tokens == default.kv_cache_tokens
    assert "pass_config" in passes.command
    assert "settings of the compiler" in doubts(planned({"a_field_of_tomorrow": 1}))


WRONG = [
    ("cudagraph_mode", "'cudagraph_mode' is no JSON object"),
    ("[1]", "is no JSON object"),
    ({"mode": 4}, "mode '4' is not known"),
    ({"mode": True}, "is not known"),
    ({"cudagraph_mode": "SOME"}, "Choose from: NONE, PIECEWISE"),
    ({"cudagraph_mode": 2}, "is not known"),
    ({"cudagraph_capture_sizes": []}, "has 0 sizes"),
    ({"cudagraph_capture_sizes": [0, 1]}, "a whole number from 1 on"),
    ({"cudagraph_capture_sizes": 8}, "Give a list"),
    ({"max_cudagraph_capture_size": 0}, "for no graphs"),
    (
        {"cudagraph_capture_sizes": [1, 8], "max_cudagraph_capture_size": 16},
        "is not the largest",
    ),
]


def test_what_vllm_would_refuse_is_refused_in_a_sentence():
    for config, message in WRONG:
        with pytest.raises(errors.BadInput) as refused:
            planned(config)
            pytest.fail(f"{config} was taken")
        assert message in str(refused.value), config


def test_the_dotted_spelling_is_read():
    for arguments, joined in [
        (["-cc.mode=0"], {"mode": 0}),
        (
            ["--compilation-config.cudagraph_mode", "NONE", "-cc.pass_config.fuse_norm_quant=true"],
            {"cudagraph_mode": "NONE", "pass_config": {"fuse_norm_quant": True}},
        ),
        (
            ["--compilation_config.cudagraph_capture_sizes=[1,2]"],
            {"cudagraph_capture_sizes": [1, 2]},
        ),
    ]:
        joined_arguments = with_json(["llama-3.1-8b", *arguments, "--gpu", "h100"])
        assert joined_arguments[:3] == ["llama-3.1-8b", "--gpu", "h100"], arguments
        assert joined_arguments[3] == "--compilation-config", arguments
        assert json.loads(joined_arguments[4]) == joined, arguments


def test_the_command_reads_it():
    done = run("plan llama-3.1-8b --gpu h100 --json -cc.cudagraph_mode=NONE -tp 1")
    assert done.code == 0, done.err
    assert '{"cudagraph_mode": "NONE"}' in json.loads(done.out)["command"]
