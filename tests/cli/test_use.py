"""`workshop ask`, `logs`, `batch --name`, keys, and what an unknown command is told."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_line import run_arguments as workshop
from small_server import Handler

from workshop.cli import COMMANDS, group
from workshop.guard import keys
from workshop.servers import records
from workshop.servers.records import ServerRecord


class Streaming(Handler):
    """A server that streams one answer in pieces; `template`: whether its model has a chat template."""

    template = True
    ending = "stop"
    pieces = ("A KV ", "cache keeps\x1b[31m ", "keys.")

    def do_GET(self):
        self.reply({"object": "list", "data": [{"id": "stub"}]})

    def do_POST(self):
        body = self.body()
        self.server.bodies.append((self.path, body))
        if self.path.endswith("/chat/completions") and not self.template:
            message = "As of transformers v4.44, default chat template is no longer allowed"
            return self.reply({"error": {"message": message}}, 400)
        chat = self.path.endswith("/chat/completions")
        self.begin_stream()
        common = {"id": self.headers["X-Request-Id"], "model": "stub", "created": 0}
        for text in self.pieces:
            choice = {"index": 0, "finish_reason": None, "logprobs": None}
            choice |= {"delta": {"content": text}} if chat else {"text": text}
            self.event({**common, "object": "x", "choices": [choice]})
        choice = {"index": 0, "finish_reason": self.ending, "logprobs": None}
        choice |= {"delta": {}} if chat else {"text": ""}
        self.event({**common, "object": "x", "choices": [choice]})
        usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
        self.event({**common, "object": "x", "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")


@pytest.fixture
def server(workshop_home):
    started = []

    def start(**changes):
        handler = type("Handler", (Streaming,), changes)
        made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        made.bodies = []
        made.url = f"http://127.0.0.1:{made.server_address[1]}/v1"
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        started.append(made)
        return made

    yield start
    for made in started:
        made.shutdown()


def ask(*args: str, **options):
    return CliRunner().invoke(group, ["ask", *args], catch_exceptions=False, **options)


def test_ask_sends_one_prompt_and_prints_the_answer_alone(server):
    started = server()
    done = ask("What is a KV cache?", "--url", started.url, "--temperature", "0", "--seed", "3")
    assert (done.exit_code, done.stdout) == (0, "A KV cache keeps\\x1b[31m keys.\n")
    ((path, body),) = started.bodies
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "What is a KV cache?"}]
    assert (body["temperature"], body["seed"], body["model"]) == (0, 3, "stub")


def test_ask_reads_the_prompt_from_standard_input(server):
    started = server()
    assert ask("-", "--url", started.url, input="from a pipe").exit_code == 0
    assert started.bodies[0][1]["messages"][0]["content"] == "from a pipe"


def test_ask_continues_the_prompt_of_a_model_that_cannot_chat(server):
    started = server(template=False)
    done = ask("Once upon", "--url", started.url)
    assert done.exit_code == 0 and "no chat template" in done.stderr
    assert [path for path, _ in started.bodies] == ["/v1/chat/completions", "/v1/completions"]
    assert started.bodies[1][1]["prompt"] == "Once upon"
    assert started.bodies[1][1]["max_tokens"] == 256


def test_ask_says_that_an_answer_was_cut(server):
    done = ask("Why?", "--url", server(ending="length").url)
    assert done.exit_code == 0 and "--max-tokens" in done.stderr


def test_ask_as_json_has_the_whole_answer(server):
    started = server()
    data = json.loads(ask("Why?", "--url", started.url, "--json").stdout)
    assert data.pop("seconds") >= 0
    assert data == {
        "model": "stub",
        "url": started.url,
        "text": "A KV cache keeps\x1b[31m keys.",
        "reasoning": None,
        "finish_reason": "stop",
        "prompt_tokens": 5,
        "completion_tokens": 3,
    }


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["", "--url", "http://127.0.0.1:9/v1"], "The prompt is empty"),
        (["a", "--url", "x", "--name", "y"], "both given"),
        (["a", "--sampling", '{"n": 2}'], "one answer"),
        (["a", "--sampling", "[]"], "no JSON object"),
        (["a", "--system", "b", "--complete"], "--system is for a chat"),
    ],
)
def test_wrong_use_of_ask_is_one_sentence(args, says, workshop_home):
    done = workshop("ask", *args)
    assert done.code == 2 and says in done.err and "Traceback" not in done.err


def record_of(name: str, home: Path, **fields) -> ServerRecord:
    (home / "servers").mkdir(parents=True, exist_ok=True)
    log = home / f"{name}.log"
    log.write_text("first line\nsecond \x1b[31mline\n")
    settings = {"name": name, "model": "stub", "api_key": "k", "log": str(log), **fields}
    record = ServerRecord(url="http://127.0.0.1:9/v1", **settings)
    records.write(record)
    return record


def test_logs_shows_what_a_server_wrote_and_its_control_characters_as_escapes(workshop_home):
    record_of("mine", workshop_home, state="failed", reason="for the test")
    done = workshop("logs", "mine")
    assert (done.code, done.out) == (0, "first line\nsecond \\x1b[31mline\n")
    assert workshop("logs", "mine", "-n", "1").out == "second \\x1b[31mline\n"
    assert workshop("logs", "mine", "--follow").code == 0  # it has ended: nothing comes


def test_logs_follows_a_server_until_it_ends(workshop_home):
    import time

    record = record_of("mine", workshop_home, state="ready")
    command = [sys.executable, "-m", "workshop", "logs", "mine", "-f", "-n", "0"]
    following = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with open(record.log, "a") as log:
        log.write("third line\n")
        log.flush()
        time.sleep(2)
        log.write("last line\n")
    records.remove("mine")
    shown, _ = following.communicate(timeout=30)
    assert shown.splitlines()[-1] == "last line" and "first line" not in shown


def test_logs_of_nobody_names_who_there_is(workshop_home):
    record_of("mine", workshop_home, state="failed", reason="for the test")
    done = workshop("logs", "yours")
    assert done.code == 1 and "mine" in done.err
    assert workshop("logs", "../mine").code == 2


@pytest.mark.parametrize("name", ["job", "7"])
def test_the_log_of_a_job_is_shown_like_any_other(workshop_home, tmp_path, name):
    """By its server's name or its number, whether or not SLURM answers."""
    (tmp_path / "output_7.out").write_text("what the server says\n")
    (tmp_path / "error_7.out").write_text("[workshop] ended: x\n")
    log = str(tmp_path / "output_7.out")
    record_of("job", workshop_home, where="slurm", job_id="7", state="failed", reason="x", log=log)
    done = workshop("logs", name)
    assert "what the server says" in done.out and "ended: x" in done.out
    assert "ended: x" in workshop("logs", name, "--tail", "1").out
    shown = workshop("servers", name).out
    assert "job" in shown and "failed: x" in shown


def test_with_several_servers_batch_and_ask_name_their_own_option(server, workshop_home, tmp_path):
    started = server()
    (workshop_home / "servers").mkdir(parents=True, exist_ok=True)
    for name in ("first", "second"):
        made = ServerRecord(name=name, url=started.url, model="stub", api_key="k", state="ready")
        records.write(made)
    (tmp_path / "in.json").write_text('["a"]')
    for args in (["batch", str(tmp_path / "in.json"), str(tmp_path / "out.jsonl")], ["ask", "a"]):
        done = workshop(*args)
        assert done.code == 1 and "--name first" in done.err
        assert "connect(" not in done.err
        assert "several" in done.err.lower()
    done = workshop("ask", "a", "--name", "second")
    assert "several" not in done.err.lower()


def test_an_unknown_command_gets_the_nearest(subtests):
    for line, command in [
        ("sreve", "serve"),
        ("reconsile", "reconcile"),
        ("slurm submitt", "submit"),
        ("plan --gpuu", "--gpu"),
    ]:
        with subtests.test(line):
            done = CliRunner().invoke(group, line.split())
            assert done.exit_code == 2
            assert re.search(rf"Did you mean .*{command}\b", done.stderr)


def test_help_and_version_are_words_as_well():
    runner = CliRunner()
    assert runner.invoke(group, ["help"]).stdout == runner.invoke(group, ["--help"]).stdout
    assert "--anyway" in runner.invoke(group, ["help", "slurm", "submit"]).stdout
    assert runner.invoke(group, ["version"]).stdout == runner.invoke(group, ["--version"]).stdout


def test_there_are_at_most_two_dozen_commands():
    assert len(COMMANDS) <= 24


def test_a_word_like_no_command_leads_to_the_list():
    done = CliRunner().invoke(group, ["qqqq"])
    assert done.exit_code == 2 and "Did you mean" not in done.stderr and "--help" in done.stderr


def test_help_is_one_screen_in_five_groups():
    text = CliRunner().invoke(group, ["--help"], terminal_width=80).stdout
    heads = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert [head for head in heads if head != "Options"] == [
        "Start",
        "Plan",
        "Serve",
        "Use",
        "Teach",
    ]
    assert len(text.splitlines()) <= 46
    assert all(text.count(f"\n  {name} ") == 1 for name in COMMANDS)


def test_several_names_get_a_line_with_a_key_each(workshop_home):
    result = workshop("keys", "add", "Ada.Lovelace", "grace@uni.edu")
    lines = dict(line.split(",") for line in result.out.splitlines())
    assert list(lines) == ["Ada.Lovelace", "grace@uni.edu"]
    server_side = keys.Learners(workshop_home / "servers" / "any.json")
    for name, key in lines.items():
        assert server_side.who(key.encode()) == name


@pytest.mark.parametrize(
    ("names", "says"),
    [(("bob", "eve"), "eve has a key already"), (("bob", "bob"), "bob has a key already")],
)
def test_nobody_gets_a_key_if_one_of_the_names_cannot(workshop_home, names, says):
    keys.add("eve")
    result = workshop("keys", "add", *names)
    assert result.code == 2 and says in result.err
    assert [entry["name"] for entry in keys.listed()] == ["eve"]
