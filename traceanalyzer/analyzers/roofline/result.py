"""Result of the roofline analysis: data, verdict, notes, tables and charts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from traceanalyzer.analyzers.common.display import (
    headings,
    known_columns,
    listed,
    sentences,
    table_of_known,
)
from traceanalyzer.analyzers.efficiency.peaks import PRECISIONS
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.trace import Meta, record_hint
from traceanalyzer.units import format_count, format_frac, format_ns

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

    scalar_names = "source, launches, time_ns, covered_frac"

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
        what = "kernels" if self.source == "ncu" else "operators"
        title = f"How far are {what} from the roofline?"
        view = self.view_from(_verdict, _notes, _tables, _charts, title=title)
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


def _tables(result: Roofline) -> Iterator[Table]:
    names = _KERNELS if result.source == "ncu" else _KERNELS | {"name": "operator"}
    columns = known_columns(result.kernels, names)
    title = "Kernels" if result.source == "ncu" else "Operators"
    yield Table("kernels", title, result.kernels, columns, hide_first=_HIDE_FIRST)
    if result.rules.height:
        known = known_columns(result.rules, _RULES)
        hide = ("launches", "speedup_type", "saved_ns")
        yield Table(
            "rules", "Rules of ncu", result.rules, known, hide_first=hide, sentences=("text",)
        )
    if result.missing.height:
        columns = headings("missing, record: how to record it")
        yield Table(
            "missing", "Not recorded", result.missing, columns, detail=True, sentences=("record",)
        )
    is_peak = pl.col("kind") == "peak"
    roofs = result.roofs.with_columns(
        value_tflops=pl.when(is_peak).then(pl.col("value") / 1e12),
        value_gbps=pl.when(~is_peak).then(pl.col("value") / 1e9),
    )
    if roofs.height:
        yield table_of_known("roofs", "Roofs", roofs, _ROOFS, detail=True)
    if result.points.height:
        yield table_of_known("points", "Points", result.points, _POINTS, detail=True)


def _charts(result: Roofline) -> Iterator[Chart]:
    """Build a roofline per GPU: a colour per kernel, a symbol per level, size by time."""
    points, what = result.points, "kernel" if result.source == "ncu" else "operator"
    for number, gpu in enumerate(points["gpu"].unique(maintain_order=True)[:_CHARTS]):
        of_gpu = points.filter(pl.col("gpu") == gpu)
        longest = of_gpu["time_ns"].max()
        share = pl.col("time_ns") / longest if isinstance(longest, int) and longest else None
        of_gpu = of_gpu.with_columns(share=pl.lit(1.0) if share is None else share.fill_null(0.0))
        names = of_gpu["name"].unique(maintain_order=True)
        kept = names if len(names) <= _COLORS else names[: _COLORS - 1]
        is_named = pl.col("name").is_in(kept.to_list())
        symbols = [level for level in ("HBM", "L2", "L1") if (of_gpu["level"] == level).any()]
        yield Chart(
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


_NCU = "ncu {} --csv --page raw --print-units base --log-file FILE.csv COMMAND"
#: How to record everything that the analysis uses.
RECORD = _NCU.format("--set full")
NOTHING_RECORDED = f"no metric of a roofline and no speed of light were recorded; {RECORD}"
#: Use of tensor cores above which their missing operations matter.
_TENSOR_USED = 0.01
#: Share of the kernel time from which on it is all of it.
_ALL = 0.9995
#: Characters of a name in a sentence.
_CHARS = 60

#: What can be missing: heading, columns of which one must be known, options of ncu.
_MISSING = (
    ("time", ("time_ns",), "--metrics gpu__time_duration.sum"),
    ("work (FLOP)", ("work_tflops",), "--set roofline"),
    ("traffic of HBM", ("hbm_gbps",), "--metrics dram__bytes.sum"),
    ("traffic of L2", ("l2_gbps",), "--metrics lts__t_bytes.sum"),
    ("traffic of L1", ("l1_gbps",), "--metrics l1tex__t_bytes.sum"),
    ("peaks", ("roof_tflops",), "--set roofline"),
    ("speed of light", ("sm_frac", "memory_frac"), "--section SpeedOfLight"),
    ("occupancy", ("occupancy_frac",), "--section Occupancy"),
    (
        "use of tensor cores",
        ("tensor_frac",),
        "--metrics sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    ),
)


def missing(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return what no kernel has, and how to record it: ``missing``, ``record``."""
    rows = [
        (name, _NCU.format(how))
        for name, columns, how in _MISSING
        if all(kernels[column].count() == 0 for column in columns)
    ]
    return pl.DataFrame(rows, schema={"missing": pl.String, "record": pl.String}, orient="row")


def missing_peaks(peaks: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Return the peaks that are unknown, and the options that give them."""
    rows = []
    precisions = operators["precision"].drop_nulls().unique().sort().to_list()
    if peaks["peak_tflops"].count() == 0:
        accepted = [one for one in precisions if one in PRECISIONS] or ["fp32"]
        give = " ".join(f"--peak {one}=TFLOPS" for one in accepted)
        rows.append(("peaks of the GPU", f"give {give}"))
    if peaks["peak_gbps"].count() == 0:
        rows.append(("bandwidth of the GPU", "give --bandwidth GBPS"))
    return pl.DataFrame(rows, schema={"missing": pl.String, "record": pl.String}, orient="row")


def no_shapes(meta: Meta) -> str:
    """Return the error for a trace without input shapes."""
    hint = record_hint(meta, "input_dims") or "record with torch.profiler record_shapes=True"
    how = _NCU.format("--set roofline")
    return f"no input shapes were recorded; {hint}, or measure the kernels themselves: {how}"


def mixed(report: str, trace: str) -> str:
    """Return the error for reports of Nsight Compute together with traces."""
    return (
        f"{report} is a report of Nsight Compute and {trace} a trace: ncu replays kernels with "
        "locked clocks, so that their times cannot be compared; pass one of them"
    )


# --- verdict -------------------------------------------------------------------------------------


def _verdict(result: Roofline) -> str:
    """Return the size of the input, the longest kernels, what limits them, and the best rule."""
    return sentences(_size(result), _longest(result), _bounds(result), _rule(result))


def _size(result: Roofline) -> str:
    rows, drawn = result.kernels.height, result.points["name"].n_unique()
    what = "kernel" if result.source == "ncu" else "operator"
    total = result.time_ns
    share = float(result.kernels["time_frac"].sum())
    of = f", {format_frac(share)} of all kernel time" if share < _ALL else " in total"
    time = f", {format_ns(total)}{of}" if total else ""
    text = f"{format_count(rows, what)} ({format_count(result.launches, 'launch')}{time})."
    text = text.replace("launchs", "launches")
    if drawn == 0:
        lacking = [
            row for row in result.missing["missing"] if row.startswith(("work", "traffic of HBM"))
        ]
        why = f": no {' and no '.join(lacking[:2])} recorded" if lacking else ""
        return f"{text} No point in the roofline{why}."
    return text if drawn == rows else f"{text} {drawn} of them are in the roofline."


def _longest(result: Roofline) -> str:
    known = result.kernels.filter(pl.col("work_tflops") > 0)
    first = "Longest" if result.time_ns else "Fastest"
    first += " with known work" * (known.height < result.kernels.height)
    for row in known.head(1).iter_rows(named=True):
        share = f" ({format_frac(row['time_frac'])} of all kernel time)" if row["time_frac"] else ""
        speed = f"{row['work_tflops']:.4g} TFLOP/s in {row['precision']}"
        roof = f", {format_frac(row['roof_frac'])} of its roof" if row["roof_frac"] else ""
        bound = f", {row['bound']} bound" if row["bound"] else ""
        return f"{first}: {_brief(row['name'])}{share}, {speed}{roof}{bound}."
    return ""


def _brief(name: str) -> str:
    return name if len(name) <= _CHARS else f"{name[: _CHARS - 3]}..."


def _bounds(result: Roofline) -> str:
    rows = result.kernels.drop_nulls("bound")
    if rows.is_empty():
        return ""
    total = rows["time_ns"].sum()
    if not total:
        sums = rows.group_by("bound").len("n").sort("n", "bound", descending=[True, False])
        return f"Bound by: {listed([f'{name} {n}' for name, n in sums.iter_rows()])} kernels."
    shares = rows.group_by("bound").agg(pl.col("time_ns").sum() / total)
    ordered = shares.sort("time_ns", "bound", descending=[True, False]).rows()
    parts = listed([f"{name} {format_frac(part)}" for name, part in ordered])
    covered = float(rows["time_frac"].sum())
    of = f" with a known bound ({format_frac(covered)} of all kernel time)"
    return f"Limits of the time{of if covered < _ALL else ''}: {parts}."


def _rule(result: Roofline) -> str:
    best = result.rules.drop_nulls("speedup_frac").head(1)
    if best.is_empty():
        return ""
    row = best.row(0, named=True)
    of = "of the kernel" if row["speedup_type"] == "global" else "of a part of the kernel"
    return (
        f"Largest estimated speed-up of ncu: {row['rule']} of {_brief(row['name'])}, "
        f"{format_frac(row['speedup_frac'])} ({of})."
    )


# --- notes ---------------------------------------------------------------------------------------


def _notes(result: Roofline) -> Iterator[str]:
    """Yield assumptions, and what is not counted."""
    if result.source == "trace":
        yield from _notes_of_operators(result)
        return
    yield (
        "Times are those of the profiler, which replays each kernel (ncu: with locked clocks and "
        "cold caches): do not compare them with times of a run."
    )
    kernels, drawn = result.kernels, result.points.height > 0
    used = kernels.filter(pl.col("tensor_frac") > _TENSOR_USED)
    if used.height and not result.tensor_counted:
        yield (
            f"{format_count(used.height, 'kernel')} used tensor cores, whose operations are not in "
            "the report: their FLOP/s are too low. On compute capability 9.0 and newer "
            "--metrics regex:sm__ops_path_tensor_src_.*sum counts them."
        )
    if (
        kernels["gpu"].str.contains(r"^CC 7\.0$|V100").any()
        and (kernels["precision"].fill_null("") == "fp16 tensor").any()
    ):
        yield "FLOPs of tensor cores are estimated: 512 per instruction (HMMA.884)."
    if result.packed_unknown:
        yield (
            "Packed FP32 operations (fadd2, fmul2, ffma2) of this GPU were not recorded: FP32 work "
            "may be too low."
        )
    names = [*kernels["precision"].drop_nulls().unique(), *(["HBM"] if drawn else [])]
    if result.roofs.filter(pl.col("origin") == "table", pl.col("name").is_in(names)).height:
        yield (
            "Some roofs are of the data sheet, at boost clock; ncu measures at base clock by "
            "default."
        )
    if result.missing.height:
        lacking = listed(result.missing["missing"].to_list())
        yield f"Not recorded: {lacking}. {RECORD} records all."
    if drawn and kernels["roof_tflops"].count() == 0:
        yield "Roofs that were not recorded can be given: --peak fp32=TFLOPS --bandwidth HBM=GBPS."


def _notes_of_operators(result: Roofline) -> Iterator[str]:
    yield (
        "FLOPs and bytes follow from the shapes of the inputs, as in efficiency: each input is "
        "read and each output written once. The traffic of caches needs Nsight Compute."
    )
    covered = result.covered_frac
    if covered is not None and covered < 1:
        yield f"Operators with a formula cover {format_frac(covered)} of the compute kernel time."
    for row in result.missing.iter_rows(named=True):
        yield f"Unknown {row['missing']}: {row['record']}."
