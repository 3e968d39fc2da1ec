"""Roofline of reports of Nsight Compute and of traces, against independent computations."""

from __future__ import annotations

import csv
import json
import runpy
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from conftest import ROOT
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.roofline.metrics import quantity, tensor_paths
from traceanalyzer.analyzers.roofline.result import missing_peaks
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.render import html, plot
from traceanalyzer.units import format_frac

FOLDER = ROOT / "fixtures" / "ncu"
TRACE = ROOT / "fixtures" / "transformer"
SCRIPT = runpy.run_path(str(ROOT / "fixtures" / "make_ncu.py"))
HEADER = [*SCRIPT["IDS"], *SCRIPT["LONG"]]


def report(path: Path, metrics: dict[str, tuple[float, str]], cc: str = "8.0") -> Path:
    """Write a report of one launch."""
    rows = [
        [*SCRIPT["ids"](SCRIPT["LAUNCHES"][0], cc), "s", name, unit, repr(float(value))]
        for name, (value, unit) in metrics.items()
    ]
    path.write_text(SCRIPT["lines"]([HEADER, *rows]))
    return path


def sass(**counts: float) -> dict[str, tuple[float, str]]:
    """Return metrics of executed operations."""
    name = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    return {name.format(op): (count, "inst") for op, count in counts.items()}


def test_equals_the_reference(shared: Path) -> None:
    result = ta.roofline(shared / "data/ncu/esmm_metrics.csv", by="launch")
    with (shared / "oracle/ncu/roofline_ESMM_metrics_csv.csv").open() as file:
        rows = {int(row["id"]): row for row in csv.DictReader(file)}
    assert result.kernels.height == len(rows) == 9
    for row in result.kernels.iter_rows(named=True):
        reference = rows[int(row["name"].rpartition("#")[2])]
        assert row["kernel"] == reference["kernel"]
        assert row["work_tflops"] * 1e12 == pytest.approx(float(reference["flop_per_s"]))
        assert row["hbm_intensity"] == pytest.approx(float(reference["ai_flop_per_byte"]))
        assert row["time_ns"] == round(float(reference["seconds"]) * 1e9)


def test_kernels_sum_their_launches(shared: Path) -> None:
    result = ta.roofline(shared / "data/ncu/esmm_metrics.csv")
    row = result.kernels.filter(pl.col("launches") == 2).row(0, named=True)
    assert row["kernel"] == "ampere_sgemm_128x64_nn"
    assert row["work_tflops"] == pytest.approx(2 * 2194669568 / (149_344 + 148_896) / 1e3)
    assert row["hbm_intensity"] == pytest.approx(2 * 2194669568 / (35172992 + 35125888))
    assert result.time_ns == result.kernels["time_ns"].sum() == 14_690_304


def test_v100_roofs_of_nersc(tmp_path: Path) -> None:
    """Roofs of NERSC's example: 7068.86 GFLOP/s, 14336, 2996.77 and 828.758 GB/s."""
    metrics = sass(dadd=0, dmul=0, dfma=5e8) | {
        "gpu__time_duration.sum": (1e6, "ns"),
        "dram__bytes.sum": (1e9, "byte"), "lts__t_bytes.sum": (2e9, "byte"),
        "l1tex__t_bytes.sum": (8e9, "byte"),
    }  # fmt: skip
    path = report(tmp_path / "v100.csv", metrics, "7.0")
    bandwidth = ("828.758", "L2=2996.77", "L1=14336")
    row = ta.roofline(path, peak="fp64=7.06886", bandwidth=bandwidth).kernels.row(0, named=True)
    assert row["work_tflops"] == pytest.approx(1.0)
    intensities = [row[f"{level}_intensity"] for level in ("hbm", "l2", "l1")]
    assert intensities == pytest.approx([1, 0.5, 0.125])
    # min(7068.86, 1 x 828.758, 0.5 x 2996.77, 0.125 x 14336) GFLOP/s
    assert row["roof_tflops"] == pytest.approx(0.828758)
    assert (row["limit"], row["precision"]) == ("HBM", "fp64")


def test_half_precision_counts_two_lanes(tmp_path: Path) -> None:
    time = {"gpu__time_duration.sum": (1e3, "ns")}
    path = report(tmp_path / "x.csv", sass(hadd=1e6, hmul=1e6, hfma=1e6) | time)
    assert ta.roofline(path).kernels["work_tflops"].to_list() == [pytest.approx(8.0)]


def test_packed_operations_of_blackwell(tmp_path: Path) -> None:
    time = {"gpu__time_duration.sum": (1e3, "ns")}
    scalar = sass(fadd=1e6, fmul=0, ffma=1e6)
    result = ta.roofline(report(tmp_path / "x.csv", scalar | time, "10.0"))
    assert result.packed_unknown
    packed = scalar | sass(fadd2=1e6, fmul2=0, ffma2=1e6)
    result = ta.roofline(report(tmp_path / "y.csv", packed | time, "10.0"))
    assert not result.packed_unknown
    assert result.kernels["work_tflops"].to_list() == [pytest.approx(1 + 2 + 2 + 4)]


def test_incomplete_operations_give_no_point(tmp_path: Path) -> None:
    metrics = sass(ffma=1e6) | {
        "gpu__time_duration.sum": (1e3, "ns"),
        "dram__bytes.sum": (1, "byte"),
    }
    result = ta.roofline(report(tmp_path / "x.csv", metrics))
    assert result.points.is_empty()
    assert result.missing["missing"][0] == "work (FLOP)"


def test_hierarchy_and_tensor_cores() -> None:
    result = ta.roofline(FOLDER / "hopper_raw.csv")
    rows = {row["name"]: row for row in result.kernels.iter_rows(named=True)}
    gemm = rows["gemm_bf16"]
    assert gemm["precision"] == "bf16 tensor"
    # the counter and its part without sparsity are one
    work = 8e11 / 2.1e-3 + 2 * 10 * 1.6e9
    assert gemm["work_tflops"] == pytest.approx(work / 1e12)
    assert gemm["l2_intensity"] == pytest.approx(work / 2500e9)
    assert gemm["roof_tflops"] == pytest.approx(540_672 * 1.6e9 / 1e12)
    assert gemm["limit"] == "compute"
    norm = rows["layer_norm"]
    assert norm["roof_frac"] == pytest.approx(2600e9 / (2048 * 1.6e9))
    levels = result.points.filter(pl.col("name") == "layer_norm")["level"].to_list()
    assert sorted(levels) == ["HBM", "L1", "L2"]


@pytest.mark.parametrize(
    ("sm", "memory", "waves", "bound"),
    [
        (20, 30, 3, "latency"),
        (20, 30, 0.7, "latency (small grid)"),
        (1.3, 61.8, 6, "memory"),
        (75, 61, 6, "compute"),
        (70, 65, 6, "balanced"),
        (91, 89, 6, "compute"),
        (50, 85, 0.5, "memory"),
    ],
)
def test_bound_is_that_of_the_rule_of_ncu(
    sm: float, memory: float, waves: float, bound: str, tmp_path: Path
) -> None:
    pct = ".avg.pct_of_peak_sustained_elapsed"
    metrics = {
        f"sm__throughput{pct}": (sm, "%"),
        f"gpu__compute_memory_throughput{pct}": (memory, "%"),
        "launch__waves_per_multiprocessor": (waves, ""),
    }
    assert ta.roofline(report(tmp_path / "x.csv", metrics)).kernels["bound"].to_list() == [bound]


def test_real_details_pages(shared: Path) -> None:
    row = ta.roofline(shared / "data/ncu/copy_blocked_details.csv")
    kernel = row.kernels.row(0, named=True)
    assert kernel["bound"] == "memory"  # ncu's own rule: "Memory is more heavily utilized"
    assert kernel["memory_frac"] == pytest.approx(0.6184)
    assert kernel["occupancy_frac"] == pytest.approx(0.9626)
    assert kernel["hbm_gbps"] == pytest.approx(196.456, abs=0.001)
    best = row.rules.filter(pl.col("rule") == "UncoalescedGlobalAccess").row(0, named=True)
    assert (best["speedup_frac"], best["speedup_type"]) == (pytest.approx(0.7414), "global")
    assert best["saved_ns"] == pytest.approx(0.7414 * 21_058_944)
    # two messages of one rule about one launch are two rows
    stalls = row.rules.filter(pl.col("rule") == "CPIStall")
    assert stalls["launches"].to_list() == [1, 1, 1]


def test_pages_of_one_report_are_one_launch(shared: Path) -> None:
    """The roofline chart has rates, the details page the time; both describe one launch."""
    files = sorted((shared / "data/ncu").glob("dsocr_*.csv"))
    result = ta.roofline(files)
    row = result.kernels.row(0, named=True)
    assert (result.kernels.height, row["launches"], row["time_ns"]) == (1, 1, 6_750)
    rate = (158.12 + 1.97 + 0) * 2.15e9
    assert row["work_tflops"] == pytest.approx(rate / 1e12)
    assert row["hbm_intensity"] == pytest.approx(rate / (2.33e6 / 6.75e-6))
    assert row["roof_tflops"] == pytest.approx(row["hbm_intensity"] * 128 * 13.72e9 / 1e12)
    assert result.rules["launches"].to_list() == [1] * result.rules.height


def test_summary_counts_all_launches() -> None:
    result = ta.roofline(FOLDER / "summary.csv")
    assert result.kernels["time_ns"].to_list() == [30_000, 12_000]
    assert result.launches == 6


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (
            [
                "src_bf16_dst_fp32",
                "src_bf16_dst_fp32_sparsity_on",
                "src_bf16_dst_fp32_sparsity_off",
            ],
            ["src_bf16_dst_fp32"],
        ),
        (["src_fp16", "src_fp16_dst_fp32", "op_hmma_src_fp16_dst_fp32"], ["src_fp16"]),
        (["src_bf16_dst_fp32_sparsity_on", "src_bf16_dst_fp32_sparsity_off"], 2),
        (["src_fp16_dst_fp16", "src_fp16_dst_fp32", "src_int8"], 3),
        # other instructions of Blackwell
        (["src_fp4_fp6_fp8_dst_fp32", "src_fp4_fp6_dst_fp32", "src_fp4_dst_fp32"], 3),
        (
            ["src_fp4_fp6_fp8_dst_fp32", "op_utcqmma_src_fp4_fp6_fp8_dst_fp32_sparsity_off"],
            ["src_fp4_fp6_fp8_dst_fp32"],
        ),
    ],
)
def test_tensor_counters_count_once(names: list[str], kept: list[str] | int) -> None:
    found = [path.name for path in tensor_paths(names)]
    assert found == kept if isinstance(kept, list) else len(found) == kept


def test_quantities_depend_on_section_and_unit() -> None:
    sol = "GPU Speed Of Light Throughput"
    assert quantity(sol, "", "Memory Throughput", "%") is not None
    assert quantity("Memory Workload Analysis", "", "Memory Throughput", "%") is None
    assert quantity("", "", "Duration", "cycle") is None


def test_operators_of_a_trace_are_those_of_efficiency() -> None:
    result, reference = ta.roofline(TRACE), ta.efficiency(TRACE)
    assert result.source == "trace"
    joined = result.kernels.with_columns(operator=pl.col("kernel")).sort("time_ns", "name")
    assert joined["time_ns"].sum() == reference.operators["device_ns"].sum()
    row = result.kernels.row(0, named=True)
    other = reference.operators.filter(
        pl.format("{} {} {}", "operator", "shape", "precision") == row["name"]
    ).row(0, named=True)
    assert row["hbm_intensity"] == pytest.approx(other["flops"] / other["bytes"])
    assert row["work_tflops"] == other["achieved_tflops"]
    assert row["roof_frac"] == other["roof_frac"]
    roofs = {row["name"]: row["value"] for row in result.roofs.iter_rows(named=True)}
    assert (roofs["bf16"], roofs["HBM"]) == (pytest.approx(989.5e12), pytest.approx(3.35e12))


def ranges(path: Path, *, timed: bool = True) -> Path:
    """Write a recording of Kineto's range profiler: calls, and counters of kernels on 2 GPUs."""
    events: list[dict[str, object]] = []
    for gpu in (0, 1):
        for number, name in enumerate(("gemm", "add", "gemm")):
            begin = 1000 * gpu + 100 * number
            events.append(
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9,
                 "ts": begin, "dur": 5, "args": {"correlation": begin}}
            )  # fmt: skip
            metrics = {
                "dram__bytes_read.sum": 3e6 * (number + 1), "dram__bytes_write.sum": 1e6,
                **{f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum": 5e6
                   for op in ("fadd", "fmul", "ffma")},
            }  # fmt: skip
            if timed:
                metrics["gpu__time_duration.sum"] = 20_000
            events.append(
                {"ph": "X", "cat": "cuda_profiler_range", "name": name, "pid": gpu, "tid": 0,
                 "ts": begin, "dur": 100, "args": metrics}
            )  # fmt: skip
    gpus = [{"id": gpu, "name": "NVIDIA A100-SXM4-40GB"} for gpu in (0, 1)]
    path.write_text(
        json.dumps({"schemaVersion": 1, "deviceProperties": gpus, "traceEvents": events})
    )
    return path


def test_counters_of_kineto_are_those_of_launches(tmp_path: Path) -> None:
    """The times of the events are equal parts of the recording: only the metric is a time."""
    result = ta.roofline(ranges(tmp_path / "trace.json"))
    rows = {row["kernel"]: row for row in result.kernels.to_dicts()}
    assert result.launches == 6
    assert {name: (row["launches"], row["time_ns"]) for name, row in rows.items()} == {
        "gemm": (4, 80_000), "add": (2, 40_000),
    }  # fmt: skip
    assert rows["gemm"]["work_tflops"] == pytest.approx(4 * 5e6 / 20e-6 / 1e12)
    assert rows["add"]["hbm_gbps"] == pytest.approx((6e6 + 1e6) / 20e-6 / 1e9)
    assert rows["gemm"]["hbm_gbps"] == pytest.approx((6e6 + 1e6) / 20e-6 / 1e9)
    by_launch = ta.roofline(ranges(tmp_path / "trace.json"), by="launch").kernels
    assert by_launch.height == 6


def test_counters_without_a_time_have_no_speed(tmp_path: Path) -> None:
    result = ta.roofline(ranges(tmp_path / "trace.json", timed=False))
    assert result.kernels["time_ns"].null_count() == result.kernels["hbm_gbps"].null_count() == 2
    assert "time" in set(result.missing["missing"])


def test_counters_are_no_kernels_with_times(tmp_path: Path) -> None:
    path = ranges(tmp_path / "trace.json")
    with pytest.raises(MissingData, match="profiler_metrics"):
        ta.kernels(path)
    found = ta.diagnose(path)
    notes = "".join(found.notes)
    assert not found.findings
    assert "profiler_metrics" in notes
    assert "WSL2" not in notes


def test_errors(tmp_path: Path) -> None:
    with raises_wording(MissingData):
        ta.roofline([FOLDER / "long.csv", TRACE / "rank0.json.gz"])
    with raises_wording(MissingData):
        ta.roofline(report(tmp_path / "x.csv", {"smsp__inst_issued.sum": (1, "inst")}))
    with raises_wording(MissingData):
        ta.roofline(ROOT / "fixtures" / "nccl_8ranks" / "rank0.json.gz")
    for bandwidth in ("L3=5", "HBM=x", "-1"):
        with raises_wording(OptionError):
            ta.roofline(FOLDER / "long.csv", bandwidth=bandwidth)


def test_chart_is_logarithmic_with_roofs_symbols_and_areas() -> None:
    result = ta.roofline(FOLDER / "hopper_raw.csv")
    (chart,) = result.charts
    assert (chart.log_x, chart.log_y, chart.symbol) == (True, True, "level")
    lines = chart.lines
    assert lines is not None
    for row in lines.iter_rows(named=True):  # level, or through the origin
        assert row["y"] == row["y2"] or row["y"] / row["x"] == pytest.approx(row["y2"] / row["x2"])
    axes = plot.figure(result).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert len(axes.lines) == lines.height
    page = html.page(result)
    assert '"logX":true' in page
    assert '"lines":[["' in page


def test_work_is_unknown_if_only_a_counter_of_tensor_cores_is_zero(tmp_path: Path) -> None:
    time = {"gpu__time_duration.sum": (1000, "ns")}
    tensor = {"sm__ops_path_tensor_src_bf16_dst_fp32.sum": (0, "")}
    result = ta.roofline(report(tmp_path / "x.csv", {**time, **tensor}, "9.0"))
    assert result.kernels["work_tflops"].to_list() == [None]
    assert "work (FLOP)" in result.missing["missing"].to_list()
    scalar = sass(fadd=0, fmul=0, ffma=0)
    result = ta.roofline(report(tmp_path / "y.csv", {**time, **tensor, **scalar}, "9.0"))
    assert result.kernels["work_tflops"].to_list() == [0]


def test_only_accepted_precisions_are_suggested() -> None:
    peaks = pl.DataFrame({"peak_tflops": [None], "peak_gbps": [1.0]})
    operators = pl.DataFrame({"precision": ["int64", "fp32"]})
    assert missing_peaks(peaks, operators)["record"].to_list() == ["give --peak fp32=TFLOPS"]


def test_shares_of_the_verdict_have_one_base() -> None:
    every = ta.roofline(TRACE)
    halved = every.kernels.with_columns(pl.col("time_frac") / 2)  # half of the kernel time
    result = replace(every, kernels=halved)
    known = halved.drop_nulls("bound")["time_frac"].sum()
    assert f"known bound ({format_frac(known)} of all kernel time)" in result.verdict


def test_a_time_window_does_not_apply_to_a_report_of_ncu() -> None:
    with pytest.raises(MissingData, match=r"wide\.csv.*--since"):
        ta.roofline(ROOT / "fixtures/ncu/wide.csv", since_ns=1)


def test_memory_of_gpus_without_hbm_is_dram(shared: Path) -> None:
    """An RTX 5090 has GDDR memory."""
    text = ta.roofline(shared / "data/ncu/dsocr_k0001_details.csv").table()
    assert "DRAM" in text
    assert "HBM" not in text
    assert "type kernel" not in text
    assert "HBM" in ta.roofline(ROOT / "fixtures/ncu/hopper_raw.csv").table()
