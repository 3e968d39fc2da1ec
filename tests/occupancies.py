"""Memory over time for tests of the renderer: a small training, and large random ones."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
from sample_results import HOSTILE, Sample

from traceanalyzer.drawings import Occupancy

MIB = 1 << 20
BREAKOUT = "</script><img src=x onerror=\"document.title='pwned'\"><!-- <script>"
BOXES = {
    "start": pl.Int64,
    "end": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "live_bytes": pl.Int64,
    "stack": pl.UInt32,
    "label": pl.String,
    "category": pl.String,
}
LEVELS = {
    "event": pl.Int64,
    "time_ns": pl.Int64,
    "live_bytes": pl.Int64,
    "rest_bytes": pl.Int64,
    "reserved_bytes": pl.Int64,
}
MARKS = {"event": pl.Int64, "time_ns": pl.Int64, "kind": pl.String, "label": pl.String}
SPANS = {
    "start": pl.Int64,
    "end": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "label": pl.String,
}
STACKS = {"id": pl.UInt32, "frames": pl.List(pl.String)}
SEGMENTS = {"id": pl.UInt32, "address": pl.UInt64, "total_bytes": pl.Int64, "label": pl.String}
BLOCKS = {
    "segment": pl.UInt32,
    "offset_bytes": pl.Int64,
    "total_bytes": pl.Int64,
    "state": pl.String,
    "stack": pl.UInt32,
    "label": pl.String,
}


@dataclass(frozen=True)
class Memory(Sample):
    """A result with occupancies."""

    filled: tuple[Occupancy, ...] = ()

    @property
    def occupancies(self) -> tuple[Occupancy, ...]:
        return self.filled


@dataclass(frozen=True)
class Allocation:
    """One allocation: live from ``start`` to ``end``, with its stack, innermost frame first."""

    start: int
    end: int
    size: int
    stack: tuple[str, ...] | None = ("alloc (c10/cuda.cpp:1)", "main (train.py:9)")
    category: str | None = None

    @property
    def label(self) -> str | None:
        return self.stack[0] if self.stack else None


def times(event: int) -> int:
    """Return the time of an event; intervals vary, and the first event is at 1 s."""
    return 1_000_000_000 + event * 1_000_000 + (event % 7) * 150_000 + (event // 10) * 2_000_000


def occupancy(
    allocations: Iterable[Allocation],
    events: int,
    *,
    boxes: int | None = None,
    timed: bool = True,
    oom: int | None = None,
    spans: Iterable[tuple[int, int, str]] = (),
    **about: Any,
) -> Occupancy:
    """Return the occupancy of allocations; the ``boxes`` largest by bytes x events have a box."""
    every = sorted(allocations, key=lambda one: one.start)
    ranked = sorted(every, key=lambda one: -one.size * (one.end - one.start))[:boxes]
    kept = set(map(id, ranked))
    chosen = [one for one in every if id(one) in kept]
    stacks = list(dict.fromkeys(one.stack for one in every if one.stack is not None))
    numbers = {stack: number for number, stack in enumerate(stacks)}
    levels = _levels(every, chosen, events, timed=timed)
    peak = max(levels, key=lambda level: level[2])
    at = (lambda event: times(event)) if timed else (lambda event: None)
    marks = [(peak[0], at(peak[0]), "peak", f"peak: {peak[2] / MIB:,.0f} MiB")]
    if oom is not None:
        marks.append((oom, at(oom), "oom", "out of memory: 512 MiB asked for"))
    rows = [
        (
            *(one.start, min(one.end, events)),
            at(one.start) if one.start else None,
            at(one.end) if one.end < events else None,
            *(one.size, numbers.get(one.stack), one.label, one.category),
        )
        for one in chosen
    ]
    area = sum(one.size * (min(one.end, events) - one.start) for one in every)
    boxed = sum(one.size * (min(one.end, events) - one.start) for one in chosen)
    segments, blocks = _reserved([one for one in every if one.start <= peak[0] < one.end], numbers)
    texts = {
        "name": "occupancy",
        "title": "What filled the memory of GPU 0",
        "subtitle": f"{len(every):,} allocations in {events:,} events",
        "segments": pl.DataFrame(segments, SEGMENTS, orient="row"),
        "blocks": pl.DataFrame(blocks, BLOCKS, orient="row"),
        **about,
    }
    return Occupancy(
        boxes=pl.DataFrame(rows, BOXES, orient="row"),
        levels=pl.DataFrame(levels, LEVELS, orient="row"),
        marks=pl.DataFrame(marks, MARKS, orient="row"),
        spans=pl.DataFrame(
            [(start, end, at(start), at(end), label) for start, end, label in spans],
            SPANS,
            orient="row",
        ),
        stacks=pl.DataFrame(
            [(number, list(stack)) for stack, number in numbers.items()], STACKS, orient="row"
        ),
        events=events,
        boxed_frac=boxed / area if area else 1.0,
        **texts,
    )


def _levels(
    every: list[Allocation], chosen: list[Allocation], events: int, *, timed: bool
) -> list[tuple[int, int | None, int, int, int]]:
    """Return a row per change; memory is reserved in steps of 64 MiB and never released."""
    change: dict[int, list[int]] = {0: [0, 0]}
    for sign, moment in ((1, "start"), (-1, "end")):
        for group, column in ((every, 0), (chosen, 1)):
            for one in group:
                change.setdefault(getattr(one, moment), [0, 0])[column] += sign * one.size
    live = boxed = reserved = 0
    rows = []
    for event in sorted(event for event in change if event < max(events, 1)):
        live, boxed = live + change[event][0], boxed + change[event][1]
        reserved = max(reserved, -(-live // (64 * MIB)) * 64 * MIB)
        rows.append((event, times(event) if timed else None, live, live - boxed, reserved))
    return rows


def _reserved(
    there: list[Allocation], numbers: dict[Any, int]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return segments of up to 256 MiB (or one allocation), with a hole after every third block."""
    segments, blocks = [], []
    offset = size = 0

    def close() -> None:
        if offset < size:
            blocks.append((len(segments), offset, size - offset, "free", None, None))
        segments.append((len(segments), 0x7F0000000000 + (len(segments) << 32), size, "large pool"))

    for number, one in enumerate(there):
        hole = one.size // 4 if number % 3 == 2 else 0
        if size and offset + one.size + hole > size:
            close()
            size = 0
        if not size:
            size, offset = max(one.size + hole, 256 * MIB), 0
        stack = numbers.get(one.stack)
        blocks.append((len(segments), offset, one.size, "live", stack, one.label))
        offset += one.size
        if hole:
            blocks.append((len(segments), offset, hole, "free", None, None))
            offset += hole
    if size:
        close()
    return segments, blocks


MAIN = ("main (train.py:30)", "<module> (train.py:41)")


def _training() -> list[Allocation]:
    """Return four steps of 40 events: initial parameters, optimizer state from step 1 on."""
    allocations = [
        Allocation(
            0, 160, (24 + 8 * n) * MIB, (f"__init__ (model.py:{n + 5})", *MAIN), "parameters"
        )
        for n in range(6)
    ]
    for step in range(4):
        begin = 40 * step
        for n in range(12):
            size = (30 + 9 * (n % 4)) * MIB
            stack = (f"forward (layers.py:{10 + n % 4})", f"block{n} (model.py:{60 + n})", *MAIN)
            allocations.append(
                Allocation(begin + 1 + n, begin + 29 - n, size, stack, "activations")
            )
            workspace = ("empty (scratch.py:3)", "backward (train.py:33)", *MAIN)
            allocations.append(Allocation(begin + 14 + n, begin + 16 + n, 3 * MIB, workspace, None))
        for n in range(6):
            stack = (f"grad (layers.py:{80 + n})", "backward (train.py:33)", *MAIN)
            allocations.append(
                Allocation(begin + 16 + 2 * n, begin + 36, (24 + 8 * n) * MIB, stack, "gradients")
            )
    for n in range(6):
        stack = ("_init_group (torch/optim/adam.py:161)", "step (train.py:35)", *MAIN)
        allocations.append(Allocation(30 + n, 160, (48 + 16 * n) * MIB, stack, "optimizer state"))
    return allocations


def training(**about: Any) -> Occupancy:
    """Return a small training of four steps, out of memory in the last."""
    spans = [(40 * step, 40 * step + 39, f"step {step}") for step in range(4)]
    return occupancy(
        _training(), **{"events": 160, "boxes": 70, "oom": 138, "spans": spans, **about}
    )


def plain(**about: Any) -> Occupancy:
    """Return the same without categories and times, with a box per allocation."""
    allocations = [replace(one, category=None) for one in _training()]
    return occupancy(allocations, **{"events": 160, "timed": False, "oom": 138, **about})


def hostile() -> Occupancy:
    """Return an occupancy with hostile texts."""
    allocations = [
        Allocation(n, 30 + n, (n + 1) * MIB, (name, BREAKOUT, "main"), f"{name[:20]} {BREAKOUT}")
        for n, name in enumerate((*HOSTILE, BREAKOUT))
    ]
    return occupancy(
        allocations, 40, title=BREAKOUT, subtitle=BREAKOUT, spans=[(0, 39, BREAKOUT)], oom=20
    )


def empty() -> Occupancy:
    """Return an unused device."""
    unused = occupancy([], 0)
    return replace(unused, levels=unused.levels.clear(), marks=unused.marks.clear())


def large(count: int = 4_000, *, boxes: int | None = None, depth: int = 70) -> Occupancy:
    """Return ``count`` allocations in eight steps, with 1,000 stacks that share callers."""
    chance = random.Random(7)  # noqa: S311
    stacks = [
        tuple(
            f"{chance.choice('abcdefgh')}_{name % 9}_{level} (package/part_{level}.py:{name % 97})"
            for level, name in enumerate([number // (1 + at * at) for at in range(depth)])
        )
        for number in range(1_000)
    ]
    kinds = ("parameters", "gradients", "activations", "optimizer state", "temporary", None)
    allocations, events = [], 2 * count
    steps = 8
    for _ in range(count):
        kind = chance.choices(kinds, (4, 8, 60, 4, 20, 4))[0]
        size = int(2 ** chance.uniform(9, 25))
        start = chance.randrange(events)
        within = events // steps
        if kind in ("parameters", "optimizer state"):
            start, end = (0 if kind == "parameters" else chance.randrange(within)), events
        elif kind == "temporary":
            end = start + chance.randrange(1, 12)
        else:
            ahead = within - start % within
            end = start + max(1, int(ahead * (1 - chance.random() ** 2)))
        allocations.append(Allocation(start, min(end, events), size, chance.choice(stacks), kind))
    spans = [
        (at * events // steps, (at + 1) * events // steps - 2, f"step {at}") for at in range(steps)
    ]
    return occupancy(allocations, events, boxes=boxes, oom=events - 300, spans=spans)
