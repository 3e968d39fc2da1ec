"""A sample of ``make accuracy``: generation of cases and evaluation of diagnoses."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

from benchmarks.accuracy import real, report
from benchmarks.accuracy.cases import HEALTHY, PAIRS, Plan, of_variant, plans
from benchmarks.accuracy.fault import FAULTS, Case, Expected
from benchmarks.accuracy.measure import judge, names_place, run
from benchmarks.accuracy.variants import VARIANTS, Variant

#: Quick cases that the first finding names.
SAMPLE = (
    "loader-slow",
    "unfused-attention",
    "single-precision",
    "launch-bound",
    "module-loading-in-first-step",
    "profiler-overhead",
    "decode-without-graphs",
    "draft-without-graphs",
    "waits-for-transfers-of-kv-cache",
    "cache-emptied-in-each-step",
)


@dataclass
class FakeFinding:
    """Return a finding like ``diagnose``."""

    rule: str
    title: str
    severity: str = "warning"
    evidence: tuple[str, ...] = ()
    rank: int | None = None
    step: str | None = None
    advice: str = ""
    extra: dict[str, object] = field(default_factory=dict)


def case(expected: Expected, kind: str = "single", cost: float = 0.1) -> Case:
    return Case("fault", kind, 1, "", (expected,), cost, lambda _: None)


def test_number_of_cases() -> None:
    assert sum(fault.kind == "single" for fault in FAULTS.values()) >= 40
    assert sum(fault.kind == "blind" for fault in FAULTS.values()) == 10
    assert sum(fault.kind == "found" for fault in FAULTS.values()) == 10
    assert len(PAIRS) == len(HEALTHY) == 10
    assert len(real.FAULTS) >= 15
    assert sum(plan.world == 64 for plan in plans(1)) <= 4
    assert len({plan.name for plan in plans(1)}) == len(plans(1))


@pytest.mark.sample(3)
@pytest.mark.parametrize("fault", SAMPLE)
def test_first_finding_is_the_fault(fault: str) -> None:
    family = next(f for f in ("single", "inference") if f in FAULTS[fault].families)
    outcome = run(Plan(fault, (FAULTS[fault],), 1, family, 1).make())
    assert outcome.top1, outcome


def test_healthy_job_has_no_critical_finding() -> None:
    outcome = run(Plan("healthy", (), 1, "data-parallel", 2).make())
    assert outcome.top1, outcome


@pytest.mark.matrix
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_healthy_jobs_of_variants_have_no_critical_finding(variant: Variant) -> None:
    plan = min(of_variant(variant, 1), key=lambda plan: (len(plan.faults), plan.world))
    outcome = run(plan.make())
    assert outcome.top1, outcome


def test_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    texts = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        Plan("slow-gpu", (FAULTS["slow-gpu"],), 3, "data-parallel", 2).make().write(folder)
        texts.append([path.read_bytes() for path in sorted(folder.iterdir())])
    assert texts[0] == texts[1]


def test_collectives_end_together(tmp_path: Path) -> None:
    Plan("healthy", (), 1, "data-parallel", 4).make().write(tmp_path)
    ends: dict[tuple[str, int], list[float]] = {}
    for path in sorted(tmp_path.iterdir()):
        counts: dict[str, int] = {}
        events = orjson.loads(path.read_bytes())["traceEvents"]
        for event in (e for e in events if e.get("cat") == "kernel"):
            group = event["args"].get("Process Group Name")
            if group is not None:
                counts[group] = counts.get(group, 0) + 1
                ends.setdefault((group, counts[group]), []).append(event["ts"] + event["dur"])
    assert ends
    assert all(max(times) - min(times) < 1 for times in ends.values())


@pytest.mark.parametrize(
    ("finding", "right"),
    [
        (FakeFinding("slow-gpu", "Rank 5 has a slow GPU."), True),
        (FakeFinding("slow-gpu", "Rank 55 has a slow GPU."), False),
        (FakeFinding("slow-gpu", "A slow GPU.", rank=5), True),
    ],
)
def test_rank_must_be_named(finding: FakeFinding, right: bool) -> None:
    assert names_place(Expected("slow", rank=5), finding) == right


def test_step_must_be_named() -> None:
    expected = Expected("slow", steps=(12, 13))
    assert names_place(expected, FakeFinding("x", "In ProfilerStep#13 it is slow."))
    assert names_place(expected, FakeFinding("x", "Slow.", step="ProfilerStep#12"))
    assert not names_place(expected, FakeFinding("x", "In ProfilerStep#130 it is slow."))


def test_advice_must_fit() -> None:
    expected = Expected("loader", advice="persistent_workers")
    assert names_place(expected, FakeFinding("x", "Slow.", advice="Try persistent_workers=True."))
    assert not names_place(expected, FakeFinding("x", "persistent_workers", advice="num_workers"))


def test_critical_fault_below_warning_is_wrong() -> None:
    low = FakeFinding("loader", "The loader is slow.", severity="info")
    assert judge(case(Expected("loader"), cost=0.1), [low]).top1
    assert not judge(case(Expected("loader"), cost=0.3), [low]).top3


def test_second_fault_of_a_pair_must_be_among_three() -> None:
    pair = Case("a + b", "pair", 1, "", (Expected("loader"), Expected("link")), 0.4, lambda _: None)
    loader, link, other = (FakeFinding(name, name) for name in ("loader", "link", "other"))
    assert judge(pair, [loader, other, link]).top1
    assert not judge(pair, [loader, other, other, link]).top1
    assert not judge(pair, [link, loader]).top1


def test_report_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "accuracy.md"
    page.write_text(f"before\n{report.START}\nold\n{report.END}\nafter\n")
    monkeypatch.setattr(report, "PAGE", page)
    report.write_page([judge(case(Expected("loader")), [FakeFinding("loader", "Slow.")])])
    text = page.read_text()
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "1 (100.0%)" in text
    assert "old" not in text


def test_real_recordings_have_files() -> None:
    if not real.DATA.is_dir():
        pytest.skip(f"{real.DATA} is missing")
    assert all((real.DATA / place).exists() for place, _ in real.FAULTS.values())
