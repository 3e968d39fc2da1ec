"""Weights in words: samples, times and sizes, and what a tooltip says of a box."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceanalyzer.units import format_frac, format_weight

if TYPE_CHECKING:
    from traceanalyzer.render.flamegraph.layout import Box

_TOLD_MORE = 0.01


def share(value: float, of: float) -> str:
    """``value`` as a percentage ``of`` a sum; smaller than can be shown is said so."""
    frac = value / of if of else 0.0
    return "< 0.1 %" if 0 < frac < 0.0005 else format_frac(frac)


def told(box: Box, total: float, unit: str) -> str:
    """One line about a box: total, share of all and of the caller, self, base.

    The share of the caller is left to the viewer for the many boxes below 1 % of all, which
    make the size of the file.
    """
    parts = [f"{format_weight(box.total, unit)}, {share(box.total, total)} of all"]
    if box.parent and box.total >= _TOLD_MORE * total:
        parts.append(f"{share(box.total, box.parent.total)} of parent")
    if box.alone:
        parts.append(f"self {format_weight(box.alone, '' if unit == 'samples' else unit)}")
    if box.base is not None:
        parts.append(f"base {share(box.base, total)}")
    return ", ".join(parts)
