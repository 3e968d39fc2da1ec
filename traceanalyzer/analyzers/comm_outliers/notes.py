"""What was not counted, assumed or missing."""

from collections import Counter
from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.comm_outliers.collectives import Part
from traceanalyzer.units import format_ns

#: Ranks or steps named in the verdict before the rest is counted.
_NAMED = 5

#: The same in notes.
_RANKS = 8


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
    by_device = sum(bool(part.by_device) for part in parts)
    return [
        _if(
            by_device and len(given) > 1,
            f"One rank uses {by_device} GPUs: each is compared as a rank, numbered as the device.",
        ),
        _if(
            len(given) < world,
            f"Ranks given: {len(given)} of {world}. Lateness is judged among those only.",
        ),
        _if(unnamed, f"{unnamed} files do not tell their rank; numbered in order of their names."),
        _if(
            again,
            f"More than one file is of rank {listed(again, _RANKS)}: taken for parts of one run. "
            "Files of several runs belong into folders of their own.",
        ),
        _if(silent, f"No communication was recorded in rank {listed(silent, _RANKS)}."),
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
            f"Clock offsets of up to {largest} were taken off, of rank {listed(corrected, _RANKS)}."
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


def listed(items: Sequence[object], most: int = _NAMED) -> str:
    """``a, b and 3 more``."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more
