"""vLLM's --compilation-config: which CUDA graphs are captured, and whether the model is compiled.

Three fields have an effect on memory and speed that is computed: mode, cudagraph_mode and the sizes
that are captured. The others are passed on, and widen the intervals of a plan. Source: vLLM 0.32.0,
config/compilation.py and config/vllm.py (_normalize_piecewise_cudagraph_mode,
_set_cudagraph_sizes).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from inference_planner.errors import BadInput
from inference_planner.files import json_setting

NONE = "none"
PIECEWISE = "piecewise"
FULL = "full"
# CompilationMode: name -> number
MODES = {"NONE": 0, "STOCK_TORCH_COMPILE": 1, "DYNAMO_TRACE_ONCE": 2, "VLLM_COMPILE": 3}
# CUDAGraphMode: name -> graphs of steps in which every request decodes, and of mixed steps
GRAPH_MODES = {
    "NONE": (NONE, NONE),
    "PIECEWISE": (PIECEWISE, PIECEWISE),
    "FULL": (FULL, FULL),
    "FULL_DECODE_ONLY": (FULL, NONE),
    "FULL_AND_PIECEWISE": (FULL, PIECEWISE),
}
COMPUTED = ("mode", "cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
# Where files are written: no effect on memory or speed
HARMLESS = ("debug_dump_path", "cache_dir", "compile_cache_save_format")
MOST_SIZES = 4096
MOST_TOKENS = 1 << 24
REMEDY = """Give vLLM's JSON, such as '{"cudagraph_mode": "PIECEWISE"}', or --compilation-config.FIELD=VALUE."""


@dataclass(frozen=True)
class Compilation:
    """The compilation settings of a deployment.

    Attributes:
        config: JSON as vLLM takes it; "" for vLLM's default.
        compiles: the model is compiled.
        decode_graphs: NONE, PIECEWISE or FULL, for steps in which every request decodes.
        mixed_graphs: the same for steps that prefill.
        capture_sizes: tokens of the steps that get a graph; empty for vLLM's own.
        most_graph_tokens: the largest of vLLM's own; None for its default.
        not_computed: fields that may have an effect that no formula has.
    """

    config: str = ""
    compiles: bool = True
    decode_graphs: str = FULL
    mixed_graphs: str = PIECEWISE
    capture_sizes: tuple[int, ...] = ()
    most_graph_tokens: int | None = None
    not_computed: tuple[str, ...] = ()

    @property
    def is_default(self) -> bool:
        """True if the settings change nothing that a plan knows."""
        return replace(self, config="") == DEFAULT_COMPILATION


DEFAULT_COMPILATION = Compilation()


def checked(config: str | Mapping[str, Any] | None, most: int | None = None) -> Compilation:
    """Return what a --compilation-config means.

    Args:
        config: JSON as vLLM takes it, or an object.
        most: --max-cudagraph-capture-size, which is a field of it.

    Raises BadInput: it is neither, or has a value that vLLM refuses.
    """
    if not config and most is None:
        return DEFAULT_COMPILATION
    fields = json_setting("compilation_config", config or {}, REMEDY)
    if most is not None:
        fields = {**fields, "max_cudagraph_capture_size": most}
    mode = _mode(fields.get("mode"))
    decode_graphs, mixed_graphs = _graphs(fields.get("cudagraph_mode"), mode)
    has_graphs = (decode_graphs, mixed_graphs) != (NONE, NONE)
    sizes, most = _sizes(fields, has_graphs)
    return Compilation(
        config=json.dumps(fields),
        compiles=mode != MODES["NONE"],
        decode_graphs=decode_graphs,
        mixed_graphs=mixed_graphs,
        capture_sizes=sizes,
        most_graph_tokens=most,
        not_computed=tuple(name for name in fields if name not in COMPUTED + HARMLESS),
    )


def _mode(value: Any) -> int:
    """Return the number of a CompilationMode. Raises BadInput: there is no such mode."""
    if value is None:
        return MODES["VLLM_COMPILE"]
    if isinstance(value, str) and value.upper() in MODES:
        return MODES[value.upper()]
    if isinstance(value, int) and not isinstance(value, bool) and value in MODES.values():
        return value
    choices = ", ".join(f"{number} ({name})" for name, number in MODES.items())
    raise BadInput(f"The compilation mode {str(value)[:40]!r} is not known.", f"Give {choices}.")


def _graphs(value: Any, mode: int) -> tuple[str, str]:
    """Return the graphs of decoding and mixed steps; without vLLM's compilation none in pieces.

    Raises BadInput: there is no such mode.
    """
    if value is None:
        value = "FULL_AND_PIECEWISE"
    if not isinstance(value, str) or value.upper() not in GRAPH_MODES:
        raise BadInput(
            f"The cudagraph_mode {str(value)[:40]!r} is not known.",
            f"Choose from: {', '.join(GRAPH_MODES)}.",
        )
    decode_graphs, mixed_graphs = GRAPH_MODES[value.upper()]
    if mode != MODES["VLLM_COMPILE"]:
        decode_graphs = NONE if decode_graphs == PIECEWISE else decode_graphs
        mixed_graphs = NONE if mixed_graphs == PIECEWISE else mixed_graphs
    return decode_graphs, mixed_graphs


def _sizes(fields: Mapping[str, Any], has_graphs: bool) -> tuple[tuple[int, ...], int | None]:
    """Return the sizes to capture, and the largest of vLLM's own.

    Raises BadInput: a size is no whole number above 0, no size is given, or the two contradict each
    other.
    """
    sizes = fields.get("cudagraph_capture_sizes")
    most = fields.get("max_cudagraph_capture_size")
    listed: list[Any] = []
    if sizes is not None:
        if not isinstance(sizes, list) or not all(map(_is_size, cast("list[Any]", sizes))):
            shown = json.dumps(sizes)[:80]
            raise BadInput(
                f"cudagraph_capture_sizes is {shown}.",
                "Give a list of tokens, each a whole number from 1 on, such as [1, 2, 4, 8].",
            )
        listed = cast("list[Any]", sizes)
        if has_graphs and not 1 <= len(listed) <= MOST_SIZES:
            raise BadInput(
                f"cudagraph_capture_sizes has {len(listed)} sizes.",
                f'Give 1 to {MOST_SIZES}; for none, "cudagraph_mode": "NONE".',
            )
    if most is not None and not _is_size(most):
        raise BadInput(
            f"max_cudagraph_capture_size is {str(most)[:40]}.",
            'Give a whole number from 1 on; for no graphs, "cudagraph_mode": "NONE".',
        )
    captured: tuple[int, ...] = tuple(sorted(set(listed)))
    if captured and most is not None and most != captured[-1]:
        raise BadInput(
            f"max_cudagraph_capture_size {most} is not the largest of cudagraph_capture_sizes "
            f"({captured[-1]}).",
            "Give one of the two.",
        )
    return captured, most


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_TOKENS
