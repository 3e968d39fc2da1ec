"""Every trace we have goes through the same checks."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from harness import differences, fixture_files, name_of, same, small_files, without_scan

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.exporters import writer_for
from traceanalyzer.parsers import registry
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import KINDS

read = cache(ta.read)
FILES = pytest.mark.parametrize("path", small_files(), ids=name_of)
REQUESTED = ("args", "input_dims")


@FILES
def test_content_alone_tells_the_format(path: Path, tmp_path: Path) -> None:
    unknown = tmp_path / "unknown"
    shutil.copyfile(path, unknown)
    found = registry.detect(Source(unknown))
    assert found is not None
    assert found.name == "chrome-trace"
    assert differences(ta.read(unknown).with_rank(0), ta.read(path).with_rank(0)) == []


@FILES
def test_tables_hold_the_schema(path: Path) -> None:
    for columns in ((), REQUESTED):
        trace = read(path, columns=columns)
        assert schema.check(trace.tables) == []
        assert trace.meta.path == str(path)


@FILES
def test_the_scan_and_python_read_the_same(path: Path) -> None:
    for columns in ((), REQUESTED):
        with without_scan():
            plain = ta.read(path, columns=columns)
        assert differences(plain, read(path, columns=columns)) == []


@FILES
def test_some_kinds_are_those_rows_of_all(path: Path) -> None:
    everything = read(path, columns=())
    present = everything.events["kind"].unique().to_list()
    for kind in [*present, next(k for k in KINDS if k not in present)]:
        assert_is_part(ta.read(path, kinds=[kind]), everything, pl.col("kind") == kind)
    tables = ta.read(path, kinds=["counter", "flow"])
    assert tables.events.is_empty()
    assert same(tables.counters, everything.counters)
    assert same(tables.flows.drop("event"), everything.flows.drop("event"))


@FILES
def test_windows_are_those_rows_of_all(path: Path) -> None:
    everything = read(path, columns=())
    times = everything.events["ts"].to_list()
    if not times:
        return
    low, high = times[len(times) // 3], times[2 * len(times) // 3] + 1
    end = pl.col("ts") + pl.col("dur").fill_null(0).clip(lower_bound=0)
    inside = (pl.col("ts") < high) & (end > low)
    assert_is_part(ta.read(path, windows=[(low, high)]), everything, inside)


def assert_is_part(part: Trace, whole: Trace, rows: pl.Expr) -> None:
    """The part has exactly these rows of the whole, and what belongs to them."""
    expected = whole.select(rows)
    for name in ("events", "launch_configs", "collectives", "memory_totals"):
        assert same(part.tables[name], expected.tables[name]), name
    assert part.meta == whole.meta


@pytest.mark.parametrize("suffix", [".parquet", ".json"])
@pytest.mark.parametrize("path", fixture_files(), ids=name_of)
def test_export_and_import_give_the_same(path: Path, suffix: str, tmp_path: Path) -> None:
    trace = read(path, columns=REQUESTED)
    out = tmp_path / f"out{suffix}"
    with out.open("wb") as file:
        writer_for(out)(trace, file)
    again = ta.read(out, columns=REQUESTED)
    assert set(differences(again, trace, issues=False)) <= {"format"}
