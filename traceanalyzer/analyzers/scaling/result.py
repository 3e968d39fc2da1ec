"""Result of the scaling analysis: data, verdict, notes, tables and charts."""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.common.display import headings, sentences, stacked, table_of_known
from traceanalyzer.analyzers.common.step_marks import INFERRED_STEPS
from traceanalyzer.analyzers.timeline.states import NAMES
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns

#: Time of steps before the first and after the last device work.
OUTSIDE = "outside"
#: Compute with communication at the same time is compute: a run on one GPU has none.
OVERLAPPED = "overlapped"
#: Disjoint parts of a step on a device, and their names.
PARTS = {state: name for state, name in NAMES.items() if state != OVERLAPPED}
PARTS[OUTSIDE] = "outside of device work"

_SIZES = headings(
    "gpus: GPUs, step_ns: step, lost_ns: lost, efficiency_frac: efficiency, speedup: speed-up, "
    "ideal_speedup: ideal, runs, spread_ns: spread of runs, energy_j: J per step and GPU, "
    "energy_frac: energy efficiency, power_w: power per GPU [W]"
)
_LOSSES = headings(
    "gpus: GPUs, part, lost_ns: lost, lost_frac: of step, time_ns: time, ideal_ns: ideal"
)
_RUNS = headings(
    "run, gpus: GPUs, gpu: GPU, recorded, steps, step_ns: step, std_ns: std, "
    "energy_j: J per step and GPU, power_w: power per GPU [W]"
)
_NAMED = 3
#: Above this efficiency, the runs are probably not comparable.
_ABOVE = 1.05
#: Compute that is longer by this share of the step, and by more than the loss, is other work.
_MORE_WORK = 0.1
#: Parts below this share of the loss are not named.
_LITTLE = 0.01


@dataclass(frozen=True, eq=False, repr=False)
class Scaling(Result):
    """Step time of runs on different numbers of GPUs, against the smallest number.

    Attributes:
        weak: the work per GPU is the same in all runs; else the work of a step.
        runs: one row per run: ``run`` (folder, or file if several runs are in one folder),
            ``gpus``, ``gpu`` (names), ``recorded`` (devices in the files), ``steps``, ``step_ns``
            (mean), ``std_ns``, ``matched`` (whether waiting for other ranks is known), ``inferred``
            (whether steps were detected from repeated kernels); and, None without readings of
            power, ``energy_j`` (per step and GPU), ``power_w`` (mean per GPU, in these steps),
            ``power_gpus`` (GPUs with readings), ``energy_gpus`` (those that count),
            ``covered_frac`` (share of the steps that readings cover), ``interval_ns`` (median time
            between readings).
        sizes: one row per number of GPUs: ``gpus``, ``runs``, ``step_ns`` (mean of the runs),
            ``spread_ns`` (largest - smallest, None for one run), ``speedup``, ``ideal_speedup``,
            ``efficiency_frac`` (speedup / ideal_speedup), ``ideal_ns`` (step time at the ideal
            speed-up), ``lost_ns`` (step_ns - ideal_ns).
        losses: one row per number of GPUs and part of a step, as means per step and device:
            ``gpus``, ``part``, ``time_ns``, ``ideal_ns`` (from the smallest number), ``lost_ns``
            (time_ns - ideal_ns; these add up to that of ``sizes``), ``lost_frac`` (of the step).
    """

    question = "How well do more GPUs help, and where is the loss?"
    scalar_names = "weak"

    weak: bool
    runs: pl.DataFrame
    sizes: pl.DataFrame
    losses: pl.DataFrame

    def view(self) -> View:
        """Build the view: sizes, losses, runs; speed-up with the ideal line, parts of a step."""
        return self.view_from(_verdict, _notes, _tables, _charts)


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Scaling) -> str:
    """Return speed-up and efficiency of the largest number, and the largest losses."""
    first, last = (result.sizes.row(at, named=True) for at in (0, -1))
    speed = (
        f"{last['gpus']} GPUs are {last['speedup']:.3g} times as fast as {first['gpus']} (ideal: "
        f"{last['ideal_speedup']:.3g} times): parallel efficiency {percent(last)}, "
        f"{'weak' if result.weak else 'strong'} scaling."
    )
    others = result.sizes.filter(pl.col("gpus") != last["gpus"])
    largest = others.sort("lost_ns", "gpus", descending=True).row(0, named=True)
    of_others = _loss(result, largest) if max(last["lost_ns"], 0) < largest["lost_ns"] else ""
    energy = _energy(first, last)
    return sentences(speed, _not_comparable(result), _loss(result, last), of_others, energy)


def _not_comparable(result: Scaling) -> str:
    """Return why the step times do not show scaling: other GPUs, or other work."""
    gpus = result.runs.filter(pl.col("steps") > 0)["gpu"].drop_nulls().unique(maintain_order=True)
    texts = []
    if len(gpus) > 1:
        texts.append(
            f"The runs are on different GPUs ({', '.join(gpus)}): their step times do not show "
            "scaling."
        )
    work = "the same work per GPU" if result.weak else "the same work per step"
    above = above_ideal(result.sizes, work)
    if not above and _has_other_work(result):
        above = (
            f"The runs probably do not have {work}: compute is longer than ideal by more than the "
            "whole loss."
        )
    return sentences(*texts, above)


def _has_other_work(result: Scaling) -> bool:
    """Whether compute, which the same work does not change, is longer by more than the loss."""
    losses = result.losses.join(
        result.sizes.select("gpus", whole_ns="lost_ns", step_ns="step_ns"), on="gpus"
    )
    longer = pl.col("lost_ns") > pl.max_horizontal("whole_ns", _MORE_WORK * pl.col("step_ns"))
    return losses.filter(longer, pl.col("part") == NAMES["compute"]).height > 0


def above_ideal(sizes: pl.DataFrame, work: str, count: str = "gpus", unit: str = "GPU") -> str:
    """Return a warning if runs are more efficient than they can be with equal work.

    Args:
        sizes: efficiency_frac, and the number of GPUs or nodes.
        work: what is probably not the same.
        count: the column of that number.
        unit: its unit.
    """
    above = sizes.filter(pl.col("efficiency_frac") > _ABOVE)
    if above.is_empty():
        return ""
    row = above.sort("efficiency_frac", descending=True).row(0, named=True)
    return (
        f"Parallel efficiency of {percent(row)} ({format_count(row[count], unit)}) is above "
        f"ideal: the runs probably do not have {work}, or are on different hardware."
    )


def _loss(result: Scaling, row: dict[str, float]) -> str:
    """Return how much longer than ideal a step is on a number of GPUs, and its longest parts."""
    parts = result.losses.filter(pl.col("gpus") == row["gpus"], pl.col("lost_ns") > 0)
    parts = parts.filter(pl.col("lost_ns") >= _LITTLE * abs(row["lost_ns"]))
    largest = parts.sort("lost_ns", "part", descending=[True, False]).head(_NAMED)
    texts = [f"{one['part']} {format_ns(one['lost_ns'])}" for one in largest.iter_rows(named=True)]
    most = ", ".join(texts)
    on = f"on {row['gpus']:.0f} GPUs"
    if row["lost_ns"] > 0:
        ratio = f"{format_ns(row['lost_ns'])} of {format_ns(row['step_ns'])}"
        return f"Loss per step and GPU {on}: {ratio}{'; mostly ' if most else ''}{most}."
    if row["lost_ns"] == 0:
        return f"A step {on} is as long as ideal."
    longer = f"; parts that are longer: {most}" if most else ""
    return f"A step {on} is {format_ns(-row['lost_ns'])} shorter than ideal{longer}."


def _energy(first: dict[str, float], last: dict[str, float]) -> str:
    """Return the energy of a step on all GPUs, if power was read in both runs."""
    if None in (first["energy_j"], last["energy_j"]):
        return ""
    one, other = (
        f"{row['gpus'] * row['energy_j']:.3g} J on {row['gpus']:.0f} GPUs" for row in (first, last)
    )
    efficiency = format_frac(last["energy_frac"])
    return f"Energy of a step on all GPUs: {one}, {other} (energy efficiency {efficiency})."


def percent(row: dict[str, float]) -> str:
    """Format the efficiency of a row of ``sizes``."""
    return format_frac(row["efficiency_frac"])


def _notes(result: Scaling) -> Iterator[str]:
    """Describe the assumption about the work, and what limits the comparison."""
    if result.weak:
        yield "Weak scaling: the work per GPU must be the same in all runs; traces do not show it."
    else:
        yield (
            "Strong scaling: the work of a step (global batch) must be the same in all runs; "
            "traces do not show it. --weak is for runs with the same work per GPU."
        )
    first = format_count(result.sizes["gpus"][0], "GPU")
    yield (
        f"Ideal times are extrapolated from {first}. A negative loss: the part is shorter than "
        "ideal."
    )
    transfers = (result.losses["part"] == NAMES["transfer"]).any()
    if transfers and not result.runs.filter(pl.col("gpus") > 1)["matched"].all():
        yield (
            "Exposed communication includes waiting for other ranks in runs whose collectives are "
            "not matched: give the traces of all ranks."
        )
    if result.runs["inferred"].any():
        yield INFERRED_STEPS
    for run in result.runs.filter(pl.col("steps") == 0)["run"]:
        yield f"{run}: no steps are known; the run is not compared."
    if result.runs["energy_j"].count():
        yield from _energy_notes(result.runs)


def _energy_notes(runs: pl.DataFrame) -> Iterator[str]:
    """Describe what the energy includes, and where readings are few."""
    yield (
        "Energy is power x time of the readings of a GPU over its steps; a reading counts until "
        "the next. Host and network are not included."
    )
    for row in runs.filter(pl.col("steps") > 0).iter_rows(named=True):
        read, used = row["power_gpus"], row["energy_gpus"]
        if not read:
            yield f"{row['run']}: no readings of power."
            continue
        if row["energy_j"] is None or row["covered_frac"] < 1:
            share = format_frac(row["covered_frac"] or 0)
            yield f"{row['run']}: readings of power cover {share} of the steps; only these count."
        if used < read:
            yield (
                f"{row['run']}: power was read on {read} GPUs, {used} of which "
                f"{'has' if used == 1 else 'have'} work; those with most energy count, because "
                "monitors number GPUs differently."
            )
        elif read < row["recorded"]:
            yield f"{row['run']}: power was read on {read} of {row['recorded']} GPUs."
        if row["energy_j"] is not None and row["interval_ns"] > row["step_ns"]:
            yield (
                f"{row['run']}: power was read every {format_ns(row['interval_ns'])}, less often "
                f"than once per step ({format_ns(row['step_ns'])}): the energy is a mean only."
            )


# --- tables and charts ---------------------------------------------------------------------


def _tables(result: Scaling) -> Iterator[Table]:
    larger = result.losses.filter(pl.col("gpus") != result.sizes["gpus"][0])
    yield table_of_known("sizes", "Speed-up", result.sizes, _SIZES)
    yield Table("losses", "Where the loss is, per step and GPU", larger, _LOSSES)
    yield table_of_known("runs", "Runs", result.runs, _RUNS)


def _charts(result: Scaling) -> Iterator[Chart]:
    """Build the step time and the speed-up with their ideal lines, and the parts of a step."""
    absolute, speedup = (
        lines_of(name, title, _unpivoted(result.sizes, column, ideal), column, label, x="gpus")
        for name, title, column, ideal, label in (
            ("step_time", "Step time", "step_ns", "ideal_ns", "step"),
            ("speedup", "Speed-up", "speedup", "ideal_speedup", "speed-up"),
        )
    )
    order = pl.Enum(list(PARTS.values()))
    parts = result.losses.select(
        on=pl.format(
            "{} GPU{}", "gpus", pl.when(pl.col("gpus") > 1).then(pl.lit("s")).otherwise(pl.lit(""))
        ),
        part=pl.col("part").cast(order),
        time_ns="time_ns",
    )
    known = result.sizes.drop_nulls("energy_j").with_columns(series=pl.lit("measured"))
    energy = lines_of(
        "energy", "Energy per step and GPU", known, "energy_j", "energy [J]", x="gpus", log_y=False
    )  # fmt: skip
    more = (energy,) if known.height else ()
    yield absolute
    yield speedup
    yield from more
    yield stacked("parts", "A step on one GPU", parts, x="on", x_label="")


def _unpivoted(sizes: pl.DataFrame, column: str, ideal: str) -> pl.DataFrame:
    names = {column: "measured", ideal: "ideal"}
    lines = sizes.select("gpus", *names).rename(names)
    return lines.unpivot(index="gpus", variable_name="series", value_name=column)


def lines_of(
    name: str,
    title: str,
    frame: pl.DataFrame,
    column: str,
    label: str,
    *,
    x: str = "count",
    unit: str = "GPUs",
    log_y: bool = True,
) -> Chart:
    """Return a chart of lines by ``series`` over ``x``, with logarithmic axes."""
    return Chart(
        name=name, title=title, mark="line", frame=frame.sort("series", x), x=x, y=column,
        x_label=unit, y_label=label, color="series", log_x=True, log_y=log_y,
    )  # fmt: skip
