"""The batch that notebook 7 kills, and the seconds of its night."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import needs
import pytest
from click.testing import CliRunner

from workshop.cli.plan.simulate import command as simulate
from workshop.cli.use.batch import more_sampling
from workshop.course.exercises.sets import e07_offline_batching
from workshop.course.notebooks import nb07
from workshop.course.topics import abstracts
from workshop.servers.records import ServerRecord
from workshop.vllm_package import installed

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "07_offline_batching.ipynb"
# Writes a line of 100 bytes again and again, until it is killed.
WRITER = """
import pathlib, sys, time
with pathlib.Path(sys.argv[1]).open("w") as file:
    while True:
        print("x" * 99, file=file, flush=True)
        time.sleep(0.001)
"""


def test_a_process_is_killed_once_its_output_has_the_size(tmp_path):
    output = tmp_path / "answers.jsonl"
    nb07.kill_when_written([sys.executable, "-c", WRITER, str(output)], output, size_bytes=1_000)
    size_after_kill = output.stat().st_size
    assert size_after_kill >= 1_000
    assert output.stat().st_size == size_after_kill


def test_a_process_that_ends_by_itself_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="ended by itself"):
        nb07.kill_when_written([sys.executable, "-c", "pass"], tmp_path / "answers.jsonl")


def test_a_count_of_an_unfinished_output_is_no_proof(tmp_path):
    output = tmp_path / "answers.jsonl"
    output.write_text('{"custom_id": "a"}\n{"custom_id": "b"}\n')
    record = tmp_path / "answers.jsonl.meta.json"
    counts = {"lines": 2, "different": 2, "twice": 0}
    for rows in (2, 200):
        record.write_text(json.dumps({"input": {"rows": rows}}))
        problem = e07_offline_batching.once(output, counts)
        assert (problem is None) == (rows == 2)
    assert "200 rows and this file 2 lines" in problem


CHOICE = {"structured_outputs": {"choice": [" biology"]}}
SERVER = ServerRecord(
    name="my server", url="http://a/v1", model="m", api_key="k", where="local", state="ready"
)


def test_the_killed_batch_has_the_settings_of_batch_run_and_the_server(monkeypatch, tmp_path):
    commands = []
    monkeypatch.setattr(
        nb07, "kill_when_written", lambda command, output, look: commands.append(command)
    )
    settings = {"max_tokens": 5, **CHOICE}
    output = tmp_path / "answers.jsonl"
    output.write_text("of the cell's first run")
    (tmp_path / "prompts.json").write_text("[]")
    nb07.kill_batch(tmp_path / "prompts.json", output, SERVER, **settings)
    *_, limit_flag, limit, flag, sampling, name_flag, name, few_flag, few = commands[0]
    assert (limit_flag, limit, flag) == ("--max-tokens", "5", "--sampling")
    assert more_sampling(sampling) == CHOICE and not output.exists()
    assert (few_flag, few) == ("--concurrency", "8")
    assert (name_flag, name) == ("--name", nb07.named(SERVER)["name"])


def test_the_line_for_a_terminal_has_the_settings_of_batch_run_and_the_server(tmp_path):
    settings = {"max_tokens": 5, **CHOICE}
    line = nb07.in_terminal(tmp_path / "a.json", tmp_path / "b.jsonl", SERVER, **settings)
    program, batch, *files, limit_flag, limit, flag, sampling, name_flag, name = shlex.split(line)
    assert (program, batch) == ("workshop", "batch") and files[0].endswith("a.json")
    assert (limit_flag, limit, flag) == ("--max-tokens", "5", "--sampling")
    assert more_sampling(sampling) == CHOICE
    assert (name_flag, name) == ("--name", "my server")
    server = replace(SERVER, where="given")
    assert nb07.named(server) == {}
    assert "--name" not in nb07.in_terminal(tmp_path / "a.json", tmp_path / "b.jsonl", server)


def table_of(right):
    """Return what label_table of the notebook makes, as far as it is drawn; the first is the least sure."""
    return SimpleNamespace(
        confidence=[0.5 + 0.25 * number for number in range(len(right))],
        label=["physics"] * len(right),
        ours=["physics" if is_right else "biology" for is_right in right],
    )


def test_each_tenth_of_a_sorted_table_is_drawn_with_its_wrong_labels():
    drawn = nb07.tenths(table_of([number not in (0, 1, 5, 24) for number in range(25)]))
    assert repr(drawn).endswith("least sure to the surest: 2, 0, 1, 0, 0, 0, 0, 0, 0, 1.")


def test_two_prompts_are_drawn_with_their_right_labels():
    drawn = nb07.squares(short_prompt=table_of([True, True]), longer_prompt=table_of([False, True]))
    assert "short prompt: 2 of 2 labels are right; mean confidence 0.62" in repr(drawn)
    assert "longer prompt: 1 of 2 labels are right; mean confidence 0.62" in repr(drawn)
    assert "0.50 physics (ours: biology)" in drawn.svg


def test_a_field_shows_what_was_on_disk_and_what_this_run_answered(tmp_path):
    prompts, output = tmp_path / "many.json", tmp_path / "many.jsonl"
    prompts.write_text(json.dumps([{"id": number, "prompt": "a"} for number in range(4)]))
    lines = [json.dumps({"metadata": {"id": number}}) for number in range(3)]
    output.write_text(lines[0] + "\n")
    field = nb07.BatchField(prompts, output)
    output.write_text("\n".join(lines))  # the third line is not whole yet
    field()
    expected = "4 rows: 1 on disk before this run, 1 answered by this run, 2 no answer on disk yet."
    assert expected in field.picture.value
    first_run = nb07.BatchField(prompts, tmp_path / "none.jsonl")
    assert "4 rows: 0 answered by this run, 4 no answer on disk yet." in first_run.picture.value


def test_the_commands_of_the_steps_and_the_card_choose_among_the_fields():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    (recap,) = ["".join(cell["source"]) for cell in cells if cell["id"] == "offline-recap"]
    steps = (ROOT / "docs" / "label_a_file.md").read_text(encoding="utf-8")
    choices = [more_sampling(text) for text in re.findall(r"--sampling '(.+?)'", recap + steps)]
    assert choices == 2 * [
        {"structured_outputs": {"choice": [f" {field}" for field in abstracts.FIELDS]}}
    ]


def test_the_night_takes_as_long_as_its_command_simulates():
    if not installed()[0]:
        needs.lacking("vLLM is not installed")
    name, *options = shlex.split(nb07.TONIGHT)
    assert name == "simulate"
    outcome = CliRunner().invoke(simulate, [*options, "--json"])
    assert outcome.exit_code == 0, outcome.output
    simulated = json.loads(outcome.stdout)
    assert simulated["requests"] == 2000
    assert simulated["seconds"] == pytest.approx(nb07.TONIGHT_S, rel=0.02)
