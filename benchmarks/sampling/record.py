"""Record the distributions that the explorer shows without a server.

python benchmarks/sampling/record.py [FILE]      # needs a running server; default: the course's own recording
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from workshop import connect
from workshop.client.sampling import Token
from workshop.client.sampling_settings import Settings
from workshop.course.topics import abstracts
from workshop.course.widgets.sampling.source import ServerSource

PROMPTS = (
    "San Francisco is a",
    "Boston is a",
    "A dog is a",
    "To be, or not to",
    "My fellow citizens,",
    abstracts.prompt(abstracts.load()[480]["text"]),  # that of notebook 4
)
OWN = Path(__file__).parents[2] / "workshop" / "data" / "distributions" / "teaching_model.json"
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


def record(
    source: ServerSource,
    prompts: Sequence[str],
    path: Path,
    *,
    vllm_version: str,
    hardware: str,
    command: str,
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
    path.write_text(
        json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )


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
    completions = source.complete(prompt, (), settings, n=20, seed=1, max_tokens=24)
    return {
        "settings": settings.request(),
        "seed": 1,
        "texts": [
            [completion.text, list(completion.tokens), completion.ended]
            for completion in completions
        ],
    }


def main() -> None:
    """Record the prompts with the server that connect() finds."""
    client = connect()
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else OWN
    record(
        ServerSource(client),
        PROMPTS,
        path,
        vllm_version=client.get("/version")["version"],
        hardware="2 CPU cores" if path == OWN else "not stated",
        command="python benchmarks/sampling/record.py",
    )
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
