"""What changed, in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceanalyzer.analyzers.diff.measure import Measure, Name
from traceanalyzer.analyzers.diff.noise import ERRORS, GONE, NEW, SAME, UNSURE
from traceanalyzer.units import format_bytes, format_frac, format_ns, format_weight

if TYPE_CHECKING:
    from traceanalyzer.analyzers.diff.result import Diff
    from traceanalyzer.analyzers.memory import MemoryDiff

#: A part of the change worth naming, and how many of them.
_WORTH_FRAC, _NAMED = 0.1, 3

#: A kernel is named where it changed by so much of a step.
_KERNEL_FRAC = 0.01

#: So does a part of it where the whole did not.
_PART_FRAC = 0.05

#: So much more or less of the mean is worth a sentence where the median stays.
_MEAN_FRAC = 0.05

#: Noise beyond this hides what people look for.
_LOUD_FRAC = 0.1

_SUBJECTS: dict[Name, str] = {
    "step": "a step takes",
    "device": "the devices' span (first start to last end of their work, mean) is",
    "thread": "the training threads' span (mean) is",
    "samples": "in all there are",
    "memory": "the memory peak is",
}
_OUTCOMES = {
    "regression": "Regression",
    "improvement": "Improvement",
    "no change": "No change",
}


def verdict(result: Diff) -> str:
    """The outcome with its size and noise, and what explains it."""
    measure = result.measure
    if measure is None:
        return f"Cannot be compared: {result.why}."
    said = [
        _outcome(measure),
        _explained(result, measure),
        _mean(result, measure),
        _kernels(result, measure),
        _collectives(result),
        _functions(result),
        _peak(result, measure),
    ]
    return " ".join(sentence for sentence in said if sentence)


def _outcome(measure: Measure) -> str:
    middle = "median; " if measure.name == "step" else ""
    noise = measure.noise_frac
    sure = "noise not known" if noise is None else f"noise {format_frac(noise)}"
    change = "" if measure.change_frac is None else f"{signed_frac(measure.change_frac)}, "
    loud = (
        f" Only a change of more than {format_frac(noise)} could be told from chance."
        if measure.outcome == "no change" and noise is not None and noise > _LOUD_FRAC
        else ""
    )
    outcome = _OUTCOMES[measure.outcome]
    if measure.outcome == "no change" and not _is_small(measure):
        outcome += " beyond the noise"
    same = "for the same work " if measure.work != 1 else ""
    after, before = (_worded(value, measure) for value in (measure.after, measure.before))
    return (
        f"{outcome}: {same}{_SUBJECTS[measure.name]} {after}, before {before} "
        f"({middle}{change}{sure}).{loud}"
    )


def _is_small(measure: Measure) -> bool:
    """Whether the change is below what counts, however sure it is."""
    return abs(measure.change) <= measure.least * min(measure.before, measure.after)


def _worded(value: float, measure: Measure) -> str:
    return format_weight(value, measure.unit)


def signed_frac(frac: float) -> str:
    """A change as a percentage with its sign: ``+9.3 %``."""
    return f"{'+' if frac >= 0 else '-'}{format_frac(abs(frac))}"


def _explained(result: Diff, measure: Measure) -> str:
    """The parts that grew or shrank with the whole, and those that went against it."""
    if result.parts is None or measure.unit != "ns":
        return ""
    if measure.outcome == "no change":
        return _parts_alone(result.parts, measure)
    whole = int(result.parts["change_ns"].sum())
    if not whole or (whole > 0) != (measure.change > 0):
        return ""
    least = _WORTH_FRAC * abs(whole)
    rows = result.parts.filter(pl.col("change_ns").abs() >= least)
    along = rows.filter((pl.col("change_ns") > 0) == (whole > 0)).head(_NAMED)
    against = rows.filter((pl.col("change_ns") > 0) != (whole > 0)).head(_NAMED)
    more, less = ("more", "less") if whole > 0 else ("less", "more")
    named = [
        f"{format_ns(abs(n))} is {part}" for part, n in along.select("part", "change_ns").rows()
    ]
    step = "a typical step" if measure.name == "step" else "it"
    said = f"Of the {format_ns(abs(whole))} {more} that {step} takes, {_and(named)}."
    if against.height:
        others = [
            f"{format_ns(abs(n))} {less} {part}"
            for part, n in against.select("part", "change_ns").rows()
        ]
        said += f" Against that {_and(others)}."
    return said


def _parts_alone(parts: pl.DataFrame, measure: Measure) -> str:
    """Parts that changed for sure where the whole did not."""
    rows = parts.filter(
        pl.col("state").is_in(("slower", "faster", NEW, GONE)),
        pl.col("change_ns").abs() >= _PART_FRAC * measure.before,
    ).head(_NAMED)
    named = [_changed(row, row["part"]) for row in rows.iter_rows(named=True)]
    return f"Yet parts of it changed: {_and(named)}." if named else ""


def _mean(result: Diff, measure: Measure) -> str:
    """Whether slow steps became more or fewer, where the usual one is the same."""
    if measure.name != "step" or measure.outcome != "no change" or not _is_small(measure):
        return ""
    kept = result.steps.filter(~pl.col("warm_up")).group_by("run").agg(pl.col("duration_ns").mean())
    means = dict(kept.select("run", "duration_ns").iter_rows())
    change = means["after"] / means["before"] - 1
    if abs(change) < _MEAN_FRAC:
        return ""
    return (
        f"Yet the mean of all steps went from {format_ns(means['before'])} to "
        f"{format_ns(means['after'])} ({signed_frac(change)}): a few slow ones make it."
    )


def _kernels(result: Diff, measure: Measure) -> str:
    if result.kernels is None or measure.unit != "ns":
        return ""
    rows = result.kernels.filter(
        ~pl.col("state").is_in((SAME, UNSURE)),
        pl.col("change_ns").abs() >= _KERNEL_FRAC * measure.before,
    ).head(_NAMED - 1)
    if rows.is_empty():
        return ""
    step = " a step" if measure.name == "step" else ""
    named = [_changed(row, row["kernel"] or "(no name)") for row in rows.iter_rows(named=True)]
    return f"Of kernels changed most{step}: {'; '.join(named)}."


def _changed(row: dict[str, Any], name: str) -> str:
    if row["state"] == NEW:
        return f"{name} is new ({format_ns(row['after_ns'])})"
    if row["state"] == GONE:
        return f"{name} is gone ({format_ns(row['before_ns'])})"
    return f"{name} from {format_ns(row['before_ns'])} to {format_ns(row['after_ns'])}"


def _collectives(result: Diff) -> str:
    """The kind of collective that changed by the largest factor."""
    if result.collectives is None:
        return ""
    rows = result.collectives.filter(
        pl.col("state").is_in(("slower", "faster")), pl.col("change_frac").abs() >= _WORTH_FRAC
    )
    if rows.is_empty():
        return ""
    row = rows.row(0, named=True)
    size = f" of {format_bytes(row['message_bytes'])}" if row["message_bytes"] is not None else ""
    return (
        f"{rows.height} of {result.collectives.height} kinds of collective changed, most "
        f"{row['collective']}{size}: {format_ns(row['after_ns'])}, before "
        f"{format_ns(row['before_ns'])} (median)."
    )


def _functions(result: Diff) -> str:
    if result.functions is None:
        return ""
    rows = result.functions.filter(~pl.col("state").is_in((SAME, UNSURE))).head(_NAMED)
    named = [
        f"{row['name'] or '(no name)'} from {format_frac(row['before_frac'] or 0)} to "
        f"{format_frac(row['after_frac'] or 0)}"
        for row in rows.iter_rows(named=True)
    ]
    if not named:
        return "No function's share of the samples changed by more than chance."
    return f"Of functions' shares of the samples changed most: {'; '.join(named)}."


def _peak(result: Diff, measure: Measure) -> str:
    """The peak of memory, where it is not what the runs are judged by, and changed."""
    memory = result.memory
    if memory is None:
        return ""
    if measure.name == "memory":
        return _lines(memory)
    before, after = memory.base_bytes, memory.peak_bytes
    if abs(after - before) <= measure.least * min(before, after):
        return ""
    frac = f" ({signed_frac(after / before - 1)})" if before else ""
    return f"The memory peak went from {format_bytes(before)} to {format_bytes(after)}{frac}."


def _lines(memory: MemoryDiff) -> str:
    """The lines of code that hold more or less at the peak."""
    rows = memory.tables[0].frame.select("at", "changed_bytes").head(_NAMED).rows()
    named = [f"{at} {'+' if n > 0 else '-'}{format_bytes(abs(n))}" for at, n in rows]
    return f"The largest changes: {', '.join(named)}." if named else ""


def notes(result: Diff) -> tuple[str, ...]:
    """How the numbers are meant."""
    measure = result.measure
    if measure is None:
        return ()
    least = format_frac(measure.least)
    counts = (
        f"A change counts where it is more than {least} (--min-change) and more than the noise: "
        f"{ERRORS} standard errors of the difference."
    )
    said = [counts]
    if measure.name == "step" and result.parts is not None:
        said.append(
            "Sums a step are means over typical steps, the middle half by their time, so that "
            "parts add up; kernels and operators count for the step in which they start."
        )
    return tuple(said)


def _and(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
