"""Check numbers of a run against budgets: limits in a TOML file.

::

    budgets = [
        "step_ms <= 410",
        "exposed_frac <= 15%",
        { limit = "mfu >= 0.4", optional = true },
    ]

:func:`check_fix` compares the gain that a diagnosis predicts with the measured one.
"""

from __future__ import annotations

import json
import operator
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Unpack

import polars as pl

from traceanalyzer import units
from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.analyzers.diff import MIN_CHANGE, Options
from traceanalyzer.analyzers.diff.compute import DIFF, combine
from traceanalyzer.analyzers.diff.result import Diff, Expected
from traceanalyzer.analyzers.diff.runs import ERRORS, Floats
from traceanalyzer.analyzers.efficiency.result import Efficiency
from traceanalyzer.errors import MalformedInput, MissingData, OptionError, UnreadableFile
from traceanalyzer.files import packaged
from traceanalyzer.findings import diagnose, diagnosed
from traceanalyzer.findings.gains import OTHER
from traceanalyzer.findings.judge import require_rule
from traceanalyzer.result import Result, Table, View
from traceanalyzer.run.find import require_readable
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, PathLike

Unit = Literal["ms", "frac", "bytes", "count"]
State = Literal["met", "violated", "not recorded", "skipped"]

_LIMIT = re.compile(r"\s*([a-z][a-z0-9_]*)\s*(<=|>=|<|>)\s*(\S(?:.*\S)?)\s*")
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:e[+-]?\d{1,2})?|\.\d+")
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_MOST_BYTES = 1 << 20
#: A key with many parts (a.b.c) takes memory by the square of their number.
_MOST_DOTS = 100
#: First bytes of compressed files and databases.
_BINARY = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK", b"BZh", b"\xfd7zXZ", b"SQLite format", b"\x80")
_FIRST = "give the file of budgets first: traceanalyzer gate budgets.toml TRACE"
_FORM = 'write for example budgets = ["step_ms <= 410"]'


@dataclass(frozen=True)
class Metric:
    """A number that can have a budget.

    Attributes:
        analysis: function that measures it.
        key: the number in ``scalars`` of the result, which is also its key in JSON.
        unit: unit of the limit.
        meaning: what it is.
        divisor: what the number is divided by: another key, or a constant.
    """

    analysis: str
    key: str
    unit: Unit
    meaning: str
    divisor: str | int = 1

    def of(self, scalars: Mapping[str, Any]) -> float | None:
        """Return its value in the unit of the limit; None if it was not recorded."""
        value = scalars.get(self.key)
        by = scalars.get(self.divisor) if isinstance(self.divisor, str) else self.divisor
        return None if value is None or not by else float(value) / by


#: All metrics by name; the table in ``docs/gate.md`` is compared with them.
METRICS: Final[dict[str, Metric]] = {
    name: Metric(**about) for name, about in packaged("tools/budgets.toml").items()
}


@dataclass(frozen=True)
class Budget:
    """One limit.

    Attributes:
        metric: key of :data:`METRICS`.
        comparison: ``<=``, ``>=``, ``<`` or ``>``.
        limit: the limit in the unit of the metric.
        text: the limit as it was written.
        optional: whether a metric that was not recorded is skipped; otherwise it is a violation.
        reason: why there is this limit.
    """

    metric: str
    comparison: str
    limit: float
    text: str
    optional: bool = False
    reason: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Budgets(Result):
    """Result of :func:`check_budgets`.

    Attributes:
        budgets: one row per budget: budget (as it was written), metric, comparison, limit, value
            (null if not recorded), measured (the value as text, or ``not recorded``), state (met,
            violated, not recorded, skipped), is_violation, reason, missing (why it was not
            recorded, and how to record it; null if it was).
        path: the file of budgets.
    """

    budgets: pl.DataFrame
    path: str

    @property
    def violations(self) -> tuple[str, ...]:
        """One line for each violated budget."""
        rows = self.budgets.filter("is_violation").select("budget", "measured", "missing").rows()
        return tuple(
            f"{budget}: {f'not recorded: {why}' if why else f'measured {measured}'}"
            for budget, measured, why in rows
        )

    def view(self) -> View:
        """Build the view: one table of budgets."""
        count, violated = self.budgets.height, len(self.violations)
        skipped = int((self.budgets["state"] == "skipped").sum())
        unknown = int((self.budgets["state"] == "not recorded").sum())
        met = units.format_count(count - violated - skipped, "budget")
        text = f"{met} met, {violated - unknown} violated"
        if unknown:
            text += f", {unknown} not recorded (counts as violated)"
        if skipped:
            text += f", {skipped} skipped (not recorded)"
        columns = headings("budget, measured, state: verdict, reason")
        return View(
            title="Are the budgets met?",
            verdict=f"{text}.",
            notes=tuple(
                f"{metric}: {why}"
                for metric, why in self.budgets.drop_nulls("missing")
                .select("metric", "missing")
                .unique(maintain_order=True)
                .rows()
            ),
            tables=(
                Table("budgets", "Budgets", self.budgets.drop("missing"), columns, whole=True),
            ),
            scalars={"budget_count": count, "violated_count": violated, "skipped_count": skipped},
        )


# --- read ------------------------------------------------------------------------------------


def read_budgets(path: PathLike) -> tuple[Budget, ...]:
    """Read a file of budgets.

    Args:
        path: a TOML file with the list ``budgets``: texts like ``step_ms <= 410``, or tables with
            ``limit`` (such a text), ``optional`` and ``reason``.

    Raises:
        UnreadableFile: the file cannot be read.
        MalformedInput: it is not TOML, or has an unknown metric or an invalid limit.
    """
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why, hint = str(getattr(error, "strerror", error)).lower(), _FIRST
        raise UnreadableFile(name, why, hint=hint if Path(name).is_dir() else None) from None
    if len(data) > _MOST_BYTES and not data.startswith(_BINARY) and not data.startswith(b"{"):
        raise MalformedInput(name, "too large for a file of budgets", hint=_FORM)
    if any(line.count(b".") > _MOST_DOTS for line in data.splitlines()):
        raise MalformedInput(name, f"a line with more than {_MOST_DOTS} dots", hint=_FORM)
    if data.startswith(_BINARY) or data.lstrip().startswith(b"{"):
        raise MalformedInput(name, "not a file of budgets but, it seems, a trace", hint=_FIRST)
    try:
        content = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise MalformedInput(name, f"not TOML: {error}") from None
    items = content.pop("budgets", None)
    if content:
        raise MalformedInput(name, f"unknown key {next(iter(content))!r}", hint=_FORM)
    if not isinstance(items, list) or not items:
        raise MalformedInput(name, "no budgets", hint=_FORM)
    budgets = []
    for number, item in enumerate(items, start=1):
        try:
            budgets.append(_budget(item))
        except OptionError as error:
            raise MalformedInput(name, str(error), where=f"budget {number}") from None
    return tuple(budgets)


def _budget(item: Any) -> Budget:
    """Return a checked budget.

    Raises:
        OptionError: it is invalid.
    """
    known: Any = {"limit": item} if isinstance(item, str) else item
    types = {"limit": str, "optional": bool, "reason": str}
    valid = isinstance(known, dict) and all(
        isinstance(value, types.get(key, ())) for key, value in known.items()
    )
    if not valid or "limit" not in known:
        raise OptionError(
            f"{str(item)[:80]!r} is neither a text nor a table of limit, optional and reason"
        )
    text = known["limit"]
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise OptionError(f"{text[:80]!r} is not a limit; write it like step_ms <= 410")
    metric, comparison, value = match.groups()
    if metric not in METRICS:
        raise OptionError(f"unknown metric {metric[:80]!r}; choose one of {', '.join(METRICS)}")
    return Budget(
        metric,
        comparison,
        _value(value, METRICS[metric].unit),
        f"{metric} {comparison} {value}",
        known.get("optional", False),
        known.get("reason", ""),
    )


def _value(text: str, unit: Unit) -> float:
    """Return a limit in its unit; with a unit of its own it is converted."""
    if _NUMBER.fullmatch(text):
        return float(text)
    if unit == "ms" and not text.startswith(("-", "+")):
        return units.parse_ns(text) / units.NS_PER_MS
    if unit == "bytes":
        return float(units.parse_bytes(text))
    number = text.removesuffix("%").rstrip()
    if unit == "frac" and number != text and _NUMBER.fullmatch(number):
        return float(number) / 100
    raise OptionError(f"{text[:80]!r} is not a limit of this metric, which is a {_UNITS[unit]}")


_UNITS: dict[Unit, str] = {
    "ms": "time in ms (or 1.5s)",
    "frac": "share (0.15 or 15%)",
    "bytes": "size in bytes (or 70GiB)",
    "count": "number",
}


# --- check -----------------------------------------------------------------------------------


def check_budgets(inputs: Inputs, budgets: PathLike, **reading: Unpack[Reading]) -> Budgets:
    """Measure the metrics that have a budget, and compare them.

    A metric that was not recorded violates its budget, unless the budget is ``optional``.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        budgets: the TOML file, see :func:`read_budgets`.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read, or the file of budgets is invalid.
    """
    limits = read_budgets(budgets)
    answers: dict[str, Result | MissingData] = {}
    notes: dict[str, None] = {}
    analyses = list(dict.fromkeys(METRICS[one.metric].analysis for one in limits))
    if progress := reading.get("progress"):  # each analysis reads the files again
        reading["progress"] = lambda done, size: progress(
            done // len(analyses), size // len(analyses)
        )
    for analysis in analyses:
        function = diagnose if analysis == "diagnose" else registry.ENTRIES[analysis].function()
        try:
            result: Result = function(inputs, **reading)
        except MissingData as error:
            answers[analysis] = error
        else:
            answers[analysis] = result
            notes |= dict.fromkeys(result.input_notes)
        reading.pop("on_trace", None)  # the issues of a file are the same for each analysis
    rows = [_row(one, answers[METRICS[one.metric].analysis]) for one in limits]
    schema = {"limit": pl.Float64, "value": pl.Float64, "missing": pl.String}
    return Budgets(
        pl.DataFrame(rows, schema_overrides=schema), os.fspath(budgets), input_notes=tuple(notes)
    )


def _row(budget: Budget, answer: Result | MissingData) -> dict[str, Any]:
    metric = METRICS[budget.metric]
    value = None if isinstance(answer, MissingData) else metric.of(answer.scalars)
    state: State
    missing = None
    if value is None:
        state, measured = "skipped" if budget.optional else "not recorded", "not recorded"
        missing = _missing(answer)
    else:
        state = "met" if _COMPARISONS[budget.comparison](value, budget.limit) else "violated"
        measured = _measured(value, metric.unit)
    return {
        "budget": budget.text,
        "metric": budget.metric,
        "comparison": budget.comparison,
        "limit": budget.limit,
        "value": value,
        "measured": measured,
        "state": state,
        "is_violation": state in ("violated", "not recorded"),
        "reason": budget.reason,
        "missing": missing,
    }


def _missing(answer: Result | MissingData) -> str:
    """Return why a metric was not recorded."""
    if isinstance(answer, MissingData):
        return f"{answer}."
    if isinstance(answer, Efficiency) and (unknown := answer.why_unknown):
        return unknown
    return "no such data in the files."


def _measured(value: float, unit: Unit) -> str:
    if unit == "ms":
        return f"{value:,.4g} ms" if value < 1000 else f"{value:,.0f} ms"
    if unit == "frac":
        return f"{value:.4g} ({units.format_frac(value)})"
    return units.format_bytes(value) if unit == "bytes" else f"{value:,.0f}"


#: Steps are compared by their mean, which costs and gains of findings are shares of.
_BY_MEAN = replace(DIFF, combine=partial(combine, by_mean=True))

_COLUMNS = {
    "finding": pl.String, "state": pl.String, "gain_ns": pl.Int64, "gain_frac": pl.Float64,
    "before_ns": pl.Int64, "after_ns": pl.Int64, "title": pl.String,
}  # fmt: skip


def check_fix(
    before: Inputs,
    after: Inputs,
    expected: str,
    *,
    min_change: float = MIN_CHANGE,
    **reading: Unpack[Reading],
) -> Diff:
    """Was a fix worth it? Compare the predicted gain with the measured one.

    The predicted gain is that of the findings to fix, by a replay of the run or at most their cost;
    the measured one is the change of the measure of :func:`~traceanalyzer.diff`, with its noise.
    Both are shares of the mean step before, or of the run if steps are not compared. Gains of
    several findings are added, up to the whole step. Findings are compared by the name of their
    rule.

    Args:
        before: the run with the problem.
        after: the run with the fix.
        expected: the rule of the finding to fix, such as ``data-loading``; or a diagnosis of
            ``before`` saved as JSON (``diagnose -o found.json``): its findings that are gone or
            cost less than half count, or the first one if there is none.
        min_change: see :func:`~traceanalyzer.diff`.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Returns:
        The comparison, with ``expected``.

    Raises:
        InputError: no file of a run can be read, or the diagnosis cannot be read.
        OptionError: ``before`` has no finding of this rule.
    """
    is_saved = expected.endswith(".json")
    saved = _saved(Path(expected)) if is_saved else []
    if not is_saved:
        require_rule(expected)
    require_readable([before, after], **reading)
    first = _side(before, reading)
    found = saved if is_saved else first.findings
    known = [*dict.fromkeys(one["id"] for one in found)]
    if not is_saved and expected not in known:
        findings = ", ".join(known) or "none"
        raise OptionError(f"expected: no finding {expected!r} before; findings: {findings}")
    left = _side(after, reading)
    result: Diff = run(_BY_MEAN, after, Options(min_change=min_change, before=before), **reading)
    basis = _basis(found, result)
    rows = _rows(replace(first, findings=found), left, basis)
    smaller = (pl.col("state") == "gone") | (2 * pl.col("after_ns") < pl.col("before_ns"))
    fixed = rows.filter(smaller)["finding"].to_list() or known[:1]
    gains = [one for one in found if one["id"] in (fixed if is_saved else [expected])]
    shares = [share for one in gains if (share := basis.share(one)) is not None]
    predicted = min(sum(shares), 1.0) if shares else None
    rules = tuple(dict.fromkeys(one["id"] for one in gains))
    expected_gain = Expected(
        rules, rows, predicted, basis.measured_frac(result), basis.noise_frac(result), basis.of
    )
    return replace(result, expected=expected_gain)


@dataclass(frozen=True)
class _Side:
    """The diagnosis of one run.

    Attributes:
        findings: its findings.
        small: findings of all sizes, also those below the limits of their rules, effects, and
            causes off the critical path.
        skipped: rules that could not be checked.
    """

    findings: Sequence[Mapping[str, Any]]
    small: Sequence[Mapping[str, Any]]
    skipped: frozenset[str]


def _side(inputs: Inputs, reading: Reading) -> _Side:
    from traceanalyzer.findings.judge import RULES, judge

    diagnosis, examined = diagnosed(inputs, **reading)
    limitless = tuple(replace(rule, levels=dict.fromkeys(rule.levels, 0.0)) for rule in RULES)
    every = judge(examined, limitless)
    small = [one for root in every.findings for one in (root, *root.effects)]
    return _Side(
        [one.to_dict() for one in diagnosis.findings],
        [one.to_dict() for one in (*small, *every.without)],
        frozenset(diagnosis.rules.filter(status="skipped")["rule"]),
    )


@dataclass(frozen=True)
class _Basis:
    """The time that predicted and measured gains are shares of.

    Attributes:
        steps: lengths of the compared steps of both runs, those of the first step left out if the
            gains are of the steps after it; empty if steps are not compared.
        later: whether the first step is left out.
    """

    steps: Mapping[str, Floats]
    later: bool

    @property
    def of(self) -> str:
        """What gains are shares of, as a phrase."""
        excluded = " (first step excluded)" * self.later
        return f"mean step before{excluded}" if self.steps else "time before"

    def share(self, one: Mapping[str, Any]) -> float | None:
        """Return the predicted gain of a finding as a share; None if unknown."""
        if self.steps and _is_of_steps(one):
            return float(one["gain_ns"] / self.steps["before"].mean())
        share = one.get("gain_frac")
        return float(share) if isinstance(share, int | float) else None

    def measured_frac(self, result: Diff) -> float | None:
        """Return the measured gain."""
        measure = result.measure
        if measure is None or measure.unit != "ns" or measure.change_frac is None:
            return None
        if not self.later:
            return 0.0 - measure.change_frac
        return float(1 - self.steps["after"].mean() / self.steps["before"].mean())

    def noise_frac(self, result: Diff) -> float | None:
        """Return the noise of the measured gain."""
        if result.measure is None or not self.later:
            return None if result.measure is None else result.measure.noise_frac
        if min(times.size for times in self.steps.values()) < _FEWEST:
            return None
        squared = sum(times.var(ddof=1) / times.size for times in self.steps.values())
        return float(ERRORS * squared**0.5 / self.steps["before"].mean())


#: Fewer steps have no noise.
_FEWEST = 2


def _basis(found: Sequence[Mapping[str, Any]], result: Diff) -> _Basis:
    """Return what gains are shares of.

    The gain of a replay may be one of the steps after the first, or of those without the profiler.
    """
    steps = _steps(result)
    step_ns = [one["gain_ns"] / one["gain_frac"] for one in found if _is_of_steps(one)]
    if not steps or not step_ns:
        return _Basis(steps, later=False)
    every, others = (float(times.mean()) for times in (steps["before"], steps["before"][1:]))
    later = abs(others - every) >= OTHER * every and all(
        abs(ns - others) < abs(ns - every) for ns in step_ns
    )
    return _Basis({run: times[later:] for run, times in steps.items()}, later)


def _is_of_steps(one: Mapping[str, Any]) -> bool:
    """Whether the gain of a finding is a time per step."""
    known = all(isinstance(one.get(name), int | float) for name in ("gain_ns", "gain_frac"))
    return known and bool(one["gain_frac"]) and str(one.get("per", "")).startswith("step")


def _steps(result: Diff) -> dict[str, Floats]:
    """Return the lengths of the compared steps in order, by run; none with less than two steps."""
    if result.measure is None or not result.measure.in_steps:
        return {}
    kept = result.steps.filter(~pl.col("warm_up")).group_by("run", "number")
    times = kept.agg(pl.col("duration_ns").mean()).sort("number")
    steps = {name: times.filter(run=name)["duration_ns"].to_numpy() for name in ("before", "after")}
    return steps if min(one.size for one in steps.values()) > 1 else {}


def _saved(path: Path) -> list[dict[str, Any]]:
    """Return the findings of a saved diagnosis.

    Raises:
        MalformedInput: the file is not a diagnosis.
    """
    try:
        findings = json.loads(path.read_bytes())["findings"]
        known = [one for one in findings if isinstance(one["id"], str)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        hint = "write one with traceanalyzer diagnose -o found.json"
        raise MalformedInput(str(path), "is not a saved diagnosis", hint=hint) from None
    return known


def _rows(first: _Side, left: _Side, basis: _Basis) -> pl.DataFrame:
    """Return one row per rule: finding, state, gain_ns, gain_frac, before_ns, after_ns, title.

    A rule may find several things: states follow from their sum, costs are given if it is one.
    """
    rows = []
    for name in dict.fromkeys(one["id"] for one in (*first.findings, *left.findings)):
        before, after = (_of_rule(side.findings, name) for side in (first, left))
        small = [_of_rule(side.small, name) for side in (first, left)]
        pairs = zip((before, after), small, strict=True)
        costs = [_sum(one or less * (len(less) == 1), "cost_ns") for one, less in pairs]
        if before and (after or _is_left(small[1], small[0] or before)):
            state = "remains"
        elif name in (left if before else first).skipped:
            state = "not checked"
        elif before:
            state = "gone"
        else:
            state = "present" if _is_left(small[0], small[1] or after) else "new"
        rows.append(
            {
                "finding": str(name),
                "state": state,
                "gain_ns": _sum(before, "gain_ns"),
                "gain_frac": _sum([{"share": basis.share(one)} for one in before], "share"),
                "before_ns": costs[0],
                "after_ns": costs[1],
                "title": str((after or before)[0].get("title", "")),
            }
        )
    return pl.DataFrame(rows, schema=_COLUMNS)


def _is_left(some: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> bool:
    """Whether small findings cost at least half of those of the other run, if that is known."""
    costs = _sum(some, "cost_ns"), _sum(others, "cost_ns")
    return bool(some) and (None in costs or 2 * costs[0] >= costs[1])


def _of_rule(findings: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [one for one in findings if one["id"] == name]


def _sum(findings: Sequence[Mapping[str, Any]], name: str) -> Any:
    """Return the sum of a number; None if no finding has it."""
    known = [one[name] for one in findings if isinstance(one.get(name), int | float)]
    return sum(known) if known else None
