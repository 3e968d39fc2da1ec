import json
import os
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer import info, schema
from traceanalyzer.analyzers.info import Options
from traceanalyzer.analyzers.info.compute import measure
from traceanalyzer.errors import InputError, UnreadableFile
from traceanalyzer.parsers.tables import as_table
from traceanalyzer.render.table import render
from traceanalyzer.trace import Device, Meta, Trace, concat, issue_rows
from traceanalyzer.units import format_ranges

EVENTS = [
    # ts, dur, kind, name
    (0, 1_000, "user_annotation", "ProfilerStep#3"),
    (0, None, "other", "Iteration Start: PyTorch Profiler"),
    (100, 50, "cpu_op", "aten::mm"),
    (120, 300, "kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
    (200, 700, "kernel", "ampere_sgemm"),
    (900, 200, "gpu_user_annotation", "nccl:all_reduce"),
]


def _trace(rank=0, *, lost=(), host_run=False, **meta):
    rows = [*EVENTS, *([(1_000, 10, "user_annotation", "gloo:all_reduce")] if host_run else [])]
    given = pl.DataFrame(rows, schema=["ts", "dur", "kind", "name"], orient="row")
    on_device = pl.col("kind").is_in(["kernel", "gpu_user_annotation"])
    frame = given.with_columns(rank=rank, device=pl.when(on_device).then(0))
    source = Meta(f"run/rank{rank}.json", "chrome-trace", rank=rank, **meta)
    return Trace((source,), as_table(frame, "events"), issues=issue_rows(lost, rank))


def test_one_file():
    devices = (Device(0, "H100"), Device(1, "H100"))
    result = info([_trace(epoch_ns=1_700_000_000_000_000_000, world_size=8, devices=devices)])
    file, content = result.files.row(0, named=True), result.contents.row(0, named=True)
    assert file["devices"] == "2x H100"
    assert file["start_utc"] == "2023-11-14 22:13:20"
    assert file["epoch_ns"] == 1_700_000_000_000_000_000
    assert content["span_ns"] == 1_100
    assert content["steps"] == 1
    assert content["communication"] == 1
    assert content["communication_ns"] == 300
    check_wording(result.verdict)


@pytest.mark.parametrize(("unit", "span"), [("ns", 15), ("samples", 10), (None, 10)])
def test_last_sample_extends_by_its_weight(unit, span):
    """Weights that are times extend samples; NaN has no duration."""
    rows = [(0, "sample", 10.0), (8, "sample", 7.4), (10, "sample", float("nan"))]
    frame = pl.DataFrame(rows, schema=["ts", "kind", "weight"], orient="row")
    source = Meta("x.speedscope.json", "speedscope", weight_unit=unit)
    assert info([Trace((source,), as_table(frame, "events"))]).contents["span_ns"].item() == span


def test_instants_are_not_steps_and_annotations_not_communication():
    content = info([_trace()]).contents.row(0, named=True)
    assert (content["steps"], content["communication"]) == (1, 1)


def test_collectives_run_by_the_host_are_communication():
    content = info([_trace(host_run=True)]).contents.row(0, named=True)
    assert (content["communication"], content["communication_ns"]) == (2, 310)


def test_several_ranks_with_losses():
    cut = [("data_loss", "truncated", 1, "byte 12345"), ("notice", "overlap", 2, None)]
    result = info(
        [_trace(0), _trace(1, lost=cut), _trace(3)], skipped=[("run/notes.txt", "no format")]
    )
    check_wording(result.verdict)
    assert result.contents["dropped"].to_list() == [0, 1, 0]
    assert result.issues["severity"].to_list() == ["data_loss", "notice"]
    text = result.table()
    assert "Files in run/" in text
    assert "rank1.json" in text
    assert "no format" in text


def test_kinds_are_summed():
    kinds = {row["kind"]: row for row in info([_trace(0), _trace(1)]).kinds.to_dicts()}
    assert kinds["kernel"] == {"kind": "kernel", "files": 2, "events": 4, "sum_ns": 2_000}
    assert kinds["other"]["sum_ns"] is None


def test_sums_leave_out_negative_durations():
    trace = _trace(host_run=True)
    back = trace.events.with_columns(dur=pl.when(pl.col("dur") > 0).then(-pl.col("dur")))
    result = info([replace(trace, events=back)])
    assert result.kinds["sum_ns"].drop_nulls().unique().to_list() == [0]
    assert result.contents["communication_ns"].to_list() == [0]
    (first,) = info([replace(trace, events=back.head(1))]).contents["span_ns"]
    assert first == 0


@pytest.mark.parametrize(
    ("spans", "kind", "count"),
    [
        ([(0, 100), (10, 90)], "cpu_op", 0),
        ([(0, 100), (60, 90), (70, 90)], "cpu_op", 2),
        ([(0, 100), (60, 90), (70, 90)], "async", 0),  # concurrent requests
        ([(0, 100), (99, 90)], "cpu_op", 0),  # 1 ns is rounding
    ],
)
def test_crossing_slices_are_counted(spans, kind, count):
    events = schema.empty("events")
    rows = pl.DataFrame(spans, schema=["ts", "dur"], orient="row").with_columns(
        pid=1, tid=2, name=pl.lit("f").cast(schema.NAME), kind=pl.lit(kind).cast(schema.KIND)
    )
    trace = Trace(
        (Meta("a.json", "chrome-trace"),), pl.concat([events, rows], how="diagonal_relaxed")
    )
    result = info([trace]).issues.filter(pl.col("code") == "overlapping-slices")
    assert result["count"].to_list() == [count][: bool(count)]
    assert set(result["severity"]) <= {"notice"}
    assert set(result["first"]) <= {"f at 60 ns"}
    assert not measure(trace, Options(), for_rules=True).issues


@pytest.mark.parametrize("name", ["node0_merged.json", "folder_with_merged/merged_trace.json"])
def test_ranks_of_one_file_are_named(name, shared):
    """Composer merges the files of its ranks into one."""
    result = info([shared / "data/composer/repro" / name])
    assert result.files["rank"].to_list() == [0, 1]
    assert result.files["path"].n_unique() == 1
    assert result.kinds["files"].unique().to_list() == [1]
    assert result.issues.height == result.issues.unique().height


def test_joined_ranks_are_separated():
    lost = [("data_loss", "truncated", 1, None)]
    apart = [_trace(0, epoch_ns=1_000), _trace(1, epoch_ns=5_000, lost=lost)]
    joined = info([concat(apart)])
    assert joined.files["epoch_ns"].to_list() == [1_000, 5_000]
    assert joined.contents.equals(info(apart).contents)
    assert joined.kinds.equals(info(apart).kinds)
    assert joined.issues.equals(info(apart).issues)


def test_empty_input():
    result = info([])
    assert result.verdict == "0 files."
    assert "none" in result.table()


def test_an_empty_trace():
    result = info([Trace((Meta("a.json", "chrome-trace"),))])
    assert result.verdict == "1 file. 0 events."
    assert json.loads(json.dumps(result.to_dict()))["contents"][0]["span_ns"] is None


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([0, 2, 3, 9], "0, 2-3, 9")],
)
def test_ranges(numbers, text):
    assert format_ranges(numbers) == text


def test_unreadable_file_is_listed(tmp_path):
    (tmp_path / "rank0.json").write_text('{"traceEvents": [{"ph":"X","name":"a","ts":1,"dur":2}]}')
    (tmp_path / "rank1.json").write_text('{"traceEvents": 5}')
    result = ta.info([tmp_path / "rank0.json", tmp_path / "rank1.json"])
    assert result.files.height == 1
    assert result.skipped["path"].to_list() == [str(tmp_path / "rank1.json")]
    with pytest.raises(InputError):
        ta.info([tmp_path / "rank1.json"])


def test_real_ranks(shared):
    folder = shared / "data/chrome/kineto/dlrm_8ranks"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    result = ta.info([folder])
    assert result.files["rank"].to_list() == list(range(8))
    assert result.contents["communication"].to_list() == [8] * 8
    assert result.contents["steps"].to_list() == [1] * 8
    assert result.files["devices"].to_list() == ["8x Tesla V100-SXM2-32GB"] * 8


def test_bundled_ranks(golden, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setenv("COLUMNS", "120")
    golden("info_nccl_8ranks.txt", ta.info(["fixtures/nccl_8ranks"]).table())


@pytest.mark.matrix
def test_single_path_is_accepted():
    folder = Path(__file__).parents[2] / "fixtures" / "nccl_8ranks"
    assert ta.info(str(folder)).files.height == ta.info([folder]).files.height == 8


def test_undecodable_file_name_is_refused_or_listed(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.json")
    for name in (path, tmp_path / "rank0.json"):
        Path(name).write_text('[{"ph": "X", "name": "a", "ts": 1, "dur": 1}]')
    with raises_wording(UnreadableFile):
        ta.info(path)
    result = ta.info(tmp_path)
    assert result.files.height == 1
    assert result.skipped.row(0) == (f"{tmp_path}/caf\\udce9.json", "its name is not UTF-8")


def test_first_case_of_an_issue_is_never_shortened(tmp_path: Path) -> None:
    event = {"ph": "X", "ts": 1, "dur": "x" * 90, "pid": 1, "tid": 1, "name": "a"}
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": [event, {**event, "dur": 1}]}))
    result = info(tmp_path / "a.json")
    (first,) = result.issues["first"]
    narrow, wide = (render(result, width=width).replace("\n  ", " ") for width in (70, 160))
    assert f"\n1: {first}" in narrow
    assert f"| {first}" in wide
