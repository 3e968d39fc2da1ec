"""Verdict and notes of the efficiency analysis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.common.display import listed, sentences
from traceanalyzer.analyzers.common.step_patterns import INFERRED_STEPS
from traceanalyzer.analyzers.efficiency.formulas import MATRIX, formula_of
from traceanalyzer.analyzers.efficiency.peaks import similar
from traceanalyzer.units import format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.efficiency.result import Efficiency

#: Below this covered share of the kernel time, FLOPs and MFU are lower bounds.
_MOST = 0.95
#: Below this share, the verdict begins with the share.
_LITTLE = 0.5
#: Rows above their roof by more than this are worth a note.
_ABOVE = 1.05
_NAMED = 3
#: Kinds with a smaller share of the kernel time are not named in the verdict.
_LEAST_FRAC = 0.01

_SIX = "MFU from 6 x parameters x tokens"


# --- verdict -------------------------------------------------------------------------------------


def verdict(result: Efficiency) -> str:
    """Return MFU or why it is unknown, the speed of products, and the most lost time."""
    covered = result.covered_frac
    utilisation = sentences(_utilisation(result), _impossible(result), without_mfu(result))
    details = (_of_products(result), _lost(result))
    if result.has_shapes and covered is not None and covered < _LITTLE:
        return sentences(_covered(result), utilisation, *details)
    return sentences(utilisation, *details, _covered(result))


def _utilisation(result: Efficiency) -> str:
    """Return MFU and HFU with the peak they are relative to."""
    mfu, six = result.mfu_frac, result.mfu_6nt_frac
    if mfu is None and six is None:
        return ""
    parts = []
    if mfu is not None:
        hfu = result.hfu_frac
        again = f" (HFU {format_frac(hfu)}, with recomputation)" if hfu and hfu > mfu else ""
        covered = result.covered_frac
        least = "at least " if covered is not None and covered < _MOST else ""
        parts.append(f"MFU is {least}{format_frac(mfu)}{again}")
    if six is not None:
        parts.append(f"{_SIX} is {format_frac(six)}")
    return f"{', '.join(parts)} of the dense {result.precision} peak{_of_peak(result)}."


def _of_peak(result: Efficiency) -> str:
    rows = result.peaks.filter(pl.col("precision") == result.precision)
    if rows.height != 1:
        return ""
    row = rows.row(0, named=True)
    gpu = f", {row['gpu']}" if row["gpu"] else ""
    return f" ({row['peak_tflops']:g} TFLOP/s{gpu})"


def _impossible(result: Efficiency) -> str:
    """Return what may be wrong if MFU or HFU is above 100 %."""
    wrong = []
    if max(result.mfu_frac or 0, result.hfu_frac or 0) > 1:
        wrong.append("the peak and its precision")
    if (result.mfu_6nt_frac or 0) > 1:
        wrong.append("--params, --tokens (of one step on all GPUs), --gpus and the peak")
    return f"Above 100 % is impossible: check {listed(wrong)}." if wrong else ""


def without_mfu(result: Efficiency) -> str:
    """Return why there is no MFU, and the options that give it."""
    if result.mfu_frac is not None or result.mfu_6nt_frac is not None:
        return ""
    name = "MFU" if result.has_shapes else _SIX
    reasons = [_no_peak(result, gpu) for gpu in _gpus_without_peak(result)]
    return f"{name} is unknown: {'; '.join(reasons)}." if reasons else ""


def _gpus_without_peak(result: Efficiency) -> list[str | None]:
    """Return the GPUs without a peak of the precision that MFU is relative to."""
    known = set(result.peaks.filter(pl.col("precision") == result.precision)["gpu"])
    return [gpu for gpu in result.peaks["gpu"].unique(maintain_order=True) if gpu not in known]


def _no_peak(result: Efficiency, gpu: str | None) -> str:
    """Return why a GPU has no peak, and what to give."""
    precision = result.precision
    others = result.peaks.filter(pl.col("gpu").eq_missing(pl.lit(gpu, pl.String)))
    known = others["precision"].drop_nulls().to_list()
    if known:
        # the precision without shapes is a default, not that of the run
        other = next((name for name in ("fp16", "fp32") if name in known), known[0])
        select = "" if result.has_shapes else f"--precision {other}, or "
        return (
            f"{gpu} has no {precision} peak (it has {listed(known)}); give {select}"
            f"--peak {precision}=TFLOPS (dense)"
        )
    what = f"the peak of {gpu} is not in the table" if gpu else "the GPU is not recorded"
    return f"{what}; give --peak {precision}=TFLOPS (dense) --bandwidth GBPS"


def _of_products(result: Efficiency) -> str:
    """Return how fast matrix products, convolutions and attention run."""
    rows = result.kinds.filter(pl.col("kind").is_in(MATRIX), pl.col("kernel_frac") > _LEAST_FRAC)
    texts = []
    for row in rows.head(_NAMED).iter_rows(named=True):
        share = row["roof_frac"]
        roof = f", {format_frac(share)} of the roof" if share is not None else ""
        texts.append(
            f"{row['kind']} in {row['precision']} {row['achieved_tflops']:.4g} TFLOP/s"
            f" in {format_ns(row['device_ns'])}{roof}"
        )
    return f"Speed: {'; '.join(texts)}." if texts else ""


def _lost(result: Efficiency) -> str:
    """Return the operator with most time above its roof."""
    if not result.lost_ns:
        return ""
    row = result.operators.row(0, named=True)
    why = f" ({row['why']})" if row["why"] else ""
    return (
        f"Most time above the roof: {row['operator']} {row['shape']} {row['precision']}, "
        f"{format_ns(row['lost_ns'])} of {format_ns(row['device_ns'])}{why}."
    )


def _covered(result: Efficiency) -> str:
    if not result.has_shapes:
        return "No input shapes were recorded: FLOPs of operators are unknown."
    covered = result.covered_frac
    only = "only " if covered is not None and covered < _LITTLE else ""
    return (
        f"Operators with a formula cover {only}{format_frac(covered)} of the compute kernel time."
    )


# --- notes ---------------------------------------------------------------------------------------


def notes(result: Efficiency) -> Iterator[str]:
    """Describe unknown peaks, what was not counted, and lower bounds."""
    if not result.marked:
        yield "No steps are marked: MFU is of the time from the first to the last kernel."
    elif result.inferred:
        yield INFERRED_STEPS
    yield from _peak_notes(result)
    covered = result.covered_frac
    if result.has_shapes and covered is not None and covered < _MOST:
        yield (
            f"FLOPs and MFU do not include the other {format_frac(1 - covered)} of kernel time: "
            f"{'; '.join(_longest_uncovered(result))}."
        )
    if not result.operators["is_exact"].all():
        yield (
            "Attention of packed sequences, reductions and generated kernels have lower bounds of "
            "FLOPs and bytes: lengths and repeated reads are not recorded."
        )
    above = result.operators.filter(pl.col("roof_frac") > _ABOVE)
    if above.height:
        yield (
            f"{above.height} rows are faster than their roof: their inputs were in the cache, or "
            "several inputs are one tensor."
        )
    yield (
        "The roof is the larger of FLOPs / peak and bytes / bandwidth, with dense peaks. MFU "
        "counts matrix products, convolutions and attention once; HFU also counts recomputation."
    )


def _peak_notes(result: Efficiency) -> Iterator[str]:
    """Describe GPUs without a peak: why, where the verdict does not, and the peaks of variants."""
    some = result.mfu_frac is not None or result.mfu_6nt_frac is not None
    for gpu in _gpus_without_peak(result):
        if some:
            yield f"Ranks without MFU: {_no_peak(result, gpu)}."
        options = [
            f"{name}: --peak {result.precision}={peaks.tflops[result.precision]:g} "
            f"--bandwidth {peaks.gbps:g}"
            for name, peaks in similar(gpu)
            if result.precision in peaks.tflops
        ]
        if options:
            yield f"Options for other variants of {gpu}: {'; '.join(options)}."


def _longest_uncovered(result: Efficiency) -> Iterator[str]:
    """Describe the operators with most kernel time without a formula."""
    for operator, _, device_ns in result.uncovered.head(_NAMED).iter_rows():
        where = operator or "launched before the recording, by CUDA graphs or outside of operators"
        missing = " (its recorded inputs are incomplete)" if formula_of(operator or "") else ""
        yield f"{format_ns(device_ns)} {where}{missing}"
