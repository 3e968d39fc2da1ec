"""Any bytes as a Perfetto trace: read or one error, in little memory."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from perfetto_files import (
    BEGIN,
    CLEARED,
    COUNTER,
    END,
    annotation,
    counter,
    event,
    interned,
    packet,
    process,
    slice_,
    thread,
)  # fmt: skip

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.errors import InputError
from traceanalyzer.exporters.perfetto.wire import delimited, fixed64, number, varint
from traceanalyzer.parsers.perfetto import wire
from traceanalyzer.parsers.perfetto.slices import pair

pytestmark = pytest.mark.skipif(not wire.is_compiled(), reason="built without a compiler")
_TEXTS = interned(1, ["kernel"]) + interned(2, ["gemm"]) + interned(3, ["stream"])
WHOLE = (
    process(1, 10, "python")
    + thread(2, 1, 10, 11, "main")
    + counter(3, "power")
    + packet(delimited(12, _TEXTS), flags=CLEARED)
    + slice_(5, 9, 2, "a", annotation("args", {"k": [1, 2.5, True, "x"]}), fixed64(47, 1))
    + packet(event(BEGIN, 2, number(10, 1), number(3, 1), fixed64(48, 1)), ts=10)
    + packet(event(END, 2), ts=12)
    + packet(event(COUNTER, 3, number(30, 5)), ts=13)
    + packet(delimited(53, number(1, 1), number(2, 5), number(11, 0)), ts=14)
    + packet(delimited(6, delimited(1, number(1, 6), number(2, 1))))
    + delimited(1, delimited(50, zlib.compress(slice_(20, 22, 2, "b"))))
)
_NUMBERS = st.sampled_from([0, 1, 11, 127, 128, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
_FIELDS = st.recursive(
    st.one_of(
        st.builds(number, st.integers(1, 70), _NUMBERS),
        st.builds(fixed64, st.integers(1, 70), _NUMBERS),
        st.builds(delimited, st.integers(1, 70), st.binary(max_size=6)),
        st.builds(
            lambda tag, size: varint(tag << 3 | 2) + varint(size), st.integers(1, 70), _NUMBERS
        ),
    ),
    lambda inner: st.builds(
        lambda tag, parts: delimited(tag, *parts),
        st.sampled_from([1, 3, 4, 6, 8, 11, 11, 12, 50, 52, 53, 59, 60]),
        st.lists(inner, max_size=5),
    ),
    max_leaves=30,
)
_PACKETS = st.lists(
    st.lists(_FIELDS, max_size=4).map(lambda parts: packet(*parts, ts=7)), max_size=5
)


@st.composite
def _damaged(draw: Any) -> bytes:
    data = bytearray(WHOLE)
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 2)):
            case 0:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                data[at : at + 1] = draw(st.binary(max_size=10))
            case _:
                del data[at : at + draw(st.integers(1, 40))]
        data = data or bytearray(b"\n")
    return bytes(data)


ANY = st.one_of(
    st.binary(max_size=200),
    _damaged(),
    _PACKETS.map(b"".join),
    st.integers(0, len(WHOLE)).map(lambda n: WHOLE[:n]),
)


def _outcome(path: Any, **options: Any) -> ta.Trace | str:
    try:
        return ta.read(path, format="perfetto", **options)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either way is right
        return str(error)


#: An object with a damaged member before a whole one.
_DAMAGED_CHILD = bytes.fromhex(
    "0a1550016800e2030e08011a0a080a3206707974686f6e0a1750016800e2031008022801220a080a100b2a04"
    "6d61696e0a1450016800e2030d080328001205706f77657242000a285001680162220a0a080112066b65726e"
    "656c12080801120467656d6d1a0a0801120673747265616d0a3f4005500168005a3748015802ba0101612223"
    "5a04617267735a1b52016b620220016209290000000000000440620210016203320178f90201000000000000"
    "000a0c4009500168005a04480258020a1a400a500168005a124801580250011801810301000000000000000a"
    "0c400c500168005a04480258020a0f400d500168005a0748045803f001050a0f400e50016800aa0306080110"
    "0558000a0c5001680032060a04080610010a28920325789ce31270100960cc6088e2f0608c60dac5c898c4c5"
    "e320061661f1608a60020059700572"
)


@settings(max_examples=60, deadline=None)
@given(data=ANY, columns=st.sampled_from([(), ("args",), ("input_dims",)]))
@example(data=_DAMAGED_CHILD, columns=("args",))
def test_any_bytes_are_read_or_rejected(data, columns, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "fuzz.pftrace"
    path.write_bytes(data)
    result = _outcome(path, columns=columns)
    if not isinstance(result, str):
        assert schema.check(result.tables) == []


@pytest.mark.parametrize("size", [1 << 20, 1 << 40, (1 << 64) - 1])
def test_lengths_and_numbers_beyond_the_file_need_no_memory(tmp_path, size):
    path = tmp_path / "huge.pftrace"
    path.write_bytes(WHOLE + varint(1 << 3 | 2) + varint(size) + b"\0" * 50)
    tracemalloc.start()
    try:
        trace = ta.read(path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert trace.events.height == 4
    assert trace.issues["code"].to_list() == ["truncated"]


def test_a_compressed_packet_is_read_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("traceanalyzer.parsers.perfetto.reader._SMALL", 1 << 10)
    path = tmp_path / "bomb.pftrace"
    path.write_bytes(
        WHOLE + delimited(1, delimited(50, zlib.compress(slice_(1, 2, 2, "x") * 10**5)))
    )
    trace = ta.read(path)
    assert trace.events.height < 10**5
    assert "bad-packet" in trace.issues["code"].to_list()


def _peak_mib(path: Any) -> tuple[ta.Trace, float]:
    tracemalloc.start()
    try:
        return ta.read(path), tracemalloc.get_traced_memory()[1] / (1 << 20)
    finally:
        tracemalloc.stop()


def test_millions_of_empty_packets_need_no_memory(tmp_path):
    path = tmp_path / "empty.pftrace"
    empty = zlib.compress(b"\x0a\x00" * 2_000_000)
    path.write_bytes(WHOLE + delimited(1, delimited(50, empty)))
    trace, peak = _peak_mib(path)
    assert trace.events.height == 4
    assert peak < 32  # four times the content; a row of a packet has 96 bytes


def test_millions_of_arrows_of_an_event_need_no_memory(tmp_path):
    path = tmp_path / "arrows.pftrace"
    arrows = slice_(1, 2, 2, "x", delimited(36, bytes(2_000_000)))
    path.write_bytes(WHOLE + delimited(1, delimited(50, zlib.compress(arrows))))
    trace, peak = _peak_mib(path)
    assert dict(trace.issues.select("code", "count").iter_rows()) == {
        "too-many-flows": 2_000_000 - wire.MOST_ARROWS
    }
    assert peak < 32


_EVENTS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 2), st.sampled_from([BEGIN, END])), max_size=30
)


@given(_EVENTS)
def test_pairs_are_those_of_a_stack(events):
    events.sort(key=lambda one: one[0])
    ts, track, type_ = np.array(events, np.int64).reshape(-1, 3).T
    stacks: dict[int, list[int]] = {}
    expected, unmatched = {}, 0
    for row, (_, on, what) in enumerate(events):
        stack = stacks.setdefault(on, [])
        if what == BEGIN:
            stack.append(row)
            expected[row] = -1
        elif stack:
            expected[stack.pop()] = row
        else:
            unmatched += 1
    pairs = pair(ts, track, type_)
    assert dict(zip(pairs.begin.tolist(), pairs.end.tolist(), strict=True)) == expected
    assert pairs.unmatched == unmatched
