"""Find the modules that a quantization config names by full name, prefix, suffix, glob or `re:`."""

import fnmatch
import re

MAGIC = re.compile(r"[*?\[]")  # what makes a name a pattern
# Fused modules of vLLM and the names that checkpoints (and their ignore lists) use for the parts.
PARTS = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "self_attn.fused_qkv_a_proj": ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
    "mlp.shared_experts.gate_up_proj": (
        "mlp.shared_experts.gate_proj",
        "mlp.shared_experts.up_proj",
        "mlp.shared_expert.gate_proj",
    ),
    "mlp.shared_experts.down_proj": ("mlp.shared_expert.down_proj",),
    "mamba.in_proj": ("linear_attn.in_proj_qkv",),
    "mamba.out_proj": ("linear_attn.out_proj",),
}


class ModulePatterns:
    """The patterns of one config, compiled once: all globs as one expression."""

    def __init__(self, patterns: tuple[str, ...]):
        self._names = {pattern for pattern in patterns if not MAGIC.search(pattern)}
        # Not joined: each may have groups and flags of its own.
        expressions = [re.compile(pattern[3:]) for pattern in patterns if pattern.startswith("re:")]
        globs = [p for p in patterns if p not in self._names and not p.startswith("re:")]
        # Gemma 4: experts are beside its MLP
        globs_of_experts = [glob for glob in globs if not glob.endswith("mlp*")]
        self._beginnings = _beginnings(globs)
        self._beginnings_of_experts = _beginnings(globs_of_experts)
        self._expressions = [*expressions, *_joined(globs)]
        self._expressions_of_experts = [*expressions, *_joined(globs_of_experts)]

    def match(self, layer: int, name: str) -> bool:
        """Return True where one of the patterns means this module of a layer."""
        is_expert = name.startswith("mlp.experts")
        for part in (name, *PARTS.get(name, ())):
            if self._match(f"model.layers.{layer}.{part}", is_expert):
                return True
        return False

    def _match(self, name: str, is_expert: bool) -> bool:
        if not self._names.isdisjoint(_prefixes_and_suffixes(name)):
            return True
        beginnings = self._beginnings
        expressions = self._expressions
        if is_expert:
            beginnings = self._beginnings_of_experts
            expressions = self._expressions_of_experts
        if name.startswith(beginnings):
            return True
        return any(expression.match(name) for expression in expressions)


def _prefixes_and_suffixes(name: str) -> list[str]:
    """Return every run of a name's parts that is at its beginning or its end."""
    names = [name]
    for place, letter in enumerate(name):
        if letter == ".":
            names += (name[:place], name[place + 1 :])
    return names


def _beginnings(globs: list[str]) -> tuple[str, ...]:
    """Return the beginnings of names that globs such as `model.layers.0*` mean."""
    return tuple(glob[:-1] for glob in globs if _is_beginning(glob))


def _is_beginning(glob: str) -> bool:
    return glob.endswith("*") and not MAGIC.search(glob[:-1])


def _joined(globs: list[str]) -> list[re.Pattern[str]]:
    """Return one expression that matches what any of the other globs matches; none without any."""
    others = [fnmatch.translate(glob) for glob in globs if not _is_beginning(glob)]
    return [re.compile("|".join(others))] if others else []
