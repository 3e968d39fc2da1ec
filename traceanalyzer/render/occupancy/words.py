"""What is said of a drawing: how much of the memory its boxes are, and its colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceanalyzer.render.occupancy import colors
from traceanalyzer.render.text import prose, shorten
from traceanalyzer.units import format_bytes, format_frac

if TYPE_CHECKING:
    from traceanalyzer.render.occupancy.layout import Ints, Layout
    from traceanalyzer.result import Occupancy

_CATEGORIES, _LABELS, _NAME_CHARS = 12, 6, 40


def drawn(occupancy: Occupancy, layout: Layout, chosen: Ints, *, bands: bool = False) -> str:
    """Which allocations have a box of their own, how much that is, and where the others are.

    Args:
        occupancy: what is drawn.
        layout: its arrays.
        chosen: the boxes that are drawn.
        bands: the other boxes are drawn as a band for each category.
    """
    count, boxes, rest = len(chosen), len(layout.size), bool(layout.rest.any())
    if not count:
        return "No allocation is drawn by itself."
    if count == boxes and not rest:
        return f"All {count:,} allocations are drawn one by one." if count > 1 else ""
    whole = layout.area.sum()
    part = layout.area[chosen].sum() / whole if whole else 1.0
    share = format_frac(part * occupancy.boxed_frac)
    one = "The largest allocation is" if count == 1 else f"The {count:,} largest allocations are"
    said = f"{one} drawn one by one: {share} of all bytes x events"
    grey = "; the rest is the grey band" if rest or not bands else ""
    return (
        f"{said}; smaller ones by category{grey}." if bands and count < boxes else f"{said}{grey}."
    )


def ranked(marks: pl.DataFrame) -> pl.DataFrame:
    """Marks in the order in which they get room for their labels: the peak, then by event."""
    return marks.sort(pl.col("kind") != "peak", "event", maintain_order=True)


def without_prefix(spans: pl.DataFrame) -> list[str]:
    """The spans' labels without the beginning that all have: ``7`` of ``ProfilerStep#7``."""
    labels = [label or "" for label in spans["label"].to_list()]
    if len(labels) < 2:
        return labels
    pairs = enumerate(zip(min(labels), max(labels), strict=False))
    shared = next((at for at, (one, other) in pairs if one != other), min(map(len, labels)))
    beginning = labels[0][:shared].rstrip("0123456789")
    return [label.removeprefix(beginning) or label for label in labels]


def legend(
    layout: Layout, fills: dict[str, int], chosen: Ints | None = None
) -> list[tuple[str, int]]:
    """Names and fills of the categories, or of the commonest labels, most bytes at peak first.

    Args:
        layout: what is drawn.
        fills: of categories.
        chosen: the boxes that are drawn one by one; without categories only they count, the others
            being part of the rest. Default: all.
    """
    boxes, every = layout.boxes, chosen is None or bool(fills)
    counted = np.ones(len(layout.size), np.bool_)
    if chosen is not None and not every:
        counted[np.setdiff1d(np.arange(len(layout.size)), chosen)] = False
    if fills:
        names = [name or "no category" for name in boxes["category"].to_list()]
        shades = {name: fills[name] + 1 if name in fills else colors.UNKNOWN for name in names}
    else:
        labels = boxes["label"].to_list()
        names = [name or "not known" for name in labels]
        shades = {n: colors.of_box(t, None, {}, 0) for n, t in zip(names, labels, strict=True)}
    held: dict[str, int] = {}
    most: dict[str, int] = {}
    for name, size, there in zip(
        names, layout.size.tolist(), layout.at_peak & counted, strict=True
    ):
        held[name] = held.get(name, 0) + (size if there else 0)
        most[name] = max(most.get(name, 0), size)
    ranked = sorted(held, key=lambda name: (-held[name], -most[name], name))
    shown = [name for name in ranked if held[name]] or ranked[:1]
    return [
        (f"{shorten(prose(name), _NAME_CHARS)} {format_bytes(held[name])}", shades[name])
        for name in shown[: _CATEGORIES if fills else _LABELS]
    ]


def summary(layout: Layout) -> str:
    """The peak and what was reserved, in a sentence."""
    if not len(layout.live):
        return "There is nothing to draw."
    at = max(int(np.searchsorted(layout.event, layout.peak_event, side="right")) - 1, 0)
    told = f"At the peak {format_bytes(int(layout.live[at]))} are live"
    most = layout.reserved[~np.isnan(layout.reserved)]
    return (
        f"{told}; at most {format_bytes(float(most.max()))} are reserved."
        if len(most)
        else f"{told}."
    )
