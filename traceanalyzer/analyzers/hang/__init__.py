"""Why does a distributed job hang? From the Flight Recorder dumps of its ranks.

``compute`` reads each rank's records and combines them; ``matching`` identifies process groups,
aligns collectives by sequence number, compares the calls of the ranks, and matches sends with
receives; ``waiting`` finds what waits for what, and the causes at the end; ``texts`` has the
sentences and the advice, ``result`` the answer.
"""

from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Find the rank that a hanging job waits for, from Flight Recorder dumps.

    PATH is a dump, or a folder with one dump per rank (pickle or JSON), and optionally the output
    of py-spy dump of the same ranks.
    """
