"""Two runs compared, from files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from traceanalyzer.analyzers import diff as comparing
from traceanalyzer.analyzers.diff import MIN_CHANGE, Diff, Part
from traceanalyzer.api.gathering import Reading, gather, skipped_notes
from traceanalyzer.api.reading import Inputs, several


def diff(
    before: Inputs,
    after: Inputs,
    *,
    step_name: str | None = None,
    patterns: str | Sequence[str] = (),
    min_change: float = MIN_CHANGE,
    **reading: Unpack[Reading],
) -> Diff:
    """Did it get slower, where, and can that be trusted?

    Two runs are judged by the first of these that both have: the median time of a step, the span of
    the devices' work, that of the training threads, all samples, the peak of memory. Compared are
    what a step's time is made of, idle causes among it, kernels, operators, collectives, functions
    and memory. A change counts where it is beyond the noise and beyond ``min_change``. Each file is
    read once, and one is in memory at a time.

    Args:
        before: a trace, a file or a folder, or several of them: the run to compare with.
        after: the same of the run to look at; it may be of another format.
        step_name: a regular expression of the slices that are steps.
        patterns: regular expressions of further kernel names that are communication.
        min_change: the least change that counts, as a part of the smaller value.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing of a run can be read.
        MissingData: nothing in a run can be compared.
        OptionError: an option makes no sense.
    """
    windowed = any(reading.get(name) is not None for name in ("since_ns", "until_ns"))
    question = comparing.Question(step_name, several(patterns), min_change, in_memory=not windowed)
    runs: list[list[Part]] = []
    notes: list[str] = []
    for inputs in (before, after):
        found = gather(
            inputs, question.needs, lambda trace: comparing.extract(trace, question), **reading
        )
        runs.append(found.parts)
        notes += skipped_notes(found.skipped)
    if windowed:
        notes.append("Memory is not compared: its history counts as a whole.")
    return comparing.combine(question, runs[0], runs[1], notes)
