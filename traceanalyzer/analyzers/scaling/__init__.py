"""Speed-up and parallel efficiency of runs on different numbers of GPUs, and where the loss is.

``compute`` measures the steps and the states of each device (as ``timeline`` does) and compares the
runs, ``result`` has the data, verdict, notes, tables and charts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions, comm_patterns, option, step_name


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Compare runs on different numbers of GPUs: speed-up, parallel efficiency, where the loss is.

    PATH is the folder of a run, several of them (RUN4 RUN8 RUN16), or traces. The metrics of
    itwinai (CSV folders, MLflow's file store) are read too.
    """

    weak: bool = option(
        default=False,
        help="Weak scaling: the work per GPU is the same in all runs. Default: strong scaling, the "
        "work of a step is the same in all runs.",
        measured=False,
    )
    step_name: str | None = step_name()
    comm_patterns: Sequence[str] = comm_patterns()
