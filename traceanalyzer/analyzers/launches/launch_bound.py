"""Launch-bound stretches of devices, and the cost of synchronising calls."""

from collections.abc import Mapping, Sequence

import polars as pl

from traceanalyzer.analyzers.common.names import matching
from traceanalyzer.frames import intervals, linking
from traceanalyzer.vocabulary import LAUNCHES_WORK, SYNCHRONISE, SYNCHRONISING_CALLS, call_class

#: Copies between host and device, as CUPTI and ROCm name them.
_ACROSS = r"HtoD|DtoH|Host"
_PAGEABLE = r"Pageable"

#: Key of synchronising calls.
PLACE = ["call", "operator", "annotation", "python"]

_DEVICE = ["device"]

#: Work that starts on an idle device within this time of its launch call waited only for the call.
PROMPT_NS = 20_000

#: Calls without a launch from this length on are no part of launching.
LONG_CALL_NS = 10_000

#: A longer gap is not caused by launching, and a longer busy time ends a stretch.
LONG_NS = 1_000_000

_NO_CALLS = pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64})

#: Least number of gaps in a stretch.
MIN_GAPS = 10

#: A device that is busy for more than this share of a stretch is not launch-bound.
MOSTLY_BUSY_FRAC = 0.9


def device_gaps(work: pl.DataFrame) -> pl.DataFrame:
    """Return the idle gaps of each device between its work, by start.

    Args:
        work: rows of :func:`~traceanalyzer.analyzers.launches.calls.with_launches`.

    Returns:
        device, start, end, launch (the call of the device event that ended the gap, a row of
        ``events``), launch_end.
    """
    columns = work.select("device", "launch", "launch_end", start="device_free", end="start")
    return columns.filter(pl.col("end") > pl.col("start"))


def other_calls(runtime: pl.DataFrame) -> pl.DataFrame:
    """Return when the host was in calls that neither launch nor wait: start, end.

    They allocate memory, load modules, build graphs, create streams, query devices. Shorter ones
    than :data:`LONG_CALL_NS` belong to launching.

    Args:
        runtime: rows of :func:`~traceanalyzer.analyzers.launches.calls.runtime_calls`.
    """
    names = runtime["name"].unique().drop_nulls().to_list()
    others = [name for name in names if call_class(name) not in (*LAUNCHES_WORK, SYNCHRONISE)]
    long = pl.col("end") - pl.col("start") >= LONG_CALL_NS
    calls = runtime.filter(pl.col("name").is_in(others), long).select("start", "end")
    return intervals.union(calls.drop_nulls())


def launch_gaps(
    gaps: pl.DataFrame, synchronising: pl.DataFrame, others: pl.DataFrame = _NO_CALLS
) -> pl.DataFrame:
    """Select the gaps that ended because the host launched something.

    When such a gap began nothing was queued for the device: the launch call of the event that ended
    the gap had not returned. That event started at most :data:`PROMPT_NS` after its call, so it
    waited for nothing else, and the gap lasted at most :data:`LONG_NS`: longer gaps have another
    cause, and so have those that other calls fill.

    Args:
        gaps: rows of :func:`device_gaps`.
        synchronising: start, end of calls in which the host waited for the device.
        others: rows of :func:`other_calls`.

    Returns:
        device, start, end, launch, synchronised (whether the host was in such a call during it);
        by device and start.
    """
    queued_late = pl.col("launch_end") >= pl.col("start")
    prompt = pl.col("end") - pl.col("launch_end") <= PROMPT_NS
    short = pl.col("end") - pl.col("start") <= LONG_NS
    chosen = gaps.filter(queued_late, prompt, short).drop("launch_end")
    if others.height:
        filled = intervals.overlap_with(chosen, others)["overlap"]
        chosen = chosen.filter(2 * filled < chosen["end"] - chosen["start"])
    synchronised = intervals.overlap_with(chosen, synchronising)["overlap"] > 0
    return chosen.with_columns(synchronised=synchronised).sort("device", "start")


def stretches(launched: pl.DataFrame, gaps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Return launch-bound stretches: maximal runs of launch gaps.

    The next gap of a run begins within :data:`LONG_NS` of the end of the one before. Runs of fewer
    than :data:`MIN_GAPS` gaps do not count, nor those in which the device was busy for more than
    :data:`MOSTLY_BUSY_FRAC`.

    Args:
        launched: rows of :func:`launch_gaps`.
        gaps: rows of :func:`device_gaps`.
        work: device, start.

    Returns:
        device, start, end, gaps, waiting_ns (in launch gaps), synchronised_ns (in gaps with the
        host in a synchronising call), pieces (number of device events that started in it), busy_ns;
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
    if runs.is_empty():
        return runs.with_columns(pieces=pl.lit(None, pl.UInt32), busy_ns=pl.lit(None, pl.Int64))
    # a gap is inside a run or outside, never both
    idle = _inside(gaps.select("device", length.alias("idle_ns"), ts="start"), runs)
    pieces = _inside(work.select("device", ts="start"), runs)
    summed = idle.group_by("interval").agg(pl.col("idle_ns").sum())
    counted = pieces.group_by("interval").agg(pieces=pl.len())
    numbered = runs.with_row_index("interval")
    for more in (summed, counted):
        numbered = numbered.join(more, on="interval", how="left", maintain_order="left")
    measured = numbered.with_columns(busy_ns=length - pl.col("idle_ns")).drop("interval", "idle_ns")
    return measured.filter(pl.col("busy_ns") <= MOSTLY_BUSY_FRAC * length)


def waiting_for(calls: pl.DataFrame, gaps: pl.DataFrame, stretches: pl.DataFrame) -> pl.Series:
    """Return the wait in ns for each launch call in the gaps of stretches that it ended.

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
    joined = calls[["launch"]].join(waiting, on="launch", how="left", maintain_order="left")
    return joined["waiting_ns"].fill_null(0)


def most_launched_in(
    stretches: pl.DataFrame, calls: pl.DataFrame, places: dict[str, pl.Series]
) -> pl.DataFrame:
    """Add to each stretch the place with most of its launches.

    Args:
        stretches: rows of :func:`stretches`.
        calls: rows of :func:`~traceanalyzer.analyzers.launches.calls.launch_calls`.
        places: for each column to add, the name of each call's place, or null.
    """
    if stretches.is_empty():
        return stretches.with_columns(pl.lit(None, pl.String).alias(column) for column in places)
    inside = _inside(calls.select("device", ts="start", **places), stretches)
    placed = stretches.with_row_index("interval")
    for column in places:
        counts = inside.drop_nulls(column).group_by("interval", column).agg(n=pl.len())
        most = (
            counts.with_columns(pl.col(column).cast(pl.String))
            .sort("n", column, descending=[True, False])
            .unique("interval", keep="first")
            .drop("n")
        )
        placed = placed.join(most, on="interval", how="left", maintain_order="left")
    return placed.drop("interval")


def _inside(points: pl.DataFrame, stretches: pl.DataFrame) -> pl.DataFrame:
    """Select the points in a stretch of their device, with its row number ``interval``."""
    return linking.label_by_interval(points, stretches, _DEVICE).drop_nulls("interval")


# --- synchronising calls -------------------------------------------------------------------


def synchronising_calls(
    runtime: pl.DataFrame, work: pl.DataFrame, names: Sequence[str]
) -> tuple[pl.DataFrame, int]:
    """Return calls in which the host waits for the device, by start, and the number left out.

    These are synchronising calls by name, and copies between host and device that returned after
    the copy had run: copies of pageable memory do, whatever the name of the call. Calls after the
    last launch are left out: only the end of the recording waits for them. Columns: event, pid,
    tid, call, start, end.

    Args:
        runtime: rows of :func:`~traceanalyzer.analyzers.launches.calls.runtime_calls`.
        work: rows of :func:`~traceanalyzer.analyzers.launches.calls.with_launches`.
        names: the distinct names of events.
    """
    synchronising = matching(names, SYNCHRONISING_CALLS)
    waited_for = pl.col("event").is_in(blocking_copies(work, names).implode())
    waiting = runtime.filter(pl.col("name").is_in(synchronising) | waited_for)
    chosen = waiting.filter(pl.col("start") <= work["launch_start"].max())
    return chosen.rename({"name": "call"}), waiting.height - chosen.height


def blocking_copies(work: pl.DataFrame, names: Sequence[str]) -> pl.Series:
    """Return the launch calls (rows of ``events``) of copies that the host waited for.

    These are copies between pageable memory and a device if the call returned after the copy had
    begun, and any copies between host and device if the call returned after the copy had ended.
    """
    across, pageable = (matching(names, [pattern]) for pattern in (_ACROSS, _PAGEABLE))
    is_copy = (pl.col("kind") == "gpu_memcpy") & pl.col("name").is_in(across)
    begun = pl.col("launch_end") > pl.col("start")
    blocks = (pl.col("launch_end") >= pl.col("end")) | (begun & pl.col("name").is_in(pageable))
    # calls without an end are null
    return work["launch"].filter(work.select((is_copy & blocks).fill_null(value=False)).to_series())


def costs(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Add the cost of each synchronising call: host_ns, idle_ns and idle_after_ns.

    host_ns is its duration, idle_ns the part of it in which no device of the rank was running
    anything, idle_after_ns the idle time after its end until the next device work or the next
    synchronising call. Time before the first and after the last device work is not idle.

    Args:
        calls: rows of :func:`synchronising_calls`.
        work: rows of :func:`~traceanalyzer.analyzers.launches.calls.with_launches`.
    """
    idle = work.select(start="rank_free", end="start").filter(pl.col("end") > pl.col("start"))
    measured = intervals.overlap_with(calls, idle).rename({"overlap": "idle_ns"})
    at = linking.label_by_interval(measured.select(ts="end"), idle)["interval"]
    waiting = pl.min_horizontal("idle_until", pl.col("start").shift(-1)) - pl.col("end")
    after = pl.when(pl.col("idle_until").is_null()).then(0).otherwise(waiting.clip(0))
    return measured.with_columns(
        host_ns=pl.col("end") - pl.col("start"), idle_until=idle["end"][at]
    ).with_columns(idle_after_ns=after)


def by_place(costs: pl.DataFrame, places: Mapping[str, pl.Series]) -> pl.DataFrame:
    """Sum the synchronising calls by name and by their place in the program.

    Args:
        costs: rows of :func:`costs`.
        places: operator (innermost), outer_operator, annotation and python (frame) of each call.

    Returns:
        call, operator (the outermost; after ``>`` the innermost, unless the outermost is an aten
        operator), annotation, python (a frame, of the user's code if there is one), n, host_ns,
        idle_ns, idle_after_ns.
    """
    named_places = costs.with_columns(
        operator=_path(places["outer_operator"], places["operator"]),
        annotation=places["annotation"],
        python=places["python"],
    )
    total = pl.col("host_ns", "idle_ns", "idle_after_ns").sum()
    summed = named_places.group_by(PLACE).agg(total, n=pl.len())
    return summed.with_columns(pl.col(PLACE).cast(pl.String))


def _path(outer: pl.Series, inner: pl.Series) -> pl.Series:
    """Return the outermost operator, with the innermost unless the outermost is specific."""
    names = pl.DataFrame({"outer": outer, "inner": inner}).cast(pl.String)
    # the outer one of crossing operators is not always known
    names = names.with_columns(pl.coalesce("outer", "inner").alias("outer"))
    specific = pl.col("outer").str.starts_with("aten::") | (pl.col("outer") == pl.col("inner"))
    both = pl.format("{} > {}", "outer", "inner")
    return names.select(pl.when(specific).then("outer").otherwise(both)).to_series()
