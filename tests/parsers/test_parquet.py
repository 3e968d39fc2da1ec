"""Parquet exports: round trip, and one-line errors for bad files."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from any_trace import any_trace
from hypothesis import given, settings, strategies as st
from polars.testing import assert_frame_equal
from trace_rows import table
from wording import raises_wording

from traceanalyzer import schema
from traceanalyzer.errors import InputError, MalformedInput, UnknownFormat
from traceanalyzer.exporters import parquet as exporter
from traceanalyzer.exporters.parquet import write_parquet
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.parsers.parquet import FORMAT
from traceanalyzer.parsers.source import Source
from traceanalyzer.schema import ON_REQUEST
from traceanalyzer.trace import Device, Meta, Trace

if TYPE_CHECKING:
    from pathlib import Path

ALL = Selection(columns=frozenset(ON_REQUEST))
META = Meta(
    path="a/b.json",
    format="chrome",
    epoch_ns=1712075791000000123,
    rank=3,
    world_size=8,
    devices=(Device(0, "NVIDIA H100", 85018279936), Device(1)),
    extra='{"a":1.0}',
)


def write(trace: Trace, path: Path) -> Path:
    with path.open("wb") as file:
        write_parquet(trace, file)
    return path


def read(path: Path, selection: Selection = ALL) -> Trace:
    return FORMAT.parse(Source(path), selection, None)


def assert_equal(actual: Trace, expected: Trace) -> None:
    assert actual.sources == expected.sources
    for name, frame in expected.tables.items():
        assert_frame_equal(actual.tables[name], frame)


@settings(max_examples=40, deadline=None)
@given(chance=st.randoms(use_true_random=False))
def test_written_trace_is_read_back(
    chance: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trace = any_trace(chance, most=8)
    path = write(trace, tmp_path_factory.mktemp("parquet") / "a.parquet")
    asked = frozenset(ON_REQUEST) & set(trace.events.columns)
    assert_equal(read(path, Selection(columns=asked)), trace)


def example() -> Trace:
    """Three rows: an operator, an allocation and the kernel that the operator launched."""
    return Trace(
        sources=(META,),
        events=table(
            "events",
            {"ts": 1, "dur": 9, "kind": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 8},
            {"ts": 5, "kind": "cpu_instant_event", "name": "[memory]", "address": 2**64 - 1},
            {"ts": 7, "dur": 2, "kind": "kernel", "name": "gemm", "device": 0, "stream": 7},
            drop=tuple(set(ON_REQUEST) - {"input_dims"}),
        ),
        launch_configs=table("launch_configs", {"event": 2, "grid_x": 64, "shared_memory": 49152}),
        memory_totals=table("memory_totals", {"event": 1, "allocated_bytes": 10}),
        flows=table(
            "flows",
            {"ts": 1, "phase": "start", "flow": 0, "pid": 7, "tid": 8, "event": 0},
            {"ts": 7, "phase": "end", "flow": 0, "pid": 0, "tid": 7, "event": 2},
        ),
        counters=table(
            "counters", {"ts": 1, "name": "mem", "series": "used", "pid": 7, "value": 0.5}
        ),
    )


def test_row_groups_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "ROWS", 2)
    path = write(example(), tmp_path / "a.parquet")
    assert pq.ParquetFile(path).num_row_groups == 2
    back = read(path, Selection(columns=frozenset({"input_dims"})))
    assert_equal(back, example())
    kernels = read(path, Selection(kinds=frozenset({"kernel"})))
    assert kernels.launch_configs["event"].to_list() == [0]


def test_selection_by_kind(tmp_path: Path) -> None:
    path = write(example(), tmp_path / "a.parquet")
    trace = read(path, Selection(kinds=frozenset({"kernel", "flow"})))
    assert trace.events["name"].to_list() == ["gemm"]
    assert trace.launch_configs["event"].to_list() == [0]
    assert trace.memory_totals.is_empty()
    assert trace.counters.is_empty()
    assert trace.flows["event"].to_list() == [None, 0]


@pytest.mark.parametrize(
    ("window", "names"),
    [
        ((0, 2), ["aten::mm"]),
        ((6, 8), ["aten::mm", "gemm"]),
        ((10, 20), []),
        ((9, 10), ["aten::mm"]),
    ],
)
def test_selection_by_window(tmp_path: Path, window: tuple[int, int], names: list[str]) -> None:
    path = write(example(), tmp_path / "a.parquet")
    trace = read(path, Selection(windows=(window,)))
    assert trace.events["name"].to_list() == names
    assert trace.launch_configs.height == ("gemm" in names)


def test_selection_by_name_and_kind(tmp_path: Path) -> None:
    path = write(example(), tmp_path / "a.parquet")
    trace = read(path, Selection(kinds=frozenset(), names=("[mem", "::mm")))
    assert trace.events["name"].to_list() == ["aten::mm", "[memory]"]
    assert trace.memory_totals["event"].to_list() == [1]
    assert trace.flows.is_empty()


def test_optional_column_is_read_on_request(tmp_path: Path) -> None:
    path = write(example(), tmp_path / "a.parquet")
    assert "args" not in read(path, Selection()).events.columns
    asked = read(path, Selection(columns=frozenset({"args"}))).events
    assert asked["args"].null_count() == asked.height, "asked for, not stored: all null"


def test_other_tools_read_the_events(tmp_path: Path) -> None:
    path = write(example(), tmp_path / "a.parquet")
    calls = pl.read_parquet(path)
    assert calls["name"].to_list() == ["aten::mm", "[memory]", "gemm"]
    assert calls["kind"].to_list() == ["cpu_op", "cpu_instant_event", "kernel"]


def test_a_folder_is_a_dataset_by_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(example().with_rank(rank), tmp_path / f"rank{rank}.parquet")
    events = pl.scan_parquet(tmp_path / "*.parquet").group_by("rank").len().sort("rank").collect()
    assert events.rows() == [(0, 3), (1, 3)]


def test_names_of_other_traces_are_not_written(tmp_path: Path) -> None:
    trace = example()
    # a categorical knows the names of all traces of the process
    foreign = table("events", {"ts": 99, "kind": "cpu_op", "name": "of-another-trace"})
    both = pl.concat([trace.events, foreign.drop(set(ON_REQUEST) - {"input_dims"})])
    path = write(replace(trace, events=both.head(3)), tmp_path / "a.parquet")
    names = pq.ParquetFile(path, read_dictionary=["name"]).read().column("name").chunk(0)
    assert names.dictionary.to_pylist() == ["aten::mm", "[memory]", "gemm"]


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write(example(), tmp_path / name) for name in ("a.parquet", "b.parquet"))
    assert first.read_bytes() == second.read_bytes()


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    path = write(example(), tmp_path / "a.parquet")
    calls: list[tuple[int, int]] = []
    FORMAT.parse(Source(path), ALL, lambda *done: calls.append(done))
    assert calls == [(path.stat().st_size, path.stat().st_size)]


def test_detected_by_content(tmp_path: Path) -> None:
    path = write(example(), tmp_path / "unknown")
    assert FORMAT.sniff(Source(path).head(), "unknown")
    assert not FORMAT.sniff(b'{"traceEvents": []}', "a.parquet")
    assert not FORMAT.sniff(b"", "a.parquet")


def test_a_foreign_parquet_file(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "a.parquet")
    with raises_wording(UnknownFormat):
        read(tmp_path / "a.parquet")


def test_a_newer_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(schema, "VERSION", schema.VERSION + 1)
        path = write(example(), tmp_path / "a.parquet")
    with raises_wording(MalformedInput):
        read(path)


def test_an_older_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "VERSION", schema.VERSION - 1)
        path = write(example(), tmp_path / "a.parquet")
    with raises_wording(MalformedInput):
        read(path)


def test_tables_that_break_the_schema(tmp_path: Path) -> None:
    shapes = table("launch_configs", {"event": 99})
    path = write(replace(example(), launch_configs=shapes), tmp_path / "a.parquet")
    with raises_wording(MalformedInput):
        read(path)


def test_a_column_of_another_type(tmp_path: Path) -> None:
    events = pa.table({"ts": ["soon"], "dur": [1], "kind": ["kernel"]})
    metadata = {schema.PARQUET_VERSION: str(schema.VERSION), schema.PARQUET_TABLES: "{}"}
    metadata[schema.PARQUET_SOURCES] = '[{"path":"a","format":"b","devices":[]}]'
    pq.write_table(events.replace_schema_metadata(metadata), tmp_path / "a.parquet")
    with raises_wording(MalformedInput):
        read(tmp_path / "a.parquet")


def test_rows_that_take_no_bytes_are_refused(tmp_path: Path) -> None:
    """1 MB could become gigabytes of equal rows."""
    metadata = {schema.PARQUET_VERSION: str(schema.VERSION), schema.PARQUET_TABLES: "{}"}
    metadata[schema.PARQUET_SOURCES] = '[{"path":"a","format":"b","devices":[]}]'
    rows = pa.table({"ts": pa.repeat(pa.scalar(7), 1 << 21)}).replace_schema_metadata(metadata)
    path = tmp_path / "equal_rows.parquet"
    pq.write_table(rows, path)
    assert path.stat().st_size < 1 << 18
    with pytest.raises(MalformedInput, match="too many"):
        read(path)


@pytest.mark.parametrize("kept", [4, 8, 100, -1, -8, -100])
def test_truncated_file(tmp_path: Path, kept: int) -> None:
    data = write(example(), tmp_path / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(data[:kept])
    with raises_wording(MalformedInput):
        read(tmp_path / "cut.parquet")


def test_flipped_bytes_never_raise_other_errors(tmp_path: Path) -> None:
    data = write(example(), tmp_path / "a.parquet").read_bytes()
    dice = random.Random(0)  # noqa: S311 - reproducible, not secret
    refused, count = 0, 150
    for _ in range(count):
        bad = bytearray(data)
        bad[dice.randrange(4, len(bad))] ^= 1 << dice.randrange(8)
        (tmp_path / "bad.parquet").write_bytes(bad)
        try:
            read(tmp_path / "bad.parquet")
        except InputError:
            refused += 1
    assert refused > count / 2, "checksums see most of it"


def test_compressed_file_error_advises_to_unpack(tmp_path: Path) -> None:
    import gzip

    data = io.BytesIO()
    write_parquet(example(), data)
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress(data.getvalue()))
    with raises_wording(MalformedInput):
        read(tmp_path / "a.parquet.gz")


@pytest.mark.parametrize("lacking", ["stream", "category"])
def test_a_file_from_before_a_column_is_read(lacking: str, tmp_path: Path) -> None:
    """Columns that a version adds are null in older files."""
    trace = example()
    older = replace(trace, events=trace.events.drop(lacking), flows=trace.flows.drop("name"))
    again = read(write(older, tmp_path / "a.parquet"))
    assert again.events[lacking].null_count() == again.events.height == trace.events.height
    assert again.events[older.events.columns].equals(older.events)
    assert again.flows["name"].null_count() == again.flows.height > 0


def test_a_missing_required_column_is_an_error(tmp_path: Path) -> None:
    trace = example()
    older = replace(trace, events=trace.events.drop("kind"))
    with pytest.raises(MalformedInput):
        read(write(older, tmp_path / "a.parquet"))
