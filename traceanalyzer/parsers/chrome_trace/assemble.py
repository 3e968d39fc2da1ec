"""Build the schema's tables from collected columns."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer import schema, vocabulary
from traceanalyzer.machine import give_back
from traceanalyzer.parsers.chrome_trace import columns as cols
from traceanalyzer.parsers.chrome_trace.columns import (
    NO_TEXT,
    TEXTUAL_ID,
    Collected,
    Ints,
    nullable,
)
from traceanalyzer.parsers.chrome_trace.decode import NULL, NULL_ADDRESS
from traceanalyzer.parsers.chrome_trace.points import MEMORY, flow_table, paired_columns
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.parsers.tables import Order, T, spilled, texts_in_file, time_order, unload
from traceanalyzer.trace import overlaps

_KINDS = pl.Series(vocabulary.KINDS, dtype=schema.KIND)
_KIND_CODE = {kind: code for code, kind in enumerate(vocabulary.KINDS)}
_DEVICE_CODES = np.array([_KIND_CODE[kind] for kind in vocabulary.DEVICE_KINDS], dtype=np.uint8)
_CALL_CODES = np.array([_KIND_CODE[kind] for kind in vocabulary.LAUNCH_KINDS], dtype=np.uint8)
_WORK_CODES = np.array([_KIND_CODE[kind] for kind in vocabulary.DEVICE_WORK], dtype=np.uint8)
_LINKED_CODES = np.concatenate([_CALL_CODES, _WORK_CODES])
_MAX_DEVICE = 1 << 16
#: So much work after the last call was launched ahead.
_QUEUE = 16
#: With fewer rows, returning memory to the system is not worth the time.
_MANY = 1 << 18

#: A function of PyTorch's profiler, and the name of any function with its line.
_STARTS_PROFILER = re.compile(r"(?:^|[/\\])torch[/\\](?:autograd|profiler)[/\\]profiler\.py\(")
_FRAME = re.compile(r"(?P<file>.+\.py)\(\d+\): (?P<name>.+)")

_LANE_COLUMNS = {
    "name": ("label", "name"),
    "labels": ("labels", "labels"),
    "sort_index": ("sort_index", "sort_index"),
}

Frames = dict[str, pl.DataFrame]
Lanes = dict[tuple[int, int | None], dict[str, Any]]
Array = npt.NDArray[Any]


class Assembler:
    """The tables of one file; each method builds one and frees the columns it used."""

    def __init__(
        self, collected: Collected, selection: Selection, rank: int | None, *, is_cut: bool
    ) -> None:
        self.of = collected
        self.selection = selection
        self.rank = rank
        self.kept: Callable[[T], T] = _in_file if collected.in_files else lambda value: value
        self.paired, self.pairs = paired_columns(collected)
        for code, count in self.paired.issues.items():
            collected.issues.note(code, -1, count)
        slices = collected.slices
        self.height = slices.height
        self.ts = self._with_pairs("ts")
        self.dur = self._with_pairs("dur")
        self.category = self._with_pairs("category")
        self.name = self._with_pairs("name")
        self.file_order = self._with_pairs("order")
        self.texts = pl.Series(list(collected.texts), dtype=pl.Categorical())
        self.kind = self._kinds()
        self._drop_unwanted_pairs()
        self._count_odd_durations()
        self.pid = self._lane("pid")
        self.tid = self._lane("tid")  # needs pid
        self.correlation = slices.whole("correlation")  # of complete events
        self.complete_until = self._complete_until() if is_cut else None
        order = time_order(self.ts, self._lengths, self.file_order)
        rows = np.arange(len(self.ts), dtype=np.uint32)
        self.order = rows if order is None else self.kept(order)
        row_of = np.empty(len(self.order), dtype=np.uint32)
        row_of[self.order] = rows
        self.row_of = self.kept(row_of)
        del order, rows, row_of
        self._sort()
        self._drop_lines_at_start()

    def frames(self) -> Frames:
        """Build all tables of the schema that a Chrome trace can fill."""
        frames: Frames = {}
        for table, build in (
            ("events", self._events),
            ("launch_configs", self._launch_configs),
            ("collectives", self._collectives),
            ("memory_totals", self._memory_totals),
            ("flows", self._flows),
            ("counters", self._counters),
            ("lanes", self._lanes),
        ):
            if len(self.order) > _MANY:
                give_back()
            if table not in self.selection.unused:
                frames[table] = self.kept(build())
        return frames

    # --- rows of events --------------------------------------------------------------------

    def _lengths(self, rows: Order) -> Ints:
        """Return the durations of rows; -1 for open-ended ones."""
        dur: Ints = self.dur[rows]
        return np.where(dur == NULL, -1, dur)

    def _complete_until(self) -> int | None:
        """Return the start of the last launch call or device work in the order of the file.

        Profilers write operators first. Without device work, that of the last host slice. Work
        that runs after the last call counts if its own calls are in the file.
        """
        calls, work = (
            np.flatnonzero(np.isin(self.kind, codes)) for codes in (_CALL_CODES, _WORK_CODES)
        )
        last = [rows[np.argmax(self.file_order[rows])] for rows in (calls, work) if rows.size]
        if not work.size and self.file_order.size:
            last = [np.argmax(self.file_order)]
        until = min(map(int, self.ts[last]), default=None)
        if not (calls.size and work.size):
            return until
        called, later = (
            self.correlation[rows[rows < self.correlation.size]]
            for rows in (calls, work[self.ts[work] > until])
        )
        is_queued = later.size > _QUEUE and np.isin(later, called[called != NULL]).all()
        return int(self.ts[last[-1]]) if is_queued else until

    def _sort(self) -> None:
        """Sort all columns into the order of ``events``, one at a time to save memory."""
        self.file_order = self.file_order[:0]
        for name in ("ts", "dur", "category", "name", "kind", "pid", "tid"):
            setattr(self, name, self.kept(getattr(self, name)[self.order]))

    def _drop_lines_at_start(self) -> None:
        """Drop the line of Python functions that ran when PyTorch's profiler started.

        Kineto writes the line at that moment, where they call the profiler: for the function of the
        training loop that of ``prof.step()``. All later functions have the line of their ``def``.
        """
        python = np.flatnonzero(self.kind == _KIND_CODE["python_function"])
        texts = list(self.of.texts) if python.size else []
        profiler = [code for code, text in enumerate(texts) if _STARTS_PROFILER.search(text)]
        calls = python[np.isin(self.name[python], np.array(profiler, np.uint32))]
        for first in calls[np.unique(self.pid[calls], return_index=True)[1]]:
            of_thread = (self.pid == self.pid[first]) & (self.tid == self.tid[first])
            around = python[(python < first) & of_thread[python]]
            if ((self.ts + self.dur)[around] < self.ts[first]).any():
                continue  # a call of step in the middle
            for row in around:
                if frame := _FRAME.match(texts[self.name[row]]):
                    text = f"{frame['name']} ({frame['file']})"
                    self.name[row] = self.of.texts.setdefault(text, len(self.of.texts))
        if len(self.of.texts) > len(texts):
            self.texts = pl.Series(list(self.of.texts), dtype=pl.Categorical())

    def _with_pairs(self, name: str) -> Array:
        column = self.of.slices.whole(name)
        more = self.pairs.get(name)
        if more is None:
            return column
        return self.kept(np.concatenate([column, more.astype(column.dtype)]))

    def _kinds(self) -> npt.NDArray[np.uint8]:
        other = _KIND_CODE["other"]
        by_text = np.full(len(self.of.texts) + 1, other, np.uint8)
        texts = list(self.of.texts)
        for code in np.unique(self.category[self.category < len(texts)]).tolist():
            by_text[code] = _KIND_CODE[vocabulary.kind_of_category(texts[code])]
        kinds = by_text[np.minimum(self.category, len(by_text) - 1)]
        memory = self.of.texts.get(MEMORY)
        if memory is not None:
            kinds[(self.name == memory) & (kinds == other)] = _KIND_CODE["cpu_instant_event"]
        for row, kind in self.of.phase_kinds.items():
            kinds[row] = _KIND_CODE[kind]
        asynchronous = np.zeros(len(kinds), dtype=bool)
        asynchronous[self.height :] = self.paired.asynchronous
        kinds[asynchronous] = _KIND_CODE["async"]
        return kinds

    def _drop_unwanted_pairs(self) -> None:
        """Drop pairs that are not selected; before pairing, the name of an end is unknown."""
        if not self.pairs:
            return
        keep = self._wanted_kinds() & self._inside_windows()
        keep[: self.height] = True
        if keep.all():
            return
        for name in ("ts", "dur", "category", "name", "file_order", "kind"):
            setattr(self, name, getattr(self, name)[keep])
        kept = keep[self.height :]
        self.pairs = {name: column[kept] for name, column in self.pairs.items()}
        self.paired.begin = [b for b, k in zip(self.paired.begin, kept, strict=True) if k]
        self.paired.end = [e for e, k in zip(self.paired.end, kept, strict=True) if k]

    def _wanted_kinds(self) -> npt.NDArray[np.bool_]:
        """Mark rows with a selected kind or name."""
        if self.selection.kinds is None:
            return np.ones(len(self.kind), dtype=bool)
        wanted = np.zeros(len(vocabulary.KINDS), dtype=bool)
        wanted[[_KIND_CODE[kind] for kind in self.selection.kinds if kind in _KIND_CODE]] = True
        named = [
            code
            for text, code in self.of.texts.items()
            if any(part in text for part in self.selection.names)
        ]
        of_kind: npt.NDArray[np.bool_] = wanted[self.kind]
        return of_kind | np.isin(self.name, np.array(named, dtype=np.uint32))

    def _inside_windows(self) -> npt.NDArray[np.bool_]:
        """Mark rows that overlap a window."""
        end = self.ts + np.maximum(self.dur, 0)
        windows = self.selection.windows
        if not windows:
            return np.ones(len(self.ts), dtype=bool)
        inside: npt.NDArray[np.bool_] = overlaps(self.ts, end, windows)
        return inside

    def _count_odd_durations(self) -> None:
        complete = self.dur[: self.height]
        negative = (complete < 0) & (complete != NULL)
        self.of.issues.lose("negative-duration", int(negative.sum()))

    def _events(self) -> pl.DataFrame:
        if not self.of.in_files:
            parts = self._event_columns()
            return pl.DataFrame({name: one for part in parts for name, one in part.items()})
        kept = [self.kept(pl.DataFrame(columns)) for columns in self._event_columns()]
        return pl.concat(kept, how="horizontal")

    def _event_columns(self) -> Iterator[dict[str, pl.Series]]:
        """Yield the columns of ``events``, a few at a time."""
        height = len(self.order)
        on_device = np.isin(self.kind, _DEVICE_CODES)
        yield {"ts": pl.Series(self.ts), "dur": nullable(self.dur, pl.Int64)}
        yield {
            "kind": _KINDS[self.kind],
            "category": cols.text_series(self.category, self.texts),
            "name": cols.text_series(self.name, self.texts),
        }
        yield {
            "rank": _constant(self.rank, height, pl.Int32),
            "pid": nullable(np.where(on_device, NULL, self.pid), pl.Int64),
            "tid": nullable(np.where(on_device, NULL, self.tid), pl.Int64),
        }
        yield self._device(on_device)
        yield self._ids()
        yield self._sizes()
        yield {
            "stack": _constant(None, height, pl.UInt32),
            "weight": _constant(None, height, pl.Float64),
        }
        if "args" in self.selection.columns:
            yield {"args": self._texts_of(self.of.args, self._pair_args())}
        inputs = [name for name in cols.INPUTS if name in self.selection.columns]
        if inputs:
            self.input_rows = self.row_of[self.of.slices.whole("input_rows")]
            self.input_texts = pl.Series(list(self.of.texts), dtype=pl.String)
        for name in inputs:
            yield {name: self._input_texts(name)}

    def _ids(self) -> dict[str, pl.Series]:
        """Return correlation and external ids.

        Old versions of Kineto for ROCm wrote the correlation id of calls and device work as their
        External id: then no two calls have the same one, and no event has a correlation id.
        """
        correlation = self._completed(self.correlation)
        self.correlation = self.correlation[:0]
        external = self._complete_column("external_id")
        linked = np.isin(self.kind, _LINKED_CODES)
        if not linked.any() or correlation.filter(linked).null_count() < linked.sum():
            return {"correlation": correlation, "external_id": external}
        of_calls = external.filter(np.isin(self.kind, _CALL_CODES)).drop_nulls()
        of_work = external.filter(np.isin(self.kind, _WORK_CODES)).drop_nulls()
        shared = int(of_work.is_in(of_calls.implode()).sum())
        if not shared or 2 * shared < of_work.len() or of_calls.n_unique() < of_calls.len():
            return {"correlation": correlation, "external_id": external}
        ids = pl.DataFrame({"external": external, "linked": linked})
        return ids.select(
            correlation=pl.when("linked").then("external"),
            external_id=pl.when(~pl.col("linked")).then("external"),
        ).to_dict()

    def _complete_column(self, name: str) -> pl.Series:
        """Return a column that only complete events have."""
        return self._completed(self.of.slices.whole(name))

    def _completed(self, column: Array) -> pl.Series:
        """Return a column of complete events for all rows of ``events``."""
        if len(column) < len(self.order):
            column = np.concatenate([column, np.full(len(self.order) - len(column), NULL)])
        return self.kept(nullable(column[self.order], pl.Int64).to_frame()).to_series()

    def _lane(self, name: str) -> Ints:
        """Return process or thread ids; a missing process is 0, a missing thread the process id."""
        column: Ints = self._with_pairs(name)
        missing = column == NULL
        if missing.any():
            column = self.kept(np.where(missing, 0 if name == "pid" else self.pid, column))
        return column

    def _device(self, on_device: npt.NDArray[np.bool_]) -> dict[str, pl.Series]:
        """Return device and stream of device rows, and the device of allocations."""
        slices = self.of.slices
        rows = self.row_of[slices.whole("device_rows")]
        recorded, queue = slices.whole("device"), slices.whole("stream")
        device = np.full(len(on_device), NULL)
        device[rows] = np.where(recorded == NULL, self.pid[rows], recorded)
        # pid and tid of a begin/end pair on a device are device and stream
        paired = on_device & (self.order >= self.height)
        device[paired] = self.pid[paired]
        self.memory_rows = self.row_of[slices.whole("memory_rows")]
        self.device_type, number = slices.whole("device_type"), slices.whole("device_id")
        device[self.memory_rows] = np.where(self.device_type > 0, number, NULL)
        device[(device < 0) | (device > _MAX_DEVICE)] = NULL
        numbers = nullable(device, pl.Int32)
        stream = device
        stream.fill(NULL)
        stream[rows] = np.where(queue < 0, NULL, queue)
        stream[paired] = self.tid[paired]
        self.device_rows = rows
        return {"device": numbers, "stream": nullable(stream, pl.Int64)}

    def _sizes(self) -> dict[str, pl.Series]:
        """Return bytes copied or allocated, and the address of allocations."""
        slices, height = self.of.slices, len(self.order)
        copied, allocated = slices.whole("copied"), slices.whole("allocated")
        where = slices.whole("address")
        size, address = _constant(None, height, pl.Int64), _constant(None, height, pl.UInt64)
        if len(allocated) or (copied != NULL).any():
            sizes = np.full(height, NULL)
            sizes[self.device_rows], sizes[self.memory_rows] = copied, allocated
            size = nullable(sizes, pl.Int64)
        if len(allocated):
            addresses = np.full(height, NULL_ADDRESS, dtype=np.uint64)
            addresses[self.memory_rows] = where
            address = nullable(addresses, pl.UInt64, NULL_ADDRESS)
        return {"bytes": size, "address": address}

    def _pair_args(self) -> list[str | None]:
        """Merge the arguments of begin and end; those of the end win."""
        args = self.of.point_args
        return (
            [
                _merged(args[begin], args[end] if end >= 0 else None)
                for begin, end in zip(self.paired.begin, self.paired.end, strict=True)
            ]
            if args
            else []
        )

    def _input_texts(self, name: str) -> pl.Series:
        """Return the JSON texts of operators' inputs; pairs have none."""
        codes = np.full(len(self.order), NO_TEXT, np.uint32)
        codes[self.input_rows] = self.of.slices.whole(name)
        if self.of.in_files and (codes != NO_TEXT).any():
            return texts_in_file(self.input_texts, codes, NO_TEXT)
        return self.input_texts.gather(nullable(codes, pl.UInt32, NO_TEXT))

    def _texts_of(self, complete: list[str | None], pairs: list[str | None]) -> pl.Series:
        texts = complete + (pairs or [None] * (len(self.order) - len(complete)))
        return pl.Series(texts, dtype=pl.String).gather(self.order)

    # --- side tables -----------------------------------------------------------------------

    def _launch_configs(self) -> pl.DataFrame:
        slices = self.of.slices
        event = self.row_of[slices.whole("kernel_rows")]
        order = np.argsort(event, kind="stable")
        raw = {"event": event[order]}
        for name in ("grid", "block"):
            triples = slices.whole(name).reshape(-1, 3)
            raw |= {f"{name}_{axis}": triples[order, at] for at, axis in enumerate("xyz")}
        for name in ("registers", "shared_memory"):
            raw[name] = slices.whole(name)[order]
        raw["local_memory"] = np.full(order.size, NULL)  # Kineto does not record it
        known = {
            name: pl.when(pl.col(name) != (-1 if name[-2:] in _AXES else NULL)).then(name)
            for name in raw
        }
        return pl.DataFrame(raw).select(
            known[name].cast(dtype, strict=False).alias(name)
            for name, dtype in schema.types("launch_configs").items()
        )

    def _collectives(self) -> pl.DataFrame:
        event = self.row_of[self.of.slices.whole("collective_rows")]
        columns = [pl.Series("event", event, dtype=pl.UInt32)]
        for place, column in enumerate(schema.TABLES["collectives"][1:]):
            values = [collective[place] for collective in self.of.collectives]
            if column.dtype == schema.NAME:
                series = pl.Series(values, dtype=pl.String).cast(column.dtype)
            else:
                series = nullable(np.array(values, dtype=np.int64), column.dtype)
            columns.append(series.alias(column.name))
        table = pl.DataFrame(columns)
        return table if (event[1:] >= event[:-1]).all() else table.sort("event")

    def _memory_totals(self) -> pl.DataFrame:
        slices = self.of.slices
        if not len(self.memory_rows):
            return schema.empty("memory_totals")
        columns = {
            "event": pl.Series(self.memory_rows).cast(pl.UInt32),
            "device_type": nullable(self.device_type, pl.Int32),
            "allocated_bytes": nullable(slices.whole("total_allocated"), pl.Int64),
            "reserved_bytes": nullable(slices.whole("total_reserved"), pl.Int64),
            "free_bytes": _constant(None, len(self.memory_rows), pl.Int64),
        }
        return pl.DataFrame(columns).sort("event")

    def _flows(self) -> pl.DataFrame:
        slices = {"ts": self.ts, "dur": self.dur, "pid": self.pid, "tid": self.tid}
        return flow_table(self.of, self.texts, self.rank, slices)

    def _counters(self) -> pl.DataFrame:
        rows = [
            (ts, name, series, self.rank, self.of.lane_id(pid, label) or 0, value)
            for ts, pid, label, name, series, value in self.of.counters
        ]
        if not rows:
            return schema.empty("counters")
        types = schema.types("counters", plain=True)
        frame = pl.DataFrame(rows, schema=types, orient="row")
        from traceanalyzer.parsers.chrome_trace import producers

        frame, changed = producers.undo_composer_units(frame)
        self.of.issues.lose("composer-units", changed)
        possible = frame.filter(pl.col("value").abs() < 1 << 63)
        self.of.issues.lose("bad-counter", frame.height - possible.height)
        return possible.cast({"name": schema.NAME, "series": schema.NAME}).sort(
            "ts", maintain_order=True
        )

    def _lanes(self) -> pl.DataFrame:
        used = (self.pid, self.tid) if self.selection.wants("lane", None) else None
        return _lane_table(self.of, self.rank, used)


_AXES = ("_x", "_y", "_z")


def _in_file(value: T) -> T:
    moved = spilled(value)
    unload()
    return moved


def _constant(value: int | None, height: int, dtype: Any) -> pl.Series:
    return pl.Series([value], dtype=dtype).new_from_index(0, height)


def _merged(begin: str | None, end: str | None) -> str | None:
    if begin is None or end is None:
        return begin or end
    try:
        first, second = msgspec.json.decode(begin), msgspec.json.decode(end)
    except msgspec.DecodeError:
        return begin
    if not isinstance(first, dict) or not isinstance(second, dict):
        return end
    return msgspec.json.encode({**first, **second}).decode()


# --- names of processes and threads -----------------------------------------------------------


def _lane_table(
    collected: Collected, rank: int | None, used: tuple[Ints, Ints] | None
) -> pl.DataFrame:
    """Return processes and threads with a name, label or textual id; the last event wins.

    Args:
        collected: columns of the file, with its metadata events.
        rank: rank of the file.
        used: pid and tid of all slices, to add their textual ids, or None.
    """
    lanes: Lanes = {}
    for what, pid_number, pid_label, tid_number, tid_label, args in collected.metadata:
        thing, _, attribute = what.partition("_")
        if thing not in ("process", "thread") or attribute not in _LANE_COLUMNS:
            continue
        pid = collected.lane_id(pid_number, pid_label) or 0
        tid = collected.lane_id(tid_number, tid_label) if thing == "thread" else None
        tid = pid if thing == "thread" and tid is None else tid
        column, key = _LANE_COLUMNS[attribute]
        value = json.loads(args).get(key)
        if value is not None:
            lanes.setdefault((pid, tid), {})[column] = value
    if used:
        _add_textual(lanes, collected, *used)
    rows = [
        (
            rank,
            pid,
            tid,
            lane.get("label"),
            lane.get("labels"),
            lane.get("sort_index"),
            lane.get("textual", False),
        )
        for (pid, tid), lane in sorted(lanes.items(), key=_lane_order)
    ]
    return pl.DataFrame(rows, schema=schema.types("lanes"), orient="row")


def _lane_order(lane: tuple[tuple[int, int | None], Any]) -> tuple[int, bool, int]:
    """Return the key that sorts lanes by process and thread, each process before its threads."""
    (pid, tid), _ = lane
    return pid, tid is not None, tid or 0


def _add_textual(lanes: Lanes, collected: Collected, pids: Ints, tids: Ints) -> None:
    text_of = {number: label for label, number in collected.labels.items()}
    textual = (pids >= TEXTUAL_ID) | (tids >= TEXTUAL_ID)
    used = np.unique(np.stack([pids[textual], tids[textual]]), axis=1)
    for pid, tid in used.T.tolist():
        for key, number in (((pid, None), pid), ((pid, tid), tid)):
            if number in text_of:
                lanes.setdefault(key, {}).setdefault("label", text_of[number])
    for (pid, tid), lane in lanes.items():
        lane["textual"] = (pid if tid is None else tid) in text_of
        if lane["textual"]:
            lane["label"] = text_of[pid if tid is None else tid]
