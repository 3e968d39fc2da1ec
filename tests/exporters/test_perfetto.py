"""Perfetto traces, loaded into Perfetto's own trace processor."""

import json
import os
from pathlib import Path

import polars as pl
import pytest
from perfetto_tables import differences, load_all, write
from trace_processor import load

import traceanalyzer as ta
from traceanalyzer.errors import InputError
from traceanalyzer.exporters.perfetto import PerfettoWriter

#: Real traces of several profilers, of less than a second each.
SAMPLE = (
    "chrome/kineto/a100_alexnet_cuda_sync.json.gz",
    "chrome/kineto/mi250_rocm62.json.gz",
    "chrome/kineto/no_rank.json.gz",
    "chrome/kineto_ddp_cpu/ddp4/rank2.json.gz",
    "chrome/composer/ep0-ba1-rank1.json",
    "chrome/conformance/perfetto",
    "nsys/nvtx_only_2022.sqlite.gz",
    "nsys/saxpy_mpi_lazy_false.sqlite.gz",
    "memory/small.pickle",
)
#: Folders of the whole list, which takes minutes.
FOLDERS = ("chrome", "nsys", "memory", "attribution", "key_averages", "gpu", "pyspy", "rocpd")


def _files(root: Path, names) -> list[Path]:
    paths = [root / name for name in names]
    each = [sorted(p.rglob("*")) if p.is_dir() else [p] for p in paths]
    return [path for several in each for path in several if path.is_file()]


def _check(files: list[Path], folder: Path) -> dict[str, list[str]]:
    """Return differences by file; files without a trace, or without times, are left out."""
    written = {}
    for number, path in enumerate(files):
        try:
            trace = ta.read(path)
        except InputError:
            continue
        if trace.events["ts"].null_count() or trace.events.is_empty():
            continue
        target = folder / f"{number}.pftrace"
        written[path, target] = write(trace, target)
        if os.environ.get("TRACEANALYZER_WHOLE_LIST"):
            written[path, target] = _check_at_once(path, target, *written[path, target])
    if os.environ.get("TRACEANALYZER_WHOLE_LIST"):
        return {str(path): texts for (path, _), texts in written.items()}
    loaded = load_all([target for _, target in written])
    return {
        str(path): differences(one, *written[path, target])
        for (path, target), one in zip(written, loaded, strict=True)
    }


def _check_at_once(path, target, ranks, writer):
    """Check a file and remove it: all of them would not fit in memory."""
    texts = differences(load_all([target])[0], ranks, writer)
    print(path, sum(one.slices for one in writer.written), texts or "equal", flush=True)  # noqa: T201
    target.unlink()
    return texts


@pytest.mark.matrix
def test_real_traces_are_equal_in_the_trace_processor(shared, tmp_path, thorough):
    names = (
        (SAMPLE if thorough else SAMPLE[1::3])
        if not os.environ.get("TRACEANALYZER_WHOLE_LIST")
        else FOLDERS
    )
    checked = _check(_files(shared / "data", names), tmp_path)
    assert len(checked) >= (20 if thorough else 3)
    assert {path: texts for path, texts in checked.items() if texts} == {}


def test_slices_that_overlap_and_deep_ones_have_child_tracks(tmp_path):
    rows = [(0, 100, "a"), (50, 100, "b"), (60, 100, "c"), (100, 0, "d"), (150, 10, "e")]
    rows += [(1000 + i, 5000 - 2 * i, f"deep {i}") for i in range(1200)]
    path = tmp_path / "in.json"
    event = {"ph": "X", "pid": 1, "tid": 2}
    events = [event | {"ts": ts, "dur": dur, "name": name} for ts, dur, name in rows]
    path.write_text(json.dumps(events))
    trace = ta.read(path)
    ranks, writer = write(trace, tmp_path / "out.pftrace")
    tracks = """select s.name, s.depth, coalesce(t.name, '') as track
        from slice s join track t on s.track_id = t.id"""
    first, second = load_all([tmp_path / "out.pftrace"]), load([tmp_path / "out.pftrace"], tracks)
    assert differences(first[0], ranks, writer) == []
    track_of = {row["name"]: row["track"] for row in second[0].tables[0]}
    assert [track_of[name] for name in "abcde"] == [
        "", "thread 2 (overlap 1)", "thread 2 (overlap 2)", "", "",
    ]  # fmt: skip
    assert track_of["deep 1199"] == "thread 2 (deep 2)"
    assert max(row["depth"] for row in second[0].tables[0]) < 512


@pytest.mark.matrix
def test_arguments_are_those_of_the_tables(shared, tmp_path):
    trace = ta.read(shared / "data/chrome/kineto/nccl_a100_rank0of2.json.gz")
    write(trace, tmp_path / "out.pftrace")
    sums = """select key, count(*) as n, sum(int_value) as total from slice
        join args using (arg_set_id) group by 1"""
    texts = """select s.ts, a.string_value as text from slice s join args a using (arg_set_id)
        where key = 'debug.collective' order by 1, 2"""
    (loaded,) = load([tmp_path / "out.pftrace"], sums, texts)
    totals = {row["key"]: (row["n"], row["total"]) for row in loaded.tables[0]}
    for column, label in (("correlation", "correlation"), ("bytes", "bytes")):
        known = trace.events[column].drop_nulls()
        assert totals[f"debug.{label}"] == (known.len(), known.sum())
    for column, label in (("elements_in", "elements in"), ("seq", "sequence number")):
        known = trace.collectives[column].drop_nulls()
        assert totals.get(f"debug.{label}", (0, None)) == (known.len(), known.sum() or None)
    kernels = trace.launch_configs
    assert totals["debug.grid"][0] == kernels.height
    assert totals["debug.registers per thread"][1] == kernels["registers"].sum()
    rows = trace.collectives.drop_nulls("collective")
    ts = trace.events["ts"].gather(rows["event"]) - trace.events["ts"].min()
    expected = sorted(zip(ts, rows["collective"].cast(pl.String), strict=True))
    assert [(row["ts"], row["text"]) for row in loaded.tables[1]] == expected


@pytest.mark.matrix
def test_arrows_lead_from_the_launch_call_to_its_kernel(shared, tmp_path):
    trace = ta.read(shared / "data/chrome/kineto/mi250_rocm62.json.gz")
    write(trace, tmp_path / "out.pftrace")
    query = """select o.category as source, i.category as target,
        extract_arg(o.arg_set_id, 'debug.correlation') =
        extract_arg(i.arg_set_id, 'debug.correlation') as same, count(*) as n
        from flow f join slice o on f.slice_out = o.id join slice i on f.slice_in = i.id
        group by 1, 2, 3"""
    (loaded,) = load([tmp_path / "out.pftrace"], query)
    work = [row for row in loaded.tables[0] if row["target"] in ("kernel", "gpu_memcpy")]
    assert work
    assert {(row["source"], row["same"]) for row in work} == {("cuda_runtime", 1)}


@pytest.mark.matrix
def test_threads_and_streams_belong_to_the_process_of_their_rank(tmp_path):
    # two hosts whose process and thread ids coincide
    files = []
    for rank in (0, 1):
        host = {"ph": "X", "ts": 1, "dur": 5, "pid": 100, "tid": 100 * (rank + 1)}
        kernel = {"ph": "X", "ts": 2, "dur": 3, "pid": 0, "tid": 7, "cat": "kernel", "name": "k"}
        kernel["args"] = {"device": 0, "stream": 7, "correlation": 1}
        top = {"distributedInfo": {"rank": rank}, "host_name": f"host{rank}"}
        text = json.dumps(top | {"traceEvents": [host | {"name": f"op{rank}"}, kernel]})
        files.append(tmp_path / f"rank{rank}.json")
        files[-1].write_text(text)
    with (tmp_path / "out.pftrace").open("wb") as file:
        writer = PerfettoWriter(file)
        for rank, path in enumerate(files):
            writer.add(ta.read(path), f"rank {rank}")
        writer.close({1: 0, 2: 0}, {}, None)
    threads = """select s.name, p.name as process from slice s
        join thread_track t on s.track_id = t.id join thread using (utid)
        join process p using (upid) order by 1"""
    streams = """select t.name, p.name as process, parent.name as device from slice s
        join process_track t on s.track_id = t.id join process p using (upid)
        join track parent on t.parent_id = parent.id order by 2"""
    (loaded,) = load([tmp_path / "out.pftrace"], threads, streams)
    assert loaded.lost == {}
    names = ["rank 0 · host0 · GPU 0", "rank 1 · host1 · GPU 0"]
    assert [tuple(row.values()) for row in loaded.tables[0]] == list(
        zip(("op0", "op1"), names, strict=True)
    )
    assert [tuple(row.values()) for row in loaded.tables[1]] == [
        ("stream 7", name, "GPU 0") for name in names
    ]


@pytest.mark.matrix
def test_counters_have_their_readings(tmp_path):
    events = [
        {"ph": "C", "pid": 1, "ts": i, "name": "load", "args": {"cpu": i / 4, "gpu": 2.0**40}}
        for i in range(5)
    ]
    memory = {"ph": "i", "s": "t", "pid": 1, "tid": 1, "cat": "cpu_instant_event"}
    args = {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Addr": 1}
    totals = {"Total Allocated": 1024, "Total Reserved": 2**31}
    events.append(memory | {"name": "[memory]", "ts": 3, "args": args | totals})
    path = tmp_path / "in.json"
    path.write_text(json.dumps(events))
    write(ta.read(path), tmp_path / "out.pftrace")
    query = """select t.name, c.ts, c.value from counter c
        join counter_track t on c.track_id = t.id order by 1, 2"""
    (loaded,) = load([tmp_path / "out.pftrace"], query)
    rows = [tuple(row.values()) for row in loaded.tables[0]]
    assert rows == [
        ("GPU 0 memory allocated", 3000, 1024), ("GPU 0 memory reserved", 3000, 2**31),
        *(("load cpu", 1000 * i, i / 4) for i in range(5)),
        *(("load gpu", 1000 * i, 2.0**40) for i in range(5)),
    ]  # fmt: skip


if __name__ == "__main__":
    pytest.main([__file__, "-s", "-k", "real_traces"])


@pytest.mark.matrix
def test_perfetto_has_no_failure_with_merged_json(tmp_path):
    names = ("rank0.json.gz", "rank1.json.gz")
    folder = Path(__file__).parents[2] / "fixtures" / "nccl_8ranks"
    ta.merge([folder / name for name in names], tmp_path / "run.json")
    (loaded,) = load([tmp_path / "run.json"])
    assert loaded.lost == {}
