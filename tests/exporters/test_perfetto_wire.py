"""Encoding of protobuf messages from columns, against a decoder of single messages."""

import numpy as np
from hypothesis import given, strategies as st
from protobuf import fields

from traceanalyzer.exporters.perfetto import wire

NUMBERS = st.integers(0, 2**64 - 1)


@given(NUMBERS, st.integers(0, 10))
def test_a_padded_varint_is_the_same_number(number, width):
    encoded = wire.varint(number, width)
    assert len(encoded) >= width
    assert list(fields(b"\x08" + encoded)) == [(1, number)]


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 2**31 - 1), NUMBERS), min_size=1, max_size=40))
def test_a_layout_encodes_each_row_as_one_message(rows):
    first, second = (np.array([row[i] for row in rows], np.uint64) for i in (0, 2))
    middle = np.array([row[1] for row in rows], np.int64)
    nested = wire.message(5, *wire.value(1, 1, wire.width_of(middle)), *wire.fixed(2, 2))
    layout = wire.Layout((*wire.value(3, 0, wire.width_of(first)), wire.number(4, 7), *nested))
    encoded = layout.encode([first, middle, second], len(rows))
    for row, (one, two, three) in zip(encoded, rows, strict=True):
        outer = dict(fields(row.tobytes()))
        assert (outer[3], outer[4]) == (one, 7)
        assert dict(fields(outer[5])) == {1: two, 2: three.to_bytes(8, "little")}
        place = layout.place_of(2)
        assert row[place : place + 8].tobytes() == three.to_bytes(8, "little")


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_negative_numbers_are_int64(numbers):
    column = np.array(numbers, np.int64)
    layout = wire.Layout(wire.value(1, 0, wire.width_of(column)))
    for row, number in zip(layout.encode([column], len(numbers)), numbers, strict=True):
        assert list(fields(row.tobytes())) == [(1, number % 2**64)]


@given(st.lists(st.integers(1, 4), max_size=30))
def test_interleaved_messages_keep_their_order(widths):
    parts = []
    for width in sorted(set(widths)):
        places = np.array([i for i, one in enumerate(widths) if one == width])
        encoded = np.repeat(places.astype(np.uint8)[:, None], width, axis=1)
        parts.append((places, encoded))
    joined, offsets = wire.interleaved(parts, len(widths))
    assert joined.tolist() == [i for i, width in enumerate(widths) for _ in range(width)]
    assert offsets.tolist() == [sum(widths[:i]) for i in range(len(widths))]
