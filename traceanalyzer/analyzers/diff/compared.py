"""Rows of two runs joined and compared, as means over typical steps.

Typical steps are those with a time (mean over ranks and devices) in the middle half of all steps
without warm-up. Means over one set of steps add up, and single outliers do not change them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.common import kernel_names
from traceanalyzer.analyzers.common.device_work import PART_NAMES
from traceanalyzer.analyzers.common.display import by_part, listed
from traceanalyzer.analyzers.common.names import mapped
from traceanalyzer.analyzers.diff import runs
from traceanalyzer.analyzers.diff.roles import FUSED, OTHER, Pairing, first_shapes
from traceanalyzer.analyzers.gpu_idle.causes import BUSY, CAUSES, DATALOADING, LAUNCH, NAMES
from traceanalyzer.analyzers.steps.result import HOST_PARTS
from traceanalyzer.frames.numbering import numbered

_PLACE = ("rank", "source", "mark")


@dataclass(frozen=True)
class Basis:
    """The steps to average over, and the divisors of sums.

    Attributes:
        places: rank, source and mark of each counted step, and ``at``, its number; None if the
            recording counts as a whole.
        devices: devices (or main threads) in each step.
        ranks: ranks in each step.
        typical: a mask of the typical steps.
    """

    places: pl.DataFrame | None
    devices: runs.Floats
    ranks: runs.Floats
    typical: npt.NDArray[np.bool_]


def by_step(run: runs.Run, *, typical: bool) -> Basis:
    """Return the basis of a run with steps: the typical ones, or all of them."""
    rows = run.counted.sort("number")
    at = rows["number"].rank("dense").cast(pl.Int64) - 1
    numbered = rows.select(*_PLACE, "duration_ns").with_columns(at=at)
    places = numbered.select(*_PLACE, "at").unique()
    each = numbered.group_by("at").agg(pl.col("duration_ns").mean(), n=pl.len()).sort("at")
    return Basis(
        places=places,
        devices=each["n"].to_numpy().astype(np.float64),
        ranks=places.group_by("at").len().sort("at")["len"].to_numpy().astype(np.float64),
        typical=_middle_half(each["duration_ns"].to_numpy()) | (not typical),
    )


def as_whole(run: runs.Run, work: float) -> Basis:
    """Return the basis of a recording without comparable steps, with this multiple of the work."""
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
    inside: npt.NDArray[np.bool_] = (times >= ordered[off]) & (times <= ordered[-1 - off])
    return inside


def usual(
    rows: pl.DataFrame, keys: Sequence[str], column: str, basis: Basis, each: runs.Floats
) -> pl.DataFrame:
    """Average each row over the typical steps.

    Args:
        rows: ``keys``, ``column`` (whole numbers), and rank, source and mark of the step.
        keys: the columns to group by.
        column: the column to sum.
        basis: of the run.
        each: number of devices or ranks in each step, which sums are divided by.

    Returns:
        ``keys``, ``value`` (a mean over typical steps), ``error`` (its standard error, null for
        fewer than two steps). Rows outside of all steps are left out.
    """
    placed = (
        rows.with_columns(at=pl.lit(0, pl.Int64))
        if basis.places is None
        else rows.join(basis.places, on=_PLACE, nulls_equal=True)
    ).drop_nulls(column)
    sums = placed.group_by(*keys, "at").agg(pl.col(column).sum()).sort(*keys, "at")
    labels = sums.select(keys)
    first, number = numbered(labels.get_columns())
    values = np.zeros((len(first), each.size))
    values[number, sums["at"].to_numpy()] = sums[column].to_numpy()
    values /= each
    error = pl.Series("error", runs.standard_errors(values)).fill_nan(None)
    value = pl.Series("value", values[:, basis.typical].mean(axis=1))
    return labels[first].hstack([value, error])


IDLE = "idle_ns"
_CAUSES = {f"{cause}_ns": NAMES[cause] for cause in CAUSES}
_ON_DEVICE = {name: label for name, label in PART_NAMES.items() if name != IDLE}
_ON_THREAD = {f"{BUSY}_ns": "operators", **_CAUSES}


@dataclass(frozen=True)
class Pair:
    """Two runs to compare.

    Attributes:
        both: the runs before and after.
        bases: the basis of each run.
        least: the least significant change.
    """

    both: tuple[runs.Run, runs.Run]
    bases: Sequence[Basis]
    least: float


# --- parts of a step -------------------------------------------------------------------------


def parts(pair: Pair) -> pl.DataFrame | None:
    """Compare the parts of time: part, before_ns, after_ns, change_ns ...

    With steps these are parts of step time; else of a device's or main thread's span. None if the
    runs do not have the same parts.
    """
    labels = _labels(pair)
    if not labels:
        return None
    sides = [
        usual(_long(run, labels, basis), ["part"], "time_ns", basis, basis.devices)
        for run, basis in zip(pair.both, pair.bases, strict=True)
    ]
    return _compare_rows(sides, ["part"], pair.least)


def _labels(pair: Pair) -> dict[str, str]:
    """Return the columns with parts in both runs, and their labels."""
    if pair.bases[0].places is None:
        idle = [run.idle for run in pair.both if run.idle]
        if len(idle) < 2 or idle[0].coverage.on_host != idle[1].coverage.on_host:
            return {}
        return {
            **_ON_THREAD,
            f"{BUSY}_ns": "operators" if idle[0].coverage.on_host else "device busy",
        }
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
    """Return one row per part of each row of the run's steps, or of its devices."""
    if basis.places is not None:
        long = by_part(run.counted, list(_PLACE), labels)
    else:
        long = by_part(run.idle.units if run.idle else pl.DataFrame(), [], labels)
    return long.with_columns(pl.col("time_ns").cast(pl.Int64))


#: Least share of a change that is most of it, and of a time that is nearly all.
_MOST, _NEARLY_ALL = 0.5, 0.9


def places(pair: Pair, rows: pl.DataFrame | None) -> dict[str, str]:
    """Return where the time of parts is that changed most: phrases by part.

    Of parts that at least doubled or halved: the code in which the host was, and its rank if it is
    one of several; of exposed communication the rank that the others wait for.
    """
    found, causes = dict[str, str](), {NAMES[one]: one for one in CAUSES if one != LAUNCH}
    states = () if rows is None else rows.select("part", "before_ns", "after_ns", "state").rows()
    for part, *times, state in states:
        before, after = (time or 0 for time in times)
        side, change = int(after > before), abs(after - before)
        if state in (runs.SAME, runs.UNSURE):
            continue
        if part == PART_NAMES["exposed_communication_ns"]:
            found[part] = _straggler(pair, side, change)
        elif part in causes and change >= _MOST * max(before, after):
            found[part] = _place(pair, side, causes[part])
    return {part: text for part, text in found.items() if text}


def _place(pair: Pair, side: int, cause: str) -> str:
    """Return the code in which the host was in most of the gaps of a cause, and its rank."""
    run = pair.both[side]
    if (idle := run.idle) is None:
        return ""
    if pair.bases[side].places is not None:
        idle = replace(idle, gaps=idle.gaps.drop_nulls("step"))
    one, gaps = idle.activity(cause), idle.of_cause(cause)
    text = one.line if cause == DATALOADING else one.text
    sums = dict(gaps.group_by("rank").agg(pl.col("cause_ns").sum()).iter_rows())
    rank, ns = max(sums.items(), key=lambda one: one[1], default=(None, 0))
    alone = run.ranks > 1 and ns >= _NEARLY_ALL * sum(sums.values())
    return f"in {text}" + f" on rank {rank}" * alone if text else ""


def _straggler(pair: Pair, side: int, change_ns: float) -> str:
    """Return the rank for which the others wait in most of a change of communication."""
    comm, waits = pair.both[side].comm, [_imposed(run) for run in pair.both]
    rank = max(waits[side], key=waits[side].__getitem__, default=-1)
    more = waits[side].get(rank, 0.0) - waits[not side].get(rank, 0.0)
    if comm is None or not more or more < _MOST * change_ns:
        return ""
    steady = comm.is_steady(rank) and not comm.waits_for_schedule
    return f"waiting for rank {rank}" * steady


def _imposed(run: runs.Run) -> dict[int, float]:
    """Return the time that each rank makes the others wait, per step and rank."""
    n = (run.steps.steps["number"].n_unique() if run.steps else 1) * run.ranks
    rows = run.comm.ranks.select("rank", "imposed_ns").rows() if run.comm else ()
    return {rank: ns / n for rank, ns in rows}


# --- kernels and operators -------------------------------------------------------------------


def kernels(pair: Pair) -> pl.DataFrame | None:
    """Compare kernels, copies and memsets by name."""
    rows = _summed(pair, [run.work for run in pair.both], ["name", "family"], "total_ns")
    if rows is None:
        return None
    short = kernel_names.short_names(rows["name"].drop_nulls().unique().to_list())
    return rows.insert_column(0, mapped(rows["name"], short.__getitem__).alias("kernel"))


def families(pair: Pair) -> pl.DataFrame | None:
    """Compare kernels, copies and memsets by family."""
    return _summed(pair, [run.work for run in pair.both], ["family"], "total_ns")


#: Calls of HIP, and those of CUDA and HIP without their variants.
_HIP = r"^hip[A-Z]"
_CALL = r"^(?:cuda|cu|hip)(?:Ext)?(?:Module)?([A-Z]\w*?)(?:ExC?|WithStream|Async)?$"


def operators(pair: Pair, side: str) -> pl.DataFrame | None:
    """Compare operators by self time on ``host`` or ``device``.

    Calls of CUDA in one run and of HIP in the other have one name: ``cuda/hipLaunchKernel``.
    """
    frames = [run.operators for run in pair.both if run.operators is not None]
    if len(frames) < len(pair.both):
        return None
    frames = [rows.with_columns(pl.col("name").cast(pl.String)) for rows in frames]
    if len({rows["name"].str.contains(_HIP).any() for rows in frames}) > 1:
        name = pl.col("name").str.replace(_CALL, "cuda/hip$1")
        before, after = (rows.select(name).to_series().unique() for rows in frames)
        is_shared = name.is_in(before.filter(before.is_in(after.implode())).implode())
        frames = [
            rows.with_columns(pl.when(is_shared).then(name).otherwise("name").alias("name"))
            for rows in frames
        ]
    # profilers record the same slices as other kinds: the first one counts
    kinds = pl.concat(frames, how="vertical_relaxed").unique(
        "name", keep="first", maintain_order=True
    )
    frames = [rows.drop("kind").join(kinds.select("name", "kind"), on="name") for rows in frames]
    rows = _summed(pair, frames, ["name", "kind"], f"{side}_ns")
    return None if rows is None or rows.is_empty() else rows


def _summed(
    pair: Pair, frames: Sequence[pl.DataFrame | None], keys: list[str], column: str
) -> pl.DataFrame | None:
    """Compare the rows of both runs: time and count per step, of work those of a device."""
    rows = [frame for frame in frames if frame is not None]
    if len(rows) < len(frames):
        return None
    of_work = column == "total_ns"
    each = [basis.devices if of_work else basis.ranks for basis in pair.bases]
    return _compare_sums(pair, rows, keys, column, each)


def _compare_sums(
    pair: Pair,
    rows: Sequence[pl.DataFrame],
    keys: list[str],
    column: str,
    each: Sequence[runs.Floats],
) -> pl.DataFrame:
    """Compare time and count per step of the rows of both runs."""
    sides = []
    for frame, basis, divisor in zip(rows, pair.bases, each, strict=True):
        known = frame.drop_nulls(column)
        times = usual(known, keys, column, basis, divisor)
        counts = usual(known, keys, "n", basis, divisor).select(*keys, n="value")
        sides.append(times.join(counts, on=keys, nulls_equal=True, maintain_order="left"))
    return _compare_rows(sides, keys, pair.least, more=("n",))


#: A position of a role has a row of its own if it has this share of the change of the role, ...
_CHANGED_FRAC = 0.8
#: ... but less than this share of its time.
_TIME_FRAC = 0.5
_ROLE = ["operator", "shapes", "family", "before", "after", "pairing"]


def roles(pair: Pair, pairing: Pairing) -> pl.DataFrame:
    """Compare kernels by their role.

    Positions with equal operator, shapes and kernels are one row, except for a position in the
    layers, or for a layer, that has nearly all of the change.

    Returns:
        role, kernel (short), in_place_of (the kernel before if it is another one), the columns of
        :data:`_ROLE` with ``before_kernel`` and ``after_kernel``, position (``2 of 3``, null if
        the row has all).
    """
    each = [basis.devices for basis in pair.bases]
    rows = [
        run.units.times.join(of, on="place") if run.units else pl.DataFrame()
        for run, of in zip(pair.both, pairing.of, strict=True)
    ]
    by_place = _compare_sums(pair, rows, ["role"], "total_ns", each)
    labels = _rows_of_roles(by_place.join(pairing.roles, on="role").sort("role"), _ROLE)
    rows = [frame.join(labels.select("role", whole="row"), on="role") for frame in rows]
    by_layer = _compare_sums(pair, rows, ["whole", "nth"], "total_ns", each)
    first = labels.unique("row", keep="first").select(*_ROLE, "position", whole="row")
    labels = _rows_of_roles(by_layer.join(first, on="whole").sort("nth"), ["whole"])
    to_row = labels.select("whole", "nth", "row")
    rows = [frame.join(to_row, on=["whole", "nth"], nulls_equal=True) for frame in rows]
    compared = _compare_sums(pair, rows, ["row"], "total_ns", each)
    described = labels.unique("row", keep="first").select("row", *_ROLE, "position")
    joined = compared.join(described, on="row", maintain_order="left")
    alone = pl.col("state").is_in((runs.NEW, runs.GONE))
    joined = joined.with_columns(pairing=pl.when(~alone).then("pairing"))
    named = joined.select(
        _role(joined),
        *_in_place_of(joined),
        pl.exclude("row", "before", "after"),
        before_kernel="before",
        after_kernel="after",
    )
    return _largest_first(named, ["role", "kernel", "shapes", "position"])


def _rows_of_roles(each: pl.DataFrame, whole: Sequence[str]) -> pl.DataFrame:
    """Add the row of the result of each part of a whole: row, and position if it is a part."""
    change, of_whole = pl.col("change_ns"), pl.col("change_ns").sum().over(whole)
    time = pl.max_horizontal(pl.col("before_ns").fill_null(0), pl.col("after_ns").fill_null(0))
    apart = (
        (change / of_whole >= _CHANGED_FRAC)
        & (of_whole.abs() >= _CHANGED_FRAC * change.abs().sum().over(whole))
        & (time < _TIME_FRAC * time.sum().over(whole))
        & pl.col("state").is_in((runs.SLOWER, runs.FASTER))
    ).fill_null(value=False)
    number = pl.int_range(pl.len()).over(whole) + 1
    part = pl.when(apart).then(pl.format("{} of {}", number, pl.len().over(whole)))
    if "position" in each.columns:  # of a position, a layer
        both = pl.format("{}, layer {}", "position", part)
        rows = each.with_columns(position=pl.coalesce(both, part, "position"))
    else:
        rows = each.with_columns(position=part)
    keys = rows.select(*whole, "position")
    return rows.with_columns(row=pl.Series(numbered(keys.get_columns())[1]))


def _role(rows: pl.DataFrame) -> pl.Series:
    """Return the operator with its first shapes (``aten::mm 64x32, 32x16``), else the family."""
    shapes = mapped(rows["shapes"], first_shapes)
    texts = rows.select(
        pl.concat_str(
            pl.coalesce("operator", "family"),
            pl.when(shapes.str.len_chars() > 0).then(pl.format(" {}", shapes)),
            pl.when(pl.col("position").is_not_null()).then(pl.format(" (position {})", "position")),
            ignore_nulls=True,
        ).alias("role")
    )
    return texts.to_series()


def _in_place_of(rows: pl.DataFrame) -> list[pl.Series]:
    """Return the kernel of each role, and what it is in place of; null for the same kernel."""
    kernels, replaced = list[str | None](), list[str | None]()
    for before, after, pairing, state in rows.select("before", "after", "pairing", "state").rows():
        if state in (runs.NEW, runs.GONE) or pairing not in (OTHER, FUSED):
            kernels.append(before if state == runs.GONE else after or before)
            replaced.append(None)
            continue
        brief = [_brief(one or "") for one in (before, after)]
        one, other = (before, after) if brief[0] == brief[1] else brief
        kernels.append(other)
        replaced.append(one)
    return [
        pl.Series(name, texts, dtype=pl.String)
        for name, texts in (("kernel", kernels), ("in_place_of", replaced))
    ]


def _brief(kernels: str) -> str:
    """Return the names of kernels without template arguments if they are long."""
    if len(kernels) <= _LONG:
        return kernels
    return listed([*dict.fromkeys(re.split(", | and ", _BRIEF.sub(r"\1", kernels)))])


#: Template arguments are left out of longer names.
_LONG, _BRIEF = 40, re.compile(r"(\w)<\S*?(?=,? |$)")


def _compare_rows(
    both: Sequence[pl.DataFrame], keys: Sequence[str], least: float, more: Sequence[str] = ()
) -> pl.DataFrame:
    """Join the rows of both runs by their keys and judge them; the largest change first."""
    suffixes = {"value": "ns", "error": "error", **{name: name for name in more}}
    sides = [
        frame.rename({name: f"{side}_{suffix}" for name, suffix in suffixes.items()})
        for frame, side in zip(both, ("before", "after"), strict=True)
    ]
    # a row that a run does not have is 0 in all of its steps, without any variation
    steps = all(frame["error"].null_count() < frame.height for frame in both)
    errors = [pl.col(f"{side}_error") for side in ("before", "after")]
    if steps:
        errors = [error.fill_null(0) for error in errors]
    rows = sides[0].join(sides[1], on=keys, how="full", coalesce=True, nulls_equal=True)
    whole = [pl.col(f"{side}_ns").round().cast(pl.Int64) for side in ("before", "after")]
    spread = runs.noise_of(*errors).round().cast(pl.Int64).alias("noise_ns")
    counts = [f"{side}_{name}" for name in more for side in ("before", "after")]
    used = pl.max_horizontal("before_ns", "after_ns") > 0
    judged = runs.judged(rows.with_columns(*whole, spread).filter(used), "ns", least)
    judged = judged.with_columns(_whole_numbers(judged, counts))
    columns = ["before_ns", "after_ns", "change_ns", "change_frac", "noise_ns", "state", *counts]
    return _largest_first(judged.select(*keys, *columns), keys)


def _whole_numbers(frame: pl.DataFrame, columns: Sequence[str]) -> list[pl.Expr]:
    """Cast the columns to integers if all values are whole."""
    whole = all((frame[name].drop_nulls() % 1 == 0).all() for name in columns)
    return [pl.col(name).cast(pl.Int64) for name in columns] if whole else []


def _largest_first(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Sort by change, then by size, in descending order."""
    order = [pl.col("change_ns").abs(), pl.max_horizontal("before_ns", "after_ns"), *keys]
    return frame.sort(order, descending=[True, True, *(False for _ in keys)], nulls_last=True)


# --- collectives -----------------------------------------------------------------------------

_KIND = ["collective", "dtype", "message_bytes", "group_size", "kernel"]


def collectives(pair: Pair) -> pl.DataFrame | None:
    """Compare the medians of each kind of collective, as ``comm-outliers --baseline`` does."""
    results = [run.comm for run in pair.both if run.comm is not None]
    if len(results) < 2:
        return None
    before, after = (_kinds(comm.instances) for comm in results)
    rows = before.join(
        after, on=_KIND, how="full", coalesce=True, nulls_equal=True, suffix="_after"
    )
    noise = runs.noise_of(pl.col("error"), pl.col("error_after"))
    medians = rows.select(
        *_KIND,
        before_ns="usual_ns",
        after_ns="usual_ns_after",
        noise_ns=noise.round().cast(pl.Int64),
        before_n="n",
        after_n="n_after",
        before_step_n="step_n",
        after_step_n="step_n_after",
    )
    judged = runs.judged(medians, "ns", pair.least)
    columns = ["before_ns", "after_ns", "change_ns", "change_frac", "noise_ns", "state"]
    return _largest_first(judged.select(*_KIND, *columns, "^.*_n$"), _KIND)


def _kinds(instances: pl.DataFrame) -> pl.DataFrame:
    """Summarize kinds of collective of one run: n, median ``usual_ns`` and its standard error.

    ``step_n`` are those in a step, or all if the steps of none are known.
    A collective on eight ranks is one measurement, not eight.
    """
    sized = pl.col("message_bytes").is_not_null()
    texts = instances.with_columns(pl.col("collective", "dtype", "kernel").cast(pl.String))
    keyed = texts.with_columns(
        pl.when(sized).then("dtype").alias("dtype"),
        pl.when(sized).then("group_size").alias("group_size"),
        pl.when(~sized).then("kernel").alias("kernel"),
    )
    rows, is_known = [], instances["step"].count() > 0
    for key, rows_of_kind in keyed.partition_by(_KIND, as_dict=True).items():
        values = rows_of_kind["duration_ns"].to_numpy().astype(np.float64)
        count = rows_of_kind.height // rows_of_kind["rank"].n_unique()
        (error,) = runs.standard_errors(values[None, :], count)
        in_steps = rows_of_kind["step"].count() if is_known else rows_of_kind.height
        rows.append((*key, rows_of_kind.height, in_steps, round(float(np.median(values))), error))
    types = {name: keyed.schema[name] for name in _KIND}
    types |= {"n": pl.Int64(), "step_n": pl.Int64(), "usual_ns": pl.Int64(), "error": pl.Float64()}
    return pl.DataFrame(rows, schema=types, orient="row").with_columns(
        pl.col("error").fill_nan(None)
    )
