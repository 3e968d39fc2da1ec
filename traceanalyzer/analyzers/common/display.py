"""Tables and charts that the results of several analyzers have alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from traceanalyzer.result import Chart, Table

#: Bars of a chart.
BARS = 15


def table_of_known(
    name: str, title: str, frame: pl.DataFrame, columns: Mapping[str, str], **more: Any
) -> Table:
    """A table without the columns in which every value is null."""
    known = {n: label for n, label in columns.items() if frame[n].null_count() < frame.height}
    return Table(name, title, frame, known or columns, **more)


def rank_column(ranks: pl.DataFrame) -> dict[str, str]:
    """The column that names ranks, or files where no rank is known, and its heading."""
    known = ranks["rank"].null_count() < ranks.height
    return {"rank": "rank"} if known else {"path": "file"}


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
        y_label="",
        color=color,
    )
