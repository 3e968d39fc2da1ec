"""Why memory ran out: one row an out-of-memory error, with what could have served the request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from traceanalyzer.analyzers.memory.causes import CAUSE, UNKNOWN, advice, cause, situation
from traceanalyzer.analyzers.memory.ground import Ground, Window, ground
from traceanalyzer.analyzers.memory.ledger import Ledger
from traceanalyzer.analyzers.memory.peak import alive
from traceanalyzer.analyzers.memory.regions import Regions, regions
from traceanalyzer.errors import OptionError
from traceanalyzer.trace import Trace
from traceanalyzer.units import format_bytes

#: Segments from here on are those whose division ``max_split_size_mb`` would prevent.
_SPLIT_BYTES: Final = 200 << 20

_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "rank": pl.Int32,
    "path": pl.String,
    "device": pl.Int32,
    "event": pl.Int64,
    "time_ns": pl.Int64,
    "request_bytes": pl.Int64,
    "device_free_bytes": pl.Int64,
    "reserved_bytes": pl.Int64,
    "allocated_bytes": pl.Int64,
    "unused_bytes": pl.Int64,
    "usable_bytes": pl.Int64,
    "largest_free_bytes": pl.Int64,
    "pending_bytes": pl.Int64,
    "outside_bytes": pl.Int64,
    "missing_bytes": pl.Int64,
    "cause": CAUSE,
    "advice": pl.String,
    "function": pl.String,
    "file": pl.String,
    "line": pl.Int32,
}


@dataclass(frozen=True)
class Part:
    """One rank's errors.

    Attributes:
        errors: a row an error.
        alive: what was live at each, by stack, with ``event``.
        devices: rank, path, device, events of each device looked at.
    """

    errors: pl.DataFrame
    alive: pl.DataFrame
    devices: pl.DataFrame


def extract(
    trace: Trace,
    library_names: Sequence[str] = (),
    capacity_bytes: int | None = None,
    window: Window = (None, None),
) -> Part:
    """The out-of-memory errors of a trace of one rank.

    Args:
        trace: read with :data:`~.operations.NEEDS`.
        library_names: libraries whose frames name an allocation.
        capacity_bytes: memory of the device; a snapshot does not tell it.
        window: (since, until) in ns after the first event.

    Raises:
        MissingData: it tells nothing of memory.
        OptionError: ``capacity_bytes`` is less than what is known to be there.
    """
    own = ground(trace, library_names, window=window)
    told = dict(trace.memory_totals.select("event", "free_bytes").drop_nulls().rows())
    rows: list[dict[str, Any]] = []
    held: list[pl.DataFrame] = []
    for of in own.ledgers:
        for row, live in _errors(of, own, told, capacity_bytes):
            rows.append(row)
            held.append(live)
    nothing = alive(own.ledgers[0], own, 0).clear().with_columns(event=pl.lit(None, pl.Int64))
    places = [(own.rank, own.path, of.device, of.rows.height) for of in own.ledgers]
    return Part(
        errors=pl.DataFrame(rows, schema=_SCHEMA),
        alive=pl.concat([nothing, *held]).drop("row"),
        devices=pl.DataFrame(
            places,
            schema={"rank": pl.Int32, "path": pl.String, "device": pl.Int32, "events": pl.Int64},
            orient="row",
        ),
    )


def _errors(
    of: Ledger, own: Ground, told: dict[int, int], capacity: int | None
) -> Iterator[tuple[dict[str, Any], pl.DataFrame]]:
    failed = of.rows.with_row_index("at").filter(pl.col("kind").cast(pl.String) == "oom")
    first, last = of.between(*own.window)
    for row in failed.iter_rows(named=True):
        position = int(row["at"]) + 1
        if not first < position <= last:
            continue
        held = regions(of, *own.of_device(of.device), position)
        known = _known(of, own, row, held, told.get(row["event"]), capacity)
        divided = held is not None and held.divided(_SPLIT_BYTES)
        at = situation(known, own.settings, divided=divided)
        unclear = None in (known["unused_bytes"], known["device_free_bytes"])
        why = UNKNOWN if unclear else cause(at)
        line = own.lines.of(pl.Series([row["stack"]], dtype=pl.UInt32))
        yield (
            {
                "rank": own.rank,
                "path": own.path,
                "device": of.device,
                "event": row["at"],
                "time_ns": row["ts"],
                **known,
                "missing_bytes": None if unclear else at.missing,
                "cause": why,
                "advice": advice(at, why),
                **(line.select("function", "file", "line").row(0, named=True)),
            },
            alive(of, own, position).with_columns(event=pl.lit(row["at"], pl.Int64)),
        )


def _known(
    of: Ledger,
    own: Ground,
    row: dict[str, Any],
    held: Regions | None,
    free: int | None,
    capacity: int | None,
) -> dict[str, Any]:
    """The sizes of a row of errors."""
    position = int(row["at"]) + 1
    reserved = None if of.reserved is None else int(of.reserved[position])
    if capacity is not None and capacity < (reserved or 0) + (free or 0):
        there = f"{format_bytes(reserved)} reserved and {format_bytes(free)} free"
        raise OptionError(f"--capacity {format_bytes(capacity)}: {own.path} has {there}")
    request = row["bytes"]
    serving = None if held is None else held.serving(request or 0, row["stream"])["total_bytes"]
    largest = None if serving is None else serving.max()
    return {
        "request_bytes": request,
        "device_free_bytes": free,
        "reserved_bytes": reserved,
        "allocated_bytes": int(of.live[position]),
        "unused_bytes": None if held is None else int(held.free()["total_bytes"].sum()),
        "usable_bytes": None if serving is None else int(serving.sum()),
        "largest_free_bytes": 0 if serving is not None and largest is None else largest,
        "pending_bytes": _pending(of, position),
        "outside_bytes": _outside(capacity, reserved, free),
    }


def _pending(of: Ledger, position: int) -> int:
    """Bytes that were freed and stay until another stream is done with them."""
    asked = of.rows[:position].select("kind", "address", asked=pl.int_range(1, pl.len() + 1))
    requests = asked.filter(pl.col("kind").cast(pl.String) == "free_requested")
    last = requests.group_by("address").agg(pl.col("asked").max())
    waiting = of.alive(position).join(last, on="address").filter(pl.col("asked") > pl.col("start"))
    return int(waiting["bytes"].sum())


def _outside(capacity: int | None, reserved: int | None, free: int | None) -> int | None:
    """What neither PyTorch's allocator holds nor is free."""
    if capacity is None or reserved is None or free is None:
        return None
    return max(capacity - reserved - free, 0)
