"""Which dicts of a snapshot are rows of what, by the keys they hold: never by a version.

A dict is told by one key that no other has. Snapshots of torch 1.13 and older are a list of
segments, later ones a dict; fields came and went, and what a file does not hold is null.
"""

from __future__ import annotations

from typing import Final

#: Tables by number: the key that tells, and the fields that are read.
TABLES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("filename", ("name", "filename", "line")),
    (
        "action",
        (
            "action",
            "addr",
            "device_free",
            "size",
            "stream",
            "time_us",
            "frames",
            "compile_context",
            "user_metadata",
            "pool_id",
        ),
    ),
    ("state", ("address", "size", "requested_size", "state", "frames", "history")),
    (
        "blocks",
        (
            "device",
            "address",
            "total_size",
            "allocated_size",
            "active_size",
            "stream",
            "segment_type",
            "segment_pool_id",
            "is_expandable",
            "frames",
            "blocks",
        ),
    ),
    ("stage", ("name", "stage", "device", "time_us")),
    ("real_size", ("addr", "real_size", "frames")),
)
FRAMES, EVENTS, BLOCKS, SEGMENTS, ANNOTATIONS, HISTORY = range(len(TABLES))

#: Keys of the whole.
TRACES = "device_traces"
SETTINGS = "allocator_settings"
MOST_ENTRIES = "trace_alloc_max_entries"
OVERFLOWED = "trace_alloc_overflowed"

KEYS: Final[tuple[str, ...]] = tuple(
    dict.fromkeys(
        (
            *(key for trigger, fields in TABLES for key in (trigger, *fields)),
            "segments",
            TRACES,
            SETTINGS,
            "external_annotations",
            MOST_ENTRIES,
            OVERFLOWED,
        )
    )
)
