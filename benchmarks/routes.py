"""Ways from text to events that were tried: ``python -I routes.py ROUTE FILE``.

Each is cut down to the part that decides its speed, and tells how many events it got. The first
ones decode everything, the next ones look for the kernels alone, the last ones are what the
package does, in one process and in several. :mod:`benchmarks.run` times them all.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from traceanalyzer.parsers.chrome_trace import container as containers
from traceanalyzer.parsers.chrome_trace.pool import batches
from traceanalyzer.parsers.chrome_trace.text import Text, open_text
from traceanalyzer.parsers.chrome_trace.want import Want
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


class Kept(Exact, gc=False):
    """The same with the arguments as text, to be decoded for the events that need them."""

    args: msgspec.Raw = msgspec.Raw(b"null")


# --- everything, the file as a whole ----------------------------------------------------------


def orjson_columns(path: str) -> int:
    """Dicts, then a column by a list comprehension each (times are floats already)."""
    import orjson

    gc.disable()
    events = orjson.loads(_bytes(path))["traceEvents"]
    columns = [[event.get(key) for event in events] for key in ("ph", "cat", "name", "ts", "dur")]
    args = [event.get("args", {}) for event in events]
    keys = ("External id", "correlation", "device", "stream", "bytes")
    columns += [[each.get(key) for each in args] for key in keys]
    return len(columns[0])


def msgspec_untyped(path: str) -> int:
    """Dicts, made by msgspec."""
    gc.disable()
    return len(msgspec.json.decode(_bytes(path))["traceEvents"])


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
    words = _KERNEL.decode()
    return sum(_column(text).str.count_matches(words, literal=True).sum() for text in _pieces(path))


def search_polars_find_many(path: str) -> int:
    """``str.find_many`` (Aho-Corasick), which takes several spellings at once."""
    import polars as pl

    words = [_KERNEL.decode(), '"cat": "Kernel"', '"cat":"kernel"', '"cat": "gpu_memcpy"']
    return sum(
        pl.select(pl.lit(_column(text)).str.find_many(words).list.len()).item()
        for text in _pieces(path)
    )


def _column(text: bytes) -> Any:
    import polars as pl

    return pl.Series([text]).cast(pl.String)


# --- what the package does, before the tables are assembled -----------------------------------


def pieces_only(path: str) -> int:
    """Reading and cutting, nothing else; the rows are pieces."""
    return sum(1 for _ in _pieces(path))


def package_1_process(path: str) -> int:
    """Pieces to columns in this process."""
    return _package(path, 0)


def package_1_worker(path: str) -> int:
    """Pieces to columns in one other process, their columns through a pipe."""
    return _package(path, 1)


def package_2_workers(path: str) -> int:
    """The same in two."""
    return _package(path, 2)


def package_3_workers(path: str) -> int:
    """The same in three."""
    return _package(path, 3)


def _package(path: str, workers: int) -> int:
    text = open_text(Source(path), None)
    pieces = containers.pieces(text, _first(text))
    return sum(batch.events for _, batch in batches(text, pieces, Want(), path, workers))


def _pieces(path: str) -> Iterator[bytes]:
    """The text of the events in pieces."""
    text = open_text(Source(path), None)
    for piece in containers.pieces(text, _first(text)):
        found = text.read(piece.offset, piece.length)
        yield found[: found.rindex(b"\n  ]")] if piece.last else found


def _first(text: Text) -> int:
    offset = containers.first_events(text, containers.Container())
    if offset is None:
        raise ValueError("no events")
    return offset


def _bytes(path: str) -> bytes:
    return Path(path).read_bytes()


ROUTES = {
    route.__name__: route
    for route in (
        orjson_columns,
        msgspec_untyped,
        msgspec_raw_events,
        msgspec_float_times,
        msgspec_exact_times,
        msgspec_dict_arguments,
        msgspec_raw_arguments,
        search_re,
        search_find,
        search_polars_count,
        search_polars_find_many,
        pieces_only,
        package_1_process,
        package_1_worker,
        package_2_workers,
        package_3_workers,
    )
}

if __name__ == "__main__":
    start = time.perf_counter()
    rows = ROUTES[sys.argv[1]](sys.argv[2])
    print(json.dumps({"seconds": time.perf_counter() - start, "rows": rows}))
