"""A server whose every answer takes the same time: what differs between two clients is then the clients alone.

    python benchmarks/fixed_server.py PORT MODEL_NAME

It speaks as much of vLLM's HTTP interface as `vllm bench serve` uses: /health, /v1/models and streamed
/v1/completions. The first token comes FIRST_TOKEN_S after a request, each other one TOKEN_S after the one before.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

FIRST_TOKEN_S = 0.050
TOKEN_S = 0.010


async def stream(prompt_tokens: int, output_tokens: int) -> AsyncIterator[str]:
    """Send one token an event, each at its own time since the request came, and the usage at the end."""
    began = time.monotonic()
    for number in range(output_tokens):
        due = began + FIRST_TOKEN_S + number * TOKEN_S
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        reason = "length" if number + 1 == output_tokens else None
        choice = {"index": 0, "text": " a", "finish_reason": reason}
        yield event({"choices": [choice]})
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }
    yield event({"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def event(data: dict) -> str:
    """Return one event of a stream."""
    return f"data: {json.dumps({'id': 'fixed', 'object': 'text_completion', **data})}\n\n"


async def completions(request: Request) -> Response:
    """Answer one request, streamed if it asks for that."""
    body = await request.json()
    output_tokens = int(body["max_tokens"])
    if body.get("stream"):
        return StreamingResponse(
            stream(len(body["prompt"]), output_tokens), media_type="text/event-stream"
        )
    await asyncio.sleep(FIRST_TOKEN_S + (output_tokens - 1) * TOKEN_S)
    choice = {"index": 0, "text": " a" * output_tokens, "finish_reason": "length"}
    return JSONResponse({"id": "fixed", "object": "text_completion", "choices": [choice]})


async def health(_: Request) -> Response:
    """Answer that the server is ready."""
    return Response()


def main() -> None:
    """Serve until the process is ended."""
    port, model = int(sys.argv[1]), sys.argv[2]

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": model, "object": "model"}]})

    routes = [
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/completions", completions, methods=["POST"]),
    ]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    main()
