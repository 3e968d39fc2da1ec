"""What is in these files: format, rank, time, events by kind, communication, what was lost.

``compute`` describes each file and adds them up, ``result`` is the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.info.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.info.compute import Info
    from traceanalyzer.reading import Inputs


def info(
    inputs: Inputs,
    *,
    skipped: Iterable[tuple[str, str]] = (),
    **reading: Unpack[Reading],
) -> Info:
    """What is in these files: format, rank, host, time, events by kind, communication, losses?

    One file is in memory at a time. Among several, a file that cannot be read is listed with the
    reason instead of ending it all, as are those of ``skipped``.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        skipped: (path, reason) of files that the caller has left out already.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: the only file cannot be read.
    """
    from traceanalyzer.analyzers.info.compute import INFO
    from traceanalyzer.reading import each_and_foreign
    from traceanalyzer.run import collect, truncated_notes, with_notes

    items, foreign = each_and_foreign(inputs)
    found = collect(INFO, items, Options(), may_be_empty=len(items) != 1, **reading)
    unread = [(one.path, one.why) for one in found.skipped]
    result = INFO.combine(found.parts, Options((*skipped, *foreign, *unread)), ())
    return with_notes(result, truncated_notes(found.truncated))
