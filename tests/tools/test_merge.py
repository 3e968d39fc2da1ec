"""One file for all ranks, loaded into Perfetto's trace processor."""

import gzip
import json
import os
import shutil
import threading
from pathlib import Path

import polars as pl
import pytest
from conftest import once
from trace_processor import load

import traceanalyzer as ta
from traceanalyzer.cli.main import status
from traceanalyzer.errors import (
    InputError,
    MissingData,
    OptionError,
    OutputError,
    UnreadableFile,
)

ROOT = Path(__file__).parents[2]
NCCL = ROOT / "fixtures/nccl_8ranks"
TOTALS = "select count(*) as n, max(ts + dur) - min(ts) as span, min(ts) as first from slice"
OF_RANK = """select s.ts, s.dur, s.name, p.name as process from slice s
    join thread_track t on s.track_id = t.id join thread using (utid) join process p using (upid)
    order by 1, 4"""
GROUP = """select s.ts, s.dur, s.name, s.category, t.name as track, parent.name as above,
    extract_arg(s.arg_set_id, 'debug.straggler') as straggler,
    extract_arg(s.arg_set_id, 'debug.waiting_for') as waiting_for,
    extract_arg(s.arg_set_id, 'debug.advice') as advice from slice s join track t
    on s.track_id = t.id join track parent on t.parent_id = parent.id
    where s.category in ('step', 'wait', 'finding', 'lost time', 'critical path')
    order by 1"""
BETWEEN = """select o.name, extract_arg(o.arg_set_id, 'debug.collective') as one,
    extract_arg(i.arg_set_id, 'debug.collective') as other, i.ts - o.ts as later,
    a.upid != b.upid as apart from flow f
    join slice o on f.slice_out = o.id join slice i on f.slice_in = i.id
    join process_track a on o.track_id = a.id join process_track b on i.track_id = b.id"""

ALONG_PATH = """select o.ts + o.dur as left, i.ts as reached, a.name as one, b.name as other
    from flow f
    join slice o on f.slice_out = o.id join slice i on f.slice_in = i.id
    join track a on o.track_id = a.id join track b on i.track_id = b.id
    where o.category = 'critical path' order by 1"""


@pytest.fixture(scope="module")
def nccl(tmp_path_factory):
    target = tmp_path_factory.mktemp("merged") / "run.pftrace"
    merged = ta.merge(NCCL, target)
    processes = "select name from process where pid > 0"
    (loaded,) = load([target], TOTALS, GROUP, BETWEEN, processes, ALONG_PATH)
    assert (loaded.error, loaded.lost) == (None, {})
    return merged, loaded.tables


@pytest.mark.matrix
def test_every_slice_of_every_rank_is_there(nccl):
    merged, (totals, group, _, processes, _) = nccl
    of_ranks = sum(ta.read(path).events.height for path in NCCL.glob("*.gz"))
    assert (merged.ranks, merged.recordings, merged.slices) == (8, 8, of_ranks)
    assert totals[0]["n"] == of_ranks + len(group)
    assert totals[0]["first"] == 0
    assert sorted(row["name"].split(":")[0] for row in processes) == [f"rank {i}" for i in range(8)]
    assert all("GPU" in row["name"] and "host" in row["name"] for row in processes)


def test_steps_waits_and_idle_time_are_those_of_the_analyses(nccl):
    _, (_, group, *_) = nccl
    diagnosed = once(ta.diagnose, NCCL)
    timeline = once(ta.timeline, NCCL)
    compared = once(ta.comm_outliers, NCCL)
    waits = [row for row in group if row["category"] == "wait"]
    assert sum(row["dur"] for row in waits) == compared.arrivals["wait_ns"].sum()
    worst = max(waits, key=lambda row: row["dur"])
    assert (worst["straggler"], worst["name"]) == (5, "waiting for rank 5")
    steps = {(row["ts"], row["dur"], row["name"]) for row in group if row["category"] == "step"}
    # the axis of the timeline begins with the first device work
    first = {row["ts"] for row in group if row["category"] == "step"}
    moved = min(first) - timeline.steps["start"].min()
    rows = timeline.steps.select(pl.col("start") + moved, pl.col("end") - pl.col("start"), "step")
    assert steps == set(rows.rows())
    titles = {row["name"] for row in group if row["category"] == "finding"}
    assert {finding.title for finding in diagnosed.findings} <= titles
    assert any(row["advice"] for row in group if row["category"] == "finding")
    assert sum(row["dur"] for row in group if row["category"] == "lost time") > 0


@pytest.mark.matrix
def test_parts_of_the_critical_path_are_on_a_track(nccl):
    _, (_, group, *_) = nccl
    parts = [row for row in group if row["category"] == "critical path"]
    critical = once(ta.critical_path, NCCL)
    # the tracks have the first step too
    assert sum(row["dur"] for row in parts) > critical.step_ns * (critical.steps)
    assert {row["waiting_for"] for row in parts} >= {*critical.classes["kind"]} - {"not recorded"}


def test_arrows_lead_along_the_critical_path(nccl):
    _, (_, group, _, _, arrows) = nccl
    parts = [row for row in group if row["category"] == "critical path"]
    assert len(arrows) == len(parts) - 1
    assert all(abs(row["reached"] - row["left"]) < 50_000 for row in arrows)
    tracks = {row["one"] for row in arrows}
    assert tracks >= {"rank 5 host", "rank 5 GPU 1"}
    assert sum(row["one"] != row["other"] for row in arrows) > 20


def test_arrows_join_the_ranks_of_a_collective(nccl):
    _, (_, _, arrows, *_) = nccl
    between = [row for row in arrows if row["apart"]]
    matched = once(ta.comm_outliers, NCCL).arrivals
    assert len(between) == matched.height - matched["instance"].n_unique()
    assert all(row["one"] == row["other"] and row["later"] >= 0 for row in between)


def test_clocks_are_those_of_the_timeline(nccl):
    merged, _ = nccl
    shifts = dict(merged.clocks.select("rank", "shift_ns").iter_rows())
    places = dict(once(ta.timeline, NCCL).places.select("rank", "shift").iter_rows())
    assert len({shifts[rank] - places[rank] for rank in shifts}) == 1
    assert merged.one_clock
    assert set(merged.clocks["by"]) == {
        "absolute times of the files", "ends of matched collectives",
    }  # fmt: skip
    clocks = once(ta.comm_outliers, NCCL).clocks
    left = pl.when("applied").then(0).otherwise(pl.col("offset_ns").abs())
    of_median = 1.86 * pl.col("residual_ns") / pl.col("n").sqrt()
    assert merged.residual_ns == int(clocks.select((of_median + left).max()).item())
    assert merged.residual_ns < clocks["residual_ns"].max()


@pytest.mark.matrix
def test_a_json_file_has_the_same_slices(tmp_path, nccl):
    merged = ta.merge(NCCL, tmp_path / "run.json.gz")
    (loaded,) = load([tmp_path / "run.json.gz"], TOTALS, ALONG_PATH)
    assert len(loaded.tables[1]) == len(nccl[1][4])
    totals = nccl[1][0][0]
    assert merged.slices == nccl[0].slices
    assert [loaded.tables[0][0][key] for key in ("n", "span")] == [totals["n"], totals["span"]]
    text = json.loads(gzip.decompress((tmp_path / "run.json.gz").read_bytes()))
    names = {e["args"]["name"] for e in text["traceEvents"] if e["name"] == "process_name"}
    assert "traceanalyzer" in names


def _without_rank(path, shift_us=0.0):
    """Write a recording of two GPUs without a rank; GPU 1 has the process id 1, as in Kineto."""
    row = {"ph": "X", "pid": 77, "tid": 77, "cat": "cuda_runtime", "name": "cudaLaunchKernel"}
    rows = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "python"}}
            for pid in (0, 1, 77)]  # fmt: skip
    for i in range(20):
        rows.append({**row, "ts": 100 * i + shift_us, "dur": 5, "args": {"correlation": i}})
        kernel = {"device": i % 2, "stream": 7, "correlation": i}
        rows.append({"ph": "X", "cat": "kernel", "name": "gemm", "pid": i % 2, "tid": 7,
                     "ts": 100 * i + 50 + shift_us, "dur": 20, "args": kernel})  # fmt: skip
    path.write_text(json.dumps({"traceEvents": rows}))


@pytest.mark.sample(3)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_recordings_without_rank_share_no_process(tmp_path, number):
    for i in range(number):
        _without_rank(tmp_path / f"job{i}.json", 2.5 * i)
    merged = ta.merge(tmp_path, tmp_path / "out.json")
    rows = json.loads((tmp_path / "out.json").read_bytes())["traceEvents"]
    slices = [row for row in rows if row["ph"] == "X"]
    of_group = [row["pid"] for row in rows if row["name"] == "process_name"
                and row["args"]["name"] == "traceanalyzer"]  # fmt: skip
    recorded = [row for row in slices if row["pid"] not in of_group]
    assert len(recorded) == merged.slices == number * 40
    assert len(of_group) == 1
    assert len({row["pid"] for row in recorded}) == 3 * number
    added = [(row["tid"], row["ts"], row["name"]) for row in slices if row["pid"] in of_group]
    assert added
    assert len(added) == len({*added})
    tracks = [(row["pid"], row["tid"]) for row in rows if row["name"] == "thread_name"]
    assert len(tracks) == len({*tracks})


@pytest.fixture
def pair(tmp_path):
    """Two of the ranks: on two hosts, one of them the straggler."""
    for rank in (1, 5):
        (tmp_path / "pair").mkdir(exist_ok=True)
        shutil.copy(NCCL / f"rank{rank}.json.gz", tmp_path / "pair")
    return tmp_path / "pair"


@pytest.mark.matrix
def test_parts_of_a_run(tmp_path, pair):
    target = tmp_path / "part.pftrace"
    traces = {i: ta.read(pair / f"rank{i}.json.gz") for i in (1, 5)}
    step = ta.merge(pair, target, step=12, kinds=["user_annotation"], force=True)
    named = (
        trace.events.filter(name="ProfilerStep#12", kind="user_annotation")
        for trace in traces.values()
    )
    marks = [rows.row(0, named=True) for rows in named]
    shifts = step.clocks["shift_ns"].to_list()
    begins = [mark["ts"] + shift for mark, shift in zip(marks, shifts, strict=True)]
    ends = [begin + mark["dur"] for begin, mark in zip(begins, marks, strict=True)]
    assert step.window == (min(begins), max(ends))
    (loaded,) = load([target], "select ts, dur, name from slice where category = 'user_annotation'")
    names = {row["name"] for row in loaded.tables[0]}
    assert "ProfilerStep#12" in names
    assert not names & {"ProfilerStep#10", "ProfilerStep#14"}
    some = ta.merge(pair, target, ranks=[5], kinds=["kernel"], force=True)
    kernels = (traces[5].events["kind"] == "kernel").sum()
    assert (some.ranks, some.slices, some.window) == (1, kernels, None)


@pytest.mark.matrix
def test_a_time_window_counts_from_the_start_of_the_run(tmp_path, pair):
    target = tmp_path / "part.pftrace"
    merged = ta.merge(pair, target, since_ns=10**7, until_ns=2 * 10**7, kinds=["kernel"])
    assert merged.window == (10**7, 2 * 10**7)
    expected = 0
    for rank, shift in merged.clocks.select("rank", "shift_ns").iter_rows():
        rows = ta.read(pair / f"rank{rank}.json.gz").events.filter(kind="kernel")
        start = rows["ts"] + shift
        expected += ((start + rows["dur"] > 10**7) & (start < 2 * 10**7)).sum()
    assert merged.slices == expected > 0


@pytest.mark.matrix
def test_around_a_finding_is_a_second(tmp_path, pair, thorough):
    path = tmp_path / "in.json"
    text = json.loads(gzip.decompress((NCCL / "rank5.json.gz").read_bytes()))
    # one later event makes the run ten seconds long
    last = max(event.get("ts", 0) for event in text["traceEvents"])
    late = {"ph": "X", "cat": "cpu_op", "name": "late", "pid": 1, "tid": 1, "dur": 1}
    text["traceEvents"].append(late | {"ts": last + 10_000_000})
    path.write_text(json.dumps(text))
    shutil.move(path, pair / "rank5.json.gz")
    number = ta.merge(pair, tmp_path / "a.pftrace", around=1)
    name = ta.merge(pair, tmp_path / "b.pftrace", around=number.findings[0].id)
    assert number.window == name.window
    assert number.window[1] - number.window[0] == 10**9
    begin, end = number.place
    assert 0 <= begin < end <= 10**9
    if thorough:
        cause, effect = next((f, e) for f in number.findings for e in f.effects)
        windows = [
            ta.merge(pair, tmp_path / f"{one}.pftrace", around=one).window
            for one in (cause.id, effect.id)
        ]
        assert windows[0] == windows[1] != number.window
    with pytest.raises(OptionError, match="1 \\("):
        ta.merge(pair, tmp_path / "c.pftrace", around="no-such-finding")
    with pytest.raises(OptionError, match="ProfilerStep"):
        ta.merge(pair, tmp_path / "c.pftrace", step=99)
    assert not (tmp_path / "c.pftrace").exists()


@pytest.mark.matrix
def test_what_was_merged_is_not_merged_again(tmp_path, pair):
    run = pair
    first = ta.merge(run, run / "merged.json.gz")
    again = ta.merge(run, run / "all.json.gz")
    assert again.slices == first.slices
    assert any("merged.json.gz" in note for note in again.notes)
    with pytest.raises(OptionError):
        ta.merge(run / "merged.json.gz", tmp_path / "out.json")


@pytest.mark.matrix
def test_outputs_and_inputs_that_cannot_be(tmp_path, pair):
    with pytest.raises(OptionError):
        ta.merge(pair, tmp_path / "run.txt")
    (tmp_path / "run.pftrace").write_bytes(b"")
    with pytest.raises(OutputError):
        ta.merge(pair, tmp_path / "run.pftrace")
    with pytest.raises(UnreadableFile):
        ta.merge(tmp_path / "none", tmp_path / "new.pftrace")
    with pytest.raises(OptionError):
        ta.merge(pair, tmp_path / "new.pftrace", ranks=[99])
    (tmp_path / "stacks.txt").write_text("main;step 3\nmain;load 4\n")
    with pytest.raises(MissingData):
        ta.merge(tmp_path / "stacks.txt", tmp_path / "new.pftrace")
    assert not (tmp_path / "new.pftrace").exists()


@pytest.mark.matrix
def test_a_truncated_rank_is_merged_as_far_as_it_goes(tmp_path, pair):
    run = pair
    data = (run / "rank1.json.gz").read_bytes()
    (run / "rank1.json.gz").write_bytes(data[: len(data) * 2 // 3])
    rest = ta.read(run / "rank1.json.gz").events.height
    merged = ta.merge(run, tmp_path / "run.pftrace")
    whole = sum(ta.read(path).events.height for path in run.glob("*.gz"))
    assert 0 < rest < 489
    assert merged.slices == whole
    assert any("truncated" in note for note in merged.notes)
    (loaded,) = load([tmp_path / "run.pftrace"], TOTALS)
    assert loaded.lost == {}


@pytest.mark.matrix
def test_a_pipe_gets_the_whole_file(tmp_path):
    target = tmp_path / "pipe.pftrace"
    os.mkfifo(target)
    received = []
    reader = threading.Thread(target=lambda: received.append(target.read_bytes()))
    reader.start()
    ta.merge(NCCL / "rank0.json.gz", target)
    reader.join()
    ta.merge(NCCL / "rank0.json.gz", tmp_path / "file.pftrace")
    assert received == [(tmp_path / "file.pftrace").read_bytes()]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "options",
    [["--ranks", "1-"], ["--ranks", "a"], ["--ranks", "9"], ["--kinds", "none"], ["--step", "99"]],
    ids=" ".join,
)
def test_options_that_select_nothing_are_errors(tmp_path, pair, capfd, options):
    assert status(["merge", str(pair), "-o", str(tmp_path / "out.pftrace"), *options]) == 2
    assert len(capfd.readouterr().err.strip().splitlines()[-1]) > 20
    assert not (tmp_path / "out.pftrace").exists()


# --- Composer ----------------------------------------------------------------------------------


@pytest.mark.matrix
def test_composer_cycles_are_aligned_one_by_one(shared, tmp_path):
    merged = ta.merge(shared / "data/chrome/composer", tmp_path / "run.pftrace")
    (loaded,) = load([tmp_path / "run.pftrace"], OF_RANK, "select name from process where pid > 0")
    rows, processes = loaded.tables
    assert (merged.ranks, merged.recordings, loaded.lost) == (2, 4, {})
    # rank 1 is 5 ms ahead in the first cycle and 6 ms in the second
    assert sorted(merged.clocks["offset_ns"].to_list()) == [0, 0, 5_000_000, 6_000_000]
    by_process = {
        row["name"]: [(r["ts"], r["dur"], r["name"]) for r in rows if r["process"] == row["name"]]
        for row in processes
    }
    one, other = by_process.values()
    assert one == other
    assert len(one) == 8
    assert merged.residual_ns == 37_000


@pytest.mark.matrix
def test_composer_repro(shared, tmp_path):
    repro = shared / "data/composer/repro"
    # merged file: two ranks; beside its parts: once; embedded: PyTorch's events once
    alone = ta.merge(repro / "node0_merged.json", tmp_path / "a.pftrace")
    with_parts = ta.merge(repro / "folder_with_merged", tmp_path / "b.pftrace")
    assert (alone.ranks, with_parts.ranks) == (2, 2)
    embedded = ta.merge(repro / "embedded", tmp_path / "c.pftrace", kinds=["kernel"])
    torch = [path for path in (repro / "embedded").rglob("*") if "pt.trace" in path.name]
    kernels = sum((ta.read(path).events["kind"] == "kernel").sum() for path in torch)
    assert torch
    assert embedded.slices == kernels
    cycles = ta.merge(repro / "two_cycles_one_rank", tmp_path / "d.pftrace")
    names = "select count(*) as n from process where pid > 0"
    loaded = load([tmp_path / "c.pftrace", tmp_path / "d.pftrace"], names)
    assert [one.lost for one in loaded] == [{}, {}]
    assert (cycles.ranks, cycles.recordings, loaded[1].tables[0][0]["n"]) == (1, 2, 1)


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("suffix", ["json", "pftrace"])
def test_what_merge_wrote_is_not_analyzed(tmp_path: Path, pair: Path, suffix: str) -> None:
    target = tmp_path / f"run.{suffix}"
    ta.merge(pair, target)
    for question in (ta.diagnose, ta.comm_outliers):
        with pytest.raises(InputError):
            question(target)
