"""The memory of one rank's devices: its history, the code of it, and what is live at a position."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import columns, names
from traceanalyzer.analyzers.memory import attribution
from traceanalyzer.analyzers.memory.ledger import Ledger, ledgers, of_device, origin
from traceanalyzer.analyzers.memory.options import Options, Window
from traceanalyzer.errors import MissingData
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import ALLOCATOR_KINDS, steps_pattern

#: Points kept of a curve.
POINTS = 2000

_SETTINGS = "allocator_settings"


@dataclass(frozen=True)
class RankMemory:
    """One rank.

    Attributes:
        trace: read with :data:`~.ledger.NEEDS`.
        options: the libraries that name allocations, and the window.
        ledgers: one for each device; its allocations have ``category`` and ``confidence`` too.
        lines: the code of each stack.
        steps: ``name``, ``device`` (or null), ``ts``, ``end`` of each step that is marked.
    """

    trace: Trace
    options: Options
    ledgers: tuple[Ledger, ...]
    lines: attribution.Lines
    steps: pl.DataFrame

    @property
    def rank(self) -> int | None:
        """Of the file, or None."""
        return self.trace.meta.rank

    @property
    def path(self) -> str:
        """The file."""
        return self.trace.meta.path

    @property
    def window(self) -> Window:
        """(since, until) in ns after the first event: what happens outside is not asked for."""
        return self.options.window

    @property
    def settings(self) -> dict[str, Any]:
        """The allocator's, where the file tells them."""
        told = json.loads(self.trace.meta.extra or "{}")
        found = told.get(_SETTINGS) if isinstance(told, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def expandable(self) -> bool:
        """Whether the allocator uses expandable segments, by its settings or its segments."""
        set_on = self.settings.get("expandable_segments") is True
        return set_on or bool(self.trace.segments["expandable"].any())

    @property
    def epoch_ns(self) -> int | None:
        """Absolute time of time 0 of the ledgers; None where not recorded."""
        epoch = self.trace.meta.epoch_ns
        return None if epoch is None else epoch + origin(self.trace)

    def code(self, of: Ledger, allocations: pl.DataFrame) -> pl.DataFrame:
        """``function``, ``file``, ``line`` and ``own`` of allocations of a ledger."""
        if of.noted != "instants":
            return self.lines.of(known_stack(allocations))
        begun = pl.col("start") > 0
        event = allocations.select(pl.when(begun).then(pl.col("start") - 1)).to_series()
        events = of.rows["event"].gather(event)
        return attribution.code_running(self.trace, self.options.library_name, events)

    def sized(self, allocations: pl.DataFrame) -> pl.DataFrame:
        """Those of the size asked for, or more."""
        return allocations.filter(pl.col("bytes") >= (self.options.min_bytes or 0))

    def of_device(self, device: int | None) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Segments of a device, and the blocks in them."""
        return of_device(self.trace.segments, self.trace.blocks, device)

    def placed(self, of: Ledger, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame of a ledger with ``rank``, ``path`` and ``device`` as its first columns."""
        device = pl.lit(of.device, pl.Int32).alias("device")
        return columns.with_source(frame.select(device, pl.all()), self)

    def steps_of(self, device: int | None) -> pl.DataFrame:
        """Steps of a device, and those that tell none."""
        own = pl.col("device").is_null() | pl.col("device").eq_missing(pl.lit(device, pl.Int32))
        return self.steps.filter(own)


def rank_memory(trace: Trace, options: Options, step_name: str | None = None) -> RankMemory:
    """What a trace of one rank tells.

    Args:
        trace: read with :data:`~.ledger.NEEDS`.
        options: the libraries that name allocations, and the window.
        step_name: a regular expression of the annotations that are steps.

    Raises:
        MissingData: nothing about memory was recorded, or no times, and a window is asked for.
        OptionError: ``step_name`` is no regular expression.
    """
    if options.windowed and trace.events["ts"].null_count():
        raise MissingData(f"{trace.meta.path}: has no times; leave --since and --until out")
    code, known = trace.once(
        ("rank_memory", tuple(options.library_name)), lambda: _attributed(trace, options)
    )
    return RankMemory(trace, options, known, code, _steps(trace, step_name))


def _attributed(trace: Trace, options: Options) -> tuple[attribution.Lines, tuple[Ledger, ...]]:
    """The code of each stack, and the ledgers with what each allocation is for."""
    code = attribution.lines(trace, options.library_name)
    found = (
        replace(of, allocations=of.allocations.hstack(attribution.categories(of, code)))
        for of in ledgers(trace)
    )
    return code, tuple(found)


def known_stack(allocations: pl.DataFrame) -> pl.Series:
    """The stacks of allocations; of one freed only, the stack is that of who freed it."""
    own = pl.when(pl.col("origin") != "freed").then("stack")
    return allocations.select(own).to_series()


def _steps(trace: Trace, step_name: str | None) -> pl.DataFrame:
    kinds = ("user_annotation", "nvtx")
    ranges = trace.events.lazy().filter(pl.col("kind").is_in(kinds), pl.col("dur") >= 0)
    told = (
        ranges.with_columns(pl.col("name").cast(pl.String), ts=pl.col("ts") - origin(trace))
        .select("name", "device", "ts", end=pl.col("ts") + pl.col("dur"))
        .sort("ts", "end")
        .collect()
    )
    return told.filter(names.named(told, [step_name or steps_pattern()]))


# --- positions -------------------------------------------------------------------------------


def positions(of: Ledger, times: pl.Series) -> Ints:
    """The position at each time: how many events have happened by then."""
    ts = of.rows["ts"].to_numpy()
    return np.searchsorted(ts, times.to_numpy(), side="right").astype(np.int64)


def peak_position(of: Ledger, window: Window = (None, None)) -> int:
    """The first position at which most is live."""
    first, last = of.between(*window)
    return first + int(of.live[first : last + 1].argmax())


def fullest_position(of: Ledger, window: Window = (None, None)) -> int | None:
    """The position to judge fragmentation at; None where it is not known what is reserved.

    The first out-of-memory error; without one, the highest live bytes while most is reserved.
    """
    if of.reserved is None:
        return None
    first, last = of.between(*window)
    failed = (of.rows["kind"].cast(pl.String) == "oom").arg_true() + 1
    failed = failed.filter(failed.is_between(first, last))
    if failed.len():
        return int(failed[0])
    reserved = of.reserved[first : last + 1]
    live = np.where(reserved == reserved.max(), of.live[first : last + 1], -1)
    return first + int(live.argmax())


def alive(of: Ledger, rank: RankMemory, position: int) -> pl.DataFrame:
    """What is live at a position, by stack and category; the most bytes first.

    Returns:
        rank, path, device, category, confidence, function, file, line, own, n, live_bytes,
        live_frac (of all that is live), before_n (of them there before the history), stack (the
        frames, the outermost first, ``;`` between).
    """
    told = of.alive(position)
    total = int(told["bytes"].sum())
    told = rank.sized(told)
    told = told.with_columns(*rank.code(of, told), known_stack(told).alias("row"))
    keys = ("row", "category", "confidence", *attribution.LINE)
    sums = told.group_by(keys).agg(
        n=pl.len().cast(pl.Int64),
        live_bytes=pl.col("bytes").sum(),
        before_n=(pl.col("start") == 0).sum().cast(pl.Int64),
    )
    sums = sums.with_columns(stack=rank.lines.paths(sums["row"]))
    # stacks may differ only in frames that are left out
    same = ("stack", *keys[1:])
    sums = sums.group_by(same).agg(pl.col("n", "live_bytes", "before_n").sum(), pl.col("row").min())
    found = columns.largest_first(sums, "live_bytes", *keys, nulls_last=True).select(
        "category",
        "confidence",
        *attribution.LINE,
        "n",
        "live_bytes",
        live_frac=pl.col("live_bytes") / total if total else pl.lit(None, pl.Float64),
        before_n="before_n",
        stack="stack",
    )
    return rank.placed(of, found)


def timeline(of: Ledger, points: int = POINTS) -> pl.DataFrame:
    """The curves at no more than so many positions, each stretch's highest point among them.

    Returns:
        event (position), time_ns, live_bytes, reserved_bytes.
    """
    at = thinned(of, points)
    reserved = [None] * at.size if of.reserved is None else of.reserved[at]
    return pl.DataFrame(
        {
            "event": at,
            "time_ns": of.times(pl.Series(at)),
            "live_bytes": of.live[at],
            "reserved_bytes": pl.Series(reserved, dtype=pl.Int64),
        }
    )


def thinned(of: Ledger, points: int) -> Ints:
    """Positions that show the curve of what is live: of each stretch the first and the highest."""
    n = of.positions
    if n <= points:
        return np.arange(n)
    edges = np.linspace(0, n, (points - 2) // 2 + 1).astype(np.int64)[:-1]
    stretch = np.repeat(np.arange(edges.size), np.diff(np.append(edges, n)))
    order = np.lexsort((of.live, stretch))
    highest = order[np.append(edges[1:], n) - 1]
    return np.unique(np.concatenate([edges, highest, [n - 1, peak_position(of)]]))


# --- as samples ------------------------------------------------------------------------------


def is_snapshot(trace: Trace) -> bool:
    """Whether a trace is one of an allocator's memory, and of nothing else."""
    kinds = trace.events["kind"].unique().cast(pl.String)
    of_memory = (*ALLOCATOR_KINDS, "user_annotation", "other")
    return trace.segments.height > 0 and bool(kinds.is_in(of_memory).all())


def at_peak(trace: Trace) -> Trace:
    """The trace with a sample for each allocation that is live at its device's peak.

    A sample's weight is the allocation's size in bytes. What was there before the history began has
    no stack unless the snapshot's blocks tell it. Of several devices it is the moment at which most
    is live on all of them together; without times, the peak of the fullest device alone.

    Raises:
        MissingData: nothing about memory was recorded.
    """
    rank = rank_memory(trace, Options())
    empty = trace.select(pl.lit(value=False))
    kind = trace.events.schema["kind"]
    found = []
    for of, position in _together(rank.ledgers):
        there = of.alive(position)
        sample = there.select(
            kind=pl.lit("sample", kind),
            rank=pl.lit(rank.rank, pl.Int32),
            stack=rank.lines.trimmed(known_stack(there)),
            weight=pl.col("bytes").cast(pl.Float64),
        )
        found.append(sample)
    events = pl.concat([empty.events, *found], how="diagonal")
    sources = tuple(replace(meta, weight_unit="bytes", start_ns=None) for meta in trace.sources)
    return replace(empty, sources=sources, events=events)


def _together(found: tuple[Ledger, ...]) -> list[tuple[Ledger, int]]:
    """Each device with its position at the moment at which most is live in all."""
    if len(found) == 1 or any(of.rows["ts"].null_count() for of in found):
        fullest = max(found, key=lambda of: int(of.live.max()))
        return [(fullest, peak_position(fullest))]
    times = pl.concat([of.rows["ts"] for of in found]).unique().sort()
    if times.is_empty():
        return [(of, 0) for of in found]
    at = [positions(of, times) for of in found]
    live = np.sum([of.live[here] for of, here in zip(found, at, strict=True)], axis=0)
    moment = int(live.argmax())
    return [(of, int(here[moment])) for of, here in zip(found, at, strict=True)]
