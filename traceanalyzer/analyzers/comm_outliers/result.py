"""Who is late, what stands out, and the tables and charts of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import polars as pl

from traceanalyzer.analyzers.comm_outliers import verdict
from traceanalyzer.analyzers.comm_outliers.context import divide, labels
from traceanalyzer.analyzers.comm_outliers.stragglers import Window
from traceanalyzer.analyzers.common.display import table_of_known
from traceanalyzer.result import Chart, Result, Table, View
from traceanalyzer.units import format_ns

_KIND = {"collective": "collective", "dtype": "dtype", "message_bytes": "message"}

_RANK = pl.format("rank {}", "rank").alias("rank")

_TIME = "time since the first collective"


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
        memory: how full the device was during each outlier, as :func:`~.context.fullness` has it;
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
    context: pl.DataFrame = field(default_factory=lambda: divide((), ()))
    memory: pl.DataFrame | None = None

    def view(self) -> View:
        """Who is late, what stands out, and the numbers behind it."""
        late = self.late_ranks()
        numbers = self.numbers(
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
        return View(
            title="Which collectives stand out, and which rank is late?",
            verdict=verdict.verdict(self),
            notes=(*self.remarks, *verdict.memory_notes(self.memory)),
            tables=_tables(self),
            scalars={**numbers, "late_rank": late["rank"][0] if late.height else None},
            charts=partial(_charts, self),
        )

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
            column = labels(self.context, side)
            table = table.join(column, on="window", how="left", maintain_order="left")
        return table


# --- tables --------------------------------------------------------------------------------


def _tables(result: CommOutliers) -> tuple[Table, ...]:
    """Late ranks, ranks, baseline, outliers, groups, collectives, steps, context, clocks.

    What compares ranks is left out where there is one rank only.
    """
    compared = () if result.baseline is None else (_baseline(result.baseline),)
    beside = () if result.memory is None else (_memory(result.memory),)
    alone = (*compared, _outliers(result), *beside, _groups(result))
    if result.n_ranks == 1:
        return (*alone, _ranks(result))
    in_detail = (_collectives(result), _steps(result), _context(result), _clocks(result))
    details = (replace(table, detail=True) for table in in_detail)
    return (_late(result), _ranks(result), *alone, *details)


def _late(result: CommOutliers) -> Table:
    columns = {
        "rank": "late rank",
        "step": "step",
        "collective": "collective",
        "message_bytes": "message",
        "late_ns": "late by",
        "imposed_ns": "others waited",
        "host": "host meanwhile",
        "device": "device meanwhile",
    }
    title = f"Who kept the others waiting (late by {format_ns(result.min_wait_ns)} or more)"
    return table_of_known("late", title, result.late_with_context(), columns, empty="nobody")


def _ranks(result: CommOutliers) -> Table:
    meeting = {
        "wait_ns": "waited",
        "imposed_ns": "others waited for it",
        "times_last": "last",
        "late_steps": "late steps",
        "late_frac": "cost",
    }
    columns = {
        "rank": "rank",
        "host": "host",
        "n": "collectives",
        "comm_ns": "communication",
        **(meeting if result.n_ranks > 1 else {}),
        "outliers": "outliers",
        "idle_ns": "device idle",
        "overlap_frac": "hidden by compute",
    }
    return table_of_known("ranks", "Ranks", result.ranks, columns)


def _baseline(frame: pl.DataFrame) -> Table:
    columns = {
        **_KIND,
        "kernel": "kernel",
        "n": "n",
        "median_ns": "median",
        "n_before": "n before",
        "baseline_ns": "median before",
        "ratio": "ratio",
        "compute_frac": "compute beside",
        "compute_before_frac": "before",
    }
    return table_of_known(
        "baseline",
        "Medians against the baseline",
        frame,
        columns,
        empty="no kind of collective is in both",
    )


def _outliers(result: CommOutliers) -> Table:
    columns = {
        "rank": "rank",
        "step": "step",
        "collective": "collective",
        "message_bytes": "message",
        "at_ns": "at",
        "duration_ns": "duration",
        "factor": "x usual",
        "z": "z",
        "cause": "cause",
        "compute_ns": "compute beside",
        "beside": "busiest beside",
    }
    return table_of_known("outliers", "Outliers", result.outliers(), columns)


def _memory(memory: pl.DataFrame) -> Table:
    columns = {
        "rank": "rank",
        "step": "step",
        "collective": "collective",
        "duration_ns": "duration",
        "taken_bytes": "memory taken",
        "capacity_bytes": "of",
        "taken_frac": "full",
    }
    return table_of_known(
        "memory", "Memory of the device during outliers", memory, columns, empty="not known"
    )


def _groups(result: CommOutliers) -> Table:
    columns = {
        **_KIND,
        "group": "group",
        "kernel": "kernel",
        "n": "n",
        "median_ns": "median",
        "p95_ns": "p95",
        "p99_ns": "p99",
        "max_ns": "max",
        "total_ns": "total",
        "share_frac": "of span",
        "algbw_gbps": "algbw",
        "busbw_gbps": "busbw",
        "outliers": "outliers",
    }
    return table_of_known("groups", "Collectives by kind", result.groups, columns)


def _collectives(result: CommOutliers) -> Table:
    columns = {
        "step": "step",
        **_KIND,
        "group": "group",
        "first_rank": "first",
        "late_rank": "last",
        "skew_ns": "arrival skew",
        "late_ns": "last after median",
        "imposed_ns": "waited in all",
        "pure_ns": "pure",
        "end_skew_ns": "end skew",
        "ranks": "ranks",
    }
    worst = result.collectives.sort("imposed_ns", "instance", descending=[True, False])
    title = "Collectives across ranks, most waiting first"
    return table_of_known(
        "collectives", title, worst, columns, empty="none could be matched across ranks"
    )


def _steps(result: CommOutliers) -> Table:
    columns = {
        "step": "step",
        "straggler": "straggler",
        "cost_ns": "costs",
        "cost_frac": "of the step",
        "step_ns": "step",
        "collectives": "collectives",
    }
    return table_of_known(
        "steps", "Stragglers by step", result.steps, columns, empty="no steps are marked"
    )


def _context(result: CommOutliers) -> Table:
    stretches = result.late.with_row_index("window").select("window", "step", rank="late_rank")
    frame = result.context.join(stretches, on="window", how="left", maintain_order="left")
    columns = {
        "rank": "late rank",
        "step": "step",
        "side": "on",
        "name": "what",
        "within": "within",
        "kind": "kind",
        "overlap_ns": "time",
        "overlap_frac": "of the stretch",
    }
    title = "What late ranks did while the others waited"
    return table_of_known("context", title, frame, columns, empty="nothing to look into")


def _clocks(result: CommOutliers) -> Table:
    columns = {
        "rank": "rank",
        "n": "collectives",
        "offset_ns": "ahead by",
        "residual_ns": "residual",
        "applied": "corrected",
    }
    return table_of_known(
        "clocks", "Clocks", result.clocks, columns, empty="no collective can tell"
    )


# --- charts --------------------------------------------------------------------------------


def _charts(result: CommOutliers) -> tuple[Chart, ...]:
    """Durations over time, and with several ranks who arrived how much after the first."""
    durations = _durations(result.instances)
    if result.arrivals.is_empty():
        return (durations,)
    return (durations, _arrivals(result.arrivals, result.late))


def _durations(instances: pl.DataFrame) -> Chart:
    """How long every collective took, by time and rank, the outliers ringed."""
    return Chart(
        name="durations",
        title="Duration of each collective",
        mark="scatter",
        # a logarithm needs more than 0
        frame=instances.select("at_ns", _RANK, pl.col("duration_ns").clip(1), "outlier"),
        x="at_ns",
        y="duration_ns",
        x_label=_TIME,
        y_label="duration",
        color="rank",
        emphasis="outlier",
        emphasis_label="outlier",
        log_y=True,
    )


def _arrivals(met: pl.DataFrame, late: pl.DataFrame) -> Chart:
    """How long after the first rank every rank came to each collective, the late ones ringed."""
    first = pl.col("arrival").min()
    named = pl.col("instance").is_in(late["instance"].implode())
    return Chart(
        name="arrivals",
        title="How long after the first rank each rank arrived",
        mark="scatter",
        frame=met.select(
            (first.over("instance") - first).alias("at_ns"),
            _RANK,
            "after_first_ns",
            (pl.col("is_last") & named).alias("late"),
        ),
        x="at_ns",
        y="after_first_ns",
        x_label=_TIME,
        y_label="arrival after the first rank",
        color="rank",
        emphasis="late",
        emphasis_label="late rank",
    )
