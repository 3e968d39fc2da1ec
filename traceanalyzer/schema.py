"""The schema that every parser writes and every analyzer reads.

Each table is a tuple of :class:`Column`; the documentation page ``docs/schema.md`` and
:func:`check` are derived from these definitions. Missing values are null: no -1 or 0 sentinels, no
NaN. Times are exact Int64 nanoseconds, sizes are bytes.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from traceanalyzer.vocabulary import ALLOCATOR_KINDS, KINDS

#: Version of these tables, stored in every Parquet export; increased when a table changes.
VERSION = 2

#: Application id in the header of an exported SQLite database, which cannot be read back.
SQLITE_APPLICATION = int.from_bytes(b"TrAn")

#: Footer keys of a Parquet export: version, metadata of sources, offsets of side tables.
PARQUET_VERSION = "traceanalyzer.schema"
PARQUET_SOURCES = "traceanalyzer.sources"
PARQUET_TABLES = "traceanalyzer.tables"
#: Key of the metadata of a Parquet file written by ``summarize``.
SUMMARY = "traceanalyzer.summary"
#: End of the name of the file with the events that a summary refers to.
CONTEXT_SUFFIX = ".context.parquet"

#: Kinds of events that some profilers record without a time; all others have one.
TIMELESS_KINDS: tuple[str, ...] = ("sample", "other", *ALLOCATOR_KINDS)

KIND = pl.Enum(KINDS)
SEVERITY = pl.Enum(("info", "notice", "data_loss", "error"))
FLOW_PHASE = pl.Enum(("start", "step", "end"))
STATE = pl.Enum(("scheduled", "started", "completed"))
NAME = pl.Categorical()

#: Columns of ``events`` with the inputs of operators, which are read on request.
INPUTS = ("input_dims", "input_types", "concrete_inputs")

# Limits, chosen so that sums of values within them fit Int64. Larger numbers in a file are damage
# or malice and never reach an analysis: see :mod:`traceanalyzer.parsers.contract`.

#: Maximum absolute time of an event (137 years): differences of times, and times after any epoch,
#: rounded up to a grid, fit Int64.
LAST_NS = (1 << 62) - (1 << 58)
#: Maximum duration of an event, and of the reverse (104 days; exact as Float64).
MAX_DURATION_NS = 1 << 53
#: Maximum absolute time of a clock's 0, in the year 2116, so that later times fit Int64.
LAST_EPOCH_NS = 1 << 62
#: Upper bound of memory sizes and copies in bytes (17 TB).
MAX_BYTES = 1 << 44
#: Upper bound of addresses.
MAX_ADDRESS = 1 << 57
#: Upper bound of weights; smaller integers are exact as Float64.
MAX_WEIGHT = 1 << 53
#: Upper bound of the number of ranks.
MAX_RANKS = 1 << 22


@dataclass(frozen=True)
class Column:
    """One column: name, type, unit, meaning, and meaning of null."""

    name: str
    dtype: pl.DataType | type[pl.DataType]
    unit: str
    meaning: str
    null: str = "never"
    on_request: bool = False


def _event_id(meaning: str = "row of `events`") -> Column:
    return Column("event", pl.UInt32, "row", meaning)


EVENTS: tuple[Column, ...] = (
    Column("ts", pl.Int64, "ns", "start on the trace's clock", "the format has no time"),
    Column("dur", pl.Int64, "ns", "duration", "an instant, or never closed"),
    Column("kind", KIND, "", "type of the event, in Kineto's spelling"),
    Column("category", NAME, "", "the category as the file spells it", "the file gives none"),
    Column("name", NAME, "", "exactly as the profiler wrote it", "the file gives none"),
    Column("rank", pl.Int32, "", "global rank of the process", "not known"),
    Column("pid", pl.Int64, "", "process id", "device rows of formats that do not record it"),
    Column("tid", pl.Int64, "", "thread id", "device rows"),
    Column("device", pl.Int32, "", "device ordinal", "host rows"),
    Column("stream", pl.Int64, "", "stream or queue of the device", "host rows"),
    Column(
        "correlation",
        pl.Int64,
        "",
        "joins a launch call to its device work; unique within (rank, pid)",
        "not recorded",
    ),
    Column(
        "external_id",
        pl.Int64,
        "",
        "joins an operator to its launches and device work",
        "not recorded",
    ),
    Column(
        "bytes",
        pl.Int64,
        "B",
        "size of the copy, memset, message or allocation (a free is < 0)",
        "no size",
    ),
    Column("address", pl.UInt64, "", "device address", "no address"),
    Column("stack", pl.UInt32, "row", "leaf row of `stacks`", "no stack"),
    Column(
        "weight",
        pl.Float64,
        "",
        "weight of a sampled stack, in the unit of `Meta.weight_unit`",
        "not a sample",
    ),
    Column(
        "args", pl.String, "", "the arguments' JSON text, verbatim", "no arguments", on_request=True
    ),
    Column(
        "input_dims",
        pl.String,
        "",
        "`Input Dims` of an operator, JSON text",
        "not recorded",
        on_request=True,
    ),
    Column(
        "input_types",
        pl.String,
        "",
        "`Input type` of an operator, JSON text",
        "not recorded",
        on_request=True,
    ),
    Column(
        "concrete_inputs",
        pl.String,
        "",
        "`Concrete Inputs` of an operator, JSON text: its scalars and lists of scalars",
        "not recorded",
        on_request=True,
    ),
)

#: Columns of ``events`` that are read only on request.
ON_REQUEST: tuple[str, ...] = tuple(column.name for column in EVENTS if column.on_request)

STACKS: tuple[Column, ...] = (
    Column("id", pl.UInt32, "row", "row number"),
    Column("parent", pl.UInt32, "row", "the calling frame's row", "a root"),
    Column("name", NAME, "", "function"),
    Column("file", NAME, "", "source file", "not recorded"),
    Column("line", pl.Int32, "", "source line", "not recorded"),
)

LAUNCH_CONFIGS: tuple[Column, ...] = (
    _event_id(),
    *(
        Column(f"{of}_{axis}", pl.Int32, "", f"{what} in {axis}", "not recorded")
        for of, what in (("grid", "blocks of the grid"), ("block", "threads of a block"))
        for axis in "xyz"
    ),
    Column("registers", pl.Int32, "", "registers per thread", "not recorded"),
    Column("shared_memory", pl.Int64, "B", "shared memory per block", "not recorded"),
    Column(
        "local_memory",
        pl.Int64,
        "B",
        "local memory (scratch) per thread: spilled registers, and arrays",
        "not recorded",
    ),
)

COLLECTIVES: tuple[Column, ...] = (
    _event_id("row of `events`: a communication kernel, or the host event that issues one"),
    Column("collective", NAME, "", "NCCL's spelling: all_reduce, all_gather ...", "not recorded"),
    Column("dtype", NAME, "", "element type as the file spells it", "not recorded"),
    Column("elements_in", pl.Int64, "", "input elements of each rank", "not recorded"),
    Column("elements_out", pl.Int64, "", "output elements of each rank", "not recorded"),
    Column("group", NAME, "", "process group's name", "not recorded"),
    Column("group_size", pl.Int32, "", "ranks in the group", "not recorded"),
    Column("group_ranks", NAME, "", "the group's ranks, as the file has them", "not recorded"),
    Column("seq", pl.Int64, "", "sequence number of this collective in its group", "not recorded"),
    Column("peer", pl.Int32, "", "global rank at the other end of a send or recv", "not recorded"),
    Column("splits_in", NAME, "", "rows for each rank of the group, as the file has them", "equal"),
    Column("splits_out", NAME, "", "rows from each rank, as the file has them", "equal"),
)

MEMORY_TOTALS: tuple[Column, ...] = (
    _event_id("row of `events`: a `[memory]` instant, an allocation, an out-of-memory error"),
    Column("device_type", pl.Int32, "", "c10 device type: 0 CPU, 1 CUDA, 6 HIP", "not recorded"),
    Column("allocated_bytes", pl.Int64, "B", "total allocated after the event", "not recorded"),
    Column("reserved_bytes", pl.Int64, "B", "total reserved after the event", "not recorded"),
    Column(
        "free_bytes", pl.Int64, "B", "free on the device at an out-of-memory error", "not recorded"
    ),
)

LANES: tuple[Column, ...] = (
    Column("rank", pl.Int32, "", "global rank of the process", "not known"),
    Column(
        "pid",
        pl.Int64,
        "",
        "process id, or the synthetic one of a textual label",
        "the file has threads without processes",
    ),
    Column("tid", pl.Int64, "", "thread id", "the row describes the process"),
    Column("label", pl.String, "", "process or thread name, or the textual id", "not recorded"),
    Column("labels", pl.String, "", "process labels, such as `GPU 0`", "not recorded"),
    Column("sort_index", pl.Int64, "", "display order", "not recorded"),
    Column("textual", pl.Boolean, "", "the file's id is text and `pid`/`tid` is synthetic"),
)

FLOWS: tuple[Column, ...] = (
    Column("ts", pl.Int64, "ns", "time of this point of the arrow"),
    Column("phase", FLOW_PHASE, "", "start, step or end of the arrow"),
    Column("category", NAME, "", "category as the file spells it", "the file gives none"),
    Column("name", NAME, "", "name as the file spells it", "the file gives none"),
    Column("flow", pl.UInt32, "", "the arrow: number within this trace"),
    Column("rank", pl.Int32, "", "global rank of the process", "not known"),
    Column("pid", pl.Int64, "", "process id"),
    Column("tid", pl.Int64, "", "thread id"),
    Column("event", pl.UInt32, "row", "slice the point is bound to", "no slice there, or not read"),
)

COUNTERS: tuple[Column, ...] = (
    Column("ts", pl.Int64, "ns", "time of the reading"),
    Column("name", NAME, "", "counter's name, with its id where it has one"),
    Column("series", NAME, "", "key of the series within the counter"),
    Column("rank", pl.Int32, "", "global rank of the process", "not known"),
    Column("pid", pl.Int64, "", "process id", "a reading of the whole machine"),
    Column("value", pl.Float64, "", "the reading"),
)

SEGMENTS: tuple[Column, ...] = (
    Column("id", pl.UInt32, "row", "row number"),
    Column("rank", pl.Int32, "", "global rank of the process", "not known"),
    Column("device", pl.Int32, "", "device ordinal"),
    Column("address", pl.UInt64, "", "start of the segment"),
    Column("total_bytes", pl.Int64, "B", "size"),
    Column("allocated_bytes", pl.Int64, "B", "bytes in allocated blocks"),
    Column("active_bytes", pl.Int64, "B", "bytes in allocated or pending-free blocks"),
    Column("stream", pl.Int64, "", "stream the segment belongs to", "not recorded"),
    Column("pool", NAME, "", "private pool, such as that of a CUDA graph", "the default pool"),
    Column("segment_type", NAME, "", "small or large", "not recorded"),
    Column("expandable", pl.Boolean, "", "an expandable segment", "not recorded"),
    Column("stack", pl.UInt32, "row", "leaf row of `stacks`", "not recorded"),
)

BLOCKS: tuple[Column, ...] = (
    Column("segment", pl.UInt32, "row", "row of `segments`"),
    Column("address", pl.UInt64, "", "start of the block"),
    Column("size_bytes", pl.Int64, "B", "size after rounding"),
    Column("requested_bytes", pl.Int64, "B", "requested size", "not recorded"),
    Column("state", NAME, "", "active_allocated, active_pending_free or inactive"),
    Column("stack", pl.UInt32, "row", "leaf row of `stacks`", "not recorded"),
)

PROCESS_GROUPS: tuple[Column, ...] = (
    Column("rank", pl.Int32, "", "global rank whose dump lists the group", "not known"),
    Column("group", NAME, "", "name of the process group"),
    Column("description", NAME, "", "its description, such as `tp`", "not recorded"),
    Column("ranks", NAME, "", "its global ranks, as the file has them", "not recorded"),
    Column(
        "last_enqueued",
        pl.Int64,
        "",
        "seq of the last collective that was enqueued, 0 if none was (they count from 1)",
        "not recorded",
    ),
    Column("last_started", pl.Int64, "", "seq of the last one that started", "none did"),
    Column("last_completed", pl.Int64, "", "seq of the last one that completed", "none did"),
)

COLLECTIVE_RECORDS: tuple[Column, ...] = (
    Column("rank", pl.Int32, "", "global rank of the dump", "not known"),
    Column("record", pl.Int64, "", "number of the entry since the start", "not recorded"),
    Column("group", NAME, "", "name of the process group", "not recorded"),
    Column("seq", pl.Int64, "", "number of the collective in its group", "not recorded"),
    Column("p2p_seq", pl.Int64, "", "number of the send or receive", "not recorded"),
    Column(
        "op_id", pl.Int64, "", "number of the operation, coalesced ones included", "not recorded"
    ),
    Column("op", NAME, "", "name without the back end: `all_reduce`, `send`", "not recorded"),
    Column("src", pl.Int32, "", "sender, its rank within the group", "not a send or receive"),
    Column("dst", pl.Int32, "", "receiver, its rank within the group", "not a send or receive"),
    Column("is_p2p", pl.Boolean, "", "a send, a receive, or several coalesced"),
    Column("state", STATE, "", "scheduled, started or completed", "not recorded"),
    Column("retired", pl.Boolean, "", "no longer watched", "not recorded"),
    Column("dtype", NAME, "", "element types as the file spells them", "no tensors"),
    Column("elements_in", pl.Int64, "", "elements of all inputs", "not recorded"),
    Column("elements_out", pl.Int64, "", "elements of all outputs", "not recorded"),
    Column("sizes_in", NAME, "", "shapes of the inputs, as text", "not recorded"),
    Column("sizes_out", NAME, "", "shapes of the outputs, as text", "not recorded"),
    Column("created_ns", pl.Int64, "ns", "call, since the Unix epoch", "not recorded"),
    Column("started_ns", pl.Int64, "ns", "start as the watchdog saw it", "not seen to start"),
    Column("completed_ns", pl.Int64, "ns", "end as the watchdog saw it", "not seen to end"),
    Column("dur", pl.Int64, "ns", "duration on the device", "timing was not enabled"),
    Column("timeout_ns", pl.Int64, "ns", "timeout of the operation", "not recorded"),
    Column("thread", pl.Int64, "", "id of the calling thread (pthread)", "not recorded"),
    Column("stack", pl.UInt32, "row", "leaf row of `stacks`", "not recorded, as in JSON"),
)

METRICS: tuple[Column, ...] = (
    Column("launch", pl.UInt32, "", "the launch: number within this trace"),
    Column("rank", pl.Int32, "", "global rank of the process", "not known"),
    Column("host", NAME, "", "host name", "not recorded"),
    Column("pid", pl.Int64, "", "process id", "not recorded"),
    Column("id", pl.Int64, "", "number of the launch in its process", "a summary of launches"),
    Column("kernel", NAME, "", "name of the kernel", "a summary of all kernels"),
    Column("device", pl.Int32, "", "device ordinal", "not recorded"),
    Column("cc", NAME, "", "compute capability: `9.0`", "not recorded"),
    Column("grid", NAME, "", "blocks of the grid, as text", "not recorded"),
    Column("block", NAME, "", "threads of a block, as text", "not recorded"),
    Column("launches", pl.Int64, "", "number of launches that the row summarises; 1 for one"),
    Column("section", NAME, "", "section of the report", "not recorded"),
    Column("label", NAME, "", "part of the section", "no part"),
    Column("metric", NAME, "", "name of the metric, or its display name", "a rule"),
    Column("unit", NAME, "", "base unit: byte, ns, hz, %, byte/s", "no unit"),
    Column("value", pl.Float64, "", "the value; of a summary, the mean", "text, or no value"),
    Column("text", NAME, "", "a value that is text, or the message of a rule", "a number"),
    Column("rule", NAME, "", "name of the rule", "a metric"),
    Column("rule_type", NAME, "", "type of its message: OPT, WRN, INF", "not recorded"),
    Column("speedup_type", NAME, "", "global: of the kernel; local: of a part", "no estimate"),
    Column("speedup_frac", pl.Float64, "", "estimated speed-up / 1", "no estimate"),
)

AGGREGATES: tuple[Column, ...] = (
    Column("rank", pl.Int32, "", "global rank of the process", "not known"),
    Column("form", NAME, "", "form of the text: `key_averages`, `timers`, `flops_profile` ..."),
    Column("block", pl.UInt32, "", "number of the printed table, or of the series of lines"),
    Column("row", pl.UInt32, "", "number of the row in its block", "about the whole block"),
    Column(
        "name", NAME, "", "operator, module, timer, message or collective", "about the whole block"
    ),
    Column("is_cut", pl.Boolean, "", "the text shortened the name, which ends in `...`"),
    Column("metric", NAME, "", "what the number is, with its unit: `self_host_ns`, `params`"),
    Column("value", pl.Float64, "", "number, as exact as the text", "`text` has the value"),
    Column("text", pl.String, "", "value that is not a number, such as input shapes", "a number"),
    Column(
        "printed_ns",
        pl.Int64,
        "ns",
        "local time of the log line since 1970, without a time zone",
        "not printed",
    ),
    Column("line", pl.Int64, "", "line of the file, from 1"),
)

ISSUES: tuple[Column, ...] = (
    Column("severity", SEVERITY, "", "info, notice, data_loss or error"),
    Column("code", pl.String, "", "stable name of the finding"),
    Column("count", pl.Int64, "", "how often"),
    Column("first", pl.String, "", "place of the first occurrence, or details", "no place"),
    Column("rank", pl.Int32, "", "rank of the file", "not known"),
)

TABLES: dict[str, tuple[Column, ...]] = {
    "events": EVENTS,
    "stacks": STACKS,
    "launch_configs": LAUNCH_CONFIGS,
    "collectives": COLLECTIVES,
    "memory_totals": MEMORY_TOTALS,
    "lanes": LANES,
    "flows": FLOWS,
    "counters": COUNTERS,
    "segments": SEGMENTS,
    "blocks": BLOCKS,
    "process_groups": PROCESS_GROUPS,
    "collective_records": COLLECTIVE_RECORDS,
    "metrics": METRICS,
    "aggregates": AGGREGATES,
    "issues": ISSUES,
}

#: Tables with an ``event`` column, a row number of ``events``.
EVENT_TABLES: tuple[str, ...] = ("launch_configs", "collectives", "memory_totals", "flows")

#: Columns with row numbers: the table, the column, and the table they refer to.
_ROW_NUMBERS: tuple[tuple[str, str, str], ...] = (
    *((name, "event", "events") for name in EVENT_TABLES),
    *((name, "stack", "stacks") for name in ("events", "segments", "blocks", "collective_records")),
    ("blocks", "segment", "segments"),
)


@functools.cache
def empty(table: str) -> pl.DataFrame:
    """Return an empty frame of a table, without optional columns."""
    return pl.DataFrame(schema={c.name: c.dtype for c in TABLES[table] if not c.on_request})


def check(frames: Mapping[str, pl.DataFrame]) -> list[str]:
    """Return the violations of the schema as text; an empty list for valid tables.

    Checked: table names; column names, order and dtypes; nulls in columns without null; row numbers
    within their table; callers before callees; finite numbers; events without a time, range of
    times; order of ``events`` by (ts, -dur).
    """
    wrong = [f"unknown table {name}" for name in frames if name not in TABLES]
    for name in TABLES:
        if name not in frames:
            wrong.append(f"table {name} is missing")
            continue
        wrong += check_columns(name, frames[name])
    return wrong or [*_check_rows(frames), *_check_times(frames["events"])]


def check_columns(name: str, frame: pl.DataFrame) -> list[str]:
    """Return the violations of the schema by the columns of one table; see :func:`check`."""
    columns = TABLES[name]
    required = [c.name for c in columns if not c.on_request]
    optional = [c.name for c in columns if c.on_request and c.name in frame.columns]
    if frame.columns != required + optional:
        return [f"{name}: columns {frame.columns}, not {required + optional}"]
    wrong = []
    for column in columns:
        if column.name not in frame.columns:
            continue
        series = frame[column.name]
        if series.dtype != column.dtype:
            wrong.append(f"{name}.{column.name}: {series.dtype}, not {column.dtype}")
        elif column.null == "never" and series.null_count():
            wrong.append(f"{name}.{column.name}: null {series.null_count()} times")
        elif series.dtype == pl.Float64 and not series.is_finite().all():
            wrong.append(f"{name}.{column.name}: not a finite number")
    if wrong:
        return wrong
    far = {c: frame.select(beyond(name, c).any()) for c in bounded_columns(name)}
    return [f"{name}.{column}: value out of range" for column in far if far[column].item()]


def _check_rows(frames: Mapping[str, pl.DataFrame]) -> Iterator[str]:
    for name, column, of in _ROW_NUMBERS:
        top, rows = frames[name][column].max(), frames[of].height
        if isinstance(top, int) and top >= rows:
            yield f"{name}.{column}: row {top} of {rows}"
    for name in ("stacks", "segments"):
        numbers = frames[name]["id"]
        if not numbers.equals(pl.int_range(numbers.len(), dtype=pl.UInt32, eager=True)):
            yield f"{name}.id: not the row numbers"
    if (frames["stacks"]["parent"] >= frames["stacks"]["id"]).any():
        yield "stacks.parent: parent after its child"


def _check_times(events: pl.DataFrame) -> Iterator[str]:
    timeless = events.filter(pl.col("ts").is_null())["kind"].cast(pl.String)
    if not timeless.is_in(TIMELESS_KINDS).all():
        yield "events.ts: null for a kind that requires a time"
    if not events.select(on_the_clock().all()).item():
        yield f"events: a time beyond {LAST_NS} ns, or a duration beyond {MAX_DURATION_NS} ns"
    order = events.select(
        # an open-ended event sorts after the closed ones of the same start
        later=(pl.col("ts") > pl.col("ts").shift(1)).fill_null(True),
        longest_first=(
            (pl.col("ts") == pl.col("ts").shift(1))
            & (pl.col("dur").fill_null(-1) <= pl.col("dur").shift(1).fill_null(-1))
        ).fill_null(True),
    )
    unordered = (~(order["later"] | order["longest_first"])).sum()
    if unordered and events["ts"].null_count() == 0:
        yield f"events: {unordered} rows not ordered by (ts, -dur)"


# --- limits of values ----------------------------------------------------------------------------

_SIZES = (
    *(("memory_totals", name) for name in ("allocated_bytes", "reserved_bytes", "free_bytes")),
    *(("collectives", name) for name in ("elements_in", "elements_out")),
    *(("collective_records", name) for name in ("elements_in", "elements_out")),
    *(("segments", name) for name in ("total_bytes", "allocated_bytes", "active_bytes")),
    *(("blocks", name) for name in ("size_bytes", "requested_bytes")),
)
_SIZED = frozenset((("events", "bytes"), *_SIZES))
#: Events of which a negative size is a free.
_WITH_FREES = ("cpu_instant_event", *ALLOCATOR_KINDS)
#: Column -> the smallest absolute value that is out of range.
_TOO_FAR = {
    **dict.fromkeys((("events", "bytes"), *_SIZES), MAX_BYTES),
    **{(table, "address"): MAX_ADDRESS for table in ("segments", "blocks")},
    **{(table, "ts"): LAST_NS + 1 for table in ("flows", "counters")},
    ("events", "weight"): MAX_WEIGHT + 2,  # the next Float64
}


def bounded_columns(table: str) -> list[str]:
    """Return the columns of a table with a limit."""
    return [column for of, column in _TOO_FAR if of == table]


def are_within(table: str, column: pl.Series) -> bool:
    """Whether all values of a bounded column are in range; faster than a query."""
    if column.null_count() == len(column):
        return True
    bound = _TOO_FAR[table, column.name]
    # sizes are not negative, except those of frees
    least = 1 - bound if (table, column.name) not in _SIZED else 0
    smallest, largest = column.min(), column.max()
    # fractions may be NaN, which these do not show
    return (
        isinstance(smallest, int)
        and isinstance(largest, int)
        and least <= smallest <= largest < bound
    )


def beyond(table: str, column: str) -> pl.Expr:
    """Return the condition that a value of a column of :func:`bounded_columns` is out of range.

    The size of a request that failed (out of memory) has no limit.
    """
    bound = _TOO_FAR[table, column]
    value = pl.col(column)
    # addresses are unsigned, and the lower bound does not fit their type
    far = value >= bound if column == "address" else (value >= bound) | (value <= -bound)
    if (table, column) == ("events", "bytes"):
        far &= pl.col("kind") != "oom"
        far |= (value < 0) & ~pl.col("kind").is_in(_WITH_FREES)
    elif (table, column) in _SIZED:
        far |= value < 0
    return far.fill_null(value=False)


def on_the_clock() -> pl.Expr:
    """Return the condition that an event has no time, or is within :data:`LAST_NS` of 0.

    Its duration is at most :data:`MAX_DURATION_NS`.
    """
    ts, dur = pl.col("ts"), pl.col("dur").fill_null(0)
    # the end may not fit Int64, so the duration is compared with the remaining range
    fits = dur.is_between(-LAST_NS - ts, LAST_NS - ts)
    fits &= dur.is_between(-MAX_DURATION_NS, MAX_DURATION_NS)
    return (ts.is_between(-LAST_NS, LAST_NS) & fits).fill_null(ts.is_null())
