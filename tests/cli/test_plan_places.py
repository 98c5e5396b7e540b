"""`workshop plan --as kubernetes|systemd|vllm` and `--machines`: what they print, what they refuse, and their exit codes."""

from __future__ import annotations

import json
import re

import yaml
from command_line import run

T4 = "--gpu t4 --gpus-per-node 2"
NVL = "llama-3.3-70b --as systemd --gpu h100-nvl --gpus-per-node 2 --max-model-len 64K"


def manifests(line: str) -> dict[str, dict]:
    """Return the manifests that a command prints, by their kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(run(line).out)}


def container(documents: dict[str, dict]) -> dict:
    """Return the container of vLLM."""
    return documents["Deployment"]["spec"]["template"]["spec"]["containers"][0]


def test_manifests_go_to_standard_output_and_nothing_else_does():
    done = run(f"plan mistral-7b-v0.3 --as kubernetes {T4}")
    assert done.code == 0 and not done.err
    kinds = [document["kind"] for document in yaml.safe_load_all(done.out)]
    assert {"Deployment", "Service", "Job", "PersistentVolumeClaim"} <= set(kinds)
    assert done.out.startswith(f"# workshop plan mistral-7b-v0.3 --as kubernetes {T4}\n#\n")


def test_the_servers_defaults_count_unless_told_otherwise():
    line = "plan llama-3.1-8b --as kubernetes --gpu h100"
    assert not any(
        "--max-num-batched-tokens" in word for word in container(manifests(line))["args"]
    )
    assert "--max-num-batched-tokens=16384" in run(f"{line} --usage llm").out


def test_an_overlay_is_written_and_the_next_command_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(f"plan mistral-7b-v0.3 --as kubernetes {T4} --name mine --output out")
    assert done.code == 0 and "kubectl apply -k out/overlays/mine" in done.out
    assert (tmp_path / "out/overlays/mine/server.yaml").is_file()
    assert not list((tmp_path / "out").rglob("*.py")), "no program in a manifest"


def test_a_model_that_does_not_fit_prints_no_manifest_but_what_would_fit():
    done = run(f"plan llama-3.1-70b --as kubernetes {T4}")
    assert done.code == 1 and not done.out
    assert "does not fit on 2 × t4: vLLM may use " in done.err
    assert "missing before the first token" in done.err
    assert "16 × Tesla T4 hold it" in done.err


def test_bad_input_is_one_sentence_and_exit_code_2(subtests):
    for line, message in [
        ("llama-3.1-70b --as kubernetes --gpu h100 --gpus-per-node 4 --pvc-size 130", "131.4 GiB"),
        (f"mistral-7b-v0.3 --as kubernetes {T4} --dtype bfloat16", "no bfloat16"),
        (f"mistral-7b-v0.3 --as kubernetes {T4} --quantization awq", "cannot make awq weights"),
        (f"mistral-7b-v0.3 --as systemd {T4} --quantization awq", "cannot make awq weights"),
        ("llama-3.1-8b-fp8 --gpu h100 --quantization awq", "quantized with"),
        (f"mistral-7b-v0.3 --as kubernetes {T4} --name 'My Server'", "name of a Service"),
        (f"mistral-7b-v0.3 --as kubernetes {T4} --load-gb-per-s 0", "no speed"),
        ("llama-3.1-8b --as kubernetes --gpu mi300x", "NVIDIA"),
        (f"{NVL} --disk-gb 120", "141.1 GB"),
        ("mistral-7b-v0.3 --as kubernetes", "--gpu is missing"),
        ("--machines", "MODEL is missing"),
    ]:
        with subtests.test(line):
            done = run(f"plan {line}")
            assert done.code == 2 and not done.out
            assert message in done.err and "Traceback" not in done.err


def test_fp8_weights_made_while_loading_need_the_volume_of_16_bit_ones():
    size = "--gpu h100 --gpus-per-node 2 --max-model-len 8192"
    documents = manifests(f"plan llama-3.1-70b --as kubernetes {size} --quantization fp8")
    # 131.4 GiB in the checkpoint
    claim = documents["PersistentVolumeClaim"]["spec"]
    assert claim["resources"]["requests"]["storage"] == "140Gi"


def test_the_options_of_the_volume_reach_the_manifests():
    volume = "--storage-class fast --pvc-size 50 --load-gb-per-s 1"
    documents = manifests(f"plan mistral-7b-v0.3 --as kubernetes {T4} {volume}")
    claim = documents["PersistentVolumeClaim"]["spec"]
    assert claim["storageClassName"] == "fast"
    assert claim["resources"]["requests"]["storage"] == "50Gi"
    probe = container(documents)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 920  # 14.5 GB at 1 GB/s, and 900 s


def test_the_vm_prints_unit_and_containers():
    name = NVL.replace("llama-3.3-70b", "unsloth/Llama-3.3-70B-Instruct")
    done = run(f"plan {name} --download-dir /mnt/share")
    assert done.code == 0
    for text in ("[Service]", "podman run", "docker run", "apptainer exec", "141.1 GB"):
        assert text in done.out
    assert "--download-dir /mnt/share" in done.out


def test_machines_are_listed_without_a_gpu_and_as_data():
    line = "plan llama-3.3-70b --machines --max-model-len 32K"
    shown = run(line)
    assert shown.code == 0 and "Standard_NC80adis_H100_v5" in shown.out
    by_name = {machine["name"]: machine for machine in json.loads(run(f"{line} --json").out)}
    assert by_name["Standard_NC80adis_H100_v5"]["fits"] and not by_name["g4dn.12xlarge"]["fits"]
    assert by_name["Standard_NC80adis_H100_v5"]["command"].startswith("vllm serve")


def test_a_model_that_no_machine_holds_is_exit_code_1():
    little = "--dtype float16 --max-model-len 163840 --gpu-memory-utilization 0.3"
    done = run(f"plan deepseek-v3 --machines {little}")
    assert done.code == 1 and "None of these" in done.err


def test_the_options_of_a_place_stand_in_a_section_of_their_own():
    of_plan, _, of_kubernetes = run("plan --help").out.partition("With --as kubernetes:")
    assert "--pvc-size" not in of_plan and "--pvc-size" in of_kubernetes
    assert "--gpu " in of_plan and "[MODEL]" not in of_plan.partition("Options:")[2]


def test_an_image_with_the_guard_serves_and_guards():
    done = run(f"plan mistral-7b-v0.3 {T4} --as kubernetes --guard-image r/w:v1")
    assert "image: r/w:v1" in done.out and "--middleware" in done.out


def test_as_vllm_prints_the_command_alone():
    done = run("plan llama-3.1-70b --gpu h100 --gpus-per-node 4 --as vllm")
    assert done.out == "vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 4\n"


def test_an_option_without_its_place_is_refused(subtests):
    for options, message in [
        ("--pvc-size 40", "--pvc-size belongs to --as kubernetes"),
        ("--as systemd --pvc-size 40", "--pvc-size belongs to --as kubernetes"),
        ("--name mine", "--name belongs to --as"),
        ("--as vllm --json", "--as and --json print different things"),
        ("--as vllm --gpus-per-node 1", "llama-3.1-70b"),  # does not fit
    ]:
        with subtests.test(options):
            done = run(f"plan llama-3.1-70b --gpu h100 {options}")
            assert done.code in (1, 2) and message.lower() in done.err.lower()


def test_a_server_for_hardly_one_request_is_warned_of_beside_the_manifests(subtests):
    for place in ["kubernetes", "systemd"]:
        with subtests.test(place):
            few = run(
                f"plan qwen3-32b --as {place} --gpu h100 --gpus-per-node 1 --max-model-len 20000"
            ).err
            assert re.search(r"# ! Only 1\.\d\d requests of 20,000 tokens at once", few), few
            assert "--max-model-len" in few.splitlines()[1]
            # both streams in one file are still YAML, or a unit
            assert all(line.startswith("#") for line in few.splitlines())
            assert run(f"plan qwen3-32b --as {place} --gpu h200 --max-model-len 8192").err == ""
