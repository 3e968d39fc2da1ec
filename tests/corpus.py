"""Corpus of the byte fuzzer, written by ``fixtures/make_corpus.py``."""

from __future__ import annotations

import zipfile
from pathlib import Path

#: Indexed by the first byte of inputs of the fuzzer.
FORMATS = ("chrome-trace", "collapsed", "memory-snapshot", "speedscope")


def place(name: str) -> Path:
    """Return the archive of a format."""
    return Path(__file__).parents[1] / "fixtures" / "corpus" / f"{name}.zip"


def members(name: str) -> list[bytes]:
    """Return the files of a format; empty without a corpus."""
    if not place(name).exists():
        return []
    with zipfile.ZipFile(place(name)) as packed:
        return [packed.read(member) for member in packed.namelist()]
