"""Pointwise kernels that run one after another, so that a compiler could fuse them."""

import polars as pl

from traceanalyzer.analyzers.common.kernel_names import COPY, ELEMENTWISE, is_inductor
from traceanalyzer.analyzers.kernels.training import ATTENTION, ONE_BY_ONE, OPTIMIZER

_STREAM = ["device", "stream"]


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
    pointwise = pl.Series([
        family in (ELEMENTWISE, COPY) and name is not None and not is_inductor(name)
        for name, family in kernels.select("name", "family").iter_rows()
    ], dtype=pl.Boolean)  # fmt: skip
    one_by_one = pl.len().over("purpose", "device", "call") >= ONE_BY_ONE
    elsewhere = (pl.col("purpose") == ATTENTION) | (pl.col("purpose") == OPTIMIZER) & one_by_one
    counted = training.filter(elsewhere).select("device", "start", "end")
    rows = work.select(*_STREAM, "start", "end", counts=pointwise[number])
    rows = rows.with_row_index("row").sort(*_STREAM, "start", "end", maintain_order=True)
    begins = pl.any_horizontal(
        pl.col("counts", *_STREAM).ne_missing(pl.col("counts", *_STREAM).shift())
    )
    runs = rows.with_columns(run=begins.cum_sum()).filter("counts")
    runs = runs.join(counted, on=["device", "start", "end"], how="anti", nulls_equal=True)
    length = pl.col("end") - pl.col("start")
    longest = pl.int_range(pl.len()) == length.arg_max()
    saved = runs.select("row", ns=pl.when(longest).then(0).otherwise(length).over("run"))
    zero = pl.zeros(work.height, dtype=pl.Int64, eager=True)
    return zero.scatter(saved["row"], saved["ns"]).alias("fusible_ns")
