"""How long a step would take with a change of the run, or without the cause of a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Examination, Reading
from traceanalyzer.analyzers.replay.program import more_with_graphs
from traceanalyzer.analyzers.what_if import Options, Typical
from traceanalyzer.analyzers.what_if.compute import FINDINGS, WHAT_IF, WhatIf
from traceanalyzer.analyzers.what_if.replay import Replay
from traceanalyzer.errors import OptionError
from traceanalyzer.findings import diagnosed
from traceanalyzer.findings.judge import require_rule
from traceanalyzer.findings.result import Diagnosis
from traceanalyzer.result import finding_number
from traceanalyzer.run.loop import run, with_notes
from traceanalyzer.trace import Inputs


def what_if(
    inputs: Inputs,
    *,
    finding: int | str | Sequence[int | str] | None = (),
    free: str | Sequence[str] = (),
    scale: str | Sequence[str] = (),
    typical_rank: int | str | Sequence[int | str] = (),
    typical_stage: int | str | Sequence[int | str] = (),
    equal_stages: bool = False,
    typical: Typical = "others",
    network: float = 1.0,
    no_wait: bool = False,
    **reading: Unpack[Reading],
) -> WhatIf:
    """Return how long a step would take with a change; without a change, with each usual one.

    Without a change, also without the cause of each finding of ``diagnose`` that has a gain.

    The program of the run (what each kernel and each call waits for) is replayed with other times.
    step time = from the end of the work of the steps before to the end of its own work, over all
    ranks; gain = replayed step time - step time with the change.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        finding: what causes this finding of ``diagnose`` (id or number, one only) is removed.
        free: ``launches``, ``short-gaps``, ``data-loading``, ``host-code``, ``synchronisation``,
            ``communication``, ``copies``, ``small-copies``, ``memory-management``,
            ``graph-building``, ``module-loading``, ``api-calls``, or a regular expression of
            kernels or annotations, whose time becomes 0.
        scale: ``REGEX=FACTOR``: kernels and annotations become faster by the factor.
        typical_rank: ranks that become like the others.
        typical_stage: pipeline stages that become like the others, from 0.
        equal_stages: the compute of each pipeline stage takes as long as that of the mean stage.
        typical: whether times become those of the ``others``, or the mean of ``all`` ranks.
        network: factor by which transfers become faster.
        no_wait: collectives do not wait for other ranks.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work, or too few of its launch calls, were recorded; or the replay of
            the unchanged run differs from the recording by more than 10 %.
        OptionError: a regular expression, factor, rank, stage or finding is not valid.
    """
    names, ranks, stages = (
        tuple(map(str, (given,) if isinstance(given, (int, str)) else given or ()))
        for given in (finding, typical_rank, typical_stage)
    )
    options = Options(names, free, scale, ranks, stages, equal_stages, typical, network, no_wait)
    if len(names) > 1 or (names and options != Options(names)):
        raise OptionError("--finding cannot be combined with other findings and changes")
    for name in names:
        if not name.isdecimal():
            require_rule(name)
    if options != Options(names, typical=typical):
        return run(WHAT_IF, inputs, options, **reading)
    diagnosis, examined = diagnosed(inputs, **reading)
    result = _of_replay(examined, options) or run(WHAT_IF, inputs, options, **reading)
    return replace(result, findings=_replayed(diagnosis, *names))


def _of_replay(examined: Examination, options: Options) -> WhatIf | None:
    """Return the result for the replayed run of ``diagnose``; None if it needs more data."""
    replay = examined.replay if not (examined.jobs or examined.summaries) else None
    if not isinstance(replay, Replay) or replay.job.in_parts:
        return None
    if more_with_graphs(replay.job.programs, options):
        return None
    result = WHAT_IF.combine(replay.job.programs, options)
    return with_notes(result, (*replay.input_notes, *examined.notes))


def _replayed(diagnosis: Diagnosis, name: str | None = None) -> pl.DataFrame:
    """Return the findings with a replayed gain, or the one with an id or number."""
    every = diagnosis.findings
    chosen = every if name is None else [every[finding_number(name, every) - 1]]
    rows = [
        (one.id, one.gain_change, one.gain_ns, one.gain_frac, one.gain_of or diagnosis.of)
        for one in chosen
    ]
    frame = pl.DataFrame(rows, schema=FINDINGS, orient="row").filter(pl.col("change") != "")
    if name is not None and frame.is_empty():
        raise OptionError(f"--finding {name}: no change is known that removes its cause")
    return frame
