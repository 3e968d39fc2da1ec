"""The compiled scan of ordinary events, and the way back to Python for all others.

Without the extension (no compiler when the package was installed) everything takes the way of
:mod:`~traceanalyzer.parsers.chrome_trace.worker`, which gives the same tables, slower.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any

from traceanalyzer.parsers.chrome_trace.batch import Batch, Points, Slices
from traceanalyzer.parsers.chrome_trace.decode import (
    BAD_TEXT,
    NULL,
    decode_any,
    decode_events,
    decode_raw_args,
)
from traceanalyzer.parsers.chrome_trace.extract import extract
from traceanalyzer.parsers.chrome_trace.want import Want
from traceanalyzer.vocabulary import (
    COMMUNICATION_WORDS,
    DEVICE_KINDS,
    SPELLINGS,
    collective_of_kernel,
    kind_of_category,
)

try:
    from traceanalyzer.parsers.chrome_trace import _scan
except ImportError:  # pragma: no cover - built without a compiler
    _scan = None  # type: ignore[assignment]

_WANTED, _DEVICE, _OTHER = 1, 2, 64
#: How ``null`` begins.
_NULL = ord("n")

#: Words in the names of communication: host events with them carry arguments that Python reads.
_SPECIAL = [word.encode() for word in COMMUNICATION_WORDS]

_SLICE_COLUMNS = (
    "order",
    "ts",
    "dur",
    "category",
    "name",
    "pid",
    "tid",
    "correlation",
    "external_id",
    "device_rows",
    "device",
    "stream",
    "copied",
    "kernel_rows",
    "grid",
    "block",
    "registers",
    "shared_memory",
    "memory_rows",
    "allocated",
    "address",
    "device_type",
    "device_id",
    "total_allocated",
    "total_reserved",
)
_FLOW_COLUMNS = ("order", "phase", "ts", "category", "name", "pid", "tid", "id")


def scanned(text: bytes, offset: int, want: Want) -> list[Batch] | None:
    """The batches of a well-formed piece, or None when it has to be read another way."""
    if _scan is None:
        return None  # type: ignore[unreachable]
    words = _words(tuple(want.kinds) if want.kinds is not None else None)
    found = _scan.scan(
        text,
        0,
        *words,
        _SPECIAL,
        [name.encode() for name in want.names],
        array("q", [edge for window in want.windows for edge in window]).tobytes(),
        want.flows,
        want.kinds is None,
        want.args,
        want.input_dims,
    )
    if found is None:
        return None
    events, closed, first, columns = found
    *values, next_rows, args, input_dims, text_ranges, rest_ranges = columns
    slices, flows = Slices(), Points()
    _fill(slices, _SLICE_COLUMNS, values)
    special_rows, *flow_values = values[len(_SLICE_COLUMNS) :]
    _fill(flows, _FLOW_COLUMNS, flow_values)
    flows.at_next = array("I", next_rows).tolist()
    try:
        texts = _texts(text, array("q", text_ranges))
        slices.args = _spelled(text, array("q", args)) if want.args else None
        slices.input_dims = _spelled(text, array("q", input_dims)) if want.input_dims else None
        rest = _rest(text, array("q", rest_ranges), offset, want)
    except BAD_TEXT:
        return None
    _name_collectives(slices, array("I", special_rows), texts)
    rest.events = events
    rest.first = min(rest.first, first)
    rest.closed = None if closed < 0 else closed
    return [Batch(texts=texts, slices=slices, flows=flows), rest]


def _fill(part: Slices | Points, names: tuple[str, ...], values: list[bytes]) -> None:
    for name, value in zip(names, values, strict=False):
        setattr(part, name, value)


def _name_collectives(slices: Slices, rows: array[int], texts: list[str]) -> None:
    """Communication kernels without arguments: the name says which collective it is."""
    names, categories = array("I", slices.name), array("I", slices.category)
    kept, found = [], []
    told: dict[tuple[int, int], tuple[Any, ...] | None] = {}
    for row in rows:
        code = names[row], categories[row]
        if code not in told:
            is_kernel = kind_of_category(texts[code[1]]) == "kernel"
            told[code] = _named(texts[code[0]]) if is_kernel else None
        collective = told[code]
        if collective is not None:
            kept.append(row)
            found.append(collective)
    slices.collective_rows, slices.collectives = array("I", kept).tobytes(), found


def _named(kernel: str) -> tuple[Any, ...]:
    return collective_of_kernel(kernel), None, NULL, NULL, None, NULL, None, NULL


@lru_cache(maxsize=64)
def _words(kinds: tuple[str, ...] | None) -> tuple[list[tuple[bytes, int]], int, int]:
    """Flags by category's spelling, of any other category, and of none."""

    def flags(kind: str) -> int:
        wanted = _WANTED if kinds is None or kind in kinds else 0
        return wanted | (_DEVICE if kind in DEVICE_KINDS else 0)

    spelled = [(word.encode(), flags(kind)) for kind, all_ in SPELLINGS.items() for word in all_]
    return spelled, flags("other") | _OTHER, flags("other") | _OTHER


def _texts(text: bytes, ranges: array[int]) -> list[str]:
    """Names and categories by code; those with escapes as the decoder reads them."""
    texts = []
    for at, length in zip(ranges[::2], ranges[1::2], strict=True):
        raw = text[at : at + length]
        texts.append(raw.decode() if b"\\" not in raw else str(decode_any(b'"' + raw + b'"')))
    return texts


def _spelled(text: bytes, ranges: array[int]) -> list[str | None]:
    """A value of each row as the file spells it; None where there is none, or null."""
    spans = zip(ranges[::2], ranges[1::2], strict=True)
    return [text[at : at + n].decode() if n and text[at] != _NULL else None for at, n in spans]


def _rest(text: bytes, ranges: array[int], offset: int, want: Want) -> Batch:
    """The batch of the events that the scan handed back."""
    if not ranges:
        return Batch()
    spans = zip(ranges[::3], ranges[1::3], strict=True)
    array_text = b"[" + b",".join([text[at : at + length] for at, length in spans]) + b"]"
    return extract(
        decode_events(array_text),
        want,
        offset,
        lambda: decode_raw_args(array_text),
        order=ranges[2::3],
    )
