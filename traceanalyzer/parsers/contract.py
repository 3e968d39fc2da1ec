"""The parser interface: a :class:`Format` recognises its files and turns a file into a Trace.

:func:`bounded` drops events with impossible times and nulls sizes, addresses and weights beyond
:mod:`traceanalyzer.schema`; the trace's issues count them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, Literal

import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Meta, Trace, in_spans, issue_rows

#: Called with (bytes read, total bytes) of the file on disk.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Selection:
    """The data the caller needs; a parser skips the rest as early as possible.

    Attributes:
        kinds: event kinds to keep, ``counter``, ``flow`` and ``metric`` for those tables; None
            means all.
        names: literal substrings; an event whose name contains one is kept, whatever its kind.
        columns: optional columns to fill (``args``, ``input_dims``).
        unused: columns of ``events`` and side tables that the caller does not use; a parser may
            leave them null or empty.
        windows: (start, end) in ns on the file's clock; only events that overlap one of them are
            kept. Empty for all.
        metrics: literal substrings; metrics whose name contains one are kept. Empty for all.
        inputs_of: names of the operators whose inputs (``input_dims`` ...) are used; a parser may
            leave those of others null. Empty for all.
        args_with_modules: fill ``args`` too if the file says that modules or Python frames were
            recorded, or there are lines of the program for kernels; "lines": only of these.
        ranks: only events of these ranks are kept, in formats with ``ranks``. None for all.
    """

    kinds: frozenset[str] | None = None
    names: tuple[str, ...] = ()
    columns: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()
    windows: tuple[tuple[int, int], ...] = ()
    metrics: tuple[str, ...] = ()
    inputs_of: frozenset[str] = frozenset()
    args_with_modules: bool | Literal["lines"] = False
    ranks: frozenset[int] | None = None

    def has_inputs(self, name: Any) -> bool:
        """Whether the inputs of an operator with this name are used."""
        return not self.inputs_of or name in self.inputs_of

    def wants(self, kind: str, name: str | None) -> bool:
        """Whether the selection includes an event of this kind and name."""
        if self.kinds is None or kind in self.kinds:
            return True
        return bool(self.names and name and self._name_pattern.search(name))

    def rows(self) -> pl.Expr | None:
        """Return the filter on ``events`` by kind, name and window; None for all rows."""
        tests = []
        if self.kinds is not None:
            selected = pl.col("kind").cast(pl.String).is_in(sorted(self.kinds))
            if self.names:
                name = pl.col("name").cast(pl.String)
                selected |= name.str.contains_any(list(self.names)).fill_null(value=False)
            tests.append(selected)
        if self.windows:
            tests.append(in_spans(self.windows, with_start=True))
        return pl.all_horizontal(tests).fill_null(value=False) if tests else None

    def apply(self, trace: Trace) -> Trace:
        """Return the trace with only the selected events, for parsers that read all of them."""
        rows = self.rows()
        return trace if rows is None else trace.select(rows)

    @cached_property
    def _name_pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.names)))


@dataclass(frozen=True)
class Format:
    """A file format: how to recognise it and how to read it.

    Attributes:
        name: value of ``--input-format``.
        suffixes: usual file name endings, for help texts only; detection is by content.
        description: one line.
        sniff: ``(first 64 KiB after decompression, path) -> bool``; pure, never raises.
        parse: ``(source, selection, progress) -> Trace``; raises ``InputError`` for unusable
            bytes, records recoverable loss in ``Trace.issues``, never prints.
        priority: formats with a higher priority are tried first; unique. Formats of other packages
            are tried after the built-in formats above 0.
        parse_ranks: like ``parse``, but returns a function per rank that builds its trace, so that
            one trace is in memory at a time; None if ``parse`` returns all ranks at once.
        ranks: ``(source) -> ranks``: the ranks that ``parse_ranks`` can read apart
            (``Selection.ranks``), so that processes share a large file; empty if it cannot.
    """

    name: str
    suffixes: tuple[str, ...]
    description: str
    sniff: Callable[[bytes, str], bool]
    parse: Callable[[Source, Selection, Progress | None], Trace]
    priority: int
    parse_ranks: (
        Callable[[Source, Selection, Progress | None], Sequence[Callable[[], Trace]]] | None
    ) = None
    ranks: Callable[[Source], Sequence[int]] | None = None


def on_use(function: str) -> Callable[..., Any]:
    """Return a function that imports ``module:name`` when it is called, and calls it.

    Detection may load all formats, and few files need the reader of another one.
    """
    module, _, name = function.partition(":")
    return lambda *args: getattr(import_module(module), name)(*args)


def bounded(trace: Trace) -> Trace:
    """Return the trace without impossible times and numbers."""
    in_range = _in_time_range(trace)
    tables = {name: _sized(name, frame) for name, frame in in_range.tables.items()}
    timed = ("events", "flows", "counters")
    late_count = sum(getattr(trace, name).height - getattr(in_range, name).height for name in timed)
    wrong_count = sum(count for _, count in tables.values())
    counts = [("time-out-of-range", late_count), ("number-out-of-range", wrong_count)]
    issues = [("data_loss", code, count, None) for code, count in counts]
    frames: dict[str, Any] = {name: frame for name, (frame, _) in tables.items()}
    frames["issues"] = pl.concat([trace.issues, issue_rows(issues, trace.meta.rank)])
    return replace(in_range, sources=tuple(map(_dated, trace.sources)), **frames)


def _in_time_range(trace: Trace) -> Trace:
    """Return the trace without rows whose times are out of range."""
    points = pl.col("ts").is_between(-schema.LAST_NS, schema.LAST_NS)
    tables = [frame for frame in (trace.flows, trace.counters) if frame.height]
    if _on_clock(trace.events) and all(frame.select(points.all()).item() for frame in tables):
        return trace
    return trace.select(schema.on_the_clock(), points)


def _on_clock(events: pl.DataFrame) -> bool:
    """Whether all event times are in range; minimum and maximum decide for most files."""
    most = {"ts": schema.LAST_NS - schema.MAX_DURATION_NS, "dur": schema.MAX_DURATION_NS}
    ends = [(end, name) for name in most for end in (events[name].min(), events[name].max())]
    if all(abs(end) <= most[name] for end, name in ends if isinstance(end, int)):
        return True
    return bool(events.select(schema.on_the_clock().all()).item())


def _sized(name: str, frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the table with null for impossible numbers, and their count."""
    limited = schema.bounded_columns(name)
    far = {
        c.name: schema.beyond(name, c.name)
        for c in schema.TABLES[name]
        if c.name in limited and c.null != "never" and not schema.are_within(name, frame[c.name])
    }
    if not far:
        return frame, 0
    counts = frame.select(is_far.sum().alias(column) for column, is_far in far.items())
    out_of_range = [column for column, count in counts.row(0, named=True).items() if count]
    if out_of_range:
        frame = frame.with_columns(pl.when(~far[c]).then(c).alias(c) for c in out_of_range)
    return frame, int(counts.sum_horizontal().item())


def _dated(meta: Meta) -> Meta:
    """Return the metadata without times that would overflow the clock."""
    epoch, start = meta.epoch_ns, meta.start_ns
    if epoch is not None and not 0 <= epoch <= schema.LAST_EPOCH_NS:
        epoch = None
    if start is not None and abs(start) > schema.LAST_NS:
        start = None
    return replace(meta, epoch_ns=epoch, start_ns=start)
