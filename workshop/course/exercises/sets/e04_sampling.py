import math
from dataclasses import asdict

from workshop.client.sampling import next_token_probabilities
from workshop.client.sampling_settings import DEFAULTS
from workshop.course.exercises.judging import SHAPELESS, called, not_a_number

# the notebook's made-up model
TOY = {"city": 0.5, "port": 0.2, "town": 0.15, "lake": 0.1, "cat": 0.05}


def length(answer: object) -> str | None:
    if not isinstance(answer, dict) or not answer.get("usage"):
        return "this is no answer of a server: put the whole response of llm.complete into it"
    count = answer["usage"]["completion_tokens"]
    if count < 30:
        return f"the answer has {count} tokens: ask for at least 30 (min_tokens)"
    if count > 40:
        return f"the answer has {count} tokens: limit it to 40 (max_tokens)"
    return None


def top_k(answer: dict) -> str | None:
    expected = next_token_probabilities({token: math.log(p) for token, p in TOY.items()}, top_k=2)
    by_token = {}
    for name, probability in answer.items():
        by_token[called(name, TOY)] = probability
    for token, probability in by_token.items():
        problem = not_a_number(probability)
        if problem:
            return f"{token}: {problem}"
    probabilities = {token: probability for token, probability in by_token.items() if probability}
    if set(probabilities) != set(expected):
        stayed = ", ".join(map(str, probabilities)) or "nothing"
        return f"{stayed} stayed: other tokens should stay"
    total = sum(probabilities.values())
    if abs(total - 100) < 2:
        return "give probabilities from 0 to 1, not percent"
    if abs(total - 1) > 0.02:  # two digits are enough
        remedy = "what was removed has to be shared out among the rest"
        return f"the probabilities sum to {total:.3g}: {remedy}"
    for token, p in expected.items():
        if abs(probabilities[token] - p) > 5e-3:
            rule = "which is not it: those that stay keep their ratio"
            return f"the probability of {token!r} is {probabilities[token]:.3f}, {rule}"
    return None


def constant(answer: str) -> str | None:
    name = answer.lower().replace(" ", "_").replace("-", "_")
    if name == "repetition_penalty":
        return None
    if name in asdict(DEFAULTS) or name in ("max_tokens", "logprobs", "seed"):
        reason = "it looks only at probabilities or at differences of logits, or at neither"
        return f"{name} works as before: {reason}"
    return SHAPELESS
