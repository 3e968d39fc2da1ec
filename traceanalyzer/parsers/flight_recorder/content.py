"""The content of a dump as plain Python values: dicts, lists, tuples, texts and numbers.

A pickle is never executed: the unpickler has only the opcodes of plain data. Texts of a pickle are
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.contract import Progress
from traceanalyzer.parsers.memory_snapshot import is_pickle
from traceanalyzer.parsers.memory_snapshot.problem import Problem, Refused, opcode_name
from traceanalyzer.parsers.memory_snapshot.unpickler import PlainUnpickler
from traceanalyzer.parsers.source import Source

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
        return _complete_entries(source, data.decode(errors="replace"), error)
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
