"""Traces in Perfetto's protobuf, written packet by packet, and recordings in PyTorch's layout."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from traceanalyzer.exporters.perfetto.wire import delimited, fixed64, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
CLEARED, NEEDS = 1, 2


def packet(*content: bytes, ts: int | None = None, sequence: int = 1, flags: int = 0) -> bytes:
    """Return a packet."""
    head = b"" if ts is None else number(8, ts)
    return delimited(1, head, number(10, sequence), number(13, flags), *content)


def double_field(tag: int, value: float) -> bytes:
    """Return a double field."""
    return fixed64(tag, int.from_bytes(struct.pack("<d", value), "little"))


def event(type_: int, track: int | None, *content: bytes, name: str | None = None) -> bytes:
    """Return a track event."""
    of_track = b"" if track is None else number(11, track)
    return delimited(11, number(9, type_), of_track, delimited(23, name) if name else b"", *content)


def slice_(ts: int, end: int, track: int, name: str, *content: bytes, **more: int) -> bytes:
    """Return the packets of a slice."""
    begin = packet(event(BEGIN, track, *content, name=name), ts=ts, **more)
    return begin + packet(event(END, track), ts=end, **more)


def process(uuid: int, pid: int, name: str) -> bytes:
    """Return the descriptor of a process."""
    return packet(delimited(60, number(1, uuid), delimited(3, number(1, pid), delimited(6, name))))


def thread(uuid: int, parent: int, pid: int, tid: int, name: str) -> bytes:
    """Return the descriptor of a thread."""
    described = delimited(4, number(1, pid), number(2, tid), delimited(5, name))
    return packet(delimited(60, number(1, uuid), number(5, parent), described))


def counter(uuid: int, name: str, *described: bytes, parent: int = 0) -> bytes:
    """Return the descriptor of a counter."""
    return packet(
        delimited(
            60, number(1, uuid), number(5, parent), delimited(2, name), delimited(8, *described)
        )
    )


def interned(tag: int, texts: Iterable[str]) -> bytes:
    """Return interned texts with ids from 1."""
    return b"".join(
        delimited(tag, number(1, i), delimited(2, text)) for i, text in enumerate(texts, 1)
    )


def annotation(name: str | None, value: Any) -> bytes:
    """Return an argument; dicts and lists are nested."""
    return delimited(4, _annotation(name, value))


def _annotation(name: str | None, value: Any) -> bytes:
    of_name = b"" if name is None else delimited(10, name)
    if isinstance(value, bool):
        content = number(2, int(value))
    elif isinstance(value, int):
        content = number(4, value) if value < 1 << 63 else number(3, value)
    elif isinstance(value, float):
        content = double_field(5, value)
    elif isinstance(value, dict):
        content = b"".join(delimited(11, _annotation(k, v)) for k, v in value.items())
    elif isinstance(value, list):
        content = b"".join(delimited(12, _annotation(None, v)) for v in value)
    else:
        content = delimited(6, "null" if value is None else value)
    return of_name + content


def as_pytorch_writes(events: Sequence[dict[str, Any]]) -> bytes:
    """Return events of Kineto's JSON in the layout of PyTorch's writer.

    Tracks first, one table of names, then by category all begins and all ends; nanoseconds.
    """
    tracks: dict[tuple[Any, Any], int] = {}
    labels = {
        (e["name"], e["pid"], e["tid"] if e["name"] == "thread_name" else 0): e["args"]["name"]
        for e in events
        if e["ph"] == "M" and e["name"] in ("process_name", "thread_name")
    }
    flows = {
        (e["pid"], e["tid"], ns(e["ts"])): e["id"]
        for e in events
        if e["ph"] in "sf" and e.get("cat") == "ac2g"
    }
    rows = [e for e in events if e["ph"] == "X" and isinstance(e["pid"], int)]
    parts = []
    for e in rows:
        for key in ((e["pid"], None), (e["pid"], e["tid"])):
            if key not in tracks:
                tracks[key] = uuid = len(tracks) + 1
                pid, tid = key
                if tid is None:
                    parts.append(process(uuid, pid, labels.get(("process_name", pid, 0), "python")))
                else:
                    name = labels.get(("thread_name", pid, tid), "")
                    parts.append(thread(uuid, tracks[pid, None], pid, tid, name))
    names = list(dict.fromkeys(e["name"] for e in rows))
    categories = list(dict.fromkeys(e["cat"] for e in rows))
    texts = interned(2, names) + interned(1, categories)
    parts.append(packet(delimited(12, texts), flags=CLEARED))
    name_of = {name: i for i, name in enumerate(names, 1)}
    for i, category in enumerate(categories, 1):
        group = [e for e in rows if e["cat"] == category]
        for e in group:
            track = tracks[e["pid"], e["tid"]]
            flow = flows.get((e["pid"], e["tid"], ns(e["ts"])))
            content = [number(10, name_of[e["name"]]), number(3, i)]
            content += [] if flow is None else [fixed64(47, flow)]
            content += [annotation(k, v) for k, v in e.get("args", {}).items()]
            parts.append(packet(event(BEGIN, track, *content), ts=ns(e["ts"]), flags=NEEDS))
        for e in group:
            end = event(END, tracks[e["pid"], e["tid"]])
            parts.append(packet(end, ts=ns(e["ts"]) + ns(e["dur"])))
    return b"".join(parts)


def as_stages(events: Sequence[dict[str, Any]]) -> bytes:
    """Return device work of Kineto's JSON as render stages, as PyTorch's writer has it.

    Arrows with ids from 2^40 on are the stages that a stage waits for.
    """
    work = [e for e in events if e["ph"] == "X" and "stream" in e.get("args", {})]
    arrows: dict[int, dict[str, tuple[Any, ...]]] = {}
    for e in events:
        if e["ph"] in "sf" and e["id"] >= 1 << 40:
            arrows.setdefault(e["id"], {})[e["ph"]] = (e["pid"], e["tid"], ns(e["ts"]))
    starts = {(e["pid"], e["tid"], ns(e["ts"])): i for i, e in enumerate(work, 1)}
    ends = {(e["pid"], e["tid"], ns(e["ts"]) + ns(e["dur"])): i for i, e in enumerate(work, 1)}
    waits = [(starts[arrow["f"]], ends[arrow["s"]]) for arrow in arrows.values()]
    stages = list(dict.fromkeys(e["cat"] for e in work))
    specs = interned(24, stages) + interned(2, [e["name"] for e in work])
    parts = [packet(delimited(12, specs), sequence=2, flags=CLEARED)]
    for i, e in enumerate(work, 1):
        extra = [
            delimited(6, delimited(1, key), delimited(2, str(value)))
            for key, value in e["args"].items()
        ]
        stage = [number(1, i), number(2, ns(e["dur"])), number(11, e["args"]["device"])]
        stage += [number(14, stages.index(e["cat"]) + 1), number(20, i), *extra]
        stage += [number(18, before) for after, before in waits if after == i]
        parts.append(packet(delimited(53, *stage), ts=ns(e["ts"]), sequence=2, flags=NEEDS))
    return b"".join(parts)


def ns(us: float | str) -> int:
    """Return microseconds, as JSON text or number, in nanoseconds."""
    return round(Decimal(us) * 1000)


def load(text: bytes) -> list[dict[str, Any]]:
    """Return the events of a JSON trace."""
    document = json.loads(text, parse_float=str)
    return document["traceEvents"] if isinstance(document, dict) else document
