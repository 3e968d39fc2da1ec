"""Columns of events: raw bytes for a piece of text, arrays for a whole file."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.machine import give_back
from traceanalyzer.parsers.chrome_trace.decode import NULL, Codes
from traceanalyzer.parsers.tables import Growing

Ints = npt.NDArray[np.int64]
Codes32 = npt.NDArray[np.uint32]
#: (collective, dtype, elements in, elements out, group, group size, group ranks, seq, peer, splits
#: in, splits out)
Collective = tuple[
    *tuple[str | None, str | None, int, int, str | None, int, str | None, int, int],
    *tuple[str | None, str | None],
]
#: (name, pid, its text, tid, its text, known arguments as JSON) of an event of phase M
Metadata = tuple[str, int, str | None, int, str | None, str]
#: (ts, pid, its text, name, series, value)
CounterValue = tuple[int, int, str | None, str, str, float]

#: Columns are in temporary files from this size on, that of about 512 MB of text.
SPILLED_BYTES = 1 << 27

#: Greater than any time.
NEVER = (1 << 63) - 1
NO_TEXT = Codes.EMPTY
#: Synthetic ids of textual lanes start here, beyond any process or thread id.
TEXTUAL_ID = 1 << 62

#: Columns that are not Int64. ``*_rows`` are the rows of columns that only some events have.
_DTYPES: dict[str, Any] = {
    "order": np.uint32,
    "category": np.uint32,
    "name": np.uint32,
    "key": np.uint32,
    "input_rows": np.uint32,
    "input_dims": np.uint32,
    "input_types": np.uint32,
    "concrete_inputs": np.uint32,
    "device_rows": np.uint32,
    "kernel_rows": np.uint32,
    "collective_rows": np.uint32,
    "memory_rows": np.uint32,
    "grid": np.int32,
    "block": np.int32,
    "address": np.uint64,
    "phase": np.uint8,
}
#: JSON texts of an operator's inputs, if selected; texts are codes, as they repeat.
INPUTS = ("input_dims", "input_types", "concrete_inputs")
_TEXT = ("category", "name", "key", *INPUTS)


class Issues(dict[str, tuple[int, int]]):
    """Issues: code -> (count, byte offset of the first)."""

    def note(self, code: str, offset: int, count: int = 1) -> None:
        """Count an issue; the offset of the first call is kept."""
        previous, first = self.get(code, (0, offset))
        self[code] = (previous + count, first)

    def lose(self, code: str, count: int) -> None:
        """Count events that are lost at unknown places, if there are any."""
        if count:
            self.note(code, -1, count)

    def add(self, others: Mapping[str, tuple[int, int]], offset: int = 0) -> None:
        """Add other issues, with an offset added to their positions."""
        for code, (count, first) in others.items():
            self.note(code, offset + first, count)


class Rows(msgspec.Struct):
    """Events of one type of a piece, in file order.

    Attributes:
        columns: name -> raw bytes; texts are codes, see :attr:`Batch.texts`.
        labels: id column -> row -> the id, if it is not a number.
        args: the JSON text of each row's arguments, if selected.
    """

    columns: dict[str, bytes] = {}
    labels: dict[str, dict[int, str]] = {}
    args: list[str | None] | None = None


class Slices(Rows):
    """Rows of ``events``: complete events and instants."""

    collectives: list[Collective] = []
    stack_frames: dict[int, str] = {}
    phase_kinds: dict[int, str] = {}


class Flows(Rows):
    """Flow points; ``at_next`` are the rows that are bound to the next slice."""

    at_next: list[int] = []


class Batch(msgspec.Struct):
    """A piece of text, or the part of it that was read in one way.

    Attributes:
        events: number of events in the piece, selected or not.
        first: earliest time of its events, selected or not, in ns; ``NEVER`` without any.
        texts: names, categories, keys and inputs of operators by code.
        slices: rows of ``events``.
        flows: flow points.
        points: begin and end events, paired later by ``key``, B and E by thread.
        counters: counter readings.
        metadata: contents of events of phase M.
        issues: lost or odd events.
        tail: unfinished event at the piece's end, which continues in the next piece.
        closed: offset after the ``]`` that ended the event array inside this piece, or None.
    """

    events: int = 0
    first: int = NEVER
    texts: list[str] = []
    slices: Slices = msgspec.field(default_factory=Slices)
    points: Rows = msgspec.field(default_factory=Rows)
    flows: Flows = msgspec.field(default_factory=Flows)
    counters: list[CounterValue] = []
    metadata: list[Metadata] = []
    issues: Issues = msgspec.field(default_factory=Issues)
    tail: bytes = b""
    closed: int | None = None


@dataclass
class Columns:
    """Columns of one type of row for the whole file, appended batch by batch.

    :meth:`whole` concatenates the ``parts`` of a column and frees them; :meth:`spill` moves them to
    a file of the column.
    """

    parts: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    files: dict[str, Growing] = field(default_factory=dict)
    height: int = 0

    def spill(self) -> None:
        """Move all parts to temporary files."""
        for name, parts in self.parts.items():
            for part in parts:
                if name not in self.files:
                    self.files[name] = Growing(part.dtype)
                self.files[name].add(part)
            parts.clear()

    def whole(self, name: str) -> npt.NDArray[Any]:
        """Return the column in file order; works once, as the parts are freed."""
        if name in self.files:
            self.spill()
            return self.files.pop(name).whole()
        parts = self.parts.pop(name, [])
        if not parts:
            return np.empty(0, dtype=_DTYPES.get(name, np.int64))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class Collected:
    """All columns of one file, in file order."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.slices, self.points, self.flows = Columns(), Columns(), Columns()
        self.labels: dict[str, int] = {}
        self.flow_id_labels: dict[str, int] = {}
        self.collectives: list[Collective] = []
        self.args: list[str | None] = []
        self.point_args: list[str | None] = []
        self.stack_frames: dict[int, str] = {}
        self.phase_kinds: dict[int, str] = {}
        self.at_next: list[int] = []
        self.counters: list[CounterValue] = []
        self.metadata: list[Metadata] = []
        self.issues = Issues()
        self.events = 0
        self.first = NEVER
        self.unspilled, self.in_files = 0, False

    def add(self, batch: Batch) -> None:
        """Add a batch; batches must come in file order."""
        texts = self.texts
        codes = [texts.setdefault(text, len(texts)) for text in batch.texts]
        # the last entry stands for "no text"
        recode = np.array([*codes, NO_TEXT], dtype=np.uint32)
        base = self.slices.height
        self.stack_frames.update({base + k: v for k, v in batch.slices.stack_frames.items()})
        self.phase_kinds.update({base + k: v for k, v in batch.slices.phase_kinds.items()})
        self.at_next.extend(self.flows.height + k for k in batch.flows.at_next)
        self.collectives.extend(batch.slices.collectives)
        self.args.extend(batch.slices.args or ())
        self.point_args.extend(batch.points.args or ())
        self._append(self.slices, batch.slices, recode)
        self._append(self.points, batch.points, recode)
        self._append(self.flows, batch.flows, recode)
        self.counters.extend(batch.counters)
        self.metadata.extend(batch.metadata)
        self.issues.add(batch.issues)
        self.events += batch.events
        self.first = min(self.first, batch.first)
        if self.unspilled >= SPILLED_BYTES:
            for columns in (self.slices, self.points, self.flows):
                columns.spill()
            self.unspilled, self.in_files = 0, True
            give_back()

    def _append(self, columns: Columns, rows: Rows, recode: Codes32) -> None:
        base = columns.height
        for name, data in rows.columns.items():
            column = np.frombuffer(data, dtype=_DTYPES.get(name, np.int64))
            if not len(column):
                continue
            if name in _TEXT:
                column = np.take(recode, column, mode="clip")
            elif name.endswith("_rows"):
                column = column + np.uint32(base)
            elif name == "order":
                columns.height += len(column)
                column = np.add(column, self.events, dtype=np.int64)
            columns.parts.setdefault(name, []).append(column)
            self.unspilled += column.nbytes
        for name, labels in rows.labels.items():
            known = self.flow_id_labels if name == "id" else self.labels
            # set the numbers of textual ids in the last part, which may be read-only
            column = columns.parts[name][-1] = columns.parts[name][-1].copy()
            for row, label in labels.items():
                column[row] = known.setdefault(label, textual_id(label))

    def lane_id(self, number: int, label: str | None) -> int | None:
        """Return the id of a lane with this number or text; None without both."""
        if label is not None:
            return self.labels.setdefault(label, textual_id(label))
        return None if number == NULL else number


def textual_id(label: str) -> int:
    """Return the synthetic id of a textual lane, a hash that is the same in every file."""
    digest = hashlib.blake2b(label.encode("utf-8", "replace"), digest_size=8).digest()
    return TEXTUAL_ID + (int.from_bytes(digest, "big") >> 3)


def text_series(codes: Codes32, texts: pl.Series) -> pl.Series:
    """Return a Categorical series from text codes; ``texts`` is the Categorical of all texts."""
    return texts[_without(codes, NO_TEXT)]


def nullable(column: npt.NDArray[Any], dtype: Any, null: int = NULL) -> pl.Series:
    """Return a series with null for the sentinel and for values that do not fit the dtype."""
    series = _without(column, null)
    return series if series.dtype == dtype else series.cast(dtype, strict=False)


def _without(column: npt.NDArray[Any], null: int) -> pl.Series:
    """Return a series with null for the sentinel."""
    series = pl.Series(column)
    if (column == null).any():
        return series.zip_with(pl.Series(column != null), pl.Series([None], dtype=series.dtype))
    return series
