"""Memory over time by allocation: a figure for pages and a plot.

In: :class:`traceanalyzer.drawings.Occupancy`. Each allocation gets a position in the stack, a
fill and a label. ``drawing`` draws them on the axes of a plot. A page gets a table that is readable
without scripts and the data for the viewer (``memory.js``, ``format.js``, ``stage.js``,
``segments.js``, ``viewer.js``): columns of integers, each text and frame once, ascending columns as
differences, stacks as paths of one prefix tree. Only :mod:`traceanalyzer.render` imports this
package.

A box is live at a level if the event of the level is in its lifetime. Boxes are stacked in the
order of their start, allocations without a box on top: at every level the top of the stack is the
sum of the boxes and the rest.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceanalyzer.drawings import Occupancy
from traceanalyzer.render import pieces
from traceanalyzer.render.pieces import cell, differences, escaped
from traceanalyzer.render.text import prose, shorten, visible
from traceanalyzer.units import format_bytes, format_frac, format_ns

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """An occupancy as arrays, boxes by start and levels by event.

    The times of boxes, marks and spans also count from the first level; unknown times are null.

    Attributes:
        boxes: the boxes' rows in the order of the arrays.
        levels: the levels' rows in the order of the arrays.
        marks: by priority of their labels: the peak, then by event.
        spans: by start.
        start: event at which a box is allocated.
        end: event at which it is freed.
        size: bytes of each box.
        event: event of each level.
        time: nanoseconds of each level since the first; None if unknown.
        live: bytes of all allocations at each level.
        rest: bytes of those without a box.
        reserved: reserved bytes, NaN if unknown.
        events: number of events.
        peak_event: event of the peak.
        end_time: end of the time axis.
    """

    boxes: pl.DataFrame
    levels: pl.DataFrame
    marks: pl.DataFrame
    spans: pl.DataFrame
    start: Ints
    end: Ints
    size: Ints
    event: Ints
    time: Floats | None
    live: Ints
    rest: Ints
    reserved: Floats
    events: int
    peak_event: int
    end_time: float

    @cached_property
    def first(self) -> Ints:
        """Return the first level at which each box is live."""
        return np.searchsorted(self.event, self.start, side="left").astype(np.int64)

    @cached_property
    def last(self) -> Ints:
        """Return the first level at which each box is freed."""
        return np.searchsorted(self.event, self.end, side="left").astype(np.int64)

    @property
    def at_peak(self) -> NDArray[np.bool_]:
        """Return which boxes are live at the peak."""
        return (self.start <= self.peak_event) & (self.end > self.peak_event)

    @property
    def area(self) -> Floats:
        """Return bytes x events of each box."""
        return self.size.astype(np.float64) * (self.end - self.start)

    def axis(self) -> tuple[Floats, float]:
        """Return the start of each level on the horizontal axis, and the end of the axis."""
        if self.time is None:
            return self.event.astype(np.float64), float(max(self.events, 1))
        return self.time, self.end_time


@dataclass(frozen=True)
class Stack:
    """The stack by columns: a row is a box, a column an interval of the horizontal axis.

    Attributes:
        levels: level of each column, -1 before the first.
        edges: borders of the columns, one more than columns.
        bottom: lower edge of each box in each column, NaN where it is not live.
        size: bytes of each box.
        rest: bytes of allocations without a box.
        live: top of the stack.
        reserved: reserved bytes, NaN if unknown.
    """

    levels: Ints
    edges: Floats
    bottom: Floats
    size: Ints
    rest: Floats
    live: Floats
    reserved: Floats


def lay_out(occupancy: Occupancy) -> Layout:
    """Return the arrays of an occupancy."""
    levels = occupancy.levels.sort("event", maintain_order=True)
    boxes = occupancy.boxes.sort("start", maintain_order=True)
    live = _ints(levels["live_bytes"])
    time, origin, end_time = None, 0, 0.0
    known = levels["time_ns"].fill_null(strategy="backward").fill_null(strategy="forward")
    if levels.height and not known.null_count():
        times = np.maximum.accumulate(_ints(known))
        if occupancy.axis_ns:
            times[0] = min(occupancy.axis_ns[0], times[0])
        origin = int(times[0])
        time = (times - origin).astype(np.float64)
        ends = pl.concat([known, boxes["end_ns"], occupancy.spans["end_ns"]]).drop_nulls()
        end = max(int(ends.to_numpy().max()), *(occupancy.axis_ns or (0,)))
        end_time = float(max(end - origin, 1))
    peaks = occupancy.marks.filter(kind="peak")["event"].to_list()
    event = _ints(levels["event"])
    highest = int(event[int(np.argmax(live))]) if len(live) else 0
    marks = occupancy.marks.sort(pl.col("kind") != "peak", "event", maintain_order=True)
    since = pl.col("^.*_ns$") - pl.lit(None if time is None else origin, pl.Int64)
    return Layout(
        boxes=boxes.with_columns(since),
        levels=levels,
        marks=marks.with_columns(since),
        spans=occupancy.spans.sort("start").with_columns(since),
        start=_ints(boxes["start"]),
        end=_ints(boxes["end"]),
        size=_ints(boxes["live_bytes"]),
        event=event,
        time=time,
        live=live,
        rest=_ints(levels["rest_bytes"]),
        reserved=levels["reserved_bytes"].cast(pl.Float64).fill_null(float("nan")).to_numpy(),
        events=occupancy.events,
        peak_event=peaks[0] if peaks else highest,
        end_time=end_time,
    )


def largest(layout: Layout, count: int) -> Ints:
    """Return the ``count`` largest boxes by bytes x events, in the order of the stack."""
    return np.sort(np.argsort(-layout.area, kind="stable")[:count])


def columns(layout: Layout, count: int) -> tuple[Ints, Floats]:
    """Return the level of each of ``count`` columns, and the borders of the columns.

    A column has the level with the most live bytes, so that short peaks are visible; -1 before the
    first level.
    """
    x, end = layout.axis()
    edges = end * np.arange(count + 1) / count
    since = np.searchsorted(x, edges[:-1], side="right") - 1
    since = np.minimum(np.searchsorted(x, edges[:-1], side="left"), since)  # all that start there
    until = np.searchsorted(x, edges[1:], side="left")
    until[-1] = len(x)
    levels = since.astype(np.int64)
    for column, (low, high) in enumerate(zip(since.tolist(), until.tolist(), strict=True)):
        low = max(low, 0)
        if high - low > 1:
            levels[column] = low + int(np.argmax(layout.live[low:high]))
        elif high > low:
            levels[column] = low
    return levels, edges


def stack(layout: Layout, chosen: Ints, levels: Ints, edges: Floats) -> Stack:
    """Stack the chosen boxes at these levels; all others belong to the rest."""
    live = _is_live(layout, chosen, levels)
    size = layout.size[chosen]
    heights = live * size[:, None]
    known = levels >= 0
    tops = np.cumsum(heights, axis=0, dtype=np.int64)
    boxed = total(layout, np.arange(len(layout.size)), levels)
    stacked = heights.sum(axis=0).astype(np.float64)
    rest = np.where(known, layout.rest[levels] if len(layout.rest) else 0, 0) + boxed - stacked
    bottom = np.where(live, tops - heights, np.nan)
    reserved = layout.reserved[levels] if len(layout.reserved) else np.full(len(levels), np.nan)
    return Stack(
        levels, edges, bottom, size, rest, stacked + rest, np.where(known, reserved, np.nan)
    )


def total(layout: Layout, boxes: Ints, levels: Ints) -> Floats:
    """Return the bytes of these boxes at these levels."""
    live = _is_live(layout, boxes, levels).astype(np.float64)
    summed: Floats = layout.size[boxes].astype(np.float64) @ live
    return summed


def _is_live(layout: Layout, boxes: Ints, levels: Ints) -> NDArray[np.bool_]:
    """Return which boxes (rows) are live at which levels (columns)."""
    since, until = layout.first[boxes, None], layout.last[boxes, None]
    live: NDArray[np.bool_] = (since <= levels) & (levels < until) & (levels >= 0)
    return live


def _ints(values: pl.Series) -> Ints:
    return values.cast(pl.Int64).to_numpy().astype(np.int64)


_CATEGORIES, _LABELS, _NAME_CHARS = 12, 6, 40

# fmt: off
_LIGHT = (
    "#89c3ff", "#7bb5f0", "#6da6e1", "#f0ae77", "#e19f69", "#d2915b", "#8bd19a", "#7dc28c",
    "#6fb47e", "#cdadf4", "#bf9ee5", "#b191d6", "#d3bd6c", "#c4af5d", "#b6a14f", "#faa2a2",
    "#eb9494", "#db8686", "#5ed3d3", "#4ec4c4", "#3cb6b6", "#efa2cd", "#df94bf", "#d086b0",
    "#aeca7e", "#a0bb70", "#92ad62",
)
_DARK = (
    "#4978a7", "#3c6b99", "#305e8b", "#9b673b", "#8d5a2d", "#7f4d20", "#4b8358", "#3e764b",
    "#31693f", "#81679f", "#745a91", "#674d83", "#857430", "#786721", "#6b5a10", "#a35e5e",
    "#945152", "#864445", "#198585", "#007777", "#006a6a", "#9a5e81", "#8c5173", "#7e4566",
    "#687e40", "#5c7033", "#4f6326",
)
# fmt: on
#: Indices of the fills of boxes without category, and of allocations without box.
UNKNOWN, REST = len(_LIGHT), len(_LIGHT) + 1

#: Fills by index, on a light and on a dark background.
LIGHT = (*_LIGHT, "#b4bcc6", "#dde1e6")
DARK = (*_DARK, "#66707c", "#3a4149")

_TONES = 3
_NOT_KNOWN = {"", "unknown", "none"}
_HUES = len(_LIGHT) // _TONES
# A seed of the hash for which the usual categories have different colours.
_SEED = 519_183


# --- sentences and names -----------------------------------------------------------------------


def summary(layout: Layout) -> str:
    """Return a sentence with the peak and the most reserved bytes."""
    if not len(layout.live):
        return "Nothing to draw."
    at = max(int(np.searchsorted(layout.event, layout.peak_event, side="right")) - 1, 0)
    peak = f"Peak: {format_bytes(int(layout.live[at]))} live"
    most = layout.reserved[~np.isnan(layout.reserved)]
    return (
        f"{peak}; at most {format_bytes(float(most.max()))} reserved." if len(most) else f"{peak}."
    )


def coverage(occupancy: Occupancy, layout: Layout, chosen: Ints, *, bands: bool = False) -> str:
    """Return a sentence on the allocations with their own box, their share, and the others.

    Args:
        occupancy: the occupancy.
        layout: its arrays.
        chosen: boxes that are drawn.
        bands: the other boxes are drawn as one band per category.
    """
    count, boxes, rest = len(chosen), len(layout.size), bool(layout.rest.any())
    if not count:
        return "No allocation is drawn individually."
    if count == boxes and not rest:
        return f"All {count:,} allocations are drawn individually." if count > 1 else ""
    whole = layout.area.sum()
    part = layout.area[chosen].sum() / whole if whole else 1.0
    share = format_frac(part * occupancy.boxed_frac)
    one = "The largest allocation is" if count == 1 else f"The {count:,} largest allocations are"
    text = f"{one} drawn individually: {share} of all bytes x events"
    grey = "; the rest is the grey band" if rest or not bands else ""
    return (
        f"{text}; smaller ones by category{grey}." if bands and count < boxes else f"{text}{grey}."
    )


def legend(
    layout: Layout, fills: dict[str, int], chosen: Ints | None = None
) -> list[tuple[str, int]]:
    """Return names and fills of categories, or of the largest labels, by bytes at the peak.

    Args:
        layout: the arrays of the occupancy.
        fills: fills of categories.
        chosen: boxes that are drawn individually; without categories only these count. Default:
            all.
    """
    boxes, at_peak = layout.boxes, np.where(layout.at_peak, layout.size, 0)
    if chosen is not None and not fills:
        at_peak[np.setdiff1d(np.arange(len(at_peak)), chosen)] = 0
    if fills:
        names = [name or "no category" for name in boxes["category"].to_list()]
        shades = {name: fills[name] + 1 if name in fills else UNKNOWN for name in names}
    else:
        labels = boxes["label"].to_list()
        names = [name or "unknown" for name in labels]
        shades = {n: box_fill(t, None, {}, 0) for n, t in zip(names, labels, strict=True)}
    sizes = pl.DataFrame(
        {"name": names, "at_peak": at_peak, "largest": layout.size},
        schema_overrides={"name": pl.String},
    )
    sums = sizes.group_by("name").agg(pl.col("at_peak").sum(), pl.col("largest").max())
    ranked = sums.sort("at_peak", "largest", "name", descending=[True, True, False])
    entries = ranked.filter(pl.col("at_peak") != 0)
    if entries.is_empty():
        entries = ranked.head(1)
    return [
        (f"{shorten(prose(name), _NAME_CHARS)} {format_bytes(size)}", shades[name])
        for name, size, _ in entries.head(_CATEGORIES if fills else _LABELS).iter_rows()
    ]


def without_prefix(spans: pl.DataFrame) -> list[str]:
    """Return the labels of spans without their common prefix: ``7`` for ``ProfilerStep#7``."""
    labels = [label or "" for label in spans["label"].to_list()]
    if len(labels) < 2:
        return labels
    pairs = enumerate(zip(min(labels), max(labels), strict=False))
    shared = next((at for at, (one, other) in pairs if one != other), min(map(len, labels)))
    beginning = labels[0][:shared].rstrip("0123456789")
    return [label.removeprefix(beginning) or label for label in labels]


# --- colours and ticks -------------------------------------------------------------------------


def category_fills(names: Iterable[str]) -> dict[str, int]:
    """Return the first fill of each category by a hash of its name; the next one if taken."""
    hues: dict[str, int] = {}
    for name in sorted(set(names) - _NOT_KNOWN):
        hue = crc32(name.encode(), _SEED) % _HUES
        while hue in hues.values() and len(hues) < _HUES:
            hue = (hue + 1) % _HUES
        hues[name] = hue
    return {name: hue * _TONES for name, hue in hues.items()}


def box_fill(
    label: str | None, category: str | None, categories: dict[str, int], place: int
) -> int:
    """Return the fill of a box; neighbours (by ``place``) of one category differ in tone."""
    if categories:
        known = category in categories
        return categories[category or ""] + place % _TONES if known else UNKNOWN
    return UNKNOWN if label is None else crc32(label.encode()) % len(_LIGHT)


#: Most ticks of sizes and of times.
_BYTE_TICKS, _TICKS = 6, 12


def byte_ticks(top: float) -> list[tuple[float, str]]:
    """Return ticks from 0 to ``top``, a power of two apart."""
    step = 2.0 ** max(math.ceil(math.log2(max(top, 1) / _BYTE_TICKS)), 0)
    return [(at * step, format_bytes(at * step)) for at in range(int(top / step) + 1)]


def ticks(end: float, *, timed: bool) -> list[tuple[float, str]]:
    """Return ticks from 0 to ``end`` in times or events, 1, 2 or 5 times a power of ten apart."""
    rough = max(end / _TICKS, 1)
    power = 10.0 ** math.floor(math.log10(rough) + 1e-9)
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= rough * (1 - 1e-9))
    places = [at * step for at in range(int(end / step + 1e-9) + 1)]
    if timed:
        return [(place, format_ns(place) if place else "0") for place in places]
    return [(place, f"{place:,.0f}") for place in places]


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
    text = f"{summary(layout)} {coverage(occupancy, layout, every)}"
    subtitle = f'<p class="soft">{escaped(occupancy.subtitle)}</p>\n' if occupancy.subtitle else ""
    content = (
        f'<h2 id="{key}-title">{escaped(occupancy.title)}</h2>\n{subtitle}'
        f'<p class="soft" id="{key}-summary">{escaped(text)}</p>\n'
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
    short = without_prefix(layout.spans)
    blocks = occupancy.blocks.filter(pl.col("segment").is_in(kept["id"].to_list()))
    used = pl.concat([layout.boxes["stack"], blocks["stack"]]).drop_nulls().unique().to_list()
    fills = category_fills(layout.boxes["category"].drop_nulls())
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
        "fills": [LIGHT, DARK],
        "grey": REST,
        "legend": legend(layout, fills),
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
        "fill": [box_fill(*pair, fills, place) for place, pair in enumerate(pairs)],
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
