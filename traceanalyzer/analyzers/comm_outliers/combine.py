"""From what each rank contributes to the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.comm_outliers import arrivals as arriving
from traceanalyzer.analyzers.comm_outliers import clocks, groups, joining, matching, ranks
from traceanalyzer.analyzers.comm_outliers import late as lateness
from traceanalyzer.analyzers.comm_outliers.context import context as look_into
from traceanalyzer.analyzers.comm_outliers.extract import extract
from traceanalyzer.analyzers.comm_outliers.fullness import fullness
from traceanalyzer.analyzers.comm_outliers.notes import notes
from traceanalyzer.analyzers.comm_outliers.outliers import judge
from traceanalyzer.analyzers.comm_outliers.part import Part
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.ranks import by_rank
from traceanalyzer.errors import OptionError
from traceanalyzer.trace import Meta, Trace

if TYPE_CHECKING:
    from traceanalyzer.analyzers.memory.fill import Fill


def comm_outliers(
    traces: Trace | Sequence[Trace],
    *,
    baseline: Trace | Sequence[Trace] | None = None,
    factor: float = 3.0,
    z: float = 3.5,
    patterns: Sequence[str] = (),
    min_wait_ns: int | None = None,
    context: Sequence[Trace] | None = None,
) -> CommOutliers:
    """Which collectives stand out, which rank is late, and what it was doing meanwhile.

    Args:
        traces: one trace, or one for each rank; a trace of several ranks is taken apart.
        baseline: the same of another run, to compare the groups' medians with.
        factor: an outlier lasts longer than this many times its group's median ...
        z: ... and has a modified z-score above this.
        patterns: regular expressions of further names that are communication.
        min_wait_ns: lateness worth naming; default a tenth of the median step, 1 ms without steps.
        context: traces to look into for what late ranks were doing; default ``traces``.

    Raises:
        MissingData: there is no communication in the traces, or in the baseline.
        OptionError: a pattern or a number makes no sense.
    """
    own = by_rank(traces)
    other = None if baseline is None else [extract(t, patterns) for t in by_rank(baseline)]
    result = combine(
        [extract(trace, patterns) for trace in own],
        baseline=other,
        factor=factor,
        z=z,
        min_wait_ns=min_wait_ns,
    )
    return with_context(result, own if context is None else context)


def with_context(result: CommOutliers, traces: Sequence[Trace]) -> CommOutliers:
    """The same result, knowing what late ranks were doing in ``result.windows``.

    Args:
        result: of :func:`combine`.
        traces: traces of the late ranks, read with :data:`~.needs.CONTEXT`; others are ignored.
    """
    return replace(result, context=look_into(result.windows, traces))


def with_memory(
    result: CommOutliers, metas: Mapping[str, Meta], fills: Sequence[Fill]
) -> CommOutliers:
    """The same result, knowing how full devices were during its outliers.

    Args:
        result: of :func:`combine`.
        metas: of the traces it was made of, by path.
        fills: the memory of devices.
    """
    return replace(result, memory=fullness(result.outliers(), metas, fills))


def combine(
    parts: Sequence[Part],
    *,
    baseline: Sequence[Part] | None = None,
    factor: float = 3.0,
    z: float = 3.5,
    min_wait_ns: int | None = None,
) -> CommOutliers:
    """Compares what :func:`extract` found in each rank; see :func:`comm_outliers`.

    Raises:
        MissingData: there is no communication in any part, or in the baseline.
        OptionError: there are no parts, or a number makes no sense.
    """
    if not parts:
        raise OptionError("no trace was given")
    if not (factor > 0 and z >= 0 and (min_wait_ns is None or min_wait_ns >= 0)):
        raise OptionError("the factor must be above 0, z and the least wait not below 0")
    job = _compared(parts, factor, z)
    before = None if baseline is None else _compared(baseline, factor, z).groups
    least = lateness.threshold(job.steps) if min_wait_ns is None else min_wait_ns
    late = lateness.late(job.collectives, job.rows, job.steps, job.marks, least)
    return CommOutliers(
        n_events=job.instances.height,
        n_ranks=len({part.rank for part in job.parts}),
        world_size=max((p.world_size for p in job.parts if p.world_size), default=None),
        n_matched=job.rows.height,
        n_collectives=job.collectives.height,
        n_outliers=int(job.instances["outlier"].sum()),
        total_comm_ns=int(job.instances["duration_ns"].sum()),
        total_wait_ns=int(job.rows["wait_ns"].sum()),
        covered_ns=sum(part.comm_ns for part in job.parts),
        total_span_ns=sum(part.span_ns for part in job.parts),
        min_wait_ns=least,
        late=late,
        ranks=job.ranks,
        baseline=None if before is None else groups.compare(job.groups, before),
        instances=job.instances,
        groups=job.groups,
        collectives=job.collectives,
        arrivals=job.rows,
        steps=job.steps,
        clocks=job.clocks,
        windows=lateness.windows(late),
        remarks=notes(job.parts, job.instances, job.collectives, job.clocks, job.misplaced),
    )


@dataclass(frozen=True)
class _Job:
    """One run's tables before anything is made of them."""

    parts: Sequence[Part]
    instances: pl.DataFrame
    rows: pl.DataFrame
    collectives: pl.DataFrame
    groups: pl.DataFrame
    ranks: pl.DataFrame
    steps: pl.DataFrame
    marks: pl.DataFrame
    clocks: pl.DataFrame
    misplaced: int


def _compared(parts: Sequence[Part], factor: float, z: float) -> _Job:
    parts = joining.ordered(parts)
    matched = matching.match(joining.instances(parts))
    found = clocks.offsets(matched, {p.rank: p.host for p in parts})
    offsets = clocks.applied(found)
    met = arriving.arrivals(matched, offsets)
    rows = arriving.plausible(met)
    collectives = _slow(arriving.collectives(rows), factor, z)
    instances = judge(_with_waits(matched, rows, collectives, offsets), factor, z)
    marks = joining.step_marks(parts, offsets)
    steps = ranks.steps(rows, marks)
    table = ranks.ranks(parts, instances, rows, steps)
    return _Job(
        parts=parts,
        instances=instances,
        rows=rows,
        collectives=collectives,
        groups=groups.summarize(instances, dict(table.select("rank", "span_ns").iter_rows())),
        ranks=table,
        steps=steps,
        marks=marks,
        clocks=found,
        misplaced=met.height - rows.height,
    )


def _with_waits(
    instances: pl.DataFrame,
    rows: pl.DataFrame,
    collectives: pl.DataFrame,
    offsets: dict[int, int],
) -> pl.DataFrame:
    """Adds ``wait_ns``, ``late_rank``, ``pure_ns``, ``slow`` (null if unmatched), and ``at_ns``."""
    waits = rows.select("id", "wait_ns")
    told = collectives.select("instance", "late_rank", "pure_ns", "slow")
    at = pl.col("start") - clocks.offset_of(pl.col("rank"), offsets)
    return (
        instances.join(waits, on="id", how="left", maintain_order="left")
        .with_columns(instance=pl.when(pl.col("wait_ns").is_not_null()).then("instance"))
        .join(told, on="instance", how="left", maintain_order="left")
        .with_columns(at_ns=at - at.min())
    )


def _slow(collectives: pl.DataFrame, factor: float, z: float) -> pl.DataFrame:
    """Adds ``slow_factor`` and ``slow``: the communication itself is an outlier of its group."""
    whole = collectives.with_columns(duration_ns=pl.col("pure_ns"), rank=pl.lit(0))
    judged = judge(whole, factor, z)
    return judged.rename({"factor": "slow_factor", "outlier": "slow"}).drop(
        "duration_ns", "rank", "z", "judged_by"
    )
