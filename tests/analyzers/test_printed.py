"""Analyses of printed text, compared with the trace of the same run or with other formulas."""

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
from conftest import ROOT
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer import MissingData
from traceanalyzer.analyzers import registry
from traceanalyzer.cli.answering import _message

TEXTS = ROOT / "fixtures" / "printed_text"
SCRIPT = runpy.run_path(str(ROOT / "fixtures" / "make_printed_text.py"))
LOG = TEXTS / "job.log"


@pytest.fixture
def torch(shared: Path) -> str:
    return str(shared / "data/key_averages/torch213_cpu_")


# --- operators -----------------------------------------------------------------------------------


def test_operators_equal_those_of_the_trace_of_the_same_run(torch: str) -> None:
    text = ta.operators(f"{torch}profiler_list.dat")
    trace = ta.operators(f"{torch}profiler_chrome.json.gz")
    assert text.host_ns == pytest.approx(trace.host_ns, rel=1e-3)
    columns = ["calls", "self_host_ns", "total_host_ns"]
    whole = text.operators.filter(~pl.col("is_cut")).select("name", *columns)
    both = whole.join(trace.operators.select("name", *columns), on="name", suffix="_of_trace")
    assert both.height == whole.height == 158
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
    rows = ta.operators(f"{torch}profiler_list.dat").operators
    assert rows.filter(pl.col("name") == "aten::mm")["flops"].to_list() == [expected]


def test_tables_of_one_recording_count_once(torch: str) -> None:
    names = ("profiler_list.dat", "top10.txt", "narrow_names.txt", "by_shape.txt", "by_stack.txt")
    alone = ta.operators(f"{torch}profiler_list.dat")
    together = ta.operators([f"{torch}{name}" for name in names])
    assert together.operators.equals(alone.operators)
    assert together.host_ns == alone.host_ns == 6_087_000
    assert together.repeated == 4  # type: ignore[attr-defined]
    shapes = ta.operators([f"{torch}{name}" for name in names], group_by_input_shape=True)
    of_mm = shapes.operators.filter(pl.col("name") == "aten::mm")
    assert of_mm["calls"].to_list() == [2, 2]
    assert set(of_mm["input_dims"]) == {"[[10, 8], [8, 14400]]", "[[8, 10], [10, 14400]]"}


def test_grouping_that_was_not_printed(torch: str) -> None:
    with raises_wording(MissingData):
        ta.operators(f"{torch}top10.txt", group_by_input_shape=True)
    with raises_wording(MissingData):
        ta.operators(f"{torch}top10.txt", sort_by="self_device")


def test_rows_with_shortened_names_are_not_summed() -> None:
    alone, both = ta.operators(TEXTS / "profiler_list.dat"), ta.operators(LOG)
    calls = Counter(dict(both.operators.filter(~pl.col("is_cut")).select("name", "calls").rows()))
    assert calls == {name: 2 * n for name, *_, n, _ in SCRIPT["OPERATORS"] if len(name) < 55}
    cut = both.operators.filter("is_cut")
    assert cut.height == 4
    assert cut["name"].n_unique() == 1
    assert sorted(cut["self_device_ns"]) == [2_877_000, 2_877_000, 7_000_000, 7_000_000]
    assert (both.host_ns, both.device_ns) == (2 * SCRIPT["HOST_NS"], 2 * SCRIPT["DEVICE_NS"])
    assert alone.operators["self_device_frac"].sum() > 1.9  # kernels and their operators
    assert both.ranks["rank"].to_list() == [0, 1]


def test_a_limited_table_says_its_share(torch: str) -> None:
    result: Any = ta.operators(f"{torch}top10.txt")
    rows = result.operators["self_host_ns"].sum()
    assert result.listed_frac == rows / 6_087_000 < 0.1


# --- memory --------------------------------------------------------------------------------------


def test_a_truncated_table_has_shares_of_its_rows(torch: str, tmp_path: Path) -> None:
    whole = Path(f"{torch}profiler_list.dat")
    cut = tmp_path / "cut.dat"
    cut.write_bytes(whole.read_bytes()[:9000])
    full, part = ta.operators(whole), ta.operators(cut)
    assert "Self CPU time total: 6.087 ms" in full.view().verdict
    assert "Self CPU time of the printed rows: 4.939 ms" in part.view().verdict
    assert full.listed_frac == pytest.approx(1, abs=1e-3)  # type: ignore[attr-defined]
    assert part.listed_frac is None  # type: ignore[attr-defined]
    assert part.without_total == 1  # type: ignore[attr-defined]
    assert not any("truncated" in note for note in full.view().notes)
    assert [note for note in part.input_notes if str(cut) in note and "truncated" in note]
    assert "of the 10 printed rows" in ta.operators(f"{torch}top10.txt").view().verdict


def test_a_table_with_totals_only_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "table_without_rows.txt"
    lines = (TEXTS / "profiler_list.dat").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if re.search("----|Name  |time total", line)]
    path.write_text("".join(kept), encoding="utf-8")
    with pytest.raises(MissingData, match="no complete row"):
        ta.operators(path)


def test_issues_of_text_have_a_remedy() -> None:
    issue = {"code": "truncated-table", "severity": "data_loss", "count": 1, "first": "line 6"}
    assert "print the table again" in _message(issue)
    assert _message(issue | {"code": "number-out-of-range", "first": None}).endswith("dropped)")


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
    assert [note for note in ta.efficiency(profile).input_notes if "truncated" in note]


def test_memory_summary() -> None:
    result: Any = ta.memory(TEXTS / "profiler_list.dat")
    (row,) = result.devices.to_dicts()
    by_name = dict(SCRIPT["MEMORY"])
    assert (row["end_bytes"], row["peak_bytes"]) == by_name["Allocated memory"][:2]
    reserved = (row["reserved_end_bytes"], row["reserved_peak_bytes"])
    assert reserved == by_name["GPU reserved memory"][:2]
    assert row["inactive_split_bytes"] == by_name["Non-releasable memory"][0]
    assert (row["ooms"], row["retries"], row["device"], row["unit_bytes"]) == (1, 3, 0, 1 << 20)
    assert result.peak_bytes == 31 << 30


def test_memory_usage_is_a_series() -> None:
    result: Any = ta.memory(LOG)
    gib = [round(one[1] * (1 << 30)) for one in SCRIPT["USAGE"]]
    assert result.calls["allocated_bytes"].to_list() == gib
    assert result.calls["change_bytes"].to_list() == [None, gib[1] - gib[0], 0]
    assert result.calls["name"].to_list() == [one[0] for one in SCRIPT["USAGE"]]
    row = result.devices.filter(pl.col("source") == "see_memory_usage").to_dicts()[0]
    assert row["peak_bytes"] == round(14.87 * (1 << 30))
    assert row["end_bytes"] == gib[-1]
    assert result.charts[0].frame.height == 3


# --- steps ---------------------------------------------------------------------------------------


def test_step_times() -> None:
    result: Any = ta.steps(LOG)
    expected = [
        (rank, number, round(1e6 * sum(parts)), number == 0)
        for rank, prints in enumerate(SCRIPT["TIMES"])
        for number, parts in enumerate(prints)
    ]
    rows = result.prints.select("rank", "number", "duration_ns", "warm_up").rows()
    assert sorted(rows) == expected
    times = [one[2] for one in expected if not one[3]]
    assert result.scalars["median_ns"] == median(times)
    fwd = result.timers.filter(pl.col("timer") == "fwd", pl.col("rank") == 0).to_dicts()[0]
    assert (fwd["n"], fwd["mean_ns"], fwd["min_ns"]) == (2, 30_500_000, 30_000_000)
    assert fwd["total_frac"] == pytest.approx(30.5 / 126.25)
    assert result.throughput["samples_per_s"].to_list() == [60.25, 61.25, 62.25] * 2


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
        result: Any = ta.steps(path)
        assert result.prints["duration_ns"].to_list() == [ns for ns in times if ns]
        assert result.unused == times.count(0)
        named = result.prints
        parts = named["backward_compute_ns"] + named["gradient_reduction_ns"]
        rest = named["backward_ns"] - parts
        assert (rest.is_between(-20_000, 1_000_000)).all()


def test_steps_by_name_need_a_timeline() -> None:
    with raises_wording(MissingData):
        ta.steps(LOG, step_name="x")


# --- communication -------------------------------------------------------------------------------


def test_communication_log() -> None:
    result = ta.comm_outliers(TEXTS / "comms.log")
    groups = {row["collective"]: row for row in result.groups.to_dicts() if row["source"] == "log"}
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
    assert result.totals.total_comm_ns == sum(steady.values())
    assert result.totals.n_events == len(SCRIPT["CALLS"])


def test_communication_summary(shared: Path) -> None:
    groups = ta.comm_outliers(shared / "data/deepspeed/alcf_cooldown_notes.md").groups
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


# --- FLOPs ---------------------------------------------------------------------------------------


def test_mfu() -> None:
    result: Any = ta.efficiency(LOG, peak=["bf16=312"])
    assert result.mfu_frac == pytest.approx(3 * 1.08e12 / 0.34608 / 312e12)
    assert ta.efficiency(LOG).mfu_frac is None
    (row,) = result.profiles.to_dicts()
    assert row["printed_tflops"] == 9.36
    assert result.ranks["step_ns"].to_list() == [SCRIPT["ITER_NS"]]
    modules = result.modules.select("module", "fwd_macs", "fwd_latency_ns").rows()
    assert modules == [(path or kind, macs, ns) for path, kind, _, macs, ns in SCRIPT["MODULES"]]
    assert result.modules["has_children"].to_list() == [True, False, False, False]


@pytest.mark.parametrize("name", ["llava", "topomoe"])
def test_flops_of_a_step_equal_those_of_the_text(name: str, shared: Path) -> None:
    (path,) = (shared / "data/deepspeed").glob(f"{name}*")
    result: Any = ta.efficiency(path, peak=["fp16=100"])
    (row,) = result.profiles.to_dicts()
    assert row["achieved_tflops"] == pytest.approx(row["printed_tflops"], rel=2e-3)
    assert result.mfu_frac == row["achieved_tflops"] / 100
    leaves = result.modules.filter(~pl.col("has_children"))
    # MACs of leaves are at most those of the model: functions are counted in it only
    assert 0.5 < leaves["fwd_macs"].sum() / row["fwd_macs"] <= 1.001


def test_shares_of_several_profiles_are_means(shared: Path, tmp_path: Path) -> None:
    profile = shared / "data/deepspeed/llava_flops_profiler.txt"
    copies = [tmp_path / f"rank{rank}.txt" for rank in range(3)]
    for copy in copies:
        shutil.copy(profile, copy)
    one, three = (ta.efficiency(paths).view().verdict for paths in (profile, copies))
    heaviest = one.rpartition("forward time: ")[2]
    assert re.search(r"Linear, 97\.\d+ ms \(26\.1", heaviest)
    assert heaviest.rstrip(").") in three


def test_profile_without_step_times(tmp_path: Path) -> None:
    text = SCRIPT["flops_profile"]()
    lines = [one for one in text.split("\n") if not one.startswith(("iter", "FLOPS", "bwd"))]
    (tmp_path / "flops.txt").write_text("\n".join(lines))
    result: Any = ta.efficiency(tmp_path / "flops.txt", peak=["bf16=312"])
    assert (result.mfu_frac, result.ranks.height, result.modules.height) == (None, 0, 4)


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


def test_a_timeline_goes_before_text(torch: str) -> None:
    trace, text = f"{torch}profiler_chrome.json.gz", f"{torch}profiler_list.dat"
    alone, both = ta.operators(trace), ta.operators([text, trace])
    assert both.operators.equals(alone.operators)
    assert [note for note in both.notes if text in note]
    assert len(both.notes) == len(alone.notes) + 1


@pytest.mark.parametrize("name", sorted(entry.name for entry in registry.public()))
def test_every_analysis_answers_or_names_a_command(name: str) -> None:
    function: Any = registry.ENTRIES[name].function()
    more = {"other": LOG} if name == "memory_diff" else {}
    inputs: Any = [LOG, LOG] if name == "scaling" else [LOG]
    inputs = (LOG, LOG) if name == "diff" else (inputs,)
    if name in ("operators", "memory", "steps", "efficiency", "comm_outliers", "info"):
        assert function(*inputs, **more).verdict
        return
    with pytest.raises(MissingData) as error:
        function(*inputs, **more)
    assert "traceanalyzer steps FILE" in str(error.value)


def test_forms_of_the_analyses_are_those_of_the_parser() -> None:
    used = {form for entry in registry.public() for form in entry.analyzer().printed}
    forms = {form for case in SCRIPT["CASES"] for form in case.rows or ()}
    # forms of itwinai and NCCL Inspector have parsers of their own
    others = {"nccl_inspector", "epochs", "gpu_samples", "kernel_averages"}
    assert used == forms | {"memory_usage", "throughput"} | others


def test_text_without_the_form_names_the_command() -> None:
    for function in (ta.steps, ta.efficiency, ta.comm_outliers):
        with raises_wording(MissingData):
            function(TEXTS / "profiler_list.dat")
    with raises_wording(MissingData):
        ta.steps(LOG, since_ns=0)


def test_one_rank_of_a_log() -> None:
    for rank in (0, 1):
        result: Any = ta.steps(LOG, rank=rank)
        assert result.prints["rank"].unique().to_list() == [rank]
    by_name: Any = ta.steps(TEXTS / "rank1.log")
    assert by_name.throughput["rank"].unique().to_list() == [1]


def test_parquet_keeps_the_numbers(tmp_path: Path) -> None:
    ta.convert(LOG, tmp_path / "log.parquet")
    again = ta.read(tmp_path / "log.parquet")
    assert again.aggregates.equals(ta.read(LOG).aggregates)
    prints: list[Any] = [ta.steps(one).to_polars("prints").drop("path") for one in (again, LOG)]
    assert prints[0].equals(prints[1])


def test_workers_give_the_same_answer() -> None:
    paths = [TEXTS / "rank1.log", LOG]
    alone, several = ta.steps(paths), ta.steps(paths, workers=2)
    assert several.to_dict() == alone.to_dict()


def test_report_names_the_commands() -> None:
    with pytest.raises(MissingData, match="traceanalyzer operators FILE"):
        ta.diagnose(TEXTS / "xpu.txt")
