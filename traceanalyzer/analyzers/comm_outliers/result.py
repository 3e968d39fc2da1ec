"""The answer: who is late, what stands out, and the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers import charts
from traceanalyzer.analyzers.comm_outliers import context as looking
from traceanalyzer.analyzers.comm_outliers.late import Window
from traceanalyzer.analyzers.comm_outliers.notes import memory_notes
from traceanalyzer.analyzers.comm_outliers.tables import tables
from traceanalyzer.analyzers.comm_outliers.verdict import verdict
from traceanalyzer.result import Chart, Result, Table


@dataclass(frozen=True, eq=False, repr=False)
class CommOutliers(Result):
    """Which collectives stand out, who is late, and what it was doing meanwhile.

    Attributes:
        n_events: communication events counted, over all ranks.
        n_ranks: ranks given.
        world_size: ranks in the job, or None.
        n_matched: events that have a partner on another rank.
        n_collectives: collectives those make.
        n_outliers: events whose duration stands out.
        total_comm_ns: summed duration of the events.
        total_wait_ns: part of it spent waiting for the last rank.
        covered_ns: time with at least one collective running, summed over the ranks.
        total_span_ns: summed recorded span of the ranks.
        min_wait_ns: lateness from which a collective is listed in ``late``.
        late: collectives with a late rank, most imposed waiting first.
        ranks: one row a rank, most imposed waiting first.
        baseline: ratio of medians to another run; None if there was none to compare.
        instances: one row an event, with its group's judgement and its wait.
        groups: one row a kind of collective, largest total first.
        collectives: one row a matched collective, in order of time.
        arrivals: one row a rank in each matched collective.
        steps: one row a step, with its straggler.
        clocks: one row a rank: clock offset and residual.
        windows: the stretches in which the rows of ``late`` kept others waiting.
        remarks: what was not counted, assumed or missing.
        context: what the late rank did in each of ``windows``, by number.
        memory: how full the device was during each outlier, as :func:`~.fullness.fullness` has it;
            None where nobody asked.
    """

    n_events: int
    n_ranks: int
    world_size: int | None
    n_matched: int
    n_collectives: int
    n_outliers: int
    total_comm_ns: int
    total_wait_ns: int
    covered_ns: int
    total_span_ns: int
    min_wait_ns: int
    late: pl.DataFrame
    ranks: pl.DataFrame
    baseline: pl.DataFrame | None
    instances: pl.DataFrame
    groups: pl.DataFrame
    collectives: pl.DataFrame
    arrivals: pl.DataFrame
    steps: pl.DataFrame
    clocks: pl.DataFrame
    windows: tuple[Window, ...]
    remarks: tuple[str, ...]
    context: pl.DataFrame = field(default_factory=lambda: looking.context((), ()))
    memory: pl.DataFrame | None = None

    @property
    def title(self) -> str:
        """The question."""
        return "Which collectives stand out, and which rank is late?"

    @property
    def verdict(self) -> str:
        """The answer in plain words."""
        return verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not counted, assumed or missing."""
        return (*self.remarks, *memory_notes(self.memory))

    @property
    def tables(self) -> tuple[Table, ...]:
        """Late ranks, ranks, baseline, outliers, groups, collectives, steps, context, clocks."""
        return tables(self)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Durations over time, and with several ranks who arrived how much after the first."""
        arrived = () if self.arrivals.is_empty() else (charts.arrivals(self.arrivals, self.late),)
        return (charts.durations(self.instances), *arrived)

    @property
    def scalars(self) -> dict[str, Any]:
        """Counts and sums; ``late_rank`` is the rank that the others waited for most."""
        names = (
            "n_events",
            "n_ranks",
            "world_size",
            "n_matched",
            "n_collectives",
            "n_outliers",
            "total_comm_ns",
            "total_wait_ns",
            "covered_ns",
            "total_span_ns",
            "min_wait_ns",
        )
        late = self.late_ranks()
        return {
            **{name: getattr(self, name) for name in names},
            "late_rank": late["rank"][0] if late.height else None,
        }

    def late_ranks(self) -> pl.DataFrame:
        """The ranks in ``late``, whoever imposed most waiting in the whole recording first.

        rank, ``imposed_ns``, ``times_last`` of ``matched`` collectives, and the steps in ``late``.
        """
        steps = pl.col("step").drop_nulls().unique(maintain_order=True).alias("steps")
        listed = self.late.sort("last_arrival_ns", "instance").group_by(rank="late_rank").agg(steps)
        totals = self.ranks.select("rank", "imposed_ns", "times_last", "matched")
        return totals.join(listed, on="rank").sort("imposed_ns", "rank", descending=[True, False])

    def outliers(self) -> pl.DataFrame:
        """The events that stand out, the most time lost first; ``cause`` where partners tell.

        ``over_ns`` is what it took beyond the usual, duration - duration / factor. ``waiting for
        rank R``: at least half of that was waiting; ``slow on all ranks``: the communication
        itself was an outlier.
        """
        usual = pl.col("duration_ns") / pl.col("factor")
        over = (pl.col("duration_ns") - usual).round().cast(pl.Int64)
        waited = pl.format("waiting for rank {}", "late_rank")
        cause = (
            pl.when(2 * pl.col("wait_ns") >= over)
            .then(waited)
            .when("slow")
            .then(pl.lit("slow on all ranks"))
        )
        return (
            self.instances.filter("outlier")
            .with_columns(cause=cause, over_ns=over)
            .sort("over_ns", "id", descending=[True, False])
        )

    def late_with_context(self) -> pl.DataFrame:
        """``late`` with the largest parts of each stretch in words: ``host`` and ``device``."""
        table = self.late.rename({"late_rank": "rank"}).with_row_index("window")
        for side in ("host", "device"):
            said = looking.words(self.context, side)
            table = table.join(said, on="window", how="left", maintain_order="left")
        return table
