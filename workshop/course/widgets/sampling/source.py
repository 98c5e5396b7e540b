"""Sources of the explorer's distributions: a server, or the teaching model computed here."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import httpx
import numpy as np

from workshop.client import logprobs, refusals
from workshop.client.sampling import Token
from workshop.errors import BadInput, WorkshopError
from workshop.teaching_model import reference

if TYPE_CHECKING:
    from workshop.client.client import Client

# Of a larger vocabulary the rest is bounded, not listed: JSON of 128,256 takes seconds.
MOST_LISTED = 8192
PATIENCE_S = 30.0  # a widget must not hold the kernel longer
END = re.compile(
    r"<\|(end_of_text|endoftext|eot_id|eom_id|im_end|end)\|>|</s>|<eos>|<end_of_turn>|<EOS_TOKEN>"
)
EMPTY = BadInput(
    "The prompt is empty.", "Type at least one character: a model continues what stands there."
)


@dataclass(frozen=True)
class Position:
    """The model's distribution after some text."""

    logprobs: dict[Token, float]  # most probable first
    ceiling: float | None = None  # no token that is not listed has more; None: all are listed
    prompt: tuple[Token, ...] = ()  # its tokens, where the server says them


@runtime_checkable
class Distributions(Protocol):
    """Distributions of the next token, and the texts of tokens."""

    def describe(self) -> str:
        """Say in one line what it is."""
        ...

    def position(self, prompt: str, output: tuple[Token, ...] = ()) -> Position:
        """Return the distribution of the token after the prompt and the tokens generated so far."""
        ...

    def text(self, tokens: tuple[Token, ...]) -> str:
        """Return the text of tokens."""
        ...


class ServerSource:
    """A vLLM server, or another server that speaks the same protocol."""

    def __init__(self, llm: Client, patience_s: float = PATIENCE_S):
        self.llm = llm
        self.patience_s = patience_s
        self.listed = MOST_LISTED  # how many logprobs it gives
        self._remembered = lru_cache(maxsize=200)(self._ask)
        self._texts: dict[tuple[Token, ...], str] = {}
        self._asks_ids = True

    def describe(self) -> str:
        """Say which model, and how much of its vocabulary is listed."""
        about = f"{self.llm.model.rstrip('/').split('/')[-1]} on your server"
        if self.listed < MOST_LISTED:
            about += f"; it lists the {self.listed} most probable tokens (its --max-logprobs)"
        return about

    def position(self, prompt: str, output: tuple[Token, ...] = ()) -> Position:
        """Ask for one token with as many logprobs as the server lists.

        The answer is remembered, so that stepping back is free.
        """
        if not prompt:
            raise EMPTY
        return self._remembered(prompt, output)

    def _ask(self, prompt: str, output: tuple[Token, ...]) -> Position:
        response = self._next_token(prompt, output)
        listed = logprobs.next_token_logprobs(response)
        rows = logprobs.rows(response, k=self.listed)
        row = next(row for row in rows if row.part == "completion")
        ranked = [token.logprob for token in row.alternatives if token.rank is not None]
        is_whole = math.fsum(map(math.exp, listed.values())) > 1 - 1e-4
        best_first = dict(sorted(listed.items(), key=lambda item: -item[1]))
        ceiling = None
        if not is_whole:
            ceiling = min(ranked, default=0.0)
        ids = response.model_dump()["choices"][0].get("prompt_token_ids") or ()
        prompt_ids = tuple(ids)[: len(ids) - len(output)]
        return Position(best_first, ceiling, prompt_ids)

    def _next_token(self, prompt: str, output: tuple[Token, ...]) -> Any:
        """Return the server's response to a request for one token: an object of `openai`.

        The request has the best form that the server understands.
        """
        context = self._context(prompt, output)
        while True:
            request: dict[str, object] = {
                "max_tokens": 1,
                "temperature": 0,
                "timeout": self.patience_s,
            }
            if self._asks_ids:
                request |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
            try:
                return self.llm.complete(context, logprobs=self.listed, **request)
            except WorkshopError as error:
                if not self._adapt(error):
                    raise

    def _context(self, prompt: str, output: tuple[Token, ...]) -> str | list[Token]:
        """Return what the model continues: token ids once something was generated.

        Text would be cut into other tokens.
        """
        if not output:
            return prompt
        prompt_ids = self.position(prompt).prompt
        if prompt_ids and all(isinstance(token, int) for token in output):
            return [*prompt_ids, *output]
        return prompt + self.text(output)

    def _adapt(self, error: WorkshopError) -> bool:
        """Ask for what this server can do; False if there is nothing left to give up."""
        limit = refusals.logprobs_limit(error.message)
        if limit is not None and limit < self.listed:
            self.listed = limit
        elif "no sampling parameter" in error.message and self._asks_ids:
            self._asks_ids = False
        else:
            return False
        return True

    def text(self, tokens: tuple[Token, ...]) -> str:
        if not tokens or isinstance(tokens[0], str):
            return "".join(map(str, tokens))
        if tokens not in self._texts:
            request = {"model": self.llm.model, "tokens": list(tokens)}
            try:
                answer = self.llm.http.post(
                    f"{self.llm.root}/detokenize", timeout=self.patience_s, json=request
                )
                self._texts[tokens] = str(answer.raise_for_status().json()["prompt"])
            except (httpx.HTTPError, KeyError, ValueError, TypeError, RecursionError):
                return "".join(f"⟨{token}⟩" for token in tokens)  # not remembered: it may come back
        return self._texts[tokens]


class TeachingModel:
    """The teaching model, computed here with NumPy: no server is needed."""

    def __init__(self) -> None:
        self._remembered = lru_cache(maxsize=200)(self._compute)

    def describe(self) -> str:
        """Say what computes."""
        return (
            "The teaching model, computed in this notebook; its server rounds to 16 bits, "
            "so a share may differ by a point there"
        )

    def position(self, prompt: str, output: tuple[Token, ...] = ()) -> Position:
        """Return the logprobs of its whole vocabulary."""
        if not prompt:
            raise EMPTY
        return self._remembered((*reference.encode(prompt), *output))

    def _compute(self, ids: tuple[int, ...]) -> Position:
        model = reference.load()
        hidden = model.hidden(np.array([ids]))[0, -1]
        logits = model.weights["model.embed_tokens.weight"] @ hidden
        logits -= logits.max()
        values = logits - np.log(np.exp(logits).sum())
        best_first = np.argsort(-values)
        return Position(dict(zip(best_first.tolist(), values[best_first].tolist(), strict=True)))

    def text(self, tokens: tuple[Token, ...]) -> str:
        """Return the text of tokens."""
        return reference.decode([token for token in tokens if isinstance(token, int)])
