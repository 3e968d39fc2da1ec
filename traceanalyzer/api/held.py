"""What fills the memory of GPUs, from files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Unpack

from traceanalyzer.analyzers import memory as using
from traceanalyzer.analyzers.memory import (
    Memory,
    MemoryDiff,
    MemoryErrors,
    MemoryGrowth,
    growth,
    oom,
)
from traceanalyzer.api.gathering import Reading, gather, skipped_notes
from traceanalyzer.api.reading import Inputs, several
from traceanalyzer.errors import OptionError


def memory(
    inputs: Inputs, *, library_name: str | Sequence[str] = (), **reading: Unpack[Reading]
) -> Memory:
    """How much memory of each GPU is in use, when most, and which code allocated it?

    Args:
        inputs: memory snapshots (``torch.cuda.memory._dump_snapshot``), traces with ``[memory]``
            instants or exports of nsys with allocations; one, several, or a folder.
        library_name: packages whose frames name an allocation; by default your own code's do.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: nothing about memory was recorded.
    """
    return _memory(inputs, using.extract, library_name, reading)


def memory_oom(
    inputs: Inputs,
    *,
    library_name: str | Sequence[str] = (),
    capacity_bytes: int | None = None,
    **reading: Unpack[Reading],
) -> MemoryErrors:
    """Why did memory run out: fragmentation, real demand, or memory outside PyTorch?

    For each out-of-memory error in a snapshot's history: the request, what was free on the device,
    reserved, allocated and unused, the largest free piece, and what was alive by stack.

    Args:
        inputs: memory snapshots.
        library_name: packages whose frames name an allocation; by default your own code's do.
        capacity_bytes: memory of the device, which a snapshot does not tell; with it, memory that
            others hold is told apart.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: nothing about memory was recorded.
        OptionError: the capacity is less than what is known to be there.
    """
    extract = partial(oom.extract, capacity_bytes=capacity_bytes)
    if capacity_bytes is not None and capacity_bytes <= 0:
        raise OptionError(f"a capacity is more than {capacity_bytes} bytes")
    found = _gathered(inputs, extract, library_name, reading)
    return using.errors_of(*found, windowed=bool(_window_note(reading)))


def memory_growth(
    inputs: Inputs,
    *,
    library_name: str | Sequence[str] = (),
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
        step_name: a regular expression of the annotations that are steps; default: those of
            torch.profiler, and names like ``step 3``.
        step_every: a time (``250ms``) or a number of events that is a step instead.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: nothing about memory was recorded, or no steps are marked.
        OptionError: an option makes no sense.
    """
    extract = partial(growth.extract, step_name=step_name, step_every=_text(step_every))
    return using.growth_of(*_gathered(inputs, extract, library_name, reading))


def memory_diff(
    inputs: Inputs,
    other: Inputs,
    *,
    library_name: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> MemoryDiff:
    """What holds more or less memory at the peak than in another run?

    Args:
        inputs: the run to look at.
        other: the run to compare with.
        library_name: packages whose frames name an allocation; by default your own code's do.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: nothing about memory was recorded.
    """
    extract = partial(using.extract, drawn=False)
    new, old = (_memory(run, extract, library_name, reading) for run in (inputs, other))
    return using.diff_of(new, old)


def _memory(
    inputs: Inputs,
    extract: Callable[..., Any],
    library_name: str | Sequence[str],
    reading: Reading,
) -> Memory:
    parts, remarks = _gathered(inputs, extract, library_name, reading)
    return using.combine(parts, (*remarks, *_window_note(reading)))


def _window_note(reading: Reading) -> tuple[str, ...]:
    """What a stretch of time leaves out."""
    if reading.get("since_ns") is None and reading.get("until_ns") is None:
        return ()
    return ("Only what lies in the stretch asked for counts, but for the blocks at the end.",)


def _text(step_every: str | int | None) -> str | None:
    return None if step_every is None else str(step_every)


def _gathered(
    inputs: Inputs,
    extract: Callable[..., Any],
    library_name: str | Sequence[str],
    reading: Reading,
) -> tuple[list[Any], tuple[str, ...]]:
    """What ``extract`` makes of each rank, and remarks about what was left out."""
    # the whole history is needed to know what was there at the window's start
    window = (reading.get("since_ns"), reading.get("until_ns"))
    whole: Reading = {**reading, "since_ns": None, "until_ns": None}
    own = partial(extract, library_names=several(library_name), window=window)
    found = gather(inputs, using.NEEDS, own, **whole)
    return found.parts, skipped_notes(found.skipped)
