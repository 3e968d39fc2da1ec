"""Contents of files: format, rank, time, events by kind, communication, dropped events.

``compute`` describes each file, combines all and has the result; ``quick`` reads only the beginning
and the end of a file.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions, option


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Describe files: format, rank, host, time, events by kind, communication, dropped events.

    PATH is a file or a folder (searched recursively; other files are listed and skipped).
    """

    skipped: Iterable[tuple[str, str]] = option(
        (), help="Path and reason of files that were not read.", command_line=False
    )
    quick: bool | None = option(
        None,
        help="Read only the beginning and the end of large files; None: if all take long.",
        command_line=False,
        measured=False,
    )
