"""Interactive charts in pages, with the same marks as in a plot.

In: :class:`traceanalyzer.drawings.Chart`. Out: a figure with a summary in text, its first rows as a
table, and the data for the viewer (``data``). The viewer draws SVG: ``elements.js``, ``scale.js``,
``data.js``, ``marks.js``, ``axis.js``, ``legend.js``, ``gestures.js``, ``viewer.js``. Only
:mod:`traceanalyzer.render` imports this package.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.drawings import Chart
from traceanalyzer.render import pieces
from traceanalyzer.render.marks import MAX_PANELS, AxisScale, Marks, category, prepare, radius
from traceanalyzer.render.text import (
    cells,
    is_identifier,
    is_number,
    kind_of,
    prose,
    scale_of,
    shorten,
    spaced,
)

_ROWS, _CHARS, _NAMES = 10, 60, 6
_MARKS = {"scatter": "points", "line": "points of lines", "bar": "bars", "span": "bars"}

#: Script and style of the charts.
VIEWER = pieces.Viewer(
    __name__, ("elements", "scale", "data", "marks", "axis", "legend", "gestures", "viewer")
)


def inline(chart: Chart, key: str) -> str:
    """Return the figure for a page with the style and, at its end, the script of the viewer.

    Args:
        chart: the chart.
        key: prefix of its ids, unique on the page.
    """
    marks = prepare(chart)
    packed = pack(marks)
    content = pieces.caption(key, chart.title, summary(marks))
    if packed.drawn:
        text = pieces.escaped(packed.left_out)
        left_out = f'<p class="soft left-out">{text}</p>\n' if text else ""
        content += pieces.drawn(left_out + _outline(marks), packed.json)
    return pieces.figure("chart", key, content)


def summary(marks: Marks) -> str:
    """Return a summary of the chart in a few sentences."""
    chart, rows = marks.chart, marks.rows
    if not rows.height:
        return "Nothing to draw."
    parts = [f"{rows.height:,} {_MARKS[chart.mark]}"]
    parts.append(_extent(chart.y_label or "", marks.y, marks.frame[chart.y], chart.y))
    parts.append(_extent(chart.x_label or "", marks.x, marks.frame[chart.x], chart.x))
    if chart.color:
        parts.append(_names(chart.color, [c for c in marks.colors if c in set(rows["color"])]))
    if chart.panel:
        parts.append(_names(chart.panel, marks.panels))
    ringed = int(rows["emphasis"].sum())
    if ringed:
        parts.append(f"{ringed:,} ringed: {chart.emphasis_label}")
    return "; ".join(part for part in parts if part) + "."


def _outline(marks: Marks) -> str:
    """Return the first rows as a collapsed HTML table."""
    chart, frame = marks.chart, marks.frame
    headed = {
        chart.x: chart.x_label or spaced(chart.x),
        chart.x2: "end",
        chart.y: chart.y_label or spaced(chart.y),
        chart.color: spaced(chart.color or ""),
        chart.symbol: spaced(chart.symbol or ""),
        chart.panel: spaced(chart.panel or ""),
        chart.emphasis: chart.emphasis_label,
    }
    heads, columns = [], []
    for name, label in headed.items():
        if name is None:
            continue
        values = frame[name].head(_ROWS).to_list()
        scale, texts = cells(name, values)
        number = is_number(values)
        heads.append((pieces.escaped(scale.heading(label)), number))
        columns.append([pieces.cell(shorten(text, _CHARS), number=number) for text in texts])
    count = min(_ROWS, frame.height)
    title = f"First {count} of {frame.height:,} rows" if count < frame.height else "All rows"
    table = pieces.table(title, heads, zip(*columns, strict=True))
    return f"<details><summary>{title}</summary>\n{table}</details>"


def _extent(label: str, axis: AxisScale, values: pl.Series, column: str) -> str:
    if axis.ticks is not None:
        first, last = axis.ticks[0], axis.ticks[-1]
        extent = first if len(axis.ticks) == 1 else f"{len(axis.ticks):,}, {first} to {last}"
        return f"{label or spaced(column)}: {shorten(extent, 2 * _CHARS)}"
    scale, (low, high) = cells(column, [values.min(), values.max()])
    return f"{label or spaced(column)}: {low} to {high} {scale.unit}".rstrip()


def _names(column: str, values: list[Any]) -> str:
    named = [shorten(category(value), _CHARS) for value in values[:_NAMES]]
    more = f" and {len(values) - _NAMES:,} more" if len(values) > _NAMES else ""
    return f"{spaced(column)}: {', '.join(named)}{more}"


_DATA_ROWS = 12_000  # of one chart
_BYTES = 300_000  # of JSON
_TEXT_CHARS = 160
_EXACT = 1 << 53  # up to this integers are exact in a browser
_LARGE = 1e100  # larger values, infinity and NaN are not drawn
_SPARSE = 4  # bars further apart than this many widths have names instead of a scale

#: Marks that are kept by sampling.
_KEPT = {
    "scatter": "the extremes and every n-th other point",
    "line": "the extremes of each interval",
    "bar": "the largest",
    "span": "the longest",
}


@dataclass(frozen=True)
class Packed:
    """JSON of a chart, the number of marks in it, and a sentence about the others."""

    json: str
    drawn: int
    left_out: str


def pack(marks: Marks) -> Packed:
    """Return the JSON of a chart for a ``script`` element."""
    panels = marks.panels[:MAX_PANELS]
    rows = _numbered(marks, panels)
    limit = _DATA_ROWS
    while True:
        kept = thin(rows, marks.chart.mark, limit)
        text = pieces.pack(_content(marks, kept, panels))
        if len(text) <= _BYTES or not kept.height:
            return Packed(text, kept.height, _left_out(marks, kept.height, rows.height))
        limit = min(limit, kept.height) // 2


def _left_out(marks: Marks, drawn: int, total: int) -> str:
    sentences = []
    if len(marks.panels) > MAX_PANELS:
        sentences.append(f"The first {MAX_PANELS} of {len(marks.panels):,} panels are drawn.")
    if drawn < total:
        mark = marks.chart.mark
        name = {"scatter": "points", "line": "points"}.get(mark, f"{mark}s")
        sentences.append(f"{drawn:,} of {total:,} {name} are drawn: {_KEPT[mark]}.")
    return " ".join(sentences)


# --- rows ------------------------------------------------------------------------------------


def _numbered(marks: Marks, panels: list[Any]) -> pl.DataFrame:
    """Return a row per mark: exact position, index of its colour and of its panel."""
    chart, scaled = marks.chart, marks.rows
    names = {str(panel): number for number, panel in enumerate(panels)}
    panel = (
        scaled["panel"].cast(pl.String).replace_strict(names, default=None, return_dtype=pl.Int64)
    )
    colors = pl.Series(list(marks.colors), dtype=scaled["color"].dtype)
    numbers = pl.Series(range(len(colors)), dtype=pl.Int64)
    color = scaled["color"].replace_strict(colors, numbers, default=None)
    x_named = _named(marks, "x")
    rows = pl.DataFrame(
        {
            "x": scaled["x"].cast(pl.Int64) if x_named else marks.frame[chart.x],
            "y": scaled["y"].cast(pl.Int64) if _named(marks, "y") else marks.frame[chart.y],
            "x2": marks.frame[chart.x2 or chart.x] if not x_named else scaled["x"],
            "color": color,
            "panel": panel if chart.panel else pl.zeros(scaled.height, pl.Int64, eager=True),
            "emphasis": scaled["emphasis"],
            "size": scaled["size"],
            "symbol": scaled["symbol"],
            "label": marks.frame[chart.label].cast(pl.String) if chart.label else scaled["symbol"],
        }
    ).drop_nulls(["panel", "color"])
    rows = rows.with_columns(pl.col("x", "y", "x2").map_batches(_plain))
    rows = rows.filter(pl.all_horizontal(pl.col("x", "y", "x2").abs() < _LARGE))
    by = ["panel", "x"] if chart.mark == "bar" else ["x"]
    return rows.sort(by, maintain_order=True)


def _plain(values: pl.Series) -> pl.Series:
    """Return integers or floats, with denormal values set to 0."""
    if values.dtype.is_integer():
        return values
    floats = values.cast(pl.Float64)
    return floats.set(floats.abs() < 1 / _LARGE, 0.0)


def _named(marks: Marks, axis: str) -> bool:
    """Return whether an axis has names; bars at evenly spaced times or sizes are to scale."""
    scale: AxisScale = getattr(marks, axis)
    return scale.ticks is not None and not (axis == "x" and _bar_width(marks))


def _bar_width(marks: Marks) -> float:
    """Return the width of bars on an axis with a unit; 0 for an axis with names."""
    chart, values = marks.chart, marks.frame[marks.chart.x]
    if chart.mark != "bar" or not values.dtype.is_numeric() or not kind_of(chart.x):
        return 0
    places = values.unique().sort()
    if len(places) < 2:
        return 0
    apart = float(places.diff().min() or 0)  # type: ignore[arg-type]
    span = float(places[-1]) - float(places[0])
    return apart if span < _SPARSE * apart * len(places) else 0


# --- content ---------------------------------------------------------------------------------


def _content(marks: Marks, rows: pl.DataFrame, panels: list[Any]) -> dict[str, Any]:
    chart = marks.chart
    (x, x_from), (y, y_from) = _axis(marks, "x", rows), _axis(marks, "y", rows)
    named = [axis for axis, about in (("x", x), ("y", y)) if "names" in about]
    rows = rows.with_columns(pl.col(named).rank("dense").cast(pl.Int64) - 1)
    color, legend = _colors(marks, rows)
    columns: dict[str, Any] = {
        "x": _column(rows["x"], x_from),
        "y": _column(rows["y"], y_from),
        "color": color,
    }
    if chart.x2:
        columns["x2"] = _column(rows["x2"], x_from)
    if chart.size:
        columns["size"] = [_short(radius(size or 0)) for size in rows["size"]]
    if chart.label:
        names = rows["label"].fill_null("").unique(maintain_order=True).to_list()
        at = {name: number for number, name in enumerate(names)}
        columns["label"] = [at[name or ""] for name in rows["label"]]
        columns["labels"] = [_text(category(name)) for name in names]
    if chart.symbol:
        columns["symbol"] = rows["symbol"].to_list()
    if len(panels) > 1:
        columns["panel"] = rows["panel"].to_list()
    ringed = rows["emphasis"].arg_true().to_list()
    return {
        "mark": chart.mark,
        "x": x,
        "y": y,
        "log": marks.y.log,
        "logX": marks.x.log,
        "symbols": [_text(name) for name in marks.symbols],
        "lines": [[_text(label), *map(_short, ends)] for label, *ends in marks.lines],
        "stacked": chart.stacked,
        "width": _bar_width(marks),
        "group": spaced(prose(chart.color or "")),
        "colors": legend,
        "panels": [_panel(panel, chart.panel or "") for panel in panels],
        "ring": prose(chart.emphasis_label) if ringed else "",
        "ringed": ringed,
        "rows": columns,
    }


def _axis(marks: Marks, axis: str, rows: pl.DataFrame) -> tuple[dict[str, Any], int]:
    """Return the description of an axis, and the origin of its values."""
    chart = marks.chart
    scale: AxisScale = getattr(marks, axis)
    column: str = getattr(chart, axis)
    if _named(marks, axis):
        used = rows[axis].unique().sort().to_list()
        ticks = scale.ticks or []
        return {"label": scale.label, "names": [_text(ticks[place]) for place in used]}, 0
    label, kind = prose(getattr(chart, f"{axis}_label")), kind_of(column)
    values, whole = rows[axis].to_list(), rows[axis].dtype.is_integer()
    if axis == "x" and chart.x2:
        values += rows["x2"].to_list()
    low, high = min(values, default=0), max(values, default=0)
    far = whole and max(high, -low) > _EXACT
    origin = low if far else 0
    if far:
        label = f"{label} after {origin:,} {kind}".rstrip()
    unit = scale_of(column, float(max(high - origin, origin - low))).unit
    about = {"label": label, "kind": kind, "unit": unit, "whole": whole}
    return {**about, "grouped": not is_identifier(column)}, origin


def _colors(marks: Marks, rows: pl.DataFrame) -> tuple[list[int], list[list[str]]]:
    """Return the colour index of each mark, and name and hex code of the colours in use."""
    every = list(marks.colors.items())
    used = [every[number] for number in rows["color"].unique().sort()]
    places = rows["color"].rank("dense").cast(pl.Int64) - 1
    return places.to_list(), [[_text(category(value)), fill] for value, fill in used]


def _panel(value: Any, column: str) -> str:
    """Return the name of a panel; a number follows the name of its column."""
    text = _text(category(value, column))
    return text if value is None or isinstance(value, str) else f"{spaced(prose(column))} {text}"


def _column(values: pl.Series, origin: int) -> dict[str, list[Any]]:
    """Return integers as differences, other numbers with nine digits."""
    numbers = [value - origin for value in values.to_list()]
    if values.dtype.is_integer():
        return {"steps": pieces.differences(numbers)}
    return {"values": [_short(number) for number in numbers]}


def _short(value: float) -> float | int:
    rounded = float(f"{value:.9g}")
    return int(rounded) if rounded.is_integer() else rounded


def _text(text: str) -> str:
    return shorten(text, _TEXT_CHARS)


# --- sampling of many marks ----------------------------------------------------------------


def thin(rows: pl.DataFrame, mark: str, limit: int) -> pl.DataFrame:
    """Return at most ``limit`` rows in order, those that determine the image.

    Args:
        rows: ``x``, ``y``, ``x2``, ``color``, ``panel`` as numbers, and ``emphasis``.
        mark: type of mark.
        limit: number of rows to keep.
    """
    if rows.height <= limit:
        return rows
    rows = rows.with_row_index("row")
    ringed = rows.filter("emphasis")
    if ringed.height > limit // 2:
        ringed = ringed.top_k(limit // 2, by="y")
    kept = _KEEPERS[mark](rows, limit - ringed.height)
    chosen = pl.concat([ringed["row"], kept]).unique().sort()
    return rows.filter(pl.col("row").is_in(chosen.implode())).drop("row")


def _scatter(rows: pl.DataFrame, limit: int) -> pl.Series:
    edges = _per_interval(rows, ["panel", "color"], limit // 2, _ENDS[:2])
    return pl.concat([edges, _every(rows["row"], limit - len(edges))])


def _line(rows: pl.DataFrame, limit: int) -> pl.Series:
    return _per_interval(rows, ["panel", "color"], limit, _ENDS)


def _span(rows: pl.DataFrame, limit: int) -> pl.Series:
    length = pl.col("x2").cast(pl.Float64) - pl.col("x").cast(pl.Float64)
    long = rows.with_columns(y=length.abs(), lane=pl.col("y"))
    ends = _per_interval(long, ["panel", "lane", "color"], limit // 2, _ENDS[:1])
    return pl.concat([ends, long.top_k(limit - len(ends), by="y")["row"]])


def _bar(rows: pl.DataFrame, limit: int) -> pl.Series:
    """Keep all bars of a position or none, so that stacks stay complete."""
    place = ["panel", "x"]
    sizes = rows.group_by(place).agg(pl.col("y").abs().sum().alias("size"), pl.len())
    ranked = sizes.sort(["size", *place], descending=[True, False, False])
    kept = ranked.filter(pl.col("len").cum_sum() <= limit)
    return rows.join(kept, on=place, how="semi")["row"]


_KEEPERS: dict[str, Callable[[pl.DataFrame, int], pl.Series]] = {
    "scatter": _scatter,
    "line": _line,
    "bar": _bar,
    "span": _span,
}
_ENDS = (
    pl.col("row").sort_by("y", descending=True, maintain_order=True).first().alias("high"),
    pl.col("row").sort_by("y", maintain_order=True).first().alias("low"),
    pl.col("row").first().alias("first"),
    pl.col("row").last().alias("last"),
)


def _per_interval(
    rows: pl.DataFrame, group: list[str], limit: int, ends: tuple[pl.Expr, ...]
) -> pl.Series:
    """Return some rows of each interval of the horizontal axis, at most ``limit`` in total."""
    intervals = max(limit // (len(ends) * rows.select(group).n_unique()), 1)
    low, high = rows["x"].min(), rows["x"].max()
    wide = (pl.lit(high) - pl.lit(low)).cast(pl.Float64)
    at = (pl.col("x") - pl.lit(low)).cast(pl.Float64) * intervals / wide
    interval = at.fill_nan(0).clip(0, intervals - 1).cast(pl.Int64).alias("interval")
    extremes = rows.group_by([*group, interval], maintain_order=True).agg(ends)
    chosen = pl.concat([extremes[end.meta.output_name()] for end in ends]).unique().sort()
    return _every(chosen, limit)


def _every(rows: pl.Series, limit: int) -> pl.Series:
    """Return at most ``limit`` evenly spaced rows."""
    return rows.gather_every(-(-len(rows) // limit)) if len(rows) > limit > 0 else rows.head(limit)
