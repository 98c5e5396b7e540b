"""The sampling parameters that shape one token's distribution, by vLLM's names and under vLLM's rules. Pure.

Source: vLLM 0.32, sampling_params.py.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace

from workshop.errors import BadInput

LOWEST_TEMPERATURE = 0.01  # vLLM raises anything between 0 and this to this, against overflow


def _takes(default: float, low: float, high: float, says: str, above: bool = False):
    """A parameter from `low` (`above`: from above it) to `high`, and that in words."""
    return field(default=default, metadata={"limits": (low, high, above, says)})


@dataclass(frozen=True)
class Settings:
    """One set of sampling parameters; the defaults are vLLM's, and switch everything off but temperature 1.

    Raises BadInput: a value that vLLM refuses; the sentence says what it takes, and the nearest that it takes.
    """

    temperature: float = _takes(1.0, 0.0, 2.0, "0 (greedy) to 2; most people use 0.2 to 1")
    top_k: int = _takes(0, -1, math.inf, "a whole number of tokens; 0 and -1 switch it off")
    top_p: float = _takes(
        1.0, 0.0, 1.0, "more than 0 and at most 1 (off); most people use 0.9 to 0.95", above=True
    )
    min_p: float = _takes(0.0, 0.0, 1.0, "0 (off) to 1; most people use 0.02 to 0.1")
    frequency_penalty: float = _takes(0.0, -2.0, 2.0, "-2 to 2; 0 is off")
    presence_penalty: float = _takes(0.0, -2.0, 2.0, "-2 to 2; 0 is off")
    repetition_penalty: float = _takes(
        1.0, 0.0, math.inf, "more than 0; 1 is off; most people use 1.05 to 1.2", above=True
    )
    min_tokens: int = _takes(0, 0, math.inf, "a whole number of tokens, 0 or more")

    def __post_init__(self) -> None:
        for each in fields(self):
            _check(
                each.name, getattr(self, each.name), each.type == "int", *each.metadata["limits"]
            )

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
        given = {
            name: value for name, value in asdict(self).items() if value != getattr(DEFAULTS, name)
        }
        return {"temperature": self.temperature, **given}


def _check(
    name: str, value: object, whole: bool, low: float, high: float, open_below: bool, says: str
) -> None:
    kinds, called = (int, "whole number") if whole else (int | float, "number that vLLM takes")
    if (
        not isinstance(value, kinds)
        or isinstance(value, bool)
        or value != value
        or abs(value) == math.inf
    ):
        raise BadInput(f"{name} is {value!r}, which is no {called}.", f"It takes {says}.")
    if low < value <= high or (value == low and not open_below):
        return
    if value > high:
        nearest = f"the nearest is {high:g}"
    elif not open_below:
        nearest = f"the nearest is {low:g}"
    else:  # there is no smallest number above 0: name what may have been meant
        nearest = (
            "top_k=1 keeps only the most probable token" if name == "top_p" else "1 switches it off"
        )
    raise BadInput(f"{name} is {value!r}, which vLLM refuses.", f"It takes {says}; {nearest}.")


DEFAULTS = Settings()
