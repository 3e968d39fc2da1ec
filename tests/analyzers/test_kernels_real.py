"""Kernels of real recordings against HTA, sums and families."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from comm_traces import device, trace
from conftest import once
from test_hta_definitions import TRACES, counted, of, oracle, read
from test_operators_real import kineto

import traceanalyzer as ta
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, MEMORY, device_work
from traceanalyzer.analyzers.common.kernel_names import KERNEL_FAMILIES, OTHER
from traceanalyzer.analyzers.kernels.compute import kernels
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals
from traceanalyzer.trace import Trace

#: HTA has this many names per class of kernels; the rest is a row "others".
HTA_NAMES = 10

#: Recordings without an annotation besides steps.
WITHOUT_ANNOTATIONS = {"h100_qwen_inference"}


@pytest.mark.sample(4)
@pytest.mark.parametrize(("name", "rank"), TRACES)
def test_sums_agree_with_hta(shared: Path, name: str, rank: int) -> None:
    """Return sums by name of HTA's rows; min, max and mean if HTA has all names.

    Beyond ten names of a sort HTA sums up each name first, and its min, max, mean and standard
    deviation are those of the sums.
    """
    _, counted_rows = counted(read(shared, name, rank))
    pieces = counted_rows.select("name", "start", pl.col("end") - pl.col("start")).iter_rows()
    result = kernels(trace(device(name, start, length) for name, start, length in pieces))
    ours = {row["name"]: row for row in result.names.iter_rows(named=True)}
    rows = [row for row in oracle(shared, name, "gpu_kernel_breakdown_1") if of(row, name, rank)]
    sorts = [row["kernel_type"] for row in rows]
    named = [row for row in rows if row["name"] != "others"]
    assert len(named) > 2
    for row in named:
        ours_row = ours.pop(row["name"])
        assert ours_row["total_ns"] == 1000 * float(row["sum (us)"])
        if sorts.count(row["kernel_type"]) <= HTA_NAMES:
            assert ours_row["max_ns"] == 1000 * float(row["max (us)"])
            assert ours_row["min_ns"] == 1000 * float(row["min (us)"])
            assert ours_row["mean_ns"] == pytest.approx(1000 * float(row["mean (us)"]), abs=0.5)
    others = [float(row["sum (us)"]) for row in rows if row["name"] == "others"]
    assert sum(row["total_ns"] for row in ours.values()) == 1000 * sum(others)


@pytest.fixture(scope="module")
def recordings(shared: Path, thorough: bool) -> list[tuple[str, Trace]]:
    """Yield every recording with device work."""
    paths = [*kineto(shared).items()][:: 1 if thorough else 4]
    traces = [(name, once(ta.read, path)) for name, path in paths]
    return [(name, each) for name, each in traces if device_work(each).height]


Recordings = list[tuple[str, Trace]]


@pytest.mark.matrix
def test_sums_add_up_on_every_trace(recordings: Recordings) -> None:
    unmarked = set()
    for name, each in recordings:
        work = device_work(each)
        result = kernels(each)
        assert result.total_ns == (work["end"] - work["start"]).sum(), name
        assert result.busy_ns == intervals.measure(work, ["rank", "device"])["length"].sum()
        for by in ("stream", "operator", "annotation"):
            if by == "annotation" and not marked(each):
                unmarked.add(name)
                with pytest.raises(MissingData, match="record_function"):
                    kernels(each, by=by)
                continue
            values = kernels(each, by=by)
            assert values.groups is not None
            for frame in (values.groups, values.families, values.names):
                sums = frame.select("n", "total_ns").sum().row(0)
                assert sums == (work.height, result.total_ns), (name, by)
    assert unmarked == WITHOUT_ANNOTATIONS & {name for name, _ in recordings}


def marked(each: Trace) -> bool:
    """Whether there are annotations other than steps."""
    names = each.events.filter(
        pl.col("kind").is_in(["cpu_op", "user_annotation"]), pl.col("tid").is_not_null()
    ).select(pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String))
    return any(
        (kind == "user_annotation" or "#" in name) and not name.startswith("ProfilerStep#")
        for kind, name in names.unique().iter_rows()
    )


def test_families_agree_with_sorts_of_device_work(recordings: Recordings) -> None:
    """Communication and memory are the same as in overlap, except for PyTorch's NVLink reductions,
    which are also in the family."""
    for name, each in recordings:
        work = device_work(each)
        sums = work.group_by("work_kind").agg((pl.col("end") - pl.col("start")).sum().alias("ns"))
        expected = dict(sums.cast({"work_kind": pl.String}).iter_rows())
        families = dict(kernels(each).families.select("family", "total_ns").iter_rows())
        memory = sum(ns for of, ns in families.items() if of.startswith("mem"))
        assert memory == expected.get(MEMORY, 0), name
        nvlink = work.filter(pl.col("name").cast(pl.String).str.contains("multimem_"))
        extra = (nvlink["end"] - nvlink["start"]).sum() if nvlink.height else 0
        assert families.get(COMMUNICATION, 0) - expected.get(COMMUNICATION, 0) in (0, extra)


def test_most_kernels_have_a_family(recordings: Recordings) -> None:
    for name, each in recordings:
        families = kernels(each).families
        other = families.filter(pl.col("family") == OTHER)["total_ns"].sum()
        assert other <= 0.01 * families["total_ns"].sum(), name
        copies = families["family"].str.starts_with("mem")
        assert set(families["family"].filter(~copies)) <= set(KERNEL_FAMILIES)


def test_short_names_are_unique(recordings: Recordings) -> None:
    for name, each in recordings:
        names = kernels(each).names
        assert names["kernel"].n_unique() == names.height, name
        numbered = names.filter(pl.col("kernel").str.contains(r" \[\d+\]$"))
        assert numbered.height <= 0.12 * names.height, name
        assert names["kernel"].str.len_chars().median() <= 60  # type: ignore[operator]


@pytest.mark.matrix
def test_eight_ranks_are_eight_devices(shared: Path) -> None:
    folder = shared / "data/chrome/kineto/dlrm_8ranks"
    result = ta.kernels(folder, by="rank")
    assert result.groups is not None
    assert sorted(result.groups["rank"]) == list(range(8))
    assert result.devices["rank"].to_list() == list(range(8))
    alone = [ta.kernels(path) for path in sorted(folder.glob("*.gz"))]
    assert result.busy_ns == sum(one.busy_ns for one in alone)
    assert result.n == sum(one.n for one in alone)


def test_by_operator_agrees_with_operators(recordings: Recordings) -> None:
    """Except for operators around PyTorch's annotations, which operators separates."""
    for name, each in recordings:
        groups = kernels(each, by="operator").groups
        assert groups is not None
        by_operator = dict(groups.drop_nulls("operator").select("operator", "total_ns").iter_rows())
        table = ta.operators(each).operators.filter(pl.col("kind") == "cpu_op")
        values = table.group_by("name").agg(pl.col("self_device_ns").sum()).rows()
        differ = {op for op, ns in values if by_operator.get(op, 0) != ns}
        assert differ <= {"record_param_comms"}, (name, differ)
