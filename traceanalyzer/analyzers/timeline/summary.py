"""A short timeline from the results of idle time and communication: the extreme devices only."""

from collections.abc import Collection, Mapping
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers import arrivals
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common import display
from traceanalyzer.analyzers.common.device_work import WORK_KIND
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.activities import idle_name
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.timeline.states import (
    NAMES,
    NOT_LOST,
    OF_CAUSE,
    STATE,
    lost_states,
    with_peers,
    with_waits,
)
from traceanalyzer.drawings import Lanes
from traceanalyzer.frames import intervals

_KEYS = ["rank", "path", "device"]
_LANE = ["lane"]
#: Devices with most idle time; the median one follows. So many are all shown.
_WORST, _FEW = 2, 4
_INTERVAL = {"lane": pl.UInt32, "start": pl.Int64, "end": pl.Int64}
#: Empty events, gaps and marks.
_SCHEMAS: tuple[dict[str, Any], ...] = (
    {
        **_INTERVAL, "stream": pl.Int64, "name": pl.String, "work_kind": WORK_KIND,
        "bytes": pl.Int64, "operator": pl.String, "collective": pl.String, "count": pl.UInt32,
    },
    {**_INTERVAL, "before": pl.String, "after": pl.String, "host": pl.String},
    {**_INTERVAL, "number": pl.UInt32, "label": pl.String},
)  # fmt: skip


def summary(
    idle: GpuIdle, compared: CommOutliers | None, ranks: Collection[int] = ()
) -> Lanes | None:
    """Return a timeline of the devices with most idle time, the median one and those of findings.

    Args:
        idle: idle time with :attr:`GpuIdle.lost`.
        compared: the comparison of collectives, if communication was recorded.
        ranks: the ranks of findings, whose devices are shown too.

    Returns:
        A drawing without events and marks; None if devices cannot be placed on one axis.
    """
    units = idle.units.filter(pl.col("end") > pl.col("start"))
    if idle.lost is None or units.is_empty() or not units.select(_KEYS).is_unique().all():
        return None
    shifts = _shifts(units, compared)
    if shifts is None:
        return None
    chosen, left_out = _chosen(units, ranks)
    shifted = chosen.join(shifts, on="path", maintain_order="left")
    shifted = shifted.with_columns(pl.col("start", "end") + pl.col("shift"))
    zero = shifted.select(pl.col("start").min() - pl.col("at_ns").min()).item()
    placed = shifted.with_columns(pl.col("start", "end", "shift") - zero)
    lanes = placed.group_by("lane", "on", "lost_frac", maintain_order=True).agg(
        pl.col("start").min(), pl.col("end").max(), host=pl.lit(None, pl.String)
    )
    lost = idle.lost.join(placed, on=_KEYS, how="semi", nulls_equal=True)
    events, gaps, marks = (pl.DataFrame(schema=schema) for schema in _SCHEMAS)
    return Lanes(
        name="timeline",
        title="Timeline",
        lanes=lanes,
        states=_states(placed, lost, compared),
        names={
            **NAMES,
            "compute": "busy",
            **_communication(idle, compared),
            **_names_of_causes(lost, idle.names),
        },
        steps=_placed(placed, idle.steps).select("lane", "step", "start", "end"),
        events=events,
        gaps=gaps,
        marks=marks,
        left_out=left_out,
    )


def _communication(idle: GpuIdle, compared: CommOutliers | None) -> dict[str, str]:
    """Return the names of the states of collectives; of those on the host, the device is idle."""
    if idle.lost is None or causes.EXPOSED not in idle.lost["cause"]:
        waiting = idle_name(NAMES["waiting"])
        return {"transfer": idle_name(causes.IN_COLLECTIVES), "waiting": waiting}
    included = "communication, wait included"
    return {"transfer": included if compared is None else compared.transfer_name}


def _shifts(units: pl.DataFrame, compared: CommOutliers | None) -> pl.DataFrame | None:
    """Return path and shift of each file onto one axis; None if the files have no common clock."""
    paths = units["path"].unique()
    if paths.len() == 1:
        return pl.DataFrame({"path": paths, "shift": [0]})
    if compared is None or not compared.totals.n_matched:
        return None
    offset = arrivals.offset_of(pl.col("rank"), arrivals.applied(compared.clocks))
    known = compared.instances.select("path", shift=pl.col("shift_ns") - offset).unique("path")
    return known if paths.is_in(known["path"].implode()).all() else None


def _chosen(units: pl.DataFrame, ranks: Collection[int]) -> tuple[pl.DataFrame, int]:
    """Return the units to show with lane, on (label) and lost_frac, and how many are left out.

    Several recordings of one device of a rank are one lane. Time in which a main thread waits for
    other ranks is not lost there, as on devices.
    """
    units = units.with_columns(file=pl.when(pl.col("rank").is_null()).then("path"))
    key = ["rank", "device", "file"]
    used = (pl.col("busy_ns") + pl.col(f"{causes.PEER}_ns")).sum()
    devices = units.group_by(key, maintain_order=True).agg(
        pl.col("path").first(), lost_frac=1 - used / (pl.col("end") - pl.col("start")).sum()
    )
    devices = devices.with_columns(display.places(devices)).with_row_index("lane")
    ranked = devices.sort("lost_frac", descending=True, maintain_order=True)["lane"].to_list()
    visible = {*ranked[:_WORST], ranked[len(ranked) // 2]} if len(ranked) > _FEW else ranked
    is_visible = pl.col("lane").is_in(visible) | pl.col("rank").is_in(ranks)
    kept = devices.filter(is_visible).drop("path")
    chosen = units.join(kept, on=key, nulls_equal=True, maintain_order="left")
    return chosen.sort("lane", "start"), devices.height - kept.height


def _placed(units: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the units, on the axis."""
    known = units.select(*_KEYS, "lane", "shift")
    joined = rows.drop("lane", strict=False).join(known, on=_KEYS, nulls_equal=True)
    return joined.with_columns(pl.col("start", "end") + pl.col("shift")).sort("lane", "start")


def _states(units: pl.DataFrame, lost: pl.DataFrame, compared: CommOutliers | None) -> pl.DataFrame:
    """Return the states of the units with ``peer``: what is not lost is compute."""
    states = lost_states(_placed(units, lost), _LANE)
    busy = intervals.subtract(units.select("lane", "start", "end"), states, _LANE).select(
        "lane", "start", "end", state=pl.lit("compute", STATE), cause=pl.lit(None, pl.String)
    )
    states = pl.concat([busy, states])
    order = intervals.stable_order(*(states[one].to_numpy() for one in ("lane", "start")))
    states = states[order]  # faster than a sort
    if compared is None or compared.arrivals.is_empty():
        return states.with_columns(peer=pl.lit(None, pl.Int32))
    waits = with_peers(compared.on_devices(units), units)
    waits = waits.with_columns(start="ts", end=pl.col("ts") + pl.col("wait_ns"))
    waits = _placed(units, waits).select("lane", "start", "end", pl.col("peer").cast(pl.Int32))
    return with_waits(states, waits, _LANE)


#: Causes with a smaller share of their state are not named.
_LEAST = 0.05


def _names_of_causes(lost: pl.DataFrame, names: Mapping[str, str]) -> dict[str, str]:
    """Return the label of each idle state: the causes that it has, that with most time first."""
    length = (pl.col("end") - pl.col("start")).sum()
    sums = lost.group_by(pl.col("cause").cast(pl.String)).agg(ns=length)
    named: dict[str, list[tuple[str, int]]] = {}
    for cause, ns in sums.sort("ns", "cause", descending=[True, False]).iter_rows():
        state = OF_CAUSE.get(cause, "idle")
        if cause in causes.NAMES and state not in NOT_LOST:
            named.setdefault(state, []).append((names[cause], ns))
    return {
        state: idle_name(*(name for name, ns in of if ns >= _LEAST * sum(ns for _, ns in of)))
        for state, of in named.items()
    }
