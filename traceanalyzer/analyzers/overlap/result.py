"""The answer: the parts of device time by device, step and stream, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import polars as pl

from traceanalyzer.analyzers.overlap import verdict as words
from traceanalyzer.analyzers.overlap.charts import charts
from traceanalyzer.analyzers.parts import PARTS
from traceanalyzer.analyzers.places import short_paths, told_by_rank
from traceanalyzer.result import Chart, Result, Table

By = Literal["device", "step", "stream"]

_PARTS = {
    "compute_ns": "compute",
    "exposed_communication_ns": "exposed communication",
    "exposed_memory_ns": "exposed copies",
    "idle_ns": "idle",
}
_OF_COMMUNICATION = {"exposed_communication_ns", "communication_ns", "overlap_frac"}
#: A stretch of time in which a device is busy for less is told of.
LOW_FRAC = 0.5
_WHOLE = {
    "communication_ns": "communication",
    "overlap_frac": "hidden by compute",
    "utilisation_frac": "busy",
}


@dataclass(frozen=True, eq=False, repr=False)
class Overlap(Result):
    """What :func:`overlap` found.

    ``devices``, ``steps`` and ``timeline`` have the columns of
    :func:`~traceanalyzer.analyzers.parts.measure_parts` and span_ns, the sum of the four parts;
    overlap_frac, hidden communication of communication, null where there is none;
    utilisation_frac, busy of span; compute_frac, compute of span; rank, path, device, at_ns.

    Attributes:
        by: what is told first.
        devices: a row a device, from its first start to its last end.
        steps: a row a step and device.
        streams: a row a stream: events, busy_ns, compute_ns, communication_ns, memory_ns,
            alone_ns, alone_frac, span_ns from its first start to its last end.
        timeline: a row a device and stretch of time, see :func:`~.timeline.timeline`.
        unfinished: pieces of device work without an end, not counted.
        remarks: further notes.
    """

    by: By
    devices: pl.DataFrame
    steps: pl.DataFrame
    streams: pl.DataFrame
    timeline: pl.DataFrame
    unfinished: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The question."""
        return "How much of the communication is hidden behind compute?"

    @property
    def verdict(self) -> str:
        """How much is exposed, what it costs, and where to look next."""
        return words.verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What counts as what, and what is not counted."""
        return (*words.notes(self), *self.remarks)

    @property
    def tables(self) -> tuple[Table, ...]:
        """What is asked for by ``by``; the others, and when devices were little busy, in detail."""
        made = {"device": self._devices(), "step": self._steps(), "stream": self._streams()}
        first = made.pop(self.by)
        rest = (*made.values(), self._low())
        return (first, *(replace(table, detail=True) for table in rest))

    @property
    def charts(self) -> tuple[Chart, ...]:
        """The parts as stacked bars, and how busy each device was over time."""
        return charts(self)

    @property
    def low(self) -> pl.DataFrame:
        """The rows of ``timeline`` in which a device was busy for less than half of the time."""
        return self.timeline.filter(pl.col("utilisation_frac") < LOW_FRAC)

    @property
    def scalars(self) -> dict[str, Any]:
        """Sums over all devices."""
        names = ("span", *PARTS, "busy", "communication", "hidden_communication", "memory")
        sums = {f"{name}_ns": int(self.devices[f"{name}_ns"].sum()) for name in names}
        whole, span = sums["communication_ns"], sums["span_ns"]
        return {
            **sums,
            "overlap_frac": sums["hidden_communication_ns"] / whole if whole else None,
            "utilisation_frac": sums["busy_ns"] / span if span else None,
        }

    def _devices(self) -> Table:
        columns = {"device": "device", "span_ns": "span", **_PARTS, **_WHOLE}
        return self._table("devices", "Devices", self.devices, columns)

    def _steps(self) -> Table:
        columns = {"device": "device", "step": "step", "span_ns": "time", **_PARTS, **_WHOLE}
        columns.pop("utilisation_frac")
        return self._table("steps", "Steps", self.steps, columns, "no steps are marked")

    def _streams(self) -> Table:
        columns = {
            "device": "device",
            "stream": "stream",
            "events": "events",
            "busy_ns": "busy",
            "compute_ns": "compute",
            "communication_ns": "communication",
            "memory_ns": "copies",
            "alone_ns": "no other stream busy",
            "alone_frac": "share of its busy",
        }
        return self._table("streams", "Streams", self.streams, columns)

    def _low(self) -> Table:
        columns = {
            "device": "device",
            "at_ns": "at",
            "span_ns": "length",
            "utilisation_frac": "busy",
            **_PARTS,
        }
        title = "Stretches busy for less than half of the time"
        return self._table("low_utilisation", title, self.low, columns)

    def _table(
        self,
        name: str,
        title: str,
        frame: pl.DataFrame,
        columns: Mapping[str, str],
        empty: str = "none",
    ) -> Table:
        """The columns that tell something; the file where the rank does not tell it."""
        files = self.devices["path"].n_unique()
        known = self.devices["rank"].null_count() < self.devices.height
        keys = {"rank": "rank"} if known else {}
        if files > 1 and not told_by_rank(self.devices):
            frame = frame.with_columns(file=short_paths(frame["path"]))
            keys = {"file": "file", **keys}
        silent = set() if self.devices["communication_ns"].sum() else _OF_COMMUNICATION
        told = {name: label for name, label in columns.items() if name not in silent}
        return Table(name, title, frame, {**keys, **told}, empty, missing={"overlap_frac": "-"})
