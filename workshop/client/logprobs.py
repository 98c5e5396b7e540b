"""Turns what a server says about each token's probability into tidy rows.

A logprob is the natural logarithm of a probability; the surprise is −log2 of it, in bits; the
perplexity of a text is 2 to its mean surprise. A response is what the `openai` package returns, or
its JSON as a dict. Pure: standard library.

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
NOT_ASKED = "This response has no logprobs."
HOW_TO_ASK = "Ask for them: logprobs=5 (chat: logprobs=True, top_logprobs=5), prompt_logprobs=5 for the prompt."


class _WithLogprob:
    """The values that follow from a logprob; None if there is no logprob."""

    logprob: float | None

    @property
    def probability(self) -> float | None:
        """The probability, from 0 to 1."""
        if self.logprob is None:
            return None
        return math.exp(self.logprob)

    @property
    def surprise_bits(self) -> float | None:
        """The surprise, −log2 of the probability: 0 if certain, 1 for a coin toss."""
        if self.logprob is None:
            return None
        return -self.logprob / math.log(2) + 0.0


@dataclass(frozen=True)
class Alternative(_WithLogprob):
    """A token that could have stood at a position. `rank`: 1 is the most probable, None unknown."""

    token: str
    logprob: float
    token_id: int | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Row(_WithLogprob):
    """One token of the prompt or of the completion."""

    part: str  # "prompt" or "completion"
    position: int  # counted from 0 within its part
    token: str  # its text; not every token is text: a piece of an emoji shows as "�" or as nothing
    # natural logarithm of the model's probability; None for one that nothing stood before
    logprob: float | None
    token_id: int | None = None
    # 1: the most probable; None if all that is known is that it was below the alternatives
    rank: int | None = None
    # the most probable tokens first; the row's own token is one of them
    alternatives: tuple[Alternative, ...] = ()

    @property
    def most_probable(self) -> Alternative | None:
        """The alternative that greedy sampling would have taken; None without alternatives."""
        return max(self.alternatives, key=_logprob_of, default=None)


def rows(response: object, *, choice: int = 0, k: int | None = None) -> list[Row]:
    """Return the tokens of a response: the prompt (if it has prompt_logprobs), then the completion.

    Args:
        choice: which of the `n` answers.
        k: what `logprobs=` was. A completion does not say; ranks need it, and without it it is
            inferred, as far as that goes (a token that comes last in every list may be the k-th, or
            from further down).

    Raises BadInput: the response has no logprobs, or none that can be read, or no such choice.
    """
    try:
        return _rows(_plain(response), choice, k)
    except (TypeError, AttributeError, LookupError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        problem = f"The logprobs of this response cannot be read ({type(error).__name__}: {error})."
        raise BadInput(problem, "Is it the whole answer of a vLLM server?") from None


def _rows(data: Mapping, number: int, k: int | None) -> list[Row]:
    """Return the rows of the choice with this number, counted from 0."""
    choices = data.get("choices") or []
    if not 0 <= number < len(choices):
        problem = f"The response has {len(choices)} choices, and none with the number {number}."
        raise BadInput(problem, "Choices are counted from 0; n=… asks for more.")
    choice = choices[number]
    # chat has them beside the choices
    prompt = data.get("prompt_logprobs") or choice.get("prompt_logprobs")
    prompt_ids = choice.get("prompt_token_ids") or data.get("prompt_token_ids")
    token_rows = []
    if prompt:
        token_rows += _prompt_rows(prompt, prompt_ids)
    logprobs = choice.get("logprobs")
    if logprobs and logprobs.get("content") is not None:
        token_rows += _chat_rows(logprobs["content"], choice.get("token_ids"))
    elif logprobs and logprobs.get("tokens") is not None:
        token_rows += _completion_rows(logprobs, choice.get("token_ids"), k)
    if not token_rows:
        raise BadInput(NOT_ASKED, HOW_TO_ASK)
    return token_rows


def next_token_logprobs(response: object, *, position: int = 0) -> dict[Token, float]:
    """Return token → logprob of one generated position, as `sampling` takes it.

    Tokens are ids if the request said `return_tokens_as_token_ids=True`, as it should: tokens that
    decode to the same text (the pieces of emojis) share one key otherwise, and all but one are
    lost.

    Raises BadInput: no token was generated there, or it has no logprobs.
    """
    generated = [row for row in rows(response) if row.part == "completion"]
    if not 0 <= position < len(generated):
        problem = f"There are logprobs of {len(generated)} generated tokens, and none with the number {position}."
        raise BadInput(problem, HOW_TO_ASK)
    logprobs: dict[Token, float] = {}
    for alternative in generated[position].alternatives:
        if alternative.token_id is None:
            logprobs[alternative.token] = alternative.logprob
        else:
            logprobs[alternative.token_id] = alternative.logprob
    return logprobs


def perplexity(tokens: Iterable[Row]) -> float:
    """Return the perplexity of tokens: exp of the mean of −logprob.

    So many equally likely tokens the model chose between, on average. Tokens without a logprob (the
    first of a prompt) do not count.

    Raises BadInput: no token has a logprob.
    """
    logprobs = [row.logprob for row in tokens if row.logprob is not None]
    if not logprobs:
        raise BadInput("No token has a logprob, so there is no perplexity.", HOW_TO_ASK)
    mean = -math.fsum(logprobs) / len(logprobs)
    if mean >= 700:  # exp would be larger than any float
        return math.inf
    return math.exp(mean)


def total_logprob(tokens: Iterable[Row]) -> float:
    """Return the logprob of the whole text: the sum over its tokens."""
    return math.fsum(row.logprob for row in tokens if row.logprob is not None)


def processed(row: Row, settings: Settings) -> dict[str, float]:
    """Return text → logprob after the sampling parameters, computed from the alternatives of a row.

    The server itself sends one kind only (`--logprobs-mode`, raw by default). Tokens that cannot be
    sampled are -inf. Of a truncated list, the mass that it does not show is estimated as in
    `sampling.Step.listed_share`.
    """
    scores: dict[Token, float] = {}
    top = []  # without the row's own token where it stands far below: those between are not listed
    for number, alternative in enumerate(row.alternatives, 1):
        scores[alternative.token] = alternative.logprob
        if alternative.rank == number:
            top.append(alternative.logprob)
    ceiling = min(top, default=0.0)
    result = pipeline(scores, settings, ceiling=ceiling)
    log_listed_share = math.log(result.steps[-1].listed_share)
    logprobs = {}
    for alternative in row.alternatives:
        probability = result.probabilities.get(alternative.token)
        if probability is None:
            logprobs[alternative.token] = -math.inf
        else:
            logprobs[alternative.token] = math.log(probability) + log_listed_share
    return logprobs


def _prompt_rows(positions: Sequence[Mapping | None], ids: Sequence[int] | None) -> list[Row]:
    """Return the rows of a prompt.

    A position is `{"24661": {"logprob": …, "rank": 284, "decoded_token": "San"}, …}`, the prompt's
    own token first.
    """
    prompt_rows = []
    for number, position in enumerate(positions):
        token_id = None
        if ids:
            token_id = ids[number]
        if not position:  # nothing stood before the first token
            prompt_rows.append(Row("prompt", number, "", None, token_id))
            continue
        listed = []
        for key, entry in position.items():
            text = entry.get("decoded_token") or ""
            logprob = _finite(entry["logprob"])
            listed.append(Alternative(text, logprob, int(key), entry.get("rank")))
        token = listed[0]
        for alternative in listed:
            if ids and alternative.token_id == token_id:
                token = alternative
                break
        prompt_rows.append(
            Row(
                part="prompt",
                position=number,
                token=token.token,
                logprob=token.logprob,
                token_id=token.token_id,
                rank=token.rank,
                alternatives=_ranked(listed),
            )
        )
    return prompt_rows


def _completion_rows(logprobs: Mapping, ids: Sequence[int] | None, k: int | None) -> list[Row]:
    """Return the rows of a completion, k alternatives for each token, and the chosen token.

    It has `{"tokens": […], "token_logprobs": […], "top_logprobs": [{text: logprob}, …]}`.
    """
    texts = logprobs["tokens"]
    chosen = logprobs["token_logprobs"]
    tops = logprobs.get("top_logprobs") or [None] * len(texts)
    # Of two tokens with the same text, which share a key, the chosen one counts.
    listed = []
    for text, logprob, top in zip(texts, chosen, tops, strict=True):
        listed.append({**(top or {}), text: logprob})
    if k is None:
        k = _alternatives_asked_for(listed, texts)
    generated_rows = []
    for number, text in enumerate(texts):
        entries = list(listed[number].items())
        generated_rows.append(_generated(number, text, chosen[number], entries, ids, k))
    return generated_rows


def _alternatives_asked_for(listed: Sequence[Mapping], texts: Sequence[str]) -> int:
    """Infer the request's `logprobs=`: k entries if the chosen token is in the top k, or k + 1."""
    lengths = []  # of the lists in which the chosen token does not come last
    for top, text in zip(listed, texts, strict=True):
        if len(top) > 1 and None not in top.values() and min(top, key=top.__getitem__) != text:
            lengths.append(len(top))
    return max(lengths, default=min(map(len, listed), default=1) - 1)


def _chat_rows(content: Sequence[Mapping], ids: Sequence[int] | None) -> list[Row]:
    """Return the rows of a chat's answer, with exactly k alternatives for each token.

    It has `[{"token": …, "logprob": …, "top_logprobs": [{"token": …, "logprob": …}, …]}, …]`.
    """
    chat_rows = []
    for number, entry in enumerate(content):
        text = entry["token"]
        logprob = entry["logprob"]
        listed = [(other["token"], other["logprob"]) for other in entry.get("top_logprobs") or ()]
        k = len(listed)
        if (text, logprob) not in listed:
            listed.append((text, logprob))
        chat_rows.append(_generated(number, text, logprob, listed, ids, k))
    return chat_rows


def _generated(
    number: int,
    text: str,
    logprob: float | None,
    listed: list[tuple[str, float]],
    ids: Sequence[int] | None,
    k: int,
) -> Row:
    """Return the row of one generated token. Its rank is None if it lies below the top k."""
    token_id = ids[number] if ids else _id_of(text)
    if logprob is None:  # an echoed prompt's first token
        return Row("completion", number, text, None, token_id)
    # Ranks within the top k by logprob; equal logprobs share one. The list may be a whole
    # vocabulary.
    ranks: dict[float, int] = {}
    for index, (_, value) in enumerate(sorted(listed, key=lambda entry: -entry[1])):
        if index < k:
            ranks.setdefault(value, index + 1)
    alternatives = []
    for token, value in listed:
        is_chosen = (token, value) == (text, logprob)
        alternative_id = token_id if is_chosen else _id_of(token)
        alternatives.append(Alternative(token, _finite(value), alternative_id, ranks.get(value)))
    return Row(
        part="completion",
        position=number,
        token=text,
        logprob=_finite(logprob),
        token_id=token_id,
        rank=ranks.get(logprob),
        alternatives=_ranked(alternatives),
    )


def _logprob_of(alternative: Alternative) -> float:
    return alternative.logprob


def _ranked(listed: Iterable[Alternative]) -> tuple[Alternative, ...]:
    """Return the alternatives, the most probable first; equals stay in their order."""
    return tuple(sorted(listed, key=_logprob_of, reverse=True))


def _id_of(text: str) -> int | None:
    """Return the id in a text such as "token_id:42"; None if it is another text."""
    digits = text.removeprefix(TOKEN_ID)
    if digits == text or not digits.isdigit():
        return None
    return int(digits)


def _finite(logprob: float) -> float:
    """Return a logprob, with minus infinity for -9999, which stands for it in JSON."""
    if logprob <= MINUS_INFINITY_SENT:
        return -math.inf
    return logprob


def _plain(response: object) -> Mapping:
    """Return a response as its JSON would be read."""
    if isinstance(response, Mapping):
        return response
    dump = getattr(response, "model_dump", None)
    if dump is None:
        raise BadInput(f"{type(response).__name__} is no response of a server.", HOW_TO_ASK)
    return dump()
