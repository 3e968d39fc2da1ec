"""FLOPs, modules and MFU in the profile that DeepSpeed's flops profiler prints."""

from functools import partial

import polars as pl

from traceanalyzer.analyzers.common.aggregates import wide
from traceanalyzer.analyzers.common.columns import largest_first, sum_if_known
from traceanalyzer.analyzers.common.display import bars
from traceanalyzer.analyzers.efficiency.peaks import Peaks, with_given
from traceanalyzer.analyzers.printed import Options
from traceanalyzer.analyzers.printed.result import Form, table
from traceanalyzer.drawings import Chart
from traceanalyzer.units import format_frac

_PROFILE, _BY_CLASS = FORMS = ("flops_profile", "flops_by_class")
_COUNTS = ("step", "world_size", "data_parallel", "model_parallel", "batch_size")
_TIMES = ("fwd_latency_ns", "bwd_latency_ns", "step_latency_ns", "iter_latency_ns")
_FIGURES = (
    "params", "model_params", "non_expert_params", "expert_params", "fwd_macs", "fwd_flops",
    "fwd_flops_per_s", "flops_per_s", "flops_factor", "samples_per_s",
)  # fmt: skip
_OF_MODEL = dict.fromkeys((*_COUNTS, *_TIMES), pl.Int64) | dict.fromkeys(_FIGURES, pl.Float64)
_OF_CLASSES = {
    "depth": pl.Int64,
    "params": pl.Float64,
    "fwd_macs": pl.Float64,
    "fwd_latency_ns": pl.Int64,
}
_KEYS = ["rank", "path", "block"]
#: Backward counts twice the FLOPs of forward, by convention.
_FORWARD_AND_BACKWARD = 3
_MEGA, _GIGA, _TERA = 1e6, 1e9, 1e12
#: A module with more than so many times the time of the model was not measured in pairs of hooks.
_IMPOSSIBLE = 2
_PROFILE_TABLE = (
    "step, batch_size: batch per GPU, params, fwd_gmacs: forward GMACs, fwd_gflop: forward GFLOP, "
    "fwd_latency_ns: forward, bwd_latency_ns: backward, step_latency_ns: optimizer, "
    "iter_latency_ns: step time, achieved_tflops: achieved, printed_tflops: as printed, "
    "mfu_frac: MFU, hfu_frac: HFU, samples_per_s: samples/s, world_size: world size"
)
_MODULE_TABLE = (
    "module, class, depth, fwd_latency_ns: forward, latency_frac: of forward, fwd_gmacs: GMACs, "
    "macs_frac: of MACs, params, achieved_tflops: achieved"
)
_LEAF_TABLE = "class, n: modules, fwd_latency_ns: forward, latency_frac: of forward"
_CLASS_TABLE = "depth, class, params, fwd_macs: forward MACs, fwd_latency_ns: forward"
_NOTE = (
    "DeepSpeed profiles one step, often of warm-up, and synchronises around every module: "
    "latencies add up to more than an ordinary step takes. FLOPs do not include flash attention, "
    "custom kernels and recomputation; backward counts twice forward."
)


def form(rows: pl.DataFrame, options: Options) -> Form | None:
    """Return the profiles, the modules by forward time, and the largest classes by depth.

    ``profiles``: the numbers of each profile, ``flops`` (3 x fwd_flops), ``achieved_tflops`` (flops
    / iter_latency_ns), ``printed_tflops`` (as the text has it), ``mfu_frac`` and ``hfu_frac`` (null
    without ``peak``). ``modules``: rank, path, profile, module, class, depth, params, fwd_macs,
    fwd_latency_ns, shares of the model, ``achieved_tflops`` (forward), has_children.
    ``leaf_classes``: sums over the modules without children. ``classes``: profile, depth, class,
    params, fwd_macs, fwd_latency_ns.
    """
    peaks = with_given(Peaks({}), options.peak, None).tflops
    peak = next(iter(peaks.values()), None)
    read = wide(rows, _PROFILE, _OF_MODEL)
    profiles = _profiles(read.filter(pl.col("row").is_null()), peak)
    modules, classes = _modules(rows, profiles), _classes(rows)
    leaves = _leaf_classes(modules)
    if profiles.is_empty() and modules.is_empty():
        return None
    profiles = profiles.rename({"block": "profile"})
    figures = profiles.filter(
        pl.any_horizontal(pl.col(name).is_not_null() for name in (*_TIMES, *_FIGURES))
    )
    tables = (
        table("profiles", "Flops profiles", figures, _PROFILE_TABLE),
        table("modules", "Modules by forward time", modules, _MODULE_TABLE),
        table("leaf_classes", "Modules without children by class", leaves, _LEAF_TABLE),
        table("classes", "Largest classes by depth", classes, _CLASS_TABLE, detail=True),
    )
    above = modules.filter(pl.col("latency_frac") > _IMPOSSIBLE).height
    impossible = f"{above:,} modules have more than twice the latency of the model, as printed."
    slowest = _slowest(profiles)
    names = ("achieved_tflops", "mfu_frac", "hfu_frac")
    return Form(
        tuple(one for one in tables if one.frame.height),
        _verdict(slowest, leaves) or _size(figures),
        (_NOTE, impossible) if above else (_NOTE,),
        {name: slowest[name] if slowest else None for name in names} | {"peak_tflops": peak},
        partial(_charts, modules),
    )


def _profiles(lines: pl.DataFrame, peak: float | None) -> pl.DataFrame:
    """Join the lines of each profile, and compute FLOP/s and MFU."""
    joined = lines.group_by(_KEYS, maintain_order=True).agg(
        pl.col(name).drop_nulls().first() for name in _OF_MODEL
    )
    flops = _FORWARD_AND_BACKWARD * pl.col("fwd_flops")
    seconds = pl.col("iter_latency_ns") / 1e9
    achieved = pl.when(seconds > 0).then(flops / seconds / _TERA)
    mfu = achieved / peak if peak else pl.lit(None, pl.Float64)
    return joined.with_columns(
        flops=flops,
        fwd_gmacs=pl.col("fwd_macs") / _GIGA,
        fwd_gflop=pl.col("fwd_flops") / _GIGA,
        achieved_tflops=achieved,
        printed_tflops=pl.col("flops_per_s") / _TERA,
        mfu_frac=mfu,
        hfu_frac=mfu * pl.col("flops_factor") / _FORWARD_AND_BACKWARD,
    )


def _modules(rows: pl.DataFrame, profiles: pl.DataFrame) -> pl.DataFrame:
    """Return the tree of modules by forward time, with shares of the model's time and MACs."""
    numbers = {**_OF_CLASSES, "fwd_flops_per_s": pl.Float64}
    read = wide(rows, _PROFILE, numbers, ("class",)).drop_nulls("row")
    whole = profiles.select(*_KEYS, whole_ns="fwd_latency_ns", whole_macs="fwd_macs")
    joined = read.join(whole, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    deeper = pl.col("depth").shift(-1).over(_KEYS) > pl.col("depth")
    shares = {
        "latency_frac": ("fwd_latency_ns", "whole_ns"),
        "macs_frac": ("fwd_macs", "whole_macs"),
    }
    modules = joined.select(
        "rank", "path", pl.col("block").alias("profile"), pl.col("name").alias("module"), "class",
        "depth", "params", "fwd_macs", "fwd_latency_ns", "line",
        fwd_gmacs=pl.col("fwd_macs") / _GIGA,
        achieved_tflops=pl.col("fwd_flops_per_s") / _TERA,
        has_children=deeper.fill_null(value=False),
        **{name: pl.when(pl.col(of) > 0).then(pl.col(part) / pl.col(of))
           for name, (part, of) in shares.items()},
    )  # fmt: skip
    return largest_first(modules, "fwd_latency_ns", "path", "line", nulls_last=True)


def _leaf_classes(modules: pl.DataFrame) -> pl.DataFrame:
    """Return the number and the forward time of the modules without children, by class."""
    leaves = modules.filter(~pl.col("has_children"))
    sums = leaves.group_by("rank", "path", "profile", "class", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("n"),
        *(sum_if_known(name) for name in ("fwd_latency_ns", "latency_frac")),
    )
    return largest_first(sums, "fwd_latency_ns", "rank", "path", "class", nulls_last=True)


def _classes(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the largest classes; one that is not among the largest of a figure has null there."""
    profile, kind = pl.col("block").alias("profile"), pl.col("name").alias("class")
    keys = ["rank", "path", profile, "depth", kind]
    figures = [pl.col(name).drop_nulls().first() for name in _OF_CLASSES if name != "depth"]
    return wide(rows, _BY_CLASS, _OF_CLASSES).group_by(keys, maintain_order=True).agg(figures)


def _slowest(profiles: pl.DataFrame) -> dict[str, float] | None:
    """Return the profile with a step time that is the longest."""
    known = profiles.drop_nulls("achieved_tflops")
    ordered = known.sort("iter_latency_ns", "path", descending=[True, False])
    return ordered.row(0, named=True) if ordered.height else None


def _verdict(slowest: dict[str, float] | None, leaves: pl.DataFrame) -> str:
    most = f"{leaves['class'][0]} takes the most forward time" if leaves.height else ""
    if slowest is None:
        return f"{most}." if most else ""
    speed = f"The profiled step achieves {slowest['achieved_tflops']:.4g} TFLOP/s per GPU"
    mfu = slowest["mfu_frac"]
    share = "" if mfu is None else f" (MFU {format_frac(mfu)})"
    return f"{speed}{share}{f'; {most}' if most else ''}."


def _size(figures: pl.DataFrame) -> str:
    """Return a sentence on a profile without times, such as a truncated one."""
    known = figures.drop_nulls("fwd_flops").sort("fwd_flops", descending=True)
    if known.is_empty():
        return ""
    flop, params = known.select("fwd_gflop", "params").row(0)
    of = "" if params is None else f", for {params / _MEGA:,.1f} million parameters"
    return f"The forward pass has {flop:,.1f} GFLOP per GPU{of}."


def _charts(modules: pl.DataFrame) -> tuple[Chart, ...]:
    """Build bars of the modules without children with most forward time."""
    leaves = modules.filter(~pl.col("has_children"))
    if leaves.is_empty():
        return ()
    title = "Modules by forward time"
    return (bars("modules", title, leaves, length="fwd_latency_ns", label="module",
                 x_label="forward"),)  # fmt: skip
