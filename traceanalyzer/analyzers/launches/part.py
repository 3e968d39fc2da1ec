"""What one rank contributes."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

#: What tells devices apart: the file too, since it may not tell its rank.
DEVICE = ["rank", "path", "device"]


@dataclass(frozen=True)
class Part:
    """One rank's launches.

    Attributes:
        rank: or None.
        path: the file.
        calls: each launch call that started work: device, launch_name, pieces, call_ns, delay_ns,
            waited, annotation, operator, waiting_ns (of the device for it, in stretches).
        devices: device, start, end, idle_ns, work, launched_work, kernels, short_kernels, short_ns.
        streams: what :func:`~.queue.streams` gives.
        queue: what :func:`~.queue.drawn` gives.
        stretches: what :func:`~.stretches.stretches` gives, with step, annotation and operator.
        steps: device, step, start, step_ns, stretch_ns, waiting_ns; none where no step is marked.
        short: kernels by name: kernels, short_kernels, short_ns.
        synchronising: what :func:`~.synchronising.by_place` gives.
        without_work: launch calls that started nothing that was recorded.
        clock_odd: pieces of work that seem to start before their call.
        after_last: synchronising calls after the last launch, which are not counted.
    """

    rank: int | None
    path: str
    calls: pl.DataFrame
    devices: pl.DataFrame
    streams: pl.DataFrame
    queue: pl.DataFrame
    stretches: pl.DataFrame
    steps: pl.DataFrame
    short: pl.DataFrame
    synchronising: pl.DataFrame
    without_work: int
    clock_odd: int
    after_last: int
