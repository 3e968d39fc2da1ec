"""Metrics of Nsight Compute by quantity, and the work, traffic and peaks of each launch.

Work (FLOP/s), as in the section ``SpeedOfLight_RooflineChart`` of ncu and the scripts of NERSC
(https://gitlab.com/NERSC/roofline-on-nvidia-gpus) and ALCF: additions and multiplications count
one, fused ones two, those on packed values (half precision, ``ffma2`` of Blackwell) twice that.
Operations of tensor cores are counted by ``sm__ops_path_tensor_*`` (compute capability 9.0 and
newer).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from traceanalyzer.files import packaged

#: Substrings of the names of metrics that the analysis reads; display names of the details page
#: and of roofline charts at the end.
SUBSTRINGS = (
    "gpu__time_duration.", "sass_thread_inst_executed_op_", "sm__ops_path_tensor_", "__throughput.",
    "_memory_throughput.", "_dram_throughput.", "pipe_tensor", "pipe_tc_cycles_active",
    "sm__warps_active.avg.pct", "sm__maximum_warps_per_active_cycle_pct", "dram__bytes",
    "dram__sectors_", "lts__t_bytes.", "lts__t_sectors.", "l1tex__t_bytes.",
    "cycles_elapsed.avg.per",
    "launch__waves_per_multiprocessor", "launch__registers_per_thread",
    "device__attribute_display_name", "Duration", "Throughput", "Occupancy", "Frequency",
    "DRAM Bandwidth", "Predicated-On", "DRAM Bytes", "Waves Per SM", "Registers Per Thread",
    "SM [%]", "Memory [%]",
)  # fmt: skip

#: Scalar operations of each precision: name in the metric, FLOPs per thread and instruction.
#: The first three must be known; packed ones of Blackwell are added if they were recorded.
OPERATIONS = {
    "fp64": (("dadd", 1), ("dmul", 1), ("dfma", 2)),
    "fp32": (("fadd", 1), ("fmul", 1), ("ffma", 2), ("fadd2", 2), ("fmul2", 2), ("ffma2", 4)),
    "fp16": (("hadd", 2), ("hmul", 2), ("hfma", 4)),
}
REQUIRED = 3
#: The fused operation that determines the peak, and its FLOPs.
FUSED = {"fp64": ("dfma", 2), "fp32": ("ffma", 2), "fp16": ("hfma", 4)}
#: Levels of memory: the unit of the GPU that counts their bytes.
LEVELS = {"HBM": "dram", "L2": "lts", "L1": "l1tex"}
SECTOR_BYTES = 32
#: FLOPs of an instruction of a tensor core of compute capability 7.0 (HMMA.884), as NERSC counts.
HMMA_884 = 512
#: ncu's rule SOLBottleneck: below the first share latency limits, a smaller difference is balanced.
LATENCY_BELOW, BALANCED, NEAR_PEAK = 0.6, 0.1, 0.8
SMALL_GRID = 1

_CHART = {"Single Precision": "fp32", "Double Precision": "fp64", "Half Precision": "fp16"}

_QUANTITIES = packaged("analyzers/roofline/metrics.toml")
#: Metric -> quantity; the earlier metric of a quantity wins.
_BY_METRIC: dict[str, str] = _QUANTITIES["metrics"]
#: Unit and display name -> quantity, on the details page.
_BY_DISPLAY: dict[str, dict[str, str]] = _QUANTITIES["display"]
_SASS = re.compile(
    r"(?:smsp|sm)__sass_thread_inst_executed_op_([dfh](?:add|mul|fma)2?)_pred_on\.sum"
    r"(\.per_cycle_elapsed|\.peak_sustained)?"
)
_TENSOR = re.compile(
    r"sm__ops_path_tensor_(?:op_(?P<op>[a-z0-9]+)_)?src_(?P<src>[a-z0-9_]+?)(?:_dst_(?P<dst>[a-z0-9]+))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?\.sum(?P<of>\.per_cycle_elapsed|\.peak_sustained)?"
)
_ENDINGS = {None: "count", ".per_cycle_elapsed": "rate", ".peak_sustained": "peak"}
_CHARTED = re.compile(r"Predicated-On ([DFH](?:ADD|MUL|FMA)) (.*)")
_LAST = 1_000


def quantity(section: str, label: str, metric: str, unit: str) -> tuple[str, int] | None:
    """Return the quantity that a row measures and its place in the order of preference.

    Args:
        section: section of the report, or empty.
        label: part of the section, or empty.
        metric: name of the metric, or its display name.
        unit: base unit, or empty.
    """
    if metric in _BY_METRIC:
        return _BY_METRIC[metric], _ORDER[metric]
    if sass := _SASS.fullmatch(metric):
        return f"{_ENDINGS[sass[2]]} {sass[1]}", 0
    if tensor := _TENSOR.fullmatch(metric):
        name = metric.removeprefix("sm__ops_path_tensor_").partition(".")[0]
        return f"tensor_{_ENDINGS[tensor['of']]} {name}", 0
    if label:
        return _of_chart(label, metric)
    display = _BY_DISPLAY.get(unit, {}).get(metric)
    if display == "memory_pct" and section and "Speed Of Light" not in section:
        return None
    return (display, _LAST) if display else None


_ORDER = {metric: place for place, metric in enumerate(_BY_METRIC)}


def _of_chart(label: str, metric: str) -> tuple[str, int] | None:
    """Return the quantity of a row of ncu's roofline chart, by its display name."""
    kind, _, what = label.rpartition(" Precision ")
    precision = _CHART.get(f"{kind} Precision")
    if precision is None:
        return None
    name: str | None = None
    if what == "Achieved Value":
        if charted := _CHARTED.fullmatch(metric):
            name = f"chart {charted[1].lower()}"
        elif metric == "SM Frequency":
            name = f"chart {precision}_hz"
        elif metric == "DRAM Bandwidth":
            name = "dram_bps"
    elif what == "Roofline":
        if metric.startswith("Theoretical Predicated-On") and metric.endswith("Operations"):
            name = f"chart {precision}_peak"
        elif metric == "SM Frequency":
            name = f"chart {precision}_hz"
        elif metric == "Theoretical DRAM Bytes Accessible":
            name = "dram_peak"
        elif metric == "DRAM Frequency":
            name = "dram_hz"
    return (name, _LAST) if name else None


@dataclass(frozen=True)
class TensorPath:
    """A counter of operations of tensor cores, and what it counts."""

    name: str
    op: str | None
    sources: frozenset[str]
    target: str | None
    sparsity: str | None

    @property
    def precision(self) -> str:
        """The types of the inputs: ``bf16 tensor``."""
        order = sorted(self.sources, key=lambda one: (self.name.find(one), one))
        return f"{'/'.join(order)} tensor"

    def covers(self, other: TensorPath) -> bool:
        """Whether the other counter counts a part of this one."""
        return (
            self != other
            and self.op in (None, other.op)
            and other.sources == self.sources
            and self.target in (None, other.target)
            and self.sparsity in (None, other.sparsity)
        )


def tensor_paths(names: Iterable[str]) -> list[TensorPath]:
    """Return the counters that together count each operation once.

    ``src_bf16_dst_fp32`` includes ``..._sparsity_on`` and ``..._sparsity_off``, and ``src_fp16``
    includes ``src_fp16_dst_fp32``. On Blackwell, ``src_fp4_fp6_fp8`` and ``src_fp4`` count other
    instructions.
    """
    paths = []
    for name in sorted(set(names)):
        if match := _TENSOR.fullmatch(f"sm__ops_path_tensor_{name}.sum"):
            sources = frozenset(match["src"].split("_"))
            paths.append(TensorPath(name, match["op"], sources, match["dst"], match["sparsity"]))
    return [one for one in paths if not any(other.covers(one) for other in paths)]


#: Columns that identify a launch; with the file, if the process is unknown.
IDENTITY = ("host", "pid", "id", "kernel", "device", "grid", "block")
ABOUT = (*IDENTITY, "cc", "launches")
_TYPES = {"host": pl.String, "pid": pl.Int64, "id": pl.Int64, "kernel": pl.String,
          "device": pl.Int32, "grid": pl.String, "block": pl.String, "cc": pl.String,
          "launches": pl.Int64}  # fmt: skip
PERCENTAGES = ("sm", "memory", "dram", "l1", "l2", "occupancy", "theoretical_occupancy", "tensor")
COUNTS = ("waves", "registers")


def quantities(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return one row per launch: :data:`ABOUT`, and a column per quantity that was recorded."""
    about = metrics.select("launch", *ABOUT).unique("launch", maintain_order=True)
    about = about.with_columns(pl.col(name).cast(dtype) for name, dtype in _TYPES.items())
    keys = ["section", "label", "metric", "unit"]
    known = pl.col("value").is_not_null() & pl.col("metric").is_not_null()
    rows = metrics.filter(known).select("launch", *keys, "value")
    kinds = rows.select(keys).unique()
    found = [quantity(*(text or "" for text in row)) for row in kinds.cast(pl.String).rows()]
    names = sorted({one[0] for one in found if one})
    named = kinds.with_columns(
        quantity=pl.Series([one and one[0] for one in found], dtype=pl.Enum(names)),
        order=pl.Series([one and one[1] for one in found], dtype=pl.Int16),
    ).drop_nulls("quantity")
    if named.is_empty() or rows.is_empty():
        return about.drop("launch")
    joined = rows.join(named, on=keys, nulls_equal=True).select(
        "launch", "quantity", "order", "value"
    )
    if named["order"].n_unique() > 1:
        joined = joined.sort("order", maintain_order=True)
    columns = [
        pl.col("value").filter(pl.col("quantity") == name).first().alias(name) for name in names
    ]
    wide = joined.group_by("launch").agg(columns)
    return about.join(wide, on="launch", how="left", maintain_order="left").drop("launch")


def merged(parts: Sequence[tuple[str, pl.DataFrame]]) -> pl.DataFrame:
    """Return the launches of all files; those that several files describe are one row.

    ncu exports pages of one report to several files: they agree in host, process, number and kernel
    of a launch. Launches of an unknown process are those of their file alone.
    """
    frames = []
    for number, (path, frame) in enumerate(parts):
        of_file = pl.when(pl.col("pid").is_null() | pl.col("id").is_null()).then(
            pl.int_range(pl.len(), dtype=pl.Int64) * len(parts) + number
        )
        frames.append(frame.with_columns(path=pl.lit(path), alone=of_file))
    rows = pl.concat(frames, how="diagonal")
    keys = [*IDENTITY, "alone"]
    if rows.select(keys).is_duplicated().any():
        others = [name for name in rows.columns if name not in keys]
        rows = rows.group_by(keys, maintain_order=True).agg(
            pl.col(name).drop_nulls().first() for name in others
        )
    return rows.drop("alone")


def rates(launches: pl.DataFrame) -> pl.DataFrame:
    """Return one row per launch with rates in SI units, null where metrics are missing.

    Returns:
        :data:`ABOUT`, ``path``, ``time_ns``, ``work PRECISION`` (FLOP/s), ``traffic LEVEL``
        (byte/s), ``peak PRECISION`` (FLOP/s), ``roof LEVEL`` (byte/s), percentages as ``..._frac``,
        ``waves``, ``registers``.
    """
    has = set(launches.columns)
    seconds = _known(has, "time_ns") / 1e9
    columns: dict[str, pl.Expr] = {"time_ns": _known(has, "time_ns")}
    for precision in OPERATIONS:
        columns[f"work {precision}"] = _work(has, precision, seconds)
        columns[f"peak {precision}"] = _peak(has, precision)
    columns |= _tensor(has, seconds)
    for level, unit in LEVELS.items():
        columns[f"traffic {level}"] = _traffic(has, unit, seconds)
        columns[f"roof {level}"] = _known(has, f"{unit}_peak") * _known(has, f"{unit}_hz")
    for name in PERCENTAGES:
        columns[f"{name}_frac"] = _known(has, f"{name}_pct") / 100
    for name in COUNTS:
        columns[name] = _known(has, name)
    finite = (pl.when(expr.is_finite()).then(expr).alias(name) for name, expr in columns.items())
    return launches.select("path", *ABOUT, *finite)


def _known(has: set[str], name: str) -> pl.Expr:
    return pl.col(name) if name in has else pl.lit(None, pl.Float64)


def _work(has: set[str], precision: str, seconds: pl.Expr) -> pl.Expr:
    """Return FLOP/s of scalar instructions: from rates per cycle, counts, or ncu's chart."""
    fused = FUSED[precision][0]
    hz = pl.coalesce(_known(has, "smsp_hz"), _known(has, "sm_hz"))
    of_cycles = _sum(has, "rate", precision) * hz
    of_counts = _sum(has, "count", precision) / pl.when(seconds > 0).then(seconds)
    add, multiply = (factor for _, factor in OPERATIONS[precision][:2])
    letter = fused[0]
    charted = (
        _known(has, f"chart {letter}add") * add
        + _known(has, f"chart {letter}mul") * multiply
        + _known(has, f"chart {fused}")  # operations, not instructions
    ) * _known(has, f"chart {precision}_hz")
    return pl.coalesce(of_cycles, of_counts, charted)


def _sum(has: set[str], of: str, precision: str) -> pl.Expr:
    """Return the sum of the operations; null if one that every GPU has is missing."""
    total = pl.lit(0.0)
    for place, (name, factor) in enumerate(OPERATIONS[precision]):
        value = _known(has, f"{of} {name}") * factor
        total = total + (value if place < REQUIRED else value.fill_null(0.0))
    return total


def _peak(has: set[str], precision: str) -> pl.Expr:
    name, factor = FUSED[precision]
    hz = pl.coalesce(_known(has, "sm_hz"), _known(has, "smsp_hz"))
    counted = _known(has, f"peak {name}") * factor * hz
    charted = _known(has, f"chart {precision}_peak") * _known(has, f"chart {precision}_hz")
    return pl.coalesce(counted, charted)


def _tensor(has: set[str], seconds: pl.Expr) -> dict[str, pl.Expr]:
    """Return work and peaks of tensor cores by precision."""
    columns: dict[str, pl.Expr] = {}
    hz = _known(has, "sm_hz")
    names = {name.partition(" ")[2] for name in has if name.startswith(("tensor_count ",
             "tensor_rate "))}  # fmt: skip
    for path in tensor_paths(names):
        counts = _known(has, f"tensor_count {path.name}") / pl.when(seconds > 0).then(seconds)
        work = pl.coalesce(_known(has, f"tensor_rate {path.name}") * hz, counts)
        key = f"work {path.precision}"
        columns[key] = pl.sum_horizontal(columns[key], work) if key in columns else work
        peak = _known(has, f"tensor_peak {path.name}") * hz
        key = f"peak {path.precision}"
        columns[key] = pl.max_horizontal(columns[key], peak) if key in columns else peak
    if "tensor_instructions" in has:
        estimate = pl.col("tensor_instructions") * HMMA_884 / pl.when(seconds > 0).then(seconds)
        old = pl.when(pl.col("cc") == "7.0").then(estimate)
        key = "work fp16 tensor"
        columns[key] = pl.coalesce(columns[key], old) if key in columns else old
        columns.setdefault("peak fp16 tensor", pl.lit(None, pl.Float64))
    return columns


def _traffic(has: set[str], unit: str, seconds: pl.Expr) -> pl.Expr:
    """Return byte/s of a level: its bytes, or reads and writes, or sectors of 32 bytes."""
    second = pl.when(seconds > 0).then(seconds)
    if unit == "dram":
        pairs = [
            _known(has, f"dram_read_{of}") + _known(has, f"dram_write_{of}")
            for of in ("bytes", "sectors")
        ]
        moved = pl.coalesce(_known(has, "dram_bytes"), pairs[0], pairs[1] * SECTOR_BYTES)
    else:
        moved = pl.coalesce(
            _known(has, f"{unit}_bytes"), _known(has, f"{unit}_sectors") * SECTOR_BYTES
        )
    return pl.coalesce(moved / second, _known(has, f"{unit}_bps"))
