"""Result of the roofline analysis: data, tables and charts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import polars as pl

from traceanalyzer.analyzers.common.display import headings, known_columns, table_of_known
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View

_KERNELS = headings(
    "name: kernel, time_ns: time, time_frac: of kernel time, work_tflops: speed, "
    "roof_frac: of roof, bound, limit: lowest roof, precision: type, hbm_intensity: FLOP/B HBM, "
    "l2_intensity: FLOP/B L2, l1_intensity: FLOP/B L1, sm_frac: compute, memory_frac: memory, "
    "occupancy_frac: occupancy, tensor_frac: tensor pipe, launches, hbm_gbps: HBM, l2_gbps: L2, "
    "l1_gbps: L1, dram_frac: HBM of peak, l2_frac: L2 of peak, l1_frac: L1 of peak, "
    "theoretical_occupancy_frac: possible occupancy, waves, registers"
)
#: GPUs with HBM; others have GDDR memory, or are unknown.
_HAS_HBM = re.compile(
    r"HBM|\b(?:P100|G?V100|A30|A[18]00|G?H\d{2,3}|G?B\d{3}|MI\d{2,3}\w?|TITAN V|Instinct)\b",
    re.IGNORECASE,
)
_HBM = re.compile(r"\bHBM\b")
_HIDE_FIRST = (
    "registers", "waves", "theoretical_occupancy_frac", "l1_frac", "l2_frac", "dram_frac",
    "l1_gbps", "l2_gbps", "hbm_gbps", "launches", "tensor_frac", "l1_intensity", "l2_intensity",
    "limit", "precision", "occupancy_frac", "memory_frac", "sm_frac", "time_frac",
)  # fmt: skip
_RULES = headings(
    "number: no., name: kernel, rule, speedup_frac: speed-up, speedup_type: of, saved_ns: saved, "
    "launches, text"
)
_ROOFS = headings("gpu: GPU, name: roof, value_tflops: peak, value_gbps: bandwidth, origin")
_POINTS = headings("name: kernel, level, intensity: FLOP/B, work_tflops: speed, precision: type")
#: Kernels with a colour of their own, the longest.
_COLORS = 10
#: Charts, one per GPU, at most.
_CHARTS = 4
#: The axis extends beyond the points by this factor.
_MARGIN = 3.0


@dataclass(frozen=True, eq=False, repr=False)
class Roofline(Result):
    """FLOP/s over arithmetic intensity of kernels or operators, and their roofs.

    Attributes:
        source: ``ncu`` (kernels of Nsight Compute) or ``trace`` (operators).
        kernels: one row per kernel (operator, or launch with ``by="launch"``) and GPU: ``name``,
            ``kernel`` (whole name), ``gpu``, ``launches``, ``time_ns`` (sum), ``time_frac``,
            ``precision`` (of most work; ``... tensor``: of tensor cores), ``work_tflops``,
            ``hbm_intensity``, ``l2_intensity``, ``l1_intensity`` (FLOP/byte), ``hbm_gbps``,
            ``l2_gbps``, ``l1_gbps``, ``roof_tflops`` (lowest roof at its intensities),
            ``roof_frac``, ``limit`` (``compute`` or a level: the lowest roof), ``bound`` (ncu's
            rule: ``latency``, ``latency (small grid)``, ``compute``, ``memory``, ``balanced``; of
            traces as in ``efficiency``), and of ncu ``sm_frac``, ``memory_frac``, ``dram_frac``,
            ``l1_frac``, ``l2_frac``, ``occupancy_frac``, ``theoretical_occupancy_frac``,
            ``tensor_frac``, ``waves``, ``registers``. Null: not recorded. Longest first.
        points: one row per kernel and level of memory: ``name``, ``gpu``, ``precision``,
            ``time_ns``, ``level``, ``intensity``, ``work_tflops``.
        roofs: ``gpu``, ``kind`` (``peak``, ``bandwidth``), ``name`` (precision or level),
            ``value`` (FLOP/s or byte/s), ``origin`` (``ncu``, ``table``, ``given``).
        rules: rules of ncu by kernel: ``number``, ``name``, ``rule``, ``launches``,
            ``speedup_frac`` (mean estimate), ``speedup_type`` (``global``: of the kernel,
            ``local``: of a part), ``rule_type``, ``saved_ns`` (global estimate x time of the
            launches), ``text``. Most saved time first.
        missing: what was not recorded, and how to record it: ``missing``, ``record``.
        launches: number of launches.
        tensor_counted: whether operations of tensor cores were recorded.
        packed_unknown: whether packed FP32 operations of a Blackwell GPU are missing.
        covered_frac: traces: share of the kernel time of operators with a formula.
    """

    source: Literal["ncu", "trace"]
    kernels: pl.DataFrame
    points: pl.DataFrame
    roofs: pl.DataFrame
    rules: pl.DataFrame
    missing: pl.DataFrame
    launches: int
    tensor_counted: bool = False
    packed_unknown: bool = False
    covered_frac: float | None = None

    @property
    def time_ns(self) -> int | None:
        """Time of all kernels; None if it was not recorded."""
        times = self.kernels["time_ns"].drop_nulls()
        return int(times.sum()) if len(times) else None

    def view(self) -> View:
        """Build the view: kernels, rules, roofs; a roofline per GPU."""
        from traceanalyzer.analyzers.roofline import texts

        view = View(
            title="How far are kernels from the roofline?"
            if self.source == "ncu"
            else "How far are operators from the roofline?",
            verdict=texts.verdict(self),
            notes=tuple(texts.notes(self)),
            tables=_tables(self),
            scalars=self.numbers("source", "launches", "time_ns", "covered_frac"),
            charts=partial(_charts, self),
        )
        gpus = {*self.kernels["gpu"].drop_nulls(), *self.roofs["gpu"].drop_nulls()}
        known = gpus and all(_HAS_HBM.search(gpu) for gpu in gpus)
        return view if known else _with_dram(view)


def _with_dram(view: View) -> View:
    """Return the view with the name of device memory that is not known to be HBM."""

    def named(text: str) -> str:
        return _HBM.sub("DRAM", text)

    def in_frame(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(pl.col(pl.String).str.replace_all(_HBM.pattern, "DRAM"))

    def charts() -> tuple[Chart, ...]:
        return tuple(
            replace(
                one,
                frame=in_frame(one.frame),
                lines=None if one.lines is None else in_frame(one.lines),
            )
            for one in view.charts()
        )

    tables = tuple(
        replace(
            table,
            frame=in_frame(table.frame),
            columns={name: named(label) for name, label in table.columns.items()},
        )
        for table in view.tables
    )
    notes = tuple(map(named, view.notes))
    return replace(view, verdict=named(view.verdict), notes=notes, tables=tables, charts=charts)


# --- tables and charts ---------------------------------------------------------------------


def _tables(result: Roofline) -> tuple[Table, ...]:
    names = _KERNELS if result.source == "ncu" else _KERNELS | {"name": "operator"}
    columns = known_columns(result.kernels, names)
    title = "Kernels" if result.source == "ncu" else "Operators"
    tables = [Table("kernels", title, result.kernels, columns, hide_first=_HIDE_FIRST)]
    if result.rules.height:
        known = known_columns(result.rules, _RULES)
        hide = ("launches", "speedup_type", "saved_ns")
        tables.append(
            Table(
                "rules", "Rules of ncu", result.rules, known, hide_first=hide, sentences=("text",)
            )
        )
    if result.missing.height:
        columns = headings("missing, record: how to record it")
        tables.append(
            Table(
                "missing",
                "Not recorded",
                result.missing,
                columns,
                detail=True,
                sentences=("record",),
            )
        )
    is_peak = pl.col("kind") == "peak"
    roofs = result.roofs.with_columns(
        value_tflops=pl.when(is_peak).then(pl.col("value") / 1e12),
        value_gbps=pl.when(~is_peak).then(pl.col("value") / 1e9),
    )
    if roofs.height:
        tables.append(table_of_known("roofs", "Roofs", roofs, _ROOFS, detail=True))
    if result.points.height:
        tables.append(table_of_known("points", "Points", result.points, _POINTS, detail=True))
    return tuple(tables)


def _charts(result: Roofline) -> tuple[Chart, ...]:
    """Build a roofline per GPU: a colour per kernel, a symbol per level, size by time."""
    points, what = result.points, "kernel" if result.source == "ncu" else "operator"
    charts = []
    for number, gpu in enumerate(points["gpu"].unique(maintain_order=True)[:_CHARTS]):
        of_gpu = points.filter(pl.col("gpu") == gpu)
        longest = of_gpu["time_ns"].max()
        share = pl.col("time_ns") / longest if isinstance(longest, int) and longest else None
        of_gpu = of_gpu.with_columns(share=pl.lit(1.0) if share is None else share.fill_null(0.0))
        names = of_gpu["name"].unique(maintain_order=True)
        kept = names if len(names) <= _COLORS else names[: _COLORS - 1]
        is_named = pl.col("name").is_in(kept.to_list())
        symbols = [level for level in ("HBM", "L2", "L1") if (of_gpu["level"] == level).any()]
        charts.append(
            Chart(
                name="roofline" if number == 0 else f"roofline_{number + 1}",
                title=f"Roofline of {gpu}",
                mark="scatter",
                frame=of_gpu.with_columns(
                    pl.when(is_named).then("name").otherwise(pl.lit("others")).alias(what)
                ),
                x="intensity",
                y="work_tflops",
                x_label="arithmetic intensity [FLOP/byte]",
                y_label="speed",
                color=what,
                log_x=True,
                log_y=True,
                size="share",
                label="name",
                symbol="level" if len(symbols) > 1 else None,
                lines=_lines(of_gpu, result.roofs.filter(pl.col("gpu") == gpu), symbols),
            )
        )
    return tuple(charts)


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}"


def _lines(points: pl.DataFrame, roofs: pl.DataFrame, levels: list[str]) -> pl.DataFrame:
    """Return the roofs that the points need: label, x, y, x2, y2; a slope ends at its peak."""
    used = [one for one in points["precision"].unique(maintain_order=True) if one]
    peaks = {
        row["name"]: row["value"] / 1e12
        for row in roofs.filter(pl.col("kind") == "peak", pl.col("name").is_in(used)).to_dicts()
    }
    slopes = {
        row["name"]: row["value"] / 1e12
        for row in roofs.filter(
            pl.col("kind") == "bandwidth", pl.col("name").is_in(levels)
        ).to_dicts()
    }
    at = points["intensity"].to_list()
    ridges = [peak / slope for peak in peaks.values() for slope in slopes.values()]
    low, high = min([*at, *ridges]) / _MARGIN, max([*at, *ridges]) * _MARGIN
    top = max(peaks.values(), default=None)
    rows = []
    for name, slope in slopes.items():
        end = min(high, top / slope) if top else high
        rows.append((f"{name} {_rounded(slope * 1e3)} GB/s", low, slope * low, end, slope * end))
    widest = max(slopes.values(), default=None)
    for name, peak in peaks.items():
        begin = peak / widest if widest else low
        rows.append((f"{name} {_rounded(peak)} TFLOP/s", begin, peak, high, peak))
    types = {"label": pl.String, **dict.fromkeys(("x", "y", "x2", "y2"), pl.Float64)}
    return pl.DataFrame(rows, schema=types, orient="row")
