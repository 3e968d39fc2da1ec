"""GPU memory: peaks, allocation sites, out-of-memory errors, growth, and comparison of runs.

Input are traces of one rank each: memory snapshots, traces with ``[memory]`` instants, or with
allocations of the process. ``ledger`` builds the history and the allocations of each device,
``attribution`` finds the code and the category of each allocation, ``rank_memory`` combines both
for one rank. ``regions`` reconstructs reserved and free memory at a position. The analyzers are in
``compute`` (memory live at the peak, and the plots), ``oom``, ``growth``, ``diff`` and ``fill``;
``result`` is the result of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.memory.options import (
    DiffOptions,
    GrowthOptions,
    MemoryOptions,
    OomOptions,
)

if TYPE_CHECKING:
    from traceanalyzer.analyzers.memory.diff import MemoryDiff
    from traceanalyzer.analyzers.memory.growth import MemoryGrowth
    from traceanalyzer.analyzers.memory.oom import MemoryErrors
    from traceanalyzer.analyzers.memory.result import Memory
    from traceanalyzer.trace import Inputs


def memory(
    inputs: Inputs,
    *,
    library_name: str | Sequence[str] = (),
    min_bytes: int | None = None,
    capacity_bytes: int | None = None,
    step_name: str | None = None,
    step_every: str | int | None = None,
    **reading: Unpack[Reading],
) -> Memory:
    """How much memory does each GPU use, when is the peak, and which code allocated it?

    Args:
        inputs: memory snapshots (``torch.cuda.memory._dump_snapshot``), traces with ``[memory]``
            instants or nsys exports with allocations; one, several, or a folder.
        library_name: packages whose frames name an allocation; default: your own code.
        min_bytes: list and draw only allocations of at least this size; totals count all.
        capacity_bytes: memory of the device, for out-of-memory errors as in :func:`memory_oom`.
        step_name: regular expression of step annotations, for growth as in :func:`memory_growth`.
        step_every: length of a step as a time or a number of events, for growth.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no memory events were recorded, or none of the requested steps.
        OptionError: an option is invalid.
    """
    from traceanalyzer.analyzers.memory.compute import MEMORY
    from traceanalyzer.run.loop import run

    options = MemoryOptions(
        library_name,
        min_bytes,
        capacity_bytes=capacity_bytes,
        step_name=step_name,
        step_every=step_every,
    )
    return run(MEMORY, inputs, options, **reading)


def memory_oom(
    inputs: Inputs,
    *,
    library_name: str | Sequence[str] = (),
    min_bytes: int | None = None,
    capacity_bytes: int | None = None,
    **reading: Unpack[Reading],
) -> MemoryErrors:
    """Why did memory run out: fragmentation, real demand, or memory outside PyTorch?

    For each out-of-memory error in the history of a snapshot: the request, free memory of the
    device, reserved, allocated and unused memory, the largest free block, and live memory by stack.

    Args:
        inputs: memory snapshots.
        library_name: packages whose frames name an allocation; default: your own code.
        min_bytes: list and draw only allocations of at least this size; totals count all.
        capacity_bytes: memory of the device, to compute memory used outside PyTorch; snapshots do
            not record it.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no memory events were recorded.
        OptionError: the capacity is less than reserved and free memory.
    """
    from traceanalyzer.analyzers.memory.oom import MEMORY_OOM
    from traceanalyzer.run.loop import run

    options = OomOptions(library_name, min_bytes, capacity_bytes=capacity_bytes)
    return run(MEMORY_OOM, inputs, options, **reading)


def memory_growth(
    inputs: Inputs,
    *,
    library_name: str | Sequence[str] = (),
    min_bytes: int | None = None,
    step_name: str | None = None,
    step_every: str | int | None = None,
    **reading: Unpack[Reading],
) -> MemoryGrowth:
    """Which memory grows from step to step and is never freed?

    Live bytes are measured at the end of each step by stack. A stack that grew in at least the last
    three steps is a suspect.

    Args:
        inputs: memory snapshots.
        library_name: packages whose frames name an allocation; default: your own code.
        min_bytes: list and draw only allocations of at least this size; totals count all.
        step_name: regular expression of step annotations; default: those of torch.profiler, and
            names like ``step 3``.
        step_every: length of a step as a time (``250ms``) or a number of events.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no memory events were recorded, or no steps.
        OptionError: an option is invalid.
    """
    from traceanalyzer.analyzers.memory.growth import MEMORY_GROWTH
    from traceanalyzer.run.loop import run

    options = GrowthOptions(library_name, min_bytes, step_name=step_name, step_every=step_every)
    return run(MEMORY_GROWTH, inputs, options, **reading)


def memory_diff(
    inputs: Inputs,
    other: Inputs,
    *,
    library_name: str | Sequence[str] = (),
    min_bytes: int | None = None,
    **reading: Unpack[Reading],
) -> MemoryDiff:
    """Which code has more or less memory live at the peak than in another run?

    Args:
        inputs: the run to analyze.
        other: the run to compare with.
        library_name: packages whose frames name an allocation; default: your own code.
        min_bytes: list and draw only allocations of at least this size; totals count all.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no memory events were recorded.
    """
    from traceanalyzer.analyzers.memory.diff import MEMORY_DIFF
    from traceanalyzer.run.loop import run

    return run(MEMORY_DIFF, inputs, DiffOptions(library_name, min_bytes, other=other), **reading)
