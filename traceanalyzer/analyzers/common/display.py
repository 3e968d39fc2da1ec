"""Tables and charts that the results of several analyzers have alike."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from traceanalyzer.result import Chart, Table

#: Bars of a chart.
BARS = 15


def headings(text: str) -> dict[str, str]:
    """The columns of a table and their headings from ``step, late_ns: late by``.

    A column without a heading is headed by its name.
    """
    pairs = (item.partition(": ") for item in re.split(r",\s+", text))
    return {name: heading or name for name, _, heading in pairs}


def sentences(*texts: str) -> str:
    """One paragraph of those that are not empty."""
    return " ".join(text for text in texts if text)


def known_columns(frame: pl.DataFrame, columns: Mapping[str, str]) -> dict[str, str]:
    """The columns in which not every value is null, and their headings."""
    return {
        name: heading
        for name, heading in columns.items()
        if name in frame.columns and frame[name].null_count() < frame.height
    }


def table_of_known(
    name: str, title: str, frame: pl.DataFrame, columns: Mapping[str, str], **more: Any
) -> Table:
    """A table without the columns in which every value is null."""
    return Table(name, title, frame, known_columns(frame, columns) or columns, **more)


def rank_column(ranks: pl.DataFrame) -> dict[str, str]:
    """The column that names ranks, or files where no rank is known, and its heading."""
    known = ranks["rank"].null_count() < ranks.height
    return {"rank": "rank"} if known else {"path": "file"}


def listed(texts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


def bars(
    name: str,
    title: str,
    rows: pl.DataFrame,
    *,
    length: str,
    label: str,
    x_label: str = "total",
    color: str | None = None,
) -> Chart:
    """Horizontal bars of the first rows whose length, in ns, is not zero.

    Args:
        name: key of the chart.
        title: what the picture says.
        rows: the longest first.
        length: the column of lengths.
        label: the column of labels.
        x_label: what the lengths are.
        color: the column that colours bars, or None.
    """
    frame = rows.filter(pl.col(length) > 0).head(BARS)
    return Chart(
        name=name,
        title=title,
        mark="span",
        frame=frame.with_columns(zero_ns=pl.lit(0, pl.Int64)),
        x=length,
        x2="zero_ns",
        y=label,
        x_label=x_label,
        color=color,
    )


def stacked(
    name: str,
    title: str,
    frame: pl.DataFrame,
    x: str,
    *,
    y: str = "time_ns",
    x_label: str | None = None,
    y_label: str = "time",
    color: str = "part",
    panel: str | None = None,
) -> Chart:
    """Bars on top of one another.

    Args:
        name: key of the chart.
        title: what the picture says.
        frame: a row for each piece of a bar.
        x: the column that bars are for, ``on`` for what is named there.
        y: the column of lengths.
        x_label: of the axis, by default the column.
        y_label: of the axis.
        color: the column that colours pieces.
        panel: the column whose values get a panel each, or None.
    """
    return Chart(
        name=name,
        title=title,
        mark="bar",
        frame=frame,
        x=x,
        y=y,
        x_label=("" if x == "on" else x) if x_label is None else x_label,
        y_label=y_label,
        color=color,
        panel=panel,
        stacked=True,
    )


def by_part(
    frame: pl.DataFrame, keys: list[str], parts: Mapping[str, str], value: str = "time_ns"
) -> pl.DataFrame:
    """A row for each row and part, parts in the order given: ``keys``, ``part`` and the value.

    Args:
        frame: the rows.
        keys: columns to keep.
        parts: the column of each part, and what to call it.
        value: what to call the column of values.
    """
    wide = frame.select(*keys, *(pl.col(name).alias(label) for name, label in parts.items()))
    return wide.unpivot(index=keys, variable_name="part", value_name=value)
