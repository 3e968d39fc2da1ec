"""Calls in which the host waits for the device, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from traceanalyzer.analyzers.names import named
from traceanalyzer.frames import intervals, linking
from traceanalyzer.vocabulary import SYNCHRONISING_CALLS

#: Copies between host and device, as CUPTI and ROCm name them.
_ACROSS = r"HtoD|DtoH|Host"
_PAGEABLE = r"Pageable"

#: What tells synchronising calls apart.
PLACE = ["call", "operator", "annotation", "python"]


def synchronising_calls(runtime: pl.DataFrame, work: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Calls in which the host waits for the device: event, pid, tid, call, start, end; by start.

    Those that are named so, and copies between host and device that did not return before the copy
    had run: pageable memory is copied so whatever the call is named. Those after the last launch
    are left out, and only counted: nothing waits for them but the end of the recording.

    Args:
        runtime: rows of :func:`~.calls.runtime_calls`.
        work: rows of :func:`~.calls.with_launches`.
    """
    waited_for = pl.col("event").is_in(blocking_copies(work).implode())
    found = runtime.filter(named(runtime, SYNCHRONISING_CALLS) | waited_for)
    chosen = found.filter(pl.col("start") <= work["launch_start"].max())
    return chosen.rename({"name": "call"}), found.height - chosen.height


def blocking_copies(work: pl.DataFrame) -> pl.Series:
    """Launch calls (rows of ``events``) of copies that the host waited for, whatever their name.

    A copy between pageable memory and a device whose call returned after the copy had begun, or
    any copy between host and device whose call returned after the copy had ended.
    """
    copies = work.filter(pl.col("kind") == "gpu_memcpy", pl.col("launch").is_not_null())
    copies = copies.filter(named(copies, [_ACROSS]))
    begun = pl.col("launch_end") > pl.col("start")
    ended = pl.col("launch_end") >= pl.col("end")
    return copies.filter(ended | (begun & named(copies, [_PAGEABLE])))["launch"]


def costs(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """What each synchronising call costs: ``calls`` with host_ns, idle_ns and idle_after_ns.

    host_ns is how long it lasts, idle_ns how much of that no device of the rank was running
    anything, idle_after_ns how long after its end none was: up to the next piece of work or the
    next synchronising call. Before the first work and after the last nothing counts as idle.

    Args:
        calls: rows of :func:`synchronising_calls`.
        work: rows of :func:`~.calls.with_launches`.
    """
    ended = work.lazy().filter(pl.col("start") > pl.col("rank_free"))
    idle = ended.select(start="rank_free", end="start").collect()
    measured = intervals.overlap_with(calls, idle).rename({"overlap": "idle_ns"})
    at = linking.label_by_interval(measured.select(ts="end"), idle)["interval"]
    next_call = pl.col("start").shift(-1)
    waiting = pl.min_horizontal("idle_until", next_call) - pl.col("end")
    after = pl.when(pl.col("idle_until").is_null()).then(0).otherwise(waiting.clip(0))
    return measured.with_columns(
        host_ns=pl.col("end") - pl.col("start"), idle_until=idle["end"].gather(at)
    ).with_columns(idle_after_ns=after)


def by_place(costs: pl.DataFrame, places: Mapping[str, pl.Series]) -> pl.DataFrame:
    """Synchronising calls by name and by where in the program they were made.

    Args:
        costs: rows of :func:`costs`.
        places: of each of them the names of its innermost operator, outer_operator, annotation and
            python frame.

    Returns:
        call, operator (the outermost; behind ``>`` the innermost, unless the outer is PyTorch's),
        annotation, python (a frame, the user's own if there is one), n, host_ns, idle_ns,
        idle_after_ns.
    """
    named_places = costs.with_columns(
        operator=_path(places["outer_operator"], places["operator"]),
        annotation=places["annotation"],
        python=places["python"],
    )
    total = pl.col("host_ns", "idle_ns", "idle_after_ns").sum()
    found = named_places.group_by(PLACE).agg(total, n=pl.len())
    return found.with_columns(pl.col(PLACE).cast(pl.String))


def _path(outer: pl.Series, inner: pl.Series) -> pl.Series:
    """The outermost operator, and the innermost where the outer one does not say what it does."""
    names = pl.DataFrame({"outer": outer, "inner": inner}).cast(pl.String)
    # of operators that cross the outer one is not known everywhere
    names = names.with_columns(pl.coalesce("outer", "inner").alias("outer"))
    tells = pl.col("outer").str.starts_with("aten::") | (pl.col("outer") == pl.col("inner"))
    both = pl.format("{} > {}", "outer", "inner")
    return names.select(pl.when(tells).then("outer").otherwise(both)).to_series()
