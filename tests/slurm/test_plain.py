"""slurm/plain.sbatch: what it types on each node, that a plan fills it in, and what it starts on the test bed."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from inference_planner.answer.command import flag_words
from inference_planner.answer.parallelism import plan
from plain_job import submit

from workshop.errors import BadInput
from workshop.servers.slurm.site import scripts_folder
from workshop.servers.slurm.submit import plain
from workshop.workarounds import eager_cpu_pipeline

SCRIPT = scripts_folder() / plain.SCRIPT
INSTRUCT = "meta-llama/Llama-3.1-70B-Instruct"


SPLIT = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}


def two_nodes(model: str | Path = INSTRUCT, **settings):
    return plan(model, gpu="h100", nodes=2, **{"gpus_per_node": 4, **settings})


def test_the_file_is_the_rendering_of_its_plan():
    stated = plan(INSTRUCT, gpu="h100", gpus_per_node=4, nodes=1, max_model_len=32768)
    assert plain.render(stated) == SCRIPT.read_text()


def test_a_sites_settings_stand_in_the_head():
    site = {"SBATCH_PARTITION": "gpu-h100", "SBATCH_ACCOUNT": "lab", "SBATCH_GRES": "gpu:h100:4"}
    head = [
        line
        for line in plain.render(two_nodes(**SPLIT), site=site).splitlines()
        if "#SBATCH" in line
    ]
    assert "#SBATCH --partition=gpu-h100" in head and "#SBATCH --account=lab" in head
    assert "#SBATCH --gres=gpu:h100:4" in head and "--gpus-per-node" not in "\n".join(head)
    assert "#SBATCH --nodes=2" in head and any("--time=" in line for line in head)
    unset = plain.render(two_nodes(**SPLIT), site={})
    assert set(unset.splitlines()) == set(plain.render(two_nodes(**SPLIT)).splitlines())


def test_it_is_short_and_holds_nothing_of_the_workshop():
    text = SCRIPT.read_text()
    assert 30 <= len(text.splitlines()) <= 40
    assert "workshop" not in text.lower() and "site.sh" not in text


PLANS = {
    "a stage on each node": SPLIT,
    "tensor parallel over both nodes": {"tensor_parallel_size": 8, "pipeline_parallel_size": 1},
    "two stages on each node": {"tensor_parallel_size": 2, "pipeline_parallel_size": 4},
    "replicas": {"tensor_parallel_size": 4, "data_parallel_size": 2},
    "flags that need quotes and a line of their own": {
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 2,
        "kv_cache_dtype": "fp8",
        "max_num_seqs": 77,
        "max_model_len": 16384,
        "hf_overrides": {"a name": "it's"},
    },
}


@pytest.mark.parametrize("settings", PLANS.values(), ids=list(PLANS))
def test_each_node_types_the_plans_command(settings, tmp_path):
    """The script runs with an srun that calls each node in turn, and a vllm that prints its arguments."""
    planned = two_nodes(**settings)
    script = plain.render(planned, "two nodes")
    assert "#SBATCH --job-name=two-nodes\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n" in script
    lines = commands(script, tmp_path)
    shell_line = planned.command.replace("$NODE_RANK", "{rank}").replace("$HEAD_NODE", "node01")
    for rank, line in enumerate(lines):
        expected = shlex.split(shell_line)[2:]
        expected = [word.format(rank=rank) if word == "{rank}" else word for word in expected]
        own = ["--headless"] if rank else ["--host", "0.0.0.0", "--port", "14711"]
        assert pairs(line) == pairs([*expected, "--master-port", "24711", *own])


def test_node_2_computes_and_opens_no_api(tmp_path):
    head, second = commands(plain.render(two_nodes(max_model_len=32768)), tmp_path)
    assert " ".join(second) == (
        "meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 --pipeline-parallel-size 2"
        " --max-model-len 32768 --nnodes 2 --node-rank 1 --master-addr node01 --master-port 24711 --headless"
    )
    assert "--headless" not in head


def test_without_a_key_nothing_starts(tmp_path):
    for content, sentence in ((None, "No such file"), ("", "the file with the key is empty")):
        with pytest.raises(subprocess.CalledProcessError) as error:
            commands(plain.render(two_nodes()), tmp_path, key=content)
        assert sentence in error.value.stderr and "--node-rank" not in error.value.stdout


def test_a_key_that_others_could_read_is_closed(tmp_path):
    commands(plain.render(two_nodes()), tmp_path)
    assert (tmp_path / ".vllm_api_key").stat().st_mode & 0o777 == 0o600


def test_a_model_that_vllm_could_not_load_has_no_script():
    with pytest.raises(BadInput):
        plain.render(two_nodes(quantization="awq"))


def pairs(arguments: list[str]) -> set[tuple[str, ...]]:
    """Flags with their values, whatever their order."""
    starts = [place for place, argument in enumerate(arguments) if argument.startswith("--")] or [
        len(arguments)
    ]
    ends = [*starts[1:], len(arguments)]
    return {tuple(arguments[: starts[0]])} | {
        tuple(arguments[start:end]) for start, end in zip(starts, ends, strict=True)
    }


def commands(script: str, home: Path, key: str | None = "secret") -> list[list[str]]:
    """Run the script with stand-ins for conda, SLURM and vLLM; return the arguments of vLLM on each node."""
    programs = {
        "conda": "echo 'conda() { :; }'",
        "scontrol": "printf 'node01\\nnode02\\n'",
        "srun": 'while [ "$1" != bash ]; do shift; done\n'
        'for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@" || exit; done',
        "vllm": '[ "$VLLM_API_KEY" = secret ] && [ "$1" = serve ] && shift && printf "%s\\0" "$@" && echo',
    }
    (home / "bin").mkdir(exist_ok=True)
    for name, text in programs.items():
        (home / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (home / "bin" / name).chmod(0o755)
    if key is not None:
        (home / ".vllm_api_key").write_text(key)
    done = subprocess.run(
        ["bash"],
        input=script,
        env={
            "PATH": f"{home}/bin:/usr/bin:/bin",
            "HOME": str(home),
            "SLURM_JOB_ID": "4711",
            "SLURM_NNODES": "2",
            "SLURM_CPUS_PER_TASK": "16",
            "SLURM_JOB_NODELIST": "node[01-02]",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("http://node01:14711/v1 is the address")
    return [line.split("\0")[:-1] for line in done.stdout.splitlines()[1:]]


@pytest.mark.slurm
@pytest.mark.timeout(1800)
def test_a_pipeline_over_two_nodes_answers_and_ends(request):
    """Tensor parallelism over these nodes answers in test_server.py."""
    cluster = request.getfixturevalue("cluster")
    planned = plan(
        cluster.model,
        gpu="h100",
        gpus_per_node=1,
        nodes=2,
        tensor_parallel_size=1,
        pipeline_parallel_size=2,
        max_model_len=512,
    )
    flags = eager_cpu_pipeline.flags(planned.pipeline_parallel_size)
    on_a_cpu = shlex.join(flag_words({f"--{flag}": value for flag, value in flags.items()}))
    script = plain.render(planned, "staged").replace(' "${part[@]}"', f' {on_a_cpu} "${{part[@]}}"')
    job = submit(cluster, script)
    job.answers_with_the_key_alone()
    job.ends_without_a_process()
