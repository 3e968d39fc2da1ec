"""Packets of a Perfetto trace: track descriptors, clocks, interned texts, slices and counters.

Field numbers are those of google/perfetto's ``protos/perfetto/trace`` (``TracePacket``,
``TrackDescriptor``, ``TrackEvent``, ``DebugAnnotation``, ``InternedData``, ``ClockSnapshot``); they
never change. Slices are written as SLICE_BEGIN and SLICE_END packets; of two packets with one time,
Perfetto processes the first in the file first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.exporters.perfetto import wire
from traceanalyzer.exporters.perfetto.wire import delimited, fixed, fixed64, message, number, value

Ints = npt.NDArray[np.int64]
Ids = npt.NDArray[np.uint32]

#: Perfetto's clock of the trace; the first id of clocks defined by a trace.
BOOTTIME, REALTIME, _FIRST_CLOCK = 6, 1, 128
_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4
_NEVER_MERGED, _EXPLICIT = 2, 3
_STATE_CLEARED = 1
_NS, _COUNT, _BYTES = 1, 2, 3
#: Rows encoded at once: they stay in the CPU cache.
_ROWS = 1 << 15
#: Bytes of a time in a clock snapshot: every time fits, so that it can be replaced.
_TIME_BYTES = 10


def _packet(*content: bytes) -> bytes:
    return delimited(1, *content)


# --- tracks ----------------------------------------------------------------------------------


def process(uuid: int, pid: int, name: str, labels: Sequence[str] = ()) -> bytes:
    """Return the descriptor of a process."""
    described = delimited(3, number(1, pid), delimited(6, name), *(delimited(8, x) for x in labels))
    return _packet(delimited(60, number(1, uuid), described, number(11, _EXPLICIT)))


def thread(uuid: int, parent: int, pid: int, tid: int, name: str) -> bytes:
    """Return the descriptor of a thread of a process."""
    described = delimited(4, number(1, pid), number(2, tid), delimited(5, name))
    return _packet(delimited(60, number(1, uuid), number(5, parent), described))


def track(uuid: int, parent: int | None, name: str, rank: int = 0) -> bytes:
    """Return the descriptor of a track below another one; ``rank`` orders it among its siblings.

    Tracks of one name stay separate.
    """
    return _track(uuid, parent, name, rank, number(11, _EXPLICIT))


_UNITS = {"ns": _NS, "bytes": _BYTES, "": _COUNT}


def counter_track(uuid: int, parent: int | None, name: str, unit: str = "", rank: int = 0) -> bytes:
    """Return the descriptor of a counter; ``unit`` is ``ns``, ``bytes`` or free text."""
    known = _UNITS.get(unit)
    described = delimited(6, unit) if known is None else number(3, known)
    return _track(uuid, parent, name, rank, delimited(8, described))


def _track(uuid: int, parent: int | None, name: str, rank: int, kind: bytes) -> bytes:
    below = b"" if parent is None else number(5, parent)
    order = number(12, rank) + number(15, _NEVER_MERGED)
    return _packet(delimited(60, number(1, uuid), delimited(2, name), below, kind, order))


# --- clocks ----------------------------------------------------------------------------------


def clock_id(sequence: int) -> int:
    """Return the id of the clock of a sequence."""
    return _FIRST_CLOCK + sequence


def clocks(sequence: int, *times: tuple[int, int]) -> bytes:
    """Return a snapshot: the same moment on several clocks, as (id of the clock, time in ns).

    The length does not depend on the times.
    """
    described = (delimited(1, number(1, id_), number(2, ns, _TIME_BYTES)) for id_, ns in times)
    return _packet(number(10, sequence), delimited(6, *described))


# --- interned texts ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """A column of texts as ids from 1, 0 for null, and the texts by id."""

    ids: Ids
    texts: tuple[str, ...]


def texts_of(column: pl.Series) -> Texts:
    """Number the distinct texts of a column."""
    if column.dtype not in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String).cast(pl.Categorical)
    codes = column.to_physical()
    if codes.is_empty() or codes.null_count() == codes.len():
        return Texts(np.zeros(codes.len(), np.uint32), ())
    used = codes.drop_nulls().unique().sort()
    table = np.zeros(int(used[-1]) + 2, np.uint32)
    table[used.to_numpy()] = np.arange(1, used.len() + 1, dtype=np.uint32)
    none = table.size - 1  # its id stays 0
    ids = table[codes.cast(pl.UInt32).fill_null(none).to_numpy()]
    first = column.to_frame("text").unique("text").drop_nulls()
    known = first.select("text", code=pl.col("text").to_physical()).sort("code")
    return Texts(ids, tuple(known["text"].cast(pl.String)))


def _interned(tag: int, texts: Sequence[str]) -> bytes:
    return b"".join(
        delimited(tag, number(1, id_), delimited(2, text)) for id_, text in enumerate(texts, 1)
    )


# --- slices ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slices:
    """Slices and instants, in the schema's order: by time, enclosing slices first.

    Attributes:
        ts: start in ns, at least 0.
        end: end in ns; before ``ts`` for an instant.
        track: uuid of the track of each; slices of a track must nest.
        name: name of each.
        category: category of each.
        annotations: further columns: Int64, UInt64, Float64 or text, null if a row has none.
        flows: ids of the arrows of each row: columns ``event`` (row, sorted) and ``flow``.
        open_flows: rows, sorted, whose arrow gets its id later.
    """

    ts: Ints
    end: Ints
    track: Ids
    name: pl.Series
    category: pl.Series
    annotations: Mapping[str, pl.Series] = field(default_factory=dict)
    flows: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema={"event": pl.UInt32, "flow": pl.UInt64})
    )
    open_flows: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class _Annotation:
    """A column of arguments: id of its name, numbers, which rows have one, and its fields."""

    id: int
    numbers: npt.NDArray[np.generic]
    known: npt.NDArray[np.bool_]
    tag: int
    width: int  # 0: a double


_INT, _UINT, _DOUBLE, _TEXT = 4, 3, 5, 17


class SliceEncoder:
    """Encodes the slices of one sequence.

    Attributes:
        sequence: id of the packet sequence; all its times are on its clock.
        open_flows: offset in the encoded bytes of each open flow id, in order of the rows.
    """

    def __init__(self, sequence: int, slices: Slices) -> None:
        self.sequence = sequence
        self._slices = slices
        self._name, self._category = texts_of(slices.name), texts_of(slices.category)
        self._annotations, self._texts = _annotations(slices.annotations)
        last = int(max(slices.ts.max(initial=0), slices.end.max(initial=0)))
        self._time_width = wire.width_of(np.array([last]))
        self._track_width = wire.width_of(slices.track)
        self.open_flows: list[tuple[int, int]] = []

    def start(self) -> bytes:
        """Return the packet that begins the sequence: its clock, and its texts by id."""
        names = _interned(3, list(self._slices.annotations))
        return _packet(
            number(10, self.sequence),
            number(13, _STATE_CLEARED),
            delimited(59, number(58, clock_id(self.sequence))),
            delimited(
                12,
                _interned(1, self._category.texts),
                _interned(2, self._name.texts),
                names,
                _interned(29, self._texts),
            ),
        )

    def packets(self) -> Iterator[bytes]:
        """Yield all packets, in order of time."""
        ts, end = self._slices.ts, self._slices.end
        closed = np.flatnonzero(end > ts)[::-1]  # inner slices end first
        closed = closed[np.argsort(end[closed], kind="stable")]
        # an end precedes the beginnings at its time
        at = np.searchsorted(ts, end[closed], side="left") + np.arange(closed.size)
        is_end = np.zeros(ts.size + closed.size, np.bool_)
        is_end[at] = True
        begun, ended, written = 0, 0, 0
        for low in range(0, is_end.size, _ROWS):
            ends = is_end[low : low + _ROWS]
            n_ends = int(ends.sum())
            n_begins = ends.size - n_ends
            parts = self._begins(np.arange(begun, begun + n_begins), np.flatnonzero(~ends))
            of_end = closed[ended : ended + n_ends]
            parts.append((np.flatnonzero(ends), self._ends(of_end), -1, of_end))
            packed, offsets = wire.interleaved([part[:2] for part in parts], ends.size)
            for positions, _, place, events in parts:
                if place >= 0:
                    places = offsets[positions] + place + written
                    self.open_flows += zip(events.tolist(), places.tolist(), strict=True)
            begun, ended, written = begun + n_begins, ended + n_ends, written + packed.size
            yield packed.tobytes()

    def _ends(self, rows: Ints) -> wire.Bytes:
        layout = self._layout(0, 1, (), _SLICE_END)
        return layout.encode([self._slices.end[rows], self._slices.track[rows]], rows.size)

    def _layout(
        self, ts: int, track: int, event: Sequence[wire.Part], kind: int, *after: wire.Part
    ) -> wire.Layout:
        """Return a packet; ``event`` are the further parts of its track event."""
        content = message(11, *number_parts(9, kind), *value(11, track, self._track_width), *event)
        time = value(8, ts, self._time_width)
        return wire.Layout((*message(1, *time, number(10, self.sequence), *content), *after))

    def _begins(self, rows: Ints, positions: Ints) -> list[tuple[Ints, wire.Bytes, int, Ints]]:
        """Return beginnings and instants by layout.

        Returns:
            Of each layout: the positions of its packets, the packets, the place of the open flow id
            in them (-1: none), and the rows.
        """
        if not rows.size:
            return []
        slices = self._slices
        lo, hi = int(rows[0]), int(rows[-1]) + 1
        kind = np.sign(slices.end[lo:hi] - slices.ts[lo:hi]) + 1  # instant, empty, slice
        counts, first, flow = self._flows_between(lo, hi)
        is_open = np.isin(rows, slices.open_flows, assume_unique=True)
        code = kind.astype(np.int64)
        for one in (is_open, self._name.ids[lo:hi] > 0, self._category.ids[lo:hi] > 0):
            code = code * 2 + one
        for annotation in self._annotations:
            code = code * 2 + annotation.known[lo:hi]
        _, code = np.unique(code, return_inverse=True)
        code = code * (int(counts.max()) + 1) + counts
        parts = []
        order = np.argsort(code, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(code[order])) + 1):
            flows = flow[first[some][:, None] + np.arange(counts[some[0]])]
            encoded, place = self._begin(
                rows[some], int(kind[some[0]]), flows, bool(is_open[some[0]])
            )
            parts.append((positions[some], encoded, place, rows[some]))
        return parts

    def _flows_between(self, lo: int, hi: int) -> tuple[Ints, Ints, npt.NDArray[np.uint64]]:
        """Return the number of arrows of each row, and where they begin in a list of ids."""
        event = self._slices.flows["event"].to_numpy()
        begin, end = np.searchsorted(event, [lo, hi])
        counts = np.bincount(event[begin:end].astype(np.int64) - lo, minlength=hi - lo)
        ids = self._slices.flows["flow"].to_numpy()[begin:end]
        return counts, np.cumsum(counts) - counts, ids

    def _begin(
        self, rows: Ints, kind: int, flows: npt.NDArray[np.uint64], is_open: bool
    ) -> tuple[wire.Bytes, int]:
        slices, row = self._slices, rows[0]
        columns: list[wire.Column] = [slices.ts[rows], slices.track[rows]]
        event: list[wire.Part] = []

        def add(column: wire.Column) -> int:
            columns.append(column)
            return len(columns) - 1

        for tag, texts in ((3, self._category), (10, self._name)):
            if texts.ids[row]:
                event += value(
                    tag, add(texts.ids[rows]), wire.width_of(np.array([len(texts.texts)]))
                )
        for one in self._annotations:
            if one.known[row]:
                key = add(one.numbers[rows])
                content = value(one.tag, key, one.width) if one.width else fixed(one.tag, key)
                event += message(4, *number_parts(1, one.id), *content)
        for at in range(flows.shape[1]):
            event += fixed(47, add(flows[:, at]))
        opened = -1
        if is_open:
            serial = (np.uint64(1) << np.uint64(63)) | (
                rows.astype(np.uint64) + (np.uint64(self.sequence) << np.uint64(40))
            )
            opened = add(serial)
            event += fixed(47, opened)
        after: tuple[wire.Part, ...] = ()
        if kind == 1:  # empty: its end follows at once
            after = self._layout(0, 1, (), _SLICE_END).parts
        layout = self._layout(0, 1, event, _SLICE_BEGIN if kind else _INSTANT, *after)
        return layout.encode(columns, rows.size), layout.place_of(opened) if is_open else -1


def number_parts(tag: int, constant: int) -> tuple[bytes]:
    """Return an integer field with the same value in all messages."""
    return (number(tag, constant),)


def _annotations(columns: Mapping[str, pl.Series]) -> tuple[list[_Annotation], tuple[str, ...]]:
    """Return the columns of arguments, and the texts of all text columns by id."""
    result = []
    of_text = {name: one for name, one in columns.items() if not one.dtype.is_numeric()}
    merged = texts_of(
        pl.concat([one.cast(pl.String) for one in of_text.values()])
        if of_text
        else pl.Series(dtype=pl.String)
    )
    at = 0
    for id_, (name, column) in enumerate(columns.items(), 1):
        known = column.is_not_null().to_numpy()
        if name in of_text:
            ids = merged.ids[at : at + column.len()]
            at += column.len()
            width = wire.width_of(np.array([len(merged.texts)]))
            result.append(_Annotation(id_, ids, known, _TEXT, width))
        elif column.dtype.is_float():
            result.append(_Annotation(id_, column.fill_null(0).to_numpy(), known, _DOUBLE, 0))
        else:
            numbers = column.fill_null(0).to_numpy()
            tag = _UINT if column.dtype.is_unsigned_integer() else _INT
            result.append(_Annotation(id_, numbers, known, tag, wire.width_of(numbers)))
    return result, merged.texts


# --- counters ----------------------------------------------------------------------------------


def counter_packets(
    sequence: int, ts: Ints, track: Ids, readings: npt.NDArray[np.float64]
) -> Iterator[bytes]:
    """Yield the readings of counters: time in ns, track, and value."""
    time_width = wire.width_of(ts)
    content = message(11, number(9, _COUNTER), *value(11, 1, wire.width_of(track)), *fixed(44, 2))
    layout = wire.Layout(message(1, *value(8, 0, time_width), number(10, sequence), *content))
    for low in range(0, ts.size, _ROWS):
        some = slice(low, low + _ROWS)
        rows: list[wire.Column] = [ts[some], track[some], readings[some]]
        yield layout.encode(rows, rows[0].size).tobytes()


def flow_id(id_: int) -> bytes:
    """Return the bytes of an open flow id."""
    return fixed64(47, id_)[-8:]
