"""The ranks' steps in one frame; several recordings of one rank become one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, pairwise

import polars as pl

from traceanalyzer.analyzers.names import mapped
from traceanalyzer.analyzers.steps.extract import Part

_NUMBERED = re.compile(r" \[\d+\]$")


def joined(parts: Sequence[Part]) -> pl.DataFrame:
    """All steps by rank and time.

    Files of one rank whose steps do not overlap in time are parts of one recording, as Composer and
    torch.profiler's schedule write them. Rank and path together tell recordings apart.

    Returns:
        rank, path (of the recording's first file), number (of the step in its recording, from 0),
        the columns of :attr:`~.extract.Part.steps` with ``at_ns`` (since the recording's first
        step) and ``duration_ns`` for start and end, and ``before_ns``, the time since the step
        before had ended, null for the first.
    """
    ordered = sorted(parts, key=lambda part: (part.rank is None, part.rank or 0, part.path))
    recordings = [
        recording
        for _, own in groupby(ordered, key=lambda part: part.rank)
        for recording in _recordings(list(own))
    ]
    return pl.concat([_one(recording) for recording in recordings])


def _recordings(parts: list[Part]) -> list[list[Part]]:
    """The files of one rank: together in order of time, or each for itself."""
    if parts[0].rank is None:
        return [[part] for part in parts]
    known = all(part.epoch_ns is not None for part in parts)
    spans = {id(part): _span(part, part.epoch_ns or 0 if known else 0) for part in parts}
    in_time = sorted(parts, key=lambda part: spans[id(part)])
    apart = all(spans[id(a)][1] <= spans[id(b)][0] for a, b in pairwise(in_time))
    return [in_time] if apart else [[part] for part in parts]


def _span(part: Part, epoch_ns: int) -> tuple[int, int]:
    first, last = part.steps.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return first + epoch_ns, last + epoch_ns


def _one(recording: Sequence[Part]) -> pl.DataFrame:
    known = all(part.epoch_ns is not None for part in recording)
    moves = [part.epoch_ns or 0 if known else 0 for part in recording]
    frames = [
        part.steps.with_columns(pl.col("start", "end") + by)
        for part, by in zip(recording, moves, strict=True)
    ]
    rows = pl.concat(frames)
    if len(recording) > 1:
        rows = _renumbered(rows)
    number = pl.col("start").rank("dense").cast(pl.Int64) - 1
    previous = rows.select("start", "end").unique().sort("start")
    before = previous.with_columns(before_ns=pl.col("start") - pl.col("end").shift(1))
    first = recording[0]
    return rows.join(before.drop("end"), on="start", how="left", maintain_order="left").select(
        pl.lit(first.rank, pl.Int32).alias("rank"),
        pl.lit(first.path).alias("path"),
        number.alias("number"),
        "step",
        "device",
        (pl.col("start") - pl.col("start").min()).alias("at_ns"),
        (pl.col("end") - pl.col("start")).alias("duration_ns"),
        "before_ns",
        pl.exclude("step", "device", "start", "end", "before_ns"),
    )


def _renumbered(rows: pl.DataFrame) -> pl.DataFrame:
    """Names that several files use are numbered through all of them: ``event/batch [7]``."""
    plain = rows.with_columns(plain=mapped(rows["step"], lambda name: _NUMBERED.sub("", name)))
    nth = pl.col("start").rank("dense").over("plain")
    again = pl.format("{} [{}]", "plain", nth)
    several = pl.col("start").n_unique().over("plain") > 1
    named = pl.when(several).then(again).otherwise("step")
    return plain.with_columns(step=named).drop("plain")
