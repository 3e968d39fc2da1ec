"""Time, memory and FLOPs of each ``nn.Module``, forward and backward.

``assignment`` joins backward nodes to forward operators, and gives each call and each kernel of a
CUDA graph to a module and a phase; ``compute`` sums the calls of a rank and combines the ranks;
``result`` has the data, verdict, notes, tables, charts and flame graphs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions, option


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show the time, memory and FLOPs of each module of the model, forward and backward.

    Modules are the nn.Module frames of torch.profiler with with_stack=True, or those of TorchScript
    with with_modules=True. PATH is a trace, several of them, or a folder; ranks are summed.
    """

    patterns: Sequence[str] = option(
        (),
        help="Annotations (record_function, NVTX) with matching names are modules too. Repeatable.",
        flag="--pattern",
        metavar="REGEX",
    )
    depth: int | None = option(
        None,
        help="Count modules below this depth for the module at this depth; 1: only the outermost.",
        metavar="N",
        minimum=1,
        measured=False,
    )
