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
from command_line import run_arguments
from needs import SEED

ROOT = Path(__file__).parents[2]
STUB = ROOT / "benchmarks" / "batch" / "stub.py"
KILLS = int(os.environ.get("WORKSHOP_KILLS", "4"))  # 30 for the figure in docs/batch.md
ROWS = 150 * KILLS  # enough for all of the kills to meet a run that is under way


@pytest.fixture
def start_stub(workshop_home):
    """Return a function that starts the stub on a port (None: a free one) and returns (process, url)."""
    running = []

    def start_server(port: int = 0):
        process = subprocess.Popen(
            [sys.executable, str(STUB), "--delay-s", "0.02", "--fail", "0.02", "--port", str(port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process, process.stdout.readline().strip()

    yield start_server
    for process in running:
        process.kill()


def command(folder: Path, url: str, *more: str) -> list[str]:
    files = [str(folder / "in.txt"), str(folder / "out.jsonl")]
    options = ["--url", url, "--concurrency", "4", *more]
    return [sys.executable, "-m", "workshop", "batch", *files, *options]


def start(folder: Path, url: str, *more: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(folder, url, *more), env=environment, **options)


def ended(client: subprocess.Popen) -> tuple[int, str, str]:
    """Wait for a client; return its exit code, and what it wrote on stdout and stderr."""
    output, errors = client.communicate(timeout=120)
    return client.returncode, output, errors


def answering(folder: Path, url: str, *more: str) -> subprocess.Popen:
    """Start a batch, and return it once its first answer is on disk."""
    client = start(folder, url, *more)
    while not (folder / "out.jsonl").exists() or not (folder / "out.jsonl").stat().st_size:
        assert client.poll() is None
        time.sleep(0.02)
    return client


def lines_of(folder: Path) -> int:
    """Return how many answers are on disk."""
    return (folder / "out.jsonl").read_bytes().count(b"\n")


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
        client = start(folder, url)
        time.sleep(chance.uniform(0.3, 2.5))
        client.kill()
        ended(client)
    code, _, errors = ended(start(folder, url))
    assert code == 0, errors
    check_once(folder)


def test_whenever_the_server_is_killed_the_run_waits_for_the_next_and_loses_nothing(
    folder, start_stub
):
    server, url = start_stub()
    port = int(url.rsplit(":", 1)[1].split("/")[0])
    chance = random.Random(SEED)
    # a server that is not there at the start ends a run at once
    client = answering(folder, url, "--patience", "60")
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.2, 1.0))
        server.kill()
        server.wait()
        server, _ = start_stub(port)
    code, _, errors = ended(client)
    assert code == 0, errors
    check_once(folder)


def test_the_signals_of_slurm_flush_and_say_run_me_again(folder, start_stub):
    _, url = start_stub()
    done = 0
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        client = start(folder, url)
        while not (folder / "out.jsonl").exists() or lines_of(folder) == done:
            assert client.poll() is None
            time.sleep(0.02)
        client.send_signal(number)
        code, output, _ = ended(client)
        new = lines_of(folder) - done
        done += new
        assert code == 75 and "Run the same command again" in output, number
        assert f"({new:,} now" in output and new > 0 and done < ROWS, number
    assert ended(start(folder, url))[0] == 0
    check_once(folder)


def test_signals_that_come_again_do_not_end_it_before_it_has_flushed(folder, start_stub):
    _, url = start_stub()
    client = answering(folder, url)
    while client.poll() is None:  # until the very end of the program
        client.send_signal(signal.SIGUSR1)
        time.sleep(0.002)
    code, output, _ = ended(client)
    assert code == 75 and "Run the same command again" in output


WRONG_USE = (
    (["--tempratur", "1"], "Did you mean --temperature"),
    (["--samples", "0"], "samples"),
    (["--patience", "-1"], "--patience"),
    (["--patience", "nan"], "give 1 to 10,000,000"),
    (["--sampling", "[1]"], "no JSON object"),
    (["--offline"], "--offline needs no server"),
    (["--samples", "2", "--temperature", "0"], "At temperature 0"),
)


def test_wrong_use_is_told_in_one_sentence_with_exit_code_2(folder, workshop_home):
    for more, says in WRONG_USE:
        arguments = command(folder, "http://127.0.0.1:9/v1", *more)[3:]
        done = run_arguments(*arguments)
        assert done.code == 2 and says in done.err, (more, done)
        assert not (folder / "out.jsonl").exists()


def test_vllms_names_are_taken_with_underscores_and_with_dashes(folder, start_stub):
    _, url = start_stub()
    (folder / "in.txt").write_text("one row\n")
    for flag in ("--max_tokens", "--max-tokens"):
        arguments = command(folder, url, flag, "5", "--json")[3:]
        done = run_arguments(*arguments)
        assert done.code == 0 and json.loads(done.out)["answered"] == 1
    record = json.loads((folder / "out.jsonl.meta.json").read_text())
    assert record["sampling_parameters"] == {"max_tokens": 5}
