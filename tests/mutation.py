"""Small parts of real traces, and mutations of them."""

from __future__ import annotations

import gzip
import io
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

from harness import conformance_files, fixture_files, recorded_files

Mutation = Callable[[random.Random, bytes], bytes]

_EVENT = re.compile(rb"(?<=[,\n\[])\s*\{\s*\"(?:ph|name|cat|ts|pid|id|args)\"")
_VALUE = re.compile(rb'(?<=[:\[,])\s*("[^"\\]{0,40}"|-?\d[\d.]*|\{\}|\[\]|null|true)')
_KEY = re.compile(rb'"(?:ph|name|cat|ts|dur|pid|tid|id|args|bp|traceEvents|correlation)"')

#: Values of every type, and numbers at the edges of what a column holds.
ODD_VALUES = (
    *(b"null", b"true", b"[]", b"{}", b'""', b'"X"', b"-1", b"0", b"1e999", b"-1e999999999"),
    *(
        b"1.5",
        b"0.0001",
        b"123456789012345.678901",
        b"9223372036854775807",
        b"-9223372036854775808",
    ),
    *(b"9223372036854775.807", b"9223372036854775.808", b"18446744073709551615", b"1" * 60, b"NaN"),
    *(
        b"Infinity",
        b"[1,2,3]",
        b'{"a":[{"ph":"X"}]}',
        b'"1"',
        b'"100a"',
        b'"stream 7"',
        b'"\\u0000"',
    ),
    *(b'"\\ud800"', b'"\xff"', b'"kernel"', b'"B"', b'"E"', b'"C"', b'"M"', b'"s"', b'"f"', b'"b"'),
    *(b'"[memory]"', b'"ncclKernel_AllReduce"', b'"gloo:all_reduce"', b"[[1,2],[3]]", b'"0x7f"'),
)
CONTROL = (b"\x00", b"\x01", b"\n", b"\t", b"\x1b", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":")


def seeds(size: int = 4096) -> list[bytes]:
    """Return short traces: beginnings and ends of real files with whole events."""
    texts = []
    for path in [*fixture_files(), *conformance_files(), *recorded_files()]:
        data = _text(path)
        if len(data) <= size:
            texts.append(data)
            continue
        starts = [m.start() for m in _EVENT.finditer(data)]
        middle = starts[len(starts) // 2]
        head = data[: starts[0]] + data[starts[0] : size].rsplit(b"\n", 1)[0].rstrip(b", \n")
        tail = data[max(data.rfind(b"\n", 0, len(data) - size // 2), 0) :]
        texts += [head + tail, data[: starts[0]] + data[middle : middle + size]]
    return texts


def _text(path: Path) -> bytes:
    data = path.read_bytes()
    try:
        if data.startswith(b"\x1f\x8b"):
            return gzip.decompress(data)
        if data.startswith(b"PK"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                return archive.read(archive.namelist()[0])
    except (EOFError, OSError):
        return b'[{"ph":"X","ts":1,"name":"'
    return data


def mutated(random_: random.Random, data: bytes) -> bytes:
    """Return the text with one to four faults."""
    for _ in range(random_.choice((1, 1, 2, 3, 4))):
        data = random_.choice(MUTATIONS)(random_, data)
    return data


def _place(random_: random.Random, data: bytes) -> int:
    return random_.randrange(len(data) + 1)


def _span(random_: random.Random, data: bytes) -> tuple[int, int]:
    at = _place(random_, data)
    return at, min(len(data), at + random_.choice((1, 2, 5, 20, 100, 500)))


def cut(random_: random.Random, data: bytes) -> bytes:
    return data[: _place(random_, data)]


def behead(random_: random.Random, data: bytes) -> bytes:
    return random_.choice((b"", b"[", b"{", b'{"traceEvents":[')) + data[_place(random_, data) :]


def flip(random_: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random_.choice((1, 1, 2, 8))):
        if changed:
            changed[random_.randrange(len(changed))] ^= 1 << random_.randrange(8)
    return bytes(changed)


def delete(random_: random.Random, data: bytes) -> bytes:
    at, end = _span(random_, data)
    return data[:at] + data[end:]


def repeat(random_: random.Random, data: bytes) -> bytes:
    at, end = _span(random_, data)
    return data[:end] + data[at:end] * random_.choice((1, 1, 3)) + data[end:]


def move(random_: random.Random, data: bytes) -> bytes:
    at, end = _span(random_, data)
    rest = data[:at] + data[end:]
    to = _place(random_, rest)
    return rest[:to] + data[at:end] + rest[to:]


def insert(random_: random.Random, data: bytes) -> bytes:
    at = _place(random_, data)
    return data[:at] + random_.choice(CONTROL) * random_.choice((1, 1, 1, 3)) + data[at:]


def retype(random_: random.Random, data: bytes) -> bytes:
    values = list(_VALUE.finditer(data))
    if not values:
        return data
    value = random_.choice(values)
    return data[: value.start(1)] + random_.choice(ODD_VALUES) + data[value.end(1) :]


def rename(random_: random.Random, data: bytes) -> bytes:
    keys = list(_KEY.finditer(data))
    if len(keys) < 2:
        return data
    one, other = random_.choice(keys), random_.choice(keys)
    return data[: one.start()] + other.group() + data[one.end() :]


def nest(random_: random.Random, data: bytes) -> bytes:
    depth = random_.choice((3, 70, 200, 1100, 3000))
    values = list(_VALUE.finditer(data))
    at, end = random_.choice(values).span(1) if values else (0, 0)
    opened, closed = random_.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return data[:at] + opened * depth + b"1" + closed * depth + data[end:]


def lengthen(random_: random.Random, data: bytes) -> bytes:
    at = _place(random_, data)
    return data[:at] + random_.choice((b"9", b" ", b"\n", b"a", b"\\")) * 2000 + data[at:]


def join(random_: random.Random, data: bytes) -> bytes:
    return data + random_.choice((b"", b"\n", b",")) + data


MUTATIONS: tuple[Mutation, ...] = (
    *(cut, behead, flip, delete, repeat, move, insert, retype, retype, retype, rename),
    *(nest, lengthen, join),
)


def packed(random_: random.Random, data: bytes) -> bytes:
    """The text compressed, and often damaged after that."""
    parts = [data] if random_.random() < 0.7 else [data[: len(data) // 2], data[len(data) // 2 :]]
    stream = b"".join(gzip.compress(part, 1, mtime=0) for part in parts)
    damage = random_.choice((None, cut, flip, delete, repeat, insert))
    return damage(random_, stream) if damage else stream
