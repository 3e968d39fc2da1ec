"""Collectives in the log and the summary that DeepSpeed's ``comms_logger`` prints."""

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from traceanalyzer.analyzers.common.aggregates import wide
from traceanalyzer.analyzers.common.columns import left_join, ratio
from traceanalyzer.analyzers.printed import Options
from traceanalyzer.analyzers.printed.result import Form, table
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns

_LOG, _SUMMARY = FORMS = ("comm_log", "comm_summary")
_SPEEDS = {"algbw_gbit_per_s": pl.Float64, "busbw_gbit_per_s": pl.Float64}
_OF_CALLS = {"total_ns": pl.Int64, "message_bytes": pl.Int64, **_SPEEDS}
_OF_SUMMARY = {
    "message_bytes": pl.Int64,
    "n": pl.Int64,
    **dict.fromkeys(("total_ns", "mean_ns", "comm_ns", "straggler_ns"), pl.Int64),
    **_SPEEDS,
}
_KEYS = ["rank", "path", "name", "message_bytes"]
#: DeepSpeed counts the bytes of these twice for algbw; nccl-tests and our other tables once.
_TWICE = r"^(?:inference_)?all_reduce"
_BITS = 8
_GROUPS = {
    "rank": pl.Int32,
    "path": pl.String,
    "source": pl.String,
    "collective": pl.String,
    **dict.fromkeys(("message_bytes", "n", "total_ns", "steady_ns"), pl.Int64),
    "share_frac": pl.Float64,
    **dict.fromkeys(("mean_ns", "median_ns", "max_ns", "first_ns"), pl.Int64),
    **dict.fromkeys(("outside_ns", "straggler_ns"), pl.Int64),
    **dict.fromkeys(("algbw_gbps", "busbw_gbps"), pl.Float64),
}
_TABLE = (
    "source, collective, message_bytes: message, n, median_ns: median, mean_ns: mean, "
    "max_ns: max, share_frac: share, total_ns: total, first_ns: first call, "
    "outside_ns: outside mean, straggler_ns: straggler, algbw_gbps: algbw, busbw_gbps: busbw"
)
#: Columns that a narrow terminal hides first.
_HIDDEN = ("source", "share_frac", "algbw_gbps", "mean_ns", "max_ns")
_BANDWIDTH_NOTE = (
    "Bandwidths are in 10^9 bytes per second; algbw of all_reduce is half of what DeepSpeed "
    "prints, which counts the message twice. busbw is as printed."
)
#: The part of a total that few calls cause, for a note.
_MUCH_FRAC = 0.5
_MUCH_NS = 100_000_000


def form(rows: pl.DataFrame, _options: Options) -> Form | None:
    """Return the collectives by size of all logs and summaries, longest first.

    ``collectives``: one row per collective and message size. ``source`` is ``log`` or ``summary``.
    In a log ``first_ns`` is the first call, which may include the start of NCCL and is counted only
    in ``total_ns``. In a summary ``mean_ns`` is DeepSpeed's mean without the longest and shortest
    tenth, and ``outside_ns`` is ``total_ns - n * mean_ns``: the time of those. ``steady_ns`` is the
    time without them. ``share_frac`` is the share of all ``total_ns`` in a summary without negative
    totals, otherwise that of all ``steady_ns``.
    """
    frames = [pl.DataFrame(schema=_GROUPS), _of_log(rows), _of_summary(rows)]
    joined = pl.concat(frames, how="diagonal_relaxed")
    if joined.is_empty():
        return None
    of = ("rank", "path", "source")
    sound = (pl.col("total_ns") >= 0).all().over(of) & (pl.col("source") == "summary")
    joined = joined.with_columns(weight_ns=pl.when(sound).then("total_ns").otherwise("steady_ns"))
    shares = joined.with_columns(share_frac=ratio("weight_ns", pl.col("weight_ns").sum().over(of)))
    known = shares.select(pl.col(name).cast(dtype) for name, dtype in _GROUPS.items())
    order = ["source", "share_frac", "collective", "message_bytes"]
    groups = known.sort(order, descending=[False, True, False, False], nulls_last=True)
    counted = _once(groups)
    by_size = table("collectives", "Collectives by size", groups, _TABLE)
    return Form(
        (replace(by_size, hide_first=_HIDDEN),),
        _verdict(counted),
        tuple(_notes(groups, counted)),
        {"n_calls": int(counted["n"].sum()), "total_comm_ns": int(counted["steady_ns"].sum())},
    )


def _once(groups: pl.DataFrame) -> pl.DataFrame:
    """Return the groups of logs, and those of summaries of ranks without a log."""
    logs = groups.filter(pl.col("source") == "log")
    others = groups.join(logs, on=["rank", "path"], how="anti", nulls_equal=True)
    return pl.concat([logs, others])


def _of_log(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the logged calls by collective and size, the first call of each apart."""
    calls = wide(rows, _LOG, _OF_CALLS).drop_nulls("total_ns")
    time, later = pl.col("total_ns"), pl.col("later")
    numbered = calls.with_columns(later=pl.int_range(pl.len()).over(_KEYS) > 0)
    sums = numbered.group_by(_KEYS, maintain_order=True).agg(
        n=pl.len().cast(pl.Int64),
        total_ns=time.sum(),
        mean_ns=time.filter(later).mean().round(),
        median_ns=time.filter(later).median().round(),
        max_ns=time.filter(later).max(),
        first_ns=time.first(),
        algbw_gbit_per_s=pl.col("algbw_gbit_per_s").filter(later).median(),
        busbw_gbit_per_s=pl.col("busbw_gbit_per_s").filter(later).median(),
    )
    steady = pl.col("total_ns") - pl.col("first_ns")
    return _in_bytes(sums).with_columns(source=pl.lit("log"), steady_ns=steady)


def _of_summary(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of summaries; of one rank the last one, which includes those before."""
    read = wide(rows, _SUMMARY, _OF_SUMMARY).drop_nulls("n")
    last, waits = (
        known.filter(pl.col("block") == pl.col("block").max().over("rank", "path"))
        for known in (read.drop_nulls("mean_ns"), read.drop_nulls("straggler_ns"))
    )
    waits = waits.select(*_KEYS, "straggler_ns").unique(_KEYS, keep="first", maintain_order=True)
    both = left_join(last.drop("straggler_ns"), waits, _KEYS)
    steady = pl.col("n") * pl.col("mean_ns")
    outside = (pl.col("total_ns") - steady).clip(lower_bound=0)  # less is due to rounding
    return (
        _in_bytes(both)
        .with_columns(
            steady_ns=steady,
            outside_ns=pl.when(pl.col("total_ns") >= 0).then(outside),
            source=pl.lit("summary"),
        )
        .select(pl.selectors.by_name(*_GROUPS, require_all=False))
    )


def _in_bytes(rows: pl.DataFrame) -> pl.DataFrame:
    """Convert bandwidths from Gbit/s to GB/s; halve algbw of all_reduce."""
    times = pl.when(pl.col("name").str.contains(_TWICE)).then(2).otherwise(1)
    return rows.with_columns(
        algbw_gbps=pl.col("algbw_gbit_per_s") / times / _BITS,
        busbw_gbps=pl.col("busbw_gbit_per_s") / _BITS,
    ).rename({"name": "collective"})


def _verdict(counted: pl.DataFrame) -> str:
    known = counted.filter(pl.col("share_frac") > 0)
    if known.is_empty():
        return ""
    top = known.sort("share_frac", "collective", descending=[True, False]).row(0, named=True)
    return (
        f"{top['collective']} of {format_bytes(top['message_bytes'])} takes the most time of all "
        f"collectives: {format_frac(top['share_frac'])}."
    )


def _notes(groups: pl.DataFrame, counted: pl.DataFrame) -> Iterator[str]:
    yield _BANDWIDTH_NOTE
    yield from _start(counted)
    if groups["first_ns"].is_not_null().any():
        yield "The first call of each collective and size counts in the total only."
    if negative := groups.filter(pl.col("total_ns") < 0).height:
        yield (
            f"{format_count(negative, 'row')} with a total time below 0, as printed (a clock went "
            "back): shares are of the means."
        )
    if groups["outside_ns"].is_not_null().any():
        yield (
            "Means of a summary leave out the longest and shortest tenth of the calls; 'outside "
            "mean' is the rest of the total."
        )


def _start(counted: pl.DataFrame) -> list[str]:
    """Return a note on the collective whose first or few calls took most of its time."""
    apart = (
        pl.when(pl.col("n") == 1).then("total_ns").otherwise(pl.coalesce("first_ns", "outside_ns"))
    )
    rows = counted.with_columns(apart=apart).filter(
        pl.col("apart") > _MUCH_FRAC * pl.col("total_ns"), pl.col("apart") > _MUCH_NS,
    )  # fmt: skip
    notes = []
    for row in rows.sort("apart", descending=True).head(2).iter_rows(named=True):
        which = "its first call, which may include the start of NCCL"
        if row["n"] == 1:
            which = "its only call, which may include the start of NCCL"
        elif row["first_ns"] is None:
            which = "the longest tenth of its calls (the first one may include the start of NCCL)"
        times = f"{format_ns(row['apart'])} of {format_ns(row['total_ns'])}"
        size = format_bytes(row["message_bytes"])
        notes.append(f"{row['collective']} of {size}: {times} are in {which}.")
    return notes
