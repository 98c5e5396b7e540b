"""Ask each quantized teaching model the 300 questions of teaching_places, with lm-eval against vLLM's endpoint.

    python benchmarks/quantization/evaluate.py [--only SCHEME …] [--samples FOLDER]

Writes workshop/data/quantization/evaluated.json: for each scheme which questions are right, and the answers that differ
from those of bfloat16. Needs the extras `local` and `eval`; about 7 minutes on 2 quiet cores.
"""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
import time
from functools import cache
from pathlib import Path

import click

from benchmarks.quantization.measure import checkpoint, machine
from workshop.measure import evaluation
from workshop.servers import local
from workshop.servers.local import supervise
from workshop.teaching_model import reference, schemes

EVALUATED = schemes.TEXT.with_name("evaluated.json")
SCHEMES = ("bf16", "fp8", "int8", "int4-awq", "int4-gptq", "int4-rtn", "int4-rtn-row")


def answers_of(name: str, folder: Path, samples: Path) -> evaluation.Evaluation:
    """Serve one scheme's checkpoint and return its answers; those that are kept already are read."""
    scheme_samples = samples / name
    if not evaluation.has_samples(scheme_samples):
        model = reference.load()
        inputs = None
        if schemes.scheme_of(name).method in ("gptq", "awq"):
            inputs = calibration()
        result = schemes.quantize(model, name, inputs)
        launch = local.prepare(
            str(checkpoint(result, folder / name)),
            vllm_args=("--max-model-len", "2048"),
            name=f"evaluate-{name}",
        )
        server = supervise.start(launch)
        try:
            evaluation.run(server, server.model, scheme_samples)
        finally:
            supervise.stop(server.name)
    return evaluation.read(scheme_samples)


@cache
def calibration() -> dict[str, schemes.Inputs]:
    """Return the statistics of the model's inputs that GPTQ and AWQ need."""
    return schemes.calibrate(reference.load())


def row_of(answers: evaluation.Evaluation, before: evaluation.Evaluation) -> dict:
    """Return what is kept of a scheme: a 0 or 1 for each question, and the answers that bfloat16 gives otherwise."""
    other_texts = {}
    for number, (key, answer) in enumerate(answers.answers.items()):
        if answer.text != before.answers[key].text:
            other_texts[str(number)] = answer.text
    right = "".join(str(answer.right) for answer in answers.answers.values())
    return {"right": right, "other_texts": other_texts}


@click.command
@click.option("--only", multiple=True, help="Ask this scheme alone; bf16 must be there.")
@click.option("--samples", type=click.Path(path_type=Path), help="Keep lm-eval's files here.")
def main(only: tuple[str, ...], samples: Path | None) -> None:
    """Ask, compare and write the record."""
    with tempfile.TemporaryDirectory() as scratch:
        samples_folder = samples or Path(scratch) / "samples"
        runs = {}
        for name in only or SCHEMES:
            began = time.monotonic()
            runs[name] = answers_of(name, Path(scratch), samples_folder)
            seconds = time.monotonic() - began
            click.echo(f"{name}: {runs[name].right} of {len(runs[name].answers)}, {seconds:.0f} s")
    before = runs["bf16"]
    facts = machine()
    facts["lm-eval"] = importlib.metadata.version("lm-eval")
    facts["command"] = "python benchmarks/quantization/evaluate.py"
    data = {
        "machine": facts,
        "task": before.task,
        "prompts": [answer.prompt for answer in before.answers.values()],
        "texts": [answer.text for answer in before.answers.values()],
        "schemes": {name: row_of(run, before) for name, run in runs.items()},
    }
    EVALUATED.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
