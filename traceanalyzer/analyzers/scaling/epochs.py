"""Scaling from epoch times, without a timeline: metrics of itwinai (CSV files, MLflow)."""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.common.aggregates import wide
from traceanalyzer.analyzers.common.display import headings, sentences, stacked, table_of_known
from traceanalyzer.analyzers.scaling import Options
from traceanalyzer.analyzers.scaling.result import Scaling, above_ideal, lines_of, percent
from traceanalyzer.drawings import Chart
from traceanalyzer.errors import MissingData
from traceanalyzer.result import Table, View
from traceanalyzer.units import format_count

FORMS = ("epochs", "gpu_samples", "kernel_averages")

#: Operators of PyTorch, as itwinai counts computation; NCCL's operators and kernels.
_OPERATOR = r"(?:aten|\sat|c10|autograd)::"
_COMMUNICATION = r"(?i)nccl"
_STEP = "ProfilerStep"
_JOULES_PER_WH = 3600

_SIZES = headings(
    "strategy, count: {unit}, epoch_ns: epoch, efficiency_frac: efficiency, speedup: speed-up, "
    "ideal_speedup: ideal, lost_ns: lost, runs, spread_ns: spread of runs, "
    "energy_wh: energy [Wh], energy_frac: energy efficiency, power_w: power per GPU [W], "
    "utilization_frac: utilisation, computation_frac: computation, "
    "communication_frac: communication, other_frac: other"
)
_RUNS = headings(
    "run, strategy, count: {unit}, epochs, epoch_ns: epoch, std_ns: std, energy_wh: energy [Wh]"
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class EpochScaling(Scaling):
    """Epoch time of runs on different numbers of GPUs, by strategy.

    As :class:`~.result.Scaling`, whose ``losses`` are empty: the parts of an epoch are not known.

    Attributes:
        unit: ``GPUs``, or ``nodes`` if no file has the number of GPUs.
        runs: one row per run and strategy: ``run`` (folder), ``strategy``, ``count`` (GPUs or
            nodes), ``epochs``, ``epoch_ns`` (mean), ``std_ns``, ``energy_wh`` (of all GPUs: the sum
            of power x interval), ``power_w`` (mean per GPU), ``utilization_frac`` (mean).
        sizes: one row per strategy and count, the mean of the runs: ``runs``, ``epoch_ns``,
            ``spread_ns``, ``speedup``, ``ideal_speedup``, ``efficiency_frac``, ``ideal_ns``,
            ``lost_ns``, ``energy_wh``, ``energy_frac`` (energy of the smallest count / energy; for
            weak scaling per GPU), ``power_w``, ``utilization_frac``, ``computation_frac``
            (operators of PyTorch, of the self device time without steps), ``communication_frac``
            (NCCL), ``other_frac``.
    """

    question = "How well do more GPUs help?"
    scalar_names = "weak, unit"

    unit: str

    def view(self) -> View:
        """Build the view: sizes, runs; epoch time, speed-up, energy, utilisation, computation."""
        return self.view_from(_verdict, _notes, _tables, _charts)


def combine(rows: pl.DataFrame, options: Options) -> EpochScaling:
    """Return the scaling of epoch times.

    Raises:
        MissingData: no epoch times, or all of each strategy are on the same number of GPUs.
    """
    epochs, samples, averages = (_wide(rows, form) for form in FORMS)
    path = rows["path"][0]
    if epochs.is_empty():
        raise MissingData(f"{path}: no epoch times; pass the folder of the run (epoch-time/*.csv)")
    epochs = epochs.filter(pl.any_horizontal(pl.col("nodes", "gpus").is_not_null()))
    if epochs.is_empty():
        raise MissingData(f"{path}: on how many GPUs or nodes the runs were is not recorded")
    epochs, unit = _counted(epochs, samples)
    runs = _runs(epochs, samples)
    sizes = _sizes(runs, averages, weak=options.weak)
    if not sizes["count"].n_unique() > 1:
        number = format_count(sizes["count"][0], unit.removesuffix("s"))
        raise MissingData(f"{path}: all runs are on {number}; give runs on several numbers")
    losses = pl.DataFrame(schema={"gpus": pl.Int64, "part": pl.String, "lost_ns": pl.Float64})
    return EpochScaling(weak=options.weak, runs=runs, sizes=sizes, losses=losses, unit=unit)


_NUMBERS = (
    *("time_ns", "nodes", "gpus", "node", "power_w", "utilization_frac", "interval_s"),
    "self_device_ns",
)
_TEXTS = ("run", "strategy")


def _wide(rows: pl.DataFrame, form: str) -> pl.DataFrame:
    """Return one row per row of the files of a form: path, run, strategy, name, and its numbers."""
    whole = wide(rows, form, dict.fromkeys(_NUMBERS, pl.Float64), _TEXTS)
    return whole.select("path", "row", "name", *_TEXTS, *_NUMBERS)


def _counted(epochs: pl.DataFrame, samples: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Add ``count``: GPUs, from the files or the GPUs per node of the samples; else nodes."""
    each = pl.col("gpus") / pl.col("node").n_unique()
    per_node = (
        samples.drop_nulls(["gpus", "node"])
        .group_by("run", "strategy", "gpus")
        .agg(each.first().alias("per_node"))
    )
    known = per_node.group_by("run", "strategy").agg(pl.col("per_node").max())
    joined = epochs.join(known, on=["run", "strategy"], how="left", nulls_equal=True)
    common = per_node["per_node"].max()
    gpus = pl.coalesce("gpus", pl.col("nodes") * pl.coalesce("per_node", pl.lit(common)))
    counted = joined.with_columns(count=gpus.round().cast(pl.Int64))
    if counted["count"].null_count():
        nodes = pl.coalesce("nodes", "gpus").cast(pl.Int64)
        return joined.with_columns(count=nodes), "nodes"
    return counted, "GPUs"


def _runs(epochs: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of :attr:`EpochScaling.runs`."""
    keys = ["run", "strategy", "count"]
    times = epochs.group_by(keys).agg(
        epochs=pl.len().cast(pl.Int64),
        epoch_ns=pl.col("time_ns").mean(),
        std_ns=pl.col("time_ns").std(),
    )
    joules = (pl.col("power_w") * pl.col("interval_s")).sum()
    energy = (
        samples.with_columns(count=pl.col("gpus").cast(pl.Int64))
        .group_by(keys)
        .agg(
            energy_wh=pl.when(pl.col("power_w").count() > 0).then(joules / _JOULES_PER_WH),
            power_w=pl.col("power_w").mean(),
            utilization_frac=pl.col("utilization_frac").mean(),
        )
    )
    joined = times.join(energy, on=keys, how="left", nulls_equal=True)
    return joined.sort("strategy", "count", "run", nulls_last=True)


def _sizes(runs: pl.DataFrame, averages: pl.DataFrame, *, weak: bool) -> pl.DataFrame:
    """Return the rows of :attr:`EpochScaling.sizes`: repeated runs are averaged, never added."""
    keys = ["strategy", "count"]
    means = runs.group_by(keys).agg(
        runs=pl.len().cast(pl.Int64),
        spread_ns=pl.when(pl.len() > 1).then(pl.col("epoch_ns").max() - pl.col("epoch_ns").min()),
        **{
            name: pl.col(name).mean()
            for name in ("epoch_ns", "energy_wh", "power_w", "utilization_frac")
        },
    )
    first = {
        name: pl.col(name).sort_by("count").first().over("strategy")
        for name in ("count", "epoch_ns", "energy_wh")
    }
    factor = pl.col("count") / first["count"]
    faster = first["epoch_ns"] / pl.col("epoch_ns")
    efficiency = faster if weak else faster / factor
    ideal = first["epoch_ns"] / (1 if weak else factor)
    useful = first["energy_wh"] * (factor if weak else 1)
    scaled = means.with_columns(
        speedup=efficiency * factor,
        ideal_speedup=factor,
        efficiency_frac=efficiency,
        ideal_ns=ideal,
        lost_ns=pl.col("epoch_ns") - ideal,
        energy_frac=useful / pl.col("energy_wh"),
    )
    joined = scaled.join(_shares(averages), on=keys, how="left", nulls_equal=True)
    return joined.sort("strategy", "count", nulls_last=True)


def _shares(averages: pl.DataFrame) -> pl.DataFrame:
    """Return computation, communication and other shares of the self device time."""
    name = pl.col("name").cast(pl.String)
    rows = averages.filter(~name.str.starts_with(_STEP)).with_columns(
        part=pl.when(name.str.contains(_COMMUNICATION)).then(pl.lit("communication"))
        .when(name.str.contains(_OPERATOR)).then(pl.lit("computation")).otherwise(pl.lit("other")),
        count=pl.col("gpus").cast(pl.Int64),
    )  # fmt: skip
    whole = pl.col("self_device_ns").sum()
    return rows.group_by("strategy", "count").agg(
        pl.when(whole > 0).then(
            pl.col("self_device_ns").filter(pl.col("part") == part).sum() / whole
        ).alias(f"{part}_frac")
        for part in ("computation", "communication", "other")
    )  # fmt: skip


# --- display -------------------------------------------------------------------------------------


def _verdict(result: EpochScaling) -> str:
    kind = "Weak" if result.weak else "Strong"
    texts = []
    for (strategy,), rows in result.sizes.group_by("strategy", maintain_order=True):
        if rows.height < 2:
            continue
        first, last = (rows.row(at, named=True) for at in (0, -1))
        texts.append(
            f"{strategy or 'all'}: {last['count']} {result.unit} are {last['speedup']:.3g} times "
            f"as fast as {first['count']} (ideal: {last['ideal_speedup']:.3g} times), parallel "
            f"efficiency {percent(last)}."
        )
    work = "the same work per GPU" if result.weak else "the same work per epoch"
    return sentences(
        f"{kind} scaling.",
        *texts,
        above_ideal(result.sizes, work, "count", result.unit.removesuffix("s")),
    )


def _notes(result: EpochScaling) -> Iterator[str]:
    yield (
        "From epoch times, without a timeline: traces of the runs show where the loss is "
        "(traceanalyzer scaling RUN4 RUN8)."
    )
    repeated = int((result.sizes["runs"] > 1).sum())
    if repeated:
        yield (
            f"{format_count(repeated, 'row')} with repeated runs: means; the spread is the largest "
            "minus the smallest mean epoch time."
        )
    if result.unit == "nodes":
        yield "The files have the number of nodes, not of GPUs; gpu-energy-data/ has both."
    if result.sizes["energy_wh"].count():
        yield "Energy is the sum of power x interval of all GPUs of a run, of its whole duration."
    if result.sizes["computation_frac"].count():
        yield (
            "Computation is the self device time of operators of PyTorch, communication that of "
            "NCCL; both may overlap."
        )


def _tables(result: EpochScaling) -> Iterator[Table]:
    named = [
        {key: text.format(unit=result.unit) for key, text in columns.items()}
        for columns in (_SIZES, _RUNS)
    ]
    yield table_of_known("sizes", "Speed-up", result.sizes, named[0])
    yield table_of_known("runs", "Runs", result.runs, named[1])


def _charts(result: EpochScaling) -> Iterator[Chart]:
    """Build the plots of itwinai: epoch time, speed-up, energy, utilisation, computation."""
    rows = result.sizes.with_columns(series=pl.col("strategy").fill_null("measured"))
    yield lines_of(
        "epoch_time",
        "Epoch time",
        _with_ideal(rows, "epoch_ns", "ideal_ns"),
        "epoch_ns",
        "epoch",
        unit=result.unit,
    )
    yield lines_of(
            "speedup", "Speed-up", _with_ideal(rows, "speedup", "ideal_speedup"), "speedup",
            "speed-up", unit=result.unit,
        )  # fmt: skip
    for column, title, label in (
        ("energy_wh", "Energy of a run", "energy [Wh]"),
        ("utilization_frac", "GPU utilisation", "utilisation"),
    ):
        known = rows.drop_nulls(column)
        if known.height:
            yield lines_of(column.rpartition("_")[0], title, known, column, label, unit=result.unit,
                         log_y=False)  # fmt: skip
    parts = rows.drop_nulls("computation_frac").unpivot(
        [f"{part}_frac" for part in ("computation", "communication", "other")],
        index=["series", "count"],
        variable_name="part",
        value_name="share_frac",
    )
    if parts.height:
        on = pl.format("{} {}", "series", "count")
        names = pl.col("part").str.strip_suffix("_frac")
        frame = parts.with_columns(on=on, part=names).sort("series", "count", maintain_order=True)
        yield stacked("computation", "Computation and other device time", frame, "on",
                    y="share_frac", x_label="", y_label="share")  # fmt: skip


def _with_ideal(rows: pl.DataFrame, column: str, ideal: str) -> pl.DataFrame:
    """Return the measured lines, and the ideal line of the strategy with most counts."""
    longest = rows.group_by("series").len().sort("len", "series", descending=[True, False])
    of_one = rows.filter(pl.col("series") == longest["series"][0])
    line = of_one.select("count", pl.col(ideal).alias(column), series=pl.lit("ideal"))
    return pl.concat([rows.select("count", column, "series"), line.cast({column: pl.Float64})])
