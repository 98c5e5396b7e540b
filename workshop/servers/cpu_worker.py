"""The CPU's worker: prompts in pieces also where a request has a seed, and guesses also where it has a temperature.

vLLM samples in every step, also after a piece, and takes that sample back: it turns the request's generator back by an
offset, which a CPU's has not ("CPU Generator does not use offset": 0.32.0 ends there). Here such a sample is drawn
without the generator, so that there is nothing to turn back. Tokens are the same as if the prompt had been one piece.
Source: vLLM 0.32.0, v1/worker/gpu_model_runner.py, _bookkeeping_sync.

With speculation each guess is judged at the temperature, top_k and top_p of its request. 0.32.0 hands them out on a CPU
by a kernel that writes whole numbers into a copy, so what it judges by is memory that nobody has written (vLLM's issue
55005). Here they are handed out by torch.
"""

import torch
from vllm.v1.sample import rejection_sampler
from vllm.v1.worker.cpu_worker import CPUWorker


def expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
    """Return each request's value once for each of its guesses: [a, b] and [2, 5] make [a, a, b, b, b]."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    return torch.where(x == replace_from, replace_to, x).repeat_interleave(
        counts, output_size=num_tokens
    )


rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


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
