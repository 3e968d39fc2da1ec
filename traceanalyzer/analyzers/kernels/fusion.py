"""Pointwise kernels that run one after another, so that a compiler could fuse them."""

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.kernel_names import COPY, ELEMENTWISE, is_inductor
from traceanalyzer.analyzers.kernels.training import ATTENTION, ONE_BY_ONE, OPTIMIZER
from traceanalyzer.frames import intervals, linking, nesting, numbering


def fusible_ns(
    work: pl.DataFrame, kernels: pl.DataFrame, number: pl.Series, training: pl.DataFrame
) -> pl.Series:
    """Return the time of pointwise kernels that fusion could save, per row of device work.

    Elementwise and copy kernels that follow each other on a stream, without other work between
    them, read and write the same tensors again. Of such a sequence the longest kernel remains; the
    time of the others is an upper bound of the gain. Kernels of TorchInductor are fused already;
    those of attention and of optimizers with a kernel per parameter are findings of their own.

    Args:
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`.
        kernels: name and family of each kernel.
        number: the row of ``kernels`` of each row of ``work``.
        training: rows of :func:`~.training.training`.
    """
    pointwise = [
        family in (ELEMENTWISE, COPY) and name is not None and not is_inductor(name)
        for name, family in kernels.select("name", "family").iter_rows()
    ]
    counts = np.array(pointwise, np.bool_)[number.to_numpy()]
    saved = np.zeros(work.height, np.int64)
    if counts.any():
        start, end = intervals.bounds(work)
        _, (lane,) = numbering.group_numbers(("device", "stream"), work)
        order = intervals.stable_order(lane, start)
        lane, counts = lane[order], counts[order]
        changes = (counts[1:] != counts[:-1]) | (lane[1:] != lane[:-1])
        sequence = np.cumsum(np.append(False, changes))
        kept = counts & ~_of_other_findings(work, training)[order]
        rows = order[kept]
        saved[rows] = _without_longest((end - start)[rows], sequence[kept])
    return pl.Series("fusible_ns", saved)


def _of_other_findings(work: pl.DataFrame, training: pl.DataFrame) -> intervals.Bools:
    """Mark the kernels of attention and of optimizers with a kernel per parameter."""
    one_by_one = pl.len().over("purpose", "device", "call") >= ONE_BY_ONE
    elsewhere = (pl.col("purpose") == ATTENTION) | (pl.col("purpose") == OPTIMIZER) & one_by_one
    marked: intervals.Bools = np.zeros(work.height, np.bool_)
    if training.height:
        match = linking.first_match(training.filter(elsewhere), work, ("device", "start", "end"))
        marked = match != nesting.ROOT
    return marked


def _without_longest(length: intervals.Ints, sequence: intervals.Ints) -> intervals.Ints:
    """Return the lengths, with 0 for the (first) longest of each sequence of adjacent rows."""
    first = np.flatnonzero(np.diff(sequence, prepend=-1))
    if not first.size:
        return length
    longest = np.maximum.reduceat(length, first)
    sizes = np.diff(np.append(first, length.size))
    ties = np.flatnonzero(length == np.repeat(longest, sizes))
    remaining = length.copy()
    remaining[ties[np.diff(sequence[ties], prepend=-1) != 0]] = 0
    return remaining
