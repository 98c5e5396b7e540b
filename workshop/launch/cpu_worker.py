"""The CPU's worker, with which a prompt may be computed in pieces also where its request has a seed.

vLLM samples in every step, also after a piece, and takes that sample back: it turns the request's generator back by an
offset, which a CPU's has not ("CPU Generator does not use offset": 0.32.0 ends there). Here such a sample is drawn
without the generator, so that there is nothing to turn back. Tokens are the same as if the prompt had been one piece.
Source: vLLM 0.32.0, v1/worker/gpu_model_runner.py, _bookkeeping_sync.
"""

from __future__ import annotations

from vllm.v1.worker.cpu_worker import CPUWorker


class Worker(CPUWorker):
    """vLLM's CPUWorker in all else."""

    def sample_tokens(self, grammar_output):
        runner = self.model_runner
        unused = getattr(runner, "discard_request_mask", None)  # vLLM's newer runner needs none
        generators = runner.input_batch.generators if unused else {}
        kept = {index: generators.pop(index) for index in list(generators) if unused.np[index]}
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(kept)
