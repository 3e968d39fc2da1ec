"""Rows of printed text (``aggregates``) as one table per form, for analyses without a timeline."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_origin

import polars as pl

from traceanalyzer.result import Result

#: What identifies one row of a printed table or series.
ROW = ("path", "rank", "block", "row", "name", "is_cut", "printed_ns", "line")

#: Note of every result from printed text.
NOTE = (
    "From printed text, which has no timeline: numbers are rounded as printed. torch.profiler "
    "export_chrome_trace(FILE) records what ran when."
)


def wide(
    rows: pl.DataFrame,
    form: str,
    numbers: Mapping[str, type[pl.DataType]],
    texts: tuple[str, ...] = (),
) -> pl.DataFrame:
    """Return one row per printed row of a form: :data:`ROW`, a column per metric, null if unknown.

    Args:
        rows: rows of ``aggregates`` with ``path``.
        form: the form.
        numbers: type by metric of the numbers.
        texts: metrics of texts.
    """
    metric = pl.col("metric")
    of_form = rows.filter(pl.col("form") == form, metric.is_in([*numbers, *texts]))
    keys = [name for name in ROW if name not in ("printed_ns", "line")]
    return (
        of_form.group_by(keys, maintain_order=True)
        .agg(
            pl.col("printed_ns").first(),
            pl.col("line").min(),
            *(pl.col("value").filter(metric == name).first().alias(name) for name in numbers),
            *(pl.col("text").filter(metric == name).first().alias(name) for name in texts),
        )
        .select(*ROW, *(pl.col(name).cast(dtype) for name, dtype in numbers.items()), *texts)
    )


def blank(result: type[Result]) -> dict[str, Any]:
    """Return the fields of a result of a timeline, without any data: empty tables, 0, None."""
    required = [f for f in fields(result) if f.default is MISSING and f.default_factory is MISSING]
    return {one.name: _nothing(one.type) for one in required}


def _nothing(kind: object) -> Any:
    if kind is pl.DataFrame:
        return pl.DataFrame()
    if kind in (int, bool, str):
        return kind()
    return () if get_origin(kind) is tuple else None
