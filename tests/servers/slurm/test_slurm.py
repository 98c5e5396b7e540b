"""slurm submit without a cluster: what is submitted, and why."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from inference_planner.releases.versions import DEFAULT as DEFAULT_VERSION
from stand_ins import stand_in

from workshop.cli.serve.prefetch import command as prefetch
from workshop.cli.serve.slurm import command
from workshop.engine.planning import plan
from workshop.errors import BadInput, WorkshopError
from workshop.servers.slurm import site
from workshop.servers.slurm.submit import submission as slurm

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def models(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKSHOP_MODELS", str(tmp_path / "models"))


def test_a_site_without_a_folder_of_models_is_planned_and_not_submitted(
    workshop_home, bin_folder, monkeypatch
):
    monkeypatch.delenv("WORKSHOP_MODELS")
    stand_in(bin_folder, "sbatch", "echo 1")
    submission = slurm.prepare(slurm.SubmitRequest("70b"))
    assert (
        submission.fits and "WORKSHOP_MODELS is not set in slurm/site.sh" in submission.advice[-1]
    )
    with pytest.raises(WorkshopError, match="WORKSHOP_MODELS is not set, so nobody knows"):
        slurm.submit(submission)
    done = CliRunner().invoke(prefetch, ["70b"])
    assert (
        "WORKSHOP_MODELS is not set" in str(done.exception) and "project" in done.exception.remedy
    )
    printed = slurm.prepare(slurm.SubmitRequest("llama-3.1-70b")).script.read_text()
    assert "\nmodel=$WORKSHOP_MODELS/Llama-3.1-70B\n" in printed
    monkeypatch.setenv("WORKSHOP_MODELS", "models")
    with pytest.raises(WorkshopError, match="'models', no whole path"):
        slurm.submit(slurm.prepare(slurm.SubmitRequest("70b")))


def test_the_plan_of_each_script_fits_and_says_its_split(workshop_home, subtests):
    for what, options, split in [
        ("70b", {}, "1 node, 4 × h100, TP 4 × PP 1"),
        ("70b", {"nodes": 2, "gpu": "a100-40gb"}, "2 nodes, 8 × a100-40gb, TP 4 × PP 2"),
        (
            "70b",
            {"gpu": "a100-40gb", "vllm": ("--quantization", "fp8")},
            "1 node, 4 × a100-40gb, TP 4 × PP 1",
        ),
        ("405b", {}, "4 nodes, 16 × h100, TP 16 × PP 1"),
        ("405b", {"pipeline": True}, "4 nodes, 16 × h100, TP 4 × PP 4"),
        ("405b", {"gpus_per_node": 8}, "2 nodes, 16 × h100, TP 16 × PP 1"),
        ("405b-fp8", {}, "2 nodes, 8 × h100, TP 4 × PP 2"),
        ("405b-fp8", {"nodes": 1, "gpu": "h200"}, "1 node, 4 × h200, TP 4 × PP 1"),
        ("llama-3.1-8b", {}, "1 node, 1 × h100, TP 1 × PP 1"),
        ("llama-3.1-8b", {"gpus_per_node": 2}, "1 node, 2 × h100, TP 2 × PP 1"),
        ("llama-3.1-8b", {"gpus_per_node": 1, "nodes": 2}, "2 nodes, 2 × h100, TP 1 × PP 2"),
        ("falcon-7b", {"gpus_per_node": 2}, "1 node, 2 × h100, TP 1 × PP 2"),  # 71 heads
    ]:
        with subtests.test(what):
            submission = slurm.prepare(slurm.SubmitRequest(what, **options))
            assert (
                submission.fits
                and f"{split}, by vLLM {DEFAULT_VERSION}'s formulas." in submission.reasons[0]
            )
            # else the script's own number counts
            sets_size = "gpus_per_node" in options or "nodes" in options
            assert any(word.startswith("--nodes=") for word in submission.arguments) == (
                sets_size or submission.script.stem.startswith("model-")
            )
            if "gpus_per_node" in options:
                assert f"--gpus-per-node={options['gpus_per_node']}" in submission.arguments


def test_any_model_gets_the_fewest_nodes_that_hold_it(workshop_home):
    submission = slurm.prepare(slurm.SubmitRequest("llama-3.1-405b"))
    assert submission.fits and submission.script.name.startswith("model-")
    arguments = " ".join(submission.arguments)
    assert "--nodes=3" in arguments or "--nodes=4" in arguments, (
        "756 GiB: 11 H100 hold the weights alone"
    )
    sizes = (submission.settings[f"{kind}_parallel_size"] for kind in ("tensor", "pipeline"))
    ranks = math.prod(map(int, sizes))
    nodes, gpus = (
        int(part.split("=")[1])
        for part in submission.arguments
        if part.startswith(("--nodes", "--gpus"))
    )
    assert ranks == nodes * gpus, "world size equals allocation"


def test_what_the_command_prints_can_be_pasted(workshop_home, bin_folder, tmp_path):
    seen = tmp_path / "seen"
    stand_in(bin_folder, "sbatch", f'printf "%s\\n" "$@" > {seen}; echo 77')
    submission = slurm.prepare(
        slurm.SubmitRequest(
            "405b",
            pipeline=True,
            time="02:00:00",
            sbatch_args=("--qos=a b",),
            anyway=True,
        )
    )
    subprocess.run(["bash", "-c", submission.command], check=True, cwd=tmp_path)
    pasted = seen.read_text().splitlines()
    assert slurm.submit(submission).job_id == "77"
    submitted = [line for line in seen.read_text().splitlines() if line != "--parsable"]
    assert pasted == submitted == ["--qos=a b", str(submission.script)]
    text = submission.script.read_text()
    assert "\nparallel=pipeline\n" in text and "\n#SBATCH --time=02:00:00\n" in text
    assert text.count("--time=") == 1 and len(submission.command) < 200


def test_flags_of_vllm_stand_in_the_script(workshop_home):
    flags = ("--kv-cache-dtype", "fp8", "--hf-overrides", '{"a": "b c"}')
    submission = slurm.prepare(slurm.SubmitRequest("70b", vllm=flags))
    line = next(
        line
        for line in submission.script.read_text().splitlines()
        if line.startswith("more_flags=")
    )
    assert shlex.split(line.removeprefix("more_flags=(").removesuffix(")")) == list(flags)
    settings = slurm.prepare(slurm.SubmitRequest("llama-3.1-405b-fp8")).settings
    # fbgemm_fp8 loads only when told
    assert settings["more_flags"] == "(--allow-deprecated-quantization)"
    limited = slurm.prepare(slurm.SubmitRequest("70b", learners=30)).settings["more_flags"]
    assert "--middleware workshop.guard.fairshare.FairShare" in limited
    traced = slurm.prepare(slurm.SubmitRequest("70b", trace=True)).settings["more_flags"]
    assert traced == "(--scheduler-cls workshop.engine.trace_writer.traced)"
    with pytest.raises(BadInput, match="--api-key"):
        slurm.prepare(slurm.SubmitRequest("70b", vllm=("--api-key", "x")))
    # as the plan's advice has them
    for own in "--kv-cache-dtype=fp8", "--gpu-memory-utilization", "--vllm-version":
        with pytest.raises(BadInput, match=f"{own}' is no option of sbatch") as error:
            slurm.prepare(slurm.SubmitRequest("70b", sbatch_args=("--network=x", own, "0.95")))
        assert "--vllm '" in error.value.remedy


def test_flags_of_vllm_are_planned_with(workshop_home):
    def reasons(*flags):
        return " ".join(slurm.prepare(slurm.SubmitRequest("70b", vllm=flags)).reasons)

    assert "469,568 tokens, or 14.33 requests of 32,768" in reasons()
    assert "939,136 tokens, or 28.66 requests of 32,768" in reasons("--kv-cache-dtype=fp8")
    assert "of 8,192 tokens at once" in reasons("--max_model_len", "8K")
    unknown = reasons(
        "--max-model-len", "auto", "--kv-cache-dtype", "nvfp4", "--quantization", "experts_int8"
    )
    assert unknown == reasons()
    assert "32.89 GiB are weights" in unknown
    assert "22.89 GiB are weights" in reasons("--cpu-offload-gb", "10")
    assert "100,000 blocks" not in unknown
    bytes_of_blocks = 100_000 * 16 * 80 * 2 * 2 * 128 * 2  # tokens, layers, K and V, heads, bf16
    assert "100,000 blocks" in reasons(f"--kv-cache-memory-bytes={bytes_of_blocks}")


def test_overrides_that_no_plan_counts_are_submitted_with_a_sentence(workshop_home):
    flags = ("--hf-overrides", '{"rope_scaling": {}}', "--max-model-len", "1M")
    submission = slurm.prepare(slurm.SubmitRequest("70b", vllm=flags))
    assert "does not count --hf-overrides, --max-model-len: max_model_" in submission.reasons[1]
    assert "14.33 requests of 32,768" in " ".join(submission.reasons)


def test_drafts_and_adapters_are_planned_with(workshop_home):
    def tokens(*flags):
        (sentence,) = re.findall(
            r"([\d,]+) tokens, or",
            " ".join(slurm.prepare(slurm.SubmitRequest("70b", vllm=flags)).reasons),
        )
        return int(sentence.replace(",", ""))

    def planned(**settings):
        split = {"tensor_parallel_size": 4, "pipeline_parallel_size": 1, "max_model_len": 32768}
        split["gpu_memory_utilization"] = 0.9
        return plan("llama-3.1-70b", "h100", gpus_per_node=4, **split, **settings).kv_cache_tokens

    draft = {"method": "eagle3", "model": "x/y", "num_speculative_tokens": 3}
    with_draft = planned(speculative_config=draft)
    dotted = [f"--speculative-config.{name}={value}" for name, value in draft.items()]
    assert tokens("-sc", json.dumps(draft)) == tokens(*dotted) == with_draft < tokens()
    short = ("--spec_method", "eagle3", "--spec-model=x/y", "--spec-tokens", "3")
    assert tokens(*short) == with_draft
    adapters = ("--enable-lora", "--max-loras", "4", "--max-lora-rank=64")
    assert tokens(*adapters) == planned(enable_lora=True, max_loras=4, max_lora_rank=64) < tokens()


def test_a_draft_that_no_plan_counts_is_submitted_with_a_sentence(workshop_home):
    draft = '{"method": "medusa", "model": "x/y", "num_speculative_tokens": 3}'
    submission = slurm.prepare(slurm.SubmitRequest("70b", vllm=("-sc", draft)))
    assert submission.fits
    assert "does not count --speculative-config: The plan has no formulas" in submission.reasons[1]


def test_flags_of_the_site_are_planned_with_before_the_persons(
    workshop_home, tmp_path, monkeypatch
):
    """The script gives vLLM its own, the site's and the person's flags, and later ones count."""
    (tmp_path / "site.sh").write_text(
        "site_serve_args=(--kv-cache-dtype fp8 --max-model-len 8192)\n"
    )
    monkeypatch.setenv("WORKSHOP_SITE", str(tmp_path / "site.sh"))
    ours, own = (
        slurm.prepare(slurm.SubmitRequest("70b", vllm=flags))
        for flags in ((), ("--max-model-len", "16K"))
    )
    reasons = " ".join(ours.reasons)
    assert "939,136 tokens, or 114.64 requests of 8,192" in reasons
    assert "--kv-cache-dtype fp8" not in " ".join(ours.advice)
    assert "939,136 tokens, or 57.32 requests of 16,384" in " ".join(own.reasons)
    assert "more_flags" not in ours.settings, "the job reads the site's file itself"


def test_a_longest_request_is_read_as_plan_and_vllm_read_it(workshop_home, subtests):
    for length, tokens in [("16K", "16384"), ("16k", "16000"), ("16,384", "16384")]:
        with subtests.test(str(length)):
            done = CliRunner().invoke(
                command, ["submit", "70b", "--dry-run", "--json", "--max-model-len", length]
            )
            assert json.loads(done.stdout)["settings"]["max_model_len"] == tokens


def test_dry_run_shows_reasons_command_and_script_and_submits_nothing(
    workshop_home, bin_folder, tmp_path
):
    stand_in(bin_folder, "sbatch", f"touch {tmp_path}/submitted; echo 1")
    done = CliRunner().invoke(command, ["submit", "70b", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert (
        "TP 4 × PP 1" in done.output
        and "sbatch" in done.output
        and "#SBATCH --gpus-per-node=4" in done.output
    )
    assert not (tmp_path / "submitted").exists()


def test_plan_that_does_not_fit_is_not_submitted(workshop_home, bin_folder, tmp_path):
    stand_in(bin_folder, "sbatch", f"touch {tmp_path}/submitted; echo 1")
    submission = slurm.prepare(slurm.SubmitRequest("70b", gpus_per_node=1))
    assert not submission.fits
    with pytest.raises(
        WorkshopError, match=r"does not fit: .* 1 × h100, .* missing before the first token\. "
    ) as error:
        slurm.submit(submission)
    assert error.value.remedy and not (tmp_path / "submitted").exists()
    assert (
        CliRunner()
        .invoke(command, ["submit", "70b", "--gpus-per-node", "1", "--dry-run"])
        .exit_code
        == 1
    )


def test_wrong_use_is_one_sentence(workshop_home, subtests):
    for request_ in [
        slurm.SubmitRequest("no-such-model"),
        slurm.SubmitRequest("70b", nodes=0),
        slurm.SubmitRequest("70b", time="soon"),
        slurm.SubmitRequest("/nowhere"),
    ]:
        with subtests.test(str(request_)):
            with pytest.raises(BadInput) as error:
                slurm.prepare(request_)
            assert error.value.remedy


def test_refusal_of_sbatch_names_the_line_to_edit(workshop_home, bin_folder, subtests):
    for message, remedy in {
        "Invalid account or account/partition combination specified": "SBATCH_ACCOUNT",
        "something new": "workshop doctor",
    }.items():
        stand_in(bin_folder, "sbatch", f'echo "sbatch: error: {message}" >&2; exit 1')
        with subtests.test(message), pytest.raises(WorkshopError, match=message) as error:
            slurm.submit(slurm.prepare(slurm.SubmitRequest("70b", anyway=True)))
        assert remedy in error.value.remedy, message


def test_mistake_in_the_site_file_is_shown_in_bashs_words(workshop_home, tmp_path, monkeypatch):
    (tmp_path / "site.sh").write_text("export A=(\n")
    monkeypatch.setenv("WORKSHOP_SITE", str(tmp_path / "site.sh"))
    with pytest.raises(
        WorkshopError, match=r"bash could not source .*site\.sh: line 1: unexpected"
    ) as error:
        slurm.prepare(slurm.SubmitRequest("70b"))
    assert "slurm/sites" in error.value.remedy
    # as on Windows, or in a browser: the file is not to blame
    with monkeypatch.context() as without_bash:
        without_bash.setenv("PATH", str(tmp_path))
        with pytest.raises(
            WorkshopError, match=r"bash could not source .*site\.sh: it cannot be run"
        ):
            slurm.prepare(slurm.SubmitRequest("70b"))
    (tmp_path / "site.sh").write_text("export A=1\r\n", newline="")
    with pytest.raises(WorkshopError, match="has the line ends of Windows"):
        slurm.prepare(slurm.SubmitRequest("70b"))


def test_weights_that_vllm_cannot_make_are_refused_before_the_job(workshop_home):
    with pytest.raises(BadInput, match="cannot make awq weights"):
        slurm.prepare(slurm.SubmitRequest("llama-3.1-8b", vllm=("--quantization", "awq")))


def test_the_site_says_which_gpus_and_how_many(workshop_home, tmp_path, monkeypatch, subtests):
    for setting, options, present, absent in [
        ("SBATCH_GPUS_PER_NODE=a100:8", {}, "--gpus-per-node=a100:8", "=4"),
        ("SBATCH_GPUS_PER_NODE=a100:8", {"gpus_per_node": 4}, "--gpus-per-node=a100:4", "--gres"),
        ("WORKSHOP_GPU=h200 SBATCH_GPUS_PER_NODE=8", {}, "8 × h200", "--gres"),
        ("SBATCH_GRES=gpu:h100:4", {"gpus_per_node": 2}, "--gres=gpu:h100:2", "--gpus-per-node"),
        ("SBATCH_GRES=gpu:a100:4,lscratch:100", {}, "4 × a100", "--gpus-per-node"),
        (
            "SBATCH_GRES=lscratch:100,gpu:a100:4",
            {"gpus_per_node": 2},
            "--gres=lscratch:100,gpu:a100:2",
            "--gpus",
        ),
        ("SBATCH_GRES=lscratch:100", {"gpus_per_node": 2}, "--gpus-per-node=2", "--gres=gpu"),
        ("WORKSHOP_CPUS_PER_GPU=12", {}, "--cpus-per-task=48", "--cpus-per-task=16"),
    ]:
        with subtests.test(setting):
            (tmp_path / "site.sh").write_text(f"export {setting}\n")
            monkeypatch.setenv("WORKSHOP_SITE", str(tmp_path / "site.sh"))
            made = slurm.prepare(slurm.SubmitRequest("70b", **options))
            head = " ".join(re.findall("#SBATCH (.*)", made.script.read_text()))
            assert present in made.reasons[0] + head and absent not in head


def test_a_type_of_slurms_is_the_catalogs_gpu():
    for kind, gpu in [
        ("nvidia_a100-sxm4-80gb", "a100-80gb"),
        ("nvidia_h100_80gb_hbm3", "h100"),
        ("nvidia_l40s", "l40s"),
        ("h100_nvl", "h100-nvl"),
        ("a100-40gb-mig-3g.20gb", "a100-40gb-mig-3g.20gb"),
    ]:
        assert site.known_gpu(kind) == gpu, kind


def test_an_unknown_type_is_refused_unless_the_gpu_is_said(workshop_home, tmp_path, monkeypatch):
    (tmp_path / "site.sh").write_text("export SBATCH_GPUS_PER_NODE=k80:4\n")
    monkeypatch.setenv("WORKSHOP_SITE", str(tmp_path / "site.sh"))
    with pytest.raises(BadInput, match=r"'k80' is not in the catalog.*WORKSHOP_GPU"):
        slurm.prepare(slurm.SubmitRequest("70b"))
    assert "4 × a100" in slurm.prepare(slurm.SubmitRequest("70b", gpu="a100-80gb")).reasons[0]


def test_processors_and_memory_follow_from_the_gpus_unless_the_site_says_them(
    workshop_home, tmp_path, monkeypatch
):
    four = " ".join(slurm.prepare(slurm.SubmitRequest("llama-3.1-70b", nodes=1)).arguments)
    assert "--gpus-per-node=4" in four and "--cpus-per-task=20" in four and "--mem=208G" in four
    (tmp_path / "site.sh").write_text("export WORKSHOP_CPUS_PER_GPU=12 WORKSHOP_GIB_PER_GPU=100\n")
    monkeypatch.setenv("WORKSHOP_SITE", str(tmp_path / "site.sh"))
    arguments = " ".join(slurm.prepare(slurm.SubmitRequest("llama-3.1-70b", nodes=1)).arguments)
    assert "--cpus-per-task=48" in arguments and "--mem=400G" in arguments
