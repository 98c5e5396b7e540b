"""Notebook 4 asks for the logprobs of all tokens, or for 20 where the server of a class refuses that; it counts labels."""

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


def test_bars_have_the_same_rows_the_best_label_first_and_no_label_last():
    hot = [" San", "ors", " biology", " biology", " physics", " W"]
    counts = nb04.counts_of_labels({"cold": [" physics"] * 5, "hot": hot})
    assert counts == {
        "cold": {"physics": 5, "biology": 0, "no label": 0},
        "hot": {"physics": 1, "biology": 2, "no label": 3},
    }
    assert all(list(rows) == ["physics", "biology", "no label"] for rows in counts.values())
