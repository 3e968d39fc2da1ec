"""Why a rank is a straggler: what it is idle for longer than others, or how its kernels differ."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.diagnosis.device_time import WORK
from traceanalyzer.analyzers.diagnosis.rule import Answers
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.units import format_count, format_frac

#: Differences of less are ordinary.
_APART = 0.05

#: Of so much kernel time all have to differ alike for the GPU, not the work, to be the cause.
_ALL = 0.9

#: Fewer kernels than that may all depend on the size of the inputs.
_FEW = 3

_LEAST = 0.1

_SLOW_GPU, _MORE_WORK, _LONGER = "slow GPU", "more work", "longer kernels"

_ADVICE = {
    _SLOW_GPU: "Check the clocks, power cap and temperature of this GPU (nvidia-smi -q -d "
    "CLOCK,PERFORMANCE,TEMPERATURE) and other processes on it; exclude the node if it stays slow.",
    _MORE_WORK: "Balance the work: equal batches, tokens and layers for every rank.",
    _LONGER: "Balance the work: inputs of equal size for every rank (bucket by sequence length, "
    "equal numbers of tokens, equal pipeline stages).",
}


@dataclass(frozen=True)
class _Compared:
    """How the kernels of one rank differ from those of the median rank."""

    why: str
    sentence: str


def advice(answers: Answers, rank: int, by_cause: Mapping[str, int]) -> str:
    """What to try against a straggler."""
    cause = max(sorted(by_cause), key=lambda name: by_cause[name])
    compared = _compared(answers, rank) if cause == WORK else None
    if compared:
        return _ADVICE[compared.why]
    return (
        f"Look at what rank {rank} does before it arrives: more data or slower loading than on the "
        "others, a slower device or host, other work on its node."
    )


def reason(answers: Answers, rank: int, by_cause: Mapping[str, int]) -> str:
    """The main reason in a few words, for the title; empty where it is not known."""
    cause = max(sorted(by_cause), key=lambda name: by_cause[name])
    if cause in causes.WAITING:
        return f"it is idle, {causes.WAITING[cause]}"
    compared = _compared(answers, rank) if cause == WORK else None
    return compared.sentence if compared else ""


def why(by_cause: Mapping[str, int]) -> Iterator[str]:
    """The shares of a straggler's delay, where there are several of weight."""
    whole = sum(by_cause.values())
    parts = sorted(by_cause.items(), key=lambda item: (-item[1], item[0]))
    large = [(cause, ns / whole) for cause, ns in parts if ns >= _LEAST * whole]
    if len(large) > 1:
        each = ", ".join(f"{_name(cause)} {format_frac(share)}" for cause, share in large)
        yield f"Its delay by cause: {each}."


def _name(cause: str) -> str:
    if cause == WORK:
        return "longer or more kernels"
    return causes.NAMES.get(cause, "communication with others")


def _compared(answers: Answers, rank: int) -> _Compared | None:
    """How the kernels of a rank differ from those of the median rank; None where they do not."""
    kernels = answers.get("kernels")
    if not isinstance(kernels, Kernels) or kernels.by_rank.is_empty():
        return None
    rows = _against_median(kernels.by_rank, rank)
    usual = float(rows["usual_ns"].sum())
    slower = rows.select((pl.col("n") * (pl.col("mean") - pl.col("usual_mean"))).sum()).item()
    more = rows.select(((pl.col("n") - pl.col("usual_n")) * pl.col("usual_mean")).sum()).item()
    if not usual or slower + more < _APART * usual:
        return None
    if more > slower:
        n, usual_n = int(rows["n"].sum()), round(rows["usual_n"].sum())
        kernel_count = f"{format_count(n, 'kernel')} instead of {usual_n:,}"
        return _Compared(_MORE_WORK, f"it runs more kernels than the others ({kernel_count})")
    factor = rows.select((pl.col("n") * pl.col("mean")).sum()).item() / (usual + more)
    is_slower = pl.col("mean") >= pl.col("usual_mean") * (1 + (factor - 1) / 2)
    alike = int(rows.filter(is_slower)["total_ns"].sum()) / int(rows["total_ns"].sum())
    if alike >= _ALL:
        or_inputs = ", or larger inputs" if rows.height < _FEW else ""
        return _Compared(
            _SLOW_GPU,
            f"all its kernels take {factor:.2f} times as long as the same kernels on the others "
            f"(slow or throttled GPU{or_inputs})",
        )
    longest = rows.with_columns(over=pl.col("total_ns") - pl.col("usual_ns")).sort(
        "over", "kernel", descending=[True, False]
    )
    top = longest.row(0, named=True)
    return _Compared(
        _LONGER,
        f"some of its kernels take longer than on the others (larger inputs), most of all "
        f"{top['kernel']}: {top['mean'] / top['usual_mean']:.2f} times",
    )


def _against_median(by_rank: pl.DataFrame, rank: int) -> pl.DataFrame:
    """The kernels of a rank beside the median of the other ranks.

    kernel, n, total_ns, mean, usual_n, usual_mean, usual_ns; a rank without a kernel counts as 0
    calls, and a kernel that others lack has the mean of this rank.
    """
    others = by_rank.filter(pl.col("rank") != rank)
    ranks = max(others["rank"].n_unique(), 1)
    mean = pl.col("total_ns") / pl.col("n")
    usual = others.group_by("kernel").agg(
        usual_n=pl.col("n").extend_constant(0, ranks - pl.len()).median(),
        usual_mean=mean.median(),
    )
    own = by_rank.filter(pl.col("rank") == rank).with_columns(mean=mean)
    rows = own.join(usual, on="kernel", how="full", coalesce=True).with_columns(
        pl.col("n", "total_ns", "usual_n").fill_null(0)
    )
    rows = rows.with_columns(
        mean=pl.col("mean").fill_null(pl.col("usual_mean")),
        usual_mean=pl.col("usual_mean").fill_null(pl.col("mean")),
    )
    return rows.with_columns(usual_ns=pl.col("usual_n") * pl.col("usual_mean")).sort("kernel")
