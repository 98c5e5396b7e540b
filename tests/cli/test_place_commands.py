"""`workshop kubernetes` and `workshop vm`: the plan as a place needs it."""

from __future__ import annotations

import re

import pytest
import yaml
from click.testing import CliRunner

from workshop.cli import GROUPS, group
from workshop.errors import BadInput

T4 = ("--gpu", "t4", "--gpus-per-node", "2")
SMALL = ("--gpus-per-node", "1", "--max-model-len", "20000")


def run(*arguments: str):
    return CliRunner().invoke(group, list(arguments))


def test_the_manifests_name_the_command_that_makes_them():
    made = run("kubernetes", "mistral-7b-v0.3", *T4, "--replicas", "2").output
    first = made.splitlines()[0]
    assert first.startswith("# workshop kubernetes ") and "--replicas 2" in first
    again = run(*first.removeprefix("# workshop ").split())
    assert again.output == made
    assert {"Deployment", "Service"} <= {document["kind"] for document in yaml.safe_load_all(made)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kubernetes", "mistral-7b-v0.3", *T4, "--load-gb-per-s", "0"), "no speed"),
        (("kubernetes", "mistral-7b-v0.3"), "--gpu is missing"),
        (
            (
                "vm",
                "llama-3.3-70b",
                "--gpu",
                "h100-nvl",
                "--gpus-per-node",
                "2",
                "--max-model-len",
                "64K",
                "--disk-gb",
                "120",
            ),
            "141.1 GB",
        ),
    ],
)
def test_bad_input_is_one_sentence(arguments, message):
    error = run(*arguments).exception
    assert isinstance(error, BadInput) and message in error.message


def test_the_options_of_places_are_not_in_the_help_of_plan():
    shown = run("plan", "--help").output
    assert "--pvc-size" not in shown and "--kubernetes" not in shown
    assert "--pvc-size" in run("kubernetes", "--help").output


def test_every_command_is_in_one_of_five_groups():
    shown = run("--help").output
    names = [name for commands in GROUPS.values() for name in commands]
    assert len(GROUPS) == 5 and len(names) == len(set(names))
    assert all(f"\n  {name} " in shown for name in names)


@pytest.mark.parametrize("place", ["kubernetes", "vm"])
def test_a_server_for_hardly_one_request_is_warned_of_beside_the_manifests(place):
    few = run(place, "qwen3-32b", "--gpu", "h100", *SMALL)
    assert re.search(r"# ! Only 1\.\d\d requests of 20,000 tokens at once", few.stderr), few.stderr
    assert "--max-model-len" in few.stderr.splitlines()[1]
    many = run(place, "qwen3-32b", "--gpu", "h200", "--max-model-len", "8192")
    assert many.stderr == ""
    # both streams in one file are still YAML, or a unit
    assert all(line.startswith("#") for line in few.stderr.splitlines())
