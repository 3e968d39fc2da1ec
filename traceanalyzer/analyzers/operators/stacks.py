"""The Python frames around each call."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceanalyzer.analyzers.operators.question import FRAMES
from traceanalyzer.frames.holding import nearest
from traceanalyzer.frames.intervals import nullable
from traceanalyzer.frames.nesting import ROOT

#: Between the frames of a stack, the innermost first.
BETWEEN = "; "


def python_stacks(tree: pl.DataFrame, frames: int) -> pl.Series:
    """The names of so many innermost Python frames around each call, null where there is none.

    A frame is not around itself. Operators of the backward pass run in a thread without frames.
    """
    around = nearest(tree, (tree["kind"] == FRAMES).to_numpy())
    names = tree["name"].cast(pl.String)
    levels: list[pl.Series] = []
    at = around
    while len(levels) < frames and (at != ROOT).any():
        name = nullable("name", np.maximum(at, 0), at != ROOT).cast(pl.UInt32)
        levels.append(names.gather(name).alias(str(len(levels))))
        at = np.where(at == ROOT, ROOT, around[at])
    if not levels:
        return pl.repeat(None, tree.height, dtype=pl.String, eager=True).alias("stack")
    text = pl.concat_str(pl.all(), separator=BETWEEN, ignore_nulls=True)
    known = pl.when(pl.col("0").is_not_null())
    return pl.DataFrame(levels).select(known.then(text).alias("stack")).to_series()
