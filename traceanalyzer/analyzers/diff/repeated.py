"""Several runs of each version: the noise between runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from traceanalyzer.analyzers.diff import compute, runs
from traceanalyzer.analyzers.diff.comparable import WITHIN
from traceanalyzer.analyzers.diff.options import Options
from traceanalyzer.analyzers.diff.result import Diff
from traceanalyzer.analyzers.diff.runs import Measure, Part
from traceanalyzer.errors import OptionError

#: The parts of all ranks of one run.
Parts = Sequence[Part]


def combine(before: Sequence[Parts], after: Sequence[Parts], options: Options) -> Diff:
    """Compare the median run of each version; the noise includes that between the runs.

    Args:
        before: the runs before, at least one.
        after: the runs after, at least one.
        options: the options.

    Raises:
        OptionError: a side has no run.
    """
    if not before or not after:
        raise OptionError("diff_runs needs at least one run of each version")
    of_before = [compute.combine(after[0], options, run) for run in before]
    of_after = [compute.combine(run, options, before[0]) for run in after]
    every = [*of_before, *of_after]
    impossible = next((one for one in every if one.measure is None), None)
    if impossible is not None:
        return impossible
    measures = [one.measure for one in every if one.measure is not None]
    values = (
        [one.before for one in measures[: len(before)]],
        [one.after for one in measures[len(before) :]],
    )
    middle = [sorted(range(len(side)), key=side.__getitem__)[(len(side) - 1) // 2]
              for side in values]  # fmt: skip
    result = compute.combine(after[middle[1]], options, before[middle[0]])
    if result.measure is None or len({(one.name, one.unit) for one in measures}) > 1:
        why = "the runs of one version have different data; compare two runs"
        return replace(result, measure=None, why=why)
    repeats = _repeats(of_before, of_after, values, result.measure)
    reserved = tuple(dict.fromkeys(text for one in every for text in one.reservations))
    others = [text for text in result.remarks if text not in (WITHIN, *result.reservations)]
    return replace(
        result,
        measure=_with_noise(result.measure, values),
        reservations=reserved,
        remarks=(*reserved, *others, _remark(values, repeats, middle)),
        repeats=repeats,
    )


def _with_noise(measure: Measure, values: tuple[list[float], list[float]]) -> Measure:
    """Return the measure of the median runs; the noise is the larger one of steps and runs."""
    medians = [float(np.median(side)) for side in values]
    between = runs.noise_of(*_errors(values))
    known = [noise for noise in (measure.noise, between) if noise is not None]
    noise = max((one for one in known if not np.isnan(one)), default=None)
    return replace(measure, before=medians[0], after=medians[1], noise=noise)


def _errors(values: tuple[list[float], list[float]]) -> tuple[float, float]:
    """Return the standard error of each side; one run varies as much as those of the other side."""
    errors = [float(runs.standard_errors(np.array([side], dtype=float))[0]) for side in values]
    counts = [len(side) for side in values]
    for one, other in ((0, 1), (1, 0)):
        if counts[one] == 1 and counts[other] > 1:
            errors[one] = errors[other] * counts[other] ** 0.5
    return errors[0], errors[1]


def _repeats(
    of_before: Sequence[Diff],
    of_after: Sequence[Diff],
    values: tuple[list[float], list[float]],
    measure: Measure,
) -> pl.DataFrame:
    """Return one row per run: run, path, value_ns (or value_bytes, value)."""
    column = f"value_{measure.unit}" if measure.unit in ("ns", "bytes") else "value"
    rows = [
        {"run": when, "path": one.runs.filter(run=when)["path"].item(), column: value}
        for when, each, side in zip(("before", "after"), (of_before, of_after), values, strict=True)
        for one, value in zip(each, side, strict=True)
    ]
    return pl.DataFrame(rows)


def _remark(
    values: tuple[list[float], list[float]], repeats: pl.DataFrame, middle: Sequence[int]
) -> str:
    paths = repeats["path"].to_list()
    pair = (paths[middle[0]], paths[len(values[0]) + middle[1]])
    return (
        f"Runs: {len(values[0])} before, {len(values[1])} after. The noise is the larger one of "
        "that between steps and that between runs; a single run is assumed to vary like those of "
        f"the other side. Tables compare the median runs: {pair[0]} and {pair[1]}."
    )
