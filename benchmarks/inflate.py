"""Bare inflating of ``.gz`` files: ``python -I inflate.py LIBRARY FILE``, for zlib, zlib_ng, isal.

What any reader of a compressed trace must spend at least. One thread, 1 MB read at a time and at
most 1 MB inflated (where a block may grow to its 15 MB at once, all three take two to three times
as long, in memory that is new to the process); the output is counted and dropped.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Maker = Callable[[int], Any]

_BLOCK = 1 << 20


def zlib() -> Maker:
    import zlib

    return zlib.decompressobj


def zlib_ng() -> Maker:
    from zlib_ng import zlib_ng

    return zlib_ng.decompressobj


def isal() -> Maker:
    from isal import isal_zlib

    return isal_zlib.decompressobj


LIBRARIES = {library.__name__: library for library in (zlib, zlib_ng, isal)}


def inflate(library: str, path: str) -> tuple[float, int]:
    """Return seconds and inflated bytes."""
    make = LIBRARIES[library]()
    start = time.perf_counter()
    inflater, size = make(31), 0
    with Path(path).open("rb", buffering=0) as file:
        while data := file.read(_BLOCK):
            while data:
                size += len(inflater.decompress(data, _BLOCK))
                data = inflater.unconsumed_tail
    return time.perf_counter() - start, size


if __name__ == "__main__":
    seconds, size = inflate(*sys.argv[1:])
    print(json.dumps({"seconds": seconds, "rows": size}))
