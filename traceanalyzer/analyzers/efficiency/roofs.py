"""The roofline: the least time of each operator on its GPU, and what limits it."""

from collections.abc import Iterable, Mapping

import polars as pl

from traceanalyzer.analyzers.common.columns import largest_first, ratio
from traceanalyzer.analyzers.efficiency import Options
from traceanalyzer.analyzers.efficiency.formulas import MATRIX
from traceanalyzer.analyzers.efficiency.peaks import TENSOR, Peaks, peaks_of, with_given

PeaksByGpu = Mapping[str | None, Peaks]

#: The host needs about this time to launch a kernel: shorter kernels cannot keep the GPU busy.
LAUNCH_NS = 5_000

#: Products below this share of the roof get a reason.
FAR_FROM_ROOF = 0.5

#: Rows and columns of the output that one multiprocessor computes at a time, at most.
_TILE = 128
#: Bytes that rows of matrices must be multiples of, for the fastest kernels (NVIDIA's Deep
#: Learning Performance guide, "Matrix Multiplication": 16 bytes).
_ALIGNED_BYTES = 16
_WIDTH = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}

_HELPERS = ("is_compute", "vector", "units", "has_tf32", "batch", "rows", "columns", "inner")

#: Stands for the peaks of an unknown GPU.
_NO_PEAK: list[tuple[str | None, float | None]] = [(None, None)]

NO_TF32, UNALIGNED, SMALL = "FP32 without TF32", "unaligned", "small"
COMPUTE, MEMORY, LAUNCH = "compute", "memory", "launch"

#: What to try for each finding, in the order in which an operator is assigned to one.
ADVICE = {
    NO_TF32: "allow TF32, or torch.autocast",
    UNALIGNED: "pad sizes to multiples of 16 bytes",
    SMALL: "batch or fuse products",
    LAUNCH: "torch.compile, or CUDA graphs",
    MEMORY: "fuse operators (torch.compile)",
}


def by_gpu(gpus: Iterable[str | None], options: Options) -> PeaksByGpu:
    """Return the peaks of each GPU, with those that the user gave."""
    return {gpu: with_given(peaks_of(gpu), options.peak, options.bandwidth) for gpu in gpus}


def peak(peaks: PeaksByGpu, gpu: str | None, precision: str) -> float | None:
    """Return a peak in TFLOP/s, or None if it is unknown."""
    return peaks[gpu].tflops.get(precision)


def table(peaks: PeaksByGpu) -> pl.DataFrame:
    """Return gpu, precision, peak_tflops, peak_gbps, units, origin: one row per known peak."""
    types = {
        "gpu": pl.String,
        "precision": pl.String,
        "peak_tflops": pl.Float64,
        "peak_gbps": pl.Float64,
        "units": pl.Int64,
        "origin": pl.String,
    }
    rows = [
        (gpu, precision, tflops, of.gbps, of.units, of.origin)
        for gpu, of in sorted(peaks.items(), key=lambda pair: pair[0] or "")
        for precision, tflops in [*sorted(of.tflops.items())] or _NO_PEAK
    ]
    return pl.DataFrame(rows, schema=types, orient="row")


def utilisation(time: str) -> list[pl.Expr]:
    """Return mfu_frac and hfu_frac: FLOPs over a time and a peak in TFLOP/s."""
    whole = pl.col("peak") * pl.col(time) * 1e3
    model, again = pl.col("model_flops"), pl.col("recomputed_flops")
    known = pl.when((whole > 0) & (model + again > 0))
    return [
        known.then(model / whole).alias("mfu_frac"),
        known.then((model + again) / whole).alias("hfu_frac"),
    ]


def with_roofs(rows: pl.DataFrame, peaks: PeaksByGpu) -> pl.DataFrame:
    """Add achieved_tflops, achieved_gbps, roof_ns, roof_frac, bound, lost_ns and why.

    The roof is the larger of FLOPs / peak and bytes / bandwidth, for all calls. Null if a peak that
    it needs is unknown: that of the precision for products, the bandwidth for all.

    Args:
        rows: operator, the columns of :data:`.calls.WORK`, gpu, calls, kernels, device_ns.
        peaks: peaks of each GPU.

    Returns:
        The rows, most lost time first (without peaks: most device time).
    """
    known = table(peaks)
    of_gpu = known.group_by("gpu").agg(
        pl.col("peak_gbps", "units").first(), has_tf32=(pl.col("precision") == "tf32").any()
    )
    vector = known.filter(pl.col("precision") == "fp32").select("gpu", vector="peak_tflops")
    tflops = known.drop_nulls("precision").select("gpu", "precision", "peak_tflops")
    joined = rows.join(of_gpu, on="gpu", how="left", nulls_equal=True)
    joined = joined.join(vector, on="gpu", how="left", nulls_equal=True)
    joined = joined.join(tflops, on=["gpu", "precision"], how="left", nulls_equal=True)
    is_matrix = pl.col("kind").is_in(MATRIX)
    calls = pl.col("calls").cast(pl.Float64)
    limit = pl.when(is_matrix).then("peak_tflops").otherwise("vector")
    compute = pl.col("flops") * calls / (limit * 1e3)
    memory = pl.col("bytes") * calls / pl.col("peak_gbps")
    enough = memory.is_not_null() & (compute.is_not_null() | ~is_matrix)
    roof = pl.when(enough).then(pl.max_horizontal(compute, memory))
    device = pl.col("device_ns").cast(pl.Float64)
    timed = pl.when(device > 0)
    measured = joined.with_columns(
        achieved_tflops=timed.then(pl.col("flops") * calls / device / 1e3),
        achieved_gbps=timed.then(pl.col("bytes") * calls / device),
        roof_ns=roof.round().cast(pl.Int64),
        is_compute=compute > memory,
    )
    return _ordered(_explained(measured, roof / device)).drop(_HELPERS)


def _explained(rows: pl.DataFrame, frac: pl.Expr) -> pl.DataFrame:
    """Add roof_frac, bound, lost_ns and why."""
    per_kernel = pl.col("device_ns") / pl.col("kernels")
    bound = (
        pl.when(per_kernel < LAUNCH_NS).then(pl.lit(LAUNCH))
        .when(pl.col("is_compute").fill_null(value=False)).then(pl.lit(COMPUTE))
        .otherwise(pl.lit(MEMORY))
    )  # fmt: skip
    known = pl.when(pl.col("roof_ns").is_not_null() & (pl.col("device_ns") > 0))
    lost = (pl.col("device_ns") - pl.col("roof_ns")).clip(0)
    rows = rows.with_columns(
        roof_frac=known.then(frac), bound=known.then(bound), lost_ns=known.then(lost)
    )
    return rows.with_columns(why=_why())


def _why() -> pl.Expr:
    """Return why a product is slow: its type, or small or unaligned matrices."""
    is_matrix = pl.col("kind").is_in(MATRIX)
    far = is_matrix & (pl.col("roof_frac") < FAR_FROM_ROOF)
    width = pl.col("precision").replace_strict(_WIDTH, default=None, return_dtype=pl.Int64)
    is_unaligned = pl.any_horizontal(
        (pl.col(name) * width) % _ALIGNED_BYTES != 0 for name in ("columns", "inner")
    )
    tiles = pl.col("batch")
    for name in ("rows", "columns"):
        tiles = tiles * ((pl.col(name) + _TILE - 1) // _TILE)
    plain = is_matrix & (pl.col("precision") == "fp32") & pl.col("has_tf32")
    reasons = [
        pl.when(plain).then(pl.lit(NO_TF32)),
        pl.when(far & pl.col("precision").is_in(TENSOR) & is_unaligned).then(pl.lit(UNALIGNED)),
        pl.when(far & (tiles < pl.col("units"))).then(pl.lit(SMALL)),
    ]
    text = pl.concat_str(reasons, separator=", ", ignore_nulls=True)
    return pl.when(text != "").then(text)


def findings(rows: pl.DataFrame, kernel_ns: int) -> pl.DataFrame:
    """Return the reasons for lost time; each operator counts for the first that applies.

    Returns:
        finding (a key of :data:`ADVICE`), calls, device_ns, kernel_frac, lost_ns, advice; most lost
        time first.
    """
    finding = pl.coalesce(
        *(pl.when(pl.col("why").str.contains(why, literal=True)).then(pl.lit(why))
          for why in (NO_TF32, UNALIGNED, SMALL)),
        pl.when(pl.col("bound") != COMPUTE).then("bound"),
    )  # fmt: skip
    sums = rows.with_columns(finding=finding).drop_nulls("finding").group_by("finding")
    summed = sums.agg(pl.col("calls", "device_ns", "lost_ns").sum()).with_columns(
        kernel_frac=ratio("device_ns", pl.lit(kernel_ns)),
        advice=pl.col("finding").replace_strict(ADVICE, return_dtype=pl.String),
    )
    columns = ("finding", "calls", "device_ns", "kernel_frac", "lost_ns", "advice")
    return largest_first(summed, "lost_ns", "finding").select(columns)


def _ordered(rows: pl.DataFrame) -> pl.DataFrame:
    """Sort by lost time, rows without it by device time below; ties by the other columns."""
    ties = ["operator", "shape", "precision", "flops", "bytes", "gpu", "is_exact", "kind"]
    return rows.sort(
        "lost_ns", "device_ns", *ties,
        descending=[True, True, *(False for _ in ties)], nulls_last=True,
    )  # fmt: skip


def by_kind(rows: pl.DataFrame, kernel_ns: int) -> pl.DataFrame:
    """Sum operators by kind and precision, as in :class:`~.result.Efficiency`."""
    calls = pl.col("calls").cast(pl.Float64)
    sums = rows.group_by("kind", "precision").agg(
        pl.col("calls", "device_ns").sum(),
        flops=(pl.col("flops") * calls).sort().sum(),
        moved=(pl.col("bytes") * calls).sort().sum(),
        roof_ns=pl.col("roof_ns").sum(),
        judged_ns=pl.col("device_ns").filter(pl.col("roof_ns").is_not_null()).sum(),
        lost_ns=pl.when(pl.col("lost_ns").is_not_null().any()).then(pl.col("lost_ns").sum()),
    )
    device = pl.col("device_ns")
    summed = sums.with_columns(
        kernel_frac=device / kernel_ns if kernel_ns else pl.lit(None, pl.Float64),
        achieved_tflops=pl.when(device > 0).then(pl.col("flops") / device / 1e3),
        achieved_gbps=pl.when(device > 0).then(pl.col("moved") / device),
        roof_frac=ratio("roof_ns", "judged_ns"),
    )
    return largest_first(
        summed.drop("flops", "moved", "roof_ns", "judged_ns"), "device_ns", "kind", "precision"
    )
