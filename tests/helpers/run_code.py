"""Run code of tests in processes of their own that have imported vLLM: forked, where one_import.shared has a process.

The workarounds of `workshop.servers.cpu_worker` count there.
"""

from __future__ import annotations

import contextlib
import io
import traceback

from workshop.worker_process import Channel, JsonLines, NoAnswer, WorkerProcess


def run(code: str) -> str:
    """Run code; return what it printed. An exception of it fails the test."""
    worker = WorkerProcess("tests.helpers.run_code", JsonLines())
    try:
        printed, problem = worker.ask(code, limit_s=300)
    except NoAnswer:
        raise AssertionError(worker.failure()) from None
    finally:
        worker.end()
    assert not problem, problem
    return printed


def main() -> None:
    """Answer each code with what it printed, and with its traceback if it failed."""
    channel = Channel(JsonLines())
    for code in channel:
        printed, problem = io.StringIO(), ""
        with contextlib.redirect_stdout(printed):
            try:
                exec(code, {"__name__": "__main__"})
            except Exception:
                problem = traceback.format_exc()
        channel.send([printed.getvalue(), problem])


if __name__ == "__main__":
    main()
