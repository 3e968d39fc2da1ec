"""Perfetto's protobuf: tracks, texts, clocks, counters, arrows, render stages; PyTorch's layout."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import polars as pl
import pytest
from perfetto_files import (
    BEGIN,
    CLEARED,
    COUNTER,
    END,
    INSTANT,
    NEEDS,
    annotation,
    as_pytorch_writes,
    counter,
    double_field,
    event,
    interned,
    load,
    packet,
    process,
    slice_,
    thread,
)  # fmt: skip
from trace_processor import load as load_in_perfetto
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.errors import InputError, OptionError
from traceanalyzer.exporters.perfetto.wire import delimited, fixed64, number, varint
from traceanalyzer.parsers.perfetto import reader, wire

MAIN = process(1, 10, "python") + thread(2, 1, 10, 11, "main")


pytestmark = pytest.mark.skipif(not wire.is_compiled(), reason="built without a compiler")


def _read(tmp_path: Path, data: bytes, **options) -> ta.Trace:
    path = tmp_path / "rank0.pftrace"
    path.write_bytes(data)
    return ta.read(path, **options)


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


def _rows(trace: ta.Trace, *columns: str) -> list[tuple[object, ...]]:
    return _plain(trace.events.select(columns)).rows()


def _issues(trace: ta.Trace) -> dict[str, int]:
    return dict(trace.issues.select("code", "count").iter_rows())


# --- recordings in PyTorch's layout ----------------------------------------------------------

#: Recordings of two vendors whose answers are compared, too; of the others the tables.
ANALYSES_OF = dict.fromkeys(
    ("nccl_a100_rank0of2", "mi250_rocm62"),
    ("kernels", "operators", "launches", "overlap", "gpu_idle", "transfers"),
)


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["mi250_rocm62", "nccl_a100_rank0of2", "v100_absolute_ns_ts"])
def test_recordings_are_equal_to_their_json(shared, tmp_path, name):
    text = gzip.decompress((shared / f"data/chrome/kineto/{name}.json.gz").read_bytes())
    events = [
        one
        for one in load(text)
        if one["ph"] == "M" or (one["ph"] in "Xsf" and isinstance(one["pid"], int))
    ]
    (tmp_path / "rank0.json").write_text(json.dumps(events))
    expected = ta.read(tmp_path / "rank0.json")
    trace = _read(tmp_path, gzip.compress(as_pytorch_writes(events), 1))
    assert trace.meta.format == "perfetto"
    assert trace.issues.is_empty()
    for table in ("events", "launch_configs", "collectives"):
        assert _plain(getattr(trace, table)).equals(_plain(getattr(expected, table))), table
    arrows = _plain(expected.flows.filter(pl.col("category") == "ac2g"))
    pairs = arrows.filter((pl.len() > 1).over("flow"))["event"].drop_nulls().sort()
    mine = trace.flows.filter((pl.len() > 1).over("flow"))["event"].drop_nulls().sort()
    assert mine.to_list() == pairs.to_list()
    for analysis in ANALYSES_OF.get(name, ()):
        results = [getattr(ta, analysis)(one).to_dict() for one in (trace, expected)]
        texts = [json.dumps(r, default=str).replace(".pftrace", ".json") for r in results]
        assert texts[0] == texts[1], analysis


@pytest.mark.matrix
def test_all_inputs_of_merge(tmp_path, shared):
    text = gzip.decompress((shared / "data/chrome/kineto/mi250_rocm62.json.gz").read_bytes())
    source = tmp_path / "rank0.pftrace"
    source.write_bytes(as_pytorch_writes([e for e in load(text) if isinstance(e.get("pid"), int)]))
    merged = ta.merge(source, tmp_path / "run.pftrace")
    assert merged.slices == ta.read(source).events.height
    with raises_wording(InputError):
        ta.read(tmp_path / "run.pftrace")
    with pytest.raises(OptionError):
        ta.merge(tmp_path / "run.pftrace", tmp_path / "again.pftrace")


@pytest.mark.matrix
def test_slices_counters_and_arrows_are_those_of_the_trace_processor(shared, tmp_path):
    text = gzip.decompress((shared / "data/chrome/kineto/mi250_rocm62.json.gz").read_bytes())
    events = [one for one in load(text) if isinstance(one.get("pid"), int)]
    data = as_pytorch_writes(events) + counter(900, "power", parent=1)
    data += b"".join(packet(event(COUNTER, 900, number(30, i)), ts=i) for i in range(1, 8))
    trace = _read(tmp_path, data)
    queries = [
        "select count(*) as n, sum(dur) as dur from slice",
        "select count(*) as n, sum(value) as total from counter",
        "select count(*) as n from flow",
        "select name, count(*) as n from slice group by 1 order by 1",
    ]
    (loaded,) = load_in_perfetto([tmp_path / "rank0.pftrace"], *queries)
    slices, readings, arrows, names = loaded.tables
    assert slices == [{"n": trace.events.height, "dur": trace.events["dur"].sum()}]
    assert readings == [{"n": trace.counters.height, "total": trace.counters["value"].sum()}]
    assert arrows == [{"n": trace.flows.height - trace.flows["flow"].n_unique()}]
    counts = _plain(trace.events).group_by("name").agg(n=pl.len()).sort("name")
    assert names == counts.to_dicts()


# --- events ----------------------------------------------------------------------------------


def test_slices_of_a_track_nest_and_those_of_a_run_are_paired_by_number(tmp_path):
    nested = slice_(100, 400, 2, "outer") + slice_(150, 200, 2, "inner")
    ends = [(1000, 1100), (1100, 1300), (1050, 1200)]
    run = [packet(event(BEGIN, 3, name="k"), ts=begin) for begin, _ in ends]
    run += [packet(event(END, 3), ts=end) for _, end in ends]
    data = MAIN + thread(3, 1, 10, 12, "other") + nested + b"".join(run)
    trace = _read(tmp_path, data)
    assert _rows(trace, "ts", "dur", "name", "pid", "tid") == [
        (100, 300, "outer", 10, 11),
        (150, 50, "inner", 10, 11),
        (1000, 100, "k", 10, 12),
        (1050, 150, "k", 10, 12),
        (1100, 200, "k", 10, 12),
    ]
    labels = {
        (pid, tid): label for pid, tid, label in trace.lanes.select("pid", "tid", "label").rows()
    }
    assert labels == {(10, None): "python", (10, 11): "main", (10, 12): "other"}


def test_an_end_without_begin_and_a_begin_without_end_are_counted(tmp_path):
    data = MAIN + packet(event(END, 2), ts=1) + packet(event(BEGIN, 2, name="open"), ts=2)
    trace = _read(tmp_path, data + packet(event(INSTANT, 2, name="mark"), ts=3))
    assert _rows(trace, "ts", "dur", "name") == [(2, None, "open"), (3, None, "mark")]
    assert _issues(trace) == {"unmatched-end": 1, "no-duration": 1}


def test_texts_belong_to_a_sequence_until_it_is_reset(tmp_path):
    def texts(name: str, sequence: int, flags: int = CLEARED) -> bytes:
        return packet(delimited(12, interned(2, [name])), sequence=sequence, flags=flags)

    def named(ts: int, sequence: int) -> bytes:
        return packet(event(INSTANT, 2, number(10, 1)), ts=ts, sequence=sequence)

    data = MAIN + texts("a", 1) + texts("b", 2) + named(1, 1) + named(2, 2)
    data += texts("c", 1) + named(3, 1) + named(4, 2) + named(5, 3)
    trace = _read(tmp_path, data)
    assert _rows(trace, "name") == [("a",), ("b",), ("c",), ("b",), (None,)]
    assert _issues(trace) == {"unknown-text": 1}


def test_arguments_of_all_types(tmp_path):
    keys = delimited(12, interned(3, ["interned"]) + interned(29, ['te"xt']))
    values = {
        "int": -5, "uint": 1 << 63, "double": 0.5, "bool": True, "text": 'a"\\\n\x01é',
        "list": [1, "x", [2]], "dict": {"k": {"l": 1.5}}, "nan": float("nan"),
    }  # fmt: skip
    content = b"".join(annotation(key, value) for key, value in values.items())
    content += delimited(4, number(1, 1), number(17, 1))
    data = MAIN + packet(keys, flags=CLEARED) + slice_(1, 2, 2, "x", content)
    trace = _read(tmp_path, data, columns=("args",))
    args = json.loads(trace.events["args"][0])
    assert args == {**values, "nan": None, "interned": 'te"xt'}


def test_the_category_follows_from_pytorchs_arguments(tmp_path):
    kinds = {"grid": "other", "registers per thread": "kernel", "copy kind": "gpu_memcpy"}
    kinds |= {"memory kind": "gpu_memset", "cuda_sync_kind": "cuda_sync", "cbid": "cuda_runtime"}
    parts = [
        slice_(at, at + 1, 2, key, annotation(key, 1), annotation("device", 3))
        for at, key in enumerate(kinds, 1)
    ]
    trace = _read(tmp_path, MAIN + b"".join(parts))
    assert dict(_rows(trace, "name", "kind")) == kinds


def test_arrows_lead_to_the_next_event_until_they_end(tmp_path):
    points = [(10, 47), (20, 47), (30, 48), (40, 47), (50, 47)]
    parts = [slice_(ts, ts + 5, 2, f"at {ts}", fixed64(tag, 7)) for ts, tag in points]
    trace = _read(tmp_path, MAIN + b"".join(parts))
    assert _plain(trace.flows.select("ts", "phase", "flow", "event")).rows() == [
        (10, "start", 0, 0), (20, "step", 0, 1), (30, "end", 0, 2),
        (40, "start", 1, 3), (50, "end", 1, 4),
    ]  # fmt: skip


def test_of_too_many_arrows_of_an_event_the_first_are_read(tmp_path):
    ids = b"".join(varint(i) for i in range(wire.MOST_ARROWS + 7))
    trace = _read(tmp_path, MAIN + slice_(1, 5, 2, "a", delimited(36, ids), fixed64(47, 1)))
    assert trace.flows.height == wire.MOST_ARROWS
    assert _issues(trace) == {"too-many-flows": 8}


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, []),
        ({"columns": ["input_dims"]}, ["aten::mm", "text"]),
        ({"columns": ["input_dims"], "inputs_of": ["text"]}, ["text"]),
    ],
)
def test_inputs_are_read_where_they_are_used(tmp_path, monkeypatch, options, written):
    texts = []
    process = reader.process

    def recorded(text, *more, **how):
        texts.append(text)
        return process(text, *more, **how)

    monkeypatch.setattr(reader, "process", recorded)
    names = ["aten::mm", "c10d::allreduce_", "text"]
    inputs = annotation("Input Dims", [[[4, 8]]]) + annotation("Input type", ["float"])
    parts = [packet(delimited(12, interned(2, names) + interned(1, ["cpu_op"])), flags=CLEARED)]
    for i in (1, 2, 3):
        content = number(10, i), number(3, 1), inputs
        parts.append(packet(event(BEGIN, 2, *content), ts=10 * i))
        parts.append(packet(event(END, 2), ts=10 * i + 5))
    trace = _read(tmp_path, MAIN + b"".join(parts), **options)
    events = [json.loads(line.rstrip(b",")) for line in b"".join(texts).splitlines()]
    with_inputs = [one["name"] for one in events if "Input Dims" in one["args"]]
    assert with_inputs == sorted(["c10d::allreduce_", *written])
    assert trace.collectives["elements_in"].to_list() == [32]
    if options:
        dims = dict(_rows(trace, "name", "input_dims"))
        assert [name for name in names if dims[name]] == options.get("inputs_of", names)


def test_packets_that_say_nothing_are_no_rows():
    silent = packet() + b"\x0a\x00"
    columns, end = wire.packets(memoryview(MAIN + silent * 9 + packet(ts=3)))
    assert columns["ts"].tolist() == [wire.NULL, wire.NULL, 3]
    assert end == len(MAIN + silent * 9 + packet(ts=3))
    assert len(wire.packets(memoryview(silent * 9))[0]["at"]) == 1  # a trace without events


def test_counters_are_absolute_differences_doubles_or_of_slices(tmp_path):
    data = MAIN + counter(3, "power", parent=1) + counter(4, "sum", number(5, 1), number(4, 1024))
    data += packet(event(COUNTER, 3, double_field(44, 2.5)), ts=5)
    data += packet(event(COUNTER, 4, number(30, 2)), ts=6)
    data += packet(event(COUNTER, 4, number(30, 3)), ts=7)
    data += packet(event(BEGIN, 2, number(31, 3), number(12, 9), name="x"), ts=8)
    trace = _read(tmp_path, data + packet(event(END, 2), ts=9))
    assert _plain(trace.counters.select("ts", "name", "value", "pid")).rows() == [
        (5, "power", 2.5, 10), (6, "sum", 2048.0, 10), (7, "sum", 5120.0, 10),
        (8, "power", 9.0, 10),
    ]  # fmt: skip


def test_each_sequence_adds_up_its_differences_from_its_reset(tmp_path):
    def read(*values: tuple[int, int, int, int]) -> list[tuple[object, ...]]:
        data = MAIN + counter(4, "bytes", number(5, 1))
        for ts, sequence, value, flags in values:
            written = event(COUNTER, 4, number(30, value % (1 << 64)))
            data += packet(written, ts=ts, sequence=sequence, flags=flags)
        trace = _read(tmp_path, data)
        return trace.counters.select("ts", "value").rows()

    two = ((1, 1, 100, NEEDS), (2, 2, 50, NEEDS), (3, 1, 10, NEEDS), (4, 2, 5, NEEDS))
    assert read(*two) == [(1, 100.0), (2, 50.0), (3, 110.0), (4, 55.0)]
    # a reset starts at 0 again; the other sequence goes on
    reset = (*two, (5, 1, 7, CLEARED), (6, 2, -5, NEEDS), (7, 1, 1, NEEDS))
    assert read(*reset)[4:] == [(5, 7.0), (6, 50.0), (7, 8.0)]
    # differences follow the packets of a sequence, also where their times do not
    assert read((9, 1, 3, NEEDS), (8, 1, 2, NEEDS)) == [(8, 5.0), (9, 3.0)]


def test_clocks_of_snapshots_and_differences_of_times(tmp_path):
    def clock(id_: int, time: int, *more: bytes) -> bytes:
        return delimited(1, number(1, id_), number(2, time), *more)

    shot = delimited(6, clock(6, 1000), clock(3, 400), clock(1, 10**18 + 1000))
    delta = delimited(6, clock(6, 2000), clock(64, 7, number(3, 1), number(4, 10)))
    defaults = delimited(59, number(58, 64))
    data = MAIN + packet(shot) + packet(delta, defaults, sequence=5, flags=CLEARED)
    data += packet(number(58, 3), event(INSTANT, 2, name="monotonic"), ts=500)
    data += packet(event(INSTANT, 2, name="first"), ts=3, sequence=5)
    data += packet(event(INSTANT, 2, name="second"), ts=4, sequence=5)
    trace = _read(tmp_path, data)
    assert _rows(trace, "ts", "name") == [(1100, "monotonic"), (2030, "first"), (2070, "second")]
    assert trace.meta.epoch_ns == 10**18


def test_tracks_of_rocprofv3(tmp_path):
    names = ["COMPUTE AGENT [4] STREAM [2] (GPU)", "COPY to AGENT [4] STREAM [2] (GPU)"]
    names += ["THREAD 1 (77)"]
    tracks = [packet(delimited(60, number(1, i), delimited(2, n))) for i, n in enumerate(names, 5)]
    categories = ["kernel_dispatch", "memory_copy", "hip_api"]
    events = ["gemm", "MEMORY_COPY_HOST_TO_DEVICE", "hipLaunchKernel"]
    texts = interned(1, categories) + interned(2, events) + interned(3, ["corr_id", "copy_bytes"])
    arguments = [{1: 9}, {1: 8, 2: 4096}, {1: 9}]
    data = MAIN + b"".join(tracks) + packet(delimited(12, texts), flags=CLEARED)
    for at, args in enumerate(arguments):
        content = b"".join(delimited(4, number(1, k), number(3, v)) for k, v in args.items())
        begin = event(BEGIN, 5 + at, number(10, at + 1), number(3, at + 1), content)
        data += packet(begin, ts=100 + at) + packet(event(END, 5 + at), ts=200 + at)
    trace = _read(tmp_path, data)
    columns = ("kind", "name", "pid", "tid", "device", "stream", "correlation", "bytes")
    assert _rows(trace, *columns) == [
        ("kernel", "gemm", None, None, 4, 2, 9, None),
        ("gpu_memcpy", "Memcpy HtoD (Host -> Device)", None, None, 4, 2, 8, 4096),
        ("cuda_runtime", "hipLaunchKernel", 10, 77, None, None, 9, None),
    ]


def test_render_stages_are_kernels_unless_a_track_has_them_too(tmp_path):
    specs = delimited(24, number(1, 1), delimited(2, "Kernel"))
    specs += delimited(24, number(1, 2), delimited(2, "Memcpy"))
    specs += delimited(24, number(1, 3), delimited(2, "Channel #7"))
    specs += delimited(1000, number(1, 1), delimited(3, "gemm")) + interned(2, ["copied"])
    size = delimited(1, number(1, 8), number(2, 4), number(3, 1))
    launch = delimited(21, size, delimited(2, number(1, 128), number(2, 1), number(3, 1)))
    common = number(13, 3) + number(11, 2)

    def stage(ts: int, dur: int, *content: bytes) -> bytes:
        return packet(delimited(53, number(2, dur), common, *content), ts=ts)

    extra = delimited(6, delimited(1, "bytes"), delimited(2, "64"))
    data = MAIN + packet(delimited(12, specs), flags=CLEARED) + slice_(900, 950, 2, "twice")
    data += stage(100, 50, number(1, 5), number(14, 1), number(19, 1), launch)
    data += stage(200, 10, number(1, 6), number(14, 2), number(20, 1), extra) + stage(900, 50)
    trace = _read(tmp_path, data)
    columns = ("ts", "dur", "kind", "name", "device", "stream", "correlation", "bytes")
    assert _rows(trace, *columns) == [
        (100, 50, "kernel", "gemm", 2, 7, 5, None),
        (200, 10, "gpu_memcpy", "copied", 2, 7, 6, 64),
        (900, 50, "other", "twice", None, None, None, None),
    ]
    assert trace.launch_configs.select("grid_x", "grid_y", "block_x").rows() == [(8, 4, 128)]


def test_readings_of_gpus_have_the_gpu_as_series(tmp_path):
    specs = [
        delimited(1, number(1, id_), delimited(2, name))
        for id_, name in ((0, "Power (W)"), (1, "SM Active (%)"))
    ]
    readings = delimited(2, number(1, 0), number(2, 350)) + delimited(
        2, number(1, 1), double_field(3, 44.5)
    )
    data = (
        MAIN
        + slice_(1, 5, 2, "a")
        + packet(delimited(52, delimited(1, *specs), number(3, 2), readings), ts=3)
    )
    trace = _read(tmp_path, data)
    rows = _plain(trace.counters.select("ts", "name", "series", "value")).rows()
    assert sorted(rows) == [(3, "Power (W)", "GPU 2", 350.0), (3, "SM Active (%)", "GPU 2", 44.5)]


def test_compressed_packets(tmp_path):
    inner = slice_(1, 5, 2, "inside")
    data = MAIN + delimited(1, delimited(50, zlib.compress(inner))) + slice_(7, 9, 2, "after")
    assert _rows(_read(tmp_path, data), "ts", "dur", "name") == [(1, 4, "inside"), (7, 2, "after")]
    bad = MAIN + delimited(1, delimited(50, b"no zlib")) + slice_(7, 9, 2, "after")
    trace = _read(tmp_path, bad)
    assert _rows(trace, "name") == [("after",)]
    assert _issues(trace) == {"bad-packet": 1}


# --- damaged and hostile files -----------------------------------------------------------------


def test_a_truncated_file_is_read_up_to_its_end(tmp_path):
    whole = MAIN + slice_(1, 5, 2, "a")
    trace = _read(tmp_path, whole + slice_(6, 8, 2, "b")[:-3])
    assert _rows(trace, "name", "dur") == [("a", 4), ("b", None)]
    assert _issues(trace)["truncated"] == 1


def test_a_damaged_packet_is_counted(tmp_path):
    damaged = delimited(1, number(8, 3), varint(11 << 3 | 2) + varint(1 << 40))
    trace = _read(tmp_path, MAIN + damaged + slice_(1, 5, 2, "a"))
    assert _rows(trace, "name") == [("a",)]
    assert _issues(trace) == {"bad-packet": 1}


def test_nested_arguments_have_a_limit_and_parents_may_form_a_circle(tmp_path):
    value = number(4, 1)
    for _ in range(3000):
        value = delimited(12, value)
    circle = packet(delimited(60, number(1, 8), number(5, 9), delimited(2, "<b>name\x00</b>")))
    circle += packet(delimited(60, number(1, 9), number(5, 8)))
    deep = delimited(4, delimited(10, "deep"), value)
    data = MAIN + circle + slice_(1, 5, 8, '"},{</script>', deep)
    trace = _read(tmp_path, data, columns=("args",))
    assert _rows(trace, "name") == [('"},{</script>',)]
    assert trace.lanes.filter("textual", pl.col("tid").is_not_null())["label"].to_list() == [
        "<b>name\x00</b>"
    ]
    assert len(json.loads(trace.events["args"][0])) == 1


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"text"]
)
def test_files_without_packets_are_rejected(tmp_path, data):
    with pytest.raises(InputError):
        _read(tmp_path, data)
