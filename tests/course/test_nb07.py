"""The known labels of notebook 7, and the batch that it kills."""

from __future__ import annotations

import json
import shlex
import sys

import needs
import pytest
from click.testing import CliRunner

from workshop.cli.simulate import command as simulate
from workshop.course import nb07
from workshop.course.nb07 import CAPITALS
from workshop.servers.vllm_main import installed

# Writes a line of 100 bytes again and again, until it is killed.
WRITER = """
import pathlib, sys, time
with pathlib.Path(sys.argv[1]).open("w") as file:
    while True:
        print("x" * 99, file=file, flush=True)
        time.sleep(0.001)
"""


def test_each_of_the_50_states_has_one_capital():
    assert len(CAPITALS) == 50
    assert len(set(CAPITALS.values())) == 50


@pytest.mark.parametrize("city", ["Boston", "Denver"])
def test_a_known_label_is_that_of_the_dictionary(city):
    # prompts.json quotes Open English WordNet, such as "state capital and largest city of Massachusetts"
    prompts = json.loads((nb07.TEACHING_FOLDER / "prompts.json").read_text())
    glosses = [entry["gloss"] for entry in prompts if entry["prompt"].startswith(city)]
    assert "state capital" in glosses[0] and CAPITALS[city] in glosses[0]


def test_a_process_is_killed_once_its_output_has_the_size(tmp_path):
    output = tmp_path / "answers.jsonl"
    nb07.kill_when_written([sys.executable, "-c", WRITER, str(output)], output, size_bytes=1_000)
    size_after_kill = output.stat().st_size
    assert size_after_kill >= 1_000
    assert output.stat().st_size == size_after_kill


def test_a_process_that_ends_by_itself_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="ended by itself"):
        nb07.kill_when_written([sys.executable, "-c", "pass"], tmp_path / "answers.jsonl")


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
