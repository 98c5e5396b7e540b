"""Sources of the explorer's distributions: a server, or a recording of one.

A server is asked for completions, or for chat where it has no completions.

    python benchmarks/sampling/record.py 70b.json              # on the cluster, where a server runs
    SamplingExplorer(RecordedSource(Path("70b.json")))         # anywhere

A recording is a tree: the prompt, its most probable next tokens, theirs, and so on.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import httpx
import numpy as np

from workshop.client import logprobs, refusals
from workshop.client.sampling import Token
from workshop.client.sampling_settings import Settings
from workshop.course.topics import recorded_data
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
OWN = recorded_data.DATA / "distributions" / "teaching_model.json"
REMEDY = "Give the path of a file that benchmarks/sampling/record.py wrote."
EMPTY = BadInput(
    "The prompt is empty.", "Type at least one character: a model continues what stands there."
)


@dataclass(frozen=True)
class Position:
    """The model's distribution after some text."""

    logprobs: dict[Token, float]  # most probable first
    ceiling: float | None = None  # no token that is not listed has more; None: all are listed
    prompt: tuple[Token, ...] = ()  # its tokens, where the server says them


@dataclass(frozen=True)
class Completion:
    """One completion, as text and token by token."""

    text: str
    tokens: tuple[str, ...]
    ended: bool = False


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


@runtime_checkable
class Source(Distributions, Protocol):
    """A source of distributions that also writes.

    `live`: it takes any settings; `prompts`: the only ones, or () for any prompt.
    """

    live: bool
    prompts: tuple[str, ...]

    def complete(
        self,
        prompt: str,
        output: tuple[Token, ...],
        settings: Settings,
        *,
        n: int,
        seed: int,
        max_tokens: int,
    ) -> list[Completion]:
        """Return n completions of at most `max_tokens` tokens."""
        ...


class ServerSource:
    """A vLLM server, or another server that speaks the same protocol."""

    live = True
    prompts: tuple[str, ...] = ()  # any prompt will do

    def __init__(self, llm: Client, patience_s: float = PATIENCE_S):
        self.llm = llm
        self.patience_s = patience_s
        self.listed = MOST_LISTED  # how many logprobs it gives
        self.chat = False  # whether it has only chat
        self._remembered = lru_cache(maxsize=200)(self._ask)
        self._texts: dict[tuple[Token, ...], str] = {}
        self._asks_ids = True

    def describe(self) -> str:
        """Say which model, and how much of its vocabulary is listed."""
        about = f"{self.llm.model.rstrip('/').split('/')[-1]} on your server"
        if self.chat:
            about += ", through chat: the server has no completions"
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
        row = _completion_rows(response, self.listed)[0]
        ranked = [token.logprob for token in row.alternatives if token.rank is not None]
        is_whole = math.fsum(map(math.exp, listed.values())) > 1 - 1e-4
        best_first = dict(sorted(listed.items(), key=lambda item: -item[1]))
        ceiling = None
        if not is_whole:
            ceiling = min(ranked, default=0.0)
        data = response.model_dump()
        ids = data["choices"][0].get("prompt_token_ids") or data.get("prompt_token_ids") or ()
        prompt_ids = tuple(ids)[: len(ids) - len(output)]
        return Position(best_first, ceiling, prompt_ids)

    def _next_token(self, prompt: str, output: tuple[Token, ...]) -> Any:
        """Return the server's response to a request for one token.

        The request has the best form that the server understands.
        """
        while True:
            request: dict[str, object] = {
                "max_tokens": 1,
                "temperature": 0,
                "timeout": self.patience_s,
            }
            if self._asks_ids:
                request |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
            try:
                return self._send(prompt, output, self.listed, **request)
            except WorkshopError as error:
                if not self._adapt(error):
                    raise

    def _send(self, prompt: str, output: tuple[Token, ...], listed: int, **request: object) -> Any:
        """Return the server's response to the prompt and output, with `listed` logprobs.

        The response is an object of `openai`.
        """
        prompt_ids = ()
        if output:
            prompt_ids = self.position(prompt).prompt
        if not self.chat:
            # Token ids once something was generated: text would be cut into other tokens.
            if prompt_ids and all(isinstance(token, int) for token in output):
                context = [*prompt_ids, *output]
            else:
                context = prompt + self.text(output)
            return self.llm.complete(context, logprobs=listed, **request)
        messages = [{"role": "user", "content": prompt}]
        if output:
            messages.append({"role": "assistant", "content": self.text(output)})
            request |= {"continue_final_message": True, "add_generation_prompt": False}
        return self.llm.chat(messages, logprobs=True, top_logprobs=listed, **request)

    def _adapt(self, error: WorkshopError) -> bool:
        """Ask for what this server can do; False if there is nothing left to give up."""
        limit = refusals.logprobs_limit(error.message)
        status = getattr(error.__context__, "status_code", None)
        # A server without the model says that it does not exist, which is another fault.
        has_no_completions = status in (404, 405, 501) and "does not exist" not in error.message
        if limit is not None and limit < self.listed:
            self.listed = limit
        elif "no sampling parameter" in error.message and self._asks_ids:
            self._asks_ids = False
        elif not self.chat and has_no_completions:
            self.chat = True
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

    def complete(
        self,
        prompt: str,
        output: tuple[Token, ...],
        settings: Settings,
        *,
        n: int,
        seed: int,
        max_tokens: int,
    ) -> list[Completion]:
        """Return n completions with one seed; one if the settings are greedy."""
        self.position(prompt)  # learns the prompt's ids, and whether there is chat only
        if settings.greedy:
            n = 1
        limits = {"n": n, "seed": seed, "max_tokens": max_tokens, "timeout": 4 * self.patience_s}
        response = self._send(prompt, output, 0, **settings.request(), **limits)
        completions = []
        for number, choice in enumerate(response.choices):
            tokens = tuple(row.token for row in _completion_rows(response, choice=number))
            # Only the text has the pieces of an emoji in one.
            text = choice.text if hasattr(choice, "text") else choice.message.content
            completions.append(Completion(text or "", tokens, choice.finish_reason == "stop"))
        return completions


def _completion_rows(response: Any, k: int | None = None, *, choice: int = 0) -> list[logprobs.Row]:
    """Return the rows of a response that belong to one completion, not to the prompt."""
    rows = logprobs.rows(response, k=k, choice=choice)
    return [row for row in rows if row.part == "completion"]


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


class RecordedSource:
    """A recording, used like a server; what was not recorded, it says so."""

    live = False

    def __init__(self, path: Path | None = None):
        try:
            self._data = json.loads((path or OWN).read_text(encoding="utf-8"))
        except OSError as error:
            raise WorkshopError(f"The recording cannot be read: {error}.", REMEDY) from None
        except ValueError as error:
            raise BadInput(f"{path} is no recording: {error}.", REMEDY) from None
        self.prompts = tuple(self._data["prompts"])
        self._texts: dict[Token, str] = {}
        for token_id, text in self._data["texts"].items():
            self._texts[int(token_id)] = text

    def describe(self) -> str:
        """Say of what, when and with which vLLM the recording was made."""
        data = self._data
        recording = f"{data['model']}, vLLM {data['vllm_version']}, {data['date']}"
        return f"Recorded: {recording}. No server is needed"

    def position(self, prompt: str, output: tuple[Token, ...] = ()) -> Position:
        """Return a recorded distribution.

        Raises:
            BadInput: the prompt was not recorded.
            WorkshopError: the recording ends before this place.
        """
        recorded = self._prompt(prompt)
        listed = recorded["tree"].get(" ".join(map(str, output)))
        if listed is None:
            ends = f"The recording ends here: nobody asked what comes after “{self.text(output)}”."
            remedy = (
                "Step back and take a more probable token, or connect a server: there it goes on."
            )
            raise WorkshopError(ends, remedy)
        logprobs = dict(zip(listed["ids"], listed["logprobs"], strict=True))
        return Position(logprobs, min(logprobs.values()), tuple(recorded["prompt_token_ids"]))

    def text(self, tokens: tuple[Token, ...]) -> str:
        return "".join(map(self._text_of, tokens))

    def _text_of(self, token: Token) -> str:
        return self._texts.get(token, f"⟨{token}⟩")

    def complete(
        self,
        prompt: str,
        output: tuple[Token, ...],
        settings: Settings,
        *,
        n: int,
        seed: int,
        max_tokens: int,
    ) -> list[Completion]:
        """Return recorded completions of the bare prompt.

        Only some settings were recorded; the error for others names them.
        """
        recordings_here = self._prompt(prompt)["completions"]
        listed = []
        for recording in recordings_here:
            if Settings(**recording["settings"]) == settings and not output:
                completions = []
                for text, tokens, ended in recording["texts"][:n]:
                    completions.append(Completion(text, tuple(tokens), ended))
                return completions
            parameters = []
            for name, value in recording["settings"].items():
                parameters.append(f"{name}={value}")
            listed.append(", ".join(parameters))
        missing = "with these settings were not recorded"
        if output:
            missing = "were recorded for the bare prompt only"
        remedy = f"Recorded, each for the bare prompt: {'; '.join(listed)}."
        remedy += " A server takes any settings."
        raise WorkshopError(f"Completions {missing}.", remedy)

    def _prompt(self, prompt: str) -> dict:
        if not prompt:
            raise EMPTY
        if prompt not in self._data["prompts"]:
            offered = ", ".join(map(repr, self.prompts))
            raise BadInput(f"{prompt!r} was not recorded.", f"Recorded: {offered}.")
        return self._data["prompts"][prompt]
