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
        self._expressions = [*expressions, *_joined(globs)]
        self._expressions_of_experts = [*expressions, *_joined(globs_of_experts)]

    def match(self, layer: int, name: str) -> bool:
        """Return True where one of the patterns means this module of a layer."""
        expressions = self._expressions
        if name.startswith("mlp.experts"):
            expressions = self._expressions_of_experts
        for part in (name, *PARTS.get(name, ())):
            module = f"model.layers.{layer}.{part}"
            if not self._names.isdisjoint(_prefixes_and_suffixes(module)):
                return True
            if any(expression.match(module) for expression in expressions):
                return True
        return False


def _prefixes_and_suffixes(name: str) -> list[str]:
    """Return every run of a name's parts that is at its beginning or its end."""
    names = [name]
    for place, letter in enumerate(name):
        if letter == ".":
            names += (name[:place], name[place + 1 :])
    return names


def _joined(globs: list[str]) -> list[re.Pattern[str]]:
    """Return one expression that matches what any of the globs matches; none without any."""
    return [re.compile("|".join(map(fnmatch.translate, globs)))] if globs else []
