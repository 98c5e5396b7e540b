"""vLLM's CPU worker with workarounds for two bugs and one slow path.

Chunked prefill of requests with a seed, draft tokens at a temperature above 0, and layers of 16 bit
on processors without AVX-512. vLLM takes it by `--worker-cls workshop.servers.cpu_worker.Worker`.
"""

from vllm.v1.worker.cpu_worker import CPUWorker as Worker

from workshop.workarounds import draft_token_settings, half_linear_on_avx2, seeded_chunked_prefill

__all__ = ["Worker"]

draft_token_settings.apply()
half_linear_on_avx2.apply()
seeded_chunked_prefill.apply()
