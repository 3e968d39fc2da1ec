"""The tables and charts of collectives, ranks and steps."""

import polars as pl

from traceanalyzer.analyzers.common.display import headings, table_of_known
from traceanalyzer.result import Chart, Table

_KIND = "collective, dtype, message_bytes: message"

#: Title, columns with their headings, and what is said where there are no rows.
_TABLES = {
    "late": (
        "Who kept the others waiting",
        """rank: straggler, late_rank: last, step, collective, message_bytes: message,
        late_ns: late by, imposed_ns: others waited, host: host meanwhile,
        device: device meanwhile""",
        "nobody",
    ),
    "ranks": (
        "Ranks",
        """rank, host, n: collectives, comm_ns: communication, wait_ns: waited,
        imposed_ns: others waited for it, times_last: last, late_steps: late steps, late_frac: cost,
        outliers, idle_ns: device idle, overlap_frac: hidden by compute""",
        "none",
    ),
    "baseline": (
        "Medians against the baseline",
        f"""{_KIND}, kernel, n, median_ns: median, n_before: n before,
        baseline_ns: median before, ratio, compute_frac: compute beside,
        compute_before_frac: before""",
        "no kind of collective is in both",
    ),
    "outliers": (
        "Outliers",
        """rank, step, collective, message_bytes: message, at_ns: at, duration_ns: duration,
        factor: x usual, z, cause, compute_ns: compute beside, beside: busiest beside""",
        "none",
    ),
    "memory": (
        "Memory of the device during outliers",
        """rank, step, collective, duration_ns: duration, taken_bytes: memory taken,
        capacity_bytes: of, taken_frac: full""",
        "not known",
    ),
    "groups": (
        "Collectives by kind",
        f"""{_KIND}, group, kernel, n, median_ns: median, p95_ns: p95, p99_ns: p99, max_ns: max,
        total_ns: total, share_frac: of span, algbw_gbps: algbw, busbw_gbps: busbw,
        link, link_frac: of its peak, outliers""",
        "none",
    ),
    "collectives": (
        "Collectives across ranks, most waiting first",
        f"""step, {_KIND}, group, first_rank: first, late_rank: last, skew_ns: arrival skew,
        late_ns: last after median, imposed_ns: waited in all, pure_ns: pure,
        end_skew_ns: end skew, ranks""",
        "none could be matched across ranks",
    ),
    "steps": (
        "Stragglers by step",
        """step, straggler, cost_ns: costs, cost_frac: of the step, step_ns: step, collectives""",
        "no steps are marked",
    ),
    "context": (
        "What late ranks did while the others waited",
        """rank: late rank, step, side: on, name: what, within, kind, overlap_ns: time,
        overlap_frac: of the stretch""",
        "nothing to look into",
    ),
    "clocks": (
        "Clocks",
        "rank, n: collectives, offset_ns: ahead by, residual_ns: residual, applied: corrected",
        "no collective can tell",
    ),
}

#: Shown in detail only.
DETAILS = ("collectives", "steps", "context", "clocks")

#: Columns that compare ranks.
_COMPARING = ("wait_ns", "imposed_ns", "times_last", "late_steps", "late_frac")

_RANK = pl.format("rank {}", "rank").alias("rank")

_TIME = "time since the first collective"


def table(name: str, frame: pl.DataFrame, more: str = "", *, several: bool = True) -> Table:
    """One of the tables.

    Args:
        name: which.
        frame: its rows.
        more: what the title says besides.
        several: there are several ranks to compare.
    """
    title, text, empty = _TABLES[name]
    columns = headings(text)
    if not several:
        columns = {key: label for key, label in columns.items() if key not in _COMPARING}
    return table_of_known(name, title + more, frame, columns, empty=empty, detail=name in DETAILS)


# --- charts --------------------------------------------------------------------------------


def charts(instances: pl.DataFrame, met: pl.DataFrame, late: pl.DataFrame) -> tuple[Chart, ...]:
    """Durations over time, and with several ranks who arrived how much after the first."""
    durations = _durations(instances)
    return (durations,) if met.is_empty() else (durations, _arrivals(met, late))


def _durations(instances: pl.DataFrame) -> Chart:
    """How long every collective took, by time and rank, the outliers ringed."""
    return Chart(
        name="durations",
        title="Duration of each collective",
        mark="scatter",
        # a logarithm needs more than 0
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


def _arrivals(met: pl.DataFrame, late: pl.DataFrame) -> Chart:
    """How long after the first rank every rank came to each collective, the late ones ringed."""
    first = pl.col("arrival").min()
    named = pl.col("instance").is_in(late["instance"].implode())
    return Chart(
        name="arrivals",
        title="How long after the first rank each rank arrived",
        mark="scatter",
        frame=met.select(
            (first.over("instance") - first).alias("at_ns"),
            _RANK,
            "after_first_ns",
            (pl.col("is_last") & named).alias("late"),
        ),
        x="at_ns",
        y="after_first_ns",
        x_label=_TIME,
        y_label="arrival after the first rank",
        color="rank",
        emphasis="late",
        emphasis_label="late rank",
    )
