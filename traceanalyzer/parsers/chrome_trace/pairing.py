"""Begin and end events to slices: B/E by thread, async by their key."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from traceanalyzer.parsers.chrome_trace.columns import NO_TEXT, Collected, Ints
from traceanalyzer.parsers.chrome_trace.decode import NULL

_BEGIN, _END, _INSTANT = frozenset("BbS"), frozenset("EeF"), frozenset("nTp")


@dataclass
class Paired:
    """Slices made of pairs, a row each: the begin event's row and the end event's (or -1).

    ``asynchronous`` tells async slices from B/E ones.
    """

    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    asynchronous: list[bool] = field(default_factory=list)
    issues: dict[str, int] = field(default_factory=dict)

    def add(self, begin: int, end: int, *, asynchronous: bool) -> None:
        """A slice from its two events' rows."""
        self.begin.append(begin)
        self.end.append(end)
        self.asynchronous.append(asynchronous)

    def count(self, code: str) -> None:
        """Count an oddity."""
        self.issues[code] = self.issues.get(code, 0) + 1


def pair(phase: str, ts: Ints, name: Ints, pid: Ints, tid: Ints, key: Ints) -> Paired:
    """Match begin and end events in the order of time, file order where times are equal.

    An end closes the innermost open slice of its name; one without a name, or with a name that
    nothing open has, closes the innermost. Slices that an end passes over stay open. A slice that
    is never closed has no end; an end with nothing open is dropped. All are counted.
    """
    paired = Paired()
    open_slices: dict[tuple[int, ...], list[int]] = {}
    names, pids, tids, keys = name.tolist(), pid.tolist(), tid.tolist(), key.tolist()
    for row in np.argsort(ts, kind="stable").tolist():
        what, is_async = phase[row], keys[row] != NO_TEXT
        lane = (keys[row],) if is_async else (pids[row], tids[row])
        if what in _BEGIN:
            open_slices.setdefault(lane, []).append(row)
        elif what in _INSTANT:
            paired.add(row, -1, asynchronous=True)
        elif what in _END:
            stack = open_slices.get(lane)
            if not stack:
                paired.count("unmatched-end")
                continue
            at = _closes(stack, row, names, pids)
            if at < 0:
                paired.count("mismatched-end")
            paired.add(stack.pop(at if at >= 0 else -1), row, asynchronous=is_async)
    for stack in open_slices.values():
        for row in stack:
            paired.add(row, -1, asynchronous=keys[row] != NO_TEXT)
            paired.count("unclosed-begin")
    return paired


def _closes(stack: list[int], end: int, names: list[int], pids: list[int]) -> int:
    """Position in the stack of the slice an end closes; -1: of no slice by name."""
    if names[end] == NO_TEXT:
        return len(stack) - 1
    same = [at for at, row in enumerate(stack) if names[row] == names[end]]
    of_process = [at for at in same if pids[stack[at]] == pids[end]]
    return (of_process or same or [-1])[-1]


def paired_columns(collected: Collected) -> tuple[Paired, dict[str, Ints]]:
    """The pairs of a file and the columns of the slices they make, in no particular order."""
    points = collected.points
    columns = {name: points.whole(name) for name in points.names}
    phase = columns.pop("phase").tobytes().decode()
    if not phase:
        return Paired(), {}
    made = pair(
        phase, columns["ts"], columns["name"], columns["pid"], columns["tid"], columns["key"]
    )
    begin, end = np.array(made.begin, dtype=np.int64), np.array(made.end, dtype=np.int64)
    slices = {
        name: columns[name][begin] for name in ("order", "ts", "category", "name", "pid", "tid")
    }
    slices["dur"] = np.where(end >= 0, columns["ts"][end] - slices["ts"], NULL)
    return made, slices
