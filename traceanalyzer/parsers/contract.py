"""What a parser is: a :class:`Format` that recognises its files and turns one into a Trace.

Of a trace :func:`bounded` keeps what can be: no events at times that no clock shows, and no sizes,
addresses and weights beyond :mod:`traceanalyzer.limits`; the trace's issues count them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import polars as pl

from traceanalyzer import limits, schema
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Meta, Trace, issue_rows

#: Called with (bytes read so far, bytes in all) of the file on disk.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Selection:
    """What the caller needs; a parser leaves out the rest as early as it can.

    Attributes:
        kinds: event kinds wanted, ``counter`` and ``flow`` for those tables; None means all.
        names: literal substrings; an event whose name holds one is wanted whatever its kind.
        columns: columns wanted beyond the ones always made (``args``, ``input_dims``).
        unused: columns of ``events`` and side tables that the caller does not look at; a parser
            may leave them null or empty.
        windows: (start, end) in ns on the file's clock; only events that overlap one of them are
            wanted. Empty for all.
    """

    kinds: frozenset[str] | None = None
    names: tuple[str, ...] = ()
    columns: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()
    windows: tuple[tuple[int, int], ...] = ()

    def wants(self, kind: str, name: str | None) -> bool:
        """Whether an event of this kind and name is asked for."""
        if self.kinds is None or kind in self.kinds:
            return True
        return bool(self.names and name and self._name_pattern.search(name))

    def rows(self) -> pl.Expr | None:
        """Which rows of ``events`` are asked for, by kind and name; None for all."""
        if self.kinds is None:
            return None
        asked = pl.col("kind").cast(pl.String).is_in(sorted(self.kinds))
        if self.names:
            name = pl.col("name").cast(pl.String)
            asked |= name.str.contains_any(list(self.names)).fill_null(value=False)
        return asked

    @cached_property
    def _name_pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.names)))


@dataclass(frozen=True)
class Format:
    """A file format: how to recognise it and how to read it.

    Attributes:
        name: the word for ``--format``.
        suffixes: usual file name endings, for help texts only; detection is by content.
        description: one line.
        spec_url: where the format is described.
        sniff: ``(first 64 KiB after decompression, path) -> bool``; pure, never raises.
        parse: ``(source, selection, progress) -> Trace``; raises ``InputError`` for bytes it
            cannot use, notes recoverable loss in ``Trace.issues``, never prints.
        priority: the higher is asked first; unique among the formats. Those of other packages are
            asked when none of ours above 0 recognises a file.
    """

    name: str
    suffixes: tuple[str, ...]
    description: str
    spec_url: str
    sniff: Callable[[bytes, str], bool]
    parse: Callable[[Source, Selection, Progress | None], Trace]
    priority: int


def bounded(trace: Trace) -> Trace:
    """The trace with nothing in it that is beyond what there can be."""
    timely = _timely(trace)
    tables = {name: _sized(name, frame) for name, frame in timely.tables.items()}
    told = ("events", "flows", "counters")
    late = sum(getattr(trace, name).height - getattr(timely, name).height for name in told)
    wrong = sum(count for _, count in tables.values())
    found = [("time-out-of-range", late), ("number-out-of-range", wrong)]
    issues = [("data_loss", code, count, None) for code, count in found if count]
    frames: dict[str, Any] = {name: frame for name, (frame, _) in tables.items()}
    frames["issues"] = pl.concat([trace.issues, issue_rows(issues, trace.meta.rank)])
    return replace(timely, sources=tuple(map(_dated, trace.sources)), **frames)


def _timely(trace: Trace) -> Trace:
    """Without what is on no clock; the same trace where all of it is."""
    points = pl.col("ts").is_between(-limits.LAST_NS, limits.LAST_NS)
    beside = [frame for frame in (trace.flows, trace.counters) if frame.height]
    if _on_clock(trace.events) and all(frame.select(points.all()).item() for frame in beside):
        return trace
    return trace.select(limits.on_the_clock(), points)


def _on_clock(events: pl.DataFrame) -> bool:
    """Whether all events are on the clock; most files tell by the least and the largest numbers."""
    times = [events[name] for name in ("ts", "dur")]
    ends = [end for column in times for end in (column.min(), column.max())]
    if all(abs(end) <= limits.LAST_NS // 2 for end in ends if isinstance(end, int)):
        return True
    return bool(events.select(limits.on_the_clock().all()).item())


def _sized(name: str, frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """A table with null for numbers that cannot be, and how many there were."""
    held = limits.bounded(name)
    may_lack = [c.name for c in schema.TABLES[name] if c.name in held and c.null != "never"]
    if not may_lack or frame.is_empty():
        return frame, 0
    far = {own: limits.beyond(name, own) for own in may_lack}
    counts = frame.select(is_far.sum().alias(own) for own, is_far in far.items())
    wrong = [own for own, count in counts.row(0, named=True).items() if count]
    if wrong:
        frame = frame.with_columns(pl.when(~far[own]).then(own).alias(own) for own in wrong)
    return frame, int(counts.sum_horizontal().item())


def _dated(meta: Meta) -> Meta:
    """Without times that leave no room on the clock for those behind them."""
    epoch, start = meta.epoch_ns, meta.start_ns
    if epoch is not None and not 0 <= epoch <= limits.LAST_EPOCH_NS:
        epoch = None
    if start is not None and abs(start) > limits.LAST_NS:
        start = None
    return replace(meta, epoch_ns=epoch, start_ns=start)
