"""The answer to: how fast does the host feed the device?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.launches import charts, tables, verdict
from traceanalyzer.result import Chart, Result, Table


@dataclass(frozen=True, eq=False, repr=False)
class Launches(Result):
    """What :func:`launches` found.

    Times in ns. A *stretch* is a stretch of time in which a device ran out of work again and again
    because the host launched too slowly; *waiting* is the device's idleness in the gaps of
    stretches that ended with a launch.

    Attributes:
        span_ns: first start to last end of device work, summed over devices.
        idle_ns: time in which a device ran nothing, summed over devices.
        stretch_ns: length of all stretches; waiting_ns: waiting in them; synchronised_ns: the part
            of waiting in gaps in which the host was in a synchronising call.
        launches: launch calls that started work.
        median_delay_ns, p99_delay_ns: from the end of the call to the start of the work; null
            without launches.
        kernels, short_kernels: all kernels, and those shorter than 10 us.
        synchronising_ns: time of the host in synchronising calls; synchronising_idle_ns and
            synchronising_after_ns: idleness of devices in them, and after them.
        devices: a row a device: on (what it is called), rank, path, device, span_ns, idle_ns,
            stretches, stretch_ns, busy_frac, stretch_frac, waiting_ns,
            waiting_frac, launches, the delays' mean_, median_, p99_ and max_delay_ns, late (after
            more than 100 us), waited_frac (share of launches behind earlier work of their stream),
            mean_call_ns, slow_calls (of more than 50 us), kernels, short_frac, median_call_ns,
            unlaunched (pieces of work without a launch call).
        streams: rank, path, device, process, stream, launches, mean_queue, max_queue, empty_frac,
            full_frac.
        stretches: rank, path, device, step, at_ns (from the start of the device's work), length_ns,
            gaps, pieces, busy_frac, waiting_ns, synchronised_frac, annotation, operator.
        synchronising: calls in which the host waited for a device, by place: call, operator,
            annotation, python, ranks (how many), n, host_ns, idle_ns, idle_after_ns.
        calls: by name of the launch call: launches, pieces, delays and calls as in ``devices``.
        graphs: the same for calls that started several pieces of work.
        operators: the same by operator (null: in none), with waiting_ns: how long devices waited
            for its launches, in stretches.
        places: rank, path, device, place (annotation, or else operator), waiting_ns.
        short: kernels by name: name, short_kernels, short_frac (of the kernels of that name),
            share_frac (of all kernels), short_ns.
        steps: rank, path, device, step, step_ns, stretch_frac, waiting_ns, waiting_frac.
        delays: waited, delay (a class), n: how many launches waited how long.
        queue: rank, path, device, process, stream, at_ns, length: the course of each queue.
        unlaunched: pieces of device work without a launch call.
        without_work: launch calls without device work.
        after_last: synchronising calls after the last launch, not counted.
        clock_odd: launches whose work seems to start before their call.
        more_notes: what else is to be said.
    """

    span_ns: int
    idle_ns: int
    stretch_ns: int
    waiting_ns: int
    synchronised_ns: int
    launches: int
    median_delay_ns: float | None
    p99_delay_ns: float | None
    kernels: int
    short_kernels: int
    synchronising_ns: int
    synchronising_idle_ns: int
    synchronising_after_ns: int
    devices: pl.DataFrame
    streams: pl.DataFrame
    stretches: pl.DataFrame
    synchronising: pl.DataFrame
    calls: pl.DataFrame
    graphs: pl.DataFrame
    operators: pl.DataFrame
    places: pl.DataFrame
    short: pl.DataFrame
    steps: pl.DataFrame
    delays: pl.DataFrame
    queue: pl.DataFrame
    unlaunched: int
    without_work: int
    after_last: int
    clock_odd: int
    more_notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The question."""
        return "How fast does the host feed the device?"

    @property
    def verdict(self) -> str:
        """Whether launches hold the devices up, what costs most, and what would help."""
        return verdict.verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not counted."""
        return verdict.notes(self)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Devices, streams, stretches, synchronising calls, launch calls, short kernels."""
        return tables.tables(self)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Queues over time, and delays."""
        return charts.charts(self)

    @property
    def scalars(self) -> dict[str, Any]:
        """The sums over all devices."""
        names = (
            "span_ns", "idle_ns", "stretch_ns", "waiting_ns", "synchronised_ns", "launches",
            "median_delay_ns", "p99_delay_ns", "kernels", "short_kernels", "synchronising_ns",
            "synchronising_idle_ns", "synchronising_after_ns", "unlaunched", "without_work",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}
