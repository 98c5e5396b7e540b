"""The reasons of a plan, in sentences: how it is split, what fits, what travels between GPUs."""

from collections.abc import Iterator

from inference_planner.answer.choose import executor
from inference_planner.answer.command import stand_in
from inference_planner.answer.plan_result import Plan
from inference_planner.catalog.architectures import is_multimodal
from inference_planner.catalog.config import present
from inference_planner.catalog.gpus import GIB
from inference_planner.catalog.quantization import PLUGINS
from inference_planner.ground.intervals import surely_holds_a_request
from inference_planner.memory import learned
from inference_planner.memory.fit import longest_context
from inference_planner.model import adapters, drafts
from inference_planner.model.attention import has_states, main_kind
from inference_planner.refusals import exceeds_state_blocks, lowered_from, seqs_that_start
from inference_planner.releases import versions
from inference_planner.speed.kernels import BITS_16, experts_of_rank, is_tuned
from inference_planner.speed.kernels import sentence as kernel_sentence
from inference_planner.split.encoders import encoder_run
from inference_planner.split.settings import batch_defaults

SHOWN_BYTES = GIB // 100  # a smaller change by a measured start is not named


def reasons(plan: Plan) -> list[str]:
    """Return why the plan is as it is: the reasons of the split, then what follows from it."""
    sentences = [*plan.reasons, *_version(plan), *_precision(plan), *_checkpoint(plan)]
    sentences += [*_tensor_split(plan), *_pipeline_split(plan), *_memory(plan), *_length(plan)]
    sentences += [*_encoder(plan), *_state_blocks(plan)]
    sentences += [*_freed_blocks(plan), *_draft(plan), *_adapters(plan)]
    sentences += _measured_here(plan)
    if plan.fits:
        sentences += _kernels(plan)
        sentences += [*_windows(plan), *_messages(plan), *_processes(plan), *_batch(plan)]
    return sentences


def _version(plan: Plan) -> Iterator[str]:
    """Say that a release has no formulas of its own."""
    name = plan.deployment.settings.vllm_version
    row = versions.nearest_formulas(name)
    if versions.is_outside(name):
        yield (
            f"There are no formulas for vLLM {name}: those of the nearest release, {row}, are "
            "used. The interval beside each figure says how far it may be off."
        )


def _freed_blocks(plan: Plan) -> Iterator[str]:
    """Say what releases may count that is free."""
    if plan.deployment.settings.version.may_keep_freed_blocks:
        yield (
            f"vLLM {plan.deployment.settings.vllm_version} may count blocks that its profile run "
            "has freed: public logs had 0.7 GiB less KV cache with two pipeline stages, and 0 on an "
            "RTX 4090, two L20 and two RTX PRO 6000 with tensor parallelism. The interval of "
            f"± {plan.spread.room_gib:.1f} GiB holds that."
        )


def _draft(plan: Plan) -> Iterator[str]:
    """Say what a draft takes, and what is not known of its speed."""
    draft = plan.deployment.settings.draft
    if draft is None:
        return
    yield from drafts.explain(plan.deployment.model, draft, plan.tensor_parallel_size)
    least = 0
    for group in plan.fit.layout.groups:
        least += 1
        if group.keeps_states:
            least += draft.tokens
    if has_states(plan.deployment.model) and plan.fit.holds_a_request:
        yield (
            f"Each draft token needs a state of its own: a running request holds at least {least} "
            f"blocks, so at most {plan.num_gpu_blocks // least:,} of its "
            f"{plan.deployment.settings.max_num_seqs:,} requests run at once."
        )


def _adapters(plan: Plan) -> Iterator[str]:
    """Say what the buffers of adapters take."""
    lora = plan.deployment.settings.adapters
    if lora is None:
        return
    deployment = plan.deployment
    layers = deployment.stages[plan.fit.tightest]
    size = (
        adapters.buffer_bytes(
            deployment.model, lora, deployment.tp, layers, deployment.expert_split
        )
        / GIB
    )
    count = f"{lora.max_loras} adapter"
    if lora.max_loras > 1:
        count += "s"
    yield (
        f"Buffers for {count} of rank {lora.max_lora_rank} take {size:.2f} GiB of each GPU, "
        "whatever the adapters' own rank is, and every CUDA graph is captured with adapters and "
        "without. tokens/s are those of requests without one."
    )


def _measured_here(plan: Plan) -> Iterator[str]:
    """Say what the plan took from a start on this site."""
    measured = plan.fit.measured
    if measured is None:
        return
    gpu_bytes = learned.engine_bytes(plan.deployment, measured)
    start = measured.start
    parts: list[str] = []
    if abs(measured.overhead) >= SHOWN_BYTES:
        parts.append(f"{measured.overhead / GIB:+.2f} GiB of overhead")
    if abs(measured.weights) >= SHOWN_BYTES:
        parts.append(f"{measured.weights / GIB:+.2f} GiB of weights")
    if abs(gpu_bytes - plan.deployment.gpu.engine_bytes) >= SHOWN_BYTES:
        parts.append(f"{start.engine_bytes / GIB:.2f} GiB on each GPU")
    if measured.speed != 1.0:
        parts.append(f"{(measured.speed - 1) * 100:+.0f} % tokens/s of one stream")
    result = "agrees with the formulas"
    if parts:
        result = f"changes the formulas by {', '.join(parts)}"
    server = f"{start.model} on this card"
    if measured.likeness == learned.Likeness.MODEL:
        server = "this server"
    yield (
        f"As {server} started here on {start.day} with vLLM {start.logged_version}: it {result}. "
        "To plan without it, remove its file from ~/.workshop/learned ($WORKSHOP_HOME/learned)."
    )


def _precision(plan: Plan) -> Iterator[str]:
    gpu = plan.deployment.gpu
    quantization = plan.deployment.model.quantization
    if quantization and quantization.method in PLUGINS:
        yield (
            f"Since 0.28.0 vLLM reads {quantization.method} weights with the package "
            f"{PLUGINS[quantization.method]} only: install it beside vLLM."
        )
    if plan.deployment.settings.dtype == "half" and not gpu.has_bfloat16:
        yield (
            f"{gpu.title} has no bfloat16: the model runs in float16 (--dtype half), which takes "
            "the same memory. vLLM uses its Triton attention kernels there, because "
            "FlashAttention and FlashInfer need Ampere or newer."
        )


def _checkpoint(plan: Plan) -> Iterator[str]:
    name = stand_in(plan.deployment)
    if name:
        method = present(plan.deployment.model.quantization).method
        yield (
            f"vLLM cannot quantize weights to {method} while it loads them. These numbers are for "
            f"a checkpoint that is already quantized: put its name in place of {name}."
        )


def _tensor_split(plan: Plan) -> Iterator[str]:
    model, ranks = plan.deployment.model, plan.tensor_parallel_size
    if ranks > 1:
        heads = model.num_attention_heads // ranks
        cache_share = main_kind(model).describe_share(model, ranks)
        yield (
            f"Each GPU computes {heads} of {model.num_attention_heads} "
            f"attention heads and stores {cache_share}."
        )


def _pipeline_split(plan: Plan) -> Iterator[str]:
    layers, stages = plan.deployment.model.num_hidden_layers, plan.pipeline_parallel_size
    if stages == 1:
        return
    sizes = [len(stage) for stage in plan.deployment.stages]
    if len(set(sizes)) == 1:
        shares = f"{sizes[0]} layers each"
    else:
        shares = "layers " + ", ".join(map(str, sizes))
    yield f"The {layers} layers are split into {stages} pipeline stages: {shares}."


def _length(plan: Plan) -> Iterator[str]:
    """Say which max_model_len vLLM will find, where it looks for one."""
    if plan.deployment.settings.fits_length and plan.fits:
        least = longest_context(plan.deployment, surely_holds_a_request)
        yield (
            "With --max-model-len auto vLLM takes the longest request that fits: "
            f"{plan.deployment.settings.max_model_len:,} tokens, or {least:,} at the low end of the range."
        )


def _memory(plan: Plan) -> Iterator[str]:
    room = plan.fit.available[plan.fit.tightest] / GIB
    rest = "are missing before the first token"
    if room > 0:
        rest = "stay free"
        if plan.fit.has_cache:
            rest = "are left for the KV cache"
    if not plan.fit.holds_a_request and room > 0:
        rest += f", too little for one request of {plan.deployment.settings.max_model_len:,} tokens"
    parts = (
        f"{plan.weights_gib_per_gpu:.2f} GiB are weights and "
        f"{plan.overhead_gib_per_gpu:.2f} GiB overhead"
    )
    if plan.deployment.settings.kv_cache_memory_bytes:
        yield (
            f"--kv-cache-memory-bytes gives the KV cache {room:.2f} GiB of each GPU, whatever is "
            f"free: beside it, {parts}."
        )
    else:
        yield (
            f"vLLM may use {plan.requested_gib_per_gpu:.1f} GiB of each GPU: {parts}; "
            f"{abs(room):.2f} GiB {rest}."
        )
    if plan.fit.holds_a_request and plan.fit.has_cache:
        blocks = f"{plan.num_gpu_blocks:,} blocks of {plan.fit.layout.block_size} tokens"
        requests = f"{plan.max_concurrency:.2f} requests of {plan.deployment.settings.max_model_len:,} tokens at once"
        if plan.data_parallel_size > 1:
            requests += ", in each replica"
        yield f"The KV cache holds {blocks}: {plan.kv_cache_tokens:,} tokens, or {requests}."


def _encoder(plan: Plan) -> Iterator[str]:
    """Say what the encoder takes from the KV cache, and which flag gives it back."""
    deployment = plan.deployment
    if deployment.model.text_of:
        yield (
            f"{deployment.model.hub_ids[0]} is published with an encoder ({deployment.model.text_of}). "
            "This plan is of its text model, as with --language-model-only, which the command "
            "has; give its own config.json to plan both."
        )
    if not is_multimodal(deployment.model.architecture):
        return
    if deployment.model.text_only:
        yield (
            "It runs as a text model: the prompts may hold no image, video or "
            "sound, so vLLM does not load the encoder."
        )
        return
    run = encoder_run(deployment.model, deployment.settings, deployment.tp)
    if run is None:
        yield (
            f"{deployment.model.architecture[:80]} is multimodal. What its encoder takes in "
            "the profile run is not known, and not counted: expect up to some GiB "
            "less KV cache, or give --language-model-only."
        )
        return
    items = f"{run.items} {run.modality}"
    if run.items > 1:
        items += "s"
    guess = ""
    if run.guessed:
        guess = " (a guess: there is no formula for this family)"
    yield (
        f"It is multimodal: before vLLM sizes the KV cache, it encodes {items} of "
        f"{run.tokens:,} tokens, which takes {run.peak_bytes / GIB:.2f} GiB at its peak{guess}. "
        "--language-model-only leaves the encoder out; "
        f"""--limit-mm-per-prompt '{{"{run.modality}": 0}}' allows no {run.modality} in a prompt."""
    )


def _state_blocks(plan: Plan) -> Iterator[str]:
    """Say how max_num_seqs follows from the blocks that a hybrid model has for its states."""
    deployment = plan.deployment
    blocks = f"{plan.num_gpu_blocks:,} blocks"
    if not plan.fit.holds_a_request:
        return
    needs = "Layers with states take one block for each running request"
    margin = "has its blocks at the low end of the range, too"
    default = lowered_from(deployment)
    if default:
        yield (
            f"{needs}, and vLLM refuses to start if max_num_seqs exceeds the number of "
            f"blocks, as its default of {default:,} may: there are {blocks}. "
            f"--max-num-seqs {deployment.settings.max_num_seqs} {margin}."
        )
    elif seqs_that_start(
        deployment
    ) < deployment.settings.max_num_seqs and not exceeds_state_blocks(deployment):
        yield (
            f"{needs}. The {blocks} are hardly more than max_num_seqs "
            f"{deployment.settings.max_num_seqs:,}: if vLLM refuses to start, "
            f"--max-num-seqs {seqs_that_start(deployment)} {margin}."
        )


def _windows(plan: Plan) -> Iterator[str]:
    windows = [window for window in plan.deployment.model.layer_windows if window]
    if windows:
        layers = f"{len(windows)} of {plan.deployment.model.num_hidden_layers} layers"
        yield (
            f"{layers} attend to the last {windows[0]:,} tokens only, so a "
            "long request needs less KV cache there."
        )


def _kernels(plan: Plan) -> Iterator[str]:
    """Name the kernels of quantized weights, and those that were never measured on this GPU."""
    for used in plan.kernels:
        if used.weights != BITS_16 or not used.measured:
            yield kernel_sentence(used)
    if is_tuned(plan.deployment) is False:
        count, width = experts_of_rank(plan.deployment)
        yield (
            f"vLLM ships no tuned file for such experts on this GPU (E={count}, N={width}) and logs "
            '"Using default MoE config". On an H200 the default tiles of vLLM 0.33.0 took as long as '
            "tuned ones for 128 experts and more, and up to 1.6 times as long for 8 large ones "
            "in 90 comparisons. benchmarks/kernels/benchmark_moe.py of vLLM's repository makes the file."
        )


def _messages(plan: Plan) -> Iterator[str]:
    for message in plan.communication:
        payload = f"{message.count} × {message.bytes_each / 1024:.0f} KiB"
        what = f"({message.what}, {message.reason})"
        yield (
            f"A decoding step of one request sends {payload} {what} over "
            f"{message.link}: about {message.ms:.2f} ms."
        )


def _processes(plan: Plan) -> Iterator[str]:
    if plan.data_parallel_size > 1:
        yield (
            "Each replica is a separate engine. One API server distributes the requests among them."
        )
    elif plan.gpus > 1:
        yield executor(plan.gpus, plan.nodes)[1]


def _batch(plan: Plan) -> Iterator[str]:
    settings = plan.deployment.settings
    serve_default, _ = batch_defaults(plan.deployment.gpu, "serve", settings.version)
    if settings.usage == "llm" and serve_default != settings.max_num_batched_tokens:
        yield (
            f"max_num_batched_tokens is {settings.max_num_batched_tokens:,}, the default of the "
            f"LLM class. The default of vllm serve is {serve_default:,}, so the command sets it."
        )
