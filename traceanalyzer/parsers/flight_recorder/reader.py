"""Build the tables of a trace from the content of a dump.

Versions differ in their keys (1.1 of 2024 to 2.10): none is required of an entry, and missing ones
are null. JSON has 0 in place of null, texts in place of numbers, and no frames.

A pickle is never executed: the unpickler has only the opcodes of plain data. Texts of a pickle are
bytes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import orjson
import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput
from traceanalyzer.frames.stacks import NONE, Interner
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.parsers.memory_snapshot import is_pickle
from traceanalyzer.parsers.memory_snapshot.unpickler import (
    PlainUnpickler,
    Problem,
    Refused,
    opcode_name,
)
from traceanalyzer.parsers.source import Source, rank_from_name
from traceanalyzer.parsers.tables import Frame, as_table, stacks_table
from traceanalyzer.schema import LAST_EPOCH_NS, MAX_BYTES, MAX_RANKS
from traceanalyzer.trace import Meta, Trace, issue_rows
from traceanalyzer.units import NS_PER_MS
from traceanalyzer.vocabulary import FLIGHT_RECORDER, POINT_TO_POINT

#: Larger files are not dumps: 2,000 entries take about 1 MB.
MOST_BYTES = 1 << 30
#: A value of JSON takes about 100 bytes of memory, but may be 3 bytes of text.
_MOST_VALUES = 1 << 24
_BLOCK = 1 << 20
_HINT = "pass the files that the Flight Recorder wrote, one per rank"
#: Problems whose text speaks of memory snapshots.
_TEXTS = {
    Problem.OPCODE: "opcode {op} does not occur in dumps; no code in it was executed",
    Problem.MEMORY: "needs more memory than a dump of this size",
}


@dataclass(frozen=True)
class Content:
    """The content of a file.

    Attributes:
        root: the dump, with texts or bytes as keys.
        truncated: bytes that were read of a truncated file, or None for a complete one.
        trailing: bytes after the end.
    """

    root: dict[Any, Any]
    truncated: int | None
    trailing: int = 0


def read(source: Source, progress: Progress | None) -> Content:
    """Read a file; of a truncated one, all complete entries.

    Raises:
        MalformedInput: the file is neither, or not a dump.
    """
    is_json = not is_pickle(source.head())
    return (_read_json if is_json else _read_pickle)(source, _blocks(source, progress))


def _blocks(source: Source, progress: Progress | None) -> Iterator[bytes]:
    size = 0
    for block in source.blocks(_BLOCK, progress):
        size += len(block)
        if size > MOST_BYTES:
            raise MalformedInput(source.path, "larger than any Flight Recorder dump", hint=_HINT)
        yield block


# --- pickle ------------------------------------------------------------------------------------


def _read_pickle(source: Source, blocks: Iterator[bytes]) -> Content:
    unpickler = PlainUnpickler(blocks)
    try:
        root = unpickler.load()
    except Refused as error:
        raise _refused(source, error) from None
    if isinstance(root, list):  # the first versions pickled the entries alone
        root = {b"entries": root}
    if not isinstance(root, dict):
        raise MalformedInput(
            source.path, f"a pickle of {_kind(root)}, not a Flight Recorder dump", hint=_HINT
        )
    if unpickler.complete:
        return Content(root, None, unpickler.trailing)
    _drop_incomplete_entry(root)
    return Content(root, unpickler.consumed)


def _drop_incomplete_entry(root: dict[Any, Any]) -> None:
    """Remove the last entry of a truncated pickle unless it certainly was read wholly.

    It was if a key follows the entries, or if it has every key that all others have and ends with
    a plain value.
    """
    key = next(reversed(root), None)
    entries = root.get(key)
    if key != b"entries" or not isinstance(entries, list) or not entries:
        return
    last, others = entries[-1], [one for one in entries[:-1] if isinstance(one, dict)]
    is_whole = (
        isinstance(last, dict)
        and bool(last and others)
        and set.intersection(*map(set, others)) <= last.keys()
        and not isinstance(last[next(reversed(last))], list | tuple | dict)
    )
    if not is_whole:
        del entries[-1]


def _refused(source: Source, error: Refused) -> MalformedInput:
    text = _TEXTS.get(error.problem, error.problem.value)
    what = text.format(error.number, op=opcode_name(error.number))
    where = f"byte {error.offset:,}"
    return MalformedInput(
        source.path, f"not a Flight Recorder dump: {what}", where=where, hint=_HINT
    )


def _kind(value: object) -> str:
    return f"a {type(value).__name__}" if value is not None else "nothing"


# --- JSON --------------------------------------------------------------------------------------


def _read_json(source: Source, blocks: Iterator[bytes]) -> Content:
    data = b"".join(blocks)
    if sum(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise MalformedInput(
            source.path, "more values than any Flight Recorder dump has", hint=_HINT
        )
    try:
        root = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        text = data.decode(errors="replace")
        try:
            root = json.loads(text, parse_constant=lambda _: None)  # NaN and Infinity
        except (ValueError, RecursionError):
            return _complete_entries(source, text, error)
    if not isinstance(root, dict):
        raise MalformedInput(source.path, f"JSON of {_kind(root)}, not a dump", hint=_HINT)
    return Content(root, None)


def _complete_entries(source: Source, text: str, error: orjson.JSONDecodeError) -> Content:
    """Return the complete values of truncated or damaged JSON: of its entries, and after them."""
    root: dict[str, Any] = {}
    reach = 0
    for key in ("entries", "pg_config", "pg_status", "version"):
        start = text.find(f'"{key}"')
        value_at = text.find(":", start) + 1 if start >= 0 else 0
        if not value_at:
            continue
        if key == "entries":
            root[key], reach = _items(text, value_at)
            continue
        value, _ = _value(text, value_at)
        if value is not None:
            root[key] = value
    if not root.get("entries"):
        place = f"byte {error.pos:,}"
        raise MalformedInput(
            source.path, f"damaged JSON without a complete entry: {error.msg}", where=place
        )
    return Content(root, reach)


def _items(text: str, at: int) -> tuple[list[Any], int]:
    """Return the complete items of a list, and where the last one ends."""
    at = text.find("[", at) + 1
    items: list[Any] = []
    while at:
        item, end = _value(text, at)
        if end == 0:
            return items, at
        items.append(item)
        at = end
        while text[at : at + 1].isspace():
            at += 1
        if text[at : at + 1] != ",":
            return items, at
        at += 1
    return items, at


_DECODER = json.JSONDecoder()


def _value(text: str, at: int) -> tuple[Any, int]:
    """Return the value at a position and its end; 0 if it is incomplete."""
    while text[at : at + 1].isspace():
        at += 1
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None, 0


#: How to record collectives.
RECORD = "set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 (newer name: TORCH_FR_BUFFER_SIZE)"

_STATES = frozenset(schema.STATE.categories)
_PAIR = re.compile(r"(\d{1,9})\s*(->|<-)\s*(\d{1,9})")
_LAST_NUMBER = re.compile(r"(\d{1,7})(?:\.[A-Za-z]\w*)*$")
#: Limits per entry: tensors whose shape is written, dimensions of a tensor, frames of a stack.
_NAMED, _DIMENSIONS, _DEEPEST = 4, 64, 1000
_LAST = 1 << 63


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:  # noqa: ARG001 - small, always read wholly
    """Read a dump; of a truncated one, all complete entries.

    The rank is that of the key ``rank`` if the file has one, else of the file's name: ``rank_3``,
    ``nccl_trace_rank_3``, or a number at its end.

    Raises:
        MalformedInput: the file is not a dump, or was written without collectives.
        UnreadableFile: the file cannot be read.
    """
    content = read(source, progress)
    top = _Fields(content.root)
    entries = top.get("entries")
    if entries is None and content.truncated is None:
        raise MalformedInput(
            source.path, "a Flight Recorder dump without entries", hint=f"{RECORD}, and dump again"
        )
    listed = entries if isinstance(entries, list | tuple) else []
    rows = [_Fields(entry) for entry in listed if isinstance(entry, dict)]
    numbers = _Numbers()
    rank = numbers.whole(top.get("rank"), MAX_RANKS)
    rank = _rank_of(source.path) if rank is None else rank
    stacks = _Stacks()
    records = _records(rows, stacks, numbers).with_columns(rank=pl.lit(rank, pl.Int32))
    groups = _groups(top, rows, numbers).with_columns(rank=pl.lit(rank, pl.Int32))
    version = top.text("version")
    return Trace(
        sources=(
            Meta(
                path=source.path,
                format=FLIGHT_RECORDER,
                version=version,
                epoch_ns=0,
                rank=rank,
                backend=_backend(rows),
                extra=_extra(top),
            ),
        ),
        stacks=stacks.table(),
        process_groups=as_table(groups, "process_groups"),
        collective_records=as_table(records, "collective_records"),
        issues=issue_rows(_issues(source, content, listed, rows, numbers), rank),
    )


# --- values ------------------------------------------------------------------------------------


class _Fields:
    """A dict by text, whether its keys are texts (JSON) or bytes (pickle)."""

    def __init__(self, values: dict[Any, Any]) -> None:
        self._values = values

    def get(self, name: str) -> Any:
        """Return a value; None without one."""
        value = self._values.get(name)
        return self._values.get(name.encode()) if value is None else value

    def text(self, name: str) -> str | None:
        """Return a value as text; None if it is neither text nor a number."""
        return _text(self.get(name))

    def dicts(self) -> Iterator[tuple[str, _Fields]]:
        """Yield the dicts in this dict by key."""
        for key, value in self._values.items():
            if isinstance(value, dict):
                yield _text(key) or "", _Fields(value)


class _Numbers:
    """Reads numbers, and counts other values."""

    def __init__(self) -> None:
        self.wrong = 0

    def whole(self, value: Any, most: int = _LAST) -> int | None:
        """Return a whole number from 0 to below ``most``; None for other values."""
        if isinstance(value, bytes | str):
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            try:
                value = int(text) if len(text) < 20 else None
            except ValueError:
                value = None
            if value is None:
                self.wrong += bool(text)
                return None
        if value is None or isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong += value is not None
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self.wrong += 1
            return None
        if not 0 <= value < most:
            self.wrong += value != -1  # -1: none yet
            return None
        return int(value)

    def time(self, value: Any) -> int | None:
        """Return a time in ns; None for 0, which JSON has in place of null."""
        return self.whole(value, LAST_EPOCH_NS) or None

    def milliseconds(self, value: Any) -> int | None:
        """Return milliseconds as ns."""
        if isinstance(value, float) and math.isfinite(value) and 0 <= value < 1e12:
            return round(value * NS_PER_MS)
        known = self.whole(value, LAST_EPOCH_NS // NS_PER_MS)
        return None if known is None else known * NS_PER_MS


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value) if abs(value) < _LAST else None
    # lone surrogates of JSON are not UTF-8
    return value.encode(errors="replace").decode() if isinstance(value, str) else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


# --- entries -----------------------------------------------------------------------------------


def _records(rows: Sequence[_Fields], stacks: _Stacks, numbers: _Numbers) -> pl.DataFrame:
    whole, time, shapes = numbers.whole, numbers.time, _Shapes(numbers)
    names = [_operation(row.text("profiling_name")) for row in rows]
    inputs = [shapes.of(row.get("input_sizes")) for row in rows]
    outputs = [shapes.of(row.get("output_sizes")) for row in rows]
    is_p2p = [
        flag if (flag := _flag(row.get("is_p2p"))) is not None else name[0] in POINT_TO_POINT
        for row, name in zip(rows, names, strict=True)
    ]
    state = [row.text("state") for row in rows]
    columns: dict[str, tuple[Sequence[Any], Any]] = {
        "record": ([whole(row.get("record_id")) for row in rows], pl.Int64),
        "group": ([_group(row)[0] for row in rows], pl.String),
        "seq": ([whole(_first(row, "collective_seq_id", "seq_id")) for row in rows], pl.Int64),
        "p2p_seq": ([whole(row.get("p2p_seq_id")) for row in rows], pl.Int64),
        "op_id": ([whole(row.get("op_id")) for row in rows], pl.Int64),
        "op": ([name for name, _, _ in names], pl.String),
        "src": ([src for _, src, _ in names], pl.Int32),
        "dst": ([dst for _, _, dst in names], pl.Int32),
        "is_p2p": (is_p2p, pl.Boolean),
        "state": ([s if s in _STATES else None for s in state], schema.STATE),
        "retired": ([_flag(row.get("retired")) for row in rows], pl.Boolean),
        "dtype": ([shapes.dtype(row) for row in rows], pl.String),
        "elements_in": ([one[0] for one in inputs], pl.Int64),
        "elements_out": ([one[0] for one in outputs], pl.Int64),
        "sizes_in": ([one[1] for one in inputs], pl.String),
        "sizes_out": ([one[1] for one in outputs], pl.String),
        "created_ns": ([time(row.get("time_created_ns")) for row in rows], pl.Int64),
        "started_ns": ([time(row.get("time_discovered_started_ns")) for row in rows], pl.Int64),
        "completed_ns": ([time(row.get("time_discovered_completed_ns")) for row in rows], pl.Int64),
        "dur": ([numbers.milliseconds(row.get("duration_ms")) for row in rows], pl.Int64),
        "timeout_ns": ([numbers.milliseconds(row.get("timeout_ms")) for row in rows], pl.Int64),
        "thread": ([_thread(row.get("thread_id")) for row in rows], pl.Int64),
        "stack": ([stacks.leaf(row.get("frames")) for row in rows], pl.UInt32),
    }
    return pl.DataFrame(
        [pl.Series(name, values, dtype) for name, (values, dtype) in columns.items()]
    )


def _first(row: _Fields, *names: str) -> Any:
    return next((value for name in names if (value := row.get(name)) is not None), None)


def _operation(name: str | None) -> tuple[str | None, int | None, int | None]:
    """Return the operation without its back end, the sender and the receiver.

    ``nccl:all_reduce``, ``nccl:send 1->2``, ``nccl:recv 3<-0``.
    """
    if name is None:
        return None, None, None
    word = name.rsplit(":", 1)[-1].strip()
    pair = _PAIR.search(word)
    if pair is None:
        return word, None, None
    this, arrow, other = int(pair[1]), pair[2], int(pair[3])
    src, dst = (this, other) if arrow == "->" else (other, this)
    return word[: pair.start()].strip(), src, dst


def _group(row: _Fields) -> tuple[str | None, str | None]:
    """Return name and description of an entry's process group."""
    group = row.get("process_group")
    if isinstance(group, list | tuple) and group:
        return _text(group[0]), _text(group[1]) if len(group) > 1 else None
    name = _text(group)
    return (row.text("pg_id") if name is None else name), None


def _thread(value: Any) -> int | None:
    """Return a thread id; None for texts that are not a positive number."""
    text = _text(value) or ""
    return int(text) if text.isdecimal() and 0 < len(text) < 19 else None


class _Shapes:
    """Shapes and types of tensors; each list object is converted once."""

    def __init__(self, numbers: _Numbers) -> None:
        self._numbers = numbers
        self._known: dict[int, tuple[int | None, str | None]] = {}

    def of(self, sizes: Any) -> tuple[int | None, str | None]:
        """Return the elements of all tensors, and their shapes as text; None if unknown."""
        if not isinstance(sizes, list | tuple):
            return None, None
        if id(sizes) not in self._known:
            self._known[id(sizes)] = self._converted(sizes)
        return self._known[id(sizes)]

    def _converted(self, sizes: Sequence[Any]) -> tuple[int | None, str | None]:
        total: int | None = 0
        named = []
        for number, tensor in enumerate(sizes):
            if not isinstance(tensor, list | tuple) or len(tensor) > _DIMENSIONS:
                self._numbers.wrong += 1
                return None, None
            elements: int | None = 1
            for length in tensor:
                known = length if type(length) is int and 0 <= length < MAX_BYTES else None
                product = None if None in (known, elements) else elements * known  # type: ignore[operator]
                elements = product if product is not None and product < MAX_BYTES else None
            if number < _NAMED:
                named.append(f"[{', '.join(map(_brief, tensor))}]")
            total = None if total is None or elements is None else total + elements
        if total is not None and total >= MAX_BYTES:
            total = None
        more = len(sizes) - _NAMED
        text = " ".join(named) + (f" and {more:,} more" if more > 0 else "")
        return (total if sizes else None), text or None

    def dtype(self, row: _Fields) -> str | None:
        """Return the distinct element types of inputs, and of outputs if these are others."""
        lists = (row.get(name) for name in ("input_dtypes", "output_dtypes"))
        lists = ([one] if one and isinstance(one, str | bytes) else one for one in lists)
        each = (types[:_DEEPEST] for types in lists if isinstance(types, list | tuple))
        texts = (", ".join(dict.fromkeys(_text(one) or "?" for one in types)) for types in each)
        return " -> ".join(dict.fromkeys(filter(None, texts))) or None


def _brief(length: Any) -> str:
    return str(length) if type(length) is int and abs(length) < _LAST else "?"


class _Stacks:
    """Stacks of the entries; each list of frames is converted once."""

    def __init__(self) -> None:
        self._numbers: dict[Frame, int] = {}
        self._tree = Interner()
        self._leaves: dict[int, int | None] = {}

    def leaf(self, frames: Any) -> int | None:
        """Return the leaf row of a stack; None for an empty one."""
        if not isinstance(frames, list | tuple) or not frames:
            return None
        if id(frames) not in self._leaves:
            dicts = [one for one in frames[:_DEEPEST] if isinstance(one, dict)]
            numbers = [
                self._numbers.setdefault(_frame(_Fields(one)), len(self._numbers)) for one in dicts
            ]
            leaf = self._tree.path(reversed(numbers))
            self._leaves[id(frames)] = None if leaf == int(NONE) else leaf
        return self._leaves[id(frames)]

    def table(self) -> pl.DataFrame:
        """Return the table of stacks."""
        tree = self._tree.tree(np.empty(0, np.uint32))
        return as_table(stacks_table(tree, self._numbers), "stacks")


def _frame(fields: _Fields) -> Frame:
    line = fields.get("line")
    known = line if type(line) is int and 0 < line < 1 << 31 else None
    return Frame(fields.text("name") or "?", fields.text("filename"), known)


# --- process groups ----------------------------------------------------------------------------


def _groups(top: _Fields, rows: Sequence[_Fields], numbers: _Numbers) -> pl.DataFrame:
    """Return the groups of the configuration and of the entries, with their status.

    The status is by id, which differs from the name; entries have both. A rank has the status of
    each group that it called an operation of, also if the ring buffer has lost the entries.
    """
    groups: dict[str, dict[str, Any]] = {}
    nameless: str | None = None
    config, status = top.get("pg_config"), top.get("pg_status")
    for key, values in _Fields(config).dicts() if isinstance(config, dict) else ():
        name = values.text("name") or key
        ranks = values.text("ranks")
        if name:
            groups[name] = {"description": values.text("desc"), "ranks": ranks or None}
        else:  # gloo writes one group without a name
            nameless = ranks or None
    name_of: dict[str, str] = {}
    for row in rows:
        of_entry, description = _group(row)
        if of_entry is None:
            continue
        group = groups.setdefault(of_entry, {"description": None, "ranks": None})
        group["description"] = group["description"] or description
        name_of.setdefault(row.text("pg_id") or "", of_entry)
    if len(groups) == 1:
        (only,) = groups.values()
        only["ranks"] = only["ranks"] or nameless
    statuses = dict(_Fields(status).dicts()) if isinstance(status, dict) else {}
    for key, values in statuses.items():
        group = groups.get(name_of.get(key, ""), {})
        for what in ("enqueued", "started", "completed"):
            value = values.get(f"last_{what}_collective")
            none_yet = 0 if what == "enqueued" else None  # -1 also where starts are not tracked
            group[f"last_{what}"] = none_yet if _text(value) == "-1" else numbers.whole(value)
    unnamed = [values for key, values in statuses.items() if key not in name_of]
    if statuses and all(one.text("last_enqueued_collective") == "-1" for one in unnamed):
        for name, group in groups.items():
            if name not in name_of.values():
                group["last_enqueued"] = 0
    types = schema.types("process_groups", plain=True)
    del types["rank"]
    return pl.DataFrame([{"group": name, **group} for name, group in groups.items()], schema=types)


# --- the file ----------------------------------------------------------------------------------


def _rank_of(path: str) -> int | None:
    """Return the rank in the name of a file, or the number at its end."""
    number = _LAST_NUMBER.search(PurePath(path).name)
    rank = rank_from_name(path)
    return int(number[1]) if rank is None and number else rank


def _backend(rows: Sequence[_Fields]) -> str | None:
    """Return the back end in the names of operations: ``nccl``, ``gloo``."""
    for row in rows:
        backend, colon, _ = (row.text("profiling_name") or "").partition(":")
        if colon:
            return backend
    return None


def _extra(top: _Fields) -> str | None:
    """Return the version of the communication library as JSON text."""
    names = ("comm_lib_version", "nccl_version")
    known = {name: text for name in names if (text := top.text(name))}
    return json.dumps(known) if known else None


def _issues(
    source: Source, read: Content, entries: Sequence[Any], rows: Sequence[Any], numbers: _Numbers
) -> Iterator[tuple[str, str, int, str | None]]:
    if read.truncated is not None:
        yield ("data_loss", "truncated", 1, f"{read.truncated:,} bytes read")
    yield from source.issues
    yield from (
        ("notice", "trailing-bytes", read.trailing, None),
        ("data_loss", "stray-entries", len(entries) - len(rows), None),
        ("notice", "wrong-type", numbers.wrong, None),
        ("data_loss", "no-group", sum(_group(row)[0] is None for row in rows), None),
        ("notice", "no-entries", int(not rows), "this rank recorded no collective"),
    )
