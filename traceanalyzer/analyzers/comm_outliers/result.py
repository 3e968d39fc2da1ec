"""Result of the communication analysis: stragglers, outliers, verdict, tables and charts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self

import polars as pl

from traceanalyzer.analyzers.comm_outliers import By, arrivals, chains, pipelines, tables
from traceanalyzer.analyzers.comm_outliers.activity import divide, labels
from traceanalyzer.analyzers.comm_outliers.arrivals import Window
from traceanalyzer.analyzers.comm_outliers.experts import NO_EXPERTS, UNEQUAL, Experts
from traceanalyzer.analyzers.comm_outliers.outliers import (
    GROUP,
    NETWORK,
    alone,
    small_kind,
    small_name,
)
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.display import at_start, sentences
from traceanalyzer.analyzers.common.kernel_names import function
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import (
    format_bytes,
    format_count,
    format_first,
    format_frac,
    format_ns,
    format_ranges,
    format_ratio,
)

#: Smaller ratios of medians are the normal difference between two runs.
SLOWER = 1.5

#: Smallest reported increase of the overlap with compute.
_MORE_FRAC = 0.05

#: Text for the comparison group of an outlier.
_USUAL = {
    "group": "the median",
    "bandwidth": "the typical duration for its size",
    "place": "the median at its position in the step",
    "kernel": "the median of its kernel",
}

#: A smaller share of the link's peak is reported.
SLOW_LINK_FRAC = 0.25

#: Share of the ranks of process groups from which on wait time is known.
_ALL_RANKS = 0.9

#: From this share one time explains another.
_MOST = 0.5

#: Fewer collectives are too few to compare, whatever their sizes.
_FEW = 20


@dataclass(frozen=True)
class Totals:
    """Numbers of events and collectives, and times summed over all ranks.

    Attributes:
        n_events: communication events of all ranks.
        n_ranks: ranks in the inputs.
        world_size: ranks in the job, or None.
        n_matched: events with a match on another rank.
        n_collectives: collectives of the matched events.
        n_outliers: events with an outlying duration.
        total_comm_ns: summed duration of the events.
        total_wait_ns: wait time of the ranks; simultaneous waits of a rank count once.
        covered_ns: time with at least one collective running, summed over the ranks.
        total_span_ns: summed recorded span of the ranks.
    """

    n_events: int
    n_ranks: int
    world_size: int | None = None
    n_matched: int = 0
    n_collectives: int = 0
    n_outliers: int = 0
    total_comm_ns: int = 0
    total_wait_ns: int = 0
    covered_ns: int = 0
    total_span_ns: int = 0


@dataclass(frozen=True)
class Delayed:
    """Collectives delayed by a straggler, and what it did while others waited.

    Attributes:
        collectives: collectives with a straggler, most imposed wait time first.
        min_wait_ns: their smallest arrival delay.
        windows: the intervals in which ranks waited for the straggler.
        context: what the straggler did in each of ``windows``, by number.
    """

    collectives: pl.DataFrame
    min_wait_ns: int
    windows: tuple[Window, ...] = ()
    context: pl.DataFrame = field(default_factory=lambda: divide((), ()))

    def with_activity(self) -> pl.DataFrame:
        """Return ``collectives`` with the text of the largest activities: ``host`` and ``device``.

        ``rank`` is the root rank, ``last_rank`` the rank that arrived last.
        """
        table = self.collectives.rename({"root_rank": "rank"}).with_row_index("window")
        for side in ("host", "device"):
            column = labels(self.context, side)
            table = table.join(column, on="window", how="left", maintain_order="left")
        return table

    def worst_of(self, rank: int) -> dict[str, Any]:
        """Return the row of :meth:`with_activity` with the largest cost of this straggler.

        Collectives at which it arrived last itself come first.
        """
        rows = self.with_activity().filter(pl.col("rank") == rank)
        passed = pl.col("last_rank") != rank
        return rows.sort(passed, maintain_order=True).row(0, named=True)


@dataclass(frozen=True, eq=False, repr=False)
class CommOutliers(Result):
    """Outliers among collectives, stragglers, and what stragglers did while others waited.

    Attributes:
        totals: numbers of events and collectives, and times summed over all ranks.
        delayed: collectives delayed by a straggler, and what it did while others waited.
        ranks: one row per rank, most imposed wait time first.
        baseline: ratio of medians to another run; None without a baseline.
        instances: one row per event, with its comparison and its wait time.
        groups: one row per kind of collective, largest total first.
        collectives: one row per matched collective, in order of time.
        arrivals: one row per rank of each matched collective.
        steps: one row per step, with its straggler, and whether it is warm-up.
        clocks: one row per rank: clock offset and residual.
        remarks: notes on uncounted events, assumptions and missing data.
        memory: how full the device was during each outlier, rows of :func:`~.activity.fullness`;
            None unless requested.
        one_job: whether all files can be of one job; otherwise ranks are not compared.
        experts: loads of ranks in all-to-alls of unequal sizes.
        by: ``pair`` to list the tokens from rank to rank first.
        compared_from: path, rank, from_ns (on the clock of the file): all ranks are recorded from
            then on; null if all recordings begin at about the same time.
    """

    totals: Totals
    delayed: Delayed
    ranks: pl.DataFrame = field(default_factory=pl.DataFrame)
    baseline: pl.DataFrame | None = None
    instances: pl.DataFrame = field(default_factory=pl.DataFrame)
    groups: pl.DataFrame = field(default_factory=pl.DataFrame)
    collectives: pl.DataFrame = field(default_factory=pl.DataFrame)
    arrivals: pl.DataFrame = field(default_factory=pl.DataFrame)
    steps: pl.DataFrame = field(default_factory=pl.DataFrame)
    clocks: pl.DataFrame = field(default_factory=pl.DataFrame)
    remarks: tuple[str, ...] = ()
    memory: pl.DataFrame | None = None
    one_job: bool = True
    compared_from: pl.DataFrame | None = None
    experts: Experts = NO_EXPERTS
    by: By | None = None

    @property
    def begin_apart(self) -> bool:
        """Whether some ranks were recorded long before others."""
        begins = self.compared_from
        return begins is not None and begins["from_ns"].null_count() < begins.height

    def view(self) -> View:
        """Return stragglers, outliers and their numbers."""
        stragglers = self.stragglers()
        return View(
            title="Which collectives are slow, and which rank is the straggler?",
            verdict=_verdict(self),
            notes=(*self.remarks, *_warm_up(self), *tables.memory_notes(self.memory)),
            tables=_tables(self),
            scalars={
                **vars(self.totals),
                "min_wait_ns": self.delayed.min_wait_ns,
                "straggler": stragglers["rank"][0]
                if stragglers.height
                and not self.waits_for_schedule
                and self.is_steady(stragglers["rank"][0])
                else None,
            },
            charts=partial(
                tables.charts,
                self.instances,
                self.arrivals,
                self.delayed.collectives,
                self.experts.pairs,
                by_pair=self.by is not None,
            ),
        )

    def on_devices(self, devices: pl.DataFrame) -> Self:
        """Return collectives that the host runs (MPI, Gloo) as those of the rank's only device.

        Args:
            devices: path, rank and device.
        """
        rank = ["path", "rank"]
        only = devices.select(*rank, _device="device").unique().drop_nulls("_device")
        only = only.filter(pl.len().over(rank) == 1)
        if only.is_empty() or not self.instances["device"].null_count():
            return self

        def placed(rows: pl.DataFrame) -> pl.DataFrame:
            known = rows.join(only, on=rank, how="left", nulls_equal=True, maintain_order="left")
            return known.with_columns(device=pl.coalesce("device", "_device")).drop("_device")

        return replace(self, instances=placed(self.instances), arrivals=placed(self.arrivals))

    def stragglers(self) -> pl.DataFrame:
        """Return the root ranks in ``delayed``, most imposed wait time in the recording first.

        Columns: rank, ``imposed_ns``, ``times_last`` of ``matched`` collectives, the steps in
        ``delayed``, ``victims`` (ranks that arrived last because this one had delayed them) and
        ``passed_ns`` (wait time at those collectives).
        """
        steps = pl.col("step").drop_nulls().unique(maintain_order=True).alias("steps")
        passed = pl.col("last_rank") != pl.col("root_rank")
        victims = pl.col("last_rank").filter(passed).unique().sort().alias("victims")
        passed_ns = pl.col("root_ns").filter(passed).sum().alias("passed_ns")
        rows = self.delayed.collectives.sort("last_arrival_ns", "instance")
        listed = rows.group_by(rank="root_rank").agg(steps, victims, passed_ns)
        totals = self.ranks.select("rank", "imposed_ns", "times_last", "matched")
        return totals.join(listed, on="rank").sort("imposed_ns", "rank", descending=[True, False])

    def outliers(self) -> pl.DataFrame:
        """Return the outliers, most lost time first; ``cause`` is known for matched events.

        ``over_ns`` is the time beyond the typical, duration - duration / factor. Cause ``waiting
        for rank R``: at least half of that was wait time, ``(through rank V)`` if R had delayed V,
        which arrived last; ``slow on all ranks``: the transfer time was an outlier.
        """
        usual = pl.col("duration_ns") / pl.col("factor")
        over = (pl.col("duration_ns") - usual).round().cast(pl.Int64)
        root = pl.format("waiting for rank {}", "root_rank")
        through = pl.format(" (through rank {})", "last_rank")
        direct = pl.col("last_rank") == pl.col("root_rank")
        waited = pl.concat_str(root, pl.when(direct).then(pl.lit("")).otherwise(through))
        cause = (
            pl.when(2 * pl.col("wait_ns") >= over)
            .then(waited)
            .when("slow")
            .then(pl.lit("slow on all ranks"))
            .when("setup")
            .then(pl.lit("set-up of the communicator"))
        )
        return (
            self.instances.filter("outlier")
            .with_columns(cause=cause, over_ns=over)
            .sort("over_ns", "id", descending=[True, False])
        )

    def outlier_collectives(self) -> pl.DataFrame:
        """Return the outliers by collective, most lost time of all its ranks first.

        Columns: step, collective, message_bytes, ``at_ns`` of the first rank, ``ranks`` with an
        outlier (``0-3, 6``), the largest ``duration_ns`` and ``factor``, and ``cause``,
        ``compute_ns`` and ``overlapped_by`` of the rank that lost most time.
        """
        rows = self.outliers()
        # unmatched events are collectives of their own
        matched = pl.col("instance").is_not_null()
        key = pl.struct(matched, pl.coalesce("instance", "id").alias("number"))
        first = ("step", "collective", "message_bytes", "cause", "compute_ns", "overlapped_by")
        return (
            rows.group_by(key.alias("_key"), maintain_order=True)
            .agg(
                pl.col(first).first(),
                pl.col("at_ns").min(),
                pl.col("rank").drop_nulls().sort().alias("ranks"),
                pl.col("duration_ns", "factor").max(),
                pl.col("over_ns").sum(),
            )
            .sort("over_ns", descending=True, maintain_order=True)
            .with_columns(pl.col("ranks").map_elements(_ranges, pl.String))
            .drop("_key")
        )

    @cached_property
    def positions(self) -> pl.DataFrame:
        """Rank, host, gpu, stage and imposed_ns of each rank, see :func:`~.chains.positions`."""
        return chains.positions(self.ranks, self.instances)

    def rank_label(self, rank: int) -> str:
        """Return ``rank 437 (node54, GPU 5)`` of many ranks, else ``rank 5``; and its stage."""
        label, stage = chains.rank_label(self.positions, rank), self.stage_of(rank)
        return label if stage is None else f"{label} (pipeline stage {stage})"

    def stage_of(self, rank: int) -> int | None:
        """Return the pipeline stage of a rank; None if the ranks are no pipeline."""
        stages = self.positions.filter(rank=rank)["stage"].to_list()
        return stages[0] if self.pipeline and stages else None

    @cached_property
    def concentration(self) -> pl.DataFrame | None:
        """The groups of ranks that cause most wait time; None for few ranks."""
        is_known = self.totals.n_ranks >= chains.MANY_RANKS and self.totals.n_matched
        return chains.concentration(self.positions) if is_known else None

    def spread(self) -> str:
        """Return sentences on which ranks, host, GPU index or stage cause the wait time."""
        if self.concentration is None:
            return ""
        rank = self.ranks["rank"][0]
        steady = chains.persistence(rank, self.steps, self.collectives, self.arrivals)
        return chains.texts(self.concentration, steady)

    @cached_property
    def has_all_ranks(self) -> bool:
        """Whether the ranks of the process groups are given, 90 % on average.

        Otherwise the transfer time includes the wait time for ranks that are not given.
        """
        given = int(self.collectives["ranks"].sum())
        return self.totals.n_matched > 0 and given / (given + self._missing) >= _ALL_RANKS

    @property
    def _missing(self) -> int:
        """Ranks of process groups without an event, summed over the collectives."""
        others = max((self.totals.world_size or 0) - self.totals.n_ranks, 0)
        return int(self.collectives["missing"].fill_null(others).sum())

    @property
    def every_rank(self) -> str:
        """The ranks that were compared: ``every rank``, or ``every given rank`` if some lack."""
        return "every given rank" if self._missing or not self.totals.n_matched else "every rank"

    def is_steady(self, rank: int) -> bool:
        """Whether a rank is the straggler in more steps than by chance."""
        waits = self.collectives.drop_nulls("root_rank")
        in_steps = waits.drop_nulls("step")
        mostly = 2 * in_steps["root_ns"].sum() >= waits["root_ns"].sum()
        waits = in_steps if mostly else waits.with_columns(step="instance")
        rows = waits.select("step", rank="root_rank", ns="root_ns")
        return chains.is_steady(rows, rank, self.totals.n_ranks)

    @cached_property
    def pipeline(self) -> pipelines.Pipeline | None:
        """The pipeline whose stages the ranks are, if they wait mostly in sends and receives."""
        return pipelines.pipeline(self.arrivals)

    @property
    def waits_for_schedule(self) -> bool:
        """Whether the ranks are pipeline stages with about equal work that wait for the schedule.

        They do not wait much longer than its bubble without computing.
        """
        if self.pipeline is None or pipelines.work_longer(self.ranks["compute_ns"]).any():
            return False
        share = self.exposed_wait_ns / max(self.totals.total_span_ns, 1)
        return share <= pipelines.MORE * (self.pipeline.bubble_frac or 1.0)

    @property
    def mostly_unknown_pairs(self) -> bool:
        """Whether most time is in sends and receives whose partner is not known."""
        length = pl.col("duration_ns").sum()
        pairs = self.instances.filter(alone(self.instances)).select(length).item()
        return bool(2 * pairs > self.totals.total_comm_ns)

    @property
    def exposed_wait_ns(self) -> int:
        """Wait time of all ranks without compute in the same collective."""
        exposed = (pl.col("once_ns") - pl.col("compute_ns").fill_null(0)).clip(0)
        return int(self.arrivals.select(exposed.sum()).item())

    @property
    def transfer_name(self) -> str:
        """Name of the time of collectives that is not known to be wait time."""
        if not self.totals.n_matched:
            return "communication, wait included"
        return "transfer" if self.has_all_ranks else "transfer, and wait for missing ranks"

    @cached_property
    def slow_links(self) -> pl.DataFrame:
        """The rows of ``groups`` with a small share of their link's peak, largest total first.

        If ranks are missing, a transfer time without a known link is not enough, nor is one that
        differs: it has waits for them.
        """
        is_slow = pl.col("link_frac") < SLOW_LINK_FRAC
        known = pl.lit(self.has_all_ranks) | pl.col("link_gbps").is_not_null()
        slow = self.groups.filter(is_slow, known)
        return slow.join(self.waits_for_missing, on=GROUP, how="anti", nulls_equal=True)

    @cached_property
    def waits_for_missing(self) -> pl.DataFrame:
        """Time of collectives above the shortest ones alike, which is wait time for missing ranks.

        If the shortest take less than half of the usual time: a link would be as slow each time.

        Columns: :data:`GROUP`, step, usual_ns, shortest_ns, ``over_ns`` of all ranks.
        """
        known = pl.col("missing").fill_null(not self.has_all_ranks) > 0
        time = pl.col("transfer_ns")
        rows = self.collectives.filter(known & (not self.has_all_ranks)).with_columns(
            usual_ns=time.median().over(GROUP), shortest_ns=time.quantile(0.1, "lower").over(GROUP)
        )
        over = (time - pl.col("shortest_ns")).clip(0) * pl.col("ranks")
        waits = rows.filter(pl.col("usual_ns") > 2 * pl.col("shortest_ns"))
        return waits.select(*GROUP, "step", "usual_ns", "shortest_ns", over_ns=over)


# --- verdict ------------------------------------------------------------------------------


def _verdict(result: CommOutliers) -> str:
    """Return the problems, most severe first, with numbers; otherwise a summary."""
    problems = sentences(
        _slower(result.baseline),
        _stragglers(result),
        _slow_everywhere(result),
        _set_up(result),
        _unexplained(result),
        *slow_links(result)[:1],
        small_collectives(result),
        unequal_experts(result.experts),
    )
    more, totals = "", result.totals
    if totals.n_ranks > 1 and not totals.n_matched:
        more = "No collective could be matched across ranks, so stragglers are unknown."
    if totals.n_ranks == 1 and totals.world_size != 1:
        more = "Wait time and transfer time cannot be separated on one rank: pass all ranks' files."
    if not result.one_job:
        more = "The files are of different jobs, so ranks are not compared."
    unjudged = result.instances["judged_by"].null_count()
    return sentences(problems or _nothing(totals, unjudged), _filled(result.memory), more)


def unequal_experts(experts: Experts) -> str:
    """Report loads of experts that differ between ranks."""
    if experts.main is None or experts.imbalance < UNEQUAL:
        return ""
    return (
        f"Experts have unequal loads: the rank with the most tokens of an all_to_all has "
        f"{format_ratio(experts.imbalance)} the mean ({experts.who()})."
    )


def _filled(memory: pl.DataFrame | None) -> str:
    """Report outliers during which the device was nearly full."""
    if memory is None or (full := memory.filter("near_full")).is_empty():
        return ""
    worst = full.sort("taken_frac", "id", descending=[True, False]).row(0, named=True)
    return (
        f"The device was nearly full during {full.height:,} of {memory.height:,} outliers: "
        f"{format_bytes(worst['taken_bytes'])} of {format_bytes(worst['capacity_bytes'])} "
        f"({format_frac(worst['taken_frac'])}) on rank {worst['rank']}. NCCL then uses small "
        "buffers, and the allocator stops the device to free memory: keep some memory free, with a "
        "smaller batch or torch.cuda.memory.set_per_process_memory_fraction(0.9)."
    )


def _slower(baseline: pl.DataFrame | None) -> str:
    if baseline is None or (slower := baseline.filter(pl.col("ratio") >= SLOWER)).is_empty():
        return ""
    worst = slower.row(0, named=True)
    now, before = worst["compute_frac"], worst["compute_before_frac"]
    overlap = (
        f" Compute overlaps {format_frac(now)} of its duration (baseline: {format_frac(before)})."
        if now is not None and before is not None and now - before >= _MORE_FRAC
        else ""
    )
    return (
        f"Slower than the baseline: {with_size(worst)} takes {format_ns(worst['median_ns'])} "
        f"(median) instead of {format_ns(worst['baseline_ns'])}, {format_ratio(worst['ratio'])} as "
        f"long; {slower.height} of {baseline.height} kinds of collective take at least {SLOWER:g} "
        f"times as long.{overlap}"
    )


# --- stragglers ----------------------------------------------------------------------------


def _stragglers(result: CommOutliers) -> str:
    stragglers = result.stragglers()
    if result.waits_for_schedule:
        return _bubble(result)
    if stragglers.is_empty():
        is_much = result.exposed_wait_ns >= arrivals.WARN_FRAC * result.totals.total_span_ns > 0
        return _short_waits(result) if is_much else ""
    worst, *others = stragglers.iter_rows(named=True)
    rank = worst["rank"]
    if not result.is_steady(rank):
        return _changing(result)
    more = (
        _activity(result, rank),
        passed_on(worst),
        _cost(result, rank),
        result.spread(),
        _others(result, others),
        _victim(result),
    )
    return sentences(_straggler(result, worst), *more)


def _warm_up(result: CommOutliers) -> Iterator[str]:
    """Say which figures include warm-up."""
    steps = result.steps.filter("warm_up")["step"].to_list()
    if steps:
        yield (
            f"{format_first(steps)}: warm-up, counted in sums of time and not in shares of step "
            "time."
        )


def _short_waits(result: CommOutliers) -> str:
    """Report wait time without a long single wait: for one rank, or for ranks that change."""
    worst = result.ranks.row(0, named=True)
    rank, steps = worst["rank"], result.steps
    if not result.is_steady(rank):
        return _changing(result)
    times, of = worst["times_last"], format_count(worst["matched"], "collective")
    if last := steps.filter(straggler=rank).height:
        times, of = last, format_count(steps.height, "step")
    return (
        f"{at_start(result.rank_label(rank))} arrived last in {times} of {of}: other ranks waited "
        f"{format_ns(worst['imposed_ns'])} in total "
        f"({_share(worst['imposed_ns'], result.totals.total_span_ns)} of the recorded time)."
    )


def _changing(result: CommOutliers) -> str:
    """Report wait time for ranks that by chance are the last of some steps."""
    totals = result.totals
    causes = result.ranks.filter(pl.col("imposed_ns") > 0).height
    return (
        f"Ranks waited {format_ns(totals.total_wait_ns)} in total "
        f"({_share(totals.total_wait_ns, totals.total_span_ns)} of the recorded time) for the last "
        f"rank, which changes: {causes} of {totals.n_ranks} ranks cause wait time, none in most "
        f"{'steps' if result.steps.height else 'collectives'} (unequal work or pauses)."
    )


def _bubble(result: CommOutliers) -> str:
    """Report the wait time of pipeline stages with about equal work."""
    wait, whole = result.totals.total_wait_ns, result.totals.total_span_ns
    exposed = result.exposed_wait_ns
    part = "all" if exposed == wait else format_ns(exposed)
    rest = 1 - int(result.ranks["compute_ns"].sum()) / max(whole, 1)
    schedule = result.pipeline.schedule(rest) if result.pipeline else ""
    return sentences(
        "The ranks are pipeline stages with about equal work, which wait for each other by their "
        f"schedule: {format_ns(wait)} in total, {part} of it without compute "
        f"({_share(exposed, whole)} of the recorded time).",
        schedule,
    )


def _straggler(result: CommOutliers, row: Mapping[str, Any]) -> str:
    worst, label = result.delayed.worst_of(row["rank"]), result.rank_label(row["rank"])
    share = _share(row["imposed_ns"], result.totals.total_wait_ns)
    steps = f", mainly in {format_first(row['steps'])}" if len(row["steps"]) in {2, 3} else ""
    return (
        f"{at_start(label)} is a straggler: other ranks waited {format_ns(row['imposed_ns'])} in "
        f"total ({share} of all wait time){steps}. It arrived last at {row['times_last']} of "
        f"{format_count(row['matched'], 'collective')}; the most costly arrival delay is "
        f"{format_ns(worst['arrival_delay_ns'])}, at {with_size(worst)}{at_step(worst['step'])}."
    )


def passed_on(row: Mapping[str, Any]) -> str:
    """Report the ranks that a row of ``stragglers`` delayed, so that others waited for them."""
    if not row["victims"]:
        return ""
    ranks = f"{'rank' if len(row['victims']) == 1 else 'ranks'} {format_first(row['victims'])}"
    return (
        f"It delayed {ranks}, which therefore arrived last at collectives of other groups: "
        f"{format_ns(row['passed_ns'])} of that wait time."
    )


def _activity(result: CommOutliers, rank: int) -> str:
    """Report what the rank did during its worst delay, and its delay at the start of the step."""
    worst = result.delayed.worst_of(rank)
    text = meanwhile(worst)
    into = worst["into_step_ns"]
    if into is not None and into >= _MOST * worst["arrival_delay_ns"]:
        text += f" It started the step {format_ns(into)} late."
    return text.strip()


def meanwhile(delay: Mapping[str, Any]) -> str:
    """Report what host and device of the straggler did during a delay; empty if unknown."""
    sides = [f"{side}: {delay[side]}" for side in ("host", "device") if delay[side] is not None]
    return f"During that delay, {'; '.join(sides)}." if sides else ""


def _cost(result: CommOutliers, rank: int) -> str:
    """Report the rank's share of step time, from two steps on."""
    row = result.ranks.filter(pl.col("rank") == rank).row(0, named=True)
    steps = result.steps.filter(~pl.col("warm_up"))
    if result.steps.height < arrivals.WARN_STEPS:
        known = "Only one step was recorded" if result.steps.height else "No steps are marked"
        return f"{known}, so it is unknown whether this repeats."
    if row["straggler_steps"] < arrivals.WARN_STEPS or row["straggler_frac"] < arrivals.WARN_FRAC:
        return ""
    alone = " without compute" * (result.instances["device"].null_count() < result.instances.height)
    alone += ", the bubble of the schedule included" * (result.pipeline is not None)
    return (
        f"The other ranks wait {format_frac(row['straggler_frac'])} of step time for it"
        f"{alone} (mean of all ranks), mainly in {row['straggler_steps']} of {steps.height} steps."
    )


def _others(result: CommOutliers, others: list[dict[str, Any]]) -> str:
    if not others:
        return ""
    named = [
        f"{result.rank_label(row['rank'])} ({format_ns(row['imposed_ns'])}"
        + (f", in {format_first(row['steps'])})" if len(row["steps"]) in {1, 2, 3} else ")")
        for row in others
    ]
    return f"Other stragglers: {format_first(named)}."


def _victim(result: CommOutliers) -> str:
    """Report that the longest collective is mostly wait time, if it is."""
    longest = largest_first(result.instances, "duration_ns", "id").row(0, named=True)
    wait, took = longest["wait_ns"], longest["duration_ns"]
    if wait is None or wait < _MOST * took:
        return ""
    root, last = longest["root_rank"], longest["last_rank"]
    delayed = f", which rank {root} delayed" if root != last else ""
    return (
        f"The longest collective, {with_size(longest)} on rank {longest['rank']} "
        f"({format_ns(took)}), spends {format_ns(wait)} waiting for rank {last}{delayed}."
    )


# --- slow collectives ----------------------------------------------------------------------


def _slow_everywhere(result: CommOutliers) -> str:
    slow = largest_first(result.collectives.filter("slow"), "slow_factor", "instance")
    if slow.is_empty():
        return ""
    worst = slow.row(0, named=True)
    given = "given" in result.every_rank
    other = "or a rank without a file" if given else "not a straggler"
    after = f"after {result.every_rank} had arrived (a bandwidth problem, {other})"
    return (
        f"{slow.height} of {format_count(result.totals.n_collectives, 'collective')} "
        f"{'was' if slow.height == 1 else 'were'} slow {after}: {with_size(worst)}"
        f"{at_step(worst['step'])} has a transfer time of {format_ns(worst['transfer_ns'])}, "
        f"{format_ratio(worst['slow_factor'])} as long as usual{slow_groups(result)}."
    )


def _set_up(result: CommOutliers) -> str:
    """Report the longest first collective of a group, in which its communicator is created."""
    rows = largest_first(result.collectives.filter("setup"), "transfer_ns", "instance")
    if rows.is_empty():
        return ""
    first = rows.row(0, named=True)
    return (
        f"The first {with_size(first)} of a group{at_step(first['step'])} takes "
        f"{format_ns(first['transfer_ns'])} after {result.every_rank} had arrived, "
        f"{format_ratio(first['slow_factor'])} as long as usual: set-up of the communicator, once."
    )


def slow_groups(result: CommOutliers) -> str:
    """Return that slow collectives are of one process group, as a clause; empty if of several."""
    slow = result.collectives.filter("slow")
    ranks = slow["group_ranks"].unique() if "group_ranks" in slow.columns else pl.Series([None])
    if not slow["slow_group"].all() or ranks.len() > 1 or ranks[0] is None:
        return ""
    members = ranks[0].strip("[]")
    return f", all in the group of ranks {members} (compared with other groups of this kind)"


def _unexplained(result: CommOutliers) -> str:
    """Report outliers that neither a straggler nor a slow collective explains."""
    outliers = result.outliers().filter(pl.col("cause").is_null())
    if outliers.is_empty():
        return ""
    worst = outliers.row(0, named=True)
    ranks = outliers["rank"].n_unique()
    where = f"rank {worst['rank']}" if ranks == 1 else f"{ranks} ranks"
    kernel = worst["overlapped_by"]
    overlap = f", overlapped by {function(kernel)}" if kernel else ""
    return (
        f"{outliers.height} of {format_count(result.totals.n_events, 'collective')} "
        f"{'is an outlier' if outliers.height == 1 else 'are outliers'}, on {where}"
        f"{_mostly(outliers)}; the worst, {with_size(worst)}{at_step(worst['step'])}, took "
        f"{format_ns(worst['duration_ns'])}, {format_ratio(worst['factor'])} "
        f"{_USUAL[worst['judged_by']]}{overlap}."
    )


def _mostly(outliers: pl.DataFrame) -> str:
    """Return the step with most of the outliers."""
    steps = outliers["step"].drop_nulls().value_counts(sort=False, name="n")
    if outliers.height < arrivals.WARN_STEPS or steps.is_empty():
        return ""
    most = steps.sort("n", "step", descending=[True, False]).row(0, named=True)
    if most["n"] == outliers.height:
        return f", all in {most['step']}"
    return f", {most['n']} in {most['step']}" if most["n"] >= _MOST * outliers.height else ""


def _nothing(totals: Totals, unjudged: int) -> str:
    share = _share(totals.covered_ns, totals.total_span_ns)
    waiting = _share(totals.total_wait_ns, totals.total_comm_ns)
    wait = f" ({waiting} wait time)" if totals.n_matched else ""
    over = f" on {totals.n_ranks} ranks" if totals.n_ranks > 1 else ""
    stragglers = ", no stragglers" if totals.n_matched else ""
    judged = totals.n_events - unjudged
    are_few = totals.n_events < _FEW
    opening = "Too few collectives to compare: " if are_few else "No collectives to compare: "
    if totals.n_matched or (judged and totals.world_size == 1):
        opening = "No problem found: "
    elif judged:
        opening = ""  # stragglers and slow links are unknown
    outliers = (
        f"{format_count(totals.n_outliers, 'outlier')}, explained by wait time or slow on all ranks"
        if totals.n_outliers
        else "no outliers"
        if judged == totals.n_events
        else f"no outliers among the {judged:,} that could be compared"
        if judged
        else f"too few of {'each kind' if are_few else 'the same size'} to detect outliers"
    )
    return (
        f"{opening}{format_count(totals.n_events, 'collective')}{over} took "
        f"{format_ns(totals.total_comm_ns)} in total{wait} and ran during {share} of the recorded "
        f"time; {outliers}{stragglers}."
    )


def slow_links(result: CommOutliers) -> list[str]:
    """Report kinds of collective with a small share of their link's peak, largest total first."""
    texts, groups = [], result.groups["group"].drop_nulls().n_unique()
    for row in result.slow_links.iter_rows(named=True):
        speed = row["transfer_busbw_gbps"] or row["busbw_gbps"]
        if row["link_gbps"] is None:
            time = format_ns(row["transfer_ns"])
            texts.append(
                f"{with_size(row)} has a transfer time of {time}: slower than a 10 Gbit/s network."
            )
            continue
        link = f"{row['link']}, per direction"  # the recording has no link, only GPUs
        if row["link"] == NETWORK:
            link = "between nodes, assuming 200 Gbit/s per GPU"
        what = with_size(row) + (f" of {_group_text(result, row['group'])}" if groups > 1 else "")
        is_known = result.has_all_ranks
        reaches = "reaches" if is_known else "waits for ranks without a file or has a slow link:"
        texts.append(f"{what} {reaches} {speed:.3g} GB/s of {row['link_gbps']:g} GB/s ({link}).")
    return texts


def _group_text(result: CommOutliers, group: str | None) -> str:
    """Return the ranks of a process group if recorded, otherwise its name."""
    rows = result.instances.filter(pl.col("group").eq_missing(group))
    ranks = rows["group_ranks"].drop_nulls()
    return f"ranks {ranks[0].strip('[]')}" if ranks.len() else f"group {group}"


def small_collectives(result: CommOutliers, *, advise: bool = True) -> str:
    """Report many small collectives per step, with advice or not; empty if there are few."""
    if (small := small_kind(result.instances, result.totals.n_ranks)) is None:
        return ""
    often = "per step and rank" if result.instances["step"].is_not_null().any() else "per rank"
    cost = f"{format_frac(small['frac'])} of exposed communication"
    return (
        f"{small['n']:,} {small_name(small)} {often} take {format_ns(small['median_ns'])} each "
        f"(median): {'latency dominates' if small['frac'] >= _MOST else cost}"
        f"{f', {fewer_collectives(result, small)}' if advise else ''}."
    )


#: Advice for many small collectives: in steps by kind, otherwise in steps, and without.
FEWER = {
    "broadcast": "copy the tensors into one flat buffer and broadcast that; if they are buffers of "
    "a model in DistributedDataParallel (running statistics), use broadcast_buffers=False",
    "values": "collect them in one tensor and send that once: so few bytes are single numbers",
    "steps": "use larger buckets (DDP bucket_cap_mb, larger FSDP units, coalesced calls)",
    "": "fuse them with other kernels, or coalesce the calls",
}


#: Messages of at most this size are single numbers: norms, flags, scales.
VALUES_BYTES = 64


def fewer_collectives(result: CommOutliers, small: Mapping[str, Any]) -> str:
    """Return advice for many small collectives, as a clause."""
    if result.instances["step"].is_null().all():
        return FEWER[""]
    few = 0 < (small["message_bytes"] or 0) <= VALUES_BYTES
    return FEWER.get(small["collective"], FEWER["values" if few else "steps"])


# --- parts of sentences --------------------------------------------------------------------


def with_size(row: Mapping[str, Any]) -> str:
    """Return collective and size: ``all_reduce of 25 MiB``."""
    size = row["message_bytes"]
    return f"{row['collective']} of {format_bytes(size)}" if size else str(row["collective"])


def at_step(step: str | None) -> str:
    """Return the step as the end of a phrase; empty without one."""
    return "" if step is None else f" in {step}"


def _share(part: int, whole: int) -> str:
    return format_frac(part / whole if whole else 0.0)


# --- tables --------------------------------------------------------------------------------


def _ranges(numbers: pl.Series) -> str:
    return format_ranges(numbers.unique(maintain_order=True).to_list())


def _outliers(result: CommOutliers) -> tuple[Table, ...]:
    """Return the outliers; of several ranks one row per collective, and each event as data only."""
    events = tables.table("outliers", result.outliers())
    if result.totals.n_ranks == 1:
        return (events,)
    collectives = tables.table("outlier_collectives", result.outlier_collectives())
    return (collectives, replace(events, columns={}))


def _optional(name: str, frame: pl.DataFrame | None) -> tuple[Table, ...]:
    return () if frame is None else (tables.table(name, frame),)


def _loads(result: CommOutliers) -> tuple[Table, ...]:
    """Return the tables of loads of experts; of pairs only on request or in detail."""
    of, kept = result.experts, (result.by is not None)
    pairs = replace(tables.table("pairs", of.pairs), detail=not kept)
    rows = {"loads": of.loads, "places": of.places, "loads_by_step": of.steps}
    others = [tables.table(name, frame) for name, frame in rows.items() if frame.height]
    return (*((pairs,) if kept or of.pairs.height else ()), *others)


def _tables(result: CommOutliers) -> tuple[Table, ...]:
    """Return delayed collectives, ranks, baseline, outliers, groups, collectives, steps and others.

    Tables that compare ranks are left out for a single rank.
    """
    delayed = result.delayed
    worst = result.collectives.sort("imposed_ns", "instance", descending=[True, False])
    windows = delayed.collectives.with_row_index("window").select(
        "window", "step", rank="last_rank"
    )
    context = delayed.context.join(windows, on="window", how="left", maintain_order="left")
    single = (
        *_optional("baseline", result.baseline),
        *_outliers(result),
        *_optional("memory", result.memory),
        tables.table("groups", result.groups),
    )
    loads = _loads(result)
    if result.totals.n_ranks == 1:
        return (*single, tables.table("ranks", result.ranks, several=False))
    more = f" (arrival delay of {format_ns(delayed.min_wait_ns)} or more)"
    return (
        *(loads if result.by else ()),
        tables.table("delayed", delayed.with_activity(), more),
        tables.table("ranks", result.ranks),
        *_optional("concentration", result.concentration),
        *single,
        *(() if result.by else loads),
        tables.table("collectives", worst),
        tables.table("steps", result.steps),
        tables.table("context", context),
        tables.table("clocks", result.clocks),
    )
