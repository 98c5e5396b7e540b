"""Two clusters and one home: a server's job is asked of its own cluster, and what is not known is not gone."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from stand_ins import downloaded, stand_in

from workshop import timestamps
from workshop.cli import group
from workshop.client import reach
from workshop.errors import WorkshopError
from workshop.servers import hang, records
from workshop.servers.local import stopping
from workshop.servers.records import ServerRecord
from workshop.servers.slurm import doctor
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm import status as slurm_status
from workshop.servers.slurm.job import job_start

KEY = "k" * 32
LOG = "/work/70b_4711/output_4711.out"
RUNNING = "4711|70b|RUNNING|None|n1|1:02|7:58:58|/work"
# Which cluster a command asks: --clusters or -M, then SLURM_CLUSTERS, then the one whose login node this is.
ASKED = """
cluster=${SLURM_CLUSTERS:-beta}
while [ $# != 0 ]; do
    case $1 in
    --clusters=*) cluster=${1#*=} ;;
    -M | --clusters) cluster=$2; shift ;;
    esac
    words+=("$1"); shift
done
echo "${0##*/} $cluster ${words[*]}" >>"$ASKED"
"""
UNKNOWN = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'
KILL_ERROR = (
    'echo "scancel: error: Kill job error on job id 4711: Invalid job id specified" >&2; exit 1'
)
DOWN = (
    'echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1'
)


@pytest.fixture
def clusters(bin_folder, tmp_path, monkeypatch, workshop_home) -> Path:
    """A login node of the cluster beta; job 4711 runs on alpha. Returns the file with what was asked."""
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    ready = hang.ServerState(hang.READY)  # the records' servers are on other machines
    monkeypatch.setattr(hang, "look", lambda *arguments, **options: ready)
    monkeypatch.delenv("SLURM_CLUSTERS", raising=False)
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    answer(bin_folder, "squeue", f'echo "CLUSTER: alpha"; echo "{RUNNING}"', UNKNOWN)
    answer(
        bin_folder,
        "scancel",
        f'touch {tmp_path}/cancelled; rm -f "$WORKSHOP_HOME/servers/70b.json"',
        KILL_ERROR,
    )
    answer(bin_folder, "sacct", "echo", "echo")
    stand_in(
        bin_folder, "scontrol", 'printf "Configuration data\\nClusterName             = beta\\n"'
    )
    monkeypatch.setattr(stopping, "STOP_GRACE_S", 0.5)
    return tmp_path / "asked"


def answer(folder: Path, name: str, alpha: str, beta: str) -> None:
    """Let a command answer for each of the two clusters."""
    stand_in(folder, name, f'{ASKED}\nif [ "$cluster" = alpha ]; then\n{alpha}\nelse\n{beta}\nfi')


def write(**changes: str) -> ServerRecord:
    record = ServerRecord(
        "70b", "http://127.0.0.1:1/v1", "m", KEY, where="slurm", job_id="4711", state="ready"
    )
    record = replace(record, started=timestamps.now("milliseconds"), log=LOG, **changes)
    records.write(record)
    return record


def on_disk() -> dict:
    return json.loads(records.path_of("70b").read_text())


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(group, list(arguments))
    error = done.exception
    message = f"{error.message} {error.remedy}" if isinstance(error, WorkshopError) else ""
    return getattr(error, "exit_code", done.exit_code), done.output + message


def test_a_server_of_another_cluster_is_asked_there(clusters):
    write(cluster="alpha")
    code, output = run("servers")
    assert code == 0 and "✓ 70b" in output and "alpha" in output and on_disk()["state"] == "ready"
    assert {line.split()[1] for line in clusters.read_text().splitlines()} == {"alpha"}
    code, output = run("stop", "70b")
    assert (
        code == 0
        and "is cancelled" in output
        and "scancel alpha --clusters=alpha 4711" in clusters.read_text()
    )


def test_a_queue_that_does_not_know_the_job_changes_nothing_on_disk(clusters, subtests):
    """A record may name no cluster; one of beta is asked without --clusters, which needs a database."""
    for cluster in ["", "beta"]:
        with subtests.test(cluster):
            write(cluster=cluster)
            before = records.path_of("70b").read_bytes()
            for command in (["servers"], ["servers", "--json"], ["doctor"]):
                output = run(*command)[1]
                assert "had failed" not in output and records.path_of("70b").read_bytes() == before
            output = run("servers")[1]
            assert (
                "? 70b" in output
                and "does not know its job 4711" in output
                and "failed" not in output
            )
            assert reach.ready_server().api_key == KEY, "its own address tells"
            assert "--clusters" not in clusters.read_text()


def test_a_refusal_by_scancel_is_a_refusal_in_slurms_words(clusters, bin_folder, subtests):
    for script, message in [
        (KILL_ERROR, "Kill job error on job id 4711: Invalid job id specified"),
        (
            'echo "scancel: error: Kill job error on job id 4711: Access/permission denied" >&2; exit 1',
            "denied",
        ),
        (
            'echo "scancel: error: slurm_kill_job2 failed: Zero Bytes were transmitted" >&2; exit 1',
            "Zero Bytes",
        ),
        (
            'echo "scancel: error: Kill job error on job id 4711: Job is pending"; exit 1',
            "Job is pending",
        ),
        ("exit 7", "exit code 7"),
        # 22.05 is silent about an unknown job
        ("exit 0", "does not know its job 4711, and scancel did nothing"),
    ]:
        with subtests.test(script):
            answer(bin_folder, "scancel", script, script)
            state = "starting" if script == KILL_ERROR else "ready"
            write(state=state)
            exit_code, output = run("stop", "70b")
            assert (
                exit_code == 1
                and message in output
                and "is cancelled" not in output
                and "is removed" not in output
            )
            assert on_disk()["api_key"] == KEY and on_disk()["state"] == state


def test_a_refusal_for_a_job_that_runs_keeps_the_record(clusters, bin_folder):
    answer(
        bin_folder,
        "scancel",
        'echo "scancel: error: Access/permission denied" >&2; exit 1',
        "exit 1",
    )
    write(cluster="alpha")
    code, output = run("stop", "70b")
    assert code == 1 and "Access/permission denied" in output and on_disk()["state"] == "ready"


def test_a_job_that_was_ending_already_is_waited_for(clusters, bin_folder):
    stand_in(bin_folder, "squeue", f'[ -e "$ASKED.over" ] && echo "{RUNNING.replace("RUNNING", "FAILED")}" || '
             f'{{ echo "{RUNNING.replace("RUNNING", "COMPLETING")}"; }}')  # fmt: skip
    refusal = 'echo "scancel: error: Kill job error on job id 4711: Job/step already completing or completed" >&2'
    stand_in(bin_folder, "scancel", f'touch "$ASKED.over"; {refusal}; exit 1')
    write()
    code, output = run("stop", "70b")
    assert code == 0 and not records.path_of("70b").exists(), output


def test_a_queue_that_cannot_be_reached_changes_nothing(
    clusters, bin_folder, monkeypatch, subtests
):
    for cluster, script in [
        ("", DOWN),
        ("alpha", "exec sleep 30"),
        ("beta", "echo squeue: warning: nothing works today; exit 1"),
    ]:
        with subtests.test(cluster):
            monkeypatch.setattr(slurm_queue, "TIMEOUT_S", 0.3)
            answer(bin_folder, "squeue", script, script)
            write(cluster=cluster)
            before = records.path_of("70b").read_bytes()
            code, output = run("servers")
            assert "✓ 70b" in output
            code, output = run("stop", "70b")
            assert code == 1 and records.path_of("70b").read_bytes() == before, output
            assert "scancel" not in clusters.read_text()


def test_a_job_that_slurm_knows_to_have_ended_is_gone(clusters, bin_folder, subtests):
    for state in ["FAILED", "TIMEOUT", "CANCELLED by 1000", "NODE_FAIL"]:
        with subtests.test(state):
            answer(bin_folder, "squeue", UNKNOWN, UNKNOWN)
            row = f"4711|70b|{state}|None|n1|00:01:00|08:00:00|/work"
            answer(
                bin_folder,
                "sacct",
                f'echo "CLUSTER: alpha"; echo "sacct: warning: slow"; echo "{row}"',
                "echo",
            )
            write(cluster="alpha")
            assert run("servers")[1].startswith("✗ 70b") and on_disk()["state"] == "failed"
            assert run("stop", "70b")[0] == 0
            assert not records.path_of("70b").exists() and "scancel" not in clusters.read_text()


def test_a_record_that_an_earlier_version_called_failed_is_not_removed_while_its_job_runs(
    clusters, bin_folder
):
    answer(bin_folder, "squeue", f'echo "{RUNNING}"', f'echo "{RUNNING}"')
    answer(bin_folder, "scancel", "exit 0", "exit 0")
    write(state="failed", reason="its SLURM job 4711 has ended")
    code, output = run("stop", "70b")
    assert code == 1 and "is RUNNING still" in output and on_disk()["api_key"] == KEY
    assert "scancel beta 4711" in clusters.read_text()


def test_a_number_that_was_given_again_is_not_the_servers_job(clusters, bin_folder):
    """After a reset of the controller another job has the number: it is neither watched nor cancelled."""
    other = "4711|training|FAILED|None|n1|1:02|7:58:58|/elsewhere"
    for row in (other, other.replace("FAILED", "RUNNING")):
        answer(bin_folder, "squeue", f'echo "{row}"', f'echo "{row}"')
        write()
        assert "is called training" in run("servers")[1] and on_disk()["state"] == "ready"
        code, output = run("stop", "70b")
        assert code == 1 and "is called training" in output and on_disk()["api_key"] == KEY
        now = slurm_status.status("4711")
        assert (now.name, now.server) == ("training", "")
    assert "scancel" not in clusters.read_text()


def test_a_server_that_is_gone_is_forgotten_when_its_user_says_so(clusters, bin_folder):
    write()
    with socket.create_server(("127.0.0.1", 0)) as server:
        records.write(
            replace(records.stored("70b"), url=f"http://127.0.0.1:{server.getsockname()[1]}/v1")
        )
        code, output = run("stop", "70b", "--forget")
        assert code == 1 and "something answers" in output and records.path_of("70b").exists()
    code, output = run("stop", "70b", "--forget")
    assert (
        code == 0 and not records.path_of("70b").exists() and "scancel" not in clusters.read_text()
    )
    write(cluster="alpha")
    code, output = run("stop", "70b", "--forget")
    assert code == 1 and "goes on" in output and records.path_of("70b").exists()


def test_a_record_that_names_no_job_is_kept_until_its_user_says_otherwise(clusters):
    records.write(replace(write(), job_id=None))
    code, output = run("stop", "70b")
    assert code == 1 and "names no SLURM job" in output and on_disk()["api_key"] == KEY
    assert run("stop", "70b", "--forget")[0] == 0 and not records.path_of("70b").exists()


def test_a_server_in_doubt_hides_neither_another_of_mine_nor_the_class_s(
    clusters, tmp_path, monkeypatch
):
    write()
    shared = ServerRecord("class", "http://10.1.2.3:8000/v1", "m", KEY, host="n", state="ready")
    shared = replace(shared, started=timestamps.now("milliseconds"))
    (tmp_path / "class").mkdir(mode=0o755)
    (tmp_path / "class/class.json").write_text(json.dumps({**shared.public(), "api_key": KEY}))
    monkeypatch.setenv("WORKSHOP_SHARED", str(tmp_path / "class"))
    assert reach.ready_server().name == "class"
    assert [server.name for server in records.ready()] == ["class"]
    assert reach.ready_server("70b").name == "70b"


def test_a_federated_job_that_another_cluster_took_is_not_gone(clusters, bin_folder):
    row = RUNNING.replace("RUNNING", "REVOKED")
    answer(bin_folder, "squeue", f'echo "{row}"', f'echo "{row}"')
    write(cluster="alpha")
    assert "✓ 70b" in run("servers")[1] and on_disk()["state"] == "ready"


def test_a_row_is_found_among_other_lines():
    for lines, name, state in [
        ("CLUSTER: alpha\n7|70b|RUNNING|None|n1|1|2|/w", "70b", "RUNNING"),
        ("squeue: warning: a|b|c\n7|70b|PENDING|Priority||0:00|8:00:00|/w", "70b", "PENDING"),
        ("7|my server|RUNNING|None|n1|1-02:03:04|UNLIMITED|/w/my folder", "my server", "RUNNING"),
        ("7|a|b|RUNNING|None|n[1-2,4]|INVALID|NOT_SET|/w", "a|b", "RUNNING"),
        ("7|A|B|RUNNING|None|n1|1:02|1:02|/w", "A|B", "RUNNING"),
        ("7_1|a|COMPLETED|None|n1|1|2|/w\n7|70b|RUNNING|None|n1|1|2|/w", "70b", "RUNNING"),
        ("7_[3-8%2]|70b|PENDING|JobArrayTaskLimit||0:00|8:00:00|/w", "70b", "PENDING"),
        ("7+0|70b|RUNNING|None|n1|1|2|/w\n7+1|70b|RUNNING|None|n2|1|2|/w", "70b", "RUNNING"),
        ("7|70b|CANCELLED by 1000|None|n1|1|2|/w", "70b", "CANCELLED"),
        ("7|70b|CANCELLED+|None|n1|1|2|/w", "70b", "CANCELLED"),
    ]:
        job = slurm_queue._row(lines, "7", "squeue")
        assert (job.name, job.state) == (name, state), lines


def test_no_row_is_no_job():
    assert slurm_queue._row("CLUSTER: alpha\nNo jobs\n|||||||\nx|y", "7", "squeue") is None


# --- which cluster a job is of


def test_a_job_announces_its_cluster_and_takes_no_other_clusters_key(workshop_home, monkeypatch):
    """Both clusters have reached job 4711, and both jobs are called 70b."""
    of_alpha = write(cluster="alpha")
    of_beta = replace(of_alpha, cluster="beta", api_key="other", url="http://n2:20008/v1")
    claimed = job_start._claimed(of_beta)
    assert (claimed.name, claimed.api_key) == ("70b-4711", "other") and on_disk()["api_key"] == KEY
    again = job_start._claimed(replace(of_beta, api_key="newest"))
    assert (again.name, again.api_key) == ("70b-4711", "other"), (
        "a start of the same job keeps its key"
    )


def test_a_server_elsewhere_keeps_the_agreed_fields(workshop_home):
    write()
    assert "cluster" not in on_disk() and records.stored("70b").cluster == ""


def test_submit_remembers_the_cluster_that_sbatch_answers(
    clusters, bin_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("WORKSHOP_MODELS", str(downloaded(tmp_path / "models")))
    monkeypatch.chdir(tmp_path)
    stand_in(
        bin_folder,
        "sbatch",
        f'printf "%s\\n" "$@" >{tmp_path}/words; echo "Welcome to alpha"; echo "4711;alpha"',
    )
    code, output = run("slurm", "submit", "70b", "-M", "alpha")
    assert code == 0 and "job 4711 (cluster alpha)" in output, output
    assert "--clusters=alpha" in (tmp_path / "words").read_text().splitlines()
    clusters.unlink(missing_ok=True)
    code, output = run("servers", "4711")
    assert "RUNNING" in output and "squeue alpha" in clusters.read_text()
    assert slurm_status.status("4711").cluster == "alpha"


def test_submit_here_is_remembered_for_the_other_cluster(
    clusters, bin_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("WORKSHOP_MODELS", str(downloaded(tmp_path / "models")))
    monkeypatch.chdir(tmp_path)
    stand_in(bin_folder, "sbatch", "echo 4711")
    assert json.loads(run("slurm", "submit", "70b", "--json")[1])["cluster"] == "beta"
    stand_in(bin_folder, "scontrol", 'printf "ClusterName = alpha\\n"')
    slurm_queue._clusters_here.clear()
    with pytest.raises(WorkshopError, match="Nothing is known about job 4711"):
        slurm_status.status("4711")
    assert "--clusters=beta" in clusters.read_text()


def test_a_record_without_a_cluster_is_asked_where_its_job_was_submitted(clusters):
    slurm_queue.remember("4711", "alpha")
    write()
    assert "✓ 70b" in run("servers")[1] and "squeue alpha" in clusters.read_text()


def test_doctor_reads_sinfo_among_other_lines(clusters, bin_folder):
    rows = r"CLUSTER: alpha\ngpu|10|gpu:h100(S:0)|h100,ib\ncpu|100|(null)|icelake\n"
    stand_in(bin_folder, "sinfo", f"printf '{rows}'")
    stand_in(bin_folder, "sbatch", "echo 'sbatch: error: no' >&2; exit 1")
    check = next(doctor.examine())
    assert check.found == "2 partitions, with GPUs: gpu"
