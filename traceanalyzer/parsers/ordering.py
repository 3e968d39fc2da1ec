"""The order of rows of ``events``: by start, the longest first, then as the file has them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Order = npt.NDArray[np.uint32]

_AT_ONCE = 1 << 20


def time_order(
    start: Ints, lengths: Callable[[Order], Ints], place: Ints | None = None
) -> Order | None:
    """Row numbers by (start, -length, place), for ``ts``, ``dur`` and the place in the file.

    Nearly all times are distinct: one stable sort by time, which is quick where the rows are a few
    sorted runs, then only the runs of equal times again.

    Args:
        start: of each row.
        lengths: called for the lengths of rows that start at the same time as others, if any do;
            open-ended ones are -1, and so come behind the closed ones of their start.
        place: of each row in the file; default: as they stand.

    Returns:
        None where the rows are in order already.
    """
    if (start[1:] > start[:-1]).all():
        return None
    order = np.argsort(start, kind="stable").astype(np.uint32)
    same = _repeated(start, order)
    if not same.any():
        return order
    tied = np.zeros(len(start), dtype=bool)
    tied[1:] = same
    tied[:-1] |= same
    run = np.cumsum(~np.concatenate([[False], same]))[tied]
    rows = order[tied]
    last = rows if place is None else place[rows]
    order[tied] = rows[np.lexsort((last, -lengths(rows), run))]
    return order


def _repeated(start: Ints, order: Order) -> npt.NDArray[np.bool_]:
    """Which starts are those before them, in order; a part at a time, to save memory."""
    same = np.zeros(len(order) - 1, np.bool_)
    for low in range(0, len(same), _AT_ONCE):
        some = start[order[low : low + _AT_ONCE + 1]]
        same[low : low + _AT_ONCE] = some[1:] == some[:-1]
    return same
