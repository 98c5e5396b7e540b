"""Distributions that a server gave once: for learners without one, and to look at a large model's later.

    record(ServerSource(connect()), ["San Francisco is a"], Path("70b.json"))      # on the cluster
    SamplingExplorer(RecordedSource(Path("70b.json")))                             # anywhere

A recording is a tree: the prompt, its most probable next tokens, theirs, and so on.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from workshop.errors import BadInput, WorkshopError
from workshop.learn.widgets.sampling.source import EMPTY, Completion, Position
from workshop.use.sampling import Token
from workshop.use.sampling_settings import Settings

if TYPE_CHECKING:
    from workshop.learn.widgets.sampling.source import ServerSource

LISTED = 60  # tokens kept of each distribution
BRANCHES = (12, 3, 1, 1, 1)  # how many of the most probable tokens are followed at each depth
PRESETS = (
    Settings(temperature=0),
    Settings(temperature=0.7),
    Settings(),
    Settings(temperature=1.0, top_p=0.9),
    Settings(temperature=1.5),
    Settings(frequency_penalty=2.0),
)


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
        raise WorkshopError(
            "Completions with these settings were not recorded."
            if not output
            else "Completions were recorded for the bare prompt only.",
            f"Recorded, each for the bare prompt: {those}. A server takes any settings.",
        )

    def _prompt(self, prompt: str) -> dict:
        if not prompt:
            raise EMPTY
        if prompt not in self._data["prompts"]:
            raise BadInput(f"{prompt!r} was not recorded.", f"Recorded: {', '.join(map(repr, self.prompts))}.")
        return self._data["prompts"][prompt]


def _read(path: Path | None) -> dict:
    try:
        if path is None:
            folder = resources.files("workshop.data") / "distributions"
            return json.loads((folder / "teaching_model.json").read_text(encoding="utf-8"))
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkshopError(
            f"The recording cannot be read: {error}.", "Give the path of a file that record() wrote."
        ) from None
    except ValueError as error:
        raise BadInput(f"{path} is no recording: {error}.", "Give the path of a file that record() wrote.") from None


def record(
    source: ServerSource, prompts: Sequence[str], path: Path, *, vllm_version: str, hardware: str, command: str
) -> None:
    """Ask a server for trees of distributions and for completions, and write them to one file."""
    data = {
        "about": "Next-token distributions as a vLLM server gave them (raw logprobs, the most probable first).",
        "model": source.llm.model.rstrip("/").split("/")[-1],
        "vllm_version": vllm_version,
        "hardware": hardware,
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "prompts": {},
    }
    tokens: set[Token] = set()
    source.listed = min(source.listed, LISTED)  # a whole vocabulary takes ten times as long
    for prompt in prompts:
        tree: dict[str, dict] = {}
        _grow(source, prompt, (), tree, tokens)
        data["prompts"][prompt] = {
            "prompt_token_ids": list(source.position(prompt).prompt),
            "tree": tree,
            "completions": [_completions(source, prompt, settings) for settings in PRESETS],
        }
    data["texts"] = {str(token): source.text((token,)) for token in sorted(tokens)}
    path.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def _grow(source: ServerSource, prompt: str, output: tuple, tree: dict, tokens: set) -> None:
    position = source.position(prompt, output)
    best = list(position.logprobs.items())[:LISTED]
    tree[" ".join(map(str, output))] = {
        "ids": [token for token, _ in best],
        "logprobs": [round(value, 4) for _, value in best],
    }
    tokens.update(token for token, _ in best)
    if len(output) < len(BRANCHES):
        for token, _ in best[: BRANCHES[len(output)]]:
            _grow(source, prompt, (*output, token), tree, tokens)


def _completions(source: ServerSource, prompt: str, settings: Settings) -> dict:
    found = source.complete(prompt, (), settings, n=20, seed=1, max_tokens=24)
    return {
        "settings": settings.request(),
        "seed": 1,
        "texts": [[one.text, list(one.tokens), one.ended] for one in found],
    }
