"""Real and damaged files of collapsed stacks: complete samples, no false detection."""

from __future__ import annotations

import gzip
import runpy
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, SHARED
from stack_files import frame_texts, stack_texts, total
from wording import raises_wording

from traceanalyzer import InputError, read, schema
from traceanalyzer.parsers import registry
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import is_truncated

FIXTURES = ROOT / "fixtures"
OURS = sorted((FIXTURES / "py_spy").glob("*.raw.txt"))
THEIRS = [
    path
    for folder in ("pyspy", "collapsed")
    for path in sorted((SHARED / "data" / folder).rglob("*.txt"))
    if path.stat().st_size
]
CASES = runpy.run_path(str(FIXTURES / "make_malformed_stacks.py"))["CASES"]
TEXT_CASES = [case for case in CASES if case.name.endswith(".txt")]
#: What the reference notes say.
TOTALS = {
    "default": 1902,
    "subproc_threads": 2170,
    "subproc_threads_spawn": 2586,
    "native": 2597,
    "nolineno": 1690,
    "threads_idle": 4398,
    "function": 1593,
}


def _id(path: Path) -> str:
    return path.name


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", [*OURS, *THEIRS], ids=_id)
def test_file_name_does_not_matter(path, tmp_path):
    neutral = tmp_path / "recording.dat"
    shutil.copyfile(path, neutral)
    trace = read(neutral)
    assert trace.meta.format == "collapsed"
    counts_events = path.name == "narrow-blocks.txt"  # of perf: counts of an event
    assert trace.meta.weight_unit == (None if counts_events else "samples")
    assert schema.check(trace.tables) == []
    assert trace.events["weight"].sum() == pytest.approx(total(path), rel=1e-12)
    assert total(path) > 0


@pytest.mark.parametrize("name", TOTALS)
def test_totals_of_the_recordings(name, shared):
    trace = read(shared / "data" / "pyspy" / f"{name}.raw.txt")
    assert trace.events["weight"].sum() == TOTALS[name]


@pytest.mark.parametrize("name", ["default", "function", "nolineno", "flameshow_third_party"])
def test_stacks_are_those_of_the_lines_in_order(name, shared):
    path = shared / "data" / "pyspy" / f"{name}.raw.txt"
    lines = path.read_text().splitlines()
    assert stack_texts(read(path)) == [line.rpartition(" ")[0] for line in lines]


def test_native_frames_name_their_library(shared):
    trace = read(shared / "data" / "pyspy" / "native.raw.txt")
    libraries = set(trace.stacks.filter(trace.stacks["line"].is_null())["file"])
    assert {"libc.so.6", "libtorch_cpu.so", None} <= libraries  # py-spy's (?) is not there
    anonymous = [name for name in trace.stacks["name"] if "(anonymous namespace)" in name]
    assert anonymous
    assert not [name for name in anonymous if name.endswith(")")]


def test_processes_and_threads_are_lanes_not_frames(shared):
    trace = read(shared / "data" / "pyspy" / "subproc_threads_spawn.raw.txt")
    assert not [text for text in frame_texts(trace) if text.startswith(("process ", "thread ("))]
    rows = trace.lanes.select("pid", "tid", "label", "labels").rows()
    root = (24585, None, "../../venv/bin/python train.py 12 2 spawn", None)
    assert root in rows
    children = {row[0]: row for row in rows if row[3] == "child of 24585"}
    assert children.keys() == {24609, 24610, 24611}
    assert "import spawn_main; spawn_main(tracker_fd=6, pipe_handle=15)" in children[24611][2]
    assert (24610, 24634, "Thread-1 (_serve)", None) in rows
    assert set(trace.events["pid"]) == {24585, 24609, 24610, 24611}


def test_hostile_names(shared):
    folder = shared / "data" / "pyspy" / "tricky"
    trace = read(folder / "weird_names_s_t.raw.txt")
    labels = dict(trace.lanes.drop_nulls("tid").select("tid", "label").rows())
    assert labels[2276] == "loader; rank 0 (gpu:1) 7"
    assert labels[2280] == "スレッド 12"
    files = dict(trace.stacks.select("name", "file").rows())
    assert files["<lambda>"] == "weird (copy); v2: x.py"
    assert files["gen"] == "<attrs generated init my pkg.Cls>"
    assert files["fwd"] == "b.py:21 in wrap"
    assert trace.events["stack"].null_count() == 2
    command = read(folder / "dash_c_newline_attach.raw.txt").lanes["label"][0]
    assert command.endswith('\nx="a; b 5"')


def test_a_comparison_has_two_samples_a_line(shared):
    folder = shared / "data" / "collapsed" / "inferno" / "differential"
    trace = read(folder / "perf-cycles-instructions-01-collapsed-all-diff.txt")
    first = trace.events.head(2)
    assert first.select("category", "weight").rows() == [("before", 31.0), ("after", 56.0)]
    assert first["stack"][0] == first["stack"][1]


@pytest.mark.parametrize("case", TEXT_CASES, ids=lambda case: case.name)
def test_faults_are_counted_or_rejected_in_one_line(case, tmp_path):
    path = tmp_path / "recording.dat"
    path.write_bytes(case.data)
    if case.weight is None:
        with pytest.raises(InputError) as refused:
            read(path)
        assert "\n" not in str(refused.value)
        return
    trace = read(path)
    assert trace.events["weight"].sum() == case.weight
    assert dict(trace.issues.select("code", "count").rows()) == case.issues
    assert schema.check(trace.tables) == []


def test_issues_are_documented():
    page = (ROOT / "docs" / "formats.md").read_text()
    codes = {code for case in CASES for code in case.issues}
    assert [code for code in codes if f"| `{code}` |" not in page] == []


def test_malformed_files_are_what_the_script_writes():
    written = {path.name: path.read_bytes() for path in (FIXTURES / "malformed_stacks").iterdir()}
    assert written == {case.name: case.data for case in CASES}


@pytest.mark.parametrize("data", [b"a b c\nd e f\n", b"{}", b"[1, 2]\n", b"\x00\x01 5\n", b""])
def test_file_without_samples_is_rejected(data, tmp_path):
    path = tmp_path / "given"
    path.write_bytes(data)
    with raises_wording(InputError):
        read(path, format="collapsed")


def test_other_formats_are_not_detected(shared):
    folders = ("chrome/conformance", "memory", "ncu", "nsys")
    files = [p for f in folders for p in sorted((shared / "data" / f).rglob("*")) if p.is_file()]
    files = [path for path in files if path.stat().st_size < 1_000_000]
    assert len(files) > 50
    stolen = []
    for path in [*files, *ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("docs/*.md")]:
        result = registry.detect(Source(path))
        if result is not None and result.name == "collapsed":
            stolen.append(path.name)
    assert stolen == []


def test_truncated_compressed_file_is_read_partially(tmp_path):
    text = OURS[0].read_bytes() * 50
    path = tmp_path / "rank_3.txt.gz"
    path.write_bytes(gzip.compress(text)[:-200])
    trace = read(path)
    assert trace.meta.rank == 3
    assert trace.issues["code"].to_list()[-1] == "damaged-file"
    assert 0 < trace.events["weight"].sum() < 50 * total(OURS[0])


@pytest.mark.parametrize(
    ("end", "issues"),
    [
        ("main (a.py:1);ste", [("truncated", 1)]),
        ('process 1:"a', [("truncated", 1)]),
        ("main (a.py:1);step (a.py:2) 3", []),
        ("oops\nmain (a.py:1) 3", [("bad-line", 1)]),
        ("oops\nmain (a", [("bad-line", 1), ("truncated", 1)]),
        ("oops\n", [("bad-line", 1)]),
    ],
)
def test_a_last_line_without_a_count_and_an_end_is_truncated(
    tmp_path: Path, end: str, issues: list[tuple[str, int]]
) -> None:
    path = tmp_path / "x.txt"
    path.write_text("main (a.py:1);step (a.py:2) 2\n" * 3 + end)
    trace = read(path)
    assert trace.issues.select("code", "count").rows() == issues
    assert is_truncated(trace) == (("truncated", 1) in issues)


def test_first_bad_line_is_reported(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text('process 1:"a\nb";main (a.py:1) 3\n' + "main;step 2\n" * 3 + "oops\n")
    trace = read(path)
    assert trace.issues.select("code", "count", "first").rows() == [("bad-line", 1, "line 6")]
    assert trace.events["weight"].to_list() == [3.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("name", "rank"), [("profile_node3.txt", 3), ("node1_rank7.txt", 7), ("nodes2.txt", None)]
)
def test_rank_comes_from_the_file_name(name, rank, tmp_path):
    shutil.copyfile(OURS[0], tmp_path / name)
    trace = read(tmp_path / name)
    assert trace.meta.rank == rank
    assert set(trace.events["rank"]) == {rank}


def test_selection_limits_what_is_read():
    path = FIXTURES / "py_spy" / "subprocesses_threads.raw.txt"
    assert read(path, kinds=["kernel"]).events.is_empty()
    lanes = read(path, kinds=["lane"])
    assert lanes.events.is_empty()
    assert lanes.lanes.equals(read(path).lanes)


def test_progress_is_reported():
    calls = []
    read(OURS[0], progress=lambda read, of: calls.append((read, of)))
    assert calls[-1] == (OURS[0].stat().st_size,) * 2
