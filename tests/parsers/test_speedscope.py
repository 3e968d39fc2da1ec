"""Reading and writing of speedscope files; py-spy's files for other viewers."""

from __future__ import annotations

import json
import random
import runpy
from collections import Counter

import polars as pl
import pytest
from conftest import ROOT
from hypothesis import given, strategies as st
from stack_files import samples, stack_texts
from wording import check_wording, raises_wording

from traceanalyzer import InputError, convert, read, schema
from traceanalyzer.errors import MissingData
from traceanalyzer.parsers import registry
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import concat

FIXTURES = ROOT / "fixtures"
CASES = runpy.run_path(str(FIXTURES / "make_malformed_stacks.py"))["CASES"]
JSON_CASES = [case for case in CASES if case.name.endswith(".speedscope.json")]
FRAMES = [{"name": "a", "file": "a.py", "line": 1}, {"name": "b"}, {"name": "c", "line": None}]


def parsed(tmp_path, *profiles, frames=FRAMES):
    path = tmp_path / "profile.dat"
    path.write_text(json.dumps({"shared": {"frames": frames}, "profiles": profiles}))
    return read(path)


def sampled(stacks, weights, unit="none", name="", start=0):
    end = start + sum(weights)
    head = {"type": "sampled", "name": name, "unit": unit, "startValue": start, "endValue": end}
    return head | {"samples": stacks, "weights": weights}


def evented(events, unit="milliseconds", start=0, end=10):
    listed = [{"type": kind, "at": at, "frame": frame} for kind, at, frame in events]
    head = {"type": "evented", "name": "", "unit": unit, "startValue": start, "endValue": end}
    return head | {"events": listed}


def test_sampled_stacks_keep_their_order_and_have_times(tmp_path):
    trace = parsed(tmp_path, sampled([[0, 1], [], [0]], [0.1, 0.2, 0.3], "seconds", start=1.5))
    assert trace.events["ts"].to_list() == [1_500_000_000, 1_600_000_000, 1_800_000_000]
    assert trace.events["weight"].to_list() == [1e8, 2e8, 3e8]
    assert stack_texts(trace) == ["a (a.py:1);b", "", "a (a.py:1)"]
    assert trace.meta.weight_unit == "ns"


@pytest.mark.parametrize(
    ("unit", "expected_unit", "weight"),
    [
        ("none", "samples", 2.0),
        ("bytes", "bytes", 2.0),
        ("nanoseconds", "ns", 2.0),
        ("microseconds", "ns", 2e3),
        ("milliseconds", "ns", 2e6),
        ("parsecs", None, 2.0),
    ],
)
def test_units(unit, expected_unit, weight, tmp_path):
    trace = parsed(tmp_path, sampled([[0]], [2], unit))
    assert (trace.meta.weight_unit, trace.events["weight"][0]) == (expected_unit, weight)
    assert trace.events["ts"].is_null()[0] == (expected_unit != "ns")


def test_evented_profiles_give_self_times(tmp_path):
    events = [("O", 1, 0), ("O", 3, 1), ("C", 4, 1), ("O", 4, 2), ("C", 6, 2), ("C", 8, 0)]
    trace = parsed(tmp_path, evented(events))
    a, b, c = "a (a.py:1)", "a (a.py:1);b", "a (a.py:1);c"
    assert list(zip(stack_texts(trace), trace.events["weight"] / 1e6, strict=True)) == [
        (a, 2.0),
        (b, 1.0),
        (c, 2.0),
        (a, 2.0),
    ]
    assert trace.events["ts"].to_list() == [1_000_000, 3_000_000, 4_000_000, 6_000_000]
    assert trace.issues.is_empty()


@given(st.data())
def test_evented_total_is_the_time_with_an_open_frame(tmp_path_factory, data):
    at, open_, events, busy = 0, [], [], 0
    for _ in range(data.draw(st.integers(1, 20))):
        step = data.draw(st.integers(0, 5))
        busy += step * bool(open_)
        at += step
        if open_ and data.draw(st.booleans()):
            events.append(("C", at, open_.pop()))
        else:
            open_.append(data.draw(st.integers(0, 2)))
            events.append(("O", at, open_[-1]))
    busy += 7 * bool(open_)
    trace = parsed(tmp_path_factory.mktemp("e"), evented(events, "nanoseconds", end=at + 7))
    assert trace.events["weight"].sum() == busy


def test_numbers_written_as_text_are_numbers(tmp_path):
    """dotnet-trace writes where a profile starts and ends so."""
    events = [("O", "3", 0), ("C", 4.5, 0)]
    trace = parsed(tmp_path, evented(events, start="3", end="4.5"))
    assert trace.events.select("ts", "weight").rows() == [(3_000_000, 1_500_000.0)]
    trace = parsed(tmp_path, sampled([["0"]], [2], "seconds") | {"weights": ["2e0"]})
    assert trace.events["weight"].to_list() == [2e9]
    assert trace.issues.is_empty()


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "1e999", "3,5"])
def test_text_that_is_not_a_number_is_rejected(text, tmp_path):
    for part in ({"startValue": text}, {"endValue": text}, {"weights": [text]}):
        with raises_wording(InputError):
            parsed(tmp_path, sampled([[0]], [2], "seconds") | part)


def test_process_and_thread_come_from_profile_names(tmp_path):
    names = ('Process 7 Thread 8 "io; "x""', "Process 7", "Thread 0x1F", "", "warm-up", "before")
    trace = parsed(tmp_path, *(sampled([[0]], [1], name=name) for name in names))
    known = trace.events.select("pid", "tid", "category").rows()
    assert known == [
        (7, 8, None),
        (7, None, None),
        (None, 31, None),
        (None, None, None),
        (None, -5, None),
        (None, None, "before"),
    ]
    threads = trace.lanes.drop_nulls("tid").select("tid", "label", "textual").rows()
    assert threads == [(8, 'io; "x"', False), (31, None, False), (-5, "warm-up", True)]


LABELS = ['process 7:"sh -c "a;b""', 'process 9:"x"', "thread (5)", "thread (5): io; 1"]


@pytest.mark.parametrize(
    ("name", "stack", "lane"),
    [
        ('Thread 5 ""', [2], (None, 5)),
        ('Process 9 Thread 5 ""', [0, 1, 2], (9, 5)),
        ('Process 9 Thread 5 ""', [2], (9, 5)),
        ('Process 9 Thread 5 ""', [0, 1], (9, 5)),
        ("by py-spy", [0, 2], (7, 5)),
    ],
)
def test_py_spy_labels_are_not_frames(name, stack, lane, tmp_path):
    frames = [*({"name": label, "file": "", "line": 0} for label in LABELS), {"name": "a"}]
    stacks = [[*stack, 4], [*(3 if at == 2 else at for at in stack), 4]]
    trace = parsed(tmp_path, sampled(stacks, [1, 2], name=name), frames=frames)
    assert trace.events.select("pid", "tid").unique().rows() == [lane]
    assert stack_texts(trace) == ["a", "a"]
    threads = trace.lanes.drop_nulls("tid").select("tid", "label").rows()
    assert threads == [(5, "io; 1" if 2 in stack else None)]
    commands = dict(trace.lanes.filter(pl.col("tid").is_null()).select("pid", "label").rows())
    assert commands.get(7) == ('sh -c "a;b"' if 0 in stack else None)


def test_frames_that_look_like_labels_stay(tmp_path):
    """Below another frame, in a file, or not all of a text."""
    frames = [{"name": "a"}, {"name": "thread (5)"}, {"name": "thread (5)", "file": "t.py"}]
    frames += [{"name": "thread (5): x;y"}, {"name": 'process 5:"x'}]
    trace = parsed(tmp_path, sampled([[0, 1], [2], [3], [4]], [1] * 4), frames=frames)
    assert trace.events["tid"].null_count() == 4
    assert stack_texts(trace)[:2] == ["a;thread (5)", "thread (5) (t.py)"]


def test_frames_that_differ_in_their_column_only_are_one(tmp_path):
    frames = [{"name": "a", "line": 1, "col": 3}, {"name": "a", "line": 1, "col": 9}]
    assert parsed(tmp_path, sampled([[0], [1]], [1, 1]), frames=frames).stacks.height == 1


def test_py_spy_files(shared):
    for path in (
        shared / "data" / "pyspy" / "tricky" / "weird_names.speedscope.json",
        FIXTURES / "py_spy" / "subprocesses.speedscope.json",
    ):
        profiles = json.loads(path.read_text())["profiles"]
        trace = read(path)
        assert schema.check(trace.tables) == []
        assert trace.meta.format == "speedscope"
        assert trace.events.height == sum(len(profile["samples"]) for profile in profiles)
        expected = sum(map(sum, (profile["weights"] for profile in profiles)))
        assert trace.events["weight"].sum() / 1e9 == pytest.approx(expected)
        assert trace.events.select("pid", "tid").n_unique() == len(profiles)
    assert "loader; rank 0 (gpu:1) 7" in set(
        read(shared / "data/pyspy/tricky/weird_names.speedscope.json").lanes["label"]
    )


def test_py_spys_chrome_trace_is_a_chrome_trace():
    path = FIXTURES / "py_spy" / "default.chrometrace.json"
    trace = read(path)
    begins = [event for event in json.loads(path.read_text()) if event["ph"] == "B"]
    assert trace.meta.format == "chrome-trace"
    assert trace.events.height == len(begins)
    assert trace.issues.is_empty()
    named = ("{name} ({filename}:{line})".format(**event, **event["args"]) for event in begins)
    assert Counter(trace.events["name"]) == Counter(named)


def chrome_trace(tmp_path, *frames):
    """py-spy's, of one stack."""
    events = [
        {"ph": phase, "cat": "py-spy", "pid": 9, "tid": 7, "ts": ts, "name": name, "args": args}
        for phase, ts, stack in (("B", 1, frames), ("E", 5, frames[::-1]))
        for name, args in stack
    ]
    path = tmp_path / "py_spy.json"
    path.write_text(json.dumps(events))
    return path


def at(file, line=0):
    return {"filename": file, "line": line}


@pytest.mark.parametrize("columns", [(), ("args",)])
def test_py_spys_slices_know_file_and_line(columns, tmp_path):
    frames = [("main", at("a.py", 3)), ("g", at("")), ("h", None), ("i", at([1], "x"))]
    trace = read(chrome_trace(tmp_path, *frames, ("f", at("b.py", None))), columns=columns)
    assert set(trace.events["name"]) == {"main (a.py:3)", "f (b.py)", "g", "h", "i"}
    assert trace.events["dur"].to_list() == [4_000] * 5
    assert trace.issues.is_empty()
    functions = trace.flamegraph().functions.select("name", "place", "is_own_code").rows()
    assert {("f", "b.py", True), ("main", "a.py:3", True)} < set(functions)


def test_labels_in_py_spys_chrome_trace_name_lanes(tmp_path):
    labels = [('process 9:"sh -c "a;b""', at("")), ("thread (5): io", at(""))]
    trace = read(chrome_trace(tmp_path, *labels, ("f", at("a.py", 3))))
    assert trace.events.select("name", "dur").rows() == [("f (a.py:3)", 4_000)]
    lanes = trace.lanes.select("pid", "tid", "label").rows()
    assert lanes == [(9, None, 'sh -c "a;b"'), (9, 7, "io")]
    assert trace.issues.is_empty()


@pytest.mark.parametrize("case", JSON_CASES, ids=lambda case: case.name)
def test_faults_are_counted_or_rejected_in_one_line(case, tmp_path):
    path = tmp_path / "profile.dat"
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


@pytest.mark.parametrize("unit", ["none", "seconds"])
def test_selection_limits_what_is_read(unit, tmp_path):
    parsed(tmp_path, sampled([[0]], [1], unit, "Thread 5"))
    path = tmp_path / "profile.dat"
    assert read(path, kinds=["kernel"]).events.is_empty()
    assert read(path, kinds=["lane"]).lanes["tid"].to_list() == [5]


def test_chrome_traces_are_not_detected_as_speedscope(shared):
    files = sorted((shared / "data" / "chrome" / "conformance").rglob("*.json"))
    assert len(files) > 20
    result = [registry.detect(Source(path)) for path in files]
    assert "speedscope" not in {known.name for known in result if known}


ROUND_TRIPS = [
    *sorted((FIXTURES / "py_spy").glob("*.raw.txt")),
    FIXTURES / "py_spy" / "subprocesses.speedscope.json",
]


@pytest.mark.parametrize("path", ROUND_TRIPS, ids=lambda path: path.name)
def test_recordings_round_trip(path, tmp_path):
    before = read(path)
    convert(path, tmp_path / "x.speedscope.json")
    after = read(tmp_path / "x.speedscope.json")
    assert samples(after) == samples(before)
    assert after.meta.weight_unit == before.meta.weight_unit
    threads = [
        trace.lanes.drop_nulls("tid").select("pid", "tid", "label") for trace in (before, after)
    ]
    assert sorted(threads[0].rows(), key=str) == sorted(threads[1].rows(), key=str)  # fmt: skip


NAMES = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=6)
THREADS = st.tuples(st.none() | st.integers(1, 3), st.none() | st.integers(1, 3))


@given(
    st.lists(
        st.tuples(
            st.lists(
                st.tuples(NAMES, st.none() | NAMES, st.none() | st.integers(1, 9)), max_size=4
            ),
            st.integers(0, 1 << 50) | st.floats(0, 1e6),
            THREADS,
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_samples_round_trip(tmp_path_factory, rows):
    """Written as speedscope JSON, so that names may contain anything."""
    folder = tmp_path_factory.mktemp("round")
    frames = list(dict.fromkeys(frame for stack, _, _ in rows for frame in stack))
    entries = [{"name": n, "file": file, "line": line} for n, file, line in frames]
    profiles = []
    for stack, weight, (pid, tid) in rows:
        parts = [f"Process {pid}"] * (pid is not None) + [f"Thread {tid}"] * (tid is not None)
        numbers = [frames.index(frame) for frame in stack]
        profiles.append(sampled([numbers], [weight], name=" ".join(parts)))
    before = parsed(folder, *profiles, frames=entries)
    expected = sorted(((float(w), *lane) for _, w, lane in rows), key=str)
    assert sorted(before.events.select("weight", "pid", "tid").rows(), key=str) == expected
    convert(before, folder / "x.speedscope.json")
    assert samples(read(folder / "x.speedscope.json")) == samples(before)


@pytest.mark.parametrize("names", [("one", "two"), ('Thread 5 "io"', 'Thread 6 "x"')])
def test_threads_keep_their_names_in_chrome_json(names, tmp_path):
    before = parsed(tmp_path, *(sampled([[0]], [2], "seconds", name) for name in names))
    convert(before, tmp_path / "x.json")
    result = []
    for trace in (before, read(tmp_path / "x.json")):
        joined = trace.events.join(trace.lanes, on="tid", how="left", suffix="_lane")
        result.append(joined.select("label", "textual", "weight").sort("label").rows())
    assert result[0] == result[1]
    assert joined["pid"].equals(joined["pid_lane"])  # process 0, as no process is recorded
    kinds = read(tmp_path / "x.json", kinds=["sample"])
    assert kinds.events["tid"].equals(trace.events["tid"])


def test_textual_lanes_of_samples_in_chrome_json(tmp_path):
    samples = [
        {"ts": 1, "pid": "job", "tid": "io", "sf": 0},
        {"ts": 2, "tid": "io", "sf": 0},
        {"ts": 3, "pid": 4, "sf": 0},
        {"ts": 4, "sf": 0},
    ]
    path = tmp_path / "x.json"
    path.write_text(
        json.dumps({"traceEvents": [], "stackFrames": {"0": {"name": "a"}}, "samples": samples})
    )
    trace = read(path)
    assert schema.check(trace.tables) == []
    job, io = trace.events.row(0, named=True)["pid"], trace.events.row(0, named=True)["tid"]
    rows = [(job, io), (0, io), (4, None), (None, None)]
    assert trace.events.select("pid", "tid").rows() == rows
    lanes = trace.lanes.select("pid", "tid", "label", "textual").rows()
    assert lanes == [(0, io, "io", True), (job, None, "job", True), (job, io, "io", True)]


def test_comparison_round_trip(tmp_path):
    path = tmp_path / "two.txt"
    path.write_text("a;b 1 2\na;c 3 4\n")
    convert(path, tmp_path / "x.speedscope.json")
    columns = ["category", "weight", "stack"]
    before, after = (read(p).events.select(columns) for p in (path, tmp_path / "x.speedscope.json"))
    assert sorted(after.rows()) == sorted(before.rows())


def test_ranks_get_separate_profiles(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text('process 1:"x";a;b 5\n')
    both = concat([read(path).with_rank(rank) for rank in (0, 1)])
    convert(both, tmp_path / "x.speedscope.json")
    names = [
        p["name"] for p in json.loads((tmp_path / "x.speedscope.json").read_text())["profiles"]
    ]
    assert names == ["Rank 0 Process 1", "Rank 1 Process 1"]
    assert samples(read(tmp_path / "x.speedscope.json")) == [("a;b", 5.0, 1, None)] * 2


def test_trace_without_samples_is_rejected(tmp_path, run_cli):
    source = FIXTURES / "nccl_8ranks_isolated"
    path = next(source.glob("rank0*"))
    done = run_cli("convert", path, "-o", tmp_path / "x.speedscope.json")
    assert done.returncode == 1
    check_wording(done.stderr)
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "x.speedscope.json").exists()


def test_samples_with_different_units_are_rejected(tmp_path):
    traces = [parsed(tmp_path, sampled([[0]], [1], unit)) for unit in ("none", "bytes")]
    with raises_wording(MissingData):
        convert(concat(traces), tmp_path / "x.speedscope.json")


def test_convert_writes_valid_speedscope(tmp_path, run_cli):
    path = FIXTURES / "py_spy" / "subprocesses_threads.raw.txt"
    done = run_cli("convert", path, "-o", tmp_path / "x.speedscope.json", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    file = json.loads((tmp_path / "x.speedscope.json").read_text())
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    for profile in file["profiles"]:
        assert profile["type"] == "sampled"
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
        used = {frame for stack in profile["samples"] for frame in stack}
        assert used <= set(range(len(file["shared"]["frames"])))


def test_damaged_files_are_read_or_rejected_in_one_line(tmp_path, thorough):
    seeds = [(FIXTURES / "py_spy" / "subprocesses.speedscope.json").read_bytes()[-3000:]]
    seeds += [case.data for case in JSON_CASES]
    odd = (
        b"null",
        b"-1",
        b"1e999",
        b"[",
        b"{",
        b'"',
        b"}",
        b"99999999999999999999",
        b"\xff",
        b'"\\ud800"',
        b"[]",
    )
    chance = random.Random(5)  # noqa: S311 - no secret
    path = tmp_path / "damaged.json"
    for _ in range(300 if thorough else 75):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(4)] = chance.choice(odd)
        path.write_bytes(data)
        try:
            trace = read(path, format="speedscope")
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
        else:
            assert schema.check(trace.tables) == []
            assert trace.events.filter(pl.col("weight") < 0).is_empty()
