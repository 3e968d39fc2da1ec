"""Host time of CUDA and HIP runtime and driver calls, and which of them block the host.

``findings`` classifies calls by name and has the findings; ``compute`` measures a rank's calls with
their copies and memsets and combines all ranks, ``result`` has the data, verdict, notes, tables and
charts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.cuda_api.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.cuda_api.result import CudaApi
    from traceanalyzer.trace import Inputs


def cuda_api(inputs: Inputs, **reading: Unpack[Reading]) -> CudaApi:
    """Return the host time of CUDA and HIP runtime and driver calls, and which block the host.

    By name: count, total, mean, median, minimum, maximum, 99th percentile. Findings are copies and
    memsets that block the host, calls that wait for the device, and memory that is allocated
    between the first and the last launch.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no calls were recorded.
    """
    from traceanalyzer.analyzers.cuda_api.compute import CUDA_API
    from traceanalyzer.run.loop import run

    return run(CUDA_API, inputs, Options(), **reading)
