"""connect() and the client: the right server, or one sentence that says why not."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from http.server import ThreadingHTTPServer

import pytest
from small_server import Handler
from stand_ins import stand_in

import workshop
from workshop import timestamps
from workshop.client import waiting
from workshop.errors import BadInput, WorkshopError
from workshop.servers import records
from workshop.servers.host import processes
from workshop.servers.records import ServerRecord
from workshop.servers.slurm import queue as slurm_queue

COMPLETION = {
    "id": "c",
    "object": "text_completion",
    "created": 1,
    "model": "m",
    "usage": None,
    "choices": [{"index": 0, "text": " city", "finish_reason": "length", "logprobs": None}],
}
SCHEMA = {
    "components": {
        "schemas": {"CompletionRequest": {"properties": {"top_k": {}, "temperature": {}}}}
    }
}


class Stub(Handler):
    """An OpenAI-like server whose answers the test chooses: only the client is under test here."""

    answers: dict[str, tuple[int, object]]
    seen: list[dict]
    key = "right"

    def _answer(self):
        self.seen.append(self.body() or {})
        status, data = self.answers.get(self.path, (404, {}))
        if isinstance(data, list):
            status, data = data.pop(0)
        if self.headers.get("Authorization") != f"Bearer {self.key}":
            status, data = 401, {"error": {"message": "key"}}
        self.reply(data, status)

    do_GET = do_POST = _answer


@pytest.fixture
def stub(workshop_home, monkeypatch):
    handler = type(
        "Handler",
        (Stub,),
        {
            "seen": [],
            "answers": {
                "/v1/models": (200, {"object": "list", "data": [{"id": "m", "object": "model"}]}),
                "/v1/completions": (200, COMPLETION),
                "/openapi.json": (200, SCHEMA),
            },
        },
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    handler.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield handler
    server.shutdown()


def write_record(stub, name="a", **changes):
    fields = {
        "url": stub.url,
        "model": "m",
        "api_key": "right",
        "pid": os.getpid(),
        "process_started": processes.started(os.getpid()),
        "state": "ready",
        "host": socket.gethostname(),
        "boot_id": records.boot_id(),
        "started": timestamps.now("milliseconds"),
        **changes,
    }
    records.write(ServerRecord(name=name, **fields))


def test_the_only_server_is_found_and_asked(stub):
    write_record(stub)
    client = workshop.connect()
    assert client.complete("San", top_k=3, temperature=0.5).choices[0].text == " city"
    assert stub.seen[-1] == {"model": "m", "prompt": "San", "top_k": 3, "temperature": 0.5}


def test_several_servers_are_named_and_one_can_be_chosen(stub):
    write_record(stub, "first")
    write_record(stub, "second")
    with pytest.raises(WorkshopError, match="first, second"):
        workshop.connect()
    assert workshop.connect("second").record.name == "second"


def test_no_server_says_how_to_start_one(workshop_home):
    with pytest.raises(WorkshopError, match="workshop serve"):
        workshop.connect()
    with pytest.raises(WorkshopError, match="'nobody'"):
        workshop.connect("nobody")


def test_a_server_that_is_not_ready_says_why(stub):
    for changes, says in (
        ({"state": "starting"}, "still starting"),
        ({"state": "failed", "reason": "no memory"}, "no memory"),
        ({"pid": 2**22}, "has failed"),
        ({"boot_id": "another"}, "restarted"),
    ):
        write_record(stub, **changes)
        with pytest.raises(WorkshopError, match=says):
            workshop.connect()


def test_a_ready_one_wins_over_a_failed_one(stub):
    write_record(stub, "old", state="failed")
    write_record(stub, "new")
    assert workshop.connect().record.name == "new"


def test_the_environment_wins_and_its_model_is_asked_for(stub, monkeypatch):
    monkeypatch.setenv("WORKSHOP_URL", stub.url.removesuffix("/v1"))
    monkeypatch.setenv("WORKSHOP_API_KEY", "right")
    assert workshop.connect().model == "m" and workshop.connect().url == stub.url
    monkeypatch.setenv("WORKSHOP_API_KEY", "wrong")
    with pytest.raises(WorkshopError, match="does not accept this key"):
        workshop.connect()
    monkeypatch.delenv("WORKSHOP_API_KEY")
    with pytest.raises(WorkshopError, match=r"none was sent\..*unset WORKSHOP_URL"):
        workshop.connect()
    monkeypatch.setenv("WORKSHOP_URL", "localhost:8000")
    with pytest.raises(BadInput, match="no address"):
        workshop.connect()


def test_a_shared_server_is_found_where_there_is_none_of_ones_own(stub, monkeypatch, tmp_path):
    write_record(stub, "class")
    folder = tmp_path / "shared"
    folder.mkdir()
    records.path_of("class").rename(folder / "class.json")
    monkeypatch.setenv("WORKSHOP_SHARED", str(folder))
    assert workshop.connect().record.name == "class"
    write_record(stub, "mine", state="failed")  # hides nothing
    assert workshop.connect().record.name == "class"


def test_another_server_on_the_port_is_noticed(stub):
    write_record(stub, model="expected")
    with pytest.raises(WorkshopError, match="serves m, not expected"):
        workshop.connect()


def test_a_misspelt_parameter_does_not_pass_in_silence(stub):
    write_record(stub)
    with pytest.raises(BadInput, match="Did you mean 'temperature'"):
        workshop.connect().complete("San", temprature=0)


def test_what_the_server_refuses_is_its_own_sentence(stub):
    write_record(stub)
    client = workshop.connect()
    stub.answers["/v1/completions"] = (
        400,
        {"error": {"message": "top_p must be in (0, 1], got 0.", "code": 400}},
    )
    with pytest.raises(BadInput, match="top_p must be in"):
        client.complete("San")
    stub.answers["/v1/completions"] = (500, {"error": {"message": "EngineCore died"}})
    with pytest.raises(WorkshopError, match="does not answer"):
        client.complete("San")


def test_a_client_of_an_earlier_start_says_that_the_server_was_started_again(stub):
    write_record(stub)
    client = workshop.connect()
    stub.key = "new"
    with pytest.raises(WorkshopError, match="does not accept this key"):
        client.complete("San")
    write_record(stub, api_key="new")
    with pytest.raises(WorkshopError, match=r"'a' was started again\..*connect\(\) again"):
        client.complete("San")
    stub.key, stub.answers["/v1/completions"] = (
        "right",
        (500, {"error": {"message": "EngineCore died"}}),
    )
    with pytest.raises(WorkshopError, match="was started again"):
        client.complete("San")


def test_validation_errors_are_shown_by_what_they_say(stub):
    write_record(stub)
    message = (
        "1 validation error:\n  {'type': 'value_error', 'loc': ('body',), 'msg': 'Value error, `n` is odd.', "
        "'input': {'n': 3}}\n\n  File \"api_utils.py\""
    )
    stub.answers["/v1/completions"] = (400, {"error": {"message": message, "code": 400}})
    with pytest.raises(BadInput, match=r"\(400\): `n` is odd\.$"):
        workshop.connect().complete("San")
    message = message.replace("('body',)", "('body', 'n')").replace(
        "Value error, `n` is odd.", "Field required"
    )
    stub.answers["/v1/completions"] = (400, {"error": {"message": message, "code": 400}})
    with pytest.raises(BadInput, match=r"\(400\): n: Field required\.$"):
        workshop.connect().complete("San")


def test_a_connection_that_the_server_closed_after_an_answer_costs_nothing(stub):
    """vLLM 0.25 answers a chat without a template with 400, and resets the connection afterwards."""
    write_record(stub)
    stub.protocol_version = "HTTP/1.1"
    plain, resets = stub._answer, []

    def answer_and_reset(self):
        plain(self)
        # the next request is there
        if self.path == "/v1/completions" and self.request.recv(1, socket.MSG_PEEK):
            resets.append(self.path)
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.request.close()

    stub.do_GET = stub.do_POST = answer_and_reset
    client = workshop.connect()
    assert [client.complete("San").choices[0].text for _ in range(3)] == [" city"] * 3 and len(
        resets
    ) == 2


def test_a_server_that_went_away_is_told_at_once(stub):
    write_record(stub, "gone", url="http://127.0.0.1:9/v1")
    began = time.monotonic()
    with pytest.raises(WorkshopError, match="does not answer"):
        workshop.connect()
    assert time.monotonic() - began < 8


def test_a_name_that_no_server_has_is_answered_with_those_that_are_ready(stub):
    write_record(stub, "first")
    write_record(stub, "second")
    with pytest.raises(WorkshopError, match=r"called 'nobody'.*first, second") as refusal:
        workshop.connect("nobody")
    assert "workshop serve" not in refusal.value.remedy


def test_the_owner_of_a_server_that_is_silent_is_not_told_to_start_one(stub):
    """Its process lives."""
    write_record(stub, "mine", url="http://127.0.0.1:9/v1")
    with pytest.raises(WorkshopError, match="does not answer") as silent:
        workshop.connect()
    remedy = silent.value.remedy
    assert "workshop servers mine" in remedy and "workshop logs mine" in remedy
    assert "workshop serve " not in remedy


def test_a_learner_whose_shared_server_is_silent_asks_its_owner(stub, monkeypatch, tmp_path):
    write_record(stub, "class", url="http://127.0.0.1:9/v1", host="elsewhere")
    folder = tmp_path / "shared"
    folder.mkdir()
    records.path_of("class").rename(folder / "class.json")
    monkeypatch.setenv("WORKSHOP_SHARED", str(folder))
    with pytest.raises(WorkshopError, match="does not answer") as silent:
        workshop.connect()
    assert "whoever shared it" in silent.value.remedy


@pytest.mark.parametrize(
    ("state", "says"), [("SUSPENDED", "suspended by SLURM"), ("TIMEOUT", "reached its time limit")]
)
def test_a_job_that_stops_under_a_client_says_what_its_queue_says(
    stub, tmp_path, monkeypatch, state, says
):
    """It was running when the client connected; suspended, its port answers nobody."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    stand_in(tmp_path, "squeue", f'echo "7|job|$(cat {tmp_path}/state)|None|n1|1:02|1:00|/w"')
    stand_in(tmp_path, "scontrol", "exit 1")
    (tmp_path / "state").write_text("RUNNING")
    write_record(stub, "job", where="slurm", job_id="7", pid=None, process_started=None)
    client = workshop.connect()
    (tmp_path / "state").write_text(state)
    client.url = client.root = "http://127.0.0.1:9"
    monkeypatch.setattr(slurm_queue, "listens", lambda url: False)
    with pytest.raises(WorkshopError, match=says) as stopped:
        client.models()
    assert "workshop serve " not in stopped.value.remedy


def test_a_stream_without_a_token_says_that_it_waits(stub, monkeypatch, capsys):
    monkeypatch.setattr(waiting, "SILENCE_S", 0.2)
    write_record(stub)
    client = workshop.connect()
    answer = stub._answer

    def late(handler):
        time.sleep(0.6)
        answer(handler)

    stub.do_POST = late
    with pytest.raises(WorkshopError, match="breaks off"):  # the stub answers without a stream
        list(client.complete("San", stream=True))
    message = capsys.readouterr().err
    assert message.count("No token for") == 1 and "workshop servers" in message
    client.complete("San")  # only streams are watched by somebody
    assert capsys.readouterr().err == ""


def test_notebooks_show_the_sentence_without_frames():
    shown = "\n".join(WorkshopError("It broke.", "Mend it.")._render_traceback_())
    assert "It broke." in shown and "Mend it." in shown and "File" not in shown
