"""A server that sends an answer twice: no request of a learner gets the answer to another one."""

from __future__ import annotations

import json

import pytest
import wire_stub

from workshop.client.client import Client
from workshop.errors import WorkshopError
from workshop.servers.records import ServerRecord


@pytest.fixture
def wire(workshop_home):
    with wire_stub.servers() as start:
        yield start


def client(server) -> Client:
    return Client(
        ServerRecord(
            name="given", url=server.url, model="stub", api_key="", where="given", state="ready"
        )
    )


def test_no_request_gets_the_answer_to_another(wire, capsys):
    for later_s in (0, 0.0002, 0.002, 0.01):

        def doubled(request, later_s=later_s):
            reply = wire_stub.answer(request)
            reply.after_s, reply.again_after_s = 0.002, (later_s,)
            return reply

        llm = client(wire(doubled))
        for number in range(40):
            assert llm.complete(f"prompt {number}").choices[0].text == f"prompt {number}"
            answer = llm.chat(f"message {number}")
            assert answer.choices[0].message.content == f"message {number}"
    notes = capsys.readouterr().err.splitlines()
    assert 0 < len(notes) <= 4  # once for each server at most
    assert all("each request has a connection of its own from now on" in note for note in notes)


def test_each_request_has_an_id_of_its_own_and_the_learners_counts(wire):
    server = wire()
    llm = client(server)
    llm.complete("a")
    llm.complete("a")
    assert llm.complete("a", extra_headers={"X-Request-Id": "mine"}).id == "cmpl-mine"
    ids = [request.headers["x-request-id"] for request in server.asked]
    assert len(set(ids)) == 3 and ids[2] == "mine"


def test_a_server_that_gives_every_request_the_first_answer_is_named(wire):
    for other in ({}, {"id": "cmpl-other"}, {"id": None}):
        first = []

        def reply(request, first=first, other=other):
            first.append(wire_stub.answer(request))
            fields = json.loads(first[0].body) | (other if request.number else {})
            return wire_stub.Reply(json.dumps(fields).encode())

        server = wire(reply)
        llm = client(server)
        llm.complete("a")
        with pytest.raises(WorkshopError, match="answers with the answer to another request"):
            llm.complete("b")
        assert [request.on_connection for request in server.asked] == [1, 2, 1], other


def test_a_server_with_ids_of_its_own_is_believed(wire):
    server = wire(lambda request: wire_stub.answer(request, id="same"))
    llm = client(server)
    assert [llm.complete(text).choices[0].text for text in "abc"] == ["a", "b", "c"] and len(
        server.asked
    ) == 3


def test_a_stream_of_another_request_breaks_off(wire):
    ids = []

    def reply(request):
        ids.append(request.headers["x-request-id"])
        piece = {
            "id": f"cmpl-{ids[0]}",
            "choices": [{"index": 0, "text": "x", "finish_reason": "stop"}],
        }
        body = b"data: " + json.dumps(piece).encode() + b"\n\ndata: [DONE]\n\n"
        return wire_stub.Reply(body, headers={"Content-Type": "text/event-stream"})

    llm = client(wire(reply))
    assert [piece.choices[0].text for piece in llm.complete("a", stream=True)] == ["x"]
    with pytest.raises(WorkshopError, match="breaks off"):
        list(llm.complete("b", stream=True))
