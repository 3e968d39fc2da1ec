"""Rows of a tree and the rows above them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: The parent of a root, and what is found where there is nothing.
NONE = -1


def nearest(parent: Ints, wanted: Bools) -> Ints:
    """For each node the innermost wanted one on its way to the root, itself included.

    The paths double in length in every pass, so the deepest stack costs its logarithm.
    """
    found: Ints = np.where(wanted, np.arange(parent.size), parent)
    rows = np.flatnonzero((found != NONE) & ~wanted)
    while rows.size:
        rows = rows[~wanted[found[rows]]]
        found[rows] = found[found[rows]]
        rows = rows[found[rows] != NONE]
    return found
