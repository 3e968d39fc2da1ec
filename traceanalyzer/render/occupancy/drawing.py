"""Plot of an occupancy: the largest boxes, the rest as one band, steps below."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from traceanalyzer.render import occupancy as labels
from traceanalyzer.render.occupancy import columns, largest, lay_out, stack, total
from traceanalyzer.render.text import prose, shorten
from traceanalyzer.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.lines import Line2D

    from traceanalyzer.drawings import Occupancy
    from traceanalyzer.render.occupancy import Floats, Ints, Layout, Stack

#: Height of a drawing in inches.
HEIGHT = 5.2
_BOXES = 400
# Columns, and the smallest step that is drawn as a share of the height, finest first; boxes only
# move down, so the coarsest setting has few steps.
_FINENESS = (
    *((1_000, 0.001), (700, 0.0015), (500, 0.002), (400, 0.003)),
    *((300, 0.005), (200, 0.01), (150, 0.02), (100, 0.04)),
)
_POINTS = 50_000  # corners of all boxes; an SVG of them stays below 2 MB
_HEADROOM = 1.04
_PLOT_CHARS = 110  # characters along the axis
_COLUMNS = 1200  # pixels of a picture; narrower steps are not drawn
_TITLE_CHARS, _LABEL_CHARS, _LABEL_ROWS = 72, 60, 3
_RESERVED, _OOM, _PEAK = "#1f2328", "#cf222e", "#1f2328"
_STRIPES = ("#e4e9ee", "#f0f3f6")


def draw(occupancy: Occupancy, place: Figure | SubFigure) -> Axes:
    """Draw an occupancy into a part of a figure; return the axes of the memory."""
    layout = lay_out(occupancy)
    title = "\n".join(textwrap.wrap(prose(occupancy.title), _TITLE_CHARS))
    place.suptitle(title, x=0.01, horizontalalignment="left")
    steps = occupancy.spans.height > 0
    ratios = [14, 1] if steps else [1]
    axes = place.subplots(len(ratios), 1, sharex=True, height_ratios=ratios, squeeze=False)[:, 0]
    ax: Axes = axes[0]
    if not len(layout.live):
        ax.text(0.5, 0.5, "nothing to draw", transform=ax.transAxes, ha="center")
        return ax
    chosen = largest(layout, _BOXES)
    drawn, corners = _outlines(layout, chosen)
    fills = labels.category_fills(layout.boxes["category"].drop_nulls())
    grey = _bands(ax, layout, chosen, drawn, fills)
    _boxes(ax, layout, chosen, corners, fills)
    ax.stairs(drawn.reserved, drawn.edges, baseline=None, color=_RESERVED, lw=1.1, ls=(0, (4, 2)))
    _axes(ax, axes[-1], layout)
    ax.set_title(
        "\n".join(
            textwrap.wrap(
                labels.coverage(occupancy, layout, chosen, bands=bool(fills)), _PLOT_CHARS
            )
        ),
        loc="left",
        pad=8 + 11 * _marks(ax, layout),
    )
    if steps:
        _spans(axes[1], layout)
    _legend(ax, place, drawn, labels.legend(layout, fills, chosen), grey)
    return ax


# --- the stack -------------------------------------------------------------------------------
# Each box is drawn down to 0, the topmost first: lower boxes cover it, omitted steps leave no gap.


def _outlines(layout: Layout, chosen: Ints) -> tuple[Stack, list[list[Floats]]]:
    """Return the stack and the polygons of each box, as fine as the file size allows."""
    for count, step in _FINENESS:
        levels, edges = columns(layout, count)
        drawn = stack(layout, chosen, levels, edges)
        least = float(drawn.live.max()) * step
        corners = [
            _polygons(edges, bottom + size, least)
            for bottom, size in zip(drawn.bottom, drawn.size, strict=True)
        ]
        if sum(len(part) for parts in corners for part in parts) <= _POINTS:
            break
    return drawn, corners


def _polygons(edges: Floats, top: Floats, least: float) -> list[Floats]:
    """Return the area below the top of one box, a polygon per interval of its life."""
    live = np.flatnonzero(~np.isnan(top))
    runs = np.split(live, np.flatnonzero(np.diff(live) > 1) + 1)
    return [_polygon(edges, top, run, least) for run in runs if len(run)]


def _polygon(edges: Floats, top: Floats, run: Ints, least: float) -> Floats:
    """Return steps along the top and back along 0; steps below ``least`` are merged."""
    tops = top[run]
    kept = [0]
    for at in (np.flatnonzero(np.diff(tops)) + 1).tolist():
        if abs(tops[at] - tops[kept[-1]]) >= least:
            kept.append(at)
    x = np.append(edges[run[kept]], edges[run[-1] + 1])
    steps = np.stack([np.repeat(x, 2)[1:-1], np.repeat(tops[kept], 2)], axis=1)
    return np.concatenate([steps, [[x[-1], 0], [x[0], 0]]])


def _boxes(
    ax: Axes, layout: Layout, chosen: Ints, corners: list[list[Floats]], fills: dict[str, int]
) -> None:
    names, categories = layout.boxes["label"], layout.boxes["category"]
    highest = float(layout.live.max())
    for box, parts in zip(chosen[::-1].tolist(), corners[::-1], strict=True):
        shade = labels.LIGHT[labels.box_fill(names[box], categories[box], fills, box)]
        tall = layout.size[box] > highest / 120
        for part in parts:
            edge = "#ffffff" if tall else "none"
            ax.fill(part[:, 0], part[:, 1], facecolor=shade, edgecolor=edge, linewidth=0.3)


def _bands(ax: Axes, layout: Layout, chosen: Ints, drawn: Stack, fills: dict[str, int]) -> float:
    """Draw the other allocations on top: a band per category, and the grey one.

    Returns:
        The bytes of the grey band at the peak.
    """
    bands: list[tuple[Floats, int]] = []
    top = drawn.live - drawn.rest
    if fills:
        smaller = np.setdiff1d(np.arange(len(layout.size)), chosen)
        shades = np.array([fills.get(name or "", -1) for name in layout.boxes["category"]])
        for fill in (-1, *fills.values()):
            band = total(layout, smaller[shades[smaller] == fill], drawn.levels)
            if band.any():
                top = top + band
                bands.append((top, labels.UNKNOWN if fill < 0 else fill + 1))
    if (drawn.live > top).any():
        bands.append((drawn.live, labels.REST))
    for height, fill in reversed(bands):
        ax.stairs(height, drawn.edges, fill=True, color=labels.LIGHT[fill], linewidth=0)
    return float((drawn.live - top)[int(np.argmax(drawn.live))])


# --- axes, marks, legend---------------------------------------------------------------------------


def _axes(ax: Axes, lowest: Axes, layout: Layout) -> None:
    """Set round ticks and the labels of the axes."""
    timed = layout.time is not None
    top = _top(layout)
    sizes = labels.byte_ticks(top)
    places = labels.ticks(layout.axis()[1], timed=timed)
    ax.set_yticks([at for at, _ in sizes], [text for _, text in sizes])
    ax.set_ylim(0, top)
    ax.grid(visible=False, axis="x")
    lowest.set_xticks([at for at, _ in places], [text for _, text in places])
    lowest.set_xlim(0, layout.axis()[1])
    lowest.set_xlabel("time since the first event" if timed else "allocator event")


def _top(layout: Layout) -> float:
    reserved = layout.reserved[~np.isnan(layout.reserved)]
    return max(float(layout.live.max()), float(reserved.max(initial=0)), 1.0) * _HEADROOM


def _marks(ax: Axes, layout: Layout) -> int:
    """Draw lines at the peak and at failures, labels above the axes; return their rows."""
    end, timed = layout.axis()[1], layout.time is not None
    rows = [-1.0] * _LABEL_ROWS
    lines: set[int] = set()  # columns with a line
    for mark in layout.marks.iter_rows(named=True):
        at = (mark["time_ns"] or 0) if timed else mark["event"]
        shade, style = (_OOM, "-") if mark["kind"] == "oom" else (_PEAK, ":")
        column = round(at / end * _COLUMNS)
        if column not in lines:
            ax.axvline(at, color=shade, linewidth=1, linestyle=style)
        lines.add(column)
        label = shorten(prose(mark["label"]), _LABEL_CHARS)
        wide = len(label) / _PLOT_CHARS
        start = max(min(at / end, 1 - wide), 0.0)
        row = next((row for row, taken in enumerate(rows) if taken < start), None)
        if row is None:
            continue
        rows[row] = start + wide
        ax.annotate(
            label,
            (start, 1),
            (0, 4 + 11 * row),
            xycoords="axes fraction",
            textcoords="offset points",
            color=shade,
            fontsize="small",
        )
    return sum(row >= 0 for row in rows)


def _spans(ax: Axes, layout: Layout) -> None:
    """Draw steps as stripes with their names where they fit."""
    end, unit = layout.axis()[1], "" if layout.time is None else "_ns"
    ax.set_yticks([])
    ax.set_ylim(0, 1)
    ax.grid(visible=False)
    ax.spines[["left", "bottom"]].set_visible(False)
    named = -1.0
    shorter = labels.without_prefix(layout.spans)
    for number, row in enumerate(layout.spans.iter_rows(named=True)):
        since, until = row[f"start{unit}"], row[f"end{unit}"]
        if since is None or until is None:
            continue
        since, until = max(since, 0), min(until, end)
        if until - since < end / _COLUMNS:
            continue
        ax.axvspan(since, until, color=_STRIPES[number % 2], linewidth=0)
        label, room = prose(row["label"] or ""), int((until - since) / end * _PLOT_CHARS)
        if room < len(label):
            label = prose(shorter[number])
        if room >= min(len(label), 4) and since >= named:
            text = shorten(label, max(room, 4))
            ax.text((since + until) / 2, 0.45, text, ha="center", va="center", fontsize="small")
            named = until


def _legend(
    ax: Axes, place: Figure | SubFigure, drawn: Stack, named: list[tuple[str, int]], grey: float
) -> None:
    """Draw the colours with their bytes at the peak."""
    if grey:
        named = [*named, (f"other allocations {format_bytes(grey)}", labels.REST)]
    entries: list[tuple[Line2D, str]] = []
    for text, fill in named:
        shade = labels.LIGHT[fill]
        (swatch,) = ax.plot([], [], ls="", marker="s", ms=7, mfc=shade, mec=shade)
        entries.append((swatch, text))
    if not np.isnan(drawn.reserved).all():
        (dashed,) = ax.plot([], [], color=_RESERVED, lw=1.1, ls=(0, (4, 2)))
        entries.append((dashed, "reserved"))
    legend(place, entries, title="at the peak", pad=0.5)


def legend(
    place: Any,
    entries: list[tuple[Line2D, str]],
    *,
    title: str,
    pad: float,
    where: str = "outside right upper",
) -> None:
    """Draw a legend with literal labels, if there are entries.

    Args:
        place: figure or axes of the legend.
        entries: handles and labels.
        title: title above the entries.
        pad: space between handle and label, in characters.
        where: location.
    """
    if not entries:
        return
    drawn = place.legend(
        [handle for handle, _ in entries],
        ["-"] * len(entries),  # set below: matplotlib drops labels that start with "_"
        loc=where,
        title=title,
        alignment="left",
        handletextpad=pad,
    )
    for text, (_, label) in zip(drawn.get_texts(), entries, strict=True):
        text.set_text(label)
