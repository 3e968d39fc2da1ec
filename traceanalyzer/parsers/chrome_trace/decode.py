"""Strict decoding of events from JSON to typed objects, and conversion of values to columns.

Any fault in the text raises. Values may have any type: each function that builds a column has a
fast path for well-formed values and a slow one, value by value, for all others.
"""

from __future__ import annotations

import re
from array import array
from typing import Any

import msgspec

#: Null in integer columns before they become tables; never a valid ts, id or size.
NULL = -(1 << 63)
INT64_MAX = (1 << 63) - 1
UINT64_MAX = (1 << 64) - 1
#: Null in a UInt64 column before it becomes a table.
NULL_ADDRESS = UINT64_MAX
ABSENT = msgspec.Raw(b"null")


class Args(msgspec.Struct, gc=False):
    """The known arguments; the decoder skips all others."""

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
    # copies and memsets of PyTorch's cupti_monitor, whose names lack these
    copy_kind: Any = msgspec.field(default=None, name="copy kind")
    source_memory: Any = msgspec.field(default=None, name="src kind")
    target_memory: Any = msgspec.field(default=None, name="dst kind")
    memory_kind: Any = msgspec.field(default=None, name="memory kind")
    # communication
    collective: Any = msgspec.field(default=None, name="Collective name")
    elements_in: Any = msgspec.field(default=NULL, name="In msg nelems")
    elements_out: Any = msgspec.field(default=NULL, name="Out msg nelems")
    group_size: Any = msgspec.field(default=NULL, name="Group size")
    dtype: Any = None
    group: Any = msgspec.field(default=None, name="Process Group Name")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    seq: Any = msgspec.field(default=NULL, name="Seq")
    splits_in: Any = msgspec.field(default=None, name="In split size")
    splits_out: Any = msgspec.field(default=None, name="Out split size")
    source_rank: Any = msgspec.field(default=NULL, name="Src Rank")
    target_rank: Any = msgspec.field(default=NULL, name="Dst Rank")
    # [memory] instants
    allocated: Any = msgspec.field(default=NULL, name="Bytes")
    address: Any = msgspec.field(default=None, name="Addr")
    device_type: Any = msgspec.field(default=NULL, name="Device Type")
    device_id: Any = msgspec.field(default=NULL, name="Device Id")
    total_allocated: Any = msgspec.field(default=NULL, name="Total Allocated")
    total_reserved: Any = msgspec.field(default=NULL, name="Total Reserved")
    # operators
    input_dims: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    input_types: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    concrete_inputs: msgspec.Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    # metadata events
    name: Any = None
    labels: Any = None
    sort_index: Any = NULL
    value: Any = None
    # rocprof 1
    begin: Any = msgspec.field(default=None, name="BeginNs")
    dev_id: Any = msgspec.field(default=None, name="dev-id")
    queue: Any = msgspec.field(default=None, name="queue-id")
    # written by our own exporter
    original_tid: Any = msgspec.field(default=NULL, name="traceanalyzer tid")


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One event; times stay text, for exact nanoseconds."""

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
    """The text of an event's arguments."""

    args: msgspec.Raw = ABSENT


#: Exceptions of a strict decoder on bad text.
BAD_TEXT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

#: All events of a JSON array, and of newline-delimited JSON.
decode_events = msgspec.json.Decoder(list[Event]).decode
decode_lines = msgspec.json.Decoder(Event).decode_lines
#: Any value as plain Python objects; decimals stay text, for exact nanoseconds.
decode_any = msgspec.json.Decoder(float_hook=str).decode

_decode_event = msgspec.json.Decoder(Event).decode
_raw_args = msgspec.json.Decoder(list[RawArgs])
_raw_args_lines = msgspec.json.Decoder(RawArgs)


def decode_event(text: bytes) -> Event:
    """Decode one event; a value of an unexpected type is kept for the caller to coerce."""
    try:
        return _decode_event(text)
    except msgspec.ValidationError:
        return _loose_event(decode_any(text))


def decode_raw_args(array: bytes) -> list[msgspec.Raw]:
    """Return the arguments' text of every event of a JSON array, in order."""
    return [event.args for event in _raw_args.decode(array)]


def decode_raw_args_lines(lines: bytes) -> list[msgspec.Raw]:
    """Like :func:`decode_raw_args`, for newline-delimited JSON."""
    return [event.args for event in _raw_args_lines.decode_lines(lines)]


def _loose_event(value: Any) -> Event:
    """Build an event from a plain dict with values of any type.

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
    for raw in ("input_dims", "input_types", "concrete_inputs"):
        if raw in given:
            given[raw] = _as_raw(given[raw])
    return Args(**given)


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _as_raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


# --- values of columns --------------------------------------------------------------------

_decimal_integer = re.compile(r"[+-]?\d{1,20}")


def integers(values: list[Any]) -> bytes:
    """Return a column of Int64, null for values that are not integers."""
    try:
        return array("q", values).tobytes()
    except (TypeError, OverflowError):
        return array("q", [integer(value) for value in values]).tobytes()


def integer(value: Any) -> int:
    """Convert a number or numeric text to Int64, anything else to null."""
    if isinstance(value, str) and _decimal_integer.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and -INT64_MAX <= value <= INT64_MAX:
        return value
    return NULL


def addresses(values: list[Any]) -> bytes:
    """Return a column of UInt64: two's complement of negative values, null for non-integers."""
    return array("Q", map(_address, values)).tobytes()


def _address(value: Any) -> int:
    if isinstance(value, str):
        try:
            value = int(value, 16 if value.lower().startswith("0x") else 10)
        except ValueError:
            return NULL_ADDRESS
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= 64:
        return value & UINT64_MAX
    return NULL_ADDRESS


class Codes(dict[str | None, int]):
    """Codes of texts, in order of first appearance; null has the code ``EMPTY``."""

    EMPTY = (1 << 32) - 1

    def __init__(self) -> None:
        super().__init__({None: self.EMPTY})

    def __missing__(self, text: str) -> int:
        if type(text) is not str:
            raise TypeError("not text")
        code = self[text] = len(self) - 1
        return code

    def column(self, values: list[Any]) -> bytes:
        """Return the codes (UInt32) of a column; other values are converted to text first."""
        try:
            return array("I", map(self.__getitem__, values)).tobytes()
        except TypeError:
            return array("I", [self[text_of(value)] for value in values]).tobytes()

    def table(self) -> list[str]:
        """Return the texts by code."""
        return [text for text in self if text is not None]


def text_of(value: Any) -> str | None:
    """Convert a name to text: numbers as written, structures as JSON; None stays None."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, str | int | float | bool):
        return str(value)
    return msgspec.json.encode(value).decode()


def ids(values: list[Any]) -> tuple[bytes, dict[int, str]]:
    """Return a column of process or thread ids, and the textual ids by row.

    Integers and numeric text are ids; other text is a label (its id is null here and set by the
    assembler); a missing id is null.
    """
    try:
        return array("q", values).tobytes(), {}
    except (TypeError, OverflowError):
        pass
    column, labels = array("q"), {}
    for row, value in enumerate(values):
        number = integer(value)
        column.append(number)
        if (text := label(value, number)) is not None:
            labels[row] = text
    return column.tobytes(), labels


def label(value: Any, number: int) -> str | None:
    """Return the text of an id that is not a number, else None."""
    return text_of(value) if number == NULL and value is not None and value != NULL else None


def triples(values: list[Any]) -> bytes:
    """Return x, y, z of every value, flat, as Int32; -1 if a value is not a triple of integers."""
    return array("i", [number for value in values for number in _triple(value)]).tobytes()


def _triple(value: Any) -> tuple[int, int, int]:
    if isinstance(value, list) and len(value) == 3:
        numbers = [integer(v) for v in value]
        if all(0 <= n < 1 << 31 for n in numbers):
            return numbers[0], numbers[1], numbers[2]
    return -1, -1, -1


# --- times in microseconds -----------------------------------------------------------------

#: Decimals of a nanosecond in us; microseconds with fewer digits than ``_PLAIN`` fit Int64 as ns.
_DIGITS, _PLAIN = 3, 16
_number = re.compile(rb'"?\s*(-?)(\d+)(?:\.(\d*))?(?:[eE]([+-]?\d{1,3}))?\s*"?')


def nanoseconds(texts: list[msgspec.Raw]) -> tuple[array[int], int]:
    """Convert JSON numbers in us to Int64 ns, ``NULL`` for null; also count the invalid times."""
    column, bad = array("q"), 0
    for each in texts:
        value = nanosecond(bytes(each))
        bad += value is None and bytes(each) != b"null"
        column.append(NULL if value is None else value)
    return column, bad


def nanosecond(text: bytes) -> int | None:
    """Convert a time in us, as JSON text, to the nearest ns; None if it is invalid."""
    whole, point, fraction = text.partition(b".")
    if whole.isdigit() and len(whole) < _PLAIN:  # nearly always
        if not point:
            return int(whole) * 1000
        if len(fraction) == _DIGITS and fraction.isdigit():
            return int(whole + fraction)
    match = _number.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, exponent = match.groups()
    digits = whole + (fraction or b"")
    if len(digits) > 400:
        return None
    power = 3 - len(fraction or b"") + int(exponent or 0)
    if power >= 0:
        value = int(digits) * 10 ** min(power, 40)
    else:
        unit: int = 10 ** min(-power, 500)
        value = (int(digits) + unit // 2) // unit
    value = -value if sign else value
    return value if -INT64_MAX <= value <= INT64_MAX else None
