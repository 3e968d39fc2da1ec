"""Comparison of the memory live at the peak of two runs.

The devices with the highest peak of each run are compared. Code matches by function and file; only
the last two parts of a path count, so that runs of different users in different environments can be
compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Reading
from traceanalyzer.analyzers.common.columns import largest_first, left_join
from traceanalyzer.analyzers.common.display import headings, places
from traceanalyzer.analyzers.memory import DiffOptions, compute, ledger
from traceanalyzer.analyzers.memory.rank_memory import with_line
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.result import Result, Table, View
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs
from traceanalyzer.units import format_bytes

_FILE = r"^.*?((?:[^/\\]+[/\\])?[^/\\]+)$"
_PLACE = r"\((?:[^()]*[/\\])?([^/\\()]+[/\\][^/\\()]+)\)"
_CODE = ("function", "code")
_AMOUNTS = ("n", "base_n", "live_bytes", "base_bytes", "changed_bytes")
_DEVICE = ("rank", "path", "device")

_NAMED = 3
_PEAKS = {"run": "run", "on": "device", "peak_bytes": "peak allocated"}
_CHANGES = headings(
    "at: line of code, base_bytes: before, live_bytes: now, changed_bytes: change, "
    "base_n: n before, n: n now"
)


def combine(
    parts: Sequence[Memory], options: DiffOptions, base: Sequence[Memory] = ()
) -> MemoryDiff:
    """Compare the parts of two runs."""
    return diff_of(compute.combine(parts, options), compute.combine(base, options))


MEMORY_DIFF = Analyzer(
    "memory_diff",
    DiffOptions,
    ledger.NEEDS,
    partial(compute.measure, drawn=False, causes=False),
    combine,
    base="other",
    whole_file=True,
)


def diff_of(new: Memory, old: Memory) -> MemoryDiff:
    """Compare two results."""
    after, before = (_fullest(run.devices, run.alive) for run in (new, old))
    columns = ("rank", "path", "device", "peak_bytes")
    return MemoryDiff(
        peak_bytes=new.peak_bytes,
        base_bytes=old.peak_bytes,
        changes=_difference(after, before),
        devices=pl.concat(
            run.devices.select(pl.lit(name).alias("run"), *columns)
            for run, name in ((new, "now"), (old, "before"))
        ),
        remarks=(*new.remarks, *old.remarks),
    )


def _difference(new: pl.DataFrame, old: pl.DataFrame) -> pl.DataFrame:
    """Return live bytes at the peak of two runs by stack, largest change first.

    Args:
        new: rows of ``Memory.alive`` of one device.
        old: rows of the device to compare with.

    Returns:
        function, file, line, stack (of the old run if only that has the stack), n, base_n,
        live_bytes, base_bytes, changed_bytes.
    """
    after, before = (_by_stack(frame) for frame in (new, old))
    renamed = {name: f"base_{name}" for name in ("n", "file", "line", "stack")}
    keys = ("function", "code", "place", "short_stack")
    joined = after.join(
        before.rename({**renamed, "live_bytes": "base_bytes"}),
        on=keys, how="full", coalesce=True, nulls_equal=True,
    ).with_columns(pl.col("n", "base_n", "live_bytes", "base_bytes").fill_null(0))  # fmt: skip
    changes = joined.select(
        "function", "code",
        *(pl.coalesce(name, f"base_{name}").alias(name) for name in ("file", "line", "stack")),
        "n", "base_n", "live_bytes", "base_bytes",
        changed_bytes=pl.col("live_bytes") - pl.col("base_bytes"),
    )  # fmt: skip
    return _largest_first(changes, "function", "file", "line", "stack")


def _by_line(changes: pl.DataFrame) -> pl.DataFrame:
    """Return the changes by line of code.

    A moved line counts as the same line if its function has only one line with memory in each run.
    """
    with_lines = changes.with_columns(
        after=pl.when(pl.col("n") > 0).then("line"),
        before=pl.when(pl.col("base_n") > 0).then("line"),
    )
    lines = with_lines.group_by(_CODE).agg(
        moved=(pl.col("after").drop_nulls().n_unique() == 1)
        & (pl.col("before").drop_nulls().n_unique() == 1),
        now=pl.col("after").drop_nulls().first(),
    )
    rows = left_join(changes, lines, _CODE)
    matched = rows.with_columns(line=pl.when("moved").then("now").otherwise("line"))
    sums = matched.group_by(*_CODE, "line").agg(pl.col("file").first(), pl.col(_AMOUNTS).sum())
    return _largest_first(sums.drop("code"), "function", "file", "line")


def _fullest(devices: pl.DataFrame, alive: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of ``alive`` of the device with the highest peak."""
    first = largest_first(devices, "peak_bytes", *_DEVICE).head(1).select(_DEVICE)
    return alive.join(first, on=_DEVICE, nulls_equal=True, maintain_order="left")


def _by_stack(alive: pl.DataFrame) -> pl.DataFrame:
    """Return sums by code and stack with shortened paths; the first full path is kept."""
    rows = alive.with_columns(
        code=pl.col("file").str.extract(_FILE),
        place=pl.col("line"),
        short_stack=pl.col("stack").str.replace_all(_PLACE, "($1)"),
    )
    return rows.group_by("function", "code", "place", "short_stack", maintain_order=True).agg(
        pl.col("file", "line", "stack").first(), pl.col("n", "live_bytes").sum()
    )


def _largest_first(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    return largest_first(frame, pl.col("changed_bytes").abs(), *keys, nulls_last=True)


# --- result ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class MemoryDiff(Result):
    """Result of :func:`traceanalyzer.memory_diff`.

    Attributes:
        peak_bytes: the highest peak.
        base_bytes: the highest peak of the base run.
        changes: one row per stack: function, code (the end of the path of the file), file, line,
            stack, n, base_n, live_bytes, base_bytes, changed_bytes (at the peaks).
        devices: rank, path, device, peak_bytes and run (``now`` or ``before``) of all devices.
        remarks: further notes.
    """

    question = "What changed at the peak?"
    scalar_names = "peak_bytes, base_bytes"

    peak_bytes: int
    base_bytes: int
    changes: pl.DataFrame
    devices: pl.DataFrame
    remarks: tuple[str, ...] = ()

    @property
    def lines(self) -> pl.DataFrame:
        """Changes by line of code."""
        return _by_line(self.changes)

    def largest_changes(self) -> str:
        """Return the lines of code with the largest changes in a sentence."""
        rows = with_line(self.lines.filter(pl.col("changed_bytes") != 0)).head(_NAMED)
        named = [
            f"{at} {'+' if n > 0 else '-'}{format_bytes(abs(n))}"
            for at, n in rows.select("at", "changed_bytes").rows()
        ]
        return f"Largest changes: {', '.join(named)}." if named else ""

    def view(self) -> View:
        """Return the changes by line and by stack."""
        return self.view_from(_verdict, _notes, _tables)


def _verdict(result: MemoryDiff) -> str:
    """State the change of the peak and the largest changes of lines."""
    changed = result.peak_bytes - result.base_bytes
    word = "grew" if changed > 0 else "shrank"
    peak = (
        f"Peak memory {word} by {format_bytes(abs(changed))}, from "
        f"{format_bytes(result.base_bytes)} to {format_bytes(result.peak_bytes)}."
        if changed
        else f"Peak memory: {format_bytes(result.peak_bytes)} in both runs."
    )
    return f"{peak} {result.largest_changes() or 'No line of code changed.'}"


def _notes(result: MemoryDiff) -> tuple[str, ...]:
    """Return how runs are compared, and the remarks."""
    which = "" if result.devices.height == 2 else " of the device with the highest peak"
    compared = f"Memory live at the peak{which} is compared by stack"
    return (f"{compared}; only the last two parts of a path count.", *result.remarks)


def _tables(result: MemoryDiff) -> Iterator[Table]:
    """Return the tables of changes and peaks."""
    changed = pl.col("changed_bytes") != 0
    lines, stacks = (with_line(frame.filter(changed)) for frame in (result.lines, result.changes))
    devices = result.devices.with_columns(places(result.devices))
    yield Table("lines", "Changes by line of code", lines, _CHANGES)
    yield Table("changes", "Changes by stack", stacks, _CHANGES, detail=True)
    yield Table("devices", "Peaks of all devices", devices, _PEAKS, detail=True)


def memory_diff(
    inputs: Inputs,
    other: Inputs,
    *,
    library_name: str | Sequence[str] = (),
    min_bytes: int | None = None,
    **reading: Unpack[Reading],
) -> MemoryDiff:
    """Which code has more or less memory live at the peak than in another run?

    Args:
        inputs: the run to analyze.
        other: the run to compare with.
        library_name: packages whose frames name an allocation; default: your own code.
        min_bytes: list and draw only allocations of at least this size; totals count all.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no memory events were recorded.
    """
    return run(MEMORY_DIFF, inputs, DiffOptions(library_name, min_bytes, other=other), **reading)
