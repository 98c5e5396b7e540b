"""From one position's logprobs to the distribution that vLLM samples from, in vLLM's steps.

    min_tokens → repetition → frequency → presence → temperature → min_p → top_k → top_p

>>> import math
>>> from workshop import sampling
>>> model = {"city": math.log(0.5), "port": math.log(0.3), "cat": math.log(0.2)}
>>> sampling.next_token_probabilities(model, top_k=2)["city"]      # 0.5 of the 0.8 that are left
0.625

Source: vLLM 0.32, v1/sample/sampler.py, ops/penalties.py, ops/topk_topp_sampler.py and
logits_processor/builtin.py. Pure: standard library only. Scores are natural logarithms.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from workshop.client.sampling_settings import LOWEST_TEMPERATURE, Settings
from workshop.errors import BadInput

Token = Hashable  # a token's id or its text, as the caller likes
# JSON has no infinity: vLLM's server sends this for a probability of zero
MINUS_INFINITY_SENT = -9999.0
WHOLE = 1e-4  # probabilities that sum to 1 within this are the whole vocabulary (float32 rounding)


@dataclass(frozen=True)
class SampledStep:
    """The distribution after one sampling parameter was applied."""

    name: str  # the parameter, or "model" for what came in
    # among the tokens listed; those of probability zero are left out
    probabilities: dict[Token, float]
    removed: int = 0  # how many listed tokens this step took away
    # share of the probability that is in the list: exact at temperature 1, at least this below, at
    # most this above
    listed_share: float = 1.0

    @property
    def outside(self) -> float:
        """The share of the probability that is not in the list."""
        return 1.0 - self.listed_share


@dataclass(frozen=True)
class Pipeline:
    """The whole way from the model's distribution to the sampled one."""

    # "model" first, then each parameter that is switched on, in vLLM's order
    steps: tuple[SampledStep, ...]

    @property
    def probabilities(self) -> dict[Token, float]:
        """The distribution that is sampled from: token → probability, with the sum 1."""
        return self.steps[-1].probabilities

    def step(self, name: str) -> SampledStep | None:
        """Return one step by its parameter; None if that parameter is switched off."""
        for step in self.steps:
            if step.name == name:
                return step
        return None


def next_token_probabilities(
    logprobs: Mapping[Token, float] | None = None,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    min_tokens: int = 0,
    output_tokens: Iterable[Token] = (),
    prompt_tokens: Iterable[Token] = (),
    stop_tokens: Collection[Token] = (),
    logits: Mapping[Token, float] | None = None,
) -> dict[Token, float]:
    """Return the distribution that vLLM samples from: token → probability, without zeros.

    Of a truncated list (the top 20, say) it is the distribution among the tokens listed;
    `Step.outside` says how much that leaves out.

    Args:
        logprobs: token → the model's own logprob (vLLM's default, `raw_logprobs`).
        output_tokens: what has been generated so far, repeats included: frequency and presence
            count only these.
        prompt_tokens: what repetition_penalty counts besides.
        stop_tokens: what min_tokens forbids (the end-of-text token and `stop_token_ids`).
        logits: token → logit of the whole vocabulary, used instead of `logprobs`. A logprob is a
            logit minus a constant; every other step ignores that constant, but repetition_penalty
            divides by it.

    Raises BadInput (a ValueError): a value that vLLM refuses; no tokens; repetition_penalty without
    logits.
    """
    settings = Settings(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        repetition_penalty=repetition_penalty,
        min_tokens=min_tokens,
    )
    result = pipeline(
        logprobs,
        settings,
        output_tokens=output_tokens,
        prompt_tokens=prompt_tokens,
        stop_tokens=stop_tokens,
        logits=logits,
    )
    return result.probabilities


def pipeline(
    logprobs: Mapping[Token, float] | None,
    settings: Settings,
    *,
    output_tokens: Iterable[Token] = (),
    prompt_tokens: Iterable[Token] = (),
    stop_tokens: Collection[Token] = (),
    logits: Mapping[Token, float] | None = None,
    model: SampledStep | None = None,
    ceiling: float | None = None,
) -> Pipeline:
    """Return the distribution after every step; arguments as for `next_token_probabilities`, and

    Args:
        model: the first step, if it is known already (a slider that moves does not change it).
        ceiling: of a truncated list: no token outside it has a higher logprob. Default: the lowest
            one listed.
    """
    scores = _scores(logprobs, logits, settings)
    model = model or model_step(scores, truncated=logits is None)
    if ceiling is None:
        ceiling = min((x for x in scores.values() if x > -math.inf), default=0.0)
    hidden = _Hidden(model.outside, min(ceiling, math.log(model.outside or 1.0)))
    steps = [model]
    output = list(output_tokens)
    if len(output) < settings.min_tokens and stop_tokens:
        forbidden = [token for token in stop_tokens if scores.get(token, -math.inf) > -math.inf]
        scores.update(dict.fromkeys(forbidden, -math.inf))
        steps.append(
            SampledStep("min_tokens", _softmax(scores), len(forbidden), hidden.listed_share(scores))
        )

    for name in _penalties(scores, settings, output, prompt_tokens):
        steps.append(SampledStep(name, _softmax(scores), 0, hidden.listed_share(scores)))
    return _choose(scores, settings, steps, hidden)


def _penalties(
    scores: dict[Token, float],
    settings: Settings,
    output: Sequence[Token],
    prompt_tokens: Iterable[Token],
) -> Iterator[str]:
    """Change `scores` by one penalty after the other, and yield the name of each."""
    penalty = settings.repetition_penalty
    if penalty != 1:
        for token in scores.keys() & {*prompt_tokens, *output}:  # once, however often it was seen
            if scores[token] > 0:
                scores[token] /= penalty
            else:
                scores[token] *= penalty
        yield "repetition_penalty"
    counts = Counter(filter(scores.__contains__, output))
    if settings.frequency_penalty:
        for token, count in counts.items():
            scores[token] -= settings.frequency_penalty * count
        yield "frequency_penalty"
    if settings.presence_penalty:
        for token in counts:
            scores[token] -= settings.presence_penalty
        yield "presence_penalty"


def model_step(logprobs: Mapping[Token, float], *, truncated: bool = True) -> SampledStep:
    """Return the model's own distribution as the first step.

    Args:
        logprobs: token → logprob, or token → logit.
        truncated: the list may lack tokens: if its probabilities sum to less than 1, the rest is
            outside of it.
    """
    listed_share = 1.0
    # scores above 0 are no logprobs: no mass to compare
    if truncated and max(logprobs.values()) <= 0:
        mass = math.fsum(map(math.exp, logprobs.values()))
        if mass < 1.0 - WHOLE:
            listed_share = max(mass, 1e-300)
    return SampledStep("model", _softmax(logprobs), 0, listed_share)


def _at_least(probabilities: Mapping[Token, float], lowest: float) -> dict[Token, float]:
    """Return the tokens that are at least so probable."""
    return {token: p for token, p in probabilities.items() if p >= lowest}


def _choose(
    scores: dict[Token, float],
    settings: Settings,
    steps: list[SampledStep],
    hidden: _Hidden,
) -> Pipeline:
    """Apply the temperature, then min_p, top_k and top_p. No step changes the scores any more."""
    if settings.greedy:
        return Pipeline((*steps, _greedy_step(scores, steps[-1], hidden)))
    temperature = max(settings.temperature, LOWEST_TEMPERATURE)
    if temperature != 1:
        probabilities = _softmax(scores, temperature)
        steps.append(
            SampledStep("temperature", probabilities, 0, hidden.listed_share(scores, temperature))
        )
    if settings.min_p > 0:
        probabilities = steps[-1].probabilities
        lowest = settings.min_p * max(probabilities.values())
        survivors = _at_least(probabilities, lowest)
        lowest_score = max(scores.values()) + temperature * math.log(settings.min_p)
        _narrow(steps, "min_p", survivors, hidden.ceiling < lowest_score)
    if settings.top_k > 0 and (settings.top_k < len(scores) or hidden.mass):
        survivors = _top_k(steps[-1].probabilities, settings.top_k)
        list_is_enough = len(survivors) >= settings.top_k and hidden.none_above(scores, survivors)
        _narrow(steps, "top_k", survivors, list_is_enough)
    if settings.top_p < 1:
        survivors = _top_p(steps[-1].probabilities, settings.top_p / steps[-1].listed_share)
        list_is_enough = settings.top_p <= steps[-1].listed_share and hidden.none_above(
            scores, survivors
        )
        _narrow(steps, "top_p", survivors, list_is_enough)
    return Pipeline(tuple(steps))


def _greedy_step(
    scores: Mapping[Token, float], before: SampledStep, hidden: _Hidden
) -> SampledStep:
    """Return the step of temperature 0, which leaves one token: min_p, top_k, top_p do nothing."""
    best = max(scores, key=scores.__getitem__)  # the first of equals, as argmax takes it
    listed_share = 1.0
    if not hidden.none_above(scores, [best]):
        listed_share = hidden.listed_share(scores, LOWEST_TEMPERATURE)
    return SampledStep("temperature", {best: 1.0}, len(before.probabilities) - 1, listed_share)


def _narrow(
    steps: list[SampledStep], name: str, survivors: dict[Token, float], none_outside: bool
) -> None:
    """Append a step that removes tokens: the survivors share their probability in proportion.

    `none_outside`: no token outside a truncated list could survive this step.
    """
    before = steps[-1]
    removed = len(before.probabilities) - len(survivors)
    probabilities = before.probabilities
    if removed:
        total = math.fsum(survivors.values())
        probabilities = {token: p / total for token, p in survivors.items()}
    listed_share = before.listed_share
    if none_outside:
        listed_share = 1.0
    steps.append(SampledStep(name, probabilities, removed, listed_share))


def _top_k(probabilities: dict[Token, float], k: int) -> dict[Token, float]:
    """Keep the k most probable tokens, and all that tie with the k-th, as vLLM does."""
    if k >= len(probabilities):
        return probabilities
    threshold = sorted(probabilities.values(), reverse=True)[k - 1]
    return _at_least(probabilities, threshold)


def _top_p(probabilities: dict[Token, float], enough: float) -> dict[Token, float]:
    """Return the smallest set of tokens whose mass is `enough`; at least one is kept.

    Which of several equals it keeps depends on the sort in vLLM; here they are the first ones.
    """
    mass = 0.0
    survivors: set[Token] = set()
    for token in sorted(probabilities, key=probabilities.__getitem__, reverse=True):
        if mass >= enough and survivors:
            break
        survivors.add(token)
        mass += probabilities[token]
    return {token: p for token, p in probabilities.items() if token in survivors}


@dataclass(frozen=True)
class _Hidden:
    """An upper bound, `ceiling`, for the logprobs of tokens missing from a truncated list."""

    mass: float
    ceiling: float

    def listed_share(self, scores: Mapping[Token, float], temperature: float = 1.0) -> float:
        """Return the share of the probability at this temperature that the listed tokens have."""
        if not self.mass:
            return 1.0
        highest = max(scores.values())
        listed_mass = math.fsum(math.exp((x - highest) / temperature) for x in scores.values())
        log_ratio = (
            (self.ceiling - highest) / temperature
            - self.ceiling
            + math.log(self.mass / listed_mass)
        )
        return 1.0 / (1.0 + math.exp(min(log_ratio, 690.0)))

    def none_above(self, scores: Mapping[Token, float], tokens: Iterable[Token]) -> bool:
        """Return True if each of `tokens` is at least as probable as any token outside the list."""
        return not self.mass or min(map(scores.__getitem__, tokens)) >= self.ceiling


def _scores(
    logprobs: Mapping | None, logits: Mapping | None, settings: Settings
) -> dict[Token, float]:
    """Return a copy of the scores with minus infinity in place of the server's number for it."""
    if settings.repetition_penalty != 1 and logits is None:
        problem = "repetition_penalty divides logits, and logprobs no longer are logits."
        raise BadInput(
            problem, "Pass logits=…, or leave it at 1; frequency_penalty needs no logits."
        )
    if logits is None:
        logits = logprobs
    scores = dict(logits or {})
    if not scores:
        raise BadInput(
            "There are no tokens to choose from.", "Pass a mapping of tokens to logprobs."
        )
    try:
        # NaN is not below either
        wrong = [token for token, score in scores.items() if not score < math.inf]
    except TypeError:
        wrong = [token for token, score in scores.items() if not isinstance(score, int | float)]
    if wrong:
        problem = f"The score of {wrong[0]!r} is {scores[wrong[0]]!r}, which no logprob is."
        raise BadInput(
            problem,
            "Logprobs are 0 or negative, logits any finite number; minus infinity means never.",
        )
    if min(scores.values()) <= MINUS_INFINITY_SENT:
        for token, score in scores.items():
            if score <= MINUS_INFINITY_SENT:
                scores[token] = -math.inf
    return scores


def _softmax(scores: Mapping[Token, float], temperature: float = 1.0) -> dict[Token, float]:
    """Return exp(score / temperature), normalized to the sum 1, without the zeros."""
    highest = max(scores.values())
    if highest == -math.inf:
        raise BadInput(
            "No token is left to choose from.", "All that are listed are forbidden: list more."
        )
    exp = math.exp
    weights = {token: exp((score - highest) / temperature) for token, score in scores.items()}
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items() if weight}


def draw(probabilities: Mapping[Token, float], generator: random.Random) -> Token:
    """Draw one token, the same for the same state of `generator`; the server draws another."""
    return generator.choices(list(probabilities), weights=list(probabilities.values()))[0]


def entropy_bits(probabilities: Mapping[Token, float]) -> float:
    """Return the entropy in bits: 0 if one token is certain, 13 if 8,192 are equally likely."""
    return -math.fsum(p * math.log2(p) for p in probabilities.values() if p > 0) + 0.0
