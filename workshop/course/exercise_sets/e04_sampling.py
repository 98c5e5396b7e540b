import math
from dataclasses import asdict

from workshop.client.sampling import next_token_probabilities
from workshop.client.sampling_settings import DEFAULTS
from workshop.course.exercise_sets.e00_start import prompt_problem
from workshop.course.judging import SHAPELESS, called, not_a_number

QUESTION = "Question: What is Boston?\nAnswer:"  # the notebook's
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
    return prompt_problem(answer, QUESTION)


def top_k(answer: dict) -> str | None:
    expected = next_token_probabilities({token: math.log(p) for token, p in TOY.items()}, top_k=2)
    answer = {called(token, TOY): probability for token, probability in answer.items()}
    for token, probability in answer.items():
        if problem := not_a_number(probability):
            return f"{token}: {problem}"
    answer = {token: probability for token, probability in answer.items() if probability}
    if set(answer) != set(expected):
        return f"{', '.join(map(str, answer)) or 'nothing'} stayed: other tokens should stay"
    total = sum(answer.values())
    if abs(total - 100) < 2:
        return "give probabilities from 0 to 1, not percent"
    if abs(total - 1) > 0.02:  # two digits are enough
        return f"the probabilities sum to {total:.3g}: what was removed has to be shared out among the rest"
    wrong = [token for token, p in expected.items() if abs(answer[token] - p) > 5e-3]
    ratio = "which is not it: those that stay keep their ratio"
    return f"the probability of {wrong[0]!r} is {answer[wrong[0]]:.3f}, {ratio}" if wrong else None


def constant(answer: str) -> str | None:
    name = answer.lower().replace(" ", "_").replace("-", "_")
    if name == "repetition_penalty":
        return None
    if name in asdict(DEFAULTS) or name in ("max_tokens", "logprobs", "seed"):
        return f"{name} works as before: it looks only at probabilities or at differences of logits, or at neither"
    return SHAPELESS
