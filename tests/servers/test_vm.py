"""A single VM: the disk is counted, the unit is one that systemd takes, container lines keep key and port closed."""

from __future__ import annotations

import configparser
import itertools
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from inference_planner.answer import machines

from workshop.engine.planning import plan
from workshop.errors import BadInput, WorkshopError
from workshop.servers import vm

HUB = "unsloth/Llama-3.3-70B-Instruct"


@pytest.fixture(scope="module")
def case() -> vm.VmServer:
    # The workshop's first document: 2 × H100 94 GiB, weights on the mounted share.
    p = plan(HUB, "h100-nvl", gpus_per_node=2, max_model_len=65536, usage="serve")
    return vm.VmServer(p, download_dir="/mnt/share/models")


def test_a_70b_does_not_go_onto_an_os_disk_of_120_gb_and_the_plan_says_so(case):
    # 70,553,706,496 parameters of two bytes: 141.1 GB
    assert "141.1 GB" in vm.disk_notes(case)[0] and "120 GB cannot hold" in vm.disk_notes(case)[1]
    with pytest.raises(BadInput, match=r"141\.1 GB.*120 GB"):
        vm.VmServer(case.plan, "/home/me/models", disk_gb=120)
    assert vm.VmServer(case.plan, "/mnt/share/models", disk_gb=100_000)
    small = vm.VmServer(plan("llama-3.1-8b", "h100-nvl", usage="serve"))
    assert len(vm.disk_notes(small)) == 1  # 16 GB do


def test_the_figures_of_the_guide_are_the_plans():
    model, gpu = "Qwen/Qwen3.5-122B-A10B", "a100-80gb-pcie"
    whole = plan(model, gpu, gpus_per_node=4)
    short = plan(model, gpu, gpus_per_node=4, max_model_len=65536)
    fp8 = plan(model, gpu, gpus_per_node=4, max_model_len=65536, kv_cache_dtype="fp8")
    text = (Path(__file__).parents[2] / "docs" / "vm.md").read_text()
    assert short.gpus == 4 and f"--gpu {gpu} --gpus-per-node 4 --max-model-len 64K" in text
    # Parameters of its language model, from the config.json: 122,104,728,576, of two bytes.
    for figure in (
        f"{whole.max_concurrency:.2f} requests of the whole context ({whole.deployment.settings.max_model_len:,} tokens)",
        f"{short.max_concurrency:.2f} requests of 65,536 tokens",
        f"{short.weights_gib_per_gpu:.1f} GiB",
        f"{fp8.kv_cache_tokens / short.kv_cache_tokens:.1f} times as many tokens",
        "244.2 GB",
        f"{244.2 / 0.25 / 60:.0f} minutes",
        machines.disk_problem("qwen3.5-122b-a10b", 120),
        f"{len(machines.list_machines())} common cloud VMs",
    ):
        assert figure in text


def unit(case) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(vm.unit(case))
    return parser


def test_the_unit_runs_the_plans_command_with_the_guard_on_this_machine_alone(case):
    service = unit(case)["Service"]
    command = shlex.split(service["ExecStart"])
    assert command[:4] == [vm.PYTHON, "-m", "workshop.servers.vllm_main", "serve"]
    assert command[4] == HUB
    flags = dict(zip(command[5::2], command[6::2], strict=True))
    assert flags["--tensor-parallel-size"] == "2" and flags["--max-model-len"] == "65536"
    assert flags["--download-dir"] == "/mnt/share/models"
    assert (
        flags["--host"] == "127.0.0.1" and flags["--middleware"] == "workshop.guard.auth.RequireKey"
    )


def test_the_unit_waits_for_the_share_restarts_and_cannot_touch_the_rest(case):
    parser = unit(case)
    assert parser["Unit"]["RequiresMountsFor"] == "/mnt/share/models"
    assert parser["Service"]["Restart"] == "on-failure" and parser["Unit"]["StartLimitBurst"]
    assert (
        parser["Service"]["User"] not in ("", "root")
        and parser["Service"]["ProtectSystem"] == "strict"
    )
    assert "/mnt/share/models" in parser["Service"]["ReadWritePaths"].split()
    assert "WORKSHOP_API_KEY_FILE=/etc/workshop/api-key" in vm.unit(case)
    assert parser["Install"]["WantedBy"] == "multi-user.target"


def test_systemd_takes_the_unit_where_it_is_at_hand(case, tmp_path):
    text = vm.unit(case).replace(vm.PYTHON, sys.executable)  # which exists here
    path = tmp_path / "vllm.service"
    path.write_text(text)
    path.chmod(0o644)  # whatever the umask
    tool = shutil.which("systemd-analyze")
    sections = unit(case).sections()
    assert sections == ["Unit", "Service", "Install"]
    if tool is None:
        return  # the points above hold everywhere
    done = subprocess.run([tool, "verify", str(path)], capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if "vllm.service" in line]
    assert not ours, done.stderr
    path.write_text(text.replace("Restart=on-failure", "Restart=sometimes"))
    done = subprocess.run([tool, "verify", str(path)], capture_output=True, text=True)
    assert "vllm.service" in done.stderr  # it would have said something


def words_of(line: str) -> list[str]:
    return shlex.split(line.replace("\\\n", " "))


def values(command: list[str], flag: str) -> list[str]:
    return [after for word, after in itertools.pairwise(command) if word == flag]


def test_a_container_gets_gpus_shared_memory_the_share_and_a_closed_port(case):
    for engine in ("podman", "docker"):
        command = words_of(vm.container(case, engine))
        assert command[:2] == [engine, "run"], engine
        gpus = values(command, "--device") if engine == "podman" else values(command, "--gpus")
        assert gpus == (["nvidia.com/gpu=all"] if engine == "podman" else ["all"]), engine
        assert values(command, "--ipc") == ["host"], engine
        assert values(command, "--publish") == ["127.0.0.1:8000:8000"], engine
        assert "/mnt/share/models:/mnt/share/models" in values(command, "--volume"), engine
        image = next(word for word in command if "vllm-openai" in word)
        assert image.endswith(f"vllm/vllm-openai:v{case.plan.deployment.settings.vllm_version}"), (
            engine
        )
        assert command[command.index(image) + 1] == HUB, engine  # its entry point is `vllm serve`


def test_another_version_is_named_for_the_unit_and_the_images():
    p = plan("llama-3.1-8b", "h100", vllm_version="0.33.0", usage="serve")
    text = vm.render(vm.VmServer(p))
    assert "/opt/vllm/bin/python has vLLM 0.33.0" in text and text.count("vllm-openai:v0.33.0") == 3


def test_apptainer_gets_gpus_and_stays_on_this_machine(case):
    command = words_of(vm.render(case, "apptainer").partition("\napptainer exec")[2])
    assert command[0] == "--nv" and values(command, "--host") == ["127.0.0.1"]
    assert "/mnt/share/models" in values(command, "--bind")


def test_apptainer_wants_no_root(case, tmp_path):
    """The lines run with a pretended apptainer, in a home and a folder of their own."""
    tool = tmp_path / "bin" / "apptainer"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >> "$SEEN"\n')
    tool.chmod(0o755)
    seen = tmp_path / "seen"
    (tmp_path / "my home").mkdir()
    environment = {
        "PATH": f"{tool.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path / "my home"),
        "SEEN": str(seen),
    }
    for _ in range(2):
        subprocess.run(
            ["sh", "-ec", vm.render(case, "apptainer")], env=environment, cwd=tmp_path, check=True
        )
    key = tmp_path / "my home" / ".workshop" / "api-key"
    assert len(key.read_text().strip()) == 64 and key.stat().st_mode & 0o777 == 0o600
    arguments = seen.read_text().splitlines()
    assert f"WORKSHOP_API_KEY_FILE={key}" in arguments
    assert f"{tmp_path}:/opt/workshop:ro" in arguments
    assert not any("/etc/" in word for word in arguments)
    assert key.read_text().strip() not in arguments


def test_no_start_takes_python_files_of_the_folder_it_is_made_in(case):
    """tests/workshop_modules/test_current_folder.py starts the unit's command. An Apptainer image sees the folder that it is run in."""
    assert unit(case)["Service"][
        "WorkingDirectory"
    ] == "/" and "Environment=PYTHONSAFEPATH=1 " in vm.unit(case)
    for engine in ("podman", "docker"):
        assert "PYTHONSAFEPATH=1" in values(words_of(vm.container(case, engine)), "--env")
    command = words_of(vm.render(case, "apptainer").partition("\napptainer exec")[2])
    assert any("PYTHONSAFEPATH=1" in value.split(",") for value in values(command, "--env"))


def test_no_line_holds_a_key_and_all_have_the_guard(case):
    lines = [
        vm.render(case, "apptainer"),
        vm.unit(case),
        vm.container(case, "podman"),
        vm.container(case, "docker"),
    ]
    for line in lines:
        assert "--middleware workshop.guard.auth.RequireKey" in line.replace("\\\n    ", "")
        assert "--api-key" not in line and "HF_TOKEN=hf" not in line
    for line in lines[1:]:
        assert (
            "/etc/workshop/hf.env" in line and "WORKSHOP_API_KEY_FILE=/etc/workshop/api-key" in line
        )


def test_bad_input_is_named(case, subtests):
    for change, message in [
        ({"download_dir": "models"}, "whole path"),
        ({"download_dir": "/mnt/my models"}, "whole path"),
        ({"name": "My Server"}, "name of a unit"),
    ]:
        with subtests.test(f"{change} {message}"), pytest.raises(BadInput, match=message):
            vm.VmServer(case.plan, **change)


def test_weights_in_a_folder_here_are_read_there_and_not_downloaded(tmp_path, monkeypatch):
    folder = tmp_path / "my-model"
    folder.mkdir()
    shutil.copy(Path(vm.__file__).parents[1] / "teaching_model" / "config.json", folder)
    monkeypatch.chdir(tmp_path)
    case = vm.VmServer(plan("./my-model", "a100", usage="serve"))
    assert shlex.split(unit(case)["Service"]["ExecStart"])[4] == str(folder)
    for engine in ("podman", "docker"):
        assert f"{folder}:{folder}:ro" in values(words_of(vm.container(case, engine)), "--volume")
    command = words_of(vm.render(case, "apptainer").partition("\napptainer exec")[2])
    assert f"{folder}:{folder}:ro" in values(command, "--bind")
    assert "weights go to" not in vm.render(case)
    folder.rename(tmp_path / "my model")
    with pytest.raises(BadInput, match="no whole path without spaces"):
        vm.VmServer(plan("./my model", "a100", usage="serve"))


def test_gpus_that_are_not_nvidias_are_refused():
    with pytest.raises(BadInput, match="for NVIDIA GPUs"):
        vm.VmServer(plan("llama-3.1-8b", "mi300x", usage="serve"))


def test_what_does_not_fit_or_is_no_single_machine_is_refused():
    with pytest.raises(
        WorkshopError, match=r"fit on 2 .* left for the KV cache, too little for one .* 131,072 tok"
    ):
        vm.VmServer(plan("llama-3.3-70b", "h100-nvl", gpus_per_node=2, nodes=1, usage="serve"))
    with pytest.raises(BadInput, match="nodes"):
        vm.VmServer(plan("llama-3.1-405b", "h100", gpus_per_node=8, nodes=2, usage="serve"))
