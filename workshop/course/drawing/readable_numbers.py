"""Numbers as people read them: bytes, times, shares. Pure."""

import math

from inference_planner.catalog.gpus import GIB, MIB


def number(value: float) -> str:
    """Return a number as axes and labels show it: with at least three digits and commas.

    Large numbers are rounded to whole ones: 202.5 is 203.
    """
    if 0 < value < 0.001:
        return "<0.001"
    if abs(value) >= 100:
        return f"{math.floor(value + 0.5):,}"
    return f"{value:.3g}"


def figure_of(value: float | None) -> str:
    """Return a whole number with commas, another with two decimals, and a dash for an unknown one."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}"


def counted(n: int, what: str) -> str:
    """Return how many there are: 1 token, 8,192 tokens."""
    if n == 1:
        return f"{n:,} {what}"
    return f"{n:,} {what}s"


def size(count: float) -> str:
    """Return bytes in the largest binary unit that leaves at least 1: 128 KiB, 22.8 MiB."""
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}".replace(".0 ", " ")
    return f"{count:,.0f} bytes"


def gib(count: float) -> str:
    """Return bytes in GiB; from 100 on without a decimal."""
    if count >= 100 * GIB:
        return f"{count / GIB:,.0f} GiB"
    return f"{count / GIB:.1f} GiB"


def duration(us: float) -> str:
    """Return microseconds in µs, ms or s."""
    if us >= 1e6:
        return f"{us / 1e6:,.2f} s"
    if us >= 1e3:
        return f"{us / 1e3:,.2f} ms"
    return f"{us:,.0f} µs"


def percent(p: float) -> str:
    """Return a probability as people read it: 31 %, 4.2 %, 0.03 %, < 0.01 %."""
    if p >= 0.9995:
        return "100 %"
    if p >= 0.0995:
        return f"{100 * p:.0f} %"
    if p >= 0.00995:
        return f"{100 * p:.1f} %"
    if p >= 0.000095:
        return f"{100 * p:.2f} %"
    if p > 0:
        return "< 0.01 %"
    return "0 %"
