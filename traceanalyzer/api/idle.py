"""Idle time of devices, from files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from traceanalyzer.analyzers import gpu_idle as idle
from traceanalyzer.analyzers.gpu_idle import By, GpuIdle, Ground, Part
from traceanalyzer.api.gathering import Reading, gather
from traceanalyzer.api.reading import Inputs, several
from traceanalyzer.trace import Trace


def gpu_idle(
    inputs: Inputs,
    *,
    min_gap_ns: int = 10_000,
    dataloader: str | Sequence[str] = (),
    patterns: str | Sequence[str] = (),
    by: By = "device",
    library_names: str | Sequence[str] = (),
    step_name: str | None = None,
    **reading: Unpack[Reading],
) -> GpuIdle:
    """Why is the GPU idle, and what does waiting for the data loader cost?

    The analysis is :func:`traceanalyzer.analyzers.gpu_idle.gpu_idle`, where causes and definitions
    are. One file is in memory at a time; of several, what cannot be read is left out and named.

    Args:
        inputs: a trace, a file or a folder, or several of them, a rank each.
        min_gap_ns: shorter gaps count as ``short_gap``, the ordinary distance of kernels.
        dataloader: regular expressions of further host slices that are dataloading.
        patterns: regular expressions of further kernels that are communication.
        by: ``device``; ``process``: each process's part of a device; ``step``: steps come first.
        library_names: whose innermost Python frame is told of each gap; none: the user's own code.
        step_name: a regular expression of the slices that are steps.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: no file can be read.
        MissingData: neither device work nor operators were recorded.
        OptionError: an option makes no sense.
    """

    def take(trace: Trace) -> Ground:
        return idle.lay(
            trace,
            patterns=several(patterns),
            by_process=by == "process",
            step_name=step_name,
        )

    def measure(ground: Ground) -> Part:
        return idle.measure(
            ground,
            min_gap_ns=min_gap_ns,
            dataloader=several(dataloader),
            libraries=several(library_names),
        )

    found = gather(inputs, idle.NEEDS, measure, take=take, **reading)
    return idle.combine(found.parts, min_gap_ns=min_gap_ns, by=by, notes=found.notes)
