"""Train a draft for the teaching model: a Llama a fifth of its size that guesses what it would say.

    python -m benchmarks.teaching_model.draft --out workshop/teaching_model/draft

It learns the teaching model's probabilities at every token of two kinds of text: the corpus, and what the teaching
model writes itself (half greedy, half at temperature 1). Needs torch and transformers, and a GPU to be done in two minutes.
Everything is seeded, but --max-seconds ends by the clock.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import torch

from benchmarks.teaching_model import corpus, editions, evaluate
from benchmarks.teaching_model.train import model_config, save_weights
from workshop.teaching_model import FOLDER

if TYPE_CHECKING:  # its import takes seconds, and --help needs none
    from transformers import LlamaForCausalLM

ROW_TOKENS = 120
TOP = 8
"""How many of the teacher's probabilities are kept at each token."""
FACT_SHARE = 0.15
HELD_OUT = 1000
"""The edition of the corpus whose prompts are for measuring."""


def lines_of(number: int, data: corpus.Corpus) -> list[str]:
    """Return a few lines from every page of an edition, beginning at a random one."""
    rng, texts = random.Random(number), []
    for page in editions.edition(data, number):
        lines = "".join(page[0]).split("\n")
        first = rng.randrange(len(lines))
        texts.append("\n".join(lines[first : first + 8]))
    return [text for text in texts if " " in text]


def prompts_of(number: int, count: int, data: corpus.Corpus) -> list[str]:
    """Return the first one to six words of an edition's lines, drawn at random, and some of the course's prompts."""
    rng = random.Random(number)
    cut = [
        " ".join(text.split(" ")[: rng.randint(1, 6)])
        for text in rng.choices(lines_of(number, data), k=count)
    ]
    return [rng.choice(data.facts).prompt if rng.random() < FACT_SHARE else text for text in cut]


def rows_of(texts: list[list[int]]) -> torch.Tensor:
    """Return token ids as one tensor of shape [texts, ROW_TOKENS], -1 behind the end of a text."""
    rows = torch.full((len(texts), ROW_TOKENS), -1)
    for row, ids in zip(rows, texts, strict=True):
        row[: len(ids)] = torch.tensor(ids[:ROW_TOKENS])
    return rows


def written(
    teacher: LlamaForCausalLM, tokenizer, prompts: list[str], batch: int = 256
) -> torch.Tensor:
    """Return the prompts with what the teacher makes of them: every other batch greedy, the rest at temperature 1."""
    texts = []
    for i in range(0, len(prompts), batch):
        part = prompts[i : i + batch]
        made = evaluate.generate(
            teacher, tokenizer, part, ROW_TOKENS - 8, temperature=i // batch % 2, seed=i
        )
        texts += [[*tokenizer(p)["input_ids"], *ids, 1] for p, ids in zip(part, made, strict=True)]
    return rows_of(texts)


@torch.no_grad()
def wanted(teacher: LlamaForCausalLM, texts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the teacher's TOP probabilities at each token, and whose they are: [texts, ROW_TOKENS, TOP] twice."""
    parts = []
    for rows in texts.split(64):
        top = (
            teacher(input_ids=rows.clamp(min=0), use_cache=False)
            .logits.float()
            .softmax(-1)
            .topk(TOP)
        )
        parts.append((top.values, top.indices.to(torch.int16)))
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def beginner(
    teacher: LlamaForCausalLM, hidden: int, layers: int, heads: int, kv_heads: int
) -> LlamaForCausalLM:
    """Return a small Llama whose embeddings are the teacher's in its `hidden` principal directions."""
    from transformers import LlamaForCausalLM

    draft = LlamaForCausalLM(model_config(hidden, layers, heads, kv_heads))
    table = teacher.get_input_embeddings().weight.detach().float()
    u, s, _ = torch.linalg.svd(table, full_matrices=False)
    draft.get_input_embeddings().weight.data = (u * s)[:, :hidden].contiguous()
    return draft


def backward(
    draft: LlamaForCausalLM, rows: torch.Tensor, p: torch.Tensor, tokens: torch.Tensor
) -> float:
    """Add the gradients of the cross entropy with the teacher's top probabilities p, and return it in nats a token.

    The head goes through in pieces, whose 8,192 logits a token stay in the processor's cache.
    """
    real = rows >= 0
    hidden = draft.model(input_ids=rows.clamp(min=0), use_cache=False).last_hidden_state[real]
    leaf, total = hidden.detach().requires_grad_(), 0.0
    for h, weight, token in zip(
        *(t.split(512) for t in (leaf, p[real], tokens[real].long())), strict=True
    ):
        logits = draft.lm_head(h).float()
        loss = (
            logits.logsumexp(-1) * weight.sum(-1) - (logits.gather(-1, token) * weight).sum(-1)
        ).sum() / len(leaf)
        loss.backward()
        total += loss.item()
    hidden.backward(leaf.grad)
    return total


def train(
    draft, texts, targets, passes: int, batch: int, peak_lr: float, max_seconds: float, log
) -> None:
    """Bring the draft's distribution near the teacher's at each token of the texts; the rate falls to nothing."""
    optimizer = torch.optim.AdamW(
        draft.parameters(), lr=peak_lr, betas=(0.9, 0.95), weight_decay=0.01
    )
    order = torch.cat(
        [torch.randperm(len(texts))[: len(texts) // batch * batch] for _ in range(passes)]
    ).split(batch)
    losses, start = [], time.time()
    for step, which in enumerate(order, 1):
        done = max(step / len(order), (time.time() - start) / max_seconds)
        if done > 1:
            break
        optimizer.param_groups[0]["lr"] = peak_lr * min(1, step / 50, 1.02 - done)
        with torch.autocast(texts.device.type, torch.bfloat16):
            losses.append(backward(draft, texts[which], *(t[which] for t in targets)))
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            log(
                f"step {step}/{len(order)} loss {sum(losses[-50:]) / 50:.3f} seconds {time.time() - start:.0f}"
            )


@torch.no_grad()
def agreement(draft, teacher, texts: torch.Tensor) -> tuple[float, float]:
    """Return, over held-out texts, how often both choose the same token, and the mean of sum(min(p, q))."""
    same, overlap, count = 0.0, 0.0, 0
    for rows in texts.split(32):
        real, ids = rows >= 0, rows.clamp(min=0)
        p, q = (
            m(input_ids=ids, use_cache=False).logits[real].float().softmax(-1)
            for m in (teacher, draft)
        )
        same += (p.argmax(-1) == q.argmax(-1)).sum().item()
        overlap += torch.minimum(p, q).sum().item()
        count += len(p)
    return same / count, overlap / count


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the draft.")
@click.option("--hidden", default=192, show_default=True)
@click.option("--layers", default=2, show_default=True)
@click.option("--heads", default=6, show_default=True)
@click.option("--kv-heads", default=2, show_default=True)
@click.option("--read", default=12288, show_default=True, help="Texts from the corpus.")
@click.option(
    "--written",
    "count",
    default=4096,
    show_default=True,
    help="Texts that the teaching model writes.",
)
@click.option("--passes", default=5, show_default=True)
@click.option("--batch", default=16, show_default=True, help="Texts in one step.")
@click.option("--peak-lr", default=4e-3, show_default=True)
@click.option(
    "--max-seconds", default=1900.0, show_default=True, help="Finish training within this time."
)
@click.option("--threads", default=1, show_default=True)
@click.option("--device", default="cuda" if torch.cuda.is_available() else "cpu", show_default=True)
def main(
    out,
    hidden,
    layers,
    heads,
    kv_heads,
    read,
    count,
    passes,
    batch,
    peak_lr,
    max_seconds,
    threads,
    device,
):
    """Write the draft to OUT, and what training said to training_log.txt beside it."""
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    out.mkdir(parents=True, exist_ok=True)
    log_file = (out / "training_log.txt").open("w", encoding="utf-8")

    def log(text: str) -> None:
        for stream in (sys.stdout, log_file):
            print(text, file=stream, flush=True)

    teacher = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.bfloat16).to(device).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER)
    started, data = time.time(), corpus.load()
    learned = [
        tokenizer(text)["input_ids"] for text in random.Random(0).sample(lines_of(100, data), read)
    ]
    own = written(teacher, tokenizer, prompts_of(100, count, data))
    log(
        f"{len(learned)} texts of the corpus, {len(own)} written; seconds {time.time() - started:.0f}"
    )
    texts = torch.cat([rows_of(learned), own]).to(device)
    targets = wanted(teacher, texts)
    draft = beginner(teacher, hidden, layers, heads, kv_heads).to(device)
    log(f"{(texts >= 0).sum().item() / 1e6:.2f} M tokens in {time.time() - started:.0f} s; "
        f"{sum(p.numel() for p in draft.parameters()) / 1e6:.2f} M parameters; arguments: {' '.join(sys.argv[1:])}")  # fmt: skip
    train(draft, texts, targets, passes, batch, peak_lr, max_seconds, log)
    draft = draft.to(torch.bfloat16).eval()
    save_weights(draft, out)
    held_out = written(teacher, tokenizer, prompts_of(HELD_OUT, 256, data)).to(device)
    same, overlap = agreement(draft, teacher, held_out)
    log(
        f"held out: same first choice {same:.3f}, sum of min(p, q) {overlap:.3f}; {time.time() - started:.0f} s in all"
    )


if __name__ == "__main__":
    main()
