"""The content of a recording, before ranks are known and rows are in order."""

from dataclasses import dataclass, field

import polars as pl

from traceanalyzer.parsers.sqlite.rows import Finding
from traceanalyzer.trace import Device

COUNTERS = pl.Schema(
    {
        "ts": pl.Int64(),
        "name": pl.Categorical(),
        "series": pl.Categorical(),
        "pid": pl.Int64(),
        "value": pl.Float64(),
    }
)
LANES = pl.Schema({"owner": pl.Int64, "pid": pl.Int64, "tid": pl.Int64, "label": pl.String})


@dataclass
class Recording:
    """The rows of a database.

    Attributes:
        version: name and version of the tables.
        parts: rows of ``events`` and its side tables, with ``owner``: the process, unique in the
            file (process ids of several hosts are not).
        used: ``owner`` and ``device`` of device work, distinct.
        counters: columns of :data:`COUNTERS`.
        lanes: columns of :data:`LANES`.
        devices: GPUs.
        host: name of the host, or None.
        ranks: rank and world size by owner, where recorded.
        start_ns: time of the first event, or None.
        issues: what was not read.
    """

    version: str
    parts: list[pl.DataFrame] = field(default_factory=list)
    used: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema={"owner": pl.Int64, "device": pl.Int32})
    )
    counters: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=COUNTERS))
    lanes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LANES))
    devices: tuple[Device, ...] = ()
    host: str | None = None
    ranks: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    start_ns: int | None = None
    issues: list[Finding] = field(default_factory=list)
