"""What CUDA calls cost the host, and what copies cost the devices, from files."""

from __future__ import annotations

from typing import Unpack

from traceanalyzer.analyzers import api_calls as calling
from traceanalyzer.analyzers import transfers as copying
from traceanalyzer.analyzers.api_calls import CudaApi
from traceanalyzer.analyzers.transfers import Transfers
from traceanalyzer.api.gathering import Reading, gather
from traceanalyzer.api.reading import Inputs


def cuda_api(inputs: Inputs, **reading: Unpack[Reading]) -> CudaApi:
    """What do calls of the CUDA or HIP runtime and driver cost the host, and which hold it up?

    By name: how many, how long in all, mean, median, shortest, longest, 99th percentile. Found are
    copies and sets that block the host, calls that wait for the device, and memory that is
    allocated between the first and the last launch.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no calls were recorded.
    """
    found = gather(inputs, calling.NEEDS, calling.extract, **reading)
    return calling.combine(found.parts, found.notes)


def transfers(inputs: Inputs, **reading: Unpack[Reading]) -> Transfers:
    """What is copied and set, by direction, memory and size, how fast, and is it hidden?

    Args:
        inputs: a trace, a file or a folder, or several of them.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no copy or set was recorded.
    """
    found = gather(inputs, copying.NEEDS, copying.extract, **reading)
    return copying.combine(found.parts, found.notes)
