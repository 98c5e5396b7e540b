"""Distributions that a server gave once: for learners without one, and to look at a large model's later.

    python benchmarks/sampling/record.py 70b.json              # on the cluster, where a server runs
    SamplingExplorer(RecordedSource(Path("70b.json")))         # anywhere

A recording is a tree: the prompt, its most probable next tokens, theirs, and so on.
"""

from __future__ import annotations

import json
from pathlib import Path

from workshop.errors import BadInput, WorkshopError
from workshop.learn import recordings
from workshop.learn.widgets.sampling.source import EMPTY, Completion, Position
from workshop.use.sampling import Token
from workshop.use.sampling_settings import Settings

OWN = recordings.DATA / "distributions" / "teaching_model.json"
REMEDY = "Give the path of a file that benchmarks/sampling/record.py wrote."


class RecordedSource:
    """A recording, used like a server; what was not recorded, it says so."""

    live = False

    def __init__(self, path: Path | None = None):
        self._data = _read(path)
        self.prompts = tuple(self._data["prompts"])
        self._texts = {int(key): text for key, text in self._data["texts"].items()}

    def describe(self) -> str:
        """Say of what, when and with which vLLM the recording was made."""
        data = self._data
        return f"Recorded: {data['model']}, vLLM {data['vllm_version']}, {data['date']}. No server is needed"

    def position(self, prompt: str, output: tuple[Token, ...] = ()) -> Position:
        """Return a recorded distribution.

        Raises:
            BadInput: the prompt was not recorded.
            WorkshopError: the recording does not go on here.
        """
        one = self._prompt(prompt)
        listed = one["tree"].get(" ".join(map(str, output)))
        if listed is None:
            raise WorkshopError(
                f"The recording ends here: nobody asked what comes after “{self.text(output)}”.",
                "Step back and take a more probable token, or connect a server: there it goes on.",
            )
        logprobs = dict(zip(listed["ids"], listed["logprobs"], strict=True))
        return Position(logprobs, min(logprobs.values()), tuple(one["prompt_token_ids"]))

    def text(self, tokens: tuple[Token, ...]) -> str:
        """Return the text of recorded tokens."""
        return "".join(self._texts.get(token, f"⟨{token}⟩") for token in tokens)

    def complete(
        self, prompt: str, output: tuple[Token, ...], settings: Settings, *, n: int, seed: int, max_tokens: int
    ) -> list[Completion]:
        """Return recorded completions; only some settings were recorded, only for the prompt as it is.

        Raises:
            WorkshopError: these settings were not recorded; the sentence says which were.
        """
        recorded = self._prompt(prompt)["completions"]
        for one in recorded:
            if Settings(**one["settings"]) == settings and not output:
                return [Completion(text, tuple(tokens), ended) for text, tokens, ended in one["texts"]][:n]
        those = "; ".join(", ".join(f"{k}={v}" for k, v in one["settings"].items()) for one in recorded)
        missing = "were recorded for the bare prompt only" if output else "with these settings were not recorded"
        remedy = f"Recorded, each for the bare prompt: {those}. A server takes any settings."
        raise WorkshopError(f"Completions {missing}.", remedy)

    def _prompt(self, prompt: str) -> dict:
        if not prompt:
            raise EMPTY
        if prompt not in self._data["prompts"]:
            raise BadInput(f"{prompt!r} was not recorded.", f"Recorded: {', '.join(map(repr, self.prompts))}.")
        return self._data["prompts"][prompt]


def _read(path: Path | None) -> dict:
    try:
        return json.loads(Path(path or OWN).read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkshopError(f"The recording cannot be read: {error}.", REMEDY) from None
    except ValueError as error:
        raise BadInput(f"{path} is no recording: {error}.", REMEDY) from None
