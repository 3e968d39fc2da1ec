"""Tables and charts of annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.result import Chart, Table

if TYPE_CHECKING:
    from traceanalyzer.analyzers.annotations.result import Annotations

_BARS = 15

_DEVICE = {
    "projected_ns": "projected", "n": "launched", "device_ns": "device work",
    "device_frac": "of all", "own_device_ns": "directly",
}  # fmt: skip
_HOST = {
    "ranges": "n", "host_ns": "host", "self_ns": "self", "mean_ns": "mean", "median_ns": "median",
    "min_ns": "min", "max_ns": "max",
}  # fmt: skip
_FIRST = ("ranges", "host_ns", "self_ns")

#: The pieces of a bar.
_PARTS = ("itself", "annotations in it")

_OUTER = {"rank": "rank", "path": "file", "domain": "domain"}

_MISSING = {"name": "(no name)", "domain": "(default)"}


def tables(result: Annotations) -> tuple[Table, ...]:
    """Annotations with their device work, host times, and ranks where there are several."""
    rows = result.annotations
    keys = _keys(result)
    by_host = rows.sort("host_ns", *keys, descending=[True, *(False for _ in keys)])
    host = Table("host", "Host time", by_host, {**keys, **_HOST}, missing=_MISSING)
    if not result.work.n:
        return (host,)
    first = {name: _HOST[name] for name in _FIRST}
    found = [
        Table("annotations", "Annotations", rows, {**keys, **first, **_DEVICE}, missing=_MISSING),
        Table("host", "Host time", by_host, {**keys, **_HOST}, detail=True, missing=_MISSING),
    ]
    if result.ranks.height > 1:
        found.append(_ranks(result.ranks))
    return tuple(found)


def _keys(result: Annotations) -> dict[str, str]:
    """The columns that tell rows apart, without a domain or rank that is always the same."""
    rows = result.annotations
    outer = [name for name in _OUTER if name in rows.columns and rows[name].n_unique() > 1]
    return {**{name: _OUTER[name] for name in outer}, "name": "annotation"}


def _ranks(ranks: pl.DataFrame) -> Table:
    known = ranks["rank"].null_count() < ranks.height
    shown = {
        **({"rank": "rank"} if known else {"path": "file"}),
        "ranges": "annotations",
        "n": "device work",
        "device_ns": "total",
        "inside_n": "in annotations",
        "inside_ns": "total of these",
        "inside_frac": "share",
    }
    return Table("ranks", "Ranks", ranks, shown)


def charts(result: Annotations) -> tuple[Chart, ...]:
    """Bars of the annotations with most device work, and of those with most host time."""
    host = _chart(result, "host", "Host time by annotation", "host_ns", "self_ns")
    if not result.work.n:
        return (host,)
    title = "Device work by annotation that launched it"
    return (_chart(result, "device", title, "device_ns", "own_device_ns"), host)


def _chart(result: Annotations, name: str, title: str, whole: str, own: str) -> Chart:
    """Bars of a sum, in two pieces: an annotation's own part of it, and the rest."""
    sums = result.annotations.group_by("name").agg(pl.col(whole, own).sum())
    rows = sums.filter(pl.col(whole) > 0).sort(whole, "name", descending=[True, False]).head(_BARS)
    bars = rows.with_row_index("bar").with_columns(pl.col("name").fill_null(_MISSING["name"]))
    pieces = [
        bars.select(
            "bar", "name", start_ns=pl.lit(0, pl.Int64), end_ns=own, part=pl.lit(_PARTS[0])
        ),
        bars.select("bar", "name", start_ns=own, end_ns=whole, part=pl.lit(_PARTS[1])),
    ]
    filled = pl.concat(pieces).filter(pl.col("end_ns") > pl.col("start_ns"))
    part = pl.col("part").cast(pl.Enum(_PARTS))
    return Chart(
        name=name,
        title=title,
        mark="span",
        frame=filled.sort("bar", "start_ns").drop("bar").with_columns(part),
        x="end_ns",
        x2="start_ns",
        y="name",
        x_label="total",
        y_label="",
        color="part",
    )
