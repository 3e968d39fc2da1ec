"""Flight Recorder dumps and the output of ``py-spy dump``: every version, damaged, hostile."""

from __future__ import annotations

import gzip
import json
import math
import pickle
import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, strategies as st

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.errors import InputError, MalformedInput
from traceanalyzer.parsers import flight_recorder, py_spy_dump
from traceanalyzer.parsers.flight_recorder import reader
from traceanalyzer.vocabulary import FLIGHT_RECORDER, PY_SPY_DUMP

FIXTURES = Path(__file__).parents[2] / "fixtures"
SCRIPT = runpy.run_path(str(FIXTURES / "make_flight_recorder.py"))
FOLDER = FIXTURES / "flight_recorder"
#: Python's own view of an entry: the column, and the key.
SAME = {
    "record": "record_id",
    "seq": "collective_seq_id",
    "p2p_seq": "p2p_seq_id",
    "op_id": "op_id",
    "retired": "retired",
    "is_p2p": "is_p2p",
    "created_ns": "time_created_ns",
    "started_ns": "time_discovered_started_ns",
    "completed_ns": "time_discovered_completed_ns",
}


@pytest.mark.matrix
def test_records_equal_those_that_pickle_loads(shared: Path) -> None:
    paths = sorted((shared / "data/flight_recorder").glob("*/rank_?"))
    assert len(paths) == 63
    for path in paths:
        trace = ta.read(path)
        assert schema.check(trace.tables) == []
        assert (trace.meta.format, trace.meta.rank) == (FLIGHT_RECORDER, int(path.name[-1]))
        dump = pickle.loads(path.read_bytes())  # noqa: S301 - our own files
        entries, records = dump["entries"], trace.collective_records
        for column, key in SAME.items():
            assert records[column].to_list() == [one[key] for one in entries], column
        sums = [sum(n for one in entry["input_sizes"] for n in one) for entry in entries]
        assert records["elements_in"].fill_null(0).to_list() == sums
        assert _frames(trace) == [
            [(one["name"], one["filename"], one["line"]) for one in entry["frames"]]
            for entry in entries
        ]


def _frames(trace: ta.Trace) -> list[list[tuple[Any, ...]]]:
    """The stack of each record, innermost frame first."""
    rows = {row["id"]: row for row in trace.stacks.iter_rows(named=True)}
    stacks = []
    for leaf in trace.collective_records["stack"]:
        stack, at = [], leaf
        while at is not None:
            stack.append((rows[at]["name"], rows[at]["file"], rows[at]["line"]))
            at = rows[at]["parent"]
        stacks.append(stack)
    return stacks


def test_json_has_the_same_records_without_stacks(shared: Path) -> None:
    folder = shared / "data/flight_recorder/torch213_gloo_ok"
    pickled, text = ta.read(folder / "rank_1"), ta.read(folder / "rank_1.json")
    assert pickled.meta.backend == text.meta.backend == "gloo"
    dropped = ["stack"]
    one = pickled.collective_records.drop(dropped).cast({pl.Categorical: pl.String})
    other = text.collective_records.drop(dropped).cast({pl.Categorical: pl.String})
    assert one.equals(other)
    assert text.collective_records["stack"].null_count() == text.collective_records.height


def test_groups_and_their_status(shared: Path) -> None:
    trace = ta.read(shared / "data/flight_recorder/nccl_like_two_groups/rank_3")
    rows = trace.process_groups.cast({pl.Categorical: pl.String}).rows()
    assert rows == [
        (3, "0", "default_pg", "[0, 1, 2, 3]", 10, None, 10),
        (3, "1", "tail", "[2, 3]", 1, None, None),
    ]


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", sorted(set(SCRIPT["CASES"]) - {"malformed"}))
def test_dumps_of_all_cases_follow_the_schema(case: str) -> None:
    for path in sorted((FOLDER / case).glob("nccl_trace_rank_*")):
        trace = ta.read(path)
        assert schema.check(trace.tables) == []
        assert trace.meta.rank == int(path.stem[-1])
        assert trace.issues.is_empty()


def test_sends_and_receives_have_both_ranks() -> None:
    trace = ta.read(FOLDER / "coalesced_send" / "nccl_trace_rank_0")
    p2p = trace.collective_records.filter("is_p2p").select("op", "src", "dst", "state")
    assert p2p.cast(pl.String).rows() == [
        ("send", "0", "1", None),
        ("recv", "1", "0", None),
        ("coalesced", None, None, "started"),
    ]


def test_first_version_has_few_columns() -> None:
    trace = ta.read(FOLDER / "old_version" / "nccl_trace_rank_1")
    records = trace.collective_records
    assert trace.meta.version == "1.1"
    assert records["seq"].to_list() == [1, 2, 3, 4, 5, 6, 7]
    assert records["elements_in"].to_list() == [1024] * 7
    assert records["retired"].null_count() == records["timeout_ns"].null_count() == 7


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("comm_lib_trace_rank_7", 7),
        ("node3_nccl_trace_rank_11", 11),
        ("rank_5.json", 5),
        ("dump.9", 9),
        ("trace", None),
    ],
)
def test_rank_in_the_name(tmp_path: Path, name: str, rank: int | None) -> None:
    path = tmp_path / name
    path.write_bytes((FOLDER / "complete" / "nccl_trace_rank_0").read_bytes())
    assert ta.read(path).meta.rank == rank


def test_rank_in_the_dump_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "rank_5.json"
    path.write_text(json.dumps({"rank": 3, "pg_status": {}, "entries": []}))
    trace = ta.read(path)
    assert trace.meta.rank == 3
    assert trace.issues["code"].to_list() == ["no-entries"]


def written(path: Path, **changes: Any) -> ta.Trace:
    entry = {"record_id": 0, "process_group": ["0", "default"], "profiling_name": "nccl:all_reduce",
             "collective_seq_id": 1, "state": "scheduled", "input_dtypes": ["Float"],
             "output_dtypes": ["Float"]} | changes  # fmt: skip
    path.write_text(json.dumps({"rank": 0, "pg_config": {}, "entries": [entry]}))
    return ta.read(path)


def test_an_entry_without_a_group_is_counted(tmp_path: Path) -> None:
    assert written(tmp_path / "rank_0.json").issues.is_empty()
    issues = written(tmp_path / "rank_1.json", process_group=None).issues
    assert issues.select("severity", "code", "count").rows() == [("data_loss", "no-group", 1)]


@pytest.mark.parametrize(
    ("outputs", "expected"), [("float16", "float32 -> float16"), ("", "float32")]
)
def test_types_may_be_texts(tmp_path: Path, outputs: str, expected: str) -> None:
    trace = written(tmp_path / "rank_0.json", input_dtypes="float32", output_dtypes=outputs)
    assert trace.collective_records["dtype"].to_list() == [expected]


# --- damaged and hostile files -----------------------------------------------------------------


def test_nothing_in_a_pickle_is_executed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MalformedInput) as error:
        ta.read(FOLDER / "malformed" / "hostile_rank_0")
    assert error.value.where is not None
    assert "executed" not in capsys.readouterr().out
    with pytest.raises(InputError):
        ta.hang(FOLDER / "malformed" / "hostile_rank_0")


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cposix\nsystem\nX\x09\x00\x00\x00pg_configX\x02\x00\x00\x00id\x85R.",
        b"\x80\x04\x8c\x09pg_config\x8c\x05posix\x8c\x06system\x93.",
        b"\x80\x02X\x09\x00\x00\x00pg_configr\xff\xff\xff\xff.",  # a memo of 32 GB
        b"\x80\x04X\x09\x00\x00\x00pg_config\x96\xff\xff\xff\xff\xff\xff\xff\x00.",
        b"\x80\x02X\x09\x00\x00\x00pg_config.",  # a text
        b"\x80\x02X\x09\x00\x00\x00pg_config(lp0\nI1\na.",
        b"\x80\x02]q\x00h\x00aX\x09\x00\x00\x00pg_config.",
    ],
)
def test_hostile_pickles_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(data)
    with pytest.raises(InputError):
        ta.read(path)


def _written(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_bytes(pickle.dumps({"pg_config": {}, "entries": list(entries)}, protocol=2))
    return path


def test_json_of_too_many_values_is_refused(tmp_path: Path) -> None:
    """40 KB of gzip could become 10 GB of Python objects."""
    dump = next((FOLDER / "gloo_json").glob("*_0.json")).read_bytes().rstrip().removesuffix(b"}")
    for name, start, more, end in (
        ("values_rank_0.json.gz", dump + b',"x":[0', b",[]" * (1 << 20), b"]}"),
        ("threads_rank_0.json.gz", b'[{"pid":1,"thread_id":1}', b",{}" * (1 << 20), b"]"),
    ):
        path = tmp_path / name
        with gzip.open(path, "wb", compresslevel=1) as file:
            file.write(start)
            for _ in range(10):
                file.write(more)
            file.write(end)
        with pytest.raises(MalformedInput, match=r"more .* than any"):
            ta.read(path)


def test_a_list_in_itself_is_refused(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(MalformedInput):
        ta.read(_written(tmp_path / "rank_0", {"frames": loop}))


def test_shared_values_are_read(tmp_path: Path) -> None:
    sizes = [[512], [3, 2]]
    entry = {"profiling_name": "nccl:all_reduce", "input_sizes": sizes, "output_sizes": sizes}
    trace = ta.read(_written(tmp_path / "rank_0", entry, entry))
    assert trace.collective_records["elements_out"].to_list() == [518, 518]
    assert schema.check(trace.tables) == []


@pytest.mark.parametrize("name", ["truncated_rank_1.json", "truncated_rank_2"])
def test_complete_entries_of_a_truncated_file(name: str) -> None:
    trace = ta.read(FOLDER / "malformed" / name)
    whole = ta.read(FOLDER / "complete" / "nccl_trace_rank_0").collective_records
    records = trace.collective_records
    assert 0 < records.height < whole.height
    assert records["created_ns"].drop_nulls().equals(whole["created_ns"].head(records.height))
    assert trace.issues["code"].to_list() == ["truncated"]


def test_a_dump_without_entries_is_an_error() -> None:
    with pytest.raises(MalformedInput, match="TORCH_NCCL_TRACE_BUFFER_SIZE"):
        ta.read(FOLDER / "malformed" / "without_entries_rank_3.json")


@pytest.mark.parametrize("name", ["no_dump_rank_4.json", "wrong_values_rank_5.json"])
def test_wrong_values_are_null(name: str) -> None:
    trace = ta.read(FOLDER / "malformed" / name)
    assert schema.check(trace.tables) == []
    assert trace.collective_records["elements_in"].null_count() == trace.collective_records.height


def _damaged(data: bytes, chance: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(chance.choice((1, 2, 5))):
        at = chance.randrange(len(result))
        if chance.random() < 0.5:
            result[at] = chance.randrange(256)
        else:
            del result[at : at + chance.randrange(1, 40)]
    return bytes(result)


@pytest.mark.parametrize(
    "path",
    [
        FOLDER / "chain" / "nccl_trace_rank_2",
        FOLDER / "gloo_json" / "nccl_trace_rank_2.json",
        FOLDER / "missing" / "py_spy_rank_2.txt",
    ],
    ids=lambda path: path.name,
)
def test_damage_gives_an_input_error_or_valid_tables(
    path: Path, tmp_path: Path, thorough: bool
) -> None:
    chance, data, read = random.Random(7), path.read_bytes(), 0  # noqa: S311 - damage
    kind = ta.read(path).meta.format
    other = tmp_path / path.name
    for _ in range(60 if thorough else 20):
        other.write_bytes(_damaged(data, chance))
        try:
            trace = ta.read(other, format=kind)
        except InputError:
            continue
        read += 1
        assert schema.check(trace.tables) == []
    assert read > 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
KEYS = (
    "record_id", "collective_seq_id", "profiling_name", "process_group", "input_sizes",
    "input_dtypes", "state", "frames", "time_created_ns", "duration_ms", "timeout_ms", "thread_id",
    "pg_id", "is_p2p", "retired",
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES), max_size=4), VALUES, VALUES, VALUES)
def test_any_values_give_valid_tables(entries: Any, config: Any, status: Any, version: Any) -> None:
    top = reader._Fields({"pg_config": config, "pg_status": status, "version": version})
    rows = [reader._Fields(one) for one in entries]
    numbers, stacks = reader._Numbers(), reader._Stacks()
    records = reader._records(rows, stacks, numbers)
    assert records.height == len(rows)
    assert reader._groups(top, rows, numbers)["group"].null_count() == 0
    assert (records["elements_in"].fill_null(0) >= 0).all()


def test_the_nameless_group_of_gloo_is_the_only_one_with_entries() -> None:
    top = reader._Fields({"pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1, 2, 3]"}}})
    default, other = ({"process_group": (name, "x")} for name in ("0", "1"))
    for entries, known in (([default], ["[0, 1, 2, 3]"]), ([default, other], [None, None])):
        rows = [reader._Fields(one) for one in entries]
        assert reader._groups(top, rows, reader._Numbers())["ranks"].to_list() == known


# --- detection ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b'{"schemaVersion": 1, "distributedInfo": {"pg_config": [], "nccl_version": "2"}}',
        b'{"pg_config": [], "traceEvents": []}',
        b'{"displayTimeUnit": "ms", "pg_config": []}',
        b"\x80\x02}(X\x08\x00\x00\x00segmentsX\x0d\x00\x00\x00device_tracesX\x09\x00\x00\x00pg_config",
        b"\x80\x02}(X\x06\x00\x00\x00weight",
    ],
)
def test_other_files_are_not_dumps(head: bytes) -> None:
    assert not flight_recorder.sniff(head, "rank_0")


def test_real_traces_are_not_dumps(shared: Path) -> None:
    for path in sorted((shared / "data/chrome").glob("kineto*/**/*.json.gz"))[:10]:
        assert ta.read(path, kinds="trace").meta.format != FLIGHT_RECORDER


# --- py-spy dump -------------------------------------------------------------------------------


def _stacks(trace: ta.Trace) -> dict[str, list[str]]:
    names = {(row["pid"], row["tid"]): row["label"] for row in trace.lanes.to_dicts()}
    rows = trace.stacks.to_dicts()
    result = {}
    for event in trace.events.to_dicts():
        at, stack = event["stack"], []
        while at is not None:
            stack.append(f"{rows[at]['name']}:{rows[at]['line']}")
            at = rows[at]["parent"]
        result[names[event["pid"], event["tid"]]] = stack
    return result


@pytest.mark.parametrize(
    ("heads", "processes"),
    [
        (('Thread (active+gil): "MainThread"',), 1),
        (('Thread (idle): "MainThread"', 'Thread (idle): "Worker"'), 1),
        (('Process 7: a\nThread 7 (idle): "MainThread"',
          'Process 8: b\nThread 8 (active): "MainThread"'), 2),
    ],
)  # fmt: skip
def test_excerpts_of_py_spy_dump(tmp_path: Path, heads: tuple[str, ...], processes: int) -> None:
    """Without Python's version, or the numbers of threads."""
    path = tmp_path / "excerpt.txt"
    path.write_text("".join(f"{head}\n    step (a.py:{n})\n" for n, head in enumerate(heads)))
    trace = ta.read(path)
    assert trace.meta.format == PY_SPY_DUMP
    assert trace.events.height == trace.events.select("pid", "tid").n_unique() == len(heads)
    assert trace.events["pid"].n_unique() == processes


def test_text_of_py_spy_dump() -> None:
    trace = ta.read(FOLDER / "missing" / "py_spy_rank_2.txt")
    assert schema.check(trace.tables) == []
    assert (trace.meta.format, trace.meta.rank) == (PY_SPY_DUMP, 2)
    assert _stacks(trace) == {
        "MainThread": ["wait:359", "load_batch:17", "step:50", "<module>:88"],
        "pin_memory": ["run:1000"],
    }


def _json_dump(**more: Any) -> bytes:
    frames = [
        {"name": "load", "filename": "/a/data.py", "short_filename": "data.py", "line": 17},
        {"name": "<module>", "filename": "/a/train.py", "line": 88},
    ]
    thread = {"pid": 7, "thread_id": 140_000_000_000_001, "thread_name": "MainThread"}
    return json.dumps([{**thread, "active": True, "frames": frames, **more}]).encode()


def test_text_of_ray_stack(tmp_path: Path) -> None:
    worker = "Stack dump for me     {}  0.1  0.1 17 15 pts/0  Sl   12:48   0:01 ray_worker\n"
    other = "Thread 0x7F4A (active)\n\t run (threading.py:864)\n\t _bootstrap (threading.py:884)\n"
    main = "Thread 0x7F4B (idle)\n\t get (ray/worker.py:98)\n\t <module> (train.py:10)\n\n"
    path = tmp_path / "stacks.txt"
    for text, pids in (
        (worker.format(7) + other + main + worker.format(8) + main, [7, 7, 8]),
        (other + main, [None, None]),
    ):
        path.write_text(text)
        trace = ta.read(path)
        assert trace.meta.format == "py-spy-dump"
        assert [*trace.events["pid"]] == pids
        assert trace.lanes.drop_nulls(["tid", "label"])["label"].unique().to_list() == [
            "MainThread"
        ]
        processes = trace.lanes.filter(pl.col("tid").is_null())["label"].to_list()
        assert processes == ["ray_worker"] * (len(pids) - 1 if pids[0] else 0)
        assert trace.issues.is_empty()
    path.write_text(main + "    " + "a (" * 500_000 + "\n")
    assert ta.read(path).issues["code"].to_list() == ["bad-line"]


@pytest.mark.parametrize(
    "begin",
    ["", "Timeout (0:01:00)!\n", "Fatal Python error: Aborted\n\n", "Process 3 timed out:\n"],
)
def test_text_of_faulthandler(begin: str, tmp_path: Path) -> None:
    path = tmp_path / "hang_rank3.txt"
    path.write_text(
        f"{begin}Current thread 0x00007ff3363ff700 [pt_autograd] (most recent call first):\n"
        '  File "/a/threading.py", line 870 in run\n\n'
        "Thread 0x00007f75a8023b80 (most recent call first):\n  <no Python frame>\n\n"
        "Thread 0x00007ff406132180 (most recent call first):\n"
        '  File "/a/site-packages/torch/distributed/distributed_c10d.py", line 2477 in barrier\n'
        '  File "/a/my train.py", line 83 in train\n'
        f'  File "<string>", line 1 in _main\n\nExtension modules: {"numpy, " * 1000}(total: 47)\n'
    )
    trace = ta.read(path)
    assert (trace.meta.format, trace.meta.rank, trace.issues.height) == (PY_SPY_DUMP, 3, 0)
    assert trace.events["tid"].to_list() == [0x7FF3363FF700, 0x7F75A8023B80, 0x7FF406132180]
    found = _stacks(trace)
    assert found["MainThread"] == ["barrier:2477", "train:83", "_main:1"]
    assert found["pt_autograd"] == ["run:870"]
    threads = ta.hang(path).to_polars("threads")
    assert threads.select("rank", "call", "place").rows() == [
        (3, "barrier", "train (my train.py:83)")
    ]


def _of_handler(main: int, place: str) -> str:
    frame = '  File "/x/torch/distributed/distributed_c10d.py", line 2 in all_reduce\n'
    return (
        f"Timeout (0:05:00)!\nThread 0x{main + 1:016x} (most recent call first):\n"
        f'  File "/usr/threading.py", line 3 in wait\n  ...\n\n'
        f"Thread 0x{main:016x} (most recent call first):\n{frame * (place == 'step')}"
        f'  File "/a/train.py", line 7 in {place}\n  File "/a/train.py", line 9 in <module>\n\n'
    )


def test_the_last_dump_of_each_process_of_faulthandler_counts(tmp_path: Path) -> None:
    path = tmp_path / "all.txt"
    path.write_text(
        _of_handler(16, "load") + _of_handler(32, "load") + _of_handler(16, "step")
        + _of_handler(48, "step")
    )  # fmt: skip
    assert ta.read(path).issues.is_empty()
    threads = ta.hang(path).to_polars("threads").sort("who")
    places = [("process 1", "all_reduce"), ("process 2", None), ("process 3", "all_reduce")]
    assert threads.select("who", "call").rows() == places
    (tmp_path / "one").mkdir()
    (again := tmp_path / "one" / "rank_4.txt").write_text(
        _of_handler(16, "load") + _of_handler(16, "step")
    )
    rows = ta.hang(again).to_polars("threads").select("rank", "call").rows()
    assert rows == [(4, "all_reduce")]


def test_a_log_with_a_dump_of_faulthandler_is_a_log(tmp_path: Path) -> None:
    path = tmp_path / "job.txt"
    path.write_text(f"[E ProcessGroupNCCL.cpp:1785] [Rank 0] aborted\n{_of_handler(16, 'step')}")
    with pytest.raises(InputError) as error:
        ta.hang(path)
    assert "JSON" not in str(error.value)


def test_helpers_before_a_rank_do_not_hide_it(tmp_path: Path) -> None:
    head = 'Process {0}: python\nPython v3\n\nThread {0} (idle): "MainThread"\n    {1}\n\n'
    path = tmp_path / "stack_rank_3.txt"
    frames = ("_invoke_run (api.py:9)", "_worker_loop (worker.py:1)", "fetch (a.py:3)")
    path.write_text("".join(head.format(pid, frame) for pid, frame in enumerate(frames, 7)))
    assert ta.hang(path).to_polars("threads")["place"].to_list() == ["fetch (a.py:3)"]


def test_several_processes_in_one_text(tmp_path: Path) -> None:
    head = 'Process {}: {}\nPython v3.11.7 (/usr/bin/python3)\n\nThread {} (idle): "MainThread"\n'
    path = tmp_path / "all.txt"
    path.write_text(
        "".join(
            head.format(pid, command, pid) + f"    {frames}\n\n"
            for pid, command, frames in (
                (7, "python a.py --rank 4", "all_reduce (torch/distributed/distributed_c10d.py:9)"),
                (8, "python a.py --rank=5", "fetch (a.py:3)"),
                (9, "sglang::scheduler_TP3", "wait (a.py:4)"),
                (10, "python a.py", "all_reduce (torch/distributed/distributed_c10d.py:9)"),
                (11, "python a.py", "_worker_loop (worker.py:1)"),
            )
        )
    )
    trace = ta.read(path)
    assert trace.meta.rank is None
    assert trace.events["rank"].to_list() == [4, 5, None, None, None]
    result = ta.hang(path)
    assert (result.cause, result.culprits, result.waiting) == ("outside collectives", (5,), (4,))
    who = result.to_polars("threads").select("who", "call").rows()
    assert who == [
        ("sglang::scheduler_TP3", None), ("process 10", "all_reduce"), ("rank 4", "all_reduce"),
        ("rank 5", None),
    ]  # fmt: skip


def test_json_of_py_spy_dump(tmp_path: Path) -> None:
    path = tmp_path / "stacks.json"
    path.write_bytes(_json_dump(process_info={"pid": 7, "command_line": "python t.py --rank=6"}))
    trace = ta.read(path)
    assert schema.check(trace.tables) == []
    assert trace.meta.rank == 6
    assert trace.events["tid"].to_list() == [140_000_000_000_001]
    assert _stacks(trace) == {"MainThread": ["load:17", "<module>:88"]}


@pytest.mark.parametrize(
    "change", [lambda d: d[:-20], lambda _: b"Process 1: x\nPython v3\n", lambda _: b"[]"]
)
def test_damaged_dumps_of_py_spy(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "stacks"
    path.write_bytes(change(_json_dump()))
    with pytest.raises(InputError):
        ta.read(path, format=PY_SPY_DUMP)


def test_collapsed_stacks_are_not_dumps() -> None:
    for path in sorted((FIXTURES / "py_spy").glob("*")):
        assert not py_spy_dump.sniff(path.read_bytes()[:4096], path.name)


def test_nan_is_no_truncation(tmp_path: Path) -> None:
    whole = FOLDER / "malformed" / "wrong_values_rank_5.json"
    text = json.dumps({"entries": [{"collective_seq_id": 1, "timeout_ms": math.nan}] * 2})
    path = tmp_path / whole.name
    path.write_text(text.replace("}]", ', "profiling_name": "nccl:all_reduce"}]'))
    trace = ta.read(path)
    assert trace.collective_records.height == 2
    assert "truncated" not in trace.issues["code"]
