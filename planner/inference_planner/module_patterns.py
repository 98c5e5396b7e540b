"""Find the modules that a quantization config leaves in 16 bit.

It names them by full name, prefix, suffix, glob or `re:` pattern.
"""

import fnmatch
import math
import re
import time
from itertools import accumulate

from inference_planner.errors import BadInput

LONGEST_SEARCH_S = (
    2.0  # processor time for all modules of a model; real lists take some milliseconds
)
LONGEST_PATTERN = 1000  # characters
NAME_LENGTH = 60  # characters of a module's name, about
MOST_WAYS = 6_000_000  # to match one name, all of which a search that finds nothing may try
# Fused modules of vLLM and the names that checkpoints (and their ignore lists) use for the parts.
PARTS = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "self_attn.fused_qkv_a_proj": ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
    "mlp.shared_experts.gate_up_proj": (
        *(
            "mlp.shared_experts.gate_proj",
            "mlp.shared_experts.up_proj",
            "mlp.shared_expert.gate_proj",
        ),
    ),
    "mlp.shared_experts.down_proj": ("mlp.shared_expert.down_proj",),
    "mamba.in_proj": ("linear_attn.in_proj_qkv",),
    "mamba.out_proj": ("linear_attn.out_proj",),
}


def is_searchable(pattern: str) -> bool:
    """Return True for a regular expression that is valid and cannot be searched for hours."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    plain = re.sub(r"\\.", "x", pattern, flags=re.DOTALL)
    plain = re.sub(r"\[\^?\]?[^\]]*\]", "x", plain)
    plain = plain.replace("(?:", "(")
    repeated_groups = len(re.findall(r"\)[*+{]", plain))
    simple_groups = len(re.findall(r"\([^()*+?{|]*\)[*+{]", plain))
    return repeated_groups == simple_groups and _ways(plain) <= MOST_WAYS


def _ways(plain: str) -> int:
    """Return about how many ways there are to match a name with an expression.

    The expression has no repeated choices.
    """
    repetitions = len(re.findall(r"[*+{]", plain))
    optional = len(re.findall(r"(?<![(*+}?])\?", plain))
    ways = math.comb(NAME_LENGTH, min(repetitions, NAME_LENGTH // 2)) * 2**optional
    alternatives = [1]  # of each open group
    for letter in plain:
        if letter == "(":
            alternatives.append(1)
        elif letter == "|":
            alternatives[-1] += 1
        elif letter == ")" and len(alternatives) > 1:
            ways *= alternatives.pop()
    return ways * alternatives[0]


class ModulePatterns:
    """The patterns of one config, each compiled once."""

    def __init__(self, patterns: tuple[str, ...]):
        self._names = {pattern for pattern in patterns if not re.search(r"[*?\[]", pattern)}
        self._expressions = [
            re.compile(pattern[3:]) for pattern in patterns if pattern.startswith("re:")
        ]
        globs = [p for p in patterns if p not in self._names and not p.startswith("re:")]
        # Gemma 4: experts are beside its MLP
        self._globs_of_mlp = [re.compile(fnmatch.translate(p)) for p in globs if p.endswith("mlp*")]
        self._globs = [re.compile(fnmatch.translate(p)) for p in globs if not p.endswith("mlp*")]
        self._known: dict[tuple[int, str], bool] = {}
        self._spent_s = 0.0

    def match(self, layer: int, name: str) -> bool:
        """Return True where one of the patterns means this module of a layer."""
        key = (layer, name)
        if key not in self._known:
            self._known[key] = any(
                self._match(f"model.layers.{layer}.{part}", name.startswith("mlp.experts"))
                for part in (name, *PARTS.get(name, ()))
            )
        return self._known[key]

    def _match(self, name: str, is_expert: bool) -> bool:
        parts = name.split(".")
        prefixes = accumulate(parts, lambda before, part: f"{before}.{part}")
        suffixes = accumulate(reversed(parts), lambda after, part: f"{part}.{after}")
        if any(part in self._names for part in (*prefixes, *suffixes)):
            return True
        patterns = [*self._expressions, *self._globs]
        if not is_expert:
            patterns += self._globs_of_mlp
        return any(self._search(pattern, name) for pattern in patterns)

    def _search(self, pattern: re.Pattern[str], name: str) -> bool:
        began_s = time.thread_time()
        matches = pattern.match(name) is not None
        self._spent_s += time.thread_time() - began_s
        if self._spent_s > LONGEST_SEARCH_S:
            problem = (
                "The quantization_config names its modules by "
                "patterns that take too long to search."
            )
            raise BadInput(problem, "Give the config.json as the model's authors published it.")
        return matches
