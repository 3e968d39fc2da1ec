"""Interactive charts in pages, with the same marks as in a plot.

In: :class:`traceanalyzer.drawings.Chart`. Out: a figure with a summary in text, its first rows as a
table, and the data for the viewer (``data``). The viewer draws SVG: ``elements.js``, ``scale.js``,
``data.js``, ``marks.js``, ``axis.js``, ``legend.js``, ``gestures.js``, ``viewer.js``. Only
:mod:`traceanalyzer.render` imports this package.
"""

from typing import Any

import polars as pl

from traceanalyzer.drawings import Chart
from traceanalyzer.render import pieces
from traceanalyzer.render.charts.data import pack
from traceanalyzer.render.marks import AxisScale, Marks, category, prepare
from traceanalyzer.render.text import cells, is_number, shorten, spaced

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
    content = (
        f'<figcaption id="{key}-title">{pieces.escaped(chart.title)}</figcaption>\n'
        f'<p class="soft summary" id="{key}-summary">{pieces.escaped(summary(marks))}</p>\n'
    )
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
