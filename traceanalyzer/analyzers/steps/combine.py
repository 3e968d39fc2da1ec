"""From what each rank contributes to the answer."""

from __future__ import annotations

from collections.abc import Sequence

from traceanalyzer.analyzers.places import places
from traceanalyzer.analyzers.steps import statistics
from traceanalyzer.analyzers.steps.extract import Part
from traceanalyzer.analyzers.steps.joining import joined
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.errors import OptionError


def combine(parts: Sequence[Part], *, remarks: Sequence[str] = ()) -> Steps:
    """All ranks' steps in one answer; ``remarks`` are further notes.

    Raises:
        OptionError: there are no parts.
    """
    if not parts:
        raise OptionError("no trace was given")
    rows = joined(parts)
    on = places(rows.drop("device"))
    known = rows["compute_ns"].null_count() < rows.height
    within = tuple(statistics.DEVICE_PARTS if known else statistics.HOST_PARTS)
    steps = statistics.judged(rows, within).with_columns(on)
    ranks = statistics.ranks(steps)
    return Steps(
        steps=steps,
        ranks=ranks.with_columns(places(ranks)),
        common=statistics.common(steps, within),
        remarks=tuple(remarks),
    )
