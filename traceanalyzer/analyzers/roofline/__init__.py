"""Roofline of kernels from reports of Nsight Compute, and of operators from traces.

``metrics`` has the metrics of ncu, their formulas, and the rates of each launch; ``compute`` reads
them, or the operators of :mod:`~traceanalyzer.analyzers.efficiency`, and combines files; ``result``
has the data, verdict, notes, tables and charts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, comm_patterns, option
from traceanalyzer.analyzers.efficiency.peaks import Peaks, with_given
from traceanalyzer.errors import OptionError

By = Literal["kernel", "launch"]
LEVELS = ("HBM", "L2", "L1")


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Roofline: FLOP/s over arithmetic intensity, of kernels (Nsight Compute) or operators.

    PATH is a report of Nsight Compute (ncu --csv, any page, or .ncu-rep), or a trace of PyTorch
    recorded with record_shapes=True, or a folder of one of them.
    """

    by: By = option(
        "kernel",
        help="Points of a report of Nsight Compute: kernels, or single launches.",
        choices=get_args(By),
        show_default=True,
    )
    peak: Sequence[str] = option(
        (),
        help="Dense peak of the GPU in TFLOP/s, such as bf16=989.4; overrides other peaks. "
        "Repeatable.",
        metavar="PRECISION=TFLOPS",
    )
    bandwidth: Sequence[str] = option(
        (),
        help="Bandwidth of a level of memory in GB/s: HBM=3350, L2=5500, L1=33000; a number alone "
        "is HBM. Repeatable.",
        metavar="LEVEL=GBPS",
    )
    comm_patterns: Sequence[str] = comm_patterns()

    def __post_init__(self) -> None:
        if isinstance(self.bandwidth, (int, float)):
            object.__setattr__(self, "bandwidth", (f"{self.bandwidth:g}",))
        super().__post_init__()
        with_given(Peaks({}), self.peak, None)
        self.bandwidths()

    def bandwidths(self) -> dict[str, float]:
        """Return the given GB/s by level.

        Raises:
            OptionError: a bandwidth is not ``LEVEL=GBPS``.
        """
        given = {}
        for text in self.bandwidth:
            level, _, value = text.rpartition("=")
            level = level.strip().upper().replace("DRAM", "HBM") or "HBM"
            try:
                number = float(value)
            except ValueError:
                number = 0.0
            if level not in LEVELS or not 0 < number < float("inf"):
                raise OptionError(
                    f"invalid bandwidth={text!r}; write LEVEL=GBPS, such as HBM=3350, LEVEL one of "
                    f"{', '.join(LEVELS)}"
                )
            given[level] = number
        return given
