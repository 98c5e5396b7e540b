"""sbatch's options as sbatch reads them, what a site changes in the scripts, and sbatch's reasons, whole."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from inference_planner.answer.parallelism import plan
from stand_ins import stand_in

from workshop.cli.serve.slurm import command
from workshop.errors import BadInput, WorkshopError
from workshop.servers.slurm import doctor, options, site
from workshop.servers.slurm.submit import plain
from workshop.servers.slurm.submit import submission as slurm

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def models(monkeypatch, tmp_path, workshop_home):
    monkeypatch.setenv("WORKSHOP_MODELS", str(tmp_path / "models"))
    monkeypatch.delenv("WORKSHOP_SITE", raising=False)
    monkeypatch.chdir(tmp_path)


def use_site(folder: Path, monkeypatch, lines: str) -> None:
    (folder / "site.sh").write_text(lines)
    monkeypatch.setenv("WORKSHOP_SITE", str(folder / "site.sh"))


# --- options


def test_options_are_read_as_sbatch_reads_them():
    for arguments, expected in [
        (["-AN25"], [("account", "N25")]),
        (["-A", "N25", "-pgpu"], [("account", "N25"), ("partition", "gpu")]),
        (["-HQN2"], [("hold", None), ("quiet", None), ("nodes", "2")]),
        (["-wn1,n2", "-x", "n9"], [("nodelist", "n1,n2"), ("exclude", "n9")]),
        (["-k", "-koff"], [("no-kill", None), ("no-kill", "off")]),
        (["--part=gpu", "--job-n", "a b"], [("partition", "gpu"), ("job-name", "a b")]),
        (["--mem=3G"], [("mem", "3G")]),
        (
            ["--exclusive", "--nice", "--nice=5"],
            [("exclusive", None), ("nice", None), ("nice", "5")],
        ),
        (["--comment=--nodes=3"], [("comment", "--nodes=3")]),
        (["--mail-type=END", "--mail-type=FAIL"], [("mail-type", "END"), ("mail-type", "FAIL")]),
        (["-J", ""], [("job-name", "")]),
    ]:
        parsed, rest = options.read(arguments)
        assert [(option.name, option.value) for option in parsed] == expected and rest == [], (
            arguments
        )


def test_the_table_knows_every_option_of_the_manual():
    """`man sbatch`, where it is here: 22.05 has 95 of them."""
    done = subprocess.run(
        ["man", "sbatch"], capture_output=True, text=True, env={**os.environ, "MANWIDTH": "120"}
    )
    lines = re.findall(r"^       (?:-(\w), +)?--([\w-]+)(\[?)", done.stdout, re.MULTILINE)
    for short, long, optional in lines:
        assert long in options.KNOWN, long
        assert not short or options.SHORT[short] == long
        # the manual's synopsis of these: the value may not be left out
        if optional and long not in ("export", "wrap"):
            assert long in options.VALUE_IN_THE_SAME_WORD


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("-=ANHk 'mexportnodes2\n\0", max_size=9), max_size=5))
def test_any_words_are_options_or_none_or_refused_and_no_value_is_lost(arguments):
    with suppress(BadInput):
        parsed, rest = options.read(arguments)
        assert set(rest) <= set(arguments) and len(parsed) + len(rest) >= bool(arguments)
        assert all((option.value or "") in "".join(arguments) for option in parsed)
        assert options.read(options.written(parsed)) == (parsed, [])
    with suppress(BadInput):
        options.change_script(
            "#SBATCH " + " ".join(arguments), lambda name, value: "e" in name, ["--mem=0"]
        )


def test_what_sbatch_would_refuse_is_refused(subtests):
    for arguments, message in [
        (["--gpus-per", "3"], "ambiguous option: --gpus-per"),
        (["--comment", "--nodes=3"], "--comment: expected one argument"),
        (["--hold=1"], "ignored explicit argument"),
    ]:
        with subtests.test(str(arguments)), pytest.raises(BadInput, match=message):
            options.read(arguments)


def test_an_option_of_a_plugin_goes_to_sbatch_as_it_is():
    arguments = submitted("--of-a-plugin=on", "70b", "-p", "gpu")["arguments"]
    assert arguments[-2:] == ["--partition=gpu", "--of-a-plugin=on"]


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_the_help_is_ours(flag):
    done = CliRunner().invoke(command, ["submit", flag])
    assert done.exit_code == 0 and "Submit a server of MODEL" in done.output


def submitted(*arguments: str) -> dict:
    done = CliRunner().invoke(command, ["submit", *arguments, "--dry-run", "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def test_an_account_is_no_number_of_nodes(subtests):
    for arguments in [
        ["70b", "-AN25"],
        ["-AN25", "70b"],
        ["-A", "N25", "70b"],
        ["70b", "-HAN25"],
        ["70b", "--account", "N25"],
    ]:
        with subtests.test(str(arguments)):
            facts = submitted(*arguments)
            assert not [
                argument for argument in facts["arguments"] if argument.startswith("--nodes")
            ]
            assert "N25" in "".join(facts["arguments"]) and "TP 4 × PP 1" in facts["reasons"][0]


def test_nodes_are_planned_with_in_every_spelling(subtests):
    for arguments in [["-N4"], ["--nodes", "4"], ["--nodes=4"], ["-QHN", "4"]]:
        with subtests.test(str(arguments)):
            for line in (["405b-fp8", *arguments], [*arguments, "405b-fp8"]):
                facts = submitted(*line)
                assert (
                    "4 nodes, 16 × h100" in facts["reasons"][0]
                    and "--nodes=4" in facts["arguments"]
                )
                assert not [
                    argument for argument in facts["arguments"] if argument.startswith("-N")
                ]


def test_a_shortened_option_of_ours_is_ours():
    assert "--gpus-per-node=8" in submitted("70b", "--gpus-per-n=8")["arguments"]


def test_an_option_s_value_is_no_stray_word_and_a_stray_word_is_refused():
    facts = submitted("70b", "-p", "gpu", "--mail-type", "END", "-C", "h100&ib", "--comment", "a b")
    assert facts["arguments"][-4:] == [
        "--partition=gpu",
        "--mail-type=END",
        "--constraint=h100&ib",
        "--comment=a b",
    ]
    done = CliRunner().invoke(command, ["submit", "70b", "-p", "gpu", "stray"])
    assert (
        isinstance(done.exception, BadInput)
        and "'stray' is no option of sbatch" in done.exception.message
    )
    assert CliRunner().invoke(command, ["submit", "-p", "gpu"]).exit_code == 2


def test_what_the_job_would_stumble_over_is_refused_in_every_spelling(subtests):
    for sbatch_args in [("-Ja/b",), ("-HJa b",), ("--job=a b",), ("-J", "")]:
        with subtests.test(str(sbatch_args)), pytest.raises(BadInput):
            slurm.prepare(slurm.SubmitRequest("70b", sbatch_args=sbatch_args))


# --- what a site changes


def test_a_site_takes_any_line_away_or_replaces_it(tmp_path, monkeypatch, bin_folder, subtests):
    for array, gone, there in [
        ("(--mem=)", ["--mem"], []),
        ("(--mem=0)", ["--mem=200G"], ["--mem=0"]),
        ("(--cpus-per-t=9)", ["--cpus-per-t=9"], ["--cpus-per-task=9"]),
        ("(--mem-per-cpu=4G)", ["--mem="], ["--mem-per-cpu=4G"]),
        (
            "(--cpus-per-task= --mem= --gpus-per-node=)",
            ["--cpus-per-task", "--mem", "--gpus-per-node"],
            [],
        ),
        ("(--gpus-per-task=h100:4)", ["--gpus-per-node"], ["--gpus-per-task=h100:4"]),
        ("(--cpus-per-gpu=8)", ["--cpus-per-task"], ["--cpus-per-gpu=8"]),
        ("(--gres=lscratch:100)", ["--gres=gpu"], ["--gres=lscratch:100", "--gpus-per-node=4"]),
        (
            "(--signal= --ntasks-per-node= --exclusive)",
            ["--signal", "--ntasks-per-node"],
            ["--exclusive"],
        ),
        ("('--comment=a b')", [], ["'--comment=a b'"]),
        ("(--time=01:00:00)", ["--time=08"], ["--time=01:00:00"]),
    ]:
        with subtests.test(str(array)):
            use_site(
                tmp_path, monkeypatch, f"site_sbatch={array}\nexport WORKSHOP_GPUS_PER_NODE=4\n"
            )
            stand_in(
                bin_folder,
                "sbatch",
                f'printf "%s\\n" "$@" >{tmp_path}/words; cp "${{@: -1}}" {tmp_path}/seen; echo 77',
            )
            assert (
                slurm.submit(slurm.prepare(slurm.SubmitRequest("70b", anyway=True))).job_id == "77"
            )
            printed = (tmp_path / "seen").read_text()
            lines = [line for line in printed.splitlines() if line.startswith("#SBATCH")]
            arguments = (tmp_path / "words").read_text()
            for option in gone:
                assert option not in "\n".join(lines) and option not in arguments
            for option in there:
                assert [line for line in lines if line.split("#SBATCH ")[1].startswith(option)], (
                    printed
                )
            assert printed.splitlines()[0] == "#!/bin/bash"
            original = (ROOT / "slurm/70b.sbatch").read_text().splitlines()
            ours = ("#SBATCH", "# Made of", "slurm_folder=", "model=", "min_gpu_gib=")
            body = [line for line in original if not line.startswith(ours)]
            assert [line for line in printed.splitlines() if not line.startswith(ours)] == body


def test_a_plan_passes_no_option_that_the_site_takes_away(tmp_path, monkeypatch, subtests):
    for array in ["(--mem=)", "(--cpus-per-task= --mem= --exclusive=)"]:
        with subtests.test(str(array)):
            use_site(tmp_path, monkeypatch, f"site_sbatch={array}\n")
            arguments = slurm.prepare(slurm.SubmitRequest("llama-3.1-405b")).arguments
            for removed in re.findall(r"--[\w-]+", array):
                assert not [argument for argument in arguments if argument.startswith(removed)], (
                    arguments
                )
            assert "--job-name=llama-3.1-405b" in arguments


def test_a_person_s_own_word_counts_before_the_site_s(tmp_path, monkeypatch):
    use_site(tmp_path, monkeypatch, "site_sbatch=(--time= --mem=)\n")
    made = slurm.prepare(slurm.SubmitRequest("70b", time="01:00:00", sbatch_args=("--mem=9G",)))
    assert "--time=01:00:00" in made.arguments and "--mem=9G" in made.arguments


def test_an_option_of_the_person_s_stands_in_for_ours(subtests):
    for option, ours in [
        ("--mem-per-gpu=40G", "--mem="),
        ("--cpus-per-gpu=4", "--cpus-per-task"),
        ("--gres=gpu:1", "--gpus-per-node"),
        ("-G1", "--gpus-per-node"),
        ("-Jown", "--job-name"),
    ]:
        with subtests.test(option):
            arguments = slurm.prepare(
                slurm.SubmitRequest("llama-3.1-8b", sbatch_args=(option,), anyway=True)
            ).arguments
            assert arguments[-1] == option
            assert not [argument for argument in arguments[:-1] if argument.startswith(ours)]
            assert [argument for argument in arguments if argument.startswith("--nodes=")], (
                "the rest is the plan's"
            )


def test_a_site_whose_nodes_are_given_whole_plans_with_all_their_gpus(tmp_path, monkeypatch):
    """slurm/sites/whole-nodes.sh, without its modules."""
    use_site(tmp_path, monkeypatch, (ROOT / "slurm/sites/whole-nodes.sh").read_text())
    for what in ("70b", "llama-3.1-8b"):
        made = slurm.prepare(slurm.SubmitRequest(what))
        assert "1 node, 4 × h100" in made.reasons[0]
        told = " ".join([*made.arguments, *re.findall("#SBATCH (.*)", made.script.read_text())])
        assert not re.search(r"--(mem|gpus|gres|cpus)", told), told
        assert "--exclusive" in told and "--mail-type=FAIL" in told
    with pytest.raises(BadInput, match="--gpus-per-node 2 cannot be asked for"):
        slurm.prepare(slurm.SubmitRequest("70b", gpus_per_node=2))


def test_a_change_that_is_none_is_one_sentence(tmp_path, monkeypatch, subtests):
    for array in ("(mem)", "(--mme=)", "(-n4)", "(--mem 3G)"):
        use_site(tmp_path, monkeypatch, f"site_sbatch={array}\n")
        with subtests.test(str(array)), pytest.raises(BadInput, match="site_sbatch") as error:
            slurm.prepare(slurm.SubmitRequest("70b"))
        assert error.value.remedy, array
    use_site(tmp_path, monkeypatch, "site_sbatch=('')\n")
    head = options.in_script((ROOT / "slurm/70b.sbatch").read_text())
    assert options.in_script(slurm.prepare(slurm.SubmitRequest("70b")).script.read_text()) == head


def test_a_script_of_one_s_own_is_read_as_sbatch_reads_it():
    text = "#!/bin/bash\n#SBATCH -p gpu --mem 4G  # why\n#SBATCH -N2 -Aab\n#SBATCH -N2 --of-a-plugin=on\n#SBATCH 'x\necho '#SBATCH --mem=1'\n"
    changed = options.change_script(
        text, lambda name, value: name in ("mem", "nodes", "account"), ["--mem=0"]
    )
    assert (
        changed
        == "#!/bin/bash\n#SBATCH --partition=gpu\n#SBATCH --of-a-plugin=on\n#SBATCH 'x\n#SBATCH --mem=0\necho '#SBATCH --mem=1'\n"
    )


def test_the_head_of_a_script_is_as_the_site_asks(tmp_path, monkeypatch, subtests):
    two_nodes = {"gpus_per_node": 4, "nodes": 2, "pipeline_parallel_size": 2}
    planned = plan("meta-llama/Llama-3.1-70B-Instruct", gpu="h100", **two_nodes)
    for lines, there, gone in [
        ("export SBATCH_PARTITION=gpu SBATCH_ACCOUNT=lab", "partition=gpu account=lab", "qos"),
        ("export SBATCH_RESERVATION=course", "reservation=course gpus-per-node=4", "partition"),
        ("export SBATCH_GRES=gpu:h100:8", "gres=gpu:h100:4", "gpus-per-node"),
        ("site_sbatch=(--mem= --gpus-per-node= --exclusive)", "nodes=2 exclusive", "mem gpus"),
        ("site_sbatch=(--gpus-per-task=h100:4)", "gpus-per-task=h100:4", "gpus-per-node"),
        ("site_sbatch=(--mem=0)", "mem=0", "mem=200G"),
        ("export SBATCH_TIMELIMIT=01:00:00", "nodes=2 time=01:00:00", "time=08.*"),
    ]:
        with subtests.test(str(lines)):
            use_site(tmp_path, monkeypatch, f"{lines}\n")
            text = plain.render(planned, site=site.environment())
            for option in there.split():
                assert f"#SBATCH --{option}\n" in text, text
            for option in gone.split():
                assert not re.search(rf"^#SBATCH --{option}(=|$)", text, flags=re.MULTILINE), text


# --- how many GPUs

GPUS = [
    ("4", "", 4),
    ("h100:4", "h100", 4),
    ("h100", "h100", 1),
    ("gpu", "", 1),
    ("gpu:2", "", 2),
    ("gpu:h100", "h100", 1),
    ("gpu:h100:8", "h100", 8),
    ("gpu:h100(S:0)", "h100", 1),
    ("gpu:h100:4(S:0-1)", "h100", 4),
    ("gpu:h100:4(S:0,1)", "h100", 4),
    ("gres:gpu:2", "", 2),
    ("gres/gpu=2", "", 2),
    ("gpu:nvidia_h100_80gb_hbm3:04", "nvidia_h100_80gb_hbm3", 4),
    ("0", "", 0),
    ("none", "", 0),
    ("", "", 0),
]


def test_gpus_are_counted_as_slurm_writes_them():
    for gpus, kind, count in GPUS:
        assert site.typed_count(gpus) == (kind, count), gpus
        if gpus.startswith("gpu"):
            assert site.gpus({"SBATCH_GRES": f"lscratch:9,{gpus}"}) == (kind, count), gpus
        assert site.gpus({"SBATCH_GPUS_PER_NODE": gpus}) == (kind, count), gpus


def test_a_job_counts_its_gpus_as_slurm_writes_them(tmp_path, monkeypatch):
    (tmp_path / "site.sh").write_text("")
    for name, value in {"SUBMIT_DIR": tmp_path, "JOB_ID": 7, "JOB_NAME": "x"}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.setenv("WORKSHOP_SITE", str(tmp_path / "site.sh"))
    monkeypatch.delenv("WORKSHOP_GPUS_PER_NODE", raising=False)
    counts = {**{gpus: count for gpus, _, count in GPUS}, "h100:2,a100:2": 4}
    script = (
        'set -euo pipefail; slurm_folder=$1; shift; for SLURM_GPUS_PER_NODE in "$@"; do '
        '(source "$slurm_folder/job.sh"; echo "$SLURM_GPUS_PER_NODE is $gpus_per_node"); done'
    )
    command = ["bash", "-c", script, "bash", str(ROOT / "slurm"), *counts]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{gpus} is {n}" for gpus, n in counts.items()], done.stderr


def test_a_kind_without_a_number_is_one_gpu_of_it(tmp_path, monkeypatch):
    for line in ("SBATCH_GRES=gpu:h200", "SBATCH_GPUS_PER_NODE=h200"):
        use_site(tmp_path, monkeypatch, f"export {line}\n")
        assert "1 × h200" in slurm.prepare(slurm.SubmitRequest("llama-3.1-8b")).reasons[0]


# --- sbatch's reasons

WORDS = {
    "a site's filter": (
        "echo 'sbatch: error: You must request GPUs as --gpus-per-node=h100:N' >&2",
        1,
    ),
    "both streams": (
        "echo 'Checking allocation (ABC)...FAILED'; echo 'sbatch: error: Unspecified error' >&2",
        1,
    ),
    "standard output alone": (
        "printf 'Welcome\\n\\n--> Verifying queue...OK\\n--> Allocation...FAILED\\n'",
        1,
    ),
    "many lines": (
        'for n in 1 2 3 4 5 6 7 8 9; do echo "line $n of the partition\'s account" >&2; done',
        3,
    ),
}


def test_every_line_of_sbatch_is_shown(bin_folder, subtests):
    for case in WORDS:
        with subtests.test(str(case)):
            script, code = WORDS[case]
            stand_in(bin_folder, "sbatch", f"{script}; exit {code}")
            printed = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
            with pytest.raises(WorkshopError) as error:
                slurm.submit(slurm.prepare(slurm.SubmitRequest("70b", anyway=True)))
            check = doctor._accepted(site.environment())
            for line in (printed.stdout + printed.stderr).splitlines():
                assert line in error.value.message and line in check.found
            assert "workshop doctor" not in check.remedy and "site_sbatch" in check.remedy
            assert "SBATCH_" not in error.value.remedy, (
                "a cluster's own words are no words of SLURM's"
            )


def test_slurms_own_refusals_name_the_line_to_edit():
    for message, remedy in [
        (
            "Batch job submission failed: Invalid generic resource (gres) specification",
            "site_sbatch=(--gpus-per-node=)",
        ),
        ("Batch job submission failed: Invalid feature specification", "SBATCH_CONSTRAINT"),
        ("Memory specification can not be satisfied", "site_sbatch=(--mem=)"),
        (
            "--cpus-per-gpu is mutually exclusive with --cpus-per-task and SLURM_CPUS_PER_TASK.",
            "site_sbatch",
        ),
        ("Batch job submission failed: Invalid qos specification", "SBATCH_QOS"),
        ("invalid partition specified: gpuu", "SBATCH_PARTITION"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "SBATCH_QOS",
        ),
        ("Requested node configuration is not available", "sinfo"),
    ]:
        assert remedy in site.refusal_remedy(f"sbatch: error: {message}"), message


def test_lines_around_the_number_of_a_job_do_no_harm(bin_folder):
    stand_in(
        bin_folder,
        "sbatch",
        "echo 'sbatch: warning: slow' >&2; echo Welcome; echo 4711; echo 'Good luck'",
    )
    assert slurm.submit(slurm.prepare(slurm.SubmitRequest("70b", anyway=True))).job_id == "4711"
