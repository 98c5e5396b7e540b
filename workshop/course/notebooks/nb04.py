"""Helpers of notebook 04: the logprobs of all tokens that could come next.

>>> from workshop import connect
>>> from workshop.course.notebooks import nb04
>>> len(nb04.next_token_logprobs(connect(), "San Francisco is a"))
8192
"""

from __future__ import annotations

from workshop.client import logprobs
from workshop.client.client import Client
from workshop.client.sampling import Token
from workshop.errors import BadInput

__all__ = ["next_token_logprobs"]

ALL = -1  # of vLLM's `logprobs`: the whole vocabulary
LISTED_IN_A_CLASS = 20  # vLLM's default of --max-logprobs


def next_token_logprobs(llm: Client, prompt: str) -> dict[Token, float]:
    """Return token → logprob for the token that comes after a prompt.

    Tokens are named by their numbers in the vocabulary, because two tokens may have the same text.
    All tokens are listed, or the most probable 20 where the server of a class allows no more.
    """
    try:
        return _most_probable(llm, prompt, ALL)
    except BadInput:
        return _most_probable(llm, prompt, LISTED_IN_A_CLASS)


def _most_probable(llm: Client, prompt: str, k: int) -> dict[Token, float]:
    answer = llm.complete(
        prompt, max_tokens=1, temperature=0, logprobs=k, return_tokens_as_token_ids=True
    )
    return logprobs.next_token_logprobs(answer)
