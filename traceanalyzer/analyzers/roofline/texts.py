"""Verdict, notes and advice on recording of the roofline analysis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.common.display import listed, sentences
from traceanalyzer.analyzers.efficiency.peaks import PRECISIONS
from traceanalyzer.trace import Meta, record_hint
from traceanalyzer.units import format_count, format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.roofline.result import Roofline

_NCU = "ncu {} --csv --page raw --print-units base --log-file FILE.csv COMMAND"
#: How to record everything that the analysis uses.
RECORD = _NCU.format("--set full")
NOTHING_RECORDED = f"no metric of a roofline and no speed of light were recorded; {RECORD}"
#: Use of tensor cores above which their missing operations matter.
_TENSOR_USED = 0.01
_NAMED = 3
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


def verdict(result: Roofline) -> str:
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
    parts = []
    known = result.kernels.filter(pl.col("work_tflops") > 0)
    for row in known.head(_NAMED).iter_rows(named=True):
        share = f" ({format_frac(row['time_frac'])} of all kernel time)" if row["time_frac"] else ""
        speed = f"{row['work_tflops']:.4g} TFLOP/s in {row['precision']}"
        roof = f", {format_frac(row['roof_frac'])} of its roof" if row["roof_frac"] else ""
        bound = f", {row['bound']} bound" if row["bound"] else ""
        parts.append(f"{_brief(row['name'])}{share} {speed}{roof}{bound}")
    first = "Longest" if result.time_ns else "Fastest"
    if known.height < result.kernels.height:
        first += " with known work"
    return f"{first}: {'; '.join(parts)}." if parts else ""


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
    of = f" (of the time with a known bound, {format_frac(covered)} of all kernel time)"
    return f"Time by limit{of if covered < _ALL else ''}: {parts}."


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


def notes(result: Roofline) -> Iterator[str]:
    """Yield assumptions, and what is not counted."""
    if result.source == "trace":
        yield from _notes_of_operators(result)
        return
    yield (
        "Times are those of ncu, which replays each kernel with locked clocks and cold caches: do "
        "not compare them with times of a run."
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
