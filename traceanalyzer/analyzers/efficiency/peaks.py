"""Peak FLOP/s and memory bandwidth of GPUs, by the device name that profilers record.

All figures are dense: data sheets of NVIDIA print tensor figures with sparsity, twice as much. Each
figure agrees within 1.5 % with units x clock x FLOPs per clock and unit, except for rounded ones of
GB200. Sources by letter:

* T: ``torch/_inductor/analysis/device_info.py`` of PyTorch 2.13 (not its L4, and not its sparse
  figures of H100).
* L: ``lightning/fabric/utilities/throughput.py`` of PyTorch Lightning, which names a data sheet for
  each entry.
* G: glennklockwood.com/garden/processors and NVIDIA's Blackwell architecture brief.
* R: rooflinenotes.dev/accelerators. S: data sheets that sellers publish.
* D: data sheet of the vendor, as computed from units and clocks.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import polars as pl

from traceanalyzer.analyzers.common.columns import largest_first, ratio
from traceanalyzer.analyzers.efficiency.formulas import MATRIX
from traceanalyzer.analyzers.efficiency.options import Options
from traceanalyzer.errors import OptionError

#: Precisions with a peak of their own. ``fp32`` and ``fp64`` are without and with tensor cores:
#: libraries use tensor cores for ``fp64`` where the GPU has them; for ``fp32`` that is ``tf32``.
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4")

#: Precisions of tensor cores (matrix cores of AMD).
TENSOR = ("tf32", "fp16", "bf16", "fp8", "fp4", "int8")


@dataclass(frozen=True)
class Peaks:
    """Peaks of one GPU.

    Attributes:
        tflops: 10^12 FLOP/s by precision; precisions without a known peak are missing.
        gbps: memory bandwidth in 10^9 bytes per second, or None.
        units: number of multiprocessors (compute units), or None.
        origin: ``table``, ``given``, ``table and given``, or empty if nothing is known.
    """

    tflops: dict[str, float]
    gbps: float | None = None
    units: int | None = None
    origin: str = ""


#: Suffixes of the same GPU: its module, or a virtual function of it.
_OAM = "(?: (?:OAM|VF))?"

#: Pattern of the whole device name without the vendor; units, GB/s, TFLOP/s of fp64, fp32, tf32,
#: fp16 and bf16 (V100 and T4: fp16 only), fp8, fp4 (None: not supported); source.
_TABLE: tuple[tuple[str, int, float, tuple[float | None, ...], str], ...] = (
    (r"V100-SXM[23](?:-\d+GB)?", 80, 900, (7.8, 15.7, None, 125, None, None), "L"),
    (r"V100-PCIE(?:-\d+GB)?", 80, 900, (7.0, 14.0, None, 112, None, None), "L"),
    (r"V100S-PCIE(?:-\d+GB)?", 80, 1134, (8.2, 16.4, None, 130, None, None), "L"),
    (r"T4", 40, 320, (0.25, 8.1, None, 65, None, None), "L"),
    (r"A100-SXM4-40GB", 108, 1555, (19.5, 19.5, 156, 312, None, None), "L, T"),
    (r"A100-SXM4-80GB", 108, 2039, (19.5, 19.5, 156, 312, None, None), "L, T"),
    (r"A100-PCIE-40GB", 108, 1555, (19.5, 19.5, 156, 312, None, None), "L"),
    (r"A100 80GB PCIe", 108, 1935, (19.5, 19.5, 156, 312, None, None), "L"),
    (r"A30", 56, 933, (10.3, 10.3, 82, 165, None, None), "D"),
    (r"A10", 72, 600, (0.49, 31.2, 62.5, 125, None, None), "D, S"),
    (r"A10G", 80, 600, (None, 35, 35, 70, None, None), "L"),
    (r"A40", 84, 696, (0.58, 37.4, 74.8, 149.7, None, None), "L, S"),
    (r"L4", 58, 300, (0.49, 30.3, 60, 121, 242, None), "L"),
    (r"L40", 142, 864, (1.41, 90.5, 90.5, 181.05, 362, None), "L, S"),
    (r"L40S", 142, 864, (1.41, 91.6, 183, 362.05, 733, None), "S"),
    (r"GeForce RTX 4090", 128, 1008, (1.29, 82.6, 82.6, 165.2, 330.3, None), "L"),
    (r"H100 PCIe", 114, 2039, (51.2, 51.2, 378, 756, 1513, None), "L, T"),
    (r"H100 80GB HBM3", 132, 3350, (67, 67, 494.5, 989.5, 1979, None), "L, T"),
    (r"H100 NVL", 132, 3938, (60, 60, 417.5, 835.5, 1670.5, None), "L"),
    (r"GH200 480GB", 132, 4023, (67, 67, 494.5, 989.5, 1979, None), "D"),
    (r"H200", 132, 4800, (67, 67, 494.5, 989.5, 1979, None), "L"),
    (r"H200 NVL", 132, 4800, (60, 60, 417.5, 835.5, 1670.5, None), "D"),
    (r"B200", 148, 8000, (37, 75, 1125, 2250, 4500, 9000), "G, S"),
    (r"GB200", 152, 8000, (40, 80, 1250, 2500, 5000, 10000), "G, S"),
    (r"Instinct MI210", 104, 1638, (45.3, 22.6, None, 181, None, None), "T"),
    # a device is one of the two dies of MI250 and MI250X
    (r"Instinct MI250", 104, 1638, (45.3, 22.6, None, 181, None, None), "D"),
    (r"Instinct MI250X", 110, 1638, (47.9, 23.9, None, 191.5, None, None), "D"),
    (r"Instinct MI300A", 228, 5300, (122.6, 122.6, 490.3, 980.6, 1961.2, None), "T"),
    (rf"Instinct MI300X{_OAM}", 304, 5300, (163.4, 163.4, 653.7, 1307.4, 2614.9, None), "T"),
    (rf"Instinct MI325X{_OAM}", 304, 6000, (163.4, 163.4, 653.7, 1307.4, 2614.9, None), "R"),
    (rf"Instinct MI350X{_OAM}", 256, 8000, (72.1, 144.2, None, 2309.6, 4614, 9230), "T"),
    (rf"Instinct MI355X{_OAM}", 256, 8000, (78.6, 157.3, None, 2516.6, 5033, 10066), "R"),
)  # fmt: skip

_COLUMNS = ("fp64", "fp32", "tf32", "fp16", "fp8", "fp4")
_PARTS = re.compile(r"[ -]")
_VENDOR = re.compile(r"^(?:NVIDIA |AMD |Tesla )*")
#: GPUs whose tensor cores do not support bf16.
_WITHOUT_BF16 = re.compile(r"V100|T4")


def peaks_of(name: str | None) -> Peaks:
    """Return the peaks of a GPU by its whole name; empty if it is unknown or ambiguous.

    ``H100`` alone is ambiguous: the SXM, PCIe and NVL variants differ. A slice of a GPU (MIG) has
    another name than the GPU.
    """
    short = _VENDOR.sub("", (name or "").strip())
    for pattern, units, gbps, figures, _ in _TABLE:
        if re.fullmatch(pattern, short):
            pairs = zip(_COLUMNS, figures, strict=True)
            known = {precision: value for precision, value in pairs if value is not None}
            if not _WITHOUT_BF16.match(short):
                known["bf16"] = known["fp16"]
            return Peaks(known, float(gbps), units, "table")
    return Peaks({})


def similar(name: str | None) -> list[tuple[str, Peaks]]:
    """Return the names and peaks of other variants of an unknown GPU: V100-SXM2 of V100-DGXS.

    Empty for a known GPU and for a slice of a GPU (MIG).
    """
    short = _VENDOR.sub("", (name or "").strip())
    model = next((part for part in _PARTS.split(short) if any(map(str.isdigit, part))), None)
    if model is None or "MIG" in short or peaks_of(name).tflops:
        return []
    names = [_plain(pattern) for pattern, *_ in _TABLE]
    return [(one, peaks_of(one)) for one in names if model in _PARTS.split(one)]


def _plain(pattern: str) -> str:
    """Return a device name that a pattern matches: ``V100-SXM2`` of ``V100-SXM[23]``."""
    return re.sub(r"\(\?:.*\)\?$", "", pattern).replace("[23]", "2")


def with_given(peaks: Peaks, given: Iterable[str], gbps: float | None) -> Peaks:
    """Return the peaks with those given on the command line: ``bf16=989.4``, in TFLOP/s.

    Raises:
        OptionError: a peak is not ``PRECISION=TFLOPS``.
    """
    known = dict(peaks.tflops)
    for text in given:
        precision, _, value = text.partition("=")
        known[parse_precision(precision, text)] = _positive(value, text)
    if not given and gbps is None:
        return peaks
    origin = "table and given" if peaks.origin else "given"
    return replace(peaks, tflops=known, gbps=gbps or peaks.gbps, origin=origin)


def parse_precision(precision: str, text: str) -> str:
    """Return a precision in lower case.

    Raises:
        OptionError: it is not one of :data:`PRECISIONS`.
    """
    name = precision.strip().lower()
    if name not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise OptionError(
            f"invalid peak={text!r}; write PRECISION=TFLOPS, PRECISION one of {known}"
        )
    return name


def _positive(value: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise OptionError(f"invalid peak={text!r}; write PRECISION=TFLOPS, such as bf16=989.4")
    return number


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
