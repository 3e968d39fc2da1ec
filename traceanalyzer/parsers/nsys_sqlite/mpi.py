"""Calls of MPI, and the ranks it gave processes."""

from __future__ import annotations

import re

import polars as pl

from traceanalyzer import schema
from traceanalyzer.limits import MOST_RANKS
from traceanalyzer.parsers.nsys_sqlite import layout
from traceanalyzer.parsers.nsys_sqlite.export import (
    Export,
    kind,
    name_id,
    pid,
    process_of,
    span,
    tid,
)
from traceanalyzer.vocabulary import collective_of_word

_THREAD = ("start", "end", "globalTid", "textId")
_CALL = re.compile(r"^P?MPI_I?(\w+?)(?:_init|_init_thread|v|w)?$")


def calls(export: Export) -> pl.DataFrame:
    """One row a call of MPI; collectives and messages with their size."""
    parts = [
        _read(export, layout.MPI_COLLECTIVES, ("size", "commHandle", "commUid")),
        _read(export, layout.MPI_P2P, ("size", "commHandle", "commUid")),
        _read(export, layout.MPI_WAIT, ()),
        _read(export, layout.MPI_OTHER, ()),
    ]
    return pl.concat(parts, how="diagonal")


def ranks(export: Export) -> dict[int, int]:
    """Rank of each process, as MPI numbered them."""
    rows = export.database.read(layout.MPI_RANKS, integers=("globalTid", "rank")).drop_nulls()
    told = rows.filter(pl.col("rank").is_between(0, MOST_RANKS, closed="left"))
    return {process_of(thread): rank for thread, rank in told.iter_rows()}


def _read(export: Export, table: str, more: tuple[str, ...]) -> pl.DataFrame:
    columns = [*span(), pid("globalTid"), tid("globalTid")]
    if more:
        columns += [
            pl.col("size").alias("bytes"),
            pl.coalesce("commUid", "commHandle").alias("group"),
        ]
    rows = export.database.read(
        table,
        integers=(*_THREAD, *more),
        where=export.inside(),
        shape=lambda piece: piece.select_seq(*columns, name_id("textId")),
    )
    named = rows.with_columns(export.named(rows["name"]), kind("mpi"))
    if table != layout.MPI_COLLECTIVES:
        return named.drop("group", strict=False)
    distinct = named["name"].unique().drop_nulls()
    words = [_collective(text) for text in distinct.cast(pl.String)]
    told = pl.Series(words, dtype=schema.NAME)
    collective = named["name"].replace_strict(
        distinct, told, default=None, return_dtype=schema.NAME
    )
    known = collective.is_not_null()
    return named.with_columns(
        collective=collective,
        dtype=pl.when(known & pl.col("bytes").is_not_null()).then(pl.lit("byte")).cast(schema.NAME),
        elements_in=pl.when(known).then("bytes"),
        group=pl.when(known).then(pl.col("group").cast(pl.String)).cast(schema.NAME),
    )


def _collective(name: str) -> str | None:
    """``MPI_Iallgatherv`` -> ``all_gather``; None for what is no collective of NCCL's words."""
    match = _CALL.match(name)
    return collective_of_word(match[1]) if match else None
