"""Worker processes: one class starts them, and one format of messages stands at both ends."""

import ast
import time
from pathlib import Path

import pytest
from stand_ins import stand_in

from workshop.worker_process import JsonLines, NoAnswer, Pickles, WorkerProcess

PACKAGE = Path(__file__).parents[2] / "workshop"
ECHO = """
from workshop.worker_process import Channel, {format}
channel = Channel({format}())
print("printed by a library")
for message in channel:
    channel.send([message, "again"])
"""


def worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message_format
) -> WorkerProcess:
    """Start a worker whose module holds this code."""
    (tmp_path / "a_worker.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return WorkerProcess("a_worker", message_format)


@pytest.mark.parametrize("message_format", [JsonLines(), Pickles()])
def test_a_worker_answers_one_message_after_the_other(tmp_path, monkeypatch, message_format):
    """What a library prints is no answer."""
    code = ECHO.format(format=type(message_format).__name__)
    process = worker(tmp_path, monkeypatch, code, message_format)
    try:
        assert process.ask({"tokens": 5}) == [{"tokens": 5}, "again"]
        assert process.ask("x" * 200_000, limit_s=60) == ["x" * 200_000, "again"]
    finally:
        process.end()


@pytest.mark.parametrize(
    ("script", "ending"),
    [
        (
            "echo 'ImportError: libcuda.so.1' >&2; exit 3",
            " (exit code 3): ImportError: libcuda.so.1",
        ),
        ("read -r message; echo 'bad line' >&2; exit 1", " (exit code 1): bad line"),
        # what libraries say after the error
        (
            "printf 'ValueError: x\\nleaked 1 object\\n' >&2; exit 1",
            " (exit code 1): ValueError: x",
        ),
        ("kill -9 $$", " (Killed, signal 9)"),
        ("read -r message; echo '[1'", ""),  # no message
        ("printf '\\033[31mred\\n' >&2; exit 1", " (exit code 1): \x1b[31mred"),
    ],
)
def test_a_worker_that_ends_is_named_with_how_it_ended_and_its_last_line(tmp_path, script, ending):
    stand_in(tmp_path, "python", script)
    python = str(tmp_path / "python")
    process = WorkerProcess("a_worker", JsonLines(), python=python)
    try:
        with pytest.raises(NoAnswer):
            process.ask(1)
        assert process.failure() == f"{python} ended without an answer{ending}"
    finally:
        process.end()


def test_a_worker_without_an_answer_is_killed_at_its_time_limit(tmp_path, monkeypatch):
    process = worker(tmp_path, monkeypatch, "import time\ntime.sleep(60)", JsonLines())
    began_s = time.monotonic()
    try:
        with pytest.raises(NoAnswer):
            process.ask(1, limit_s=0.2)
        assert "gave no answer and was ended after 0.2 s" in process.failure()
    finally:
        process.end()
    assert time.monotonic() - began_s < 30


def test_an_interpreter_that_is_not_there_cannot_be_run(tmp_path):
    with pytest.raises(OSError):
        WorkerProcess("a_worker", JsonLines(), python=str(tmp_path / "none"))


def test_no_room_starts_a_worker_by_itself():
    """Both rooms had a protocol of their own: pipes, a time limit and the words for a failure."""
    by_itself = []
    for path in (*(PACKAGE / "engine").rglob("*.py"), *(PACKAGE / "simulate").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("Popen", "dup2"):
                by_itself.append(path.name)
    assert not by_itself, "take WorkerProcess and Channel of workshop/worker_process.py"
