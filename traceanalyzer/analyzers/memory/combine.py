"""Several ranks' memory side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceanalyzer.analyzers.memory.extract import Part
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.errors import OptionError

_TEXT: Final = ("path", "noted")
_SMALL: Final = ("rank", "device")
_FLOAT: Final = ("fragmentation_frac",)


def combine(parts: Sequence[Part], remarks: Sequence[str] = ()) -> Memory:
    """The memory of all ranks; ``remarks`` are further notes.

    Raises:
        OptionError: there are no parts.
    """
    if not parts:
        raise OptionError("no trace was given")
    peaks = [peak for part in parts for peak in part.peaks]
    types = {
        name: pl.String if name in _TEXT
        else pl.Int32 if name in _SMALL
        else pl.Float64 if name in _FLOAT
        else pl.Int64
        for name in peaks[0].device
    }  # fmt: skip
    devices = pl.DataFrame([peak.device for peak in peaks], schema=types)
    return Memory(
        devices=devices.sort("rank", "path", "device", nulls_last=True),
        alive=pl.concat([peak.alive for peak in peaks]).drop("row"),
        timeline=pl.concat([peak.timeline for peak in peaks]),
        maps=tuple(one for part in parts for one in part.maps),
        library=parts[0].library,
        remarks=tuple(remarks),
    )
