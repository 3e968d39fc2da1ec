"""Common axis of recordings: whether their clocks can be compared, and what aligns them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl

from traceanalyzer.trace import Meta


@dataclass(frozen=True)
class Origin:
    """The recording that a part of a result is from.

    Attributes:
        rank: global rank, or None.
        path: the file.
        epoch_ns: absolute time of the trace's ts 0, or None.
        start_ns: time of the file's first event, or None.
    """

    rank: int | None
    path: str
    epoch_ns: int | None
    start_ns: int | None


def origin(source: Meta | Origin) -> dict[str, Any]:
    """Return the fields of :class:`Origin` by name."""
    return {name: getattr(source, name) for name in ("rank", "path", "epoch_ns", "start_ns")}


class Recording(NamedTuple):
    """A recording on its own clock.

    Attributes:
        rank: global rank, or None.
        path: the file, or its process: without a rank, what has one axis.
        epoch_ns: absolute time of the clock's 0, or None.
        start_ns: time of its first event, analysed or not, or None.
        begin: first time of what is analysed.
        end: last time of that.
    """

    rank: int | None
    path: str
    epoch_ns: int | None
    start_ns: int | None
    begin: int
    end: int


def axis(recordings: Sequence[Recording | None]) -> tuple[list[int], bool]:
    """Return what is added to the times of each recording, and whether all share an axis.

    If they do (see :func:`one_clock`), 0 is the start of the first one, otherwise that of each
    rank's first one. Nothing is added to None, a recording without times.
    """
    known = [one for one in recordings if one is not None]
    if not known:
        return [0] * len(recordings), True
    epochs = [one.epoch_ns or 0 for one in known]
    begins = [one.begin + epoch for one, epoch in zip(known, epochs, strict=True)]
    ends = [one.end + epoch for one, epoch in zip(known, epochs, strict=True)]
    starts = [
        (one.begin if one.start_ns is None else one.start_ns) + epoch
        for one, epoch in zip(known, epochs, strict=True)
    ]
    shared = one_clock([one.epoch_ns for one in known], begins, ends)
    owners = [one.path if one.rank is None else one.rank for one in known]
    zeros = to_zero(starts, owners, one_clock=shared)
    shifts = (epoch + zero for epoch, zero in zip(epochs, zeros, strict=True))
    return [0 if one is None else next(shifts) for one in recordings], shared


def axis_of(parts: Sequence[Origin], rows: Sequence[pl.DataFrame]) -> tuple[list[int], bool]:
    """Return :func:`axis` of parts, of which ``start`` and ``end`` of these rows are analysed."""
    spans = (of.select(pl.col("start").min(), pl.col("end").max()).row(0) for of in rows)
    return axis(
        [
            None if span[0] is None else Recording(*origin(part).values(), *span)
            for part, span in zip(parts, spans, strict=True)
        ]
    )


def one_clock(
    epochs: Sequence[int | None], begins: Sequence[int], ends: Sequence[int], *, pauses_ns: int = 0
) -> bool:
    """Whether times of several recordings can be compared.

    They can if absolute times are known of all or of none, and the recordings are of one stretch of
    time: no longer than all of them together and the pauses between them.

    Args:
        epochs: absolute time of 0 of each recording, or None.
        begins: first times, absolute if known.
        ends: last times, likewise.
        pauses_ns: known time between recordings of a rank.
    """
    known = len({epoch is None for epoch in epochs}) == 1
    return known and max(ends) - min(begins) <= sum(ends) - sum(begins) + pauses_ns


def to_zero(starts: Sequence[int], owners: Sequence[Hashable], *, one_clock: bool) -> list[int]:
    """Return what is added to the times of each recording so that its axis begins at 0.

    Args:
        starts: start of each recording: its first event, whatever is analysed of it. So a time on
            the axis is the same in all analyses, and in ``--since`` and ``--until``.
        owners: whose recording it is: without one clock, each owner begins at 0.
        one_clock: all begin with the first recording.
    """
    of = [None] * len(starts) if one_clock else owners
    first = dict[Hashable, int]()
    for owner, start in zip(of, starts, strict=True):
        first[owner] = min(start, first.get(owner, start))
    return [-first[owner] for owner in of]
