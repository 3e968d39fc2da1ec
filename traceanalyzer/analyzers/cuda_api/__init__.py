"""What calls of the CUDA and HIP runtime and driver cost the host, and which hold it up.

``findings`` tells by name what a call does, and what is found in calls; ``compute`` takes a rank's
calls with the copies and sets they started and joins all ranks, ``result`` holds the numbers and
what is shown of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.cuda_api.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.cuda_api.result import CudaApi
    from traceanalyzer.reading import Inputs


def cuda_api(inputs: Inputs, **reading: Unpack[Reading]) -> CudaApi:
    """What do calls of the CUDA or HIP runtime and driver cost the host, and which hold it up?

    By name: how many, how long in all, mean, median, shortest, longest, 99th percentile. Found are
    copies and sets that block the host, calls that wait for the device, and memory that is
    allocated between the first and the last launch.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no calls were recorded.
    """
    from traceanalyzer.analyzers.cuda_api.compute import CUDA_API
    from traceanalyzer.run import run

    return run(CUDA_API, inputs, Options(), **reading)
