"""slurm submit and status against flags that the job sets, names that are none, and a cluster that talks nonsense."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stand_ins import downloaded, stand_in

from workshop.cli import group
from workshop.cli.serve.slurm import command
from workshop.errors import BadInput, WorkshopError
from workshop.servers import flags
from workshop.servers.follow import Follower
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm import status as slurm_status
from workshop.servers.slurm.job import job_start
from workshop.servers.slurm.submit import submission as slurm


@pytest.fixture
def sbatch(workshop_home, tmp_path, bin_folder, monkeypatch) -> Path:
    """A stand-in of sbatch at the front of PATH that leaves a file when it is called."""
    monkeypatch.setenv("WORKSHOP_MODELS", str(downloaded(tmp_path / "models")))
    stand_in(bin_folder, "sbatch", f"touch {tmp_path}/submitted; echo 77")
    return tmp_path / "submitted"


def submit(*options: str) -> Exception | None:
    return CliRunner().invoke(command, ["submit", "70b", *options]).exception


OF_THE_JOB = {  # what the sentence says → flags, of which the first goes through `workshop slurm submit`
    "quotation mark": ('--a "b', "--a \\"),
    "follows from the GPUs": (
        "--tensor-parallel-size 99",
        "--tensor-par 99",
        "-tp 99",
        "--pipeline-parallel-size 2",
        "--data-parallel-size 2",
    ),
    "address and ports": ("--uds x", "--port 1", "--seed 1 --port=1"),
    "each of its nodes": (
        "--headless",
        "-n2",
        "--node-rank 1",
        "--master-addr x",
        "--distributed-executor-backend ray",
    ),
    "the record says": ("--served-model-name x",),
    "the job's own": ("--middleware x",),
    "is no flag": ("llama",),
    "line break": ("--seed '1\n--port 1'",),
}


def test_flags_that_the_job_sets_are_refused_before_sbatch(sbatch, subtests):
    for message, texts in OF_THE_JOB.items():
        for text in texts:
            with subtests.test(text):
                with pytest.raises(BadInput) as caught:
                    flags.check_for_job(flags.split([text]))
                assert message in caught.value.message and caught.value.remedy
        error = submit("--vllm", texts[0])
        assert isinstance(error, BadInput) and message in error.message, error
        assert not sbatch.exists()


def test_flags_in_a_file_count_as_well(sbatch, tmp_path):
    (tmp_path / "flags.yaml").write_text("tensor-parallel-size: 99\n")
    error = submit("--vllm", f"--config {tmp_path}/flags.yaml")
    assert (
        isinstance(error, BadInput)
        and "tensor-parallel-size" in error.message
        and not sbatch.exists()
    )


def test_flags_of_another_release_are_sent_on_demand(sbatch):
    assert submit("--vllm", "--max-modellen 100", "--anyway") is None
    assert sbatch.exists()


def test_flags_of_the_site_are_checked_as_well(sbatch, tmp_path, monkeypatch):
    site = tmp_path / "site.sh"
    site.write_text("site_serve_args=(--max-modellen 100)\n")
    monkeypatch.setenv("WORKSHOP_SITE", str(site))
    error = submit()
    assert isinstance(error, BadInput) and error.message.startswith("site_serve_args: vLLM")
    assert not sbatch.exists() and submit("--anyway") is None


def test_other_flags_reach_the_job(sbatch):
    assert (
        submit(
            "--vllm", "--seed 1 --max-num-seqs=4", "--vllm", '-O3 --hf-overrides \'{"a": "b c"}\''
        )
        is None
    )
    assert sbatch.exists()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.sampled_from("-tpndr=' \"\\ax1.\n"), max_size=12), max_size=4))
@example(["'x"])
@example(["-"])
@example(["--"])
@example(["--="])
def test_any_flags_are_taken_or_refused(texts):
    try:
        flags.check_for_job(flags.split(texts))
    except BadInput as error:
        assert error.message.isprintable() and error.remedy


def test_names_numbers_and_models_that_are_none_are_refused_before_sbatch(sbatch, subtests):
    for arguments in [
        ("70b", "--name", "$(id)"),
        ("70b", "--time", "9" * 5000),
        ("70b", "--nodes", "0"),
        ("70b", "--gpu", "\x1b[31m"),
        ("~nobody-of-that-name/m",),
        ("a\nb",),
    ]:
        with subtests.test(str(arguments)):
            error = CliRunner().invoke(command, ["submit", *arguments]).exception
            if isinstance(error, BadInput):
                assert error.message.isprintable()
            else:
                assert error.code == 2, error
            assert not sbatch.exists()


def test_sbatch_that_answers_nonsense_is_one_sentence(sbatch, subtests):
    for answer in [
        "true",
        "echo Submitted batch job 77",
        r"printf '\377\376'",
        "kill -9 $$",
        "echo x >&2; false",
    ]:
        with subtests.test(str(answer)):
            stand_in(sbatch.parent / "bin", "sbatch", answer)
            error = submit()
            assert (
                isinstance(error, WorkshopError) and error.message.isprintable() and error.remedy
            ), error


def test_sbatch_that_does_not_answer_is_one_sentence(sbatch, monkeypatch):
    stand_in(sbatch.parent / "bin", "sbatch", "exec sleep 60")
    monkeypatch.setattr(slurm, "SBATCH_TIMEOUT_S", 0.2)
    assert "does not answer" in submit().message


TALKERS = (
    ("squeue", "|||||||"),
    ("squeue", "\x1b[31m|\x1b[2J|\x1b]0;\x07|a|b|c|d|e"),
    ("squeue", "JobState="),
    ("scontrol", "7|n|RUNNING|None|n1|1|1|/w|more"),
    ("sacct", "7|n|RUNNING|None|n1|1|1|/w|more"),
)


def test_odd_words_of_the_queue_are_a_status_or_one_sentence(
    sbatch, monkeypatch, tmp_path, subtests
):
    for talker, answer in TALKERS:
        with subtests.test(talker):
            monkeypatch.chdir(tmp_path)
            (tmp_path / "answer").write_bytes(answer.encode() + b"\xff\n")
            for name in ("squeue", "scontrol", "sacct"):
                stand_in(
                    sbatch.parent / "bin",
                    name,
                    f"cat {tmp_path}/answer" if name == talker else "true",
                )
            for arguments in (["servers", "7"], ["servers", "7", "--json"]):
                done = CliRunner().invoke(group, arguments)
                assert done.exit_code in (0, 1) and isinstance(
                    done.exception, SystemExit | WorkshopError | None
                )
                assert "--json" in arguments or "\x1b" not in done.output


def test_what_is_no_job_is_one_sentence(workshop_home, subtests):
    for job in ["²", "0", "-1", "7;id", "../x", "9" * 5000, "\x1b[31m", ""]:
        with subtests.test(str(job)):
            with pytest.raises(WorkshopError) as caught:
                slurm_status.job_of(job)
            assert caught.value.message.isprintable()
    assert slurm_status.job_of("abc") is None


def test_files_of_a_job_may_be_folders_pipes_and_endless_lines(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    long = tmp_path / "long"
    long.write_bytes(b"x" * 1_000_000)
    follower = Follower([tmp_path / "folder", tmp_path / "pipe", long, tmp_path / "none"])
    assert follower.read() == [] and len(follower._rest[long]) < 1_000_000


def test_budget_that_is_no_number_is_one_sentence(tmp_path, monkeypatch, subtests):
    for name, value in [
        ("WORKSHOP_LOAD_GB_PER_S", "many"),
        ("WORKSHOP_LOAD_GB_PER_S", "nan"),
        ("WORKSHOP_LOAD_GB_PER_S", "inf"),
        ("WORKSHOP_START_ALLOWANCE_S", "0"),
        ("WORKSHOP_START_ALLOWANCE_S", "-1"),
    ]:
        with subtests.test(name), monkeypatch.context() as environment:
            environment.setenv(name, value)
            with pytest.raises(WorkshopError, match=name):
                job_start.budget_s(str(tmp_path))


def test_job_whose_state_is_empty_is_unknown(sbatch):
    stand_in(sbatch.parent / "bin", "squeue", "true")
    stand_in(sbatch.parent / "bin", "scontrol", "true")
    stand_in(sbatch.parent / "bin", "sacct", "echo '7|n||None|n1|1|1|/w'")
    assert slurm_queue.find("7").state == "UNKNOWN"
