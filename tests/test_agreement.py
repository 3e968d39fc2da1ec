"""Commands agree: one thing has one number, one cause and one rank in all of them.

The basis is the mean per step and device, in the steps that count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import pytest

import traceanalyzer as ta
from benchmarks.accuracy.cases import program_of
from benchmarks.accuracy.programs import new_job
from benchmarks.accuracy.simulator import simulate
from benchmarks.accuracy.write import write_kineto
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.causes import FIRST_USE
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.launches.result import Launches
from traceanalyzer.analyzers.overlap.result import Overlap
from traceanalyzer.analyzers.replay.changes import CLASSES
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.analyzers.what_if.compute import WhatIf
from traceanalyzer.errors import MissingData
from traceanalyzer.findings.result import IDLE, OF_BUSY, Diagnosis
from traceanalyzer.findings.rule import IDLE_RULES
from traceanalyzer.result import Finding, Result
from traceanalyzer.schema import ON_REQUEST
from traceanalyzer.trace import Trace

FIXTURES = Path(__file__).parents[1] / "fixtures"
CAUSES = "causes/"

#: Recordings of ``make test``, and those of the matrix.
OFTEN = (
    "nccl_8ranks", "ddp_gloo_4ranks", "nsys/training.sqlite", "rocpd/training.db",
    "upgrade/after.json.gz", "xla", "torchscript",
    *(f"{CAUSES}chrome/{name}" for name in (
        "ddp_gloo_two_ranks", "first_step_loading.json.gz", "moe", "pause_one_step_ahead.json.gz",
    )),
)  # fmt: skip
SELDOM = (
    "transformer", "upgrade/before.json.gz", "rocpd/training.rpd", "nccl_8ranks_isolated",
    *(f"{CAUSES}chrome/{name}" for name in (
        "balanced_pipeline", "decode_after_mark.json.gz", "decode_overlapped.json.gz",
        "device_clock_right.json.gz", "gaps_in_a_graph.json.gz", "host_marks_run_ahead.json.gz",
        "index_backward.json.gz", "k_kineto.json.gz", "lag.pt.trace.json.gz",
        "loss_in_three_steps", "no_caching_allocator.json.gz", "offpath",
        "one_long_kernel.json.gz", "one_long_kernel_of_a_rank",
        "python_between_operators.json.gz", "two_buckets_in_flight", "work_outside_repeats.json.gz",
    )),
    *(f"{CAUSES}nsys/{name}.sqlite.gz" for name in (
        "c1_module_load", "c1g_graph_build", "c15_overhead_other_threads", "c18_one_time_alloc",
        "c22_usleep", "c26_mpi_ranks", "c5_round_trips",
    )),
)  # fmt: skip
ALL = [*OFTEN, *(pytest.param(name, marks=pytest.mark.matrix) for name in SELDOM)]
#: The tests of a recording follow each other, so that one process computes its results.
of_recordings = pytest.mark.parametrize("name", ALL, scope="module")
SETUP = "chrome/kineto/a100_alexnet_cuda_sync.json.gz"

#: Recordings that are diagnosed again with the number of a finding in ``make test``.
FEW_KERNELS = ("ddp_gloo_4ranks", "upgrade/after.json.gz")

#: Parts of a time that are not named may be this share of it.
UNNAMED = 0.005


def path_of(name: str) -> Path:
    """Return where a recording is."""
    shared = Path(__file__).parents[2] / "shared" / "data"
    path = shared / name if name.startswith((CAUSES, "chrome/")) else FIXTURES / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


@cache
def traces(name: str) -> list[Trace]:
    """Return the traces of a recording with all columns, read once."""
    return [ta.read(file, columns=ON_REQUEST) for file in ta.find_inputs([path_of(name)])[0]]


@cache
def results(name: str) -> dict[str, Result]:
    """Return the results of all commands that the recording allows."""
    inputs = traces(name)
    found: dict[str, Result] = {"diagnose": ta.diagnose(inputs)}
    for command in ("gpu_idle", "launches", "steps", "comm_outliers", "overlap", "what_if"):
        try:
            found[command] = getattr(ta, command)(inputs)
        except MissingData:  # not recorded
            continue
    return found


R = TypeVar("R", bound=Result)


def pair(name: str, command: str, of: type[R]) -> tuple[Diagnosis, R]:
    """Return the diagnosis and the result of another command; skip recordings without it."""
    diagnosis, other = results(name)["diagnose"], results(name).get(command)
    if not isinstance(diagnosis, Diagnosis) or not isinstance(other, of):
        pytest.skip(f"no {command}")
    return diagnosis, other


def findings(diagnosis: Diagnosis) -> Iterator[Finding]:
    for root in diagnosis.findings:
        yield from (root, *root.effects)


@of_recordings
def test_steps_that_count_and_their_times(name: str) -> None:
    found = results(name)
    idle, steps = found.get("gpu_idle"), found.get("steps")
    if not isinstance(idle, GpuIdle) or not idle.counted_steps.height:
        pytest.skip("no steps")
    length = pl.col("end") - pl.col("start")
    keys = ["rank", "path", "step"]
    rows = {"gpu_idle": idle.by_device.counted_steps.select(*keys, ns=length)}
    if isinstance(steps, Steps):
        rows["steps"] = steps.counted.select(*keys, ns="duration_ns")
    launches, overlap = found.get("launches"), found.get("overlap")
    if isinstance(launches, Launches) and launches.steps.height:
        rows["launches"] = launches.steps.filter(~pl.col("warm_up")).select(*keys, ns="step_ns")
    if isinstance(overlap, Overlap) and overlap.steps.height:
        rows["overlap"] = overlap.counted.select(*keys, ns="span_ns")
    expected = rows["gpu_idle"].sort(keys)
    for command, frame in rows.items():
        assert frame["step"].unique().sort().equals(expected["step"].unique().sort()), command
        assert frame["ns"].mean() == pytest.approx(expected["ns"].mean(), rel=1e-6), command


@of_recordings
def test_parts_of_the_time(name: str) -> None:
    """The bar of diagnose, gpu-idle, overlap and launches: busy, idle, exposed communication."""
    diagnosis, idle = pair(name, "gpu_idle", GpuIdle)
    if diagnosis.budget.is_empty():
        pytest.skip("almost no GPU work")
    basis = idle.basis
    assert diagnosis.per == basis.per
    assert diagnosis.of == basis.of
    whole, some = basis.each_ns(basis.whole_ns), UNNAMED * basis.each_ns(basis.whole_ns)
    rows = diagnosis.budget.filter(pl.col("part") != OF_BUSY)
    assert rows["each_ns"].sum() == pytest.approx(whole, abs=some)
    of_idle = basis.each_ns(sum(idle.counted_by_cause.values()))
    named = rows.filter(part=IDLE)["each_ns"].sum()
    assert named == pytest.approx(of_idle, abs=some)
    overlap = results(name).get("overlap")
    if isinstance(overlap, Overlap):
        other = overlap.basis
        assert other.whole_ns == pytest.approx(basis.whole_ns, rel=UNNAMED) or not basis.in_steps
        in_steps = overlap.counted
        assert other.each_ns(in_steps["idle_ns"].sum()) == pytest.approx(of_idle, abs=some) or (
            not basis.in_steps
        )
        exposed = other.each_ns(in_steps["exposed_communication_ns"].sum())
        bar = rows.filter(pl.col("part") == "exposed communication")["each_ns"].sum()
        assert bar == pytest.approx(exposed, abs=some)


@of_recordings
def test_launch_overhead_and_idle_causes(name: str) -> None:
    """The findings of a cause cost what gpu-idle counts, besides waits for them on other ranks."""
    diagnosis, idle = pair(name, "gpu_idle", GpuIdle)
    basis, by_rule = idle.basis, {rule: cause for cause, rule in IDLE_RULES.items()}
    costs: Counter[str] = Counter()
    for one in findings(diagnosis):
        cause = by_rule.get(one.id)
        if cause in (None, causes.PEER) or one.per.endswith("once") or one.cost_ns is None:
            continue
        assert one.per == basis.per
        costs[cause] += one.cost_ns
    for cause, cost in costs.items():
        total = idle.counted_by_cause[cause]
        assert cost >= basis.each_ns(total) * (1 - UNNAMED) - 1
        if len(idle.by_device.units) == 1:
            # host code after waits belongs to them
            after = idle.counted_by_cause[causes.HOST_CODE] * (cause == causes.SYNCHRONISATION)
            most = basis.each_ns(total + after)
            assert cost <= most * (1 + UNNAMED) + 1
    launches = results(name).get("launches")
    if isinstance(launches, Launches):
        waiting = launches.costs["waiting_ns"].sum() / basis.whole_ns
        lost = idle.counted_by_cause
        most = lost[causes.LAUNCH] + lost[causes.HOST_CODE] + lost[causes.SHORT_GAP]
        most += lost[causes.SYNCHRONISATION] + lost[causes.DATALOADING] + lost[causes.UNKNOWN]
        most += lost[causes.BATCH_COPY] + lost[causes.SMALL_COPIES] + lost[causes.API_CALLS]
        assert waiting <= most / basis.whole_ns + UNNAMED


@of_recordings
def test_the_longest_gap_has_the_cause_of_its_finding(name: str) -> None:
    diagnosis, idle = pair(name, "gpu_idle", GpuIdle)
    # a wait for another rank belongs to what delayed that rank
    gaps = idle.gaps.filter(pl.col("cause").cast(pl.String) != causes.PEER)
    gaps = gaps.filter(2 * pl.col("cause_ns") > pl.col("end") - pl.col("start")).head(1)
    for gap in gaps.iter_rows(named=True):
        inside = {
            one.id: _time_in(one.intervals, gap)
            for one in diagnosis.findings
            if one.id in IDLE_RULES.values() and one.intervals is not None
        }
        most = max(inside, key=lambda name: inside[name], default=None)
        whole = gap["end"] - gap["start"]
        assert most is None or 2 * inside[most] < whole or most == IDLE_RULES[gap["cause"]]


def _time_in(intervals: pl.DataFrame, gap: dict[str, Any]) -> int:
    """Return the time of a finding's intervals in a gap."""
    same = [pl.col(name).eq_missing(gap[name]) for name in ("rank", "device")]
    start, end = (pl.col(f"{side}_ns").clip(gap["start"], gap["end"]) for side in ("start", "end"))
    return int(intervals.filter(*same).select((end - start).sum()).item())


@of_recordings
def test_the_straggler_is_one_rank(name: str) -> None:
    diagnosis, comm = pair(name, "comm_outliers", CommOutliers)
    named = [one.rank for one in findings(diagnosis) if one.id == "straggler"]
    ranks = comm.stragglers()["rank"].to_list()
    assert not named or named[0] == ranks[0]


#: Rules whose findings are classes of what-if. Advice on a part of a class, such as launches in one
#: loop, and rules about device work have none.
OF_CLASSES = {name: change for name, change in CLASSES.items() if name in IDLE_RULES.values()}
#: Those with all time of the class; others may be on other threads, or wait for something else.
WHOLE = ("data-loading", "memory-management", "graph-building", "module-loading", "api-calls")


@of_recordings
def test_what_if_gains_as_much_as_the_finding(name: str) -> None:
    """The class of time has the finding's gain at least: it includes time outside of its gaps."""
    diagnosis, replayed = pair(name, "what_if", WhatIf)
    gains = dict(replayed.changes.select("change", "gain_frac").iter_rows())
    for one in diagnosis.findings:
        if one.id in WHOLE and one.gain_basis == "replay" and replayed.ranks == 1:
            assert gains[OF_CLASSES[one.id]] >= (one.gain_frac or 0) - 0.03, one.title


@of_recordings
def test_what_if_repeats_each_gain_of_a_finding(name: str, thorough: bool) -> None:
    """The rows of the standard table, and ``--finding`` with the number of one."""
    diagnosis, replayed = pair(name, "what_if", WhatIf)
    numbered = [
        (number, one) for number, one in enumerate(diagnosis.findings, 1) if one.gain_change
    ]
    assert all((one.gain_basis == "replay") == bool(one.gain_change) for one in diagnosis.findings)
    expected = [(one.id, one.gain_change, one.gain_ns, one.gain_frac) for _, one in numbered]
    columns = ("finding", "change", "gain_ns", "gain_frac")
    assert replayed.findings.select(columns).rows() == expected
    last = list(zip(numbered, expected, strict=True))[-1:]
    for (number, _), row in last if thorough or name in FEW_KERNELS else []:
        alone = ta.what_if(traces(name), finding=number)
        assert alone.findings.select(columns).rows() == [row]
        assert alone.changes.is_empty()


def test_two_stragglers_cost_as_much_in_both_commands(tmp_path: Path) -> None:
    """By how much they are late differs from step to step, and so does who is later."""
    late = {3: (3, 1, 4, 1, 2), 6: (1, 3, 1, 2, 1)}
    job = new_job("data-parallel", 3, 8, 5)
    factor = {rank: dict(zip(job.steps, each, strict=True)) for rank, each in late.items()}
    job.kernel_factor = lambda rank, _, step: 1 + 0.3 * factor.get(rank.rank, {}).get(step, 0)
    write_kineto(job, simulate(job, program_of(job)), tmp_path)
    diagnosis, comm = ta.diagnose(tmp_path), ta.comm_outliers(tmp_path)
    stragglers = {one.rank: one for one in findings(diagnosis) if one.id == "straggler"}
    assert list(stragglers) == comm.stragglers()["rank"].to_list() == [3, 6]
    for rank, one in stragglers.items():
        share = comm.ranks.filter(rank=rank)["straggler_frac"].item()
        # the cost has the time that the straggler works longer, too: as long as each other waits
        assert 0.1 < share == pytest.approx(7 / 8 * (one.cost_frac or 0), rel=0.01)
        assert f"({share:.1%}".replace("%", " %") in one.title


@pytest.mark.parametrize("name", [*ALL, SETUP], scope="module")
def test_setup_is_no_cost_of_each_step_in_both_commands(name: str) -> None:
    """Only the largest cause has advice in gpu-idle."""
    diagnosis, idle = pair(name, "gpu_idle", GpuIdle)
    cause = max(FIRST_USE, key=lambda cause: idle.idle_by_cause[cause])
    once = [one.per.endswith("once") for one in findings(diagnosis)
            if one.id == IDLE_RULES[cause] and not idle.basis.in_steps]  # fmt: skip
    assert not once or once[0] == idle.is_once(cause)
