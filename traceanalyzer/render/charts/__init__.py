"""Charts in pages: drawn by the browser, to be looked into; the same marks as in a plot.

In: :class:`traceanalyzer.result.Chart`. Out: a figure that says in words what is in it, with its
first rows as a table, and the data that the viewer draws (``data``). The viewer draws SVG:
``elements.js``, ``scale.js``, ``data.js``, ``marks.js``, ``axis.js``, ``legend.js``,
``gestures.js``, ``viewer.js``. Only :mod:`traceanalyzer.render` imports this folder.
"""

from typing import Any

import polars as pl

from traceanalyzer.render import pieces
from traceanalyzer.render.charts.data import pack
from traceanalyzer.render.marks import AxisScale, Marks, category, prepare
from traceanalyzer.render.text import cells, is_number, shorten, spaced
from traceanalyzer.result import Chart

_ROWS, _CHARS, _NAMES = 10, 60, 6
_MARKS = {"scatter": "points", "line": "points of lines", "bar": "bars", "span": "bars"}

#: What draws in the page.
VIEWER = pieces.Viewer(
    __name__, ("elements", "scale", "data", "marks", "axis", "legend", "gestures", "viewer")
)


def inline(chart: Chart, key: str) -> str:
    """The figure for a page that holds the viewer's style and, at its end, its script.

    Args:
        chart: what to draw.
        key: prefix of its ids, unique on the page.
    """
    marks = prepare(chart)
    packed = pack(marks)
    content = (
        f'<figcaption id="{key}-title">{pieces.escaped(chart.title)}</figcaption>\n'
        f'<p class="soft said" id="{key}-said">{pieces.escaped(summary(marks))}</p>\n'
    )
    if packed.drawn:
        text = pieces.escaped(packed.left_out)
        left_out = f'<p class="soft left-out">{text}</p>\n' if text else ""
        content += pieces.drawn(left_out + _outline(marks), packed.json)
    return pieces.figure("chart", key, content)


def summary(marks: Marks) -> str:
    """What there is to see, in a sentence or a few."""
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
    """The first rows as a table, HTML, folded."""
    chart, frame = marks.chart, marks.frame
    headed = {
        chart.x: chart.x_label or spaced(chart.x),
        chart.x2: "from" if chart.mark == "span" else "to",
        chart.y: chart.y_label or spaced(chart.y),
        chart.color: spaced(chart.color or ""),
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
    shown = min(_ROWS, frame.height)
    title = f"The first {shown} of {frame.height:,} rows" if shown < frame.height else "Its rows"
    table = pieces.table(title, heads, zip(*columns, strict=True))
    return f"<details><summary>{title}</summary>\n{table}</details>"


def _extent(label: str, axis: AxisScale, values: pl.Series, column: str) -> str:
    if axis.ticks is not None:
        first, last = axis.ticks[0], axis.ticks[-1]
        there = first if len(axis.ticks) == 1 else f"{len(axis.ticks):,}, {first} to {last}"
        return f"{label or spaced(column)}: {shorten(there, 2 * _CHARS)}"
    scale, (low, high) = cells(column, [values.min(), values.max()])
    return f"{label or spaced(column)}: {low} to {high} {scale.unit}".rstrip()


def _names(column: str, values: list[Any]) -> str:
    named = [shorten(category(value), _CHARS) for value in values[:_NAMES]]
    more = f" and {len(values) - _NAMES:,} more" if len(values) > _NAMES else ""
    return f"{spaced(column)}: {', '.join(named)}{more}"
