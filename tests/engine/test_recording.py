"""A run that anybody can add: what `workshop reconcile LOG --record FILE` writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inference_planner.catalog import load_model

from workshop.engine import log
from workshop.engine.measured_runs import model_of, plan_of, runs
from workshop.engine.reconcile.compare import reconcile
from workshop.errors import BadInput

LOGS = Path(__file__).parents[2] / "workshop" / "data" / "logs"
GPU_LOGS = sorted(LOGS.glob("*_h200.log"))
ONE = LOGS / "llama-3.1-8b_tp1_h200.log"


def test_a_recorded_log_is_a_run_like_the_others(tmp_path, subtests):
    """Its keys are those of the recorded runs, its figures the log's, and the plan of it is as near."""
    for path in GPU_LOGS:
        with subtests.test(path.stem):
            file = tmp_path / path.stem / "runs.json"
            file.parent.mkdir()
            reconcile(path, gpu="h200", record=file)
            (run,), logged = runs.__wrapped__(file.parent), log.read(path)
            assert set(run) <= {key for other in runs() for key in other} | {"gpu"}
            assert (run["kv_cache_tokens"], run["weights_gib_per_gpu"]) == (
                logged.kv_cache_tokens,
                logged.weights_gib,
            )
            assert plan_of(run).kv_cache_tokens == pytest.approx(logged.kv_cache_tokens, rel=0.01)
            assert json.loads(file.read_text())["software"] == f"vllm {logged.version}"


def test_runs_are_added_and_none_twice(tmp_path):
    file = tmp_path / "runs.json"
    for path in GPU_LOGS[:2]:
        reconcile(path, gpu="h200", record=file)
    assert len(json.loads(file.read_text())["runs"]) == 2
    with pytest.raises(BadInput, match="already"):
        reconcile(GPU_LOGS[0], gpu="h200", record=file)


def test_nothing_of_the_log_but_its_figures_is_written(tmp_path):
    """A key, a host and a path that the log has, and a config of a folder that names who made it."""
    secret = "non-default args: {'api_key': ['sk-tell-nobody'], 'host': 'node01.example.org', "
    text = ONE.read_text().replace("non-default args: {", secret)
    private = tmp_path / "jane" / "my-model"
    private.mkdir(parents=True)
    raw = {
        **load_model("llama-3.1-8b").raw,
        "_name_or_path": "/home/jane/base",
        "text": {"file": "/home/jane/x"},
    }
    (private / "config.json").write_text(json.dumps(raw))
    source, file = tmp_path / "server.log", tmp_path / "runs.json"
    source.write_text(f"started by jane in /home/jane/work\n{text}")
    reconcile(source, private, "h200", file)
    written = file.read_text()
    assert not [
        word
        for word in ("tell-nobody", "node01", "jane", "my-model", str(tmp_path))
        if word in written
    ]
    (run,) = runs.__wrapped__(file.parent)
    assert model_of(run).hidden_size == 4096
    assert plan_of(run).kv_cache_tokens == pytest.approx(run["kv_cache_tokens"], rel=0.01)


def test_a_file_that_is_no_record_is_left_as_it_is(tmp_path, subtests):
    for content, says in [
        ("{", "not whole JSON"),
        ("[]", "lacks one of hardware"),
        (
            '{"hardware": "a", "software": "b", "how": "c", "date": "d", "runs": 5}',
            "not a list of runs",
        ),
        (
            '{"hardware": "a", "software": "b", "how": "c", "date": "d", "runs": [{"name": 3}]}',
            "name of run 1",
        ),
        (
            '{"hardware": "a", "software": "b", "how": "c", "date": "d", "runs": []}',
            "has runs of a",
        ),
    ]:
        with subtests.test(content):
            file = tmp_path / "runs.json"
            file.write_text(content)
            with pytest.raises(BadInput, match=says):
                reconcile(ONE, gpu="h200", record=file)
            assert file.read_text() == content


def test_a_start_that_never_said_its_tokens_and_a_cpu_are_not_recorded(tmp_path):
    lines = ONE.read_text().splitlines()
    end = next(i for i, line in enumerate(lines) if "GPU KV cache size" in line)
    short = tmp_path / "short.log"
    short.write_text("\n".join(lines[:end]))
    with pytest.raises(BadInput, match="kv_cache_tokens"):
        reconcile(short, gpu="h200", record=tmp_path / "runs.json")
    with pytest.raises(BadInput, match="CPU"):
        reconcile(
            LOGS / "tiny_cpu_server.log",
            LOGS / "configs" / "tiny-llama.json",
            record=tmp_path / "runs.json",
        )
    with pytest.raises(BadInput, match="cannot be written"):
        reconcile(ONE, gpu="h200", record=tmp_path / "nowhere" / "runs.json")
