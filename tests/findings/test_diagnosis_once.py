"""Setup in the first step costs once."""

from __future__ import annotations

from pathlib import Path

import pytest
from comm_traces import GEMM, MS, US, device, host, step, trace
from diagnosing import finding
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.result import Finding
from traceanalyzer.trace import Trace


def steps_with(
    call: str, kind: str = "cuda_runtime", *, slow: tuple[int, ...] = (0,), n_steps: int = 5
) -> Trace:
    """Return steps of 10 ms of work; some have a call of 30 ms before the kernel."""
    rows, at = [], 0
    for i in range(n_steps):
        more = 30 * MS if i in slow else 0
        rows.append(step(i, at, 10 * MS + 200 * US + more))
        if more:
            rows.append(host(kind, call, at + 100 * US, more))
        rows.append(device(GEMM, at + 20 * US, 50 * US))
        launch = at + 100 * US + more
        rows.append(host("cuda_runtime", "cudaLaunchKernel", launch, 10 * US, correlation=i))
        rows.append(device(GEMM, launch + 20 * US, 10 * MS, correlation=i))
        at += 10 * MS + 200 * US + more
    return trace(rows)


SET_UP = [
    ("cudaMalloc", "cuda_runtime", "memory-management"),
    ("Lazy Function Loading", "overhead", "module-loading"),
    ("cublasCreate_v2", "cpu_op", "host-code"),
    ("ncclCommInitRank", "cpu_op", "communicator-creation"),
    ("torch/_dynamo/convert_frame.py(1): compile", "python_function", "host-code"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("call", "kind", "rule"), SET_UP)
def test_setup_in_the_first_step_costs_once(call: str, kind: str, rule: str) -> None:
    findings = ta.diagnose(steps_with(call, kind)).diagnosis
    (one,) = (one for one in findings if one.id == rule)
    assert one.per.endswith("once")
    assert one.cost_ns == pytest.approx(30 * MS, rel=0.1)
    assert "schedule(" in one.advice
    assert "per step" not in one.title
    if rule == "memory-management":
        check_wording(one.title, one.advice)


def test_calls_in_every_step_cost_each_step() -> None:
    findings = ta.diagnose(steps_with("cudaMalloc", slow=(0, 1, 2, 3, 4))).diagnosis
    (one,) = (one for one in findings if one.id == "memory-management")
    assert "once" not in one.per
    assert "schedule(" not in one.advice


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("slow", "n_steps", "confidence"),
    [((0, 1, 2, 3, 4), 5, "high"), ((3,), 5, "medium"), ((0,), 1, "medium")],
)
def test_one_occurrence_lowers_confidence(
    slow: tuple[int, ...], n_steps: int, confidence: str
) -> None:
    findings = ta.diagnose(steps_with("cudaMalloc", slow=slow, n_steps=n_steps)).diagnosis
    (one,) = (one for one in findings if one.id == "memory-management")
    assert one.confidence == confidence


def test_setup_is_known_not_to_repeat() -> None:
    findings = ta.diagnose(steps_with("cudaMalloc")).diagnosis
    (one,) = (one for one in findings if one.id == "memory-management")
    assert one.confidence == "high"


def test_the_longest_gap_is_in_the_steps_of_the_finding() -> None:
    """So does the cause in a later step, in which the gap is longer or shorter."""
    found = ta.diagnose(steps_with("cudaMalloc", slow=(0, 3))).diagnosis
    for step_name, once in (("ProfilerStep#3", False), ("ProfilerStep#0", True)):
        (one,) = (f for f in found if f.id == "memory-management" and ("once" in f.per) == once)
        assert step_name in one.title
        assert f"in {step_name}," in one.evidence[0]


@pytest.mark.matrix
def test_other_code_in_a_warm_up_step_costs_nothing() -> None:
    assert ta.diagnose(steps_with("my_function", "cpu_op")).findings == ()
    findings = ta.diagnose(steps_with("my_function", "cpu_op", n_steps=1)).findings
    (one,) = (one for one in findings if one.id == "host-code")
    assert "once" not in one.per


@pytest.mark.parametrize(("n_steps", "severity"), [(5, "warning"), (9, "info")])
def test_warm_up_counts_in_no_cost_per_step(n_steps: int, severity: str) -> None:
    """A step of 40 ms, then steps of 10 ms with 1 ms of allocation each."""
    recording = steps_with("cudaMalloc", n_steps=n_steps)
    result = ta.diagnose(recording)
    (one,) = (one for one in result.findings if one.id == "memory-management")
    assert (one.step, one.severity) == ("ProfilerStep#0", severity)
    assert one.cost_frac == pytest.approx(30 / (31 + 10 * n_steps), abs=0.01)
    idle = ta.gpu_idle(recording)
    assert idle.steps["warm_up"].to_list() == [True, *[False] * (n_steps - 1)]
    assert idle.step_ns == ta.steps(recording).counted["duration_ns"].sum()
    each = result.budget.filter(part="idle")["time_frac"].sum()
    assert each == pytest.approx(1 - 10.05 / 10.2, abs=0.01)


@pytest.mark.sample(2)
@pytest.mark.parametrize("first_ms", [2, 300])
def test_without_steps_setup_is_most_of_the_time_in_a_few_calls(first_ms: int) -> None:
    """Twenty allocations of 2 ms; the first one may take 300 ms."""
    rows, at = [], 0
    for i in range(20):
        more = (first_ms if i == 0 else 2) * MS
        rows.append(device(GEMM, at, 50 * US))
        rows.append(host("cuda_runtime", "cudaMalloc", at + 60 * US, more))
        launch = at + 100 * US + more
        rows.append(host("cuda_runtime", "cudaLaunchKernel", launch, 10 * US, correlation=i))
        rows.append(device(GEMM, launch + 20 * US, 10 * MS, correlation=i))
        at = launch + 11 * MS
    findings = ta.diagnose(trace(rows)).diagnosis
    (one,) = (one for one in findings if one.id == "memory-management")
    assert one.per.endswith("once") == (first_ms == 300)


@pytest.mark.parametrize(("alloc_ms", "once"), [(300, True), (0, False)])
def test_late_launches_within_the_gap_of_setup_are_setup(alloc_ms: int, *, once: bool) -> None:
    """The rest of a gap in which memory is allocated, without steps; kernels ran before."""
    rows, at = [], 0
    for i in range(20):
        alloc, late = (alloc_ms * MS, 100 * MS) if i == 10 else (0, 50 * US)
        if alloc:
            rows.append(host("cuda_runtime", "cudaMalloc", at, alloc))
        launch = at + alloc
        rows.append(host("cpu_op", "aten::conv2d", launch, late + 20 * US))
        launch += late
        rows.append(host("cuda_runtime", "cudaLaunchKernel", launch, 10 * US, correlation=i))
        rows.append(device(GEMM, launch + 20 * US, MS, correlation=i))
        at = launch + 20 * US + MS
    one = finding("launch-bound", trace(rows))
    assert one.cost_ns == pytest.approx(101 * MS, rel=0.02)
    assert one.per.endswith("once") == once


@pytest.mark.parametrize(("slow", "sets_up"), [((0,), True), ((0, 1, 2, 3, 4), False)])
def test_first_collective_creates_the_communicator(slow: tuple[int, ...], sets_up: bool) -> None:
    """PyTorch creates it in the first call; a call that is long in all steps does not."""
    usual = [host("cpu_op", "c10d::allreduce_", n * 10_200 * US + 150 * MS, US) for n in range(5)]
    events = steps_with("c10d::allreduce_", "cpu_op", slow=slow).events.to_dicts()
    findings = ta.diagnose(trace([*events, *usual[len(slow) - 1 :]])).diagnosis
    found = [one for one in findings if one.id == "communicator-creation"]
    assert [one.per.endswith("once") for one in found] == [True] * sets_up
    assert [one.cost_ns for one in found] == [pytest.approx(30 * MS, rel=0.1)] * sets_up


def test_the_largest_finding_of_a_rule_explains_slow_steps(shared: Path) -> None:
    """Two functions are findings of one rule; the slow steps run the one that costs more."""
    path = shared / "data/causes/chrome/ddp_gloo_two_ranks/rank1.json.gz"
    findings = ta.diagnose(path).findings
    first, *_ = findings
    assert first.id == "host-code"
    assert [one.id for one in first.effects] == ["uneven-steps"]
    assert [one.id for one in findings].count("host-code") == 2


def late_launches(
    slow: dict[int, list[int]],
    n_steps: int,
    *,
    marked: bool,
    op: str = "aten::sum",
    kernel: str = "",
) -> Trace:
    """Return steps of 20 kernels of 50 us; these launches are 2 ms late, one in each step 15 us.

    The late ones are of the kernel, if one is given, or of those that run all the time.
    """
    rows, at, n, host_at = [], 20 * US, 0, 0
    for i in range(n_steps):
        begin = host_at
        for k in range(20):
            is_late = k in slow.get(i, [])
            if delay := 2 * MS if is_late else 15 * US * (k == 1):
                host_at = max(host_at, at) + delay
                late_op = f"aten::x{i}" if op == "x" else op
                name = late_op if is_late else "aten::add"
                rows.append(host("cpu_op", name, host_at - delay, delay + 5 * US))
            n += 1
            rows.append(host("cuda_runtime", "cudaLaunchKernel", host_at, 4 * US, correlation=n))
            at = max(at, host_at + 6 * US)
            name = f"{kernel}_{i}_{k}" if is_late and kernel else (GEMM, "add", "copy")[k % 3]
            rows.append(device(name, at, 50 * US, correlation=n))
            at, host_at = at + 50 * US, host_at + 5 * US
        rows += [step(i, begin, host_at - begin)] * marked
    return trace(rows)


def late(recording: Trace) -> tuple[Finding, str]:
    """Return the finding about launches, and the verdict of gpu-idle."""
    (one,) = (one for one in ta.diagnose(recording).findings if one.id == "launch-bound")
    return one, ta.gpu_idle(recording).view().verdict


@pytest.mark.parametrize("slow", [{1: [0]}, {2: [12]}, {0: [5], 1: [9], 2: [3]}])
def test_few_late_first_launches_without_steps_are_setup(slow: dict[int, list[int]]) -> None:
    """However many launches have no gap before them."""
    recording = late_launches(slow, 8, marked=False, kernel="reduce")
    one, verdict = late(recording)
    assert one.per.endswith("once")
    assert one.cost_ns == pytest.approx(2 * MS * len(slow), rel=0.1)
    assert one.advice == causes.ONCE[True]
    assert causes.ONCE[True] in verdict


@pytest.mark.parametrize(
    ("slow", "marked"),
    [
        ({3: [10]}, False),
        ({0: [15]}, True),
        ({4: [7]}, True),
        ({3: [10], 7: [4]}, True),
        ({2: [10], 5: [3], 8: [8]}, True),
        ({1: [10], 3: [10], 5: [10]}, False),
    ],
)
def test_few_late_launches_of_kernels_that_ran_before_are_stops(
    slow: dict[int, list[int]], marked: bool
) -> None:
    """They are no setup, and nothing loads code, with steps and without; both commands agree."""
    n_steps = 10 if len(slow) > 1 or 0 not in slow else 1
    recording = late_launches(slow, n_steps, marked=marked, op="x")
    one, verdict = late(recording)
    late_text = f"{len(slow)} late launch{'es take' if len(slow) > 1 else ' takes'}"
    assert not one.per.endswith("once")
    assert one.advice == causes.LATE_AGAIN.format(late=late_text)
    assert one.advice in verdict
    gaps = ta.gpu_idle(recording).few_late
    assert gaps.height == len(slow)
    assert not gaps["first_run"].any()


def test_a_late_first_launch_in_a_marked_step_loads_code() -> None:
    one, verdict = late(late_launches({0: [15]}, 1, marked=True, kernel="reduce"))
    assert one.advice == causes.LATE_FIRST.format(kernel="reduce_0_15")
    assert one.advice in verdict


@pytest.mark.parametrize(
    ("slow", "marked", "op"),
    [
        ({1: [0], 2: [0], 3: [0]}, True, "x"),
        ({2: list(range(20))}, True, "aten::sum"),
        ({2: list(range(20))}, False, "aten::sum"),
        ({2: [10], 5: [3], 8: [8]}, True, "aten::sum"),
        ({1: [10], 3: [10], 5: [10]}, False, "aten::sum"),
    ],
)
def test_late_launches_that_are_many_or_repeat_or_have_one_cause_are_not_few(
    slow: dict[int, list[int]], marked: bool, op: str
) -> None:
    """One operator that is slow before each of three is their cause."""
    n_steps = 10 if len(slow) == 3 and op != "x" else max(3, *slow) + 1
    recording = late_launches(slow, n_steps, marked=marked, op=op)
    one, verdict = late(recording)
    assert not one.per.endswith("once")
    assert causes.LATE_AGAIN[10:] not in one.advice + verdict
    if "aten::sum" in one.title:
        assert one.advice in verdict
