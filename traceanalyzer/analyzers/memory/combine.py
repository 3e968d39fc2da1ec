"""Several ranks' memory side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceanalyzer.analyzers.memory.extract import Part
from traceanalyzer.analyzers.memory.peak import DEVICES
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.errors import OptionError

_CUT_OFF: Final = (
    "A file is cut off: its blocks are of a later moment than its last event, and what was "
    "allocated in between counts as if it had been there before the first."
)


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
        remarks=(*([_CUT_OFF] if any(part.cut_off for part in parts) else ()), *remarks),
    )
