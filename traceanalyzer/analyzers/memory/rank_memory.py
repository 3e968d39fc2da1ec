"""The memory of the devices of one rank: ledgers, code, and allocations live at a position."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import clocks, columns, display, names
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.display import headings, table_of_known
from traceanalyzer.analyzers.memory import Options, Window, attribution
from traceanalyzer.analyzers.memory.attribution import frame_text
from traceanalyzer.analyzers.memory.ledger import Ledger, ledgers, of_device, origin
from traceanalyzer.errors import MissingData
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.result import Table
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import ALLOCATOR_KINDS, steps_pattern

#: Maximum number of points of a curve.
POINTS = 2000

_SETTINGS = "allocator_settings"


@dataclass(frozen=True)
class RankMemory:
    """Memory of one rank.

    Attributes:
        trace: trace read with :data:`~.ledger.NEEDS`.
        options: libraries that name allocations, and the time window.
        ledgers: one per device; allocations also have ``category`` and ``confidence``.
        lines: the code of each stack.
        steps: ``name``, ``device`` (or null), ``ts``, ``end`` of each annotated step.
    """

    trace: Trace
    options: Options
    ledgers: tuple[Ledger, ...]
    lines: attribution.Lines
    steps: pl.DataFrame

    @property
    def rank(self) -> int | None:
        """Rank of the file, or None."""
        return self.trace.meta.rank

    @property
    def path(self) -> str:
        """Path of the file."""
        return self.trace.meta.path

    @property
    def window(self) -> Window:
        """Time window (since, until) to analyze, in ns after the first event."""
        return self.options.window

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the allocator; empty if not recorded."""
        extra = json.loads(self.trace.meta.extra or "{}")
        settings = extra.get(_SETTINGS) if isinstance(extra, dict) else None
        return settings if isinstance(settings, dict) else {}

    @property
    def expandable(self) -> bool:
        """Whether the allocator uses expandable segments, by its settings or its segments."""
        enabled = self.settings.get("expandable_segments") is True
        return enabled or bool(self.trace.segments["expandable"].any())

    @property
    def epoch_ns(self) -> int | None:
        """Absolute time of time 0 of the ledgers in ns; None if not recorded."""
        epoch = self.trace.meta.epoch_ns
        return None if epoch is None else epoch + origin(self.trace)

    def code(self, history: Ledger, allocations: pl.DataFrame) -> pl.DataFrame:
        """Return ``function``, ``file``, ``line``, ``is_own_code`` of allocations of a ledger."""
        if history.source != "instants":
            return self.lines.code_of(allocation_stack(allocations))
        recorded = pl.col("start") > 0
        event = allocations.select(pl.when(recorded).then(pl.col("start") - 1)).to_series()
        events = history.rows["event"].gather(event)
        return attribution.code_running(self.trace, self.options.library_name, events)

    def sized(self, allocations: pl.DataFrame) -> pl.DataFrame:
        """Return the allocations of at least ``min_bytes``."""
        return allocations.filter(pl.col("bytes") >= (self.options.min_bytes or 0))

    def of_device(self, device: int | None) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the segments of a device and the blocks in them."""
        return of_device(self.trace.segments, self.trace.blocks, device)

    def with_device(self, history: Ledger, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a frame of a ledger with ``rank``, ``path``, ``device`` as first columns."""
        device = pl.lit(history.device, pl.Int32).alias("device")
        return columns.with_source(frame.select(device, pl.all()), self)

    def steps_of(self, device: int | None) -> pl.DataFrame:
        """Return the steps of a device, including steps without a device."""
        same = pl.col("device").eq_missing(pl.lit(device, pl.Int32))
        return self.steps.filter(pl.col("device").is_null() | same)


def rank_memory(trace: Trace, options: Options, step_name: str | None = None) -> RankMemory:
    """Return the memory of a trace of one rank.

    Args:
        trace: trace read with :data:`~.ledger.NEEDS`.
        options: libraries that name allocations, and the time window.
        step_name: regular expression of the annotations that are steps.

    Raises:
        MissingData: no memory events were recorded, or a window is given and times are missing, or
            it is outside of the recording.
        OptionError: ``step_name`` is not a regular expression.
    """
    if options.windowed and trace.events["ts"].null_count():
        raise MissingData(f"{trace.meta.path}: no times were recorded. Omit --since and --until.")
    span = clocks.recorded_span(trace) if options.windowed else None
    if span is not None and clocks.is_outside(span, *options.window):
        raise MissingData(clocks.no_events(trace.meta.path, span, *options.window))
    lines, attributed = trace.once(
        ("rank_memory", tuple(options.library_name)), lambda: _attributed(trace, options)
    )
    steps = trace.once(("memory_steps", step_name), lambda: _steps(trace, step_name))
    return RankMemory(trace, options, attributed, lines, steps)


def _attributed(trace: Trace, options: Options) -> tuple[attribution.Lines, tuple[Ledger, ...]]:
    """Return the code of each stack, and the ledgers with the category of each allocation."""
    histories = ledgers(trace)  # before the lines: most traces have none
    lines = attribution.lines(trace, options.library_name)
    attributed = (
        replace(one, allocations=one.allocations.hstack(attribution.categories(one, lines)))
        for one in histories
    )
    return lines, tuple(attributed)


def allocation_stack(allocations: pl.DataFrame) -> pl.Series:
    """Return the stacks of allocations; null where only the stack of the free is known."""
    recorded = pl.when(pl.col("origin") != "freed").then("stack")
    return allocations.select(recorded).to_series()


def _steps(trace: Trace, step_name: str | None) -> pl.DataFrame:
    kinds = ("user_annotation", "nvtx")
    events = trace.events.select("kind", "name", "device", "ts", "dur")
    ranges = events.filter(pl.col("kind").is_in(kinds), pl.col("dur") >= 0)
    annotations = (
        ranges.with_columns(pl.col("name").cast(pl.String), ts=pl.col("ts") - origin(trace))
        .select("name", "device", "ts", end=pl.col("ts") + pl.col("dur"))
        .sort("ts", "end")
    )
    return annotations.filter(names.named(annotations, [step_name or steps_pattern()]))


# --- positions -------------------------------------------------------------------------------


def positions(history: Ledger, times: pl.Series) -> Ints:
    """Return the position at each time: the number of events up to then."""
    ts = history.rows["ts"].to_numpy()
    return np.searchsorted(ts, times.to_numpy(), side="right").astype(np.int64)


def peak_position(history: Ledger, window: Window = (None, None)) -> int:
    """Return the first position with the most live bytes."""
    first, last = history.between(*window)
    return first + int(history.live[first : last + 1].argmax())


def fullest_position(history: Ledger, window: Window = (None, None)) -> int | None:
    """Return the position at which fragmentation is measured; None if reserved is not known.

    This is the first out-of-memory error; else the most live bytes while reserved is at its peak.
    """
    if history.reserved is None:
        return None
    first, last = history.between(*window)
    failed = (history.rows["kind"].cast(pl.String) == "oom").arg_true() + 1
    failed = failed.filter(failed.is_between(first, last))
    if failed.len():
        return int(failed[0])
    reserved = history.reserved[first : last + 1]
    live = np.where(reserved == reserved.max(), history.live[first : last + 1], -1)
    return first + int(live.argmax())


def alive(history: Ledger, rank: RankMemory, position: int) -> pl.DataFrame:
    """Return live memory at a position by stack and category, largest first.

    Returns:
        rank, path, device, category, confidence, function, file, line, is_own_code, n, live_bytes,
        live_frac (of all live bytes), before_n (allocated before the history), stack (frames,
        outermost first, joined by ``;``).
    """
    options = rank.options
    key = ("alive", tuple(options.library_name), options.min_bytes, history.device, position)
    return rank.trace.once(key, lambda: _alive(history, rank, position))


def _alive(history: Ledger, rank: RankMemory, position: int) -> pl.DataFrame:
    rows = history.alive(position)
    total = int(rows["bytes"].sum())
    rows = rank.sized(rows)
    rows = rows.with_columns(*rank.code(history, rows), allocation_stack(rows).alias("row"))
    keys = ("row", "category", "confidence", *attribution.LINE)
    sums = rows.group_by(keys).agg(
        n=pl.len().cast(pl.Int64),
        live_bytes=pl.col("bytes").sum(),
        before_n=(pl.col("start") == 0).sum().cast(pl.Int64),
    )
    sums = sums.with_columns(stack=rank.lines.paths(sums["row"]))
    # stacks may differ only in omitted frames
    same = ("stack", *keys[1:])
    sums = sums.group_by(same).agg(pl.col("n", "live_bytes", "before_n").sum(), pl.col("row").min())
    ordered = columns.largest_first(sums, "live_bytes", *keys, nulls_last=True).select(
        "category", "confidence", *attribution.LINE, "n", "live_bytes",
        live_frac=pl.col("live_bytes") / total if total else pl.lit(None, pl.Float64),
        before_n="before_n", stack="stack",
    )  # fmt: skip
    return rank.with_device(history, ordered)


def timeline(history: Ledger, points: int = POINTS) -> pl.DataFrame:
    """Return live and reserved bytes at up to ``points`` positions, including local maxima.

    Returns:
        event (position), time_ns, live_bytes, reserved_bytes.
    """
    at = thinned(history, points)
    reserved = [None] * at.size if history.reserved is None else history.reserved[at]
    return pl.DataFrame(
        {
            "event": at,
            "time_ns": history.times(pl.Series(at)),
            "live_bytes": history.live[at],
            "reserved_bytes": pl.Series(reserved, dtype=pl.Int64),
        }
    )


def thinned(history: Ledger, points: int) -> Ints:
    """Return up to ``points`` positions for a curve: the first and highest of each interval."""
    n = history.positions
    if n <= points:
        return np.arange(n)
    edges = np.linspace(0, n, (points - 2) // 2 + 1).astype(np.int64)[:-1]
    interval = np.repeat(np.arange(edges.size), np.diff(np.append(edges, n)))
    order = np.lexsort((history.live, interval))
    highest = order[np.append(edges[1:], n) - 1]
    return np.unique(np.concatenate([edges, highest, [n - 1, peak_position(history)]]))


# --- as samples ------------------------------------------------------------------------------


def is_snapshot(trace: Trace) -> bool:
    """Whether a trace contains an allocator's memory and nothing else."""
    kinds = trace.events["kind"].unique().cast(pl.String)
    of_memory = (*ALLOCATOR_KINDS, "user_annotation", "other")
    return trace.segments.height > 0 and bool(kinds.is_in(of_memory).all())


def at_peak(trace: Trace) -> Trace:
    """Return the trace with one sample per allocation that is live at the peak.

    The weight of a sample is the size in bytes. Allocations from before the history have no stack
    unless the snapshot's blocks have one. For several devices the peak is that of their sum;
    without times, that of the device with the most live bytes alone.

    Raises:
        MissingData: no memory events were recorded.
    """
    rank = rank_memory(trace, Options())
    empty = trace.select(pl.lit(value=False))
    kind = trace.events.schema["kind"]
    samples = []
    for history, position in _at_common_peak(rank.ledgers):
        live = history.alive(position)
        sample = live.select(
            kind=pl.lit("sample", kind),
            rank=pl.lit(rank.rank, pl.Int32),
            stack=rank.lines.trimmed(allocation_stack(live)),
            weight=pl.col("bytes").cast(pl.Float64),
        )
        samples.append(sample)
    events = pl.concat([empty.events, *samples], how="diagonal")
    sources = tuple(replace(meta, weight_unit="bytes", start_ns=None) for meta in trace.sources)
    return replace(empty, sources=sources, events=events)


def _at_common_peak(histories: tuple[Ledger, ...]) -> list[tuple[Ledger, int]]:
    """Return each device with its position when the sum of live bytes peaks."""
    if len(histories) == 1 or any(one.rows["ts"].null_count() for one in histories):
        fullest = max(histories, key=lambda one: int(one.live.max()))
        return [(fullest, peak_position(fullest))]
    times = pl.concat([one.rows["ts"] for one in histories]).unique().sort()
    if times.is_empty():
        return [(one, 0) for one in histories]
    at = [positions(one, times) for one in histories]
    live = np.sum([one.live[there] for one, there in zip(histories, at, strict=True)], axis=0)
    peak = int(live.argmax())
    return [(one, int(there[peak])) for one, there in zip(histories, at, strict=True)]


#: Headings of tables of live memory.
ALIVE = headings(
    "on: device, event, at: line of code, leaf: innermost frame, category, n, live_bytes: bytes, "
    "live_frac: share"
)


def known_table(
    name: str, title: str, frame: pl.DataFrame, columns: dict[str, str], *, detail: bool = False
) -> Table:
    """Return a table without columns of nulls, and without the device column of a single device."""
    located = frame.with_columns(display.places(frame))
    columns = {name: heading for name, heading in columns.items() if name in located.columns}
    if frame.select("rank", "path", "device").n_unique() < 2:
        del columns["on"]
    if frame.is_empty():
        return Table(name, title, located, columns, detail=detail)
    return table_of_known(name, title, located, columns, detail=detail)


def with_line(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with ``at``: function, file and line as one text."""
    texts = [frame_text(*row) for row in frame.select("function", "file", "line").rows()]
    return frame.with_columns(at=pl.Series(texts, dtype=pl.String))


def summed(alive: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the sums of ``alive`` by fewer columns, largest first."""
    sums = alive.group_by(keys).agg(pl.col("n", "live_bytes", "live_frac").sum())
    return largest_first(sums, "live_bytes", *keys)


def times_of(n: int) -> str:
    """Return ``once``, ``twice`` or ``3 times``."""
    return {1: "once", 2: "twice"}.get(n, f"{n:,} times")
