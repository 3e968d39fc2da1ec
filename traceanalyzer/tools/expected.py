"""Was a fix worth it? The gain that a diagnosis predicts, compared with the measured one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import polars as pl

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.diff import MIN_CHANGE, Options
from traceanalyzer.analyzers.diff.compute import DIFF
from traceanalyzer.analyzers.diff.result import Diff, Expected
from traceanalyzer.errors import MalformedInput, OptionError
from traceanalyzer.findings import diagnose
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs

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

    The predicted gain is that of the findings to fix, as a share of the step (or run) before, by a
    replay of the run or at most their cost; the measured one is the change of the measure of
    :func:`~traceanalyzer.diff`, with its noise. Gains of several findings are added, up to the
    whole step. Findings are compared by the name of their rule.

    Args:
        before: the run with the problem.
        after: the run with the fix.
        expected: the rule of the finding to fix, such as ``data-loading``; or a diagnosis of
            ``before`` saved as JSON (``diagnose -o found.json``): all of its findings that are gone
            count, or the first one if none is gone.
        min_change: see :func:`~traceanalyzer.diff`.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Returns:
        The comparison, with ``expected``.

    Raises:
        InputError: no file of a run can be read, or the diagnosis cannot be read.
        OptionError: ``before`` has no finding of this rule.
    """
    saved = expected.endswith(".json")
    found = _saved(Path(expected)) if saved else _findings(before, reading)
    known = [*dict.fromkeys(one["id"] for one in found)]
    if not saved and expected not in known:
        findings = ", ".join(known) or "none"
        raise OptionError(f"expected: no finding {expected!r} before; findings: {findings}")
    left = _findings(after, reading)
    result: Diff = run(DIFF, after, Options(min_change=min_change, before=before), **reading)
    after_ids = {one["id"] for one in left}
    gone = [name for name in known if name not in after_ids]
    wanted = (gone or known[:1]) if saved else [expected]
    return replace(result, expected=Expected(tuple(wanted), _rows(found, left)))


def _findings(inputs: Inputs, reading: Reading) -> list[dict[str, Any]]:
    return [one.to_dict() for one in diagnose(inputs, **reading).findings]


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


def _rows(found: Sequence[Mapping[str, Any]], left: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return one row per rule: finding, state, gain_ns, gain_frac, before_ns, after_ns, title."""
    rows = []
    for name in dict.fromkeys(one["id"] for one in (*found, *left)):
        before, after = ([one for one in side if one["id"] == name] for side in (found, left))
        rows.append(
            {
                "finding": str(name),
                "state": "remains" if before and after else "gone" if before else "new",
                "gain_ns": _sum(before, "gain_ns"),
                "gain_frac": _sum(before, "gain_frac"),
                "before_ns": _sum(before, "cost_ns"),
                "after_ns": _sum(after, "cost_ns"),
                "title": str((after or before)[0].get("title", "")),
            }
        )
    return pl.DataFrame(rows, schema=_COLUMNS)


def _sum(findings: Sequence[Mapping[str, Any]], name: str) -> Any:
    """Return the sum of a number; None if no finding has it."""
    known = [one[name] for one in findings if isinstance(one.get(name), int | float)]
    return sum(known) if known else None
