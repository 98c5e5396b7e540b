"""Counts the tokens that vLLM's engine generated for a request, also where no answer reports them.

An answer that a client leaves half way has no usage, and a stream has none unless it is asked for.
vLLM's engine client, which runs in the process of the API server, has a state for each of its
requests, with the same counts that go into /metrics. While a request of a learner is served, the
states that it makes are noted.

It needs these names of vLLM (0.32, v1/engine/output_processor.py): `engine_client.output_processor`
with `add_request` and `request_states`, and a state's `stats`, `detokenizer`, `prompt_len`,
`is_prefilling` and `parent_req`. A version without them is not counted in this way:
`count_requests_of` says so, and the usage in the answers is all there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

ABORT_TAKES_S = 5.0
LOOK_EVERY_S = 0.02

_noted: ContextVar[list[Any] | None] = ContextVar(
    "states of the request that is served", default=None
)


@contextmanager
def noted_states() -> Iterator[list[Any]]:
    """Give the list of states that the engine makes for what runs in this block.

    Tasks that the block starts count as well.
    """
    states: list[Any] = []
    before = _noted.set(states)
    try:
        yield states
    finally:
        _noted.reset(before)


def count_requests_of(app: Any) -> bool:
    """Have the engine of this application note its states; return whether it does."""
    processor = _processor(app)
    add = getattr(processor, "add_request", None)
    if add is None or not isinstance(getattr(processor, "request_states", None), dict):
        return False
    if getattr(add, "notes_states", False):
        return True

    def add_request(request, *arguments, **options) -> None:
        add(request, *arguments, **options)
        states = _noted.get()
        state = processor.request_states.get(request.request_id)
        if states is not None and state is not None:
            states.append(state)

    add_request.notes_states = True
    processor.add_request = add_request
    return True


async def aborted(app: Any, states: list[Any]) -> None:
    """Wait a moment until the engine client has let go of these requests.

    It does so after their client left.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ABORT_TAKES_S
    while are_running(app, states) and loop.time() < deadline:
        await asyncio.sleep(LOOK_EVERY_S)


def are_running(app: Any, states: list[Any]) -> bool:
    """Return whether the engine works on one of these requests."""
    running = getattr(_processor(app), "request_states", {})
    return any(running.get(state.request_id) is state for state in states)


def tokens_of(states: list[Any]) -> tuple[int, int]:
    """Return (prompt tokens, generated tokens).

    As in vLLM's usage, a prompt counts once for its n answers.
    """
    prompts: dict[int, int] = {}
    generated = 0
    for state in states:
        tokens = _generated(state)
        generated += tokens
        if tokens or not state.is_prefilling:
            prompts[id(state.parent_req or state)] = state.prompt_len
    return sum(prompts.values()), generated


def _generated(state: Any) -> int:
    if state.stats is not None:
        return state.stats.num_generation_tokens
    if state.detokenizer is None:
        return 0
    return state.detokenizer.num_output_tokens()


def _processor(app: Any) -> Any:
    client = getattr(getattr(app, "state", None), "engine_client", None)
    return getattr(client, "output_processor", None)
