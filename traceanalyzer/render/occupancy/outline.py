"""An occupancy in words: the largest allocations at the peak, as a table."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from traceanalyzer.render.text import prose, shorten, visible
from traceanalyzer.units import format_bytes, format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.render.occupancy.layout import Layout

_ROWS, _CHARS = 20, 90
_HEADS = (
    ("size", True),
    ("of the peak", True),
    ("category", False),
    ("there", False),
    ("where", False),
)


def outline(layout: Layout) -> str:
    """The 20 largest boxes at the peak, HTML; shown where no script folds it away."""
    there = np.flatnonzero(layout.at_peak)
    ranked = there[np.argsort(-layout.size[there], kind="stable")]
    at = int(np.searchsorted(layout.event, layout.peak_event, side="right")) - 1
    peak = int(layout.live[at]) if at >= 0 else 0
    rows = [_row(layout, int(box), peak) for box in ranked[:_ROWS]]
    if not rows:
        return '<p class="soft">No allocation with a box of its own is there at the peak.</p>'
    title = f"The {len(rows)} largest allocations at the peak" if len(rows) > 1 else "At the peak"
    heads = "".join(f'<th scope="col"{_class(number)}>{name}</th>' for name, number in _HEADS)
    left = len(ranked) - len(rows)
    more = f'<p class="soft">{left:,} smaller ones are not listed.</p>' if left else ""
    return (
        f'<details class="occupancy-text" open><summary>{title}</summary>\n'
        f'<div class="scroll" role="region" aria-label="{title}" tabindex="0"><table>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n"
        + "\n".join(rows)
        + f"\n</tbody></table></div>{more}</details>"
    )


def _row(layout: Layout, box: int, peak: int) -> str:
    row = layout.boxes.row(box, named=True)
    size = int(layout.size[box])
    label = visible(row["label"] or "")
    short = shorten(label, _CHARS)
    full = f' title="{escape(shorten(label, 300))}"' if short != label else ""
    texts = (
        (format_bytes(size), _class(number=True)),
        (format_frac(size / peak) if peak else "", _class(number=True)),
        (prose(row["category"] or ""), ""),
        (_lifetime(layout, box, row["start_ns"], row["end_ns"]), ""),
        (short, full),
    )
    return f"<tr>{''.join(f'<td{extra}>{escape(text)}</td>' for text, extra in texts)}</tr>"


def _lifetime(layout: Layout, box: int, start_ns: int | None, end_ns: int | None) -> str:
    """From when to when, and how long, in time where it is known, else in events."""
    start, end = int(layout.start[box]), int(layout.end[box])
    before, stays = start == 0, end >= layout.events
    if before and stays:
        return "always"
    if before:
        return f"from before, until {_at(layout, end, end_ns)}"
    since = _at(layout, start, start_ns)
    if stays:
        return f"from {since}, stays"
    if layout.time is None or start_ns is None or end_ns is None:
        return f"from {since} for {end - start:,} events"
    return f"from {since} for {format_ns(end_ns - start_ns)}"


def _at(layout: Layout, event: int, time_ns: int | None) -> str:
    if layout.time is None or time_ns is None:
        return f"event {event:,}"
    return format_ns(time_ns - layout.origin_ns)


def _class(number: bool) -> str:
    return ' class="number"' if number else ""
