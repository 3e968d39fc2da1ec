"""Write ``docs/schema.md`` from :mod:`traceanalyzer.schema` (``make docs``)."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from traceanalyzer import schema
from traceanalyzer.vocabulary import KINDS

PAGE = Path(__file__).with_name("schema.md")

INTRODUCTION = """\
# The tables

<!-- Generated from traceanalyzer/schema.toml by `make docs`; edit that file, not this one. -->

Every parser writes these tables and every analysis reads them; `traceanalyzer.read(path)` returns
them as polars frames (`trace.events`, `trace.launch_configs`, ...), and `traceanalyzer convert`
writes them to Parquet. A test checks each parser against this page.

- **Null means "not recorded"**: never -1, 0 or NaN.
- Times are whole nanoseconds in Int64, on the trace's own clock; `trace.meta.epoch_ns` is the
  absolute time of 0. Sizes are bytes.
- `events` is ordered by (ts, -dur, place in the file): a parent precedes its children.
- A column `event` in another table is the row number in `events`.
- Columns marked *on request* exist only if requested: `read(path, columns={"args"})`.
- Impossible numbers are damage and are removed in every format: events start and end
  within 137 years of the clock's 0 and last at most 104 days (otherwise they are dropped: issue
  `time-out-of-range`); sizes are below 16 TiB, except for a failed request, and a sample counts at
  most 2^53 (otherwise they are null: `number-out-of-range`). So differences and sums of times fit
  in 64 bits.
"""

TABLES = {
    "events": "One row per event on the host or on a device.",
    "stacks": "Call stacks as a prefix tree: each row is a frame and points to its caller.",
    "launch_configs": "Launch configuration; one row per kernel.",
    "collectives": "Collective, sizes and group of communication events.",
    "memory_totals": "Totals of the allocator, recorded with `[memory]` instants.",
    "lanes": "Processes and threads, as described by the file.",
    "flows": "End points of arrows between events, for example from a launch call to its kernel.",
    "counters": "Readings of counters.",
    "segments": "Memory segments of a snapshot.",
    "blocks": "Blocks of those segments.",
    "process_groups": "Process groups as a Flight Recorder dump lists them.",
    "collective_records": "Collectives, sends and receives of a Flight Recorder dump, in the order "
    "of the calls. Times are Unix times, not on the trace's clock.",
    "metrics": "Metrics and rules of Nsight Compute, one row per launch and metric. Launches have "
    "no time on a timeline: ncu replays kernels.",
    "aggregates": "Numbers that PyTorch and DeepSpeed [print](printed.md), one row per "
    "number: sums, means and totals without a timeline.",
    "issues": "Problems in the file, and dropped events.",
}


def dtype_text(column: schema.Column) -> str:
    """Return the name of the dtype; the values of an Enum are listed separately."""
    dtype = column.dtype
    return type(dtype).__name__ if isinstance(dtype, pl.DataType) else dtype.__name__


def row(column: schema.Column) -> str:
    """Return one column as a table row."""
    meaning = column.meaning + (" (*on request*)" if column.on_request else "")
    null = "" if column.null == "never" else column.null
    return f"| `{column.name}` | {dtype_text(column)} | {column.unit} | {meaning} | {null} |"


def section(table: str) -> str:
    """Return the section of one table."""
    head = "| column | dtype | unit | meaning | null means |\n|---|---|---|---|---|"
    rows = "\n".join(row(column) for column in schema.TABLES[table])
    return f"## `{table}`\n\n{TABLES[table]}\n\n{head}\n{rows}\n"


def kinds() -> str:
    """Return the section of the values of ``events.kind``."""
    values = ", ".join(f"`{kind}`" for kind in KINDS)
    return f"## Kinds\n\nThe values of `events.kind`, spelled as in PyTorch's Kineto:\n{values}.\n"


def page() -> str:
    """Return the whole page."""
    return "\n".join([INTRODUCTION, *(section(table) for table in schema.TABLES), kinds()])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
