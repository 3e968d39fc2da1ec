"""Checks whether two runs can be compared, and remarks on the comparison."""

import re
from collections.abc import Callable, Iterator, Sequence

import polars as pl

from traceanalyzer.analyzers.common.display import listed
from traceanalyzer.analyzers.common.step_marks import REPETITION
from traceanalyzer.analyzers.diff.roles import Pairing
from traceanalyzer.analyzers.diff.runs import ALLOCATIONS, PYTHON_FRAMES, Measure, Run
from traceanalyzer.units import format_count, format_first, format_frac, format_ratio

_NAMED = 3

#: Runs that share less of their time are probably different programs.
_ALIKE_FRAC = 0.5

#: Data that files may have, and its attribute of a run.
_DATA = {
    "steps": "steps",
    "device work": "kernels",
    "operators": "idle",
    "sampled stacks": "stacks",
    "memory": "memory",
}

#: Label of the unit of sampled stacks.
_COUNTED = {"ns": "time", "": "an unknown unit"}


#: The remark that only repeated runs make superfluous.
WITHIN = (
    "Noise is the variation of steps within each recording. Two recordings of the same code may "
    "differ by more (another node, other clocks, a warm cache): repeat each recording to be sure."
)

#: Recorded data that can make steps longer by more than a tenth.
_SLOW = (PYTHON_FRAMES, ALLOCATIONS)
_EXTRAS = "Profiling options with overhead differ"
_GPUS, _PROGRAM = "The GPUs differ", "Kernels and operators of both runs take at most"
_OVERHEAD, _SHAPES = "The overhead of ", "The input shapes differ"
#: Start of the reservation if those with other shapes take less than half, but at least this share.
SOME_SHAPES, _FEW_FRAC = "Some input shapes differ", 0.1
#: Starts of the reservations with which a change of time is neither a regression nor an improvement
#: of the code.
UNLIKE = (_GPUS, _PROGRAM, _OVERHEAD, _SHAPES)

#: Properties that may differ between runs, by the text to report.
_DIFFERENCES: dict[str, Callable[[Run], Sequence[str]]] = {
    _GPUS: lambda run: sorted({name for fact in run.facts for name in fact.gpus}),
    "The software differs": lambda run: sorted({n for fact in run.facts for n in fact.software}),
    "The profilers differ, and so does their overhead": lambda run: sorted(
        {fact.format for fact in run.facts}
    ),
    "The profiler versions differ": lambda run: sorted(
        {f"{fact.format} {fact.version}" for fact in run.facts if fact.version}
    ),
    "The world sizes differ": lambda run: [
        format_count(size, "rank")
        for size in sorted({f.world_size for f in run.facts if f.world_size})
    ],
    "The numbers of recorded ranks differ": lambda run: [str(run.ranks)],
    _EXTRAS: lambda run: sorted({extra for fact in run.facts for extra in fact.extras}),
}


def obstacle(
    before: Run, after: Run, measure: Measure | None, pairing: Pairing | None
) -> str | None:
    """Return why the runs cannot be compared; None if they can.

    Runs with steps are assumed to be comparable. Without steps they must have a kernel, a role or
    an operator in common.
    """
    if measure is None:
        units = [_units(run) for run in (before, after)]
        if all(units) and units[0] != units[1]:
            return f"sampled stacks have different units: {units[0]} before, {units[1]} after"
        data = [_data_of(run) for run in (before, after)]
        return f"the runs have no data in common: {data[0]} before, {data[1]} after"
    if measure.name in ("device", "thread") and _in_common(before, after, pairing) == 0:
        return "the runs have no kernel or operator in common, and not both have marked steps"
    return None


def reservations(
    before: Run, after: Run, measure: Measure | None, pairing: Pairing | None
) -> tuple[str, ...]:
    """Return why a change may have other causes than the code; empty if nothing is known."""
    runs = (before, after)
    different = () if measure is None else (*_different(runs), *_of_messages(before, after))
    overhead = () if measure is None else tuple(_of_overhead(before, after, measure))
    if overhead:
        different = tuple(text for text in different if not text.startswith(_EXTRAS))
    in_steps = measure is not None and measure.in_steps
    shapes = () if pairing is None else tuple(_of_shapes(pairing))
    programs = _of_program(before, after, pairing) if in_steps else ()
    return (*overhead, *different, *shapes, *_truncated(runs), *programs)


def remarks(
    before: Run, after: Run, measure: Measure | None, pairing: Pairing | None
) -> Iterator[str]:
    """Return the reservations, and remarks on the measure and the noise."""
    yield from reservations(before, after, measure, pairing)
    if measure is not None:
        yield from _of_measure((before, after), measure)


def _truncated(runs: tuple[Run, Run]) -> Iterator[str]:
    for run, when in zip(runs, ("before", "after"), strict=True):
        truncated = [fact.path for fact in run.facts if fact.cut_off]
        if truncated:
            yield f"Truncated, the end is missing ({when}): {format_first(truncated, _NAMED)}."


def _different(runs: tuple[Run, Run]) -> Iterator[str]:
    for what, values_of in _DIFFERENCES.items():
        before, after = (listed(values_of(run)) for run in runs)
        if before != after and ((before and after) or what == _EXTRAS):
            yield f"{what}: before {before or 'none'}, after {after or 'none'}."


def _of_measure(runs: tuple[Run, Run], measure: Measure) -> Iterator[str]:
    before, after = runs
    if measure.in_steps:
        if after.steps is not None and after.steps.by_kernels:
            yield (
                "No steps are marked: a step is one repeat of a sequence of kernels, with equal "
                "work in both runs."
            )
        yield from _of_steps(before, after)
        return
    for run, when in ((before, "before"), (after, "after")):
        other = after if run is before else before
        if run.steps is None and other.steps is not None:
            span = "; the other span includes its steps" if measure.name == "device" else ""
            yield f"No steps are marked {when}, so whole recordings are compared{span}."
    if measure.name in ("device", "thread"):
        yield (
            "Without steps in both runs, sums are over the whole recording of a device or rank, "
            "and the noise is unknown. Mark steps to compare steps."
        )
        if measure.work != 1:
            yield (
                f"The recording after has {format_ratio(measure.work)} as much work, by the counts "
                "of common kernels or operators: its times are divided by that factor."
            )
    if measure.name == "samples":
        yield (
            "The total of samples is comparable only if both runs recorded the same work from "
            "start to end; shares do not depend on that. Noise is the counting error only: "
            "correlated samples increase it."
        )
    if measure.name == "memory":
        yield "With one peak per run the noise is unknown."


def _of_steps(before: Run, after: Run) -> Iterator[str]:
    counts = [run.step_count for run in (before, after)]
    if counts[0] != counts[1]:
        yield (
            f"Counted steps: {counts[0]:,} before, {counts[1]:,} after; sums are per step, not per "
            "recording."
        )
    if min(counts) < 2:
        yield "With one step in a run the noise is unknown, so its change is not judged."
    else:
        yield WITHIN


def _of_program(before: Run, after: Run, pairing: Pairing | None) -> Iterator[str]:
    sorts = [_sort_of_step(run) for run in (before, after)]
    if sorts[0] != sorts[1]:
        yield f"Steps are marked as {sorts[0]} before, as {sorts[1]} after: check that they match."
    shared = _in_common(before, after, pairing)
    if shared is not None and shared < _ALIKE_FRAC:
        yield (
            f"{_PROGRAM} {format_frac(shared)} of the time of one run: check that it is the same "
            "program."
        )


def _of_overhead(before: Run, after: Run, measure: Measure) -> Iterator[str]:
    """Say that the run with costlier profiling options is the slower one."""
    if measure.unit != "ns" or not measure.change:
        return
    more, less, when = (after, before, "after") if measure.change > 0 else (before, after, "before")
    slow = {extra for fact in more.facts for extra in fact.extras if extra in _SLOW}
    slow -= {extra for fact in less.facts for extra in fact.extras}
    if slow:
        yield (
            f"{_OVERHEAD}{listed(sorted(slow))} may explain the change: only the run {when} "
            "recorded them. Record both runs with the same options."
        )


def _of_shapes(pairing: Pairing) -> Iterator[str]:
    """Compare the input shapes of operators that both runs call in the same place."""
    rows = pairing.roles.filter(pl.col("reshaped").is_not_null())
    frac = int(rows["time_ns"].sum()) / max(int(pairing.roles["time_ns"].sum()), 1)
    if frac >= _FEW_FRAC:
        operator, shapes = rows.sort("time_ns").select("operator", "reshaped").row(-1)
        start = _SHAPES if frac >= _ALIKE_FRAC else SOME_SHAPES
        yield (
            f"{start}: {operator} has {shapes}; operators with other shapes take "
            f"{format_frac(frac)} of the time of kernels."
        )


def _of_messages(before: Run, after: Run) -> Iterator[str]:
    """Compare the message sizes of collectives, which follow from the shapes of the model."""
    if before.comm is None or after.comm is None:
        return
    key = ["collective", "message_bytes"]
    frames = [
        run.comm.instances.filter(pl.col("message_bytes").is_not_null())
        .group_by(pl.col("collective").cast(pl.String), "message_bytes")
        .agg(pl.col("duration_ns").sum())
        for run in (before, after)
        if run.comm is not None
    ]
    if any(frame.is_empty() for frame in frames):
        return
    shared = min(
        float(frame.join(other, on=key, how="semi")["duration_ns"].sum())
        / max(float(frame["duration_ns"].sum()), 1)
        for frame, other in (frames, frames[::-1])
    )
    if shared < _ALIKE_FRAC:
        yield (
            f"The message sizes of collectives differ: {format_frac(shared)} of the communication "
            "time of one run is in collectives of a size that both have."
        )


def _sort_of_step(run: Run) -> str:
    name = run.counted["step"].cast(str).head(1).to_list()[0]
    return re.sub(r"\d+", "N", REPETITION.sub("", name))


def _in_common(before: Run, after: Run, pairing: Pairing | None) -> float | None:
    """Return the share of time in kernels, operators (by name) or roles that both runs have.

    This is the smaller share of the two runs, and the largest one of kernels, operators and roles;
    None if the runs do not both have kernels or operators.
    """
    shares = [] if pairing is None else [pairing.sure_frac]
    for table, time in (("work", "total_ns"), ("operators", "host_ns")):
        rows = [getattr(run, table) for run in (before, after)]
        if any(frame is None for frame in rows):
            continue
        names = [frame["name"].drop_nulls().unique() for frame in rows]
        both = names[0].filter(names[0].is_in(names[1].implode()))
        is_shared = pl.col("name").is_in(both.implode())
        shares.append(
            min(frame.filter(is_shared)[time].sum() / max(frame[time].sum(), 1) for frame in rows)
        )
    return max(shares, default=None)


def _units(run: Run) -> str:
    """Return the units of the sampled stacks of a run; empty without any."""
    return listed(sorted({_COUNTED.get(part.unit, part.unit) for part in run.stacks}))


def _data_of(run: Run) -> str:
    values = {label: getattr(run, name) for label, name in _DATA.items()}
    return listed([label for label, value in values.items() if value is not None and value != ()])
