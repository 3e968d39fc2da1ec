"""Contents of files: format, rank, time, events by kind, communication, dropped events.

``compute`` describes each file, combines all and has the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.info.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.info.compute import Info
    from traceanalyzer.trace import Inputs


def info(
    inputs: Inputs,
    *,
    skipped: Iterable[tuple[str, str]] = (),
    quick: bool | None = None,
    **reading: Unpack[Reading],
) -> Info:
    """Describe files: format, rank, host, time, events by kind, communication, dropped events.

    One file is in memory at a time. If there are several, files that cannot be read are listed with
    the reason, as are those of ``skipped``.

    Of many or large files only the beginning and the end are read: their events are not counted,
    and a note says so.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        skipped: (path, reason) of files that the caller has already skipped.
        quick: whether to read only the beginning and the end of large files; None: if reading all
            of them takes long, and no option selects events.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: the only file cannot be read.
        OptionError: ``quick`` with options that select events, or with a trace in memory.
    """
    from traceanalyzer.analyzers.info.compute import INFO
    from traceanalyzer.run.find import each_and_skipped
    from traceanalyzer.run.loop import collect, guarded, truncated_notes, with_notes

    items, foreign = each_and_skipped(inputs)
    if quick is not False:
        from traceanalyzer.analyzers.info.quick import described

        result = described(items, (*skipped, *foreign), reading, required=quick is True)
        if result is not None:
            return result
    collected = collect(INFO, items, Options(), may_be_empty=len(items) != 1, **reading)
    unread = [(one.path, one.why) for one in collected.skipped]
    with guarded(collected.summaries):
        result = INFO.combine(collected.parts, Options((*skipped, *foreign, *unread)), ())
        if collected.summaries:
            result.view()
    return with_notes(result, truncated_notes(collected.truncated, collected.metas))
