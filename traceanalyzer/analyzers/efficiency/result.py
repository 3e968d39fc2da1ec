"""Result of the efficiency analysis: data, verdict, notes, tables and charts."""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.common.display import (
    bars,
    headings,
    known_columns,
    listed,
    rank_column,
    sentences,
    table_of_known,
)
from traceanalyzer.analyzers.common.step_marks import INFERRED_STEPS
from traceanalyzer.analyzers.efficiency.formulas import MATRIX, formula_of
from traceanalyzer.analyzers.efficiency.peaks import similar
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_frac, format_ns

_OPERATORS = headings(
    "operator, shape, precision: type, device_ns: device, lost_ns: lost, roof_frac: of roof, "
    "bound, why, calls, achieved_tflops: speed, achieved_gbps: bandwidth"
)
_KINDS = headings(
    "kind, precision: type, device_ns: device, kernel_frac: of kernels, lost_ns: lost, "
    "roof_frac: of roof, calls, achieved_tflops: speed, achieved_gbps: bandwidth"
)
_RANKS = headings(
    "gpu: GPU, steps, step_ns: step, mfu_frac: MFU, hfu_frac: HFU, mfu_6nt_frac: MFU (6NT), "
    "tensor_frac: tensor cores, covered_frac: covered"
)
_STEPS = headings(
    "step, step_ns: time, mfu_frac: MFU, hfu_frac: HFU, kernel_ns: kernels, "
    "tensor_ns: tensor cores, covered_ns: covered"
)
_FINDINGS = headings(
    "finding, lost_ns: lost, device_ns: device, kernel_frac: of kernels, calls, advice: what to try"
)
_HIDE_FIRST = ("achieved_gbps", "calls", "achieved_tflops", "bound", "why")


@dataclass(frozen=True, eq=False, repr=False)
class Efficiency(Result):
    """FLOP/s, memory bandwidth and MFU against the peaks of the GPU.

    Attributes:
        precision: the peak that MFU and HFU are relative to.
        kernel_ns: time of all compute kernels, summed over the ranks.
        covered_ns: that of operators with a formula and recorded shapes.
        has_shapes: whether input shapes were recorded.
        inferred: whether steps were detected from repeated kernels.
        marked: whether steps are known; otherwise each rank has one row for the whole recording.
        peaks: one row per GPU and precision: ``gpu``, ``precision``, ``peak_tflops``,
            ``peak_gbps``, ``units``, ``origin`` (``table``, ``given``, ``table and given``; empty:
            unknown GPU).
        operators: one row per operator, work and GPU: ``operator``, ``kind``, ``shape``,
            ``precision``, ``flops`` and ``bytes`` of one call, ``is_exact`` (False: lower bounds),
            ``gpu``, ``calls``, ``recomputed_calls``, ``kernels``, ``device_ns``,
            ``peak_tflops``, ``peak_gbps``, ``achieved_tflops``, ``achieved_gbps``, ``roof_ns``
            (least time of all calls), ``roof_frac`` (roof_ns / device_ns), ``bound`` (``compute``,
            ``memory``, ``launch``), ``lost_ns`` (device_ns - roof_ns), ``why``. Most lost time
            first.
        products: ``operators`` for matrix products and convolutions without the copies and
            pointwise kernels that they launch. None except in a diagnosis or report.
        kinds: ``operators`` by kind and precision: ``calls``, ``device_ns``, ``kernel_frac``
            (share of kernel_ns), ``achieved_tflops``, ``achieved_gbps``, ``roof_frac``,
            ``lost_ns``.
        findings: reasons for lost time, an operator under one: ``finding`` (``FP32 without TF32``,
            ``unaligned``, ``small``, ``launch``, ``memory``), ``calls``, ``device_ns``,
            ``kernel_frac``, ``lost_ns``, ``advice``; most lost time first.
        uncovered: compute kernels without a formula by the innermost operator around their launch:
            ``operator`` (null: launched before the recording, or outside of operators),
            ``kernels``, ``device_ns``; longest first.
        steps: one row per step and rank: ``rank``, ``path``, ``step``, ``step_ns``, ``kernel_ns``,
            ``covered_ns``, ``tensor_ns`` (products on tensor cores), ``model_flops``,
            ``recomputed_flops``, ``mfu_frac``, ``hfu_frac``, ``warm_up``.
        ranks: one row per rank, without warm-up: ``rank``, ``path``, ``gpu``, ``steps``,
            ``step_ns`` (mean), ``flops`` (model FLOPs per step), ``recomputed_frac``, ``mfu_frac``,
            ``hfu_frac``, ``mfu_6nt_frac`` (from --params and --tokens), ``tensor_frac``,
            ``covered_frac``.
    """

    question = "How close to the peak of the GPU?"
    scalar_names = (
        "precision, mfu_frac, hfu_frac, mfu_6nt_frac, kernel_ns, covered_ns, covered_frac, "
        "lost_ns, has_shapes, inferred, marked"
    )

    precision: str
    kernel_ns: int
    covered_ns: int
    has_shapes: bool
    inferred: bool
    marked: bool
    peaks: pl.DataFrame
    operators: pl.DataFrame
    kinds: pl.DataFrame
    findings: pl.DataFrame
    uncovered: pl.DataFrame
    steps: pl.DataFrame
    ranks: pl.DataFrame
    products: pl.DataFrame | None = None

    @property
    def mfu_frac(self) -> float | None:
        """MFU of all ranks, weighted by their time; None if unknown."""
        return self._weighted("mfu_frac")

    @property
    def hfu_frac(self) -> float | None:
        """HFU of all ranks: MFU with recomputed FLOPs."""
        return self._weighted("hfu_frac")

    @property
    def mfu_6nt_frac(self) -> float | None:
        """MFU of all ranks from 6 x parameters x tokens."""
        return self._weighted("mfu_6nt_frac")

    @property
    def covered_frac(self) -> float | None:
        """Share of the kernel time of operators with a formula."""
        return self.covered_ns / self.kernel_ns if self.kernel_ns else None

    @property
    def lost_ns(self) -> int | None:
        """Device time above the roof, of all operators with a formula; None without peaks."""
        known = self.operators["lost_ns"].drop_nulls()
        return int(known.sum()) if len(known) else None

    def _weighted(self, column: str) -> float | None:
        rows = self.ranks.drop_nulls(column).select(column, "step_ns", "steps").iter_rows()
        times = [(value, mean_ns * steps) for value, mean_ns, steps in rows]
        whole = sum(time for _, time in times)
        return sum(value * time for value, time in times) / whole if whole else None

    @property
    def why_unknown(self) -> str:
        """Why there is no MFU, and the options that give it; empty if there is one."""
        return _without_mfu(self)

    def view(self) -> View:
        """Build the view: operators, kinds, ranks, steps, peaks; bars of lost time."""
        return self.view_from(_verdict, _notes, _tables, _charts)


# --- tables and charts ---------------------------------------------------------------------


def _tables(result: Efficiency) -> Iterator[Table]:
    if result.operators.height:
        columns = known_columns(result.operators, _OPERATORS)
        title = "Operators" if result.lost_ns is None else "Operators by lost time"
        yield Table("operators", title, result.operators, columns, hide_first=_HIDE_FIRST)
        if result.findings.height:
            hide = ("calls", "kernel_frac", "device_ns")
            yield Table("findings", "Findings", result.findings, _FINDINGS, hide_first=hide)
        yield table_of_known("kinds", "Kinds of operators", result.kinds, _KINDS)
    yield table_of_known("ranks", "Ranks", result.ranks, {**rank_column(result.ranks), **_RANKS})
    steps = {**rank_column(result.ranks), **_STEPS}
    yield table_of_known("steps", "Steps", result.steps, steps, detail=True)
    if result.has_shapes and result.uncovered.height:
        columns = headings("operator, kernels, device_ns: device")
        missing = {"operator": "(launch not recorded, or outside of operators)"}
        without = "Kernels without a formula", result.uncovered, columns
        yield Table("uncovered", *without, detail=True, missing=missing)
    peaks = headings("gpu: GPU, precision: type, peak_tflops: peak, peak_gbps: bandwidth, origin")
    yield table_of_known("peaks", "Dense peaks", result.peaks, peaks, detail=True)


def _charts(result: Efficiency) -> Iterator[Chart]:
    """Build bars of the operators with most time above the roof, or most device time."""
    length = "device_ns" if result.lost_ns is None else "lost_ns"
    label = pl.format("{} {} {}", "operator", "shape", "precision")
    rows = result.operators.with_columns(label=label)
    title = "Operators by device time" if result.lost_ns is None else "Time above the roof"
    yield bars("lost", title, rows, length=length, label="label", x_label="time", color="kind")


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


def _verdict(result: Efficiency) -> str:
    """Return MFU or why it is unknown, the speed of products, and the most lost time."""
    covered = result.covered_frac
    utilisation = sentences(_utilisation(result), _impossible(result), _without_mfu(result))
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
    warm_up = ", without warm-up" if result.steps["warm_up"].any() else ""
    return f"{', '.join(parts)} of the dense {result.precision} peak{_of_peak(result)}{warm_up}."


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


def _without_mfu(result: Efficiency) -> str:
    """Return why there is no MFU, and the options that give it."""
    if result.mfu_frac is not None or result.mfu_6nt_frac is not None:
        return ""
    name = "MFU" if result.has_shapes else _SIX
    reasons = [_no_peak(result, gpu) for gpu in _gpus_without_peak(result)]
    if result.has_shapes and not (reasons or result.ranks["flops"].sum()):
        reasons = ["no matrix product, convolution or attention with input shapes was recorded"]
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


def _notes(result: Efficiency) -> Iterator[str]:
    """Describe unknown peaks, what was not counted, and lower bounds."""
    if not result.marked:
        yield "No steps are marked: MFU is of the time from the first to the last kernel."
    elif result.inferred:
        yield INFERRED_STEPS
    warm_up = result.steps.filter("warm_up")["step"].unique(maintain_order=True).to_list()
    if warm_up:
        yield (
            f"{listed(warm_up[:_NAMED])}: warm-up, not counted in MFU, HFU and the time of steps, "
            "but in the sums of operators."
        )
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
        "counts matrix products, convolutions and attention once; HFU also counts recomputation. "
        "Times are sums of all steps and ranks, and include the copies and casts that an operator "
        "launches; diagnose counts only its matrix products and convolutions, per step and GPU."
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
