"""A class against real vLLM, and against servers that are slow, refuse a part, or are not there."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
import small_server
from click.testing import CliRunner
from command_line import run_arguments

from workshop.cli import group
from workshop.cli.use import bench
from workshop.course.notebooks import class_steps
from workshop.errors import WorkshopError
from workshop.measure import classes
from workshop.measure.classes import ClassStep
from workshop.servers.records import ServerRecord

ONE_TOKEN = {"prompt": "x", "max_tokens": 1}


def course(dice: random.Random) -> list[ClassStep]:
    return [
        ClassStep("plain", [ONE_TOKEN] * 2),
        ClassStep("explorer", [{**ONE_TOKEN, "logprobs": 8192}]),
        ClassStep("chat", [{"messages": [], "max_tokens": 1}]),
    ]


def measure(
    monkeypatch, reply: Callable[[dict], tuple[int, dict] | None], learners: int = 3, **options
) -> classes.ClassPoint:
    """Measure a quick class at a server that answers with `reply` (None: it breaks off)."""

    class Answers(small_server.Handler):
        def do_GET(self):
            self.reply(b"", 404)

        def do_POST(self):
            result = reply(self.body())
            if result is None:
                return
            status, data = result
            if status != 200:
                return self.reply(data, status)
            self.begin_stream()
            self.event(data)
            self.wfile.write(b"data: [DONE]\n\n")

    monkeypatch.setattr(classes, "EVERY_S", 0.3)
    monkeypatch.setattr(classes, "THINK_S", 0.01)
    with small_server.serving(Answers) as url:
        record = ServerRecord(
            name="stand-in", url=f"{url}/v1", model="m", api_key="", state="ready"
        )
        return classes.measure(record, "m", learners, course, **options)


def token(body: dict) -> tuple[int, dict]:
    text = {"delta": {"content": "a"}} if "messages" in body else {"text": "a"}
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    return 200, {"choices": [{"index": 0, **text}], "usage": usage}


def refusal(message: str, status: int = 400) -> tuple[int, dict]:
    return status, {"error": {"message": message}}


def test_a_quick_server_holds_and_each_step_has_its_waits(monkeypatch):
    point = measure(monkeypatch, token)
    assert point.holds and point.errors == {} and point.left_out == []
    assert [(step.name, step.requests) for step in point.steps] == [
        ("plain", 6),
        ("explorer", 3),
        ("chat", 3),
    ]
    assert 0 < point.figures["ttft"]["p50"] <= point.figures["e2el"]["p95"]
    assert [fault.kind for fault in point.faults] == ["no metrics"]
    assert point.to_dict()["holds"] and point.to_dict()["load"]["requests"] == 12


def test_a_limit_that_nobody_meets_is_named_and_the_command_says_what_to_do(monkeypatch):
    point = measure(monkeypatch, token, slo="ttft=0.001ms")
    assert not point.holds and set(point.too_slow) == {"ttft"} and point.goodput_per_s == 0
    monkeypatch.setattr(bench, "_model", lambda server: ("m", None))
    monkeypatch.setattr(classes, "measure", lambda *_, **__: point)
    done = run_arguments("bench", "--class", "3", "--url", "http://127.0.0.1:9/v1")
    assert done.code == 1, done.err
    assert "✗ It will not hold 3 learners: 0 errors, p95 ttft" in done.out
    assert "→ The slowest cell is" in done.out


def test_log_probabilities_are_cut_to_what_the_server_gives(monkeypatch):
    sent = []

    def reply(body):
        if body.get("logprobs", 0) > 20:
            return refusal(
                "Requested sample logprobs of 8192, which is greater than max allowed: 20"
            )
        sent.append(body.get("logprobs"))
        return token(body)

    assert measure(monkeypatch, reply).holds
    assert sent.count(20) == 1 + 3, "of the learner who goes first, and of the class"


@pytest.mark.parametrize("status", [400, 500, None])
def test_a_model_without_chat_costs_the_chat_alone(monkeypatch, status):
    """vLLM 0.25 answers a chat without a template, resets the connection, and may crash (500)."""

    def reply(body):
        if "messages" not in body:
            return token(body)
        return refusal("no chat template", status) if status else None

    point = measure(monkeypatch, reply)
    assert point.holds and point.left_out == ["chat"] and len(point.steps) == 2


def test_a_server_that_takes_no_completion_is_refused_before_the_class(monkeypatch):
    with pytest.raises(WorkshopError, match="its longest prompt has 2 tokens"):
        measure(monkeypatch, lambda body: refusal("its longest prompt has 2 tokens"))


def test_requests_without_an_answer_are_counted_by_their_reason(monkeypatch):
    answers = []

    def reply(body):
        answers.append(body)
        return token(body) if len(answers) <= 6 else refusal("four at a time", 429)

    point = measure(monkeypatch, reply)
    assert not point.holds and sum(point.errors.values()) == 12 - (6 - 4)
    (fault,) = [fault for fault in point.faults if fault.kind == "unanswered"]
    assert fault.sentence.startswith("10 of 12 requests have no answer: 10 × ")
    assert "429" in fault.sentence and "four at a time" in fault.sentence
    assert sum(step.errors for step in point.steps) == 10


def test_a_learner_who_is_far_too_late_leaves_steps_out(monkeypatch):
    monkeypatch.setattr(classes, "OVERTIME", 0.64)
    point = measure(monkeypatch, token)
    assert not point.holds and point.errors == {classes.TOO_LATE: 3}, "the third step begins late"


def test_a_number_that_cannot_be_is_refused():
    for options in (
        "--class 0",
        "--class 501",
        "--class 2 --seconds 9.9",
        "--class 2 --seconds nan",
        "--rates 1 --requests 0",
    ):
        done = run_arguments("bench", *options.split())
        assert done.code == 2, options
        assert f"Invalid value for '{options.split()[-2]}'" in done.err, options


def command(*arguments, home, **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "workshop", "bench", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "WORKSHOP_HOME": str(home), **more},
        timeout=300,
    )


def test_wrong_use_is_one_sentence(workshop_home, monkeypatch):
    monkeypatch.delenv("WORKSHOP_URL", raising=False)
    monkeypatch.delenv("WORKSHOP_SHARED", raising=False)
    nobody = "http://127.0.0.1:9/v1"
    rows = [
        (["--class", "2"], 1, "No server is known here"),
        ([], 2, "--class 30"),
        (["--class", "2", "--rates", "1"], 2, "not clear how requests are sent"),
        (["--seconds", "20", "--rates", "1"], 2, "--seconds is about a class"),
        (["--class", "2", "--turns", "3"], 2, "--turns is about sessions"),
        (["--class", "2", "--url", nobody], 1, f"{nobody} does not"),
        (["--class", "2", "--url", "nowhere"], 2, "no address"),
        (["--class", "2", "one", "--name", "two"], 2, "both given"),
        (["--class", "2", "one", "--url", nobody], 2, "both given"),
        (["--class", "2", "--slo", "ttft=0s"], 2, "not a limit"),
    ]
    for arguments, code, sentence in rows:
        error = CliRunner().invoke(group, ["bench", *arguments]).exception
        assert isinstance(error, WorkshopError), (arguments, error)
        assert error.exit_code == code, arguments
        assert sentence in f"{error.message} {error.remedy}", (arguments, error.message)


@pytest.mark.live
def test_a_small_class_holds_on_the_live_server(server, live_home, tmp_path):
    # Limits that a slow machine meets, too: what is tested is the measurement, not this machine.
    options = [
        "--class",
        "1",
        "--seconds",
        "45",
        "--url",
        server.url,
        "--slo",
        "ttft=300s,e2el=300s",
    ]
    done = command(*options, "--json", home=tmp_path, WORKSHOP_API_KEY=server.api_key)
    assert done.returncode == 0, done.stderr
    (point,) = json.loads(done.stdout)["points"]
    assert point["holds"] and point["errors"] == {} and point["left_out"] == []
    assert point["faults"] == []  # so the server counted the same requests, 20 samples as 20
    # 1 + 4 + 1 + 1 + 9 + 8 + 3 + 12 + 1 requests: every step once
    assert point["load"]["requests"] == 40 == sum(step["requests"] for step in point["steps"])
    assert [step["name"] for step in point["steps"]] == [
        step.name for step in class_steps.of_learner(random.Random(0))
    ]
    assert 0 < point["ttft_ms"]["p50"] <= point["ttft_ms"]["p95"] <= point["e2el_ms"]["p95"]
    # the timeline's twelve answers of fixed lengths
    assert point["tokens_per_s"] * point["seconds"] > 550


@pytest.mark.live
def test_a_wrong_key_is_one_sentence(server, tmp_path):
    done = command("--class", "2", "--url", server.url, home=tmp_path, WORKSHOP_API_KEY="wrong")
    assert done.returncode == 1
    assert "does not accept this key" in done.stderr and "WORKSHOP_API_KEY" in done.stderr
