"""The answers to why memory ran out, what grows, and what changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from traceanalyzer.analyzers.memory import growth, oom
from traceanalyzer.analyzers.memory.causes import (
    DEMAND,
    ELSEWHERE,
    FRAGMENTATION,
    LIMIT,
    OUTSIDE,
    UNKNOWN,
)
from traceanalyzer.analyzers.memory.diff import by_line, difference, fullest
from traceanalyzer.analyzers.memory.lines import frame_text
from traceanalyzer.analyzers.memory.result import Memory, shown_table, summed, with_line
from traceanalyzer.analyzers.memory.words import times_of
from traceanalyzer.analyzers.places import places
from traceanalyzer.result import Chart, Result, Table
from traceanalyzer.units import format_bytes

_NAMED: Final = 3
_ERRORS: Final = {
    "on": "device",
    "event": "event",
    "time_ns": "at",
    "request_bytes": "asked for",
    "device_free_bytes": "free on the device",
    "reserved_bytes": "reserved",
    "allocated_bytes": "allocated",
    "usable_bytes": "usable",
    "largest_free_bytes": "largest piece",
    "outside_bytes": "outside PyTorch",
    "cause": "cause",
}
_ADVICE: Final = {"cause": "cause", "n": "errors", "advice": "what to try"}
_ALIVE: Final = {
    "on": "device",
    "event": "event",
    "at": "line of code",
    "category": "category",
    "n": "n",
    "live_bytes": "bytes",
    "live_frac": "share",
}
_GROWTH: Final = {
    "on": "device",
    "at": "line of code",
    "first_bytes": "after the first step",
    "last_bytes": "after the last",
    "grown_bytes": "grown",
    "per_step_bytes": "a step",
    "grew_n": "steps",
}
_STEPS: Final = {
    "on": "device",
    "step": "step",
    "name": "name",
    "time_ns": "ends at",
    "live_bytes": "live",
}
_PEAKS: Final = {"run": "run", "on": "device", "peak_bytes": "peak in use"}
_CHANGES: Final = {
    "at": "line of code",
    "base_bytes": "before",
    "live_bytes": "now",
    "changed_bytes": "change",
    "base_n": "n before",
    "n": "n now",
}


@dataclass(frozen=True, eq=False, repr=False)
class MemoryErrors(Result):
    """What :func:`traceanalyzer.memory_oom` found.

    Attributes:
        errors: a row an out-of-memory error: rank, path, device, event, time_ns, request_bytes,
            device_free_bytes (free on the device, as the allocator was told), reserved_bytes,
            allocated_bytes (requested by all that was live), unused_bytes (free in what is
            reserved), usable_bytes (of it in segments that serve such requests: of the size's
            class, the stream, and no private pool), largest_free_bytes (the largest run of those),
            pending_bytes (freed, but waiting for another stream), outside_bytes (capacity less
            reserved less free; null where the capacity is not given), missing_bytes (that all free
            memory together falls short of), cause, advice, and function, file, line of the request.
        alive: what was live at each, by stack: as ``Memory.alive``, with event.
        devices: the devices looked at: rank, path, device, events.
        windowed: only a stretch of the history was looked at.
        remarks: further notes.
    """

    errors: pl.DataFrame
    alive: pl.DataFrame
    devices: pl.DataFrame
    windowed: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The question."""
        return "Why did memory run out?"

    @property
    def verdict(self) -> str:
        """The first error, and the causes of all."""
        if self.errors.is_empty() and self.windowed:
            return "No out-of-memory error is in this stretch of the history."
        if self.errors.is_empty():
            return (
                "No out-of-memory error is in the history. To record one, keep "
                "torch.cuda.memory._record_memory_history() on and dump the snapshot in "
                "torch._C._cuda_attach_out_of_memory_observer."
            )
        first = self.errors.row(0, named=True)
        n = self.errors.height
        times = times_of(n)
        line = frame_text(first["function"], first["file"], first["line"])
        return f"Memory ran out {times}. The first: {_failure(first, line)}"

    @property
    def notes(self) -> tuple[str, ...]:
        """How numbers are meant."""
        said = []
        for why, what in (
            self.errors.select("cause", "advice").unique(maintain_order=True).rows()[1:]
        ):
            said.append(f"Other errors, {why}: {what}.")
        if self.errors.height:
            said.append(
                "What was unused is reconstructed from the history; blocks freed since are counted "
                "at the size that was asked for, rounded up to 512 bytes."
            )
            if self.errors["outside_bytes"].null_count():
                said.append(
                    "A snapshot does not tell how much memory the device has; with --capacity SIZE "
                    "memory outside PyTorch can be told."
                )
        return (*said, *self.remarks)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Errors, what to try, what was live at the first."""
        advice = self.errors.group_by("cause", "advice", maintain_order=True).agg(
            n=pl.len().cast(pl.Int64)
        )
        first = self.errors.head(1).select("rank", "path", "device", "event")
        keys = [*first.columns, "function", "file", "line", "category"]
        lines = with_line(summed(self.alive, keys))
        at_first = lines.join(first, on=first.columns, nulls_equal=True, maintain_order="left")
        return (
            shown_table("errors", "Errors", self.errors, _ERRORS),
            Table("advice", "What to try", advice, _ADVICE, detail=True, whole=True),
            shown_table("first", "Live at the first error", at_first, _ALIVE),
            shown_table("alive", "Live at each error", with_line(self.alive), _ALIVE, detail=True),
        )

    @property
    def scalars(self) -> dict[str, Any]:
        """How many errors."""
        return {"ooms": self.errors.height}


def _failure(row: dict[str, Any], line: str) -> str:
    size = row["request_bytes"]
    asked = f"{line} asked for {'memory' if size is None else format_bytes(size)}"
    free, reserved = row["device_free_bytes"], row["reserved_bytes"]
    told = [
        f"{format_bytes(free)} were free on the device" if free is not None else "",
        f"{format_bytes(reserved)} were reserved" if reserved is not None else "",
        f"{format_bytes(row['allocated_bytes'])} {'' if reserved is None else 'of it '}in use",
    ]
    if row["unused_bytes"] is not None:
        told.append(f"{format_bytes(row['unused_bytes'])} unused")
    if row["usable_bytes"]:
        usable, largest = format_bytes(row["usable_bytes"]), format_bytes(row["largest_free_bytes"])
        told.append(f"{usable} of that for such requests, the largest piece {largest}")
    missing = format_bytes(row["missing_bytes"])
    why = {
        FRAGMENTATION: "Cause: fragmentation; what was free would have been enough in one piece.",
        LIMIT: "Cause: a limit, or memory that came free since; the device had room.",
        ELSEWHERE: "Cause: what was free was not for such a request.",
        OUTSIDE: f"Cause: {format_bytes(row['outside_bytes'])} are held outside PyTorch.",
        UNKNOWN: "The cause cannot be told: segments, or what was free, are not known.",
        DEMAND: f"Cause: real demand; {missing} more than there was.",
    }[row["cause"]]
    return f"{asked}; {', '.join(one for one in told if one)}. {why} To try: {row['advice']}."


@dataclass(frozen=True, eq=False, repr=False)
class MemoryGrowth(Result):
    """What :func:`traceanalyzer.memory_growth` found.

    Attributes:
        steps: a row a step boundary: rank, path, device, step, name, event, time_ns, live_bytes.
        growth: a row a stack whose live bytes changed from the first boundary to the last: rank,
            path, device, function, file, line, own, first_bytes, last_bytes, grown_bytes,
            grown_steps (in a row, up to the last, in which they grew), grew_n, shrank_n (steps in
            which they did), per_step_bytes (of steps in which they grew), stack.
        remarks: further notes.
    """

    steps: pl.DataFrame
    growth: pl.DataFrame
    remarks: tuple[str, ...] = ()

    @property
    def suspects(self) -> pl.DataFrame:
        """Rows of ``growth`` that grew in each of the last three steps, or in a third of all."""
        return growth.suspects(self.growth, self.steps)

    @property
    def title(self) -> str:
        """The question."""
        return "What grows from step to step?"

    @property
    def verdict(self) -> str:
        """How much is gained, and by which code."""
        found = self.suspects
        total = int(found["grown_bytes"].sum())
        n = self.steps["step"].n_unique()
        if n <= growth.SUSPECT_STEPS:
            return f"{n} steps are too few to tell: it takes {growth.SUSPECT_STEPS + 1} at least."
        if found.is_empty():
            return (
                f"Nothing grows steadily: no line's live bytes grew in each of the last "
                f"{growth.SUSPECT_STEPS} of {n:,} steps, or in a third of all."
            )
        rows = with_line(found).head(_NAMED).rows(named=True)
        named = [f"{row['at']} {format_bytes(row['per_step_bytes'])} a step" for row in rows]
        return (
            f"{format_bytes(total)} were gained after the first of {n:,} steps and never given "
            f"back, at "
            f"{', '.join(named)}. Something holds on to what these lines allocate: a list of "
            "losses, a graph that is kept, a cache."
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """How numbers are meant."""
        return (
            (
                "Live bytes are taken at the end of each step; what the first steps set up once "
                "(optimizer state, caches) grows, but not steadily."
            ),
            *self.remarks,
        )

    @property
    def tables(self) -> tuple[Table, ...]:
        """Suspects, all that changed, steps."""
        return (
            shown_table("suspects", "Grows steadily", with_line(self.suspects), _GROWTH),
            shown_table("growth", "All that changed", with_line(self.growth), _GROWTH, detail=True),
            shown_table("steps", "Live at the end of each step", self.steps, _STEPS),
        )

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Live bytes over steps."""
        frame = self.steps.with_columns(places(self.steps))
        return (
            Chart(
                name="steps", title="Live at the end of each step", mark="line", frame=frame,
                x="step", y="live_bytes", x_label="step", y_label="live", color="on",
            ),
        )  # fmt: skip

    @property
    def scalars(self) -> dict[str, Any]:
        """What the suspects gained."""
        return {"gained_bytes": int(self.suspects["grown_bytes"].sum())}


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
    def title(self) -> str:
        """The question."""
        return "What changed at the peak?"

    @property
    def lines(self) -> pl.DataFrame:
        """The changes by line of code."""
        return by_line(self.changes)

    @property
    def verdict(self) -> str:
        """How the peak changed, and by which code."""
        changed = self.peak_bytes - self.base_bytes
        rows = with_line(self.lines.filter(pl.col("changed_bytes") != 0)).head(_NAMED)
        word = "grew" if changed > 0 else "shrank"
        peak = (
            f"The peak {word} by {format_bytes(abs(changed))}, from "
            f"{format_bytes(self.base_bytes)} to {format_bytes(self.peak_bytes)}."
            if changed
            else f"The peak is {format_bytes(self.peak_bytes)} in both."
        )
        if rows.is_empty():
            return f"{peak} The same code holds the same memory."
        named = [
            f"{row['at']} {'+' if row['changed_bytes'] > 0 else '-'}"
            f"{format_bytes(abs(row['changed_bytes']))}"
            for row in rows.rows(named=True)
        ]
        return f"{peak} The largest changes: {', '.join(named)}."

    @property
    def notes(self) -> tuple[str, ...]:
        """How numbers are meant."""
        which = "" if self.devices.height == 2 else " of the device with the highest peak"
        compared = f"Compared is what was live at the peak{which} of each run, by stack"
        return (f"{compared}; of paths only the last two parts count.", *self.remarks)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Changes by line and by stack."""
        changed = pl.col("changed_bytes") != 0
        lines, stacks = (with_line(frame.filter(changed)) for frame in (self.lines, self.changes))
        return (
            Table("lines", "Changes by line of code", lines, _CHANGES),
            Table("changes", "Changes by stack", stacks, _CHANGES, detail=True),
            Table("devices", "Peaks of all devices", self._placed(), _PEAKS, detail=True),
        )

    def _placed(self) -> pl.DataFrame:
        return self.devices.with_columns(places(self.devices))

    @property
    def scalars(self) -> dict[str, Any]:
        """Both peaks."""
        return {"peak_bytes": self.peak_bytes, "base_bytes": self.base_bytes}


def errors_of(
    parts: Sequence[oom.Part], remarks: Sequence[str] = (), *, windowed: bool = False
) -> MemoryErrors:
    """The errors of all ranks."""
    return MemoryErrors(
        errors=pl.concat([part.errors for part in parts]),
        alive=pl.concat([part.alive for part in parts]),
        devices=pl.concat([part.devices for part in parts]),
        windowed=windowed,
        remarks=tuple(remarks),
    )


def growth_of(parts: Sequence[growth.Part], remarks: Sequence[str] = ()) -> MemoryGrowth:
    """The growth of all ranks."""
    return MemoryGrowth(
        steps=pl.concat([part.steps for part in parts]),
        growth=pl.concat([part.growth for part in parts]),
        remarks=tuple(remarks),
    )


def diff_of(new: Memory, old: Memory) -> MemoryDiff:
    """What changed between two answers."""
    own, base = (fullest(run.devices, run.alive) for run in (new, old))
    columns = ("rank", "path", "device", "peak_bytes")
    return MemoryDiff(
        peak_bytes=new.scalars["peak_bytes"],
        base_bytes=old.scalars["peak_bytes"],
        changes=difference(own, base),
        devices=pl.concat(
            run.devices.select(pl.lit(name).alias("run"), *columns)
            for run, name in ((new, "now"), (old, "before"))
        ),
        remarks=(*new.remarks, *old.remarks),
    )
