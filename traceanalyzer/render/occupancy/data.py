"""An occupancy as JSON for the viewer: columns of integers, texts and frames once each.

What grows along a column is written as differences; stacks are paths of one prefix tree, the
outermost frame at its root. No text can end the element that holds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from traceanalyzer.render.occupancy import colors, words
from traceanalyzer.render.text import shorten, visible

if TYPE_CHECKING:
    from traceanalyzer.render.occupancy.layout import Layout
    from traceanalyzer.result import Occupancy

_TEXT_CHARS = 300
_SEGMENTS, _BLOCKS = 1_000, 12_000  # what of the segments is sent, the largest first
_BREAKING = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


class _Texts:
    """Texts made harmless, by number."""

    def __init__(self) -> None:
        self.known: dict[str | None, int] = {}
        self.shown: list[str] = []

    def number(self, text: str | None) -> int:
        if text is None:
            return -1
        if text not in self.known:
            self.known[text] = len(self.shown)
            self.shown.append(shorten(visible(text), _TEXT_CHARS))
        return self.known[text]

    def numbers(self, values: Iterable[str | None]) -> list[int]:
        return [self.number(value) for value in values]


def data(occupancy: Occupancy, layout: Layout) -> str:
    """JSON for the inside of a ``script`` element."""
    texts = _Texts()
    kept = _kept(occupancy)
    spans = occupancy.spans.sort("start")
    short = words.without_prefix(spans)
    blocks = occupancy.blocks.filter(pl.col("segment").is_in(kept["id"].to_list()))
    used = pl.concat([layout.boxes["stack"], blocks["stack"]]).drop_nulls().unique().to_list()
    fills = colors.of_categories(layout.boxes["category"].drop_nulls())
    content = {
        "events": occupancy.events,
        "span": layout.end_time if layout.time is not None else None,
        "peak": layout.peak_event,
        "boxes": _boxes(layout, texts, fills),
        "levels": _levels(occupancy, layout),
        "marks": [
            [row["event"], _since(row["time_ns"], layout), row["kind"], texts.number(row["label"])]
            for row in words.ranked(occupancy.marks).iter_rows(named=True)
        ],
        "spans": [
            [
                row["start"],
                row["end"],
                _since(row["start_ns"], layout),
                _since(row["end_ns"], layout),
                texts.number(row["label"]),
                texts.number(label),
            ]
            for row, label in zip(spans.iter_rows(named=True), short, strict=True)
        ],
        "segments": _segments(occupancy, kept, texts),
        "blocks": _blocks(blocks, kept, texts),
        **_stacks(occupancy.stacks, set(used), texts),
        "fills": [colors.LIGHT, colors.DARK],
        "grey": colors.REST,
        "legend": words.legend(layout, fills),
        "texts": texts.shown,
    }
    return json.dumps(content, separators=(",", ":")).translate(_BREAKING)


def _boxes(layout: Layout, texts: _Texts, fills: dict[str, int]) -> dict[str, list[Any]]:
    boxes = layout.boxes
    labels, categories = boxes["label"].to_list(), boxes["category"].to_list()
    pairs = zip(labels, categories, strict=True)
    return {
        "start": _differences(layout.start.tolist()),
        "length": (layout.end - layout.start).tolist(),
        "startTime": _differences([_since(t, layout) for t in boxes["start_ns"]]),
        "endTime": _differences([_since(t, layout) for t in boxes["end_ns"]]),
        "size": layout.size.tolist(),
        "stack": [-1 if stack is None else stack for stack in boxes["stack"]],
        "label": texts.numbers(labels),
        "category": texts.numbers(categories),
        "fill": [colors.of_box(*pair, fills, place) for place, pair in enumerate(pairs)],
    }


def _levels(occupancy: Occupancy, layout: Layout) -> dict[str, list[Any]]:
    levels = occupancy.levels.sort("event", maintain_order=True)
    times = [] if layout.time is None else layout.time.astype("int64").tolist()
    return {
        "event": _differences(layout.event.tolist()),
        "time": _differences(times),
        "live": _differences(layout.live.tolist()),
        "rest": _differences(layout.rest.tolist()),
        "reserved": _differences(levels["reserved_bytes"].to_list()),
    }


def _kept(occupancy: Occupancy) -> pl.DataFrame:
    """The largest segments, and how many blocks each has."""
    counts = occupancy.blocks.group_by("segment").agg(pl.len().alias("count"))
    segments = occupancy.segments.join(
        counts, left_on="id", right_on="segment", how="left", maintain_order="left"
    )
    ranked = segments.with_columns(pl.col("count").fill_null(0)).sort(
        "total_bytes", descending=True, maintain_order=True
    )
    return ranked.filter(pl.col("count").cum_sum() <= _BLOCKS).head(_SEGMENTS)


def _segments(occupancy: Occupancy, kept: pl.DataFrame, texts: _Texts) -> dict[str, Any]:
    every, blocks = occupancy.segments["total_bytes"], occupancy.blocks
    live = blocks.filter(state="live")["total_bytes"].sum()
    holes = blocks.filter(state="free")
    return {
        "size": kept["total_bytes"].to_list(),
        "address": [f"0x{address:x}" for address in kept["address"].to_list()],
        "label": texts.numbers(kept["label"].to_list()),
        "all": [len(every), every.sum(), live, holes.height, holes["total_bytes"].max() or 0],
    }


def _blocks(blocks: pl.DataFrame, kept: pl.DataFrame, texts: _Texts) -> dict[str, list[Any]]:
    places = {number: place for place, number in enumerate(kept["id"].to_list())}
    ordered = blocks.with_columns(
        pl.col("segment").replace_strict(places, return_dtype=pl.Int64)
    ).sort("segment", "offset_bytes")
    return {
        "segment": _differences(ordered["segment"].to_list()),
        "offset": _differences(ordered["offset_bytes"].to_list()),
        "size": ordered["total_bytes"].to_list(),
        "live": [int(state == "live") for state in ordered["state"]],
        "stack": [-1 if stack is None else stack for stack in ordered["stack"]],
        "label": texts.numbers(ordered["label"].to_list()),
    }


def _stacks(stacks: pl.DataFrame, used: set[int], texts: _Texts) -> dict[str, Any]:
    """A prefix tree of frames, callers first, and the node at which each stack ends."""
    node_of: dict[tuple[int, int], int] = {}
    above: list[int] = []
    frames: list[int] = []
    ends: dict[int, int] = {}
    for number, stack in zip(stacks["id"].to_list(), stacks["frames"].to_list(), strict=True):
        if number not in used:
            continue
        node = -1
        for frame in reversed(stack or ()):
            key = (node, texts.number(frame))
            if key not in node_of:
                node_of[key] = len(frames)
                above.append(len(frames) - node if node >= 0 else 0)
                frames.append(key[1])
            node = node_of[key]
        ends[number] = node
    return {"above": above, "frames": frames, "ends": [list(ends), list(ends.values())]}


def _since(time_ns: int | None, layout: Layout) -> int | None:
    return None if time_ns is None or layout.time is None else time_ns - layout.origin_ns


def _differences(values: Sequence[int | None]) -> list[int | None]:
    """Each value less the last one that is known."""
    last, found = 0, []
    for value in values:
        found.append(None if value is None else value - last)
        last = last if value is None else value
    return found
