"""The teaching model in this page as a client: what `connect()` returns elsewhere, with vLLM's form of an answer.

A step is computed in JavaScript (llama.js), the next token drawn by the course's own `sampling`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from types import SimpleNamespace

import openai
from openai.types.chat import ChatCompletion
from pyodide.ffi import to_js

from workshop.client.sampling import draw, next_token_probabilities
from workshop.client.sampling_settings import Settings
from workshop.errors import BadInput

END = 1
SPECIAL = {0: "<|begin_of_text|>", END: "<|end_of_text|>"}
NEGLIGIBLE = 1e-9  # a token this much less likely than the likeliest, after the temperature, is left out of the draw
MOST_TOKENS = 2048
OTHERS = {"timeout", "return_token_ids", "user"}  # taken, and of no meaning here


class Answer:
    """A completion as the API gives it: attributes, or plain data by `model_dump`."""

    def __init__(self, data: dict):
        self._data = data
        self.choices = [SimpleNamespace(**choice) for choice in data["choices"]]
        for choice in self.choices:
            choice.logprobs = choice.logprobs and SimpleNamespace(**choice.logprobs)
        self.usage = SimpleNamespace(**data["usage"])
        self.model, self.object = data["model"], data["object"]

    def model_dump(self) -> dict:
        """Return plain data."""
        return self._data


class PageClient:
    """Completions of the teaching model, computed in this page.

    Args:
        engine: the JavaScript object of llama.js: `model.logits(ids, first)`, `tokenizer`.
    """

    model, url, root, openai = "teaching-model in this page", "this page", "", openai

    def __init__(self, engine: object):
        self.engine = engine
        self.http = SimpleNamespace(post=self._post)

    def __getattr__(self, name: str) -> None:
        raise AttributeError(
            f"The model in this page has no {name!r}: run this cell in JupyterLab (make workshop)."
        )

    def complete(self, prompt: str | list[int] | list[str], **sampling: object) -> Answer:
        """Return `n` continuations of a prompt (text or token ids), or of each of several; the parameters are vLLM's.

        Raises:
            BadInput: a parameter that is none here, or a value out of range.
        """
        several = isinstance(prompt, list) and prompt and isinstance(prompt[0], str)
        answers = [
            self._complete(single_prompt, **sampling).model_dump()
            for single_prompt in (prompt if several else [prompt])
        ]
        choices = [choice for answer in answers for choice in answer["choices"]]
        for number, choice in enumerate(choices):
            choice["index"] = number
        usage = {
            name: sum(answer["usage"][name] for answer in answers) for name in answers[0]["usage"]
        }
        return Answer({**answers[0], "choices": choices, "usage": usage})

    def _complete(self, prompt: str | list[int], *, n: int = 1, max_tokens: int = 16, seed: int | None = None,
                  stop: str | list[str] | None = None, ignore_eos: bool = False, logprobs: int | None = None,
                  prompt_logprobs: int | None = None, return_tokens_as_token_ids: bool = False,
                  **sampling: object) -> Answer:  # fmt: skip
        settings = _settings(
            {name: value for name, value in sampling.items() if name not in OTHERS}
        )
        if not prompt:
            raise BadInput("The prompt is empty.", "Give at least one character.")
        ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        _check(max_tokens, len(ids))
        stops = [stop] if isinstance(stop, str) else list(stop or ())
        name = (
            (lambda token: f"token_id:{token}")
            if return_tokens_as_token_ids
            else (lambda token: self.text([token]))
        )
        choices = []
        for number in range(n):
            generator = random.Random(None if seed is None else f"{seed}:{number}")
            steps = self._steps(
                number, ids, settings, max_tokens, stops, ignore_eos, logprobs, generator, name
            )
            *_, choice = steps
            choices.append(choice)
        made = sum(len(choice["token_ids"]) for choice in choices)
        usage = {
            "prompt_tokens": len(ids),
            "completion_tokens": made,
            "total_tokens": len(ids) + made,
        }
        of_prompt = None if prompt_logprobs is None else self._of_prompt(ids, prompt_logprobs)
        choices[0] |= {"prompt_logprobs": of_prompt, "prompt_token_ids": ids}
        return Answer(
            {"object": "text_completion", "model": self.model, "choices": choices, "usage": usage}
        )

    def chat(self, messages: str | list[dict], *, max_tokens: int | None = None, stream: bool = False,
             stream_options: dict | None = None, add_special_tokens: bool = False, add_generation_prompt: bool = True,
             stop: str | list[str] | None = None, seed: int | None = None,
             **sampling: object) -> ChatCompletion | Iterator[ChatCompletion]:  # fmt: skip
        """Return the answer to a conversation, or its pieces as they are computed; a string is one user message."""
        from workshop.course.notebooks.nb10 import render  # it imports the client

        messages = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        )
        ids = self.encode(render(messages, add_generation_prompt=add_generation_prompt))[
            not add_special_tokens :
        ]
        most = MOST_TOKENS - len(ids) if max_tokens is None else max_tokens
        _check(most, len(ids))
        stops, generator = (
            [stop] if isinstance(stop, str) else list(stop or ()),
            random.Random(seed),
        )
        steps = self._steps(0, ids, _settings(sampling), most, stops, False, None, generator, str)
        pieces = _pieces(steps, len(ids), bool((stream_options or {}).get("include_usage")))
        if stream:
            return map(ChatCompletion.model_validate, pieces)
        *_, answer = steps
        return ChatCompletion.model_validate(_chat(answer, len(ids)))

    def models(self) -> list[dict]:
        """Return what there is: this model."""
        return [{"id": self.model, "root": "", "max_model_len": MOST_TOKENS}]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, the begin-of-text token first."""
        return self.engine.tokenizer.encode(text).to_py()

    def text(self, tokens: list[int]) -> str:
        """Return the text of tokens."""
        return (
            SPECIAL[tokens[0]]
            if tokens in ([0], [END])
            else self.engine.tokenizer.decode(to_js(tokens))
        )

    def _logits(self, ids: list[int], first: int | None = None) -> list[list[float]]:
        rows = self.engine.logits(to_js(ids), len(ids) - 1 if first is None else first)
        return [row.to_py().tolist() for row in rows]

    def _steps(
        self, number, ids, settings, max_tokens, stops, ignore_eos, k, generator, name
    ) -> Iterator[str | dict]:
        """Compute token by token: the text so far after each, and the choice as the last."""
        output, listed, reason, stopped_by = [], [], "length", None
        while len(output) < max_tokens:
            [logits] = self._logits([*ids, *output])
            token = _drawn(logits, settings, output, ids, generator, ignore_eos)
            if k is not None:
                listed.append((token, _logprobs(logits), k))
            output.append(token)
            text = self.text([token_id for token_id in output if token_id != END])
            if token == END and not ignore_eos:
                reason = "stop"
                break
            if at := [text.index(stop) for stop in stops if stop in text]:
                stopped_by = min((stop for stop in stops if stop in text), key=text.index)
                text, reason = text[: min(at)], "stop"
                break
            yield text
        choice_logprobs = None if k is None else _as_vllm(listed, name)
        yield {
            "index": number,
            "text": text,
            "finish_reason": reason,
            "stop_reason": stopped_by,
            "token_ids": output,
            "logprobs": choice_logprobs,
        }

    def _of_prompt(self, ids: list[int], k: int) -> list[dict | None]:
        positions: list[dict | None] = [None]
        for own, logits in zip(ids[1:], self._logits(ids, 0), strict=False):
            logprobs = _logprobs(logits)
            order = sorted(range(len(logprobs)), key=logprobs.__getitem__, reverse=True)
            best = [own, *(token for token in order[:k] if token != own)]
            positions.append({
                str(token): {"logprob": logprobs[token], "rank": order.index(token) + 1, "decoded_token": self.text([token])}
                for token in best
            })  # fmt: skip
        return positions

    def _post(self, url: str, *, json: dict, timeout: float | None = None) -> SimpleNamespace:
        if url.endswith("/tokenize"):
            fields = {"token_strs": [self.text([token]) for token in self._asked(**json)]}
        else:
            fields = {"prompt": self.text(json["tokens"])}
        answer = SimpleNamespace(status_code=200, json=lambda: fields)
        answer.raise_for_status = lambda: answer
        return answer

    def _asked(self, prompt: str = "", messages: list[dict] | None = None, add_special_tokens: bool | None = None,
               **template: object) -> list[int]:  # fmt: skip
        """Return the tokens of what /tokenize is asked: a text, which begins with a special token, or a chat."""
        from workshop.course.notebooks.nb10 import render

        template = {
            name: value
            for name, value in template.items()
            if name in ("tools", "add_generation_prompt")
        }
        ids = self.encode(render(messages, **template) if messages else prompt)
        special = not messages if add_special_tokens is None else add_special_tokens
        return ids if special else ids[1:]


def _check(max_tokens: int, prompt_tokens: int) -> None:
    """Raise BadInput where prompt and answer do not fit."""
    most = MOST_TOKENS - prompt_tokens
    if not 0 < max_tokens <= most:
        remedy = f"In this page prompt and answer hold {MOST_TOKENS:,} tokens: 1 to {most:,}."
        raise BadInput(f"max_tokens is {max_tokens}.", remedy)


def _chat(choice: dict, prompt_tokens: int) -> dict:
    """Return a choice as the answer of a chat."""
    made = len(choice["token_ids"])
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": made,
        "total_tokens": prompt_tokens + made,
    }
    choice_fields = {name: choice[name] for name in ("index", "finish_reason", "stop_reason")}
    message = {"role": "assistant", "content": choice["text"], "tool_calls": []}
    return {
        "object": "chat.completion",
        "choices": [{**choice_fields, "message": message}],
        "usage": usage,
    }


def _pieces(steps: Iterator[str | dict], prompt_tokens: int, include_usage: bool) -> Iterator[dict]:
    """Return the chunks of a streamed chat: the role, a piece for each token, the reason of its end, what it used."""

    def chunk(delta: dict, reason: str | None = None) -> dict:
        return {
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        }

    yield chunk({"role": "assistant", "content": ""})
    sent = ""
    for step in steps:
        text = step if isinstance(step, str) else step["text"]
        # no half of a character
        if text != sent and text.startswith(sent) and not text.endswith("\ufffd"):
            yield chunk({"content": text[len(sent) :]})
            sent = text
    yield chunk({"content": ""}, step["finish_reason"])
    if include_usage:
        yield {
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": _chat(step, prompt_tokens)["usage"],
        }


def _settings(sampling: dict) -> Settings:
    parameters = Settings.__dataclass_fields__
    if unknown := [name for name in sampling if name not in parameters]:
        names = ", ".join(
            [
                "n",
                "max_tokens",
                "seed",
                "stop",
                "ignore_eos",
                "logprobs",
                "prompt_logprobs",
                *parameters,
            ]
        )
        raise BadInput(
            f"The model in this page has no sampling parameter {unknown[0]!r}.",
            f"It takes: {names}.",
        )
    return Settings(**sampling)


def _logprobs(logits: list[float]) -> list[float]:
    highest = max(logits)
    total = highest + math.log(math.fsum(math.exp(x - highest) for x in logits))
    return [x - total for x in logits]


def _drawn(logits, settings, output, ids, generator, ignore_eos) -> int:
    never = {END} if ignore_eos or len(output) < settings.min_tokens else set()
    if settings == Settings(temperature=0):
        return max(
            (token for token in range(len(logits)) if token not in never), key=logits.__getitem__
        )
    least = (
        max(logits)
        + math.log(NEGLIGIBLE) * max(settings.temperature, 1)
        - abs(settings.frequency_penalty) * len(output)
        - 2
    )
    listed = {token: x for token, x in enumerate(logits) if x > least and token not in never}
    probabilities = next_token_probabilities(
        logits=listed,
        output_tokens=output,
        prompt_tokens=ids,
        **{**settings.request(), "min_tokens": 0},
    )
    return draw(probabilities, generator)


def _as_vllm(listed, name) -> dict:
    tops = []
    for token, logprobs, k in listed:
        best = sorted(range(len(logprobs)), key=logprobs.__getitem__, reverse=True)[:k]
        tops.append(
            {name(token_id): logprobs[token_id] for token_id in dict.fromkeys([*best, token])}
        )
    return {
        "tokens": [name(token) for token, _, _ in listed],
        "token_logprobs": [logprobs[token] for token, logprobs, _ in listed],
        "top_logprobs": tops,
        "text_offset": [],
    }
