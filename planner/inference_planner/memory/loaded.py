"""The bytes that loading keeps on a rank: weights, and what kernels make of them once loaded."""

from inference_planner.catalog.config import DTYPE_BYTES
from inference_planner.catalog.fields import Fields
from inference_planner.model import adapters, drafts
from inference_planner.model.weights import parts
from inference_planner.releases import platforms
from inference_planner.speed.kernels import MACHETE, dense_kernel
from inference_planner.split.allocator import ALWAYS_SPLIT, MAX_SPLIT_WHILE_LOADING
from inference_planner.split.deployment import Deployment
from inference_planner.split.ranks import loads_deep_gemm, stage_bytes

EXPERTS = ("mlp.experts.w13", "mlp.experts.w2")
UNGATED_WIDTH = 128


def loaded_bytes(deployment: Deployment) -> list[int]:
    """Return what loading keeps on a rank of each stage: model, draft, adapters' buffers."""
    deep_gemm = loads_deep_gemm(deployment)
    draft = deployment.settings.draft
    lora = deployment.settings.adapters
    is_whole = deployment.settings.version.loads_whole_blocks
    most_split = MAX_SPLIT_WHILE_LOADING if is_whole else ALWAYS_SPLIT
    sizes: list[int] = []
    for stage, layers in enumerate(deployment.stages):
        size = stage_bytes(
            deployment.model,
            deployment.tp,
            deployment.pp,
            stage,
            deep_gemm,
            deployment.expert_split,
            most_split,
        )
        if draft and stage == deployment.pp - 1:
            size += drafts.weight_bytes(
                deployment.model, draft, deployment.tp, deployment.expert_split
            )
        size += _rows_apart(deployment, layers)
        size += _rounded_width(deployment, layers)
        size += _wider_zero_points(deployment, layers)
        if lora:
            size += adapters.buffer_bytes(
                deployment.model, lora, deployment.tp, layers, deployment.expert_split
            )
        sizes.append(size)
    return sizes


def _rows_apart(deployment: Deployment, layers: range) -> int:
    """Return what experts in 16 bit take beyond their size on AMD's GPUs, of some layers.

    A tensor whose rows are whole 512 bytes is copied once loaded, with 256 bytes between the rows.
    The copy of a layer's second tensor takes the block that the first has left, and keeps the rest
    of it: Llama 4 Maverick on eight MI300X (0.11.2) is met within 0.2 GiB of 127, Qwen3 235B on
    four and eight within 0.2.
    Source: fused_moe/unquantized_fused_moe_method.py _maybe_pad_weight (0.11.2 to 0.32.0).
    """
    model = deployment.model
    is_rocm = platforms.name(deployment.gpu) == platforms.ROCM
    if not is_rocm or model.moe is None or model.quantization:
        return 0
    experts = {part.weight.name: part.weight for _, part in parts(model)}
    extra = free_block = 0
    for _ in set(layers) & set(model.moe.layers):
        for name in EXPERTS:
            weight, cut = experts[name].distributed(deployment.tp, deployment.expert_split)
            rows, cols = weight.shape_on_rank(cut)
            row_bytes = cols * DTYPE_BYTES[model.dtype]
            if row_bytes % 512 == 0:
                size = weight.copies * rows * row_bytes
                copy = weight.copies * rows * (row_bytes + 256)
                extra += (free_block if free_block >= copy else copy) - size
                free_block = size
    # which memory of the device counted until 0.19, and blocks that are in use count since 0.20
    return extra if deployment.settings.version.loads_whole_blocks else extra + free_block


def _rounded_width(deployment: Deployment, layers: range) -> int:
    """Return what rounding the width of FP8 experts without a gate takes, of some layers.

    FlashInfer's kernels want multiples of UNGATED_WIDTH. Nemotron 3 Nano had 0.88 GiB more on an
    H200 under 0.18.0 than under 0.13.0 (0.92 here).
    Source: vLLM 0.18.0, quantization/utils/flashinfer_utils.py align_fp8_moe_weights_for_fi; 0.16.0
    rounds to 16.
    """
    model, quantization = deployment.model, deployment.model.quantization
    if model.moe is None or quantization is None or model.traits.gated_mlp:
        return 0
    is_fp8 = quantization.weight_bits == 8 and not (quantization.integers or quantization.block)
    has_kernels = deployment.gpu.hopper_or_newer and not platforms.name(deployment.gpu)
    if not (is_fp8 and has_kernels and deployment.settings.version.rounds_ungated_experts):
        return 0
    cut, dealt = deployment.tp, 1
    if deployment.expert_split:
        cut, dealt = deployment.expert_split.cut, deployment.expert_split.dealt
    added = -(model.moe.intermediate_size // cut) % UNGATED_WIDTH
    inputs = Fields(model.raw, model.name).int("moe_latent_size", model.hidden_size)
    experts = -(-model.moe.num_experts // dealt)
    return 2 * experts * added * inputs * len(set(layers) & set(model.moe.layers))


def _wider_zero_points(deployment: Deployment, layers: range) -> int:
    """Return what zero points take longer in 16 bits than packed, of some layers.

    Machete keeps them so. Source: kernels/linear/mixed_precision/machete.py transform_w_zp
    (0.33.0); Qwen2.5 72B AWQ on an H200.
    """
    model = deployment.model
    quantization = model.quantization
    if quantization is None or not quantization.zero_points:
        return 0
    own_kernel = quantization.method == "torchao"
    if own_kernel or dense_kernel(model, deployment.gpu).name != MACHETE:
        return 0
    times_longer = 16 / quantization.weight_bits
    added = 0
    for count, part in parts(model, deployment.tp, layers=layers):
        if part.is_quantized and not part.weight.is_expert:
            _, _, zero_points, *_ = part.tensors
            added += int(count * zero_points * (times_longer - 1))
    return added
