from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from workshop.cli.say import json_option, say, say_json
from workshop.cli.use.batch import more_sampling, sampling_options
from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    from workshop.client.client import Client

COMPLETION_TOKENS = 256  # of an answer without a chat; the server's own default is 16
NO_TEMPLATE = "chat template"  # vLLM's words for a model that cannot chat
MOST_PROMPT_CHARS = 10_000_000


@click.command
@click.argument("prompt")
@click.option("--name", help="Name of a server that `workshop servers` lists, where several run.")
@click.option("--url", help="Server, ending in /v1. Key: WORKSHOP_API_KEY.")
@click.option("--system", help="What the model is told before the prompt.")
@click.option(
    "--complete", is_flag=True, help="Let the model continue the prompt, instead of answering it."
)
@click.option(
    "--sampling", "more", help="Any other sampling parameters, as JSON: '{\"ignore_eos\": true}'."
)
@sampling_options
@json_option("The answer, why it ended, and its tokens.")
def command(
    prompt: str,
    name: str | None,
    url: str | None,
    system: str | None,
    complete: bool,
    more: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Send one PROMPT to a server, and show the answer as it comes.

    "-" reads the prompt from standard input.

    The prompt is sent as a user's message. A model without a chat template continues it, as with
    --complete.
    """
    if system and complete:
        raise BadInput("--system is for a chat, and --complete is none.", "Give one of the two.")
    sampling = {key: value for key, value in options.items() if value is not None}
    sampling |= more_sampling(more)
    if sampling.get("n") not in (None, 1) or "stream" in sampling:
        raise BadInput("One prompt has one answer here.", "Several: workshop batch --samples N.")
    if prompt == "-":
        prompt = sys.stdin.read(MOST_PROMPT_CHARS)
    if not prompt.strip():
        raise BadInput("The prompt is empty.", 'For example: workshop ask "What is a KV cache?"')
    server = connect(name, url)
    began = time.monotonic()
    answer = _answer(server, prompt, system, complete, sampling, show=not as_json)
    if as_json:
        answer["seconds"] = round(time.monotonic() - began, 3)
        say_json({"model": server.model, "url": server.url, **answer})
    elif answer["finish_reason"] == "length":
        say("! It ended at max_tokens: give more with --max-tokens.", fg="yellow", err=True)


def connect(name: str | None, url: str | None) -> Client:
    """Return a client of the server of this name, or at this address, or of the only one."""
    from workshop.client import reach

    record = reach.record_at(name, url)
    # It imports openai, which takes a second, so only where there is a server.
    from workshop.client import client

    return client.connect_to(record)


def _answer(
    server: Client, prompt: str, system: str | None, complete: bool, sampling: dict, show: bool
) -> dict[str, Any]:
    """Send the prompt; show the pieces of the answer as they come, and return the whole of it."""
    sampling = {**sampling, "stream": True, "stream_options": {"include_usage": True}}
    if not complete:
        messages = [{"role": "user", "content": prompt}]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        try:
            return _read(server.chat(messages, **sampling), show)
        except WorkshopError as error:
            if NO_TEMPLATE not in error.message or system:
                raise
        say("! This model has no chat template: it continues the prompt.", fg="yellow", err=True)
    sampling.setdefault("max_tokens", COMPLETION_TOKENS)
    return _read(server.complete(prompt, **sampling), show)


def _read(stream: Any, show: bool) -> dict[str, Any]:
    """Read the pieces of an answer.

    On a terminal each is shown when it comes; a pipe gets the text alone.
    """
    text = ""
    reasoning = ""
    finish_reason = None
    usage = None
    for piece in stream:
        usage = piece.usage or usage
        for choice in piece.choices:
            finish_reason = choice.finish_reason or finish_reason
            delta = getattr(choice, "delta", None)
            thought = getattr(delta, "reasoning", None) or getattr(delta, "reasoning_content", None)
            part = choice.text if delta is None else delta.content
            if thought:
                reasoning += thought
                if show and sys.stderr.isatty():
                    say(thought, nl=False, dim=True, err=True)
            if part:
                if show and reasoning and not text and sys.stderr.isatty():
                    say("\n", err=True)
                text += part
                if show:
                    say(part, nl=False)
                    sys.stdout.flush()
    if show and not text.endswith("\n"):
        say()
    return {
        "text": text,
        "reasoning": reasoning or None,
        "finish_reason": finish_reason,
        "prompt_tokens": getattr(usage, "prompt_tokens", None),
        "completion_tokens": getattr(usage, "completion_tokens", None),
    }
