"""Measure the teaching model: labels, held-out loss, listed facts, places, what it declines, repetition and its cure.

    python -m benchmarks.teaching_model.evaluate [FOLDER] [--device cpu] [--write]

Needs torch and transformers.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import click
import torch

from benchmarks.teaching_model import corpus, dialogue, editions, labels
from benchmarks.teaching_model.abstracts.select import UNSEEN
from benchmarks.teaching_model.measure import (
    LOOP_PROMPTS,
    agreement,
    first_sentence,
    repeated_ngrams,
)
from benchmarks.teaching_model.sentences import Page
from workshop.course.topics import abstracts
from workshop.measure.evaluation import TASKS
from workshop.teaching_model import FOLDER

RIGHT_PLACE = 0.5
"""A place is right when at least half of the content words of the first sentence stand in a gloss of that name."""
RIGHT_FACT = 0.9
CORE_PLACES = {
    "San Francisco": "California", "Boston": "Massachusetts", "Chicago": "Illinois", "Los Angeles": "California",
    "Seattle": "Washington", "Paris": "France", "London": "England", "Berlin": "Germany", "Tokyo": "Japan",
    "Rome": "Italy",
}  # fmt: skip


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
def held_out_loss(model, tokenizer, pages: list[Page], length: int = 1024) -> float:
    """Return the mean loss (nats a token) over pages packed into sequences of `length` tokens."""
    stream = encode_stream(tokenizer, pages)
    n = len(stream) // length
    x = torch.tensor(stream[: n * length]).view(n, length).to(model.device)
    losses = [model(input_ids=part, labels=part).loss.item() * len(part) for part in x.split(16)]
    return sum(losses) / n


def encode_stream(tokenizer, pages: list[Page]) -> list[int]:
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
                    if e.is_place})  # fmt: skip
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


@torch.no_grad()
def measure_labels(model, tokenizer) -> dict:
    """Return how well the model labels the course's abstracts: its most probable field, and how sure it is among all."""
    rows = abstracts.load()
    firsts = [
        tokenizer(f" {name}", add_special_tokens=False)["input_ids"][0] for name in abstracts.FIELDS
    ]
    distributions = []
    for i in range(0, len(rows), 64):
        ids = [tokenizer(abstracts.prompt(row["text"]))["input_ids"] for row in rows[i : i + 64]]
        width = max(map(len, ids))
        batch = torch.tensor([row + [1] * (width - len(row)) for row in ids], device=model.device)
        last = torch.tensor([len(row) - 1 for row in ids], device=model.device)
        logits = model(input_ids=batch, use_cache=False).logits[torch.arange(len(ids)), last]
        p = logits[:, firsts].float().softmax(-1).tolist()
        distributions += [dict(zip(abstracts.FIELDS, of_row, strict=True)) for of_row in p]
    return labels.figures(rows, distributions, set(UNSEEN))


def share_that_holds(model, tokenizer, wanted: dict[str, str], log) -> str:
    """Return of how many prompts the completion's first sentence holds the wanted words, as "48/50"; log the others."""
    texts = completions(model, tokenizer, list(wanted), 48)
    right = 0
    for (prompt, answer), text in zip(wanted.items(), texts, strict=True):
        if answer in first_sentence(text):
            right += 1
        else:
            log(f"  not {answer!r}: {prompt!r} {first_sentence(text)}")
    return f"{right}/{len(wanted)}"


def measure_answers(model, tokenizer, log) -> dict:
    """Return how many places are where they are (chat, and drawn ones as completions), and other subjects declined."""
    chat = "Question: {}\nAnswer:"
    core = {chat.format(f"Where is {name}?"): region for name, region in CORE_PLACES.items()}
    rows = [json.loads(line) for line in (TASKS / "teaching_places.jsonl").open(encoding="utf-8")]
    drawn = {row["prompt"]: row["answer"] for row in random.Random(50).sample(rows, 50)}
    everything = {row["prompt"]: row["answer"] for row in rows}
    others = {
        chat.format(question): "I do not know"
        for question in dialogue.requests("requests_unseen.txt")
    }
    return {
        "core_places_right": share_that_holds(model, tokenizer, core, log),
        "drawn_places_right": share_that_holds(model, tokenizer, drawn, log),
        "task_places_right": share_that_holds(model, tokenizer, everything, lambda line: None),
        "other_subjects_declined": share_that_holds(model, tokenizer, others, log),
    }


def measure_facts(model, tokenizer, facts: list[corpus.Fact], suffix: str = "") -> list[dict]:
    """Return one row a listed fact: prompt, completion (first sentence), gloss and sentences of ours, agreement."""
    prompts = [fact.prompt + suffix for fact in facts]
    texts = completions(model, tokenizer, prompts, 80)
    rows = []
    for fact, prompt, text in zip(facts, prompts, texts, strict=True):
        sentence = first_sentence(prompt + text)[len(prompt) :]
        glosses = [fact.entry.definition, *fact.also]
        rows.append({"prompt": prompt, "completion": sentence, "glosses": glosses,
                     "agreement": round(agreement(prompt, sentence, glosses), 3)})  # fmt: skip
    return rows


def report(model, tokenizer, log=print) -> dict:
    """Measure everything, log it, and return the figures."""
    data = corpus.load()
    model.eval()
    figures = {"parameters": sum(p.numel() for p in model.parameters())}
    figures |= measure_labels(model, tokenizer) | measure_answers(model, tokenizer, log)
    log(json.dumps(figures))
    for kind, pages in editions.held_out_pages(data).items():
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
    "--write",
    is_flag=True,
    help="Write FOLDER/prompts.json and FOLDER/figures.json, which prose quotes.",
)
def main(folder: Path, device: str, write: bool) -> None:
    """Measure the model in FOLDER."""
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    # where a processor has no arithmetic for bfloat16, it takes ten times as long
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
    figures = report(model, tokenizer)
    if write:
        rows = measure_facts(model, tokenizer, corpus.load().facts)
        for name, value in (("prompts.json", rows), ("figures.json", figures)):
            text = json.dumps(value, indent=1, ensure_ascii=False)
            (folder / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
