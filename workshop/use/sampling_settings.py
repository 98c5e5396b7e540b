"""The sampling parameters that shape one token's distribution, by vLLM's names and under vLLM's rules. Pure.

Source: vLLM 0.32, sampling_params.py.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from workshop.errors import BadInput

LOWEST_TEMPERATURE = 0.01  # vLLM raises anything between 0 and this to this, against overflow

_RANGES = (  # parameter, lowest, highest, the lowest itself is refused, in words
    ("temperature", 0.0, 2.0, False, "0 (greedy) to 2; most people use 0.2 to 1"),
    ("min_p", 0.0, 1.0, False, "0 (off) to 1; most people use 0.02 to 0.1"),
    ("frequency_penalty", -2.0, 2.0, False, "-2 to 2; 0 is off"),
    ("presence_penalty", -2.0, 2.0, False, "-2 to 2; 0 is off"),
    ("top_p", 0.0, 1.0, True, "more than 0 and at most 1 (off); most people use 0.9 to 0.95"),
    ("repetition_penalty", 0.0, math.inf, True, "more than 0; 1 is off; most people use 1.05 to 1.2"),
    ("top_k", -1, math.inf, False, "a whole number of tokens; 0 and -1 switch it off"),
    ("min_tokens", 0, math.inf, False, "a whole number of tokens, 0 or more"),
)
_WHOLE = ("top_k", "min_tokens")


@dataclass(frozen=True)
class Settings:
    """One set of sampling parameters; the defaults are vLLM's, and switch everything off but temperature 1.

    Raises BadInput: a value that vLLM refuses; the sentence says what it takes, and the nearest that it takes.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0

    def __post_init__(self) -> None:
        for name, *limits in _RANGES:
            _check(name, getattr(self, name), *limits)

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken without drawing lots."""
        return self.temperature == 0

    def without(self, *names: str) -> Settings:
        """Return these settings with some parameters switched off."""
        return replace(self, **{name: getattr(DEFAULTS, name) for name in names})

    def request(self) -> dict[str, float | int]:
        """Return what a request must say: every parameter that is not at its default, and the temperature.

        The temperature is always said, because a model's generation_config.json may have another default.
        """
        given = {name: value for name, value in asdict(self).items() if value != getattr(DEFAULTS, name)}
        return {"temperature": self.temperature, **given}


def _check(name: str, value: object, low: float, high: float, open_below: bool, says: str) -> None:
    kinds, called = (int, "whole number") if name in _WHOLE else (int | float, "number that vLLM takes")
    if not isinstance(value, kinds) or isinstance(value, bool) or value != value or abs(value) == math.inf:
        raise BadInput(f"{name} is {value!r}, which is no {called}.", f"It takes {says}.")
    if low < value <= high or (value == low and not open_below):
        return
    if value > high:
        nearest = f"the nearest is {high:g}"
    elif not open_below:
        nearest = f"the nearest is {low:g}"
    else:  # there is no smallest number above 0: name what may have been meant
        nearest = "top_k=1 keeps only the most probable token" if name == "top_p" else "1 switches it off"
    raise BadInput(f"{name} is {value!r}, which vLLM refuses.", f"It takes {says}; {nearest}.")


DEFAULTS = Settings()
