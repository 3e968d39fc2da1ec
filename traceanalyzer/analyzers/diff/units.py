"""Device work of one rank in units that a role consists of: what one operator call launched.

A unit is the kernels, copies and memsets that one call of an operator launched, if they are few;
else, and without operators, it is one of them. Units are in the order of their launch calls, those
of a graph replay in the order of their start. A place is a unit with the units before and after it
on its stream: the same kernel at two positions of a layer is two places.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.common.launching import launch_rows
from traceanalyzer.analyzers.common.names import mapped
from traceanalyzer.analyzers.kernels import compute as kernels
from traceanalyzer.analyzers.operators import call_tree
from traceanalyzer.analyzers.operators.compute import Excerpt
from traceanalyzer.frames import intervals, nesting
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.trace import Trace

Hashes = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

#: An operator call with more kernels runs a part of the program: each kernel is a unit.
_MOST_KERNELS = 8
#: With more places, units that run in varying order make new ones: neighbors are ignored.
_MOST_PLACES = 20_000
_SPACE = re.compile(r"\s+")
#: Separator of the names of a unit's kernels.
BETWEEN = "\n"
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Units:
    """The places of one rank.

    Attributes:
        places: ``place`` and ``unit`` (hashes with and without the neighbors), ``operator`` and
            ``shapes`` (null if unknown), ``names`` of its kernels, ``family`` of the longest one,
            ``order``: in a typical step, then elsewhere.
        times: by step: ``mark`` (null outside of any step), ``place``, ``n``, ``total_ns``.
    """

    places: pl.DataFrame
    times: pl.DataFrame


def measure(
    trace: Trace,
    work: pl.DataFrame,
    part: kernels.Part,
    excerpt: Excerpt | None,
    typical: int | None,
) -> Units:
    """Return the places of one rank.

    Args:
        trace: its trace.
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`, with
            ``mark``, the start of the step.
        part: the kernels of the same work, in the same order.
        excerpt: its operators; None without any.
        typical: the mark of a typical step; None without steps.
    """
    rows = _in_order(trace, work, part, excerpt)
    first = np.flatnonzero(_begins(rows))
    sizes = np.diff(np.append(first, rows.height))
    names = part.kernels["name"].cast(pl.String).fill_null("")
    hashes = _hashes(rows, names, first, sizes)
    places = _with_neighbors(hashes, rows[first])
    if np.unique(places).size > _MOST_PLACES:
        places = hashes
    unit = np.repeat(np.arange(first.size), sizes)
    total = pl.DataFrame({"unit": unit, "ns": rows["length_ns"]}).group_by("unit").agg(pl.sum("ns"))
    units = rows[first].select("operator", "shapes", "mark").with_columns(
        pl.Series("first", first), pl.Series("size", sizes), pl.Series("place", places),
        pl.Series("unit", hashes), total.sort("unit")["ns"].alias("total_ns"),
    )  # fmt: skip
    sums = units.group_by("mark", "place").agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("total_ns").sum()
    )
    return Units(_described(units, rows, names, part.kernels["family"], typical), sums)


def _in_order(
    trace: Trace, work: pl.DataFrame, part: kernels.Part, excerpt: Excerpt | None
) -> pl.DataFrame:
    """Return device work in order of launch.

    Returns:
        device, stream, mark, kernel, length_ns, and the operator call: call, operator, shapes.
    """
    launch = launch_rows(trace, work)
    known = launch != nesting.ROOT
    at = work["start"].to_numpy().copy()
    if 2 * known.sum() > known.size:
        at[known] = trace.events["ts"].to_numpy()[launch[known]]
    rows = work.select("device", "stream", "mark").hstack(part.work[["kernel", "length_ns"]])
    return rows.hstack(_calls(work.height, excerpt))[np.argsort(at, kind="stable")]


def _calls(height: int, excerpt: Excerpt | None) -> pl.DataFrame:
    """Return the operator call of each piece of work: call, operator, shapes; null if unknown."""
    call = np.full(height, -1, np.int64)
    operator = shapes = pl.Series([None] * height, dtype=pl.String)
    if excerpt is not None:
        tree = call_tree.build(excerpt.calls)
        caller = call_tree.callers(excerpt.work, tree)
        count = np.bincount(caller[caller != nesting.ROOT], minlength=tree.height)
        is_unit = (tree["kind"] == "cpu_op").to_numpy() & (count <= _MOST_KERNELS)
        known = (caller != nesting.ROOT) & is_unit[caller]
        call[known] = caller[known]
        number = intervals.nullable("call", call, known)
        operator = tree["name"].cast(pl.String).gather(number)
        if "input_dims" in tree:
            shapes = tree["input_dims"].cast(pl.String).gather(number)
            shapes = mapped(shapes, lambda text: _SPACE.sub("", text).replace(",", ", "))
    return pl.DataFrame({"call": call, "operator": operator, "shapes": shapes})


def _begins(rows: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which rows are the first one of a unit."""
    call = rows["call"].to_numpy()
    begins = np.ones(rows.height, np.bool_)
    begins[1:] = (call[1:] != call[:-1]) | (call[1:] < 0)
    return begins


def _hashes(rows: pl.DataFrame, names: pl.Series, first: Rows, sizes: Rows) -> Hashes:
    """Return the hash of the operator, shapes and names of each unit."""
    of_name = names.hash().to_numpy()[rows["kernel"].to_numpy()]
    place = (np.arange(rows.height) - np.repeat(first, sizes)).astype(np.uint64)
    summed = np.add.reduceat(of_name * (np.uint64(2) * place + np.uint64(1)), first)
    of_call = rows[first].select("operator", "shapes").hash_rows().to_numpy()
    return np.asarray(summed * _FACTOR + of_call, np.uint64)


def _with_neighbors(hashes: Hashes, units: pl.DataFrame) -> Hashes:
    """Return the hash of each unit and those before and after it on its stream in its step."""
    lane = numbered([units["device"], units["stream"], units["mark"]])[1]
    order = np.argsort(lane, kind="stable")
    ordered, lanes = hashes[order], lane[order]
    same = np.zeros(hashes.size + 1, np.bool_)
    same[1:-1] = lanes[1:] == lanes[:-1]
    before = np.where(same[:-1], np.roll(ordered, 1), np.uint64(0))
    after = np.where(same[1:], np.roll(ordered, -1), np.uint64(0))
    places = np.empty_like(hashes)
    places[order] = (ordered * _FACTOR + before) * _FACTOR + after
    return places


def _described(
    units: pl.DataFrame,
    rows: pl.DataFrame,
    names: pl.Series,
    families: pl.Series,
    typical: int | None,
) -> pl.DataFrame:
    """Return one row per place, in the order of a typical step."""
    elsewhere = pl.col("mark").ne_missing(pl.lit(typical, pl.Int64))
    one = units.sort(elsewhere, maintain_order=True).unique(
        "place", keep="first", maintain_order=True
    )
    first, size = one["first"].to_numpy(), one["size"].to_numpy()
    unit = np.repeat(np.arange(first.size), size)
    at = np.arange(unit.size) + np.repeat(first - np.cumsum(size) + size, size)
    kernel = rows["kernel"].gather(at)
    members = pl.DataFrame({
        "unit": unit, "name": names.gather(kernel), "family": families.gather(kernel),
        "length_ns": rows["length_ns"].gather(at),
    })  # fmt: skip
    of_units = members.group_by("unit", maintain_order=True).agg(
        pl.col("name").str.join(BETWEEN),
        pl.col("family").get(pl.col("length_ns").arg_max().fill_null(0)),
    )
    return one.select(
        "place", "unit", "operator", "shapes", names=of_units["name"],
        family=of_units["family"].cast(pl.String), order=pl.int_range(pl.len()),
    )  # fmt: skip
