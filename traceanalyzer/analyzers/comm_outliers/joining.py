"""The ranks' contributions put together: on one clock, in one order, each rank with a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from traceanalyzer.analyzers.comm_outliers.part import Part
from traceanalyzer.analyzers.kernel_names import function
from traceanalyzer.analyzers.names import mapped
from traceanalyzer.errors import MissingData

_NO_DEVICE = "{where}: no communication was recorded, nor any work of a GPU; {hint}"
_NO_COLLECTIVE = (
    "{where}: GPU work was recorded, but no kernel of it is communication (a job on one GPU has "
    "none); kernels with other names are found with --pattern"
)


def ordered(parts: Sequence[Part]) -> list[Part]:
    """The parts by rank and time, on one clock that begins with the first collective.

    Ranks that no file tells get the lowest free numbers, in order of the files' names. A file
    without an absolute time among files that have one is moved so that all begin together: its
    clock is then found from the collectives' ends. Of two parts that say the same the first stays.
    """
    named = _numbered(parts)
    begun = {id(part): _begin(part) for part in named}
    absolute = [begun[id(p)] for p in named if p.epoch_known and p.instances.height]
    origin = min(absolute or begun.values())
    moved = [
        _moved(part, -origin if part.epoch_known or not absolute else -begun[id(part)])
        for part in named
    ]
    by_time = sorted(moved, key=lambda part: (part.rank, _begin(part), part.path))
    return [
        part
        for before, part in zip([None, *by_time], by_time, strict=False)
        if before is None or not _same(before, part)
    ]


def instances(parts: Sequence[Part]) -> pl.DataFrame:
    """All collectives in order of (rank, start), numbered by ``id``; ``ts`` on the file's clock.

    Raises:
        MissingData: there are none.
    """
    frames = [
        part.instances.with_columns(
            rank=pl.lit(part.rank, pl.Int32),
            path=pl.lit(part.path),
            shift_ns=pl.lit(part.shift_ns, pl.Int64),
        )
        for part in parts
    ]
    if not any(frame.height for frame in frames):
        more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
        where = ", ".join(part.path for part in parts[:3]) + more
        worked = any(part.busy_ns is not None for part in parts)
        said = _NO_COLLECTIVE if worked else _NO_DEVICE
        raise MissingData(said.format(where=where, hint=parts[0].record_hint))
    joined = pl.concat(frames).sort("rank", "start", "end", "name", "stream")
    kernel = mapped(joined["name"], function)
    return joined.with_row_index("id").with_columns(
        ts=pl.col("start") - pl.col("shift_ns"),
        duration_ns=pl.col("end") - pl.col("start"),
        kernel=pl.when(pl.col("message_bytes").is_null()).then(kernel),
    )


def step_marks(parts: Sequence[Part], offsets: Mapping[int, int]) -> pl.DataFrame:
    """The steps of all ranks, with ``rank`` and ``arrival`` (start less the clock offset)."""
    return pl.concat(
        part.steps.with_columns(
            rank=pl.lit(part.rank, pl.Int32),
            arrival=pl.col("start") - offsets.get(part.rank or 0, 0),
        )
        for part in parts
    )


def _numbered(parts: Sequence[Part]) -> list[Part]:
    taken = {part.rank for part in parts}
    free = (n for n in range(2 * len(parts)) if n not in taken)
    known = [part for part in parts if part.rank is not None]
    unknown = sorted((part for part in parts if part.rank is None), key=lambda part: part.path)
    return known + [replace(part, rank=next(free), rank_known=False) for part in unknown]


def _begin(part: Part) -> int:
    first = part.instances["start"].min()
    return first if isinstance(first, int) else 0


def _moved(part: Part, by: int) -> Part:
    shift = pl.col("start", "end") + by
    return replace(
        part,
        instances=part.instances.with_columns(shift),
        steps=part.steps.with_columns(shift),
        shift_ns=part.shift_ns + by,
    )


def _same(one: Part, other: Part) -> bool:
    """One file given twice, perhaps once compressed."""
    return (
        one.rank == other.rank
        and one.instances.height > 0
        and one.instances.equals(other.instances)
    )
