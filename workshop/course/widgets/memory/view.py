from collections.abc import Mapping

from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.config import ModelConfig
from inference_planner.model.attention import main_kind
from inference_planner.model.weights import parameters

from workshop.course.widgets import controls as make
from workshop.course.widgets.memory.case import (
    CONTEXTS,
    GPU_COUNTS,
    WEIGHTS,
    Memory,
    MemoryCase,
    memory,
    weight_words,
)
from workshop.course.widgets.memory.picture import picture

LABELS = {"as published": "as published", "fp8": "fp8, made while loading", "awq": "4 bit (awq)"}


class MemorySliders(make.Explorer[Memory]):
    """The contents of each GPU: weights, overhead, KV cache.

    Move a control; read the verdict and the nearest remedy.

    A bar is one GPU, in GiB (2**30 bytes). vLLM takes `gpu_memory_utilization` of it: weights
    first, then what it needs to compute, and the rest becomes KV cache. The requests fit if that
    holds them all at full context.

    >>> from workshop import MemorySliders
    >>> sliders = MemorySliders("llama-3.1-70b", gpu="h200", gpus=4, context=131072, requests=16)
    >>> sliders.result.state                    # some of the 16 requests wait for others
    'waits'
    >>> sliders.controls["kv_cache_dtype"].value = "fp8"        # as if chosen: half the bytes a token
    >>> sliders.result.state
    'fits'

    Args:
        model: a catalog name, or a folder with a config.json.
        remedies: whether the verdict names the nearest remedy; an exercise that asks for it leaves
            it out.
        **case: where the other controls stand at first: gpu, gpus, weights, kv_cache_dtype,
            context, requests, gpu_memory_utilization.
    """

    def __init__(self, model: str = "llama-3.1-8b", *, remedies: bool = True, **case):
        self.remedies = remedies
        start = MemoryCase(model=model, **case)
        weights = [(label, name) for name, label in LABELS.items()]
        kv_cache = (("16 bit", "auto"), ("fp8", "fp8"))
        utilization = start.gpu_memory_utilization
        self._weights = make.choice("weights", weights, start.weights)
        self._context = make.steps("context", CONTEXTS, start.context)
        controls = {
            "model": make.models(start.model),
            "weights": self._weights,
            "kv_cache_dtype": make.choice("KV cache", kv_cache, start.kv_cache_dtype),
            "context": self._context,
            "requests": make.steps("requests", [2**n for n in range(11)], start.requests),
            "gpu": make.gpus(start.gpu),
            "gpus": make.steps("GPUs", GPU_COUNTS, start.gpus),
            "gpu_memory_utilization": make.real("utilization", utilization, 0.5, 0.98, 0.01),
        }
        super().__init__(controls, label_px=80)

    def adapt(self, name: str) -> None:
        """Offer the precisions and context lengths that this model has.

        The chosen ones stay where that is possible.
        """
        if name != "model":
            return
        model = load_model(self.values["model"])
        self._offer_weights(model)
        self._offer_contexts(model)

    def _offer_weights(self, model: ModelConfig) -> None:
        chosen = self._weights.value
        offered = WEIGHTS
        if model.quantization:  # what is quantized already stays as it is
            offered = WEIGHTS[:1]
        self._weights.options = [(LABELS[name], name) for name in offered]
        if chosen not in offered:
            chosen = "as published"
        self._weights.value = chosen

    def _offer_contexts(self, model: ModelConfig) -> None:
        longest = model.max_position_embeddings
        chosen = min(self._context.value, longest)
        shorter = {length for length in (*CONTEXTS, chosen) if length < longest}
        offered = sorted({*shorter, longest})
        self._context.options = [(f"{length:,}", length) for length in offered]
        self._context.value = chosen

    @property
    def case(self) -> MemoryCase:
        values = self.values
        values["gpu_memory_utilization"] = round(values["gpu_memory_utilization"], 2)
        return MemoryCase(**values)

    def compute(self) -> Memory:
        return memory(self.case)

    def picture_of(self, result: Memory) -> str:
        return picture(result, self.remedies)

    def sentences(self) -> Mapping[str, str]:
        case, result = self.case, self.result
        model, gpu = load_model(case.model), load_gpu(case.gpu)
        kind = main_kind(model)
        groups = ""
        if kind.splits_kv_heads:
            groups = f": {model.num_key_value_heads} KV heads for {model.num_attention_heads} heads"
        kv_cache = "what the model computes in."
        if case.kv_cache_dtype == "fp8":
            kv_cache = "half the bytes per token, a little less exact."
        limit = f"{gpu.engine_gib * case.gpu_memory_utilization:.1f} GiB"
        split = "–"
        if result is not None:
            split = _split_words(result)
        return {
            "model": f"{parameters(model) / 1e9:,.1f} billion parameters; {kind.label(model)}{groups}.",
            "weights": f"{weight_words(model, case.weights)}.",
            "kv_cache_dtype": kv_cache,
            "context": "tokens of one request, prompt and answer together (max_model_len).",
            "requests": "at the same moment, all as long as that.",
            "gpu": f"{gpu.marketing_gb} GB in its name; vLLM sees {gpu.engine_gib:.1f} GiB.",
            "gpus": split,
            "gpu_memory_utilization": f"vLLM may use {limit} of each GPU; 0.92 is its default.",
        }


def _split_words(result: Memory) -> str:
    tp, pp = result.fit.tp, result.fit.pp
    if result.case.gpus == 1:
        return "one GPU holds everything."
    if pp == 1:
        return f"tensor parallel {tp}: each GPU holds 1/{tp} of every layer."
    if tp == 1:
        return f"its heads do not divide: pipeline parallel {pp}, by layers."
    return f"tensor parallel {tp} in a node × pipeline parallel {pp} over nodes."
