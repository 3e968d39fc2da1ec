"""Batches joined to whole columns: numpy arrays, one text table, ids for textual lanes."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.parsers.chrome_trace.batch import NEVER, Batch, Points, Slices
from traceanalyzer.parsers.chrome_trace.coerce import Codes
from traceanalyzer.parsers.chrome_trace.decode import NULL

Ints = npt.NDArray[np.int64]
Codes32 = npt.NDArray[np.uint32]

NO_TEXT = Codes.EMPTY
#: Synthetic ids of textual lanes start here, beyond any process or thread id.
TEXTUAL_ID = 1 << 62


def textual_id(label: str) -> int:
    """The synthetic id of a textual lane: the same in every file, whatever else is read of it."""
    digest = hashlib.blake2b(label.encode("utf-8", "replace"), digest_size=8).digest()
    return TEXTUAL_ID + (int.from_bytes(digest, "big") >> 3)


_DTYPES: dict[str, Any] = {
    "order": np.uint32,
    "category": np.uint32,
    "name": np.uint32,
    "key": np.uint32,
    "device_rows": np.uint32,
    "kernel_rows": np.uint32,
    "collective_rows": np.uint32,
    "memory_rows": np.uint32,
    "grid": np.int32,
    "block": np.int32,
    "address": np.uint64,
    "phase": np.uint8,
}
_TEXT = ("category", "name", "key")
_ROWS = ("device_rows", "kernel_rows", "collective_rows", "memory_rows")
_SLICE_COLUMNS = [
    "order",
    "ts",
    "dur",
    "category",
    "name",
    "pid",
    "tid",
    "correlation",
    "external_id",
    "device_rows",
    "device",
    "stream",
    "copied",
    "kernel_rows",
    "grid",
    "block",
    "registers",
    "shared_memory",
    "collective_rows",
    "memory_rows",
    "allocated",
    "address",
    "device_type",
    "device_id",
    "total_allocated",
    "total_reserved",
]
_POINT_COLUMNS = ["order", "phase", "ts", "category", "name", "pid", "tid", "key"]
_FLOW_COLUMNS = ["order", "phase", "ts", "category", "name", "pid", "tid", "id"]


@dataclass
class Columns:
    """Whole columns of one kind of row, batch after batch.

    ``parts`` become arrays on :meth:`whole`, which gives each array away: the parts are freed.
    """

    names: list[str]
    parts: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    height: int = 0

    def whole(self, name: str) -> npt.NDArray[Any]:
        """The column, in file order; can be asked for once."""
        parts = self.parts.pop(name, [])
        if not parts:
            return np.empty(0, dtype=_DTYPES.get(name, np.int64))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class Collected:
    """Everything of one file, still in file order."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.slices = Columns(_SLICE_COLUMNS)
        self.points = Columns(_POINT_COLUMNS)
        self.flows = Columns(_FLOW_COLUMNS)
        self.labels: dict[str, int] = {}
        self.flow_id_labels: dict[str, int] = {}
        self.collectives: list[tuple[Any, ...]] = []
        self.args: list[str | None] = []
        self.point_args: list[str | None] = []
        self.input_dims: list[str | None] = []
        self.stack_frames: dict[int, str] = {}
        self.phase_kinds: dict[int, str] = {}
        self.at_next: list[int] = []
        self.counters: list[tuple[int, int, str | None, str, str, float]] = []
        self.metadata: list[tuple[str, int, str | None, int, str | None, str]] = []
        self.issues: dict[str, tuple[int, int]] = {}
        self.events = 0
        self.first = NEVER

    def add(self, batch: Batch) -> None:
        """Take a batch; batches come in the file's order."""
        texts = self.texts
        codes = [texts.setdefault(text, len(texts)) for text in batch.texts]
        # the last entry answers for "no text"
        recode = np.array([*codes, NO_TEXT], dtype=np.uint32)
        base = self.slices.height
        self.stack_frames.update({base + k: v for k, v in batch.slices.stack_frames.items()})
        self.phase_kinds.update({base + k: v for k, v in batch.slices.phase_kinds.items()})
        self.at_next.extend(self.flows.height + k for k in batch.flows.at_next)
        self.collectives.extend(batch.slices.collectives)
        self.args.extend(batch.slices.args or ())
        self.input_dims.extend(batch.slices.input_dims or ())
        self.point_args.extend(batch.points.args or ())
        self._append(self.slices, batch.slices, recode)
        self._append(self.points, batch.points, recode)
        self._append(self.flows, batch.flows, recode)
        self.counters.extend(batch.counters)
        self.metadata.extend(batch.metadata)
        for code, (count, first) in batch.issues.items():
            self.lose(code, count, first)
        self.events += batch.events
        self.first = min(self.first, batch.first)

    def lose(self, code: str, count: int, first: int) -> None:
        """Count something lost or odd."""
        seen, before = self.issues.get(code, (0, first))
        self.issues[code] = (seen + count, before)

    def _append(self, columns: Columns, part: Slices | Points, recode: Codes32) -> None:
        base = columns.height
        for name in columns.names:
            column = np.frombuffer(getattr(part, name), dtype=_DTYPES.get(name, np.int64))
            if not len(column):
                continue
            if name in _TEXT:
                column = recode[np.minimum(column, len(recode) - 1)]
            elif name in _ROWS:
                column = column + np.uint32(base)
            elif name == "order":
                columns.height += len(column)
                column = column.astype(np.int64) + self.events
            columns.parts.setdefault(name, []).append(column)
        for name, of in (("pid", part.pid_labels), ("tid", part.tid_labels)):
            if of:
                self._label(columns, name, of, self.labels)
        if isinstance(part, Points) and part.id_labels:
            self._label(columns, "id", part.id_labels, self.flow_id_labels)

    def _label(
        self, columns: Columns, name: str, of: dict[int, str], known: dict[str, int]
    ) -> None:
        """Give the textual ids of the last part their synthetic numbers."""
        column = columns.parts[name][-1].copy()
        for row, label in of.items():
            if label not in known:
                known[label] = textual_id(label)
            column[row] = known[label]
        columns.parts[name][-1] = column

    def lane_id(self, number: int, label: str | None) -> int | None:
        """The id of a lane named by number or text; None when it is named by neither."""
        if label is not None:
            return self.labels.setdefault(label, textual_id(label))
        return None if number == NULL else number


def give_back_memory() -> None:
    """Return what was freed to the system: glibc keeps it, and the tables are another allocator's.

    A fifth of the peak of a 1 GB trace (benchmarks/profile_read.py); nothing elsewhere.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def text_series(codes: Codes32, texts: pl.Series) -> pl.Series:
    """A Categorical series from text codes; ``texts`` is the Categorical table of all texts."""
    rows = pl.Series(codes)
    if (codes == NO_TEXT).any():
        rows = rows.to_frame("r").select(pl.when(pl.col("r") != NO_TEXT).then("r"))["r"]
    return texts.gather(rows)


def nullable(column: npt.NDArray[Any], dtype: Any, null: int = NULL) -> pl.Series:
    """A series in which the sentinel is null, and so is what does not fit the dtype."""
    series = pl.Series(column)
    if (column == null).any():
        series = series.to_frame("v").select(pl.when(pl.col("v") != null).then("v"))["v"]
    return series if series.dtype == dtype else series.cast(dtype, strict=False)
