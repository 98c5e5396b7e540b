"""Measure starts: `workshop serve` beside a bare import of vLLM, a second server, answers, memory, and ends by force.

    python benchmarks/start.py [--pairs 5] [--prompts 200] [--kills 100]

Pairs alternate on the same machine, so their ratios hold where absolute times vary. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from workshop import preloaded, python_process
from workshop.client.client import connect
from workshop.servers import local, records
from workshop.servers.local import supervise
from workshop.vllm_package import WITHOUT_A_MODEL

SERVE = [sys.executable, "-P", "-m", "workshop", "serve", "--background"]
KILLED_WITHIN_S = 6.0  # a kill comes at a random moment of this time
GONE_WITHIN_S = 80.0
SHARED_MEMORY = Path("/dev/shm")


def serve(name: str) -> float:
    """Return the seconds from `workshop serve --background` to its return, which comes after a first answer."""
    began = time.perf_counter()
    subprocess.run([*SERVE, "--name", name], check=True, capture_output=True)
    return time.perf_counter() - began


def import_vllm() -> float:
    """Return the seconds that Python takes for vLLM's API server, without any workaround and without a server."""
    began = time.perf_counter()
    command = [sys.executable, "-P", "-c", "import vllm.entrypoints.openai.api_server"]
    environment = python_process.environment(WITHOUT_A_MODEL)
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - began


def start_and_stop(changes: dict[str, str]) -> float:
    """Return the seconds of a start in an environment with these variables; the server is stopped."""
    os.environ.update(changes)
    try:
        seconds = serve("measured")
        supervise.stop("measured")
        return seconds
    finally:
        for name in changes:
            del os.environ[name]


@contextlib.contextmanager
def imported() -> Iterator[float]:
    """Let one process import vLLM, as `workshop lab` does; yield the seconds that it took."""
    environment = local.preloaded_environment()
    assert environment is not None
    began = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = preloaded.start(environment, log.fileno())
        assert process is not None
        try:
            while b"is imported" not in os.pread(log.fileno(), 1 << 20, 0):
                assert process.poll() is None, "vLLM cannot be imported"
                time.sleep(0.05)
            yield time.perf_counter() - began
        finally:
            preloaded.stop(process)


def memory_mib(*pids: int) -> float:
    """Return the proportional set size of the sessions of these processes."""
    sessions = set(pids)
    total = 0.0
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) in sessions:
                total += process.memory_full_info().pss / 2**20
        except (OSError, psutil.Error):
            continue
    return total


def answers_of(name: str, prompts: int) -> list[tuple[list[str], list[float]]]:
    """Return the greedy tokens of many prompts, and their log probabilities."""
    llm = connect(name)
    corpus = json.loads((local.TEACHING_FOLDER / "tokenizer.json").read_text())["model"]["vocab"]
    vocabulary = sorted(
        word.strip("ĠĊ") for word in corpus if word.startswith("Ġ") and word[1:].isalpha()
    )
    drawn = random.Random(0).sample(vocabulary, 3 * prompts)
    results = []
    for number in range(prompts):
        prompt = " ".join(drawn[3 * number : 3 * number + 3])
        choice = llm.complete(prompt, max_tokens=32, temperature=0, logprobs=1).choices[0]
        results.append((choice.logprobs.tokens, choice.logprobs.token_logprobs))
    return results


def compare_answers(prompts: int) -> dict[str, object]:
    """Compare vLLM's own start (several imports, a worker of its own) with ours, and with a forked server."""
    own = [*SERVE, "--name", "own", "--distributed-executor-backend=mp"]
    subprocess.run(own, check=True, capture_output=True)
    expected = answers_of("own", prompts)
    supervise.stop("own")
    serve("ours")
    with_one_import = answers_of("ours", prompts)
    supervise.stop("ours")
    with imported():
        serve("forked")
        forked = answers_of("forked", prompts)
        supervise.stop("forked")
    return {
        "prompts": prompts,
        "tokens": sum(len(tokens) for tokens, _ in expected),
        "one import: tokens and log probabilities equal": with_one_import == expected,
        "forked: tokens and log probabilities equal": forked == expected,
    }


def left_over(files: set[Path], processes: set[int]) -> list[str]:
    """Return processes, files in /dev/shm and folders of sockets that came since, and that servers have left."""
    left = [str(path) for path in shared_files() - files]
    for process in psutil.process_iter(["cmdline"]):
        title = " ".join(process.info["cmdline"] or [])
        is_server = "vllm_main" in title or "VLLM::" in title or "supervise" in title
        if is_server and process.pid not in processes:
            left.append(title)
    return left


def shared_files() -> set[Path]:
    """Return what lies in shared memory and in the folders of servers' sockets."""
    return {*SHARED_MEMORY.iterdir(), *Path(tempfile.gettempdir()).glob("workshop-*")}


def stop_known(names: list[str]) -> None:
    """Stop those of the servers that have a record."""
    for name in names:
        if records.stored(name) is not None:
            supervise.stop(name)


def kill_at_random(kills: int) -> dict[str, object]:
    """Start servers, kill a process of each with signal 9 at a random moment, stop them, and look what is left."""
    moments = random.Random(0)
    names = [f"k{number}" for number in range(kills)]
    killed = 0
    with imported():
        files = shared_files()
        processes = set(psutil.pids())
        for name in names:
            start = subprocess.Popen(
                [*SERVE, "--name", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(moments.uniform(0.1, KILLED_WITHIN_S))
            victims = [start.pid]
            record = records.stored(name)
            if record is not None and record.pid is not None:
                victims.append(record.pid)
                with contextlib.suppress(psutil.NoSuchProcess):
                    engine = psutil.Process(record.pid)
                    victims += [child.pid for child in engine.children(recursive=True)]
            with contextlib.suppress(ProcessLookupError):
                os.kill(moments.choice(victims), signal.SIGKILL)
                killed += 1
            start.wait(GONE_WITHIN_S)
            stop_known([name])
    deadline = time.monotonic() + GONE_WITHIN_S
    while left_over(files, processes) and time.monotonic() < deadline:
        # A starter that was killed before its server's record was there: the server starts all the same.
        stop_known(names)
        time.sleep(0.5)
    return {"starts": kills, "killed": killed, "left": left_over(files, processes)}


def median(values: list[float]) -> float:
    return round(statistics.median(values), 2)


def measure_starts(pairs: int) -> dict[str, object]:
    """Measure starts and bare imports by turns."""
    bare, first, no_bytecode, second, imports = [], [], [], [], []
    memory: list[tuple[float, float]] = []
    for number in range(pairs):
        bare.append(import_vllm())
        first.append(start_and_stop({}))
        no_bytecode.append(start_and_stop({"PYTHONDONTWRITEBYTECODE": "1"}))
        with imported() as seconds:
            imports.append(seconds)
            process = preloaded.find()
            assert process is not None
            serve("one")
            first_record = records.require("one")
            with_one = memory_mib(process.pid, first_record.pid or 0)
            second.append(serve("two"))
            two = records.require("two")
            memory.append((with_one, memory_mib(process.pid, first_record.pid or 0, two.pid or 0)))
            for name in ("one", "two"):
                supervise.stop(name)
        show(
            {
                f"pair {number + 1}: bare, first, without bytecode, preloaded, second, s": [
                    round(times[-1], 2) for times in (bare, first, no_bytecode, imports, second)
                ]
            }
        )
    return {
        "bare import of vLLM, s": median(bare),
        "first token, s": median(first),
        "first token, PYTHONDONTWRITEBYTECODE=1, s": median(no_bytecode),
        "import in the preloaded process, s": median(imports),
        "a second server, s": median(second),
        "first token : bare import": round(median(first) / median(bare), 2),
        "the same without bytecode": round(median(no_bytecode) / median(bare), 2),
        "second server : bare import": round(median(second) / median(bare), 2),
        "preloaded and one server, MiB": round(statistics.median(alone for alone, _ in memory)),
        "preloaded and two servers, MiB": round(statistics.median(two for _, two in memory)),
        "load": os.getloadavg()[0],
    }


def show(result: dict[str, object]) -> None:
    """Print figures as soon as they are measured."""
    print(json.dumps(result, indent=1), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--kills", type=int, default=100)
    options = parser.parse_args()
    os.environ["WORKSHOP_HOME"] = tempfile.mkdtemp(prefix="home-")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for part, measure, count in (
        ("starts", measure_starts, options.pairs),
        ("answers", compare_answers, options.prompts),
        ("kills", kill_at_random, options.kills),
    ):
        if count:
            show({part: measure(count)})


if __name__ == "__main__":
    main()
