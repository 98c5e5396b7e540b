"""vLLM's API server answers nobody while the engine has the next step ready.

`AsyncLLM.output_handler` awaits `AsyncMPClient.get_output_async`, which returns at once while its queue is not empty, so
the event loop never runs another task. On a GPU the API server is faster than the engine and the queue empties. On a
CPU, where both share the cores, it does not: nothing streams and /metrics waits until the engine has nothing to do.

Upstream: no issue found (#1629 was the same fault of the engine before V1). To reproduce: serve a small model on two
cores, stream from 16 requests at a time, and ask for /metrics.
Versions: vLLM 0.25.1 to 0.33.0. Ends when: the output handler yields at least once in each step.
"""

import asyncio


def apply() -> None:
    """Make `AsyncMPClient.get_output_async` yield to the event loop before it returns a step that is ready."""
    from vllm.v1.engine.core_client import AsyncMPClient

    original = AsyncMPClient.get_output_async

    async def get_output_async(self):
        if self.outputs_queue and not self.outputs_queue.empty():
            await asyncio.sleep(0)
        return await original(self)

    AsyncMPClient.get_output_async = get_output_async
