"""The sentences about the answer: the verdict, and what was not counted, assumed or missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.stragglers import CRITICAL_FRAC, WARN_FRAC, WARN_STEPS
from traceanalyzer.analyzers.common.kernel_names import function
from traceanalyzer.units import format_bytes, format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.comm_outliers.compute import Part
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

#: Ranks or steps named in the verdict before the rest is counted.
_NAMED = 5

#: From this share on one thing explains another.
_MOST = 0.5

#: The same in notes.
_RANKS = 8


def verdict(result: CommOutliers) -> str:
    """What is wrong, the gravest first, with numbers; else that nothing is."""
    sentences = [
        _slower(result.baseline),
        _late(result),
        _slow_everywhere(result),
        _outliers(result),
    ]
    if not any(sentences):
        sentences.append(_nothing(result))
    sentences.append(_memory(result.memory))
    if result.n_ranks > 1 and not result.n_matched:
        sentences.append(
            "Whether a rank is late cannot be told: no collective of one rank was found on another."
        )
    if result.n_ranks == 1 and result.world_size != 1:
        sentences.append(
            "One rank cannot tell waiting from slow communication: add the others' files."
        )
    return " ".join(sentence for sentence in sentences if sentence)


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


# --- late ranks ----------------------------------------------------------------------------


def _late(result: CommOutliers) -> str:
    late = result.late_ranks()
    if late.is_empty():
        return ""
    worst, *others = late.iter_rows(named=True)
    sentences = [
        _late_rank(result, worst),
        _meanwhile(result, worst["rank"]),
        _habit(result, worst["rank"]),
        _late_too(others),
        _victim(result),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


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
    text = f"Meanwhile on its {'; on its '.join(did)}." if did else ""
    into = late["into_step_ns"]
    if into is not None and into >= _MOST * late["late_ns"]:
        text += f" It had entered the step {format_ns(into)} after the others already."
    return text.strip()


def _habit(result: CommOutliers, rank: int) -> str:
    """How much of the steps' time the rank costs, once two steps show it."""
    row = result.ranks.filter(pl.col("rank") == rank).row(0, named=True)
    if result.steps.height < WARN_STEPS:
        return "With fewer than two steps recorded this may be chance."
    if row["late_steps"] < WARN_STEPS or row["late_frac"] < WARN_FRAC:
        return ""
    level = "critical" if row["late_frac"] >= CRITICAL_FRAC else "a warning"
    return (
        f"It costs {format_frac(row['late_frac'])} of all steps' time, in {row['late_steps']} of "
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


# --- slow collectives ----------------------------------------------------------------------


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


# --- pieces of sentences -------------------------------------------------------------------


def _what(row: Mapping[str, Any]) -> str:
    """``all_reduce of 25 MiB``."""
    size = row["message_bytes"]
    name = str(row["collective"])
    return name if size is None else f"{name} of {format_bytes(size)}"


def _at(step: str | None) -> str:
    return "" if step is None else f" in {step}"


def _number(n: int, thing: str) -> str:
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def _list(items: Sequence[object], most: int = _NAMED) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def _share(part: int, whole: int) -> str:
    return format_frac(part / whole if whole else 0.0)


# --- notes ---------------------------------------------------------------------------------


def remarks(
    parts: Sequence[Part],
    instances: pl.DataFrame,
    collectives: pl.DataFrame,
    clocks: pl.DataFrame,
    misplaced: int,
) -> tuple[str, ...]:
    """Everything the reader has to know to judge the numbers; empty when there is nothing.

    Args:
        parts: what was read.
        instances: all collectives, judged.
        collectives: those matched across ranks.
        clocks: the ranks' offsets.
        misplaced: collectives whose match by order was undone.
    """
    notes = [*_given(parts), *_events(parts, instances)]
    if len({part.rank for part in parts}) > 1:
        notes += [*_matching(instances, misplaced), _clocks(clocks), _partial(collectives)]
    return tuple(note for note in notes if note)


def _given(parts: Sequence[Part]) -> list[str]:
    given = {part.rank for part in parts}
    world = max(part.world_size or 0 for part in parts)
    unnamed = sum(not part.rank_known for part in parts) if len(parts) > 1 else 0
    silent = sorted({part.rank or 0 for part in parts if part.instances.is_empty()})
    files = Counter(part.rank for part in parts)
    again = [rank for rank, count in files.items() if count > 1]
    return [
        _if(
            len(given) < world,
            f"Ranks given: {len(given)} of {world}. Lateness is judged among those only.",
        ),
        _if(unnamed, f"{unnamed} files do not tell their rank; numbered in order of their names."),
        _if(
            again,
            f"More than one file is of rank {_list(again, _RANKS)}: taken for parts of one run. "
            "Files of several runs belong into folders of their own.",
        ),
        _if(silent, f"No communication was recorded in rank {_list(silent, _RANKS)}."),
    ]


def _events(parts: Sequence[Part], instances: pl.DataFrame) -> list[str]:
    unclosed = sum(part.unclosed for part in parts)
    unsized = instances["message_bytes"].null_count()
    small = instances.filter(judged_by="bandwidth").height
    placed = instances.filter(judged_by="place").height
    unjudged = instances["judged_by"].null_count()
    return [
        _if(unclosed, f"{unclosed:,} communication events without an end were not counted."),
        _if(
            unsized,
            f"The message size of {unsized:,} of {instances.height:,} collectives is not known: "
            "they have no bandwidth and are grouped by kernel. Newer PyTorch records it with each "
            "kernel, older ones with record_shapes=True.",
        ),
        _if(
            small,
            f"{small:,} of {instances.height:,} collectives are in kinds of fewer than five: "
            "judged against their bandwidth over all sizes.",
        ),
        _if(
            placed,
            f"{placed:,} of {instances.height:,} collectives are judged against the same place in "
            "the other steps.",
        ),
        _if(
            unjudged,
            f"{unjudged:,} of {instances.height:,} collectives were not judged: fewer than five "
            "are like them, or they vary as different sizes would.",
        ),
    ]


def _matching(instances: pl.DataFrame, misplaced: int) -> list[str]:
    alone = instances["instance"].null_count() - misplaced
    unknown = instances.filter(pl.col("instance").is_not_null(), pl.col("group").is_null()).height
    return [
        _if(
            alone,
            f"{alone:,} of {instances.height:,} collectives have no partner on another rank "
            "(another group, a send or recv, or not recorded there): they count towards no wait.",
        ),
        _if(
            misplaced,
            f"{misplaced:,} collectives count towards no wait: matched by order they would not "
            "overlap in time (groups that the files do not tell apart, or drifting clocks).",
        ),
        _if(
            unknown,
            f"The process group of {unknown:,} collectives is not recorded: they were matched "
            "across ranks by their order, taking all ranks for one group.",
        ),
    ]


def _clocks(clocks: pl.DataFrame) -> str:
    if clocks.is_empty():
        return "No collective tells how far apart the ranks' clocks are: taken as they are."
    largest = format_ns(max(abs(offset) for offset in clocks["offset_ns"]))
    corrected = clocks.filter("applied")["rank"].to_list()
    if corrected:
        return (
            f"Clock offsets of up to {largest} were taken off, of rank {_list(corrected, _RANKS)}."
        )
    return (
        f"By the ends of collectives the ranks' clocks agree within {largest}: taken as they are."
    )


def _partial(collectives: pl.DataFrame) -> str:
    partial = collectives.filter(pl.col("missing") > 0).height
    return _if(
        partial,
        f"In {partial:,} of {collectives.height:,} collectives not all ranks of the group are "
        "there.",
    )


def memory_notes(memory: pl.DataFrame | None) -> tuple[str, ...]:
    """What keeps the memory of devices from being told during outliers."""
    if memory is None:
        return ()
    if memory.is_empty():
        return ("Memory was given of no rank and device that an outlier is of.",)
    return tuple(
        note
        for note in (
            _if(
                memory["capacity_bytes"].null_count(),
                "The trace does not tell how much memory the device has, so it is not known how "
                "full it was.",
            ),
            _if(
                not memory["aligned"].all(),
                "Where memory and collectives do not share a clock, the most that was taken in the "
                "whole history counts.",
            ),
        )
        if note
    )


def _if(found: object, note: str) -> str:
    return note if found else ""
