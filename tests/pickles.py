"""Pickles of memory snapshots: hand-written and generated, and their decoding for comparison."""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from traceanalyzer.parsers.memory_snapshot import machine
from traceanalyzer.parsers.memory_snapshot.document import Document
from traceanalyzer.parsers.memory_snapshot.machine import Machine
from traceanalyzer.parsers.memory_snapshot.unpickler import Problem, Refused

#: Kinds of dicts in torch 1.13 to 2.13: the identifying key, and the fields.
TABLES = (
    ("filename", ("name", "filename", "line")),
    ("action", ("action", "addr", "device_free", "size", "stream", "time_us", "frames", "pool_id")),
    ("state", ("address", "size", "requested_size", "state", "frames", "history")),
    ("total_size", ("device", "address", "total_size", "is_expandable", "frames", "blocks")),
    ("stage", ("name", "stage", "device", "time_us")),
    ("real_size", ("addr", "real_size", "frames")),
)
KEYS = tuple(dict.fromkeys(key for trigger, fields in TABLES for key in (*fields, trigger)))

Outcome = Document | tuple[str, int | None]


# --- reading ---------------------------------------------------------------------------------


@contextmanager
def in_python() -> Iterator[None]:
    """Read snapshots without the extension."""
    before = machine._machine
    machine._machine = None
    try:
        yield
    finally:
        machine._machine = before


def new() -> Machine:
    """Return a compiled machine for these tables."""
    return Machine(KEYS, TABLES)


def read(data: bytes, size: int = 1 << 20, *, slow: bool = False) -> Document:
    """Read a pickle in blocks of ``size`` bytes."""
    blocks = (data[start : start + size] for start in range(0, len(data), size))
    with in_python() if slow else nullcontext():
        return machine.read_pickle(blocks, KEYS, TABLES)


def outcome(data: bytes, size: int = 1 << 20, *, slow: bool = False) -> Outcome:
    """Return the document of a pickle, or reason and offset of its refusal."""
    try:
        return read(data, size, slow=slow)
    except Refused as refused:
        return refused.what, refused.offset


def refusal(data: bytes) -> tuple[str, int]:
    """Return why and where the compiled machine refuses a pickle."""
    fast = outcome(data)
    assert isinstance(fast, tuple), "not refused"
    assert fast[1] is not None
    return fast[0], fast[1]


#: Reasons for which only one of the two refuses a pickle: the compiled machine does not need the
#: first, what the others reject is harmless in Python's unpickler.
_ONLY_PLAIN = (Problem.KEY, Problem.DEEP, Problem.MEMORY)
_ONLY_COMPILED = (
    Problem.KEPT_TWICE,
    Problem.NESTED_TUPLE,
    Problem.NO_DICT,
    Problem.AGAIN,
    Problem.USED_TWICE,
    Problem.MEMORY,
)


def agree(fast: Outcome, slow: Outcome) -> bool:
    """Return whether both read the same, or both refuse a pickle."""
    if isinstance(fast, Document) and isinstance(slow, Document):
        return content(fast) == content(slow)
    if isinstance(fast, Document):
        assert isinstance(slow, tuple)
        return slow[0] in [problem.value for problem in _ONLY_PLAIN]
    if isinstance(slow, Document):
        patterns = [re.escape(one.value).replace(r"\{\}", r"\d+") for one in _ONLY_COMPILED]
        return any(re.fullmatch(pattern, fast[0]) for pattern in patterns)
    return True


def loaded(data: bytes) -> Any:
    """Return the unpickled value of a trusted file."""
    return pickle.loads(data)  # noqa: S301


# --- a document as objects -------------------------------------------------------------------


class _Objects:
    """Codes of a document as Python values; rows without fields that are None."""

    def __init__(self, document: Document) -> None:
        self._of = document
        self._runs = [
            [memoryview(part).cast("Q").tolist() for part in pair]
            for pair in (document.sequences, document.lists, document.dicts)
        ]
        self.columns = [
            {name: memoryview(data).cast("Q").tolist() for name, data in columns.items()}
            for _, columns in document.tables
        ]

        self._kept: dict[int, Any] = {}

    def value(self, code: int) -> Any:
        """Return the value of a code; shared values are decoded once."""
        if code not in self._kept:
            value = self._decoded(code)
            if code & 15 not in (7, 8) and (code & 15 != 11 or code >> 56):
                return value
            self._kept[code] = value
        return self._kept[code]

    def _decoded(self, code: int) -> Any:
        tag, of = code & 15, code >> 4
        if tag < 7:
            return self._scalar(tag, of)
        if tag == 11:
            row, columns = of & (1 << 52) - 1, self.columns[of >> 52]
            fields = {name: self.value(column[row]) for name, column in columns.items()}
            return {name: value for name, value in fields.items() if value is not None}
        ends, codes = self._runs[{7: 0, 8: 0, 9: 1, 10: 2}[tag]]
        if tag == 10:
            pairs = [self.value(item) for item in codes[2 * ends[of] : 2 * ends[of + 1]]]
            return dict(zip(pairs[::2], pairs[1::2], strict=True))
        items = [self.value(item) for item in codes[ends[of] : ends[of + 1]]]
        return tuple(items) if tag == 8 else items

    def _scalar(self, tag: int, of: int) -> Any:
        signed = of - (1 << 60) if of >> 59 else of
        return [
            lambda: None,
            lambda: bool(of),
            lambda: signed,
            lambda: self._of.bigs[of],
            lambda: self._of.floats[of],
            lambda: self._text(self._of.strings[of]),
            lambda: (),
        ][tag]()

    @staticmethod
    def _text(text: bytes) -> str | bytes:
        try:
            return text.decode(errors="surrogatepass")
        except UnicodeDecodeError:
            return text


def objects(document: Document) -> Any:
    """Return the document as Python values, like :func:`expected`."""
    return _Objects(document).value(document.root)


def content(document: Document) -> str:
    """Return value, rows and state of a document, independent of its numbering.

    Rows outside the root of a truncated file are left out.
    """
    known = _Objects(document)
    tables = [
        {name: list(map(known.value, column)) for name, column in columns.items()}
        for columns in known.columns
    ]
    state = (document.complete, document.consumed, document.protocol, document.trailing)
    rows = (tables, [rows for rows, _ in document.tables]) if document.complete else None
    # NaN is not equal to itself
    return repr((known.value(document.root), rows, state))


def expected(value: Any, kept: dict[int, Any] | None = None) -> Any:
    """Return a loaded snapshot as the machine stores it: rows have known fields only.

    Empty containers are empty tuples.
    """
    if not isinstance(value, list | tuple | dict):
        return value
    kept = {} if kept is None else kept  # by identity: stacks are shared
    if id(value) not in kept:
        kept[id(value)] = _expected(value, kept)
    return kept[id(value)]


def _expected(value: Any, kept: dict[int, Any]) -> Any:
    if not value:
        return ()
    if not isinstance(value, dict):
        return type(value)(expected(item, kept) for item in value)
    for trigger, fields in TABLES:
        if trigger in value:
            known = {name: expected(value[name], kept) for name in fields if name in value}
            return {name: item for name, item in known.items() if item is not None}
    return {key: expected(item, kept) for key, item in value.items()}


# --- snapshots -------------------------------------------------------------------------------


def snapshot(events: int = 40, depth: int = 5) -> dict[str, Any]:
    """Return a small snapshot with the unusual cases of real ones."""
    frames = [
        {"name": f"f{i}", "filename": f"/lib/ü{i % 7}.py", "line": i * 300} for i in range(depth)
    ]
    frames[-1]["line"] = (1 << 64) - 1
    shared, empty = frames[: depth // 2 + 1], []
    traces = [
        {
            "action": ("alloc", "free_requested", "free_completed")[i % 3],
            "addr": 0x7F00_0000_0000 + 512 * i,
            "size": i * 37 - 5,
            "stream": 0,
            "time_us": 1757253255215904 + i,
            "compile_context": "N/A",
            "pool_id": (0, i % 2),
            "frames": (shared, list(frames), empty, frames[:1])[i % 4],
        }
        for i in range(events)
    ]
    traces.append({"action": "oom", "device_free": 1 << 33, "size": 70_000, "stream": 0})
    blocks = [{"address": i, "size": 512, "state": "inactive", "frames": []} for i in range(3)]
    return {
        "segments": [
            {"device": 0, "address": 1 << 62, "total_size": 1 << 21, "is_expandable": False}
            | {"frames": shared, "blocks": blocks, "segment_pool_id": (0, 0)}
        ],
        "device_traces": [traces, []],
        "allocator_settings": {"conf": "", "max_split_size": -1, "ratio": 0.25, "deep": {"1": 0}},
        "external_annotations": [{"name": "step", "stage": "START", "device": 0, "time_us": 4}],
        "nothing": None,
        "large": [-(1 << 63), 1 << 59, (1 << 59) - 1, -(1 << 59), -(1 << 59) - 1, (1 << 71) - 1],
        17: (True, 1.5, "x", None),
    }


def like_torch(value: Any) -> bytes:
    """Pickle with protocol 2 like the C++ pickler of torch, which memoizes filled containers."""
    out, kept = bytearray(b"\x80\x02"), {}

    def put(key: Any) -> None:
        number = kept[key] = len(kept)
        out.extend(b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number))

    def get(number: int) -> None:
        out.extend(b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number))

    def filled(begin: bytes, items: list[Any], end: bytes) -> None:
        out.extend(begin + b"(")
        for item in items:
            write(item)
        out.extend(end)

    def write(one: Any) -> None:
        key = one if isinstance(one, str) else id(one)
        if isinstance(one, str | list | dict | tuple) and key in kept:
            return get(kept[key])
        if isinstance(one, str):
            raw = one.encode()
            out.extend(b"X" + struct.pack("<I", len(raw)) + raw)
        elif isinstance(one, list):
            filled(b"]", one, b"e")
        elif isinstance(one, dict):
            filled(b"}", [part for pair in one.items() for part in pair], b"u")
        elif isinstance(one, tuple):
            filled(b"", list(one), b"t")
        else:
            return out.extend(scalar(one))
        return put(key)

    write(value)
    return bytes(out + b".")


def scalar(value: Any) -> bytes:
    """Return the pickle of a scalar."""
    if isinstance(value, str):
        raw = value.encode()
        return b"X" + struct.pack("<I", len(raw)) + raw
    return pickle.dumps(value, 2)[2:-1]


def text(value: str) -> bytes:
    """SHORT_BINUNICODE."""
    return b"\x8c" + bytes([len(value.encode())]) + value.encode()


def hand(*parts: bytes) -> bytes:
    """Return a pickle of these opcodes between PROTO and STOP."""
    return b"\x80\x04" + b"".join(parts) + b"."


FRAME = b"}(" + text("filename") + text("a.py") + text("line") + b"K\x01u"
EVENT = b"}(" + text("action") + text("alloc") + text("addr") + b"K\x07u"
