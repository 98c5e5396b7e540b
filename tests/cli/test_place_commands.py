"""`workshop plan --as kubernetes` and `--as systemd`: the plan as a place needs it."""

from __future__ import annotations

import re
import shutil

import pytest
import yaml
from click.testing import CliRunner

from workshop.cli import GROUPS, group
from workshop.errors import BadInput
from workshop.servers.local import TEACHING_FOLDER

T4 = ("--gpu", "t4", "--gpus-per-node", "2")
SMALL = ("--gpus-per-node", "1", "--max-model-len", "20000")


def run(*arguments: str):
    return CliRunner().invoke(group, list(arguments))


def test_the_manifests_name_the_command_that_makes_them():
    made = run("plan", "mistral-7b-v0.3", "--as", "kubernetes", *T4, "--replicas", "2").output
    first = made.splitlines()[0]
    assert first.startswith("# workshop plan ") and "--replicas 2" in first
    again = run(*first.removeprefix("# workshop ").split())
    assert again.output == made
    assert {"Deployment", "Service"} <= {document["kind"] for document in yaml.safe_load_all(made)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("plan", "mistral-7b-v0.3", "--as", "kubernetes", *T4, "--load-gb-per-s", "0"),
            "no speed",
        ),
        (("plan", "mistral-7b-v0.3", "--as", "kubernetes"), "--gpu is missing"),
        (
            (
                "plan",
                "llama-3.3-70b",
                "--as",
                "systemd",
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


def test_the_options_of_a_place_stand_in_a_section_of_their_own():
    shown = run("plan", "--help").output
    of_plan, _, of_kubernetes = shown.partition("With --as kubernetes:")
    assert "--pvc-size" not in of_plan and "--pvc-size" in of_kubernetes
    assert "--gpu " in of_plan and "[MODEL]" not in of_plan.partition("Options:")[2]


def test_a_claim_of_ones_own_is_mounted_and_nothing_is_downloaded(tmp_path):
    shutil.copy(TEACHING_FOLDER / "config.json", tmp_path)
    own = ("--claim", "models", "--model-path", "mine/small")
    done = run(
        "plan", str(tmp_path), "--gpu", "l4", "--gpus-per-node", "1", "--as", "kubernetes", *own
    )
    assert done.exit_code == 0, done.exception
    kinds = {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}
    assert "Job" not in kinds and "PersistentVolumeClaim" not in kinds
    assert "claimName: models" in done.stdout and "mine/small" in done.stdout
    guarded = run("plan", "mistral-7b-v0.3", *T4, "--as", "kubernetes", "--guard-image", "r/w:v1")
    assert "image: r/w:v1" in guarded.stdout and "--middleware" in guarded.stdout


def test_as_vllm_prints_the_command_alone():
    shown = run("plan", "llama-3.1-70b", "--gpu", "h100", "--gpus-per-node", "4", "--as", "vllm")
    assert shown.output == "vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 4\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pvc-size", "40"), "--pvc-size belongs to --as kubernetes"),
        (("--as", "systemd", "--pvc-size", "40"), "--pvc-size belongs to --as kubernetes"),
        (("--name", "mine"), "--name belongs to --as"),
        (("--as", "vllm", "--json"), "--as and --json print different things"),
        (("--as", "vllm", "--gpus-per-node", "1"), "llama-3.1-70b"),  # does not fit
    ],
)
def test_an_option_without_its_place_is_refused(options, message):
    error = run("plan", "llama-3.1-70b", "--gpu", "h100", *options).exception
    assert error is not None and message.lower() in str(error).lower()


def test_every_command_is_in_one_of_five_groups():
    shown = run("--help").output
    names = [name for commands in GROUPS.values() for name in commands]
    assert len(GROUPS) == 5 and len(names) == len(set(names))
    assert all(f"\n  {name} " in shown for name in names)


@pytest.mark.parametrize("place", ["kubernetes", "systemd"])
def test_a_server_for_hardly_one_request_is_warned_of_beside_the_manifests(place):
    few = run("plan", "qwen3-32b", "--as", place, "--gpu", "h100", *SMALL)
    assert re.search(r"# ! Only 1\.\d\d requests of 20,000 tokens at once", few.stderr), few.stderr
    assert "--max-model-len" in few.stderr.splitlines()[1]
    many = run("plan", "qwen3-32b", "--as", place, "--gpu", "h200", "--max-model-len", "8192")
    assert many.stderr == ""
    # both streams in one file are still YAML, or a unit
    assert all(line.startswith("#") for line in few.stderr.splitlines())
