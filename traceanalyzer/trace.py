"""A trace: the tables of the schema and the metadata of their source files."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, partial, reduce
from operator import or_
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer import schema
from traceanalyzer.analyzers.methods import AnalysisMethods
from traceanalyzer.errors import MissingData
from traceanalyzer.files import packaged
from traceanalyzer.units import format_first
from traceanalyzer.vocabulary import NSYS, ONNXRUNTIME, ROCPD, TRUNCATED

T = TypeVar("T")
#: A row of ``issues`` of one file: severity, code, count, first place.
Issue = tuple[str, str, int, str | None]
#: (start, end) in ns; None for an open end.
_Span = tuple[int | None, int | None]
_Ints = npt.NDArray[np.int64]

NOT_BY_XLA = "not recorded by the profilers of JAX and TensorFlow"
#: Names of tables in ``hints.toml``, besides that of PyTorch's profiler, by format.
_HINTS_OF = {NSYS: "nsys", ROCPD: "rocpd"}
#: Data that is missing if the GPU could not be traced.
_NEED_GPU_TRACE = ("kernel", "gpu_memcpy", "gpu_memset", "device work", "collective")


@dataclass(frozen=True)
class Device:
    """A GPU, as described by the profiler."""

    id: int
    name: str | None = None
    total_bytes: int | None = None


@dataclass(frozen=True)
class Meta:
    """Metadata of a file.

    Attributes:
        path: the file, as passed by the user.
        format: name of the format.
        version: version or layout of the format, if recorded.
        epoch_ns: absolute time of ts 0 in nanoseconds since the Unix epoch, or None.
        start_ns: time of the file's first event, read or not, or None.
        rank: global rank of the recorded process, or None.
        world_size: number of ranks in the job, or None.
        devices: GPUs listed in the file.
        host: host name, or None.
        backend: communication back end (``nccl``, ``gloo``), or None.
        extra: all other top-level metadata, as JSON text.
        weight_unit: unit of the weights of samples: ``samples``, ``ns`` or ``bytes``, or None.
        no_gpu_work: reason for missing GPU work although its recording was requested, or None.
        window: limits of :meth:`Trace.between` on the trace's clock, None where there is none.
        complete_until: until when GPU work is complete in a truncated Chrome trace, as far as what
            was read shows, or None.
    """

    path: str
    format: str
    version: str | None = None
    epoch_ns: int | None = None
    start_ns: int | None = None
    rank: int | None = None
    world_size: int | None = None
    devices: tuple[Device, ...] = ()
    host: str | None = None
    backend: str | None = None
    extra: str | None = None
    weight_unit: str | None = None
    no_gpu_work: str | None = None
    window: tuple[int | None, int | None] = (None, None)
    complete_until: int | None = field(default=None, compare=False)

    @property
    def is_xla(self) -> bool:
        """Whether JAX's or TensorFlow's profiler wrote the file."""
        return '"highres-ticks"' in (self.extra or "") and self.format == "chrome-trace"

    def recorded(self) -> dict[str, Any]:
        """Return the metadata of the file itself, for exports."""
        of_reading = ("window", "complete_until")
        return {name: value for name, value in asdict(self).items() if name not in of_reading}


def record_hint(meta: Meta, what: str) -> str:
    """Return how to record missing data with the profiler that wrote a file; empty if unknown.

    Args:
        meta: metadata of the file.
        what: a kind of events, or ``device work`` with its launches, ``collective``, ``step``,
            ``stack``, ``counter``; ``other code`` for recordings that show code without events, in
            a sentence that continues with "shows which".
    """
    if meta.no_gpu_work and what in _NEED_GPU_TRACE:
        return meta.no_gpu_work
    special = {meta.is_xla: "xla", meta.version == ONNXRUNTIME: "onnxruntime"}
    table = special.get(True, _HINTS_OF.get(meta.format, "torch"))
    return (_hints()["torch"] | _hints()[table]).get(what, "")


@cache
def _hints() -> dict[str, dict[str, str]]:
    """Return how to record data, by profiler and kind of data."""
    return {
        profiler: {name: text for names, text in table.items() for name in names.split(", ")}
        for profiler, table in packaged("hints.toml").items()
    }


@dataclass(frozen=True)
class Trace(AnalysisMethods):
    """The tables of :mod:`traceanalyzer.schema`, frozen, and the metadata of each source file.

    ``sources`` has one :class:`Meta` per file, several after :func:`concat`. Every analysis is a
    method, with the options of the function of that name: ``trace.gpu_idle(by="step")`` is
    ``traceanalyzer.gpu_idle(trace, by="step")``.
    """

    sources: tuple[Meta, ...]
    events: pl.DataFrame = field(default_factory=lambda: schema.empty("events"))
    stacks: pl.DataFrame = field(default_factory=lambda: schema.empty("stacks"))
    launch_configs: pl.DataFrame = field(default_factory=lambda: schema.empty("launch_configs"))
    collectives: pl.DataFrame = field(default_factory=lambda: schema.empty("collectives"))
    memory_totals: pl.DataFrame = field(default_factory=lambda: schema.empty("memory_totals"))
    lanes: pl.DataFrame = field(default_factory=lambda: schema.empty("lanes"))
    flows: pl.DataFrame = field(default_factory=lambda: schema.empty("flows"))
    counters: pl.DataFrame = field(default_factory=lambda: schema.empty("counters"))
    segments: pl.DataFrame = field(default_factory=lambda: schema.empty("segments"))
    blocks: pl.DataFrame = field(default_factory=lambda: schema.empty("blocks"))
    process_groups: pl.DataFrame = field(default_factory=lambda: schema.empty("process_groups"))
    collective_records: pl.DataFrame = field(
        default_factory=lambda: schema.empty("collective_records")
    )
    metrics: pl.DataFrame = field(default_factory=lambda: schema.empty("metrics"))
    aggregates: pl.DataFrame = field(default_factory=lambda: schema.empty("aggregates"))
    issues: pl.DataFrame = field(default_factory=lambda: schema.empty("issues"))
    _computed: dict[Hashable, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def meta(self) -> Meta:
        """Metadata of the first (usually the only) source."""
        return self.sources[0]

    @property
    def names(self) -> list[str]:
        """The distinct names of events."""
        return self.once("names", lambda: _texts(self.events["name"].unique()))

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of events."""
        return self.once("kinds", lambda: frozenset(_texts(self.events["kind"].unique())))

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """Every table by name, in the schema's order."""
        return {name: getattr(self, name) for name in schema.TABLES}

    def require(self, *kinds: str) -> pl.DataFrame:
        """Return the events of these kinds.

        Raises:
            MissingData: the trace has no event of any of the kinds; the message says how to record
                them.
        """
        rows = self.events.filter(of_kinds(kinds))
        if rows.is_empty():
            hints = (record_hint(self.meta, kind) for kind in kinds)
            hint = next((f"; {hint}" for hint in hints if hint), "")
            where = ", ".join(meta.path for meta in self.sources[:3])
            listed = " or ".join(", ".join(kinds).rsplit(", ", 1))
            raise MissingData(f"{where}: no {listed} events were recorded{hint}")
        return rows

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the value of ``compute``, computed once and cached for the life of this trace.

        For data that several analyses need, such as device work. ``key`` identifies the value and
        the options it depends on.
        """
        if key not in self._computed:
            self._computed[key] = compute()
        value: T = self._computed[key]
        return value

    def kept(self, table: T) -> T:
        """Return a table that is used later: in files if the tables of this trace are."""
        keep: Callable[[T], T] = getattr(self._computed, "keep", lambda same: same)
        return keep(table)

    def with_rank(self, rank: int) -> Trace:
        """Return the trace with this rank in all tables and sources."""
        relabelled: dict[str, Any] = {
            name: frame.with_columns(rank=pl.lit(rank, dtype=pl.Int32))
            for name, frame in self.tables.items()
            if "rank" in frame.columns
        }
        sources = tuple(replace(meta, rank=rank) for meta in self.sources)
        return replace(self, sources=sources, **relabelled)

    def between(self, since_ns: int | None = None, until_ns: int | None = None) -> Trace:
        """Return only the events that overlap [since, until), in ns after the file's first event.

        The first event counts, read or not. Side tables keep the rows of the remaining events; flow
        points and counters are filtered by their time.
        """
        window = self.window(since_ns, until_ns)
        if window is None or window == (None, None):
            return self
        sources = tuple(replace(meta, window=window) for meta in self.sources)
        return replace(self.overlapping([window]), sources=sources)

    def window(self, since_ns: int | None, until_ns: int | None) -> _Span | None:
        """Return a window in ns after the first event on the trace's clock; None without times."""
        starts = [meta.start_ns for meta in self.sources if meta.start_ns is not None]
        start = min(starts) if starts else self.events["ts"].min()
        if not isinstance(start, int):
            return None
        lo = None if since_ns is None else start + since_ns
        return lo, None if until_ns is None else start + until_ns

    def overlapping(self, spans: Sequence[_Span]) -> Trace:
        """Return only the events that overlap any of the spans [start, end), in ns of ``ts``.

        An event without a duration belongs to the span in which it is, as do flow points and
        counters. Other side tables keep the rows of the remaining events.
        """
        time = pl.col("ts")
        points = overlaps(time, time, spans, with_start=True)
        return self.select(in_spans(spans, with_start=True), points)

    def select(self, events: pl.Expr, points: pl.Expr | None = None) -> Trace:
        """Return only the events that match ``events``; ``points`` filters flows and counters."""
        number = pl.int_range(pl.len(), dtype=pl.UInt32)
        rows = self.events.select(event=number.filter(events))
        renumber = rows.with_columns(_new=number)
        changed: dict[str, Any] = {"events": self.events[rows["event"]]}
        for name in schema.EVENT_TABLES:
            frame = getattr(self, name)
            how = "left" if name == "flows" else "inner"
            joined = frame.join(renumber, on="event", how=how, maintain_order="left")
            changed[name] = joined.with_columns(event=pl.col("_new")).drop("_new")
        if points is not None:
            changed["flows"] = changed["flows"].filter(points)
            changed["counters"] = self.counters.filter(points)
        return replace(self, **changed)

    def __repr__(self) -> str:
        names = format_first([meta.path for meta in self.sources], 2)
        return f"<Trace of {names}: {self.events.height:,} events>"


PathLike = str | os.PathLike[str]
#: One or several inputs: traces in memory, files, folders.
Inputs = Trace | PathLike | Sequence[Trace | PathLike]


@cache
def of_kinds(kinds: tuple[str, ...]) -> pl.Expr:
    """Return the filter of events of some kinds; built once, as that takes longer than a filter."""
    return pl.col("kind").is_in(kinds)


def _texts(names: pl.Series) -> list[str]:
    return [name for name in names.cast(pl.String).to_list() if name is not None]


def concat(traces: Sequence[Trace]) -> Trace:
    """Concatenate several ranks to one trace, on one clock.

    Times are shifted so that ts 0 of the result is the earliest ts 0 of the inputs with a known
    absolute time; other inputs keep their clock. Row ids, flow numbers and stack rows are
    renumbered; nothing is merged or dropped.
    """
    if len(traces) == 1:
        return traces[0]
    origin = min([t.meta.epoch_ns for t in traces if t.meta.epoch_ns is not None], default=None)
    parts: dict[str, list[pl.DataFrame]] = {name: [] for name in schema.TABLES}
    offsets = {"event": 0, "flow": 0, "stack": 0, "segment": 0, "launch": 0}
    sources: list[Meta] = []
    for trace in traces:
        shift = 0
        if origin is not None and trace.meta.epoch_ns is not None:
            shift = trace.meta.epoch_ns - origin
        for name, frame in trace.tables.items():
            parts[name].append(_moved(name, frame, shift, offsets))
        offsets["event"] += trace.events.height
        top = trace.flows["flow"].max()
        offsets["flow"] += top + 1 if isinstance(top, int) else 0
        launch = trace.metrics["launch"].max()
        offsets["launch"] += launch + 1 if isinstance(launch, int) else 0
        offsets["stack"] += trace.stacks.height
        offsets["segment"] += trace.segments.height
        for meta in trace.sources:
            known = meta.epoch_ns is not None
            begun = None if meta.start_ns is None else meta.start_ns + shift
            sources.append(replace(meta, epoch_ns=origin, start_ns=begun) if known else meta)
    joined = {name: pl.concat(frames, how="diagonal") for name, frames in parts.items()}
    return sort_events(Trace(sources=tuple(sources), **joined))


#: Columns of times and ids; ids of one trace are smaller than this, to be told apart.
_TIMES, _IDS, _ROOM = ("ts", "start", "end", "issued"), ("correlation", "external_id"), 1 << 40
#: Between the times of two traces, and the latest time.
_GAP_NS, _LATEST_NS = 1_000_000, 1 << 60


def compute_together(
    traces: Sequence[Trace],
    compute: Callable[[Trace, _Ints], Mapping[Hashable, pl.DataFrame]],
) -> None:
    """Compute tables of several small traces at once, and cache the rows of each trace.

    A query takes as long for one trace as for many. The traces follow each other in time in one,
    with ids of their own. Nothing is computed if times or ids are unusual.

    Args:
        traces: of one rank each.
        compute: returns tables, by their key in :meth:`Trace.once`, of the joined trace and the
            number of the trace of each event. Tables have ``event`` (row of events), ascending; the
            values of a row do not depend on the other traces.
    """
    events = [trace.events for trace in traces]
    if not all(one.height and one.schema == events[0].schema for one in events):
        return
    table, number = pl.concat(events), np.arange(len(traces))
    first = np.cumsum([0, *(one.height for one in events)])
    of_event, first = np.repeat(number, np.diff(first)), first[:-1]
    times = _apart(table, first)
    if times is None:
        return
    moves = dict.fromkeys(_TIMES, times) | dict.fromkeys(_IDS, number * _ROOM) | {"event": first}
    described = [trace.collectives for trace in traces]
    of_row = np.repeat(number, [one.height for one in described])
    whole = Trace(
        traces[0].sources,
        events=_moved_apart(table, of_event, moves),
        collectives=_moved_apart(pl.concat(described), of_row, moves),
    )
    back = {name: -each for name, each in moves.items()}
    for key, rows in compute(whole, of_event).items():
        of_row = of_event[rows["event"].to_numpy()]
        moved, edges = (
            _moved_apart(rows, of_row, back),
            np.searchsorted(of_row, [*number, number.size]),
        )
        for trace, low, high in zip(traces, edges, edges[1:], strict=False):
            trace.once(key, partial(moved.slice, int(low), int(high - low)))


def _apart(events: pl.DataFrame, first: _Ints) -> _Ints | None:
    """Return by how much the times of each trace move; None if times or ids are unusual."""
    limits = events.select(
        usual=pl.all_horizontal(pl.col(_IDS).is_between(0, _ROOM - 1).all()),
        nulls=pl.col("ts").null_count(),
    )
    if limits.row(0) != (True, 0):
        return None
    start = events["ts"].to_numpy()
    end = start + events["dur"].fill_null(0).to_numpy()
    begin = np.minimum.reduceat(start, first)
    longest = int((np.maximum.reduceat(end, first) - begin).max()) + _GAP_NS
    return np.arange(first.size) * longest - begin if longest * first.size < _LATEST_NS else None


def _moved_apart(rows: pl.DataFrame, of_row: _Ints, moves: Mapping[str, _Ints]) -> pl.DataFrame:
    """Return rows of several traces with times, ids and rows of events moved."""
    return rows.with_columns(
        (pl.col(name) + pl.Series(each[of_row])).cast(rows.schema[name])
        for name, each in moves.items()
        if name in rows.columns
    )


def sort_events(trace: Trace) -> Trace:
    """Sort ``events`` into the schema's order (ts, -dur, row), and update row ids."""
    length = pl.col("dur").fill_null(-1)
    ordered = trace.events.with_row_index("_row").sort(
        "ts", length, descending=[False, True], nulls_last=True, maintain_order=True
    )
    new_row = ordered.select(
        event=pl.col("_row"), _new=pl.int_range(pl.len(), dtype=pl.UInt32)
    ).sort("event")["_new"]
    changed = {
        name: frame.with_columns(event=new_row.gather(frame["event"]))
        for name in schema.EVENT_TABLES
        if (frame := getattr(trace, name)).height
    }
    return replace(trace, events=ordered.drop("_row"), **changed)


def with_events(trace: Trace, events: pl.DataFrame) -> Trace:
    """Add rows to ``events``, each before those of the same time and length; null columns may lack.

    Args:
        trace: a trace.
        events: rows with some of the columns of ``events``, in order of time.
    """
    moved = {
        name: frame.with_columns((pl.col("event") + events.height).cast(pl.UInt32))
        for name in schema.EVENT_TABLES
        if (frame := getattr(trace, name)).height
    }
    joined = pl.concat([events, trace.events], how="diagonal").select(trace.events.columns)
    return sort_events(replace(trace, events=joined, **moved))


def _moved(table: str, frame: pl.DataFrame, shift: int, offsets: Mapping[str, int]) -> pl.DataFrame:
    """Return a table with times and row ids shifted for concatenation."""
    moves: list[pl.Expr] = []
    if shift and "ts" in frame.columns:
        moves.append(pl.col("ts") + shift)
    moves += [
        (pl.col(name) + offset).cast(pl.UInt32)
        for name, offset in offsets.items()
        if offset and name in frame.columns
    ]
    ids = {"stacks": ("stack", ["id", "parent"]), "segments": ("segment", ["id"])}
    if table in ids:
        kind, names = ids[table]
        moves += [(pl.col(name) + offsets[kind]).cast(pl.UInt32) for name in names]
    return frame.with_columns(moves) if moves else frame


def overlaps(
    start: Any, end: Any, spans: Iterable[tuple[Any, Any]], *, with_start: bool = False
) -> Any:
    """Whether the times between start and end overlap any of the spans (lo, hi), at least one.

    The test is ``start < hi and end > lo``: what only touches a span does not overlap it, and an
    instant (start is end) overlaps if ``lo < start < hi``.

    Args:
        start: integers, an array or an expression; the result is of the same kind.
        end: likewise.
        spans: integers or expressions; None for an open end.
        with_start: an instant at ``lo`` overlaps too, so that it is in exactly one of several spans
            that follow each other.
    """
    tests = []
    for lo, hi in spans:
        after = True if lo is None else end > lo
        if with_start and lo is not None:
            after = after | (start >= lo)
        tests.append(after & (True if hi is None else start < hi))
    return reduce(or_, tests)


def in_spans(spans: Iterable[_Span], *, with_start: bool = False) -> pl.Expr:
    """Return the condition that an event overlaps a span, see :func:`overlaps`.

    An event whose ``dur`` is null or negative is an instant.
    """
    start = pl.col("ts")
    end = start + pl.col("dur").fill_null(0).clip(lower_bound=0)
    condition: pl.Expr = pl.lit(value=True) & overlaps(start, end, spans, with_start=with_start)
    return condition


#: Issues of truncated files; the last two of printed text.
_TRUNCATED_CODES = ("truncated", "truncated-table", "truncated-line")


def is_truncated(trace: Trace) -> bool:
    """Whether a file is truncated, for example because the job was killed while writing it."""
    if trace.issues.is_empty():
        return False
    unpacked_in_part = (pl.col("code") == "damaged-file") & pl.col("first").str.ends_with(TRUNCATED)
    in_part = pl.col("code").is_in(_TRUNCATED_CODES) | unpacked_in_part
    return not trace.issues.filter(in_part).is_empty()


def another_recording(trace: Trace) -> str | None:
    """Return what of a file was not read because it is another recording; None for most files."""
    if trace.issues.is_empty():
        return None
    first = trace.issues.filter(code="another-recording")["first"]
    if first.is_empty():
        return None
    return f"another recording from {first[0]} on, pass each recording as a file of its own"


def from_rows(
    meta: Meta,
    rows: Iterable[Mapping[str, Any] | Sequence[Any]],
    issues: Iterable[Issue] = (),
    *,
    columns: Sequence[str] = (),
) -> Trace:
    """Return the trace of a small file from rows of ``events``, in any order.

    Columns that no row has are null, except ``rank``: that of the file. Numbers may be texts.

    Args:
        meta: metadata of the file; without ``start_ns`` the first row is the first event.
        rows: a mapping by column per event, or the values of ``columns``.
        issues: (severity, code, count, first place) of data that was not read.
        columns: columns of rows that are sequences.

    Raises:
        ValueError: unknown column, or a row of another length than ``columns``.
    """
    records = [
        row if isinstance(row, Mapping) else dict(zip(columns, row, strict=True)) for row in rows
    ]
    names = dict.fromkeys(name for record in records for name in record)
    if unknown := [name for name in names if name not in schema.types("events", names)]:
        raise ValueError(f"events have no column {unknown[0]!r}")
    given = {name: [record.get(name) for record in records] for name in names}
    given.setdefault("rank", [meta.rank] * len(records))
    events = pl.DataFrame(
        pl.Series(name, given.get(name, [None] * len(records)), strict=False).cast(dtype)
        for name, dtype in schema.types("events", given).items()
    )
    start = events["ts"].min() if meta.start_ns is None else meta.start_ns
    dated = replace(meta, start_ns=start if isinstance(start, int) else None)
    return sort_events(
        Trace((dated,), events=events, issues=issue_rows(issues, meta.rank, zeros=True))
    )


def issue_rows(issues: Iterable[Issue], rank: int | None, *, zeros: bool = False) -> pl.DataFrame:
    """Return rows of ``issues`` from (severity, code, count, place), with ``zeros`` or without."""
    rows = [(*issue, rank) for issue in issues if zeros or issue[2]]
    if not rows:
        return schema.empty("issues")
    return pl.DataFrame(rows, schema=schema.types("issues"), orient="row")


_FIELDS = {f.name for f in fields(Trace) if f.init} - {"sources"}
if set(schema.TABLES) != _FIELDS:
    raise AssertionError("Trace and schema.TABLES have different tables")
