"""Several ranks' memory side by side."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.memory.extract import Part
from traceanalyzer.analyzers.memory.peak import DEVICES
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.errors import OptionError


def combine(parts: Sequence[Part], remarks: Sequence[str] = ()) -> Memory:
    """The memory of all ranks; ``remarks`` are further notes.

    Raises:
        OptionError: there are no parts.
    """
    if not parts:
        raise OptionError("no trace was given")
    peaks = [peak for part in parts for peak in part.peaks]
    devices = pl.DataFrame([peak.device for peak in peaks], schema=DEVICES)
    return Memory(
        devices=devices.sort("rank", "path", "device", nulls_last=True),
        alive=pl.concat([peak.alive for peak in peaks]).drop("row"),
        timeline=pl.concat([peak.timeline for peak in peaks]),
        maps=tuple(one for part in parts for one in part.maps),
        remarks=tuple(remarks),
    )
