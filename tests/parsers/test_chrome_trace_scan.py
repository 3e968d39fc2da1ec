"""The compiled scan: rows, events left to Python, equality with Python."""

from __future__ import annotations

import gzip
import json
import random
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.errors import InputError, MissingData
from traceanalyzer.parsers.chrome_trace import arrays
from traceanalyzer.parsers.chrome_trace.decode import nanosecond

FIXTURES = Path(__file__).parents[2] / "fixtures"
SEED = gzip.decompress((FIXTURES / "nccl_8ranks" / "rank0.json.gz").read_bytes())

scan = pytest.importorskip("traceanalyzer.parsers.chrome_trace._scan").scan

KERNEL = (
    b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.5,"dur":2,"args":{"stream":7}}'
)


def _scan(
    text,
    *,
    kernel=3,
    other=1,
    special=(),
    named=(),
    windows=b"",
    flows=True,
    every=True,
    args=False,
    input_dims=False,
    input_types=False,
    concrete=False,
    inputs_of=(),
):
    return scan(
        text, 0, [(b"kernel", kernel)], other, other, list(special), list(named), windows, flows,
        every, args, input_dims, input_types, concrete, list(inputs_of),
    )  # fmt: skip


def _columns(text, **how):
    result = _scan(text, **how)
    assert result is not None
    return result


def test_an_ordinary_event_becomes_a_row():
    events, closed, _, columns = _columns(KERNEL)
    assert (events, closed) == (1, -1)
    assert list(array("q", columns[1])) == [1500]
    assert list(array("q", columns[2])) == [2000]
    assert columns[-1] == b""


def test_arguments_and_inputs_are_returned_on_request():
    shaped = (
        b'{"ph":"X","name":"a","ts":1,"dur":1,"args":{"Input Dims":[[2, 3]],"x":{"y":"}"},'
        b'"Concrete Inputs":["1"],"Input type":["int"]}}'
    )
    none = b'{"ph":"X","name":"a","ts":1,"dur":1,"args": null}'
    null = b'{"ph":"X","name":"a","ts":1,"dur":1,"args":{"Input Dims":null}}'
    text = b",".join([shaped, none, KERNEL, null, shaped])
    columns = _columns(text)[3]
    assert columns[-7:-2] == [b""] * 5
    columns = _columns(text, args=True, input_dims=True, input_types=True, concrete=True)[3]
    rows, *inputs, args, texts, _ = columns[-7:]

    def spelled(ranges):
        spans = array("q", ranges)
        return [text[at : at + n] for at, n in zip(spans[::2], spans[1::2], strict=True)]

    assert spelled(args)[:3] == [shaped[shaped.index(b'{"Input') : -1], b"null", b'{"stream":7}']
    distinct = dict(enumerate(spelled(texts)))
    of = [[distinct.get(code) for code in array("I", column)] for column in inputs]
    assert list(array("I", rows)) == [0, 4]
    assert of == [[value, value] for value in (b"[[2, 3]]", b'["int"]', b'["1"]')]


@pytest.mark.parametrize("escaped", ["", "\\u00e9"])  # the latter is left to Python
def test_inputs_of_some_operators(tmp_path, escaped):
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": 1}
        | {"args": {"Input Dims": [[at, 2]], "Input type": ["float"], "x": "@"}}
        for at, name in enumerate(["aten::mm", "aten::mul", "aten::mm2", "aten::mm"])
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(events).replace("@", escaped))
    columns = ["input_dims", "input_types"]
    trace = ta.read(path, columns=columns, inputs_of=["aten::mm"])
    assert trace.events["input_dims"].to_list() == ["[[0, 2]]", None, None, "[[3, 2]]"]
    assert trace.events["input_types"].to_list() == ['["float"]', None, None, '["float"]']
    assert ta.read(path, columns=columns).events["input_dims"].null_count() == 0


def test_inputs_with_escapes_are_left_to_python(tmp_path):
    inputs = json.dumps(["", '"mean"', "é\t"])
    text = (
        '[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1,'
        f'"args":{{"Concrete Inputs":{inputs}}}}}]'
    )
    path = tmp_path / "a.json"
    path.write_text(text)
    trace = ta.read(path, columns=["concrete_inputs"])
    assert json.loads(trace.events["concrete_inputs"][0]) == json.loads(inputs)


def test_first_time_includes_unselected_events():
    early = b'{"ph":"X","cat":"cpu_op","name":"a","ts":0.25,"dur":1}'
    _, _, first, columns = _columns(KERNEL + b"," + early, other=0, every=False)
    assert first == 250
    assert list(array("q", columns[1])) == [1500]


def test_closing_bracket_ends_the_array():
    events, closed, _, _ = _columns(KERNEL + b'\n ], "x": 1}')
    assert (events, closed) == (1, len(KERNEL) + 3)


def test_windows_work_at_the_ends_of_the_clock():
    far = b'{"ph":"X","cat":"kernel","name":"k","ts":8000000000000000,"dur":8000000000000000}'
    early = far.replace(b'"ts":8', b'"ts":-8')
    for event, window, rows in [
        (far, (1 << 62, (1 << 63) - 1), 1),  # its end is beyond int64
        (far, (0, 1 << 62), 0),
        (early, (-(1 << 63), -1), 1),
        (early, (0, (1 << 63) - 1), 0),  # it ends with the window's first nanosecond
    ]:
        *_, columns = _columns(event, windows=array("q", window).tobytes())
        assert len(array("q", columns[1])) == rows


def test_any_number_of_windows():
    windows = array("q", [edge for start in range(5000) for edge in (start, start + 1)])
    *_, columns = _columns(KERNEL, windows=windows.tobytes())
    assert list(array("q", columns[1])) == [1500]


@pytest.mark.parametrize(
    "odd",
    [
        b'"ts":"1.5"',
        b'"ts":1e3',
        b'"ts":null',
        b'"ts":1.5,"pid":"Spans"',
        b'"ts":1.5,"sf":3',
        b'"ts":1.5,"bind_id":3',
        b'"ts":1.5,"args":{"stream":"seven"}',
        b'"ts":1.5,"args":{"Collective name":"allreduce"}',
        b'"ts":1.5,"args":{},"args":{}',
        b'"ts":1.5,"args":[1]',
        b'"ts":1.5,"args":{"grid":[1,2]}',
        b'"ts":1.5,"args":{"correlation":12345678901234567890}',
        b'"ts":1.5,"n\\u0061me":"x"',
        b'"ts":1.5,"name":7',
    ],
)
def test_unusual_event_is_returned_to_python(odd):
    event = b'{"ph":"X","name":"k",' + odd + b"}"
    *_, columns = _columns(KERNEL + b"," + event)
    assert list(array("q", columns[-1])) == [len(KERNEL) + 1, len(event), 1]


@pytest.mark.parametrize(
    "text",
    [
        b'{"ph":"X"',
        b'{"ph":"X"}}',
        b'{"ph":"X"} {"ph":"X"}',
        b'{"ph":"X",}',
        b'{"a":NaN}',
        b'{"a":01}',
        b'{"a":1.}',
        b'{"a":1e400}',
        b'{"a":1e}',
        b'{"a":tru}',
        b'{"a":"\x01"}',
        b'{"a":"\\x"}',
        b'{"a":"\\ud800"}',
        b'{"a":[1,2}',
        b'{"a":' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"a":1},]',
        b'{"a":1},,{"a":1}',
        b'{"a":"lib("x", 1)"}',
        b"\0",
    ],
)
def test_invalid_json_is_left_to_python(text):
    assert _scan(text) is None


def test_selection_by_kind_or_name():
    cpu = b'{"ph":"X","cat":"cpu_op","name":"record_param_comms","ts":1,"dur":1}'
    *_, columns = _columns(KERNEL + b"," + cpu, other=0, every=False)
    assert len(columns[1]) == 8
    *_, columns = _columns(KERNEL + b"," + cpu, other=0, every=False, named=[b"param"])
    assert len(columns[1]) == 16
    window = array("q", [0, 1200]).tobytes()
    *_, columns = _columns(KERNEL + b"," + cpu, windows=window)
    assert list(array("q", columns[1])) == [1000]


@pytest.mark.parametrize("wrong", [(b"", 1), (b"", -1)])
def test_arguments_out_of_range_are_rejected(wrong):
    text, begin = wrong
    with pytest.raises(ValueError, match="out of range"):
        scan(text, begin, [], 0, 0, [], [], b"", True, True, False, False, False, False, [])
    with pytest.raises(ValueError, match="out of range"):
        scan(b"", 0, [], 0, 0, [], [], b"123", True, True, False, False, False, False, [])


@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-9e12, max_value=9e12)
)
def test_times_equal_those_read_by_python(us):
    text = f"{us:f}".encode()
    *_, columns = _columns(b'{"ph":"X","name":"k","dur":1,"ts":' + text + b"}")
    assert array("q", columns[1])[0] == nanosecond(text)


@pytest.mark.parametrize("phase", ["i", "I", "R"])
def test_duration_of_an_instant_is_ignored(phase, tmp_path):
    """V8 writes ``dur: 0`` into all events; a mark is not a slice of 0 ns."""
    path = tmp_path / "marks.json"
    mark = {"ph": phase, "name": "A", "cat": "node.perf", "pid": 1, "tid": 2, "ts": 5, "dur": 0}
    path.write_text(json.dumps([mark, {**mark, "ph": "X"}]))
    for tables in _both(path):
        assert tables["events"]["dur"] == [0, None]
        assert tables["issues"]["code"] == []
    path.write_text(json.dumps([mark]))
    with raises_wording(MissingData):
        ta.operators(path)


def test_v8_cpu_profile_is_not_a_sample(tmp_path):
    """Its chunks pack many samples each; an event of phase P with a stack is one sample."""
    path = tmp_path / "node.json"
    event = {"ph": "P", "cat": "v8.cpu_profiler", "pid": 1, "tid": 2, "dur": 0}
    profile = [
        {**event, "name": "Profile", "ts": 1, "args": {"data": {"startTime": 1}}},
        {**event, "name": "ProfileChunk", "ts": 2, "args": {"data": {"cpuProfile": {}}}},
        {**event, "name": ["ProfileChunk"], "ts": 3},
    ]
    run = {"ph": "X", "name": "RunTask", "ts": 3, "dur": 4, "pid": 1, "tid": 2}
    path.write_text(json.dumps([*profile, run, {**event, "name": "Profile", "ts": 5, "sf": 1}]))
    for tables in _both(path):
        assert sorted(tables["events"]["kind"]) == ["other", "sample", "sample"]
        issues = {key: values[0] for key, values in tables["issues"].items() if key != "rank"}
        assert issues == {
            "severity": "notice",
            "code": "profile-chunk",
            "count": 2,
            "first": "a V8 CPU profile: its samples are not supported",
        }
    path.write_text(json.dumps([*profile[:2], run]))
    assert "RunTask" in str(ta.flamegraph(path))
    with raises_wording(MissingData):
        ta.py_spy_report(path)


def _both(path: Path, **how):
    result = []
    compiled = arrays._scan
    for route in (compiled, None):
        arrays._scan = route
        try:
            trace = ta.read(path, **how)
            result.append(
                {name: frame.to_dict(as_series=False) for name, frame in trace.tables.items()}
            )
        except InputError as error:
            result.append({"error": error.what})
        finally:
            arrays._scan = compiled
    return result


HOWS = (
    {},
    {"kinds": ["kernel", "user_annotation"], "names": ["record_param"]},
    {"kinds": ["cpu_op", "other", "flow"], "windows": [(10**6, 10**9)]},
)


@pytest.mark.sample(4)
@pytest.mark.parametrize("how", HOWS, ids=["all", "names", "windows"])
@pytest.mark.parametrize(
    "path", sorted(FIXTURES.rglob("*.json*")), ids=lambda p: str(p.relative_to(FIXTURES))
)
def test_scan_and_decoder_give_the_same_tables(path, how):
    scanned, decoded = _both(path, **how)
    assert scanned == decoded


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_scan_and_decoder_agree_on_damaged_text(seed, tmp_path_factory):
    chance = random.Random(seed)  # noqa: S311
    start = chance.randrange(len(SEED) - 4000)
    text = bytearray(b'{"traceEvents": [' + SEED[start : start + 4000])
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(text))
        text[at : at + chance.randrange(3)] = chance.choice(
            [b'"', b"}", b"{", b",", b"\\", b"\x00", b"\xff", b"1e5", b'"x"', b"null", b"]"]
        )
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(text)
    scanned, decoded = _both(path)
    assert scanned == decoded


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=8,
    )
)
def test_any_arguments_are_skipped_or_returned(args):
    event = json.dumps(
        {"ph": "X", "name": "k", "ts": 1, "dur": 2, "args": {"extra": args}}
    ).encode()
    result = _scan(event)
    if result is None:  # unpaired surrogates are left to Python
        assert b"\\ud" in event
    else:
        assert result[0] == 1
