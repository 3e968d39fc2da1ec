"""Who is late, what stands out, and the tables and charts of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers import arrivals, notes, tables
from traceanalyzer.analyzers.comm_outliers.arrivals import Window
from traceanalyzer.analyzers.comm_outliers.context import divide, labels
from traceanalyzer.analyzers.comm_outliers.links import NETWORK
from traceanalyzer.analyzers.common.display import sentences
from traceanalyzer.analyzers.common.kernel_names import function
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns

#: Medians that grew by less are the ordinary difference between two runs.
SLOWER = 1.5

#: More compute beside a collective than that much is worth telling.
_MORE_FRAC = 0.05

#: What an outlier was compared with, in words.
_USUAL = {
    "group": "the median",
    "bandwidth": "the usual for its size",
    "place": "the median of its place in the step",
    "kernel": "its kernel's median",
}

#: Slower than this share of the link's peak is worth naming.
SLOW_LINK_FRAC = 0.25

#: A collective with less than this, or shorter where its size is not known, is bound by latency.
SMALL_BYTES, SHORT_NS = 2**20, 50_000

#: So many small collectives a step and rank are many.
MANY = 50

#: From this share on one thing explains another.
_MOST = 0.5


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
        one_job: whether all files can be of one job; ranks are compared only then.
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
    one_job: bool = True

    def view(self) -> View:
        """Who is late, what stands out, and the numbers behind it."""
        late = self.late_ranks()
        numbers = [one.name for one in fields(self) if one.type in (int, int | None)]
        return View(
            title="Which collectives stand out, and which rank is late?",
            verdict=_verdict(self),
            notes=(*self.remarks, *notes.memory_notes(self.memory)),
            tables=_tables(self),
            scalars={
                **self.numbers(*numbers),
                "late_rank": late["rank"][0] if late.height else None,
            },
            charts=partial(tables.charts, self.instances, self.arrivals, self.late),
        )

    def late_ranks(self) -> pl.DataFrame:
        """The root ranks in ``late``, the root of most wait time in the whole recording first.

        rank, ``imposed_ns``, ``times_last`` of ``matched`` collectives, the steps in ``late``,
        ``victims`` (ranks that arrived last because this one had delayed them) and ``passed_ns``
        (wait time at those collectives).
        """
        steps = pl.col("step").drop_nulls().unique(maintain_order=True).alias("steps")
        passed = pl.col("late_rank") != pl.col("root_rank")
        victims = pl.col("late_rank").filter(passed).unique().sort().alias("victims")
        passed_ns = pl.col("root_ns").filter(passed).sum().alias("passed_ns")
        rows = self.late.sort("last_arrival_ns", "instance")
        listed = rows.group_by(rank="root_rank").agg(steps, victims, passed_ns)
        totals = self.ranks.select("rank", "imposed_ns", "times_last", "matched")
        return totals.join(listed, on="rank").sort("imposed_ns", "rank", descending=[True, False])

    def outliers(self) -> pl.DataFrame:
        """The events that stand out, the most time lost first; ``cause`` where partners tell.

        ``over_ns`` is what it took beyond the usual, duration - duration / factor. ``waiting for
        rank R``: at least half of that was waiting, ``(through rank V)`` where R had delayed V,
        which arrived last; ``slow on all ranks``: the communication itself was an outlier.
        """
        usual = pl.col("duration_ns") / pl.col("factor")
        over = (pl.col("duration_ns") - usual).round().cast(pl.Int64)
        root = pl.format("waiting for rank {}", "root_rank")
        through = pl.format(" (through rank {})", "late_rank")
        direct = pl.col("late_rank") == pl.col("root_rank")
        waited = pl.concat_str(root, pl.when(direct).then(pl.lit("")).otherwise(through))
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

    @property
    def slow_links(self) -> pl.DataFrame:
        """The rows of ``groups`` that use little of their link, the largest total time first."""
        return self.groups.filter(pl.col("link_frac") < SLOW_LINK_FRAC)

    def late_with_context(self) -> pl.DataFrame:
        """``late`` with the largest parts of each stretch as text: ``host`` and ``device``.

        ``rank`` is the root rank, ``late_rank`` the rank that arrived last.
        """
        table = self.late.rename({"root_rank": "rank"}).with_row_index("window")
        for side in ("host", "device"):
            column = labels(self.context, side)
            table = table.join(column, on="window", how="left", maintain_order="left")
        return table

    def worst_of(self, rank: int) -> dict[str, Any]:
        """The row of :meth:`late_with_context` in which this straggler cost most.

        Collectives at which it arrived last itself come first.
        """
        rows = self.late_with_context().filter(pl.col("rank") == rank)
        passed = pl.col("late_rank") != rank
        return rows.sort(passed, maintain_order=True).row(0, named=True)


# --- verdict ------------------------------------------------------------------------------


def _verdict(result: CommOutliers) -> str:
    """What is wrong, the gravest first, with numbers; else that nothing is."""
    found = sentences(
        _slower(result.baseline),
        _stragglers(result),
        _slow_everywhere(result),
        _unexplained(result),
        *slow_links(result)[:1],
        small_collectives(result),
    )
    more = ""
    if result.n_ranks > 1 and not result.n_matched:
        more = (
            "Whether a rank is late cannot be told: no collective of one rank was found on another."
        )
    if result.n_ranks == 1 and result.world_size != 1:
        more = "One rank cannot tell waiting from slow communication: add the others' files."
    if not result.one_job:
        more = "The files are of different jobs, so ranks are not compared."
    return sentences(found or _nothing(result), _filled(result.memory), more)


def _filled(memory: pl.DataFrame | None) -> str:
    """Whether the device was nearly full while collectives were slow."""
    full = None if memory is None else memory.filter("near_full")
    if memory is None or full is None or full.is_empty():
        return ""
    worst = full.sort("taken_frac", "id", descending=[True, False]).row(0, named=True)
    return (
        f"The device was nearly full during {full.height:,} of {memory.height:,} outliers: "
        f"{format_bytes(worst['taken_bytes'])} of {format_bytes(worst['capacity_bytes'])} "
        f"({format_frac(worst['taken_frac'])}) on rank {worst['rank']}. That leaves NCCL small "
        "buffers, and the allocator stops the device to give memory back: keep some free, with a "
        "smaller batch, or torch.cuda.memory.set_per_process_memory_fraction(0.9)."
    )


def _slower(baseline: pl.DataFrame | None) -> str:
    slower = None if baseline is None else baseline.filter(pl.col("ratio") >= SLOWER)
    if baseline is None or slower is None or slower.is_empty():
        return ""
    worst = slower.row(0, named=True)
    now, before = worst["compute_frac"], worst["compute_before_frac"]
    beside = (
        f" Compute kernels run beside it for {format_frac(now)} of its time, not "
        f"{format_frac(before)}."
        if now is not None and before is not None and now - before >= _MORE_FRAC
        else ""
    )
    return (
        f"Slower than the baseline: {_what(worst)} takes {format_ns(worst['median_ns'])} (median), "
        f"not {format_ns(worst['baseline_ns'])}, {worst['ratio']:.3g} times as long; "
        f"{slower.height} of {baseline.height} kinds of collective take at least {SLOWER:g} times "
        f"as long.{beside}"
    )


# --- late ranks ----------------------------------------------------------------------------


def _stragglers(result: CommOutliers) -> str:
    late = result.late_ranks()
    if late.is_empty():
        return ""
    worst, *others = late.iter_rows(named=True)
    rank = worst["rank"]
    more = (
        _meanwhile(result, rank),
        passed_on(worst),
        _habit(result, rank),
        _late_too(others),
        _victim(result),
    )
    return sentences(_late_rank(result, worst), *more)


def _late_rank(result: CommOutliers, row: Mapping[str, Any]) -> str:
    worst = result.worst_of(row["rank"])
    share = _share(row["imposed_ns"], result.total_wait_ns)
    steps = f", most of all in {notes.listed(row['steps'])}" if len(row["steps"]) > 1 else ""
    return (
        f"Rank {row['rank']} is a straggler: other ranks waited {format_ns(row['imposed_ns'])} in "
        f"total for it, {share} of all wait time{steps}. It arrived last at {row['times_last']} of "
        f"{format_count(row['matched'], 'collective')}, at worst {format_ns(worst['late_ns'])} "
        f"after the median of the others, at {_what(worst)}{_at(worst['step'])}."
    )


def passed_on(row: Mapping[str, Any]) -> str:
    """The ranks that a row of ``late_ranks`` delayed, so that others waited for them too."""
    if not row["victims"]:
        return ""
    ranks = f"{'rank' if len(row['victims']) == 1 else 'ranks'} {notes.listed(row['victims'])}"
    return (
        f"It delayed {ranks}, which therefore arrived last at collectives of other groups: "
        f"{format_ns(row['passed_ns'])} of that wait time."
    )


def _meanwhile(result: CommOutliers, rank: int) -> str:
    """What the rank did in its worst stretch, and whether it was late into the step already."""
    late = result.worst_of(rank)
    did = [f"{side}: {late[side]}" for side in ("host", "device") if late[side] is not None]
    text = f"Meanwhile on its {'; on its '.join(did)}." if did else ""
    into = late["into_step_ns"]
    if into is not None and into >= _MOST * late["late_ns"]:
        text += f" It had entered the step {format_ns(into)} after the others already."
    return text.strip()


def _habit(result: CommOutliers, rank: int) -> str:
    """How much of the steps' time the rank costs, once two steps show it."""
    row = result.ranks.filter(pl.col("rank") == rank).row(0, named=True)
    if result.steps.height < arrivals.WARN_STEPS:
        return "With fewer than two steps recorded this may be chance."
    if row["late_steps"] < arrivals.WARN_STEPS or row["late_frac"] < arrivals.WARN_FRAC:
        return ""
    level = "critical" if row["late_frac"] >= arrivals.CRITICAL_FRAC else "a warning"
    return (
        f"It costs {format_frac(row['late_frac'])} of all steps' time, in {row['late_steps']} of "
        f"{result.steps.height} steps ({level})."
    )


def _late_too(others: list[dict[str, Any]]) -> str:
    if not others:
        return ""
    named = [
        f"rank {row['rank']} ({format_ns(row['imposed_ns'])}"
        + (f", in {notes.listed(row['steps'])})" if row["steps"] else ")")
        for row in others
    ]
    return f"Other stragglers: {notes.listed(named)}."


def _victim(result: CommOutliers) -> str:
    """The longest collective is usually the one that waited longest: say so."""
    order = result.instances.sort("duration_ns", "id", descending=[True, False])
    longest = order.row(0, named=True)
    wait, took = longest["wait_ns"], longest["duration_ns"]
    if wait is None or wait < _MOST * took:
        return ""
    return (
        f"The longest, {format_ns(took)} of {_what(longest)} on rank {longest['rank']}, is "
        f"{format_ns(wait)} of waiting for rank {longest['root_rank']}."
    )


# --- slow collectives ----------------------------------------------------------------------


def _slow_everywhere(result: CommOutliers) -> str:
    order = ("slow_factor", "instance")
    slow = result.collectives.filter("slow").sort(order, descending=[True, False])
    if slow.is_empty():
        return ""
    worst = slow.row(0, named=True)
    return (
        f"{slow.height} of {format_count(result.n_collectives, 'collective')} took long on all "
        f"ranks after the last had arrived (bandwidth, not a late rank): {_what(worst)}"
        f"{_at(worst['step'])} took {format_ns(worst['pure_ns'])}, {worst['slow_factor']:.3g} "
        "times the usual."
    )


def _unexplained(result: CommOutliers) -> str:
    """Outliers that neither a late rank nor a slow collective explains."""
    outliers = result.outliers().filter(pl.col("cause").is_null())
    if outliers.is_empty():
        return ""
    worst = outliers.row(0, named=True)
    ranks = outliers["rank"].n_unique()
    where = f"rank {worst['rank']}" if ranks == 1 else f"{ranks} ranks"
    beside = f", beside {function(worst['beside'])}" if worst["beside"] else ""
    return (
        f"{outliers.height} of {format_count(result.n_events, 'collective')} "
        f"{'stands' if outliers.height == 1 else 'stand'} out, in {where}"
        f"{_mostly(outliers)}: at worst {_what(worst)}{_at(worst['step'])} took "
        f"{format_ns(worst['duration_ns'])}, {worst['factor']:.3g} times "
        f"{_USUAL[worst['judged_by']]}{beside}."
    )


def _mostly(outliers: pl.DataFrame) -> str:
    """The step that most of them are in."""
    steps = outliers["step"].drop_nulls().value_counts(sort=False, name="n")
    if outliers.height < arrivals.WARN_STEPS or steps.is_empty():
        return ""
    most = steps.sort("n", "step", descending=[True, False]).row(0, named=True)
    if most["n"] == outliers.height:
        return f", all in {most['step']}"
    return f", {most['n']} in {most['step']}" if most["n"] >= _MOST * outliers.height else ""


def _nothing(result: CommOutliers) -> str:
    share = _share(result.covered_ns, result.total_span_ns)
    waiting = _share(result.total_wait_ns, result.total_comm_ns)
    of_it = f", {waiting} of it waiting for one another," if result.n_matched else ""
    over = f" on {result.n_ranks} ranks" if result.n_ranks > 1 else ""
    late = " and no rank is a straggler" if result.n_matched else ""
    judged = result.n_events - result.instances["judged_by"].null_count()
    alone = result.n_ranks > 1 and not result.n_matched
    opening = "Too little to judge by"
    if judged or result.n_matched:
        opening = "No outlier" if alone else "Nothing unusual"
    kind = (
        f"{format_count(result.n_outliers, 'outlier')} of its kind, explained by wait time or slow "
        "on every rank,"
        if result.n_outliers
        else "none is an outlier of its kind"
        if judged == result.n_events
        else f"of {judged:,} that could be judged none is an outlier"
        if judged
        else "none has enough of its kind to tell whether it is an outlier"
    )
    return (
        f"{opening}: {format_count(result.n_events, 'collective')}{over} took "
        f"{format_ns(result.total_comm_ns)} in all{of_it} and ran during {share} of the recorded "
        f"time; {kind}{late}."
    )


def slow_links(result: CommOutliers) -> list[str]:
    """Kinds of collective that use little of their link, the largest total time first."""
    waiting = "" if result.n_matched else " (wait time included)"
    found, groups = [], result.groups["group"].drop_nulls().n_unique()
    for row in result.slow_links.iter_rows(named=True):
        speed = row["busbw_gbps"] if row["pure_busbw_gbps"] is None else row["pure_busbw_gbps"]
        if row["link_gbps"] is None:
            took = f"{_what(row)} takes {format_ns(row['pure_ns'])} after the last rank has arrived"
            found.append(f"{took}: less bandwidth than a network of 10 Gbit/s has.")
            continue
        network = row["link"] == NETWORK
        where = "between nodes" if network else f"on a machine with {row['link']}"
        usual = ", at the usual 200 Gbit/s per GPU" if network else ""
        what = _what(row)
        if groups > 1:
            what += f" of {_group_text(result, row['group'])}"
        found.append(
            f"{what} runs at {speed:.3g} GB/s {where}: {format_frac(row['link_frac'])} of "
            f"its {row['link_gbps']:g} GB/s per direction{usual}{waiting}."
        )
    return found


def _group_text(result: CommOutliers, group: str | None) -> str:
    """The ranks of a process group where they are recorded, else its name."""
    rows = result.instances.filter(pl.col("group").eq_missing(group))
    ranks = rows["group_ranks"].drop_nulls()
    return f"ranks {ranks[0].strip('[]')}" if ranks.len() else f"group {group}"


def small_collectives(result: CommOutliers) -> str:
    """That many collectives a step are too small to use the link; empty if they are not."""
    small = result.instances.filter(_is_small())
    steps = result.instances["step"].drop_nulls().n_unique()
    per_step = small.height / result.n_ranks / max(steps, 1)
    if per_step < MANY or 2 * small.height < result.n_events:
        return ""
    median = small.select(pl.col("duration_ns").median().cast(pl.Int64)).item()
    often = "per step and rank" if steps else "per rank"
    advice = (
        "use larger buckets (DDP bucket_cap_mb, larger FSDP units, coalesced calls)"
        if steps
        else "fuse them with other kernels, or coalesce the calls"
    )
    return (
        f"{round(per_step):,} small collectives {often} take {format_ns(median)} each (median): "
        f"latency dominates, {advice}."
    )


def _is_small() -> pl.Expr:
    """Small by message size, or by duration where the size is not recorded."""
    short = pl.col("duration_ns") < SHORT_NS
    return (pl.col("message_bytes") < SMALL_BYTES).fill_null(short)


# --- pieces of sentences -------------------------------------------------------------------


def _what(row: Mapping[str, Any]) -> str:
    """``all_reduce of 25 MiB``."""
    size = row["message_bytes"]
    name = str(row["collective"])
    return name if size is None else f"{name} of {format_bytes(size)}"


def _at(step: str | None) -> str:
    return "" if step is None else f" in {step}"


def _share(part: int, whole: int) -> str:
    return format_frac(part / whole if whole else 0.0)


# --- tables --------------------------------------------------------------------------------


def _tables(result: CommOutliers) -> tuple[Table, ...]:
    """Late ranks, ranks, baseline, outliers, groups, collectives, steps, context, clocks.

    What compares ranks is left out where there is one rank only.
    """
    worst = result.collectives.sort("imposed_ns", "instance", descending=[True, False])
    stretches = result.late.with_row_index("window").select("window", "step", rank="late_rank")
    context = result.context.join(stretches, on="window", how="left", maintain_order="left")
    alone = (
        *(() if result.baseline is None else (tables.table("baseline", result.baseline),)),
        tables.table("outliers", result.outliers()),
        *(() if result.memory is None else (tables.table("memory", result.memory),)),
        tables.table("groups", result.groups),
    )
    if result.n_ranks == 1:
        return (*alone, tables.table("ranks", result.ranks, several=False))
    more = f" (late by {format_ns(result.min_wait_ns)} or more)"
    return (
        tables.table("late", result.late_with_context(), more),
        tables.table("ranks", result.ranks),
        *alone,
        tables.table("collectives", worst),
        tables.table("steps", result.steps),
        tables.table("context", context),
        tables.table("clocks", result.clocks),
    )
