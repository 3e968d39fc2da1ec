"""From one rank's trace: its steps, and the parts of each."""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.device_work import device_work
from traceanalyzer.analyzers.names import mapped, named
from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.analyzers.step_marks import MARK_KINDS, MARK_NAMES, step_marks
from traceanalyzer.analyzers.step_parts import step_parts
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import DEVICE_WORK

_ANNOTATIONS = ("user_annotation", "nvtx", "other")

#: Device work, and what marks steps by default.
NEEDS = Needs(frozenset((*DEVICE_WORK, *_ANNOTATIONS)), MARK_NAMES)

#: What Composer calls the slices of the loop around a batch. The loader runs before its batch.
HOST_PARTS = {
    "dataloader": r"^(?:event/dataloader|dataloader/)",
    "forward": r"^(?:event/)?forward$",
    "backward": r"^(?:event/)?backward$",
}

#: Annotations that name what is done within a step, so never one.
_NO_STEP = re.compile(r"(?i)^(?:[nrx]ccl:|gloo:|Optimizer\.|enumerate\(|callback/|algorithm/)")

#: Names suggested where no steps are marked.
_SUGGESTED = 5
#: Nobody gives a step a longer name.
_LONGEST = 60


def needs(step_name: str | None = None) -> Needs:
    """What to read: more where steps may be any slices of the host."""
    if step_name is None:
        return NEEDS
    return Needs(frozenset((*DEVICE_WORK, *MARK_KINDS)))


@dataclass(frozen=True)
class Part:
    """One rank's steps.

    Attributes:
        rank: global rank, or None where the file does not tell.
        path: the file.
        epoch_ns: absolute time of the trace's ts 0, or None.
        steps: a row for each step and device, a row for each step where no device work was
            recorded: device, step, start, end, the columns of
            :func:`~traceanalyzer.analyzers.parts.measure_parts` (null without device work), and
            ``dataloader_ns`` (since the step before had ended), ``forward_ns``, ``backward_ns``
            (within the step), null where Composer did not record them.
    """

    rank: int | None
    path: str
    epoch_ns: int | None
    steps: pl.DataFrame


def extract(trace: Trace, step_name: str | None = None) -> Part:
    """The steps of a trace of one rank.

    Raises:
        MissingData: no steps are marked, or no slice's name matches ``step_name``.
        OptionError: ``step_name`` is not a regular expression.
    """
    marks = step_marks(trace, step_name)
    if marks.is_empty():
        raise MissingData(_no_steps(trace, step_name))
    marks = marks.hstack(_host_parts(trace, marks))
    measured = step_parts(device_work(trace), marks)
    host = [f"{part}_ns" for part in HOST_PARTS]
    steps = (
        marks.select("step", "start", "end", *host)
        .join(measured.drop("rank", "end"), on=["step", "start"], how="left")
        .sort("start", "device")
    )
    return Part(trace.meta.rank, trace.meta.path, trace.meta.epoch_ns, steps)


def _host_parts(trace: Trace, marks: pl.DataFrame) -> pl.DataFrame:
    """How long each of :data:`HOST_PARTS` ran on the step's thread; null where it never did."""
    lane = ["pid", "tid"]
    own = trace.events.select(
        "kind", "name", *lane, start="ts", end=pl.col("ts") + pl.col("dur")
    ).filter(pl.col("kind") == "other", pl.col("end").is_not_null())
    found = {part: own.filter(named(own, [name])) for part, name in HOST_PARTS.items()}
    before = pl.coalesce(pl.col("end").shift(1), pl.lit(own["start"].min(), pl.Int64), "start")
    since = marks.select(*lane, "end", start=pl.min_horizontal("start", before))
    windows = {"dataloader": since, "forward": marks, "backward": marks}
    return pl.DataFrame(
        [_within(windows[part], rows, lane).alias(f"{part}_ns") for part, rows in found.items()]
    )


def _within(windows: pl.DataFrame, rows: pl.DataFrame, lane: list[str]) -> pl.Series:
    if rows.is_empty():
        return pl.repeat(None, windows.height, dtype=pl.Int64, eager=True)
    return intervals.overlap_with(windows.select(*lane, "start", "end"), rows, lane)["overlap"]


def _no_steps(trace: Trace, step_name: str | None) -> str:
    """What to record or to ask for instead."""
    hint = record_hint(trace.meta, "step")
    said = (
        f"no steps are marked; {hint} and name them with --step-name REGEX"
        if step_name is None
        else f"no slice of the host matches --step-name {step_name!r}"
    )
    names = _suggestions(trace)
    maybe = f". Annotations that may be steps: {', '.join(names)}" if names else ""
    return f"{trace.meta.path}: {said}{maybe}"


def _suggestions(trace: Trace) -> list[str]:
    """The most frequent annotations, numbers in them left out."""
    marks = trace.events.filter(pl.col("kind").is_in(_ANNOTATIONS), pl.col("dur") > 0)
    plain = mapped(marks["name"], _without_numbers).drop_nulls().alias("name")
    counts = plain.filter(plain.str.len_chars() <= _LONGEST).value_counts(name="n")
    most = counts.sort("n", "name", descending=[True, False]).head(_SUGGESTED)
    return [f"{name!r} ({n:,} times)" if n > 1 else repr(name) for name, n in most.iter_rows()]


def _without_numbers(name: str) -> str | None:
    return None if _NO_STEP.match(name) else re.sub(r"\d+", "#", name)
