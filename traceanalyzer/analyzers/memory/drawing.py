"""A device's memory over time, as something to draw."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceanalyzer.analyzers.memory import rank_memory
from traceanalyzer.analyzers.memory.attribution import UNKNOWN, frame_text
from traceanalyzer.analyzers.memory.ledger import Ledger, running
from traceanalyzer.analyzers.memory.rank_memory import RankMemory, known_stack, positions
from traceanalyzer.analyzers.memory.regions import Regions, regions
from traceanalyzer.result import Occupancy
from traceanalyzer.units import format_bytes

#: What sizes are, by who noted them.
_SUBTITLES: Final = {
    "snapshot": "Bytes that the code asked for, by PyTorch's history of its allocator",
    "instants": "Bytes of blocks, as torch.profiler noted them",
    "calls": "Bytes that the process got of the driver, as nsys noted them",
}
#: Allocations drawn one by one, and moments of the curves.
BOXES: Final = 2000
LEVELS: Final = 4000


def occupancy(of: Ledger, rank: RankMemory) -> Occupancy:
    """What fills a device, the largest allocations one by one.

    Largest is by bytes x time, time being counted in events.
    """
    told = of.allocations
    span = pl.col("end") - pl.col("start")
    area = told.select((pl.col("bytes").cast(pl.Float64) * span).alias("a"))["a"]
    chosen = area.arg_sort(descending=True)[:BOXES].sort()
    boxes = told[chosen]
    rest = told.filter(~pl.int_range(pl.len()).is_in(chosen.implode()))
    total = float(area.sum())
    frac = float(area[chosen].sum()) / total if total else 1.0
    at = rank_memory.peak_position(of, rank.window)
    held = regions(of, *rank.of_device(of.device), at)
    blocks = _blocks(held)
    labels = _labels(rank.code(of, boxes))
    boxes = boxes.with_columns(stack=known_stack(boxes))
    stacks, numbers = _stacks(rank, pl.concat([boxes["stack"], blocks["stack"]]))
    return Occupancy(
        name=f"memory_{rank.rank}_{of.device}",
        title=_title(of, rank),
        subtitle=_SUBTITLES[of.noted],
        boxes=pl.DataFrame(
            {
                "start": boxes["start"],
                "end": boxes["end"],
                "start_ns": _times(of, boxes["start"]),
                "end_ns": _times(of, boxes["end"]),
                "live_bytes": boxes["bytes"],
                "stack": numbers[: boxes.height],
                "label": labels,
                "category": _known(boxes["category"]),
            }
        ),
        levels=_levels(of, rest),
        marks=_marks(of, at),
        spans=_spans(of, rank),
        stacks=stacks,
        segments=_segments(held),
        blocks=blocks.with_columns(
            stack=numbers[boxes.height :], label=_labels(rank.lines.of(blocks["stack"]))
        ),
        events=of.positions,
        boxed_frac=frac,
    )


def _title(of: Ledger, rank: RankMemory) -> str:
    parts = (
        f"rank {rank.rank}" if rank.rank is not None else "",
        f"device {of.device}" if len(rank.ledgers) > 1 else "",
    )
    where = " ".join(part for part in parts if part)
    return f"Memory of {where}" if where else "Memory over time"


def _known(categories_: pl.Series) -> pl.Series:
    """Categories as text; null where nothing is known."""
    told = categories_.cast(pl.String)
    return told.set(told == UNKNOWN, None)


def _levels(of: Ledger, rest: pl.DataFrame) -> pl.DataFrame:
    """The curves, and what of them the boxes leave out."""
    told = rank_memory.timeline(of, LEVELS)
    return told.select(
        "event",
        time_ns=_times(of, told["event"], whole=True),
        live_bytes="live_bytes",
        rest_bytes=pl.Series(running(rest, of.rows.height)[told["event"].to_numpy()]),
        reserved_bytes="reserved_bytes",
    )


def _marks(of: Ledger, at: int) -> pl.DataFrame:
    """The peak, and each time memory ran out."""
    failed = (of.rows["kind"].cast(pl.String) == "oom").arg_true()
    sizes = of.rows["bytes"][failed].to_list()
    event = pl.Series([at, *(failed + 1).to_list()], dtype=pl.Int64)
    labels = [
        f"peak {format_bytes(int(of.live[at]))}",
        *(f"out of memory: {format_bytes(size)} asked for" for size in sizes),
    ]
    return pl.DataFrame(
        {
            "event": event,
            "time_ns": _times(of, event, whole=True),
            "kind": ["peak", *("oom" for _ in sizes)],
            "label": labels,
        }
    )


def _spans(of: Ledger, rank: RankMemory) -> pl.DataFrame:
    steps = rank.steps_of(of.device)
    if of.rows["ts"].null_count():
        steps = steps.clear()
    return pl.DataFrame(
        {
            "start": positions(of, steps["ts"]),
            "end": positions(of, steps["end"]),
            "start_ns": steps["ts"],
            "end_ns": steps["end"],
            "label": steps["name"],
        }
    )


def _times(of: Ledger, at: pl.Series, *, whole: bool = False) -> pl.Series:
    """The time at which each position begins; null before the first event and after the last.

    ``whole``: these are the times of the events next to them.
    """
    n = of.rows.height
    if not n:
        return pl.repeat(None, at.len(), dtype=pl.Int64, eager=True)
    time = of.rows["ts"].gather((at - 1).clip(0, n - 1))
    return time if whole else time.set(~at.is_between(1, n), None)


def _segments(held: Regions | None) -> pl.DataFrame:
    if held is None:
        return pl.DataFrame(
            schema={
                "id": pl.UInt32, "address": pl.UInt64, "total_bytes": pl.Int64, "label": pl.String,
            }
        )  # fmt: skip
    return held.segments.with_columns(
        label=pl.Series(
            [f"segment of {format_bytes(size)}" for size in held.segments["total_bytes"]],
            dtype=pl.String,
        )
    )


def _blocks(held: Regions | None) -> pl.DataFrame:
    if held is None:
        return pl.DataFrame(
            schema={
                "segment": pl.UInt32, "offset_bytes": pl.Int64, "total_bytes": pl.Int64,
                "state": pl.String, "stack": pl.UInt32,
            }
        )  # fmt: skip
    return held.blocks


def _stacks(rank: RankMemory, used: pl.Series) -> tuple[pl.DataFrame, pl.Series]:
    """The stacks that occur, and the number of each row's."""
    named = used.drop_nulls().unique().sort()
    number = dict(zip(named.to_list(), range(named.len()), strict=True))
    frames = [rank.lines.path(row) for row in named]
    table = pl.DataFrame(
        {"id": range(named.len()), "frames": frames},
        schema={"id": pl.UInt32, "frames": pl.List(pl.String)},
    )
    return table, used.replace_strict(number, default=None, return_dtype=pl.UInt32)


def _labels(code: pl.DataFrame) -> pl.Series:
    told = code.select("function", "file", "line").rows()
    return pl.Series([frame_text(*row) for row in told], dtype=pl.String)
