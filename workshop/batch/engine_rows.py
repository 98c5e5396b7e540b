"""Rows for vLLM's engine in process: a request made of a row, and OpenAI's answer made of the engine's.

Parameters, defaults and limits are those of vLLM's own server, by its own request classes.
Source: vLLM 0.32, entrypoints/openai/completion and chat_completion.
"""

import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from workshop.batch.rows import CHAT, Row

LOWEST_LOGPROB = -9999.0  # JSON has no -inf; the server says this instead
TEMPLATES_KEPT = 1024
_encode = json.JSONEncoder(separators=(",", ":")).encode
Made = TypeVar("Made")


@dataclass
class Request:
    """One row on its way to the engine; rows that differ in their prompts alone share `asked` and `known`.

    Any stands for vLLM's classes, which are imported only where an engine runs.
    """

    asked: Any  # a CompletionRequest or a ChatCompletionRequest
    known: dict[int, Any] = field(default_factory=dict)  # its SamplingParams by max_tokens
    text: str | None = None  # to be tokenized
    tokens: list[int] | Exception | None = None  # an exception: the text cannot be tokenized
    params: Any = None  # SamplingParams

    @property
    def prompt(self) -> dict:
        return {"prompt_token_ids": list(self.token_ids)}

    @property
    def token_ids(self) -> list[int]:
        """The prompt's tokens. Raises what kept the text from being tokenized."""
        if isinstance(self.tokens, Exception):
            raise self.tokens
        if self.tokens is None:
            raise RuntimeError("the prompt was not tokenized: a fault of ours")
        return self.tokens


class Maker:
    """Makes requests and answers for one `LLM`."""

    def __init__(self, llm):
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        self._completion, self._chat = CompletionRequest, ChatCompletionRequest
        self._tokenizer, config = llm.get_tokenizer(), llm.llm_engine.model_config
        self._renderer = llm.llm_engine.renderer
        self._longest, self._defaults = config.max_model_len, config.get_diff_sampling_param() or {}
        self._templates: dict[str, tuple[object, dict]] = {}  # what rows share was checked once
        self.refusals = _refusals()

    def requests(self, rows: Sequence[Row]) -> list[Request | Exception]:
        """Return for each row the engine's request, or why it cannot be asked: too long, a parameter not allowed.

        Many rows at once cost less: their prompts are tokenized in one call, on all cores.
        """
        drafts = [self._attempt(self._draft, row) for row in rows]
        self._tokenize(
            [draft for draft in drafts if isinstance(draft, Request) and draft.tokens is None]
        )
        return [
            self._attempt(self._finished, draft) if isinstance(draft, Request) else draft
            for draft in drafts
        ]

    def _draft(self, row: Row) -> Request:
        body = json.loads(row.given_request)
        body.pop("model", None)  # the engine has one
        if row.url == CHAT:
            asked = self._chat(**body)
            tools = asked.tools and [tool.model_dump() for tool in asked.tools]
            how = asked.build_chat_params(None, "auto").with_defaults(
                {"tools": tools, "tokenize": True}
            )
            _, prompt = self._renderer.render_messages(asked.messages, how)
            if "multi_modal_data" in prompt:
                raise ValueError("images, audio and video are not answered offline: ask a server")
            return Request(asked, tokens=prompt["prompt_token_ids"])
        prompt = body.pop("prompt")
        if not isinstance(prompt, str) and not (
            isinstance(prompt, list) and all(token >= 0 for token in prompt)
        ):
            raise ValueError("the prompt is neither text nor token ids, which are 0 or more")
        common = _encode(body)
        template = self._templates.get(common)
        if template is None:
            template = self._completion(**body, prompt=prompt), {}
            if template[0].echo:
                raise ValueError("echo is not answered offline: the prompt stands in the input")
            if len(self._templates) >= TEMPLATES_KEPT:
                self._templates.clear()
            self._templates[common] = template
        return (
            Request(*template, None, prompt)
            if isinstance(prompt, list)
            else Request(*template, prompt)
        )

    def _tokenize(self, drafts: list[Request]) -> None:
        for special in (True, False):
            group = [draft for draft in drafts if draft.asked.add_special_tokens is special]
            if not group:
                continue
            tokenized = self._attempt(self._ids, [draft.text for draft in group], special)
            if not isinstance(tokenized, Exception):
                for draft, tokens in zip(group, tokenized, strict=True):
                    draft.tokens = tokens
                continue
            # one of them is no text (half of a surrogate pair): find which
            for draft in group:
                alone = self._attempt(self._ids, [draft.text], special)
                draft.tokens = alone if isinstance(alone, Exception) else alone[0]

    def _attempt(self, make: Callable[..., Made], *arguments: object) -> Made | Exception:
        """Return what `make` makes, or the exception with which the row is refused."""
        try:
            return make(*arguments)
        except self.refusals as error:
            return error

    def _ids(self, texts: list[str | None], special: bool) -> list[list[int]]:
        return self._tokenizer(texts, add_special_tokens=special)["input_ids"]

    def _finished(self, draft: Request) -> Request:
        asked, tokens = draft.asked, draft.token_ids
        limit = getattr(asked, "max_completion_tokens", None)  # of a chat only
        limit = asked.max_tokens if limit is None else limit
        if asked.truncate_prompt_tokens not in (None, -1):
            tokens = draft.tokens = tokens[-asked.truncate_prompt_tokens :]
        room = self._longest - len(tokens)
        if room < 1 or (limit or 0) > room:
            asks = f"The prompt has {len(tokens)}, and {limit or 1} are asked for."
            raise ValueError(
                f"This model's maximum context length is {self._longest} tokens. {asks}"
            )
        if limit is None:
            limit = self._defaults.get("max_tokens") or room
        most = min(room, limit)
        # the engine works on a copy, and what it fills in is the same for all
        if most not in draft.known:
            draft.known[most] = asked.to_sampling_params(most, self._defaults)
        draft.params = draft.known[most]
        return draft

    def body(self, row: Row, request: Request, output, model: str) -> tuple[bytes, int, int]:
        """Return (the answer's body as JSON, prompt tokens, generated tokens)."""
        chat, asked = row.url == CHAT, request.asked
        choices = []
        for each in output.outputs:
            choice = {
                name: getattr(each, name) for name in ("index", "finish_reason", "stop_reason")
            }
            choice["logprobs"] = None
            if chat:
                choice["message"] = {"role": "assistant", "content": each.text}
            else:
                choice["text"] = each.text
                choice["prompt_logprobs"] = _prompt_logprobs(output.prompt_logprobs)
            if each.logprobs is not None:
                as_ids = bool(asked.return_tokens_as_token_ids)
                choice["logprobs"] = (
                    _chat_logprobs(each, as_ids) if chat else _completion_logprobs(each, as_ids)
                )
            if asked.return_token_ids:
                choice |= {
                    "token_ids": list(each.token_ids),
                    "prompt_token_ids": list(output.prompt_token_ids),
                }
            choices.append(choice)
        prompt_tokens, generated = (
            len(output.prompt_token_ids),
            sum(len(each.token_ids) for each in output.outputs),
        )
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": generated}
        answer = {
            "id": f"offline-{row.key.hex()[:16]}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
            "choices": sorted(choices, key=lambda each: each["index"]),
            "usage": usage | {"total_tokens": prompt_tokens + generated},
        }
        if chat:
            answer["prompt_logprobs"] = _prompt_logprobs(output.prompt_logprobs)
        return _encode(answer).encode(), prompt_tokens, generated


def _refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions with which one request is refused; of vLLM's own, 0.32's are no ValueErrors any more."""
    from jinja2 import TemplateError
    from vllm import exceptions

    own = (
        getattr(exceptions, name, ValueError) for name in ("VLLMClientError", "VLLMValidationError")
    )
    return (ValueError, TypeError, KeyError, TemplateError, *own)


def _name(token: int, logprob, as_ids: bool) -> str:
    return f"token_id:{token}" if as_ids or logprob.decoded_token is None else logprob.decoded_token


def _completion_logprobs(choice, as_ids: bool) -> dict:
    chosen = [step[token] for token, step in zip(choice.token_ids, choice.logprobs, strict=True)]
    tokens = [
        _name(token, each, as_ids) for token, each in zip(choice.token_ids, chosen, strict=True)
    ]
    return {
        "tokens": tokens,
        "text_offset": list(itertools.accumulate(map(len, tokens), initial=0))[:-1],
        "token_logprobs": [_finite(each) for each in chosen],
        "top_logprobs": [
            {_name(token, each, as_ids): _finite(each) for token, each in step.items()}
            for step in choice.logprobs
        ],
    }


def _chat_logprobs(choice, as_ids: bool) -> dict:
    def entry(token: int, each) -> dict:
        name = _name(token, each, as_ids)
        return {"token": name, "logprob": _finite(each), "bytes": list(name.encode())}

    steps = zip(choice.token_ids, choice.logprobs, strict=True)
    tops = (
        {**entry(token, step[token]), "top_logprobs": [entry(*each) for each in step.items()]}
        for token, step in steps
    )
    return {"content": list(tops)}


def _prompt_logprobs(steps) -> list | None:
    def entry(each) -> dict:
        return {"logprob": _finite(each), "rank": each.rank, "decoded_token": each.decoded_token}

    return steps and [
        step and {str(token): entry(each) for token, each in step.items()} for step in steps
    ]


def _finite(each) -> float:
    return max(each.logprob, LOWEST_LOGPROB)
