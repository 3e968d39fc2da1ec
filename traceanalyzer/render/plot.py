"""Drawings of a result as matplotlib figures, SVG and PNG; nothing else imports matplotlib."""

import io
import math
import sys
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import polars as pl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from traceanalyzer.drawings import Chart, Content, Lanes, Occupancy
from traceanalyzer.errors import OptionError
from traceanalyzer.render import marks, palette
from traceanalyzer.render.occupancy import drawing as memory
from traceanalyzer.render.text import prose, scale_of, shorten, spaced, visible
from traceanalyzer.render.timeline import extent, shares, short_step

INK = "#1f2328"  # text and rings
_MAX_OCCUPANCIES = 8
_WIDTH_INCHES = 10
_CHART_INCHES = 3.6
_PANEL_INCHES = 1.7
_MAX_TICKS = 24
#: Decades of a logarithmic axis up to which each has a tick.
_MAX_DECADES = 12
_TILTED_CHARS = 24
_LEGEND_ENTRIES = 20
_LEGEND_CHARS = 32
_TICK_CHARS = 40
_TITLE_CHARS = 72  # so that a title ends before the legend
_AXES_TITLE_CHARS = 60
_RASTER_ABOVE = 5_000  # marks; more SVG elements make a browser slow
_BAR_WIDTH = 0.8
_MARKERS = ("o", "s", "^", "D")  # of marks.SYMBOLS
_HEADROOM = 1.08
_LANE_COLUMNS = 1200
#: Pixels of all rows together; of one row: at most and at least.
_LANE_PIXELS, _TALLEST, _LOWEST = 800, 24, 2
_LANES_NAMED, _LANE_CHARS, _STEP_CHARS, _STEPS = 32, 24, 14, 24
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": marks.MUTED,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "axes.xmargin": 0.02,
    "axes.ymargin": 0.08,
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
    "font.size": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "traceanalyzer",
    "text.color": INK,
    "text.parse_math": False,  # a "$" in a name is a dollar sign
    "text.usetex": False,
}
_AXES_TITLE: dict[str, Any] = {
    "fontsize": 11,
    "fontweight": "bold",
    "color": INK,
    "parse_math": False,
    "usetex": False,
}
#: Set on each axis: a notebook creates ticks when the style above is no longer active.
_TICKS: dict[str, Any] = {
    "color": marks.MUTED,
    "labelcolor": INK,
    "labelsize": 9,
    "grid_alpha": 0.25,
    "grid_color": marks.MUTED,
}


def figure(result: Content, chart: str | None = None) -> Figure:
    """Return a figure of one drawing, or of all: timelines, largest occupancies, charts.

    Raises:
        OptionError: there is nothing to draw, or no drawing of that name.
    """
    return _drawn(result, chart, Figure)[0]


def plot(
    result: Content, chart: str | None, ax: Axes | None
) -> Axes | np.ndarray[Any, np.dtype[np.object_]]:
    """Return the axes of one drawing, or of all; see :meth:`Result.plot`.

    pyplot, which displays figures, is imported in interactive sessions only.
    """
    if ax is not None:
        return _draw_on(ax, result, chart)
    make: Callable[..., Figure] = Figure
    if hasattr(sys, "ps1"):  # interactive, by the test of matplotlib
        from matplotlib import pyplot

        make = pyplot.figure
    picture, drawn = _drawn(result, chart, make)
    if len(drawn) == 1 and not result.occupancies:  # the axes title is easier to change
        title = textwrap.fill(picture.get_suptitle(), _AXES_TITLE_CHARS)
        picture.suptitle("")
        drawn[0].set_title(title, **_AXES_TITLE)
    if chart is not None and len(drawn) == 1:
        return drawn[0]
    axes = np.empty(len(drawn), np.object_)
    axes[:] = drawn
    return axes


def _drawn(
    result: Content, chart: str | None, make: Callable[..., Figure]
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes, except the axes with the steps of an occupancy."""
    timelines, filled, charts = _chosen(result, chart)
    drawings = [marks.prepare(c) for c in charts]
    heights = [*map(_lanes_height, timelines), *[memory.HEIGHT] * len(filled)]
    heights += [max(_CHART_INCHES, 0.8 + _PANEL_INCHES * len(_panels(d))) for d in drawings]
    # before the style is set: the first figure of pyplot selects a backend and its settings
    picture = make(figsize=(_WIDTH_INCHES, sum(heights)), layout="constrained")
    with mpl.rc_context(_STYLE):
        places: list[Any] = [picture]  # a figure or its subfigures
        if len(heights) > 1:
            parts = picture.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
            places = list(parts[:, 0])
        axes = [_draw_lanes(one, place) for one, place in zip(timelines, places, strict=False)]
        del places[: len(timelines)]
        axes += [memory.draw(one, place) for one, place in zip(filled, places, strict=False)]
        for drawing, place in zip(drawings, places[len(filled) :], strict=True):
            axes += _draw(drawing, place)
        for ax in picture.axes:
            ax.tick_params(which="both", **_TICKS)
    return picture, axes


def _draw_on(ax: Axes, result: Content, chart: str | None) -> Axes:
    """Draw one chart of one panel in the current style."""
    timelines, filled, charts = _chosen(result, chart)
    drawings = [marks.prepare(c) for c in charts]
    if timelines or filled or len(drawings) != 1 or len(_panels(drawings[0])) != 1:
        names = ", ".join(c.name for c in result.charts if len(_panels(marks.prepare(c))) == 1)
        raise OptionError(f"ax takes one chart of one panel; available: {names or 'none'}")
    (drawing,) = drawings
    ax.set_title(_title(drawing))
    _draw_panel(drawing, drawing.rows, ax)
    ax.set_xlabel(drawing.x.label)
    ax.set_ylabel(drawing.y.label)
    _legend(drawing, ax, "best")
    for text in ax.findobj(Text):
        text.set(parse_math=False, usetex=False)
    return ax


def to_svg(picture: Figure) -> str:
    """Return a figure as an SVG document; equal figures give equal bytes."""
    metadata: dict[str, str | None] = {"Date": None, "Creator": None}
    return _saved(picture, "svg", metadata).decode()


def to_png(picture: Figure) -> bytes:
    """Return a figure as a PNG image with 144 dots per inch."""
    return _saved(picture, "png", {"Software": None})


def _saved(picture: Figure, form: str, metadata: dict[str, str | None]) -> bytes:
    out = io.BytesIO()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # characters that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", message="Glyph|Matplotlib currently does not support")
        picture.savefig(out, format=form, metadata=metadata, dpi=144)
    return out.getvalue()


def _chosen(result: Content, name: str | None) -> tuple[list[Lanes], list[Occupancy], list[Chart]]:
    """Return the drawings of this name, or timelines, the largest occupancies and all charts.

    Raises:
        OptionError: there is nothing to draw, or no drawing of that name.
    """
    timelines = [one for one in result.timelines if name in (None, one.name)]
    filled = [one for one in result.occupancies if name in (None, one.name)]
    if len(filled) > _MAX_OCCUPANCIES:
        fullest = sorted(filled, key=_peak, reverse=True)[:_MAX_OCCUPANCIES]
        filled = [one for one in filled if any(one is kept for kept in fullest)]
    charts = [one for one in result.charts if name in (None, one.name)]
    if not (timelines or filled or charts):
        raise OptionError(_nothing(result, name))
    return timelines, filled, charts


def _peak(occupancy: Occupancy) -> int:
    most = occupancy.levels["live_bytes"].max()
    return most if isinstance(most, int) else 0


def _nothing(result: Content, name: str | None) -> str:
    known = [one.name for one in result.timelines] + [one.name for one in result.occupancies]
    known += [one.name for one in result.charts]
    if result.flames and not known:
        return (
            "a flame graph cannot be plotted; display the result in a notebook, or use "
            "traceanalyzer flamegraph PATH -o FILE.svg"
        )
    wanted = "no chart to draw" if name is None else f"no chart {name!r}"
    return f"this result has {wanted}" + (f"; it has {', '.join(known)}" if known else "")


# --- one chart -------------------------------------------------------------------------------


def _panels(drawing: marks.Marks) -> list[Any]:
    return drawing.panels[: marks.MAX_PANELS]


def _title(drawing: marks.Marks) -> str:
    panels = _panels(drawing)
    hidden = len(drawing.panels) - len(panels)
    more = f" (first {len(panels)} of {len(drawing.panels)})" if hidden else ""
    return "\n".join(textwrap.wrap(prose(drawing.chart.title) + more, _TITLE_CHARS))


def _draw(drawing: marks.Marks, place: Figure | SubFigure) -> list[Axes]:
    chart, panels = drawing.chart, _panels(drawing)
    place.suptitle(_title(drawing), x=0.01, horizontalalignment="left")
    axes = place.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)
    for ax, panel in zip(axes.flat, panels, strict=True):
        rows = drawing.rows
        if panel is not None:
            rows = rows.filter(pl.col("panel").cast(pl.String) == str(panel))
            ax.set_title(_label(chart.panel, panel), loc="left")
        _draw_panel(drawing, rows, ax)
    axes[-1, 0].set_xlabel(drawing.x.label)
    if len(panels) == 1:
        axes[0, 0].set_ylabel(drawing.y.label)
    else:
        place.supylabel(drawing.y.label, fontsize="medium")
    _legend(drawing, place, "outside right upper")
    return list(axes.flat)


def _draw_panel(drawing: marks.Marks, rows: pl.DataFrame, ax: Axes) -> None:
    if drawing.y.log:
        ax.set_yscale("log", nonpositive="clip")
    if drawing.x.log:
        ax.set_xscale("log", nonpositive="clip")
    if rows.is_empty():
        ax.text(0.5, 0.5, "nothing to draw", transform=ax.transAxes, ha="center", color=marks.MUTED)
    else:
        _MARKS[drawing.chart.mark](ax, rows, drawing)
    _reference_lines(ax, drawing)
    _ticks(ax.xaxis, drawing.x, log=drawing.x.log)
    if drawing.x.log and drawing.chart.mark == "line" and drawing.x.ticks is None:
        values = rows["x"].unique().sort()
        if 1 < len(values) <= _MAX_TICKS:  # 4, 8 and 16 GPUs are clearer than 5, 10 and 20
            ax.set_xticks(values.to_list())
            ax.minorticks_off()
    _ticks(ax.yaxis, drawing.y, log=drawing.y.log)
    if drawing.chart.mark == "span":
        ax.grid(visible=False, axis="y")
        if not ax.yaxis_inverted():
            ax.invert_yaxis()
    if drawing.chart.mark == "bar":
        ax.grid(visible=False, axis="x")


def _number(value: float) -> str:
    """Format the number of a tick; small numbers too have no exponent, as the others."""
    text = f"{value:,.10g}"
    return (
        np.format_float_positional(value, 10, fractional=False, trim="-") if "e-" in text else text
    )


def _ticks(axis: Axis, scale: marks.AxisScale, *, log: bool) -> None:
    if scale.ticks is None:
        axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
        axis.set_minor_formatter(NullFormatter())
        if log:
            low, high = axis.get_view_interval()
            subs = (1, 2, 5) if high < 100 * low else (1,)
            axis.set_major_locator(LogLocator(subs=subs, numticks=_MAX_DECADES))
            axis.set_minor_locator(LogLocator(subs=range(2, 10), numticks=_MAX_DECADES))
        else:
            axis.set_major_locator(MaxNLocator(nbins="auto", integer=scale.whole))
        return
    step = -(-len(scale.ticks) // _MAX_TICKS)
    places = range(0, len(scale.ticks), step or 1)
    names = [shorten(scale.ticks[i], _TICK_CHARS) for i in places]
    axis.set_ticks(list(places), names)
    crowded = axis is axis.axes.xaxis and sum(len(name) + 2 for name in names) > 130
    if crowded:
        axis.set_tick_params(labelrotation=40)
        texts = [shorten(name, _TILTED_CHARS) for name in names]
        axis.set_ticklabels(texts, horizontalalignment="right", rotation_mode="anchor")


# --- marks -----------------------------------------------------------------------------------


def _scatter(ax: Axes, rows: pl.DataFrame, drawing: marks.Marks) -> None:
    size = 28 if rows.height < 500 else 14 if rows.height < 5_000 else 6
    if drawing.chart.size or drawing.chart.symbol:
        _sized(ax, rows, drawing, size)
        return
    ax.scatter(
        rows["x"],
        rows["y"],
        s=size,
        c=_shades(rows, drawing),
        alpha=0.85,
        linewidths=0,
        rasterized=rows.height > _RASTER_ABOVE,
    )
    ringed = rows.filter("emphasis")
    ax.scatter(
        ringed["x"], ringed["y"], s=size * 3, facecolors="none", edgecolors=INK, linewidths=1.1
    )


def _sized(ax: Axes, rows: pl.DataFrame, drawing: marks.Marks, size: float) -> None:
    """Draw points with areas and symbols, the largest below."""
    ordered = rows.sort("size", descending=True, nulls_last=True, maintain_order=True)
    areas = np.array([size * marks.radius(one or 0) ** 2 for one in ordered["size"]])
    for number, marker in enumerate(_MARKERS):
        chosen = (ordered["symbol"] == number).to_numpy()
        if chosen.any():
            some = ordered.filter(pl.Series(chosen))
            ax.scatter(
                some["x"], some["y"], s=areas[chosen], c=_shades(some, drawing), marker=marker,
                alpha=0.85, linewidths=0.6, edgecolors="white", zorder=3,
            )  # fmt: skip


def _reference_lines(ax: Axes, drawing: marks.Marks) -> None:
    """Draw lines with labels along them; a label of a slope is at its lower end."""
    wide, high = drawing.factors
    for label, *ends in drawing.lines:
        x, y, x2, y2 = ends[0] / wide, ends[1] / high, ends[2] / wide, ends[3] / high
        ax.plot([x, x2], [y, y2], color=INK, linewidth=1.0, zorder=2)
        style: dict[str, Any] = {"fontsize": 8, "color": INK, "va": "bottom", "parse_math": False}
        text = shorten(label, _LEGEND_CHARS)
        if y == y2:
            ax.text(x2, y2, text, ha="right", **style)
        else:
            angle = math.degrees(math.atan2(y2 - y, x2 - x))
            turned: dict[str, Any] = {"rotation_mode": "anchor", "transform_rotates_text": True}
            ax.text(x, y, text, rotation=angle, **turned, **style)


def _line(ax: Axes, rows: pl.DataFrame, drawing: marks.Marks) -> None:
    for color, shade in drawing.colors.items():
        line = rows.filter(pl.col("color").eq_missing(pl.lit(color))).sort("x", maintain_order=True)
        marker = "o" if line.height < 60 else ""
        ax.plot(line["x"], line["y"], color=shade, linewidth=1.4, marker=marker, markersize=3)
    ringed = rows.filter("emphasis")
    ax.scatter(
        ringed["x"], ringed["y"], s=70, facecolors="none", edgecolors=INK, linewidths=1.1, zorder=3
    )


def _bar(ax: Axes, rows: pl.DataFrame, drawing: marks.Marks) -> None:
    """Draw bars from 0; several colours at one position are side by side, or stacked."""
    if drawing.chart.stacked:
        _stacked(ax, rows, drawing)
        return
    places, pairs = rows["x"].n_unique(), rows.select("x", "color").n_unique()
    abreast = [c for c in drawing.colors if c is not None] if pairs > places else []
    width = _BAR_WIDTH / max(len(abreast), 1)
    lane = {color: index for index, color in enumerate(abreast)}
    offset = np.array([lane.get(color, 0) for color in rows["color"]]) * width - _BAR_WIDTH / 2
    height = rows["y"].to_numpy()
    floor = height[height > 0].min() / 2 if drawing.y.log else 0.0
    left = rows["x"].to_numpy() + offset
    _rectangles(ax, (left, left + width, np.full_like(height, floor), height), rows, drawing)
    if not drawing.y.log and height.min() >= 0:
        _from_zero(ax, drawing.rows["y"])


def _stacked(ax: Axes, rows: pl.DataFrame, drawing: marks.Marks) -> None:
    top = rows.select(pl.col("y").cum_sum().over("x")).to_series().to_numpy()
    left = rows["x"].to_numpy() - _BAR_WIDTH / 2
    _rectangles(ax, (left, left + _BAR_WIDTH, top - rows["y"].to_numpy(), top), rows, drawing)
    _from_zero(ax, drawing.rows.group_by("x", "panel").agg(pl.col("y").sum())["y"])


def _from_zero(ax: Axes, heights: pl.Series) -> None:
    """Let the shared vertical axis range from 0 to above the highest bar of all panels."""
    ax.set_ylim(0, _HEADROOM * float(heights.to_numpy().max(initial=0)) or 1)


def _span(ax: Axes, rows: pl.DataFrame, drawing: marks.Marks) -> None:
    middle = rows["y"].to_numpy()
    edges = (rows["x"].to_numpy(), rows["x2"].to_numpy(), middle - 0.4, middle + 0.4)
    _rectangles(ax, edges, rows, drawing)


def _rectangles(
    ax: Axes,
    edges: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    rows: pl.DataFrame,
    drawing: marks.Marks,
) -> None:
    left, right, bottom, top = edges
    corners = [(left, bottom), (right, bottom), (right, top), (left, top)]
    boxes = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)
    shades = _shades(rows, drawing)
    raster = rows.height > _RASTER_ABOVE
    ax.add_collection(
        PolyCollection(list(boxes), facecolors=shades, edgecolors=shades, lw=0.3, rasterized=raster)
    )
    framed = boxes[rows["emphasis"].to_numpy()]
    if len(framed):
        outline = np.concatenate([framed, framed[:, :1]], axis=1)
        ax.add_collection(LineCollection(list(outline), colors=INK, linewidths=1.1, zorder=3))
    ax.autoscale_view()


_MARKS: dict[str, Callable[[Axes, pl.DataFrame, marks.Marks], None]] = {
    "scatter": _scatter,
    "line": _line,
    "bar": _bar,
    "span": _span,
}


def _shades(rows: pl.DataFrame, drawing: marks.Marks) -> list[str]:
    return [drawing.colors[color] for color in rows["color"].to_list()]


# --- legend ----------------------------------------------------------------------------------


def _legend(drawing: marks.Marks, place: Any, where: str) -> None:
    chart = drawing.chart
    present = set(drawing.rows["color"].to_list()) if chart.color else set()
    labels = [(shade, _label(None, c)) for c, shade in drawing.colors.items() if c in present]
    entries = [
        (Line2D([], [], ls="", marker="s", ms=7, mfc=shade, mec=shade), label)
        for shade, label in labels
    ]
    if len(entries) > _LEGEND_ENTRIES:  # a ramp of numbers: every n-th is enough
        entries = entries[:: -(-len(entries) // _LEGEND_ENTRIES)]
    for marker, name in zip(_MARKERS, drawing.symbols, strict=False):
        symbol = Line2D([], [], ls="", marker=marker, ms=7, mfc="none", mec=INK)
        entries.append((symbol, shorten(name, _LEGEND_CHARS)))
    if chart.emphasis and drawing.rows["emphasis"].any():
        ring = Line2D([], [], ls="", marker="o", ms=8, mfc="none", mec=INK)
        entries.append((ring, prose(chart.emphasis_label)))
    memory.legend(place, entries, title=spaced(chart.color or ""), pad=0.3, where=where)


def _label(column: str | None, value: Any) -> str:
    """Return a shortened category; with a column, its name comes first."""
    text = shorten(marks.category(value, column or ""), _LEGEND_CHARS)
    return f"{spaced(column)} {text}" if column and value is not None else text


def _lanes_height(drawing: Lanes) -> float:
    """Return the height of the drawing in inches."""
    return 1.9 + min(0.26 * drawing.lanes.height, 6)


def _draw_lanes(drawing: Lanes, place: Figure | SubFigure) -> Axes:
    """Draw a timeline into a part of a figure."""
    place.suptitle(prose(drawing.title), x=0.01, horizontalalignment="left")
    ax: Axes = place.subplots()
    ax.grid(visible=False)
    (begin, end), rows = extent(drawing), drawing.lanes.height
    scale = scale_of("time_ns", end)
    ax.imshow(
        _lanes_image(drawing),
        extent=(begin / scale.factor, end / scale.factor, rows, 0),
        aspect="auto",
        interpolation="nearest",
    )
    labelled = range(rows) if rows <= _LANES_NAMED else _extreme_lanes(drawing)
    names = drawing.lanes["on"].to_list()
    ax.set_yticks(
        [row + 0.5 for row in labelled],
        [shorten(visible(names[row]), _LANE_CHARS) for row in labelled],
    )
    ax.set_xlabel(scale.heading("time"))
    _draw_steps(drawing, ax, scale.factor)
    for lane, start, end in drawing.marks.select("lane", "start", "end").iter_rows():
        row = drawing.lanes["lane"].to_list().index(lane)
        xs = [start / scale.factor, end / scale.factor]
        ax.plot([*xs, *xs[::-1], xs[0]], [row, row, row + 1, row + 1, row], color=INK, lw=1)
    _lanes_legend(drawing, ax, place)
    return ax


def _lanes_image(drawing: Lanes) -> npt.NDArray[np.uint8]:
    """Return the pixels: in each column of a row the states from the bottom, by their shares."""
    parts = shares(drawing, _LANE_COLUMNS)
    lanes, columns, _ = parts.shape
    tall = int(np.clip(_LANE_PIXELS // max(lanes, 1), _LOWEST, _TALLEST))
    colors = (palette.STATES[state][0] for state in drawing.names)
    inks = np.array([*(tuple(bytes.fromhex(color[1:])) for color in colors), (255,) * 3])
    until = np.cumsum(parts, axis=2)
    level = (np.arange(tall)[::-1] + 0.5) / tall
    state = (until[:, None, :, :] <= level[None, :, None, None]).sum(axis=3)
    pixels = inks[state]
    if tall > 6:  # a line between rows
        pixels[:, -1] = 255
    image: npt.NDArray[np.uint8] = pixels.reshape(lanes * tall, columns, 3).astype(np.uint8)
    return image


def _extreme_lanes(drawing: Lanes) -> list[int]:
    """Return the rows with most, median and least lost time, and the critical path."""
    lanes, by_loss = drawing.lanes["lane"].to_list(), drawing.by_loss
    chosen = {by_loss[0], by_loss[len(by_loss) // 2], by_loss[-1], *{*lanes} - {*by_loss}}
    return sorted(map(lanes.index, chosen))


def _draw_steps(drawing: Lanes, ax: Axes, factor: float) -> None:
    """Draw the steps of the first lane above the rows."""
    steps = drawing.steps.filter(pl.col("lane") == drawing.lanes["lane"][0])
    if steps.is_empty():
        return
    above = ax.secondary_xaxis("top")
    above.set_xlabel("step")
    every = max(steps.height // _STEPS, 1)
    rows = steps.select("step", "start", "end").rows()[::every]
    above.set_xticks(
        [start / factor for _, start, _ in rows],
        [shorten(visible(short_step(name)), _STEP_CHARS) for name, _, _ in rows],
        ha="left",
    )


def _lanes_legend(drawing: Lanes, ax: Axes, place: Figure | SubFigure) -> None:
    used = set(drawing.states["state"].unique())
    for state, label in drawing.names.items():
        if state in used:
            ink = palette.STATES[state][0]
            ax.plot([], [], ls="", marker="s", ms=9, color=ink, label=prose(label))
    place.legend(loc="outside lower left", ncols=4)
