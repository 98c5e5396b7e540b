"""Multi-head latent attention (MLA): one latent a token, of which K and V are made.

Source: DeepSeek-V2 (arXiv 2405.04434); vLLM 0.25.1, v1/kv_cache_interface.py MLAAttentionSpec.
"""

from collections.abc import Iterator

from inference_planner.catalog.config import DTYPE_BYTES, Mla, ModelConfig, present
from inference_planner.catalog.gpus import MIB
from inference_planner.catalog.weight import Weight
from inference_planner.model.attention.base import Attention, Peak, ProfileRun, Uncertainty, Widths
from inference_planner.model.attention.heads import Heads
from inference_planner.releases.attention_backends import SPARSE_LATENT

# attention/mla_attention.py, determine_chunked_prefill_workspace_size
PREFILL_TOKENS = 64 * 1024


class Latent(Attention):
    """One latent of kv_lora_rank + qk_rope_head_dim a token; every rank keeps all of it."""

    key = "latent"
    spec_names = ("MLAAttentionSpec",)
    deep_gemm = True
    block_step = 128  # of FlashMLA beside states
    splits_kv_heads = False
    uncertainty = Uncertainty("latent attention", gib=0.4, time_share=0.1)
    # latents take more kernels: one run on an H100 (GLM-4.7-Flash)
    shared_stream_graph_bytes = 5 * MIB
    graphs_keep_more = True

    def is_main(self, model: ModelConfig) -> bool:
        return model.mla is not None

    def label(self, model: ModelConfig) -> str:
        return "MLA"

    def describe_token(self, model: ModelConfig) -> str:
        return "one latent"

    def describe_cache(self, model: ModelConfig) -> str:
        return "one latent"

    def token_elements(self, model: ModelConfig, tp: int = 1) -> int:
        return model.latent.kv_lora_rank + model.latent.qk_rope_head_dim

    def token_bytes(self, model: ModelConfig, tp: int, element_bytes: int) -> int:
        """Return the bytes of one token's latent, and of its indexer's key if attention is sparse.

        The indexer keeps keys in FP8 with a 32-bit scale. Where the backend packs a sparse latent in
        FP8, it has scales of its own, and keeps positions in 16 bit.

        Source: vLLM 0.32.0, v1/kv_cache_interface.py MLAAttentionSpec (fp8_ds_mla),
        models/deepseek_v2.py.
        """
        latent = model.latent
        if not latent.index_heads:
            return super().token_bytes(model, tp, element_bytes)
        if element_bytes == 1 and latent.packs_fp8:
            latent_bytes = latent.kv_lora_rank * 33 // 32 + 2 * latent.qk_rope_head_dim
        else:
            latent_bytes = self.token_elements(model) * element_bytes
        return latent_bytes + int(latent.index_head_dim * 33 / 32 * latent.index_share)

    def read_bytes(self, model: ModelConfig, tp: int, element_bytes: int) -> int:
        """Return the bytes of one token's latent, also where attention is sparse.

        A sparse step reads the indexer's keys of all tokens and the latents of the chosen ones. The
        sum was not measured.
        """
        return self.token_elements(model, tp) * element_bytes

    def kv_heads(self, model: ModelConfig, tp: int) -> int:
        return 1

    def draft_head_dim(self, model: ModelConfig) -> int:
        return model.hidden_size // model.num_attention_heads

    def context_sizes(self, model: ModelConfig, tp: int) -> list[int]:
        return [n for n in range(2, tp + 1) if tp % n == 0]

    def describe_share(self, model: ModelConfig, tp: int) -> str:
        return "the one latent, copied to every GPU"

    def selected_by(self, model: ModelConfig, size: int) -> tuple[str, int] | None:
        kind = SPARSE_LATENT if model.latent.index_heads else "latent"
        return kind, self.token_elements(model)

    def widths(self, model: ModelConfig, tp: int) -> Widths:
        latent = model.latent
        heads = model.num_attention_heads // tp
        return Widths(
            attn=heads * latent.v_head_dim,
            q=heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim),
            kv=latent.kv_lora_rank + latent.qk_rope_head_dim,
        )

    def summed_width(self, model: ModelConfig) -> int:
        return model.latent.kv_lora_rank

    def peak(self, model: ModelConfig, run: ProfileRun) -> Peak:
        """Return the peak of prefill, where MLA decompresses a long context in chunks."""
        dtype_bytes = DTYPE_BYTES[model.dtype]
        widths = self.widths(model, run.tp)
        live_elements = model.hidden_size + widths.attn + widths.q + widths.kv
        chunk = min(max(8 * run.max_model_len, 64 * run.max_num_seqs), PREFILL_TOKENS)
        chunk = max(chunk, 16 * run.max_num_seqs)
        heads = model.num_attention_heads // run.tp
        decompressed = chunk * heads * (model.latent.qk_nope_head_dim + model.latent.v_head_dim)
        elements = decompressed + run.tokens * live_elements
        parts = f"keys and values of {chunk} tokens of context, decompressed"
        return Peak("MLA prefill", elements * dtype_bytes + run.workspace_bytes, parts)

    def workspace_bytes(self, model: ModelConfig, rows: int) -> int:
        """Return the keys of a sparse indexer, gathered: FP8 with a 32-bit scale.

        Source: model_executor/layers/sparse_attn_indexer.py, _gather_workspace_shapes.
        """
        latent = model.latent
        return rows * (latent.index_head_dim + 4) if latent.index_heads else 0

    def graph_row_bytes(self, model: ModelConfig, max_model_len: int) -> int:
        """Return a sparse indexer's score of every token that a request may have, in 32 bit.

        Source: the same, fp8_fp4_paged_mqa_logits.
        """
        return 4 * max_model_len if model.latent.index_heads else 0

    def kernels_us(self, model: ModelConfig) -> float:
        return 26.0  # projections into and out of the latent; fitted with roofline.py's constants

    def weights(self, model: ModelConfig) -> Iterator[Weight]:
        return latent_weights(model, model.latent, has_decoded_copy=True)


def latent_weights(model: ModelConfig, latent: Mla, has_decoded_copy: bool) -> Iterator[Weight]:
    """Yield the matrices that make the latent, and the heads' K and V of it.

    Args:
        has_decoded_copy: a quantized kv_b_proj stands in memory once more, in the model's dtype,
            for decoding.
    """
    hidden = model.hidden_size
    heads = model.num_attention_heads
    query_rows = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    kv_rows = heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    latent_rows = latent.kv_lora_rank + latent.qk_rope_head_dim
    if latent.q_lora_rank:
        yield Weight(
            "self_attn.fused_qkv_a_proj",
            latent.q_lora_rank + latent_rows,
            hidden,
            quantizable=True,
            shards=2,
        )
        yield Weight("self_attn.q_a_layernorm", latent.q_lora_rank)
        yield Weight(
            "self_attn.q_b_proj", query_rows, latent.q_lora_rank, "column", quantizable=True
        )
    else:
        yield Weight("self_attn.q_proj", query_rows, hidden, "column", quantizable=True)
        yield Weight("self_attn.kv_a_proj_with_mqa", latent_rows, hidden, quantizable=True)
    if latent.index_heads:
        yield from _indexer_weights(model, latent)
    yield Weight("self_attn.kv_a_layernorm", latent.kv_lora_rank)
    yield Weight(
        "self_attn.kv_b_proj",
        kv_rows,
        latent.kv_lora_rank,
        "column",
        quantizable=True,
        has_decoded_copy=has_decoded_copy,
    )
    yield Weight("self_attn.o_proj", hidden, heads * latent.v_head_dim, "row", quantizable=True)


def _indexer_weights(model: ModelConfig, latent: Mla) -> Iterator[Weight]:
    """Yield a sparse indexer, whole on every rank, with its mean rows over the layers."""
    query_rows = latent.index_heads * latent.index_head_dim
    query_columns = latent.q_lora_rank or model.hidden_size
    parts = (
        (query_rows, query_columns, True),
        (latent.index_head_dim, model.hidden_size, True),
        (latent.index_heads, model.hidden_size, False),
    )
    for number, (rows, columns, quantizable) in enumerate(parts):
        mean_rows = int(rows * latent.index_share)
        yield Weight(f"self_attn.indexer.{number}", mean_rows, columns, quantizable=quantizable)


class LatentProjections(Heads):
    """MLA's weights, but the engine keeps K and V of every head (MiniCPM3)."""

    spec_names = ()

    def is_main(self, model: ModelConfig) -> bool:
        return model.latent_projections is not None

    def describe(self, model: ModelConfig) -> str:
        return f"MLA, cached as {super().describe(model)}"

    def weights(self, model: ModelConfig) -> Iterator[Weight]:
        return latent_weights(model, present(model.latent_projections), has_decoded_copy=False)
