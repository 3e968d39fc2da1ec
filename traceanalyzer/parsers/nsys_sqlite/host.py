"""What threads of the host did: CUDA calls, library calls, system calls, time on a core."""

from __future__ import annotations

import re

import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.nsys_sqlite import layout
from traceanalyzer.parsers.nsys_sqlite.export import Export, kind, name_id, pid, span, tid

_DRIVER = 1
#: Rows of RUNTIME that hold the backtrace of a call, which has its own row.
_BACKTRACE = 67
#: Rows of OSRT_API that mark the start and the end of recording.
_OSRT_MARKS = (31, 32)
#: ``cudaLaunchKernel_v7000``: the version of the interface since which a call is what it is.
_VERSION = re.compile(r"_v\d{4,}$")
_THREAD = ("start", "end", "globalTid")


def calls(export: Export) -> pl.DataFrame:
    """One row a call of the CUDA runtime or driver, named without the version of its interface."""
    driver = pl.col("eventClass").eq_missing(_DRIVER)
    words = pl.when(driver).then(pl.lit("cuda_driver")).otherwise(pl.lit("cuda_runtime"))
    linked = ("correlationId",) if export.fills("correlation") else ()
    classed = "eventClass" in export.database.tables[layout.RUNTIME]

    def shaped(piece: pl.DataFrame) -> pl.DataFrame:
        backtraces = piece["eventClass"] == _BACKTRACE if classed else pl.Series([False])
        calls = piece.filter(~backtraces.fill_null(value=False)) if backtraces.any() else piece
        told = {} if classed else {"eventClass": pl.lit(None, dtype=pl.Int64)}
        kinds = words.cast(schema.KIND).alias("kind")
        ran = _ran(export)
        return calls.with_columns(**told).select_seq(*ran, name_id("nameId"), *linked, kinds)

    rows = export.database.read(
        layout.RUNTIME,
        integers=(*_THREAD, "nameId", *linked, *(("eventClass",) if classed else ())),
        where=export.inside(),
        shape=shaped,
    )
    named = rows.with_columns(export.named(rows["name"], _unversioned))
    return named.rename({"correlationId": "correlation"}, strict=False)


def system_calls(export: Export) -> pl.DataFrame:
    """One row a call of the C library that may wait: reads, locks, sleeps."""
    marks = ", ".join(map(str, _OSRT_MARKS))
    told = "eventClass" in export.database.tables.get(layout.OSRT, ())
    no_mark = f'"eventClass" NOT IN ({marks})' if told else None
    return _named(export, layout.OSRT, "osrt", no_mark)


def overhead(export: Export) -> pl.DataFrame:
    """One row a stretch in which the profiler itself held up the thread."""
    return _named(export, layout.OVERHEAD, "overhead")


def cudnn(export: Export) -> pl.DataFrame:
    """One row a call of cuDNN."""
    return _named(export, layout.CUDNN, "other").with_columns(_category("cudnn"))


def cublas(export: Export) -> pl.DataFrame:
    """One row a call of cuBLAS."""
    return _named(export, layout.CUBLAS, "other").with_columns(_category("cublas"))


def running(export: Export) -> pl.DataFrame:
    """One row a stretch in which a thread was on a core, which the category names."""
    rows = export.database.read(layout.SCHED, integers=("start", "cpu", "isSchedIn", "globalTid"))
    ordered = rows.sort("globalTid", "start", maintain_order=True)
    leaves = (pl.col("isSchedIn").shift(-1) == 0) & (
        pl.col("globalTid").shift(-1) == pl.col("globalTid")
    )
    slices = ordered.with_columns(end=pl.when(leaves).then(pl.col("start").shift(-1))).filter(
        pl.col("isSchedIn") != 0, pl.col("end").is_not_null()
    )
    told = slices.select(
        *_ran(export),
        kind("sched"),
        name=pl.lit("running").cast(schema.NAME),
        category=pl.format("cpu {}", "cpu").cast(schema.NAME),
    )
    return export.within(told)


def _named(export: Export, table: str, word: str, where: str | None = None) -> pl.DataFrame:
    rows = export.database.read(
        table,
        integers=(*_THREAD, "nameId"),
        where=_all([export.inside(), where]),
        shape=lambda piece: piece.select_seq(*_ran(export), name_id("nameId")),
    )
    return rows.with_columns(export.named(rows["name"]), kind(word))


def _ran(export: Export) -> list[pl.Expr]:
    """When and on which thread something ran."""
    ran = [*span(), pid("globalTid")]
    return [*ran, tid("globalTid")] if export.fills("tid") else ran


def _category(word: str) -> pl.Expr:
    return pl.lit(word).cast(schema.NAME).alias("category")


def _all(tests: list[str | None]) -> str | None:
    return " AND ".join(f"({test})" for test in tests if test) or None


def _unversioned(name: str) -> str:
    return _VERSION.sub("", name)
