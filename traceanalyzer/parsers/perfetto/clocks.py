"""Times of packets on the clock of the trace."""

from __future__ import annotations

import numpy as np

from traceanalyzer.parsers.perfetto.state import Described, Key, Snapshot, clock_key
from traceanalyzer.parsers.perfetto.wire import NULL, Ints, numbered

REALTIME: Key = (0, 1)
_LAST = 1 << 62


def on_trace_clock(
    described: Described, ts: Ints, clock: Ints, sequence: Ints
) -> tuple[Ints, Ints]:
    """Return the times of packets on the clock of the trace, and the rows with an unknown clock.

    Args:
        described: the clock snapshots.
        ts: time of each packet, on its clock, in ns or the unit of the clock.
        clock: id of the clock, not null.
        sequence: packet sequence.
    """
    target = (0, described.primary)
    result = np.where((ts >= 0) & (ts < _LAST), ts, NULL)
    keys, of_row = numbered(sequence << 32 | clock)
    unknown = np.zeros(len(ts), np.bool_)
    for number, both in enumerate(keys.tolist()):
        key = clock_key(both & 0xFFFFFFFF, both >> 32 & 0xFFFFFFFF)
        if key == target:
            continue
        rows = np.flatnonzero(of_row == number)
        times = _absolute(described.snapshots, key, result[rows], rows)
        path = _path(described.snapshots, key, target)
        if path is None:
            unknown[rows] = True
        else:
            for source, to in path:
                times = _converted(described.snapshots, source, to, times)
        result[rows] = times
    return result, np.flatnonzero(unknown)


def epoch_ns(described: Described) -> int | None:
    """Return the time since 1970 of 0 on the clock of the trace; None without a snapshot of it."""
    target = (0, described.primary)
    if target == REALTIME:
        return 0
    path = _path(described.snapshots, target, REALTIME)
    if path is None:
        return None
    first = next(
        (one.time for shot in described.snapshots for one in shot.clocks if one.key == target), 0
    )
    moment = np.array([first], np.int64)
    for source, to in path:
        moment = _converted(described.snapshots, source, to, moment)
    return int(moment[0]) - first


def _absolute(snapshots: list[Snapshot], key: Key, times: Ints, rows: Ints) -> Ints:
    """Return absolute times of a clock whose packets count its unit, or time since the previous."""
    known = [(shot.row, one) for shot in snapshots for one in shot.clocks if one.key == key]
    if not known:
        return times
    unit = known[0][1].unit
    valid = times != NULL
    limit = _LAST // unit
    scaled = np.where(valid & (times < limit), times, 0) * unit
    if not known[0][1].is_incremental:
        return np.where(valid & (times < limit), scaled, NULL)
    # sums begin at each snapshot
    at = np.array([row for row, _ in known])
    base = np.array([one.time for _, one in known])
    segment = np.searchsorted(at, rows, side="right") - 1
    total = np.cumsum(np.minimum(scaled, _LAST >> 20))
    first = np.searchsorted(segment, segment)
    before = total[first] - np.minimum(scaled, _LAST >> 20)[first]
    sums = total - before + np.where(segment >= 0, base[np.maximum(segment, 0)], 0)
    return np.where(valid & (sums >= 0) & (sums < _LAST), sums, NULL)


def _path(snapshots: list[Snapshot], source: Key, target: Key) -> list[tuple[Key, Key]] | None:
    """Return the conversions from one clock to another, or None."""
    links: dict[Key, dict[Key, None]] = {}
    for shot in snapshots:
        keys = [one.key for one in shot.clocks]
        for key in keys:
            links.setdefault(key, {}).update(dict.fromkeys(keys))
    queue: list[list[tuple[Key, Key]]] = [[]]
    reached = {source}
    while queue:
        path = queue.pop(0)
        end = path[-1][1] if path else source
        if end == target:
            return path
        for key in links.get(end, {}):
            if key not in reached:
                reached.add(key)
                queue.append([*path, (end, key)])
    return None


def _converted(snapshots: list[Snapshot], source: Key, target: Key, times: Ints) -> Ints:
    """Convert times with the last snapshot before each."""
    pairs = []
    for shot in snapshots:
        known = {one.key: one.time for one in shot.clocks}
        if source in known and target in known:
            pairs.append((known[source], known[target] - known[source]))
    pairs.sort()
    at, offset = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    place = np.maximum(np.searchsorted(at, times, side="right") - 1, 0)
    return np.where(times == NULL, NULL, times + offset[place])
