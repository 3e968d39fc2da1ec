"""Read launches or operators, combine files, and compare them with the roofs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common.kernel_names import short_names
from traceanalyzer.analyzers.efficiency import Options as EfficiencyOptions, compute as efficiency
from traceanalyzer.analyzers.efficiency.peaks import peaks_of, with_given
from traceanalyzer.analyzers.roofline import By, Options, metrics
from traceanalyzer.analyzers.roofline.metrics import (
    BALANCED,
    LATENCY_BELOW,
    LEVELS,
    NEAR_PEAK,
    SMALL_GRID,
    SUBSTRINGS,
)
from traceanalyzer.analyzers.roofline.result import (
    NOTHING_RECORDED,
    Roofline,
    missing,
    missing_peaks,
    mixed,
    no_shapes,
)
from traceanalyzer.errors import MissingData
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace
from traceanalyzer.vocabulary import NCU_CSV, NCU_REP, RANGE

_TERA, _GIGA = 1e12, 1e9
#: Levels in the order in which a tie of roofs is decided.
_LEVELS = tuple(LEVELS)
_RULE = ("rule", "rule_type", "section", "speedup_type")
TENSOR = " tensor"


#: The metrics of rooflines; operators with all their inputs, otherwise as ``efficiency``.
NEEDS: Needs = replace(
    efficiency.NEEDS,
    kinds={*efficiency.NEEDS.kinds, "metric", RANGE},
    metrics=SUBSTRINGS,
    inputs_of=frozenset(),
)


def _of_traces(options: Options) -> EfficiencyOptions:
    return EfficiencyOptions(
        peak=options.peak,
        bandwidth=options.bandwidths().get("HBM"),
        comm_patterns=options.comm_patterns,
    )


@dataclass(frozen=True)
class Part:
    """One file.

    Attributes:
        path: the file.
        launches: a report: one row per launch, see :func:`.launches.quantities`; else None.
        rules: the rules of ncu: kernel, grid, block, pid, id, launches, and the columns of
            ``metrics`` about rules.
        gpus: names of the GPUs by device.
        operators: a trace: the part of ``efficiency``; else None.
    """

    path: str
    launches: pl.DataFrame | None
    rules: pl.DataFrame
    gpus: Mapping[int, str]
    operators: efficiency.Part | None


def measure(trace: Trace, options: Options) -> Part:
    """Return the launches of a report, or the operators of a trace.

    Raises:
        MissingData: no metric that the analysis uses, no kernels, or no input shapes.
        OptionError: a pattern is not a regular expression.
    """
    meta, rows = trace.meta, trace.metrics
    if rows.is_empty() and meta.format not in (NCU_CSV, NCU_REP):
        trace.require("kernel")
        if "input_dims" not in trace.events.columns or not trace.events["input_dims"].count():
            raise MissingData(f"{meta.path}: {no_shapes(meta)}")
        part = efficiency.measure(trace, _of_traces(options))
        return Part(meta.path, None, pl.DataFrame(), {}, part)
    is_rule = pl.col("rule").is_not_null()
    texts_of = ("host", "kernel", "grid", "block", *_RULE)
    rules = rows.filter(is_rule).select(
        "pid",
        "id",
        "device",
        "launches",
        "speedup_frac",
        "text",  # long, and the same for many launches
        *(pl.col(c).cast(pl.String) for c in texts_of),
    )
    frame = metrics.quantities(rows)
    if len(frame.columns) == len(metrics.ABOUT) and rules.is_empty():
        raise MissingData(f"{meta.path}: {NOTHING_RECORDED}")
    gpus = {device.id: device.name for device in meta.devices if device.name}
    return Part(meta.path, frame, rules, gpus, None)


# --- all files -----------------------------------------------------------------------------------


def combine(parts: Sequence[Part], options: Options) -> Roofline:
    """Combine all files.

    Raises:
        MissingData: reports of Nsight Compute and traces together.
    """
    ordered = sorted(parts, key=lambda part: part.path)
    reports = [part for part in ordered if part.launches is not None]
    traces = [part for part in ordered if part.operators is not None]
    if reports and traces:
        raise MissingData(mixed(reports[0].path, traces[0].path))
    if reports:
        return _of_reports(reports, options)
    return _of_operators([part.operators for part in traces if part.operators], options)


def _of_reports(parts: Sequence[Part], options: Options) -> Roofline:
    """Return the roofline of launches or kernels."""
    named = {device: name for part in parts for device, name in part.gpus.items()}
    every = metrics.merged([(p.path, p.launches) for p in parts if p.launches is not None])
    rows = metrics.rates(every).with_columns(gpu=_gpu(named), time_ns=_scaled_time())
    keys = ["kernel", "gpu"]
    if options.by == "launch":
        keys += ["path", "host", "pid", "id", "grid", "block"]
    kernels = _aggregated(rows, keys)
    roofs = _roofs(rows, options)
    kernels = _labelled(_with_roofs(kernels, roofs), options)
    rules = _rules(parts, rows)
    has_time = kernels["time_ns"].is_not_null().any()
    order = ["time_ns", "work_tflops"] if has_time else ["work_tflops", "memory_frac"]
    kernels = kernels.sort(*order, "name", descending=[True, True, False], nulls_last=True)
    return Roofline(
        source="ncu",
        kernels=kernels,
        points=_points(kernels),
        roofs=roofs,
        rules=rules,
        missing=missing(kernels),
        launches=int(rows["launches"].sum()),
        tensor_counted=any(
            rows[name].count() for name in rows.columns if re.fullmatch("work .* tensor", name)
        ),
        packed_unknown=_packed_unknown(every),
    )


def _gpu(named: Mapping[int, str]) -> pl.Expr:
    """Return the name of the GPU, or its compute capability."""
    name = pl.col("device").replace_strict(
        list(named), list(named.values()), default=None, return_dtype=pl.String
    ) if named else pl.lit(None, pl.String)  # fmt: skip
    return pl.coalesce(name, pl.format("CC {}", "cc"), pl.lit("unknown GPU"))


def _scaled_time() -> pl.Expr:
    """Return the time of all launches of a row; a summary has the mean."""
    return (pl.col("time_ns") * pl.col("launches")).round().cast(pl.Int64)


def _aggregated(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return means weighted by time; launches without a time have equal weights."""
    weight = pl.coalesce("time_ns", pl.col("launches") if not rows["time_ns"].count() else None)
    weighted = rows.with_columns(weight=weight.cast(pl.Float64))
    kinds = ("work ", "traffic ")
    means = [name for name in rows.columns if name.startswith(kinds) or name.endswith("_frac")]
    sums = weighted.group_by(keys, maintain_order=True).agg(
        pl.col("launches").sum(),
        pl.when(pl.col("time_ns").is_not_null().any()).then(pl.col("time_ns").sum()),
        *(_mean(name).alias(name) for name in means),
        *(pl.col(name).max() for name in metrics.COUNTS),
    )  # fmt: skip
    total = sums["time_ns"].sum()
    return sums.with_columns(
        time_frac=pl.when(pl.lit(total > 0)).then(pl.col("time_ns") / max(total, 1))
    )


def _mean(name: str) -> pl.Expr:
    known = pl.col(name).is_not_null() & pl.col("weight").is_not_null()
    whole = pl.col("weight").filter(known).sum()
    mean = (pl.col(name) * pl.col("weight")).filter(known).sum() / whole
    return pl.when(known.any() & (whole > 0)).then(mean)


_ROOFS = {"gpu": pl.String, "kind": pl.String, "name": pl.String, "value": pl.Float64,
          "origin": pl.String}  # fmt: skip


def _roofs(rows: pl.DataFrame, options: Options) -> pl.DataFrame:
    """Return the peaks and bandwidths of each GPU: given, of ncu, or of the table.

    Returns:
        gpu, kind (``peak`` or ``bandwidth``), name (precision or level), value (FLOP/s, byte/s),
        origin (``given``, ``ncu`` or ``table``).
    """
    roofs = []
    prefixes = {"peak ": "peak", "roof ": "bandwidth"}
    bandwidths = options.bandwidths()
    for (gpu,), of_gpu in sorted(rows.group_by("gpu"), key=lambda pair: str(pair[0])):
        known: dict[tuple[str, str], tuple[float, str]] = {}
        table = peaks_of(str(gpu))
        for precision, tflops in table.tflops.items():
            known["peak", _data_sheet_name(precision)] = (tflops * _TERA, "table")
        if table.gbps:
            known["bandwidth", "HBM"] = (table.gbps * _GIGA, "table")
        for column in of_gpu.columns:
            kind = prefixes.get(column[:5])
            best = of_gpu[column].max() if kind else None
            if kind and isinstance(best, float) and best > 0:
                known[kind, column[5:]] = (best, "ncu")
        for precision, tflops in with_given(peaks_of(None), options.peak, None).tflops.items():
            known["peak", _data_sheet_name(precision)] = (tflops * _TERA, "given")
        for level, gbps in bandwidths.items():
            known["bandwidth", level] = (gbps * _GIGA, "given")
        roofs += [(gpu, *key, *value) for key, value in sorted(known.items())]
    return pl.DataFrame(roofs, schema=_ROOFS, orient="row")


def _data_sheet_name(precision: str) -> str:
    """Return the precision of a figure of a data sheet: 16 bits and less are of tensor cores."""
    return precision if precision in ("fp32", "fp64") else f"{precision}{TENSOR}"


def _with_roofs(kernels: pl.DataFrame, roofs: pl.DataFrame) -> pl.DataFrame:
    """Add work, precision, intensities, roof, limit, and the bound by ncu's rule."""
    works = [name for name in kernels.columns if name.startswith("work ")]
    counted = [name for name in works if not name.removeprefix("work ").startswith(("int", "u"))]
    whole = [*counted] or works
    rows = kernels.with_columns(
        # A counter of tensor cores that is zero does not say that there was no other work.
        work=pl.when((pl.sum_horizontal(whole) > 0) | pl.col("work fp32").is_not_null())
        .then(pl.sum_horizontal(whole)),
        precision=_largest(whole),
    )  # fmt: skip
    peaks = roofs.filter(pl.col("kind") == "peak").select("gpu", precision="name", peak="value")
    rows = rows.join(peaks, on=["gpu", "precision"], how="left", maintain_order="left")
    bounds: dict[str, pl.Expr] = {"compute": pl.col("peak")}
    for level in _LEVELS:
        of_level = roofs.filter(kind="bandwidth", name=level).select(
            "gpu", **{f"bw {level}": "value"}
        )
        rows = rows.join(of_level, on="gpu", how="left", maintain_order="left")
        traffic = pl.col(f"traffic {level}")
        rows = rows.with_columns(
            (pl.col("work") / pl.when(traffic > 0).then(traffic)).alias(f"intensity {level}")
        )
        bounds[level] = pl.col(f"intensity {level}") * pl.col(f"bw {level}")
    rows = rows.with_columns(roof=pl.min_horizontal(*bounds.values()))
    limit = pl.coalesce(
        *(pl.when(expr == pl.col("roof")).then(pl.lit(name)) for name, expr in bounds.items())
    )
    is_drawn = pl.col("work") > 0
    return rows.with_columns(
        limit=pl.when(is_drawn).then(limit),
        roof_frac=pl.when(is_drawn).then(pl.col("work") / pl.col("roof")),
        work_tflops=pl.col("work") / _TERA,
        roof_tflops=pl.when(is_drawn).then(pl.col("roof") / _TERA),
        bound=_bound(),
        **{f"{level.lower()}_intensity": pl.col(f"intensity {level}") for level in _LEVELS},
        **{f"{level.lower()}_gbps": pl.col(f"traffic {level}") / _GIGA for level in _LEVELS},
    )


def _largest(works: list[str]) -> pl.Expr:
    """Return the precision with the most work; the first of equal ones, null without work."""
    most = pl.max_horizontal(works)
    return pl.coalesce(
        *(
            pl.when((pl.col(name) == most) & (most > 0)).then(pl.lit(name.removeprefix("work ")))
            for name in works
        )
    )


def _bound() -> pl.Expr:
    """Return what limits a kernel by ncu's rule ``SOLBottleneck``."""
    sm, memory = pl.col("sm_frac"), pl.col("memory_frac")
    larger = pl.when(sm >= memory).then(pl.lit("compute")).otherwise(pl.lit("memory"))
    low = (sm < LATENCY_BELOW) & (memory < LATENCY_BELOW)
    close = ((sm - memory).abs() < BALANCED) & ~((sm >= NEAR_PEAK) | (memory >= NEAR_PEAK))
    return (
        pl.when(sm.is_null() | memory.is_null()).then(None)
        .when(low & (pl.col("waves") < SMALL_GRID)).then(pl.lit("latency (small grid)"))
        .when(low).then(pl.lit("latency"))
        .when(close).then(pl.lit("balanced"))
        .otherwise(larger)
    )  # fmt: skip


def _labelled(kernels: pl.DataFrame, options: Options) -> pl.DataFrame:
    """Return the columns of the result, with a short unique name of each kernel."""
    kernels = kernels.with_columns(pl.col("kernel").fill_null("all kernels"))
    short = short_names(kernels["kernel"].to_list())
    name = pl.col("kernel").replace_strict(short, return_dtype=pl.String)
    if options.by == "launch":
        name = pl.format("{} #{}", name, pl.coalesce(pl.col("id"), pl.int_range(pl.len())))
    elif kernels["gpu"].n_unique() > 1:
        name = pl.format("{} ({})", name, "gpu")
    fracs = [f"{one}_frac" for one in metrics.PERCENTAGES]
    levels = [level.lower() for level in _LEVELS]
    return kernels.with_columns(name=name).select(
        "name", "kernel", "gpu", "launches", "time_ns", "time_frac", "precision", "work_tflops",
        *(f"{level}_intensity" for level in levels), *(f"{level}_gbps" for level in levels),
        "roof_tflops", "roof_frac", "limit", "bound", *fracs, *metrics.COUNTS,
    )  # fmt: skip


def _points(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return one row per kernel and level of memory with work and traffic."""
    levels = [
        kernels.select(
            "name", "gpu", "precision", "time_ns",
            level=pl.lit(level), intensity=pl.col(f"{level.lower()}_intensity"),
            work_tflops="work_tflops",
        )
        for level in _LEVELS
    ]  # fmt: skip
    known = (pl.col("work_tflops") > 0) & (pl.col("intensity") > 0)
    return pl.concat(levels).filter(known.fill_null(value=False))


def _rules(parts: Sequence[Part], rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rules of all kernels by estimated time saved.

    Pages of one report repeat the rules of a launch: they count once.
    """
    frames = [
        part.rules.with_columns(path=pl.lit(part.path)) for part in parts if part.rules.height
    ]
    types = {"number": pl.Int64, "name": pl.String, "rule": pl.String, "launches": pl.Int64,
             "speedup_frac": pl.Float64, "speedup_type": pl.String, "rule_type": pl.String,
             "saved_ns": pl.Float64, "text": pl.String}  # fmt: skip
    if not frames:
        return pl.DataFrame(schema=types)
    every = pl.concat(frames)
    identity = [*metrics.IDENTITY, *_RULE, "text"]
    known = pl.col("pid").is_not_null() & pl.col("id").is_not_null()
    once = pl.concat(
        [every.filter(known).unique(identity, maintain_order=True), every.filter(~known)]
    )
    times = rows.select(*metrics.IDENTITY, "time_ns").unique(metrics.IDENTITY, maintain_order=True)
    timed = once.join(times, on=metrics.IDENTITY, how="left", nulls_equal=True)
    timed = timed.with_columns(
        kernel=pl.col("kernel").fill_null("all kernels"),
        saved=pl.when(pl.col("speedup_type") == "global")
        .then(pl.col("speedup_frac") * pl.col("time_ns")),
    )  # fmt: skip
    short = short_names(timed["kernel"].to_list())
    sums = timed.with_columns(
        name=pl.col("kernel").replace_strict(short, return_dtype=pl.String)
    ).with_columns(
        # a rule can have several messages about a launch
        message=pl.int_range(pl.len()).over(*metrics.IDENTITY, "path", "rule", "rule_type")
    ).group_by("name", "rule", "rule_type", "speedup_type", "message").agg(
        pl.col("launches").sum(),
        pl.col("speedup_frac").mean(),
        saved_ns=pl.when(pl.col("saved").is_not_null().any()).then(pl.col("saved").sum()),
        text=pl.col("text").sort_by("speedup_frac", "text", descending=[True, False],
                                    nulls_last=True).first().cast(pl.String),
    )  # fmt: skip
    ordered = sums.sort(
        "saved_ns", "speedup_frac", "name", "rule", "text",
        descending=[True, True, False, False, False], nulls_last=True,
    )  # fmt: skip
    numbered = ordered.with_row_index("number", offset=1)
    return numbered.select(pl.col(name).cast(dtype) for name, dtype in types.items())


def _packed_unknown(rows: pl.DataFrame) -> bool:
    """Whether FP32 work of a Blackwell GPU lacks the packed operations."""
    major = rows["cc"].str.extract(r"^(\d+)").cast(pl.Int32, strict=False)
    counted = {"count ffma", "rate ffma"} & set(rows.columns)
    packed = {"count ffma2", "rate ffma2"} & set(rows.columns)
    return bool((major >= 10).any()) and bool(counted) and not packed


# --- operators of traces -------------------------------------------------------------------------


def _of_operators(parts: Sequence[efficiency.Part], options: Options) -> Roofline:
    """Return the roofline of operators, with the FLOPs, bytes and peaks of ``efficiency``."""
    result = efficiency.combine(parts, _of_traces(options))
    calls = pl.col("calls").cast(pl.Float64)
    name = pl.concat_str("operator", "shape", "precision", separator=" ", ignore_nulls=True)
    if result.operators["gpu"].n_unique() > 1:
        name = pl.concat_str(name, pl.format(" ({})", "gpu"), ignore_nulls=True)
    rows = result.operators.with_columns(
        kernel=pl.col("operator"),
        launches=pl.col("kernels"),
        time_ns=pl.col("device_ns"),
        time_frac=pl.col("device_ns") / max(result.kernel_ns, 1),
        name=name,
        hbm_intensity=pl.col("flops") / pl.when(pl.col("bytes") > 0).then(pl.col("bytes")),
        work_tflops=pl.col("achieved_tflops"),
        hbm_gbps=pl.col("achieved_gbps"),
        roof_tflops=pl.col("flops") * calls / pl.when(pl.col("roof_ns") > 0).then("roof_ns") / 1e3,
        gpu=pl.col("gpu").fill_null("unknown GPU"),
    )
    nothing = pl.lit(None, pl.Float64)
    empty = [f"{one}_frac" for one in metrics.PERCENTAGES]
    kernels = rows.select(
        "name", "kernel", "gpu", "launches", "time_ns", "time_frac", "precision", "work_tflops",
        "hbm_intensity", nothing.alias("l2_intensity"), nothing.alias("l1_intensity"),
        "hbm_gbps", nothing.alias("l2_gbps"), nothing.alias("l1_gbps"),
        "roof_tflops", "roof_frac", pl.lit(None, pl.String).alias("limit"), "bound",
        *(nothing.alias(one) for one in (*empty, *metrics.COUNTS)),
    ).sort("time_ns", "name", descending=[True, False])  # fmt: skip
    return Roofline(
        source="trace",
        kernels=kernels,
        points=_points(kernels),
        roofs=_roofs_of_operators(result.peaks, options),
        rules=_rules([], kernels),
        missing=missing_peaks(result.peaks, result.operators),
        launches=int(kernels["launches"].sum()),
        covered_frac=result.covered_frac,
    )


def _roofs_of_operators(peaks: pl.DataFrame, options: Options) -> pl.DataFrame:
    given = {text.partition("=")[0].strip().lower() for text in options.peak}
    rows = []
    for row in peaks.iter_rows(named=True):
        gpu = row["gpu"] or "unknown GPU"
        if row["precision"] and row["peak_tflops"]:
            origin = "given" if row["precision"] in given else "table"
            rows.append((gpu, "peak", row["precision"], row["peak_tflops"] * _TERA, origin))
        if row["peak_gbps"]:
            origin = "given" if "HBM" in options.bandwidths() else "table"
            rows.append((gpu, "bandwidth", "HBM", row["peak_gbps"] * _GIGA, origin))
    return pl.DataFrame(rows, schema=_ROOFS, orient="row").unique(maintain_order=True)


ROOFLINE = Analyzer("roofline", Options, NEEDS, measure, combine)


def roofline(
    inputs: Inputs,
    *,
    by: By = "kernel",
    peak: str | Sequence[str] = (),
    bandwidth: str | Sequence[str] = (),
    comm_patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Roofline:
    """Return FLOP/s over arithmetic intensity of kernels or operators, and their roofs.

    Reports of Nsight Compute give kernels with the traffic of HBM, L2 and L1, the speed of light,
    occupancy and the rules of ncu. Its times are measured with locked clocks while kernels are
    replayed, and are never combined with those of traces. Traces give operators with the FLOPs and
    bytes of ``efficiency``.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        by: points of a report of Nsight Compute: ``kernel``, or each ``launch``.
        peak: dense peaks as ``PRECISION=TFLOPS``; they override those of the report and the table.
        bandwidth: bandwidths as ``LEVEL=GBPS``, such as ``HBM=3350``; a number alone is HBM.
        comm_patterns: regular expressions of additional communication kernels, not counted.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no metric of a roofline and no speed of light, no input shapes in a trace, or
            reports and traces together.
        OptionError: a peak, a bandwidth or a regular expression is not valid.
    """
    return run(ROOFLINE, inputs, Options(by, peak, bandwidth, comm_patterns), **reading)
