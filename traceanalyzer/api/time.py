"""Where the time of devices and steps goes, from files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from traceanalyzer.analyzers import overlap as overlapping
from traceanalyzer.analyzers import steps as stepping
from traceanalyzer.analyzers.overlap import By, Overlap
from traceanalyzer.analyzers.steps import Steps
from traceanalyzer.api.gathering import Reading, gather
from traceanalyzer.api.reading import Inputs, several


def overlap(
    inputs: Inputs,
    *,
    by: By = "device",
    patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Overlap:
    """How much of the communication is hidden behind compute, and what the rest of it costs.

    The analysis is :func:`traceanalyzer.analyzers.overlap.overlap`; of files only device work and
    annotations are read.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        by: what is told first: ``device``, ``step`` or ``stream``.
        patterns: regular expressions of further kernel names that are communication.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work in the inputs, or no steps are marked and they are asked for.
        OptionError: a pattern is not a regular expression.
    """
    wanted = several(patterns)
    found = gather(
        inputs, overlapping.NEEDS, lambda trace: overlapping.extract(trace, wanted), **reading
    )
    return overlapping.combine(found.parts, by=by, remarks=found.notes)


def steps(inputs: Inputs, *, step_name: str | None = None, **reading: Unpack[Reading]) -> Steps:
    """How long training steps take, how much that varies, and what the slow ones spend it on.

    The analysis is :func:`traceanalyzer.analyzers.steps.steps`; of files only device work and what
    may mark steps are read.

    Args:
        inputs: a trace, a file or a folder, or several of them. Several files of one rank whose
            steps do not overlap are parts of one recording.
        step_name: a regular expression; host slices whose name it matches are the steps.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no steps are marked.
        OptionError: ``step_name`` is not a regular expression.
    """
    wanted = stepping.needs(step_name)
    found = gather(inputs, wanted, lambda trace: stepping.extract(trace, step_name), **reading)
    return stepping.combine(found.parts, remarks=found.notes)
