"""The innermost wanted ancestor of a row, compared with walking up."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from traceanalyzer.frames.stack_weights import ROOT, nearest

trees = st.lists(st.tuples(st.integers(0, 100), st.booleans()), min_size=1, max_size=40)


def walked(parent: list[int], wanted: list[bool], row: int) -> int:
    while row != ROOT and not wanted[row]:
        row = parent[row]
    return row


@given(trees)
def test_nearest_equals_walking_up(rows):
    # a parent is an earlier row, or none
    parent = [above % (row + 1) - 1 for row, (above, _) in enumerate(rows)]
    wanted = [is_wanted for _, is_wanted in rows]
    result = nearest(np.array(parent, np.int64), np.array(wanted))
    assert result.tolist() == [walked(parent, wanted, row) for row in range(len(rows))]


def test_a_deep_path():
    parent = np.arange(-1, 999, dtype=np.int64)
    assert nearest(parent, np.arange(1000) == 3).tolist() == [ROOT] * 3 + [3] * 997
    assert nearest(parent, np.zeros(1000, np.bool_)).tolist() == [ROOT] * 1000
