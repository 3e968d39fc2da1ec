"""The answer: what changed from one run to another, by how much, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.diff.measure import Measure, Outcome
from traceanalyzer.analyzers.diff.shown import charts, tables
from traceanalyzer.analyzers.diff.words import notes, verdict
from traceanalyzer.analyzers.memory import MemoryDiff
from traceanalyzer.result import Chart, Flame, Result, Table


@dataclass(frozen=True, eq=False, repr=False)
class Diff(Result):
    """What :func:`traceanalyzer.diff` found.

    Frames of times have, behind what names the row, ``before_ns`` and ``after_ns`` (null where a
    run does not have the row), ``change_ns``, ``change_frac`` (of before), ``noise_ns`` (what may
    be chance, null where that is not known) and ``state`` (slower, faster, in the noise, no change,
    new, gone), the largest change first. They are means over the typical steps where steps are
    compared, else sums of a device's or rank's recording.

    Attributes:
        measure: the number the runs are judged by; None where they cannot be compared.
        why: why they cannot be; None where they can.
        parts: ``part``: what the time is made of, adding up to it.
        kernels: ``kernel`` (short), ``name``, ``family``, and ``before_n``, ``after_n``.
        families: ``family``, the same.
        on_device: ``name``, ``kind`` of operators, by the device work that they launch themselves.
        on_host: the same by the host time that they take themselves.
        collectives: collective, dtype, message_bytes, group_size, kernel (where the size is not
            known): medians of single ones.
        functions: ``name``, ``place``, ``own``, shares of all samples by itself (``before_frac``,
            ``after_frac``, ``change_frac``, the difference, ``noise_frac``) and with what it calls
            (``before_total_frac``, ``after_total_frac``).
        memory: what holds more or less memory at the peak.
        steps: run, rank, path, on, step, number, duration_ns, warm_up.
        runs: run, path (what all its files have in common), files, ranks, steps (that count), and
            format, gpus.
        files: run, path, rank, format, gpus, cut_off.
        flame: the sampled stacks after, compared with those before.
        remarks: what else is to be known.
    """

    measure: Measure | None
    why: str | None
    parts: pl.DataFrame | None
    kernels: pl.DataFrame | None
    families: pl.DataFrame | None
    on_device: pl.DataFrame | None
    on_host: pl.DataFrame | None
    collectives: pl.DataFrame | None
    functions: pl.DataFrame | None
    memory: MemoryDiff | None
    steps: pl.DataFrame
    runs: pl.DataFrame
    files: pl.DataFrame
    flame: Flame | None = None
    remarks: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """``regression``, ``improvement``, ``no change`` or ``cannot be compared``."""
        return "cannot be compared" if self.measure is None else self.measure.outcome

    @property
    def title(self) -> str:
        """The question."""
        return "Did it get slower, and where?"

    @property
    def verdict(self) -> str:
        """The outcome, its size and its noise, and what explains it."""
        return verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """How numbers are meant, and what makes them less sure."""
        return (*notes(self), *self.remarks)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The runs; parts of a step, families, kernels, operators, collectives, code, memory."""
        return tables(self)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Step times of both runs, and what changed by how much."""
        return charts(self)

    @property
    def flames(self) -> tuple[Flame, ...]:
        """The difference as a flamegraph, where runs are judged by their samples."""
        sampled = self.measure is not None and self.measure.name == "samples"
        return (self.flame,) if sampled and self.flame is not None else ()

    @property
    def scalars(self) -> dict[str, Any]:
        """The measure; in the unit that ``unit`` tells."""
        said: dict[str, Any] = {"outcome": self.outcome, "why": self.why}
        names = (
            "name", "unit", "before", "after", "change", "change_frac", "noise", "noise_frac",
            "least",
        )  # fmt: skip
        values = {name: getattr(self.measure, name, None) for name in names}
        values["measure"] = values.pop("name")
        if self.memory is not None:
            values["peak_before_bytes"] = self.memory.base_bytes
            values["peak_after_bytes"] = self.memory.peak_bytes
        return said | values
