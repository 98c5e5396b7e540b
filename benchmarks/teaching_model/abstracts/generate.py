"""Let SmolLM2 write abstracts about the topics of topics.toml, on a GPU.

    python -m benchmarks.teaching_model.abstracts.generate MODEL OUT [--abstracts 24000]

MODEL is the folder that `workshop serve smollm2` makes. OUT gets abstracts.jsonl.gz.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
import tomllib
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
TOPICS: dict[str, list[str]] = tomllib.loads((HERE / "topics.toml").read_text())
ANGLES = (
    "a new measurement",
    "a long-term study",
    "a comparison of two methods",
    "a surprising result",
    "a simple model",
    "a new method",
    "a review of earlier work",
    "a small experiment",
    "an open question",
    "a large data set",
)
OPENINGS = (
    "",
    "",
    "We",
    "This study",
    "In this paper, we",
    "Here we",
    "Recent",
    "The",
    "Although",
    "A",
)
ABSTRACT_TOKENS = 170
BATCH = 2048
SAMPLING = {
    "do_sample": True,
    "temperature": 0.8,
    "top_p": 0.95,
    "top_k": 0,
    "repetition_penalty": 1.05,
}


def asked_for(topic: str, angle: str) -> str:
    """Return the request for an abstract."""
    return (
        f"Write the abstract of a scientific paper about {topic}: {angle}. Write four or five plain sentences, "
        "without a title and without a list."
    )


def chat(tokenizer, request: str, opening: str = "") -> str:
    """Return a prompt for the assistant's answer, which begins with `opening`."""
    message = [{"role": "user", "content": request}]
    return (
        tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True) + opening
    )


def written(model, tokenizer, prompts: list[str], most_tokens: int) -> list[tuple[str, bool]]:
    """Return the model's continuations, each with whether the model ended it itself."""
    results: list[tuple[str, bool]] = []
    for begin in range(0, len(prompts), BATCH):
        batch = tokenizer(prompts[begin : begin + BATCH], return_tensors="pt", padding=True).to(
            "cuda"
        )
        with torch.inference_mode():
            ids = model.generate(
                **batch, max_new_tokens=most_tokens, pad_token_id=tokenizer.eos_token_id, **SAMPLING
            )
        ids = ids[:, batch["input_ids"].shape[1] :]
        ended = (ids == tokenizer.eos_token_id).any(1).tolist()
        results += zip(tokenizer.batch_decode(ids, skip_special_tokens=True), ended, strict=True)
    return results


def write_abstracts(model, tokenizer, count: int, path: Path) -> None:
    """Write `count` abstracts, the same number for each topic."""
    draw = random.Random(0)
    pairs = [(field, topic) for field, topics in TOPICS.items() for topic in topics]
    rows = []
    for number in range(count):
        field, topic = pairs[number % len(pairs)]
        rows.append(
            {
                "field": field,
                "topic": topic,
                "angle": draw.choice(ANGLES),
                "opening": draw.choice(OPENINGS),
            }
        )
    prompts = [
        chat(tokenizer, asked_for(row["topic"], row["angle"]), row["opening"]) for row in rows
    ]
    for row, (text, ended) in zip(
        rows, written(model, tokenizer, prompts, ABSTRACT_TOKENS), strict=True
    ):
        row |= {"text": (row["opening"] + text).strip(), "ended": ended}
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--abstracts", type=int, default=24_960)
    options = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).cuda().eval()
    began = time.monotonic()
    write_abstracts(model, tokenizer, options.abstracts, options.out / "abstracts.jsonl.gz")
    print(f"{options.abstracts} abstracts after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
