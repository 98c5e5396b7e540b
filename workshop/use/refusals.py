"""What to do when vLLM refuses a request: its sentence → a remedy. Pure.

Source: vLLM 0.25 and 0.32, sampling_params.py and entrypoints/openai.
"""

import re

_REMEDIES = (
    (
        r"logprobs of (\d+), which is greater than max allowed: (\d+)",
        "Ask for at most {1}, or start the server with `--max-logprobs {0}` (-1: the whole vocabulary).",
    ),
    (
        r"prompt or prompt_embeds must be provided and non-empty|pass at least one prompt",
        "The prompt is empty: pass at least one character.",
    ),
    (
        r"n must be 1 when using greedy sampling",
        "At temperature 0 all answers would be the same: leave n at 1, or raise the temperature.",
    ),
    (r"min_tokens must be less than or equal to max_tokens", "Raise max_tokens or lower min_tokens."),
    (r"top_k must be 0 \(disable\)", "0 or -1 switch top_k off; otherwise it is a number of tokens, 1 or more."),
    (r"top_p must be in", "top_p is more than 0 and at most 1, which is off; top_k=1 keeps only one token."),
    (r"temperature must be", "The temperature is 0 (greedy) to 2; most people use 0.2 to 1."),
    (r"_penalty must be in", "frequency_penalty and presence_penalty are -2 to 2; 0 is off."),
    (r"min_p must be in", "min_p is 0 (off) to 1; most people use 0.02 to 0.1."),
    (
        r"maximum context length|max_model_len",
        "Shorten the prompt, lower max_tokens, or start the server with a larger --max-model-len.",
    ),
    (r"chat template", "This model was not made for conversations: use completions (llm.complete), not chat."),
)


def remedy(said: str) -> str:
    """Return what to do about a refusal, '' if vLLM's own sentence has to be enough."""
    for pattern, text in _REMEDIES:
        match = re.search(pattern, said)
        if match:
            return text.format(*match.groups())
    return ""


def sentence(message: str) -> str:
    """Return what a refusal says, without the stop: its first line, or what a list of validation errors names first."""
    first = (message.strip().splitlines() or ["no word"])[0].rstrip(".")
    if not first.endswith(":"):
        return first
    said = re.search(r"'msg': (['\"])(?:Value error, )?(.+?)\1, 'input'", message)
    place = re.search(r"'loc': \('body', .*?'?(\w+)'?\)", message)
    return (f"{place[1]}: " if place else "") + said[2].rstrip(".") if said else first


def takes_no_minus_one(said: str) -> bool:
    """Return whether a server refused logprobs=-1 only because it does not know it as "all" (vLLM 0.25)."""
    return "`logprobs` must be a positive value" in said


def logprobs_limit(said: str) -> int | None:
    """Return the server's --max-logprobs if that is what the request exceeded, else None."""
    match = re.search(r"greater than max allowed: (\d+)", said)
    return int(match[1]) if match else None
