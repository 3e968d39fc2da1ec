"""Comparison of two runs, in any formats: did it get slower, and where?

``compute`` runs other analyzers on each rank and compares the two runs. ``runs`` has the data of a
rank and of a run, the measure that runs are judged by and its noise; ``compared`` joins the rows of
both runs, ``comparable`` checks whether runs can be compared, ``repeated`` compares several runs of
each version; ``result`` has the data, verdict, notes, tables and charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.diff.options import MIN_CHANGE, Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.diff.result import Diff
    from traceanalyzer.analyzers.diff.series import DiffSeries
    from traceanalyzer.trace import Inputs


def diff(
    before: Inputs,
    after: Inputs,
    *,
    step_name: str | None = None,
    comm_patterns: str | Sequence[str] = (),
    min_change: float = MIN_CHANGE,
    **reading: Unpack[Reading],
) -> Diff:
    """Return what changed from one run to another, and what is significant.

    Two runs are judged by the first of these that both have: the median step time, the span of the
    devices' work, the span of the main threads, the total of samples, the memory peak. The result
    compares the parts of step time (with idle causes), kernels, operators, collectives, functions
    and memory. A change is significant if it is above the noise and above ``min_change``. Each file
    is read once, and one is in memory at a time.

    A baseline with several runs is compared by :func:`diff_runs`.

    Args:
        before: a trace, a file or a folder, or several of them: the run to compare with.
        after: the same for the run to judge; it may have another format.
        step_name: a regular expression; slices whose names match are steps.
        comm_patterns: regular expressions of further kernel names that are communication.
        min_change: the least significant change, as a fraction of the smaller value.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no file of a run can be read.
        MissingData: a run has no data to compare.
        OptionError: an option is invalid.
    """
    from traceanalyzer.analyzers.diff.compute import DIFF
    from traceanalyzer.run.baselines import run_paths
    from traceanalyzer.run.loop import run

    sides = [run_paths(side) if isinstance(side, str) else [side] for side in (before, after)]
    if any(len(side) > 1 for side in sides):
        how = {"step_name": step_name, "comm_patterns": comm_patterns, "min_change": min_change}
        return diff_runs(sides[0], sides[1], **how, **reading)  # type: ignore[arg-type]
    return run(DIFF, after, Options(step_name, comm_patterns, min_change, before), **reading)


def diff_runs(
    before: Sequence[Inputs],
    after: Sequence[Inputs],
    *,
    step_name: str | None = None,
    comm_patterns: str | Sequence[str] = (),
    min_change: float = MIN_CHANGE,
    **reading: Unpack[Reading],
) -> Diff:
    """Return what changed between two versions with several runs each.

    The median runs are compared; a change is significant if it is also above the noise between the
    runs of a version.

    Args:
        before: the runs to compare with, each one as for :func:`diff`.
        after: the runs to judge, of one version.
        step_name: see :func:`diff`.
        comm_patterns: see :func:`diff`.
        min_change: see :func:`diff`.
        **reading: see :func:`diff`.

    Raises:
        InputError: no file of a run can be read.
        MissingData: a run has no data to compare.
        OptionError: an option is invalid, or a side has no run.
    """
    from traceanalyzer.analyzers.diff import repeated
    from traceanalyzer.analyzers.diff.compute import DIFF
    from traceanalyzer.run.loop import collect, guarded, with_notes

    window = (reading.get("since_ns"), reading.get("until_ns"))
    options = Options(step_name, comm_patterns, min_change, None, window)
    sides = [[collect(DIFF, run, options, **reading) for run in side] for side in (before, after)]
    every = [run for side in sides for run in side]
    with guarded({path: one for run in every for path, one in run.summaries.items()}):
        parts = [[run.parts for run in side] for side in sides]
        result = repeated.combine(parts[0], parts[1], options)
        result.view()
    return with_notes(result, dict.fromkeys(note for run in every for note in run.notes))


def diff_series(
    runs: Sequence[Inputs],
    *,
    step_name: str | None = None,
    comm_patterns: str | Sequence[str] = (),
    min_change: float = MIN_CHANGE,
    **reading: Unpack[Reading],
) -> DiffSeries:
    """In which of several runs did a role of kernels become slower?

    Args:
        runs: the runs in order, such as versions; each one as for :func:`diff`, read once.
        step_name: see :func:`diff`.
        comm_patterns: see :func:`diff`.
        min_change: see :func:`diff`.
        **reading: see :func:`diff`.

    Raises:
        InputError: no file of a run can be read.
        MissingData: a run cannot be compared with the one before it.
        OptionError: an option is invalid, or there are fewer than two runs.
    """
    from traceanalyzer.analyzers.diff import series
    from traceanalyzer.analyzers.diff.compute import DIFF
    from traceanalyzer.run.loop import collect, guarded, with_notes

    window = (reading.get("since_ns"), reading.get("until_ns"))
    options = Options(step_name, comm_patterns, min_change, None, window)
    every = [collect(DIFF, run, options, **reading) for run in runs]
    with guarded({path: one for run in every for path, one in run.summaries.items()}):
        result = series.combine([run.parts for run in every], options)
    return with_notes(result, dict.fromkeys(note for run in every for note in run.notes))
