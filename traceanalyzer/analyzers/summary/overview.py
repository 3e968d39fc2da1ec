"""The ranks side by side: what each answer knows of one."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from traceanalyzer.analyzers.comm_outliers import CommOutliers
from traceanalyzer.analyzers.gpu_idle import GpuIdle
from traceanalyzer.analyzers.info import Info
from traceanalyzer.analyzers.memory import Memory
from traceanalyzer.analyzers.overlap import Overlap
from traceanalyzer.analyzers.places import places
from traceanalyzer.analyzers.steps import Steps
from traceanalyzer.result import Result, Table

_KEYS = ("rank", "path")

#: Columns and their headings; those of which nothing is known are left out.
_SHOWN = {
    "on": "rank",
    "format": "format",
    "host": "host",
    "events": "events",
    "lost": "lost",
    "steps": "steps",
    "median_ns": "median step",
    "busy_frac": "busy",
    "idle_frac": "idle",
    "dataloading_frac": "waiting for data",
    "compute_frac": "compute",
    "exposed_frac": "exposed communication",
    "wait_ns": "waited for others",
    "imposed_ns": "others waited for it",
    "peak_bytes": "peak memory",
}


def overview(answers: Mapping[str, Result]) -> Table:
    """A row a file and rank, with what is known of it.

    Columns: ``on`` (the rank, or the file's name), rank, path, format, host, events, lost (events
    that the file lost), steps, median_ns, busy_frac, idle_frac and dataloading_frac (of the time of
    its devices), compute_frac and exposed_frac (exposed communication), wait_ns (for others),
    imposed_ns (that others waited for it), peak_bytes.
    """
    info = answers["info"]
    if not isinstance(info, Info):
        raise TypeError("the answer of info is that of another analysis")
    rows = info.files.select(*_KEYS, "format", "host").with_columns(info.contents["events", "lost"])
    for result in answers.values():
        known = _of(result)
        if known is not None:
            rows = rows.join(
                known, on=list(_KEYS), how="left", nulls_equal=True, maintain_order="left"
            )
    found = rows.with_columns(_names(rows))
    empty = {name for name in found.columns if found[name].null_count() == found.height}
    if not (found["lost"].sum() or 0):
        empty.add("lost")
    shown = {name: label for name, label in _SHOWN.items() if name in {*found.columns} - empty}
    shown["on"] = "rank" if found["rank"].null_count() < found.height else "file"
    return Table("overview", "Ranks", found, shown)


def _names(rows: pl.DataFrame) -> pl.Series:
    """The rank, where files of ranks are told apart by it; of files without one the name."""
    ranked = rows["rank"].is_not_null()
    own, others = (
        places(part.select(*_KEYS)).cast(pl.String)
        for part in (rows.filter(ranked), rows.filter(~ranked))
    )
    number = pl.int_range(pl.len())
    order = pl.concat([rows.select(number).filter(ranked), rows.select(number).filter(~ranked)])
    return pl.concat([own, others]).gather(order.to_series().arg_sort()).alias("on")


def _of(result: Result) -> pl.DataFrame | None:
    """What an answer knows of each rank: the keys, and columns of :data:`_SHOWN`."""
    if isinstance(result, Steps):
        return result.ranks.select(*_KEYS, "steps", "median_ns")
    if isinstance(result, GpuIdle):
        span = (pl.col("end") - pl.col("start")).sum()
        busy, loading = pl.col("busy_ns").sum(), pl.col("dataloading_ns").sum()
        return result.units.group_by(_KEYS).agg(
            busy_frac=pl.when(span > 0).then(busy / span),
            idle_frac=pl.when(span > 0).then(1 - busy / span),
            dataloading_frac=pl.when(span > 0).then(loading / span),
        )
    if isinstance(result, Overlap):
        span = pl.col("span_ns").sum()
        compute, exposed = (pl.col(f"{n}_ns").sum() for n in ("compute", "exposed_communication"))
        return result.devices.group_by(_KEYS).agg(
            compute_frac=pl.when(span > 0).then(compute / span),
            exposed_frac=pl.when(span > 0).then(exposed / span),
        )
    if isinstance(result, CommOutliers):
        paths = result.instances.select(*_KEYS).unique()
        own = result.ranks.select("rank", "wait_ns", "imposed_ns")
        return paths.join(own, on="rank", nulls_equal=True)
    if isinstance(result, Memory):
        return result.devices.group_by(_KEYS).agg(pl.col("peak_bytes").max())
    return None
