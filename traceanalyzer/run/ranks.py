"""Splitting traces by rank, and removal of repeated recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.jobs import Recording, recording
from traceanalyzer.trace import Trace, of_kinds
from traceanalyzer.units import format_ns
from traceanalyzer.vocabulary import DEVICE_WORK


def by_rank(traces: Trace | Sequence[Trace]) -> list[Trace]:
    """Return one trace per rank of each trace.

    In a trace of several ranks, processes without a rank (a launcher) are dropped unless they use a
    device.
    """
    several = [traces] if isinstance(traces, Trace) else traces
    return [one for trace in several for one in split_by_rank([trace])]


def split_by_rank(holder: list[Trace]) -> list[Trace]:
    """Split the trace in a list by rank; the list is emptied.

    Columns of events are split and freed one by one, so that they are not in memory twice.
    """
    trace = holder.pop()
    if trace.aggregates.height:
        return _of_text(trace)
    ranks = _ranks(trace.events)
    if len(ranks) <= 1:
        return [_of_only(ranks[0], trace) if ranks else trace]
    # issues of one file belong to all its ranks; those of joined files have a rank
    whole = ("events", "issues") if len(trace.sources) == 1 else ("events",)
    side = {name: frame for name, frame in trace.tables.items() if name not in whole}
    sources, issues, events = trace.sources, trace.issues, trace.events
    masks = [events["rank"].eq_missing(pl.Series([rank], dtype=pl.Int32)) for rank in ranks]
    # frames of one column: a constant column, such as null, takes no memory in a frame
    columns = [events.select(name) for name in events.columns]
    del trace, events
    columns_of: list[list[pl.DataFrame]] = [[] for _ in ranks]
    while columns:
        column = columns.pop(0)
        for of_rank, mask in zip(columns_of, masks, strict=True):
            of_rank.append(column.filter(mask))
    traces = []
    for rank, of_rank, mask in zip(ranks, columns_of, masks, strict=True):
        meta = next((m for m in sources if m.rank == rank), sources[0])
        tables = {"issues": issues} | {
            name: _of_rank(name, frame, rank, mask) for name, frame in side.items()
        }
        divided = pl.concat(of_rank, how="horizontal").with_columns(rank=pl.lit(rank, pl.Int32))
        traces.append(Trace(sources=(replace(meta, rank=rank),), events=divided, **tables))
    return traces


def _of_only(rank: int | None, trace: Trace) -> Trace:
    """Return a trace with the rank of all its events, if its file has several ranks."""
    if rank is None or trace.meta.rank is not None or len(trace.sources) > 1:
        return trace
    return replace(trace, sources=(replace(trace.meta, rank=rank),))


def _of_text(trace: Trace) -> list[Trace]:
    """Return one trace per rank of printed text, which has no events."""
    tables = trace.aggregates.partition_by("rank", maintain_order=True)
    if len(tables) <= 1:
        return [trace]
    return [
        replace(trace, sources=(replace(trace.meta, rank=rows["rank"][0]),), aggregates=rows)
        for rows in tables
    ]


def _ranks(events: pl.DataFrame) -> list[int | None]:
    """Return the ranks of events, including None if its processes use a device."""
    column = events["rank"]
    if column.null_count() == 0 and column.min() == column.max():  # nearly always
        return column[:1].to_list()
    ranks: list[int | None] = column.unique().sort().to_list()
    if len(ranks) > 1 and ranks[0] is None:
        working = pl.col("rank").is_null() & of_kinds(DEVICE_WORK)
        if not events.select(working.any()).item():
            return ranks[1:]
    return ranks


def _of_rank(name: str, frame: pl.DataFrame, rank: int | None, mask: pl.Series) -> pl.DataFrame:
    """Return the rows of a side table that belong to a rank, given its mask of ``events``."""
    if frame.height and "event" in frame.columns:
        event = frame["event"].fill_null(0).to_numpy()
        kept = np.flatnonzero(mask.to_numpy())
        place = np.searchsorted(kept, event)
        hit = kept[np.minimum(place, len(kept) - 1)] == event if len(kept) else place < 0
        bound = pl.Series(hit) & frame["event"].is_not_null()
        moved = pl.Series("event", place.astype(np.uint32))
        if name != "flows":
            return frame.with_columns(moved).filter(bound)
        frame = frame.with_columns(event=pl.when(bound).then(moved))
    if frame.is_empty() or "rank" not in frame.columns:
        return frame
    same = pl.col("rank").eq_missing(pl.lit(rank, dtype=pl.Int32))
    # names and counters without a rank belong to all ranks
    return frame.filter(same if name == "flows" else same | pl.col("rank").is_null())


_SPAN = {"rank": pl.Int32, "device": pl.Int32, "start": pl.Int64, "end": pl.Int64}


@dataclass
class Repeats:
    """Recordings of the files read so far, to count the time of a device only once.

    Attributes:
        notes: one line per pair of overlapping files, by the paths of both.
    """

    notes: dict[tuple[str, str], str] = field(default_factory=dict)
    _paths: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _of_rank: dict[int, dict[str, _File]] = field(default_factory=dict)

    def without_repeats(self, trace: Trace, *, is_file: bool = True) -> tuple[Trace, str]:
        """Return the trace without events of earlier files, and the reason if it is skipped.

        Copies of a file are skipped. Events that start while an earlier file records the same
        device of the same rank are removed: those of the device, and those of the host while both
        files record it. This requires absolute clocks; different processes are different ranks.
        """
        path, content = trace.meta.path, _content(trace) if is_file else None
        copied = self._paths.setdefault(content, path) if content else path
        if copied != path:
            return trace, f"it is a copy of {copied}"
        file = _File(recording(trace), _spans(trace))
        ranks = sorted(set(file.spans["rank"]))
        others = {p: one for rank in ranks for p, one in self._of_rank.get(rank, {}).items()}
        for other_path, other in others.items():
            if other_path == path or not _may_overlap(file.recording, other.recording):
                continue
            shared = _shared(file.spans, other.spans)
            if shared.is_empty():
                continue
            trace = trace.select(~_inside(shared, trace))
            if trace.kinds.isdisjoint(DEVICE_WORK):
                return trace, f"{other_path} records {_devices(shared)} at the same time"
            self.notes[other_path, path] = _note(other_path, path, shared)
        for rank in ranks:
            self._of_rank.setdefault(rank, {})[path] = file
        return trace, ""

    def repeated(self, other: Repeats) -> bool:
        """Whether other files repeat recordings of these files."""
        copied = any(self._paths.get(key, path) != path for key, path in other._paths.items())
        return copied or any(
            _may_overlap(one.recording, file.recording)
            and not _shared(one.spans, file.spans).is_empty()
            for rank, files in other._of_rank.items()
            for path, one in files.items()
            for known_path, file in self._of_rank.get(rank, {}).items()
            if known_path != path
        )

    def copied(self, other: Repeats) -> str | None:
        """Return the path of the file that the other file is a copy of."""
        paths = (self._paths.get(key, path) for key, path in other._paths.items())
        known = set(other._paths.values())
        return next((path for path in paths if path not in known), None)

    def join(self, other: Repeats) -> None:
        """Add the recordings of other files without repeats."""
        self.notes |= other.notes
        self._paths |= other._paths
        for rank, files in other._of_rank.items():
            self._of_rank.setdefault(rank, {}).update(files)


@dataclass(frozen=True)
class _File:
    recording: Recording
    spans: pl.DataFrame


def _content(trace: Trace) -> tuple[Any, ...] | None:
    """Return a key that is equal for copies of a file; None without times."""
    if trace.events["ts"].null_count() == trace.events.height:
        return None
    events, meta = trace.events, trace.meta
    sums = [events[name].sum() for name in ("ts", "dur", "pid", "tid")]
    ends = [events["name"][0], events["name"][-1]]
    return (meta.format, meta.rank, meta.epoch_ns, meta.start_ns, events.height, *sums, *ends)


def _spans(trace: Trace) -> pl.DataFrame:
    """Return rank, device (null for the host), start and end of the recordings, since 1970."""
    if recording(trace).start_ns is None:
        return pl.DataFrame(schema=_SPAN)
    is_work = of_kinds(DEVICE_WORK) & pl.col("device").is_not_null()
    shift = trace.meta.epoch_ns or 0
    events = trace.events[["kind", "rank", "device", "ts", "dur"]]
    rows = events.filter(
        pl.col("rank").is_not_null(), pl.col("dur") >= 0, is_work | pl.col("device").is_null()
    )
    return rows.group_by("rank", "device").agg(
        start=pl.col("ts").min() + shift, end=(pl.col("ts") + pl.col("dur")).max() + shift
    )


def _may_overlap(one: Recording, other: Recording) -> bool:
    return not (one.pids and other.pids) or bool(one.pids & other.pids)


def _shared(spans: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Return rank, device, start and end of shared recordings, for ranks with a shared device."""
    both = spans.join(others, on=["rank", "device"], nulls_equal=True, suffix="_other")
    shared = both.select(
        "rank",
        "device",
        start=pl.max_horizontal("start", "start_other"),
        end=pl.min_horizontal("end", "end_other"),
    ).filter(pl.col("start") < pl.col("end"))
    return shared.filter(pl.col("device").is_not_null().any().over("rank"))


def _inside(shared: pl.DataFrame, trace: Trace) -> pl.Expr:
    """Return the filter of events that start within shared recordings."""
    shift = trace.meta.epoch_ns or 0
    inside = pl.lit(value=False)
    for rank, device, start, end in shared.iter_rows():
        same = pl.col("rank").eq(rank) & pl.col("device").eq_missing(pl.lit(device, pl.Int32))
        inside |= same & pl.col("ts").is_between(start - shift, end - shift, closed="left")
    return inside.fill_null(value=False)


def _note(one: str, other: str, shared: pl.DataFrame) -> str:
    work = shared.drop_nulls("device")
    both_ns = work.select((pl.col("end") - pl.col("start")).max()).item()
    return (
        f"{one} and {other} both record {_devices(shared)} for {format_ns(both_ns)}. That time is "
        f"counted once: the events of {other} in it are left out."
    )


def _devices(shared: pl.DataFrame) -> str:
    """Return the shared devices as ``device 0 of rank 0 and 3 more``."""
    rank, device = shared.drop_nulls("device").sort("rank", "device").row(0)[:2]
    more = shared["device"].count() - 1
    return f"device {device} of rank {rank}{f' and {more:,} more' if more else ''}"
