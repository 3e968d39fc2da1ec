"""Communication of one rank or several, from files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from traceanalyzer.analyzers import comm_outliers as comm
from traceanalyzer.analyzers.comm_outliers import CommOutliers, Part
from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.analyzers.ranks import by_rank, of_rank
from traceanalyzer.api.gathering import Reading
from traceanalyzer.api.reading import Inputs, PathLike, each, read, several
from traceanalyzer.errors import OptionError
from traceanalyzer.trace import Trace


def comm_outliers(
    inputs: Inputs,
    *,
    baseline: Inputs | None = None,
    factor: float = 3.0,
    z: float = 3.5,
    patterns: str | Sequence[str] = (),
    min_wait_ns: int | None = None,
    **reading: Unpack[Reading],
) -> CommOutliers:
    """Which collectives took unusually long, which rank was late, and what it was doing meanwhile.

    The analysis is :func:`traceanalyzer.analyzers.comm_outliers.comm_outliers`; this function
    reads from files no more than it needs: device work and annotations of every file, launch calls
    where they alone tell which collective a kernel belongs to, and host events only of late ranks,
    only in the stretches in which the others waited. One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them, a rank each.
        baseline: the same of another run, to compare each group's median with.
        factor: an outlier lasts longer than this many times its group's median ...
        z: ... and has a modified z-score above this.
        patterns: regular expressions of further kernel names that are communication.
        min_wait_ns: lateness worth naming; default a tenth of the median step, 1 ms without steps.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no communication in the inputs, or in the baseline.
        OptionError: a pattern or a number makes no sense.
    """
    rank, seen = reading.get("rank"), reading.get("seen")
    window = {name: reading.get(name) for name in ("since_ns", "until_ns")}

    def read_for(needs: Needs, path: PathLike, **more: Any) -> Trace:
        how = {"format": reading.get("format"), "unused": needs.unused, **window, **more}
        return read(path, kinds=needs.kinds, names=needs.names, **how)

    def parts(items: Sequence[Trace | str]) -> list[Part]:
        wanted, alone = several(patterns), len(items) == 1

        def extracted(trace: Trace) -> list[Part]:
            chosen = of_rank([trace], rank, alone=alone)
            return [comm.extract(own, wanted) for own in chosen]

        found: list[Part] = []
        for item in items:
            if isinstance(item, Trace):
                found += extracted(item)
                continue
            trace = read_for(comm.NEEDS, item, progress=reading.get("progress"))
            if seen:
                seen(trace)
            own = extracted(trace)
            if any(part.wants_launches for part in own):
                own = extracted(read_for(comm.LAUNCHES, item))
            found += own
        if not found:
            raise OptionError("no input" if rank is None else f"no input is of rank {rank}")
        return found

    items = each(inputs)
    result = comm.combine(
        parts(items),
        baseline=None if baseline is None else parts(each(baseline)),
        factor=factor,
        z=z,
        min_wait_ns=min_wait_ns,
    )
    return comm.with_context(result, _contexts(result, items, read_for))


def _contexts(
    result: CommOutliers, items: Sequence[Trace | str], read_for: Callable[..., Trace]
) -> list[Trace]:
    """Traces that show what late ranks were doing: those in memory, and files read again."""
    in_memory = [own for item in items if isinstance(item, Trace) for own in by_rank(item)]
    windows: dict[str, list[tuple[int, int]]] = {}
    for window in result.windows:
        windows.setdefault(window.path, []).append((window.start_ns, window.end_ns))
    for trace in in_memory:
        windows.pop(trace.meta.path, None)
    whole = {"since_ns": None, "until_ns": None}
    again = [
        read_for(comm.CONTEXT, path, windows=stretches, **whole)
        for path, stretches in windows.items()
    ]
    return [*in_memory, *(own for trace in again for own in by_rank(trace))]
