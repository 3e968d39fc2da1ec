"""Tables of outcomes: in the terminal, and in ``docs/accuracy.md``."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from benchmarks.accuracy.measure import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
START, END = "<!-- measured -->", "<!-- end -->"
_KINDS = {
    "single": "one fault, simulated",
    "blind": "one fault, written without knowledge of the rules",
    "found": "one fault that was once named wrongly",
    "pair": "two faults, simulated",
    "real": "one fault in a real recording",
    "healthy": "healthy job (right: no critical finding)",
}


def accuracy(outcomes: list[Outcome]) -> list[str]:
    """Return a row for each kind of case."""
    lines = ["", "| cases | count | top 1 | top 3 |", "|---|--:|--:|--:|"]
    for kind, text in _KINDS.items():
        rows = [one for one in outcomes if one.kind == kind]
        if rows:
            first, third = (_frac(rows, name) for name in ("top1", "top3"))
            lines.append(f"| {text} | {len(rows)} | {first} | {third} |")
    faults = [one for one in outcomes if one.kind != "healthy"]
    low = sum(one.why == "critical fault below warning" for one in faults)
    warned = [one for one in outcomes if one.kind == "healthy" and _warns(one)]
    if faults:
        first, third = (_frac(faults, name) for name in ("top1", "top3"))
        lines.append(f"| all faults | {len(faults)} | {first} | {third} |")
    return [
        *lines,
        "",
        f"Critical faults that are reported below warning: {low}.",
        "",
        f"Healthy jobs with a warning, except that files are truncated: {len(warned)}.",
        "",
    ]


def _warns(one: Outcome) -> bool:
    return any(
        severity != "info" and rule != "dropped-events" for severity, rule, _ in one.findings
    )


def _frac(rows: list[Outcome], name: str) -> str:
    right = sum(getattr(one, name) for one in rows)
    return f"{right} ({right / len(rows):.1%})"


def wrong(outcomes: list[Outcome]) -> list[str]:
    """Return a row for each case that does not count."""
    rows = [one for one in outcomes if not one.top1]
    lines = [
        "| case | job | cost | first finding | why it does not count |",
        "|---|---|--:|---|---|",
    ]
    lines += [
        f"| {one.case} | {one.setting}, seed {one.seed} | {one.cost_frac:.0%} | "
        f"{one.findings[0][1] if one.findings else 'nothing'} | {one.why} |"
        for one in rows
    ]
    return [*lines, ""] if rows else []


def confusion(outcomes: list[Outcome]) -> list[str]:
    """Return the first findings for each fault."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    right: Counter[str] = Counter()
    for one in outcomes:
        counts[one.case][one.findings[0][1] if one.findings else "nothing"] += 1
        right[one.case] += one.top1
    lines = ["| case | right | first findings |", "|---|--:|---|"]
    for case, rules in counts.items():
        each = ", ".join(f"{rule} {n}" if n > 1 else rule for rule, n in rules.most_common())
        lines.append(f"| {case} | {right[case]} of {rules.total()} | {each} |")
    return [*lines, ""]


def write_page(outcomes: list[Outcome]) -> None:
    """Replace the tables in ``docs/accuracy.md``."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    seeds = sorted({one.seed for one in outcomes if one.kind != "real"})
    named = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    tables = [
        f"Measured with {named}.",
        *accuracy(outcomes),
        "## Cases that do not count",
        "",
        *(wrong(outcomes) or ["None.", ""]),
        "## First finding for each fault",
        "",
        *confusion(outcomes),
    ]
    PAGE.write_text(f"{before}{START}\n\n" + "\n".join(tables) + f"\n{END}{after}", "utf-8")
