"""Convert the typed events of a piece to a batch of columns."""

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from traceanalyzer.parsers.chrome_trace import columns, decode
from traceanalyzer.parsers.chrome_trace.decode import NO_ARGS, NULL, Args, Event, text_of
from traceanalyzer.parsers.chrome_trace.points import Draft, RawArgs, set_ids, slice_columns
from traceanalyzer.parsers.contract import Selection

_SLICE_PHASES = frozenset("XiIRPNODvVc")
_PAIR_PHASES = frozenset("BEbenSTpF")
_FLOW_PHASES = frozenset("stf")
_KNOWN_PHASES = _SLICE_PHASES | _PAIR_PHASES | _FLOW_PHASES | frozenset("()MC")
#: Events of phase P that contain many samples of V8's CPU profiler each.
_PROFILES = ("Profile", "ProfileChunk")
#: Names of copies and memsets without direction and kind of memory.
_UNNAMED = ("Memcpy", "Memset")
#: Processes of operators and kernels in ``EventList.export_chrome_trace``.
_FUNCTIONS = ("CPU functions", "CUDA functions")
#: Process of the counters of a GPU, which have no series, in PyTorch's cupti_monitor.
_COUNTERS_OF_GPU = re.compile(r"(GPU \d+) Counters")


def extract(
    events: list[Event],
    selection: Selection,
    offset: int,
    raw_args: RawArgs,
    order: Sequence[int] | None = None,
) -> columns.Batch:
    """Return a batch of the selected events of a piece.

    Args:
        events: the piece's events, in file order.
        selection: what to keep.
        offset: offset of the piece in the file, for issues.
        raw_args: returns the arguments' text of every event; called for counters and ``args`` only.
        order: the events' numbers in the piece, if they are only part of it.
    """
    raw_args = _as_recorded(events, raw_args)
    draft = Draft(selection, offset, raw_args)
    phases = [_phase(event) for event in events]
    rows = _slice_rows(draft, events, phases)
    slices = [events[row] for row in rows]
    times, _ = decode.nanoseconds([event.ts for event in slices])
    batch = columns.Batch(events=len(events))
    batch.slices = slice_columns(draft, slices, rows)
    _others(draft, batch, events, phases)
    begun = zip(
        array("q", batch.points.columns.get("ts", b"")),
        batch.points.columns.get("phase", b"").decode(),
        strict=True,
    )
    times.extend(time for time, phase in begun if phase not in "EeF")
    batch.first = min((time for time in times if time != NULL), default=columns.NEVER)
    batch.texts = draft.codes.table()
    batch.issues = draft.issues
    if order is not None:
        for part in (batch.slices, batch.points, batch.flows):
            numbers = array("I", part.columns.get("order", b""))
            part.columns["order"] = array("I", [order[row] for row in numbers]).tobytes()
    return batch


def _phase(event: Event) -> Any:
    """Return the phase as text; an async step (``T``) with a duration becomes a slice."""
    if event.ph == "T" and event.dur != decode.ABSENT:
        event.ph = "X"
    return event.ph if type(event.ph) is str else text_of(event.ph)


def _as_recorded(events: list[Event], raw_args: RawArgs) -> RawArgs:
    """Correct what some producers write; return the function for the arguments' text."""
    moved = [
        row
        for row, event in enumerate(events)
        if type(event.args) is Args and event.args.original_tid != NULL
    ]
    of_py_spy = [row for row, e in enumerate(events) if e.cat == "py-spy" and e.ph in ("B", "E")]
    unnamed = [e for e in events if e.name in _UNNAMED and type(e.args) is Args]
    functions = [event for event in events if event.pid in _FUNCTIONS]
    of_rocprof = [e for e in events if type(e.args) is Args and e.args.begin is not None]
    if moved or of_py_spy or unnamed or functions or of_rocprof:
        from traceanalyzer.parsers.chrome_trace import producers

        raw_args = producers.undo_overflow(events, moved, raw_args)
        producers.name_py_spy_frames(events, of_py_spy, raw_args)
        producers.name_copies(unnamed)
        producers.as_operators_and_kernels(functions)
        producers.as_device_work_and_calls(of_rocprof)
    return raw_args


def _slice_rows(draft: Draft, events: Sequence[Event], phases: Sequence[Any]) -> list[int]:
    """Return the rows of the events that become rows of ``events``.

    Events with a V8 CPU profile are not samples: they are counted as an issue and dropped.
    """
    rows = [row for row, phase in enumerate(phases) if phase in _SLICE_PHASES]
    if "P" not in phases:
        return rows
    kept = [
        row
        for row in rows
        if phases[row] != "P" or events[row].name not in _PROFILES or events[row].sf is not None
    ]
    draft.lose("profile-chunk", len(rows) - len(kept))
    return kept


def _others(draft: Draft, batch: columns.Batch, events: list[Event], phases: list[Any]) -> None:
    """Process all events that are not a row of ``events`` by themselves."""
    selection, present = draft.selection, set(phases)

    def of(wanted: frozenset[str]) -> list[tuple[int, Event]]:
        if present.isdisjoint(wanted):
            return []
        return [(row, events[row]) for row, phase in enumerate(phases) if phase in wanted]

    if pairs := of(_PAIR_PHASES):
        batch.points = _points(draft, pairs)
    if selection.wants("flow", None):
        arrows = of(_FLOW_PHASES) + [
            (row, arrow)
            for row, event in enumerate(events)
            if event.bind_id is not None and (arrow := _bound_flow(event)) is not None
        ]
        batch.flows = _flows(draft, arrows)
    batch.metadata = [_metadata(event) for _, event in of(frozenset("M"))]
    if selection.wants("counter", None) and "C" in present:
        raw = draft.raw_args()
        batch.counters = [
            reading
            for row, event in of(frozenset("C"))
            for reading in _readings(draft, event, raw[row])
        ]
    for _, event in of(frozenset(present - _KNOWN_PHASES)):
        _lose(draft, event)


def _lose(draft: Draft, event: Event) -> None:
    """Count an event with an unknown phase."""
    if event.ph is not None:
        draft.lose(f"unknown-phase-{text_of(event.ph)!s:.8}")
    # JAX closes its array with an empty event
    elif event.name is not None or decode.nanosecond(bytes(event.ts)) is not None:
        draft.lose("no-phase")


def _points(draft: Draft, chosen: list[tuple[int, Event]]) -> columns.Rows:
    out = columns.Rows()
    events, rows = _placed(draft, out, chosen)
    out.columns["key"] = draft.codes.column([_async_key(e) for e in events])
    out.args = draft.json_texts(rows)
    return out


def _flows(draft: Draft, chosen: list[tuple[int, Event]]) -> columns.Flows:
    out = columns.Flows()
    events, _ = _placed(draft, out, chosen)
    set_ids(out, "id", [e.id for e in events])
    out.at_next = [i for i, e in enumerate(events) if e.ph == "f" and e.bp != "e"]
    return out


def _placed(
    draft: Draft, out: columns.Rows, chosen: list[tuple[int, Event]]
) -> tuple[list[Event], list[int]]:
    """Fill the columns of the events that have a time; return these and their rows."""
    events, rows, ts = draft.timed([event for _, event in chosen], [row for row, _ in chosen])
    draft.fill(out, events, rows, ts)
    out.columns["phase"] = "".join([e.ph for e in events]).encode()
    return events, rows


def _bound_flow(event: Event) -> Event | None:
    """Return the flow point of a slice with ``bind_id`` and ``flow_in``/``flow_out``, or None."""
    phase = {(False, True): "s", (True, True): "t", (True, False): "f"}.get(
        (event.flow_in is True, event.flow_out is True)
    )
    if phase is None:
        return None
    return Event(
        ph=phase, ts=event.ts, pid=event.pid, tid=event.tid, id=event.bind_id, bp="e", cat="bind_id"
    )


def _async_key(event: Event) -> str | None:
    """Return the key shared by begin and end of an async event; None for B and E."""
    if event.ph in "BE":
        return None
    if event.ph in "STpF":
        return f"legacy\0{event.cat}\0{text_of(event.id)}\0{text_of(event.name)}"
    identity, scope = event.id, text_of(event.scope)
    if isinstance(event.id2, dict) and event.id2:
        where, identity = next(iter(event.id2.items()))
        if where == "local":
            scope = f"{scope}\0{text_of(event.pid)}"
    return f"{event.cat}\0{scope}\0{text_of(identity)}"


def _readings(draft: Draft, event: Event, raw: msgspec.Raw) -> Iterator[columns.CounterValue]:
    """Return the readings of a counter event, one per series."""
    ts = decode.nanosecond(bytes(event.ts))
    if ts is None:
        draft.lose("no-time")
        return
    try:
        args = decode.decode_any(raw)
    except decode.BAD_TEXT:
        args = None
    if not isinstance(args, dict):
        draft.lose("bad-counter")
        return
    pid = decode.integer(event.pid)
    label = decode.label(event.pid, pid)
    name = text_of(event.name) or ""
    if event.id is not None and event.id != NULL:
        name = f"{name}[{text_of(event.id)}]"
    of_gpu = _COUNTERS_OF_GPU.fullmatch(label or "")
    for series, value in args.items():
        number = _number(value)
        if number is None:
            draft.lose("bad-counter")
        else:
            named = of_gpu[1] if of_gpu and not series else series
            yield ts, pid, label, name, named, number


def _number(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and abs(number) < float("inf") else None


def _metadata(event: Event) -> columns.Metadata:
    """Return the content of a metadata event (phase M)."""
    pid, tid = decode.integer(event.pid), decode.integer(event.tid)
    args = event.args if type(event.args) is Args else NO_ARGS
    given = {
        "name": text_of(args.name),
        "labels": text_of(args.labels),
        "sort_index": decode.integer(args.sort_index),
        "value": text_of(args.value),
    }
    known = {key: value for key, value in given.items() if value not in (None, NULL)}
    return (
        text_of(event.name) or "",
        pid,
        decode.label(event.pid, pid),
        tid,
        decode.label(event.tid, tid),
        msgspec.json.encode(known).decode(),
    )
