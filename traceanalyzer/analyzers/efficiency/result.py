"""Result of the efficiency analysis: data, tables and charts."""

from dataclasses import dataclass
from functools import partial

import polars as pl

from traceanalyzer.analyzers.common.display import (
    bars,
    headings,
    known_columns,
    rank_column,
    table_of_known,
)
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View

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
            ``recomputed_flops``, ``mfu_frac``, ``hfu_frac``.
        ranks: one row per rank: ``rank``, ``path``, ``gpu``, ``steps``, ``step_ns`` (mean),
            ``flops`` (model FLOPs per step), ``recomputed_frac``, ``mfu_frac``, ``hfu_frac``,
            ``mfu_6nt_frac`` (from --params and --tokens), ``tensor_frac``, ``covered_frac``.
    """

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
        from traceanalyzer.analyzers.efficiency import texts

        return texts.without_mfu(self)

    def view(self) -> View:
        """Build the view: operators, kinds, ranks, steps, peaks; bars of lost time."""
        from traceanalyzer.analyzers.efficiency import texts

        return View(
            title="How close to the peak of the GPU?",
            verdict=texts.verdict(self),
            notes=tuple(texts.notes(self)),
            tables=_tables(self),
            scalars=self.numbers(
                "precision", "mfu_frac", "hfu_frac", "mfu_6nt_frac", "kernel_ns", "covered_ns",
                "covered_frac", "lost_ns", "has_shapes", "inferred", "marked",
            ),
            charts=partial(_charts, self),
        )  # fmt: skip


# --- tables and charts ---------------------------------------------------------------------


def _tables(result: Efficiency) -> tuple[Table, ...]:
    tables = []
    if result.operators.height:
        columns = known_columns(result.operators, _OPERATORS)
        tables.append(
            Table("operators", "Operators by lost time" if result.lost_ns is not None
                  else "Operators", result.operators, columns, hide_first=_HIDE_FIRST)
        )  # fmt: skip
        if result.findings.height:
            hide = ("calls", "kernel_frac", "device_ns")
            tables.append(
                Table("findings", "Findings", result.findings, _FINDINGS, hide_first=hide)
            )
        tables.append(table_of_known("kinds", "Kinds of operators", result.kinds, _KINDS))
    ranks = {**rank_column(result.ranks), **_RANKS}
    tables.append(table_of_known("ranks", "Ranks", result.ranks, ranks))
    steps = {**rank_column(result.ranks), **_STEPS}
    tables.append(table_of_known("steps", "Steps", result.steps, steps, detail=True))
    if result.has_shapes and result.uncovered.height:
        columns = headings("operator, kernels, device_ns: device")
        missing = {"operator": "(launch not recorded, or outside of operators)"}
        tables.append(
            Table("uncovered", "Kernels without a formula", result.uncovered, columns, detail=True,
                  missing=missing)
        )  # fmt: skip
    peaks = headings("gpu: GPU, precision: type, peak_tflops: peak, peak_gbps: bandwidth, origin")
    tables.append(table_of_known("peaks", "Dense peaks", result.peaks, peaks, detail=True))
    return tuple(tables)


def _charts(result: Efficiency) -> tuple[Chart, ...]:
    """Build bars of the operators with most time above the roof, or most device time."""
    length = "device_ns" if result.lost_ns is None else "lost_ns"
    label = pl.format("{} {} {}", "operator", "shape", "precision")
    rows = result.operators.with_columns(label=label)
    title = "Operators by device time" if result.lost_ns is None else "Time above the roof"
    return (bars("lost", title, rows, length=length, label="label", x_label="time", color="kind"),)
