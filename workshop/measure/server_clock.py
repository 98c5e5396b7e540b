"""The clock of a server on this machine, on which it is simulated, by a few timed requests."""

from __future__ import annotations

import statistics

from workshop.client.client import Client
from workshop.engine import metrics
from workshop.errors import WorkshopError
from workshop.measure import timed
from workshop.servers.records.record_file import ServerRecord
from workshop.simulate.arrivals import Arrival
from workshop.simulate.clock import Clock
from workshop.simulate.engine import Rules

MANY = 16  # requests at once, of the second measurement
SHORT, LONG, TOKENS = 16, 200, 48
CPU_SEQS, CPU_BATCHED_TOKENS = 128, 2048  # vllm serve's on a CPU (0.32.0)


def rules(server: ServerRecord, max_model_len: int) -> Rules:
    """Return the rules of the CPU server's scheduler, from its /metrics and vLLM's defaults.

    Raises WorkshopError: /metrics does not say how many blocks there are.
    """
    published = metrics.fetch(server.url, server.api_key)
    if published.num_blocks is None or published.block_size is None:
        raise WorkshopError(
            f"/metrics of {server.url} does not say how many blocks its KV cache has.",
            "Serve with a vLLM that publishes cache_config_info.",
        )
    return Rules(
        num_gpu_blocks=published.num_blocks,
        block_size=published.block_size,
        max_model_len=max_model_len,
        max_num_seqs=CPU_SEQS,
        max_num_batched_tokens=CPU_BATCHED_TOKENS,
        async_scheduling=False,
    )


async def measure(client: Client, long_tokens: int = LONG) -> Clock:
    """Measure the server's clock.

    Only whole answers are timed, so that a busy client measures the same: answers of few and of
    many tokens, of one request and of MANY at once, to short prompts and to those of `long_tokens`.

    Raises WorkshopError: the server does not answer.
    """
    async with timed.TimedSender(client) as sender:
        return await _measure(sender, long_tokens)


async def _measure(sender: timed.TimedSender, long_tokens: int) -> Clock:
    async def answer_ms(prompt_tokens: int, tokens: int, at_once: int = 1) -> float:
        """Return the median time of a whole answer, in ms."""
        load = [Arrival(0.0, prompt_tokens, tokens)] * at_once
        await timed.send_load(sender, load)  # warms the server up
        times_ms = []
        for _ in range(3):
            answers = await timed.send_load(sender, load)
            times_ms += [answer.outcome().e2el_ms for answer in answers]
        return statistics.median(times_ms)

    short_ms = await answer_ms(SHORT, 2)
    many_short_ms = await answer_ms(SHORT, 2, MANY)
    long_ms = await answer_ms(long_tokens, 2)
    step_ms = max(0.01, await answer_ms(SHORT, TOKENS) - short_ms) / (TOKENS - 2)
    many_ms = max(step_ms, (await answer_ms(SHORT, TOKENS, MANY) - many_short_ms) / (TOKENS - 2))
    token_ms = max(0.0, long_ms - short_ms) / (long_tokens - SHORT)
    way_s = max(0.0, short_ms - 2 * step_ms - SHORT * token_ms) / 1e3
    request_ms = (many_ms - step_ms) / (MANY - 1) - token_ms
    return Clock(
        weights_ms=0.0,
        token_ms=token_ms,
        fixed_ms=step_ms - token_ms,
        request_ms=request_ms,
        way_in_s=way_s / 2,
        way_out_s=way_s / 2,
    )
