"""The corpus of the byte fuzzer, as ``fixtures/make_corpus.py`` wrote it."""

from __future__ import annotations

import zipfile
from pathlib import Path

#: In the order of the first byte of the fuzzer's inputs.
FORMATS = ("chrome-trace", "collapsed", "memory-snapshot", "speedscope")


def place(name: str) -> Path:
    """The zip of a format's files."""
    return Path(__file__).parents[1] / "fixtures" / "corpus" / f"{name}.zip"


def members(name: str) -> list[bytes]:
    """The files of a format; none where there is no corpus yet."""
    if not place(name).exists():
        return []
    with zipfile.ZipFile(place(name)) as packed:
        return [packed.read(member) for member in packed.namelist()]
