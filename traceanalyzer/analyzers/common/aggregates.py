"""Numbers without a timeline, rows of ``aggregates``: printed text, metrics, durations."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import polars as pl

from traceanalyzer.errors import MissingData
from traceanalyzer.result import Result
from traceanalyzer.trace import Trace
from traceanalyzer.units import format_count

P = TypeVar("P")
R = TypeVar("R", bound=Result)

#: What identifies one row of a printed table or series.
ROW = ("path", "rank", "block", "row", "name", "is_cut", "printed_ns", "line")


@dataclass(frozen=True)
class Aggregates:
    """Rows of ``aggregates`` of one rank, with texts instead of categories."""

    rank: int | None
    path: str
    rows: pl.DataFrame


def of_forms(trace: Trace, forms: Collection[str]) -> Aggregates | None:
    """Return the rows of these forms; None if there are none."""
    if trace.aggregates.is_empty():
        return None
    rows = trace.aggregates.with_columns(pl.col(pl.Categorical).cast(pl.String))
    rows = rows.filter(pl.col("form").is_in(forms))
    return Aggregates(trace.meta.rank, trace.meta.path, rows) if rows.height else None


def joined(parts: Sequence[Aggregates]) -> pl.DataFrame:
    """Return the rows of all parts, with the column ``path``, in the order of paths and lines."""
    ordered = sorted(parts, key=lambda one: (one.path, -1 if one.rank is None else one.rank))
    return pl.concat(one.rows.with_columns(path=pl.lit(one.path)) for one in ordered)


def divided(parts: Sequence[P | Aggregates], kind: type[P]) -> tuple[list[P], list[Aggregates]]:
    """Return the parts with a timeline, which are of this kind, and the others."""
    return (
        [part for part in parts if isinstance(part, kind)],
        [part for part in parts if isinstance(part, Aggregates)],
    )


def without(unused: Sequence[Aggregates], result_of_others: Callable[[], R]) -> R:
    """Return the result of the parts with a timeline, with a note on those that are not used.

    Raises:
        MissingData: as ``result_of_others``, with the unused inputs.
    """
    first, *more = sorted({part.path for part in unused}) or [""]
    if not first:
        return result_of_others()
    others = f" and {format_count(len(more), 'more file')}" if more else ""
    text = f"{first}{others}: metrics without a timeline, which other inputs have"
    try:
        result = result_of_others()
    except MissingData as error:
        raise MissingData(f"{error} (not used: {text})") from None
    return replace(result, input_notes=(*result.input_notes, f"Skipped: {text}."))


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
