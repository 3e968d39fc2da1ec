"""The snapshot machine equals pickle; truncated files are read partially."""

from __future__ import annotations

import pickle
import pickletools
import struct
from pathlib import Path

import pytest
from conftest import SHARED
from harness import differences
from hypothesis import given, settings, strategies as st
from pickles import (
    FRAME,
    KEYS,
    agree,
    content,
    expected,
    hand,
    in_python,
    like_torch,
    loaded,
    new,
    objects,
    outcome,
    read,
    scalar,
    snapshot,
    text,
)

import traceanalyzer as ta
from traceanalyzer.parsers.memory_snapshot import machine
from traceanalyzer.parsers.memory_snapshot.document import Document

REAL = sorted((SHARED / "data" / "memory").glob("*.pickle"))
SMALL_REAL = [path for path in REAL if path.stat().st_size < 1 << 20]
compiled = pytest.mark.skipif(machine._machine is None, reason="built without a compiler")
MARK, APPENDS, SETITEMS, MEMOIZE, NONE = b"(", b"e", b"u", b"\x94", b"N"


def name_of(path: Path) -> str:
    return path.stem


# --- what it reads ---------------------------------------------------------------------------


@pytest.mark.sample(9)
@pytest.mark.parametrize("path", REAL, ids=name_of)
def test_real_files_equal_pickle_loads(path):
    data = path.read_bytes()
    result = read(data)
    assert result.complete
    assert (result.consumed, result.protocol, result.trailing) == (len(data), 4, 0)
    assert objects(result) == expected(loaded(data))


@pytest.mark.matrix
@pytest.mark.sample(9)
@compiled
@pytest.mark.parametrize("path", REAL, ids=name_of)
def test_same_result_without_extension(path):
    data = path.read_bytes()[: 1 << 19]  # what is missing is salvaged
    assert content(read(data, 1 << 22)) == content(read(data, 1 << 16, slow=True))


@pytest.mark.sample(12)
@compiled
@pytest.mark.parametrize(
    ("path", "part"),
    [*((path, 1) for path in SMALL_REAL), *((path, 0.3) for path in REAL)],
    ids=lambda value: name_of(value) if isinstance(value, Path) else str(value),
)
def test_same_trace_without_extension(path, part, tmp_path):
    data = path.read_bytes()
    cut = tmp_path / "rank3.pickle"
    cut.write_bytes(data[: int(len(data) * part)])
    fast = ta.read(cut, format="memory-snapshot", columns=["args"])
    with in_python():
        slow = ta.read(cut, format="memory-snapshot", columns=["args"])
    assert differences(fast, slow) == []


@compiled
@pytest.mark.parametrize("path", SMALL_REAL, ids=name_of)
def test_memory_is_limited(path):
    data = path.read_bytes()
    snapshot_value = new()
    snapshot_value.feed(data)
    assert snapshot_value.allocated_bytes <= 2 * len(data) + (1 << 18)
    snapshot_value.close()
    assert snapshot_value.allocated_bytes == 0


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", SMALL_REAL, ids=name_of)
def test_genuine_files_written_by_other_picklers(path):
    snapshot_value = loaded(path.read_bytes())
    for data in (
        *(pickle.dumps(snapshot_value, protocol) for protocol in (2, 5)),
        like_torch(snapshot_value),
    ):
        assert objects(read(data)) == expected(snapshot_value)


@pytest.mark.parametrize("slow", [False, True], ids=["fast", "slow"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol(protocol, slow):
    snapshot_value = snapshot(60, 12)
    for data in (
        pickle.dumps(snapshot_value, protocol),
        pickle._dumps(snapshot_value, protocol),  # the pickler in Python
        pickletools.optimize(pickle.dumps(snapshot_value, protocol)),  # most is not in the memo
    ):
        result = read(data, slow=slow)
        assert result.protocol == protocol
        assert objects(result) == expected(snapshot_value)


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize("slow", [False, True], ids=["fast", "slow"])
@pytest.mark.parametrize("write", [pickle.dumps, like_torch], ids=["python", "torch"])
@pytest.mark.parametrize(("events", "depth"), [(2300, 3), (6, 3100)])
def test_lists_longer_than_a_batch(events, depth, write, slow):
    snapshot_value = snapshot(events, depth)
    data = write(snapshot_value)
    assert objects(read(data, slow=slow)) == expected(snapshot_value)
    bare = pickletools.optimize(data)  # what is used once is not in the memo
    assert len(bare) < len(data)
    assert objects(read(bare, slow=slow)) == expected(snapshot_value)


@pytest.mark.matrix
@pytest.mark.parametrize("slow", [False, True], ids=["fast", "slow"])
def test_containers_that_grow_between_others(slow):
    lists = [[i, None] for i in range(2500)]
    dicts = {str(i): {"inner": i, "other": [i]} for i in range(2500)}
    for data in (pickle.dumps([lists, dicts], 4), like_torch([lists, dicts])):
        assert objects(read(data, slow=slow)) == [lists, dicts]


@pytest.mark.parametrize("slow", [False, True], ids=["fast", "slow"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1001])
def test_blocks_of_any_size(size, slow):
    snapshot_value = snapshot() | {"text": "long" * 600}
    for data in (pickle.dumps(snapshot_value, 4), like_torch(snapshot_value)):
        whole = read(data)
        result = read(data + b"behind", size, slow=slow)
        assert content(result) == content(Document(**{**vars(whole), "trailing": 6}))


def test_a_list_of_segments_as_torch_1_wrote_it():
    snapshot_value = snapshot()["segments"]
    snapshot_value[0]["blocks"][0]["history"] = [{"addr": 1, "real_size": 5, "frames": []}]
    result = read(pickle.dumps(snapshot_value))
    assert objects(result) == expected(snapshot_value)
    assert result.tables[5][0] == 1


def test_equal_stacks_and_frames_are_kept_once():
    frames = [{"name": "f", "filename": "a.py", "line": (1 << 64) - 1} for _ in range(3)]
    snapshot_value = [{"action": "alloc", "frames": [dict(f) for f in frames]} for _ in range(9)]
    result = read(pickle.dumps(snapshot_value))
    assert result.tables[0][0] == 1
    assert len(result.sequences[0]) == 8 * 2
    assert objects(result) == snapshot_value


def test_unused_columns_are_not_created():
    result = read(pickle.dumps([{"action": "oom", "device_free": i, "odd": 1} for i in range(9)]))
    rows, columns = result.tables[1]
    assert rows == 9
    assert sorted(columns) == ["action", "device_free"]
    assert result.tables[2:] == [(0, {})] * 4


def test_late_column_is_null_before():
    snapshot_value = [{"action": "a", "size": i} for i in range(99)] + [
        {"action": "a", "time_us": 5}
    ]
    result = read(pickle.dumps(snapshot_value))
    column = memoryview(result.tables[1][1]["time_us"]).cast("Q").tolist()
    assert column == [0] * 99 + [5 << 4 | 2]


def test_first_matching_table_wins():
    snapshot_value = [{"stage": "x", "action": "y"}, {"real_size": 1, "filename": "f"}]
    assert [rows for rows, _ in read(pickle.dumps(snapshot_value)).tables] == [1, 1, 0, 0, 0, 0]


def test_the_last_of_equal_keys_wins_in_a_row():
    pairs = text("action") + b"K\x01" + text("action") + b"K\x02"
    assert objects(read(hand(b"}(" + pairs + b"u"))) == {"action": 2}


@given(st.integers(-(1 << 71), (1 << 71) - 1) | st.sampled_from([1 << 59, -(1 << 59), 0]))
def test_integers(number):
    for slow in (False, True):
        assert objects(read(hand(scalar(number)), slow=slow)) == number


@given(st.floats(allow_nan=False), st.text(max_size=300))
def test_floats_and_texts(number, text_value):
    snapshot_value = [number, text_value]
    for slow in (False, True):
        result = read(pickle.dumps(snapshot_value), slow=slow)
        assert struct.pack("<d", result.floats[0]) == struct.pack("<d", number)
        assert objects(result) == snapshot_value


def test_one_text_of_many_blocks():
    snapshot_value = ["x" * 3_000_000, "y"]
    assert objects(read(pickle.dumps(snapshot_value), 4096)) == snapshot_value


def test_list_of_frames_only_is_a_stack():
    assert read(hand(b"](", FRAME, FRAME, APPENDS)).root & 15 == 7
    mixed = read(hand(b"](", FRAME, FRAME, APPENDS, MARK, b"K\x07", NONE, APPENDS))
    assert objects(mixed) == [{"filename": "a.py", "line": 1}] * 2 + [7, None]
    later = hand(b"]", MEMOIZE, MARK, FRAME, FRAME, APPENDS, NONE, b"a")
    assert objects(read(later)) == objects(read(later, slow=True))
    assert len(objects(read(later))) == 3


@compiled
def test_keys_and_tables_must_fit():
    with pytest.raises(KeyError):
        machine.Machine(("a",), (("b", ("a",)),))
    with pytest.raises(ValueError, match="twice"):
        machine.Machine(("a", "a"), (("a", ("a",)),))
    with pytest.raises(ValueError, match="16"):
        machine.Machine(("a",), (("a", ("a",)),) * 17)


@compiled
def test_a_closed_machine_does_nothing_more():
    snapshot_value = new()
    snapshot_value.feed(hand(NONE))
    snapshot_value.close()
    with pytest.raises(ValueError, match="closed"):
        snapshot_value.feed(b"x")
    with pytest.raises(ValueError, match="closed"):
        snapshot_value.close()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*KEYS, "other"]), inner, max_size=4)
    ),
    max_leaves=30,
)


@given(VALUES, st.integers(2, 5), st.integers(1, 40))
@settings(max_examples=60)
def test_any_values_are_what_was_pickled(value, protocol, size):
    snapshot_value = loaded(pickle.dumps(value, protocol))
    for data in (pickle.dumps(value, protocol), like_torch(value)):
        for slow in (False, True):
            result = outcome(data, size, slow=slow)
            if isinstance(result, tuple):  # one list twice: hypothesis shares values
                assert result[0] == "a list or row is used twice"
            else:
                assert objects(result) == expected(snapshot_value)


# --- files that end too early ----------------------------------------------------------------


@pytest.mark.matrix
def test_truncation_at_every_byte(thorough):
    snapshot_value = snapshot(50, 6)
    for data in (pickle.dumps(snapshot_value, 4), like_torch(snapshot_value)):
        apart = (97 if len(data) > 9000 else 13) * (1 if thorough else 4)
        for length in range(0, len(data), apart):
            result, slow = outcome(data[:length]), outcome(data[:length], slow=True)
            assert agree(result, slow)
            assert isinstance(result, Document)
            assert isinstance(slow, Document)
            assert not result.complete


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", SMALL_REAL, ids=name_of)
def test_truncated_real_files(path):
    data = path.read_bytes()
    for length in range(1, len(data), max(97, len(data) // 400)):
        result = outcome(data[:length])
        assert isinstance(result, Document)
        assert not result.complete


def test_rows_before_the_cut_remain():
    snapshot_value = snapshot(400, 6)
    data = pickle.dumps(snapshot_value, 4)
    result = objects(read(data[: len(data) // 2]))
    assert result["segments"] == expected(snapshot_value["segments"])
    traces = expected(snapshot_value["device_traces"][0])
    kept = result["device_traces"][0]
    assert 100 < len(kept) < 400
    assert kept == traces[: len(kept)]


def test_a_cut_inside_a_batch_of_frames():
    snapshot_value = {"device_traces": [[{"action": "a", "addr": i} for i in range(9)]], "x": 1}
    data = pickle.dumps(snapshot_value, 4)
    last = data.rindex(b"K\x08")  # the ninth row is not whole
    assert objects(read(data[:last])) == {"device_traces": [snapshot_value["device_traces"][0][:8]]}
    single = pickle.dumps({"device_traces": [[{"action": "a", "addr": 7}]], "x": 1}, 4)
    cut = single.index(b"a", single.index(b"K\x07"))  # before the APPEND of a list of one
    assert objects(read(single[:cut])) == {"device_traces": [[{"action": "a", "addr": 7}]]}


def test_lists_side_by_side_stay_so():
    traces = [[{"action": "a", "addr": 10 * device + i} for i in range(3)] for device in range(3)]
    data = pickle.dumps({"device_traces": traces, "x": 1}, 4)
    cut = data.index(b"K\x0c")  # the third row of the second list
    for slow in (False, True):
        result = objects(read(data[:cut], slow=slow))
        assert result == {"device_traces": [traces[0], traces[1][:2]]}


def test_empty_input():
    for slow in (False, True):
        result = read(b"", slow=slow)
        assert (result.root, result.complete, result.protocol, result.consumed) == (
            0,
            False,
            None,
            0,
        )
        assert read(b"\x80\x04", slow=slow).protocol == 4
