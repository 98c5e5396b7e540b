"""Record what notebook 12 shows where vLLM is not installed: answers of the teaching model, and its counted guesses.

    python -m benchmarks.teaching_model.guesses ["no guesses" | n-gram | draft | itself …]

Each starts a server of its own; the others' records are kept. On a quiet machine: ms_a_token is a time.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from workshop import live
from workshop.course.topics import speculation
from workshop.vllm_package import installed

FILE = Path(__file__).parents[2] / "workshop" / "data" / "guesses.json"
GUESSES = 4
WAYS = {  # what --speculative-config says
    "no guesses": None,
    "n-gram": {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    "draft": {"method": "draft_model", "model": str(speculation.DRAFT)},
    "itself": {"method": "draft_model", "model": str(speculation.FOLDER)},
}


@click.command()
@click.argument("ways", nargs=-1, type=click.Choice(list(WAYS)))
def main(ways: tuple[str, ...]) -> None:
    """Record these WAYS of guessing, or all."""
    recorded = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"runs": {}}
    for way in ways or WAYS:
        config = WAYS[way]
        flags = (
            ("--speculative-config", json.dumps({**config, "num_speculative_tokens": GUESSES}))
            if config
            else ()
        )
        server = live.lab(*flags)
        for temperature in (0.0, 1.0) if way == "draft" else (0.0,):
            run = speculation.ask(server, way, temperature=temperature)
            recorded["runs"][f"{way}, temperature {temperature:g}"] = asdict(run)
            print(
                way,
                temperature,
                run.drafts,
                run.drafted,
                run.accepted,
                run.accepted_at,
                f"{run.ms_a_token:.2f} ms",
            )
        live.stop(server.record.name)
    about = f"Notebook 12: {GUESSES} guesses a step, {platform.machine()}, 2 cores that other programs shared, {' '.join(installed())}."
    recorded |= {"about": about, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    FILE.write_text(json.dumps(recorded, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
