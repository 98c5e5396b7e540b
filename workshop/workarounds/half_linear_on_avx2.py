"""vLLM computes linear layers of 16-bit models five times slower than 32-bit ones on processors without AVX-512.

oneDNN has no 16-bit matrix product for AVX2, so vLLM falls back to torch.nn.functional.linear ("Failed to create oneDNN
linear"), which converts number by number. For 256 rows of a layer with 448 inputs and 8,192 outputs, that took 138 ms in
bfloat16 and 26 ms in float32, on two cores of an AMD EPYC (Zen 3). Few rows are faster in 16 bit, for they only wait for
the weights.

Upstream: no issue found. To reproduce: serve a bfloat16 model on a processor without AVX-512, and read the warning.
Versions: vLLM 0.32.0, PyTorch 2.13. Ends when: a linear layer of 256 rows is as fast in bfloat16 as in float32 there.
"""

from typing import Any

# From here on, float32 with its conversions is faster, in all layers of the teaching model.
FEWEST_ROWS = 16


def apply() -> None:
    """Make vLLM's 16-bit linear layers multiply many rows in float32, on a processor that needs it.

    The result is rounded to 16 bit as before: the sums are the same but for the order of the additions.
    """
    import torch

    if not is_needed():
        return
    from vllm.model_executor.layers import utils

    layers: Any = utils
    original = layers.dispatch_cpu_unquantized_gemm

    def dispatch(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight
        is_half = weight.dtype in (torch.bfloat16, torch.float16)
        if is_half and weight.ndim == 2 and not weight.is_meta:
            layer.cpu_linear = in_float32
        else:
            original(layer, remove_weight)

    layers.dispatch_cpu_unquantized_gemm = dispatch


def is_needed() -> bool:
    """Say whether this is an x86 processor without AVX-512; others, such as Arm's, have kernels of their own."""
    import torch

    return torch.backends.cpu.get_cpu_capability() == "AVX2"


def in_float32(x: Any, weight: Any, bias: Any) -> Any:
    """Return torch.nn.functional.linear(x, weight, bias), with float32 inside where there are many rows.

    Args:
        x: [..., inputs], in 16 bit.
        weight: [outputs, inputs], in 16 bit.
        bias: [outputs] or None.

    Returns:
        [..., outputs], in the dtype of `x`.
    """
    from torch.nn.functional import linear

    if x.numel() < FEWEST_ROWS * x.shape[-1]:
        return linear(x, weight, bias)
    if bias is not None:
        bias = bias.float()
    return linear(x.float(), weight.float(), bias).to(x.dtype)
