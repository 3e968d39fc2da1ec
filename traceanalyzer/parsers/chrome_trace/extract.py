"""Typed events to the columns of a batch."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from traceanalyzer.parsers.chrome_trace import coerce, overflow, py_spy
from traceanalyzer.parsers.chrome_trace.batch import NEVER, Batch, Points, Slices
from traceanalyzer.parsers.chrome_trace.coerce import Codes, text_of
from traceanalyzer.parsers.chrome_trace.collectives import collective, tells
from traceanalyzer.parsers.chrome_trace.decode import (
    ABSENT,
    BAD_TEXT,
    NO_ARGS,
    NULL,
    Args,
    Event,
    decode_any,
)
from traceanalyzer.parsers.chrome_trace.metadata import metadata_event
from traceanalyzer.parsers.chrome_trace.phases import (
    FLOW_PHASES,
    INSTANT_PHASES,
    KNOWN_PHASES,
    PAIR_PHASES,
    slice_rows,
)
from traceanalyzer.parsers.chrome_trace.times import nanosecond, nanoseconds
from traceanalyzer.parsers.chrome_trace.want import MEMORY, PHASE_KINDS, Want
from traceanalyzer.vocabulary import DEVICE_KINDS, kind_of_category

#: Gives the arguments' JSON text of every event of a piece.
RawArgs = Callable[[], list[msgspec.Raw]]

_NO_ID = array("q", [NULL]).tobytes()


class Column:
    """A batch under construction: shared text codes, counted issues."""

    def __init__(self, want: Want, offset: int) -> None:
        self.want = want
        self.offset = offset
        self.codes = Codes()
        self.issues: dict[str, tuple[int, int]] = {}

    def lose(self, code: str, count: int = 1) -> None:
        """Count something that could not be kept."""
        if count:
            seen, first = self.issues.get(code, (0, self.offset))
            self.issues[code] = (seen + count, first)

    def text(self, values: list[Any]) -> bytes:
        """Codes of a column of text."""
        return self.codes.column(values)


def extract(
    events: list[Event],
    want: Want,
    offset: int,
    raw_args: RawArgs,
    order: Sequence[int] | None = None,
) -> Batch:
    """A batch of the wanted events of a piece.

    Args:
        events: the piece's events, in file order.
        want: what to keep.
        offset: the piece's place in the file, for issues.
        raw_args: gives the arguments' text of every event; asked for counters and ``args`` only.
        order: the events' numbers in the piece, where they are not all of it.
    """
    make = Column(want, offset)
    raw_args = overflow.put_back(events, raw_args)
    py_spy.rename(events, raw_args)
    phases = [event.ph if type(event.ph) is str else text_of(event.ph) for event in events]
    rows, profiles = slice_rows(events, phases)
    make.lose("profile-chunk", profiles)
    slices = [events[row] for row in rows]
    first = _first(slices)
    keep = want.keep
    if keep is not None:
        kept = [i for i, event in enumerate(slices) if keep(event)]
        slices, rows = [slices[i] for i in kept], [rows[i] for i in kept]
    batch = Batch(events=len(events))
    batch.slices = _slices(make, slices, rows, raw_args)
    _others(make, batch, events, phases, raw_args)
    begun = zip(array("q", batch.points.ts), batch.points.phase.decode(), strict=True)
    batch.first = min(first, *(time for time, phase in begun if phase not in "EeF"), NEVER)
    batch.texts = make.codes.table()
    batch.issues = make.issues
    if order is not None:
        for part in (batch.slices, batch.points, batch.flows):
            part.order = array("I", [order[row] for row in array("I", part.order)]).tobytes()
    return batch


def _first(events: list[Event]) -> int:
    """The earliest time of these events."""
    ts, _ = nanoseconds([event.ts for event in events])
    return min((time for time in ts if time != NULL), default=NEVER)


def _others(
    make: Column,
    batch: Batch,
    events: list[Event],
    phases: list[Any],
    raw_args: RawArgs,
) -> None:
    """Everything that is no row of ``events`` by itself."""
    want, present = make.want, set(phases)

    def of(wanted: frozenset[str]) -> list[tuple[int, Event]]:
        if present.isdisjoint(wanted):
            return []
        return [(row, events[row]) for row, phase in enumerate(phases) if phase in wanted]

    if pairs := of(PAIR_PHASES):
        batch.has_begin_end = True
        batch.points = _points(make, pairs, raw_args)
    if want.flows:
        arrows = of(FLOW_PHASES) + [
            (row, arrow)
            for row, event in enumerate(events)
            if event.bind_id is not None and (arrow := _bound_flow(event)) is not None
        ]
        batch.flows = _flows(make, arrows)
    if "M" in present:
        batch.metadata = [metadata_event(event) for _, event in of(frozenset("M"))]
    if want.counters and "C" in present:
        raw = raw_args()
        batch.counters = [
            reading
            for row, event in of(frozenset("C"))
            for reading in _counter(make, event, raw[row])
        ]
    for _, event in of(frozenset(present - KNOWN_PHASES)):
        _unusable(make, event)


def _unusable(make: Column, event: Event) -> None:
    if event.ph is None:
        # JAX closes its array with an empty event
        if event.name is not None or nanosecond(bytes(event.ts)) is not None:
            make.lose("no-phase")
    else:
        make.lose(f"unknown-phase-{text_of(event.ph)!s:.8}")


def _slices(make: Column, events: list[Event], rows: list[int], raw_args: RawArgs) -> Slices:
    if not events:
        return Slices()
    events, rows, ts = _timed(make, events, rows)
    dur, bad = nanoseconds([ABSENT if e.ph in INSTANT_PHASES else e.dur for e in events])
    make.lose("bad-duration", bad)
    if NULL in dur:
        make.lose("no-duration", _without_duration(events, dur) - bad)
    keep = make.want.inside(ts, dur)
    if keep is not None:
        events, rows = [events[i] for i in keep], [rows[i] for i in keep]
        ts, dur = _take(ts, keep), _take(dur, keep)
    pid, pid_labels = coerce.ids([e.pid for e in events])
    tid, tid_labels = coerce.ids([e.tid for e in events])
    args = [e.args if type(e.args) is Args else NO_ARGS for e in events]
    out = Slices(
        order=array("I", rows).tobytes(),
        ts=ts.tobytes(),
        dur=dur.tobytes(),
        category=make.text([e.cat for e in events]),
        name=make.text([e.name for e in events]),
        pid=pid,
        tid=tid,
        pid_labels=pid_labels,
        tid_labels=tid_labels,
        correlation=coerce.integers([a.correlation for a in args]),
        external_id=coerce.integers([a.external_id for a in args]),
    )
    if _NO_ID in out.external_id:
        out.external_id = _external_ids(args)
    on_device = _device_columns(out, events, args)
    _collective_columns(out, events, args, on_device)
    if MEMORY in make.codes:
        _memory_columns(out, events, args)
    _rare_columns(out, events)
    if make.want.args:
        raw = raw_args()
        out.args = [_json_text(raw[row]) for row in rows]
    if make.want.input_dims:
        out.input_dims = [_json_text(a.input_dims) for a in args]
    return out


def _without_duration(events: list[Event], dur: array[int]) -> int:
    """Complete events that say nothing, or nothing usable, about their duration."""
    return sum(1 for e, length in zip(events, dur, strict=True) if e.ph == "X" and length == NULL)


def _timed(
    make: Column, events: list[Event], rows: list[int]
) -> tuple[list[Event], list[int], array[int]]:
    """Events and rows without those that have no time, which are counted; and the times."""
    ts, bad = nanoseconds([e.ts for e in events])
    make.lose("bad-time", bad)
    if not events or min(ts) != NULL:
        return events, rows, ts
    have = [i for i, value in enumerate(ts) if value != NULL]
    make.lose("no-time", len(events) - len(have) - bad)
    return [events[i] for i in have], [rows[i] for i in have], _take(ts, have)


def _take(column: array[int], rows: list[int]) -> array[int]:
    return array("q", [column[row] for row in rows])


def _external_ids(args: list[Args]) -> bytes:
    """The column where some events may spell it as Kineto did in 2021."""
    return coerce.integers(
        [a.external_id if a.external_id != NULL else a.external_id_2021 for a in args]
    )


def _device_columns(out: Slices, events: list[Event], args: list[Args]) -> list[int]:
    """Fill the columns of device rows and of kernels; returns the device rows."""
    on_device = {c for c in {e.cat for e in events} if _is_device(c)}
    if not on_device:
        return []
    rows = [i for i, e in enumerate(events) if e.cat in on_device]
    out.device_rows = array("I", rows).tobytes()
    out.device = coerce.integers([args[i].device for i in rows])
    out.stream = coerce.integers([_stream(args[i].stream, events[i].tid) for i in rows])
    out.copied = coerce.integers([args[i].copied for i in rows])
    kernels = [i for i in rows if args[i].grid is not None]
    out.kernel_rows = array("I", kernels).tobytes()
    out.grid = coerce.triples([args[i].grid for i in kernels])
    out.block = coerce.triples([args[i].block for i in kernels])
    out.registers = coerce.integers([args[i].registers for i in kernels])
    out.shared_memory = coerce.integers([args[i].shared_memory for i in kernels])
    return rows


def _is_device(category: Any) -> bool:
    return kind_of_category(text_of(category)) in DEVICE_KINDS


def _stream(stream: Any, tid: Any) -> Any:
    if stream != NULL:
        return stream
    if isinstance(tid, str):  # "stream 7", as Kineto wrote in 2021
        digits = tid.removeprefix("stream").strip()
        return int(digits) if digits.isdecimal() and len(digits) < 19 else NULL
    return tid


def _collective_columns(
    out: Slices, events: list[Event], args: list[Args], on_device: list[int]
) -> None:
    told = {n for n in {e.name for e in events} if isinstance(n, str) and tells(n)}
    rows = {i for i in on_device if args[i].collective is not None}
    if told:
        rows.update(i for i, e in enumerate(events) if e.name in told)
    found = [(i, row) for i in sorted(rows) if (row := collective(events[i], args[i])) is not None]
    out.collective_rows = array("I", [i for i, _ in found]).tobytes()
    out.collectives = [row for _, row in found]


def _memory_columns(out: Slices, events: list[Event], args: list[Args]) -> None:
    rows = [i for i, a in enumerate(args) if a.allocated != NULL and events[i].name == MEMORY]
    if not rows:
        return
    chosen = [args[i] for i in rows]
    out.memory_rows = array("I", rows).tobytes()
    out.allocated = coerce.integers([a.allocated for a in chosen])
    out.address = coerce.addresses(
        [coerce.NULL_ADDRESS if a.address is None else a.address for a in chosen]
    )
    out.device_type = coerce.integers([a.device_type for a in chosen])
    out.device_id = coerce.integers([a.device_id for a in chosen])
    out.total_allocated = coerce.integers([a.total_allocated for a in chosen])
    out.total_reserved = coerce.integers([a.total_reserved for a in chosen])


def _rare_columns(out: Slices, events: list[Event]) -> None:
    frames = [e.sf for e in events]
    if frames.count(None) < len(frames):
        out.stack_frames = {i: f"{sf}" for i, sf in enumerate(frames) if sf is not None}
    out.phase_kinds = {i: PHASE_KINDS[e.ph] for i, e in enumerate(events) if e.ph in PHASE_KINDS}


def _points(make: Column, chosen: list[tuple[int, Event]], raw_args: RawArgs) -> Points:
    rows, events, points = _placed(make, chosen)
    points.key = make.text([_async_key(e) for e in events])
    if make.want.args:
        raw = raw_args()
        points.args = [_json_text(raw[row]) for row in rows]
    return points


def _flows(make: Column, chosen: list[tuple[int, Event]]) -> Points:
    _, events, points = _placed(make, chosen)
    points.id, points.id_labels = coerce.ids([e.id for e in events])
    points.at_next = [i for i, e in enumerate(events) if e.ph == "f" and e.bp != "e"]
    return points


def _placed(make: Column, chosen: list[tuple[int, Event]]) -> tuple[list[int], list[Event], Points]:
    """The columns of events that have a time, with those events and their rows."""
    rows, events = [row for row, _ in chosen], [event for _, event in chosen]
    events, rows, ts = _timed(make, events, rows)
    pid, pid_labels = coerce.ids([e.pid for e in events])
    tid, tid_labels = coerce.ids([e.tid for e in events])
    return (
        rows,
        events,
        Points(
            order=array("I", rows).tobytes(),
            phase="".join([e.ph for e in events]).encode(),
            ts=ts.tobytes(),
            category=make.text([e.cat for e in events]),
            name=make.text([e.name for e in events]),
            pid=pid,
            tid=tid,
            pid_labels=pid_labels,
            tid_labels=tid_labels,
        ),
    )


def _bound_flow(event: Event) -> Event | None:
    """The flow point a slice carries itself (``bind_id`` with ``flow_in``/``flow_out``)."""
    phase = {(False, True): "s", (True, True): "t", (True, False): "f"}.get(
        (event.flow_in is True, event.flow_out is True)
    )
    if phase is None:
        return None
    return Event(
        ph=phase, ts=event.ts, pid=event.pid, tid=event.tid, id=event.bind_id, bp="e", cat="bind_id"
    )


def _async_key(event: Event) -> str | None:
    """What begin and end of one async event share; None for B and E, which share their thread."""
    if event.ph in "BE":
        return None
    if event.ph in "STpF":
        return f"legacy\0{text_of(event.cat)}\0{text_of(event.id)}\0{text_of(event.name)}"
    identity, scope = event.id, text_of(event.scope)
    if isinstance(event.id2, dict) and event.id2:
        where, identity = next(iter(event.id2.items()))
        if where == "local":
            scope = f"{scope}\0{text_of(event.pid)}"
    return f"{text_of(event.cat)}\0{scope}\0{text_of(identity)}"


def _counter(
    make: Column, event: Event, raw: msgspec.Raw
) -> list[tuple[int, int, str | None, str, str, float]]:
    ts = nanosecond(bytes(event.ts))
    if ts is None:
        make.lose("no-time")
        return []
    try:
        args = decode_any(raw)
    except BAD_TEXT:
        args = None
    if not isinstance(args, dict):
        make.lose("bad-counter")
        return []
    pid = coerce.integer(event.pid)
    label = coerce.label(event.pid, pid)
    name = text_of(event.name) or ""
    if event.id is not None and event.id != NULL:
        name = f"{name}[{text_of(event.id)}]"
    rows = []
    for series, reading in args.items():
        number = _number(reading)
        if number is None:
            make.lose("bad-counter")
        else:
            rows.append((ts, pid, label, name, series, number))
    return rows


def _number(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and abs(number) < float("inf") else None


def _json_text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    return None if text == b"null" else text.decode("utf-8", "replace")
