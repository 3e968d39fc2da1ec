"""Files for checks of every trace, comparison of traces, and alternative implementations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
from conftest import ROOT, SHARED

from traceanalyzer.parsers.chrome_trace import arrays
from traceanalyzer.trace import Trace

FIXTURES = ROOT / "fixtures"
CHROME = SHARED / "data" / "chrome"
CONFORMANCE = CHROME / "conformance"
_RANKS = ("rank", "worker")


def fixture_files() -> list[Path]:
    """Return the bundled Chrome traces, without refused ones and further ranks."""
    refused = ("empty_file.json", "null.json", "not_a_trace.json")
    files = [p for p in sorted(FIXTURES.rglob("*")) if p.name.endswith((".json", ".json.gz"))]
    files = [p for p in files if not p.name.endswith(".speedscope.json")]
    files = [
        p for p in files if not {"flight_recorder", "requests"} & {*p.parts} or ".pt." in p.name
    ]
    return [p for p in files if p.name not in refused and not _is_one_more_rank(p)]


def conformance_files() -> list[Path]:
    """Return small third-party files with unusual cases of the format."""
    refused = ("62_empty_file.json", "63_top_level_null.json")
    endings = (".json", ".json.gz", ".zip", ".pfw", ".pfw.gz")
    files = [p for p in sorted(CONFORMANCE.rglob("*")) if p.name.endswith(endings)]
    return [p for p in files if p.name not in refused]


def recorded_files() -> list[Path]:
    """Return real recordings of Kineto and Composer."""
    gz = [p for p in sorted(CHROME.glob("kineto*/**/*.json.gz")) if "key_averages" not in p.name]
    return gz + sorted((CHROME / "composer").glob("*.json"))


def small_files() -> list[Path]:
    """Return all files that are read in a few milliseconds."""
    recorded = [p for p in recorded_files() if p.stat().st_size < 60_000]
    recorded = [p for p in recorded if not _is_one_more_rank(p)]
    return fixture_files() + conformance_files() + recorded


def _is_one_more_rank(path: Path) -> bool:
    return path.name.startswith(tuple(f"{prefix}{rank}" for prefix in _RANKS for rank in "1234567"))


def name_of(path: Path) -> str:
    """Return a short test id of a file."""
    return f"{path.parent.name}/{path.name}"


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame whose texts compare by value."""
    texts = [n for n, t in frame.schema.items() if isinstance(t, pl.Categorical | pl.Enum)]
    return frame.with_columns(pl.col(texts).cast(pl.String)) if texts else frame


def differences(one: Trace, other: Trace, *, issues: bool = True) -> list[str]:
    """Return names of tables and metadata that differ between two traces, except the path."""
    tables = [n for n in one.tables if issues or n != "issues"]
    wrong = [n for n in tables if not same(one.tables[n], other.tables[n])]
    metas = [{**vars(trace.meta), "path": ""} for trace in (one, other)]
    return wrong + [key for key in metas[0] if metas[0][key] != metas[1][key]]


def same(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Return whether two frames have equal values, regardless of category codes."""
    return plain(one).equals(plain(other))


@contextlib.contextmanager
def patched(module: Any, **values: Any) -> Iterator[None]:
    """Set constants of a module temporarily."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def in_pieces(size: int) -> contextlib.AbstractContextManager[None]:
    """Read in pieces of ``size`` bytes."""
    return patched(arrays, PIECE_BYTES=size, TAIL_BYTES=max(size // 2, 16))


def without_scan() -> contextlib.AbstractContextManager[None]:
    """Read without the compiled extension."""
    return patched(arrays, _scan=None)
