"""Where the explorer's distributions come from: a server (completions, or chat where that is all), or a recording of one.

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

from workshop.client import logprobs, received
from workshop.client.sampling import Token
from workshop.client.sampling_settings import Settings
from workshop.course import recordings
from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    from workshop.client.client import Client

MOST_LISTED = (
    8192  # of a larger vocabulary the rest is bounded, not listed: JSON of 128,256 takes seconds
)
PATIENCE_S = 30.0  # a widget must not hold the kernel longer
END = re.compile(
    r"<\|(end_of_text|endoftext|eot_id|eom_id|im_end|end)\|>|</s>|<eos>|<end_of_turn>|<EOS_TOKEN>"
)
OWN = recordings.DATA / "distributions" / "teaching_model.json"
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


@runtime_checkable
class Source(Protocol):
    """Where distributions come from. `live`: it takes any settings; `prompts`: the only ones, or () for any prompt."""

    live: bool
    prompts: tuple[str, ...]

    def describe(self) -> str:
        """Say in one line what it is."""
        ...

    def position(self, prompt: str, output: tuple[Token, ...] = ()) -> Position:
        """Return the distribution of the token after the prompt and the tokens generated so far."""
        ...

    def text(self, tokens: tuple[Token, ...]) -> str:
        """Return the text of tokens."""
        ...

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

    def __init__(self, llm: Client):
        self.llm = llm
        self.listed = MOST_LISTED  # how many logprobs it gives
        self.chat = False  # whether it has only chat
        self._asked = lru_cache(maxsize=200)(self._ask)
        self._texts: dict[tuple[Token, ...], str] = {}
        self._asks_ids = True

    def describe(self) -> str:
        """Say which model, and how much of its vocabulary is listed."""
        name = self.llm.model.rstrip("/").split("/")[-1]
        way = ", through chat: the server has no completions" if self.chat else ""
        few = f"; it lists the {self.listed} most probable tokens (its --max-logprobs)"
        return f"{name} on your server{way}{few if self.listed < MOST_LISTED else ''}"

    def position(self, prompt: str, output: tuple[Token, ...] = ()) -> Position:
        """Ask for one token with as many logprobs as there are; remembered, so that stepping back is free."""
        if not prompt:
            raise EMPTY
        return self._asked(prompt, output)

    def _ask(self, prompt: str, output: tuple[Token, ...]) -> Position:
        more, response = {"max_tokens": 1, "temperature": 0, "timeout": PATIENCE_S}, None
        while response is None:
            ids = (
                {"return_token_ids": True, "return_tokens_as_token_ids": True}
                if self._asks_ids
                else {}
            )
            try:
                response = self._send(prompt, output, self.listed, **more, **ids)
            except WorkshopError as error:
                if not self._adapt(error):
                    raise
        found = logprobs.next_token_logprobs(response)
        row = next(
            row for row in logprobs.rows(response, k=self.listed) if row.part == "completion"
        )
        ranked = [one.logprob for one in row.alternatives if one.rank is not None]
        whole = math.fsum(map(math.exp, found.values())) > 1 - 1e-4
        data = response.model_dump()
        ids = tuple(
            data["choices"][0].get("prompt_token_ids") or data.get("prompt_token_ids") or ()
        )
        best_first = dict(sorted(found.items(), key=lambda item: -item[1]))
        return Position(
            best_first, None if whole else min(ranked, default=0.0), ids[: len(ids) - len(output)]
        )

    def _send(self, prompt: str, output: tuple[Token, ...], listed: int, **request: object) -> Any:
        """Return the server's response (of `openai`) to the prompt and what was generated, with so many logprobs."""
        known = self.position(prompt).prompt if output else ()
        if not self.chat:
            # Token ids once something was generated: text would be cut into other tokens.
            by_id = known and all(isinstance(token, int) for token in output)
            context = [*known, *output] if by_id else prompt + self.text(output)
            return self.llm.complete(context, logprobs=listed, **request)
        messages = [{"role": "user", "content": prompt}]
        if output:
            messages.append({"role": "assistant", "content": self.text(output)})
            request |= {"continue_final_message": True, "add_generation_prompt": False}
        return self.llm.chat(messages, logprobs=True, top_logprobs=listed, **request)

    def _adapt(self, error: WorkshopError) -> bool:
        """Ask for what this server can do; False if there is nothing left to give up."""
        limit, status = (
            received.logprobs_limit(error.message),
            getattr(error.__context__, "status_code", None),
        )
        if limit is not None and limit < self.listed:
            self.listed = limit
        elif "no sampling parameter" in error.message and self._asks_ids:
            self._asks_ids = False
        elif not self.chat and status in (404, 405, 501) and "does not exist" not in error.message:
            self.chat = True  # a server without the model says that it does not exist, which is another fault
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
                    f"{self.llm.root}/detokenize", timeout=PATIENCE_S, json=request
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
        more = {
            "n": 1 if settings.greedy else n,
            "seed": seed,
            "max_tokens": max_tokens,
            "timeout": 4 * PATIENCE_S,
        }
        response = self._send(prompt, output, 0, **settings.request(), **more)
        found = []
        for number, one in enumerate(response.choices):
            rows = (
                row for row in logprobs.rows(response, choice=number) if row.part == "completion"
            )
            # pieces of an emoji are whole only here
            text = one.text if hasattr(one, "text") else one.message.content
            found.append(
                Completion(
                    text or "", tuple(row.token for row in rows), one.finish_reason == "stop"
                )
            )
        return found


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
        self._texts: dict[Token, str] = {
            int(token_id): text for token_id, text in self._data["texts"].items()
        }

    def describe(self) -> str:
        """Say of what, when and with which vLLM the recording was made."""
        data = self._data
        return f"Recorded: {data['model']}, vLLM {data['vllm_version']}, {data['date']}. No server is needed"

    def position(self, prompt: str, output: tuple[Token, ...] = ()) -> Position:
        """Return a recorded distribution; BadInput for another prompt, WorkshopError where the recording ends."""
        one = self._prompt(prompt)
        if (listed := one["tree"].get(" ".join(map(str, output)))) is None:
            ends = f"The recording ends here: nobody asked what comes after “{self.text(output)}”."
            remedy = (
                "Step back and take a more probable token, or connect a server: there it goes on."
            )
            raise WorkshopError(ends, remedy)
        logprobs = dict(zip(listed["ids"], listed["logprobs"], strict=True))
        return Position(logprobs, min(logprobs.values()), tuple(one["prompt_token_ids"]))

    def text(self, tokens: tuple[Token, ...]) -> str:
        return "".join(self._text_of(token) for token in tokens)

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
        """Return recorded completions; only some settings were recorded (an error says which), for the bare prompt."""
        recorded = self._prompt(prompt)["completions"]
        for one in recorded:
            if Settings(**one["settings"]) == settings and not output:
                return [
                    Completion(text, tuple(tokens), ended) for text, tokens, ended in one["texts"]
                ][:n]
        those = "; ".join(
            ", ".join(f"{k}={v}" for k, v in one["settings"].items()) for one in recorded
        )
        missing = (
            "were recorded for the bare prompt only"
            if output
            else "with these settings were not recorded"
        )
        remedy = f"Recorded, each for the bare prompt: {those}. A server takes any settings."
        raise WorkshopError(f"Completions {missing}.", remedy)

    def _prompt(self, prompt: str) -> dict:
        if not prompt:
            raise EMPTY
        if prompt not in self._data["prompts"]:
            raise BadInput(
                f"{prompt!r} was not recorded.", f"Recorded: {', '.join(map(repr, self.prompts))}."
            )
        return self._data["prompts"][prompt]
