"""`tune --kwh-price`: electricity beside, or without, the hire of the GPUs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from workshop.cli import group
from workshop.errors import BadInput
from workshop.simulate import choices as tuning

# two GPUs of 350 W that write 1,000 tokens/s: 0.7 J a token, 0.7 MJ for a million, and 3.6 MJ are a kWh
TWO_GPUS = SimpleNamespace(gpus=2, tokens_per_s=1000.0)
KWH = 0.7 / 3.6


def choice(price: float | None, power: tuning.Power | None) -> tuning.Choice:
    return tuning.Choice({}, TWO_GPUS, price, power)


def test_electricity_is_the_watts_of_all_gpus_for_as_long_as_a_million_tokens_take():
    owned = choice(None, tuning.Power(usd_per_kwh=0.20, watts_per_gpu=350))
    assert owned.kwh_per_million_tokens == pytest.approx(KWH)
    assert owned.usd_per_million_tokens == pytest.approx(0.20 * KWH)


def test_hire_and_electricity_add_up():
    # 2 GPUs at 2.50 dollars an hour are 5 dollars for 3.6 million tokens
    both = choice(2.5, tuning.Power(usd_per_kwh=0.20, watts_per_gpu=350))
    assert both.usd_per_million_tokens == pytest.approx(5 / 3.6 + 0.20 * KWH)


def test_the_price_of_a_gpu_hour_alone_means_what_it_meant():
    hired = choice(2.5, None)
    assert hired.usd_per_million_tokens == pytest.approx(5 / 3.6)
    assert hired.kwh_per_million_tokens is None
    assert choice(None, None).usd_per_million_tokens is None


@pytest.mark.parametrize(
    ("kwh_price", "watts", "message"),
    [
        (0.2, None, "need each other"),
        (None, 350, "need each other"),
        (-0.2, 350, "numbers above 0"),
        (0.2, float("nan"), "numbers above 0"),
        (float("inf"), 350, "numbers above 0"),
    ],
)
def test_half_a_price_or_an_impossible_one_is_refused(kwh_price, watts, message):
    with pytest.raises(BadInput, match=message):
        tuning.power_of(kwh_price, watts)


def test_the_command_refuses_a_price_without_watts_before_it_simulates():
    load = ["--gpu", "h100", "--rate", "1", "--seconds", "1", "--slo", "ttft=500ms"]
    result = CliRunner().invoke(group, ["tune", "llama-3.1-8b", *load, "--kwh-price", "0.2"])
    assert isinstance(result.exception, BadInput)
    assert "--kwh-price and --watts need each other" in str(result.exception)
