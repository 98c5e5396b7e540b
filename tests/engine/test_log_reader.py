"""Reading a log while it is written: the stages of a start, and that it does not matter where the pieces are cut."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from workshop.engine import log

LOGS = Path(__file__).parents[2] / "workshop" / "data" / "logs"
NAMES = ["tiny_cpu_server", "llama-3.1-405b-fp8_tp4_h200", "qwen3-30b-a3b_tp1_h200", "failures/kv_cache_too_small",
         "failures/worker_killed", "failures/truncated_shard"]  # fmt: skip
TEXTS = {name: (LOGS / f"{name}.log").read_bytes().decode() for name in NAMES}


def state(reader: log.Reader):
    return reader.log, reader.stage, reader.fraction, reader.message, reader.error


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % len(text) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(NAMES), cuts=st.lists(st.integers(0, 10**6), max_size=30))
def test_a_log_cut_anywhere_reads_as_the_whole(name, cuts):
    whole, cut = log.Reader(), log.Reader()
    events = whole.feed(TEXTS[name]) + whole.close()
    for piece in pieces(TEXTS[name], cuts):
        cut.feed(piece)
    cut.close()
    assert state(cut) == state(whole)
    assert events


def test_a_start_goes_through_the_stages_in_order_and_never_back(subtests):
    for name in ["tiny_cpu_server", "cpu_tp2", "cpu_pp2", "cpu_under_load"]:
        with subtests.test(name):
            reader, seen, fractions = log.Reader(), [], []
            for line in (LOGS / f"{name}.log").read_text().splitlines(keepends=True):
                reader.feed(line)
                seen.append(reader.stage)
                fractions.append(reader.fraction)
            assert fractions == sorted(fractions) and fractions[-1] == 1.0
            order = list(log.STAGES)
            places = [order.index(stage) for stage in seen]
            assert places == sorted(places)
            assert {"configuring", "loading weights", "starting API server", "ready"} <= set(seen)
            assert reader.ready and reader.stage == "ready" and reader.error is None


def test_loading_191_shards_moves_the_bar_shard_by_shard():
    """A 405B checkpoint has 191 shards; its bar is redrawn with carriage returns and ends no line."""
    reader, seen = log.Reader(), []
    reader.feed(
        "(Worker_TP0 pid=1) INFO 11-20 10:02:39 [gpu_model_runner.py:5209] Starting to load model m...\n"
    )
    for done in range(192):
        bar = f"{done * 100 // 191:3d}% Completed | {done}/191 [00:05<09:10,  2.91s/it]"
        reader.feed(f"\rLoading safetensors checkpoint shards: {bar}")
        seen.append(reader.fraction)
    assert reader.message == "loading weights: 191 of 191 shards"
    assert seen == sorted(seen) and len(set(seen)) == 192
    assert (reader.log.shards_loaded, reader.log.shards_total) == (191, 191)


def test_capturing_graphs_shows_progress():
    reader, messages = log.Reader(), set()
    for line in log.lines.LINE_BREAK.split(TEXTS["qwen3-30b-a3b_tp1_h200"]):
        reader.feed(f"{line}\n")
        messages.add(reader.message)
    assert "capturing CUDA graphs: 26 of 51" in messages


def test_a_failed_start_stays_where_it_was_and_says_why():
    reader = log.Reader()
    lines = reader.feed(TEXTS["failures/truncated_shard"])
    assert reader.stage == "loading weights" and not reader.ready
    assert reader.error.key == "corrupt-shard"
    errors = [line for line in lines if line not in TEXTS["failures/truncated_shard"]]
    # "A worker process ended" comes first, and gives way to the reason
    assert errors[-1] == reader.error.what
    assert len(errors) <= 2


def test_an_offline_engine_is_ready_without_a_server():
    reader = log.Reader()
    lines = reader.feed(TEXTS["llama-3.1-405b-fp8_tp4_h200"])
    assert reader.log.engine_ready and not reader.ready and reader.error is None
    # lines with facts are worth saying
    assert any(line.startswith("GPU KV cache size: ") for line in lines)


def test_a_line_of_a_million_characters_costs_no_more_memory_than_its_beginning():
    reader = log.Reader()
    for _ in range(10):
        reader.feed("x" * 100_000)
    assert len(reader._rest) <= 200_000
    reader.feed("\nINFO 11-20 10:02:25 [model.py:733] Resolved architecture: LlamaForCausalLM\n")
    assert reader.log.architecture == "LlamaForCausalLM"
