"""Notes on uncounted events, assumptions and missing data."""

from collections import Counter
from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.comm_outliers.collectives import Part
from traceanalyzer.units import format_ns

#: Ranks or steps named in the verdict; the rest is counted.
_NAMED = 5

_BASIS = (
    "Wait time is all the time before the last rank arrives; diagnose counts the part of it "
    "without compute, within steps."
)

#: Ranks named in notes.
_RANKS = 8


def remarks(
    parts: Sequence[Part],
    instances: pl.DataFrame,
    collectives: pl.DataFrame,
    clocks: pl.DataFrame,
    misplaced: int,
) -> tuple[str, ...]:
    """Return the notes of a result.

    Args:
        parts: the files.
        instances: all collectives, compared with their group.
        collectives: those matched across ranks.
        clocks: the ranks' offsets.
        misplaced: collectives with an implausible match by order.
    """
    notes = [*_inputs(parts), *_events(parts, instances)]
    if len({part.rank for part in parts}) > 1:
        notes += [*_matching(instances, misplaced), _clocks(clocks), _partial(collectives)]
        notes.append(_if(collectives["imposed_ns"].sum() if collectives.height else 0, _BASIS))
    return tuple(note for note in notes if note)


def _inputs(parts: Sequence[Part]) -> list[str]:
    ranks = {part.rank for part in parts}
    world = max(part.world_size or 0 for part in parts)
    unnamed = sum(not part.rank_known for part in parts) if len(parts) > 1 else 0
    silent = sorted({part.rank or 0 for part in parts if part.instances.is_empty()})
    files = Counter(part.rank for part in parts)
    again = [rank for rank, count in files.items() if count > 1]
    by_device = sum(bool(part.by_device) for part in parts)
    return [
        _if(
            by_device and len(ranks) > 1,
            f"One rank uses {by_device} GPUs: each is compared as a rank, numbered by device.",
        ),
        _if(
            len(ranks) < world,
            f"Only {len(ranks)} of {world} ranks are given: stragglers among the others are not "
            "detected.",
        ),
        _if(unnamed, f"{unnamed} files have no rank: they are numbered in order of their names."),
        _if(
            again,
            f"Several files of rank {listed(again, _RANKS)} are treated as parts of one run. "
            "Put files of several runs in separate folders.",
        ),
        _if(silent, f"No communication was recorded on rank {listed(silent, _RANKS)}."),
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
            f"{unsized:,} of {instances.height:,} collectives have no recorded message size: they "
            "have no bandwidth and are grouped by kernel. Newer PyTorch records the size with each "
            "kernel, older versions with record_shapes=True.",
        ),
        _if(
            small,
            f"{small:,} of {instances.height:,} collectives are in groups of fewer than five: "
            "they are compared by bandwidth, over all sizes.",
        ),
        _if(
            placed,
            f"{placed:,} of {instances.height:,} collectives are compared with those at the same "
            "position in the other steps.",
        ),
        _if(
            unjudged,
            f"Not compared: {unjudged:,} of {instances.height:,} collectives (fewer than five in "
            "the group, or durations that vary like those of different sizes).",
        ),
    ]


def _matching(instances: pl.DataFrame, misplaced: int) -> list[str]:
    alone = instances["instance"].null_count() - misplaced
    unknown = instances.filter(pl.col("instance").is_not_null(), pl.col("group").is_null()).height
    return [
        _if(
            alone,
            f"{alone:,} of {instances.height:,} collectives have no match on another rank (another "
            "group, a send or recv, or not recorded there) and no wait time.",
        ),
        _if(
            misplaced,
            f"{misplaced:,} collectives have no wait time: matched by order they would not overlap "
            "in time (groups that the files do not distinguish, or drifting clocks).",
        ),
        _if(
            unknown,
            f"The process group of {unknown:,} collectives is not recorded: they were matched "
            "across ranks by order, with all ranks as one group.",
        ),
    ]


def _clocks(clocks: pl.DataFrame) -> str:
    if clocks.is_empty():
        return "Clock offsets of the ranks could not be determined and were not corrected."
    offset_ns = max(abs(offset) for offset in clocks["offset_ns"])
    largest = format_ns(offset_ns)
    corrected = clocks.filter("applied")["rank"].to_list()
    if corrected:
        which = f"rank{'s' * (len(corrected) > 1)} {listed(corrected, _RANKS)}"
        return f"Clock offsets of up to {largest} were corrected on {which}."
    within = f" within {largest}" if offset_ns else ""
    return f"The clocks of the ranks agree{within} (ends of collectives): not corrected."


def _partial(collectives: pl.DataFrame) -> str:
    partial = collectives.filter(pl.col("missing") > 0).height
    return _if(
        partial,
        f"{partial:,} of {collectives.height:,} collectives lack events of some ranks of their "
        "group.",
    )


def memory_notes(memory: pl.DataFrame | None) -> tuple[str, ...]:
    """Return notes on missing memory data of devices during outliers."""
    if memory is None:
        return ()
    if memory.is_empty():
        return ("No memory data for the devices with outliers.",)
    return tuple(
        note
        for note in (
            _if(
                memory["capacity_bytes"].null_count(),
                "The trace does not record the size of the device's memory, so its fill level is "
                "unknown.",
            ),
            _if(
                not memory["aligned"].all(),
                "Without a common clock of memory and collectives, the maximum of the whole memory "
                "history counts.",
            ),
        )
        if note
    )


def _if(condition: object, note: str) -> str:
    return note if condition else ""


def listed(items: Sequence[object], most: int = _NAMED) -> str:
    """``a, b and 3 more``."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more
