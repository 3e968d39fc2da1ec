"""Writes ``docs/schema.md`` from :mod:`traceanalyzer.schema`; ``make docs`` runs it."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from traceanalyzer import schema
from traceanalyzer.vocabulary import KINDS

PAGE = Path(__file__).with_name("schema.md")

INTRODUCTION = """\
# The tables

<!-- Derived from traceanalyzer/schema.py by `make docs`; edit that file, not this one. -->

Every parser writes these tables and every analysis reads them; `traceanalyzer.read(path)` returns
them as polars frames (`trace.events`, `trace.launch_configs`, ...), and `traceanalyzer convert`
keeps them in Parquet. A test holds each parser to this page.

- **Null means "not there"**: no -1, no 0 in its place, no NaN.
- Times are whole nanoseconds in Int64, on the trace's own clock; `trace.meta.epoch_ns` is the
  absolute time of 0. Sizes are bytes.
- `events` is ordered by (ts, -dur, place in the file): a parent stands before its children.
- A column `event` in another table is the row number in `events`.
- Columns marked *on request* are there only when asked for: `read(path, columns={"args"})`.
- Numbers that cannot be are damage and do not get here, whatever the format: events start and end
  within 137 years of the clock's 0 (else they are left out: the finding `time-out-of-range`); sizes
  are below 16 TiB, but for a request that failed, and a sample counts 2^53 at most (else they are
  null: `number-out-of-range`). So differences of times fit 64 bits.
"""

TABLES = {
    "events": "One row an event: what ran on the host, and what ran on a device.",
    "stacks": "Call stacks as a prefix tree: each row is a frame and points to its caller.",
    "launch_configs": "How a kernel was launched; one row a kernel.",
    "collectives": "What is known of a communication event beyond its name.",
    "memory_totals": "What the allocator noted with a `[memory]` instant.",
    "lanes": "Processes and threads as the file describes them.",
    "flows": "Ends of arrows between events, such as from a launch call to its kernel.",
    "counters": "Readings of counters.",
    "segments": "Memory segments of a snapshot.",
    "blocks": "Blocks of those segments.",
    "issues": "What was odd in the file, and what was lost of it.",
}


def dtype_text(column: schema.Column) -> str:
    """The dtype's bare name: an Enum's values stand elsewhere on the page."""
    dtype = column.dtype
    return type(dtype).__name__ if isinstance(dtype, pl.DataType) else dtype.__name__


def row(column: schema.Column) -> str:
    """One column as a row of the page's table."""
    meaning = column.meaning + (" (*on request*)" if column.on_request else "")
    null = "" if column.null == "never" else column.null
    return f"| `{column.name}` | {dtype_text(column)} | {column.unit} | {meaning} | {null} |"


def section(table: str) -> str:
    """One table of the schema."""
    head = "| column | dtype | unit | meaning | null means |\n|---|---|---|---|---|"
    rows = "\n".join(row(column) for column in schema.TABLES[table])
    return f"## `{table}`\n\n{TABLES[table]}\n\n{head}\n{rows}\n"


def kinds() -> str:
    """The values of ``events.kind``."""
    words = ", ".join(f"`{kind}`" for kind in KINDS)
    return (
        "## Kinds\n\nThe values of `events.kind`, spelled as PyTorch's Kineto spells its "
        f"activities:\n{words}.\n"
    )


def page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *(section(table) for table in schema.TABLES), kinds()])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
