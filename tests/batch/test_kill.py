"""Signal 9 at random moments, to the client and to the server: every row once in the output, none twice, none lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from needs import SEED

ROOT = Path(__file__).parents[2]
STUB = ROOT / "benchmarks" / "batch" / "stub.py"
KILLS = int(os.environ.get("WORKSHOP_KILLS", "4"))  # 30 for the figure in docs/batch.md
ROWS = 150 * KILLS  # enough for all of the kills to meet a run that is under way


@pytest.fixture
def start_stub(workshop_home):
    """Return a function that starts the stub on a port (None: a free one) and returns (process, url)."""
    running = []

    def start(port: int = 0):
        process = subprocess.Popen(
            [sys.executable, str(STUB), "--delay-s", "0.02", "--fail", "0.02", "--port", str(port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in running:
        process.kill()


def command(folder: Path, url: str, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "workshop",
        "batch",
        str(folder / "in.txt"),
        str(folder / "out.jsonl"),
        "--url",
        url,
        "--concurrency",
        "4",
        *more,
    ]


def environment() -> dict:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def check_once(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert sorted(line["row"] for line in lines) == list(range(ROWS))
    assert len({line["custom_id"] for line in lines}) == ROWS
    for line in lines:
        assert line["response"]["body"]["choices"][0]["text"] == f" prompt {line['row']}"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"prompt {number}\n" for number in range(ROWS)))
    return tmp_path


def test_whenever_the_client_is_killed_every_row_is_answered_once(folder, start_stub):
    _, url = start_stub()
    chance = random.Random(SEED)
    for _ in range(KILLS):
        client = subprocess.Popen(
            command(folder, url),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(0.3, 2.5))
        client.kill()
        client.wait()
    done = subprocess.run(command(folder, url), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    check_once(folder)


def test_whenever_the_server_is_killed_the_run_waits_for_the_next_and_loses_nothing(
    folder, start_stub
):
    server, url = start_stub()
    port = int(url.rsplit(":", 1)[1].split("/")[0])
    chance = random.Random(SEED)
    client = subprocess.Popen(
        command(folder, url, "--patience", "60"),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (folder / "out.jsonl").exists() or not (folder / "out.jsonl").stat().st_size:
        assert client.poll() is None, "a server that is not there at the start ends a run at once"
        time.sleep(0.02)
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.2, 1.0))
        server.kill()
        server.wait()
        server, _ = start_stub(port)
    _, error_output = client.communicate(timeout=120)
    assert client.returncode == 0, error_output
    check_once(folder)


def answering(folder, url) -> subprocess.Popen:
    """Start a batch, and return it once its first answer is on disk."""
    client = subprocess.Popen(
        command(folder, url), env=environment(), stdout=subprocess.PIPE, text=True
    )
    while not (folder / "out.jsonl").exists() or not (folder / "out.jsonl").stat().st_size:
        assert client.poll() is None
        time.sleep(0.02)
    return client


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT], ids=lambda signum: signum.name
)
def test_the_signals_of_slurm_flush_and_say_run_me_again(number, folder, start_stub):
    _, url = start_stub()
    client = answering(folder, url)
    client.send_signal(number)
    output, _ = client.communicate(timeout=30)
    answer_count = len((folder / "out.jsonl").read_text().splitlines())
    assert client.returncode == 75 and "Run the same command again" in output
    assert f"({answer_count:,} now" in output and 0 < answer_count < ROWS
    assert (
        subprocess.run(command(folder, url), env=environment(), capture_output=True).returncode == 0
    )
    check_once(folder)


def test_signals_that_come_again_do_not_end_it_before_it_has_flushed(folder, start_stub):
    _, url = start_stub()
    client = answering(folder, url)
    while client.poll() is None:  # until the very end of the program
        client.send_signal(signal.SIGUSR1)
        time.sleep(0.002)
    output, _ = client.communicate(timeout=30)
    assert client.returncode == 75 and "Run the same command again" in output


def test_wrong_use_is_told_in_one_sentence_with_exit_code_2(folder, start_stub):
    _, url = start_stub()
    for arguments, says in (
        (["--tempratur", "1"], "Did you mean --temperature"),
        (["--samples", "0"], "samples"),
        (["--patience", "-1"], "--patience"),
        (["--patience", "nan"], "give 1 to 10,000,000"),
        (["--sampling", "[1]"], "no JSON object"),
        (["--offline"], "--offline needs no server"),
        (["--samples", "2", "--temperature", "0"], "At temperature 0"),
    ):
        done = subprocess.run(
            command(folder, url, *arguments), env=environment(), capture_output=True, text=True
        )
        assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert not (folder / "out.jsonl").exists()


def test_vllms_names_are_taken_with_underscores_and_with_dashes(folder, start_stub):
    _, url = start_stub()
    for flag in ("--max_tokens", "--max-tokens"):
        done = subprocess.run(
            command(folder, url, flag, "5", "--json"),
            env=environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and json.loads(done.stdout)["answered"] == ROWS
    assert json.loads((folder / "out.jsonl.meta.json").read_text())["sampling_parameters"] == {
        "max_tokens": 5
    }
