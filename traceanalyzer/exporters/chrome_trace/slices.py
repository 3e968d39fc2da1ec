"""Rows of ``events`` as the text of trace events, a chunk of rows at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.exporters.chrome_trace.arguments import with_arguments
from traceanalyzer.exporters.chrome_trace.text import member, members, microseconds, quoted_column
from traceanalyzer.exporters.chrome_trace.tracks import PLACE
from traceanalyzer.vocabulary import kind_of_category

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceanalyzer.exporters.chrome_trace.tracks import Tracks
    from traceanalyzer.trace import Trace

#: Rows turned into text at once: some 50 MB.
ROWS = 1 << 16

#: Kinds that follow from an event's phase, whatever its category.
_OF_PHASE = ("async", "sample", "object")

#: Samples of a sampling profiler, written as ``samples``; others are events of their own.
IS_SAMPLE = (pl.col("kind") == "sample") & pl.col("weight").is_not_null()

_is_async = pl.col("kind") == "async"
_is_open = pl.col("dur").is_null()


def slice_texts(trace: Trace, tracks: Tracks) -> Iterator[pl.Series]:
    """Every event but samples, in the table's order: ``X``, ``i`` if open, async as a pair."""
    for first in range(0, trace.events.height, ROWS):
        rows = (
            trace.events.slice(first, ROWS)
            .drop("rank", "pid", "tid")
            .with_row_index("event", first)
            .hstack(tracks.of_event.slice(first, ROWS))
            .join(tracks.places, on=PLACE, how="left", nulls_equal=True, maintain_order="left")
        )
        rows = rows.with_columns(own_category=_is_kept(rows["category"]))
        texts = rows.select(_category(rows["category"]), quoted_column(rows["name"]))
        frame = with_arguments(trace, rows).with_columns(texts)
        yield frame.filter(~IS_SAMPLE).select(_event(frame)).to_series()


def _event(frame: pl.DataFrame) -> pl.Expr:
    phase = (
        pl.when(_is_async & _is_open)
        .then(pl.lit('{"ph":"n"'))
        .when(_is_async)
        .then(pl.lit('{"ph":"b"'))
        .when(pl.col("kind") == "object")
        .then(pl.lit('{"ph":"N"'))
        .when(pl.col("kind") == "sample")
        .then(pl.lit('{"ph":"P"'))
        .when(_is_open)
        .then(pl.lit('{"ph":"i","s":"t"'))
        .otherwise(pl.lit('{"ph":"X"'))
    )
    begin = members(
        phase,
        *_identity(),
        member("ts", microseconds(pl.col("ts"))),
        member("dur", microseconds(pl.when(~_is_async).then("dur"))),
        member("sf", pl.col("stack")),
        member("args", pl.col("arguments")),
    )
    parts = [begin, pl.lit("}")]
    if (frame["kind"] == "async").any():
        parts.append(pl.when(_is_async & ~_is_open).then(_async_end()))
    return pl.concat_str(parts, ignore_nulls=True)


def _async_end() -> pl.Expr:
    end = member("ts", microseconds(pl.col("ts") + pl.col("dur")))
    return pl.concat_str(pl.lit(',\n{"ph":"e",'), members(*_identity(), end), pl.lit("}"))


def _identity() -> list[pl.Expr]:
    """What both ends of an async event have; objects have an id too: the row's number."""
    return [
        member("cat", pl.col("category")),
        member("name", pl.col("name")),
        pl.col("where"),
        member("id", pl.when(_is_async | (pl.col("kind") == "object")).then("event")),
    ]


def _is_kept(category: pl.Series) -> pl.Expr:
    """Whether a row's category is written as its ``cat``: with it, a reader sees the row's kind.

    That is so in what was a Chrome trace; the domain of an NVTX range is no word for its kind.
    """
    distinct = category.drop_nulls().unique()
    kinds = [kind_of_category(text) for text in distinct.cast(pl.String)]
    told = pl.col("category").replace_strict(
        distinct, pl.Series(kinds, dtype=pl.String), default=None, return_dtype=pl.String
    )
    kind = pl.col("kind").cast(pl.String)
    return (told == kind) | kind.is_in(_OF_PHASE) | _is_memory()


def _category(category: pl.Series) -> pl.Expr:
    """The category as the file had it, else the kind, which Kineto's categories are."""
    implied = pl.col("kind").is_in([*_OF_PHASE, "other"]) | _is_memory()
    kind = pl.concat_str(pl.lit('"'), pl.col("kind").cast(pl.String), pl.lit('"'))
    own = pl.when("own_category").then(quoted_column(category))
    return pl.coalesce(own, pl.when(~implied).then(kind)).alias("category")


def _is_memory() -> pl.Expr:
    """PyTorch's allocations, which their name tells."""
    return (pl.col("name") == "[memory]").fill_null(value=False)
