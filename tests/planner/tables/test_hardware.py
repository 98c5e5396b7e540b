"""The table of models and GPUs: its record is up to date, its counts hold by arithmetic, its refusals say why."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from inference_planner.answer.parallelism import plan as planner_plan
from inference_planner.catalog import list_models, load_gpu, load_model
from inference_planner.model.attention import main_kind
from inference_planner.model.kv_cache import kv_cache_bytes_per_token
from inference_planner.tables import hardware

from workshop.cli.plan.models import command
from workshop.engine import planning
from workshop.errors import BadInput


def test_every_catalogd_model_has_a_row_and_every_family_of_the_course_a_model():
    rows = list(hardware.recorded().values())
    assert rows == hardware.in_order(rows)
    assert sorted(r.model for r in rows) == sorted(list_models()), "run: make docs"
    assert {r.family for r in rows} >= {
        "Jamba",
        "Llama",
        "MiniCPM",
        "MiniCPM3",
        "Mistral",
        "Mixtral",
        "Yi",
        "DeepSeek",
        "Falcon",
        "Qwen",
    }


def without_plans(row: hardware.HardwareRow) -> hardware.HardwareRow:
    return replace(row, places=tuple(replace(place, plan=None) for place in row.places))


def test_the_record_is_what_planning_gives():
    """After a change of the catalog or of a formula: `make docs`, or docs/hardware.py alone."""
    for name in list_models()[::14]:
        assert hardware.recorded()[name] == without_plans(hardware.row(name)), name


@pytest.fixture
def plans(monkeypatch) -> list[tuple[str, str]]:
    """The model and the GPU of each plan that the command makes."""
    made: list[tuple[str, str]] = []

    def plan(model, gpu, **options):
        made.append((model.name, gpu.name))
        return planner_plan(model, gpu, **options)

    monkeypatch.setattr(planning, "plan", plan)
    return made


def test_the_table_of_the_catalog_needs_no_plan(plans, workshop_home):
    rows = json.loads(CliRunner().invoke(command, ["--json"]).output)
    assert rows == [row.to_dict() for row in hardware.recorded().values()]
    assert not plans


def test_what_is_not_recorded_is_planned(plans, workshop_home):
    run = CliRunner().invoke
    for arguments in (["--gpu", "rtx-4090"], ["--gpu", "h100", "--max-model-len", "4096"]):
        plans.clear()
        run(command, ["llama-3.1-8b", *arguments])
        assert plans == [("llama-3.1-8b", arguments[1])]
    plans.clear()
    shown = json.loads(
        run(command, ["llama-3.1-8b", "--gpu", "h200", "--gpu", "t4", "--json"]).output
    )
    assert list(shown[0]["smallest"]) == ["h200", "t4"] and not plans


def test_the_fewest_gpus_follow_from_the_weights():
    for model, gpu, gpus in [
        # weights in GiB / what a GPU may use (0.92 of it): 15.0 / 13.6, 15.0 / 20.3, 131.4 / 72.9, 756.0 / 128.6
        ("llama-3.1-8b", "t4", 2),
        ("llama-3.1-8b", "a10g", 1),
        ("llama-3.1-70b", "h100", 2),
        ("llama-3.1-405b", "h200", 8),
        ("llama-3.1-405b", "h100", 16),
    ]:
        place = hardware.smallest(model, gpu)
        assert place.gpus == gpus, (model, gpu)
        usable = 0.92 * load_gpu(gpu).engine_gib
        assert hardware.row(model).weights_gib < gpus * usable, (model, gpu)
        # Half as many would be too tight for weights, overheads and one request.
        assert gpus == 1 or hardware.row(model).weights_gib > gpus / 2 * usable * 0.8, (model, gpu)


def test_minicpm3_compresses_its_keys_but_its_cache_is_whole():
    # 62 layers · (K and V padded to K's 64 + 32) · 40 heads · 2 bytes; MLA's latent would be 62 · (256 + 32) · 2
    m = load_model("minicpm3-4b")
    assert kv_cache_bytes_per_token(m) == 62 * 2 * 40 * 96 * 2 == 952_320
    assert main_kind(m).label(m) == "MHA" and "MLA" in hardware.architecture(m)
    assert kv_cache_bytes_per_token(load_model("deepseek-v2-lite")) == 27 * (512 + 64) * 2


def test_jamba_keeps_a_cache_in_four_of_its_32_layers():
    assert kv_cache_bytes_per_token(load_model("jamba-v0.1")) == 4 * 2 * 8 * 128 * 2
    assert "28 of 32 layers Mamba" in hardware.architecture(load_model("jamba-v0.1"))


def test_where_it_does_not_run_the_row_says_why():
    for model, gpu, says in [
        ("gemma-2-9b", "t4", "float16"),
        ("gpt-oss-20b", "t4", "compute capability 7.5"),
        ("llama-3.1-405b", "t4", "More than 16"),
    ]:
        place = hardware.smallest(model, gpu)
        assert place.gpus == 0 and says in place.reason, (model, gpu)


def test_the_command_prints_rows_and_json():
    run = CliRunner().invoke
    rows = json.loads(run(command, ["--json", "--family", "mixtral", "--gpu", "h100"]).output)
    assert {r["model"] for r in rows} == {"mixtral-8x7b", "mixtral-8x22b"}
    small = next(r for r in rows if r["model"] == "mixtral-8x7b")
    assert small["parameters"] == 46_702_792_704 and small["smallest"]["h100"]["gpus"] == 2
    assert "mistralai/Mixtral-8x7B" in small["smallest"]["h100"]["command"]
    shown = run(command, ["gemma-2-9b", "--gpu", "t4"]).output
    assert "gemma-2-9b" in shown and "overflow" in shown
    title = run(
        command, ["llama-3.3-nemotron-super-49b"], env={"COLUMNS": "80"}
    ).output.splitlines()[0]
    assert title.split()[-8:] == list(hardware.GPUS)  # a pipe has 80 columns


def test_a_shorter_model_is_counted_with_all_that_it_reads():
    shown = CliRunner().invoke(command, ["gpt2", "--gpu", "h100"], env={"COLUMNS": "200"}).output
    assert "8,192 tokens, or of all that it reads" in shown  # GPT-2 reads 1,024


def test_a_folder_is_a_row_as_it_is_a_plan(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(dict(load_model("llama-3.1-8b").raw)))
    result = CliRunner().invoke(command, [str(tmp_path), "--gpu", "h100", "--json"])
    (row,) = json.loads(result.output)
    assert (
        row["parameters"] == 8_030_261_248 and str(tmp_path) in row["smallest"]["h100"]["command"]
    )


TOO_LONG = ["llama-3.1-8b", "gpt2", "--max-model-len", "131073"]


def test_unknown_names_are_refused_with_the_choices():
    for arguments in [["--family", "gpt5"], ["nonsense"], ["--gpu", "h1000"], TOO_LONG]:
        with pytest.raises(BadInput) as caught:
            CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)
            pytest.fail(f"{arguments} was taken")
        assert caught.value.remedy, arguments
