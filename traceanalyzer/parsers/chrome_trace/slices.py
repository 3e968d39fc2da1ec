"""Convert complete events and instants to the columns of a batch."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from traceanalyzer import vocabulary
from traceanalyzer.parsers.chrome_trace import decode
from traceanalyzer.parsers.chrome_trace.columns import INPUTS, Collective, Issues, Rows, Slices
from traceanalyzer.parsers.chrome_trace.decode import NO_ARGS, NULL, Args, Event, text_of
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.trace import overlaps
from traceanalyzer.vocabulary import kind_of_category

#: Returns the arguments' JSON text of every event of a piece.
RawArgs = Callable[[], list[msgspec.Raw]]

#: The name of Kineto's allocator events, which had no category before 2022.
MEMORY = "[memory]"
#: Kinds that follow from the phase, whatever the category.
PHASE_KINDS = {"P": "sample", "N": "object", "O": "object", "D": "object"}
#: Instants; a duration written by some tools is ignored.
_INSTANT_PHASES = frozenset("iIR")

_HOST_COLLECTIVE = re.compile(r"^(?:[nr]cclx?|[xmh]ccl|gloo|mpi|ucc):|^record_param_comms$|^c10d::")
_decode_list = msgspec.json.Decoder(list[Any]).decode


class Draft:
    """State while a batch is built: selection, text codes, issues."""

    def __init__(self, selection: Selection, offset: int, raw_args: RawArgs) -> None:
        self.selection = selection
        self.offset = offset
        self.raw_args = raw_args
        self.codes = decode.Codes()
        self.issues = Issues()

    def lose(self, code: str, count: int = 1) -> None:
        """Count events that could not be kept."""
        if count:
            self.issues.note(code, self.offset, count)

    def timed(
        self, events: list[Event], rows: list[int]
    ) -> tuple[list[Event], list[int], array[int]]:
        """Return the events and rows that have a time, and the times; count the others."""
        ts, bad = decode.nanoseconds([e.ts for e in events])
        self.lose("bad-time", bad)
        if not events or min(ts) != NULL:
            return events, rows, ts
        have = [i for i, value in enumerate(ts) if value != NULL]
        self.lose("no-time", len(events) - len(have) - bad)
        return [events[i] for i in have], [rows[i] for i in have], _take(ts, have)

    def fill(self, out: Rows, events: list[Event], rows: list[int], ts: array[int]) -> None:
        """Fill the columns that all types of events have."""
        out.columns["order"] = array("I", rows).tobytes()
        out.columns["ts"] = ts.tobytes()
        out.columns["category"] = self.codes.column([e.cat for e in events])
        out.columns["name"] = self.codes.column([e.name for e in events])
        set_ids(out, "pid", [e.pid for e in events])
        set_ids(out, "tid", [e.tid for e in events])

    def json_texts(self, rows: list[int]) -> list[str | None] | None:
        """Return the arguments' text of rows, if it is selected."""
        if "args" not in self.selection.columns:
            return None
        raw = self.raw_args()
        return [_json_text(raw[row]) for row in rows]


def set_ids(out: Rows, name: str, values: list[Any]) -> None:
    """Fill a column of ids."""
    out.columns[name], labels = decode.ids(values)
    if labels:
        out.labels[name] = labels


def slice_columns(draft: Draft, events: list[Event], rows: list[int]) -> Slices:
    """Return the columns of the selected events; ``rows`` are their numbers in the piece."""
    events, rows = _wanted(draft.selection, events, rows)
    if not events:
        return Slices()
    events, rows, ts = draft.timed(events, rows)
    dur, bad = decode.nanoseconds(
        [decode.ABSENT if e.ph in _INSTANT_PHASES else e.dur for e in events]
    )
    draft.lose("bad-duration", bad)
    if NULL in dur:
        draft.lose("no-duration", _without_duration(events, dur) - bad)
    if draft.selection.windows:
        keep = _inside(draft.selection.windows, ts, dur)
        events, rows = [events[i] for i in keep], [rows[i] for i in keep]
        ts, dur = _take(ts, keep), _take(dur, keep)
    args = [e.args if type(e.args) is Args else NO_ARGS for e in events]
    out = Slices(args=draft.json_texts(rows))
    draft.fill(out, events, rows, ts)
    out.columns["dur"] = dur.tobytes()
    out.columns["correlation"] = decode.integers([a.correlation for a in args])
    out.columns["external_id"] = decode.integers(
        [a.external_id if a.external_id != NULL else a.external_id_2021 for a in args]
    )
    on_device = _device_columns(out.columns, events, args)
    _collective_columns(out, events, args, on_device)
    if MEMORY in draft.codes:
        _memory_columns(out.columns, events, args)
    out.stack_frames = {i: f"{e.sf}" for i, e in enumerate(events) if e.sf is not None}
    out.phase_kinds = {i: PHASE_KINDS[e.ph] for i, e in enumerate(events) if e.ph in PHASE_KINDS}
    _input_columns(draft, out.columns, events, args)
    return out


def _input_columns(
    draft: Draft, out: dict[str, bytes], events: list[Event], args: list[Args]
) -> None:
    """Fill the selected columns of operators' inputs."""
    names = [name for name in INPUTS if name in draft.selection.columns]
    if not names:
        return
    has = draft.selection.has_inputs
    rows = [i for i, event in enumerate(events) if has(event.name)]
    out["input_rows"] = array("I", rows).tobytes()
    for name in names:
        out[name] = draft.codes.column([_json_text(getattr(args[i], name)) for i in rows])


def _wanted(
    selection: Selection, events: list[Event], rows: list[int]
) -> tuple[list[Event], list[int]]:
    """Return the events with a selected kind or name."""
    if selection.kinds is None:
        return events, rows
    keep = [
        i
        for i, e in enumerate(events)
        if selection.wants(_kind(e), e.name if isinstance(e.name, str) else None)
    ]
    return [events[i] for i in keep], [rows[i] for i in keep]


def _kind(event: Event) -> str:
    kind = PHASE_KINDS.get(event.ph) or kind_of_category(event.cat)
    return "cpu_instant_event" if kind == "other" and event.name == MEMORY else kind


def _without_duration(events: list[Event], dur: array[int]) -> int:
    """Count complete events without a valid duration."""
    return sum(1 for e, length in zip(events, dur, strict=True) if e.ph == "X" and length == NULL)


def _inside(windows: Sequence[tuple[int, int]], ts: array[int], dur: array[int]) -> list[int]:
    """Return the rows that overlap a window."""
    return [
        row
        for row, (start, length) in enumerate(zip(ts, dur, strict=True))
        if overlaps(start, start + max(length, 0), windows)
    ]


def _take(column: array[int], rows: list[int]) -> array[int]:
    return array("q", [column[row] for row in rows])


def _device_columns(out: dict[str, bytes], events: list[Event], args: list[Args]) -> list[int]:
    """Fill the columns of device rows and of kernels; return the device rows."""
    on_device = {c for c in {e.cat for e in events} if is_device(c)}
    if not on_device:
        return []
    rows = [i for i, e in enumerate(events) if e.cat in on_device]
    out["device_rows"] = array("I", rows).tobytes()
    out["device"] = decode.integers([args[i].device for i in rows])
    out["stream"] = decode.integers([_stream(args[i].stream, events[i].tid) for i in rows])
    out["copied"] = decode.integers([args[i].copied for i in rows])
    kernels = [i for i in rows if args[i].grid is not None]
    out["kernel_rows"] = array("I", kernels).tobytes()
    out["grid"] = decode.triples([args[i].grid for i in kernels])
    out["block"] = decode.triples([args[i].block for i in kernels])
    out["registers"] = decode.integers([args[i].registers for i in kernels])
    out["shared_memory"] = decode.integers([args[i].shared_memory for i in kernels])
    return rows


def is_device(category: str | None) -> bool:
    """Whether events of a category run on a device."""
    return kind_of_category(category) in vocabulary.DEVICE_KINDS


def _stream(stream: Any, tid: Any) -> Any:
    if stream != NULL:
        return stream
    if isinstance(tid, str):  # "stream 7", as Kineto wrote in 2021
        digits = tid.removeprefix("stream").strip()
        return int(digits) if digits.isdecimal() and len(digits) < 19 else NULL
    return tid


def _memory_columns(out: dict[str, bytes], events: list[Event], args: list[Args]) -> None:
    rows = [i for i, a in enumerate(args) if a.allocated != NULL and events[i].name == MEMORY]
    chosen = [args[i] for i in rows]
    out["memory_rows"] = array("I", rows).tobytes()
    out["address"] = decode.addresses(
        [decode.NULL_ADDRESS if a.address is None else a.address for a in chosen]
    )
    for name in ("allocated", "device_type", "device_id", "total_allocated", "total_reserved"):
        out[name] = decode.integers([getattr(a, name) for a in chosen])


def _json_text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    return None if text == b"null" else text.decode("utf-8", "replace")


# --- collectives -----------------------------------------------------------------------------


def _collective_columns(
    out: Slices, events: list[Event], args: list[Args], on_device: list[int]
) -> None:
    names = {n for n in {e.name for e in events} if isinstance(n, str) and may_communicate(n)}
    rows = {i for i in on_device if args[i].collective is not None}
    if names:
        rows.update(i for i, e in enumerate(events) if e.name in names)
    kept = [(i, row) for i in sorted(rows) if (row := _collective(events[i], args[i])) is not None]
    out.columns["collective_rows"] = array("I", [i for i, _ in kept]).tobytes()
    out.collectives = [row for _, row in kept]


@lru_cache(maxsize=1 << 16)
def may_communicate(name: str) -> bool:
    """Whether a name may be that of communication; substrings, as every name is tested."""
    small = name.lower()
    return any(word in small for word in vocabulary.COMMUNICATION_TERMS)


@lru_cache(maxsize=1 << 12)
def _is_host_collective(name: str) -> bool:
    """Whether a name is that of a collective on the host."""
    return _HOST_COLLECTIVE.search(name) is not None


def _collective(event: Event, args: Args) -> Collective | None:
    """Return the collective of an event by arguments, name and tensors; None without one."""
    name = event.name if isinstance(event.name, str) else ""
    kind = kind_of_category(event.cat)
    host = kind in ("cpu_op", "user_annotation") and _is_host_collective(name)
    by_name = host or (kind == "kernel" and vocabulary.is_communication(name))
    if args.collective is None and not by_name:
        return None
    word = args.collective if isinstance(args.collective, str) else None
    of_word, of_kernel = vocabulary.collective_of_word, vocabulary.collective_of_kernel
    known = of_word(word) or (of_kernel if kind in vocabulary.DEVICE_KINDS else of_word)(name)
    dtype = args.dtype if isinstance(args.dtype, str) else None
    elements_in = decode.integer(args.elements_in)
    if host and dtype is None and elements_in == NULL:
        dtype, elements_in = _tensor(args)
    collective = known or word
    peer = {"send": args.target_rank, "recv": args.source_rank}.get(collective or "", NULL)
    return (
        collective,
        dtype,
        elements_in,
        decode.integer(args.elements_out),
        text_of(args.group),
        decode.integer(args.group_size),
        text_of(args.group_ranks),
        decode.integer(args.seq),
        decode.integer(peer),
        _splits(args.splits_in),
        _splits(args.splits_out),
    )


def _splits(value: Any) -> str | None:
    """Return recorded split sizes as text; None if they are equal, which PyTorch writes as []."""
    text = text_of(value)
    return text if text and text.strip("[] ") else None


def _tensor(args: Args) -> tuple[str | None, int]:
    """Return dtype and number of elements of an operator's first tensor or tensor list."""
    try:
        dims, types = _decode_list(args.input_dims), _decode_list(args.input_types)
    except decode.BAD_TEXT:
        return None, NULL
    if not dims or not types or not isinstance(types[0], str):
        return None, NULL
    elements = _elements(dims[0])
    if elements is None or types[0] in ("", "TensorList", "Scalar"):
        return None, NULL
    return types[0], decode.integer(elements)


def _elements(shape: Any) -> int | None:
    """Return the product of a shape; for a list of shapes, the sum of their products."""
    if not isinstance(shape, list) or not shape:
        return None
    if isinstance(shape[0], list):
        parts = [_elements(part) for part in shape[:1024]]
        return sum(part for part in parts if part is not None)
    product = 1
    for size in shape[:64]:
        if not isinstance(size, int) or size < 0 or product > 1 << 62:
            return None
        product *= size
    return product
