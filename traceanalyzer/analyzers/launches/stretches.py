"""When devices run out of work again and again, and what synchronising calls cost."""

from collections.abc import Mapping

import polars as pl

from traceanalyzer.analyzers.common.names import named
from traceanalyzer.frames import intervals, linking
from traceanalyzer.vocabulary import SYNCHRONISING_CALLS

#: Copies between host and device, as CUPTI and ROCm name them.
_ACROSS = r"HtoD|DtoH|Host"
_PAGEABLE = r"Pageable"

#: What tells synchronising calls apart.
PLACE = ["call", "operator", "annotation", "python"]

_DEVICE = ["device"]

#: Work that starts on an idle device within this after its launch call waited for nothing else.
PROMPT_NS = 20_000

#: A gap longer than this is no matter of launching, and neither is a device busy for longer.
LONG_NS = 1_000_000

#: Fewer gaps than this are no stretch.
MIN_GAPS = 10

#: A device that is busy for more than this share of a stretch is not held up by launches.
MOSTLY_BUSY_FRAC = 0.9


def device_gaps(work: pl.DataFrame) -> pl.DataFrame:
    """When each device was idle between two pieces of its work, by start.

    Args:
        work: rows of :func:`~traceanalyzer.analyzers.launches.calls.with_launches`.

    Returns:
        device, start, end, launch (the call that launched the piece which ended the gap, a row of
        ``events``), launch_end.
    """
    columns = work.select("device", "launch", "launch_end", start="device_free", end="start")
    return columns.filter(pl.col("end") > pl.col("start"))


def launch_gaps(gaps: pl.DataFrame, synchronising: pl.DataFrame) -> pl.DataFrame:
    """Gaps of a device that ended because the host launched something, none of them long.

    When such a gap began nothing was queued for the device: the launch call of the piece that
    ended the gap had not returned, or not even begun. That piece started no more than
    :data:`PROMPT_NS` after its call, so that it waited for nothing else, and the gap lasted
    no more than :data:`LONG_NS`: what is longer has another cause.

    Args:
        gaps: rows of :func:`device_gaps`.
        synchronising: start, end of calls in which the host waited for the device.

    Returns:
        device, start, end, launch, synchronised (whether the host was in such a call in the gap);
        by device and start.
    """
    queued_late = pl.col("launch_end") >= pl.col("start")
    prompt = pl.col("end") - pl.col("launch_end") <= PROMPT_NS
    short = pl.col("end") - pl.col("start") <= LONG_NS
    found = gaps.filter(queued_late, prompt, short).drop("launch_end")
    held = intervals.overlap_with(found, synchronising)["overlap"] > 0
    return found.with_columns(synchronised=held).sort("device", "start")


def stretches(launched: pl.DataFrame, gaps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Stretches in which launches hold the device up: maximal runs of launch gaps.

    The next gap of a run begins within :data:`LONG_NS` of the end of the one before. Runs
    of fewer than :data:`MIN_GAPS` gaps, and those in which the device was busy for more
    than :data:`MOSTLY_BUSY_FRAC`, are none.

    Args:
        launched: rows of :func:`launch_gaps`.
        gaps: rows of :func:`device_gaps`.
        work: device, start.

    Returns:
        device, start, end, gaps, waiting_ns (in launch gaps), synchronised_ns (in those of them in
        which the host was in a synchronising call), pieces (of work that started in it), busy_ns;
        by device and start.
    """
    apart = pl.col("start") - pl.col("end").shift(1).over(_DEVICE) > LONG_NS
    length = pl.col("end") - pl.col("start")
    runs = (
        launched.with_columns(run=apart.fill_null(value=True).cum_sum())
        .group_by("device", "run", maintain_order=True)
        .agg(
            pl.col("start").first(),
            pl.col("end").last(),
            gaps=pl.len(),
            waiting_ns=length.sum(),
            synchronised_ns=length.filter("synchronised").sum(),
        )
        .filter(pl.col("gaps") >= MIN_GAPS)
        .drop("run")
    )
    # a gap lies in a run or outside
    idle = _inside(gaps.select("device", length.alias("idle_ns"), ts="start"), runs)
    pieces = _inside(work.select("device", ts="start"), runs)
    summed = idle.group_by("interval").agg(pl.col("idle_ns").sum())
    counted = pieces.group_by("interval").agg(pieces=pl.len())
    found = runs.with_row_index("interval")
    for more in (summed, counted):
        found = found.join(more, on="interval", how="left", maintain_order="left")
    measured = found.with_columns(busy_ns=length - pl.col("idle_ns")).drop("interval", "idle_ns")
    return measured.filter(pl.col("busy_ns") <= MOSTLY_BUSY_FRAC * length)


def waiting_for(calls: pl.DataFrame, gaps: pl.DataFrame, stretches: pl.DataFrame) -> pl.Series:
    """How long devices waited for each launch call in the gaps of stretches that it ended, in ns.

    Args:
        calls: rows of :func:`~traceanalyzer.analyzers.launches.calls.launch_calls`.
        gaps: rows of :func:`launch_gaps`.
        stretches: rows of :func:`stretches`.
    """
    if stretches.is_empty():
        return pl.repeat(0, calls.height, dtype=pl.Int64, eager=True)
    length = pl.col("end") - pl.col("start")
    inside = _inside(
        gaps.select("device", "launch", length.alias("waiting_ns"), ts="start"), stretches
    )
    waiting = inside.group_by("launch").agg(pl.col("waiting_ns").sum())
    found = calls.select("launch").join(waiting, on="launch", how="left", maintain_order="left")
    return found["waiting_ns"].fill_null(0)


def most_launched_in(
    stretches: pl.DataFrame, calls: pl.DataFrame, places: dict[str, pl.Series]
) -> pl.DataFrame:
    """The stretches, each with the place in which most of its launches happened.

    Args:
        stretches: rows of :func:`stretches`.
        calls: rows of :func:`~traceanalyzer.analyzers.launches.calls.launch_calls`.
        places: for each column to add the name of each call's place; null is none.
    """
    if stretches.is_empty():
        return stretches.with_columns(pl.lit(None, pl.String).alias(column) for column in places)
    inside = _inside(calls.select("device", ts="start", **places), stretches)
    found = stretches.with_row_index("interval")
    for column in places:
        counts = inside.drop_nulls(column).group_by("interval", column).agg(n=pl.len())
        most = (
            counts.with_columns(pl.col(column).cast(pl.String))
            .sort("n", column, descending=[True, False])
            .unique("interval", keep="first")
            .drop("n")
        )
        found = found.join(most, on="interval", how="left", maintain_order="left")
    return found.drop("interval")


def _inside(points: pl.DataFrame, stretches: pl.DataFrame) -> pl.DataFrame:
    """The points that lie in a stretch of their device, with its row number ``interval``."""
    return linking.label_by_interval(points, stretches, _DEVICE).drop_nulls("interval")


# --- synchronising calls -------------------------------------------------------------------


def synchronising_calls(runtime: pl.DataFrame, work: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Calls in which the host waits for the device: event, pid, tid, call, start, end; by start.

    Those that are named so, and copies between host and device that did not return before the copy
    had run: pageable memory is copied so whatever the call is named. Those after the last launch
    are left out, and only counted: nothing waits for them but the end of the recording.

    Args:
        runtime: rows of :func:`~traceanalyzer.analyzers.launches.calls.runtime_calls`.
        work: rows of :func:`~traceanalyzer.analyzers.launches.calls.with_launches`.
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
        work: rows of :func:`~traceanalyzer.analyzers.launches.calls.with_launches`.
    """
    idle = work.select(start="rank_free", end="start").filter(pl.col("end") > pl.col("start"))
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
