"""What is to be known before two runs are compared, and what forbids it."""

import re
from collections.abc import Callable, Iterator, Sequence

import polars as pl

from traceanalyzer.analyzers.common.display import listed
from traceanalyzer.analyzers.diff.runs import Measure, Run
from traceanalyzer.units import format_frac

_NAMED = 3

#: Runs that share less of their time are hardly the same training.
_ALIKE_FRAC = 0.5

#: What files may hold, and how to find it in a run.
_HOLDINGS = {
    "steps": "steps",
    "device work": "kernels",
    "operators": "idle",
    "sampled stacks": "stacks",
    "memory": "memory",
}

#: What sampled stacks count, by the unit of their weight.
_COUNTED = {"ns": "time", "": "what their file does not tell"}


_EXTRAS = "What costs time to record differs"

#: What may differ between runs, and what to say of each.
_TOLD: dict[str, Callable[[Run], Sequence[str]]] = {
    "The GPUs differ": lambda run: sorted({name for fact in run.facts for name in fact.gpus}),
    "The software differs": lambda run: sorted({n for fact in run.facts for n in fact.software}),
    "The files are of different profilers, which cost different time": lambda run: sorted(
        {fact.format for fact in run.facts}
    ),
    "The profiler's versions differ": lambda run: sorted(
        {f"{fact.format} {fact.version}" for fact in run.facts if fact.version}
    ),
    "The jobs are of different sizes": lambda run: [
        f"{size:,} ranks" for size in sorted({f.world_size for f in run.facts if f.world_size})
    ],
    "The numbers of ranks recorded differ": lambda run: [str(run.ranks)],
    _EXTRAS: lambda run: sorted({extra for fact in run.facts for extra in fact.extras}),
}


def obstacle(before: Run, after: Run, measure: Measure | None) -> str | None:
    """Why the runs cannot be compared; None where they can.

    Runs whose steps are marked are taken to be alike, as the user says. Without steps they must
    have a kernel or an operator in common.
    """
    if measure is None:
        units = [_units(run) for run in (before, after)]
        if all(units) and units[0] != units[1]:
            return f"the sampled stacks before count {units[0]}, those after {units[1]}"
        has = [_holdings(run) for run in (before, after)]
        return f"nothing is in both: before there are {has[0]}, after {has[1]}"
    if measure.name in ("device", "thread") and _in_common(before, after) == 0:
        return "not one kernel or operator is in both, and not both mark steps"
    return None


def remarks(before: Run, after: Run, measure: Measure | None) -> Iterator[str]:
    """What differs between the runs beside their speed, or makes their numbers less sure."""
    runs = (before, after)
    if measure is not None:
        yield from _different(runs)
    for run, when in zip(runs, ("before", "after"), strict=True):
        gone = [fact.path for fact in run.facts if fact.cut_off]
        if gone:
            yield f"Cut off, so that its end is missing ({when}): {_some(gone)}."
    if measure is not None:
        yield from _of_measure(runs, measure)


def _different(runs: tuple[Run, Run]) -> Iterator[str]:
    for what, told in _TOLD.items():
        before, after = (listed(told(run)) for run in runs)
        if before != after and ((before and after) or what == _EXTRAS):
            yield f"{what}: before {before or 'none of it'}, after {after or 'none of it'}."


def _of_measure(runs: tuple[Run, Run], measure: Measure) -> Iterator[str]:
    before, after = runs
    if measure.name == "step":
        yield from _of_steps(before, after)
        return
    for run, when in ((before, "before"), (after, "after")):
        other = after if run is before else before
        if run.steps is None and other.steps is not None:
            span = "; the other run's span takes in its steps" if measure.name == "device" else ""
            yield f"No steps are marked {when}, so that whole recordings are compared{span}."
    if measure.name in ("device", "thread"):
        yield (
            "Without steps in both, sums are of a device's (or rank's) whole recording, and what "
            "they vary by is not known. Mark steps to compare steps."
        )
        if measure.work != 1:
            yield (
                f"The recording after holds {measure.work:.3g} times as much work, by how often "
                "what ran in both ran: its times are divided by that, as if it were the same."
            )
    if measure.name == "samples":
        yield (
            "All samples together tell only if both recorded the same work from start to end; "
            "shares do not depend on that. Noise is that of counting alone: stacks that come in "
            "rows make it larger."
        )
    if measure.name == "memory":
        yield "One peak a run tells nothing of noise."


def _of_steps(before: Run, after: Run) -> Iterator[str]:
    counts = [run.step_count for run in (before, after)]
    if counts[0] != counts[1]:
        yield (
            f"Steps that count: {counts[0]:,} before, {counts[1]:,} after; sums are of a step, not "
            "of the recording."
        )
    if min(counts) < 2:
        yield "With one step in a run it is not known what steps vary by: any change may be chance."
    else:
        yield (
            "Noise is what steps vary by within each recording. Two recordings of the same code "
            "may differ by more (another node, other clocks, a warm cache): only a second one of "
            "each tells."
        )
    sorts = [_sort_of_step(run) for run in (before, after)]
    if sorts[0] != sorts[1]:
        yield f"Steps are marked as {sorts[0]} before, as {sorts[1]} after: are they the same?"
    shared = _in_common(before, after)
    if shared is not None and shared < _ALIKE_FRAC:
        yield (
            f"Kernels and operators that are in both make {format_frac(shared)} of the time of one "
            "of them at most: is it the same program?"
        )


def _sort_of_step(run: Run) -> str:
    name = run.counted["step"].cast(str).head(1).to_list()[0]
    return re.sub(r"\d+", "N", re.sub(r" \[\d+\]$", "", name))


def _in_common(before: Run, after: Run) -> float | None:
    """How much of the time is spent in what both runs have, by name.

    Of the two runs the lesser share, of kernels and operators the larger; None where neither is in
    both.
    """
    shares = []
    for table, time in (("work", "total_ns"), ("operators", "host_ns")):
        rows = [getattr(run, table) for run in (before, after)]
        if any(frame is None for frame in rows):
            continue
        names = [frame["name"].drop_nulls().unique() for frame in rows]
        both = names[0].filter(names[0].is_in(names[1].implode()))
        own = pl.col("name").is_in(both.implode())
        shares.append(
            min(frame.filter(own)[time].sum() / max(frame[time].sum(), 1) for frame in rows)
        )
    return max(shares, default=None)


def _units(run: Run) -> str:
    """What the sampled stacks of a run count; empty where there are none."""
    return listed(sorted({_COUNTED.get(part.unit, part.unit) for part in run.stacks}))


def _holdings(run: Run) -> str:
    held = {said: getattr(run, name) for said, name in _HOLDINGS.items()}
    return listed([said for said, found in held.items() if found is not None and found != ()])


def _some(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(paths[:_NAMED]) + more
