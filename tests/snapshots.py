"""Small memory snapshots, given event by event."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
START_US = 1_780_000_000_000_000
Frame = tuple[str, str, int]
TORCH = "/opt/venv/lib/python3.12/site-packages/torch/"


def frames(*stack: Frame) -> list[dict[str, Any]]:
    """Return a stack from frames, outermost first."""
    return [{"name": name, "filename": file, "line": line} for name, file, line in reversed(stack)]


MAIN: Frame = ("main", "/home/ada/train.py", 10)


@dataclass
class Snapshot:
    """One device's history; times are in microseconds after the first event."""

    events: list[dict[str, Any]] = field(default_factory=list)
    segments: list[dict[str, Any]] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    now: int = 0

    def note(self, action: str, address: int, size: int, *stack: Frame, **more: Any) -> Snapshot:
        """Add an event, 10 us after the previous one."""
        place = {"device_free": address} if action == "oom" else {"addr": address}
        event = {
            "action": action,
            **place,
            "size": size,
            "stream": 0,
            "time_us": START_US + self.now,
            "frames": frames(*(stack or (MAIN,))),
        }
        event |= more
        self.events.append(event)
        self.now += 10
        return self

    def alloc(self, address: int, size: int, *stack: Frame) -> Snapshot:
        """Add an allocation."""
        return self.note("alloc", address, size, *stack)

    def free(self, address: int, size: int, *stack: Frame) -> Snapshot:
        """Add a free that completes at once."""
        self.note("free_requested", address, size, *stack)
        return self.note("free_completed", address, size, *stack)

    def hold(self, address: int, size: int, *blocks: tuple[int, int], **more: Any) -> Snapshot:
        """Add a segment with blocks (offset, size) in use at the end."""
        at, cut_blocks = 0, []
        for offset, length in (*blocks, (size, 0)):
            if offset > at:
                cut_blocks.append(self._block(address + at, offset - at, "inactive"))
            if length:
                cut_blocks.append(self._block(address + offset, length, "active_allocated"))
            at = offset + length
        self.segments.append(
            {"device": 0, "address": address, "total_size": size, "stream": 0,
             "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
             "blocks": cut_blocks, **more}
        )  # fmt: skip
        return self

    def step(self, name: str, begin: int, end: int) -> Snapshot:
        """Add an annotated range."""
        for stage, time in (("START", begin), ("END", end)):
            mark = {"name": name, "stage": stage, "device": 0, "time_us": START_US + time}
            self.marks.append(mark)
        return self

    def write(self, path: Path) -> Path:
        """Write the snapshot to a file."""
        whole = {
            "segments": self.segments,
            "device_traces": [self.events],
            "allocator_settings": self.settings,
            "external_annotations": self.marks,
            **self.more,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(whole))
        return path

    @staticmethod
    def _block(address: int, size: int, state: str) -> dict[str, Any]:
        return {"address": address, "size": size, "requested_size": size, "state": state,
                "frames": frames(MAIN)}  # fmt: skip
