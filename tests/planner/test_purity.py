"""The planner starts no process, asks no server and writes no file; `ruff check` bans the names (pyproject.toml)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WATCHED = """
import os, sys
FORBIDDEN = ("subprocess.", "os.system", "os.posix_spawn", "os.exec", "os.fork", "socket.",
             "os.remove", "os.rename", "os.mkdir", "shutil.")
def watch(event, arguments):
    writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event.startswith(FORBIDDEN):
        raise SystemExit(f"{event} {arguments}")
sys.addaudithook(watch)
"""
PLANS = """
from inference_planner import cli
for words in (["llama-3.1-70b", "--gpu", "h100", "--explain"], ["deepseek-v3", "--gpu", "h200", "--json"],
              ["qwen3-30b-a3b", "--machines"], ["--list-models"], ["no-such-model", "--gpu", "h100"]):
    sys.argv[1:] = words
    cli.main()
"""
PLANTED = (
    "open('file', 'w')",
    "os.open('file', os.O_CREAT)",
    "os.remove('file')",
    "os.system('true')",
    "import subprocess; subprocess.run(['true'])",
    "import socket; socket.socket()",
)


def watched(code: str, folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-B", "-c", WATCHED + code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "planner")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_plans_start_nothing_ask_nobody_and_write_nothing(tmp_path):
    done = watched(PLANS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "vllm serve" in done.stdout


@pytest.mark.parametrize("code", PLANTED)
def test_what_writes_starts_or_asks_is_noticed(code, tmp_path):
    assert watched(code, tmp_path).returncode == 1


@pytest.mark.parametrize(("folder", "banned"), [("planner", True), ("workshop", False)])
def test_ruff_bans_a_process_in_the_planner_alone(folder, banned):
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", f"{folder}/planted.py"]
    source = "import subprocess\n\nsubprocess.run(['true'])\n"
    done = subprocess.run([*command, "-"], cwd=ROOT, input=source, capture_output=True, text=True)
    assert ("TID251" in done.stdout) == banned, done.stdout + done.stderr
