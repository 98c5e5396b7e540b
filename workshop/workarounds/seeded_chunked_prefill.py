"""vLLM's engine dies on a CPU if a prompt with a seed is computed in several chunks.

vLLM samples after every chunk, also where the prompt is not complete yet. It discards that sample and turns the
request's generator back by an offset (v1/worker/gpu_model_runner.py, _bookkeeping_sync). PyTorch's CPU generator has no
offset and raises RuntimeError: "CPU Generator does not use offset".

Upstream: no issue found for vLLM's CPU worker. vllm-project/vllm#10097 introduced the offset; qualcomm/vllm-qaic#92 fixes
the same error for another device. To reproduce: serve on a CPU with --max-num-batched-tokens 64 and send a prompt of
100 tokens with a seed.
Versions: vLLM 0.32.0. Ends when: _bookkeeping_sync does not ask a CPU generator for its offset.
"""

import contextlib
from collections.abc import Iterator
from typing import Any


def apply() -> None:
    """Make CPUWorker draw the samples that will be discarded without the request's own generator.

    There is then nothing to turn back, and the tokens are the same as if the prompt had been one chunk.
    """
    from vllm.v1.worker.cpu_worker import CPUWorker

    original = CPUWorker.sample_tokens

    def sample_tokens(self, grammar_output):
        with without_generators_of_discarded_samples(self.model_runner):
            return original(self, grammar_output)

    CPUWorker.sample_tokens = sample_tokens


@contextlib.contextmanager
def without_generators_of_discarded_samples(runner: Any) -> Iterator[None]:
    """Take the generators of requests whose sample will be discarded out of the batch while the block runs."""
    discarded = getattr(runner, "discard_request_mask", None)
    if discarded is None:  # vLLM's newer model runner has no such mask, and does not need this
        yield
        return
    generators = runner.input_batch.generators
    removed = {}
    for index in list(generators):
        if discarded.np[index]:
            removed[index] = generators.pop(index)
    try:
        yield
    finally:
        generators.update(removed)
