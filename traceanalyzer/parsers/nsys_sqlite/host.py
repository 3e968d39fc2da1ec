"""Host events: calls of CUDA, libraries, the OS runtime and MPI; scheduling; sampled stacks."""

import re

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames import stacks
from traceanalyzer.parsers.nsys_sqlite import tables
from traceanalyzer.parsers.sqlite.rows import kind_of, span
from traceanalyzer.parsers.tables import Frame, stacks_table
from traceanalyzer.schema import MAX_RANKS
from traceanalyzer.vocabulary import collective_of_word

_DRIVER = 1
#: Rows of RUNTIME with the backtrace of a call; the call has another row.
_BACKTRACE = 67
#: Excludes the rows of OSRT_API that mark start and end of the recording.
_NO_MARK = '"eventClass" NOT IN (31, 32)'
#: API version suffix, as in ``cudaLaunchKernel_v7000``.
_VERSION = re.compile(r"_v\d{4,}$")
#: CUPTI's overhead types.
_OVERHEADS = {
    2: "Driver Compiler",
    3: "Buffer Flush",
    4: "Instrumentation",
    5: "Resource",
    6: "Runtime Triggered Module Loading",
    7: "Lazy Function Loading",
    8: "Command Buffer Full",
    9: "Activity Buffer Request",
    10: "UVM Activity Init",
}
_THREAD = ("start", "end", "globalTid")
_OF_THREAD = (tables.pid("globalTid"), tables.tid("globalTid"))
_MPI_CALL = re.compile(r"^P?MPI_I?(\w+?)(?:_init|_init_thread|v|w)?$")
_PLACE = ["symbol", "module"]
#: Name of a function without a symbol.
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_UNRESOLVED = "[unresolved]"


def call_name(text: str) -> str:
    """Return the name of a CUDA call without its API version."""
    return _VERSION.sub("", text)


def calls(export: tables.Export) -> pl.DataFrame:
    """Return one row per CUDA runtime or driver call, named without its API version."""
    driver = pl.col("eventClass").eq_missing(_DRIVER)
    kinds = pl.when(driver).then(kind_of("cuda_driver")).otherwise(kind_of("cuda_runtime"))
    linked = ("correlationId",) if export.fills("correlation") else ()
    classed = "eventClass" in export.database.tables[tables.RUNTIME]

    def shaped(piece: pl.DataFrame) -> pl.DataFrame:
        backtraces = piece["eventClass"] == _BACKTRACE if classed else pl.Series([False])
        calls = piece.filter(~backtraces.fill_null(value=False)) if backtraces.any() else piece
        missing = {} if classed else {"eventClass": pl.lit(None, dtype=pl.Int64)}
        name = tables.name_id("nameId")
        return calls.with_columns(**missing).select_seq(*_ran(export), name, *linked, kinds)

    rows = export.database.read(
        tables.RUNTIME,
        integers=(*_THREAD, "nameId", *linked, *(("eventClass",) if classed else ())),
        windows=export.selection.windows,
        shape=export.of_processes(shaped),
    )
    named = rows.with_columns(export.named(rows["name"], call_name))
    return named.rename({"correlationId": "correlation"}, strict=False)


def system_calls(export: tables.Export) -> pl.DataFrame:
    """Return one row per blocking OS runtime call: reads, locks, sleeps."""
    classed = "eventClass" in export.database.tables.get(tables.OSRT, ())
    return named(export, tables.OSRT, "osrt", where=_NO_MARK if classed else None)


def running(export: tables.Export) -> pl.DataFrame:
    """Return one row per interval in which a thread ran on a core; the category is the core."""
    shape = export.of_processes(lambda piece: piece)
    rows = export.read(tables.SCHED, "start", "cpu", "isSchedIn", "globalTid", shape=shape)
    ordered = rows.sort("globalTid", "start", maintain_order=True)
    leaves = (pl.col("isSchedIn").shift(-1) == 0) & (
        pl.col("globalTid").shift(-1) == pl.col("globalTid")
    )
    slices = ordered.with_columns(end=pl.when(leaves).then(pl.col("start").shift(-1))).filter(
        pl.col("isSchedIn") != 0, pl.col("end").is_not_null()
    )
    rows = slices.select(
        *_ran(export),
        kind_of("sched"),
        name=pl.lit("running").cast(schema.NAME),
        category=pl.format("cpu {}", "cpu").cast(schema.NAME),
    )
    return export.within(rows)


def cuda_overhead(export: tables.Export) -> pl.DataFrame:
    """Return one row per interval of CUDA or profiler overhead, named as in Kineto."""
    columns = [*_ran(export), pl.col("overheadType")]
    rows = export.inside_windows(tables.CUDA_OVERHEAD, *_THREAD, "overheadType", columns=columns)
    name = pl.col("overheadType").replace_strict(
        _OVERHEADS, default="Unknown overhead", return_dtype=pl.String
    )
    return rows.select(pl.exclude("overheadType"), kind_of("overhead"), name=name.cast(schema.NAME))


def named(
    export: tables.Export,
    table: str,
    kind: str,
    *,
    category: str | None = None,
    where: str | None = None,
) -> pl.DataFrame:
    """Return one row per call or interval of a table with name, thread and time."""
    columns = (*_ran(export), tables.name_id("nameId"))
    rows = export.inside_windows(table, *_THREAD, "nameId", columns=columns, where=where)
    rows = rows.with_columns(export.named(rows["name"]), kind_of(kind))
    if category is None:
        return rows
    return rows.with_columns(category=pl.lit(category).cast(schema.NAME))


def _ran(export: tables.Export) -> list[pl.Expr]:
    """Return the columns for time and thread."""
    ran = [*span(), tables.pid("globalTid")]
    return [*ran, tables.tid("globalTid")] if export.fills("tid") else ran


def mpi_calls(export: tables.Export) -> pl.DataFrame:
    """Return one row per MPI call; collectives and messages with their size."""
    parts = [
        _mpi_table(export, tables.MPI_COLLECTIVES, ("size", "commHandle", "commUid")),
        _mpi_table(export, tables.MPI_P2P, ("size", "commHandle", "commUid")),
        _mpi_table(export, tables.MPI_WAIT, ()),
        _mpi_table(export, tables.MPI_OTHER, ()),
    ]
    return pl.concat(parts, how="diagonal")


def mpi_ranks(export: tables.Export) -> dict[int, int]:
    """Return the MPI rank of each process."""
    rows = export.read(tables.MPI_RANKS, "globalTid", "rank").drop_nulls()
    valid = rows.filter(pl.col("rank").is_between(0, MAX_RANKS, closed="left"))
    return {tables.process_of(thread): rank for thread, rank in valid.iter_rows()}


def _mpi_table(export: tables.Export, table: str, more: tuple[str, ...]) -> pl.DataFrame:
    columns = [*span(), *_OF_THREAD, tables.name_id("textId")]
    if more:
        columns += [
            pl.col("size").alias("bytes"),
            pl.coalesce("commUid", "commHandle").alias("group"),
        ]
    rows = export.inside_windows(table, *_THREAD, "textId", *more, columns=columns)
    named = rows.with_columns(export.named(rows["name"]), kind_of("mpi"))
    if table != tables.MPI_COLLECTIVES:
        return named.drop("group", strict=False)
    named = named.with_columns(collectives_of_mpi(named["name"]))
    known = pl.col("collective").is_not_null()
    return named.with_columns(
        dtype=pl.when(known & pl.col("bytes").is_not_null()).then(pl.lit("byte")).cast(schema.NAME),
        elements_in=pl.when(known).then("bytes"),
        group=pl.when(known).then(pl.col("group").cast(pl.String)).cast(schema.NAME),
    )


def collectives_of_mpi(names: pl.Series) -> pl.Series:
    """Return the collective of each MPI call, null for others."""
    distinct = names.unique().drop_nulls()
    collectives = pl.Series(map(_collective, distinct.cast(pl.String)), dtype=schema.NAME)
    found = names.replace_strict(distinct, collectives, default=None, return_dtype=schema.NAME)
    return found.alias("collective")


def _collective(name: str) -> str | None:
    """Return NCCL's name: ``MPI_Iallgatherv`` -> ``all_gather``; None without an equivalent."""
    match = _MPI_CALL.match(name)
    return collective_of_word(match[1]) if match else None


def samples(export: tables.Export) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return one row per sample, with weight 1, and the table ``stacks``.

    The file of a frame is its library or program. Functions without a symbol are merged per
    library. A sample may have no stack.
    """
    shape = export.of_processes(
        lambda piece: piece.select("id", *_OF_THREAD, ts="start", weight=1.0)
    )
    inside = export.inside(end=None)
    rows = export.read(tables.SAMPLES, "id", "start", "globalTid", where=inside, shape=shape)
    chains = export.read(tables.CALLCHAINS, "id", *_PLACE, "stackDepth")
    chains = chains.join(rows.select("id"), on="id", how="semi").sort(
        "id", "stackDepth", descending=[False, True], maintain_order=True
    )
    places = chains.select(_PLACE).unique(maintain_order=True)
    frames = _frames(export, places)
    number = {frame: at for at, frame in enumerate(dict.fromkeys(frames))}
    numbered = pl.Series("frame", [number[frame] for frame in frames], dtype=pl.UInt32)
    numbers = chains.join(
        places.with_columns(numbered),
        on=_PLACE,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )["frame"]
    lengths = chains.group_by("id", maintain_order=True).len()
    tree = stacks.build(numbers.to_numpy(), lengths["len"].to_numpy().astype(np.uint32))
    leaf = lengths.select("id", stack=pl.Series(tree.leaf))
    joined = rows.join(leaf, on="id", how="left", maintain_order="left").drop("id")
    table = stacks_table(tree, list(number))
    return joined.with_columns(kind_of("sample")), table if len(tree.frame) else schema.empty(
        "stacks"
    )


def _frames(export: tables.Export, places: pl.DataFrame) -> list[Frame]:
    texts = export.texts(pl.concat([places["symbol"], places["module"]]))
    return [
        Frame(_function(texts.get(symbol)), texts.get(module))
        for symbol, module in places.iter_rows()
    ]


def _function(symbol: str | None) -> str:
    if not symbol:
        return "[unknown]"
    return _UNRESOLVED if _ADDRESS.fullmatch(symbol) else symbol
