"""Energy of the steps of a run, from readings of power among the counters.

Question: how much energy does a step take on one GPU, in joules?

Formula: the energy of a step on a GPU is the sum of power x time over the readings of this GPU. A
reading counts until the next one, as in ``host-metrics``. Steps that begin before the first or end
after the last reading are not counted, and nothing is extrapolated to them.

Readings are counters with ``power`` and ``GPU`` in their names, in W or in the unit that the name
has (``[mW]``): the monitor of RPD files, GPU metrics of nsys, counters of rocprof. Power of the
host, limits and states are not readings. NVML, which nsys asks, averages over up to 1 s.
"""

from collections.abc import Iterable

import polars as pl

from traceanalyzer.frames import intervals
from traceanalyzer.trace import Trace
from traceanalyzer.units import NS_PER_S

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
