"""Every command that the instructor's guide prints runs to its end, in the state that the page describes there.

The cluster, the Hub and the server are stand-ins; what starts a real server runs with the tests marked `starts`.
"""

from __future__ import annotations

import grp
import json
import os
import re
import shlex
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hub_server import FakeHub, model, point_to
from small_server import Handler, serving
from stand_ins import LLAMA_70B, downloaded, stand_in
from test_teaching import GUIDE, ROOT, commands

from workshop import timestamps
from workshop.cli import group
from workshop.lab import doctor
from workshop.measure import classes
from workshop.servers import records
from workshop.servers.records import ServerRecord
from workshop.servers.weights import prefetch

CLASS = grp.getgrgid(os.getgid()).gr_name
SCALE = 20.0  # so many times faster a class runs here

# The page's commands, by the state in which they are run, in the page's order.
WEEKS_BEFORE = (
    "workshop doctor",
    "workshop prefetch 70b --to /shared/models",
    "workshop slurm submit 70b --learners 30 --dry-run",
)
DAY_BEFORE = (
    "workshop slurm submit 70b --learners 30 --reservation=course",
    "workshop servers 70b",  # while the job waits
    "workshop logs 70b --follow",
    "workshop share 70b --group my_class --to /shared/class",
    "workshop bench 70b --class 30",
    "workshop bench --class 30",
    "workshop share 70b --stop",
    "workshop stop 70b",
)
KEYS = (
    "workshop keys add ada",
    "workshop keys add bob eve",
    "workshop keys list",
    "workshop keys revoke ada",
)
LEARNER = (
    "workshop servers",
    "workshop progress --share",
    "workshop progress --share Ada",
    "workshop progress --withdraw",
    "workshop batch prompts.json answers.jsonl --max-tokens 100",
    "workshop progress --before",
    "workshop progress --after",
    "workshop kernel install",
    "workshop fresh 01_memory",
)
MORNING = (
    "workshop slurm submit 70b --learners 30 --reservation=course --time=12:00:00",
    "workshop logs 70b --follow",
    "workshop share 70b --group my_class --to /shared/class",
)
ON_THE_DAY = (
    "workshop servers",
    "workshop servers 70b",
    "workshop bench 70b --class 30 --seconds 40",
    "workshop progress --shared",
    "workshop progress --shared --json",
    "workshop plan llama-3.1-70b --gpu h100 --gpus-per-node 4",
    "workshop slurm submit 70b --dry-run",
    "workshop share 70b --stop",
    "workshop stop 70b",
)
WITHOUT_A_CLUSTER = (
    "workshop serve --background --host 0.0.0.0 --name class --learners 30",
    "workshop share class --group my_class --to /shared/class",
    "workshop bench class --class 30",
    "workshop serve --background",
    "workshop servers",
    "workshop stop teaching-model",
)
# Not for a test of this file: what runs them, or why they are no whole command.
ELSEWHERE = {
    "workshop reconcile LOG": "tests/engine/test_reconcile.py",
    "workshop serve MODEL --host 0.0.0.0 --learners 30": "tests/cli/test_serve.py",
    "workshop keys add NAME": "keys add ada",
    "workshop share": "a name of a command",
    "workshop serve": "a name of a command",
    "workshop bench --class N": "bench --class 30",
    "workshop stop NAME": "tests/cli/test_cli.py",
}


def test_every_command_of_the_page_is_run_here_or_named_where():
    whole_day = {*MORNING, *ON_THE_DAY}
    run_here = {*WEEKS_BEFORE, *DAY_BEFORE, *KEYS, *LEARNER, *whole_day, *WITHOUT_A_CLUSTER}
    assert set(commands(GUIDE)) == run_here | set(ELSEWHERE)


class Cluster:
    """A login node whose SLURM, Hub and server are stand-ins, with folders in the place of /shared."""

    def __init__(self, folder: Path, shared: Path, monkeypatch):
        self.folder = folder
        self.shared = shared  # everybody may enter it
        folder.mkdir()
        (self.shared / "class").mkdir()
        (self.shared / "models").mkdir()
        (folder / "bin").mkdir()
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        monkeypatch.chdir(folder)
        self.queue("PENDING|Priority||0:00|8:00:00")
        self.command("sinfo", 'echo "gpu|4|gpu:h100:4|h100"')
        self.command("sacct", "exit 1")
        self.command("scontrol", "exit 1")
        gone = f"printf '#!/bin/bash\\nexit 0\\n' >{folder / 'bin' / 'squeue'}"
        # the job's last act; `workshop stop` waits for it
        self.command("scancel", f'{gone}; rm "$WORKSHOP_HOME/servers/70b.json"')
        self.command("sbatch", '[[ " $* " == *--test-only* ]] || echo "4711"')
        site = folder / "site.sh"
        python = folder / "bin" / "engine_python"
        self.command("engine_python", "echo vllm 0.32.0")
        site.write_text(
            (ROOT / "slurm" / "site.sh").read_text()
            + f"\nexport WORKSHOP_MODELS={self.shared / 'models'} SBATCH_PARTITION=gpu\n"
            + f"workshop_environment() {{ python=({python}); }}\n"
        )
        monkeypatch.setenv("WORKSHOP_SITE", str(site))
        for name in ("WORKSHOP_URL", "WORKSHOP_API_KEY", "WORKSHOP_SHARED", "WORKSHOP_SLURM"):
            monkeypatch.delenv(name, raising=False)

    def command(self, name: str, line: str) -> None:
        stand_in(self.folder / "bin", name, line)

    def queue(self, job: str) -> None:
        """Let squeue show the job 4711 in this state, to whoever asks for it by number or name."""
        whole = f"4711|70b|{job}|{self.folder}"
        self.command("squeue", f'case "$*" in *--name*) echo "4711|70b";; *) echo "{whole}";; esac')

    def run(self, line: str, *, code: int | None = 0, **options):
        """Run a line of the page, with this machine's folders and group; it must end with that code (None: any)."""
        here = line.replace("/shared/", f"{self.shared}/").replace("my_class", CLASS)
        done = CliRunner().invoke(group, shlex.split(here)[1:], **options)
        assert code in (None, done.exit_code), f"{line}\n{done.output}\n{done.exception!r}"
        return done


@pytest.fixture
def cluster(tmp_path, monkeypatch, workshop_home):
    with tempfile.TemporaryDirectory(prefix="workshop-shared-") as shared:
        Path(shared).chmod(0o755)
        yield Cluster(tmp_path / "cluster", Path(shared), monkeypatch)


class Model(Handler):
    """Streams short answers, as vLLM's API does."""

    def do_GET(self):
        entry = {"id": "Llama-3.1-70B-Instruct", "max_model_len": 32768}
        self.reply({"object": "list", "data": [entry]})

    def do_POST(self):
        body = self.body()
        number = body.get("n", 1)
        usage = {"prompt_tokens": 5, "completion_tokens": number}
        common = {"id": self.headers.get("X-Request-Id", "x"), "model": body["model"]}
        is_chat = "messages" in body
        if body.get("stream"):
            self.begin_stream()
            for index in range(number):
                text = {"delta": {"content": " a"}} if is_chat else {"text": " a"}
                piece = {"index": index, "finish_reason": "stop", **text}
                self.event({**common, "choices": [piece], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")
            return
        choices = []
        for index in range(number):
            text = {"message": {"content": " a"}} if is_chat else {"text": " a"}
            choices.append({"index": index, "finish_reason": "stop", "logprobs": None, **text})
        self.reply({**common, "choices": choices, "usage": usage})


@pytest.fixture
def model_server():
    with serving(Model) as root:
        yield f"{root}/v1"


@pytest.fixture
def quick_class(monkeypatch):
    """Let the class run SCALE times faster: the same requests, in the same order."""
    monkeypatch.setattr(classes, "THINK_S", 0.01)
    of_learner = classes.Timetable.of_learner

    def faster(self, number):
        return [(begin_s / SCALE, step) for begin_s, step in of_learner(self, number)]

    monkeypatch.setattr(classes.Timetable, "of_learner", faster)


def running(cluster: Cluster, url: str, home: Path) -> None:
    """The job runs, and its server has written its record."""
    cluster.queue("RUNNING|None|n1|1:02|7:58:58")
    folder = cluster.folder / "70b_4711"
    folder.mkdir(exist_ok=True)
    (folder / "output_4711.out").write_text("INFO: Application startup complete.\n")
    (folder / "error_4711.out").write_text("")
    (home / "servers").mkdir(parents=True, exist_ok=True)
    records.write(
        ServerRecord(
            name="70b",
            url=url,
            model="Llama-3.1-70B-Instruct",
            api_key="k",
            where="slurm",
            host=socket.gethostname(),
            job_id="4711",
            log=str(folder / "output_4711.out"),
            state="ready",
            started=timestamps.now("milliseconds"),
        )
    )


def test_weeks_before_on_a_login_node_with_the_base_set(cluster, monkeypatch, workshop_home):
    monkeypatch.setattr(doctor, "installed", lambda: ("", ""))  # LOCAL=no: no vLLM here
    files = model() | {"config.json": json.dumps(LLAMA_70B).encode()}
    hub = FakeHub("meta-llama/Llama-3.1-70B-Instruct", files)
    point_to(hub, monkeypatch, cluster.folder)
    monkeypatch.setattr(prefetch, "SPARE_BYTES", 0)
    first, second, third = (cluster.run(line) for line in WEEKS_BEFORE)
    hub.close()
    assert first.output.rstrip().endswith("Everything that the course needs is here.")
    assert (cluster.shared / "models" / "Llama-3.1-70B-Instruct" / "config.json").is_file(), second
    assert "--tensor-parallel-size" in third.output or "70b.sbatch" in third.output


def test_the_day_before(cluster, model_server, quick_class, workshop_home):
    downloaded(cluster.shared / "models")
    submit, status, logs, share, first_class, second_class, *end = DAY_BEFORE
    cluster.run(submit)
    assert "waits in the queue" in cluster.run(status).output
    running(cluster, model_server, workshop_home)
    assert "ready" in cluster.run(logs).output
    cluster.run(share)
    assert (cluster.shared / "class" / "70b.json").is_file()
    assert "It will hold" in cluster.run(first_class).output
    cluster.run(second_class)
    for line in end:
        cluster.run(line)
    assert records.own() == []
    assert not (cluster.shared / "class" / "70b.json").exists()


def test_on_the_day_and_in_the_evening(cluster, model_server, quick_class, workshop_home):
    downloaded(cluster.shared / "models")
    submit, *when_it_runs = MORNING
    script = re.search(r"\S+\.sbatch", cluster.run(submit).output.split("sbatch ", 1)[1])
    assert script and "#SBATCH --time=12:00:00" in Path(script[0]).read_text()
    running(cluster, model_server, workshop_home)
    for line in when_it_runs:
        cluster.run(line)
    line = next(
        line for line in GUIDE.splitlines() if line.startswith("mkdir /shared/class/progress")
    )
    here = line.replace("/shared/", f"{cluster.shared}/").replace("my_class", CLASS)
    subprocess.run(["bash", "-c", here], check=True)
    os.environ["WORKSHOP_SHARED"] = str(cluster.shared / "class")
    try:
        for line in ON_THE_DAY:
            done = cluster.run(line)
            if "--class" in line:
                assert "It will hold" in done.output and "No verdict" not in done.output
    finally:
        del os.environ["WORKSHOP_SHARED"]
    assert not (cluster.shared / "class" / "70b.json").exists()


def test_a_learners_day(cluster, model_server, workshop_home, monkeypatch, tmp_path):
    monkeypatch.setenv("WORKSHOP_SHARED", str(cluster.shared / "class"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("WORKSHOP_NOTEBOOKS", str(tmp_path / "notebooks"))
    (cluster.shared / "class" / "progress").mkdir()
    running(cluster, model_server, workshop_home)
    (cluster.folder / "prompts.json").write_text('["San Francisco is a"]')
    for line in LEARNER:
        cluster.run(line, input="a\n" * 10)
    assert (cluster.folder / "answers.jsonl").is_file()


def test_keys_of_a_class(cluster):
    outputs = [cluster.run(line).output for line in KEYS]
    assert re.search(r"^bob,\S{32}\neve,\S{32}$", outputs[1], re.MULTILINE)
    assert all(name in outputs[2] for name in ("ada", "bob", "eve"))


@pytest.mark.starts
def test_without_a_cluster_everything_goes_on_with_local_servers(cluster, workshop_home):
    try:
        for line in WITHOUT_A_CLUSTER:
            smaller = line.replace("--class 30", "--class 1 --seconds 10")  # requests are the same
            done = cluster.run(smaller, code=0 if "--class" not in line else None)
            if "--class" in line:
                assert "No verdict" not in done.output
    finally:
        for record in records.own():
            cluster.run(f"workshop stop {record.name}")
