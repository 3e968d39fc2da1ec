"""What every trace is put through: the files, the comparison of two traces, other routes to one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
from conftest import ROOT, SHARED

from traceanalyzer.parsers.chrome_trace import arrays, piece
from traceanalyzer.trace import Trace

FIXTURES = ROOT / "fixtures"
CHROME = SHARED / "data" / "chrome"
CONFORMANCE = CHROME / "conformance"
_RANKS = ("rank", "worker")


def fixture_files() -> list[Path]:
    """Our own Chrome traces, without those that are refused and more ranks of the same."""
    refused = ("empty_file.json", "null.json", "not_a_trace.json")
    found = [p for p in sorted(FIXTURES.rglob("*")) if p.name.endswith((".json", ".json.gz"))]
    found = [p for p in found if not p.name.endswith(".speedscope.json")]
    return [p for p in found if p.name not in refused and not _is_one_more_rank(p)]


def conformance_files() -> list[Path]:
    """Small third-party files: every odd case of the format."""
    refused = ("62_empty_file.json", "63_top_level_null.json")
    endings = (".json", ".json.gz", ".zip", ".pfw", ".pfw.gz")
    found = [p for p in sorted(CONFORMANCE.rglob("*")) if p.name.endswith(endings)]
    return [p for p in found if p.name not in refused]


def recorded_files() -> list[Path]:
    """Real recordings: Kineto over the years, Composer."""
    gz = [p for p in sorted(CHROME.glob("kineto*/**/*.json.gz")) if "key_averages" not in p.name]
    return gz + sorted((CHROME / "composer").glob("*.json"))


def small_files() -> list[Path]:
    """Everything that is read in a few milliseconds."""
    recorded = [p for p in recorded_files() if p.stat().st_size < 60_000]
    recorded = [p for p in recorded if not _is_one_more_rank(p)]
    return fixture_files() + conformance_files() + recorded


def _is_one_more_rank(path: Path) -> bool:
    return path.name.startswith(tuple(f"{word}{rank}" for word in _RANKS for rank in "1234567"))


def name_of(path: Path) -> str:
    """A short id of a file for pytest."""
    return f"{path.parent.name}/{path.name}"


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    """A frame whose texts compare by value."""
    texts = [n for n, t in frame.schema.items() if isinstance(t, pl.Categorical | pl.Enum)]
    return frame.with_columns(pl.col(texts).cast(pl.String)) if texts else frame


def differences(one: Trace, other: Trace, *, issues: bool = True) -> list[str]:
    """Names of the tables and metadata in which two traces differ; where they lie is no matter."""
    tables = [n for n in one.tables if issues or n != "issues"]
    wrong = [n for n in tables if not same(one.tables[n], other.tables[n])]
    metas = [{**vars(trace.meta), "path": ""} for trace in (one, other)]
    return wrong + [key for key in metas[0] if metas[0][key] != metas[1][key]]


def same(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Whether two frames hold the same values, whatever the codes of their texts."""
    return plain(one).equals(plain(other))


@contextlib.contextmanager
def patched(module: Any, **values: Any) -> Iterator[None]:
    """Module constants set for a while."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def in_pieces(size: int) -> contextlib.AbstractContextManager[None]:
    """Reading in pieces of so many bytes."""
    return patched(arrays, PIECE_BYTES=size, TAIL_BYTES=max(size // 2, 16))


def without_scan() -> contextlib.AbstractContextManager[None]:
    """Reading without the compiled extension."""
    return patched(piece, _scan=None)
