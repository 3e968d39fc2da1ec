"""The result does not depend on the pieces and threads used to read a file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from harness import (
    differences,
    fixture_files,
    in_pieces,
    name_of,
    patched,
    small_files,
    without_scan,
)
from hypothesis import given, settings, strategies as st

import traceanalyzer as ta
from traceanalyzer.parsers.chrome_trace import arrays, decode, recover
from traceanalyzer.parsers.chrome_trace.container import (
    last_event_start,
    last_object_start,
)
from traceanalyzer.trace import Trace

#: Faults that a cut in the wrong place makes worse: what is lost depends on what is in sight.
LOST_ANYWAY = ("12_unescaped_quote_in_name.json", "unescaped_quote.json")

EVENT = {"ph": "X", "name": "a", "cat": "cpu_op", "pid": 1, "tid": 2, "dur": 5}
#: Text inside an event that looks like the space between two events.
DECOYS: dict[str, Any] = {
    "list": {"l": [{**EVENT, "ts": i} for i in range(9)], "after": 1},
    "deep": {"a": {"b": [[{"name": 1}, {"ph": "X"}], [{"ts": 1}, {"args": [{"id": 1}, 2]}]]}},
    "text": '},\n  {"ph": "X", "ts": 1}, {"name": "x"}]}',
    "brackets": "]}]}[{[{",
    "backslash": 'end\\", {"ph',
    "unicode": "\u2028}, {\u00e9",
}


def adversarial(separator: str, indent: int | None) -> bytes:
    """A trace with arguments that look like other events."""
    events = [
        {**EVENT, "ts": 10 * i, "args": {key: value, "External id": i}}
        for i, (key, value) in enumerate(list(DECOYS.items()) * 2)
    ]
    text = separator.join(json.dumps(event, indent=indent) for event in events)
    return f'{{"schemaVersion": 1, "traceEvents": [\n{text}\n], "traceName": "x"}}'.encode()


def read(path: Path, data: bytes, **how: Any) -> Trace:
    path.write_bytes(data)
    return ta.read(path, **how)


@pytest.mark.sample(3)
@pytest.mark.parametrize("separator", [", ", ",\n", ",\n  ", "\n"])
@pytest.mark.parametrize("indent", [None, 2])
def test_every_cut_of_an_adversarial_file(
    separator: str, indent: int | None, tmp_path: Path, thorough: bool
) -> None:
    data = adversarial(separator, indent)
    whole = read(tmp_path / "a", data)
    assert whole.events.height == 2 * len(DECOYS)
    assert whole.events["external_id"].to_list() == list(range(2 * len(DECOYS)))
    assert whole.meta.extra == '{"traceName":"x"}'
    for size in range(1, 700, 29 if thorough else 4 * 29):
        with in_pieces(size):
            assert differences(ta.read(tmp_path / "a"), whole) == [], size


@pytest.mark.matrix
@pytest.mark.sample(4)
@pytest.mark.parametrize("path", small_files(), ids=name_of)
def test_every_file_in_pieces(path: Path, tmp_path: Path) -> None:
    whole = ta.read(path)
    for size in (64, 517) if path.stat().st_size < 20_000 else (4_000,):
        if size == 64 and path.name in LOST_ANYWAY:
            continue
        with in_pieces(size):
            assert differences(ta.read(path), whole, issues=False) == [], size


@pytest.mark.sample(4)
@pytest.mark.parametrize("path", fixture_files(), ids=name_of)
def test_every_fixture_in_pieces_without_the_scan(path: Path) -> None:
    whole = ta.read(path, columns=["args"])
    with without_scan(), in_pieces(4_000):
        assert differences(ta.read(path, columns=["args"]), whole, issues=False) == []


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("packed", [False, True])
def test_threads_do_not_change_the_order(threads: int, packed: bool, tmp_path: Path) -> None:
    data = adversarial(",\n", None)
    path = tmp_path / "a.json"
    path.write_bytes(gzip.compress(data) if packed else data)
    with patched(arrays, threads=lambda: threads), in_pieces(300):
        many = ta.read(path)
    with patched(arrays, threads=lambda: threads), in_pieces(1 << 20):
        one = ta.read(path)
    assert differences(many, one) == []


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 900), seed=st.integers(0, 5), tail=st.integers(16, 500))
def test_any_size_and_look_back(
    tmp_path_factory: pytest.TempPathFactory, size: int, seed: int, tail: int
) -> None:
    path = tmp_path_factory.getbasetemp() / f"pieces_{seed}"
    if not path.exists():
        separator, indent = [(", ", None), (",\n", None), ("\n", 1)][seed % 3]
        path.write_bytes(adversarial(separator, indent))
    whole = ta.read(path)
    with patched(arrays, PIECE_BYTES=size, TAIL_BYTES=tail, FIRST_PIECE_BYTES=min(size, 50)):
        assert differences(ta.read(path), whole) == []


# --- events longer than a piece --------------------------------------------------------------


def test_an_event_longer_than_many_pieces(tmp_path: Path) -> None:
    inner = [{**EVENT, "ts": i} for i in range(300)]
    events = [{**EVENT, "ts": 1, "args": {"l": inner}}, {**EVENT, "ts": 2}]
    data = json.dumps(events).encode()
    with in_pieces(500):
        trace = read(tmp_path / "a", data)
    assert trace.events["ts"].to_list() == [1_000, 2_000]
    assert trace.issues.is_empty()


def test_unterminated_event_is_dropped(tmp_path: Path) -> None:
    endless = json.dumps({**EVENT, "ts": 1, "args": [1]})[:-2].encode()
    rest = [json.dumps({**EVENT, "ts": i}).encode() for i in range(2, 200)]
    data = b"[\n" + b",\n".join([endless, *rest]) + b"\n]"
    with in_pieces(200), patched(arrays, MAX_CARRY_BYTES=2_000):
        trace = read(tmp_path / "a", data)
    assert trace.events.height == len(rest)
    assert trace.issues["code"].to_list() == ["bad-event"]


def test_events_that_open_with_an_unknown_key(tmp_path: Path) -> None:
    events = [json.dumps({"mine": i, **EVENT, "ts": i}) for i in range(100)]
    with in_pieces(150):
        trace = read(tmp_path / "a", f"[{', '.join(events)}]".encode())
    assert trace.events["ts"].to_list() == [1_000 * i for i in range(100)]


def test_text_without_any_event_ends(tmp_path: Path) -> None:
    data = b'[{"ph": "X", "ts": 1, "dur": 1, "name": "' + b"a" * 5_000 + b'"}]'
    with in_pieces(64), patched(arrays, MAX_EVENT_BYTES=1_024):
        trace = read(tmp_path / "a", data)
    assert trace.events.height == 1


# --- broken events at the end ----------------------------------------------------------------


FAULTY = b"""[
{"name":"g","ph":"X","ts":1,"dur":1,"pid":1,"tid":1},
{"name":"i","ph":"X","ts":2,"dur":1,"pid":1,"tid":1,"args":{"a":1}, id="0x1"}
]"""


def codes(trace: Trace) -> dict[str, int]:
    return dict(trace.issues.select("code", "count").iter_rows())


@pytest.mark.parametrize("ending", [b"", b"\n", b"\n\n  \n"])
def test_faulty_last_event_is_not_truncation(ending: bytes, tmp_path: Path) -> None:
    result = read(tmp_path / "a", FAULTY + ending)
    assert (result.events.height, codes(result)) == (1, {"bad-event": 1})
    inside = read(tmp_path / "b", b'{"traceEvents": ' + FAULTY + b"}" + ending)
    assert (inside.events.height, codes(inside)) == (1, {"bad-event": 1})


@pytest.mark.matrix
def test_truncation_is_detected_at_every_cut_of_an_event(tmp_path: Path) -> None:
    sound = b'{"ph":"X","name":"a","ts":2e1,"dur":-Infinity,"args":{"a":[null,"\\u00e9"],"b":{}}}'
    for size in range(1, len(sound)):
        result = read(tmp_path / "a", b"[\n" + sound + b",\n" + sound[:size])
        assert (result.events.height, codes(result).get("truncated")) == (1, 1), sound[:size]


def test_faulty_events_are_counted_at_any_indentation(tmp_path: Path) -> None:
    faulty = '{"name": "a", "ts": 1,\n      "ph": "N", id="0x1"}'
    text = "[\n" + ",\n".join(" " * indent + faulty for indent in (2, 2, 1, 2)) + ",\n\n]\n"
    assert codes(read(tmp_path / "a", text.encode())) == {"bad-event": 4}


# --- guesses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (b'{"ph":1}', 0),
        (b'{"ph":1},{"ph":2}', 9),
        (b'{"ph":1}, {"ph":2}, ', 10),
        (b'{"ph":1}\n{"name":2}', 9),
        (b'{"ph":1,"args":{"name":2}', 0),
        (b'{"ph":1,"args":[{"name":2}', 0),
        (b'x\n  {"ph":1,"l":[{"a":1},\n     {"ph":2}', 4),
        (b'x\n{"ph":1},{"ph":2}', 2),
        (b'{"ph":1},{"other":2}', 0),
        (b'{"ph":1},{"ph"', 0),
        (b'{"ph":1},{ "ts" :', 9),
    ],
)
def test_where_the_last_event_starts(text: bytes, start: int) -> None:
    assert last_event_start(text) == start


def test_where_the_last_object_starts() -> None:
    assert last_object_start(b'{"a":1},{"b":2}') == 8


def test_where_the_next_event_starts() -> None:
    damaged = recover.DamagedText(b'{"ph":1},\n {"name":2}')
    assert [damaged.start(at) for at in (0, 1, 12)] == [0, 11, None]


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        (b'{"ph":{"a":1}},{"ph":2}', {0: 14, 6: 13, 15: 23}),
        (b'{"ph":"}{\\"}\\\\"}', {0: 16}),
        (b'{"ph":"},\n{"name":2}', {0: None, 10: 20}),
        (b'{"ph":{"a":1},\n{"name":2}', {0: None, 6: 13, 15: 25}),
        (b'}}{"ph":1}}', {0: None, 2: 10}),
        (b'{"a' + b'":{"b' * 70_000 + b'":1}', {0: None, 350_000: 350_007}),
    ],
)
def test_where_objects_end(text: bytes, ends: dict[int, int | None]) -> None:
    damaged = recover.DamagedText(text)
    assert {at: damaged.end(at) for at in ends} == ends


#: Texts without an end to any event, with faults in every token, with starts everywhere, nested.
_DAMAGED = (
    b"{",
    b'"',
    b'\\"',
    b'{"',
    b'{"a":{"a":1},',
    b'{"ph":',
    b"\n{",
    b'\n{"x":1.2.3,',
    b'\n{"s":1.2.3,',
    b'\n{"s":',
    b'{"s":[',
    b'{"s":1}x',
    b'{"s":1,}',
    b'{"s":{"s":1}x}',
    b'},{"ph":"',
    b'{"ph":"X","name":"a\n',
    b"\n     {1.2.3 {\n    {",
    b']{"s":,',
    b'{"ph":"X","ts":1,"args":{"a":1.2}},\n',
)
_TOKENS = (
    b'{"ph":',
    b'"X"',
    b",",
    b'{"name":',
    b"}",
    b"]",
    b"[",
    b"1.2",
    b"\n",
    b'"',
    b"\\",
    b"0.",
)


def work(text: bytes) -> int:
    """The bytes that recovery looks at, and its calls, with nothing allowed beyond the text's."""
    looked_at = 0

    def counted(function: Any) -> Any:
        def count(text: Any, *rest: Any) -> Any:
            nonlocal looked_at
            looked_at += len(text) + 64
            return function(text, *rest)

        return count

    names = ("value_end", "repaired", "decode_event", "decode_events")
    functions = {name: counted(getattr(recover, name)) for name in names}
    with patched(recover, _FREE=0, **functions):
        recover.recover(text, final=True)
    return looked_at


@pytest.mark.parametrize("pattern", _DAMAGED, ids=repr)
@given(noise=st.binary(max_size=20))
@settings(max_examples=5, deadline=None)
def test_recovery_is_linear(pattern: bytes, noise: bytes) -> None:
    for size in (1 << 14, 1 << 15, 1 << 16):
        text = (b'{"ph":"X",}x' + (pattern + noise) * size)[:size]
        assert work(text) <= 12 * size


@given(tokens=st.lists(st.sampled_from(_TOKENS), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_recovery_is_linear_for_any_text(tokens: list[bytes]) -> None:
    for size in (1 << 13, 1 << 14):
        assert work((b"".join(tokens) * size)[:size]) <= 12 * size


@given(
    st.lists(st.sampled_from((*_TOKENS, b"NaN", b"nul", b",]", b"1e5", b"\\u12", b"\xff", b"\n")))
)
@settings(max_examples=100, deadline=None)
def test_valid_tokens_are_unchanged(tokens: list[bytes]) -> None:
    text = b"".join(tokens)
    try:
        decoded = decode.decode_any(text)
    except decode.BAD_TEXT:
        return
    assert decode.decode_any(recover.repaired(text, recover.Faults(0))) == decoded
