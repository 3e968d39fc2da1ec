"""The tables and charts of collectives, ranks and steps."""

import polars as pl

from traceanalyzer.analyzers.common.display import headings, table_of_known
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Table

_KIND = "collective, dtype, message_bytes: message"

#: Title, columns with their headings, and the text without rows.
_TABLES = {
    "delayed": (
        "Collectives delayed by stragglers",
        """rank: straggler, last_rank: last rank, step, collective, message_bytes: message,
        arrival_delay_ns: arrival delay, imposed_ns: wait of others, host: host activity,
        device: device activity""",
        "no stragglers",
    ),
    "ranks": (
        "Ranks",
        """rank, host, n: collectives, comm_ns: communication, wait_ns: wait time,
        imposed_ns: wait of others, times_last: times last, straggler_steps: straggler steps,
        straggler_frac: cost, outliers, idle_ns: device idle, overlap_frac: overlapped""",
        "none",
    ),
    "concentration": (
        "Where the wait time comes from",
        """part: group of ranks, name, ranks, ranks_frac: share of ranks,
        imposed_ns: wait of others, imposed_frac: share of wait time""",
        "unknown",
    ),
    "baseline": (
        "Medians compared with the baseline",
        f"""{_KIND}, kernel, n, median_ns: median, n_before: baseline n,
        baseline_ns: baseline median, ratio, compute_frac: overlapped,
        compute_before_frac: baseline overlapped""",
        "no kind of collective in both runs",
    ),
    "outliers": (
        "Outliers",
        """rank, step, collective, message_bytes: message, at_ns: start, duration_ns: duration,
        factor, z, cause, compute_ns: compute overlap, overlapped_by: overlapped by""",
        "none",
    ),
    "outlier_collectives": (
        "Outliers",
        """step, collective, message_bytes: message, at_ns: start, ranks, duration_ns: longest,
        factor, cause, compute_ns: compute overlap, overlapped_by: overlapped by""",
        "none",
    ),
    "memory": (
        "Device memory during outliers",
        """rank, step, collective, duration_ns: duration, taken_bytes: used memory,
        capacity_bytes: device memory, taken_frac: used""",
        "unknown",
    ),
    "groups": (
        "Collectives by kind",
        f"""{_KIND}, group, kernel, n, median_ns: median, p95_ns: p95, p99_ns: p99, max_ns: max,
        total_ns: total, share_frac: share of span, algbw_gbps: algbw, busbw_gbps: busbw,
        link, link_frac: share of peak, outliers""",
        "none",
    ),
    "collectives": (
        "Collectives across ranks, longest wait time first",
        f"""step, {_KIND}, group, first_rank: first rank, last_rank: last rank,
        skew_ns: arrival skew, arrival_delay_ns: arrival delay, imposed_ns: total wait time,
        transfer_ns: transfer time, end_skew_ns: end skew, ranks""",
        "no matches across ranks",
    ),
    "steps": (
        "Stragglers by step",
        """step, straggler, cost_ns: cost, cost_frac: share of step, step_ns: step time,
        collectives""",
        "no steps are marked",
    ),
    "context": (
        "What stragglers did while others waited",
        """rank: straggler, step, side, name: activity, within, kind, overlap_ns: time,
        overlap_frac: share of delay""",
        "no stragglers",
    ),
    "clocks": (
        "Clock offsets",
        "rank, n: collectives, offset_ns: offset, residual_ns: residual, applied: corrected",
        "unknown",
    ),
}

#: Columns that a narrow terminal hides first.
_HIDE_FIRST = {
    "delayed": ("device", "last_rank", "message_bytes", "arrival_delay_ns"),
    "ranks": ("host", "n", "overlap_frac", "idle_ns", "outliers", "times_last"),
    "outliers": ("z", "overlapped_by", "compute_ns", "at_ns", "factor"),
    "outlier_collectives": ("overlapped_by", "compute_ns", "at_ns", "factor", "message_bytes"),
    "groups": (
        *("share_frac", "algbw_gbps", "p95_ns", "link", "outliers", "kernel", "group", "p99_ns"),
        *("dtype", "link_frac"),
    ),
    "collectives": ("end_skew_ns", "first_rank", "group", "dtype", "arrival_delay_ns"),
}

#: Tables printed only in detail.
DETAILS = ("collectives", "steps", "context", "clocks")

#: Columns that compare ranks.
_COMPARING = ("wait_ns", "imposed_ns", "times_last", "straggler_steps", "straggler_frac")

_RANK = pl.format("rank {}", "rank").alias("rank")

_TIME = "time from the start"


def table(name: str, frame: pl.DataFrame, more: str = "", *, several: bool = True) -> Table:
    """Return one of the tables.

    Args:
        name: its name.
        frame: its rows.
        more: suffix of the title.
        several: whether there are several ranks to compare.
    """
    title, text, empty = _TABLES[name]
    columns = headings(text)
    if not several:
        columns = {key: label for key, label in columns.items() if key not in _COMPARING}
    how = {"empty": empty, "detail": name in DETAILS, "hide_first": _HIDE_FIRST.get(name, ())}
    return table_of_known(name, title + more, frame, columns, **how)


# --- charts --------------------------------------------------------------------------------


def charts(instances: pl.DataFrame, met: pl.DataFrame, delayed: pl.DataFrame) -> tuple[Chart, ...]:
    """Return durations over time and, with several ranks, arrivals after the first rank."""
    durations = _durations(instances)
    return (durations,) if met.is_empty() else (durations, _arrivals(met, delayed))


def _durations(instances: pl.DataFrame) -> Chart:
    """Return the duration of every collective by time and rank, outliers circled."""
    return Chart(
        name="durations",
        title="Duration of each collective",
        mark="scatter",
        # the axis is logarithmic
        frame=instances.select("at_ns", _RANK, pl.col("duration_ns").clip(1), "outlier"),
        x="at_ns",
        y="duration_ns",
        x_label=_TIME,
        y_label="duration",
        color="rank",
        emphasis="outlier",
        emphasis_label="outlier",
        log_y=True,
    )


def _arrivals(met: pl.DataFrame, delayed: pl.DataFrame) -> Chart:
    """Return every rank's arrival after the first rank at each collective, stragglers circled."""
    listed = pl.col("instance").is_in(delayed["instance"].implode())
    return Chart(
        name="arrivals",
        title="Arrival of each rank after the first",
        mark="scatter",
        frame=met.select(
            pl.col("at_ns").min().over("instance"),
            _RANK,
            "after_first_ns",
            (pl.col("is_last") & listed).alias("straggler"),
        ),
        x="at_ns",
        y="after_first_ns",
        x_label=_TIME,
        y_label="arrival after the first rank",
        color="rank",
        emphasis="straggler",
        emphasis_label="straggler",
    )
