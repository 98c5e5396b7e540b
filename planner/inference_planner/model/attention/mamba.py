"""State-space layers of hybrid models, with a state of fixed size instead of a cache.

Source: Mamba (arXiv 2312.00752); vLLM 0.32.0, v1/kv_cache_interface.py MambaSpec,
layers/mamba/mamba_utils.py.
"""

from collections.abc import Iterator, Sequence

from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig
from inference_planner.catalog.weight import Weight
from inference_planner.model.attention.base import (
    Attention,
    CacheSpec,
    Peak,
    ProfileRun,
    States,
    ceil_div,
)

# gates, convolution and recurrence of a gated delta net (Qwen3-Next, Qwen3.6 35B, Qwen3.5 27B; 0.33.0)
DELTA_LAYER_US = 16.0


class Mamba(Attention):
    """A convolution's window and the state of the recurrence, in one block a request."""

    key = "mamba"
    spec_names = ("MambaSpec",)
    keeps_states = True

    def layer_size(self, model: ModelConfig, layer: int) -> int | None:
        has_it = model.mamba is not None and layer in model.mamba.layers
        return 0 if has_it else None

    def describe_layers(self, sizes: Sequence[int], of_layers: int) -> str:
        return f"{len(sizes)} of {of_layers} layers Mamba"

    def token_elements(self, model: ModelConfig, tp: int = 1) -> int:
        return 0

    def states(self, model: ModelConfig, tp: int, draft_tokens: int = 0) -> States:
        space = model.state_space
        return States(
            bytes=self.state_bytes(model, tp, draft_tokens),
            blocks=space.blocks + draft_tokens,
            recurrence_elements=space.inner * space.d_state,
            has_delta_rule=space.delta,
        )

    def state_bytes(self, model: ModelConfig, tp: int, draft_tokens: int) -> int:
        """Return the bytes of one request's state on one rank.

        The convolution's part is in 16 bit, the recurrence's in the dtype that the config names.
        The convolution's window is longer by the draft tokens, but for Mamba 1
        (MambaStateShapeCalculator, num_spec).
        """
        space = model.state_space
        # a group that several ranks need is copied
        groups = tp if space.groups % tp else space.groups
        convolution_rows = space.inner + 2 * groups * space.d_state
        window = space.d_conv - 1
        if space.groups:
            window += draft_tokens
        convolution_bytes = 2 * convolution_rows * window
        recurrence_bytes = space.state_bytes_each * space.inner * space.d_state
        return (convolution_bytes + recurrence_bytes) // tp

    def peak(self, model: ModelConfig, run: ProfileRun) -> Peak:
        """Return the peak of a Mamba layer, seen in one run (Jamba, 0.32.0).

        There 2 + 1 + 1 + 1 of the inner width explain it to the MiB.
        """
        inner = model.state_space.inner // run.tp
        elements = run.tokens * (3 * model.hidden_size + 5 * inner)
        parts = "both halves of the projection, convolution, time steps and scan of a Mamba layer"
        return Peak("Mamba", elements * DTYPE_BYTES[model.dtype] + run.workspace_bytes, parts)

    def kernels_us(self, model: ModelConfig) -> float:
        return DELTA_LAYER_US if model.state_space.delta else 0.0

    def cached_tokens(self, tokens: int, size: int) -> int:
        return 0

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        return 1

    def simulator_spec(
        self, size: int, block_size: int, max_model_len: int, state_blocks: int
    ) -> CacheSpec:
        if not state_blocks:  # one state a request: a block that its longest text does not fill
            whole_text = ceil_div(max_model_len, block_size) * block_size
            return CacheSpec("MambaSpec", {"block_size": whole_text})
        # a state at the end of each block, and of the prompt
        arguments: dict[str, int | str] = {
            "block_size": block_size,
            "mamba_cache_mode": "align",
            "num_prefill_checkpoint_blocks": max(0, state_blocks - 2),
            "prefill_checkpoint_alignment": 1,
        }
        return CacheSpec("MambaSpec", arguments)

    def weights(self, model: ModelConfig) -> Iterator[Weight]:
        space = model.state_space
        hidden, inner = model.hidden_size, space.inner
        if space.groups:
            convolution_rows = inner + 2 * space.groups * space.d_state
            input_rows = inner + convolution_rows + space.dt_rank
            yield Weight("mamba.conv1d", convolution_rows, space.d_conv, "column", bias=True)
            yield Weight("mamba.in_proj", input_rows, hidden, "column", quantizable=True, shards=2)
            yield Weight("mamba.out_proj", hidden, inner, "row", quantizable=True)
            return
        yield Weight("mamba.conv1d", inner, space.d_conv, "column", bias=True)
        yield Weight("mamba.in_proj", 2 * inner, hidden, "column", quantizable=True, shards=2)
        yield Weight("mamba.x_proj", space.dt_rank + 2 * space.d_state, inner, "row")
        yield Weight("mamba.dt_proj", inner, space.dt_rank, "column", bias=True)
        yield Weight("mamba.A", inner, space.d_state, "column", bytes_each=4)
        yield Weight("mamba.D", inner, split="vector")
        yield Weight("mamba.out_proj", hidden, inner, "row", quantizable=True)
        yield Weight("mamba.dt_layernorm", space.dt_rank)
        yield Weight("mamba.b_layernorm", space.d_state)
        yield Weight("mamba.c_layernorm", space.d_state)
