"""Turns rows into requests for vLLM's engine in this process, and outputs into OpenAI's answers.

Parameters, defaults and limits are those of vLLM's own server, by its own request classes.
Source: vLLM 0.32, entrypoints/openai/completion and chat_completion.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from workshop.batch.read.rows import CHAT, EMBEDDINGS, InputRow
from workshop.client.sampling import MINUS_INFINITY_SENT

TEMPLATES_KEPT = 1024
_encode = json.JSONEncoder(separators=(",", ":")).encode
Made = TypeVar("Made")


@dataclass
class EngineRequest:
    """One row on its way to the engine; `vllm_request` and `sampling_params` may be shared.

    Any stands for vLLM's classes, which are imported only where an engine runs.
    """

    vllm_request: Any  # a CompletionRequest or a ChatCompletionRequest
    # Its SamplingParams by max_tokens.
    sampling_params: dict[int, Any] = field(default_factory=dict)
    text: str | None = None  # to be tokenized
    tokens: list[int] | Exception | None = None  # an exception: the text cannot be tokenized
    params: Any = None  # SamplingParams

    @property
    def prompt(self) -> dict:
        """The prompt as the engine takes it."""
        return {"prompt_token_ids": list(self.token_ids)}

    @property
    def token_ids(self) -> list[int]:
        """The ids of the prompt's tokens.

        Raises the error with which the tokenizer refused the text.
        """
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

        self._completion = CompletionRequest
        self._chat = ChatCompletionRequest
        self._tokenizer = llm.get_tokenizer()
        self._renderer = llm.llm_engine.renderer
        config = llm.llm_engine.model_config
        self._longest = config.max_model_len
        self._defaults = config.get_diff_sampling_param() or {}
        self._templates: dict[str, tuple[object, dict]] = {}  # what rows share was checked once
        self.refusals = _refusals()

    def requests(self, rows: Sequence[InputRow]) -> list[EngineRequest | Exception]:
        """Return for each row the engine's request, or why the engine cannot answer it.

        Many rows at once cost less: their prompts are tokenized in one call, on all cores.
        """
        drafts = [self._attempt(self._draft, row) for row in rows]
        self._tokenize(
            [draft for draft in drafts if isinstance(draft, EngineRequest) and draft.tokens is None]
        )
        requests: list[EngineRequest | Exception] = []
        for draft in drafts:
            if isinstance(draft, EngineRequest):
                requests.append(self._attempt(self._finished, draft))
            else:
                requests.append(draft)
        return requests

    def _draft(self, row: InputRow) -> EngineRequest:
        """Return the request of a row, without its SamplingParams; text is not tokenized yet."""
        if row.url == EMBEDDINGS:
            raise ValueError("embeddings are not answered offline: ask a server")
        body = json.loads(row.given_request)
        body.pop("model", None)  # the engine has one
        if row.url == CHAT:
            chat = self._chat(**body)
            tools = chat.tools and [tool.model_dump() for tool in chat.tools]
            chat_params = chat.build_chat_params(None, "auto").with_defaults(
                {"tools": tools, "tokenize": True}
            )
            _, prompt = self._renderer.render_messages(chat.messages, chat_params)
            if "multi_modal_data" in prompt:
                raise ValueError("images, audio and video are not answered offline: ask a server")
            return EngineRequest(chat, tokens=prompt["prompt_token_ids"])
        prompt = body.pop("prompt")
        is_token_ids = isinstance(prompt, list) and all(token >= 0 for token in prompt)
        if not isinstance(prompt, str) and not is_token_ids:
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
        if isinstance(prompt, list):
            return EngineRequest(*template, tokens=prompt)
        return EngineRequest(*template, text=prompt)

    def _tokenize(self, drafts: list[EngineRequest]) -> None:
        """Give each draft the tokens of its text, or the error of the tokenizer."""
        for special in (True, False):
            group = [draft for draft in drafts if draft.vllm_request.add_special_tokens is special]
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

    def _finished(self, draft: EngineRequest) -> EngineRequest:
        """Return the draft with its SamplingParams.

        Raises ValueError: its tokens do not fit the model's context.
        """
        vllm_request = draft.vllm_request
        tokens = draft.token_ids
        limit = getattr(vllm_request, "max_completion_tokens", None)  # of a chat only
        if limit is None:
            limit = vllm_request.max_tokens
        if vllm_request.truncate_prompt_tokens not in (None, -1):
            tokens = tokens[-vllm_request.truncate_prompt_tokens :]
            draft.tokens = tokens
        room = self._longest - len(tokens)
        if room < 1 or (limit or 0) > room:
            asks = f"The prompt has {len(tokens)}, and {limit or 1} are asked for."
            raise ValueError(
                f"This model's maximum context length is {self._longest} tokens. {asks}"
            )
        if limit is None:
            limit = self._defaults.get("max_tokens") or room
        max_tokens = min(room, limit)
        # the engine works on a copy, and what it fills in is the same for all
        if max_tokens not in draft.sampling_params:
            draft.sampling_params[max_tokens] = vllm_request.to_sampling_params(
                max_tokens, self._defaults
            )
        draft.params = draft.sampling_params[max_tokens]
        return draft

    def body(
        self, row: InputRow, request: EngineRequest, output, model: str
    ) -> tuple[bytes, int, int, list[dict]]:
        """Return (the answer's body as JSON, prompt tokens, generated tokens, its choices)."""
        chat = row.url == CHAT
        vllm_request = request.vllm_request
        choices = []
        generated = 0
        for sequence in output.outputs:
            generated += len(sequence.token_ids)
            choice: dict[str, Any] = {
                "index": sequence.index,
                "finish_reason": sequence.finish_reason,
                "stop_reason": sequence.stop_reason,
                "logprobs": None,
            }
            if chat:
                choice["message"] = {"role": "assistant", "content": sequence.text}
            else:
                choice["text"] = sequence.text
                choice["prompt_logprobs"] = _prompt_logprobs(output.prompt_logprobs)
            if sequence.logprobs is not None:
                as_ids = bool(vllm_request.return_tokens_as_token_ids)
                if chat:
                    choice["logprobs"] = _chat_logprobs(sequence, as_ids)
                else:
                    choice["logprobs"] = _completion_logprobs(sequence, as_ids)
            if vllm_request.return_token_ids:
                choice["token_ids"] = list(sequence.token_ids)
                choice["prompt_token_ids"] = list(output.prompt_token_ids)
            choices.append(choice)
        prompt_tokens = len(output.prompt_token_ids)
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": generated}
        answer = {
            "id": f"offline-{row.key.hex()[:16]}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
            "choices": sorted(choices, key=lambda choice: choice["index"]),
            "usage": usage | {"total_tokens": prompt_tokens + generated},
        }
        if chat:
            answer["prompt_logprobs"] = _prompt_logprobs(output.prompt_logprobs)
        return _encode(answer).encode(), prompt_tokens, generated, choices


def _refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions of a refused request; since 0.32 vLLM's own are no ValueErrors."""
    from jinja2 import TemplateError
    from vllm import exceptions

    client_error = getattr(exceptions, "VLLMClientError", ValueError)
    validation_error = getattr(exceptions, "VLLMValidationError", ValueError)
    return (ValueError, TypeError, KeyError, TemplateError, client_error, validation_error)


def _name(token: int, logprob, as_ids: bool) -> str:
    """Return a token's text, or "token_id:42" if that is requested or the token has no text."""
    if as_ids or logprob.decoded_token is None:
        return f"token_id:{token}"
    return logprob.decoded_token


def _completion_logprobs(sequence, as_ids: bool) -> dict:
    """Return a sequence's logprobs in the form of OpenAI's completions."""
    tokens = []
    offsets = []
    token_logprobs = []
    top_logprobs = []
    offset = 0
    for token, step in zip(sequence.token_ids, sequence.logprobs, strict=True):
        text = _name(token, step[token], as_ids)
        tokens.append(text)
        offsets.append(offset)
        offset += len(text)
        token_logprobs.append(_finite(step[token]))
        tops = {}
        for other, logprob in step.items():
            tops[_name(other, logprob, as_ids)] = _finite(logprob)
        top_logprobs.append(tops)
    return {
        "tokens": tokens,
        "text_offset": offsets,
        "token_logprobs": token_logprobs,
        "top_logprobs": top_logprobs,
    }


def _chat_logprobs(sequence, as_ids: bool) -> dict:
    """Return a sequence's logprobs in the form of OpenAI's chat."""
    content = []
    for token, step in zip(sequence.token_ids, sequence.logprobs, strict=True):
        entry = _chat_entry(token, step[token], as_ids)
        entry["top_logprobs"] = []
        for other, logprob in step.items():
            entry["top_logprobs"].append(_chat_entry(other, logprob, as_ids))
        content.append(entry)
    return {"content": content}


def _chat_entry(token: int, logprob, as_ids: bool) -> dict[str, Any]:
    """Return one token with its logprob in the form of OpenAI's chat."""
    name = _name(token, logprob, as_ids)
    return {"token": name, "logprob": _finite(logprob), "bytes": list(name.encode())}


def _prompt_logprobs(steps) -> list | None:
    """Return the logprobs of a prompt in the form of vLLM's server; the first token has none."""
    if not steps:
        return steps
    positions = []
    for step in steps:
        if not step:
            positions.append(step)
            continue
        entries = {}
        for token, logprob in step.items():
            entries[str(token)] = {
                "logprob": _finite(logprob),
                "rank": logprob.rank,
                "decoded_token": logprob.decoded_token,
            }
        positions.append(entries)
    return positions


def _finite(logprob) -> float:
    """Return a logprob's number; minus infinity as the server sends it."""
    return max(logprob.logprob, MINUS_INFINITY_SENT)
