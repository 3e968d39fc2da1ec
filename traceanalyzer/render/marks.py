"""Positions, units and colours of a chart, independent of the drawing library."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceanalyzer.drawings import Chart
from traceanalyzer.render.palette import MEANINGS
from traceanalyzer.render.text import Scale, cells, prose, scale_of

MUTED = "#8b949e"
OTHERS = "others"
# The ten colours of M. A. Petroff, "Accessible Color Sequences for Data Visualization" (2021).
# fmt: off
PALETTE = (
    "#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6",
    "#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd",
)
# fmt: on
# Five points of matplotlib's viridis, whose brightness is even: readable without colour vision.
_RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (220, 220, 50))
#: Symbols of points, in the order of the values.
SYMBOLS = ("circle", "square", "triangle", "diamond")
#: Most panels of one chart; further ones are not drawn.
MAX_PANELS = 16


@dataclass(frozen=True)
class AxisScale:
    """One axis: its label with unit; for categories, their names at integer positions.

    Names are escaped but not shortened; the caller shortens them.
    """

    label: str
    ticks: list[str] | None = None
    whole: bool = False
    log: bool = False


@dataclass(frozen=True)
class Marks:
    """A chart ready to draw.

    Attributes:
        chart: the chart.
        frame: rows of the chart with a position.
        rows: one row per mark, in the order of the frame: x, y, x2 as floats in the axes' units;
            color, panel, emphasis, size (0 to 1, or null), symbol (its number in ``symbols``).
        x: the horizontal axis.
        y: the vertical axis.
        colors: hex colour of each value of ``color``.
        symbols: values of the column of symbols, in the order of :data:`SYMBOLS`.
        lines: reference lines: label (escaped), x, y, x2, y2 in the units of the columns.
        factors: of both axes: values of the columns are divided by them.
    """

    chart: Chart
    frame: pl.DataFrame
    rows: pl.DataFrame
    x: AxisScale
    y: AxisScale
    colors: dict[Any, str]
    symbols: tuple[str, ...] = ()
    lines: tuple[tuple[str, float, float, float, float], ...] = ()
    factors: tuple[float, float] = (1, 1)

    @property
    def panels(self) -> list[Any]:
        """Return the values of the panels in order; one None for a single panel."""
        return _distinct(self.rows["panel"]) or [None]


def prepare(chart: Chart) -> Marks:
    """Return the rows of a chart that have a position, with positions and colours."""
    frame = chart.frame.drop_nulls([c for c in (chart.x, chart.y, chart.x2) if c])
    if chart.log_x and frame[chart.x].dtype.is_numeric():
        frame = frame.filter(pl.col(chart.x) > 0)
    across = tuple(filter(None, (chart.x, chart.x2)))
    x, x_axis = _axis(frame, across, chart.x_label, named=chart.mark == "bar")
    y, y_axis = _axis(frame, (chart.y,), chart.y_label, named=chart.mark == "span")
    colors, color = _colors(frame, chart.color)
    rows = pl.DataFrame(
        {
            "x": x,
            "y": y,
            "x2": _scaled(frame, chart.x2, _scale(frame, across)) if chart.x2 else x,
            "color": color,
            "panel": frame[chart.panel] if chart.panel else _same(frame, None),
            "emphasis": frame[chart.emphasis] if chart.emphasis else _same(frame, value=False),
            "size": frame[chart.size] if chart.size else _same(frame, None).cast(pl.Float64),
            "symbol": _symbol_numbers(frame, chart.symbol),
        }
    ).with_columns(pl.col("emphasis").fill_null(value=False))
    log = chart.log_y and y_axis.ticks is None and bool((rows["y"] > 0).any())
    log_x = chart.log_x and x_axis.ticks is None and bool(rows.height)
    return Marks(
        chart,
        frame,
        rows,
        replace(x_axis, log=log_x),
        replace(y_axis, log=log),
        colors,
        tuple(_symbols(frame, chart.symbol)),
        tuple(_lines(chart, frame)),
        (_scale(frame, across).factor, _scale(frame, (chart.y,)).factor),
    )


def radius(size: float) -> float:
    """Return the radius of a point of this share of the largest area, as a factor."""
    return 1 + 2.2 * math.sqrt(max(min(size, 1.0), 0.0))


def _symbols(frame: pl.DataFrame, column: str | None) -> list[str]:
    """Return the values that have symbols; further ones share the last symbol."""
    if column is None:
        return []
    return [category(value) for value in _distinct(frame[column])[: len(SYMBOLS)]]


def _symbol_numbers(frame: pl.DataFrame, column: str | None) -> pl.Series:
    if column is None:
        return pl.zeros(frame.height, pl.Int64, eager=True)
    names = _distinct(frame[column])
    last = len(SYMBOLS) - 1
    numbers = [min(number, last) for number in range(len(names))]
    return _comparable(frame[column]).replace_strict(
        names, numbers, default=last, return_dtype=pl.Int64
    )


def _lines(chart: Chart, frame: pl.DataFrame) -> Iterator[tuple[str, float, float, float, float]]:
    """Yield the reference lines that the axes can show."""
    if chart.lines is None or not frame.height:
        return
    for label, x, y, x2, y2 in chart.lines.select(("label", "x", "y", "x2", "y2")).iter_rows():
        if not (chart.log_x and min(x, x2) <= 0) and not (chart.log_y and min(y, y2) <= 0):
            yield prose(label), x, y, x2, y2


def category(value: Any, column: str = "") -> str:
    """Return a category as escaped text, not shortened."""
    return "unknown" if value is None else cells(column, [value])[1][0]


def _axis(
    frame: pl.DataFrame, columns: tuple[str, ...], label: str, *, named: bool
) -> tuple[NDArray[np.float64], AxisScale]:
    """Return positions of the first column; text and ``named`` values are at integers.

    The unit of the axis fits all its columns.
    """
    column = columns[0]
    values, label = frame[column], prose(label)
    if values.dtype.is_numeric() and not named:
        scale = _scale(frame, columns)
        whole = values.dtype.is_integer() and scale.factor == 1
        return _scaled(frame, column, scale), AxisScale(scale.heading(label), whole=whole)
    distinct = _distinct(values)
    places = _comparable(values).replace_strict(
        distinct, list(range(len(distinct))), return_dtype=pl.Float64
    )
    scale, ticks = cells(column, distinct)
    return places.to_numpy(), AxisScale(scale.heading(label), ticks=ticks)


def _scale(frame: pl.DataFrame, columns: tuple[str, ...]) -> Scale:
    """Return the unit of an axis by its largest value."""
    if not frame[columns[0]].dtype.is_numeric():
        return Scale()
    values = pl.concat([frame[column].cast(pl.Float64) for column in columns])
    largest = values.abs().max()
    return scale_of(columns[0], largest if isinstance(largest, float) else 0)


def _scaled(frame: pl.DataFrame, column: str, scale: Scale) -> NDArray[np.float64]:
    return frame[column].cast(pl.Float64).to_numpy() / scale.factor


def _colors(frame: pl.DataFrame, column: str | None) -> tuple[dict[Any, str], pl.Series]:
    """Return a colour per category; rare names share one, quantities and many numbers have a ramp.

    Names with a meaning have the same colour in all charts (``palette.MEANINGS``).

    All categories of an Enum get one, so that charts with some of them agree.
    """
    if column is None:
        return {None: PALETTE[0]}, _same(frame, None)
    dtype, values = frame[column].dtype, _comparable(frame[column])
    distinct = dtype.categories.to_list() if isinstance(dtype, pl.Enum) else _distinct(values)
    fixed = {name: MEANINGS[name] for name in distinct if name in MEANINGS}
    others = [name for name in distinct if name not in fixed]
    free = [ink for ink in PALETTE if ink not in fixed.values()]
    if fixed:  # colours that have a meaning elsewhere last
        free.sort(key=lambda ink: ink in MEANINGS.values())
    if len(others) <= len(free) and not values.dtype.is_float():
        inks = fixed | dict(zip(others, free, strict=False))
        colors = {name: inks[name] for name in distinct}
    elif values.dtype.is_numeric():
        colors = dict(zip(distinct, _ramp(len(distinct)), strict=True))
    else:
        values = _rare_as_others(values)
        kept = [name for name in _distinct(values) if name != OTHERS]
        colors = {**dict(zip(kept, PALETTE, strict=False)), OTHERS: MUTED}
    return {**colors, None: MUTED}, values


def _rare_as_others(values: pl.Series) -> pl.Series:
    """Replace all but the most frequent names by ``others``."""
    counts = values.drop_nulls().alias("name").value_counts()
    common = counts.sort(["count", "name"], descending=[True, False])["name"]
    kept = common.head(len(PALETTE) - 1).to_list()
    return values.to_frame("name").select(
        pl.when(pl.col("name").is_in(kept) | pl.col("name").is_null())
        .then(pl.col("name"))
        .otherwise(pl.lit(OTHERS))
    )["name"]


def _ramp(count: int) -> list[str]:
    at = np.linspace(0, len(_RAMP) - 1, count)
    parts = [np.interp(at, range(len(_RAMP)), channel) for channel in zip(*_RAMP, strict=True)]
    rgb = np.stack(parts, axis=1).round().astype(int).tolist()
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in rgb]


def _same(frame: pl.DataFrame, value: bool | None) -> pl.Series:
    return pl.Series([value] * frame.height, dtype=pl.Boolean)


def _comparable(values: pl.Series) -> pl.Series:
    return values if values.dtype.is_numeric() else values.cast(pl.String)


def _distinct(values: pl.Series) -> list[Any]:
    """Return distinct numbers in order, names in the order of their Enum or of the frame."""
    if isinstance(values.dtype, pl.Enum):
        values = values.drop_nulls().sort()
    present = _comparable(values).drop_nulls()
    if present.dtype.is_numeric():
        return present.unique().sort().to_list()
    return present.unique(maintain_order=True).to_list()
