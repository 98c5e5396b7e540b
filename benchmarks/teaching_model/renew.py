"""Renew what depends on the teaching model's weights: `make model`.

python -m benchmarks.teaching_model.renew            list the steps, what each writes and needs
python -m benchmarks.teaching_model.renew STEP …     run these steps, in their order
python -m benchmarks.teaching_model.renew all        run all but training

A step that asks a server takes the one that connect() finds: `workshop serve --background --max-logprobs -1`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Step:
    """A command of this environment's Python, what it writes, and what it needs."""

    command: str
    writes: str
    needs: str


STEPS = {
    "train": Step(
        "-m benchmarks.teaching_model.train --out workshop/teaching_model --cache build/text",
        "the weights and the tokenizer; training_log.txt goes to benchmarks/teaching_model",
        "a GPU, 9 minutes",
    ),
    "draft": Step(
        "-m benchmarks.teaching_model.draft --out workshop/teaching_model/draft",
        "the draft; its training_log.txt goes to benchmarks/teaching_model/draft_training_log.txt",
        "a GPU, 2 minutes",
    ),
    "evaluate": Step(
        "-m benchmarks.teaching_model.evaluate --write", "prompts.json, figures.json", "7 minutes"
    ),
    "card": Step("benchmarks/teaching_model/card.py", "the figures of README.md", "a second"),
    "text": Step(
        "benchmarks/quantization/text.py", "workshop/data/quantization/text.npz", "a minute"
    ),
    "quantized": Step(
        "benchmarks/quantization/measure.py --again",
        "workshop/data/quantization/measured.json",
        "8 minutes",
    ),
    "quantized-places": Step(
        "benchmarks/quantization/evaluate.py",
        "workshop/data/quantization/evaluated.json",
        "7 minutes",
    ),
    "truth": Step(
        "benchmarks/sampling/truth.py",
        "docs/sampling.md",
        "a server, 5 minutes",
    ),
    "guesses": Step(
        "-m benchmarks.teaching_model.guesses", "workshop/data/guesses.json", "5 minutes"
    ),
    "chat": Step(
        "benchmarks/notebook_records.py 10", "workshop/data/chat/reader.json", "a server, a minute"
    ),
    "scale-out": Step(
        "benchmarks/notebook_records.py 13", "workshop/data/scale_out.json", "3 minutes"
    ),
    "agents": Step(
        "benchmarks/notebook_records.py 14",
        "workshop/data/agents.json, scale_out.json",
        "3 minutes",
    ),
    "slides": Step("slides/recorder.py answers chat", "slides/recorded", "a server"),
    "pages": Step("docs/make.py", "generated pages and pictures", "a minute"),
}


def listed() -> str:
    """Return the steps, a line each."""
    width = max(map(len, STEPS))
    lines = [
        f"  {name:{width}}  {step.writes}  (needs: {step.needs})" for name, step in STEPS.items()
    ]
    return "\n".join(lines)


def main(names: list[str]) -> int:
    """Run the steps that are named; return the first exit code that is not 0."""
    chosen = [name for name in STEPS if name != "train"] if names == ["all"] else names
    unknown = [name for name in chosen if name not in STEPS]
    if not chosen or unknown:
        print(__doc__, listed(), sep="\n")
        return 2 if unknown else 0
    for name in STEPS:
        if name in chosen:
            print(f"{name}: {STEPS[name].writes}", flush=True)
            command = [sys.executable, *STEPS[name].command.split()]
            code = subprocess.run(
                command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
            ).returncode
            if code:
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
