"""Memory from printed text: ``memory_summary()``, DeepSpeed's ``see_memory_usage``."""

from dataclasses import dataclass
from functools import partial

import polars as pl

from traceanalyzer.analyzers.common import printed
from traceanalyzer.analyzers.common.display import headings, rank_column, sentences, table_of_known
from traceanalyzer.analyzers.memory.options import MemoryOptions
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Table, View
from traceanalyzer.units import format_bytes, format_times

_SUMMARY, _USAGE, _THROUGHPUT = "memory_summary", "memory_usage", "throughput"
_OF_ROWS = {
    **{
        f"{name}_{unit}": pl.Int64
        for unit in ("bytes", "n")
        for name in ("current", "peak", "total_allocated", "total_freed")
    },
    "unit_bytes": pl.Int64,
}
_OF_SUMMARY = {"device": pl.Int32, "ooms": pl.Int64, "retries": pl.Int64}
_REQUIREMENT = {"requirement_bytes": pl.Int64}
_OF_CALLS = {
    "allocated_bytes": pl.Int64,
    "peak_bytes": pl.Int64,
    "reserved_bytes": pl.Int64,
    "reserved_peak_bytes": pl.Int64,
    "host_used_bytes": pl.Int64,
    "host_used_frac": pl.Float64,
}

#: Columns of ``devices``, those of a recording with the same meaning, and ``unit_bytes``.
DEVICES = {
    "rank": pl.Int32,
    "path": pl.String,
    "device": pl.Int32,
    "source": pl.String,
    "peak_bytes": pl.Int64,
    "reserved_peak_bytes": pl.Int64,
    "end_bytes": pl.Int64,
    "reserved_end_bytes": pl.Int64,
    "inactive_split_bytes": pl.Int64,
    "retries": pl.Int64,
    "ooms": pl.Int64,
    "unit_bytes": pl.Int64,
}

_DEVICE_TABLE = headings(
    "device, source, peak_bytes: peak allocated, reserved_peak_bytes: peak reserved, "
    "end_bytes: allocated at end, reserved_end_bytes: reserved at end, "
    "inactive_split_bytes: inactive split at end, retries: cudaMalloc retries, "
    "ooms: out-of-memory errors, unit_bytes: rounded to"
)
_CALL_TABLE = headings(
    "name: call, allocated_bytes: allocated, change_bytes: change, peak_bytes: peak since last, "
    "reserved_bytes: reserved, reserved_peak_bytes: peak reserved, host_used_bytes: host memory, "
    "host_used_frac: of host"
)
_ROW_TABLE = headings(
    "device, name: what, current_bytes: at end, peak_bytes: peak, "
    "total_allocated_bytes: allocated in total, total_freed_bytes: freed in total, "
    "current_n: number at end, peak_n: peak number"
)
_DEEPSPEED_NOTE = (
    "see_memory_usage rounds to 0.01 GiB (peak reserved to 1 GiB), and its peaks are those since "
    "the previous call."
)
_SUMMARY_NOTE = "memory_summary() rounds down to the unit in 'rounded to'."


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PrintedMemory(Memory):
    """Memory of printed text: what was in use, without code or time.

    As :class:`~.result.Memory`, whose other tables are empty.

    Attributes:
        devices: one row per device and source, with the columns of :data:`DEVICES`.
        summary: the rows of memory_summary(): rank, path, device, name, current_bytes, peak_bytes,
            total_allocated_bytes, total_freed_bytes, or the same as numbers (``_n``), unit_bytes.
        calls: the calls of see_memory_usage in order: rank, path, number, name (the message),
            allocated_bytes, change_bytes (since the previous call), peak_bytes, reserved_bytes,
            reserved_peak_bytes, host_used_bytes, host_used_frac, printed_ns, line.
    """

    summary: pl.DataFrame
    calls: pl.DataFrame

    def view(self) -> View:
        """Return devices, calls, and all rows of the summary as details."""
        return View(
            title="How much GPU memory was in use?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=_tables(self),
            scalars={
                "peak_bytes": self.peak_bytes,
                "ooms": int(self.devices["ooms"].sum()),
                "retries": int(self.devices["retries"].sum()),
            },
            charts=partial(_charts, self.calls),
        )


def combine(rows: pl.DataFrame, _options: MemoryOptions) -> PrintedMemory:
    """Return the memory of all summaries and calls."""
    blocks = printed.wide(rows, _SUMMARY, _OF_SUMMARY).drop_nulls("device")
    of_rows = printed.wide(rows, _SUMMARY, _OF_ROWS).drop_nulls("row")
    device = blocks.select("path", "rank", "block", *_OF_SUMMARY)
    on = ["path", "rank", "block"]
    summary = of_rows.join(device, on=on, how="left", nulls_equal=True, maintain_order="left")
    calls = _calls(rows)
    devices = [
        _of_summaries(summary),
        _of_requirement(rows, device),
        _of_calls(calls),
        _of_throughput(rows),
    ]
    empty = pl.DataFrame(schema=DEVICES)
    known = pl.concat([empty, *devices], how="diagonal_relaxed").select(
        pl.col(name).cast(dtype) for name, dtype in DEVICES.items()
    )
    return PrintedMemory(
        **printed.blank(Memory)
        | {"devices": known.sort("rank", "path", "device", nulls_last=True, maintain_order=True)},
        summary=summary.select("rank", "path", "device", "name", *_OF_ROWS, "line"),
        calls=calls,
    )


def _of_summaries(summary: pl.DataFrame) -> pl.DataFrame:
    """Return a row per summary."""

    def of(name: str, column: str) -> pl.Expr:
        return pl.col(f"{column}_bytes").filter(pl.col("name") == name).first()

    keys = ["rank", "path", "block", "device", "ooms", "retries"]
    return summary.group_by(keys, maintain_order=True).agg(
        source=pl.lit("memory_summary"),
        peak_bytes=of("Allocated memory", "peak"),
        reserved_peak_bytes=of("GPU reserved memory", "peak"),
        end_bytes=of("Allocated memory", "current"),
        reserved_end_bytes=of("GPU reserved memory", "current"),
        inactive_split_bytes=of("Non-releasable memory", "current"),
        unit_bytes=of("Allocated memory", "unit").fill_null(of("GPU reserved memory", "unit")),
    )


def _of_requirement(rows: pl.DataFrame, summaries: pl.DataFrame) -> pl.DataFrame:
    """Return the line ``Memory requirement`` where no summary has the same figure."""
    lines = printed.wide(rows, _SUMMARY, _REQUIREMENT).drop_nulls("requirement_bytes")
    others = lines.join(summaries, on=["path", "rank"], how="anti", nulls_equal=True)
    peak = pl.col("requirement_bytes").alias("reserved_peak_bytes")
    return others.select("rank", "path", peak, source=pl.lit("Memory requirement"))


def _calls(rows: pl.DataFrame) -> pl.DataFrame:
    calls = printed.wide(rows, _USAGE, _OF_CALLS)
    change = pl.col("allocated_bytes").diff().over("path", "rank", "block")
    return calls.with_columns(change_bytes=change).select(
        "rank", "path", pl.col("row").alias("number"), "name", "allocated_bytes", "change_bytes",
        *[name for name in _OF_CALLS if name != "allocated_bytes"], "printed_ns", "line",
    )  # fmt: skip


def _of_calls(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.group_by("rank", "path", maintain_order=True).agg(
        pl.col("peak_bytes").max(),
        pl.col("reserved_peak_bytes").max(),
        source=pl.lit("see_memory_usage"),
        end_bytes=pl.col("allocated_bytes").last(),
        reserved_end_bytes=pl.col("reserved_bytes").last(),
    )


def _of_throughput(rows: pl.DataFrame) -> pl.DataFrame:
    numbers = {"allocated_bytes": pl.Int64, "peak_bytes": pl.Int64}
    lines = printed.wide(rows, _THROUGHPUT, numbers).drop_nulls("peak_bytes")
    return lines.group_by("rank", "path", maintain_order=True).agg(
        pl.col("peak_bytes").max(),
        source=pl.lit("throughput lines"),
        end_bytes=pl.col("allocated_bytes").last(),
    )


# --- words -------------------------------------------------------------------------------------


def _verdict(result: PrintedMemory) -> str:
    devices = result.devices
    known = devices.sort(
        "peak_bytes", "reserved_peak_bytes", "source", descending=True, nulls_last=True
    )
    parts = [
        f"{format_bytes(known[name][0])} {what}"
        for name, what in (("peak_bytes", "allocated"), ("reserved_peak_bytes", "reserved"))
        if known.height and known[name][0] is not None
    ]
    ooms, retries = (int(devices[name].sum()) for name in ("ooms", "retries"))
    return sentences(
        f"Out-of-memory errors: {ooms:,}." if ooms else "",
        f"Peak memory: {', '.join(parts)} ({known['source'][0]})." if parts else "",
        _cached(devices),
        "The allocator freed cached segments and retried cudaMalloc "
        f"{format_times(retries)}, which synchronises the device."
        if retries
        else "",
        _largest_change(result.calls),
    )


def _cached(devices: pl.DataFrame) -> str:
    """State the reserved memory that was never allocated, for the fullest device."""
    known = devices.drop_nulls(["peak_bytes", "reserved_peak_bytes"])
    known = known.filter(pl.col("source") == "memory_summary")
    if known.is_empty():
        return ""
    row = known.sort("reserved_peak_bytes", descending=True).row(0, named=True)
    unused = row["reserved_peak_bytes"] - row["peak_bytes"]
    return f"Peak reserved is {format_bytes(unused)} above peak allocated (cache, fragmentation)."


def _largest_change(calls: pl.DataFrame) -> str:
    known = calls.filter(pl.col("change_bytes") > 0).sort(
        "change_bytes", "line", descending=[True, False]
    )
    if known.is_empty():
        return ""
    row = known.row(0, named=True)
    at = f" at {row['name']!r}" if row["name"] else ""
    return f"Largest increase between two calls: {format_bytes(row['change_bytes'])}{at}."


def _notes(result: PrintedMemory) -> tuple[str, ...]:
    notes = [
        printed.NOTE.replace(
            "torch.profiler export_chrome_trace(FILE) records what ran when.",
            "torch.cuda.memory._dump_snapshot(FILE) records which code allocated it.",
        )
    ]
    notes += [_SUMMARY_NOTE] if result.summary.height else []
    notes += [_DEEPSPEED_NOTE] if result.calls.height else []
    return tuple(notes)


def _tables(result: PrintedMemory) -> tuple[Table, ...]:
    by = rank_column(result.devices)
    tables = [table_of_known("devices", "Devices", result.devices, {**by, **_DEVICE_TABLE})]
    if result.calls.height:
        several = result.calls.select("rank", "path").n_unique() > 1
        columns = {**(by if several else {}), **_CALL_TABLE}
        tables.append(table_of_known("calls", "Calls of see_memory_usage", result.calls, columns))
    if result.summary.height:
        columns = {**by, **_ROW_TABLE}
        tables.append(
            table_of_known("summary", "memory_summary()", result.summary, columns, detail=True)
        )
    return tuple(tables)


def _charts(calls: pl.DataFrame) -> tuple[Chart, ...]:
    """Build a line of allocated memory over the calls."""
    if calls.height < 2:
        return ()
    several = calls.select("rank", "path").n_unique() > 1
    by = "rank" if calls["rank"].null_count() == 0 else "path"
    frame = calls.with_columns(pl.col(by).cast(pl.String))
    return (
        Chart(
            name="calls", title="Allocated memory by call", mark="line", frame=frame, x="number",
            y="allocated_bytes", x_label="call", y_label="allocated",
            color=by if several else None,
        ),
    )  # fmt: skip
