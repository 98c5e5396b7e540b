"""What a server says about each token's probability, as tidy rows: completions, chat, and the prompt.

A logprob is the natural logarithm of a probability; the surprise is −log2 of it, in bits; the perplexity of a text is
2 to its mean surprise. A response is what the `openai` package returns, or its JSON as a dict. Pure: standard library.

>>> from workshop import connect, logprobs
>>> answer = connect().complete("San Francisco is a", max_tokens=2, logprobs=3, prompt_logprobs=3)
>>> [row.part for row in logprobs.rows(answer)][-2:]
['completion', 'completion']
>>> logprobs.perplexity(logprobs.rows(answer)) > 1
True

Source: vLLM 0.32, entrypoints/openai/completion/serving.py and chat_completion/serving.py.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from workshop.client.sampling import MINUS_INFINITY_SENT, Token, pipeline
from workshop.client.sampling_settings import Settings
from workshop.errors import BadInput

TOKEN_ID = "token_id:"  # what `return_tokens_as_token_ids` puts in place of the text
# of a token, in a table
SAID = "token", "token_id", "logprob", "probability", "surprise_bits", "rank"
NOT_ASKED = "This response has no logprobs."
HOW_TO_ASK = "Ask for them: logprobs=5 (chat: logprobs=True, top_logprobs=5), prompt_logprobs=5 for the prompt."


class _Told:
    """What a logprob says besides; None where there is none."""

    logprob: float | None

    @property
    def probability(self) -> float | None:
        return None if self.logprob is None else math.exp(self.logprob)

    @property
    def surprise_bits(self) -> float | None:
        """-log2 of the probability: 0 for a certainty, 1 for a coin toss, 13 for one token of 8,192."""
        return None if self.logprob is None else -self.logprob / math.log(2) + 0.0


@dataclass(frozen=True)
class Alternative(_Told):
    """One token that could have stood at a position. `rank` 1 is the most probable; None if not known."""

    token: str
    logprob: float
    token_id: int | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Row(_Told):
    """One token of the prompt or of the completion."""

    part: str  # "prompt" or "completion"
    position: int  # counted from 0 within its part
    token: str  # its text; not every token is text: a piece of an emoji shows as "�" or as nothing
    # natural logarithm of the model's probability; None for one that nothing stood before
    logprob: float | None
    token_id: int | None = None
    rank: int | None = (
        None  # 1: the most probable; None if all that is known is that it was below the alternatives
    )
    alternatives: tuple[
        Alternative, ...
    ] = ()  # the most probable tokens first; the row's own token is one of them

    @property
    def most_probable(self) -> Alternative | None:
        """The alternative that greedy sampling would have taken; None if there are no alternatives."""
        return max(self.alternatives, key=lambda one: one.logprob, default=None)


def rows(response: object, *, choice: int = 0, k: int | None = None) -> list[Row]:
    """Return the tokens of a response, prompt first (if it has prompt_logprobs), then the completion.

    Args:
        choice: which of the `n` answers.
        k: what `logprobs=` was. A completion does not say; ranks need it, and without it it is inferred, as far
            as that goes (a token that comes last in every list may be the k-th, or from further down).

    Raises BadInput: the response has no logprobs, or none that can be read, or no such choice.
    """
    try:
        return _rows(_plain(response), choice, k)
    except (TypeError, AttributeError, LookupError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        said = f"The logprobs of this response cannot be read ({type(error).__name__}: {error})."
        raise BadInput(said, "Is it the whole answer of a vLLM server?") from None


def _rows(data: Mapping, choice: int, k: int | None) -> list[Row]:
    choices = data.get("choices") or []
    if not 0 <= choice < len(choices):
        said = f"The response has {len(choices)} choices, and none with the number {choice}."
        raise BadInput(said, "Choices are counted from 0; n=… asks for more.")
    one = choices[choice]
    prompt = data.get("prompt_logprobs") or one.get("prompt_logprobs")  # chat: beside the choices
    ids = one.get("prompt_token_ids") or data.get("prompt_token_ids")
    found = _prompt_rows(prompt, ids) if prompt else []
    logprobs = one.get("logprobs")
    if logprobs and logprobs.get("content") is not None:
        found += _chat_rows(logprobs["content"], one.get("token_ids"))
    elif logprobs and logprobs.get("tokens") is not None:
        found += _completion_rows(logprobs, one.get("token_ids"), k)
    if not found:
        raise BadInput(NOT_ASKED, HOW_TO_ASK)
    return found


def next_token_logprobs(
    response: object, *, choice: int = 0, position: int = 0
) -> dict[Token, float]:
    """Return token → logprob of one generated position, as `sampling` takes it.

    Tokens are ids if the request said `return_tokens_as_token_ids=True`, as it should: tokens that decode to the
    same text (the pieces of emojis) share one key otherwise, and all but one are lost.
    """
    found = [row for row in rows(response, choice=choice) if row.part == "completion"]
    if not 0 <= position < len(found):
        said = f"There are logprobs of {len(found)} generated tokens, and none with the number {position}."
        raise BadInput(said, HOW_TO_ASK)
    return {
        one.token if one.token_id is None else one.token_id: one.logprob
        for one in found[position].alternatives
    }


def perplexity(tokens: Iterable[Row]) -> float:
    """Return exp of the mean surprise: among how many equally likely tokens the model was choosing, on average.

    Tokens without a logprob (the first of a prompt) do not count.

    Raises BadInput: no token has a logprob.
    """
    logprobs = [row.logprob for row in tokens if row.logprob is not None]
    if not logprobs:
        raise BadInput("No token has a logprob, so there is no perplexity.", HOW_TO_ASK)
    mean = -math.fsum(logprobs) / len(logprobs)
    return math.exp(mean) if mean < 700 else math.inf


def total_logprob(tokens: Iterable[Row]) -> float:
    """Return the logprob of the whole text: the sum over its tokens."""
    return math.fsum(row.logprob for row in tokens if row.logprob is not None)


def processed(
    row: Row, settings: Settings, *, output_tokens: Iterable[str] = ()
) -> dict[str, float]:
    """Return text → logprob after the sampling parameters, computed from the alternatives of a row.

    The server itself sends one kind only (`--logprobs-mode`, raw by default). Tokens that cannot be sampled are
    -inf. Of a truncated list, the mass that it does not show is estimated as in `sampling.Step.seen`.
    """
    logprobs = {one.token: one.logprob for one in row.alternatives}
    # The row's own token may stand far below the others: those between are not listed.
    top = [one.logprob for number, one in enumerate(row.alternatives, 1) if one.rank == number]
    scores: dict[Token, float] = {**logprobs}
    result = pipeline(scores, settings, output_tokens=output_tokens, ceiling=min(top, default=0.0))
    now, seen = result.probabilities, result.steps[-1].seen
    return {
        token: math.log(now[token]) + math.log(seen) if token in now else -math.inf
        for token in logprobs
    }


def tidy(tokens: Iterable[Row]) -> list[dict]:
    """Return one dict for each token and alternative: `chosen` marks the token that stands in the text."""
    return [
        {"part": row.part, "position": row.position}
        | {name: getattr(one, name) for name in SAID}
        | {"chosen": (one.token, one.token_id) == (row.token, row.token_id)}
        for row in tokens
        for one in row.alternatives or (row,)
    ]


def _prompt_rows(positions: Sequence[Mapping | None], ids: Sequence[int] | None) -> list[Row]:
    """`{"24661": {"logprob": …, "rank": 284, "decoded_token": "San"}, …}` a position; the prompt's own token first."""
    found = []
    for number, position in enumerate(positions):
        if not position:  # nothing stood before the first token
            token_id = ids[number] if ids else None
            found.append(Row("prompt", number, "", None, token_id))
            continue
        listed = [
            Alternative(
                entry.get("decoded_token") or "",
                _finite(entry["logprob"]),
                int(key),
                entry.get("rank"),
            )
            for key, entry in position.items()
        ]
        own = next((one for one in listed if ids and one.token_id == ids[number]), listed[0])
        found.append(
            Row("prompt", number, own.token, own.logprob, own.token_id, own.rank, _ranked(listed))
        )
    return found


def _completion_rows(logprobs: Mapping, ids: Sequence[int] | None, k: int | None) -> list[Row]:
    """`{"tokens": […], "token_logprobs": […], "top_logprobs": [{text: logprob}, …]}`; k alternatives and the chosen."""
    texts, chosen = logprobs["tokens"], logprobs["token_logprobs"]
    tops = logprobs.get("top_logprobs") or [None] * len(texts)
    # Of two tokens with the same text, which share a key, the chosen one counts.
    listed = [
        {**(top or {}), text: logprob}
        for text, logprob, top in zip(texts, chosen, tops, strict=True)
    ]
    if k is None:  # k entries where the chosen token is among the top k, k + 1 where it is not
        among = [
            len(top)
            for top, text in zip(listed, texts, strict=True)
            if len(top) > 1 and None not in top.values() and min(top, key=top.__getitem__) != text
        ]
        k = max(among, default=min(map(len, listed), default=1) - 1)
    found = enumerate(zip(texts, chosen, listed, strict=True))
    return [
        _generated(number, text, logprob, list(top.items()), ids, k)
        for number, (text, logprob, top) in found
    ]


def _chat_rows(content: Sequence[Mapping], ids: Sequence[int] | None) -> list[Row]:
    """`[{"token": …, "logprob": …, "top_logprobs": [{"token": …, "logprob": …}, …]}, …]`; just k alternatives."""
    found = []
    for number, one in enumerate(content):
        listed = [(other["token"], other["logprob"]) for other in one.get("top_logprobs") or ()]
        k = len(listed)
        if (one["token"], one["logprob"]) not in listed:
            listed.append((one["token"], one["logprob"]))
        found.append(_generated(number, one["token"], one["logprob"], listed, ids, k))
    return found


def _generated(
    number: int,
    text: str,
    logprob: float | None,
    listed: list[tuple[str, float]],
    ids: Sequence[int] | None,
    k: int,
) -> Row:
    """One generated token; ranks are counted, save that of a token from further down than the top k go."""
    token_id = ids[number] if ids else _id_of(text)
    if logprob is None:  # an echoed prompt's first token
        return Row("completion", number, text, None, token_id)
    above: dict[float, int] = {}  # how many are more probable; the list may be a whole vocabulary
    for index, (_, value) in enumerate(sorted(listed, key=lambda one: -one[1])):
        above.setdefault(value, index)
    alternatives = _ranked(
        Alternative(
            token,
            _finite(value),
            token_id if (token, value) == (text, logprob) else _id_of(token),
            above[value] + 1 if above[value] < k else None,
        )
        for token, value in listed
    )
    rank = above[logprob] + 1
    return Row(
        "completion",
        number,
        text,
        _finite(logprob),
        token_id,
        rank if rank <= k else None,
        alternatives,
    )


def _ranked(listed: Iterable[Alternative]) -> tuple[Alternative, ...]:
    return tuple(sorted(listed, key=lambda one: -one.logprob))


def _id_of(text: str) -> int | None:
    digits = text.removeprefix(TOKEN_ID)
    return int(digits) if digits != text and digits.isdigit() else None


def _finite(logprob: float) -> float:
    """JSON has no infinity: the server sends -9999 for a probability of zero."""
    return -math.inf if logprob <= MINUS_INFINITY_SENT else logprob


def _plain(response: object) -> Mapping:
    if isinstance(response, Mapping):
        return response
    dump = getattr(response, "model_dump", None)
    if dump is None:
        raise BadInput(f"{type(response).__name__} is no response of a server.", HOW_TO_ASK)
    return dump()
