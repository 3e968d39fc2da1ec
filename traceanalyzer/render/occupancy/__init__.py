"""Memory over time by allocation: a figure for pages and a plot.

In: :class:`traceanalyzer.drawings.Occupancy`. ``layout`` computes the position of each allocation
in the stack, ``labels`` fills, ticks and sentences. ``drawing`` draws them on the axes of a plot. A
page gets a table that is readable without scripts and the data for the viewer (``memory.js``,
``format.js``, ``stage.js``, ``segments.js``, ``viewer.js``): columns of integers, each text and
frame once, ascending columns as differences, stacks as paths of one prefix tree. Only
:mod:`traceanalyzer.render` imports this package.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer.drawings import Occupancy
from traceanalyzer.render import pieces
from traceanalyzer.render.occupancy import layout as labels
from traceanalyzer.render.occupancy.layout import Layout, lay_out
from traceanalyzer.render.pieces import cell, differences, escaped
from traceanalyzer.render.text import prose, shorten, visible
from traceanalyzer.units import format_bytes, format_frac, format_ns

_ROWS, _CHARS = 20, 90
_HEADS = (
    ("size", True),
    ("share of peak", True),
    ("category", False),
    ("lifetime", False),
    ("code", False),
)
_TEXT_CHARS = 300
_SEGMENTS, _BLOCKS = 1_000, 12_000  # most segments and blocks in a page, largest first

#: Script and style of the drawing.
VIEWER = pieces.Viewer(
    "traceanalyzer.render",
    (
        "charts/elements",
        "occupancy/memory",
        "occupancy/format",
        "occupancy/stage",
        "occupancy/segments",
        "occupancy/viewer",
    ),
    sheet="occupancy/viewer",
)


def inline(occupancy: Occupancy, key: str) -> str:
    """Return the figure for a page with the style and, at its end, the script of the viewer.

    Args:
        occupancy: the occupancy.
        key: prefix of its ids, unique on the page.
    """
    layout = lay_out(occupancy)
    every = np.arange(len(layout.size))
    summary = f"{labels.summary(layout)} {labels.coverage(occupancy, layout, every)}"
    subtitle = f'<p class="soft">{escaped(occupancy.subtitle)}</p>\n' if occupancy.subtitle else ""
    content = (
        f'<h2 id="{key}-title">{escaped(occupancy.title)}</h2>\n{subtitle}'
        f'<p class="soft" id="{key}-summary">{escaped(summary)}</p>\n'
    )
    if len(layout.live):
        content += pieces.drawn(_outline(layout), pieces.pack(_data(occupancy, layout)))
    return pieces.figure("occupancy", key, content)


# --- content without scripts -------------------------------------------------------------------


def _outline(layout: Layout) -> str:
    """Return the 20 largest boxes at the peak as HTML, which the viewer collapses."""
    live = np.flatnonzero(layout.at_peak)
    ranked = live[np.argsort(-layout.size[live], kind="stable")]
    at = int(np.searchsorted(layout.event, layout.peak_event, side="right")) - 1
    peak = int(layout.live[at]) if at >= 0 else 0
    rows = [_row(layout, int(box), peak) for box in ranked[:_ROWS]]
    if not rows:
        return '<p class="soft">No allocation with its own box is live at the peak.</p>'
    title = (
        f"The {len(rows)} largest allocations at the peak"
        if len(rows) > 1
        else "Allocation at the peak"
    )
    left = len(ranked) - len(rows)
    more = f'<p class="soft">{left:,} smaller ones are not listed.</p>' if left else ""
    return (
        f'<details class="occupancy-text" open><summary>{title}</summary>\n'
        f"{pieces.table(title, _HEADS, rows)}{more}</details>"
    )


def _row(layout: Layout, box: int, peak: int) -> list[str]:
    row = layout.boxes.row(box, named=True)
    size = int(layout.size[box])
    label = visible(row["label"] or "")
    short = shorten(label, _CHARS)
    return [
        cell(format_bytes(size), number=True),
        cell(format_frac(size / peak) if peak else "", number=True),
        cell(prose(row["category"] or "")),
        cell(_lifetime(layout, row)),
        cell(short, full=shorten(label, _TEXT_CHARS) if short != label else ""),
    ]


def _lifetime(layout: Layout, row: dict[str, Any]) -> str:
    """Return start and duration of an allocation, in time if known, else in events."""
    start, end, start_ns, end_ns = (row[key] for key in ("start", "end", "start_ns", "end_ns"))
    before, stays = start == 0, end >= layout.events
    if before and stays:
        return "always"
    if before:
        return f"from before, until {format_ns(end_ns) or f'event {end:,}'}"
    since = format_ns(start_ns) or f"event {start:,}"
    if stays:
        return f"from {since}, stays"
    if start_ns is None or end_ns is None:
        return f"from {since} for {end - start:,} events"
    return f"from {since} for {format_ns(end_ns - start_ns)}"


# --- data of the viewer ------------------------------------------------------------------------


def _data(occupancy: Occupancy, layout: Layout) -> dict[str, Any]:
    """Return the data that the viewer needs, for JSON."""
    texts = _Texts()
    kept = _kept(occupancy)
    short = labels.without_prefix(layout.spans)
    blocks = occupancy.blocks.filter(pl.col("segment").is_in(kept["id"].to_list()))
    used = pl.concat([layout.boxes["stack"], blocks["stack"]]).drop_nulls().unique().to_list()
    fills = labels.category_fills(layout.boxes["category"].drop_nulls())
    return {
        "events": occupancy.events,
        "span": layout.end_time if layout.time is not None else None,
        "peak": layout.peak_event,
        "boxes": _boxes(layout, texts, fills),
        "levels": _levels(layout),
        "marks": [
            [row["event"], row["time_ns"], row["kind"], texts.number(row["label"])]
            for row in layout.marks.iter_rows(named=True)
        ],
        "spans": [
            [
                *(row[key] for key in ("start", "end", "start_ns", "end_ns")),
                *texts.numbers([row["label"], label]),
            ]
            for row, label in zip(layout.spans.iter_rows(named=True), short, strict=True)
        ],
        "segments": _segments(occupancy, kept, texts),
        "blocks": _blocks(blocks, kept, texts),
        **_stacks(occupancy.stacks, set(used), texts),
        "fills": [labels.LIGHT, labels.DARK],
        "grey": labels.REST,
        "legend": labels.legend(layout, fills),
        "texts": texts.texts,
    }


class _Texts:
    """Escaped texts by index."""

    def __init__(self) -> None:
        self.known: dict[str | None, int] = {}
        self.texts: list[str] = []

    def number(self, text: str | None) -> int:
        if text is None:
            return -1
        if text not in self.known:
            self.known[text] = len(self.texts)
            self.texts.append(shorten(visible(text), _TEXT_CHARS))
        return self.known[text]

    def numbers(self, values: Iterable[str | None]) -> list[int]:
        return [self.number(value) for value in values]


def _boxes(layout: Layout, texts: _Texts, fills: dict[str, int]) -> dict[str, list[Any]]:
    boxes = layout.boxes
    names, categories = boxes["label"].to_list(), boxes["category"].to_list()
    pairs = zip(names, categories, strict=True)
    return {
        "start": differences(layout.start.tolist()),
        "length": (layout.end - layout.start).tolist(),
        "startTime": differences(boxes["start_ns"]),
        "endTime": differences(boxes["end_ns"]),
        "size": layout.size.tolist(),
        "stack": [-1 if stack is None else stack for stack in boxes["stack"]],
        "label": texts.numbers(names),
        "category": texts.numbers(categories),
        "fill": [labels.box_fill(*pair, fills, place) for place, pair in enumerate(pairs)],
    }


def _levels(layout: Layout) -> dict[str, list[Any]]:
    times = [] if layout.time is None else layout.time.astype("int64").tolist()
    return {
        "event": differences(layout.event.tolist()),
        "time": differences(times),
        "live": differences(layout.live.tolist()),
        "rest": differences(layout.rest.tolist()),
        "reserved": differences(layout.levels["reserved_bytes"]),
    }


def _kept(occupancy: Occupancy) -> pl.DataFrame:
    """Return the largest segments and the number of their blocks."""
    counts = occupancy.blocks.group_by("segment").agg(pl.len().alias("count"))
    segments = occupancy.segments.join(
        counts, left_on="id", right_on="segment", how="left", maintain_order="left"
    )
    ranked = segments.with_columns(pl.col("count").fill_null(0)).sort(
        "total_bytes", descending=True, maintain_order=True
    )
    return ranked.filter(pl.col("count").cum_sum() <= _BLOCKS).head(_SEGMENTS)


def _segments(occupancy: Occupancy, kept: pl.DataFrame, texts: _Texts) -> dict[str, Any]:
    every, blocks = occupancy.segments["total_bytes"], occupancy.blocks
    live = blocks.filter(state="live")["total_bytes"].sum()
    holes = blocks.filter(state="free")
    return {
        "size": kept["total_bytes"].to_list(),
        "address": [f"0x{address:x}" for address in kept["address"].to_list()],
        "label": texts.numbers(kept["label"].to_list()),
        "all": [len(every), every.sum(), live, holes.height, holes["total_bytes"].max() or 0],
    }


def _blocks(blocks: pl.DataFrame, kept: pl.DataFrame, texts: _Texts) -> dict[str, list[Any]]:
    places = {number: place for place, number in enumerate(kept["id"].to_list())}
    ordered = blocks.with_columns(
        pl.col("segment").replace_strict(places, return_dtype=pl.Int64)
    ).sort("segment", "offset_bytes")
    return {
        "segment": differences(ordered["segment"].to_list()),
        "offset": differences(ordered["offset_bytes"].to_list()),
        "size": ordered["total_bytes"].to_list(),
        "live": [int(state == "live") for state in ordered["state"]],
        "stack": [-1 if stack is None else stack for stack in ordered["stack"]],
        "label": texts.numbers(ordered["label"].to_list()),
    }


def _stacks(stacks: pl.DataFrame, used: set[int], texts: _Texts) -> dict[str, Any]:
    """Return a prefix tree of frames, callers first, and the last node of each stack."""
    node_of: dict[tuple[int, int], int] = {}
    above: list[int] = []
    frames: list[int] = []
    ends: dict[int, int] = {}
    for number, stack in zip(stacks["id"].to_list(), stacks["frames"].to_list(), strict=True):
        if number not in used:
            continue
        node = -1
        for frame in reversed(stack or ()):
            key = (node, texts.number(frame))
            if key not in node_of:
                node_of[key] = len(frames)
                above.append(len(frames) - node if node >= 0 else 0)
                frames.append(key[1])
            node = node_of[key]
        ends[number] = node
    return {"above": above, "frames": frames, "ends": [list(ends), list(ends.values())]}
