"""Rows of two runs side by side, as means over typical steps.

Typical are the steps whose time (mean over ranks and devices) lies in the middle half of all that
are no warm-up. Means over one set of steps add up, and no single odd step moves them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.comm_outliers.outliers import compare
from traceanalyzer.analyzers.common import kernel_names, names
from traceanalyzer.analyzers.common.device_work import PART_NAMES
from traceanalyzer.analyzers.common.display import by_part
from traceanalyzer.analyzers.diff import runs
from traceanalyzer.analyzers.gpu_idle.causes import BUSY, CAUSES, NAMES
from traceanalyzer.analyzers.steps.statistics import HOST_PARTS
from traceanalyzer.frames.numbering import numbered

_PLACE = ("rank", "source", "mark")


@dataclass(frozen=True)
class Basis:
    """What sums of a run are divided by.

    Attributes:
        places: rank, source and mark of each step that counts, and ``at``, which step it is; None
            where the recording counts as a whole.
        devices: devices (or main threads) in each step.
        ranks: ranks in each step.
        typical: which steps are typical.
    """

    places: pl.DataFrame | None
    devices: runs.Floats
    ranks: runs.Floats
    typical: npt.NDArray[np.bool_]


def by_step(run: runs.Run) -> Basis:
    """The steps of a run that has some."""
    rows = run.counted.sort("number")
    at = rows["number"].rank("dense").cast(pl.Int64) - 1
    held = rows.select(*_PLACE, "duration_ns").with_columns(at=at)
    places = held.select(*_PLACE, "at").unique()
    each = held.group_by("at").agg(pl.col("duration_ns").mean(), n=pl.len()).sort("at")
    return Basis(
        places=places,
        devices=each["n"].to_numpy().astype(np.float64),
        ranks=places.group_by("at").len().sort("at")["len"].to_numpy().astype(np.float64),
        typical=_middle_half(each["duration_ns"].to_numpy()),
    )


def as_whole(run: runs.Run, work: float) -> Basis:
    """A recording whose steps are not known, or not comparable; it holds so much work."""
    devices = run.kernels.devices.height if run.kernels else 0
    units = run.idle.units.height if run.idle else 0
    return Basis(
        places=None,
        devices=np.array([work * (devices or units or 1)]),
        ranks=np.array([work * run.ranks]),
        typical=np.array([True]),
    )


def _middle_half(times: runs.Floats) -> npt.NDArray[np.bool_]:
    ordered, off = np.sort(times), times.size // 4
    found: npt.NDArray[np.bool_] = (times >= ordered[off]) & (times <= ordered[-1 - off])
    return found


def usual(
    rows: pl.DataFrame, keys: Sequence[str], column: str, basis: Basis, each: runs.Floats
) -> pl.DataFrame:
    """What a typical step has of each row.

    Args:
        rows: ``keys``, ``column`` (whole numbers) and where each belongs: rank, source, mark.
        keys: what tells rows apart.
        column: what is summed up.
        basis: of the run.
        each: how many devices or ranks there are in each step: sums are divided by it.

    Returns:
        ``keys``, ``value`` (a mean over typical steps), ``error`` (its standard error, null for
        fewer than two steps). Rows that no step has are left out.
    """
    placed = (
        rows.with_columns(at=pl.lit(0, pl.Int64))
        if basis.places is None
        else rows.join(basis.places, on=_PLACE, nulls_equal=True)
    ).drop_nulls(column)
    sums = placed.group_by(*keys, "at").agg(pl.col(column).sum()).sort(*keys, "at")
    told = sums.select(keys)
    first, number = numbered(told.get_columns())
    values = np.zeros((len(first), each.size))
    values[number, sums["at"].to_numpy()] = sums[column].to_numpy()
    values /= each
    error = pl.Series("error", runs.standard_errors(values)).fill_nan(None)
    value = pl.Series("value", values[:, basis.typical].mean(axis=1))
    return told[first].hstack([value, error])


IDLE = "idle_ns"
_CAUSES = {f"{cause}_ns": NAMES[cause] for cause in CAUSES}
_ON_DEVICE = {name: said for name, said in PART_NAMES.items() if name != IDLE}
_ON_THREAD = {f"{BUSY}_ns": "operators", **_CAUSES}


@dataclass(frozen=True)
class Pair:
    """Two runs to compare.

    Attributes:
        both: the run compared with, and the run looked at.
        bases: what the sums of each are divided by.
        least: the least change that counts.
    """

    both: tuple[runs.Run, runs.Run]
    bases: Sequence[Basis]
    least: float


# --- parts of a step -------------------------------------------------------------------------


def parts(pair: Pair) -> pl.DataFrame | None:
    """What the time is made of: part, before_ns, after_ns, change_ns ...; None if not known alike.

    In steps that is the time of a step; else a device's or a main thread's span.
    """
    labels = _labels(pair)
    if not labels:
        return None
    found = [
        usual(_long(run, labels, basis), ["part"], "time_ns", basis, basis.devices)
        for run, basis in zip(pair.both, pair.bases, strict=True)
    ]
    return _beside(found[0], found[1], ["part"], pair.least)


def _labels(pair: Pair) -> dict[str, str]:
    """The columns that hold parts in both runs, and what to call them."""
    if pair.bases[0].places is None:
        idle = [run.idle for run in pair.both if run.idle]
        if len(idle) < 2 or idle[0].on_host != idle[1].on_host:
            return {}
        return {**_ON_THREAD, f"{BUSY}_ns": "operators" if idle[0].on_host else "device busy"}
    known = [_known(run.counted) for run in pair.both]
    for needed, labels in (
        ({"compute_ns", "unknown_ns"}, {**_ON_DEVICE, **_CAUSES}),
        ({"compute_ns"}, PART_NAMES),
        ({"unknown_ns"}, _ON_THREAD),
        ({"forward_ns", "backward_ns"}, HOST_PARTS),
    ):
        if any("compute_ns" in columns for columns in known) and "compute_ns" not in needed:
            return {}
        if all(needed <= columns for columns in known):
            return labels
    return {}


def _known(rows: pl.DataFrame) -> set[str]:
    return {name for name in rows.columns if rows[name].null_count() < rows.height}


def _long(run: runs.Run, labels: dict[str, str], basis: Basis) -> pl.DataFrame:
    """One row a part of each row of the run's steps, or of its devices."""
    if basis.places is not None:
        long = by_part(run.counted, list(_PLACE), labels)
    else:
        long = by_part(run.idle.units if run.idle else pl.DataFrame(), [], labels)
    return long.with_columns(pl.col("time_ns").cast(pl.Int64))


# --- kernels and operators -------------------------------------------------------------------


def kernels(pair: Pair) -> pl.DataFrame | None:
    """Kernels, copies and sets by name."""
    keys = ["name", "family"]
    found = _summed(pair, "work", keys, "total_ns")
    if found is None:
        return None
    short = kernel_names.short_names(found["name"].drop_nulls().unique().to_list())
    named = names.mapped(found["name"], short.__getitem__).alias("kernel")
    return found.insert_column(0, named)


def families(pair: Pair) -> pl.DataFrame | None:
    """The same by family."""
    return _summed(pair, "work", ["family"], "total_ns")


def operators(pair: Pair, side: str) -> pl.DataFrame | None:
    """Operators by what they take themselves on ``host`` or ``device``."""
    found = _summed(pair, "operators", ["name", "kind"], f"{side}_ns")
    return None if found is None or found.is_empty() else found


def _summed(pair: Pair, table: str, keys: list[str], column: str) -> pl.DataFrame | None:
    """The rows of both runs' tables, with how often they ran, a step."""
    found = []
    for run, basis in zip(pair.both, pair.bases, strict=True):
        rows: pl.DataFrame | None = getattr(run, table)
        if rows is None:
            return None
        each = basis.devices if table == "work" else basis.ranks
        rows = rows.drop_nulls(column)
        times = usual(rows, keys, column, basis, each)
        counts = usual(rows, keys, "n", basis, each).select(*keys, n="value")
        found.append(times.join(counts, on=keys, nulls_equal=True, maintain_order="left"))
    return _beside(found[0], found[1], keys, pair.least, more=("n",))


def _beside(
    before: pl.DataFrame,
    after: pl.DataFrame,
    keys: Sequence[str],
    least: float,
    more: Sequence[str] = (),
) -> pl.DataFrame:
    """Rows of both runs by their keys, judged; the largest change first."""
    told = {"value": "ns", "error": "error", **{name: name for name in more}}
    sides = [
        frame.rename({name: f"{side}_{suffix}" for name, suffix in told.items()})
        for frame, side in ((before, "before"), (after, "after"))
    ]
    # a row that a run does not have is 0 in each of its steps, without any spread
    steps = all(frame["error"].null_count() < frame.height for frame in (before, after))
    errors = [pl.col(f"{side}_error") for side in ("before", "after")]
    if steps:
        errors = [error.fill_null(0) for error in errors]
    rows = sides[0].join(sides[1], on=keys, how="full", coalesce=True, nulls_equal=True)
    whole = [pl.col(f"{side}_ns").round().cast(pl.Int64) for side in ("before", "after")]
    spread = runs.noise_of(*errors).round().cast(pl.Int64).alias("noise_ns")
    counts = [f"{side}_{name}" for name in more for side in ("before", "after")]
    used = pl.max_horizontal("before_ns", "after_ns") > 0
    found = runs.judged(rows.with_columns(*whole, spread).filter(used), "ns", least)
    found = found.with_columns(_whole_numbers(found, counts))
    shown = ["before_ns", "after_ns", "change_ns", "change_frac", "noise_ns", "state", *counts]
    return _largest_first(found.select(*keys, *shown), keys)


def _whole_numbers(frame: pl.DataFrame, columns: Sequence[str]) -> list[pl.Expr]:
    """The columns as whole numbers where all are."""
    whole = all((frame[name].drop_nulls() % 1 == 0).all() for name in columns)
    return [pl.col(name).cast(pl.Int64) for name in columns] if whole else []


def _largest_first(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """By change, then by size."""
    order = [pl.col("change_ns").abs(), pl.max_horizontal("before_ns", "after_ns"), *keys]
    return frame.sort(order, descending=[True, True, *(False for _ in keys)], nulls_last=True)


# --- collectives -----------------------------------------------------------------------------

_WHAT = ["collective", "dtype", "message_bytes", "group_size", "kernel"]


def collectives(pair: Pair) -> pl.DataFrame | None:
    """Medians of each kind of collective, as ``comm-outliers --baseline`` compares them."""
    found = [run.comm for run in pair.both if run.comm is not None]
    if len(found) < 2:
        return None
    both = compare(found[1].groups, found[0].groups)
    before, after = (_kinds(comm.instances) for comm in found)
    rows = before.join(
        after, on=_WHAT, how="full", coalesce=True, nulls_equal=True, suffix="_after"
    ).join(_as_text(both), on=_WHAT, how="left", nulls_equal=True, suffix="_both")
    noise = runs.noise_of(pl.col("error"), pl.col("error_after"))
    medians = rows.select(
        *_WHAT,
        before_ns=pl.coalesce("baseline_ns", "usual_ns"),
        after_ns=pl.coalesce("median_ns", "usual_ns_after"),
        noise_ns=noise.round().cast(pl.Int64),
        before_n="n",
        after_n="n_after",
    )
    judged = runs.judged(medians, "ns", pair.least)
    shown = ["before_ns", "after_ns", "change_ns", "change_frac", "noise_ns", "state"]
    return _largest_first(judged.select(*_WHAT, *shown, "before_n", "after_n"), _WHAT)


def _kinds(instances: pl.DataFrame) -> pl.DataFrame:
    """Kinds of collective of one run: n, their median ``usual_ns`` and its standard error.

    A collective that eight ranks run is one measurement, not eight.
    """
    sized = pl.col("message_bytes").is_not_null()
    told = _as_text(instances).with_columns(
        pl.when(sized).then("dtype").alias("dtype"),
        pl.when(sized).then("group_size").alias("group_size"),
        pl.when(~sized).then("kernel").alias("kernel"),
    )
    rows = []
    for key, own in told.partition_by(_WHAT, as_dict=True).items():
        values = own["duration_ns"].to_numpy().astype(np.float64)
        count = own.height // own["rank"].n_unique()
        (error,) = runs.standard_errors(values[None, :], count)
        rows.append((*key, own.height, round(float(np.median(values))), error))
    types = {name: told.schema[name] for name in _WHAT}
    types |= {"n": pl.Int64(), "usual_ns": pl.Int64(), "error": pl.Float64()}
    return pl.DataFrame(rows, schema=types, orient="row").with_columns(
        pl.col("error").fill_nan(None)
    )


def _as_text(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("collective", "dtype", "kernel").cast(pl.String))
