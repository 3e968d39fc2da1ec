"""Alternative implementations of reading events: ``python -I routes.py ROUTE FILE``.

Each is cut down to the part that decides its speed, and tells how many events it got. The first
ones decode everything; the next ones look for the kernels alone, by their bytes; the last ones are
the package. :mod:`benchmarks.run` times them all.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import orjson
import polars as pl

import traceanalyzer as ta
from traceanalyzer.parsers.chrome_trace import arrays, arrays as reading, container
from traceanalyzer.parsers.chrome_trace.arrays import Piece
from traceanalyzer.parsers.chrome_trace.container import Text, open_text
from traceanalyzer.parsers.source import Source

_KERNEL = b'"cat": "kernel"'


class Timed(msgspec.Struct, gc=False):
    """An event whose times become floats: nanoseconds are lost above 2^53 / 1000 us."""

    ph: str | None = None
    cat: str | None = None
    name: str | int | None = None
    ts: float | None = None
    dur: float | None = None
    pid: int | str | None = None
    tid: int | str | None = None


class Exact(msgspec.Struct, gc=False):
    """An event whose times stay text, for exact nanoseconds; arguments are skipped."""

    ph: str | None = None
    cat: str | None = None
    name: str | int | None = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"null")
    pid: int | str | None = None
    tid: int | str | None = None


class Typed(Exact, gc=False):
    """The same with the arguments as a dict."""

    args: dict[str, object] | str | None = None


class Arguments(msgspec.Struct, gc=False, frozen=True):
    """Arguments that analyses use; the decoder skips all others."""

    external_id: int = msgspec.field(default=-1, name="External id")
    correlation: int = -1
    device: int = -1
    stream: int = -1
    copied: int = msgspec.field(default=-1, name="bytes")
    registers: int = msgspec.field(default=-1, name="registers per thread")
    grid: list[int] | None = None
    block: list[int] | None = None


class Known(Timed, gc=False):
    """An event with the known arguments typed."""

    ts: float = 0.0
    dur: float = -1.0
    args: Arguments = Arguments()


_known = msgspec.json.Decoder(list[Known])


class Kept(Exact, gc=False):
    """The same with the arguments as text, to be decoded for the events that need them."""

    args: msgspec.Raw = msgspec.Raw(b"null")


# --- everything, the file as a whole ----------------------------------------------------------


def orjson_columns(path: str) -> int:
    """Dicts, then a column by a list comprehension each (times are floats already)."""
    gc.disable()
    events = orjson.loads(Path(path).read_bytes())["traceEvents"]
    columns = [[event.get(key) for event in events] for key in ("ph", "cat", "name", "ts", "dur")]
    args = [event.get("args", {}) for event in events]
    keys = ("External id", "correlation", "device", "stream", "bytes")
    columns += [[each.get(key) for each in args] for key in keys]
    return len(columns[0])


def msgspec_untyped(path: str) -> int:
    """Dicts, made by msgspec."""
    gc.disable()
    return len(msgspec.json.decode(Path(path).read_bytes())["traceEvents"])


# --- everything, in pieces, in one process ----------------------------------------------------


def msgspec_raw_events(path: str) -> int:
    """Only the limits of each event: what cutting by a JSON parser costs."""
    return _decoded(path, msgspec.Raw)


def msgspec_float_times(path: str) -> int:
    """Typed events without arguments, times as floats."""
    return _decoded(path, Timed)


def msgspec_exact_times(path: str) -> int:
    """Typed events without arguments, times as text."""
    return _decoded(path, Exact)


def msgspec_dict_arguments(path: str) -> int:
    """Typed events, arguments as dicts."""
    return _decoded(path, Typed)


def msgspec_raw_arguments(path: str) -> int:
    """Typed events, arguments as text (to be decoded a second time)."""
    return _decoded(path, Kept)


def _decoded(path: str, event: type) -> int:
    decoder = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
    return sum(len(decoder.decode(b"[" + text.strip(b" \n,") + b"]")) for text in _pieces(path))


# --- the kernels alone ------------------------------------------------------------------------


def search_re(path: str) -> int:
    """A regular expression that allows any spacing."""
    pattern = re.compile(rb'"cat"\s*:\s*"kernel"')
    return sum(len(pattern.findall(text)) for text in _pieces(path))


def search_find(path: str) -> int:
    """``bytes.find`` from hit to hit: one spelling only."""
    hits = 0
    for text in _pieces(path):
        at = text.find(_KERNEL)
        while at >= 0:
            hits += 1
            at = text.find(_KERNEL, at + 1)
    return hits


def search_polars_count(path: str) -> int:
    """``str.count_matches``, each piece one string."""
    literals = _KERNEL.decode()
    counts = [_string(text).str.count_matches(literals, literal=True)[0] for text in _pieces(path)]
    return sum(counts)


def search_polars_find_many(path: str) -> int:
    """``str.find_many`` (Aho-Corasick), which takes several spellings at once."""
    literals = [_KERNEL.decode(), '"cat": "Kernel"', '"cat":"kernel"', '"cat": "gpu_memcpy"']
    return sum(
        pl.select(pl.lit(_string(text)).str.find_many(literals).list.len()).item()
        for text in _pieces(path)
    )


def _string(text: bytes) -> pl.Series:
    return pl.Series([text]).cast(pl.String)


# --- everything, to columns -------------------------------------------------------------------


def msgspec_columns(path: str) -> int:
    """Typed events with the known arguments, to columns, in one process."""
    return sum(_rows(columns) for columns in map(_columns, _pieces(path)))


def msgspec_columns_2_processes(path: str) -> int:
    """The same in two processes, the columns coming back through pipes."""
    text = open_text(Source(path), None)
    pieces = [(path, piece) for piece in arrays.pieces(text, _first(text))]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        return sum(_rows(columns) for columns in pool.map(_columns_of, pieces))


def _columns_of(place: tuple[str, Piece]) -> list[bytes]:
    path, piece = place
    return _columns(_text_of(open_text(Source(path), None), piece))


def _columns(text: bytes) -> list[bytes]:
    """The piece's columns as bytes, the first one 4 bytes a row."""
    events = _known.decode(b"[" + text.strip(b" \n,") + b"]")
    codes: dict[str | int | None, int] = {}
    columns: list[array[Any]] = [
        array("I", [codes.setdefault(event.cat, len(codes)) for event in events]),
        array("I", [codes.setdefault(event.name, len(codes)) for event in events]),
        array("d", [event.ts for event in events]),
        array("d", [event.dur for event in events]),
        *(
            array("q", [getattr(event.args, name) for event in events])
            for name in ("external_id", "correlation", "device", "stream", "copied", "registers")
        ),
    ]
    return [*(column.tobytes() for column in columns), "\0".join(map(str, codes)).encode()]


def _rows(columns: list[bytes]) -> int:
    return len(columns[0]) // 4


# --- what the package does --------------------------------------------------------------------


def package_without_scan(path: str) -> int:
    """The package where its compiled scan is missing: msgspec, one core."""
    vars(reading)["_scan"] = None
    return _events_of(path)


def package_1_core(path: str) -> int:
    """The package's compiled scan, and its tables, on one core."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    return _events_of(path)


def package(path: str) -> int:
    """The same on all cores there are."""
    return _events_of(path)


def _events_of(path: str) -> int:
    trace = ta.read(path)
    return trace.events.height + trace.flows.height


def pieces_only(path: str) -> int:
    """Reading and cutting at the limits of events, nothing else; the rows are pieces."""
    return sum(1 for _ in _pieces(path))


def _pieces(path: str) -> Iterator[bytes]:
    """The text of the events in pieces."""
    text = open_text(Source(path), None)
    return (_text_of(text, piece) for piece in arrays.pieces(text, _first(text)))


def _text_of(text: Text, piece: Piece) -> bytes:
    data = text.read(piece.offset, piece.length)
    return data[: data.rindex(b"\n  ]")] if piece.last else data


def _first(text: Text) -> int:
    offset = container.first_events(text, container.Container())
    if offset is None:
        raise ValueError("no events")
    return offset


ROUTES: dict[str, Callable[[str], int]] = {
    route.__name__: route
    for route in (
        orjson_columns,
        msgspec_untyped,
        msgspec_raw_events,
        msgspec_float_times,
        msgspec_exact_times,
        msgspec_dict_arguments,
        msgspec_raw_arguments,
        msgspec_columns,
        msgspec_columns_2_processes,
        search_re,
        search_find,
        search_polars_count,
        search_polars_find_many,
        pieces_only,
        package_without_scan,
        package_1_core,
        package,
    )
}

if __name__ == "__main__":
    start = time.perf_counter()
    rows = ROUTES[sys.argv[1]](sys.argv[2])
    print(json.dumps({"seconds": time.perf_counter() - start, "rows": rows}), flush=True)
    os._exit(0)  # freeing what was read is not part of it
