"""The answer in one paragraph: late ranks, slow collectives, outliers, or nothing unusual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.ranks import CRITICAL_FRAC, WARN_FRAC, WARN_STEPS
from traceanalyzer.analyzers.kernel_names import function
from traceanalyzer.units import format_bytes, format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.comm_outliers.result import CommOutliers

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

#: Ranks or steps named before the rest is counted.
_SHOWN = 5

#: From this share on one thing explains another.
_MOST = 0.5


def verdict(result: CommOutliers) -> str:
    """What is wrong, the gravest first, with numbers; else that nothing is."""
    found = [_slower(result.baseline), _late(result), _slow_everywhere(result), _outliers(result)]
    if not any(found):
        found.append(_nothing(result))
    found.append(_memory(result.memory))
    if result.n_ranks > 1 and not result.n_matched:
        found.append(
            "Whether a rank is late cannot be told: no collective of one rank was found on another."
        )
    if result.n_ranks == 1 and result.world_size != 1:
        found.append("One rank cannot tell waiting from slow communication: add the others' files.")
    return " ".join(sentence for sentence in found if sentence)


def _memory(memory: pl.DataFrame | None) -> str:
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


# --- late ranks ------------------------------------------------------------------------------


def _late(result: CommOutliers) -> str:
    late = result.late_ranks()
    if late.is_empty():
        return ""
    worst, *others = late.iter_rows(named=True)
    said = [
        _late_rank(result, worst),
        _meanwhile(result, worst["rank"]),
        _habit(result, worst["rank"]),
        _late_too(others),
        _victim(result),
    ]
    return " ".join(sentence for sentence in said if sentence)


def _late_rank(result: CommOutliers, row: Mapping[str, Any]) -> str:
    worst = result.late.filter(pl.col("late_rank") == row["rank"]).row(0, named=True)
    share = _share(row["imposed_ns"], result.total_wait_ns)
    steps = f", most of all in {_list(row['steps'])}" if len(row["steps"]) > 1 else ""
    return (
        f"Rank {row['rank']} is late: the others together waited {format_ns(row['imposed_ns'])} "
        f"for it, {share} of all waiting{steps}. It came last to {row['times_last']} of "
        f"{_number(row['matched'], 'collective')}, at worst {format_ns(worst['late_ns'])} after "
        f"the median of the others, to {_what(worst)}{_at(worst['step'])}."
    )


def _meanwhile(result: CommOutliers, rank: int) -> str:
    """What the rank did in its worst stretch, and whether it was late into the step already."""
    late = result.late_with_context().filter(pl.col("rank") == rank).row(0, named=True)
    did = [f"{side}: {late[side]}" for side in ("host", "device") if late[side] is not None]
    said = f"Meanwhile on its {'; on its '.join(did)}." if did else ""
    into = late["into_step_ns"]
    if into is not None and into >= _MOST * late["late_ns"]:
        said += f" It had entered the step {format_ns(into)} after the others already."
    return said.strip()


def _habit(result: CommOutliers, rank: int) -> str:
    """How much of the steps' time the rank costs, once two steps show it."""
    own = result.ranks.filter(pl.col("rank") == rank).row(0, named=True)
    if result.steps.height < WARN_STEPS:
        return "With fewer than two steps recorded this may be chance."
    if own["late_steps"] < WARN_STEPS or own["late_frac"] < WARN_FRAC:
        return ""
    level = "critical" if own["late_frac"] >= CRITICAL_FRAC else "a warning"
    return (
        f"It costs {format_frac(own['late_frac'])} of all steps' time, in {own['late_steps']} of "
        f"{result.steps.height} steps ({level})."
    )


def _late_too(others: list[dict[str, Any]]) -> str:
    if not others:
        return ""
    named = [
        f"rank {row['rank']} ({format_ns(row['imposed_ns'])}"
        + (f", in {_list(row['steps'])})" if row["steps"] else ")")
        for row in others
    ]
    return f"They waited too for {_list(named)}."


def _victim(result: CommOutliers) -> str:
    """The longest collective is usually the one that waited longest: say so."""
    order = result.instances.sort("duration_ns", "id", descending=[True, False])
    longest = order.row(0, named=True)
    wait, took = longest["wait_ns"], longest["duration_ns"]
    if wait is None or wait < _MOST * took:
        return ""
    return (
        f"The longest, {format_ns(took)} of {_what(longest)} on rank {longest['rank']}, is "
        f"{format_ns(wait)} of waiting for rank {longest['late_rank']}."
    )


# --- slow collectives ------------------------------------------------------------------------


def _slow_everywhere(result: CommOutliers) -> str:
    order = ("slow_factor", "instance")
    slow = result.collectives.filter("slow").sort(order, descending=[True, False])
    if slow.is_empty():
        return ""
    worst = slow.row(0, named=True)
    return (
        f"{slow.height} of {_number(result.n_collectives, 'collective')} took long on all ranks "
        f"after the last had arrived (bandwidth, not a late rank): {_what(worst)}"
        f"{_at(worst['step'])} took {format_ns(worst['pure_ns'])}, {worst['slow_factor']:.3g} "
        "times the usual."
    )


def _outliers(result: CommOutliers) -> str:
    """Outliers that neither a late rank nor a slow collective explains."""
    outliers = result.outliers().filter(pl.col("cause").is_null())
    if outliers.is_empty():
        return ""
    worst = outliers.row(0, named=True)
    ranks = outliers["rank"].n_unique()
    where = f"rank {worst['rank']}" if ranks == 1 else f"{ranks} ranks"
    beside = f", beside {function(worst['beside'])}" if worst["beside"] else ""
    return (
        f"{outliers.height} of {_number(result.n_events, 'collective')} "
        f"{'stands' if outliers.height == 1 else 'stand'} out, in {where}"
        f"{_mostly(outliers)}: at worst {_what(worst)}{_at(worst['step'])} took "
        f"{format_ns(worst['duration_ns'])}, {worst['factor']:.3g} times "
        f"{_USUAL[worst['judged_by']]}{beside}."
    )


def _mostly(outliers: pl.DataFrame) -> str:
    """The step that most of them are in."""
    steps = outliers["step"].drop_nulls().value_counts(sort=False, name="n")
    if outliers.height < WARN_STEPS or steps.is_empty():
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
    late = " and no rank is late" if result.n_matched else ""
    judged = result.n_events - result.instances["judged_by"].null_count()
    alone = result.n_ranks > 1 and not result.n_matched
    opening = "Too little to judge by"
    if judged or result.n_matched:
        opening = "No outlier" if alone else "Nothing unusual"
    kind = (
        "none is an outlier of its kind"
        if judged == result.n_events
        else f"of {judged:,} that could be judged none is an outlier"
        if judged
        else "none has enough of its kind to tell whether it is an outlier"
    )
    return (
        f"{opening}: {_number(result.n_events, 'collective')}{over} took "
        f"{format_ns(result.total_comm_ns)} in all{of_it} and ran during {share} of the recorded "
        f"time; {kind}{late}."
    )


# --- words -----------------------------------------------------------------------------------


def _what(row: Mapping[str, Any]) -> str:
    """``all_reduce of 25 MiB``."""
    size = row["message_bytes"]
    name = str(row["collective"])
    return name if size is None else f"{name} of {format_bytes(size)}"


def _at(step: str | None) -> str:
    return "" if step is None else f" in {step}"


def _number(n: int, thing: str) -> str:
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def _list(words: Sequence[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more


def _share(part: int, whole: int) -> str:
    return format_frac(part / whole if whole else 0.0)
