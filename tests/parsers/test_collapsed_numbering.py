"""The compiled numbering of frames compared with the Python version."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from traceanalyzer.parsers.collapsed import lines

LINES = st.lists(st.lists(st.binary(max_size=20), max_size=8).map(b";".join)).map(b"\n".join)


@given(LINES | st.binary(max_size=300))
def test_c_and_python_give_the_same_numbers(stacks: bytes) -> None:
    pytest.importorskip("traceanalyzer.parsers.collapsed._frames")
    assert lines.numbered(stacks) == lines.numbered_in_python(stacks)


def test_many_distinct_frames() -> None:
    frames = [b"f%d (a.py:%d)" % (n, n) for n in range(5_000)]
    stacks = b"\n".join(b";".join(frames[n : n + 7]) for n in range(0, 4_990, 3))
    distinct, numbers, lengths = lines.numbered(stacks)
    parts = [distinct[n] for n in np.frombuffer(numbers, np.uint32)]
    assert b";".join(parts) == stacks.replace(b"\n", b";")
    assert set(np.frombuffer(lengths, np.uint32).tolist()) == {7}
    assert lines.numbered_in_python(stacks) == (distinct, numbers, lengths)


def test_numbers_are_given_in_order_of_occurrence() -> None:
    distinct, numbers, lengths = lines.numbered(b"a;b;a\n\nb")
    assert distinct == [b"a", b"b", b""]
    assert np.frombuffer(numbers, np.uint32).tolist() == [0, 1, 0, 2, 1]
    assert np.frombuffer(lengths, np.uint32).tolist() == [3, 1, 1]
