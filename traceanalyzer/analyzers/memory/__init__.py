"""What fills the memory of GPUs: when most is in use, by which code, and what is odd about it.

Traces of one rank each come in: memory snapshots, or traces with ``[memory]`` instants or
allocations of the process. ``ledger`` makes of them one history of each device and the allocations
it consists of, ``attribution`` finds the code and the purpose of each, ``rank_memory`` has both
for one rank. ``regions`` tells what memory was held at a moment and where in it there was room. The
analyzers are in ``compute`` (what is live at the peak, and the picture), ``oom``, ``growth``,
``diff`` and ``fill``; ``result`` is what the first of them returns.
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
    from traceanalyzer.reading import Inputs


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
    """How much memory of each GPU is in use, when most, and which code allocated it?

    Args:
        inputs: memory snapshots (``torch.cuda.memory._dump_snapshot``), traces with ``[memory]``
            instants or exports of nsys with allocations; one, several, or a folder.
        library_name: packages whose frames name an allocation; by default your own code's do.
        min_bytes: list and draw only allocations of this size or more; sums count all.
        capacity_bytes: memory of the device, for out-of-memory errors as in :func:`memory_oom`.
        step_name: which annotations are steps, for growth as in :func:`memory_growth`.
        step_every: a time or a number of events that is a step, likewise.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: nothing about memory was recorded, or not the steps that are asked for.
        OptionError: an option makes no sense.
    """
    from traceanalyzer.analyzers.memory.compute import MEMORY
    from traceanalyzer.run import run

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

    For each out-of-memory error in a snapshot's history: the request, what was free on the device,
    reserved, allocated and unused, the largest free piece, and what was alive by stack.

    Args:
        inputs: memory snapshots.
        library_name: packages whose frames name an allocation; by default your own code's do.
        min_bytes: list and draw only allocations of this size or more; sums count all.
        capacity_bytes: memory of the device, which a snapshot does not tell; with it, memory that
            others hold is told apart.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: nothing about memory was recorded.
        OptionError: the capacity is less than what is known to be there.
    """
    from traceanalyzer.analyzers.memory.oom import MEMORY_OOM
    from traceanalyzer.run import run

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
    """What grows from step to step, and is never given back?

    Live bytes are taken at the end of each step, by stack. A stack whose bytes grew in each of the
    last three steps or more is a suspect.

    Args:
        inputs: memory snapshots.
        library_name: packages whose frames name an allocation; by default your own code's do.
        min_bytes: list and draw only allocations of this size or more; sums count all.
        step_name: a regular expression of the annotations that are steps; default: those of
            torch.profiler, and names like ``step 3``.
        step_every: a time (``250ms``) or a number of events that is a step instead.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: nothing about memory was recorded, or no steps are marked.
        OptionError: an option makes no sense.
    """
    from traceanalyzer.analyzers.memory.growth import MEMORY_GROWTH
    from traceanalyzer.run import run

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
    """What holds more or less memory at the peak than in another run?

    Args:
        inputs: the run to look at.
        other: the run to compare with.
        library_name: packages whose frames name an allocation; by default your own code's do.
        min_bytes: list and draw only allocations of this size or more; sums count all.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: nothing about memory was recorded.
    """
    from traceanalyzer.analyzers.memory.diff import MEMORY_DIFF
    from traceanalyzer.run import run

    return run(MEMORY_DIFF, inputs, DiffOptions(library_name, min_bytes, other=other), **reading)
