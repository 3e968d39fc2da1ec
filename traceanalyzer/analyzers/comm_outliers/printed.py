"""Communication from the log and the summary that DeepSpeed's ``comms_logger`` prints."""

from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.comm_outliers import inspected
from traceanalyzer.analyzers.comm_outliers.options import Options
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers, Totals
from traceanalyzer.analyzers.common import printed
from traceanalyzer.analyzers.common.columns import ratio
from traceanalyzer.analyzers.common.display import headings, rank_column, sentences, table_of_known
from traceanalyzer.errors import MissingData
from traceanalyzer.result import Table, View
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns
from traceanalyzer.vocabulary import INSPECTOR_FORM

_LOG, _SUMMARY = "comm_log", "comm_summary"
_SPEEDS = {"algbw_gbit_per_s": pl.Float64, "busbw_gbit_per_s": pl.Float64}
_OF_CALLS = {"total_ns": pl.Int64, "message_bytes": pl.Int64, **_SPEEDS}
_OF_SUMMARY = {
    "message_bytes": pl.Int64,
    "n": pl.Int64,
    **dict.fromkeys(("total_ns", "mean_ns", "comm_ns", "straggler_ns"), pl.Int64),
    **_SPEEDS,
}
#: DeepSpeed counts the bytes of these twice for algbw; nccl-tests and our other tables once.
_TWICE = r"^(?:inference_)?all_reduce"
_BITS = 8

GROUPS = {
    "rank": pl.Int32,
    "path": pl.String,
    "source": pl.String,
    "collective": pl.String,
    "message_bytes": pl.Int64,
    "n": pl.Int64,
    "total_ns": pl.Int64,
    "steady_ns": pl.Int64,
    "share_frac": pl.Float64,
    "mean_ns": pl.Int64,
    "median_ns": pl.Int64,
    "max_ns": pl.Int64,
    "first_ns": pl.Int64,
    "outside_ns": pl.Int64,
    "straggler_ns": pl.Int64,
    "algbw_gbps": pl.Float64,
    "busbw_gbps": pl.Float64,
}

_TABLE = headings(
    "source, collective, message_bytes: message, n, median_ns: median, mean_ns: mean, "
    "max_ns: max, share_frac: share, total_ns: total, first_ns: first call, "
    "outside_ns: outside mean, straggler_ns: straggler, algbw_gbps: algbw, busbw_gbps: busbw"
)
_BANDWIDTH_NOTE = (
    "Bandwidths are in 10^9 bytes per second; algbw of all_reduce is half of what DeepSpeed "
    "prints, which counts the message twice. busbw is as printed."
)
#: The part of a total that few calls cause, for a sentence.
_MUCH_FRAC = 0.5
_MUCH_NS = 100_000_000


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PrintedCommOutliers(CommOutliers):
    """Communication of DeepSpeed's log: times and bandwidths without a timeline.

    As :class:`~.result.CommOutliers`, whose other tables are empty: ranks cannot be compared.

    Attributes:
        groups: one row per collective and message size, with the columns of :data:`GROUPS`, those
            of a recording with the same meaning. ``source`` is ``log`` or ``summary``. In a log
            ``first_ns`` is the first call, which may include the start of NCCL and is counted only
            in ``total_ns``. In a summary ``mean_ns`` is DeepSpeed's mean without the longest and
            shortest tenth, and ``outside_ns`` is ``total_ns - n * mean_ns``: the time of those.
            ``steady_ns`` is the time without them, ``share_frac`` its share of all ``steady_ns``.
            ``algbw_gbps``, ``busbw_gbps`` in 10^9 bytes per second, as nccl-tests counts them.
    """

    def view(self) -> View:
        """Return the collectives by size."""
        by = rank_column(self.groups) if self.groups["path"].n_unique() > 1 else {}
        by = {"rank": "rank"} if self.groups["rank"].n_unique() > 1 else by
        table = table_of_known("groups", "Collectives by size", self.groups, {**by, **_TABLE})
        return View(
            title="Which collectives take the time?",
            verdict=_verdict(_once(self.groups)),
            notes=_notes(self.groups),
            tables=(_hiding(table),),
            scalars={name: getattr(self.totals, name) for name in ("total_comm_ns", "n_events")},
        )


def combine(rows: pl.DataFrame, options: Options) -> CommOutliers:
    """Return the collectives of all logs and summaries; sums count the log of a rank with both.

    Lines of NCCL Inspector have their own result, :mod:`.inspected`.

    Raises:
        MissingData: a baseline was given.
    """
    if options.baseline is not None:
        raise MissingData(f"{rows['path'][0]}: text without a timeline has no baseline")
    if (rows["form"] == INSPECTOR_FORM).any():
        return inspected.combine(rows, options)
    frames = [_of_log(rows), _of_summary(rows)]
    joined = pl.concat([pl.DataFrame(schema=GROUPS), *frames], how="diagonal_relaxed")
    of_source = pl.col("steady_ns").sum().over("rank", "path", "source")
    shares = joined.with_columns(share_frac=ratio("steady_ns", of_source))
    known = shares.select(pl.col(name).cast(dtype) for name, dtype in GROUPS.items())
    counted = _once(known)
    order = ["source", "steady_ns", "collective", "message_bytes"]
    groups = known.sort(order, descending=[True, True, False, False], nulls_last=True)
    return PrintedCommOutliers(
        **printed.blank(CommOutliers)
        | {
            "groups": groups,
            "totals": Totals(
                n_events=int(counted["n"].sum()),
                n_ranks=known["rank"].n_unique(),
                total_comm_ns=int(counted["steady_ns"].sum()),
            ),
        }
    )


def _once(groups: pl.DataFrame) -> pl.DataFrame:
    """Return the groups of logs, and those of summaries of ranks without a log."""
    logs = groups.filter(pl.col("source") == "log")
    others = groups.join(logs, on=["rank", "path"], how="anti", nulls_equal=True)
    return pl.concat([logs, others])


def _of_log(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the logged calls by collective and size, the first call of each apart."""
    calls = printed.wide(rows, _LOG, _OF_CALLS).drop_nulls("total_ns")
    time, later = pl.col("total_ns"), pl.col("later")
    keys = ["rank", "path", "name", "message_bytes"]
    numbered = calls.with_columns(later=pl.int_range(pl.len()).over(keys) > 0)
    sums = numbered.group_by(keys, maintain_order=True).agg(
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
    table = printed.wide(rows, _SUMMARY, _OF_SUMMARY).drop_nulls("n")
    speeds = table.filter(pl.col("mean_ns").is_not_null())
    last = speeds.filter(pl.col("block") == pl.col("block").max().over("rank", "path"))
    waits = table.filter(pl.col("straggler_ns").is_not_null())
    waits = waits.filter(pl.col("block") == pl.col("block").max().over("rank", "path"))
    keys = ["rank", "path", "name", "message_bytes"]
    both = last.drop("straggler_ns").join(
        waits.select(*keys, "straggler_ns").unique(keys, keep="first", maintain_order=True),
        on=keys, how="left", nulls_equal=True, maintain_order="left",
    )  # fmt: skip
    steady = pl.col("n") * pl.col("mean_ns")
    outside = (pl.col("total_ns") - steady).clip(lower_bound=0)  # less is due to rounding
    return (
        _in_bytes(both)
        .with_columns(
            steady_ns=steady,
            outside_ns=pl.when(pl.col("total_ns") >= 0).then(outside),
            source=pl.lit("summary"),
        )
        .select(pl.selectors.by_name(*GROUPS, require_all=False))
    )


def _in_bytes(rows: pl.DataFrame) -> pl.DataFrame:
    """Convert bandwidths from Gbit/s to GB/s; halve algbw of all_reduce."""
    times = pl.when(pl.col("name").str.contains(_TWICE)).then(2).otherwise(1)
    return rows.with_columns(
        algbw_gbps=pl.col("algbw_gbit_per_s") / times / _BITS,
        busbw_gbps=pl.col("busbw_gbit_per_s") / _BITS,
    ).rename({"name": "collective"})


def _hiding(table: Table) -> Table:
    """Return the table with the order in which a narrow terminal hides columns."""
    first = ("source", "share_frac", "algbw_gbps", "mean_ns", "max_ns")
    return Table(table.name, table.title, table.frame, table.columns, hide_first=first)


# --- words -------------------------------------------------------------------------------------


def _verdict(groups: pl.DataFrame) -> str:
    counted = groups.filter(pl.col("share_frac") > 0)
    if counted.is_empty():
        return sentences("No collective ran more than once.", _start(groups))
    top = counted.sort("share_frac", "collective", descending=[True, False]).row(0, named=True)
    calls = format_count(top["n"], "call")
    return sentences(
        f"{top['collective']} of {format_bytes(top['message_bytes'])} takes the most time: "
        f"{format_frac(top['share_frac'])} of all communication, {format_ns(top['mean_ns'])} per "
        f"call ({calls}).",
        _start(groups),
    )


def _start(groups: pl.DataFrame) -> str:
    """State the collective whose first or few calls took most of its time."""
    apart = pl.coalesce("first_ns", "outside_ns")
    rows = groups.with_columns(apart=apart).filter(
        pl.col("apart") > _MUCH_FRAC * pl.col("total_ns"), pl.col("apart") > _MUCH_NS,
        pl.col("n") > 1,
    )  # fmt: skip
    if rows.is_empty():
        return ""
    row = rows.sort("apart", descending=True).row(0, named=True)
    which = "its first call, which may include the start of NCCL"
    if row["first_ns"] is None:
        which = "the longest tenth of its calls (the first one may include the start of NCCL)"
    return (
        f"{row['collective']} of {format_bytes(row['message_bytes'])}: "
        f"{format_ns(row['apart'])} of {format_ns(row['total_ns'])} are in {which}."
    )


def _notes(groups: pl.DataFrame) -> tuple[str, ...]:
    notes = [printed.NOTE, _BANDWIDTH_NOTE]
    if groups["first_ns"].is_not_null().any():
        notes.append("The first call of each collective and size counts in the total only.")
    negative = groups.filter(pl.col("total_ns") < 0).height
    if negative:
        notes.append(
            f"{format_count(negative, 'row')} with a total time below 0, as printed (a clock went "
            "back): shares are of the means."
        )
    if groups["outside_ns"].is_not_null().any():
        notes.append(
            "Means of a summary leave out the longest and shortest tenth of the calls, and shares "
            "are of calls x mean; 'outside mean' is the rest of the total."
        )
    return tuple(notes)
