"""Result of ``diagnose``: findings, time budget, and the status of all checks."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import polars as pl

from traceanalyzer import __version__
from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.activities import idle_name
from traceanalyzer.analyzers.printed.result import Printed
from traceanalyzer.analyzers.timeline.states import NAMES, OF_CAUSE
from traceanalyzer.drawings import Budget, BudgetPart, Lanes
from traceanalyzer.result import SCHEMA_VERSION, SEVERITIES, Finding, Result, Severity, Table, View
from traceanalyzer.trace import NOT_BY_XLA
from traceanalyzer.units import format_count
from traceanalyzer.vocabulary import DAMAGED_TABLES

FAILED, PASSED, SKIPPED = "failed", "passed", "skipped"

#: With this many times as many skipped as passed checks, "no problems" means little.
_FEW = 4

#: Why a check is skipped if the files are not from one job.
DIFFERENT_JOBS = "the files are from different jobs"

#: Types of the columns that are not text.
_TYPES: dict[str, pl.DataType | type[pl.DataType]] = {
    "severity": pl.Enum(SEVERITIES),
    "evidence": pl.List(pl.String),
    "effects": pl.List(pl.String),
    "rank": pl.Int32,
    "device": pl.Int32,
    "cost_ns": pl.Int64,
    "cost_bytes": pl.Int64,
    "cost_frac": pl.Float64,
    "gain_ns": pl.Int64,
    "gain_frac": pl.Float64,
}
_FINDINGS = {one.name: _TYPES.get(one.name, pl.String) for one in fields(Finding) if one.repr}

#: Parts of the budget, and the name of wait time.
BUSY, OF_BUSY, EXPOSED_COPIES, IDLE = "busy", "of busy", "exposed copies", "idle"
EXPOSED_COMMUNICATION = "exposed communication"
WAIT, OTHER = "wait time for other ranks", "other causes"

#: State of a timeline of each cause of idle time, by the name of the row of the budget.
_IDLE_STATES = {name: OF_CAUSE.get(cause, "idle") for cause, name in causes.NAMES.items()}
_IDLE_STATES |= {causes.IN_COLLECTIVES: OF_CAUSE[causes.PEER], WAIT: "waiting", OTHER: "idle"}
#: Causes of idle time with a smaller share are one part of the bar: idle: other.
_LEAST_NAMED = 0.01

_BUDGET = headings("part, name, each_ns: mean, time_frac: of time")


def _state(part: str, name: str) -> str:
    """Return the state of a timeline for a row of the budget that is not idle time."""
    if part == BUSY:
        return "compute"
    if part == EXPOSED_COPIES:
        return "copies"
    return "waiting" if name == WAIT else "transfer"


#: Start of the text after the reason of a skipped check: how to record it, further hints.
_AFTER_REASON = re.compile(r"; |\. | \(the file is|, so |, and no ")

_GPU_WORK = "GPU work"
_COPIES = "copies or memsets"
_COMMUNICATION = "communication of several ranks"

#: What skipped checks need, by their reason: data, how to record it.
_NEEDS = tuple(
    (re.compile(pattern), data, how)
    for pattern, data, how in (
        ("communication", _COMMUNICATION, ""),
        ("shapes", "input shapes", "torch.profiler record_shapes=True"),
        ("history", "memory history", "torch.cuda.memory._record_memory_history()"),
        ("of CPU memory", "allocations of GPU memory", ""),
        (_COPIES, _COPIES, ""),
        ("repeated allocations", "steps of the memory history", "memory --growth --step-every"),
        ("no allocations", "allocations", "torch.profiler profile_memory=True"),
        ("gpu-metrics", "GPU metrics", "nsys profile --gpu-metrics-devices=all"),
        ("rocprof-sys", "GPU metrics", "runTracer.sh of rocmProfileData, or rocprof-sys"),
        (f"counters.*{DAMAGED_TABLES}", "GPU metrics", ""),
        ("counters", "host metrics", "MosaicML Composer's Profiler(sys_prof_cpu=True)"),
        ("--sample=", "samples", "nsys profile --sample=process-tree"),
        ("sample", "samples", "py-spy record -f raw -o FILE"),
        ("text printed", "texts of logs", "pass the log of the job, too"),
        ("steps", "steps", "profiler.step() or --step-name"),
        ("out-of-memory error", "out-of-memory errors", ""),
        ("matrix product", "matrix products and convolutions", ""),
        (DAMAGED_TABLES, _GPU_WORK, ""),
        ("nsys profile", _GPU_WORK, "nsys profile --trace=cuda,nvtx,osrt"),
        ("rocprofv3", _GPU_WORK, "rocprofv3 --runtime-trace"),
        (
            "torch.profiler",
            _GPU_WORK,
            "torch.profiler activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        ),
    )
)

#: What the reason of a skipped check says if a part of the file cannot be read.
_CUT_OFF = re.compile(r"\(the file is truncated|in the readable part")

#: Why checks are skipped: titles of the lists in the note on skipped checks.
_NOT_RECORDED, _NOT_READABLE, _OTHER = (
    "Not recorded",
    "Not in the readable part of the file",
    "Other reasons",
)


def _number_of(n: int, severity: Severity) -> str:
    return format_count(n, severity) if severity == "warning" else f"{n:,} {severity}"


def _need(why: str) -> tuple[str, str, str]:
    """Return the kind of reason, the data that a skipped check needs, and how to record it."""
    if "peaks" in why:
        peak = re.search(r"--peak \S+", why) or ["--peak"]
        return _OTHER, "peaks of the GPU unknown", f"traceanalyzer efficiency {peak[0]}"
    needs = ((data, how) for pattern, data, how in _NEEDS if pattern.search(why))
    data, how = next(needs, ("", ""))
    if not data:
        return _OTHER, _AFTER_REASON.split(why, maxsplit=1)[0], ""
    if not _CUT_OFF.search(why):
        return _NOT_RECORDED, data, "" if NOT_BY_XLA in why else how
    # GPU work is last in a file: recording it again would not add it
    return _NOT_READABLE, data, "" if data == _GPU_WORK or DAMAGED_TABLES in why else how


def _skipped(whys: Iterable[str]) -> Iterator[str]:
    """Yield one note on all skipped checks: what they need, and how to record it."""
    counts = Counter(map(_need, whys))
    if not counts:
        return
    work, copies = ([one for one in counts if one[1] == data] for data in (_GPU_WORK, _COPIES))
    for one in copies if work else ():
        counts[work[0]] += counts.pop(one)
    lists: dict[str, list[str]] = {_NOT_RECORDED: [], _NOT_READABLE: [], _OTHER: []}
    for (kind, data, how), n in counts.most_common():
        lists[kind].append(f"{data} ({n:,}{f': {how}' if how else ''})")
    each = [f"{kind}: {', '.join(texts)}." for kind, texts in lists.items() if texts]
    text = " ".join(each)
    if len(each) == 1:
        text = text.replace(f"{_OTHER}: ", "Reason: ", 1)
    count = format_count(counts.total(), "check")
    yield f"{count} skipped. {text} traceanalyzer diagnose --top all lists them."


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(Result):
    """Result of :func:`traceanalyzer.diagnose`.

    Attributes:
        findings: root causes with their effects, sorted by severity, then by cost.
        budget: where the time of all devices goes, see
            :func:`~traceanalyzer.findings.judge.budget`.
        rules: one row per check: rule, status (``failed``, ``passed`` or ``skipped``), why (reason
            if it was skipped), looks_for, measure, info, warning and critical (thresholds; null if
            the rule has none), analysis.
        inputs: paths of the files that were read.
        per: unit of the means in ``budget``: ``step and GPU``, ``GPU`` ...
        of: what the shares in ``budget`` are shares of: step time or the recorded time.
        warning: a limitation of all findings, such as a truncated file; empty if there is none.
        about: ranks, GPUs and steps that were recorded, in one line.
        timeline: a timeline of the devices with most idle time and of the median one, or None.
        instead: the verdict on printed text if no input has a timeline to check.
        little: that the program ran almost no GPU work, if so.
        printed: printed text among the inputs, or None.
        without: causes off the critical path: removing one gains nothing.
    """

    findings: tuple[Finding, ...]
    budget: pl.DataFrame
    rules: pl.DataFrame
    inputs: tuple[str, ...]
    per: str = ""
    of: str = ""
    warning: str = ""
    about: str = ""
    timeline: Lanes | None = None
    instead: str = ""
    little: str = ""
    printed: Printed | None = None
    without: tuple[Finding, ...] = ()

    def view(self) -> View:
        """Return findings, budget, and the status of all checks."""
        counts = {f"{name}_count": self._count(name) for name in SEVERITIES}
        return View(
            title="What is wrong, and what does it cost?",
            verdict=self._verdict(),
            notes=self._notes(),
            tables=self._tables(),
            scalars={"files": len(self.inputs), **counts},
            findings=self.findings,
            recorded=self.about,
            budget_bar=self._bar(),
            timelines=lambda: (self.timeline,) if self.timeline else (),
        )

    @property
    def worst(self) -> Severity | None:
        """The highest severity of all findings, or None."""
        return self.findings[0].severity if self.findings else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; ``docs/diagnosis.schema.json`` describes the keys."""
        versions = {"schema_version": SCHEMA_VERSION, "tool_version": __version__}
        lists = {"inputs": list(self.inputs), "findings": [one.to_dict() for one in self.findings]}
        return versions | super().to_dict() | lists

    def _verdict(self) -> str:
        """Return the number of findings by severity, and of passed and skipped checks."""
        counts = [(self._count(name), name) for name in reversed(SEVERITIES)]
        skipped = self.rules.filter(pl.col("status") == SKIPPED)
        passed = self.rules.filter(pl.col("status") == PASSED).height
        if self.findings:
            each = ", ".join(_number_of(n, name) for n, name in counts if n)
            text = f"{format_count(len(self.findings), 'problem')} found ({each})."
        else:
            text = "No problems found" if passed else "No check was possible"
            few = passed and passed < skipped.height / _FEW
            text += ", but most checks were skipped." if few else "."
        if self.little:
            text = f"{self.little} {text if self.findings else ''}".strip()
            return " ".join(filter(None, [self.warning, text]))
        if self.instead:
            text = f"{self.instead} {text if self.findings else ''}".strip()
            needed = "Most checks need a timeline, which printed text does not have."
            return " ".join(filter(None, [self.warning, text, needed]))
        checks = [f"{format_count(passed, 'check')} passed"] if passed else []
        if skipped.height:
            reason = "" if DIFFERENT_JOBS in skipped["why"] else " (data not recorded)"
            what = f"{skipped.height:,}" if checks else format_count(skipped.height, "check")
            checks.append(f"{what} skipped{reason}")
        texts = [self.warning, text, f"{', '.join(checks)}." if checks else ""]
        return " ".join(filter(None, texts))

    def _bar(self) -> Budget | None:
        """Return the budget as a bar: busy, transfer, waiting, copies, idle time by cause."""
        rows = self.budget.drop_nulls().filter(pl.col("part") != OF_BUSY, pl.col("each_ns") > 0)
        labels = {**NAMES, "compute": BUSY}
        is_idle, is_large = pl.col("part") == IDLE, pl.col("time_frac") >= _LEAST_NAMED
        parts = []
        for part, name, ns, frac in rows.filter(~is_idle).iter_rows():
            state = _state(part, name)
            parts.append(
                BudgetPart(state, name if state == "transfer" else labels[state], ns, frac)
            )
        large = rows.filter(is_idle & is_large).sort("each_ns", descending=True)
        waiting = {WAIT: NAMES["waiting"]}
        parts += [
            BudgetPart(_IDLE_STATES.get(name, "host"), idle_name(waiting.get(name, name)), ns, frac)
            for _, name, ns, frac in large.iter_rows()
        ]
        order = list(NAMES)
        parts.sort(key=lambda part: order.index(part.state))
        small = rows.filter(is_idle & ~is_large)
        if small.height:
            ns, frac = small["each_ns"].sum(), small["time_frac"].sum()
            parts.append(BudgetPart("idle", labels["idle"], int(ns), float(frac)))
        title = f"Time per {self.per}" if self.per else "Time"
        return Budget(title, tuple(parts)) if parts else None

    def _notes(self) -> tuple[str, ...]:
        """Return the meaning of costs, and what the skipped checks need."""
        costs = "Where no gain is given, it is at most the cost."
        bounds = [one for one in self.findings if one.gain_basis == "bound"]
        skipped = self.rules.filter(pl.col("status") == SKIPPED)
        return (
            *((costs,) if bounds else ()),
            *_skipped(skipped["why"]),
            *(self.printed.view().notes if self.printed and self.instead else ()),
        )

    def _tables(self) -> tuple[Table, ...]:
        columns = headings(
            "rule, status, why: why skipped, looks_for: looks for, measure: measured, "
            "info: info from, warning: warning from, critical: critical from"
        )
        severe = any(one.severity != "info" for one in self.findings)
        return (
            Table("findings", "Findings", self._frame(), columns={}),
            *(
                (Table("budget", self._budget_title(), self.budget, _BUDGET, detail=severe),)
                if self.budget.height
                else (Table("budget", "Where the time goes", self.budget, {}),)
            ),
            Table(
                "rules",
                "Checks",
                self.rules,
                columns,
                detail=True,
                sentences=("looks_for", "measure", "why"),
            ),
            *self._printed_tables(),
        )

    def _printed_tables(self) -> Iterator[Table]:
        """Yield the tables of printed text, in detail if there is a timeline to check."""
        for table in self.printed.tables if self.printed else ():
            yield table if self.instead else replace(table, detail=True)

    def _frame(self) -> pl.DataFrame:
        """Return one row per finding."""
        rows = [
            one.to_dict() | {"effects": [effect.title for effect in one.effects]}
            for one in self.findings
        ]
        return pl.DataFrame(rows, schema=_FINDINGS, orient="row")

    def _budget_title(self) -> str:
        return f"Where the time goes{f' (mean per {self.per})' if self.per else ''}"

    def _count(self, severity: Severity) -> int:
        return sum(one.severity == severity for one in self.findings)
