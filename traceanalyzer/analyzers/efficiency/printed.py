"""FLOPs, modules and MFU from the profile that DeepSpeed's flops profiler prints."""

from dataclasses import dataclass
from functools import partial

import polars as pl

from traceanalyzer.analyzers.common import printed
from traceanalyzer.analyzers.common.display import (
    bars,
    headings,
    rank_column,
    sentences,
    table_of_known,
)
from traceanalyzer.analyzers.efficiency.options import Options
from traceanalyzer.analyzers.efficiency.peaks import Peaks, with_given
from traceanalyzer.analyzers.efficiency.result import Efficiency
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Table, View
from traceanalyzer.units import format_frac, format_ns

_PROFILE, _BY_CLASS = "flops_profile", "flops_by_class"
_COUNTS = ("step", "world_size", "data_parallel", "model_parallel", "batch_size")
_TIMES = ("fwd_latency_ns", "bwd_latency_ns", "step_latency_ns", "iter_latency_ns")
_FIGURES = (
    "params", "model_params", "non_expert_params", "expert_params", "fwd_macs", "fwd_flops",
    "fwd_flops_per_s", "flops_per_s", "flops_factor", "samples_per_s",
)  # fmt: skip
_OF_MODEL = {
    **dict.fromkeys(_COUNTS, pl.Int64),
    **dict.fromkeys(_TIMES, pl.Int64),
    **dict.fromkeys(_FIGURES, pl.Float64),
}
_OF_MODULES = {
    "depth": pl.Int64,
    "params": pl.Float64,
    "fwd_macs": pl.Float64,
    "fwd_latency_ns": pl.Int64,
    "fwd_flops_per_s": pl.Float64,
}
#: Backward counts twice the FLOPs of forward, by convention.
_FORWARD_AND_BACKWARD = 3
_GIGA, _TERA = 1e9, 1e12
_PROFILER_NOTE = (
    "DeepSpeed profiles one step, often of warm-up, and synchronises around every module: "
    "latencies add up to more than an ordinary step takes. FLOPs do not include flash attention, "
    "custom kernels and recomputation; backward counts twice forward."
)
#: Columns of ``ranks`` of a recording.
RANKS = {
    "rank": pl.Int32,
    "path": pl.String,
    "gpu": pl.String,
    "steps": pl.Int64,
    "step_ns": pl.Int64,
    "flops": pl.Float64,
    **dict.fromkeys(
        ("recomputed_frac", "mfu_frac", "hfu_frac", "mfu_6nt_frac", "tensor_frac", "covered_frac"),
        pl.Float64,
    ),
}
_PROFILE_TABLE = headings(
    "step, batch_size: batch per GPU, params, fwd_gmacs: forward GMACs, fwd_gflop: forward GFLOP, "
    "fwd_latency_ns: forward, bwd_latency_ns: backward, step_latency_ns: optimizer, "
    "iter_latency_ns: step time, achieved_tflops: achieved, printed_tflops: as printed, "
    "mfu_frac: MFU, samples_per_s: samples/s"
)
_MODULE_TABLE = headings(
    "module, class, depth, fwd_latency_ns: forward, latency_frac: of forward, fwd_gmacs: GMACs, "
    "macs_frac: of MACs, params, achieved_tflops: achieved"
)
_CLASS_TABLE = headings("depth, class, params, fwd_macs: forward MACs, fwd_latency_ns: forward")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PrintedEfficiency(Efficiency):
    """FLOPs and MFU of profiles of DeepSpeed's flops profiler.

    As :class:`~.result.Efficiency`, whose tables of kernels and operators are empty.

    Attributes:
        profiles: one row per profile: rank, path, step, world_size, data_parallel,
            model_parallel, batch_size (per GPU); params, fwd_macs, fwd_flops (per GPU),
            model_params, non_expert_params, expert_params; fwd_latency_ns, bwd_latency_ns,
            step_latency_ns, iter_latency_ns (null without wall_clock_breakdown); samples_per_s;
            flops (3 x fwd_flops), achieved_tflops (flops / iter_latency_ns), printed_tflops (as
            the text has it), mfu_frac (null without ``peak``).
        modules: one row per module: rank, path, profile (number of its profile), module (path in
            the model), class, depth, params, fwd_macs, fwd_latency_ns, latency_frac and macs_frac
            (of the whole model), achieved_tflops (forward), has_children; in the order of the text.
        classes: the largest classes by depth: rank, path, profile, depth, class, params, fwd_macs,
            fwd_latency_ns (null if the class is not one of the largest in it).
        ranks: one row per profile, as in a recording: ``flops`` and ``mfu_frac`` of the model,
            ``hfu_frac`` with the factor of recomputation that the text has.
        peak_tflops: the peak that MFU is relative to, or None.
    """

    profiles: pl.DataFrame
    modules: pl.DataFrame
    classes: pl.DataFrame
    peak_tflops: float | None

    def view(self) -> View:
        """Build the view: profiles, modules, classes; bars of modules by forward time."""
        return View(
            title="How close to the peak of the GPU?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=_tables(self),
            scalars=self.numbers("precision", "mfu_frac", "hfu_frac", "peak_tflops"),
            charts=partial(_charts, self.modules),
        )


def combine(rows: pl.DataFrame, options: Options) -> PrintedEfficiency:
    """Return the profiles and modules; MFU needs a peak, because the text does not name the GPU."""
    peaks = with_given(Peaks({}), options.peak, options.bandwidth)
    given = next(iter(peaks.tflops), "bf16")
    precision = options.precision or given
    peak = peaks.tflops.get(precision)
    table = printed.wide(rows, _PROFILE, _OF_MODEL)
    profiles = _profiles(table.filter(pl.col("row").is_null()), peak)
    empty = printed.blank(Efficiency)
    return PrintedEfficiency(
        **empty | {"precision": precision, "ranks": _ranks(profiles, peak)},
        profiles=profiles.drop("block"),
        modules=_modules(rows, profiles),
        classes=_classes(rows),
        peak_tflops=peak,
    )


def _profiles(table: pl.DataFrame, peak: float | None) -> pl.DataFrame:
    """Join the lines of each profile, and compute FLOP/s and MFU."""
    keys = ["rank", "path", "block"]
    joined = table.group_by(keys, maintain_order=True).agg(
        pl.col(name).drop_nulls().first() for name in _OF_MODEL
    )
    flops = _FORWARD_AND_BACKWARD * pl.col("fwd_flops")
    seconds = pl.col("iter_latency_ns") / 1e9
    achieved = pl.when(seconds > 0).then(flops / seconds / _TERA)
    return joined.with_columns(
        flops=flops,
        fwd_gmacs=pl.col("fwd_macs") / _GIGA,
        fwd_gflop=pl.col("fwd_flops") / _GIGA,
        achieved_tflops=achieved,
        printed_tflops=pl.col("flops_per_s") / _TERA,
        mfu_frac=achieved / peak if peak else pl.lit(None, pl.Float64),
    )


def _ranks(profiles: pl.DataFrame, peak: float | None) -> pl.DataFrame:
    """Return the profiles with a step time in the columns of a recording."""
    again = pl.col("flops_factor") / _FORWARD_AND_BACKWARD
    known = profiles.filter(pl.col("iter_latency_ns") > 0)
    rows = known.select(
        "rank", "path", "flops", "mfu_frac",
        steps=pl.lit(1), step_ns="iter_latency_ns",
        recomputed_frac=again - 1,
        hfu_frac=pl.col("mfu_frac") * again if peak else pl.lit(None, pl.Float64),
    )  # fmt: skip
    empty = pl.DataFrame(schema=RANKS)
    return pl.concat([empty, rows], how="diagonal_relaxed").select(
        pl.col(name).cast(dtype) for name, dtype in RANKS.items()
    )


def _modules(rows: pl.DataFrame, profiles: pl.DataFrame) -> pl.DataFrame:
    """Return the tree of modules, with shares of the model's forward time and MACs."""
    table = printed.wide(rows, _PROFILE, _OF_MODULES, ("class",)).drop_nulls("row")
    keys = ["rank", "path", "block"]
    whole = profiles.select(*keys, whole_ns="fwd_latency_ns", whole_macs="fwd_macs")
    joined = table.join(whole, on=keys, how="left", nulls_equal=True, maintain_order="left")
    deeper = pl.col("depth").shift(-1).over(keys) > pl.col("depth")
    return joined.select(
        "rank", "path", pl.col("block").alias("profile"), pl.col("name").alias("module"), "class",
        "depth", "params", "fwd_macs", "fwd_latency_ns", fwd_gmacs=pl.col("fwd_macs") / _GIGA,
        latency_frac=pl.col("fwd_latency_ns") / pl.col("whole_ns"),
        macs_frac=pl.when(pl.col("whole_macs") > 0).then(pl.col("fwd_macs") / pl.col("whole_macs")),
        achieved_tflops=pl.col("fwd_flops_per_s") / _TERA,
        has_children=deeper.fill_null(value=False),
    )  # fmt: skip


def _classes(rows: pl.DataFrame) -> pl.DataFrame:
    table = printed.wide(
        rows, _BY_CLASS, {n: t for n, t in _OF_MODULES.items() if n != "fwd_flops_per_s"}
    )
    keys = [
        "rank",
        "path",
        pl.col("block").alias("profile"),
        "depth",
        pl.col("name").alias("class"),
    ]
    figures = [
        pl.col(name).drop_nulls().first() for name in ("params", "fwd_macs", "fwd_latency_ns")
    ]
    return table.group_by(keys, maintain_order=True).agg(figures)


# --- words -------------------------------------------------------------------------------------


def _verdict(result: PrintedEfficiency) -> str:
    known = result.profiles.filter(pl.col("achieved_tflops").is_not_null())
    if known.is_empty():
        return sentences(
            "Step times were not printed, so FLOP/s and MFU are unknown: set wall_clock_breakdown.",
            _heaviest(result.modules),
        )
    row = known.sort("iter_latency_ns", descending=True).row(0, named=True)
    speed = (
        f"{row['achieved_tflops']:.4g} TFLOP/s per GPU in step {row['step']} "
        f"({format_ns(row['iter_latency_ns'])})"
    )
    if result.mfu_frac is None:
        share = "MFU is unknown: the text does not name the GPU; give --peak bf16=TFLOPS (dense)."
        return sentences(f"{speed}.", share, _heaviest(result.modules))
    share = f"MFU {format_frac(result.mfu_frac)} of {result.peak_tflops:g} TFLOP/s"
    return sentences(f"{share} ({result.precision}): {speed}.", _heaviest(result.modules))


def _heaviest(modules: pl.DataFrame) -> str:
    """Name the leaf class with most forward time: means over profiles, of other ranks or models."""
    leaves = modules.filter(~pl.col("has_children"), pl.col("fwd_latency_ns") > 0)
    if leaves.is_empty():
        return ""
    keys = ("rank", "path", "profile")
    n = leaves.select(keys).n_unique()
    n_shares = leaves.drop_nulls("latency_frac").select(keys).n_unique()
    by_class = leaves.group_by("class").agg(pl.col("fwd_latency_ns", "latency_frac").sum())
    row = by_class.sort("fwd_latency_ns", "class", descending=[True, False]).row(0, named=True)
    parts = [format_frac(row["latency_frac"] / n_shares)] if n_shares else []
    parts += [f"mean of {n} profiles"] if n > 1 else []
    share = f" ({', '.join(parts)})" if parts else ""
    return (
        f"Modules with the most forward time: {row['class']}, "
        f"{format_ns(round(row['fwd_latency_ns'] / n))}{share}."
    )


def _notes(result: PrintedEfficiency) -> tuple[str, ...]:
    notes = [printed.NOTE, _PROFILER_NOTE]
    above = result.modules.filter(pl.col("latency_frac") > 2).height
    if above:
        notes.append(
            f"{above} modules have a latency of more than twice the model's, as printed: their "
            "hooks were not called in pairs."
        )
    return tuple(notes)


def _tables(result: PrintedEfficiency) -> tuple[Table, ...]:
    by = rank_column(result.profiles)
    profiles = result.profiles.filter(pl.col("fwd_flops").is_not_null())
    tables = [table_of_known("profiles", "Profiles", profiles, {**by, **_PROFILE_TABLE})]
    modules = result.modules.sort("fwd_latency_ns", descending=True, nulls_last=True,
                                  maintain_order=True)  # fmt: skip
    if modules.height:
        tables.append(table_of_known("modules", "Modules by forward time", modules, _MODULE_TABLE))
    if result.classes.height:
        tables.append(
            table_of_known("classes", "Largest classes by depth", result.classes, _CLASS_TABLE,
                           detail=True)
        )  # fmt: skip
    return tuple(tables)


def _charts(modules: pl.DataFrame) -> tuple[Chart, ...]:
    """Build bars of the modules without children with most forward time."""
    leaves = modules.filter(~pl.col("has_children")).sort(
        "fwd_latency_ns", "module", descending=[True, False], nulls_last=True
    )
    if leaves.is_empty():
        return ()
    title = "Modules by forward time"
    return (bars("modules", title, leaves, length="fwd_latency_ns", label="module",
                 x_label="forward"),)  # fmt: skip
