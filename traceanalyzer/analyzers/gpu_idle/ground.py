"""The few columns of a rank's trace that its idleness is measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.device_work import device_work
from traceanalyzer.analyzers.gpu_idle import threads
from traceanalyzer.analyzers.gpu_idle.needs import OVERHEAD
from traceanalyzer.analyzers.launching import launches
from traceanalyzer.analyzers.names import distinct, named
from traceanalyzer.analyzers.step_marks import step_marks
from traceanalyzer.frames.numbering import group_numbers
from traceanalyzer.trace import Trace, is_cut_off, record_hint
from traceanalyzer.vocabulary import HOST_COLLECTIVE_PREFIXES

_RUNS_COLLECTIVE = "^(?:" + "|".join(HOST_COLLECTIVE_PREFIXES) + ")"

#: What may be missing, in the words of :func:`record_hint`.
_MAY_LACK = ("device work", "step", "other code")


@dataclass(frozen=True)
class Ground:
    """One rank's devices and host.

    Attributes:
        rank: global rank, or None.
        path: the file.
        steps: rows of :func:`~traceanalyzer.analyzers.step_marks.step_marks`.
        units: unit (number), device, pid: what can be idle; pid where processes are told apart.
            Without device work one unit, the training thread.
        work: unit, kind, name, bytes, sort, start, end: device work.
        launched: work (row), thread, start, end: its launch calls.
        threads: unit, thread: the threads that feed each unit.
        slices: kind, name, thread, start, end: what ran on those threads.
        names: all distinct names, those of slices among them.
        work_lost: the file is cut off; or there is no device work, yet some was launched.
        collectives: unit, start, end: when the host itself ran one, on any thread.
        overhead: unit, start, end: when the profiler held up a process that uses the unit, between
            the unit's first work and its last.
        hints: how the profiler that wrote the file records what it lacks.
    """

    rank: int | None
    path: str
    steps: pl.DataFrame
    units: pl.DataFrame
    work: pl.DataFrame
    launched: pl.DataFrame
    threads: pl.DataFrame
    slices: pl.DataFrame
    names: list[str]
    work_lost: bool
    collectives: pl.DataFrame
    overhead: pl.DataFrame
    hints: Mapping[str, str]

    @property
    def on_host(self) -> bool:
        """Whether the unit is the training thread."""
        return self.work.is_empty()

    def of_units(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Slices as intervals of the units that their thread feeds: unit, start, end."""
        return rows.join(self.threads, on="thread").select("unit", "start", "end")


def lay(
    trace: Trace,
    *,
    patterns: Sequence[str] = (),
    by_process: bool = False,
    step_name: str | None = None,
) -> Ground:
    """What is needed of one rank's trace; see :func:`~.extract.extract`.

    Raises:
        MissingData: neither device work nor operators were recorded.
        OptionError: a pattern is not a regular expression.
    """
    with ThreadPoolExecutor(1) as pool:
        marking = pool.submit(step_marks, trace, step_name)
        work = device_work(trace, patterns)
        steps = marking.result()
    keys = ["device", "pid"] if by_process else ["device"]
    groups, (number,) = group_numbers(keys, work)
    units = groups.with_row_index("unit")
    if work.is_empty():
        units = pl.DataFrame({"unit": [0], "device": [None], "pid": [None]}, schema_overrides=_UNIT)
    work = work.with_columns(pl.Series("unit", number, dtype=pl.UInt32))
    calls = launches(trace, work)
    feeding = threads.feeding(trace, units, work, calls, steps)
    known = feeding.select("pid", "tid", "thread").unique("thread")
    by_thread = calls.join(
        known, on=["pid", "tid"], how="left", nulls_equal=True, maintain_order="left"
    )
    pids = feeding.select("unit", "pid").unique()
    names = distinct(trace.events)
    runs = threads.host(trace).filter(named(names, [_RUNS_COLLECTIVE])).collect()
    return Ground(
        rank=trace.meta.rank,
        path=trace.meta.path,
        steps=steps,
        units=units.select("unit", "device", pid="pid" if by_process else pl.lit(None, pl.Int64)),
        work=work.select("unit", "kind", "name", "bytes", "sort", "start", "end"),
        launched=by_thread.select("work", "thread", start="launch_start", end="launch_end"),
        threads=feeding.select("unit", "thread"),
        slices=threads.slices(trace, known),
        names=names,
        work_lost=is_cut_off(trace) or (work.is_empty() and threads.launches(trace)),
        collectives=runs.join(pids, on="pid", nulls_equal=True).select("unit", "start", "end"),
        overhead=_overhead(trace, work, pids),
        hints={what: record_hint(trace.meta, what) for what in _MAY_LACK},
    )


def _overhead(trace: Trace, work: pl.DataFrame, pids: pl.DataFrame) -> pl.DataFrame:
    """When the profiler was busy with itself, strictly between the first work and the last.

    A file that does not tell the process of device work is one process's.
    """
    end = pl.col("ts") + pl.col("dur")
    rows = trace.events.filter(pl.col("kind") == OVERHEAD, pl.col("dur") >= 0).select(
        "pid", start="ts", end=end
    )
    ends = work.group_by("unit").agg(first=pl.col("start").min(), last=pl.col("end").max())
    if work["pid"].null_count():
        own = rows.join(ends, how="cross")
    else:
        own = rows.join(pids, on="pid").join(ends, on="unit")
    inside = (pl.col("start") > pl.col("first")) & (pl.col("end") < pl.col("last"))
    return own.filter(inside).select("unit", "start", "end")


_UNIT = {"unit": pl.UInt32, "device": pl.Int32, "pid": pl.Int64}
