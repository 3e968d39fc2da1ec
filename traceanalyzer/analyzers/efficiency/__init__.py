"""FLOP/s and memory bandwidth of operators against the peaks of the GPU, and MFU.

``formulas`` has the FLOPs and bytes of each operator, ``inputs`` the recorded shapes and types,
``peaks`` the GPUs. ``calls`` assigns kernels to operators, ``compute`` combines steps and ranks,
``result`` has the data, verdict, notes, tables and charts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, comm_patterns, option, step_name
from traceanalyzer.analyzers.efficiency.peaks import Peaks, with_given
from traceanalyzer.errors import OptionError

Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Compare FLOP/s and bandwidth with the peaks of the GPU: MFU, and lost time by operator.

    PATH is a trace of PyTorch recorded with record_shapes=True, several of them, or a folder. Other
    traces need --params and --tokens, and give the MFU only.
    """

    peak: Sequence[str] = option(
        (),
        help="Dense peak of the GPU in TFLOP/s, such as bf16=989.4; overrides the built-in table. "
        "Repeatable.",
        metavar="PRECISION=TFLOPS",
        measured=False,
    )
    bandwidth: float | None = option(
        None,
        help="Memory bandwidth of the GPU in GB/s, such as 3350.",
        metavar="GBPS",
        above=0,
        measured=False,
    )
    precision: Precision | None = option(
        None,
        help="Peak that MFU is relative to. Default: precision of most FLOPs; bf16 without shapes.",
        choices=get_args(Precision),
        measured=False,
    )
    params: float | None = option(
        None, help="Parameters of the model, for MFU as 6 x N x T: 7e9.", metavar="N", above=0
    )
    tokens: float | None = option(
        None,
        help="Tokens per step on all GPUs, for MFU as 6 x N x T.",
        metavar="T",
        above=0,
        measured=False,
    )
    gpus: int | None = option(
        None,
        help="GPUs that share the tokens. Default: world size of the job, else GPUs in the files.",
        metavar="N",
        minimum=1,
        measured=False,
    )
    step_name: str | None = step_name()
    comm_patterns: Sequence[str] = comm_patterns()

    def __post_init__(self) -> None:
        super().__post_init__()
        with_given(Peaks({}), self.peak, self.bandwidth)
        if (self.params is None) != (self.tokens is None):
            raise OptionError("params and tokens belong together: MFU is 6 x N x T / (time x peak)")
