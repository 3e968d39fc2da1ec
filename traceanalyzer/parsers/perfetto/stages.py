"""GPU render stages and GPU counters: work that a driver or CUPTI recorded, without tracks."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from traceanalyzer.parsers.chrome_trace.columns import CounterValue
from traceanalyzer.parsers.perfetto.state import (
    Described,
    Key,
    Specs,
    counter_names,
    inside,
    number,
    text_of,
)
from traceanalyzer.parsers.perfetto.wire import (
    DELIMITED,
    NULL,
    Field,
    double,
    signed,
    text,
    whole_fields,
)

_CATEGORIES = (
    ("gpu_memcpy", re.compile(r"(?i)mem_?cpy|copy|transfer")),
    ("gpu_memset", re.compile(r"(?i)mem_?set|fill")),
)
_DIGITS = re.compile(r"\d{1,18}")


def stage_event(
    data: memoryview, message: Field, ts: int, specs: Specs, names: dict[int, bytes]
) -> tuple[int, int, dict[str, Any]]:
    """Return time, duration, and an event of Chrome's JSON without its times.

    The category follows from the name of the stage: copy, memset, otherwise a kernel. The id of the
    event is the correlation id, as PyTorch writes it.
    """
    known = inside(data, message)
    end = message.at + message.value
    repeated = [inside(data, one) for one in whole_fields(data, message.at, end) if one.number == 6]
    args: dict[str, Any] = {}
    for one in repeated:
        if key := text_of(data, one, 1):
            args[key] = _value(text_of(data, one, 2) or "")
    stage = specs.stages.get(number(known, 14)) or str(args.get("stage", ""))
    queue = specs.stages.get(number(known, 13), "")
    device = signed(number(known, 11))
    args.setdefault("correlation", number(known, 1))
    args.setdefault("device", device)
    if "stream" not in args:
        digits = _DIGITS.search(queue)
        args["stream"] = int(digits[0]) if digits else number(known, 13) or number(known, 3)
    if 21 in known:
        _launch(data, known[21], specs, args)
    given = text_of(data, known, 17) or _interned(names, number(known, 20))
    name = given or specs.kernels.get(number(known, 19)) or stage or None
    category = next((kind for kind, pattern in _CATEGORIES if pattern.search(stage)), "kernel")
    event = {"cat": category, "name": name, "pid": device, "tid": args["stream"], "args": args}
    return ts, min(number(known, 2), 1 << 62), event


def _interned(names: dict[int, bytes], id_: int) -> str | None:
    known = names.get(id_)
    return None if known is None else str(msgspec.json.decode(known))


def _value(content: str) -> int | str:
    return int(content) if _DIGITS.fullmatch(content) else content


def _launch(data: memoryview, message: Field, specs: Specs, args: dict[str, Any]) -> None:
    """Add grid, block and arguments of a launch."""
    known = inside(data, message)
    for tag, key in ((1, "grid"), (2, "block")):
        if tag in known:
            size = inside(data, known[tag])
            args[key] = [number(size, axis) for axis in (1, 2, 3)]
    if message.type != DELIMITED:
        return
    for one in whole_fields(data, message.at, message.at + message.value):
        if one.number == 3:
            argument = inside(data, one)
            label = text_of(data, argument, 2) or specs.arguments.get(number(argument, 1))
            if label:
                args.setdefault(label.replace("_", " "), _argument(data, argument))


def _argument(data: memoryview, known: dict[int, Field]) -> Any:
    if 4 in known:
        return number(known, 4)
    if 3 in known:
        return signed(number(known, 3))
    if 5 in known:
        value = double(number(known, 5))
        return value if abs(value) < float("inf") else None
    return text(data, known[6]) if 6 in known else None


def readings(
    data: memoryview, message: Field, ts: int, described: Described, key: Key
) -> list[CounterValue]:
    """Return the readings of a GPU counter event."""
    known = inside(data, message)
    specs = described.specs[key]
    names = specs.counters.get(number(known, 4), {})
    if 1 in known:
        # the first event of a writer describes the counters of all that follow
        names = counter_names(data, known[1])
        specs.counters[0] = names
    gpu = signed(number(known, 3)) if 3 in known else specs.gpus.get(number(known, 4), 0)
    rows: list[CounterValue] = []
    for one in whole_fields(data, message.at, message.at + message.value):
        if one.number == 2:
            reading = inside(data, one)
            id_ = number(reading, 1)
            value = double(number(reading, 3)) if 3 in reading else signed(number(reading, 2))
            if abs(value) < float("inf"):
                name = names.get(id_, f"counter {id_}")
                rows.append((ts, NULL, None, name, f"GPU {gpu}", float(value)))
    return rows
