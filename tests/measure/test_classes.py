"""A simulated class against real vLLM, and against servers that are not there or do not let it in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from workshop.course.classroom import run as classroom
from workshop.course.classroom.run import Classroom
from workshop.errors import BadInput


@pytest.mark.parametrize("learners", [0, -1, 10_000])
def test_a_class_of_nobody_or_of_a_town_is_refused(learners):
    with pytest.raises(BadInput, match="Give 1 to 500"):
        Classroom(learners)


@pytest.mark.parametrize("seconds", [0, 9.9, 1e6, float("nan")])
def test_a_time_that_makes_no_class_is_refused(seconds):
    with pytest.raises(BadInput, match="cannot be simulated"):
        Classroom(3, seconds)


def command(*arguments, home, **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "workshop", "classroom", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "WORKSHOP_HOME": str(home), **more},
        timeout=300,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--learners", "0"], 2, "Give 1 to 500"),
        (["--learners", "10000"], 2, "10,000 learners"),
        (["--learners", "2"], 1, "No server is known here"),
        ([], 2, "--learners"),
        (
            ["--learners", "2", "--url", "http://127.0.0.1:9/v1"],
            1,
            "No server answers at http://127.0.0.1:9/v1",
        ),
        (["--learners", "2", "--url", "nowhere"], 2, "no address"),
        (["--learners", "2", "--minutes", "1", "--seconds", "60"], 2, "both given"),
        (["--learners", "2", "--max-ttft", "0"], 2, "cannot be met"),
    ],
)
def test_wrong_use_is_one_sentence(arguments, code, says, tmp_path):
    done = command(*arguments, home=tmp_path)
    assert done.returncode == code and says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.live
def test_a_small_class_holds_on_the_live_server(server, live_home, tmp_path):
    # Criteria that a slow machine meets, too: what is tested is the simulation, not this machine.
    done = command(
        "--learners",
        "3",
        "--url",
        server.url,
        "--seconds",
        "30",
        "--max-ttft",
        "300",
        "--max-e2el",
        "300",
        "--json",
        home=tmp_path,
        WORKSHOP_API_KEY=server.api_key,
    )
    report = json.loads(done.stdout)
    assert done.returncode == (not report["holds"]) and (
        report["holds"] or report["not_reached"]
    ), done.stderr
    assert report["errors"] == {} and report["left_out"] == []
    # 3 learners × (1 + 4 + 1 + 1 + 9 + 3 + 12 + 1) requests: every cell once
    assert report["completed"] == 3 * 32 or (
        report["not_reached"] and 32 < report["completed"] < 3 * 32
    )
    assert 0 < report["p50_ttft_ms"] <= report["p95_ttft_ms"] <= report["p95_e2el_ms"]
    assert 0 < report["most_kv_cache_usage"] <= 1 and report["most_running"] >= 1
    cells = {cell["cell"]: cell for cell in report["cells"]}
    explorer = cells["04 explorer"]
    assert explorer["p95_ttft_s"] <= explorer["p95_e2el_s"] < explorer["p95_ttft_s"] + 1, (
        "one token: the first is the last"
    )
    # The server's own count of one cell: twelve answers of fixed lengths for each learner.
    assert report["not_reached"] or report["total_output_tokens"] > 3 * 550
    assert "classroom" not in str(os.listdir(tmp_path))


@pytest.mark.live
def test_a_wrong_key_is_one_sentence(server, tmp_path):
    done = command("--learners", "2", "--url", server.url, home=tmp_path, WORKSHOP_API_KEY="wrong")
    assert (
        done.returncode == 1
        and "refuses the key" in done.stderr
        and "WORKSHOP_API_KEY" in done.stderr
    )


@pytest.mark.live
def test_criteria_that_nobody_meets_fail_with_advice(server, monkeypatch):
    monkeypatch.setenv("WORKSHOP_API_KEY", server.api_key)
    report = classroom.run(2, 10, url=server.url, criteria=classroom.Criteria(p95_ttft_s=1e-6))
    assert not report.holds and "p95 ttft" in str(report) and report.advice()


@pytest.mark.live
def test_control_c_prints_what_was_measured(server, tmp_path):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "workshop",
            "classroom",
            "--learners",
            "2",
            "--url",
            server.url,
            "--minutes",
            "5",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "WORKSHOP_HOME": str(tmp_path), "WORKSHOP_API_KEY": server.api_key},
    )
    timer = threading.Timer(15, lambda: process.send_signal(signal.SIGINT))
    timer.start()
    began = time.monotonic()
    out, err = process.communicate(timeout=120)
    assert (
        process.returncode == 1
        and "No verdict: it was interrupted" in out
        and "Traceback" not in err
    )
    assert "00 first request" in out and "ttft" in out
    assert time.monotonic() - began < 60


@pytest.mark.live
def test_limits_of_a_server_are_found_and_kept(server, monkeypatch):
    """The live server takes 8192 logprobs and chat; a smaller window is held by every request that is planned."""
    import asyncio
    import random

    from workshop.batch.servers import Server
    from workshop.course.classroom import http as classroom_http
    from workshop.course.classroom import plan as classroom_plan

    async def look():
        classroom_server = Server(server.url, server.api_key)
        classroom_server.connect(60)
        try:
            entry = await classroom_http.meet(classroom_server)
            cells = classroom_plan.course(random.Random(0))
            return await classroom_http.find_limits(
                classroom_server, entry["id"], entry["max_model_len"], cells
            ), entry
        finally:
            await classroom_server.session.close()

    allowed, entry = asyncio.run(look())
    assert (
        allowed.chat
        and allowed.max_logprobs is None
        and allowed.max_model_len == entry["max_model_len"]
    )
    assert allowed.prompt_tokens["San Francisco is a"] == 5, "four words and <|begin_of_text|>"


def test_a_server_that_dies_ends_the_class_early(tmp_path, monkeypatch):
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Dying(BaseHTTPRequestHandler):
        request_count = 0

        def do_GET(self):
            self._answer({"data": [{"id": "m", "max_model_len": 4096}]})

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            type(self).request_count += 1
            if type(self).request_count > 40:
                self.connection.close()
                return
            self._answer({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}})

        def _answer(self, data):
            payload = json.dumps(data).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *args): ...

    stub = ThreadingHTTPServer(("127.0.0.1", 0), Dying)
    threading.Thread(target=stub.serve_forever, args=(0.02,), daemon=True).start()
    report = classroom.run(5, 10, url=f"http://127.0.0.1:{stub.server_port}/v1")
    stub.shutdown()
    assert "does not answer any more" in str(report) and not report.holds
    assert any("connection" in error for error in report.errors)
    assert any("broke connections" in text for text in report.advice())
