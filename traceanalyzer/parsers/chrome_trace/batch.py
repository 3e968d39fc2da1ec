"""What one piece of a trace becomes: columns as raw bytes."""

from __future__ import annotations

import msgspec

#: Later than any time.
NEVER = (1 << 63) - 1

Int64 = bytes
UInt32 = bytes
UInt64 = bytes
Int32 = bytes


class Slices(msgspec.Struct):
    """Rows of ``events``: complete events and instants, in file order."""

    order: UInt32 = b""
    ts: Int64 = b""
    dur: Int64 = b""
    category: UInt32 = b""
    name: UInt32 = b""
    pid: Int64 = b""
    tid: Int64 = b""
    correlation: Int64 = b""
    external_id: Int64 = b""
    pid_labels: dict[int, str] = {}
    tid_labels: dict[int, str] = {}
    # rows of the columns that only some events have
    device_rows: UInt32 = b""
    device: Int64 = b""
    stream: Int64 = b""
    copied: Int64 = b""
    kernel_rows: UInt32 = b""
    grid: Int32 = b""
    block: Int32 = b""
    registers: Int64 = b""
    shared_memory: Int64 = b""
    collective_rows: UInt32 = b""
    collectives: list[
        tuple[str | None, str | None, int, int, str | None, int, str | None, int]
    ] = []
    memory_rows: UInt32 = b""
    allocated: Int64 = b""
    address: UInt64 = b""
    device_type: Int64 = b""
    device_id: Int64 = b""
    total_allocated: Int64 = b""
    total_reserved: Int64 = b""
    stack_frames: dict[int, str] = {}
    phase_kinds: dict[int, str] = {}
    args: list[str | None] | None = None
    input_dims: list[str | None] | None = None


class Points(msgspec.Struct):
    """Events that mean something only together with others: B/E, async, flows; in file order.

    B/E and async have a ``key`` (none for B and E, which share their thread); flows have an ``id``.
    """

    order: UInt32 = b""
    phase: bytes = b""
    ts: Int64 = b""
    category: UInt32 = b""
    name: UInt32 = b""
    pid: Int64 = b""
    tid: Int64 = b""
    key: UInt32 = b""
    id: Int64 = b""
    pid_labels: dict[int, str] = {}
    tid_labels: dict[int, str] = {}
    id_labels: dict[int, str] = {}
    at_next: list[int] = []
    args: list[str | None] | None = None


class Batch(msgspec.Struct):
    """All of one piece, or the part of it that one route read.

    Attributes:
        events: events in the piece, wanted or not.
        first: the earliest time of its events, wanted or not, in ns; ``NEVER`` without any.
        texts: names, categories and keys by code.
        counters: (ts, pid, pid label, name, series, value).
        metadata: (name, pid, pid label, tid, tid label, args as JSON).
        issues: code -> (count, byte offset of the first).
        tail: an event at the piece's end that goes on in the next: the piece was cut inside it.
        closed: offset behind the ``]`` that ended the event array inside this piece, or None.
        has_begin_end: the piece holds B or E events.
    """

    events: int = 0
    first: int = NEVER
    texts: list[str] = []
    slices: Slices = msgspec.field(default_factory=Slices)
    points: Points = msgspec.field(default_factory=Points)
    flows: Points = msgspec.field(default_factory=Points)
    counters: list[tuple[int, int, str | None, str, str, float]] = []
    metadata: list[tuple[str, int, str | None, int, str | None, str]] = []
    issues: dict[str, tuple[int, int]] = {}
    tail: bytes = b""
    closed: int | None = None
    has_begin_end: bool = False
