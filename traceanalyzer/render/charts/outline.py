"""A chart in words: what it would show, and its first rows as a table."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from traceanalyzer.render.marks import category
from traceanalyzer.render.scale import cells, is_number
from traceanalyzer.render.text import prose, shorten

if TYPE_CHECKING:
    import polars as pl

    from traceanalyzer.render.marks import AxisScale, Marks

_ROWS, _CHARS, _NAMES = 10, 60, 6
_MARKS = {"scatter": "points", "line": "points of lines", "bar": "bars", "span": "bars"}


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


def outline(marks: Marks) -> str:
    """The first rows as a table, HTML, folded."""
    chart, frame = marks.chart, marks.frame
    headed = {
        chart.x: chart.x_label or _words(chart.x),
        chart.x2: "from" if chart.mark == "span" else "to",
        chart.y: chart.y_label or _words(chart.y),
        chart.color: _words(chart.color or ""),
        chart.panel: _words(chart.panel or ""),
        chart.emphasis: chart.emphasis_label,
    }
    heads, columns = [], []
    for name, label in headed.items():
        if name is None:
            continue
        values = frame[name].head(_ROWS).to_list()
        scale, texts = cells(name, values)
        align = ' class="number"' if is_number(values) else ""
        heads.append(f'<th scope="col"{align}>{escape(prose(scale.heading(label)))}</th>')
        columns.append([f"<td{align}>{escape(shorten(text, _CHARS))}</td>" for text in texts])
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in zip(*columns, strict=True))
    shown = min(_ROWS, frame.height)
    title = f"The first {shown} of {frame.height:,} rows" if shown < frame.height else "Its rows"
    return (
        f"<details><summary>{title}</summary>\n"
        f'<div class="scroll" role="region" aria-label="{title}" tabindex="0"><table>'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div></details>"
    )


def _extent(label: str, axis: AxisScale, values: pl.Series, column: str) -> str:
    if axis.ticks is not None:
        first, last = axis.ticks[0], axis.ticks[-1]
        there = first if len(axis.ticks) == 1 else f"{len(axis.ticks):,}, {first} to {last}"
        return f"{label or _words(column)}: {shorten(there, 2 * _CHARS)}"
    scale, (low, high) = cells(column, [values.min(), values.max()])
    return f"{label or _words(column)}: {low} to {high} {scale.unit}".rstrip()


def _names(column: str, values: list[Any]) -> str:
    named = [shorten(category(value), _CHARS) for value in values[:_NAMES]]
    more = f" and {len(values) - _NAMES:,} more" if len(values) > _NAMES else ""
    return f"{_words(column)}: {', '.join(named)}{more}"


def _words(column: str) -> str:
    return column.replace("_", " ")
