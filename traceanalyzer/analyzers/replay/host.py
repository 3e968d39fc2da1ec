"""The program of a rank without device work: the main thread, and the collectives that it starts.

Each outermost operator is a piece of work that the main thread waits for, so that it can be changed
by its name; those in the data loader are its time. A collective on another thread (gloo) is work
that an operator launches. Where the main thread waits for it is an operator (wait_tensor), or not
recorded: a pause in which all collectives that were launched before end, or that ends shortly after
one of them, is such a wait.
"""

import numpy as np
import polars as pl

from traceanalyzer.analyzers.comm_outliers.collectives import communication
from traceanalyzer.analyzers.common import device_steps
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, COMPUTE, WORK_KIND
from traceanalyzer.analyzers.common.names import named
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.host import main_threads
from traceanalyzer.frames import intervals, linking
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.trace import Trace, of_kinds
from traceanalyzer.vocabulary import POINT_TO_POINT, steps_pattern

#: Kind of a call that runs an operator, and of one that waits for a collective.
RUN, COLLECTIVE = "run", "collective"
#: Names of a wait, and of what marks the end of a step.
WAIT, END = "wait for a collective", "end of step"
_ROW = pl.int_range(pl.len()).alias("call")
#: A pause that ends so shortly before or after a collective waited for it.
_SHORTLY_NS = 1_000_000
#: Start of the names of operators that launch collectives.
_LAUNCHES = "c10d::"


def calls(trace: Trace, steps: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what the main thread does and waits for, and the collectives.

    Args:
        trace: the trace of one rank.
        steps: rows of :func:`~traceanalyzer.analyzers.common.device_steps.device_steps`.

    Returns:
        Rows of ``Program.calls`` in order, with ``since`` (end of the one before) and without the
        time in between; kind is :data:`RUN` of an operator, null where a collective is launched,
        ``collective`` where the thread waits for one, and at the end of a step. And the collectives
        in order of launch: name, start, end, collective, group, stream.

    Raises:
        MissingData: no operators were recorded.
    """
    threads = main_threads(trace, steps)
    main = (threads if steps.is_empty() else steps)[["pid", "tid"]].row(0, named=True)
    pieces, loader, ran = _recorded(trace, threads)
    busy = intervals.union(pl.concat([loader, pieces[["start", "end"]]]))
    ran = _awaited(busy, ran)
    ends = steps["host_end"] if steps.height else pieces["end"].tail(1)
    several = [
        pieces.with_columns(kind=pl.lit(RUN)),
        ran.select("name", start="launched", end="launched"),
        ran.drop_nulls("awaited")
        .group_by(start="awaited")
        .agg(pl.col("end").max())
        .with_columns(name=pl.lit(WAIT), kind=pl.lit(COLLECTIVE)),
        pl.select(name=pl.lit(END), start=ends, end=ends, kind=pl.lit(COLLECTIVE)),
    ]
    rows = pl.concat(several, how="diagonal").sort("start", "end", maintain_order=True)
    step = device_steps.launching_step(steps, rows["start"], rows["start"])
    if steps.height:
        nth = pl.int_range(pl.len(), dtype=pl.UInt32).over("name")
        step = rows.select(step=pl.when(name=END).then(nth).otherwise(step)).to_series()
    begin = pl.lit(steps["host_start"].min(), pl.Int64)
    since = pl.min_horizontal(pl.coalesce(pl.col("end").cum_max().shift(1), begin), "start")
    return rows.with_columns(
        step, since=since, thread=pl.lit(-1, pl.Int64), call_ns=0.0, tail_ns=0.0,
        profiler_frac=0.0, profiler_most_frac=0.0, group=pl.lit(None, pl.String),
        **{name: pl.lit(value, pl.Int64) for name, value in main.items()},
    ), ran.drop("launched")  # fmt: skip


def work(calls: pl.DataFrame, ran: pl.DataFrame) -> pl.DataFrame:
    """Return rows of ``Program.work``: operators, collectives and ends of steps, without delays."""
    numbered = calls.select(_ROW, "step", "start", "end", "name",
                            "kind")  # fmt: skip
    launched = numbered.filter(pl.col("kind").is_null())["call", "step"].hstack(ran)
    run = numbered.filter((pl.col("kind") == RUN) | (pl.col("name") == END)).drop("kind")
    rows = pl.concat([run, launched], how="diagonal").sort("call")
    computes = pl.when(pl.col("stream").is_null()).then(pl.lit(COMPUTE))
    work_kind = computes.otherwise(pl.lit(COMMUNICATION)).cast(WORK_KIND)
    return rows.with_columns(
        device=pl.lit(None, pl.Int32), work_kind=work_kind,
        latency_ns=0.0, lag_ns=0.0,
        **dict.fromkeys(("seq", "size", "elements_in"), pl.lit(None, pl.Int64)),
    )  # fmt: skip


def _recorded(trace: Trace, threads: pl.DataFrame) -> tuple[pl.DataFrame, ...]:
    """Return operators, divided where they launch collectives, data loading, and collectives."""
    events = trace.events[["kind", "name", "pid", "tid", "ts", "dur"]]
    spans = events.filter(pl.col("dur") > 0).join(threads, on=["pid", "tid"], nulls_equal=True)
    spans = spans.select("kind", "name", start="ts", end=pl.col("ts") + pl.col("dur"))
    loads = of_kinds(causes.DATALOADER_KINDS) & named(trace.names, causes.DATALOADER)
    loader = intervals.union(spans.filter(loads))
    others = named(trace.names, [*causes.AWAITS_COLLECTIVE, steps_pattern()])
    operators = spans.filter(~others, kind="cpu_op").with_columns(pl.col("name").cast(pl.String))
    ran = _collectives(trace, operators)
    return _divided(_outermost(operators, loader), ran["launched"].to_numpy()), loader, ran


def _collectives(trace: Trace, operators: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives on the host, with the start of the operator that launched each."""
    rows = communication(trace).filter(
        pl.col("dur") >= 0, ~pl.col("collective").is_in(POINT_TO_POINT).fill_null(value=False)
    )
    rows = rows.select(
        "name", "collective", start="ts", end=pl.col("ts") + pl.col("dur"),
        group=pl.coalesce("group", "name"), stream=pl.col("tid"),
    ).sort("start")  # fmt: skip
    calls = operators.filter(pl.col("name").str.starts_with(_LAUNCHES)).select(
        "start", called="start"
    )
    known = rows.join_asof(calls.sort("start"), on="start")
    return known.with_columns(launched=pl.coalesce("called", "start")).sort("launched", "start")


def _outermost(operators: pl.DataFrame, loader: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that are in no other one, and not in or around the data loader."""
    at = operators.select(ts="start")
    rows = operators.filter(linking.label_by_interval(at, loader)["interval"].is_null())
    loads, ends = (loader["start"].search_sorted(rows[name]) for name in ("start", "end"))
    rows = rows.filter(loads == ends).sort("start", "end", descending=[False, True])
    return rows.filter(pl.col("start") >= pl.col("end").cum_max().shift(1).fill_null(-(1 << 62)))


def _divided(operators: pl.DataFrame, cuts: Ints) -> pl.DataFrame:
    """Return the operators, divided where they launch a collective."""
    start, end = operators["start"].to_numpy(), operators["end"].to_numpy()
    owner = np.searchsorted(start, cuts, "right") - 1
    inside = (owner >= 0) & (cuts < end[owner]) & (cuts > start[owner]) if start.size else cuts < 0
    starts = np.unique(np.concatenate([start, cuts[inside]]))
    owner = np.searchsorted(start, starts, "right") - 1
    ends = np.minimum(end[owner], np.append(starts[1:], np.iinfo(np.int64).max))
    return operators[owner].select("name", start=pl.Series(starts), end=pl.Series(ends))


def _awaited(busy: pl.DataFrame, ran: pl.DataFrame) -> pl.DataFrame:
    """Add the start of the pause in which the main thread waits for each collective, or null.

    It is the pause that overlaps most with the collective, if it ends shortly before or after it or
    takes half of its time: the end of a collective may be recorded long after the thread went on.
    It ends with the pause then.
    """
    begins, until = busy["end"].to_numpy()[:-1], busy["start"].to_numpy()[1:]
    rows: list[tuple[int | None, int]] = []
    for since, end in ran.select("launched", "end").iter_rows():
        low, high = np.searchsorted(until, since), np.searchsorted(begins, end)
        length = np.minimum(until[low:high], end) - np.maximum(begins[low:high], since)
        pause = int(low + length.argmax()) if length.size else 0
        near = length.size and abs(int(until[pause]) - end) <= _SHORTLY_NS
        if length.size and (near or 2 * length.max() >= end - since):
            rows.append((int(begins[pause]), min(end, int(until[pause]))))
        else:
            rows.append((None, end))
    schema = {"awaited": pl.Int64, "end": pl.Int64}
    return ran.drop("end").hstack(pl.DataFrame(rows, schema=schema, orient="row"))


def waits(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Return which calls wait for which work: call, after, work (null), inferred.

    Each operator is waited for, and each collective: in a pause, otherwise at the end of its step.
    """
    rows = work.select("call", "end", "stream", "awaited", after=pl.int_range(pl.len()))
    numbered = calls.select(_ROW, "name", "start", "end").rename({"call": "by"})
    paused = numbered.filter(pl.col("name") == WAIT).select("by", awaited="start")
    ends = numbered.filter(pl.col("name") == END).select("by", "end")
    known = rows.join(paused, on="awaited", how="left").sort("end")
    later = known.join_asof(ends.rename({"by": "at_end"}), on="end", strategy="forward")
    runs = pl.col("stream").is_null()
    return (
        later.select(
            call=pl.when(runs).then("call").otherwise(pl.coalesce("by", "at_end")).cast(pl.Int64),
            after=pl.col("after").cast(pl.Int64),
            work=pl.lit(None, pl.Int64),
            inferred=pl.lit(value=True),
        )
        .drop_nulls("call")
        .sort("call", "after")
    )
