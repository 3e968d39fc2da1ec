"""Round numbers along the axes, and their words."""

from __future__ import annotations

import math

from traceanalyzer.units import format_bytes, format_ns


def byte_ticks(top: float, most: int = 6) -> list[tuple[float, str]]:
    """Sizes from 0 to ``top``, a power of two apart: round in binary units."""
    step = 2.0 ** max(math.ceil(math.log2(max(top, 1) / most)), 0)
    return [(at * step, format_bytes(at * step)) for at in range(int(top / step) + 1)]


def ticks(end: float, *, timed: bool, most: int = 12) -> list[tuple[float, str]]:
    """Times or events from 0 to ``end``, 1, 2 or 5 of a power of ten apart."""
    rough = max(end / most, 1)
    power = 10.0 ** math.floor(math.log10(rough) + 1e-9)
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= rough * (1 - 1e-9))
    places = [at * step for at in range(int(end / step + 1e-9) + 1)]
    if timed:
        return [(place, format_ns(place) if place else "0") for place in places]
    return [(place, f"{place:,.0f}") for place in places]
