"""Measure the teaching model: held-out loss, listed facts, places drawn at random, repetition and its cure.

    python -m benchmarks.teaching_model.evaluate [FOLDER] [--device cpu] [--write-prompts]

Needs torch and transformers.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import click
import torch

from benchmarks.teaching_model import corpus
from benchmarks.teaching_model.measure import agreement, first_sentence, repeated_ngrams
from workshop.teaching_model import FOLDER

RIGHT_PLACE = 0.5
"""A place is right when at least half of the content words of the first sentence stand in a gloss of that name."""
RIGHT_FACT = 0.9
LOOP_PROMPTS = [
    "San Francisco is a",
    "A dog is a",
    "My fellow citizens,",
    "ROMEO:",
    "The history of",
]


@torch.no_grad()
def generate(model, tokenizer, prompts: list[str], max_tokens: int, *, frequency_penalty: float = 0.0,
             temperature: float = 0.0, ignore_eos: bool = False, seed: int = 0) -> list[list[int]]:  # fmt: skip
    """Continue all prompts in one batch; returns new token ids, the end-of-text token left out.

    Order as in vLLM's sampler: frequency penalty, then temperature; 0 is the most probable token.
    """
    device = model.device
    rows = [tokenizer(p)["input_ids"] for p in prompts]
    width = max(map(len, rows))
    ids = torch.tensor([[1] * (width - len(r)) + r for r in rows], device=device)
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows], device=device)
    counts = torch.zeros(len(rows), model.config.vocab_size, device=device)
    generator = torch.Generator(device=device).manual_seed(seed)
    done = torch.zeros(len(rows), dtype=torch.bool, device=device)
    cache, new = None, []
    for _ in range(max_tokens):
        position_ids = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = model(input_ids=ids, attention_mask=mask, position_ids=position_ids, past_key_values=cache,
                    use_cache=True)  # fmt: skip
        cache = out.past_key_values
        logits = out.logits[:, -1].float() - frequency_penalty * counts
        if ignore_eos:
            logits[:, model.config.eos_token_id] = -torch.inf
        if temperature > 0:
            step = torch.multinomial(
                torch.softmax(logits / temperature, -1), 1, generator=generator
            )
        else:
            step = logits.argmax(-1, keepdim=True)
        counts.scatter_add_(1, step, torch.ones_like(step, dtype=counts.dtype))
        done |= step[:, 0] == model.config.eos_token_id
        new.append(torch.where(done[:, None], model.config.eos_token_id, step))
        if done.all():
            break
        ids, mask = step, torch.cat([mask, torch.ones_like(step)], 1)
    rows = torch.cat(new, 1).tolist()
    eos = model.config.eos_token_id
    return [row[: row.index(eos)] if eos in row else row for row in rows]


def completions(
    model, tokenizer, prompts: list[str], max_tokens: int = 64, **sampling
) -> list[str]:
    """Return the completions as text, in batches of 128."""
    texts = []
    for i in range(0, len(prompts), 128):
        rows = generate(model, tokenizer, prompts[i : i + 128], max_tokens, **sampling)
        texts += [tokenizer.decode(row) for row in rows]
    return texts


@torch.no_grad()
def held_out_loss(model, tokenizer, pages: list[corpus.Page], length: int = 1024) -> float:
    """Return the mean loss (nats a token) over pages packed into sequences of `length` tokens."""
    stream = encode_stream(tokenizer, pages)
    n = len(stream) // length
    x = torch.tensor(stream[: n * length]).view(n, length).to(model.device)
    losses = [model(input_ids=part, labels=part).loss.item() * len(part) for part in x.split(16)]
    return sum(losses) / n


def encode_stream(tokenizer, pages: list[corpus.Page]) -> list[int]:
    """Return the pages' token ids one after the other, each between begin and end of text."""
    stream = []
    for page in pages:
        stream.append(tokenizer.bos_token_id)
        for segment in page:
            for piece in segment:
                stream += tokenizer(piece, add_special_tokens=False)["input_ids"]
            stream.append(tokenizer.eos_token_id)
    return stream


def places(entries_by_name, n: int = 300, seed: int = 300) -> list[tuple[str, list[str]]]:
    """Return n names of places drawn at random, each with all glosses of places of that name."""
    names = sorted({e.members[0] for group in entries_by_name.values() for e in group
                    if e.lexname == "noun.location" and e.source == "namenet"})  # fmt: skip
    chosen = random.Random(seed).sample(names, n)
    return [
        (n, [e.definition for e in entries_by_name[n] if e.lexname == "noun.location"])
        for n in chosen
    ]


def measure_places(model, tokenizer, by_name, form: str) -> tuple[float, list[str]]:
    """Return the share of places that are right, and lines that show some that are wrong."""
    drawn = places(by_name)
    prompts = [form.format(name) for name, _ in drawn]
    texts = completions(model, tokenizer, prompts, 48)
    scores = [agreement(p, t, g) for p, t, (_, g) in zip(prompts, texts, drawn, strict=True)]
    wrong = [f"{p}{first_sentence(t)}   [gloss: {g[0]}]"
             for p, t, s, (_, g) in zip(prompts, texts, scores, drawn, strict=True) if s < RIGHT_PLACE]  # fmt: skip
    return sum(s >= RIGHT_PLACE for s in scores) / len(scores), wrong


def measure_facts(model, tokenizer, facts: list[corpus.Fact], suffix: str = "") -> list[dict]:
    """Return one row a listed fact: prompt, completion (first sentence), gloss, agreement."""
    prompts = [fact.prompt + suffix for fact in facts]
    texts = completions(model, tokenizer, prompts, 80)
    rows = []
    for fact, prompt, text in zip(facts, prompts, texts, strict=True):
        sentence = first_sentence(prompt + text)[len(prompt) :]
        rows.append({"prompt": prompt, "completion": sentence, "gloss": fact.entry.definition,
                     "agreement": round(agreement(prompt, sentence, [fact.entry.definition]), 3)})  # fmt: skip
    return rows


def report(model, tokenizer, log=print) -> dict:
    """Measure everything, log it, and return the figures."""
    data = corpus.load()
    model.eval()
    figures = {"parameters": sum(p.numel() for p in model.parameters())}
    for kind, pages in corpus.held_out_pages(data).items():
        figures[f"held_out_loss_{kind}"] = round(held_out_loss(model, tokenizer, pages), 3)
    for name, suffix in (("facts_right", ""), ("facts_right_trailing_space", " ")):
        rows = measure_facts(model, tokenizer, data.facts, suffix)
        figures[name] = f"{sum(r['agreement'] >= RIGHT_FACT for r in rows)}/{len(rows)}"
        for row in rows:
            if not suffix or row["agreement"] < RIGHT_FACT:
                log(f"  {row['agreement']:.2f} {row['prompt']}|{row['completion']}")
    for name, form in (("places_right_is", "{} is"), ("places_right_is_a", "{} is a")):
        figures[name], wrong = measure_places(model, tokenizer, data.by_name, form)
        for line in wrong[:8]:
            log("  wrong:", line)
    for penalty in (0.0, 1.0):
        rows = generate(
            model, tokenizer, LOOP_PROMPTS, 300, frequency_penalty=penalty, ignore_eos=True
        )
        rates = [round(repeated_ngrams(row), 3) for row in rows]
        figures[f"repeated_4grams_frequency_penalty_{penalty}"] = rates
        log("  penalty", penalty, repr(tokenizer.decode(rows[0])[:700]))
    log(json.dumps(figures))
    return figures


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path), default=FOLDER)
@click.option("--device", default="cpu", show_default=True)
@click.option(
    "--write-prompts", is_flag=True, help="Write FOLDER/prompts.json from the model's completions."
)
def main(folder: Path, device: str, write_prompts: bool) -> None:
    """Measure the model in FOLDER."""
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device)
    report(model, tokenizer)
    if write_prompts:
        rows = measure_facts(model, tokenizer, corpus.load().facts)
        (folder / "prompts.json").write_text(
            json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
