"""The parts of device time by device, step and stream, and what is shown of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.device_work import IDLE, PART_NAMES, PARTS
from traceanalyzer.analyzers.common.display import by_part, headings, sentences, stacked
from traceanalyzer.analyzers.common.launching import Beginning, note_launched_before
from traceanalyzer.analyzers.common.places import count_devices, places, short_paths, told_by_rank
from traceanalyzer.analyzers.common.step_patterns import FOUND_BY_KERNELS
from traceanalyzer.analyzers.overlap.options import By
from traceanalyzer.analyzers.overlap.reasons import (
    AFTER,
    LATE,
    OTHER,
    SHARED,
    UNKNOWN,
    WAITING,
)
from traceanalyzer.result import Chart, Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns

#: Less of the devices' time is not worth working on.
SMALL_FRAC = 0.05

#: Ranks that differ by less expose equally much.
_APART_FRAC = 0.1

#: A stretch of time in which a device is busy for less is a row of ``low_utilisation``.
LOW_FRAC = 0.5

_PARTS = ", ".join(f"{name}: {label}" for name, label in PART_NAMES.items())

_OF_COMMUNICATION = {"exposed_communication_ns", "communication_ns", "overlap_frac"}

_WHOLE = "communication_ns: communication, overlap_frac: hidden by compute"

#: Reasons for less are left out of sentences.
_NAMED_FRAC = 0.02

_REASONS = {
    WAITING: "{share} is wait time for other ranks ({n})",
    SHARED: "{share} shares a stream with compute, so that they take turns ({n} on {streams})",
    LATE: "{share} was launched after earlier compute had ended ({n})",
    AFTER: "{share} started after the compute that it depends on ({n})",
    OTHER: "{share} took longer than the compute beside it ({n})",
    UNKNOWN: "{share} has no recorded launch ({n})",
}

_ADVICE = {
    WAITING: "Find the straggler first: comm-outliers names it.",
    SHARED: "Run collectives on a stream of their own (async_op=True, or torch.cuda.stream).",
    LATE: "Launch collectives before the compute that can run beside them (prefetch shards, "
    "gradient buckets during backward), and launch faster.",
    AFTER: "Start it earlier, while there is compute that does not depend on it: gradients in "
    "several buckets during backward (DDP bucket_cap_mb, no all_reduce by hand after backward), "
    "prefetched shards (FSDP forward_prefetch, backward_prefetch), micro-batches.",
    OTHER: "Give the device more compute beside it (prefetch shards, pipeline micro-batches), or "
    "move fewer bytes.",
    UNKNOWN: "Record launch calls (ProfilerActivity.CPU, nsys --trace=cuda).",
}

_ALL_RANKS = "The files of all ranks show how much of it is wait time (comm-outliers)."

_SORTS = {"compute_ns": "compute", "communication_ns": "communication", "memory_ns": "copies"}


@dataclass(frozen=True, eq=False, repr=False)
class Overlap(Result):
    """How much communication is hidden behind compute, and what devices' time is made of.

    ``devices``, ``steps`` and ``timeline`` have the columns of
    :func:`~traceanalyzer.analyzers.common.device_work.measure_parts` and span_ns, the sum of the
    four parts; overlap_frac, hidden communication of communication, null where there is none;
    utilisation_frac, busy of span; compute_frac, compute of span; rank, path, device, at_ns.

    Attributes:
        by: what is told first.
        devices: a row a device, from its first start to its last end.
        steps: a row a step and device.
        steps_by_kernels: steps are not marked but found by kernels that repeat.
        streams: a row a stream: events, busy_ns, compute_ns, communication_ns, memory_ns,
            alone_ns, alone_frac, span_ns from its first start to its last end.
        timeline: a row a device and stretch of time, see :func:`~.compute.timeline`.
        unfinished: pieces of device work without an end, not counted.
        launched_before_ns: time of the device work that was launched before the recording started,
            summed up; None where that is not known, or can be but a small part.
        reasons: why communication is exposed, see :func:`~.reasons.divide`; empty where it is less
            than 5 % of the time.
        beginnings: first device work whose launch calls were not read.
    """

    by: By
    devices: pl.DataFrame
    steps: pl.DataFrame
    steps_by_kernels: bool
    streams: pl.DataFrame
    timeline: pl.DataFrame
    unfinished: int = 0
    launched_before_ns: int | None = None
    reasons: pl.DataFrame = field(default_factory=pl.DataFrame)
    beginnings: tuple[Beginning, ...] = ()

    def view(self) -> View:
        """The tables of ``by`` first; the parts as bars, and how busy devices were over time."""
        sums = self._sums()
        return View(
            title="How much of the communication is hidden behind compute?",
            verdict=_verdict(self, sums),
            notes=_notes(self),
            tables=_tables(self),
            scalars=sums,
            charts=partial(_charts, self),
        )

    @property
    def low(self) -> pl.DataFrame:
        """The rows of ``timeline`` in which a device was busy for less than half of the time."""
        return self.timeline.filter(pl.col("utilisation_frac") < LOW_FRAC)

    def _sums(self) -> dict[str, Any]:
        """Sums over all devices."""
        names = ("span", *PARTS, "busy", "communication", "hidden_communication", "memory")
        sums = {f"{name}_ns": int(self.devices[f"{name}_ns"].sum()) for name in names}
        whole, span = sums["communication_ns"], sums["span_ns"]
        return {
            **sums,
            "overlap_frac": sums["hidden_communication_ns"] / whole if whole else None,
            "utilisation_frac": sums["busy_ns"] / span if span else None,
        }


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Overlap, sums: Mapping[str, Any]) -> str:
    """How much communication is exposed, what that costs, what else the time goes to."""
    if not sums["span_ns"]:
        return "All recorded device work is of no duration: there is nothing to measure."
    communication = _communication(result, sums)
    return sentences(_made_of(result, sums), communication, _copies(sums), _idle(sums))


def _made_of(result: Overlap, sums: Mapping[str, Any]) -> str:
    """The parts, as shares of the whole."""
    compute, communication, copies, idle = (
        format_frac(sums[f"{part}_ns"] / sums["span_ns"]) for part in PARTS
    )
    devices = count_devices(result.devices)
    time = "the recorded device time" if devices == 1 else f"the recorded time of {devices} devices"
    exposed = f"exposed communication {communication}, " if sums["communication_ns"] else ""
    return (
        f"Compute takes {compute} of {time}, {exposed}exposed copies {copies}; for {idle} nothing "
        "runs."
    )


def _communication(result: Overlap, sums: Mapping[str, Any]) -> str:
    exposed, whole = sums["exposed_communication_ns"], sums["communication_ns"]
    if not whole:
        return "No communication ran on the device, so there is none to hide."
    if not exposed:
        return "All communication is hidden behind compute: it costs no time."
    opening = (
        f"Of the communication {format_frac(sums['overlap_frac'])} is hidden behind compute, the "
        f"other {format_ns(exposed)} of {format_ns(whole)} are exposed."
    )
    if exposed < SMALL_FRAC * sums["span_ns"]:
        return f"{opening} Hiding more of it would gain little."
    text = sentences(why_exposed(result), advice(result))
    return f"{opening} No more than that can be saved. {text}{_ranks(result)}"


def why_exposed(result: Overlap) -> str:
    """The share of each reason in the exposed communication; empty where none is known."""
    parts = [
        _REASONS[row["reason"]].format(
            share=format_frac(row["share_frac"]),
            n=format_count(row["collectives"], "collective"),
            streams=_streams(row),
        )
        for row in result.reasons.iter_rows(named=True)
        if row["share_frac"] >= _NAMED_FRAC
    ]
    return f"Reasons: {', '.join(parts)}." if parts else ""


def advice(result: Overlap, *, waits: bool = True) -> str:
    """What to do about the largest reason, and what more files would show.

    Args:
        result: of overlap.
        waits: wait time for other ranks may be the largest reason.
    """
    reasons = result.reasons["reason"].to_list()
    largest = next((one for one in reasons if waits or one != WAITING), None)
    if largest is None:
        return _ALL_RANKS
    unknown = WAITING not in set(result.reasons["reason"]) and result.devices["rank"].n_unique() < 2
    return sentences(_ADVICE[largest], _ALL_RANKS if unknown else "")


def _streams(row: Mapping[str, Any]) -> str:
    numbers = ", ".join(map(str, row["streams"]))
    return f"stream {numbers}" if len(row["streams"]) == 1 else f"streams {numbers}"


def _ranks(result: Overlap) -> str:
    """Which ranks expose most and least, where they differ."""
    ranks = (
        result.devices.drop_nulls("rank")
        .group_by("rank")
        .agg(pl.col("exposed_communication_ns", "span_ns").sum())
        .filter(pl.col("span_ns") > 0)
        .with_columns(share=pl.col("exposed_communication_ns") / pl.col("span_ns"))
        .sort("share", "rank", descending=[True, False])
    )
    if ranks.height < 2:
        return ""
    most, least = ranks.row(0, named=True), ranks.row(-1, named=True)
    if most["share"] - least["share"] < _APART_FRAC:
        return ""
    return (
        f" Rank {most['rank']} exposes most ({format_frac(most['share'])} of its time), rank "
        f"{least['rank']} least ({format_frac(least['share'])}): the rank with least is often the "
        "one that the others wait for."
    )


def _copies(sums: Mapping[str, Any]) -> str:
    share = sums["exposed_memory_ns"] / sums["span_ns"]
    if share < SMALL_FRAC:
        return ""
    return (
        f"Copies and sets during which neither compute nor communication runs cost "
        f"{format_frac(share)}: on a stream of their own (non_blocking=True) they run beside "
        "compute; pageable host memory must be pinned for that."
    )


def _idle(sums: Mapping[str, Any]) -> str:
    idle = sums["idle_ns"] / sums["span_ns"]
    if idle < SMALL_FRAC:
        return ""
    more = sums["idle_ns"] > sums["exposed_communication_ns"] > 0
    return f"{'More is lost to idleness' if more else 'Devices are idle too'}: gpu-idle tells why."


def _notes(result: Overlap) -> tuple[str, ...]:
    """What counts as what, and what is not counted."""
    adding_up = (
        "Compute, exposed communication, exposed copies and idle add up to the span, from a "
        "device's first work to its last; work that runs beside compute is hidden."
    )
    notes = [adding_up]
    if result.by == "step" and result.steps_by_kernels:
        notes.append(FOUND_BY_KERNELS)
    if result.by == "step":
        notes.append("Device work counts for the step in which it runs, not that launched it.")
    if low := result.low.height:
        width, stretches = max(result.timeline["span_ns"]), result.timeline.height
        notes.append(
            f"Of {stretches:,} stretches of {format_ns(width)} {low:,} are busy for less than half "
            "of the time; --top all lists them, gpu-idle tells why."
        )
    if result.unfinished:
        notes.append(f"Not counted: {result.unfinished:,} pieces of device work without an end.")
    busy = int(result.streams["busy_ns"].sum())
    return (*notes, *note_launched_before(result.launched_before_ns, busy))


# --- tables --------------------------------------------------------------------------------


def _tables(result: Overlap) -> tuple[Table, ...]:
    """What is asked for by ``by``; the others, and when devices were little busy, in detail."""
    busy, shares = "utilisation_frac: busy", f"{_PARTS}, {_WHOLE}"
    low = "Stretches busy for less than half of the time"
    streams = """device, stream, events, busy_ns: busy, compute_ns: compute,
        communication_ns: communication, memory_ns: copies, alone_ns: no other stream busy,
        alone_frac: share of its busy"""
    columns = {
        "devices": f"device, span_ns: span, {shares}, {busy}",
        "steps": f"device, step, span_ns: time, {shares}",
        "streams": streams,
    }
    tables = {name[:-1]: _table(result, name, name.capitalize(), columns[name]) for name in columns}
    tables["low"] = _table(
        result, "low_utilisation", low, f"device, at_ns: at, span_ns: length, {busy}, {_PARTS}"
    )
    first = [tables.pop(result.by)]
    if result.reasons.height:
        labels = headings("reason, exposed_ns: exposed, share_frac: share, collectives")
        first.append(Table("reasons", "Why communication is exposed", result.reasons, labels))
    return (*first, *(replace(table, detail=True) for table in tables.values()))


def _table(result: Overlap, name: str, title: str, columns: str) -> Table:
    """The columns that say something; the file where ranks are not told apart by number."""
    devices, frame = result.devices, getattr(result, name.removesuffix("_utilisation"))
    empty = "no steps are marked" if name == "steps" else "none"
    keys = {"rank": "rank"} if devices["rank"].null_count() < devices.height else {}
    if devices["path"].n_unique() > 1 and not told_by_rank(devices):
        frame = frame.with_columns(file=short_paths(frame["path"]))
        keys = {"file": "file", **keys}
    silent = set() if devices["communication_ns"].sum() else _OF_COMMUNICATION
    rest = {name: label for name, label in headings(columns).items() if name not in silent}
    return Table(name, title, frame, {**keys, **rest}, empty, missing={"overlap_frac": "-"})


# --- charts --------------------------------------------------------------------------------


def _charts(result: Overlap) -> tuple[Chart, ...]:
    """Stacked parts of what comes first, and each device's shares over time."""
    return (_parts(result), *([_timeline(result)] if result.timeline.height else []))


def _parts(result: Overlap) -> Chart:
    title, rows, parts = {
        "device": ("What the devices' time is made of", result.devices, PART_NAMES),
        "step": ("What the steps' time is made of", result.steps, PART_NAMES),
        "stream": ("What each stream was busy with", result.streams, _SORTS),
    }[result.by]
    frame = rows.with_columns(places(rows))
    if result.by == "device":
        return stacked("parts", title, by_part(frame, ["on"], parts), "on")
    pieces = by_part(frame, ["on", result.by], parts)
    return stacked("parts", title, pieces, result.by, panel=_panel(frame))


def _timeline(result: Overlap) -> Chart:
    """Shares of each stretch; what is missing to 100 % is idle."""
    frame = result.timeline.with_columns(places(result.timeline))
    busy = {name: label for name, label in PART_NAMES.items() if label != IDLE}
    shares = frame.with_columns(pl.col(name) / pl.col("span_ns") for name in busy)
    return stacked(
        "utilisation",
        "How busy each device was over time",
        by_part(shares, ["on", "at_ns"], busy, "share_frac"),
        "at_ns",
        y="share_frac",
        x_label="time since the first device work",
        y_label="share of the time",
        panel=_panel(frame),
    )


def _panel(frame: pl.DataFrame) -> str | None:
    return "on" if frame["on"].n_unique() > 1 else None
