"""Computes how many tokens per second a server writes while many requests decode at once.

It is one step of the simulation's clock.
"""

from inference_planner.answer.parallelism import Plan

from workshop.simulate import clock

CONTEXT_TOKENS = 300  # of each request, as for the time to first token of a plan
REQUESTS = (32, 256)


def tokens_per_s(plan: Plan, requests: int) -> float:
    """Return the tokens per second of all requests together while each decodes.

    Prefill and waiting do not count.

    With pipeline stages each computes its part of the requests at a time; data-parallel engines
    share them.
    """
    parts = plan.pipeline_parallel_size * plan.data_parallel_size
    requests_of_part = max(1, round(requests / parts))
    work = [(1, CONTEXT_TOKENS)] * requests_of_part
    step_clock = clock.of(plan.deployment)
    gpu_ms = step_clock.gpu_ms(work) / plan.pipeline_parallel_size
    before_ms, launch_ms = step_clock.host_ms(work)
    step_ms = max(gpu_ms, before_ms + launch_ms)
    return 1e3 * requests_of_part * plan.data_parallel_size / step_ms


def most_at_once(plan: Plan) -> int:
    """Return how many requests of CONTEXT_TOKENS run at once.

    As many as the KV cache and max_num_seqs allow.
    """
    return min(plan.kv_cache_tokens // CONTEXT_TOKENS, plan.deployment.settings.max_num_seqs)
