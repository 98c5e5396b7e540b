"""What a truncated list of logprobs (the top 20 of 128,256, say) can and cannot say about what is sampled.

Every token that is not listed is at most as probable as the last of the top k. That alone bounds the mass that the
list cannot see, after every sampling parameter. Pure: standard library only.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from workshop.use.sampling import Token, model_step
from workshop.use.sampling_settings import LOWEST_TEMPERATURE, Settings


@dataclass(frozen=True)
class Unseen:
    """What a list leaves out.

    Attributes:
        raw: mass of the model's own distribution outside the list.
        low, high: bounds on the mass outside the list in the distribution that is sampled.
    """

    raw: float
    low: float
    high: float

    @property
    def nothing(self) -> bool:
        """Whether the list is all there is to see: no token outside it can be sampled."""
        return self.high == 0.0


def unseen(
    logprobs: Mapping[Token, float],
    settings: Settings,
    *,
    ceiling: float | None = None,
    vocab_size: int | None = None,
    output_tokens: Iterable[Token] = (),
) -> Unseen:
    """Bound the probability that vLLM samples a token which the list does not have.

    Args:
        logprobs: the listed tokens' logprobs as the model gave them.
        settings: the sampling parameters.
        ceiling: no token outside the list has a higher logprob. Default: the lowest one listed, which is right
            unless the list also has a sampled token from further down (`k` alternatives plus the chosen one).
        vocab_size: bounds how many tokens there are outside the list; without it there may be any number.
        output_tokens: what was generated so far; the penalties move these, listed or not.
    """
    raw = model_step(logprobs).outside
    if not raw or (vocab_size is not None and len(logprobs) >= vocab_size):
        return Unseen(0.0, 0.0, 0.0)
    output = Counter(output_tokens)
    penalised = settings.frequency_penalty or settings.presence_penalty
    if settings.repetition_penalty != 1 or (penalised and output.keys() - logprobs.keys()):
        return Unseen(raw, 0.0, 1.0)  # tokens outside the list move too, and nobody knows from where
    listed = [
        x - (settings.frequency_penalty * output[token] + settings.presence_penalty * (token in output))
        for token, x in logprobs.items()
    ]
    top = min(logprobs.values()) if ceiling is None else ceiling
    best = max(listed)
    if settings.greedy:
        return Unseen(raw, 0.0, 0.0 if best >= top else 1.0)
    power = 1.0 / max(settings.temperature, LOWEST_TEMPERATURE)
    if math.exp(min(0.0, top - best) * power) < settings.min_p or (
        0 < settings.top_k <= len(listed) and sorted(listed, reverse=True)[settings.top_k - 1] > top
    ):
        return Unseen(raw, 0.0, 0.0)  # min_p or top_k takes away all that is not listed
    count = math.inf if vocab_size is None else vocab_size - len(logprobs)
    low, high = _weight_outside(raw, top, best, power, count)
    weights = [math.exp((x - best) * power) for x in listed]
    # Whatever is cut off, a token that is at least as probable as any outside goes after those.
    before = math.fsum(w for x, w in zip(listed, weights, strict=True) if x >= top)
    if settings.top_p < 1 and before >= settings.top_p * (math.fsum(weights) + high):
        return Unseen(raw, 0.0, 0.0)
    if settings.top_p < 1 or settings.min_p > 0 or settings.top_k > 0:
        return Unseen(raw, 0.0, _share(high, before))
    return Unseen(raw, _share(low, math.fsum(weights)), _share(high, math.fsum(weights)))


def _share(part: float, rest: float) -> float:
    return 1.0 if math.isinf(part) else part / (part + rest)


def _weight_outside(mass: float, top: float, best: float, power: float, count: float) -> tuple[float, float]:
    """Bound Σ (pᵢ / exp(best))^power over `count` tokens with Σ pᵢ = mass and every pᵢ ≤ exp(top).

    The power is 1/temperature. Above 1 it rewards concentration, below 1 spreading: the two extremes are as few
    tokens as possible, all at the top, and as many as possible, all equal.
    """
    few = mass * math.exp((top - best) * power - top)
    if math.isfinite(count):
        even = count * math.exp((math.log(mass / max(count, 1)) - best) * power)
    else:
        even = few if power == 1 else (0.0 if power > 1 else math.inf)
    return min(few, even), max(few, even)


def draw(probabilities: Mapping[Token, float], generator: random.Random) -> Token:
    """Draw one token; the same generator state gives the same token, whatever the sampler of the server does."""
    tokens: Sequence[Token] = list(probabilities)
    return generator.choices(tokens, weights=list(probabilities.values()))[0]


def entropy_bits(probabilities: Mapping[Token, float]) -> float:
    """Return the entropy in bits: 0 if one token is certain, 13 if 8,192 are equally likely."""
    return -math.fsum(p * math.log2(p) for p in probabilities.values() if p > 0) + 0.0
