"""Train the teaching model: one command, from the corpus to a folder that vLLM serves.

    python -m benchmarks.teaching_model.train --out FOLDER

Needs torch, transformers and tokenizers, and a GPU to be done in minutes. Everything is seeded; two runs on the
same GPU differ by the rounding of its kernels alone, unless --max-seconds cuts them short.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from benchmarks.teaching_model import corpus, editions, evaluate
from benchmarks.teaching_model.sentences import Page

if TYPE_CHECKING:  # its import takes seconds, and --help needs none
    from transformers import LlamaConfig, LlamaForCausalLM

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
VOCAB_SIZE = 8192
LENGTH = 1024
LONG_LENGTH = 8192
"""Sequences of the last passes, so that positions up to max_position_embeddings have been seen."""
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ 'Question: ' + message['content'] + '\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Answer: ' + message['content'] + eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Answer:' }}{% endif %}"
)
UNLEARNED = -100
"""A label that adds nothing to the loss."""
_state: dict = {}


def train_tokenizer(pages: list[Page]) -> Tokenizer:
    """Return a byte-level BPE tokenizer that puts the begin-of-text token first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=[BOS, EOS], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    tokenizer.train_from_iterator(("".join(segment) for page in pages for segment in page), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 0)]
    )
    return tokenizer


def tokenize_edition(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an edition's token ids (uint16, pages one after the other) and where its pages begin."""
    pages = editions.edition(_state["corpus"], number, _state["mixes"][number])
    pieces = [piece for page in pages for segment in page for piece in segment]
    encoded = iter(_state["tokenizer"].encode_batch(pieces, add_special_tokens=False))
    ids, starts = [], []
    for page in pages:
        starts.append(len(ids))
        ids.append(0)
        for segment in page:
            for _ in segment:
                ids += next(encoded).ids
            ids.append(1)
    return np.array(ids, dtype=np.uint16), np.array([*starts, len(ids)])


def prepare(recipe: list[Stage], workers: int, cache: Path) -> tuple[Tokenizer, dict]:
    """Return the tokenizer and the tokenized editions by number, from the cache as far as it has them."""
    cache.mkdir(parents=True, exist_ok=True)
    mixes = {s.first_edition + i: s.mix for s in recipe for i in range(s.editions)}
    wanted = sorted(mixes)
    missing = [n for n in wanted if not (cache / f"edition-{n}.npz").exists()]
    file = cache / "tokenizer.json"
    data = corpus.load() if missing or not (cache / "tokenizer.json").exists() else None
    if not file.exists():
        train_tokenizer(editions.edition(data, 0, RECIPE[0].mix)).save(str(file))
    _state.update(corpus=data, mixes=mixes, tokenizer=Tokenizer.from_file(str(file)))
    if missing:
        os.environ["TOKENIZERS_PARALLELISM"] = (
            "false"  # its threads do not survive a fork: the pool would hang
        )
        with multiprocessing.get_context("fork").Pool(min(workers, len(missing))) as pool:
            for n, (ids, starts) in zip(missing, pool.imap(tokenize_edition, missing), strict=True):
                np.savez_compressed(cache / f"edition-{n}.npz", ids=ids, starts=starts)
    loaded = {n: np.load(cache / f"edition-{n}.npz") for n in wanted}
    return _state["tokenizer"], {n: (file["ids"], file["starts"]) for n, file in loaded.items()}


def shuffled(tokens: np.ndarray, starts: np.ndarray, seed: int) -> np.ndarray:
    """Return the edition's pages in another order, and from another point on."""
    order = np.random.default_rng(seed).permutation(len(starts) - 1)
    stream = np.concatenate([tokens[starts[i] : starts[i + 1]] for i in order])
    return np.roll(stream, seed * 131 % len(stream))


def model_config(hidden: int, layers: int, heads: int, kv_heads: int) -> LlamaConfig:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=hidden, intermediate_size=hidden * 8 // 3 // 64 * 64,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=hidden // heads,
        max_position_embeddings=LONG_LENGTH, rope_theta=10000.0, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=1,
        tie_word_embeddings=True,
    )  # fmt: skip


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def save_weights(model: LlamaForCausalLM, out: Path) -> None:
    """Write bfloat16 shards, and config.json and generation_config.json in the form that Llama models have."""
    model.save_pretrained(out, max_shard_size="7MB")
    c = model.config
    write_json(out / "config.json", {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 0, "eos_token_id": 1, "head_dim": c.head_dim, "hidden_act": c.hidden_act,
        "hidden_size": c.hidden_size, "initializer_range": c.initializer_range,
        "intermediate_size": c.intermediate_size, "max_position_embeddings": c.max_position_embeddings,
        "mlp_bias": False, "model_type": "llama", "num_attention_heads": c.num_attention_heads,
        "num_hidden_layers": c.num_hidden_layers, "num_key_value_heads": c.num_key_value_heads,
        "pretraining_tp": 1, "rms_norm_eps": c.rms_norm_eps, "rope_scaling": None, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": c.vocab_size,
    })  # fmt: skip
    write_json(out / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Write the model folder: weights, configurations and the tokenizer."""
    c = model.config
    save_weights(model, out)
    tokenizer.save(str(out / "tokenizer.json"))
    write_json(out / "tokenizer_config.json", {
        "bos_token": BOS, "eos_token": EOS, "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE,
        "model_max_length": c.max_position_embeddings, "tokenizer_class": "PreTrainedTokenizerFast",
    })  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """Some passes over editions, on one learning-rate cycle (warm-up, then a cosine).

    long_shares: for each pass, the share of its tokens that comes in sequences of LONG_LENGTH.
    """

    first_edition: int
    editions: int
    peak_lr: float
    warmup_steps: int
    long_shares: tuple[float, ...]
    mix: editions.Mix


RECIPE = (
    Stage(first_edition=0, editions=8, peak_lr=3e-3, warmup_steps=200, long_shares=(0.0,) * 79 + (1.0,) * 3,
          mix=editions.Mix(fact_copies=30, place_copies=8.0, prose_share=1.0, repeat=0.0)),
    # Sequences of LONG_LENGTH alone make the model forget (loss 0.8 -> 2.1): mix both lengths.
    Stage(first_edition=8, editions=6, peak_lr=1.5e-3, warmup_steps=50, long_shares=(0.2,) * 16,
          mix=editions.Mix(fact_copies=40)),
    # What the course asks for, once more; then prompts that end in a space.
    Stage(first_edition=14, editions=6, peak_lr=1e-3, warmup_steps=50, long_shares=(0.1,) * 16,
          mix=editions.Mix(fact_copies=90)),
    Stage(first_edition=20, editions=4, peak_lr=7e-4, warmup_steps=50, long_shares=(0.1,) * 16,
          mix=editions.Mix(fact_copies=250, cut=0.5)),
)  # fmt: skip


def batches(
    stream: np.ndarray, long_share: float, batch_tokens: int, device: str
) -> list[torch.Tensor]:
    """Cut a stream of tokens into batches of [batch_tokens // length, length], both lengths mixed."""
    cut = int(long_share * len(stream))
    result = []
    for part, length in ((stream[:cut], LONG_LENGTH), (stream[cut:], LENGTH)):
        rows = torch.from_numpy(part[: len(part) // length * length].astype(np.int64)).view(
            -1, length
        )
        size = max(1, batch_tokens // length)
        rows = rows[torch.randperm(len(rows))[: len(rows) // size * size]]
        result += rows.to(device).split(size) if len(rows) else []
    return [result[i] for i in torch.randperm(len(result)).tolist()]


def train_stage(
    model,
    stage: Stage,
    texts: dict,
    space: int,
    batch_tokens: int,
    device: str,
    max_seconds: float,
    log,
) -> None:
    """Train for the stage's passes; where time runs short, the learning rate falls faster.

    space: the token that is a space alone. It ends prompts, and the model shall not write it.
    """
    decay = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=stage.peak_lr, betas=(0.9, 0.95), fused=device == "cuda",
    )  # fmt: skip
    fast = torch.compile(model, dynamic=False) if device == "cuda" else model
    editions = [stage.first_edition + i % stage.editions for i in range(len(stage.long_shares))]
    total = sum(len(texts[e][0]) for e in editions) // batch_tokens
    step, start = 0, time.time()
    for number, (edition, long_share) in enumerate(
        zip(editions, stage.long_shares, strict=True), 1
    ):
        losses = {LENGTH: [], LONG_LENGTH: []}
        for x in batches(
            shuffled(*texts[edition], seed=number - 1), long_share, batch_tokens, device
        ):
            done = max(step / total, (time.time() - start) / max_seconds)
            if done > 1:
                break
            lr = stage.peak_lr * min(1, (step + 1) / stage.warmup_steps)
            lr *= 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done))
            for group in optimizer.param_groups:
                group["lr"] = lr
            labels = x.masked_fill(x == space, UNLEARNED)
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                net = fast if x.shape[1] == LENGTH else model
                loss = net(input_ids=x, labels=labels, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses[x.shape[1]].append(loss.detach())
            if step == 0:
                loss.item()
                log(f"first step after {time.time() - start:.0f} s")
                start = time.time()  # compiling is not training time
            step += 1
        means = ", ".join(
            f"loss {torch.stack(v).mean().item():.3f} (length {k})" for k, v in losses.items() if v
        )
        log(
            f"pass {number}/{len(editions)} step {step}/{total} {means} lr {lr:.2e} seconds {time.time() - start:.0f}"
        )


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the model.")
@click.option(
    "--stage", "stages", type=click.IntRange(1, len(RECIPE)), multiple=True, help="[default: all]"
)
@click.option(
    "--start", type=click.Path(exists=True, path_type=Path), help="Model folder to go on from."
)
@click.option("--hidden", default=448, show_default=True)
@click.option("--layers", default=4, show_default=True)
@click.option("--heads", default=14, show_default=True)
@click.option("--kv-heads", default=2, show_default=True)
@click.option("--batch-tokens", default=32768, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--workers", default=8, show_default=True, help="Processes that prepare the text.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="Folder of the tokenized text  [default: OUT/text]",
)
@click.option("--evaluation/--no-evaluation", default=True, show_default=True)
@click.option(
    "--max-seconds", default=3600.0, show_default=True, help="Finish each stage within this time."
)
@click.option("--device", default="cuda" if torch.cuda.is_available() else "cpu", show_default=True)
def main(out, stages, start, hidden, layers, heads, kv_heads, batch_tokens, seed, workers, cache, evaluation,
         max_seconds, device):  # fmt: skip
    """Train the teaching model and write it to OUT with training_log.txt."""
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    out.mkdir(parents=True, exist_ok=True)
    log_file = (out / "training_log.txt").open("w", encoding="utf-8")

    def log(*parts) -> None:
        for stream in (sys.stdout, log_file):
            print(*parts, file=stream, flush=True)

    started = time.time()
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    recipe = [RECIPE[i - 1] for i in stages or range(1, len(RECIPE) + 1)]
    tokenizer, texts = prepare(recipe, workers, cache or out / "text")
    if start:
        model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32).to(device)
    else:
        model = LlamaForCausalLM(model_config(hidden, layers, heads, kv_heads)).to(device)
    log(f"torch {torch.__version__}, {torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}; "
        f"{sum(len(t) for t, _ in texts.values()) / len(texts) / 1e6:.2f} M tokens an edition; "
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters; "
        f"text ready in {time.time() - started:.0f} s; arguments: {' '.join(sys.argv[1:])}")  # fmt: skip
    space = tokenizer.encode(" ").ids[-1]
    for stage in recipe:
        log(f"stage {stage}")
        train_stage(
            model,
            stage,
            texts,
            space,
            batch_tokens,
            device,
            max_seconds,
            log,
        )
    model = model.to(torch.bfloat16)
    save(model, tokenizer, out)
    log(f"{time.time() - started:.0f} s to here")
    if evaluation:
        evaluate.report(model, PreTrainedTokenizerFast.from_pretrained(out), log)


if __name__ == "__main__":
    main()
