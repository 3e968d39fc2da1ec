"""What holds more or less memory at the peak of one run than at that of another.

Compared are the devices with the highest peak of each run. Code is the same where its functions and
files are; of a file only the last two parts of its path count, so that runs of different users, in
different environments, can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from traceanalyzer.analyzers.base import Analyzer
from traceanalyzer.analyzers.common.columns import largest_first, looked_up
from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.analyzers.common.places import places
from traceanalyzer.analyzers.memory import compute, ledger
from traceanalyzer.analyzers.memory.options import DiffOptions
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.analyzers.memory.tables import with_line
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_bytes

_FILE = r"^.*?((?:[^/\\]+[/\\])?[^/\\]+)$"
_PLACE = r"\((?:[^()]*[/\\])?([^/\\()]+[/\\][^/\\()]+)\)"
_CODE = ("function", "code")
_AMOUNTS = ("n", "base_n", "live_bytes", "base_bytes", "changed_bytes")
_PLACED = ("rank", "path", "device")

_NAMED = 3
_PEAKS = {"run": "run", "on": "device", "peak_bytes": "peak in use"}
_CHANGES = headings(
    "at: line of code, base_bytes: before, live_bytes: now, changed_bytes: change, "
    "base_n: n before, n: n now"
)


def combine(
    parts: Sequence[Memory], options: DiffOptions, base: Sequence[Memory] = ()
) -> MemoryDiff:
    """What changed between two runs."""
    return diff_of(compute.combine(parts, options), compute.combine(base, options))


MEMORY_DIFF = Analyzer(
    "memory_diff",
    DiffOptions,
    ledger.needs,
    partial(compute.measure, drawn=False, causes=False),
    combine,
    base="other",
    whole_file=True,
)


def diff_of(new: Memory, old: Memory) -> MemoryDiff:
    """What changed between two results."""
    own, base = (_fullest(run.devices, run.alive) for run in (new, old))
    columns = ("rank", "path", "device", "peak_bytes")
    return MemoryDiff(
        peak_bytes=new.peak_bytes,
        base_bytes=old.peak_bytes,
        changes=_difference(own, base),
        devices=pl.concat(
            run.devices.select(pl.lit(name).alias("run"), *columns)
            for run, name in ((new, "now"), (old, "before"))
        ),
        remarks=(*new.remarks, *old.remarks),
    )


def _difference(new: pl.DataFrame, old: pl.DataFrame) -> pl.DataFrame:
    """Live bytes at the peak by stack, in two runs; the largest change first.

    Args:
        new: rows of ``Memory.alive`` of one device.
        old: those of the device to compare with.

    Returns:
        function, file, line, stack (null where only the other run has it: then as it has it), n,
        base_n, live_bytes, base_bytes, changed_bytes.
    """
    own, base = (_by_stack(frame) for frame in (new, old))
    renamed = {name: f"base_{name}" for name in ("n", "file", "line", "stack")}
    keys = ("function", "code", "place", "told")
    joined = own.join(
        base.rename({**renamed, "live_bytes": "base_bytes"}),
        on=keys, how="full", coalesce=True, nulls_equal=True,
    ).with_columns(pl.col("n", "base_n", "live_bytes", "base_bytes").fill_null(0))  # fmt: skip
    found = joined.select(
        "function",
        "code",
        *(pl.coalesce(name, f"base_{name}").alias(name) for name in ("file", "line", "stack")),
        "n",
        "base_n",
        "live_bytes",
        "base_bytes",
        changed_bytes=pl.col("live_bytes") - pl.col("base_bytes"),
    )
    return _largest_first(found, "function", "file", "line", "stack")


def _by_line(changes: pl.DataFrame) -> pl.DataFrame:
    """The changes by line of code.

    A line that moved is the same line, where its function has only one that holds memory in each
    run.
    """
    held = changes.with_columns(
        ours=pl.when(pl.col("n") > 0).then("line"),
        theirs=pl.when(pl.col("base_n") > 0).then("line"),
    )
    lines = held.group_by(_CODE).agg(
        moved=(pl.col("ours").drop_nulls().n_unique() == 1)
        & (pl.col("theirs").drop_nulls().n_unique() == 1),
        now=pl.col("ours").drop_nulls().first(),
    )
    told = looked_up(changes, lines, _CODE)
    kept = told.with_columns(line=pl.when("moved").then("now").otherwise("line"))
    sums = kept.group_by(*_CODE, "line").agg(pl.col("file").first(), pl.col(_AMOUNTS).sum())
    return _largest_first(sums.drop("code"), "function", "file", "line")


def _fullest(devices: pl.DataFrame, alive: pl.DataFrame) -> pl.DataFrame:
    """The rows of ``alive`` of the device with the highest peak."""
    first = largest_first(devices, "peak_bytes", *_PLACED).head(1).select(_PLACED)
    return alive.join(first, on=_PLACED, nulls_equal=True, maintain_order="left")


def _by_stack(alive: pl.DataFrame) -> pl.DataFrame:
    """Sums by code and stack, told by the ends of paths; of alike ones the first is shown."""
    told = alive.with_columns(
        code=pl.col("file").str.extract(_FILE),
        place=pl.col("line"),
        told=pl.col("stack").str.replace_all(_PLACE, "($1)"),
    )
    return told.group_by("function", "code", "place", "told", maintain_order=True).agg(
        pl.col("file", "line", "stack").first(), pl.col("n", "live_bytes").sum()
    )


def _largest_first(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    return largest_first(frame, pl.col("changed_bytes").abs(), *keys, nulls_last=True)


# --- result ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class MemoryDiff(Result):
    """What :func:`traceanalyzer.memory_diff` found.

    Attributes:
        peak_bytes: the highest peak.
        base_bytes: that of the run compared with.
        changes: a row a stack: function, code (the file by the end of its path), file, line,
            stack, n, base_n, live_bytes, base_bytes, changed_bytes (at the peaks).
        devices: rank, path, device, peak_bytes and run (``now`` or ``before``) of all devices.
        remarks: further notes.
    """

    peak_bytes: int
    base_bytes: int
    changes: pl.DataFrame
    devices: pl.DataFrame
    remarks: tuple[str, ...] = ()

    @property
    def lines(self) -> pl.DataFrame:
        """The changes by line of code."""
        return _by_line(self.changes)

    def largest_changes(self) -> str:
        """The lines of code that hold more or less at the peak, as a sentence."""
        rows = with_line(self.lines.filter(pl.col("changed_bytes") != 0)).head(_NAMED)
        named = [
            f"{at} {'+' if n > 0 else '-'}{format_bytes(abs(n))}"
            for at, n in rows.select("at", "changed_bytes").rows()
        ]
        return f"The largest changes: {', '.join(named)}." if named else ""

    def view(self) -> View:
        """Changes by line and by stack."""
        return View(
            title="What changed at the peak?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=_tables(self),
            scalars=self.numbers("peak_bytes", "base_bytes"),
        )


def _verdict(result: MemoryDiff) -> str:
    """How the peak changed, and by which code."""
    changed = result.peak_bytes - result.base_bytes
    word = "grew" if changed > 0 else "shrank"
    peak = (
        f"The peak {word} by {format_bytes(abs(changed))}, from "
        f"{format_bytes(result.base_bytes)} to {format_bytes(result.peak_bytes)}."
        if changed
        else f"The peak is {format_bytes(result.peak_bytes)} in both."
    )
    return f"{peak} {result.largest_changes() or 'The same code holds the same memory.'}"


def _notes(result: MemoryDiff) -> tuple[str, ...]:
    """How numbers are meant."""
    which = "" if result.devices.height == 2 else " of the device with the highest peak"
    compared = f"Compared is what was live at the peak{which} of each run, by stack"
    return (f"{compared}; of paths only the last two parts count.", *result.remarks)


def _tables(result: MemoryDiff) -> tuple[Table, ...]:
    """Changes by line and by stack."""
    changed = pl.col("changed_bytes") != 0
    lines, stacks = (with_line(frame.filter(changed)) for frame in (result.lines, result.changes))
    devices = result.devices.with_columns(places(result.devices))
    return (
        Table("lines", "Changes by line of code", lines, _CHANGES),
        Table("changes", "Changes by stack", stacks, _CHANGES, detail=True),
        Table("devices", "Peaks of all devices", devices, _PEAKS, detail=True),
    )
