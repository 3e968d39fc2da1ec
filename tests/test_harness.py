"""The same checks for every trace."""

from __future__ import annotations

import shutil
from dataclasses import replace
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
from traceanalyzer.schema import ON_REQUEST
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import KINDS

read = cache(ta.read)
FILES = pytest.mark.parametrize("path", small_files(), ids=name_of)
REQUESTED = ON_REQUEST


@pytest.mark.sample(4)
@FILES
def test_format_is_detected_by_content(path: Path, tmp_path: Path) -> None:
    unknown = tmp_path / "unknown"
    shutil.copyfile(path, unknown)
    parser = registry.detect(Source(unknown))
    assert parser is not None
    assert parser.name == "chrome-trace"
    assert differences(ta.read(unknown).with_rank(0), ta.read(path).with_rank(0)) == []


@pytest.mark.sample(4)
@FILES
def test_tables_satisfy_the_schema(path: Path) -> None:
    for columns in ((), REQUESTED):
        trace = read(path, columns=columns)
        assert schema.check(trace.tables) == []
        assert trace.meta.path == str(path)


@pytest.mark.sample(4)
@FILES
def test_scan_and_python_are_equivalent(path: Path) -> None:
    for columns in ((), REQUESTED):
        with without_scan():
            plain = ta.read(path, columns=columns)
        assert differences(plain, read(path, columns=columns)) == []


@pytest.mark.sample(4)
@FILES
def test_selection_of_kinds(path: Path) -> None:
    everything = read(path, columns=())
    present = everything.events["kind"].unique().to_list()
    for kind in [*present, next(k for k in KINDS if k not in present)]:
        assert_is_part(ta.read(path, kinds=[kind]), everything, pl.col("kind") == kind)
    tables = ta.read(path, kinds=["counter", "flow"])
    assert tables.events.is_empty()
    assert same(tables.counters, everything.counters)
    assert same(tables.flows.drop("event"), everything.flows.drop("event"))


@pytest.mark.sample(4)
@FILES
def test_selection_of_windows(path: Path) -> None:
    everything = read(path, columns=())
    times = everything.events["ts"].to_list()
    if not times:
        return
    low, high = times[len(times) // 3], times[2 * len(times) // 3] + 1
    end = pl.col("ts") + pl.col("dur").fill_null(0).clip(lower_bound=0)
    inside = (pl.col("ts") < high) & (end > low)
    part = ta.read(path, windows=[(low, high)])
    assert_is_part(
        *(replace(one, events=_without_lines(one.events)) for one in (part, everything)), inside
    )


def _without_lines(rows: pl.DataFrame) -> pl.DataFrame:
    """Functions that ran when the profiler started have no line if its call was read, too."""
    name = pl.col("name").cast(pl.String).str.replace(r"^(.+\.py)\(\d+\): (.+)$", "$2 ($1)")
    return rows.with_columns(name.cast(schema.NAME))


def assert_is_part(part: Trace, whole: Trace, rows: pl.Expr) -> None:
    """Assert that the part has exactly these rows of the whole and their side tables."""
    expected = whole.select(rows)
    for name in ("events", "launch_configs", "collectives", "memory_totals"):
        assert same(part.tables[name], expected.tables[name]), name
    assert part.meta == whole.meta


@pytest.mark.sample(15, "suffix")
@pytest.mark.parametrize("suffix", [".parquet", ".json"])
@pytest.mark.parametrize("path", fixture_files(), ids=name_of)
def test_export_round_trip(path: Path, suffix: str, tmp_path: Path) -> None:
    trace = read(path, columns=REQUESTED)
    out = tmp_path / f"out{suffix}"
    with out.open("wb") as file:
        writer_for(out)(trace, file)
    again = ta.read(out, columns=REQUESTED)
    # the copy of a truncated file is complete
    cut = {"complete_until"} if trace.meta.complete_until is not None else set()
    assert set(differences(again, trace, issues=False)) <= {"format"} | cut
