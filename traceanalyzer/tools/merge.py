"""Several recordings as one file for Perfetto, on one clock."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np
import polars as pl

from traceanalyzer import files
from traceanalyzer.analyzers.base import Examination, Reading, result_of
from traceanalyzer.analyzers.comm_outliers import Options as CommOptions
from traceanalyzer.analyzers.comm_outliers.compute import measure as measure_communication
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common.display import short_paths
from traceanalyzer.analyzers.timeline import alignment, overlays
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.exporters.chrome_trace import JsonWriter
from traceanalyzer.exporters.perfetto import PerfettoWriter
from traceanalyzer.findings.judge import RULES, analyses, judge
from traceanalyzer.machine import give_back
from traceanalyzer.result import Finding, finding_number
from traceanalyzer.run.find import InputList, each_and_skipped, is_merged
from traceanalyzer.run.loop import examine
from traceanalyzer.run.pieces import How, OpenedInputs
from traceanalyzer.run.read import known
from traceanalyzer.trace import Inputs, PathLike, Trace, overlaps
from traceanalyzer.units import NS_PER_S, format_count, format_ns
from traceanalyzer.vocabulary import KINDS, TABLE_KINDS

SUFFIXES = (".pftrace", ".perfetto-trace", ".json.gz", ".json")
GROUP = "traceanalyzer"
#: Length of the part around a finding.
_AROUND_NS = NS_PER_S
_KEYS = ["ts", "dur", "device", "stream", "name"]


@dataclass(frozen=True)
class Cut:
    """What is written of a run; None for everything.

    Attributes:
        since_ns, until_ns: only what overlaps this time on the common axis, from its first moment.
        step: only the time in which any rank runs this step.
        around: only one second around a finding: its id, or its number in ``diagnose``.
        ranks: only these ranks.
        kinds: only events of these kinds, and tables ``counter`` and ``flow``.
    """

    since_ns: int | None = None
    until_ns: int | None = None
    step: str | int | None = None
    around: str | int | None = None
    ranks: Collection[int] | None = None
    kinds: Collection[str] | None = None

    @property
    def in_time(self) -> bool:
        """Whether only a part of the time is written."""
        given = (self.since_ns, self.until_ns, self.step, self.around)
        return any(one is not None for one in given)


@dataclass(frozen=True)
class Merged:
    """What was written.

    Attributes:
        path: the file.
        ranks: number of ranks.
        recordings: number of recordings: ranks of the files.
        slices: number of slices and instants of the recordings.
        readings: number of readings of counters.
        clocks: one row per recording: rank, path, ``shift_ns`` (added to its times), ``offset_ns``
            (by which its clock was corrected), ``by`` (the evidence).
        one_clock: all recordings share an axis; otherwise each rank begins at 0.
        residual_ns: error of the clocks after correction: the largest of the ranks, by the ends of
            matched collectives, else the bound of Composer's clock synchronisation, or None.
        collectives: number of collectives that it is derived from.
        findings: the findings of ``diagnose``, in its order.
        window: start and end of the part that was written, in ns on the axis, or None for all.
        place: start and end of the main interval of the first finding, in ns from the first moment
            of the file, or None.
        notes: skipped and truncated inputs, and recordings without times.
    """

    path: str
    ranks: int
    recordings: int
    slices: int
    readings: int
    clocks: pl.DataFrame
    one_clock: bool
    residual_ns: int | None
    collectives: int
    findings: tuple[Finding, ...]
    window: tuple[int, int] | None
    place: tuple[int, int] | None
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """What was written, in one sentence."""
        of = (
            format_count(self.ranks, "rank")
            if self.ranks
            else format_count(self.recordings, "file")
        )
        counters = f", {format_count(self.readings, 'counter reading')}" if self.readings else ""
        findings = f", {format_count(len(self.findings), 'finding')}" if self.findings else ""
        return f"{of} on one timeline: {format_count(self.slices, 'slice')}{counters}{findings}."

    @property
    def alignment(self) -> str:
        """How the clocks were aligned, with the error that remains."""
        if self.recordings < 2:
            return ""
        if not self.one_clock:
            return (
                "Clocks: no common clock (no absolute times, or recordings of different times): "
                "each rank begins at 0, so positions must not be compared across ranks."
            )
        by = " and ".join(self.clocks["by"].unique(maintain_order=True))
        moved = self.clocks.filter(pl.col("offset_ns") != 0)
        text = f"Clocks: {by}"
        if moved.height:
            largest = format_ns(int(moved["offset_ns"].abs().max() or 0))  # type: ignore[arg-type]
            text += f"; {format_count(moved.height, 'clock')} corrected, by up to {largest}"
        if self.residual_ns is None:
            return f"{text}. The error is unknown: no collective could be matched across ranks."
        error = f"{text}. Residual error: {format_ns(self.residual_ns)}"
        if not self.collectives:
            return f"{error} (bound of Composer's clock synchronisation)."
        return f"{error} (from {format_count(self.collectives, 'matched collective')})."


def merge(
    sources: Inputs,
    output: PathLike,
    *,
    step: str | int | None = None,
    around: str | int | None = None,
    ranks: Collection[int] | None = None,
    kinds: str | Collection[str] | None = None,
    force: bool = False,
    **reading: Unpack[Reading],
) -> Merged:
    """Write all recordings of a run to one file that Perfetto opens, on one clock.

    Each rank is a process group with its threads, streams, annotations and counters; arrows lead
    from launch calls to device work, and between the ranks of matched collectives. The group
    ``traceanalyzer`` has the findings of ``diagnose``, steps, waits for stragglers, idle time by
    cause, and the critical path, along which arrows lead. ``.pftrace`` is written rank by rank; for
    ``.json`` and ``.json.gz`` all ranks are in memory.

    Args:
        sources: traces, files and folders of any format, of one run. Merged files are skipped.
        output: ``.pftrace`` (Perfetto's protobuf), ``.json`` or ``.json.gz`` (Chrome JSON).
        step: only this step, by its name or the number in its name.
        around: only one second around a finding, by its id or its number in ``diagnose``.
        ranks: only these ranks; all are analysed.
        kinds: only these kinds of events, and tables ``counter`` and ``flow``; all are analysed.
        force: overwrite an existing file.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`; ``since_ns`` and
            ``until_ns`` count from the first moment of the run, and ``workers`` is not used.

    Raises:
        InputError: nothing can be read.
        MissingData: no recording has times.
        OptionError: unknown suffix, kind, step or finding; no input of these ranks.
        OutputError: the output exists and ``force`` is not set, or cannot be written.
    """
    target = os.fspath(output)
    if not target.lower().endswith(SUFFIXES):
        raise OptionError(f"{target}: unknown output format; use .pftrace, .json or .json.gz")
    files.check(target, force=force)
    chosen = None if kinds is None else known(kinds, (*KINDS, *TABLE_KINDS), "kind")
    rest: dict[str, Any] = {**reading, "workers": 1}
    cut = Cut(rest.pop("since_ns", None), rest.pop("until_ns", None), step, around, ranks, chosen)
    items, skipped = _without_merged(sources, target)
    files.keep_inputs(target, (item for item in items if isinstance(item, str)))
    with files.opened(target) as file:
        if target.lower().endswith((".json", ".json.gz")):
            packed = target.lower().endswith(".gz")
            merged = _merge(items, JsonWriter(file, packed=packed), cut, rest)
        elif file.seekable():
            merged = _merge(items, PerfettoWriter(file), cut, rest)
        else:
            with tempfile.TemporaryFile() as seekable:
                merged = _merge(items, PerfettoWriter(seekable), cut, rest)
                seekable.seek(0)
                shutil.copyfileobj(seekable, file)
    return replace(merged, path=target, notes=(*skipped, *merged.notes))


def _without_merged(inputs: Inputs, target: str) -> tuple[InputList[Trace | str], tuple[str, ...]]:
    """Return the inputs without files written by ``merge``, and a note for each of those."""
    items, _ = each_and_skipped(inputs)
    written = [one for one in items if isinstance(one, str) and is_merged(one)]
    left = [one for one in items if not any(one is other for other in written)]
    if not left and written:
        raise OptionError(f"{written[0]}: already merged; pass the recordings of the ranks")
    why = "traceanalyzer merged it from other files"
    return InputList(left), tuple(f"Skipped: {path}: {why}." for path in written if path != target)


Writer = JsonWriter | PerfettoWriter


def _merge(
    items: InputList[Trace | str], writer: Writer, cut: Cut, reading: dict[str, Any]
) -> Merged:
    with ThreadPoolExecutor(1) as worker:
        recordings = _Recordings(writer, cut, items, worker)
        add = recordings.add
        examined = examine(items, analyses(RULES), use="findings", on_rank=add, **reading)
        recordings.wait()
    give_back()
    if not recordings.all:
        raise MissingData(
            f"{examined.files[0]}: the events have no timestamps, which a timeline needs"
        )
    compared = result_of(examined.results, CommOutliers)
    recorded = [one.recorded for one in recordings.all]
    shifts, one_clock = alignment.shifts(recorded, compared)
    findings = judge(examined).findings
    rows = overlays.overlay_rows(examined, findings, recorded, shifts)
    window = _window(cut, rows, findings, recorded, shifts)
    if cut.in_time:
        recordings.add_again(items, reading, window, shifts, compared)
        rows = rows.filter(overlaps(pl.col("ts"), pl.col("ts") + pl.col("dur"), [window]))
    if not any(one.written for one in recordings.all):
        raise OptionError("nothing to write: no event matches the selected ranks, kinds and time")
    matches = recordings.matches(compared)
    if rows.height:
        on_path = (rows["group"] == overlays.CRITICAL_PATH).arg_true().to_numpy().astype(np.int64)
        group = writer.add_group(GROUP, rows, on_path).sequence
        recordings.groups.append(group)
        arrow = max(matches.values(), default=-1) + 1
        matches |= {(group, row): arrow for row in on_path.tolist()}
    epoch_ns = recorded[0].epoch_ns if one_clock else None
    first = next(
        (s for one, s in zip(recorded, shifts, strict=True) if one.epoch_ns == epoch_ns), 0
    )
    writer.close(recordings.shifts(shifts), matches, None if epoch_ns is None else epoch_ns - first)
    return _summary(recordings, examined, compared, findings, rows, shifts, one_clock, window)


# --- recordings ----------------------------------------------------------------------------------


@dataclass
class _Recording:
    """One rank of one file.

    Attributes:
        recorded: its place on its own clock.
        written: what the writer returned; None if it is not written.
        collectives: its collectives in the file: event, and the columns of :data:`_KEYS`.
    """

    recorded: alignment.Recorded
    written: Any = None
    collectives: pl.DataFrame = field(default_factory=pl.DataFrame)


@dataclass
class _Recordings:
    """The recordings in order, written as they are read.

    One is written by ``worker`` while the next one is read.
    """

    writer: Writer
    cut: Cut
    items: Sequence[Trace | str]
    worker: ThreadPoolExecutor
    pending: Future[None] | None = None
    all: list[_Recording] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, trace: Trace) -> None:
        """Write a recording, unless only a part of the time is written."""
        if trace.events["ts"].null_count():
            self.notes.append(f"Skipped: {trace.meta.path}: its events have no timestamps.")
            return
        span = _span(trace)
        if span is None:
            return
        one = _Recording(alignment.recorded(trace.meta, *span))
        self.all.append(one)
        if not self.cut.in_time:
            part = measure_communication(trace, CommOptions())
            rows = part.instances.select(
                ts=pl.col("start") - part.shift_ns,
                dur=pl.col("end") - pl.col("start"),
                device="device",
                stream="stream",
                name="name",
            )
            self.wait()
            give_back()
            self.pending = self.worker.submit(self._write, trace, one, rows)

    def wait(self) -> None:
        """Wait until all recordings are written, and raise the error of writing, if any."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            pending.result()

    def add_again(
        self,
        items: InputList[Trace | str],
        reading: dict[str, Any],
        window: tuple[int, int],
        shifts: Sequence[int],
        compared: CommOutliers | None,
    ) -> None:
        """Read the recordings again, and write what overlaps the window on the axis."""
        how = How(**{**reading, "progress": None, "on_trace": None})
        left = iter(zip(self.all, shifts, strict=True))
        for opened in OpenedInputs(items, None, how):
            for trace in opened:
                if trace.events["ts"].null_count() or _span(trace) is None:
                    continue
                one, shift = next(left)
                low, high = (time - shift for time in window)
                part = trace.overlapping([(low, high)])
                self._write(part, one, _instances(compared, one.recorded.path))

    def _write(self, trace: Trace, one: _Recording, collectives: pl.DataFrame) -> None:
        cut, rank = self.cut, one.recorded.rank
        if cut.ranks is not None and rank not in cut.ranks:
            return
        if cut.kinds is not None:
            trace = trace.select(pl.col("kind").cast(pl.String).is_in(list(cut.kinds)))
            for table in ("counter", "flow"):
                if table not in cut.kinds:
                    name = f"{table}s"
                    trace = replace(trace, **{name: getattr(trace, name).clear()})
        if trace.events.is_empty() and trace.counters.is_empty():
            return
        events = trace.events.select(_KEYS).with_row_index("event")
        at = (
            collectives["ts"].unique().implode()
            if collectives.height
            else pl.lit([], pl.List(pl.Int64))
        )
        near = events.filter(pl.col("ts").is_in(at)).with_columns(pl.col("name").cast(pl.String))
        known = (
            collectives.select(_KEYS).unique() if collectives.height else near.clear().drop("event")
        )
        rows = near.join(known, on=_KEYS, how="semi", nulls_equal=True)
        one.collectives = rows
        one.written = self.writer.add(
            trace, self._title(one), rows["event"].to_numpy().astype(np.int64)
        )

    def _title(self, one: _Recording) -> str:
        if one.recorded.rank is not None:
            return f"rank {one.recorded.rank}"
        return short_paths(pl.Series([one.recorded.path]))[0] if len(self.items) > 1 else ""

    def shifts(self, shifts: Sequence[int]) -> dict[int, int]:
        """Return what is added to the times of each sequence of the file."""
        both = zip(self.all, shifts, strict=True)
        known = {one.written.sequence: shift for one, shift in both if one.written}
        return known | dict.fromkeys(self.groups, 0)

    def matches(self, compared: CommOutliers | None) -> dict[tuple[int, int], int]:
        """Return the number of the collective of each sequence and row of ``events``."""
        numbers: dict[tuple[int, int], int] = {}
        for one in self.all:
            if not one.written or one.collectives.is_empty():
                continue
            rows = _instances(compared, one.recorded.path).drop_nulls("instance")
            pairs = one.collectives.join(rows, on=_KEYS, nulls_equal=True)
            sequence = one.written.sequence
            for event, instance in pairs.select("event", "instance").iter_rows():
                numbers[sequence, event] = instance
        return numbers


def _span(trace: Trace) -> tuple[int, int] | None:
    """Return the first and the last moment of a trace; None without any."""
    end = (pl.col("ts") + pl.col("dur").fill_null(0)).max()
    first, last = trace.events.select(pl.col("ts").min(), end=end).row(0)
    of_counters = trace.counters.select(first=pl.col("ts").min(), last=pl.col("ts").max()).row(0)
    begins = [time for time in (first, of_counters[0]) if time is not None]
    ends = [time for time in (last, of_counters[1]) if time is not None]
    return (min(begins), max(ends)) if begins else None


def _instances(compared: CommOutliers | None, path: str) -> pl.DataFrame:
    """Return the collectives of a file: the columns of :data:`_KEYS`, and instance."""
    types = {"ts": pl.Int64, "dur": pl.Int64, "device": pl.Int32, "stream": pl.Int64}
    if compared is None:
        return pl.DataFrame(schema={**types, "name": pl.String, "instance": pl.UInt32})
    rows = compared.instances.filter(pl.col("path") == path)
    return rows.select("ts", "device", "stream", "name", "instance", dur="duration_ns")


# --- the part that is written ----------------------------------------------------------------


def _window(
    cut: Cut,
    rows: pl.DataFrame,
    findings: Sequence[Finding],
    recorded: Sequence[alignment.Recorded],
    shifts: Sequence[int],
) -> tuple[int, int]:
    """Return start and end of the part that is written, in ns on the axis."""
    last = max(one.end + shift for one, shift in zip(recorded, shifts, strict=True)) + 1
    low, high = min(one.begin + shift for one, shift in zip(recorded, shifts, strict=True)), last
    if cut.step is not None:
        low, high = _step(str(cut.step), rows)
    if cut.around is not None:
        begin, end = main_interval(rows, finding_number(cut.around, findings))
        middle = (begin + end) // 2 if end - begin < _AROUND_NS else begin + _AROUND_NS * 4 // 10
        low, high = middle - _AROUND_NS // 2, middle + _AROUND_NS // 2
    if cut.since_ns is not None:
        low = max(low, cut.since_ns)
    if cut.until_ns is not None:
        high = min(high, cut.until_ns)
    return low, high


def _step(step: str, rows: pl.DataFrame) -> tuple[int, int]:
    steps = rows.filter(pl.col("group") == overlays.STEPS)
    number = pl.col("name").str.extract(r"(\d+)\D*$")
    chosen = steps.filter((pl.col("name") == step) | (number == step))
    if chosen.is_empty():
        names = steps["name"].unique(maintain_order=True).to_list()
        listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        known = f"the steps are {listed}" if names else "no steps are marked"
        raise OptionError(f"no step {step}; {known}")
    end = pl.col("ts") + pl.col("dur")
    low, high = chosen.select(low=pl.col("ts").min(), high=end.max()).row(0)
    return low, high


def main_interval(rows: pl.DataFrame, number: int) -> tuple[int, int]:
    """Return the longest interval of a finding, on its rank if it has one, on the axis."""
    of_finding = rows.filter(
        pl.col("finding") == number, ~pl.col("track").str.contains(", effect: ")
    )
    at = (pl.format("rank {}", "rank") == pl.col("place").str.extract(r"^(rank \d+)")).fill_null(
        value=False
    )
    first = of_finding.sort(at, "dur", descending=True, maintain_order=True).row(0, named=True)
    return first["ts"], first["ts"] + first["dur"]


def _summary(
    recordings: _Recordings,
    examined: Examination,
    compared: CommOutliers | None,
    findings: tuple[Finding, ...],
    rows: pl.DataFrame,
    shifts: Sequence[int],
    one_clock: bool,
    window: tuple[int, int],
) -> Merged:
    written = [
        (one, shift) for one, shift in zip(recordings.all, shifts, strict=True) if one.written
    ]
    offsets = alignment.clock_offsets([one.recorded for one in recordings.all], compared)
    corrected = {id(one): offset for one, offset in zip(recordings.all, offsets, strict=True)}
    clocks = pl.DataFrame(
        {
            "rank": [one.recorded.rank for one, _ in written],
            "path": [one.recorded.path for one, _ in written],
            "shift_ns": [shift for _, shift in written],
            "offset_ns": [corrected[id(one)] for one, _ in written],
            "by": [_evidence(one.recorded, compared) for one, _ in written],
        },
        schema_overrides={"rank": pl.Int32},
    )
    bounds = [one.recorded.sync_error_ns for one, _ in written]
    known = [bound for bound in bounds if bound is not None]
    error = (max(known), 0) if known and len(known) == len(bounds) else None
    if len(written) > 1:
        error = alignment.residual(compared) or error
    origin = min(shift + one.written.start_ns for one, shift in written)
    around = recordings.cut.around
    number = 1 if around is None else finding_number(around, findings)
    place = None
    if not rows.filter(pl.col("finding") == number).is_empty():
        begin, end = main_interval(rows, number)
        place = (begin - origin, end - origin)
    return Merged(
        path="",
        ranks=clocks["rank"].drop_nulls().n_unique(),
        recordings=len(written),
        slices=sum(one.written.slices for one, _ in written),
        readings=sum(one.written.readings for one, _ in written),
        clocks=clocks,
        one_clock=one_clock,
        residual_ns=error[0] if error else None,
        collectives=error[1] if error else 0,
        findings=findings,
        window=window if recordings.cut.in_time else None,
        place=place,
        notes=(*recordings.notes, *examined.notes, *overlays.no_path(examined)),
    )


def _evidence(one: alignment.Recorded, compared: CommOutliers | None) -> str:
    """Return by what the clock of a recording is aligned."""
    ranks = set(compared.clocks.filter("applied")["rank"]) if compared is not None else set()
    if one.rank in ranks:
        return "ends of matched collectives"
    if one.sync_ns is not None:
        return "clock synchronisation of Composer"
    if one.epoch_ns is not None:
        return "absolute times of the files"
    return "ends of matched collectives" if compared is not None else "times of the files"
