"""JSON text of events to typed objects, strictly: any fault in the text raises."""

from __future__ import annotations

from typing import Any

import msgspec

#: "Not there" in integer columns on their way to the tables; nobody's ts, id or size.
NULL = -(1 << 63)
ABSENT = msgspec.Raw(b"null")


class Args(msgspec.Struct, gc=False):
    """The arguments we know; the others are skipped by the decoder."""

    external_id: Any = msgspec.field(default=NULL, name="External id")
    external_id_2021: Any = msgspec.field(default=NULL, name="external id")
    correlation: Any = NULL
    device: Any = NULL
    stream: Any = NULL
    copied: Any = msgspec.field(default=NULL, name="bytes")
    grid: Any = None
    block: Any = None
    registers: Any = msgspec.field(default=NULL, name="registers per thread")
    shared_memory: Any = msgspec.field(default=NULL, name="shared memory")
    # communication
    collective: Any = msgspec.field(default=None, name="Collective name")
    elements_in: Any = msgspec.field(default=NULL, name="In msg nelems")
    elements_out: Any = msgspec.field(default=NULL, name="Out msg nelems")
    group_size: Any = msgspec.field(default=NULL, name="Group size")
    dtype: Any = None
    group: Any = msgspec.field(default=None, name="Process Group Name")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    seq: Any = msgspec.field(default=NULL, name="Seq")
    # [memory] instants
    allocated: Any = msgspec.field(default=NULL, name="Bytes")
    address: Any = msgspec.field(default=None, name="Addr")
    device_type: Any = msgspec.field(default=NULL, name="Device Type")
    device_id: Any = msgspec.field(default=NULL, name="Device Id")
    total_allocated: Any = msgspec.field(default=NULL, name="Total Allocated")
    total_reserved: Any = msgspec.field(default=NULL, name="Total Reserved")
    # operators
    input_dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    input_type: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    # metadata events
    name: Any = None
    labels: Any = None
    sort_index: Any = NULL
    value: Any = None
    # written by our own exporter
    original_tid: Any = msgspec.field(default=NULL, name="traceanalyzer tid")


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One event; its times are kept as text, for exact nanoseconds."""

    ph: Any = None
    cat: str | None = None
    name: str | int | float | None = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    pid: Any = NULL
    tid: Any = NULL
    id: Any = NULL
    args: Args | str | list[Any] | float | bool | None = None
    bp: Any = None
    id2: Any = None
    scope: Any = None
    sf: Any = None
    bind_id: Any = None
    flow_in: Any = None
    flow_out: Any = None


class RawArgs(msgspec.Struct, gc=False):
    """Only the text of an event's arguments."""

    args: msgspec.Raw = ABSENT


_events = msgspec.json.Decoder(list[Event])
_event_lines = msgspec.json.Decoder(Event)
_raw_args = msgspec.json.Decoder(list[RawArgs])
_raw_args_lines = msgspec.json.Decoder(RawArgs)
# decimals stay text, so that a time keeps its nanoseconds on this route too
_any = msgspec.json.Decoder(float_hook=str)

#: What a strict decoder raises on bad text.
BAD_TEXT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_events(array: bytes) -> list[Event]:
    """All events of a JSON array."""
    return _events.decode(array)


def decode_lines(lines: bytes) -> list[Event]:
    """All events of newline-delimited JSON."""
    return _event_lines.decode_lines(lines)


def decode_event(text: bytes) -> Event:
    """One event; a value of a strange type is kept for the caller to coerce."""
    try:
        return _event_lines.decode(text)
    except msgspec.ValidationError:
        return loosen(_any.decode(text))


def decode_raw_args(array: bytes) -> list[msgspec.Raw]:
    """The arguments' text of every event of a JSON array, in order."""
    return [event.args for event in _raw_args.decode(array)]


def decode_raw_args_lines(lines: bytes) -> list[msgspec.Raw]:
    """The same of newline-delimited JSON."""
    return [event.args for event in _raw_args_lines.decode_lines(lines)]


def decode_any(text: bytes | msgspec.Raw) -> Any:
    """Any JSON value as plain Python objects."""
    return _any.decode(text)


def loosen(value: Any) -> Event:
    """An event from a plain dict, whatever its values' types.

    Raises:
        msgspec.DecodeError: the value is not a JSON object.
    """
    if not isinstance(value, dict):
        raise msgspec.DecodeError("not an object")
    args = value.get("args")
    fields = {
        "ts": _as_raw(value.get("ts")),
        "dur": _as_raw(value.get("dur")),
        "cat": _as_text(value.get("cat")),
        "name": _as_text(value.get("name")),
        "args": _loose_args(args) if isinstance(args, dict) else None,
    }
    known = {k: v for k, v in value.items() if k in Event.__struct_fields__}
    return Event(**{**known, **fields})


def _loose_args(args: dict[str, Any]) -> Args:
    names = dict(zip(Args.__struct_encode_fields__, Args.__struct_fields__, strict=True))
    given = {names[key]: value for key, value in args.items() if key in names}
    for raw in ("input_dims", "input_type"):
        if raw in given:
            given[raw] = _as_raw(given[raw])
    return Args(**given)


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _as_raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
