"""`workshop plan --as kubernetes|systemd` and `--machines`: what they print, what they refuse, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

T4 = ("--gpu", "t4", "--gpus-per-node", "2")


def run(*arguments: str, cwd=None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "workshop", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
    )


def test_manifests_go_to_standard_output_and_nothing_else_does():
    done = run("plan", "mistral-7b-v0.3", "--as", "kubernetes", *T4)
    assert done.returncode == 0 and not done.stderr
    kinds = [doc["kind"] for doc in yaml.safe_load_all(done.stdout)]
    assert {"Deployment", "Service", "Job", "PersistentVolumeClaim"} <= set(kinds)
    assert done.stdout.startswith("# workshop plan ")


def test_the_servers_defaults_count_unless_told_otherwise():
    args = next(
        doc
        for doc in yaml.safe_load_all(
            run("plan", "llama-3.1-8b", "--as", "kubernetes", "--gpu", "h100").stdout
        )
        if doc["kind"] == "Deployment"
    )["spec"]["template"]["spec"]["containers"][0]["args"]
    assert not any("--max-num-batched-tokens" in word for word in args)
    told = run(
        "plan", "llama-3.1-8b", "--as", "kubernetes", "--gpu", "h100", "--usage", "llm"
    ).stdout
    assert "--max-num-batched-tokens=16384" in told


def test_an_overlay_is_written_and_the_next_command_named(tmp_path):
    done = run(
        "plan",
        "mistral-7b-v0.3",
        "--as",
        "kubernetes",
        *T4,
        "--name",
        "mine",
        "--output",
        "out",
        cwd=tmp_path,
    )
    assert done.returncode == 0 and "kubectl apply -k out/overlays/mine" in done.stdout
    assert (tmp_path / "out/overlays/mine/server.yaml").is_file()
    assert not list((tmp_path / "out").rglob("*.py")), "no program in a manifest"


def test_a_model_that_does_not_fit_prints_no_manifest_but_what_would_fit():
    done = run("plan", "llama-3.1-70b", "--as", "kubernetes", *T4)
    assert done.returncode == 1 and not done.stdout
    assert (
        "does not fit on 2 × t4: vLLM may use " in done.stderr
        and "missing before the first token" in done.stderr
    )
    assert "14 × Tesla T4 hold it" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (
                "plan",
                "llama-3.1-70b",
                "--as",
                "kubernetes",
                "--gpu",
                "h100",
                "--gpus-per-node",
                "4",
                "--pvc-size",
                "130",
            ),
            "131.4 GiB",
        ),
        (
            ("plan", "mistral-7b-v0.3", "--as", "kubernetes", *T4, "--dtype", "bfloat16"),
            "no bfloat16",
        ),
        (
            ("plan", "mistral-7b-v0.3", "--as", "kubernetes", *T4, "--quantization", "awq"),
            "cannot make awq weights",
        ),
        (
            ("plan", "mistral-7b-v0.3", "--as", "systemd", *T4, "--quantization", "awq"),
            "cannot make awq weights",
        ),
        (("plan", "llama-3.1-8b-fp8", "--gpu", "h100", "--quantization", "awq"), "quantized with"),
        (
            ("plan", "mistral-7b-v0.3", "--as", "kubernetes", *T4, "--name", "My Server"),
            "name of a Service",
        ),
        (
            ("plan", "mistral-7b-v0.3", "--as", "kubernetes", *T4, "--load-gb-per-s", "0"),
            "no speed",
        ),
        (("plan", "llama-3.1-8b", "--as", "kubernetes", "--gpu", "mi300x"), "NVIDIA"),
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
        (("plan", "mistral-7b-v0.3", "--as", "kubernetes"), "--gpu is missing"),
        (("plan", "--machines"), "MODEL is missing"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2 and not done.stdout, done.stdout
    assert message in done.stderr and "Traceback" not in done.stderr


def test_fp8_weights_made_while_loading_need_the_volume_of_16_bit_ones():
    docs = list(
        yaml.safe_load_all(
            run(
                "plan",
                "llama-3.1-70b",
                "--as",
                "kubernetes",
                "--gpu",
                "h100",
                "--gpus-per-node",
                "2",
                "--max-model-len",
                "8192",
                "--quantization",
                "fp8",
            ).stdout
        )
    )
    claim = next(doc for doc in docs if doc["kind"] == "PersistentVolumeClaim")
    # 131.4 GiB in the checkpoint
    assert claim["spec"]["resources"]["requests"]["storage"] == "140Gi"


def test_the_options_of_the_volume_reach_the_manifests():
    done = run(
        "plan",
        "mistral-7b-v0.3",
        "--as",
        "kubernetes",
        *T4,
        "--storage-class",
        "fast",
        "--pvc-size",
        "50",
        "--load-gb-per-s",
        "1",
    )
    docs = {doc["kind"]: doc for doc in yaml.safe_load_all(done.stdout)}
    claim = docs["PersistentVolumeClaim"]["spec"]
    assert (
        claim["storageClassName"] == "fast" and claim["resources"]["requests"]["storage"] == "50Gi"
    )
    probe = docs["Deployment"]["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 920  # 14.5 GB at 1 GB/s, and 900 s


def test_the_vm_prints_unit_and_containers():
    done = run(
        "plan",
        "unsloth/Llama-3.3-70B-Instruct",
        "--gpu",
        "h100-nvl",
        "--gpus-per-node",
        "2",
        "--max-model-len",
        "64K",
        "--download-dir",
        "/mnt/share",
        "--as",
        "systemd",
    )
    assert done.returncode == 0
    for word in (
        "[Service]",
        "podman run",
        "docker run",
        "apptainer exec",
        "--download-dir /mnt/share",
        "141.1 GB",
    ):
        assert word in done.stdout


def test_machines_are_listed_without_a_gpu_and_as_data():
    shown = run("plan", "llama-3.3-70b", "--machines", "--max-model-len", "32K")
    assert shown.returncode == 0 and "Standard_NC80adis_H100_v5" in shown.stdout
    data = json.loads(
        run("plan", "llama-3.3-70b", "--machines", "--max-model-len", "32K", "--json").stdout
    )
    by_name = {machine["name"]: machine for machine in data}
    assert by_name["Standard_NC80adis_H100_v5"]["fits"] and not by_name["g4dn.12xlarge"]["fits"]
    assert by_name["Standard_NC80adis_H100_v5"]["command"].startswith("vllm serve")


def test_a_model_that_no_machine_holds_is_exit_code_1():
    done = run(
        "plan",
        "deepseek-v3",
        "--machines",
        "--dtype",
        "float16",
        "--max-model-len",
        "163840",
        "--gpu-memory-utilization",
        "0.3",
    )
    assert done.returncode == 1 and "None of these" in done.stderr
