"""The cases of truth.py: prompts, settings, and computations, the right one and wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from workshop.client.sampling import Pipeline, pipeline
from workshop.client.sampling_settings import Settings

PROMPTS = (  # each of the first two tells every wrong computation from the right one
    "San Francisco is a",
    "My fellow citizens, we",
    "The king said to the",
    "To be, or not to",
    "A large animal with a",
)
STOP: tuple[int, ...] = (1,)  # the teaching model's end of text


@dataclass(frozen=True)
class Case:
    """A setting, and which token of the answer is compared: the first, or the second given the first.

    `few`: the request allows 8 tokens only (`allowed_token_ids`) and gives them LOGITS (`logit_bias`). The teaching
    model hardly ever writes a word twice in a row; so it does, and penalties show as well on every processor.
    """

    name: str
    settings: Settings
    token: int = 1
    few: bool = False


CASES = (
    Case("greedy", Settings(temperature=0)),
    Case("temperature 0.5", Settings(temperature=0.5)),
    Case("everything off", Settings()),
    Case("temperature 1.6", Settings(temperature=1.6)),
    Case("top_k 5", Settings(top_k=5)),
    Case("top_k 20, temperature 1.5", Settings(top_k=20, temperature=1.5)),
    Case("top_p 0.7", Settings(top_p=0.7)),
    Case("top_p 0.8, temperature 1.5", Settings(top_p=0.8, temperature=1.5)),
    Case("top_p 0.9, temperature 0.6", Settings(top_p=0.9, temperature=0.6)),
    Case("min_p 0.1", Settings(min_p=0.1)),
    Case("min_p 0.05, temperature 1.6", Settings(min_p=0.05, temperature=1.6)),
    Case("top_k 30, top_p 0.8, temperature 1.5", Settings(top_k=30, top_p=0.8, temperature=1.5)),
    Case(
        "min_p 0.02, top_k 12, top_p 0.9, temperature 1.4",
        Settings(min_p=0.02, top_k=12, top_p=0.9, temperature=1.4),
    ),
    Case("min_tokens 2", Settings(min_tokens=2)),
    Case("top_k 6, top_p 0.6, temperature 1.7", Settings(top_k=6, top_p=0.6, temperature=1.7)),
    Case("frequency_penalty 1, everything else off", Settings(frequency_penalty=1.0), token=2),
    Case(
        "frequency_penalty 1.5, temperature 1.5",
        Settings(frequency_penalty=1.5, temperature=1.5),
        2,
        few=True,
    ),
    Case(
        "frequency_penalty -2, temperature 0.7, top_k 4",
        Settings(frequency_penalty=-2.0, temperature=0.7, top_k=4),
        2,
        few=True,
    ),
    Case(
        "presence_penalty -1.5, top_p 0.9, temperature 1.3",
        Settings(presence_penalty=-1.5, top_p=0.9, temperature=1.3),
        2,
        few=True,
    ),
    Case(
        "repetition_penalty 0.6, temperature 1.3",
        Settings(repetition_penalty=0.6, temperature=1.3),
        2,
        few=True,
    ),
    Case(
        "repetition_penalty 1.3, temperature 1.5",
        Settings(repetition_penalty=1.3, temperature=1.5),
        2,
        few=True,
    ),
    Case(
        "repetition 1.2, frequency -1, presence 0.5, temperature 1.6, min_p 0.05, top_k 6, top_p 0.9",
        Settings(
            repetition_penalty=1.2,
            frequency_penalty=-1.0,
            presence_penalty=0.5,
            temperature=1.6,
            min_p=0.05,
            top_k=6,
            top_p=0.9,
        ),
        2,
        few=True,
    ),
)

# A way to compute: (logprobs, settings, output tokens, prompt tokens, logit of logprob 0) → pipeline.
Compute = Callable[[dict, Settings, Sequence[int], Sequence[int], float], Pipeline]


def ours(
    logprobs: dict,
    settings: Settings,
    output: Sequence[int],
    prompt: Sequence[int],
    offset: float,
) -> Pipeline:
    """What the workshop computes. Logits are logprobs plus a constant; only repetition_penalty sees which."""
    logits = {token: x + offset for token, x in logprobs.items()}
    return pipeline(
        None,
        settings,
        output_tokens=output,
        prompt_tokens=prompt,
        logits=logits,
        stop_tokens=STOP,
    )


def on_gpu(
    logprobs: dict, settings: Settings, output: Sequence[int], prompt: Sequence[int], offset: float
) -> Pipeline:
    """The same where a GPU samples many at once: exactly k tokens, of those that tie the lowest ids.

    Source: vllm/v1/sample/ops/topk_topp_triton.py of 0.25.1.
    """
    uncut = settings.without("top_k", "top_p")
    left = ours(logprobs, uncut, output, prompt, offset).probabilities
    if settings.top_k > 0:
        for token in sorted(left, key=lambda token: (-left[token], token))[settings.top_k :]:
            del left[token]
    left_logprobs = {token: math.log(p) for token, p in left.items()}
    return ours(left_logprobs, Settings(top_p=settings.top_p), (), (), 0.0)


def ties_of_top_p(result: Pipeline) -> set:
    """Return the tokens of equal probability of which top_p keeps some, in vLLM as its sort places them."""
    step = result.step("top_p")
    if step is None:
        return set()
    before = result.steps[-2].probabilities  # top_p is the last step
    lowest = min(before[token] for token in step.probabilities)
    tied = {token for token, p in before.items() if p == lowest}
    return set() if tied <= step.probabilities.keys() else tied


def in_order(*stages: tuple[str, ...]) -> Compute:
    """Return a computation with the parameters in another order: each stage alone, on what the one before left."""

    def compute(logprobs, settings, output, prompt, offset) -> Pipeline:
        for stage in stages:
            others = [name for name in asdict(settings) if name not in stage]
            result = ours(logprobs, settings.without(*others), output, prompt, offset)
            logprobs = {token: math.log(p) for token, p in result.probabilities.items()}
        return result

    return compute


def forgetting(*names: str) -> Compute:
    """Return a computation that knows nothing of some parameters."""

    def compute(logprobs, settings, output, prompt, offset) -> Pipeline:
        return ours(logprobs, settings.without(*names), output, prompt, offset)

    return compute


def counting_twice(logprobs, settings, output, prompt, offset) -> Pipeline:
    """Frequency as if every token of the answer had been generated twice."""
    return ours(logprobs, settings, [*output, *output], prompt, offset)


HOT = "top_k 30, top_p 0.8, temperature 1.5"
COLD = "frequency_penalty -2, temperature 0.7, top_k 4"
WRONG: dict[str, tuple[str, Compute]] = {  # the case that tells, and the wrong computation
    "top_k and top_p before temperature": (HOT, in_order(("top_k", "top_p"), ("temperature",))),
    "top_k between temperature and top_p left out": (
        "top_k 6, top_p 0.6, temperature 1.7",
        forgetting("top_k"),
    ),
    "top_p before top_k": (
        "top_k 6, top_p 0.6, temperature 1.7",
        in_order(("temperature", "top_p"), ("top_k",)),
    ),
    "min_p before temperature": (
        "min_p 0.05, temperature 1.6",
        in_order(("min_p",), ("temperature",)),
    ),
    "temperature twice": ("temperature 0.5", in_order(("temperature",), ("temperature",))),
    "penalties after temperature": (
        COLD,
        in_order(("temperature",), ("frequency_penalty", "top_k")),
    ),
    "no frequency_penalty": (COLD, forgetting("frequency_penalty")),
    "no presence_penalty": (
        "presence_penalty -1.5, top_p 0.9, temperature 1.3",
        forgetting("presence_penalty"),
    ),
    "no repetition_penalty": (
        "repetition_penalty 0.6, temperature 1.3",
        forgetting("repetition_penalty"),
    ),
    "the answer's tokens counted twice": (COLD, counting_twice),
}
