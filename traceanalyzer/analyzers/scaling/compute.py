"""Steps and states of each run, compared across numbers of GPUs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import aggregates
from traceanalyzer.analyzers.common.aggregates import Aggregates
from traceanalyzer.analyzers.scaling import Options, epochs
from traceanalyzer.analyzers.scaling.result import OUTSIDE, OVERLAPPED, PARTS, Scaling
from traceanalyzer.analyzers.timeline import Options as TimelineOptions, compute as timeline
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Meta, Trace, record_hint
from traceanalyzer.units import NS_PER_S


@dataclass(frozen=True)
class Part:
    """One rank of one run.

    Attributes:
        timeline: states and steps of its devices, without events.
        energy: rows of :data:`SCHEMA`.
        world_size: number of ranks of the job, or None.
        step_hint: how the profiler of the file records steps.
        gpus: names of its GPUs.
    """

    timeline: timeline.Part
    energy: pl.DataFrame
    world_size: int | None
    step_hint: str
    gpus: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The folder of the file."""
        return str(PurePath(self.timeline.path).parent)


#: What a timeline needs, and counters, for readings of power.
NEEDS: Needs = replace(timeline.NEEDS, kinds={*timeline.NEEDS.kinds, "counter"})


def _timeline_options(options: Options) -> TimelineOptions:
    return TimelineOptions(comm_patterns=options.comm_patterns, step_name=options.step_name)


def measure(trace: Trace, options: Options) -> Part | Aggregates:
    """Return the states of the devices of one rank and the energy of its steps, or epoch times.

    Raises:
        MissingData: neither device work nor operators with a duration were recorded.
        OptionError: a pattern is not a regular expression.
    """
    if times := aggregates.of_forms(trace, epochs.FORMS):
        return times
    part = timeline.measure(trace, _timeline_options(options))
    meta: Meta = trace.meta
    part = replace(part, events=part.events.clear())
    gpus = tuple(sorted({one.name for one in meta.devices if one.name}))
    used = of_steps(trace, part.idle.steps)
    return Part(part, used, meta.world_size, record_hint(meta, "step"), gpus)


def combine(parts: Sequence[Part | Aggregates], options: Options) -> Scaling:
    """Compare the runs; epoch times are not used next to traces.

    Raises:
        MissingData: no steps or epochs are known, or all runs are on the same number of GPUs.
    """
    timed, untimed = aggregates.divided(parts, Part)
    if untimed and not timed:
        return epochs.combine(aggregates.joined(untimed), options)
    return aggregates.without(untimed, lambda: _compared(timed, options))


def _compared(parts: Sequence[Part], options: Options) -> Scaling:
    """Compare the runs of traces."""
    named = _distinct_names(list(_runs(parts)))
    runs = pl.concat(_measured(name, run, options) for name, run in named)
    known = runs.filter(pl.col("steps") > 0)
    if known.is_empty():
        first = parts[0]
        raise MissingData(f"{first.timeline.path}: no steps are known; {first.step_hint}")
    sizes = _by_size(known, weak=options.weak)
    if sizes.height < 2:
        gpus = sizes["gpus"][0]
        raise MissingData(
            f"{parts[0].timeline.path}: all runs are on {gpus} GPU{'s' * (gpus != 1)}; give the "
            "folders of runs on different numbers of GPUs"
        )
    return Scaling(
        weak=options.weak,
        runs=runs.sort("gpus", "run").drop(f"{part}_ns" for part in PARTS),
        sizes=sizes.drop(f"{part}_ns" for part in PARTS),
        losses=_losses(sizes, weak=options.weak),
    )


SCALING = Analyzer("scaling", Options, NEEDS, measure, combine, every_file=True, of_one_job="")


# --- one run -------------------------------------------------------------------------------------


def _runs(parts: Sequence[Part]) -> Iterable[tuple[str, list[Part]]]:
    """Yield the name and the parts of each run.

    Files of one world size are one run, unless a rank occurs twice; then, or without a world size,
    each folder is a run.
    """
    ordered = sorted(parts, key=lambda part: (part.timeline.path, part.timeline.rank or 0))
    by_world: dict[int | None, list[Part]] = defaultdict(list)
    for part in ordered:
        by_world[part.world_size].append(part)
    for world, of_world in by_world.items():
        ranks = [part.timeline.rank for part in of_world]
        if world is not None and None not in ranks and len(set(ranks)) == len(ranks):
            yield _name(of_world), of_world
            continue
        by_folder: dict[str, list[Part]] = defaultdict(list)
        for part in of_world:
            by_folder[part.folder].append(part)
        yield from ((_name(run), run) for run in by_folder.values())


def _name(run: Sequence[Part]) -> str:
    """Return the file of a run, or the folder of its files."""
    files = {part.timeline.path for part in run}
    return run[0].timeline.path if len(files) == 1 else run[0].folder


def _distinct_names(runs: Sequence[tuple[str, list[Part]]]) -> list[tuple[str, list[Part]]]:
    """Name runs of the same folder by their first file."""
    uses = Counter(name for name, _ in runs)
    return [(name if uses[name] == 1 else run[0].timeline.path, run) for name, run in runs]


def _measured(name: str, parts: Sequence[Part], options: Options) -> pl.DataFrame:
    """Return the row of :attr:`Scaling.runs`, with a column per part of a step."""
    whole = timeline.combine([part.timeline for part in parts], _timeline_options(options))
    lengths = whole.steps.select(length=pl.col("end") - pl.col("start"), lane="lane")
    total = int(lengths["length"].sum())
    count = lengths.height
    covered = intervals.overlap_with(whole.states, whole.steps, ["lane"])
    times = dict(covered.group_by("state").agg(pl.col("overlap").sum()).iter_rows())
    times["compute"] = times.get("compute", 0) + times.pop(OVERLAPPED, 0)
    times[OUTSIDE] = max(0, total - sum(times.values()))
    world = parts[0].world_size
    names = sorted({name for part in parts for name in part.gpus})
    row = pl.DataFrame(
        [
            {
                "run": name,
                "gpus": max(world or 0, whole.lanes.height),
                "gpu": ", ".join(names) or None,
                "recorded": whole.lanes.height,
                "steps": count // max(1, lengths["lane"].n_unique()),
                "step_ns": total / count if count else None,
                "std_ns": lengths["length"].std() if count > 1 else None,
                "matched": whole.matched,
                "inferred": whole.steps_by_kernels,
                **{f"{part}_ns": times.get(part, 0) / count if count else None for part in PARTS},
            }
        ],
        schema={
            "run": pl.String,
            "gpus": pl.Int64,
            "gpu": pl.String,
            "recorded": pl.Int64,
            "steps": pl.Int64,
            "step_ns": pl.Float64,
            "std_ns": pl.Float64,
            "matched": pl.Boolean,
            "inferred": pl.Boolean,
            **{f"{part}_ns": pl.Float64 for part in PARTS},
        },
    )
    return row.hstack(of_run(_by_host(parts, whole.lanes)))


def _by_host(parts: Sequence[Part], lanes: pl.DataFrame) -> Iterable[tuple[pl.DataFrame, int]]:
    """Yield the energy on the GPUs of each host, and its number of devices with work."""
    for host in sorted({part.timeline.host for part in parts}, key=str):
        rows = pl.concat(part.energy for part in parts if part.timeline.host == host)
        yield rows, lanes.filter(pl.col("host").eq_missing(host)).height


# --- all runs ------------------------------------------------------------------------------------


def _by_size(runs: pl.DataFrame, *, weak: bool) -> pl.DataFrame:
    """Return the mean of the runs on each number of GPUs, with speed-up and efficiency."""
    parts = [f"{part}_ns" for part in PARTS]
    means = runs.sort("gpus", "run").group_by("gpus", maintain_order=True).agg(
        runs=pl.len().cast(pl.Int64),
        step_ns=pl.col("step_ns").mean(),
        spread_ns=pl.when(pl.len() > 1).then(pl.col("step_ns").max() - pl.col("step_ns").min()),
        energy_j=pl.col("energy_j").mean(),
        power_w=pl.col("power_w").mean(),
        **{part: pl.col(part).mean() for part in parts},
    )  # fmt: skip
    factor = pl.col("gpus") / pl.col("gpus").first()
    faster = pl.col("step_ns").first() / pl.col("step_ns")
    efficiency = faster if weak else faster / factor
    less = pl.col("energy_j").first() / pl.col("energy_j")
    return means.select(
        "gpus",
        "runs",
        "step_ns",
        "spread_ns",
        *parts,
        speedup=efficiency * factor,
        ideal_speedup=factor,
        efficiency_frac=efficiency,
        ideal_ns=pl.col("step_ns").first() / (1 if weak else factor),
        energy_j="energy_j",
        energy_frac=less if weak else less / factor,
        power_w="power_w",
    ).with_columns(lost_ns=pl.col("step_ns") - pl.col("ideal_ns"))


def _losses(sizes: pl.DataFrame, *, weak: bool) -> pl.DataFrame:
    """Return gpus, part, time_ns, ideal_ns and lost_ns: where each step is longer than ideal.

    The losses of a number of GPUs add up to the difference between the step time and the ideal.
    """
    first = sizes.row(0, named=True)
    rows = [
        (
            row["gpus"],
            name,
            row[f"{part}_ns"],
            ideal := first[f"{part}_ns"] / (1 if weak else row["ideal_speedup"]),
            row[f"{part}_ns"] - ideal,
        )
        for row in sizes.iter_rows(named=True)
        for part, name in PARTS.items()
    ]
    times = dict.fromkeys(("time_ns", "ideal_ns", "lost_ns"), pl.Float64)
    losses = pl.DataFrame(rows, {"gpus": pl.Int64, "part": pl.String, **times}, orient="row")
    used = losses.filter(pl.col("time_ns") + pl.col("ideal_ns") > 0)
    return used.with_columns(
        (pl.col("lost_ns") / pl.col("time_ns").sum().over("gpus")).alias("lost_frac")
    )


#: Energy of the steps that the readings of a GPU cover: their number, of all steps, joules, and
#: time; the median time between two readings.
SCHEMA = {
    "gpu": pl.String,
    "steps": pl.Int64,
    "of": pl.Int64,
    "joules": pl.Float64,
    "time_ns": pl.Int64,
    "interval_ns": pl.Float64,
}
#: Columns of ``Scaling.runs``.
COLUMNS = {
    "energy_j": pl.Float64,
    "power_w": pl.Float64,
    "power_gpus": pl.Int64,
    "energy_gpus": pl.Int64,
    "covered_frac": pl.Float64,
    "interval_ns": pl.Float64,
}
_OF_GPU = r"(?i)gpu"
_POWER = r"(?i)power"
_OTHER = r"(?i)limit|cap\b|state|throttl|profile|%"
_UNIT = r"[\[(]\s*([mkuµ]?)W(?:atts?)?\s*[\])]"
_ANY_UNIT = r"[\[(][^\])]*[A-Za-z°][^\])]*[\])]"
_SCALES = {"": 1.0, "m": 1e-3, "k": 1e3, "u": 1e-6, "µ": 1e-6}
_GPU = ["unit", "gpu"]


def of_steps(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the energy of one rank's steps on each GPU with readings of power.

    Args:
        trace: one rank, with counters.
        steps: unit, start and end in ns.

    Returns:
        Rows of :data:`SCHEMA`; the steps of several units are added.
    """
    readings = _readings(trace)
    if readings.is_empty() or steps.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    of_gpus = readings.group_by("gpu").agg(
        first=pl.col("start").min(),
        last=pl.col("end").max(),
        interval_ns=(pl.col("end") - pl.col("start")).median(),
    )
    covered = steps.select("unit", "start", "end").join(of_gpus, how="cross")
    covered = covered.filter(pl.col("start") >= pl.col("first"), pl.col("end") <= pl.col("last"))
    each = readings.join(steps.select("unit").unique(), how="cross")
    sums = intervals.overlap_with(each, covered, _GPU).group_by("gpu").agg(
        joules=(pl.col("watts") * pl.col("overlap")).sum() / NS_PER_S,
        time_ns=pl.col("overlap").sum(),
    )  # fmt: skip
    counts = covered.group_by("gpu").agg(steps=pl.len(), interval_ns=pl.col("interval_ns").first())
    joined = counts.join(sums, on="gpu").with_columns(of=pl.lit(steps.height)).sort("gpu")
    return joined.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


def of_run(hosts: Iterable[tuple[pl.DataFrame, int]]) -> pl.DataFrame:
    """Return the energy of a run per step and GPU: one row of :data:`COLUMNS`.

    The numbers of the GPUs differ between monitors, HIP and CUDA. So if more GPUs of a host have
    readings than the run uses there, those with most energy per step count.

    Args:
        hosts: by host, rows of :data:`SCHEMA` of all ranks, and the number of devices with work.
    """
    read, chosen = 0, []
    for rows, devices in hosts:
        of_gpus = rows.group_by("gpu").agg(
            pl.col("steps", "of", "joules", "time_ns").sum(), pl.col("interval_ns").median()
        )
        per_step = pl.col("joules") / pl.col("steps")
        read += of_gpus.height
        chosen.append(of_gpus.sort(per_step, "gpu", descending=[True, False]).head(devices))
    sums = pl.col("joules").sum()
    row = pl.concat(chosen).select(
        energy_j=sums / pl.col("steps").sum(),
        power_w=sums * NS_PER_S / pl.col("time_ns").sum(),
        power_gpus=pl.lit(read),
        energy_gpus=pl.len(),
        covered_frac=pl.col("steps").sum() / pl.col("of").sum(),
        interval_ns=pl.col("interval_ns").median(),
    )
    return row.select(pl.col(name).fill_nan(None).cast(kind) for name, kind in COLUMNS.items())


def _readings(trace: Trace) -> pl.DataFrame:
    """Return gpu, start, end and watts of the readings that another one follows."""
    counters = trace.counters
    if counters.is_empty():
        return pl.DataFrame()
    names = counters.select(pl.col("name", "series").cast(pl.String)).unique()
    known = _named(names)
    if known.is_empty():
        return pl.DataFrame()
    rows = counters.with_columns(pl.col("name", "series").cast(pl.String))
    rows = rows.join(known, on=["name", "series"]).filter(pl.col("value").is_finite())
    values = rows.group_by("gpu", start="ts").agg(
        watts=(pl.col("value") * pl.col("scale")).last().clip(0)
    )
    ordered = values.sort("gpu", "start")
    following = ordered.with_columns(end=pl.col("start").shift(-1).over("gpu"))
    return following.drop_nulls("end")


def _named(names: pl.DataFrame) -> pl.DataFrame:
    """Return name, series, gpu and scale to W of the counters that are power of a GPU.

    Of several counters of a GPU (current, average), the first by name counts.
    """
    label = pl.concat_str("name", "series", separator=" ")
    prefix = label.str.extract(_UNIT, 1)
    in_watts = prefix.is_not_null() | ~label.str.contains(_ANY_UNIT)
    power = label.str.contains(_POWER) & label.str.contains(_OF_GPU)
    chosen = names.filter(power & ~label.str.contains(_OTHER) & in_watts).with_columns(
        gpu=pl.when(pl.col("series").str.contains(_OF_GPU)).then("series").otherwise(label),
        scale=prefix.fill_null("").replace_strict(_SCALES, return_dtype=pl.Float64),
    )
    return chosen.sort("name", "series").unique("gpu", keep="first", maintain_order=True)


def scaling(
    runs: Inputs,
    *,
    weak: bool = False,
    step_name: str | None = None,
    comm_patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Scaling:
    """Return step time, speed-up and parallel efficiency of runs on different numbers of GPUs.

    Args:
        runs: a folder per run, or several traces; the number of GPUs is the recorded world size,
            else the number of devices in the folder. Runs on the same number are averaged.
        weak: the work per GPU is the same in all runs; default: the work of all GPUs together.
        step_name: regular expression of the names of steps.
        comm_patterns: regular expressions of further kernel names that are communication.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no steps are known, or all runs are on the same number of GPUs.
        OptionError: a pattern is not a regular expression.
    """
    return run(SCALING, runs, Options(weak, step_name, comm_patterns), **reading)
