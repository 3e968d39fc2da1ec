"""Statistics of step times per rank and among ranks; warm-up detection."""

from collections.abc import Collection, Sequence

import polars as pl

from traceanalyzer.analyzers.common.device_steps import warm_up
from traceanalyzer.analyzers.common.device_work import PART_NAMES
from traceanalyzer.analyzers.steps.engine import PHASE

#: Parts of a batch that Composer marks on the host.
HOST_PARTS = {"forward_ns": "forward", "backward_ns": "backward"}

#: Labels of parts that grew; communication and copies mean their exposed parts.
_SHORT = {n: label.removeprefix("exposed ") for n, label in (PART_NAMES | HOST_PARTS).items()}

#: Key of a recording.
RECORDING = ("rank", "path")

_WARM_UP = pl.col("warm_up")


def judged(steps: pl.DataFrame, parts: Collection[str]) -> pl.DataFrame:
    """Add ``warm_up`` to the steps, and how they differ from their recording's median.

    Args:
        steps: see :func:`~.compute.joined`, with ``phase`` and ``batch``: steps of an inference
            engine are compared within phase and batch, and are never warm-up.
        parts: columns of ``steps`` with the parts of its duration.

    Returns:
        ``steps`` with warm_up; ratio, the duration over the median of the steps without warm-up;
        and, for steps longer than that, grown, the part that exceeds its median most (compute,
        communication, copies, idle, forward, backward; exposed parts only), and grown_ns, by how
        much; null if no parts are known.
    """
    each = steps.unique([*RECORDING, "number"], keep="first", maintain_order=True).sort("number")
    recordings = each.group_by(RECORDING).agg("duration_ns", pl.col("phase").is_not_null().any())
    leading = [
        0 if of_engine else warm_up(durations)
        for durations, of_engine in recordings[["duration_ns", "phase"]].iter_rows()
    ]
    counts = recordings.select(*RECORDING, _leading=pl.Series(leading, dtype=pl.Int64))
    marked = steps.join(counts, on=RECORDING, how="left", nulls_equal=True, maintain_order="left")
    marked = marked.with_columns(warm_up=pl.col("number") < pl.col("_leading")).drop("_leading")
    usual = pl.col("duration_ns").filter(~_WARM_UP).median().over(*RECORDING, *PHASE)
    return marked.with_columns(
        ratio=pl.col("duration_ns") / usual, **_growth(parts, usual, [*RECORDING, *PHASE, "device"])
    )


def _growth(parts: Collection[str], usual: pl.Expr, lane: Sequence[str]) -> dict[str, pl.Expr]:
    """Return ``grown`` and ``grown_ns``: the part of longer rows that exceeds its median most."""
    more = {
        part: pl.col(part) - pl.col(part).filter(~_WARM_UP).median().over(lane) for part in parts
    }
    most = pl.max_horizontal(*more.values()) if more else pl.lit(None, pl.Float64)
    longer = (pl.col("duration_ns") > usual) & (most > 0)
    which = pl.coalesce(
        *(pl.when(growth == most).then(pl.lit(_SHORT[part])) for part, growth in more.items()),
        pl.lit(None, pl.String),
    )
    return {
        "grown": pl.when(longer).then(which),
        "grown_ns": pl.when(longer).then(most.round().cast(pl.Int64)),
    }


def ranks(steps: pl.DataFrame) -> pl.DataFrame:
    """Summarize the steps of each recording, without warm-up.

    Returns:
        rank, path, steps (their number), warm_up (number of excluded steps); mean_ns, median_ns,
        std_ns (of the sample, null for a single step), min_ns, max_ns of the durations; cv_frac,
        std over mean; between_ns, the time between these steps, and between_frac, its share of the
        time from the first start to the last end.
    """
    each = steps.unique([*RECORDING, "number"], keep="first", maintain_order=True)
    kept = each.filter(~_WARM_UP)
    length = pl.col("duration_ns")
    # the time before the first counted step is not between two steps
    inner = pl.col("before_ns").slice(1).sum()
    table = kept.group_by(RECORDING, maintain_order=True).agg(
        steps=pl.len().cast(pl.Int64),
        mean_ns=length.mean(),
        median_ns=length.median(),
        std_ns=length.std(),
        min_ns=length.min(),
        max_ns=length.max(),
        between_ns=inner,
        _all=length.sum() + inner,
    )
    excluded = each.group_by(RECORDING).agg(warm_up=_WARM_UP.sum().cast(pl.Int64))
    return (
        table.join(excluded, on=RECORDING, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            cv_frac=pl.col("std_ns") / pl.col("mean_ns"),
            between_frac=pl.col("between_ns") / pl.col("_all"),
        )
        .drop("_all")
    )


def common(steps: pl.DataFrame, parts: Collection[str]) -> pl.DataFrame:
    """Summarize the steps that at least two recordings have, without warm-up.

    Args:
        steps: see :func:`judged`, and ``on``, the label of the rank.
        parts: columns of ``steps`` with the parts of its duration.

    Returns:
        One row per step, in their order: step, ranks (their number), duration_ns (the median),
        slowest (``on`` of the slowest, the first of several), max_ns, spread_ns (max_ns minus the
        median), spread_frac (of the median); the means of parts over ranks and devices; ratio,
        duration_ns over the median of all steps, grown and grown_ns as in :func:`judged`.
    """
    each = steps.filter(~_WARM_UP)
    length = pl.col("duration_ns")
    table = (
        each.unique([*RECORDING, "number"], keep="first", maintain_order=True)
        .group_by("step", maintain_order=True)
        .agg(
            pl.col("number").min(),
            pl.col(PHASE).first(),
            ranks=pl.len().cast(pl.Int64),
            duration_ns=length.median(),
            slowest=pl.col("on").get(length.arg_max()),
            max_ns=length.max(),
            warm_up=pl.lit(value=False),
        )
        .filter(pl.col("ranks") > 1)
        .sort("number", "step")
    )
    means = each.group_by("step").agg(pl.col(parts).mean())
    usual = length.median().over(PHASE)
    return (
        table.join(means, on="step", how="left", maintain_order="left")
        .with_columns(
            spread_ns=pl.col("max_ns") - length,
            spread_frac=(pl.col("max_ns") - length) / length,
            ratio=length / usual,
            **_growth(parts, usual, ["warm_up", *PHASE]),
        )
        .drop("number", "warm_up", *PHASE)
    )
