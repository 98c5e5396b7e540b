"""On a CPU vLLM accepts or rejects draft tokens by uninitialized memory instead of the request's settings.

With speculative decoding at a temperature above 0, `expand_batch_to_tokens` copies temperature, top_k and top_p of each
request to each of its draft tokens. The CPU's stand-in for the kernel writes whole numbers into a temporary copy of the
result, so the result itself is never written.

Upstream: vllm-project/vllm#55005 (open); #42638 was an earlier fix, closed without being merged.
Versions: vLLM 0.32.0. Ends when: #55005 is fixed.
"""


def expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
    """Repeat the value of each request once for each of its draft tokens: [a, b] and [2, 5] become [a, a, b, b, b].

    Args:
        x: tensor of one value for each request.
        cu_num_tokens: cumulative number of draft tokens, one entry for each request.
        num_tokens: number of draft tokens of all requests.
        replace_from, replace_to: a value of x, and what stands in its place in the result.
    """
    import torch

    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    replaced = torch.where(x == replace_from, replace_to, x)
    return replaced.repeat_interleave(counts, output_size=num_tokens)


def apply() -> None:
    """Replace vLLM's `expand_batch_to_tokens` by one that uses PyTorch alone."""
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
