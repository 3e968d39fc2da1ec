"""Result of the overlap analysis: data, verdict, notes, tables and charts."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common import display
from traceanalyzer.analyzers.common.columns import sum_if_known
from traceanalyzer.analyzers.common.device_work import IDLE, PART_NAMES, PARTS
from traceanalyzer.analyzers.common.launching import note_launched_before
from traceanalyzer.analyzers.common.step_marks import INFERRED_STEPS
from traceanalyzer.analyzers.overlap import By
from traceanalyzer.analyzers.overlap.reasons import (
    AFTER,
    GROUPS,
    LATE,
    OTHER,
    SHARED,
    UNKNOWN,
    WAITING,
)
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns, format_ranges

#: Smaller shares of device time are not worth optimizing.
SMALL_FRAC = 0.05

#: Ranks that differ by less have equal exposed communication.
_APART_FRAC = 0.1

#: A stretch of time in which a device is busy for less is a row of ``low_utilisation``.
LOW_FRAC = 0.5

_PARTS = ", ".join(f"{name}: {label}" for name, label in PART_NAMES.items())

_OF_COMMUNICATION = {"exposed_communication_ns", "communication_ns", "overlap_frac"}

_WHOLE = "communication_ns: communication, overlap_frac: overlapped"

#: Most steps of warm-up that are named.
_NAMED = 3

#: Reasons with smaller shares are not named.
_NAMED_FRAC = 0.02

_REASONS = {
    WAITING: "{share} is wait time for other ranks ({n})",
    SHARED: "{share} runs on the same stream as compute ({n} on {streams})",
    LATE: "{share} was launched after earlier compute had ended ({n})",
    AFTER: "{share} started after the compute that it depends on ({n})",
    OTHER: "{share} took longer than the overlapping compute ({n})",
    UNKNOWN: "{share} has no recorded launch ({n})",
}

#: Reasons in a table.
_REASON_NAMES = {
    WAITING: "wait time for other ranks",
    SHARED: "same stream as compute",
    LATE: "launched after compute had ended",
    AFTER: "started after the compute that it depends on",
    OTHER: "longer than the overlapping compute",
    UNKNOWN: "launch not recorded",
}

_ADVICE = {
    WAITING: "Find out why ranks arrive late at collectives first: no overlap hides wait time.",
    SHARED: "Run collectives on a separate stream (async_op=True, or torch.cuda.stream).",
    LATE: "Launch collectives before the compute that can overlap with them (prefetch shards, "
    "gradient buckets during backward), and reduce launch overhead.",
    AFTER: "Start communication earlier, while independent compute remains: several gradient "
    "buckets during backward (DDP bucket_cap_mb, no manual all_reduce after backward), prefetched "
    "shards (FSDP forward_prefetch, backward_prefetch), micro-batches.",
    OTHER: "Overlap more compute with it (prefetch shards, pipeline micro-batches), or communicate "
    "fewer bytes.",
    UNKNOWN: "Record launch calls (ProfilerActivity.CPU, nsys --trace=cuda).",
}

_SHARDS = (
    "Gather the shards of the next layer while this one computes: FSDP forward_prefetch=True and "
    "backward_prefetch=BACKWARD_PRE, FSDP2 set_modules_to_forward_prefetch, DeepSpeed overlap_comm."
)
#: Advice to communicate earlier (:data:`AFTER`), by the collective with most of the time.
_EARLIER = {
    "all_reduce": "Start communication earlier, while independent compute remains: several "
    "gradient buckets during backward (DDP bucket_cap_mb, no manual all_reduce after backward).",
    "all_gather": _SHARDS,
    "reduce_scatter": "Send fewer bytes (FSDP reduce_dtype=torch.bfloat16), reduce once per step "
    "(FSDP2 set_requires_gradient_sync(False) in all micro-batches but the last), or use more "
    "tokens per GPU: the reduce_scatter of a layer overlaps only the backward pass of later ones.",
}

#: XLA runs a collective on the stream of the compute if it schedules no compute beside it.
_XLA = (
    "Let XLA schedule independent compute beside collectives: "
    "XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true, without "
    "--xla_gpu_disable_async_collectives."
)
#: Other advice for programs without PyTorch.
_ADVICE_ELSEWHERE = {
    SHARED: "Run collectives on a stream of their own, beside independent compute.",
    LATE: "Launch collectives before the compute that can overlap with them, and reduce launch "
    "overhead.",
    AFTER: "Start communication earlier, while independent compute remains.",
    OTHER: "Overlap more compute with it, or communicate fewer bytes.",
    UNKNOWN: "Record launch calls (nsys --trace=cuda).",
}

#: What to change depends on what issues the collectives, which diagnose finds.
_REMEDY = "diagnose names what issues the communication, and what to change."

_STRAGGLER = "Most of the wait time is for rank {}: find out why it is late first (diagnose)."

_ALL_RANKS = "Pass the files of all ranks to see how much of it is wait time."

_WORK_KINDS = {"compute_ns": "compute", "communication_ns": "communication", "memory_ns": "copies"}


@dataclass(frozen=True, eq=False, repr=False)
class Overlap(Result):
    """Overlap of communication with compute, and the parts of device time.

    ``devices``, ``steps`` and ``timeline`` have the columns of
    :func:`~traceanalyzer.analyzers.common.device_work.measure_parts` and span_ns, the sum of the
    four parts; overlap_frac (overlapped communication over communication, null without any);
    utilisation_frac (busy over span); compute_frac (compute over span); rank, path, device, and
    at_ns, the start on the axis of all ranks.

    Attributes:
        by: the rows of the first table.
        devices: one row per device, from its first start to its last end.
        steps: one row per step and device; ``warm_up``: not counted in the verdict.
        steps_by_kernels: steps are inferred from repeating kernels.
        streams: one row per stream: events, busy_ns, compute_ns, communication_ns, memory_ns,
            alone_ns, alone_frac, span_ns from its first start to its last end.
        timeline: one row per device and stretch of time, see :func:`~.compute.timeline`.
        unfinished: number of device events without an end, which are not counted.
        launched_before_ns: time of device work launched before the recording started; None if
            unknown or at most a small part.
        reasons: why communication is exposed, see :func:`~.reasons.divide`; empty if it is less
            than 5 % of the time.
        groups: communication by process group, place and phase, see :func:`~.reasons.by_group`.
    """

    question = "How much communication is overlapped with compute?"

    by: By
    devices: pl.DataFrame
    steps: pl.DataFrame
    steps_by_kernels: bool
    streams: pl.DataFrame
    timeline: pl.DataFrame
    unfinished: int = 0
    launched_before_ns: int | None = None
    reasons: pl.DataFrame = field(default_factory=pl.DataFrame)
    groups: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=GROUPS))

    def view(self) -> View:
        """Build the view: the table of ``by`` first; charts of the parts and of utilisation."""
        return self.view_from(_verdict, _notes, _tables, _charts, scalars=self.sums | self.shares)

    @property
    def shares(self) -> dict[str, float | None]:
        """Its scalars of step time; of the recorded time if no steps are marked."""
        sums = _summed(self.counted)
        of = {"exposed_communication": "span", "exposed_memory": "span", "busy": "span",
              "overlapped_communication": "communication"}  # fmt: skip
        return {f"step_{name}_frac": sums[f"{name}_ns"] / sums[f"{whole}_ns"]
                if sums[f"{whole}_ns"] else None for name, whole in of.items()}  # fmt: skip

    @cached_property
    def sums(self) -> dict[str, Any]:
        """Its scalars: sums of the columns of ``devices``, and shares of them."""
        return _summed(self.devices)

    @property
    def low(self) -> pl.DataFrame:
        """Rows of ``timeline`` in which a device was busy for less than half of the time."""
        return self.timeline.filter(pl.col("utilisation_frac") < LOW_FRAC)

    @property
    def counted(self) -> pl.DataFrame:
        """The counted steps of each device (without warm-up), or all devices without steps."""
        counted = self.steps.filter(~pl.col("warm_up")) if self.steps.height else self.steps
        return counted if counted.height else self.devices

    @property
    def basis(self) -> display.Basis:
        """The time of which the verdict gives shares."""
        in_steps = self.counted is not self.devices
        return display.Basis(int(self.counted["span_ns"].sum()), self.counted.height, in_steps)


def _summed(rows: pl.DataFrame) -> dict[str, Any]:
    """Return the sums of devices or of steps."""
    names = ("span", *PARTS, "busy", "communication", "overlapped_communication", "memory")
    sums = {f"{name}_ns": int(rows[f"{name}_ns"].sum()) for name in names}
    whole, span = sums["communication_ns"], sums["span_ns"]
    return {
        **sums,
        "overlap_frac": sums["overlapped_communication_ns"] / whole if whole else None,
        "utilisation_frac": sums["busy_ns"] / span if span else None,
    }


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Overlap) -> str:
    """Describe the parts of device time, exposed communication and its reasons."""
    sums = _summed(result.counted)
    if not sums["span_ns"]:
        return "All recorded device work has zero duration: nothing to measure."
    communication = _communication(result, sums)
    return display.sentences(_breakdown(result, sums), communication, _copies(sums), _idle(sums))


def _breakdown(result: Overlap, sums: Mapping[str, Any]) -> str:
    """Format the parts as shares of the span."""
    compute, communication, copies, idle = (
        format_frac(sums[f"{part}_ns"] / sums["span_ns"]) for part in PARTS
    )
    devices = display.count_devices(result.devices)
    name = "Step time" if result.basis.in_steps else "Recorded time"
    time = f"{name} of {devices} devices" if devices > 1 else name
    exposed = f"exposed communication {communication}, " if sums["communication_ns"] else ""
    warm_up = result.steps.filter("warm_up")["step"].unique(maintain_order=True).to_list()
    if warm_up and result.basis.in_steps:
        time += f", without warm-up ({display.listed(warm_up[:_NAMED])})"
    return f"{time}: compute {compute}, {exposed}exposed copies {copies}, idle {idle}."


def _communication(result: Overlap, sums: Mapping[str, Any]) -> str:
    exposed, whole = sums["exposed_communication_ns"], sums["communication_ns"]
    if not whole:
        return "No communication ran on the device."
    if not exposed:
        return "All communication is overlapped with compute."
    basis = result.basis
    part = "all" if exposed == whole else format_ns(basis.each_ns(exposed))
    opening = (
        f"{format_frac(sums['overlap_frac'])} of communication time is overlapped with compute; "
        f"{part} of {basis.text(whole)} is exposed: at most that much can be saved."
    )
    if exposed < SMALL_FRAC * sums["span_ns"]:
        return f"{opening} More overlap would gain little."
    return display.sentences(advice(result), opening, why_exposed(result), _ranks(result).strip())


def why_exposed(result: Overlap) -> str:
    """Format the share of each reason in the exposed communication; empty if unknown."""
    parts = [
        _REASONS[row["reason"]].format(
            share=format_frac(row["share_frac"]),
            n=format_count(row["collectives"], "collective"),
            streams=_streams(row),
        )
        for row in result.reasons.iter_rows(named=True)
        if row["share_frac"] >= _NAMED_FRAC
    ]
    return f"Reasons for exposed communication: {', '.join(parts)}." if parts else ""


def advice(
    result: Overlap,
    *,
    waits: bool = True,
    pytorch: bool = True,
    xla: bool = False,
    kind: str | None = None,
) -> str:
    """Return the advice for the largest reason, and whether more files would help.

    Args:
        result: the result of overlap.
        waits: whether wait time for other ranks may be the largest reason.
        pytorch: whether the program may use PyTorch.
        xla: whether JAX's or TensorFlow's profiler recorded it.
        kind: the collective with most of the time, or empty; None if it is not known what issues
            the collectives, which decides what to change.
    """
    reasons = result.reasons["reason"].to_list()
    largest = next((one for one in reasons if waits or one != WAITING), None)
    alone = result.devices["rank"].n_unique() < 2
    unknown = kind is None and alone and WAITING not in reasons
    texts = _ADVICE if pytorch else _ADVICE | _ADVICE_ELSEWHERE
    if largest is None:
        return _ALL_RANKS if unknown else texts[OTHER]
    if largest == WAITING and (ranks := result.reasons["rank"].drop_nulls().to_list()):
        return _STRAGGLER.format(ranks[0])
    earlier = _EARLIER if largest == AFTER and pytorch else {}
    text = _XLA if xla and largest != OTHER else earlier.get(kind or "", texts[largest])
    text = _REMEDY if kind is None and largest not in (WAITING, UNKNOWN) else text
    return display.sentences(text, _ALL_RANKS if unknown else "")


def _streams(row: Mapping[str, Any]) -> str:
    numbers = ", ".join(map(str, row["streams"]))
    return f"stream {numbers}" if len(row["streams"]) == 1 else f"streams {numbers}"


def _ranks(result: Overlap) -> str:
    """Name the ranks with most and least exposed communication if they differ."""
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
        f" Rank {most['rank']} has the most exposed communication ({format_frac(most['share'])} of "
        f"its time), rank {least['rank']} the least ({format_frac(least['share'])}): the rank with "
        "the least is often the straggler."
    )


def _copies(sums: Mapping[str, Any]) -> str:
    share = sums["exposed_memory_ns"] / sums["span_ns"]
    if share < SMALL_FRAC:
        return ""
    compute = sums["compute_ns"] / sums["span_ns"]
    if compute < share / 2:
        return (
            f"Exposed copies and memsets take {format_frac(share)}: overlap with compute can hide "
            f"{format_frac(compute)} at most, so copy less (keep data on the device)."
        )
    return (
        f"Exposed copies and memsets take {format_frac(share)}: run them on a separate stream, "
        "with pinned host memory, to overlap them with compute."
    )


def _idle(sums: Mapping[str, Any]) -> str:
    if sums["idle_ns"] / sums["span_ns"] < SMALL_FRAC:
        return ""
    more = sums["idle_ns"] > sums["exposed_communication_ns"] > 0
    return f"{'Idle time is larger' if more else 'Devices are also idle'}: see gpu-idle."


def _notes(result: Overlap) -> Iterator[str]:
    """Describe definitions, and what is not counted."""
    adding_up = (
        "Compute, exposed communication, exposed copies and idle add up to the span, from a "
        "device's first work to its last. Work that runs at the same time as compute is overlapped."
    )
    yield adding_up
    if result.by == "step" and result.steps_by_kernels:
        yield INFERRED_STEPS
    if result.by == "step":
        yield "Device work counts for the step in which it runs, not the one that launched it."
    if low := result.low.height:
        width, stretches = max(result.timeline["span_ns"]), result.timeline.height
        yield (
            f"{low:,} of {stretches:,} intervals of {format_ns(width)} are busy for less than half "
            "of the time; gpu-idle shows the causes."
        )
    yield from display.without_end(result.unfinished, "device event")
    busy = int(result.streams["busy_ns"].sum())
    yield from note_launched_before(result.launched_before_ns, busy)


# --- tables --------------------------------------------------------------------------------


def _tables(result: Overlap) -> tuple[Table, ...]:
    """Build the table of ``by``; the others and those of low utilisation are details."""
    busy, shares = "utilisation_frac: busy", f"{_PARTS}, {_WHOLE}"
    low = "Intervals busy for less than half of the time"
    streams = """device, stream, events, busy_ns: busy, compute_ns: compute,
        communication_ns: communication, memory_ns: copies, alone_ns: no other stream busy,
        alone_frac: share of busy"""
    columns = {
        "devices": f"device, span_ns: span, {shares}, {busy}",
        "steps": f"device, step, span_ns: time, {shares}",
        "streams": streams,
    }
    tables = {name[:-1]: _table(result, name, name.capitalize(), columns[name]) for name in columns}
    tables["low"] = _table(
        result, "low_utilisation", low, f"device, at_ns: start, span_ns: length, {busy}, {_PARTS}"
    )
    tables["group"] = _groups(result)
    first = [tables.pop("group" if result.by in _OF_GROUPS else result.by)]
    if result.reasons.height:
        labels = display.headings(
            "why: reason, exposed_ns: exposed, share_frac: share, collectives"
        )
        named = result.reasons.with_columns(why=pl.col("reason").replace_strict(_REASON_NAMES))
        first.append(Table("reasons", "Why communication is exposed", named, labels))
    return (*first, *(replace(table, detail=True) for table in tables.values()))


#: Columns of the first table that sums communication.
_OF_GROUPS = {
    "group": ("group", "members", "place"),
    "phase": ("phase", "place"),
    "group,phase": ("group", "members", "place", "phase"),
}


def _groups(result: Overlap) -> Table:
    """Build the table of communication, summed by ``by``; by group and phase as a detail."""
    keys = _OF_GROUPS.get(result.by, _OF_GROUPS["group,phase"])
    members = pl.col("group_ranks").map_elements(_short_ranks, return_dtype=pl.String)
    sums = result.groups.with_columns(members=members).group_by(keys, maintain_order=True)
    # a phase has groups of several sizes
    ranks = [pl.col("ranks").max()] * ("group" in keys)
    summed = [one for one in result.groups.columns if one == "n" or one.endswith(("_ns", "_bytes"))]
    frame = sums.agg(*ranks, *map(sum_if_known, summed))
    share = pl.col("exposed_ns") / pl.lit(int(frame["exposed_ns"].sum()) or None)
    frame = frame.with_columns(
        overlap_frac=pl.col("overlapped_ns") / pl.col("communication_ns"), exposed_frac=share
    ).sort("exposed_ns", *keys, descending=[True, *[False] * len(keys)])
    columns = {**dict.fromkeys(keys), **display.headings(
        """ranks, n: collectives, message_bytes: bytes, communication_ns: communication,
        overlap_frac: overlapped, exposed_ns: exposed, exposed_frac: share of exposed,
        waiting_ns: waiting for ranks"""
    )}  # fmt: skip
    labels = {key: label or key for key, label in columns.items()}
    named = {
        key: of
        for key, of in labels.items()
        if key in frame.columns and frame[key].null_count() < frame.height
    }
    title = f"Communication by {result.by if result.by in _OF_GROUPS else 'group,phase'}"
    return Table("groups", title.replace(",", " and "), frame, named, "no communication")


def _short_ranks(text: str) -> str:
    ranks = [int(one) for one in re.findall(r"\b\d{1,9}\b", text)]
    return text if "..." in text or not ranks else format_ranges(ranks)


def _table(result: Overlap, name: str, title: str, columns: str) -> Table:
    """Build a table without empty columns; with the file if ranks are not unique."""
    devices, frame = result.devices, getattr(result, name.removesuffix("_utilisation"))
    empty = "no steps are marked" if name == "steps" else "none"
    keys = {"rank": "rank"} if devices["rank"].null_count() < devices.height else {}
    if devices["path"].n_unique() > 1 and not display.identified_by_rank(devices):
        frame = frame.with_columns(file=display.short_paths(frame["path"]))
        keys = {"file": "file", **keys}
    empty_columns = set() if devices["communication_ns"].sum() else _OF_COMMUNICATION
    rest = {
        name: label
        for name, label in display.headings(columns).items()
        if name not in empty_columns
    }
    return Table(name, title, frame, {**keys, **rest}, empty, missing={"overlap_frac": "-"},
                 hide_first=("utilisation_frac", "communication_ns"))  # fmt: skip


# --- charts --------------------------------------------------------------------------------


def _charts(result: Overlap) -> tuple[Chart, ...]:
    """Build charts of the parts by ``by``, and of each device's shares over time."""
    return (_parts(result), *([_timeline(result)] if result.timeline.height else []))


def _parts(result: Overlap) -> Chart:
    by = "device" if result.by in _OF_GROUPS else result.by
    title, rows, parts = {
        "device": ("Device time breakdown", result.devices, PART_NAMES),
        "step": ("Step time breakdown", result.steps, PART_NAMES),
        "stream": ("Stream time breakdown", result.streams, _WORK_KINDS),
    }[by]
    frame = rows.with_columns(display.places(rows))
    if by == "device":
        return display.stacked("parts", title, display.by_part(frame, ["on"], parts), "on")
    pieces = display.by_part(frame, ["on", by], parts)
    return display.stacked("parts", title, pieces, by, panel=_panel(frame))


def _timeline(result: Overlap) -> Chart:
    """Build the chart of shares over time; the rest to 100 % is idle."""
    frame = result.timeline.with_columns(display.places(result.timeline))
    busy = {name: label for name, label in PART_NAMES.items() if label != IDLE}
    shares = frame.with_columns(pl.col(name) / pl.col("span_ns") for name in busy)
    return display.stacked(
        "utilisation", "Device utilisation over time",
        display.by_part(shares, ["on", "at_ns"], busy, "share_frac"), "at_ns", y="share_frac",
        x_label="time from the start", y_label="share of the time", panel=_panel(frame),
    )  # fmt: skip


def _panel(frame: pl.DataFrame) -> str | None:
    return "on" if frame["on"].n_unique() > 1 else None
