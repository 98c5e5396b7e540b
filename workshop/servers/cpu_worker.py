"""vLLM's CPU worker with two bugs worked around: chunked prefill of requests with a seed, and draft
tokens at a temperature above 0. vLLM takes it by `--worker-cls workshop.servers.cpu_worker.Worker`.
"""

from vllm.v1.worker.cpu_worker import CPUWorker as Worker

from workshop.workarounds import draft_token_settings, seeded_chunked_prefill

__all__ = ["Worker"]

draft_token_settings.apply()
seeded_chunked_prefill.apply()
