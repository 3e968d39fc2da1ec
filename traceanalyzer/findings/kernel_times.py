"""Differences between the kernels of one rank or step and those of the others."""

from dataclasses import dataclass

import polars as pl

from traceanalyzer.findings.program import Program
from traceanalyzer.units import format_ns

#: Smaller differences are ignored.
_APART = 0.05

#: If at least this share of kernel time is slower alike, the GPU is the cause, not the work.
_ALL = 0.9

#: Fewer kernels may all depend on the size of the inputs.
_FEW = 3

SLOW_GPU, MORE_KERNELS, LARGER_INPUTS = "slow GPU", "more kernels", "larger inputs"

_ADVICE = {
    SLOW_GPU: "Check the clocks, power cap and temperature of {gpu} ({clocks}) and other "
    "processes on it; exclude the node if it stays slow.",
    MORE_KERNELS: "Balance the work: {balance}.",
    LARGER_INPUTS: "Balance the work: inputs of equal size (bucket by sequence length, equal "
    "numbers of tokens), {balance}.",
}


@dataclass(frozen=True)
class Difference:
    """A difference between kernels.

    Attributes:
        why: :data:`SLOW_GPU`, :data:`MORE_KERNELS` or :data:`LARGER_INPUTS`.
        text: the same as a clause with numbers: ``more kernels run than ...``.
    """

    why: str
    text: str

    def advice(self, program: Program, gpu: str, balance: str) -> str:
        """Return advice for this program, this GPU and this method to balance the work."""
        return _ADVICE[self.why].format(gpu=gpu, balance=balance, clocks=program.clocks)


def compare(kernels: pl.DataFrame, key: str, value: object, who: str) -> Difference | None:
    """Compare the kernels of one rank or step with those of the median one.

    Kernels are the same if name and grid agree. The difference in time is the sum of longer
    durations of the same kernels, and of additional kernels::

        longer = sum(n * (mean - usual mean)),  additional = sum((n - usual n) * usual mean)

    Args:
        kernels: kernel, blocks (of the grid, null where not recorded), n, total_ns and ``key``.
        key: ``rank`` or ``step``.
        value: the rank or step to compare.
        who: phrase for the others: ``on the other ranks``.

    Returns:
        The difference; None if it is below 5 % or there are no others.
    """
    rows = _with_usual(kernels, key, value)
    usual_ns = float(rows["usual_ns"].sum())
    n, mean, usual_n, usual = (pl.col(name) for name in ("n", "mean", "usual_n", "usual_mean"))
    longer = float(rows.select((n * (mean - usual)).sum()).item())
    more = float(rows.select(((n - usual_n) * usual).sum()).item())
    if not usual_ns or longer + more < _APART * usual_ns:
        return None
    if more <= longer:
        steps = _slow_steps(kernels, key, value)
        return _longer(rows, 1 + longer / (usual_ns + more), who, steps)
    counts = _with_usual(kernels.with_columns(blocks=pl.lit(None, pl.Int64)), key, value)
    if counts.filter(n > usual_n * (1 + _APART)).is_empty():
        return Difference(LARGER_INPUTS, f"kernels have larger grids than {who} (larger inputs)")
    only = rows.filter((usual_n == 0) & (pl.col("total_ns") > more / 2))
    if only.height:
        top = only.sort("total_ns", "kernel", descending=[True, False]).row(0, named=True)
        text = f"{top['kernel']} ({format_ns(top['total_ns'])}) does not run {who}"
        return Difference(MORE_KERNELS, text)
    count, usual_count = int(counts["n"].sum()), round(counts["usual_n"].sum())
    text = f"more kernels run than {who} ({count:,} instead of {usual_count:,})"
    return Difference(MORE_KERNELS, text)


def _slow_steps(kernels: pl.DataFrame, key: str, value: object) -> tuple[int, int, float]:
    """Return the number of slow steps, of all steps, and the slowdown in slow steps."""
    if key == "step":
        return 0, 0, 1.0
    is_this = pl.col(key) == pl.lit(value)
    sums = kernels.drop_nulls("step").group_by(key, "step").agg(pl.col("total_ns").sum())
    usual = sums.filter(~is_this).group_by("step").agg(usual=pl.col("total_ns").median())
    each = sums.filter(is_this).join(usual, on="step").filter(pl.col("usual") > 0)
    slow = each.filter(pl.col("total_ns") > (1 + _APART) * pl.col("usual"))
    times = float(slow["total_ns"].sum()) / max(float(slow["usual"].sum()), 1.0)
    return slow.height, each.height, times


def _longer(
    rows: pl.DataFrame, factor: float, who: str, slow_steps: tuple[int, int, float]
) -> Difference:
    """Return the difference if the same kernels take longer: all or some, in all or some steps."""
    slow, steps, times = slow_steps
    if 0 < slow < steps * _ALL:
        return Difference(
            SLOW_GPU,
            f"in {slow:,} of {steps:,} steps kernels take {times:.2f} times as long as {who} "
            "(throttled GPU, other work on it, or larger inputs)",
        )
    rows = rows.filter(pl.col("n") > 0, pl.col("usual_n") > 0)  # others have no median
    is_longer = pl.col("mean") >= pl.col("usual_mean") * (1 + (factor - 1) / 2)
    alike = int(rows.filter(is_longer)["total_ns"].sum()) / max(int(rows["total_ns"].sum()), 1)
    if alike >= _ALL:
        few = rows["kernel"].n_unique() < _FEW or rows["blocks"].null_count() == rows.height
        or_inputs = ", or larger inputs" if few else ""
        return Difference(
            SLOW_GPU,
            f"all kernels take {factor:.2f} times as long as the same kernels {who} (slow "
            f"or throttled GPU{or_inputs})",
        )
    over = (pl.col("n") * (pl.col("mean") - pl.col("usual_mean"))).alias("over")
    top = rows.with_columns(over).sort("over", "kernel", descending=[True, False])
    worst = top.row(0, named=True)
    return Difference(
        LARGER_INPUTS,
        f"some kernels take longer than {who} (larger inputs), mostly {worst['kernel']} "
        f"({worst['mean'] / worst['usual_mean']:.2f} times as long)",
    )


def _with_usual(kernels: pl.DataFrame, key: str, value: object) -> pl.DataFrame:
    """Join the kernels of one rank or step with the median of the others.

    Returns:
        kernel, blocks, n, total_ns, mean, usual_n, usual_mean, usual_ns. Missing kernels count
        with 0 calls; a kernel that the others do not have gets the mean of this one.
    """
    same = ["kernel", "blocks"]
    sums = kernels.group_by(key, *same).agg(pl.col("n", "total_ns").sum())
    is_this = pl.col(key) == pl.lit(value)
    others = sums.filter(~is_this)
    count = max(others[key].n_unique(), 1)
    mean = pl.col("total_ns") / pl.col("n")
    usual = others.group_by(same).agg(
        usual_n=pl.col("n").extend_constant(0, count - pl.len()).median(),
        usual_mean=mean.median(),
    )
    this = sums.filter(is_this).with_columns(mean=mean)
    rows = this.join(usual, on=same, how="full", coalesce=True, nulls_equal=True).with_columns(
        pl.col("n", "total_ns", "usual_n").fill_null(0)
    )
    rows = rows.with_columns(
        mean=pl.coalesce("mean", "usual_mean"), usual_mean=pl.coalesce("usual_mean", "mean")
    )
    return rows.with_columns(usual_ns=pl.col("usual_n") * pl.col("usual_mean")).sort(same)
