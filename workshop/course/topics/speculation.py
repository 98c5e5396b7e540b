"""For notebook 12: draft tokens, as counted by a server, predicted by the reference, and in a plan.

Without vLLM, or with a server of another model, `ask` returns what was recorded
(benchmarks/teaching_model/guesses.py).

>>> from workshop.course.topics import speculation
>>> agreement = [[True, False, True, True, True, True, True]]
>>> speculation.lengths(agreement, guesses=3)        # tokens that each step writes
[2, 4, 2]
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from inference_planner.speed import roofline as speed
from inference_planner.split.deployment import Deployment

from workshop.client.client import Client
from workshop.course.topics import recorded_data
from workshop.engine import metrics
from workshop.servers.local import TEACHING_MODEL
from workshop.simulate import clock
from workshop.teaching_model import DRAFT, FOLDER, reference

__all__ = [
    "DRAFT",
    "FOLDER",
    "PROMPTS",
    "DraftRun",
    "agreement",
    "ask",
    "choices",
    "lengths",
    "speedup",
    "step_ms",
    "token_texts",
]
PROMPTS = (
    "San Francisco is a",
    "Boston is a",
    "A lion is a",
    "Question: What is the capital of France?\nAnswer:",
    "The history of",
    "My fellow citizens,",
    "An engineer is",
    "Question: Who was Isaac Newton?\nAnswer:",
)
WARM_UP_TOKENS = 8
# to launch a layer of a draft: 1B under 8B on one H200, vLLM 0.32.0 (docs/gpu.md)
DRAFT_LAYER_MS = 0.37
DRAFT_REQUEST_MS = 0.006  # and each request's share of a draft token (EAGLE-3, 0.33.0)


@dataclass(frozen=True)
class DraftRun:
    """Answers to some prompts, one after the other, and what the server counted meanwhile."""

    answers: tuple  # (prompt, answer) as token ids
    ms_a_token: float  # of all answers together
    drafts: int  # steps that had draft tokens
    drafted: int  # draft tokens
    accepted: int
    accepted_at: tuple  # those accepted, by their place in a step


def ask(
    client: Client | None, recorded: str, *, temperature: float = 0.0, max_tokens: int = 64
) -> DraftRun:
    """Send PROMPTS to the teaching model's server.

    Where there is none, return the run that was recorded.
    """
    if client is None or client.model != TEACHING_MODEL:
        name = f"{recorded}, temperature {temperature:g}"
        print(f"Recorded: {name}.")
        return DraftRun(**recorded_data.read("guesses.json")["runs"][name])
    client.complete(PROMPTS[0], max_tokens=WARM_UP_TOKENS)
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "return_token_ids": True}
    before = metrics.fetch(client.url, client.record.api_key)
    began = time.perf_counter()
    answers = []
    tokens = 0
    for prompt in PROMPTS:
        choice = client.complete(prompt, **sampling).choices[0]
        answers.append((choice.prompt_token_ids, choice.token_ids))
        tokens += len(choice.token_ids)
    took_ms = 1000 * (time.perf_counter() - began)
    after = metrics.fetch(client.url, client.record.api_key)
    accepted_at = []
    for earlier, later in zip(before.accepted_at, after.accepted_at, strict=True):
        accepted_at.append(int(later - earlier))
    return DraftRun(
        tuple(answers),
        took_ms / tokens,
        drafts=_grown(before.drafts_total, after.drafts_total),
        drafted=_grown(before.drafted_total, after.drafted_total),
        accepted=_grown(before.accepted_total, after.accepted_total),
        accepted_at=tuple(accepted_at),
    )


def _grown(before: float | None, after: float | None) -> int:
    """Return how much a server's counter has grown; None is a counter that does not exist yet."""
    return int((after or 0) - (before or 0))


def choices(ids: Sequence[int], model: str = "draft") -> np.ndarray:
    """Return the most probable next token after each of these ids: shape [len(ids)].

    `model` is "draft" or "target".
    """
    folder = {"draft": DRAFT, "target": FOLDER}[model]
    return reference.load(folder).logits(np.array([ids]))[0].argmax(-1)


def token_texts(ids: Sequence[int]) -> list[str]:
    """Return the text of each token."""
    return [reference.decode([int(token)]) for token in ids]


def agreement(run: DraftRun) -> list[list[bool]]:
    """Return for each answer whether the draft proposes each token after the first.

    The draft sees the tokens that come before.
    """
    agreements = []
    for prompt, answer in run.answers:
        # the first token comes from the prefill
        proposed = choices([*prompt, *answer])[len(prompt) : -1]
        agreements.append((proposed == np.array(answer[1:])).tolist())
    return agreements


def lengths(agree: Sequence[Sequence[bool]], guesses: int) -> list[int]:
    """Return how many tokens each step writes.

    These are the draft tokens before the first wrong one, and one token of the model's own.

    What an answer's last step has right beyond its end is not known, and does not count.
    """
    written = []
    for row in agree:
        place = 0
        while place < len(row):
            written.append([*row[place : place + guesses], False].index(False) + 1)
            place += written[-1]
    return written


def step_ms(
    deployment: Deployment, requests: int, tokens_each: int = 1, context: int = 1000
) -> float:
    """Return the plan's ms of a step in which each request has so many tokens.

    Its cache is read once for all.
    """
    terms = speed.decode_terms(deployment, batch=requests, tokens_each=tokens_each, context=context)
    return sum(term.ms for term in terms)


def speedup(
    target: Deployment,
    draft: Deployment | None,
    requests: int,
    guesses: int,
    tokens_a_step: float,
    *,
    graphs: bool = True,
    context: int = 1000,
) -> float:
    """Return how many times as many tokens/s speculative decoding gives.

    The draft runs once for each draft token, then the target once.

    Args:
        guesses: draft tokens of a step.
        draft: None where draft tokens are looked up in the text (n-gram): vLLM 0.32.0 then plans a
            step only after the last one.
        tokens_a_step: the acceptance length.
        graphs: False as vLLM 0.32.0 runs a draft that is a model of its own: its kernels are
            launched one by one. So are the target's where a step has more tokens than the largest
            CUDA graph.
        context: tokens of each request so far; the more there are to read, the less its draft
            tokens cost.
    """
    check_ms = step_ms(target, requests, guesses + 1, context)
    if requests * (guesses + 1) > target.settings.largest_graph:
        check_ms = max(check_ms, clock.of(target).eager_ms)
    if draft is None:
        drafting_ms = sum(clock.of(target).host_ms([(1, 0)] * requests))
    else:
        drafting_ms = guesses * _draft_token_ms(draft, requests, graphs, context)
    plain_ms = step_ms(target, requests, context=context)
    return tokens_a_step * plain_ms / (drafting_ms + check_ms)


def _draft_token_ms(draft: Deployment, requests: int, graphs: bool, context: int) -> float:
    """Return the ms of one run of the draft model, which proposes one token for each request."""
    launch_ms = 0.0
    if not graphs:
        launch_ms = draft.model.num_hidden_layers * DRAFT_LAYER_MS
    run_ms = step_ms(draft, requests, context=context)
    return max(run_ms, launch_ms) + DRAFT_REQUEST_MS * requests
