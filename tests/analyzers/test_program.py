"""Programs of replays: what each row of work follows on its stream."""

from __future__ import annotations

import numpy as np
import polars as pl
from comm_traces import US
from hypothesis import example, given, strategies as st

from traceanalyzer.analyzers.replay import program


def plain_order(lane: list[int], call: list[int], start: list[int], end: list[int]) -> list[int]:
    """Return the row that each row follows on its stream, by the definition."""
    after = [-1] * len(lane)
    for row in range(len(lane)):
        rows = [n for n in range(len(lane)) if lane[n] == lane[row]]
        place = rows.index(row)
        before = rows[:place]

        def is_parallel(at: int, rows: list[int] = rows) -> bool:
            same = at > 0 and call[rows[at]] == call[rows[at - 1]] >= 0
            return same and start[rows[at]] < max(end[n] for n in rows[:at]) - program.ROUNDING_NS

        if is_parallel(place):
            done = [n for n in rows if end[n] <= start[row]]
            last = max(done, key=lambda n: (end[n], n), default=-1)
            after[row] = last if last < row else -1
        elif before and is_parallel(place - 1):
            after[row] = max(before, key=lambda n: (end[n], n))
        elif before:
            after[row] = before[-1]
    return after


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1), st.integers(-1, 1), st.integers(0, 5), st.integers(0, 9),
        ),
        min_size=1,
        max_size=9,
    )
)  # fmt: skip
@example([(0, 0, 0, 1), (0, 0, 0, 9), (0, 0, 5, 1)])
def test_order_on_a_stream_with_nodes_of_graphs_at_the_same_time(
    rows: list[tuple[int, int, int, int]],
) -> None:
    lane, call = [row[0] for row in rows], sorted(row[1] for row in rows)
    start = np.cumsum([row[2] * US for row in rows]).tolist()
    end = [begin + row[3] * US for begin, row in zip(start, rows, strict=True)]
    work = pl.DataFrame({"lane": lane, "start": start, "end": end})
    order = program._stream_order(work, np.array(call, np.int64))
    assert order.tolist() == plain_order(lane, call, start, end)
