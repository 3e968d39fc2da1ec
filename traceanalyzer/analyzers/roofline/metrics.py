"""Metrics of Nsight Compute by quantity: the names on each page, and the formulas.

Work (FLOP/s), as in the section ``SpeedOfLight_RooflineChart`` of ncu and the scripts of NERSC
(https://gitlab.com/NERSC/roofline-on-nvidia-gpus) and ALCF: additions and multiplications count
one, fused ones two, those on packed values (half precision, ``ffma2`` of Blackwell) twice that.
Operations of tensor cores are counted by ``sm__ops_path_tensor_*`` (compute capability 9.0 and
newer).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

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

_PCT = ".pct_of_peak_sustained_"
_SOL = "GPU Speed Of Light Throughput"
_CHART = {"Single Precision": "fp32", "Double Precision": "fp64", "Half Precision": "fp16"}

#: Metric -> quantity; the earlier metric of a quantity wins.
_BY_METRIC: dict[str, str] = {
    "gpu__time_duration.sum": "time_ns",
    "gpu__time_duration.avg": "time_ns",
    f"sm__throughput.avg{_PCT}elapsed": "sm_pct",
    f"gpu__compute_memory_throughput.avg{_PCT}elapsed": "memory_pct",
    f"gpu__dram_throughput.avg{_PCT}elapsed": "dram_pct",
    f"dram__throughput.avg{_PCT}elapsed": "dram_pct",
    f"l1tex__throughput.avg{_PCT}active": "l1_pct",
    f"lts__throughput.avg{_PCT}elapsed": "l2_pct",
    f"sm__warps_active.avg{_PCT}active": "occupancy_pct",
    "sm__maximum_warps_per_active_cycle_pct": "theoretical_occupancy_pct",
    f"sm__pipe_tensor_cycles_active.avg{_PCT}active": "tensor_pct",
    f"sm__pipe_tc_cycles_active.avg{_PCT}active": "tensor_pct",
    f"sm__pipe_tensor_cycles_active.avg{_PCT}elapsed": "tensor_pct",
    f"sm__pipe_tc_cycles_active.avg{_PCT}elapsed": "tensor_pct",
    f"sm__inst_executed_pipe_tensor.avg{_PCT}active": "tensor_pct",
    **{
        f"sm__pipe_tensor_{op}_cycles_active.avg{_PCT}{of}": "tensor_pct"
        for of in ("active", "elapsed")
        for op in ("op_hmma", "subpipe_hmma", "op_imma", "subpipe_imma", "op_dmma", "subpipe_dmma")
    },
    "sm__inst_executed_pipe_tensor.sum": "tensor_instructions",
    "launch__waves_per_multiprocessor": "waves",
    "launch__registers_per_thread": "registers",
    **{
        f"{unit}__cycles_elapsed.avg.per_second": f"{unit}_hz"
        for unit in ("sm", "smsp", *LEVELS.values())
    },
    "dram__bytes.sum": "dram_bytes",
    "dram__bytes.sum.per_second": "dram_bps",
    "dram__bytes_read.sum": "dram_read_bytes",
    "dram__bytes_op_read.sum": "dram_read_bytes",
    "dram__bytes_write.sum": "dram_write_bytes",
    "dram__bytes_op_write.sum": "dram_write_bytes",
    "dram__sectors_read.sum": "dram_read_sectors",
    "dram__sectors_write.sum": "dram_write_sectors",
    "lts__t_bytes.sum": "lts_bytes",
    "lts__t_bytes.sum.per_second": "lts_bps",
    "lts__t_sectors.sum": "lts_sectors",
    "l1tex__t_bytes.sum": "l1tex_bytes",
    "l1tex__t_bytes.sum.per_second": "l1tex_bps",
    "dram__bytes.sum.peak_sustained": "dram_peak",
    "lts__t_bytes.sum.peak_sustained": "lts_peak",
    "l1tex__t_bytes.sum.peak_sustained": "l1tex_peak",
}
#: Display name (and its unit) -> quantity, on the details page.
_BY_DISPLAY: dict[tuple[str, str], str] = {
    ("Duration", "ns"): "time_ns",
    ("Compute (SM) Throughput", "%"): "sm_pct",
    ("Compute (SM) [%]", "%"): "sm_pct",
    ("SM [%]", "%"): "sm_pct",
    ("Memory [%]", "%"): "memory_pct",
    ("Memory Throughput", "%"): "memory_pct",
    ("DRAM Throughput", "%"): "dram_pct",
    ("L1/TEX Cache Throughput", "%"): "l1_pct",
    ("L2 Cache Throughput", "%"): "l2_pct",
    ("Achieved Occupancy", "%"): "occupancy_pct",
    ("Theoretical Occupancy", "%"): "theoretical_occupancy_pct",
    ("Memory Throughput", "byte/s"): "dram_bps",
    ("Waves Per SM", ""): "waves",
    ("Registers Per Thread", "register/thread"): "registers",
}
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
    display = _BY_DISPLAY.get((metric, unit))
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
            and other.sources <= self.sources
            and self.target in (None, other.target)
            and self.sparsity in (None, other.sparsity)
        )


def tensor_paths(names: Iterable[str]) -> list[TensorPath]:
    """Return the counters that together count each operation once.

    ``src_bf16_dst_fp32`` includes ``..._sparsity_on`` and ``..._sparsity_off``, and ``src_fp16``
    includes ``src_fp16_dst_fp32``.
    """
    paths = []
    for name in sorted(set(names)):
        if match := _TENSOR.fullmatch(f"sm__ops_path_tensor_{name}.sum"):
            sources = frozenset(match["src"].split("_"))
            paths.append(TensorPath(name, match["op"], sources, match["dst"], match["sparsity"]))
    return [one for one in paths if not any(other.covers(one) for other in paths)]
