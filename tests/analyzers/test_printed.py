"""The tables of printed text, compared with the trace of the same run or with other formulas."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import pytest
from conftest import ROOT, run_cli
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer import MissingData
from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.printed.compute import FORMS
from traceanalyzer.cli.answering import _message
from traceanalyzer.units import format_frac

TEXTS = ROOT / "fixtures" / "printed_text"
SCRIPT = runpy.run_path(str(ROOT / "fixtures" / "make_printed_text.py"))
LOG = TEXTS / "job.log"
TRACE = ROOT / "fixtures" / "nccl_8ranks" / "rank0.json.gz"


def table(paths: Any, name: str, **how: Any) -> pl.DataFrame:
    """Return a table of the printed text."""
    return ta.printed(paths, **how).to_polars(name)


@pytest.fixture
def torch(shared: Path) -> str:
    return str(shared / "data/key_averages/torch213_cpu_")


# --- operators -----------------------------------------------------------------------------------


def test_operators_equal_those_of_the_trace_of_the_same_run(torch: str) -> None:
    text = ta.printed(f"{torch}profiler_list.dat")
    trace = ta.operators(f"{torch}profiler_chrome.json.gz")
    assert text.scalars["host_ns"] == pytest.approx(trace.host_ns, rel=1e-3)
    columns = ["calls", "self_host_ns", "total_host_ns"]
    whole = text.to_polars("operators").filter(~pl.col("is_cut")).select("name", *columns)
    both = whole.join(trace.operators.select("name", *columns), on="name", suffix="_of_trace")
    # one function was running when the profiler started: the trace has it without a line
    assert (both.height, whole.height) == (157, 158)
    assert both["calls"].equals(both["calls_of_trace"].alias("calls"))
    # annotations lie between frames of Python in another order
    for column, rows in (
        ("self_host_ns", both.filter(pl.col("name").str.starts_with("aten::"))),
        ("total_host_ns", both),
    ):
        assert rows.height > 40
        for printed, exact in rows.select(column, f"{column}_of_trace").iter_rows():
            # ms have three decimals, us too
            assert abs(printed - exact) <= (1 if abs(exact) < 999_500 else 500)


def test_flops_follow_from_the_shapes(torch: str) -> None:
    trace = ta.read(f"{torch}profiler_chrome.json.gz", columns=["input_dims"])
    calls = trace.events.filter(pl.col("name") == "aten::mm")["input_dims"]
    shapes = [json.loads(one) for one in calls]
    expected = sum(2 * a[0] * a[1] * b[1] for a, b in (one[:2] for one in shapes))
    rows = table(f"{torch}profiler_list.dat", "operators")
    assert rows.filter(pl.col("name") == "aten::mm")["flops"].to_list() == [expected]


def test_every_table_keeps_its_rows_and_totals(torch: str) -> None:
    names = ("profiler_list.dat", "top10.txt", "by_shape.txt", "by_stack.txt")
    alone = [ta.printed(f"{torch}{name}") for name in names]
    together = ta.printed([f"{torch}{name}" for name in names])
    rows = sum(one.to_polars("operators").height for one in alone)
    assert together.to_polars("operators").height == rows
    totals = together.to_polars("operator_totals")
    assert totals["host_ns"].to_list() == [6_087_000] * 4
    assert set(totals["grouped_by"]) == {None, "input shapes", "source location"}
    of_mm = alone[2].to_polars("operators").filter(pl.col("name") == "aten::mm")
    assert of_mm["calls"].to_list() == [2, 2]
    assert set(of_mm["input_dims"]) == {"[[10, 8], [8, 14400]]", "[[8, 10], [10, 14400]]"}
    stacks = alone[3].to_polars("operators")["stack"]
    assert stacks.str.ends_with("nn.Module: Linear_0").any()
    assert "more than once" in " ".join(together.notes)


def test_largest_operator_is_first(torch: str) -> None:
    rows = table(f"{torch}profiler_list.dat", "operators")
    assert rows["self_host_ns"].to_list() == sorted(rows["self_host_ns"], reverse=True)
    assert (rows["self_host_frac"] * 6_087_000).round().cast(pl.Int64).equals(rows["self_host_ns"])
    device = table(LOG, "operators")["self_device_ns"].to_list()
    assert device == sorted(device, reverse=True)


def test_rows_of_ranks_and_shortened_names_are_not_summed() -> None:
    both = table(LOG, "operators")
    calls = Counter(both.filter(~pl.col("is_cut")).select("name", "calls").iter_rows())
    assert calls == {(name, n): 2 for name, *_, n, _ in SCRIPT["OPERATORS"] if len(name) < 55}
    cut = both.filter("is_cut")
    assert cut.height == 4
    assert cut["name"].n_unique() == 1
    assert sorted(cut["self_device_ns"]) == [2_877_000, 2_877_000, 7_000_000, 7_000_000]
    totals = table(LOG, "operator_totals")
    assert totals["rank"].to_list() == [0, 1]
    assert totals["host_ns"].to_list() == [SCRIPT["HOST_NS"]] * 2
    assert totals["device_ns"].to_list() == [SCRIPT["DEVICE_NS"]] * 2
    assert totals["cut"].to_list() == [2, 2]


def test_a_row_that_contradicts_the_total_has_no_share(torch: str, tmp_path: Path) -> None:
    """The loading of kernels is no device work, but old profilers count it (506 % of the total)."""
    path = tmp_path / "table.txt"
    names = ("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg",
             "Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg", "# of Calls")  # fmt: skip
    rows = (
        ("Unrecognized", "90.00%", "0.900ms", "90.00%", "0.900ms", "5.000us",
         "600.000ms", "508.00%", "600.000ms", "3.297ms", "182"),
        ("gemm_kernel", "10.00%", "0.100ms", "10.00%", "0.100ms", "0.400us",
         "100.000ms", "84.75%", "100.000ms", "396.825us", "252"),
    )  # fmt: skip
    line = "  ".join("-" * 14 for _ in names)
    cells = ["  ".join(f"{cell:>14}" for cell in row) for row in (names, *rows)]
    path.write_text(
        "\n".join([line, cells[0], line, *cells[1:], line, "Self CPU time total: 1.000ms"])
        + "\nSelf CUDA time total: 118.000ms\n"
    )
    operators = ta.printed(path).to_polars("operators")
    assert operators["name"].to_list() == ["gemm_kernel", "Unrecognized"]
    assert operators["self_device_frac"].to_list() == [pytest.approx(100 / 118), None]


def test_the_span_of_an_annotation_is_no_work_and_an_idle_device_is_named(tmp_path: Path) -> None:
    names = ("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg",
             "Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg", "# of Calls")  # fmt: skip
    cells = "  ".join(["{:>14}"] * len(names))
    rows = (
        ("engine_step", "0%", "0us", "0%", "0us", "0us", "1.858s", "353%", "1.858s", "29ms", "64"),
        ("engine_step", "60%", "1.14s", "99%", "1.88s", "29ms", "0us", "0%", "0us", "0us", "64"),
        ("aten::mm", "9%", "0.2s", "9%", "0.2s", "9us", "500ms", "95%", "500ms", "45us", "9280"),
    )
    rule = "  ".join("-" * 14 for _ in names)
    lines = [rule, cells.format(*names), rule, *(cells.format(*row) for row in rows), rule]
    path = tmp_path / "table.txt"
    totals = "\nSelf CPU time total: 1.883s\nSelf CUDA time total: 525.902ms\n"
    path.write_text("\n".join(lines) + totals)
    result = ta.printed(path)
    assert result.to_polars("operators")["self_device_frac"].to_list()[-1] is None
    assert "27.9 %" in result.verdict
    assert "engine_step" in result.verdict
    (note,) = (note for note in result.notes if "(engine_step)" in note)
    assert "annotation" in note


def test_a_limited_table_says_its_share(torch: str) -> None:
    result = ta.printed(f"{torch}top10.txt")
    rows = result.to_polars("operators")["self_host_ns"].sum()
    assert result.to_polars("operator_totals")["listed_frac"].to_list() == [rows / 6_087_000]
    assert "lists 8.7 % of the host time" in " ".join(result.notes)


def test_a_truncated_table_has_the_printed_shares(torch: str, tmp_path: Path) -> None:
    whole = Path(f"{torch}profiler_list.dat")
    cut = tmp_path / "cut.dat"
    cut.write_bytes(whole.read_bytes()[:9000])
    full, part = ta.printed(whole), ta.printed(cut)
    rows = part.to_polars("operators")
    of_full = full.to_polars("operators").join(rows, on=["name", "line"])
    shares = of_full["self_host_frac_right"].to_list()
    assert of_full["self_host_frac"].to_list() == pytest.approx(shares, abs=5.1e-5)
    assert rows["self_host_frac"].null_count() == 0
    assert not any("truncated" in note for note in full.notes)
    assert [note for note in part.input_notes if str(cut) in note and "truncated" in note]


@pytest.mark.parametrize(
    ("name", "is_outside"), [("ProfilerStep*", True), ("[pl]run", True), ("mm", False)]
)
def test_time_in_no_operator_is_named_before_operators(
    name: str, is_outside: bool, tmp_path: Path
) -> None:
    rule = "  ".join("-" * 15 for _ in range(4))
    rows = (
        ("Name", "Self CPU %", "Self CPU", "# of Calls"),
        (name, "77.95%", "19.105s", "5"),
        ("aten::add", "3.84%", "941.579ms", "5"),
    )
    text = ["  ".join(f"{cell:>15}" for cell in row) for row in rows]
    (tmp_path / "a.txt").write_text("\n".join([rule, text[0], rule, *text[1:], rule]))
    first, *more = ta.printed(tmp_path / "a.txt").verdict.split(". ")
    assert "78.0 %" in first
    assert name in first
    assert bool(more) is is_outside
    assert "aten::add" not in first


def test_a_table_with_totals_only_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "table_without_rows.txt"
    lines = (TEXTS / "profiler_list.dat").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if re.search("----|Name  |time total", line)]
    path.write_text("".join(kept), encoding="utf-8")
    with pytest.raises(MissingData, match="no printed table has a complete row"):
        ta.printed(path)


def test_issues_of_text_have_a_remedy() -> None:
    issue = {"code": "truncated-table", "severity": "data_loss", "count": 1, "first": "line 6"}
    assert "print the table again" in _message(issue)
    assert _message(issue | {"code": "number-out-of-range", "first": None}).endswith("dropped)")


@pytest.mark.sample(3)
@pytest.mark.parametrize("size", [4990, 5000, 5001])
def test_a_truncated_report_of_ncu_is_named(size: int, shared: Path, tmp_path: Path) -> None:
    whole = shared / "data/ncu/esmm_metrics.csv"
    cut = tmp_path / "cut.csv"
    cut.write_bytes(whole.read_bytes()[:size])
    assert not ta.roofline(whole).input_notes
    assert [note for note in ta.roofline(cut).input_notes if str(cut) in note]
    profile = tmp_path / "profile.txt"
    text = (shared / "data/deepspeed/llava_flops_profiler.txt").read_bytes()
    profile.write_bytes(text[: 2 * size])
    assert [note for note in ta.printed(profile).input_notes if "truncated" in note]


# --- memory --------------------------------------------------------------------------------------


def test_memory_summary() -> None:
    result = ta.printed(TEXTS / "profiler_list.dat")
    (row,) = result.to_polars("memory").to_dicts()
    by_name = dict(SCRIPT["MEMORY"])
    assert (row["end_bytes"], row["peak_bytes"]) == by_name["Allocated memory"][:2]
    reserved = (row["reserved_end_bytes"], row["reserved_peak_bytes"])
    assert reserved == by_name["GPU reserved memory"][:2]
    assert row["inactive_split_bytes"] == by_name["Non-releasable memory"][0]
    assert (row["ooms"], row["retries"], row["device"], row["unit_bytes"]) == (1, 3, 0, 1 << 20)
    assert result.scalars["peak_bytes"] == 31 << 30
    assert result.verdict.startswith("1 out-of-memory error. Peak memory: 31 GiB allocated.")
    names = result.to_polars("memory_summary")["name"].to_list()
    assert names[0] == "Allocated memory"


def test_commented_rows_and_a_fragmented_allocator(tmp_path: Path) -> None:
    text = (TEXTS / "profiler_list.dat").read_text()
    plain = tmp_path / "plain.txt"
    plain.write_text(text)
    commented = tmp_path / "commented.txt"
    error = "OOM: CUDA out of memory. Tried to allocate 62.00 MiB (GPU 0)\n"
    commented.write_text(error + text.replace(" |\n", " |  # a comment\n"))
    whole, same = (ta.printed(path) for path in (plain, commented))
    (row,) = same.to_polars("memory").drop("path", "requested_bytes").to_dicts()
    assert row == whole.to_polars("memory").drop("path", "requested_bytes").to_dicts()[0]
    assert same.to_polars("memory")["requested_bytes"].to_list() == [62 << 20]
    unused = row["reserved_end_bytes"] - row["end_bytes"]
    assert ("Fragmentation" in same.verdict) == (unused > 62 << 20)
    assert "Fragmentation" not in whole.verdict


#: Messages of PyTorch 2.6, 1.13, 1.4 and of ROCm; GPU, requested, free, allocated and reserved
#: MiB; what the verdict has.
MESSAGES = {
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.00 GiB of "
    "which 1.00 GiB is free. Process 9 has 78.00 GiB memory in use. Of the allocated memory 75.00 "
    "GiB is allocated by PyTorch, with 106.00 MiB allocated in private pools (e.g., CUDA Graphs), "
    "and 2.50 GiB is reserved by PyTorch but unallocated.":
        ((1, 2048, 1024, 76800, 79360), "Fragmentation"),
    "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 15.00 GiB total "
    "capacity; 13.50 GiB already allocated; 128.00 MiB free; 13.75 GiB reserved in total by "
    "PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb":
        ((0, 512, 128, 13824, 14080), "13.5 GiB of 15 GiB"),
    "[rank3]: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.00 GiB total capacity; "
    "5.00 GiB already allocated; 16.00 MiB free; 2.00 MiB cached)":
        ((0, 20, 16, 5120, 5122), "not of its allocator"),
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total "
    "capacity of 192.00 GiB of which 0 bytes is free. Of the allocated memory 190.00 GiB is "
    "allocated by PyTorch, and 50.00 MiB is reserved by PyTorch but unallocated.":
        ((0, 64, 0, 194560, 194610), "190 GiB of 192 GiB"),
    "CUDA out of memory. Tried to allocate 90.00 MiB. GPU 0 has a total capacity of 8.00 GiB of "
    "which 0 bytes is free. Of the allocated memory 7.13 GiB is allocated by PyTorch, and 127.10 "
    "MiB is reserved by PyTorch but unallocated.":
        ((0, 90, 0, 7301, 7428), "7.13 GiB of 8 GiB"),
    "HIP out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total capacity of 288.00 GiB of "
    "which 203.00 GiB is free. Of the allocated memory 68.00 GiB is allocated by PyTorch, and "
    "14.00 GiB is reserved by PyTorch but unallocated.":
        ((7, 2, 207872, 69632, 83968), "203 GiB of 288 GiB were free"),
    "CUDA out of memory. Tried to allocate 250.00 MiB. GPU 0 has a total capacity of 79.00 GiB of "
    "which 2.00 GiB is free. 75.00 GiB allowed; Of the allocated memory 74.50 GiB is allocated by "
    "PyTorch, and 64.00 MiB is reserved by PyTorch but unallocated.":
        ((0, 250, 2048, 76288, 76352), "may use 75 GiB of 79 GiB"),
    "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 32.00 GiB of "
    "which 16.00 GiB is free. 17.50 GiB allowed; Of the allocated memory 6.50 GiB is allocated by "
    "PyTorch, and 7.25 GiB is reserved by PyTorch but unallocated.":
        ((0, 4096, 16384, 6656, 14080), "Fragmentation: 4 GiB"),
    "CUDA out of memory. Tried to allocate 21.00 GiB. GPU 0 has a total capacity of 8.00 GiB of "
    "which 6.00 GiB is free. 6.50 GiB allowed; Of the allocated memory 163.00 MiB is allocated by "
    "PyTorch, and 19.00 MiB is reserved by PyTorch but unallocated.":
        ((0, 21504, 6144, 163, 182), "one tensor is too large"),
}  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES)
def test_message_of_an_out_of_memory_error(message: str, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"loss 2.1\n{message}\nTraceback\n{message}\n")
    result = ta.printed(path)
    names = ("requested_bytes", "free_bytes", "end_bytes", "reserved_end_bytes")
    (row,) = result.to_polars("memory").to_dicts()
    numbers, cause = MESSAGES[message]
    assert (row["device"], *(row[name] >> 20 for name in names)) == numbers
    assert result.scalars["ooms"] == 1
    assert cause in result.verdict


@pytest.mark.parametrize(
    ("before", "api", "module", "variable"),
    [
        ("(Worker pid=4) ERROR 06-09 06:57:48 base.py:5] RuntimeError: ", "NPU", "npu", "NPU"),
        ("torch.OutOfMemoryError: ", "XPU", "xpu", "XPU"),
        ("[rank1]: ", "HIP", "cuda", "HIP"),
        ("RuntimeError: ", "CUDA", "cuda", "CUDA"),
    ],
)
def test_errors_of_other_devices_have_their_names(
    before: str, api: str, module: str, variable: str, tmp_path: Path
) -> None:
    (path := tmp_path / "job.log").write_text(
        f"{before}{api} out of memory. Tried to allocate 72.00 MiB "
        f"({'NPU' if api == 'NPU' else 'GPU'} 3; 61.00 GiB total capacity; 56.00 GiB already "
        "allocated; 56.00 GiB current active; 5.00 MiB free; 58.50 GiB reserved in total by "
        "PyTorch)\n"
    )
    result = ta.printed(path)
    (row,) = result.to_polars("memory").to_dicts()
    assert (row["device"], row["requested_bytes"] >> 20, row["free_bytes"] >> 20) == (3, 72, 5)
    assert (row["end_bytes"], row["reserved_end_bytes"]) == (56 << 30, 117 << 29)
    (problem,) = result.problems
    assert f"torch.{module}.memory._dump_snapshot" in problem.advice
    assert f"PYTORCH_{variable}_ALLOC_CONF" in problem.title


def test_messages_that_are_wrapped(tmp_path: Path) -> None:
    parts = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB.",
        "GPU 0 has a total capacity of 23.00 GiB of which 2.50 GiB is free.",
        "Including non-PyTorch memory, this process has 20.00 GiB memory in use.",
        "Of the allocated memory 19.50 GiB is allocated by PyTorch, and 32.00 MiB",
        "is reserved by PyTorch but unallocated.",
    )
    (path := tmp_path / "job.log").write_text("\n".join([*parts, "step 3: loss 2.1", ""]))
    (row,) = ta.printed(path).to_polars("memory").to_dicts()
    assert (row["requested_bytes"] >> 20, row["end_bytes"] >> 20) == (3 << 10, 19_968)
    assert row["free_bytes"] >> 20 == 2560


_SHORT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 616.00 MiB."
_CUT = f"{_SHORT} GPU 0 has a total capacity of 19.50 GiB of "
_MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "device", "wanted", "capacity", "free"),
    [
        (
            f"{_SHORT}\nGPU has a total capacity of 19.50 GiB of which 550.25 MiB is free.",
            None, 616, 19_968, 550,
        ),
        (f"{_CUT}which 550.25 MiB is free. Including non-PyTorch m", 0, 616, 19_968, 550),
        ("RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB", None, 2048, None, None),
        (f"{_SHORT}\n{_CUT}which 550.25 MiB is free.\n{_CUT}",
         0, 616, 19_968, 550),
        (f"{next(iter(MESSAGES))}\nCUDA out of memory. Tried to allocate 2.00 GiB",
         1, 2048, 80_896, 1024),
    ],
)  # fmt: skip
def test_short_messages_of_out_of_memory_errors(
    tmp_path: Path, text: str, device: int, wanted: int, capacity: int, free: int
) -> None:
    """Messages without allocated memory; those that a longer one repeats count once."""
    (path := tmp_path / "job.log").write_text(f"loss 2.1\n{text}\nloss 2.1\n")
    result = ta.printed(path)
    (row,) = result.to_polars("memory").to_dicts()
    sizes = [row[f"{name}_bytes"] for name in ("requested", "capacity", "free")]
    assert [one and one // _MIB for one in sizes] == [wanted, capacity, free]
    assert (row["device"], result.scalars["ooms"]) == (device, 1)


@pytest.mark.parametrize(
    ("lines", "devices"),
    [
        ([f"{_CUT.replace('GPU 0', f'GPU {gpu}')}which 1 GiB is free." for gpu in (0, 1, 1, 2)],
         [0, 1, 2]),
        ([_SHORT, f"{_CUT}which 1 GiB is free.", _SHORT], [0]),
        ([_SHORT, _SHORT], [None]),
        ([f"{_CUT}which 1 GiB is free.", _SHORT.replace("616", "617")], [None, 0]),
    ],
)  # fmt: skip
def test_short_messages_of_several_devices_are_several_errors(
    tmp_path: Path, lines: list[str], devices: list[int | None]
) -> None:
    (path := tmp_path / "job.log").write_text("\n".join(["loss 2.1", *lines, "loss 2.1", ""]))
    result = ta.printed(path)
    assert result.to_polars("memory")["device"].sort(nulls_last=False).to_list() == devices
    assert result.scalars["ooms"] == len(devices)


@pytest.mark.parametrize("end", ["", "Of the allocated memory 19.50 GiB is allocated by PyTorch, "])
def test_an_allowed_part_of_a_device_with_and_without_tensors(tmp_path: Path, end: str) -> None:
    text = f"{_CUT}which 9.00 GiB is free. 12.00 GiB allowed; {end}"
    (path := tmp_path / "job.log").write_text(f"loss 2.1\n{text}")
    result = ta.printed(path)
    (row,) = result.to_polars("memory").to_dicts()
    assert (row["allowed_bytes"] >> 30, row["end_bytes"] is not None) == (12, bool(end))
    assert ("19.5 GiB." in result.problems[0].title) == bool(end)
    assert " ." not in result.verdict


def test_times_of_events_are_dates(tmp_path: Path) -> None:
    (path := tmp_path / "job.log").write_text(
        "[2025-06-28T09:19:58Z] Signal 11 (SIGSEGV) received by PID 5\nSignal 9\n"
    )
    events = ta.printed(path).to_polars("job_events")
    assert events["first_at"].to_list() == ["2025-06-28 09:19:58"]


def test_lines_after_a_short_message_are_no_part_of_it(tmp_path: Path) -> None:
    step = "step: {}  loss: 2.1  memory: 20.00GiB(25%)  tps: 1,000  tflops: 9.0  mfu: 3.0%"
    (path := tmp_path / "job.log").write_text(
        f"{step.format(1)}\nRuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n"
        f"{step.format(2)}\n{step.format(3)}\n"
    )
    result = ta.printed(path)
    assert result.to_polars("throughput").height == 3
    assert result.scalars["ooms"] == 1


def test_a_wrapped_message_of_the_watchdog(tmp_path: Path) -> None:
    (path := tmp_path / "job.log").write_text(
        "[rank3] Watchdog caught collective operation timeout:\n"
        "WorkNCCL(SeqNum=64214, OpType=ALLGATHER, NumelIn=1, NumelOut=32, Timeout(ms)=600000)\n"
    )
    (row,) = ta.printed(path).to_polars("job_events").to_dicts()
    assert (row["rank"], row["name"]) == (3, "timeout")


def test_memory_usage_is_a_series() -> None:
    result = ta.printed(LOG)
    calls = result.to_polars("memory_calls")
    gib = [round(one[1] * (1 << 30)) for one in SCRIPT["USAGE"]]
    assert calls["allocated_bytes"].to_list() == gib
    assert calls["change_bytes"].to_list() == [None, gib[1] - gib[0], 0]
    assert calls["name"].to_list() == [one[0] for one in SCRIPT["USAGE"]]
    devices = result.to_polars("memory")
    row = devices.filter(pl.col("source") == "see_memory_usage").to_dicts()[0]
    assert row["peak_bytes"] == round(14.87 * (1 << 30))
    assert row["end_bytes"] == gib[-1]
    (chart,) = (one for one in result.charts if one.name == "memory_calls")
    assert chart.frame.height == 3


# --- steps ---------------------------------------------------------------------------------------


def test_step_times() -> None:
    result = ta.printed(LOG)
    expected = [
        (rank, number, round(1e6 * sum(parts)), number == 0)
        for rank, prints in enumerate(SCRIPT["TIMES"])
        for number, parts in enumerate(prints)
    ]
    steps = result.to_polars("steps")
    assert sorted(steps.select("rank", "number", "duration_ns", "warm_up").rows()) == expected
    times = [one[2] for one in expected if not one[3]]
    assert result.scalars["median_ns"] == median(times)
    timers = result.to_polars("timers")
    fwd = timers.filter(pl.col("timer") == "fwd", pl.col("rank") == 0).to_dicts()[0]
    assert (fwd["n"], fwd["mean_ns"], fwd["min_ns"]) == (2, 30_500_000, 30_000_000)
    assert fwd["total_frac"] == pytest.approx(30.5 / 126.25)
    assert timers["mean_ns"].to_list() == sorted(timers["mean_ns"], reverse=True)
    speeds = result.to_polars("throughput")["samples_per_s"].to_list()
    assert speeds == [60.25, 61.25, 62.25] * 2


def test_iterations_of_megatron(tmp_path: Path) -> None:
    path, times = tmp_path / "slurm.out", (9000.5, 800.0, 810.25, 790.0)
    lines = (
        f"[default7]: [2024-04-06 02:59:4{n}] iteration {n:8}/     100 | consumed samples: {n}"
        f" | elapsed time per iteration (ms): {time} | learning rate: 8.6E-06 | lm loss: 1.8E+00 |"
        for n, time in enumerate(times, 1)
    )
    path.write_text("\n".join(["setting up", *lines]) + "\niteration 9/ 9 | elapsed time per iter")
    result = ta.printed(path)
    steps = result.to_polars("steps")
    assert steps["duration_ns"].to_list() == [round(time * 1e6) for time in times]
    assert steps["warm_up"].to_list() == [True, False, False, False]
    assert result.scalars["median_ns"] == 800e6
    assert "iteration" in result._repr_html_()


def test_timers_of_megatron_within_and_between_iterations(tmp_path: Path) -> None:
    """Checkpoints and evaluations are not parts of a step."""
    block = "(min, max) time across ranks (ms):\n    {} ......: {}\n"
    text = "(min, max) time across ranks (ms):\n    model-setup ....: (9.00, 9000.00)\n"
    for at in range(3):
        text += f" iteration {at + 26:8}/ 50 | elapsed time per iteration (ms): 400.0 | lr: 1 |\n"
        text += block.format("optimizer", "(20.00, 100.00)")
        text += block.format("evaluate", "(150.00, 150.50)") + block.format("save-checkpoint", 850)
    (tmp_path / "a.log").write_text(text)
    result = ta.printed(tmp_path / "a.log")
    timers = {one["timer"]: one for one in result.to_polars("timers").to_dicts()}
    assert {name: one["total_frac"] for name, one in timers.items() if one["total_frac"]} == {
        "optimizer": 0.25
    }
    assert [timers[name]["mean_ns"] for name in ("evaluate", "save-checkpoint")] == [150.5e6, 850e6]
    assert result.to_polars("steps")["optimizer_ns"].to_list() == [100e6] * 3
    assert format_frac(2001 / 2801) in result.verdict


def test_an_iteration_of_megatron_has_its_number_timers_rate_and_memory(tmp_path: Path) -> None:
    path = tmp_path / "slurm.out"
    path.write_text(
        " iteration      100/  320000 | elapsed time per iteration (ms): 963.5/970.1 |"
        " throughput per GPU (TFLOP/s/GPU): 812.5/800.0 | lm loss 8.9E+00 |\n"
        "after 100 iterations memory (MB) | allocated: 6784.5 | max allocated: 11927.0"
        " | cached: 13826.0 | max cached: 13827.0\n"
        "time (ms) | forward: 276.00 | backward: 672.00 | allreduce: 13.96 | optimizer: 14.00\n"
    )
    result = ta.printed(path)
    (step,) = result.to_polars("steps").to_dicts()
    names = ("number", "duration_ns", "forward_ns", "backward_ns", "optimizer_ns", "tflops")
    assert [step[name] for name in names] == [100, 963.5e6, 276e6, 672e6, 14e6, 812.5]
    assert "backward (69.7 %)" in result.verdict
    assert not any("Not counted" in note for note in result.notes)
    (memory,) = result.to_polars("memory").to_dicts()
    sizes = ("end_bytes", "peak_bytes", "reserved_end_bytes", "reserved_peak_bytes")
    assert [memory[name] / (1 << 20) for name in sizes] == [6784.5, 11927, 13826, 13827]
    colours = tmp_path / "colours.log"
    colours.write_text("[[32m20251202 06:56:28[0m][[36mrank-7/8[0m] " + path.read_text())
    assert ta.printed(colours).to_polars("steps")["number"].to_list() == [100]


def test_a_step_that_deepspeed_and_megatron_print_is_one_step(tmp_path: Path) -> None:
    path = tmp_path / "neox.log"
    path.write_text(
        "".join(
            f"[Rank 0] rank=0 time (ms) | forward: {600 + n}.00 | backward: 2164.00 |"
            " backward_inner: 2001.00 | backward_allreduce: 162.00 | step: 1172.00\n"
            f" iteration {n:8}/   10000 | elapsed time per iteration (ms): 4100.0 |\n"
            "time (ms) | forward: 660.00 | backward: 2165.00 | optimizer: 1173.00\n"
            for n in (34, 35)
        )
    )
    result = ta.printed(path)
    names = ("number", "duration_ns", "forward_ns", "backward_compute_ns", "gradient_reduction_ns")
    assert result.to_polars("steps").select(names).rows() == [
        (34, 4_100_000_000, 660_000_000, 2_001_000_000, 162_000_000),
        (35, 4_100_000_000, 660_000_000, 2_001_000_000, 162_000_000),
    ]
    assert "most of it backward (52.8 %)" in result.verdict
    shares = dict(result.to_polars("timers").select("timer", "total_frac").iter_rows())
    assert shares.pop("elapsed time per iteration (ms)") is None
    assert max(shares.values()) < 1


def test_micro_steps_have_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "micro.log"
    line = (
        "time (ms) | forward_microstep: {}.0 | backward_microstep: 330.0 |"
        " backward_inner_microstep: 329.0 | backward_allreduce_microstep: 1.0 |"
        " step_microstep: 2.0\n"
    )
    path.write_text("".join(map(line.format, (188, 190, 198))))
    result = ta.printed(path)
    assert result.to_polars("micro_steps")["duration_ns"].to_list() == [52e7, 522e6, 53e7]
    assert result.scalars["median_ns"] is None
    share = f"{100 * 3 * 329 / (520 + 522 + 530):.1f} %"
    assert f"micro-step takes 522 ms (median), most of it backward compute ({share})" in (
        result.verdict
    )


_MEGATRON = "time (ms) | forward-compute: 60.0 | optimizer: {}.0"


def test_timers_before_the_first_iteration_have_no_share_of_it(tmp_path: Path) -> None:
    """Megatron-LM prints the timers of an iteration after it."""
    path = tmp_path / "cut.log"
    step = " iteration       30/ 100 | elapsed time per iteration (ms): 100.0 | loss: 1 |"
    path.write_text("\n".join([_MEGATRON.format(70), step, ""]))
    assert table(path, "timers")["total_frac"].null_count() == 3
    path.write_text("\n".join([_MEGATRON.format(70), step, _MEGATRON.format(20), ""]))
    shares = dict(table(path, "timers").select("timer", "total_frac").iter_rows())
    assert (shares["forward-compute"], shares["optimizer"]) == (0.6, 0.2)


def test_timers_of_deepspeeds_pipeline_engine_are_sums(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.log"
    parts = "forward_microstep: 2800.0 | backward_microstep: 5100.0 | step_microstep: 10.0"
    lines = [
        "[Rank 0] rank=0 time (ms) | pipe_send_output: 41.0 | pipe_recv_grad: 1700.0",
        f"[Rank 0] rank=0 time (ms) | batch_input: 200.0 | {parts}",
        "[Rank 0] rank=0 time (ms) | forward: 2800.0 | backward: 5100.0 | step: 10.0",
        "steps: 20 loss: 4.6178 iter time (s): 0.990 samples/sec: 250.5",
    ]
    path.write_text("\n".join([*lines, ""]))
    result = ta.printed(path)
    assert result.to_polars("steps").select("number", "duration_ns").rows() == [(20, 99 * 10**7)]
    assert result.to_polars("timers")["total_frac"].null_count() == 10
    assert result.to_polars("throughput")["samples_per_s"].to_list() == [250.5]
    path.write_text("\n".join([*lines[:3], ""]))
    assert "step takes" not in ta.printed(path).verdict


@pytest.mark.parametrize("front", ["", "[rank0]:"])
def test_steps_of_torchtitan(front: str, tmp_path: Path) -> None:
    """The time of a step is that between two lines; other ranks print the same step."""
    path = tmp_path / "train.log"
    path.write_text(
        "".join(
            f"{front}[titan] 2026-02-24 19:46:{second},000 - root - INFO - step: {step}  loss:  7"
            f"  memory: 50.00GiB(37.51%)  tps: 10,0{step}  tflops: 314.71  mfu: 13.9{mfu}%\n"
            for step, second, mfu in (
                (10, 10, 1),
                (10, 10, 2),
                (20, 14, 4),
                (20, 15, 4),
                (30, 24, 6),
            )
        )
    )
    result = ta.printed(path)
    steps = result.to_polars("steps").select("number", "duration_ns", "mfu_frac")
    assert steps.rows() == [(20, 4 * 10**8, 0.1394), (30, 10**9, 0.1396)]
    assert result.to_polars("throughput")["tokens_per_s"].median() == 10020
    assert result.to_polars("memory")["reserved_peak_bytes"].to_list() == [50 << 30]


@pytest.mark.parametrize(
    ("text", "times", "samples"),
    [
        ("iter 10: loss 4.0, time 900.5ms, mfu 15.3%\niter 20: loss nan, time 1.5ms, mfu -1.0%",
         [9005 * 10**5, 15 * 10**5], None),
        ("Epoch 1 | iter 7 step 1 | loss train: 3.7, val: n/a | iter time: 45.53 ms (step)",
         [4553 * 10**4], None),
        ("[rank: 0] iter 34 step 35: iter time: 3372.20ms (optimizer.step)", [33722 * 10**5], None),
        ("{'eval_runtime': 30.0}\n{'train_runtime': '100.0', 'train_samples_per_second': '22.5'}",
         [10**11, 3 * 10**10], 22.5),
    ],
)  # fmt: skip
def test_lines_on_speed(text: str, times: list[int], samples: float | None, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(f"epochs\n{text}\n")
    result = ta.printed(path)
    table = "steps" if samples is None else "timers"
    names = ("duration_ns", "median_ns")
    assert result.to_polars(table)[names[samples is not None]].to_list() == times
    assert result.view().scalars["samples_per_s"] == samples
    assert ("30.0 % of the training" in result.verdict) == (samples is not None)


@pytest.mark.parametrize("cells", ["| {} |", "{}"])
@pytest.mark.parametrize("between", [" | ", "|", "\t"])
def test_operators_of_a_pasted_table(cells: str, between: str, tmp_path: Path) -> None:
    """Issues have Markdown tables, and cells of spreadsheets."""
    cells = "{}" if between == "\t" else cells
    rows = [
        ["Name", "Self CPU %", "Self CPU", "Self CUDA", "# of Calls", "Source Location"],
        ["--"] * 6,
        ["aten::mm", "1%", "1.000us", "75.444s", "4890", "train.py(9): main"],
        ["", "", "", "", "", "train.py(1): run"],
        ["void k<4>(float, int)", "2%", "2.000ms", "0.000us", "2", "<built-in>"],
    ]
    path = tmp_path / "issue.md"
    lines = [cells.format(between.join(row)) for row in rows]
    path.write_text("\n".join(["as a table:", *lines, "", "Self CPU time total: 4.000ms", "| a |"]))
    trace = ta.read(path)
    assert trace.issues.is_empty()
    result = ta.printed(trace)
    found = result.to_polars("operators").select("name", "calls", "self_device_ns", "stack")
    assert found.rows() == [
        ("aten::mm", 4890, 75444 * 10**6, "train.py(9): main < train.py(1): run"),
        ("void k<4>(float, int)", 2, 0, "<built-in>"),
    ]
    assert result.to_polars("operator_totals")["host_ns"].to_list() == [4 * 10**6]


def test_host_memory_that_is_almost_full_comes_first(tmp_path: Path) -> None:
    path, usage = tmp_path / "usage.log", []
    for used, percent in ((26.23, 83.8), (28.95, 92.5)):
        usage.append("MA 0.0 GB         Max_MA 0.0 GB         CA 0.32 GB         Max_CA 0 GB ")
        usage.append(f"CPU Virtual Memory:  used = {used} GB, percent = {percent}%")
        path.write_text("\n".join([*usage, ""]))
        result = ta.printed(path)
        assert ("92.5 %" in result.verdict) == (percent > 90)
        # Max_CA is rounded to GB
        (row,) = result.to_polars("memory").to_dicts()
        assert row["reserved_peak_bytes"] == row["reserved_end_bytes"] == round(0.32 * (1 << 30))
        assert "0 B" not in result.verdict


def test_a_profile_without_times_has_a_sentence_and_units_of_2021(tmp_path: Path) -> None:
    path = tmp_path / "flops.txt"
    path.write_text(
        f"{'-' * 26} DeepSpeed Flops Profiler {'-' * 26}\nparams per gpu:       336.23 M\n"
        "fwd MACs per GPU:     3139.93 G\nfwd flops per GPU = 2 * fwd MACs per GPU:  6279.86 G\n"
    )
    result = ta.printed(path)
    (row,) = result.to_polars("profiles").to_dicts()
    assert (row["fwd_macs"], row["fwd_flops"]) == (3139.93e9, 6279.86e9)
    assert "6,279.9 GFLOP" in result.verdict
    assert not any("bad-row" in note for note in result.input_notes)


def test_both_spellings_of_timers(shared: Path) -> None:
    """The columns are those of a pattern over the text, whatever DeepSpeed's version."""
    for name, timers in (
        ("alcf_cooldown_notes.md", ("fwd", "bwd", "step")),
        ("seekpoint_cifar10.log", ("forward", "backward", "step")),
    ):
        path = shared / "data/deepspeed" / name
        pattern = r"\| {}: ([\d.]+) \| {}: ([\d.]+) .*\| {}: ([\d.]+)".format(*timers)
        prints = re.findall(pattern, path.read_text())
        times = [round(sum(round(1e6 * float(ms)) for ms in one)) for one in prints]
        result = ta.printed(path)
        named = result.to_polars("steps")
        assert named["duration_ns"].to_list() == [ns for ns in times if ns]
        zeros = f"{times.count(0)} line of timers without the times of all parts"
        assert (zeros in " ".join(result.notes)) == (times.count(0) == 1)
        parts = named["backward_compute_ns"] + named["gradient_reduction_ns"]
        rest = named["backward_ns"] - parts
        assert (rest.is_between(-20_000, 1_000_000)).all()


# --- communication -------------------------------------------------------------------------------


def test_communication_log() -> None:
    result = ta.printed(TEXTS / "comms.log")
    rows = result.to_polars("collectives").to_dicts()
    groups = {row["collective"]: row for row in rows if row["source"] == "log"}
    for op in ("broadcast", "all_reduce"):
        size = next(size for one, size, _ in SCRIPT["CALLS"] if one == op)
        first, *later = [ms for one, _, ms in SCRIPT["CALLS"] if one == op]
        row = groups[op]
        assert row["first_ns"] == round(1e6 * first)
        assert row["total_ns"] == round(1e6 * (first + sum(later)))
        assert row["median_ns"] == round(1e6 * median(later))
        # bytes over ns are 10^9 bytes per second; two decimals of Gbit/s are printed
        speed = size / (1e6 * median(later))
        assert row["algbw_gbps"] == pytest.approx(speed, abs=0.002)
        world = SCRIPT["WORLD"]
        factor = 2 * (world - 1) / world if op == "all_reduce" else 1
        assert row["busbw_gbps"] == pytest.approx(speed * factor, abs=0.002)
    steady = {op: row["total_ns"] - row["first_ns"] for op, row in groups.items()}
    assert groups["broadcast"]["share_frac"] == steady["broadcast"] / sum(steady.values())
    assert result.scalars["total_comm_ns"] == sum(steady.values())
    assert result.scalars["n_calls"] == len(SCRIPT["CALLS"])


def test_communication_summary(shared: Path) -> None:
    groups = table(shared / "data/deepspeed/alcf_cooldown_notes.md", "collectives")
    assert groups["share_frac"].sum() == pytest.approx(1)
    assert groups.filter(pl.col("total_ns") < 0)["outside_ns"].is_null().all()
    large = groups.filter(pl.col("message_bytes") > 1 << 25, pl.col("collective") == "all_reduce")
    assert large.height == 6
    world = 3072
    for row in large.to_dicts():
        assert row["busbw_gbps"] / row["algbw_gbps"] == pytest.approx(
            2 * (world - 1) / world, rel=2e-3
        )
    # means of rates and of times agree where calls are alike
    row = large.filter(pl.col("mean_ns") == 268_820_000).to_dicts()[0]
    assert row["algbw_gbps"] == pytest.approx(954.38 * (1 << 20) / 268_820_000, rel=1e-3)
    first = groups.filter(pl.col("message_bytes") == 4096).to_dicts()[0]
    assert first["outside_ns"] == 980_950_000 - 25 * 330_000


def test_shares_of_a_summary_are_those_of_printed_totals(tmp_path: Path) -> None:
    path = tmp_path / "comms.txt"
    heads = ("Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)", "busbw_avg (Gbps)")
    path.write_text(
        f"Comm. Op            Message Size        Count               {'     '.join(heads)}\n"
        "broadcast\n                    98.25 MB    1    600.0    600.0    0.20    0.19\n"
        "all_reduce\n                    1.0 B    20    400.0    6.0    0.00    0.00\n"
    )
    result = ta.printed(path)
    assert result.to_polars("collectives")["share_frac"].to_list() == [0.6, 0.4]
    assert [call for note in result.notes for call in ("only call", "longest tenth of its")
            if call in note] == ["only call", "longest tenth of its"]  # fmt: skip


# --- FLOPs ---------------------------------------------------------------------------------------


def test_mfu() -> None:
    result = ta.printed(LOG, peak="bf16=312")
    assert result.scalars["mfu_frac"] == pytest.approx(3 * 1.08e12 / 0.34608 / 312e12)
    assert ta.printed(LOG).scalars["mfu_frac"] is None
    (row,) = result.to_polars("profiles").to_dicts()
    assert row["printed_tflops"] == 9.36
    assert row["hfu_frac"] == pytest.approx(row["mfu_frac"] * row["flops_factor"] / 3)
    assert row["iter_latency_ns"] == SCRIPT["ITER_NS"]
    modules = result.to_polars("modules")
    rows = modules.select("module", "fwd_macs", "fwd_latency_ns").sort("module").rows()
    assert rows == sorted((path or kind, macs, ns) for path, kind, _, macs, ns in SCRIPT["MODULES"])
    assert modules["fwd_latency_ns"].is_sorted(descending=True)
    assert modules.filter("has_children")["module"].to_list() == ["Net"]


@pytest.mark.parametrize("name", ["llava", "topomoe"])
def test_flops_of_a_step_equal_those_of_the_text(name: str, shared: Path) -> None:
    (path,) = (shared / "data/deepspeed").glob(f"{name}*")
    result = ta.printed(path, peak=["fp16=100"])
    (row,) = result.to_polars("profiles").to_dicts()
    assert row["achieved_tflops"] == pytest.approx(row["printed_tflops"], rel=2e-3)
    assert result.scalars["mfu_frac"] == row["achieved_tflops"] / 100
    leaves = result.to_polars("modules").filter(~pl.col("has_children"))
    # MACs of leaves are at most those of the model: functions are counted in it only
    assert 0.5 < leaves["fwd_macs"].sum() / row["fwd_macs"] <= 1.001


def test_classes_of_several_profiles_are_not_summed(shared: Path, tmp_path: Path) -> None:
    profile = shared / "data/deepspeed/llava_flops_profiler.txt"
    copies = [tmp_path / f"rank{rank}.txt" for rank in range(3)]
    for copy in copies:
        shutil.copy(profile, copy)
    one, three = (table(paths, "leaf_classes") for paths in (profile, copies))
    assert one.row(0, named=True)["class"] == "Linear"
    assert one["latency_frac"][0] == pytest.approx(0.261, abs=1e-3)
    assert three["rank"].to_list()[:3] == [0, 1, 2]
    assert three["latency_frac"].to_list()[:3] == [one["latency_frac"][0]] * 3


def test_profile_without_step_times(tmp_path: Path) -> None:
    text = SCRIPT["flops_profile"]()
    lines = [one for one in text.split("\n") if not one.startswith(("iter", "FLOPS", "bwd"))]
    (tmp_path / "flops.txt").write_text("\n".join(lines))
    result = ta.printed(tmp_path / "flops.txt", peak=["bf16=312"])
    assert result.scalars["mfu_frac"] is None
    assert result.to_polars("modules").height == 4
    assert result.verdict == "Linear takes the most forward time."


# --- stacks --------------------------------------------------------------------------------------


def test_exported_stacks_are_times(torch: str) -> None:
    path = Path(f"{torch}profiler_stacks.txt")
    lines = [one.rsplit(" ", 1) for one in path.read_text().splitlines()]
    trace = ta.read(path)
    assert trace.meta.weight_unit == "ns"
    assert trace.events["weight"].sum() == 1000 * sum(int(us) for _, us in lines)
    by_leaf: Counter[str] = Counter()
    for stack, us in lines:
        by_leaf[stack.rsplit(";", 1)[-1]] += 1000 * int(us)
    frames = trace.stacks.with_columns(pl.col("name", "file").cast(pl.String))
    leaves = trace.events.select(leaf=frames["name"].gather(trace.events["stack"]),
                                 file=frames["file"].gather(trace.events["stack"]),
                                 line=frames["line"].gather(trace.events["stack"]),
                                 weight="weight")  # fmt: skip
    read: Counter[str] = Counter()
    for name, file, number, weight in leaves.iter_rows():
        read[name if file is None else f"{file}({number}):_{name}"] += weight
    assert read == by_leaf
    code = ta.flamegraph(path).flames[0].frame
    user_code = set(code.filter("is_own_code")["place"].drop_nulls())
    assert user_code == {"record_tables.py:14"}


# --- inputs --------------------------------------------------------------------------------------


def test_wording() -> None:
    for name in ("job.log", "profiler_list.dat", "comms.log", "rank1.log", "flops_2021.txt"):
        result = ta.printed(TEXTS / name)
        check_wording(result.verdict, *result.notes)


def test_the_verdict_is_short(torch: str) -> None:
    for path in (*TEXTS.iterdir(), f"{torch}profiler_list.dat"):
        verdict = ta.printed(path, peak="bf16=312").verdict
        assert 0 < len(re.findall(r"\.(?: |$)", verdict)) <= 3
        assert len(re.findall(r"(?<![\w:])\d[\d.,]*", verdict)) <= 5


def test_a_timeline_goes_before_text(torch: str) -> None:
    trace, text = f"{torch}profiler_chrome.json.gz", f"{torch}profiler_list.dat"
    alone, both = ta.operators(trace), ta.operators([text, trace])
    assert both.operators.equals(alone.operators)
    assert [note for note in both.notes if text in note]
    assert len(both.notes) == len(alone.notes) + 1
    only_text = ta.printed([text, trace])
    assert only_text.to_polars("operators").equals(table(text, "operators"))
    assert [note for note in only_text.notes if trace in note]


@pytest.mark.parametrize("name", sorted(entry.name for entry in registry.public()))
def test_every_analysis_answers_or_names_the_command(name: str) -> None:
    function: Any = registry.ENTRIES[name].function()
    more = {"other": LOG} if name == "memory_diff" else {}
    inputs: Any = [LOG, LOG] if name == "scaling" else [LOG]
    inputs = (LOG, LOG) if name == "diff" else (inputs,)
    if name in ("printed", "info"):
        assert function(*inputs, **more).verdict
        return
    with pytest.raises(MissingData) as error:
        function(*inputs, **more)
    assert str(error.value).endswith("without a timeline: traceanalyzer printed FILE")


def test_a_command_that_got_text_fails_with_one_line() -> None:
    done = run_cli("operators", str(LOG))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "traceanalyzer printed FILE" in done.stderr


def test_forms_of_the_analysis_are_those_of_the_parser() -> None:
    forms = {form for case in SCRIPT["CASES"] for form in case.rows or ()}
    assert set(FORMS) == forms | {
        *("memory_usage", "out_of_memory", "throughput"),
        *("job_events", "engine", "job_context"),
    }


def test_a_trace_and_a_time_window_are_refused() -> None:
    with raises_wording(MissingData):
        ta.printed(TRACE)
    with raises_wording(MissingData):
        ta.printed(ROOT / "fixtures/memory/leak.pickle")
    with raises_wording(MissingData):
        ta.printed(LOG, since_ns=0)


def test_one_rank_of_a_log() -> None:
    for rank in (0, 1):
        assert table(LOG, "steps", rank=rank)["rank"].unique().to_list() == [rank]
    assert table(TEXTS / "rank1.log", "throughput")["rank"].unique().to_list() == [1]


def test_parquet_keeps_the_numbers(tmp_path: Path) -> None:
    ta.convert(LOG, tmp_path / "log.parquet")
    again = ta.read(tmp_path / "log.parquet")
    assert again.aggregates.equals(ta.read(LOG).aggregates)
    steps = [table(one, "steps").drop("path") for one in (again, LOG)]
    assert steps[0].equals(steps[1])


@pytest.mark.matrix
def test_workers_and_the_order_of_files_give_the_same_answer() -> None:
    paths = [TEXTS / "rank1.log", LOG]
    alone = ta.printed(paths)
    assert ta.printed(paths, workers=2).to_dict() == alone.to_dict()
    assert ta.printed(paths[::-1]).to_dict() == alone.to_dict()


# --- diagnose and report -------------------------------------------------------------------------


def test_diagnose_shows_the_tables() -> None:
    printed, result = ta.printed(LOG), ta.diagnose(LOG)
    names = [one.name for one in printed.tables]
    listed = {one.name: one for one in result.visible_tables}
    assert [name for name in names if name not in listed] == []
    assert listed["operators"].frame.equals(printed.to_polars("operators"))
    assert not listed["operators"].detail
    assert result.verdict == (
        f"{printed.verdict} Most checks need a timeline, which printed text does not have."
    )
    assert set(printed.notes) <= set(result.notes)


def test_diagnose_of_a_truncated_text_names_it(torch: str, tmp_path: Path) -> None:
    cut = tmp_path / "cut.dat"
    cut.write_bytes(Path(f"{torch}profiler_list.dat").read_bytes()[:9000])
    result = ta.diagnose(cut)
    assert result.verdict.startswith(f"{cut} is truncated")
    assert [one.id for one in result.findings] == ["dropped-events"]


@pytest.mark.matrix
def test_next_to_traces_the_tables_are_details() -> None:
    alone, both = ta.diagnose(TRACE), ta.diagnose([LOG, TRACE])
    assert both.verdict.partition(".")[0] == alone.verdict.partition(".")[0]
    assert both.findings == alone.findings
    assert {one.name for one in both.tables if one.detail} >= {"operators", "timers"}


@pytest.mark.matrix
def test_report_has_a_section() -> None:
    alone = ta.report(TEXTS / "xpu.txt")
    assert [one.key for one in alone.sections] == ["printed", "info"]
    assert [one.name for one in alone.tables] == ["overview", "findings", "budget", "rules"]
    assert alone.verdict == ta.diagnose(TEXTS / "xpu.txt").verdict
    both = ta.report([LOG, TRACE])
    assert "printed" in [one.key for one in both.sections]
    steps = next(one.result for one in both.sections if one.key == "steps")
    assert steps.to_polars("ranks")["path"].to_list() == [str(TRACE)]


def test_device_time_of_a_gpu_equals_that_of_the_trace() -> None:
    faults = ROOT / "fixtures" / "gpu" / "faults"
    result = ta.printed(faults / "base.key_averages.txt")
    assert result.verdict.startswith("aten::mm ")  # neither ProfilerStep* nor Context Sync
    listed = dict(result.to_polars("operators").select("name", "self_device_ns").iter_rows())
    traced = ta.operators(faults / "base.json.gz").to_polars("operators")
    recorded = dict(traced.select("name", "self_device_ns").iter_rows())
    for name in ("aten::mm", "aten::addmm", "aten::copy_", "aten::native_layer_norm_backward"):
        assert listed[name] == pytest.approx(recorded[name], abs=1_000)
