"""Notebook 4 asks for the logprobs of all tokens, or for 20 where the server of a class refuses that."""

from __future__ import annotations

from workshop.course.notebooks import nb04
from workshop.errors import BadInput


class Server:
    """A client whose server lists at most so many tokens."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.logprobs_of_requests: list[int] = []

    def complete(self, prompt: str, *, logprobs: int, **settings: object) -> dict:
        self.logprobs_of_requests.append(logprobs)
        if self.most is not None and not 0 <= logprobs <= self.most:
            raise BadInput("Too many.", "Ask for fewer.")
        top = {"token_id:7": -0.5, "token_id:9": -1.0}
        part = {"tokens": ["token_id:7"], "token_logprobs": [-0.5], "top_logprobs": [top]}
        return {"choices": [{"logprobs": part}]}


def test_tokens_are_numbers_with_their_logprobs():
    assert nb04.next_token_logprobs(Server(), "x") == {7: -0.5, 9: -1.0}  # pyright: ignore


def test_all_tokens_are_asked_for_first_and_then_20():
    server = Server(most=20)
    assert nb04.next_token_logprobs(server, "x") == {7: -0.5, 9: -1.0}  # pyright: ignore
    assert server.logprobs_of_requests == [-1, 20]
