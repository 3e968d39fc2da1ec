"""From what each rank contributes to the answer."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.overlap.extract import Part
from traceanalyzer.analyzers.overlap.result import By, Overlap
from traceanalyzer.analyzers.overlap.timeline import timeline
from traceanalyzer.errors import MissingData, OptionError

_NO_STEPS = "{paths}: no steps are marked; {hint} and name them with steps --step-name"


def combine(parts: Sequence[Part], *, by: By = "device", remarks: Sequence[str] = ()) -> Overlap:
    """The ranks' device time in one answer; ``remarks`` are further notes.

    Raises:
        MissingData: ``by`` is ``step`` and no rank marks any.
        OptionError: there are no parts.
    """
    if not parts:
        raise OptionError("no trace was given")
    one_clock = _one_clock(parts)
    devices, steps, streams = (
        _joined(parts, name, one_clock=one_clock) for name in ("devices", "steps", "streams")
    )
    measured = [_absolute(part, "stretches", one_clock=one_clock) for part in parts]
    if by == "step" and steps.is_empty():
        paths = ", ".join(part.path for part in parts[:3])
        raise MissingData(_NO_STEPS.format(paths=paths, hint=parts[0].step_hint))
    return Overlap(
        by=by,
        devices=_shares(devices),
        steps=_shares(steps),
        streams=streams.with_columns(alone_frac=_ratio("alone_ns", "busy_ns")),
        timeline=_shares(_sorted(timeline(measured, one_clock=one_clock))),
        unfinished=sum(part.unfinished for part in parts),
        remarks=tuple(remarks),
    )


def _joined(parts: Sequence[Part], name: str, *, one_clock: bool) -> pl.DataFrame:
    """One frame of all parts, ``at_ns`` and ``span_ns`` for start and end, by rank and file.

    Time is counted from the first device work of all, or of each file where they do not share a
    clock.
    """
    begins = [_absolute(part, "devices", one_clock=one_clock)["start"].min() for part in parts]
    first = pl.Series(begins).min()
    frames = [
        _absolute(part, name, one_clock=one_clock).select(
            "rank",
            "path",
            pl.exclude("rank", "path", "start", "end"),
            at_ns=pl.col("start") - (first if one_clock else own),
            span_ns=pl.col("end") - pl.col("start"),
        )
        for part, own in zip(parts, begins, strict=True)
    ]
    return _sorted(pl.concat(frames))


def _one_clock(parts: Sequence[Part]) -> bool:
    """Whether all files tell absolute times, or none does, and all recorded some one moment."""
    epochs = {part.epoch_ns is None for part in parts}
    frames = [_absolute(part, "devices", one_clock=True) for part in parts]
    begins = pl.Series([frame["start"].min() for frame in frames])
    ends = pl.Series([frame["end"].max() for frame in frames])
    return len(epochs) == 1 and bool((begins.max() <= ends).all())


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.sort("rank", "path", maintain_order=True, nulls_last=True)


def _absolute(part: Part, name: str, *, one_clock: bool) -> pl.DataFrame:
    """A frame of a part with its path, on the clock that all share, if they do."""
    frame: pl.DataFrame = getattr(part, name)
    epoch = (part.epoch_ns or 0) if one_clock else 0
    return frame.with_columns(pl.col("start", "end") + epoch, path=pl.lit(part.path))


def _shares(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        overlap_frac=_ratio("hidden_communication_ns", "communication_ns"),
        utilisation_frac=_ratio("busy_ns", "span_ns"),
        compute_frac=_ratio("compute_ns", "span_ns"),
    )


def _ratio(part: str, whole: str) -> pl.Expr:
    """Null where there is nothing of the whole."""
    return pl.when(pl.col(whole) > 0).then(pl.col(part) / pl.col(whole))
