"""Rows for vLLM's engine in process: a request made of a row, and OpenAI's answer made of the engine's.

Parameters, defaults and limits are those of vLLM's own server, by its own request classes.
Source: vLLM 0.32, entrypoints/openai/completion and chat_completion.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from workshop.batch.rows import CHAT, Row

LOWEST_LOGPROB = -9999.0  # JSON has no -inf; the server says this instead


@dataclass(frozen=True)
class Request:
    """What the engine is given for one row."""

    prompt: dict
    params: object
    asked: object  # vLLM's CompletionRequest or ChatCompletionRequest


class Maker:
    """Makes requests and answers for one `LLM`."""

    def __init__(self, llm):
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        self._completion, self._chat = CompletionRequest, ChatCompletionRequest
        self._tokenizer, config = llm.get_tokenizer(), llm.llm_engine.model_config
        self._longest, self._defaults = config.max_model_len, config.get_diff_sampling_param() or {}

    def request(self, row: Row) -> Request:
        """Return the engine's request.

        Raises:
            ValueError: the row cannot be asked: the prompt is too long, a parameter is not allowed.
        """
        body = json.loads(row.body)
        if row.url == CHAT:
            asked = self._chat(**body)
            tokens = self._tokenizer.apply_chat_template(
                body["messages"],
                tokenize=True,
                add_generation_prompt=asked.add_generation_prompt,
                **{"return_dict": False, **(asked.chat_template_kwargs or {})},
            )
            limit = asked.max_completion_tokens or asked.max_tokens
        else:
            asked = self._completion(**body)
            if asked.echo:
                raise ValueError("echo is not answered offline: the prompt stands in the input")
            prompt, limit = body["prompt"], asked.max_tokens
            tokens = (
                prompt
                if isinstance(prompt, list)
                else self._tokenizer(prompt, add_special_tokens=asked.add_special_tokens)["input_ids"]
            )
        if asked.truncate_prompt_tokens not in (None, -1):
            tokens = tokens[-asked.truncate_prompt_tokens :]
        room = self._longest - len(tokens)
        if room < 1 or (limit or 0) > room:
            raise ValueError(
                f"This model's maximum context length is {self._longest} tokens. The prompt has "
                f"{len(tokens)}, and {limit or 1} are asked for."
            )
        default = self._defaults.get("max_tokens")
        params = asked.to_sampling_params(min(each for each in (room, limit or default) if each), self._defaults)
        return Request({"prompt_token_ids": list(tokens)}, params, asked)

    def body(self, row: Row, request: Request, output, model: str) -> tuple[bytes, int, int]:
        """Return (the answer's body as JSON, prompt tokens, generated tokens)."""
        chat, asked = row.url == CHAT, request.asked
        choices = []
        for each in output.outputs:
            choice = {
                "index": each.index,
                "finish_reason": each.finish_reason,
                "stop_reason": each.stop_reason,
                "logprobs": None,
            }
            if chat:
                choice["message"] = {"role": "assistant", "content": each.text}
            else:
                choice["text"] = each.text
                choice["prompt_logprobs"] = _prompt_logprobs(output.prompt_logprobs)
            if each.logprobs is not None:
                as_ids = bool(asked.return_tokens_as_token_ids)
                choice["logprobs"] = _chat_logprobs(each, as_ids) if chat else _completion_logprobs(each, as_ids)
            if asked.return_token_ids:
                choice |= {"token_ids": list(each.token_ids), "prompt_token_ids": list(output.prompt_token_ids)}
            choices.append(choice)
        prompt_tokens, generated = len(output.prompt_token_ids), sum(len(each.token_ids) for each in output.outputs)
        answer = {
            "id": f"offline-{row.key.hex()[:16]}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
            "choices": sorted(choices, key=lambda each: each["index"]),
            "usage": {
                "prompt_tokens": prompt_tokens,
                "total_tokens": prompt_tokens + generated,
                "completion_tokens": generated,
            },
        }
        if chat:
            answer["prompt_logprobs"] = _prompt_logprobs(output.prompt_logprobs)
        return json.dumps(answer, separators=(",", ":")).encode(), prompt_tokens, generated


def _name(token: int, logprob, as_ids: bool) -> str:
    return f"token_id:{token}" if as_ids or logprob.decoded_token is None else logprob.decoded_token


def _completion_logprobs(choice, as_ids: bool) -> dict:
    tokens, offsets, at = [], [], 0
    for token, step in zip(choice.token_ids, choice.logprobs, strict=True):
        tokens.append(_name(token, step[token], as_ids))
        offsets.append(at)
        at += len(tokens[-1])
    return {
        "tokens": tokens,
        "text_offset": offsets,
        "token_logprobs": [
            max(step[token].logprob, LOWEST_LOGPROB)
            for token, step in zip(choice.token_ids, choice.logprobs, strict=True)
        ],
        "top_logprobs": [
            {_name(token, each, as_ids): max(each.logprob, LOWEST_LOGPROB) for token, each in step.items()}
            for step in choice.logprobs
        ],
    }


def _chat_logprobs(choice, as_ids: bool) -> dict:
    def entry(token: int, each) -> dict:
        name = _name(token, each, as_ids)
        return {"token": name, "logprob": max(each.logprob, LOWEST_LOGPROB), "bytes": list(name.encode())}

    return {
        "content": [
            {**entry(token, step[token]), "top_logprobs": [entry(*item) for item in step.items()]}
            for token, step in zip(choice.token_ids, choice.logprobs, strict=True)
        ]
    }


def _prompt_logprobs(steps) -> list | None:
    if steps is None:
        return None
    return [
        None
        if step is None
        else {
            str(token): {
                "logprob": max(each.logprob, LOWEST_LOGPROB),
                "rank": each.rank,
                "decoded_token": each.decoded_token,
            }
            for token, each in step.items()
        }
        for step in steps
    ]
