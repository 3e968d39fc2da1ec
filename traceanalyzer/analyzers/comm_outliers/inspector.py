"""Stragglers from the durations of collectives that NCCL Inspector recorded without times.

A collective ends on all ranks at the same time, so the rank with the shortest duration arrived
last. Of one collective: ``wait = duration - shortest duration``, the transfer time is the shortest
duration, the arrival delay of the last rank is the median duration of the others less its own, and
the last rank imposes the sum of the others' wait times. Collectives with a root are not compared: a
rank may leave them early.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.comm_outliers import Options
from traceanalyzer.analyzers.comm_outliers.arrivals import DEFAULT_NS
from traceanalyzer.analyzers.comm_outliers.matching import ROOTED
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers, Delayed, Totals
from traceanalyzer.analyzers.common import aggregates
from traceanalyzer.analyzers.common.columns import ratio
from traceanalyzer.analyzers.common.display import headings, sentences, table_of_known
from traceanalyzer.result import View
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns
from traceanalyzer.vocabulary import INSPECTOR_FORM, bus_factor

_OF_SERIES = {"group_rank": pl.Int32, "group_size": pl.Int32, "pid": pl.Int64}
_OF_CALLS = {"message_bytes": pl.Int64, "total_ns": pl.Int64}
#: Durations that include the time until the host saw the end of the call.
_OF_HOST = "collective_cpu"
_COLLECTIVE = ["group", "collective", "seq"]

_RANKS = headings(
    "process: rank, host, n: collectives, comm_ns: communication, wait_ns: wait time, "
    "imposed_ns: imposed wait time, times_last: times last, matched: matched"
)
_DELAYED = headings(
    "collective, seq: number, message_bytes: message, group, ranks, last_process: last rank, "
    "arrival_delay_ns: arrival delay, imposed_ns: imposed wait time, transfer_ns: transfer time"
)
_GROUPS = headings(
    "collective, message_bytes: message, group_size: ranks, n: calls, median_ns: median, "
    "max_ns: max, transfer_ns: transfer time, busbw_gbps: busbw, total_ns: total"
)
_TOTALS = ["n_events", "n_ranks", "n_matched", "n_collectives", "total_comm_ns", "total_wait_ns"]
_NOTE = (
    "From durations without times (NCCL Inspector): the rank with the shortest duration of a "
    "collective arrived last. NCCL_INSPECTOR_DUMP_VERBOSE=1 records times too."
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class InspectedCommOutliers(CommOutliers):
    """Communication in the files of NCCL Inspector: durations without a timeline.

    As :class:`~.result.CommOutliers`, whose other tables are empty.

    Attributes:
        ranks: one row per process, most imposed wait time first: ``process`` (``rank 3``, or host
            and process id if the rank is unknown or not unique), rank, host, pid, ``n`` collectives
            and their ``comm_ns``, ``matched`` of them, ``wait_ns``, ``imposed_ns``, ``times_last``.
        collectives: one row per collective that several processes recorded: group, collective, seq,
            ``message_bytes``, ``ranks``, ``missing`` ranks, ``last_process``,
            ``arrival_delay_ns``, ``imposed_ns``, ``transfer_ns``.
        delayed: those with an arrival delay of at least ``delayed.min_wait_ns``, most imposed wait
            time first.
        groups: one row per collective, message size and group size: calls, ``median_ns``,
            ``max_ns``, ``total_ns``; ``transfer_ns``, the median transfer time, and
            ``busbw_gbps``, the bus bandwidth of it.
    """

    def view(self) -> View:
        """Return the ranks, the collectives with a straggler, and all collectives by size."""
        several, delayed = self.ranks.height > 1, self.delayed.collectives
        tables = (
            table_of_known("ranks", "Ranks", self.ranks, _RANKS),
            table_of_known("delayed", "Collectives with a straggler", delayed, _DELAYED),
            table_of_known("groups", "Collectives by size", self.groups, _GROUPS),
        )
        return View(
            title="Which collectives are slow, and which rank is the straggler?",
            verdict=_verdict(self),
            notes=(_NOTE, *self.remarks),
            tables=tuple(t for t in tables if t.frame.height and (several or t.name != "ranks")),
            scalars={name: getattr(self.totals, name) for name in _TOTALS}
            | {"min_wait_ns": self.delayed.min_wait_ns},
        )


def combine(rows: pl.DataFrame, options: Options) -> InspectedCommOutliers:
    """Compare the durations of each collective on all ranks.

    Args:
        rows: ``aggregates`` of all files, with ``path``.
        options: of ``comm-outliers``.
    """
    calls, repeated = _calls(rows.filter(pl.col("form") == INSPECTOR_FORM))
    compared = calls.filter(
        ~pl.col("collective").is_in(ROOTED), (pl.col("timing") != _OF_HOST).fill_null(value=True)
    )
    waits = _waits(compared)
    each = _collectives(waits)
    least = DEFAULT_NS if options.min_wait_ns is None else options.min_wait_ns
    delayed = each.filter(pl.col("last_process").is_not_null(), pl.col("arrival_delay_ns") >= least)
    return InspectedCommOutliers(
        totals=Totals(
            n_events=calls.height,
            n_ranks=calls["process"].n_unique(),
            n_matched=waits.height,
            n_collectives=each.height,
            total_comm_ns=int(calls["total_ns"].sum()),
            total_wait_ns=int(waits["wait_ns"].sum()),
        ),
        delayed=Delayed(
            delayed.sort("imposed_ns", *_COLLECTIVE, descending=[True, *[False] * 3]), least
        ),
        ranks=_ranks(calls, waits, each),
        collectives=each,
        groups=_groups(calls, each),
        remarks=tuple(_remarks(calls, compared, each, repeated)),
    )


def _calls(rows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return one row per collective and process, and the number of repeated lines."""
    about = aggregates.wide(
        rows.filter(pl.col("row").is_null()),
        INSPECTOR_FORM, _OF_SERIES, ("group", "host", "timing"),
    ).select("path", "block", "rank", "group", "host", "timing", *_OF_SERIES)  # fmt: skip
    metric = pl.col("metric")
    numbered = rows.filter(pl.col("row").is_not_null()).with_columns(
        # a line is repeated if the job appended to the file of another one
        again=pl.int_range(pl.len()).over("path", "block", "row", "metric")
    )
    once = numbered.filter(pl.col("again") == 0)
    repeated = (numbered.height - once.height) // len(_OF_CALLS)
    calls = (
        once.group_by("path", "block", "row", collective="name")
        .agg(pl.col("value").filter(metric == name).first().alias(name) for name in _OF_CALLS)
        .with_columns(pl.col(name).cast(dtype) for name, dtype in _OF_CALLS.items())
        .rename({"row": "seq"})
        .join(about, on=["path", "block"])
    )
    processes = calls.select("path", "host", "pid", "rank").unique()
    unique = processes.select("host", "pid", "rank").unique()
    is_unique = unique["rank"].null_count() == 0 and unique["rank"].n_unique() == unique.height
    process = pl.format("rank {}", "rank")
    if not is_unique:
        host, pid = pl.col("host").fill_null("?"), pl.col("pid").fill_null(0)
        process = pl.format("{} pid {}", host, pid)
    # a process may have written several files
    one = ["process", *_COLLECTIVE]
    calls = calls.with_columns(process=process).sort("process", "path", "block", "seq")
    distinct = calls.unique(one, keep="first", maintain_order=True)
    return distinct, repeated + calls.height - distinct.height


def _waits(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that several processes recorded, with their wait times."""
    several = pl.len().over(_COLLECTIVE) > 1
    shortest = pl.col("total_ns").min().over(_COLLECTIVE)
    return calls.filter(several).with_columns(wait_ns=pl.col("total_ns") - shortest)


def _collectives(waits: pl.DataFrame) -> pl.DataFrame:
    """Return one row per collective; without a last rank if all durations are equal."""
    time = pl.col("total_ns")
    ordered = waits.sort(*_COLLECTIVE, "total_ns", "group_rank")
    others = time.slice(1).median().floor().cast(pl.Int64)
    arrived_last = pl.when(time.max() > time.min()).then(pl.col("process").first())
    table = ordered.group_by(_COLLECTIVE, maintain_order=True).agg(
        pl.col("message_bytes").max(),
        pl.col("group_size").max(),
        pl.len().cast(pl.Int64).alias("ranks"),
        arrived_last.alias("last_process"),
        (others - time.first()).alias("arrival_delay_ns"),
        pl.col("wait_ns").sum().alias("imposed_ns"),
        time.min().alias("transfer_ns"),
    )
    missing = (pl.col("group_size") - pl.col("ranks")).clip(lower_bound=0)
    return table.with_columns(missing=missing)


def _ranks(calls: pl.DataFrame, waits: pl.DataFrame, each: pl.DataFrame) -> pl.DataFrame:
    total = calls.group_by("process").agg(
        pl.col("rank", "host", "pid").first(),
        pl.len().cast(pl.Int64).alias("n"),
        pl.col("total_ns").sum().alias("comm_ns"),
    )
    met = waits.group_by("process").agg(
        pl.len().cast(pl.Int64).alias("matched"), pl.col("wait_ns").sum()
    )
    imposed = each.group_by(process="last_process").agg(
        pl.col("imposed_ns").sum(), pl.len().cast(pl.Int64).alias("times_last")
    )
    table = total.join(met, on="process", how="left").join(imposed, on="process", how="left")
    counts = ["matched", "wait_ns", "imposed_ns", "times_last"]
    return table.with_columns(pl.col(counts).fill_null(0)).sort(
        "imposed_ns", "wait_ns", "rank", "process", descending=[True, False, False, False]
    )


def _groups(calls: pl.DataFrame, each: pl.DataFrame) -> pl.DataFrame:
    key = ["collective", "message_bytes", "group_size"]
    transfers = each.group_by(key).agg(pl.col("transfer_ns").median().round().cast(pl.Int64))
    factor = pl.struct("collective", "group_size").map_elements(
        lambda one: bus_factor(one["collective"], one["group_size"]), return_dtype=pl.Float64
    )
    return (
        calls.group_by(key)
        .agg(
            pl.len().cast(pl.Int64).alias("n"),
            pl.col("total_ns").sum(),
            pl.col("total_ns").median().round().cast(pl.Int64).alias("median_ns"),
            pl.col("total_ns").max().alias("max_ns"),
        )
        .join(transfers, on=key, how="left", nulls_equal=True)
        .with_columns(busbw_gbps=ratio("message_bytes", "transfer_ns") * factor)
        .sort("total_ns", *key, descending=[True, False, False, False])
    )


# --- sentences -----------------------------------------------------------------------------------


def _verdict(result: InspectedCommOutliers) -> str:
    if result.totals.n_collectives == 0:
        return (
            "No collective was recorded by several ranks: pass the files of all ranks to find the "
            f"straggler. Communication: {format_ns(result.totals.total_comm_ns)}."
        )
    waited = f"{format_ns(result.totals.total_wait_ns)} of {format_ns(result.totals.total_comm_ns)}"
    if result.delayed.collectives.is_empty():
        return (
            f"No straggler: no rank arrived {format_ns(result.delayed.min_wait_ns)} late at any of "
            f"{format_count(result.totals.n_collectives, 'collective')}. Wait time: {waited} of "
            "communication."
        )
    top = result.ranks.row(0, named=True)
    share = top["imposed_ns"] / result.totals.total_comm_ns
    worst = result.delayed.collectives.row(0, named=True)
    process = top["process"]
    return sentences(
        f"{process[0].upper()}{process[1:]} is a straggler: other ranks waited "
        f"{format_ns(top['imposed_ns'])} in total ({format_frac(share)} of all communication).",
        f"It arrived last at {top['times_last']} of {format_count(top['matched'], 'collective')}.",
        f"Largest wait: {worst['collective']} #{worst['seq']} of "
        f"{format_bytes(worst['message_bytes'])}, {worst['last_process']} arrived "
        f"{format_ns(worst['arrival_delay_ns'])} late.",
    )


def _remarks(
    calls: pl.DataFrame, compared: pl.DataFrame, each: pl.DataFrame, repeated: int
) -> Iterator[str]:
    if missing := each.filter(pl.col("missing") > 0).height:
        yield (
            f"{format_count(missing, 'collective')} without all ranks of the group: pass the files "
            "of all processes."
        )
    if others := calls.height - compared.height:
        yield (
            f"{format_count(others, 'event')} not compared: collectives with a root, which a rank "
            "may leave early, and durations measured on the host."
        )
    if repeated:
        yield f"{format_count(repeated, 'repeated line')} not counted."
    if calls["process"].str.contains(" pid ").any():
        yield (
            "The rank of a process is its rank in its largest communicator, which is unknown or "
            "not unique here: processes are named by host and process id."
        )
