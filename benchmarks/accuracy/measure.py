"""Diagnose cases, and compare the findings with the expected answers."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.fault import Case, Expected

#: From this share of the run time on, a fault is critical: an answer below warning is wrong.
CRITICAL = 0.2


@dataclass(frozen=True)
class Outcome:
    """Result of ``diagnose`` for a case.

    Attributes:
        case, kind, seed, setting: the case, see :class:`~benchmarks.accuracy.fault.Case`.
        cost_frac: share of the run time that the fault takes.
        place: position of the first right finding, from 1; 0 if there is none.
        top1, top3: whether the case counts.
        why: reason why it does not count.
        findings: severity, rule and title of the findings.
    """

    case: str
    kind: str
    seed: int
    setting: str
    cost_frac: float
    place: int
    top1: bool
    top3: bool
    why: str
    findings: tuple[tuple[str, str, str], ...]


def findings_of(diagnosis: Any) -> list[Any]:
    """Return the findings in order."""
    return list(diagnosis.findings)


def text_of(finding: Any) -> str:
    """Return id, title and evidence; advice is not evidence of a cause."""
    return " ".join([_id(finding), finding.title, *(str(text) for text in finding.evidence)])


def _id(finding: Any) -> str:
    return str(getattr(finding, "id", None) or finding.rule)


def names_cause(expected: Expected, finding: Any) -> bool:
    """Whether a finding names the cause."""
    return re.search(expected.cause, text_of(finding)) is not None


def names_place(expected: Expected, finding: Any) -> bool:
    """Whether a finding names the rank, a step, and the operator or line, with the advice."""
    text = text_of(finding)
    checks = []
    if expected.rank is not None:
        named = re.search(rf"(?i)\branks?\b[ #]*{expected.rank}\b", text) is not None
        checks.append(named or str(getattr(finding, "rank", "")) == str(expected.rank))
    if expected.steps:
        numbers = "|".join(str(step) for step in expected.steps)
        named = re.search(rf"(?i)(ProfilerStep#|\bsteps?[ #]*)({numbers})\b", text) is not None
        field = re.findall(r"\d+", str(getattr(finding, "step", None) or ""))
        checks.append(named or any(str(step) in field for step in expected.steps))
    if expected.place:
        fields = str(getattr(finding, "device", None) or "")
        checks.append(re.search(expected.place, f"{text} {fields}") is not None)
    if expected.advice:
        checks.append(re.search(expected.advice, finding.advice) is not None)
    return all(checks)


def position(expected: Expected, findings: list[Any]) -> int:
    """Return the position of the first finding with cause and place, from 1; 0 for none."""
    for number, finding in enumerate(findings, 1):
        if names_cause(expected, finding) and names_place(expected, finding):
            return number
    return 0


def diagnose(case: Case, keep: str | None = None) -> list[Any]:
    """Return the findings of a case, without those of the same files before the fault."""
    name = f"{case.name}-{case.seed}"
    findings = _findings_in(case.write, keep and f"{keep}/{name}")
    if case.before is None:
        return findings
    known = {_subject(one): one for one in reversed(_findings_in(case.before, None))}
    return [
        one for one in findings if _subject(one) not in known or _grown(one, known[_subject(one)])
    ]


def _findings_in(write: Callable[[Path], None], keep: str | None) -> list[Any]:
    import traceanalyzer as ta

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder)
        return findings_of(ta.diagnose([folder]))


def _subject(finding: Any) -> tuple[str, str]:
    """Return rule and rank of a finding."""
    rank = re.search(r"(?i)\brank (\d+)", finding.title)
    return _id(finding), rank[1] if rank else ""


def _grown(finding: Any, before: Any) -> bool:
    """Whether a finding costs clearly more than before the fault."""
    share, usual = (getattr(one, "cost_frac", None) or 0.0 for one in (finding, before))
    return bool(share > 1.2 * usual + 0.02)


def judge(case: Case, findings: list[Any]) -> Outcome:
    """Compare findings with the expected answers."""
    titles = tuple((str(f.severity), _id(f), f.title) for f in findings)
    critical = any(severity == "critical" for severity, *_ in titles)
    if case.kind == "healthy":
        place, top1, top3 = 0, not critical, not critical
        why = "false critical" if critical else ""
    else:
        places = [position(expected, findings) for expected in case.expected]
        place = min((p for p in places if p), default=0)
        top1, top3, why = _counts(case, findings, places)
    return Outcome(
        case.name, case.kind, case.seed, case.setting, case.cost_frac, place, top1, top3, why,
        titles,
    )  # fmt: skip


def _counts(case: Case, findings: list[Any], places: list[int]) -> tuple[bool, bool, str]:
    """Return whether a case counts as first and among the first three, or the reason."""
    first = places[0]
    if not findings:
        return False, False, "no finding"
    low = first and case.cost_frac >= CRITICAL and findings[first - 1].severity == "info"
    if low:
        return False, False, "critical fault below warning"
    among = all(0 < p <= 3 for p in places)
    top1 = first == 1 and among
    expected = case.expected[0]
    if top1:
        return True, True, ""
    if first == 1:
        second = places[1]
        return (
            False,
            False,
            f"second fault is number {second}" if second else "second fault missing",
        )
    if first:
        return False, among, f"right finding is number {first}"
    if names_cause(expected, findings[0]):
        return False, False, "cause without place"
    cause = [n for n, f in enumerate(findings, 1) if names_cause(expected, f)]
    return False, False, f"cause without place is number {cause[0]}" if cause else "cause not named"


def run(case: Case, keep: str | None = None) -> Outcome:
    """Diagnose a case, and judge the findings."""
    return judge(case, diagnose(case, keep))
