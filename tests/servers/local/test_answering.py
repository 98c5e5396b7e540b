"""Asking a server whether it answers: what waiting changes, and what it does not."""

from __future__ import annotations

import odd_answers
import pytest
import small_server

from workshop.errors import WorkshopError
from workshop.servers.local.answering import answers


@pytest.fixture
def ask():
    """Return a function: what `answers` says of a server that replies with a code and a body."""
    replies = []

    class Answers(small_server.Handler):
        def do_POST(self):
            self.body()
            code, data = replies[-1]
            self.reply(data, code)

    with small_server.serving(Answers) as url:
        record = small_server.record(url=f"{url}/v1", model="a-model")

        def reply(code: int, data: object) -> bool:
            replies.append((code, data))
            return answers(record)

        yield reply


def test_a_completion_of_the_model_is_an_answer(ask):
    assert ask(200, {"model": "a-model"})


def test_what_may_still_change_is_no_answer_yet(ask):
    for code, body in [
        (200, {"model": "another"}),
        (200, b"not JSON"),
        (401, {}),
        (500, {}),
        (200, [3]),
        (200, b"[" * 9999),
        (503, b"starting"),
    ]:
        assert not ask(code, body), code


def test_a_refusal_ends_the_waiting_with_the_servers_words(ask, subtests):
    for code, body, pattern in [
        (
            400,
            {"error": {"message": "The prompt cannot be empty"}},
            r"\(400\): The prompt cannot be empty\.",
        ),
        (404, {"detail": "Not Found"}, r"\(404\): Not Found\."),
        (422, b"<html>", r"\(422\): <html>\."),
        (501, {"error": {"message": None}}, r"\(501\): no word\."),
        (400, {"error": {"message": "one\ntwo"}}, r"\(400\): one\. Serve"),
    ]:
        with subtests.test(f"{code} {body}"):
            with pytest.raises(WorkshopError, match=pattern) as refused:
                ask(code, body)
            assert "generates text" in refused.value.remedy


def test_another_server_on_the_port_is_told_apart_from_a_model_of_another_kind(ask):
    with pytest.raises(WorkshopError, match="does not exist") as refused:
        ask(404, {"error": {"message": "The model `a-model` does not exist."}})
    assert "workshop servers" in refused.value.remedy


def test_the_key_goes_neither_to_a_web_proxy_nor_where_a_redirect_leads(monkeypatch):
    server, other = odd_answers.Server(), odd_answers.Server()
    try:
        for name in ("http_proxy", "all_proxy"):
            monkeypatch.setenv(name, other.root)
        monkeypatch.delenv("no_proxy", raising=False)
        for status in (301, 302, 303, 307, 308):
            answer = odd_answers.redirect(f"{other.url}/completions").replace("307", str(status))
            server.answers["/v1/completions"] = answer
            assert not answers(small_server.record(url=server.url))
        assert other.seen == [] and len(server.seen) == 5
    finally:
        server.close()
        other.close()
