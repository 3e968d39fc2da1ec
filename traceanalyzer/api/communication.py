"""Communication of one rank or several, from files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack

from traceanalyzer.analyzers import comm_outliers as comm
from traceanalyzer.analyzers.comm_outliers import CommOutliers, Part
from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.analyzers.ranks import by_rank, of_rank
from traceanalyzer.api.gathering import Reading, cut, cut_off_notes, perhaps_cut_off
from traceanalyzer.api.reading import Inputs, PathLike, each, format_of, read, several
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.trace import Meta, Trace, is_cut_off

if TYPE_CHECKING:
    from traceanalyzer.analyzers.memory import Fill

_SNAPSHOT = "memory-snapshot"


def comm_outliers(
    inputs: Inputs,
    *,
    baseline: Inputs | None = None,
    memory: Inputs = (),
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
        inputs: a trace, a file or a folder, or several of them, a rank each. Memory snapshots among
            them are taken for ``memory``.
        baseline: the same of another run, to compare each group's median with.
        memory: memory snapshots, or traces with ``[memory]`` instants: was the device nearly full
            when collectives were slow?
        factor: an outlier lasts longer than this many times its group's median ...
        z: ... and has a modified z-score above this.
        patterns: regular expressions of further kernel names that are communication.
        min_wait_ns: lateness worth naming; default a tenth of the median step, 1 ms without steps.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no communication in the inputs, or in the baseline; nothing about memory in
            what was given for it.
        OptionError: a pattern or a number makes no sense.
    """
    gathering = _Gathering(reading, several(patterns))
    items, snapshots = _apart(each(inputs), reading.get("format"))
    try:
        result = comm.combine(
            gathering.parts(items),
            baseline=None if baseline is None else gathering.parts(each(baseline)),
            factor=factor,
            z=z,
            min_wait_ns=min_wait_ns,
        )
    except MissingData as error:
        raise perhaps_cut_off(error, is_cut=bool(gathering.cut_off)) from None
    result = with_late_ranks(result, items, reading)
    result = replace(result, remarks=(*result.remarks, *cut_off_notes(gathering.cut_off)))
    held = [fill for item in (*snapshots, *each(memory)) for fill in gathering.fills(item)]
    return comm.with_memory(result, gathering.metas, held) if held else result


def with_late_ranks(
    result: CommOutliers, items: Sequence[Trace | str], reading: Reading
) -> CommOutliers:
    """The same result, knowing what late ranks were doing: of files that is read for it."""
    return comm.with_context(result, _contexts(result, items, _Gathering(reading, ())))


def _apart(
    items: Sequence[Trace | str], given: str | None
) -> tuple[list[Trace | str], list[Trace | str]]:
    """Traces, and the memory snapshots among them; those alone are taken for traces."""
    if len(items) == 1:
        return list(items), []
    own: list[Trace | str] = []
    snapshots: list[Trace | str] = []
    for item in items:
        name = item.meta.format if isinstance(item, Trace) else given or format_of(item)
        (snapshots if name == _SNAPSHOT else own).append(item)
    return (own, snapshots) if own else (snapshots, [])


@dataclass
class _Gathering:
    """What is wanted of each input.

    Attributes:
        how: how files are read.
        patterns: of further kernel names that are communication.
        metas: of the traces read, by path.
        cut_off: the paths of those whose end is missing.
    """

    how: Reading
    patterns: tuple[str, ...]
    metas: dict[str, Meta] = field(default_factory=dict)
    cut_off: list[str] = field(default_factory=list)

    def parts(self, items: Sequence[Trace | str]) -> list[Part]:
        """Every rank's communication.

        Raises:
            OptionError: there is none of the rank asked for.
        """
        alone, rank = len(items) == 1, self.how.get("rank")
        found: list[Part] = []
        for item in items:
            found += self._own(item, alone=alone)
        if not found:
            raise OptionError("no input" if rank is None else f"no input is of rank {rank}")
        return found

    def fills(self, item: Trace | str) -> list[Fill]:
        """How full the devices of an input were."""
        from traceanalyzer.analyzers.memory import FILL_NEEDS, fills  # few ask: loaded for them

        trace = item if isinstance(item, Trace) else self._whole(item, FILL_NEEDS)
        return [fill for own in by_rank(trace) for fill in fills(own)]

    def read(self, needs: Needs, path: PathLike, **more: Any) -> Trace:
        """A file, or what of it is asked for."""
        window = {name: self.how.get(name) for name in ("since_ns", "until_ns")}
        how = {"format": self.how.get("format"), "unused": needs.unused, **window, **more}
        return read(path, kinds=needs.kinds, names=needs.names, **how)

    def _own(self, item: Trace | str, *, alone: bool) -> list[Part]:
        if isinstance(item, Trace):
            return self._extracted(cut(item, self.how), alone=alone)
        trace = self.read(comm.NEEDS, item, progress=self.how.get("progress"))
        if seen := self.how.get("seen"):
            seen(trace)
        found = self._extracted(trace, alone=alone)
        if any(part.wants_launches for part in found):
            found = self._extracted(self.read(comm.LAUNCHES, item), alone=alone)
        return found

    def _extracted(self, trace: Trace, *, alone: bool) -> list[Part]:
        if is_cut_off(trace) and trace.meta.path not in self.metas:
            self.cut_off.append(trace.meta.path)
        self.metas |= {meta.path: meta for meta in trace.sources}
        chosen = of_rank([trace], self.how.get("rank"), alone=alone)
        return [comm.extract(own, self.patterns) for own in chosen]

    def _whole(self, path: str, needs: Needs) -> Trace:
        """The history of memory counts as a whole, whatever stretch is asked about."""
        trace = read(path, kinds=needs.kinds, progress=self.how.get("progress"))
        if seen := self.how.get("seen"):
            seen(trace)
        return trace


def _contexts(
    result: CommOutliers, items: Sequence[Trace | str], gathering: _Gathering
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
        gathering.read(comm.CONTEXT, path, windows=stretches, **whole)
        for path, stretches in windows.items()
    ]
    return [*in_memory, *(own for trace in again for own in by_rank(trace))]
