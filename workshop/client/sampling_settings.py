"""The sampling parameters, by vLLM's names and under vLLM's rules. Pure.

`Settings` holds those that shape the distribution of one token. `PARAMETERS` lists all that a
request may carry: the batch reads its fields from it, and `workshop batch` its options.

Source: vLLM 0.32, sampling_params.py and entrypoints/openai/*/protocol.py.
"""

from __future__ import annotations

import math
from dataclasses import Field, asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from workshop.errors import BadInput

LOWEST_TEMPERATURE = 0.01  # vLLM raises anything between 0 and this to this, against overflow


class ParameterLimits(NamedTuple):
    """The values that a parameter takes, from `low` (or only above it) to `high`, and in words."""

    low: float
    high: float
    above_low: bool
    description: str


def _parameter(
    default: float, low: float, high: float, description: str, help: str, above: bool = False
) -> Any:
    """Return a field of `Settings` with its limits and the help text of its command-line option.

    Any, as `dataclasses.field` itself: the annotation of the field says its type.
    """
    metadata = {"limits": ParameterLimits(low, high, above, description), "help": help}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """One set of sampling parameters; the defaults are vLLM's, all off but temperature 1.

    Raises BadInput: a value that vLLM refuses; the sentence says what it takes, and the nearest
    that it takes.
    """

    temperature: float = _parameter(
        1.0, 0.0, 2.0, "0 (greedy) to 2; most people use 0.2 to 1", "0 is greedy."
    )
    top_k: int = _parameter(
        0,
        -1,
        math.inf,
        "a whole number of tokens; 0 and -1 switch it off",
        "This many most probable tokens.",
    )
    top_p: float = _parameter(
        1.0,
        0.0,
        1.0,
        "more than 0 and at most 1 (off); most people use 0.9 to 0.95",
        "Most probable tokens up to this sum.",
        above=True,
    )
    min_p: float = _parameter(
        0.0,
        0.0,
        1.0,
        "0 (off) to 1; most people use 0.02 to 0.1",
        "Tokens at least this probable, relative to the most probable.",
    )
    frequency_penalty: float = _parameter(0.0, -2.0, 2.0, "-2 to 2; 0 is off", "-2 to 2.")
    presence_penalty: float = _parameter(0.0, -2.0, 2.0, "-2 to 2; 0 is off", "-2 to 2.")
    repetition_penalty: float = _parameter(
        1.0,
        0.0,
        math.inf,
        "more than 0; 1 is off; most people use 1.05 to 1.2",
        "More than 0; 1 is off.",
        above=True,
    )
    min_tokens: int = _parameter(
        0, 0, math.inf, "a whole number of tokens, 0 or more", "Shortest answer, in tokens."
    )

    def __post_init__(self) -> None:
        for parameter in fields(self):
            value = getattr(self, parameter.name)
            _check(parameter.name, value, _number_type(parameter), parameter.metadata["limits"])

    @property
    def greedy(self) -> bool:
        """True if the most probable token is always taken, without a random draw."""
        return self.temperature == 0

    def without(self, *names: str) -> Settings:
        """Return these settings with some parameters switched off."""
        return replace(self, **{name: getattr(DEFAULTS, name) for name in names})

    def request(self) -> dict[str, float | int]:
        """Return what a request must say: parameters not at their defaults, and the temperature.

        The temperature is always said, because a model's generation_config.json may have another
        default.
        """
        parameters = {"temperature": self.temperature}
        for name, value in asdict(self).items():
            if value != getattr(DEFAULTS, name):
                parameters[name] = value
        return parameters


def _number_type(parameter: Field) -> type[int] | type[float]:
    """Return int or float, as a field's annotation says."""
    return int if parameter.type == "int" else float


def _check(
    name: str, value: object, kind: type[int] | type[float], limits: ParameterLimits
) -> None:
    """Raise BadInput unless vLLM takes this value."""
    low, high, above_low, description = limits
    takes = f"It takes {description}"
    is_number = isinstance(value, int if kind is int else int | float)
    if not is_number or isinstance(value, bool) or not math.isfinite(value):
        noun = "whole number" if kind is int else "number that vLLM takes"
        raise BadInput(f"{name} is {value!r}, which is no {noun}.", f"{takes}.")
    if low < value <= high or (value == low and not above_low):
        return
    if value > high:
        nearest = f"the nearest is {high:g}"
    elif not above_low:
        nearest = f"the nearest is {low:g}"
    elif name == "top_p":  # there is no smallest number above 0: name what may have been meant
        nearest = "top_k=1 keeps only the most probable token"
    else:
        nearest = "1 switches it off"
    raise BadInput(f"{name} is {value!r}, which vLLM refuses.", f"{takes}; {nearest}.")


DEFAULTS = Settings()


@dataclass(frozen=True)
class Parameter:
    """A sampling parameter of a request.

    Without `kind` it has no command-line option of its own. chat_only: vLLM knows it in requests
    with messages, and passes over it without a word in those with a prompt. limits: the numbers
    that vLLM takes; None: they are not known, or depend on the model.
    """

    kind: type[int] | type[float] | None = None
    help: str = ""
    chat_only: bool = False
    limits: ParameterLimits | None = None


def _at_least(least: int) -> ParameterLimits:
    """Return the limits of a whole number that has no highest value."""
    return ParameterLimits(least, math.inf, False, f"a whole number, {least} or more")


def check_value(name: str, value: object) -> None:
    """Raise BadInput if vLLM refuses this value of a sampling parameter in every request."""
    parameter = PARAMETERS[name]
    of_a_chat = name == "logprobs" and isinstance(value, bool)  # there it is true or false
    if parameter.limits is not None and not of_a_chat:
        _check(name, value, parameter.kind or int, parameter.limits)


def _of_settings(*names: str) -> dict[str, Parameter]:
    """Return the parameters that are fields of `Settings`: those named, or all others in order."""
    parameters = {}
    for setting in fields(Settings):
        metadata = setting.metadata
        parameters[setting.name] = Parameter(
            _number_type(setting), metadata["help"], limits=metadata["limits"]
        )
    return {name: parameters[name] for name in names or parameters}


# Every sampling parameter of a request, in the order of the command line's options. Fields of
# vLLM's requests that are part of the content (tools, documents, suffix) are not among them: a
# table may have columns of these names.
PARAMETERS: dict[str, Parameter] = {
    "max_tokens": Parameter(
        int,
        "Longest answer, in tokens (the server's default is 16 for completions).",
        limits=_at_least(0),  # with `echo` 0 is the prompt alone
    ),
    **_of_settings("min_tokens", "temperature", "top_p"),
    **_of_settings(),
    "seed": Parameter(int, "Of every request."),
    "logprobs": Parameter(
        int, "Logprobs of this many alternatives for each token.", limits=_at_least(-1)
    ),
    "prompt_logprobs": Parameter(int, "The same for the prompt's tokens.", limits=_at_least(-1)),
    "stop": Parameter(),
    "stop_token_ids": Parameter(),
    "bad_words": Parameter(),
    "include_stop_str_in_output": Parameter(),
    "ignore_eos": Parameter(),
    "n": Parameter(limits=_at_least(1)),
    "skip_special_tokens": Parameter(),
    "spaces_between_special_tokens": Parameter(),
    "truncate_prompt_tokens": Parameter(),
    "logit_bias": Parameter(),
    "allowed_token_ids": Parameter(),
    "add_special_tokens": Parameter(),
    "return_tokens_as_token_ids": Parameter(),
    "return_token_ids": Parameter(),
    "structured_outputs": Parameter(),
    "response_format": Parameter(),
    "priority": Parameter(),
    "echo": Parameter(),
    "logprob_token_ids": Parameter(),
    "repetition_detection": Parameter(),
    "thinking_token_budget": Parameter(),
    "truncation_side": Parameter(),
    "vllm_xargs": Parameter(),
    "top_logprobs": Parameter(chat_only=True),
    "max_completion_tokens": Parameter(chat_only=True),
    "reasoning_effort": Parameter(chat_only=True),
    "include_reasoning": Parameter(chat_only=True),
    "chat_template": Parameter(chat_only=True),
    "chat_template_kwargs": Parameter(chat_only=True),
    "add_generation_prompt": Parameter(chat_only=True),
    "continue_final_message": Parameter(chat_only=True),
}
