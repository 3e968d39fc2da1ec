"""Replays of all ranks: unchanged, and with changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Reading
from traceanalyzer.analyzers.replay import changes, engine, program
from traceanalyzer.analyzers.replay.changes import Change
from traceanalyzer.analyzers.replay.engine import Job, Times
from traceanalyzer.analyzers.replay.program import Floats, Program
from traceanalyzer.analyzers.what_if import Options, Typical
from traceanalyzer.analyzers.what_if.result import WhatIf
from traceanalyzer.errors import OptionError
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs

#: A smaller share of the step is no loss.
_LOSS = 0.001
#: Ranks and stages that are tried one by one.
_MOST_TRIED = 16


def combine(parts: Sequence[Program], options: Options, _base: Sequence[Program] = ()) -> WhatIf:
    """Replay the run without a change, and with the given one or each usual one.

    Raises:
        MissingData: the replay without a change differs too much from the recording.
        OptionError: a rank or stage does not exist, or an expression is not valid.
    """
    job = engine.job_of(parts)
    unchanged, error = engine.checked_replay(job)
    recorded = np.array(engine.recorded_step_times(job))
    replayed = _steps(job, unchanged)
    stages = changes.stages(job)
    tried = [_given(job, stages, options)] if _is_given(options) else _usual(job, stages)
    rows = [(one, _steps(job, engine.replay(job, changes.changed(job, one)))) for one in tried]
    base = replayed.mean()
    loss = [(one.typical_ranks, steps.mean() / base - 1) for one, steps in rows]
    if not _is_given(options):
        rows = [
            row for row, (ranks, frac) in zip(rows, loss, strict=True) if not ranks or frac <= 0
        ]
    of_steps = [("recorded", recorded), ("replayed", replayed)]
    of_steps += [(change.text, times) for change, times in rows]
    starts = np.concatenate(
        [
            np.abs(times.start - (one.work["start"].to_numpy() + shift))
            for one, times, shift in zip(job.programs, unchanged, job.shifts, strict=True)
        ]
    )
    waits = engine.between_streams(job)
    return WhatIf(
        changes=_table(rows, replayed),
        steps=_of_steps(job.step_names, of_steps),
        given=_is_given(options),
        faster_ranks=tuple(
            sorted({rank for ranks, frac in loss if frac > _LOSS for rank in ranks})
        ),
        ranks=len(job.programs),
        kernels=sum(one.work.height for one in job.programs),
        recorded_ns=float(recorded.mean()),
        replayed_ns=float(replayed.mean()),
        error_frac=error,
        start_error_ns=float(np.median(starts)),
        start_error_p95_ns=float(np.percentile(starts, 95)),
        edges=waits.len(),
        inferred=int(waits.sum()),
        hint=job.programs[0].hint,
        missing=sum(one.missing for one in job.programs),
        one_by_one=len(job.begins) > 1,
        world_size=max((one.world_size or 0 for one in job.programs), default=0) or None,
    )


WHAT_IF = Analyzer(
    "what_if", Options, program.needs, program.measure, combine, more=program.more_with_graphs
)


def _steps(job: Job, replayed: Sequence[Times]) -> Floats:
    return np.array(engine.step_times(job, [one.end for one in replayed]), np.float64)


def _is_given(options: Options) -> bool:
    return options != Options(typical=options.typical)


def _given(job: Job, stages: Sequence[tuple[int, ...]], options: Options) -> Change:
    ranks = _chosen("rank", options.typical_rank, {one.rank: (one.rank,) for one in job.programs})
    ranks |= _chosen("stage", options.typical_stage, dict(enumerate(stages)))
    return Change(
        tuple(options.free), tuple(options.scale), tuple(sorted(ranks)),
        options.typical == "all", options.network, options.no_wait,
    )  # fmt: skip


def _chosen(what: str, given: Sequence[str], known: Mapping[Any, tuple[Any, ...]]) -> set[int]:
    """Return the ranks of the given ranks or stages.

    Raises:
        OptionError: there is no such rank or stage.
    """
    ranks: set[int] = set()
    for text in given:
        number = next((one for one in known if str(one) == text), None)
        if number is None:
            numbers = ", ".join(str(one) for one in known if one is not None) or "none"
            raise OptionError(f"--typical-{what} {text}: there is no such {what}; known: {numbers}")
        ranks |= {*known[number]}
    return ranks


def _usual(job: Job, stages: Sequence[tuple[int, ...]]) -> list[Change]:
    """Return the usual changes of a run."""
    on_host = all(one.on_host for one in job.programs)
    classes = changes.ON_HOST if on_host else changes.CLASSES
    tried = [Change(free=(name,)) for name in classes if changes.occurs(job, name)]
    if job.sizes.size:
        tried += [Change(network=2.0), Change(no_wait=True)]
        ranks = [one.rank for one in job.programs if one.rank is not None]
        if 1 < len(ranks) <= _MOST_TRIED:
            tried += [Change(typical_ranks=(rank,)) for rank in ranks]
    if len(stages) <= _MOST_TRIED:
        tried += [Change(typical_ranks=ranks) for ranks in stages if len(ranks) > 1]
    return tried


def _table(rows: Sequence[tuple[Change, Floats]], replayed: Floats) -> pl.DataFrame:
    base = float(replayed.mean())
    table = pl.DataFrame(
        [(change.text, float(times.mean())) for change, times in rows],
        schema={"change": pl.String, "step_ns": pl.Float64},
        orient="row",
    )
    gain = base - pl.col("step_ns")
    table = table.with_columns(gain_ns=gain, gain_frac=gain / base)
    return table.sort("gain_ns", "change", descending=[True, False])


def _of_steps(steps: Sequence[str], rows: Sequence[tuple[str, Floats]]) -> pl.DataFrame:
    frames = []
    for name, times in rows:
        names = steps[-times.size :] if len(steps) >= times.size else [""] * times.size
        frames.append(pl.DataFrame({"run": [name] * times.size, "step": names, "step_ns": times}))
    return pl.concat(frames)


def what_if(
    inputs: Inputs,
    *,
    free: str | Sequence[str] = (),
    scale: str | Sequence[str] = (),
    typical_rank: int | str | Sequence[int | str] = (),
    typical_stage: int | str | Sequence[int | str] = (),
    typical: Typical = "others",
    network: float = 1.0,
    no_wait: bool = False,
    **reading: Unpack[Reading],
) -> WhatIf:
    """Return how long a step would take with a change; without a change, with each usual one.

    The program of the run (what each kernel and each call waits for) is replayed with other times.
    step time = from the end of the work of the steps before to the end of its own work, over all
    ranks; gain = replayed step time - step time with the change.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        free: ``launches``, ``data-loading``, ``host-code``, ``synchronisation``,
            ``communication``, ``copies``, ``small-copies``, or a regular expression of kernels or
            annotations, whose time becomes 0.
        scale: ``REGEX=FACTOR``: kernels and annotations become faster by the factor.
        typical_rank: ranks that become like the others.
        typical_stage: pipeline stages that become like the others, from 0.
        typical: whether times become those of the ``others``, or the mean of ``all`` ranks.
        network: factor by which transfers become faster.
        no_wait: collectives do not wait for other ranks.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work, or too few of its launch calls, were recorded; or the replay of
            the unchanged run differs from the recording by more than 10 %.
        OptionError: a regular expression, factor, rank or stage is not valid.
    """
    ranks, stages = (
        tuple(map(str, (given,) if isinstance(given, (int, str)) else given))
        for given in (typical_rank, typical_stage)
    )
    options = Options(free, scale, ranks, stages, typical, network, no_wait)
    return run(WHAT_IF, inputs, options, **reading)
