"""Measure how much one learner can slow the others of a class, by attacks on a local server with the teaching model.

    python benchmarks/fairshare/measure.py [--only WORDS] [--rounds 4] [--without-limits]

Starts a server of its own with `--learners`, and stops it afterwards; no server of yours is touched. A learner asks
for 16 tokens again and again while another learner attacks with several connections. Quiet and attacked seconds
alternate, and each round is compared with the quiet seconds before and after it, so that other work on the machine
counts for both. The ratio is the median of the rounds' ratios, of medians and of means. A round of an attack that has to
rest between its requests is long enough for several of them. Prints the rows of the table in its README.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil
from attacks import ATTACKS, COMPLETIONS, Attack

QUIET_S = 2.0  # a round; that of an attack is its own
TIMEOUT_S = 120.0
MIB = 2**20


@dataclass
class Row:
    """What one attack did to a learner who asks for 16 tokens.

    `quiet_ms` and `attacked_ms` are medians of the time to the whole answer, `worst_ms` the longest under attack.
    `ratio` is the median over the rounds of the ratio of medians, `mean_ratio` that of means, in which the longest
    answers count most.
    `statuses` counts what the attacker was answered. `memory_mib` is how much more memory the API server had.
    """

    name: str
    quiet_ms: float
    attacked_ms: float
    worst_ms: float
    ratio: float
    probes: int
    statuses: dict[str, int]
    memory_mib: float
    mean_ratio: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="attacks whose name has these words")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--without-limits", action="store_true", help="a server without --learners")
    options = parser.parse_args()
    chosen = [attack for attack in ATTACKS if options.only in attack.name]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WORKSHOP_HOME"] = folder
        for variable in ("WORKSHOP_URL", "WORKSHOP_API_KEY", "WORKSHOP_SHARED"):
            os.environ.pop(variable, None)
        from workshop.servers import local
        from workshop.servers.local import supervise

        learners = 0 if options.without_limits else 30
        record = supervise.start(local.prepare(name="attacked", learners=learners))
        try:
            server = Server(record.url, record.api_key, record.pid)
            for attack in chosen:
                print(line(measure(server, attack, options.rounds)), flush=True)
        finally:
            supervise.stop(record.name)


class Server:
    """The server under attack, as a client sees it."""

    def __init__(self, url: str, key: str, pid: int):
        self.address = urlsplit(url)
        self.key = key
        self.process = psutil.Process(pid)
        self.model = json.loads(self.get("/v1/models"))["data"][0]["id"]

    def connect(self) -> http.client.HTTPConnection:
        """Return a new connection."""
        return http.client.HTTPConnection(
            self.address.hostname, self.address.port, timeout=TIMEOUT_S
        )

    def headers(self, learner: str) -> dict[str, str]:
        """Return the headers of a request in a learner's name."""
        return {
            "Authorization": f"Bearer {self.key}",
            "Content-Type": "application/json",
            "X-Workshop-Learner": learner,
        }

    def get(self, path: str) -> bytes:
        """Return what the server answers."""
        connection = self.connect()
        connection.request("GET", path, headers=self.headers("reader"))
        return connection.getresponse().read()

    def memory_mib(self) -> float:
        """Return the memory of the API server."""
        return self.process.memory_info().rss / MIB

    def __getstate__(self) -> dict:
        """Leave the process away, which another process has no use for."""
        return {**self.__dict__, "process": None}


def measure(server: Server, attack: Attack, rounds: int) -> Row:
    """Ask in quiet and under attack in turn, and compare."""
    ask(server)  # the first is slower
    quiet: list[list[float]] = []
    attacked: list[list[float]] = []
    statuses: Counter[str] = Counter()
    before, most = server.memory_mib(), 0.0
    for _ in range(rounds):
        calm = ask_for(server, QUIET_S)
        queue = multiprocessing.Queue()
        end = multiprocessing.Event()
        attacker = multiprocessing.Process(target=run_attack, args=(server, attack, end, queue))
        attacker.start()
        queue.get()  # its bodies are made
        attacked.append(ask_for(server, attack.round_s))
        most = max(most, server.memory_mib())
        end.set()
        statuses.update(queue.get())
        attacker.join(10)
        attacker.kill()
        settle(server)
        quiet.append(calm + ask_for(server, QUIET_S))
    all_attacked = list(itertools.chain(*attacked))
    return Row(
        attack.name,
        round(1000 * statistics.median(itertools.chain(*quiet)), 1),
        round(1000 * statistics.median(all_attacked), 1),
        round(1000 * max(all_attacked), 1),
        median_ratio(attacked, quiet, statistics.median),
        len(all_attacked),
        dict(statuses),
        round(max(0.0, most - before), 1),
        median_ratio(attacked, quiet, statistics.mean),
    )


def median_ratio(
    attacked: list[list[float]], quiet: list[list[float]], middle: Callable[[list[float]], float]
) -> float:
    """Return the median, over the rounds, of how much longer answers took than before and after that round."""
    ratios = []
    for times, calm in zip(attacked, quiet, strict=True):
        ratios.append(middle(times) / middle(calm))
    return round(statistics.median(ratios), 2)


def ask_for(server: Server, seconds: float) -> list[float]:
    """Ask again and again, at least twice; return how long each answer took."""
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times) < 2:
        times.append(ask(server))
        time.sleep(0.02)
    return times


def ask(server: Server) -> float:
    """Ask for 16 tokens; return the seconds that it took."""
    body = {
        "model": server.model,
        "prompt": "The sea",
        "max_tokens": 16,
        "min_tokens": 16,
        "temperature": 0,
    }
    connection = server.connect()
    began = time.monotonic()
    connection.request("POST", COMPLETIONS, json.dumps(body), server.headers("modest"))
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise RuntimeError(f"an ordinary request was answered {answer.status}")
    connection.close()
    return time.monotonic() - began


def settle(server: Server) -> None:
    """Return when what the attack left behind is done: two ordinary answers in a row take about the same."""
    for _ in range(8):
        first, second = ask(server), ask(server)
        if max(first, second) < 1.3 * min(first, second):
            return
        time.sleep(0.3)


def run_attack(server: Server, attack: Attack, end, queue) -> None:
    """Attack until `end` is set, from a process of its own that leaves the processors to the server."""
    os.nice(10)
    body = attack.encoded(server.model)
    statuses: Counter[str] = Counter()
    queue.put("ready")
    threads = [
        threading.Thread(
            target=connection_of, args=(server, attack, body, end, statuses), daemon=True
        )
        for _ in range(attack.connections)
    ]
    for thread in threads:
        thread.start()
    end.wait()
    queue.put(statuses)
    time.sleep(0.5)
    os._exit(0)


def connection_of(server: Server, attack: Attack, body: bytes, end, statuses: Counter[str]) -> None:
    """Send the request again and again, as fast as it is answered."""
    while not end.is_set():
        try:
            status = (
                half_request(server, attack, body, end)
                if attack.half
                else request(server, attack, body)
            )
        except (OSError, http.client.HTTPException):
            status = "closed"
        statuses[status] += 1


def request(server: Server, attack: Attack, body: bytes) -> str:
    """Send one request; return its status."""
    connection = server.connect()
    try:
        connection.request("POST", attack.path, body, server.headers("attacker"))
        answer = connection.getresponse()
        answer.read()
        return str(answer.status)
    finally:
        connection.close()


def half_request(server: Server, attack: Attack, body: bytes, end) -> str:
    """Announce a whole body, send a part of it, and wait."""
    lines = [f"POST {attack.path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in server.headers("attacker").items()]
    with socket.create_connection(
        (server.address.hostname, server.address.port), timeout=1
    ) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        sent = 0
        while sent < attack.half and not end.is_set():
            try:
                sent += connection.send(body[sent : sent + 65536])
            except TimeoutError:  # the server does not read on
                continue
        connection.settimeout(TIMEOUT_S)
        return connection.recv(100)[9:12].decode() or "closed"


def line(row: Row) -> str:
    """Return the row as one of a Markdown table."""
    counts = [f"{status}: {count}" for status, count in sorted(row.statuses.items())]
    answers = ", ".join(counts) or "none"
    return (
        f"| {row.name} | {row.quiet_ms:.0f} | {row.attacked_ms:.0f} | {row.ratio:.2f} | {row.mean_ratio:.2f} "
        f"| {row.worst_ms:.0f} | {answers} | {row.memory_mib:+.0f} |"
    )


if __name__ == "__main__":
    main()
