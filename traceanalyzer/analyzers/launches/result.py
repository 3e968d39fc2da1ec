"""Result of the launches analysis: data, verdict, notes, tables and charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common import display
from traceanalyzer.analyzers.common.columns import largest_first, ratio
from traceanalyzer.analyzers.common.gpu_api import CUPY, XLA, Api
from traceanalyzer.analyzers.common.launching import GRAPH_LAUNCH, note_launched_before
from traceanalyzer.analyzers.common.step_marks import INFERRED_STEPS
from traceanalyzer.analyzers.launches.calls import DEVICE, SHORT_KERNEL_NS
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns, format_times

#: Waiting for launches of at least this share of the recorded time is partly or fully launch-bound.
_SOME, _MUCH = 0.05, 0.2

#: Least share of the recorded time to report idleness of another cause.
_IDLE = 0.1

#: Least share to report something as the main part.
_MOST = 0.5

#: Least share of the recorded time to report the cost of synchronising calls.
_WORTH = 0.01

#: How to launch less: with graphs, in PyTorch, for training, in any program.
_FEWER = ("CUDA graphs", 'torch.compile(mode="reduce-overhead")', "fused or foreach optimizers")
_FUSED = {XLA: "jax.jit, tf.function(jit_compile=True)", CUPY: "cupy.fuse, ElementwiseKernel"}
_LARGER = "larger batches"

_DELAYS = """launches, mean_delay_ns: mean delay, median_delay_ns: median, p99_delay_ns: p99,
    max_delay_ns: max"""

_QUEUED = "late: > 100 us, waited_frac: queued behind work"

_CALL = "median_call_ns: median call"

#: Columns of each table and their headings.
_COLUMNS = {
    "devices": f"""on: device, busy_frac: busy/span, waiting_frac: waits for launches/span,
        {_DELAYS}, {_QUEUED}""",
    "stretches": """on: device, step, at_ns: start, length_ns: length, gaps, pieces,
        busy_frac: busy, synchronised_frac: after a sync, annotation: mostly in, operator""",
    "synchronising": """call, operator, annotation, python: Python, ranks, n, host_ns: host time,
        idle_ns: device idle, idle_after_ns: idle after""",
    "streams": """on: device, process, stream, launches, mean_queue: mean queue, max_queue: max,
        empty_frac: empty, full_frac: calls block""",
    "calls": f"""launch_name: launch call, {_DELAYS}, late: > 100 us, {_CALL},
        max_call_ns: max call, slow_calls: > 50 us, loading_calls: load code""",
    "graphs": f"""launch_name: launch call, launches, pieces: device events,
        median_delay_ns: median delay to the first, max_delay_ns: max, {_CALL},
        max_call_ns: max call""",
    "short": """name: kernel, short_kernels: short, short_frac: of this kernel,
        share_frac: of all kernels, short_ns: total time, mean_ns: mean""",
    "operators": f"operator, waiting_ns: device waits, {_DELAYS}, {_QUEUED}, {_CALL}",
    "steps": """on: device, step, step_ns: length, launches, stretch_frac: in stretches,
        waiting_ns: waits for launches, waiting_frac: of the step""",
}

#: Further arguments of tables.
_MORE: Mapping[str, Mapping[str, Any]] = {
    "operators": {"detail": True, "missing": {"operator": "(none)"}},
    "steps": {"detail": True, "empty": "no steps are marked"},
    "stretches": {"hide_first": ("pieces", "gaps", "at_ns", "synchronised_frac", "busy_frac")},
    "synchronising": {"hide_first": ("ranks", "n", "host_ns", "annotation", "operator")},
}

#: Number of streams in the queue chart: those with most launches.
_STREAMS = 6

#: Numbers for notes only.
_FOR_NOTES = ("after_last", "clock_odd")


@dataclass(frozen=True)
class LaunchBound:
    """Launch-bound stretches of all devices.

    Attributes:
        stretch_ns: length of all stretches.
        waiting_ns: idle time in their gaps that end with a launch.
        synchronised_ns: the part of it in gaps with the host in a synchronising call.
        stretches: rank, path, device, step, at_ns (start on the axis of all ranks), length_ns,
            gaps, pieces, busy_frac, waiting_ns, synchronised_frac, annotation, operator.
        places: rank, path, device, place (annotation, or else operator), waiting_ns.
    """

    stretch_ns: int
    waiting_ns: int
    synchronised_ns: int
    stretches: pl.DataFrame
    places: pl.DataFrame


@dataclass(frozen=True)
class Calls:
    """Launch calls with device work.

    Attributes:
        launches: their number.
        median_delay_ns: from the end of the call to the start of the work; None without launches.
        p99_delay_ns: the 99th percentile of these delays; None without launches.
        slow_calls: calls of more than 50 us.
        loading_calls: those that load kernel code for at least half of their time.
        loading_ns: time of the loading.
        by_name: by name of the launch call: launches, pieces, delays and calls as in
            ``devices``.
        graphs: the same for calls with several device events.
        by_operator: the same by operator (null: outside of any), with waiting_ns: wait of devices
            for its launches in stretches.
        delays: waited, delay (a class), n: number of launches by delay.
    """

    launches: int
    median_delay_ns: float | None
    p99_delay_ns: float | None
    slow_calls: int
    loading_calls: int
    loading_ns: int
    by_name: pl.DataFrame
    graphs: pl.DataFrame
    by_operator: pl.DataFrame
    delays: pl.DataFrame


@dataclass(frozen=True)
class ShortKernels:
    """Kernels shorter than 10 us.

    Attributes:
        kernels: number of all kernels.
        short_kernels: number of the short ones.
        by_name: kernels by name: name, short_kernels, short_frac (of the kernels of that name),
            share_frac (of all kernels), short_ns.
    """

    kernels: int
    short_kernels: int
    by_name: pl.DataFrame


@dataclass(frozen=True)
class Synchronising:
    """Calls in which the host waited for a device.

    Attributes:
        synchronising_ns: host time in them.
        synchronising_idle_ns: device idle time during them.
        synchronising_after_ns: device idle time after them, until the next work.
        by_place: call, operator, annotation, python, ranks (their number), n, host_ns, idle_ns,
            idle_after_ns.
    """

    synchronising_ns: int
    synchronising_idle_ns: int
    synchronising_after_ns: int
    by_place: pl.DataFrame


@dataclass(frozen=True)
class Queue:
    """Launch queues of streams.

    Attributes:
        streams: rank, path, device, process, stream, launches, mean_queue, max_queue, empty_frac,
            full_frac.
        lengths: rank, path, device, process, stream, at_ns, length: queue length over time.
    """

    streams: pl.DataFrame
    lengths: pl.DataFrame


@dataclass(frozen=True)
class Unmatched:
    """Device work and calls that do not count, or have no counterpart.

    Attributes:
        unlaunched: number of device events without a launch call.
        launched_before_ns: their time.
        work_ns: time of all device work.
        without_work: number of launch calls without device work.
        after_last: number of synchronising calls after the last launch, which are not counted.
        clock_odd: number of launches whose work seems to start before the call.
    """

    unlaunched: int
    launched_before_ns: int
    work_ns: int
    without_work: int
    after_last: int
    clock_odd: int

    @classmethod
    def summed(cls, several: Sequence[Unmatched]) -> Unmatched:
        """Return the sums over ranks."""
        return cls(*map(sum, zip(*(vars(one).values() for one in several), strict=True)))


@dataclass(frozen=True, eq=False, repr=False)
class Launches(Result):
    """Launch delays, queues, launch-bound stretches and synchronising calls. Times are in ns.

    Attributes:
        span_ns: first start to last end of device work, summed over devices.
        idle_ns: time in which a device ran nothing, summed over devices.
        devices: one row per device: on (its label), rank, path, device, span_ns, idle_ns,
            stretches, stretch_ns, busy_frac, stretch_frac, waiting_ns,
            waiting_frac, launches, the delays' mean_, median_, p99_ and max_delay_ns, late (after
            more than 100 us), waited_frac (share of launches behind earlier work of their stream),
            mean_call_ns, slow_calls (of more than 50 us), kernels, short_frac, median_call_ns,
            unlaunched (device events without a launch call).
        bound: launch-bound stretches: in a *stretch* a device repeatedly runs out of work because
            the host launches too slowly; *waiting* is its idle time in the gaps of stretches that
            end with a launch.
        calls: launch calls with device work.
        short: kernels shorter than 10 us.
        synchronising: calls in which the host waited for a device.
        queue: launch queues of streams.
        unmatched: device work and calls that do not count, or have no counterpart.
        steps: rank, path, device, step, step_ns, launches (calls in the step with device work),
            graph_launches (those that replay a graph), stretch_frac, waiting_ns, waiting_frac,
            idle_ns, warm_up (not counted in shares of step time).
        steps_by_kernels: steps are inferred from repeating kernels.
        program: GPU API and framework of the program, for advice.
    """

    question = "How fast does the host launch work?"

    span_ns: int
    idle_ns: int
    devices: pl.DataFrame
    bound: LaunchBound
    calls: Calls
    short: ShortKernels
    synchronising: Synchronising
    queue: Queue
    unmatched: Unmatched
    steps: pl.DataFrame
    steps_by_kernels: bool
    program: Api

    @cached_property
    def costs(self) -> pl.DataFrame:
        """The idle time of each device in the counted steps, without steps in all of its time.

        Columns: on, rank, path, device, whole_ns, n (steps, or 1), waiting_ns, idle_ns,
        waiting_frac and idle_frac (of whole_ns).
        """
        sums = pl.col("waiting_ns", "idle_ns").sum()
        counted = self.steps.filter(~pl.col("warm_up"))
        rows = counted.group_by(DEVICE).agg(sums, whole_ns=pl.col("step_ns").sum(), n=pl.len())
        labels = self.devices.select("on", *DEVICE)
        if rows.height:
            known = labels.join(rows, on=DEVICE, nulls_equal=True)
        else:
            known = self.devices.select(
                "on", *DEVICE, "waiting_ns", "idle_ns", whole_ns="span_ns",
                n=pl.lit(1, pl.UInt32),
            )  # fmt: skip
        shares = {f"{name}_frac": ratio(f"{name}_ns", "whole_ns") for name in ("waiting", "idle")}
        return known.with_columns(**shares).sort(DEVICE)

    @property
    def of(self) -> str:
        """Name of the whole time in ``costs``."""
        return "step time" if self.steps.height else "the recorded time"

    @property
    def more_graphs(self) -> str:
        """Advice for a program that already launches graphs; empty for others.

        ``capture the other 40 launches per step in graphs too (hipGraphLaunch is already used)``;
        without other launches, to launch graphs earlier.
        """
        is_graph = pl.col("launch_name").cast(pl.String).str.contains(GRAPH_LAUNCH)
        calls = self.calls.by_name.select("launch_name", is_graph=is_graph)
        graphs = calls.filter("is_graph")["launch_name"]
        if graphs.is_empty():
            return ""
        n = self.steps.select((pl.col("launches") - pl.col("graph_launches")).median()).item()
        n = None if 2 * self.steps["launches"].sum() < self.calls.launches else round(n)
        if n == 0 or calls["is_graph"].all():
            only = "most steps launch only graphs" if n == 0 else "all launches are of graphs"
            return f"issue each {graphs[0]} before the last graph ends ({only})"
        others = "launches" if n is None else f"{format_count(n, 'launch', 'es')} per step"
        return f"capture the other {others} in graphs too ({graphs[0]} is already used)"

    def view(self) -> View:
        """Build the view: tables of devices, stretches and calls; charts of queues and delays."""
        parts = (self.bound, self.calls, self.short, self.synchronising, self.unmatched)
        scalars = self.numbers("span_ns", "idle_ns") | _numbers(*parts)
        return self.view_from(_verdict, _notes, _tables, _charts, scalars=scalars)


def _numbers(*records: object) -> dict[str, Any]:
    """Return the numbers of records by name."""
    return {
        name: value
        for record in records
        for name, value in vars(record).items()
        if not isinstance(value, pl.DataFrame) and name not in _FOR_NOTES
    }


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Launches) -> str:
    """Describe whether devices are launch-bound, launch delays and the cost of synchronising."""
    cost = largest_first(result.costs, "waiting_frac", *DEVICE).row(0, named=True)
    worst = _of(result.devices, cost).row(0, named=True) | cost
    bound = (worst["waiting_frac"] or 0) >= _SOME
    return display.sentences(
        _bound(result, worst) if bound else _not_bound(result, worst),
        _delays(result, worst),
        _short(worst) if bound else "",
        _loading(result.calls, result.program)
        if result.calls.loading_ns >= _WORTH * result.span_ns
        else "",
        _synchronising(result.synchronising, result.span_ns),
    )


def _notes(result: Launches) -> Iterator[str]:
    """Describe what was not counted, and how to read the numbers."""
    if result.steps_by_kernels:
        yield INFERRED_STEPS
    unmatched = result.unmatched
    if result.bound.waiting_ns:
        yield (
            "Waits for launches count in launch-bound stretches only, over the whole recording. "
            "gpu-idle and diagnose count all idle time before a late launch, diagnose within steps."
        )
    if result.synchronising.synchronising_after_ns:
        yield (
            "Idle time after a synchronising call lasts until the next device work. It includes "
            "what the host does in between."
        )
    if 0 < result.calls.loading_ns < _WORTH * result.span_ns:
        yield _loading(result.calls, result.program)
    yield from note_launched_before(unmatched.launched_before_ns, unmatched.work_ns)
    if unmatched.without_work:
        calls = format_count(unmatched.without_work, "launch call")
        yield f"{calls} without device work in the recording."
    if unmatched.after_last:
        calls = format_count(unmatched.after_last, "synchronising call")
        yield (
            f"Not counted: {calls} after the last launch, such as the profiler's call at the end "
            "of the recording."
        )
    if unmatched.clock_odd:
        odd = format_count(unmatched.clock_odd, "launch", "es")
        yield (
            f"{odd} with work that starts before the call, as the clocks of host and device "
            "differ; the delay counts as 0."
        )


# --- waiting for launches --------------------------------------------------------------------


def _bound(result: Launches, device: Mapping[str, Any]) -> str:
    much = device["waiting_frac"] >= _MUCH
    stretches = _of(result.bound.stretches, device)
    synchronised = int(stretches["synchronised_ns"].sum()) / int(stretches["waiting_ns"].sum())
    after = f"; {format_frac(synchronised)} of that follows synchronising calls" * (
        synchronised > 0
    )
    place = _mostly(_of(result.bound.places, device))
    cure = _unsynchronised(result) if synchronised >= _MOST else _faster(result)
    return (
        f"{'Launch-bound' if much else 'Partly launch-bound'}: {_device_label(result, device)} "
        f"waits {_each(result, device)} for the host's next launch in launch-bound stretches"
        f"{place}{after}. "
        f"It repeatedly runs out of work{_in_steps(result, device)}. "
        f"Try: {cure}: saves up to that wait."
        f"{_others(result)}{_other_idleness(result, device)}"
    )


def _each(result: Launches, device: Mapping[str, Any]) -> str:
    """Return the wait for launches per step and GPU, and its share of step time."""
    basis = display.Basis(device["whole_ns"], device["n"], bool(result.steps.height))
    return basis.share(device["waiting_ns"])


def _faster(result: Launches) -> str:
    """Return advice to launch less, for the framework; graphs that are launched are named."""
    program, more = result.program, result.more_graphs
    graphs, compiled, optimizers = _FEWER
    options = [
        *([] if more else [graphs, *[compiled] * program.pytorch]),
        *([optimizers] if program.pytorch and program.trains else []),
        *([] if program.pytorch else [_FUSED.get(program.framework, "fused kernels")]),
        _LARGER,
    ]
    what = f"{more}, or reduce their number" if more else "reduce the number of launches"
    return program.named(f"{what} ({', '.join(options)})")


def _unsynchronised(result: Launches) -> str:
    """Return advice to synchronise less: the code in PyTorch, else the most frequent call."""
    what = "reduce the number of synchronising calls"
    if result.program.pytorch:
        return f"{what} (.item(), .cpu(), .nonzero(), printing a loss)"
    sums = result.synchronising.by_place.group_by("call").agg(pl.col("n").sum())
    call, n = largest_first(sums, "n", "call").row(0)
    launches = format_count(result.calls.launches, "launch", "es")
    return f"{what} ({call}: {format_times(n)}, for {launches})"


def _others(result: Launches) -> str:
    """Count the launch-bound devices if there are several."""
    devices = result.devices
    if devices.height == 1:
        return ""
    bound = result.costs.filter(pl.col("waiting_frac") >= _SOME).height
    return f" {bound} of {devices.height} devices are launch-bound, this one most."


def _other_idleness(result: Launches, device: Mapping[str, Any]) -> str:
    """Report idleness of other causes if there is more of it."""
    other = device["idle_frac"] - device["waiting_frac"]
    if other < max(_IDLE, device["waiting_frac"]):
        return ""
    return f" It is idle for {format_frac(other)} of {result.of} for other reasons: see gpu-idle."


def _in_steps(result: Launches, device: Mapping[str, Any]) -> str:
    steps = _of(result.steps, device).filter(~pl.col("warm_up"))
    bound = steps.filter(pl.col("waiting_frac") >= _SOME)
    if bound.is_empty():
        return ""
    if bound.height == steps.height:
        return f" in all {steps.height} steps" if steps.height > 1 else ""
    return f" in {bound.height} of {steps.height} steps"


def _mostly(places: pl.DataFrame) -> str:
    """Name the annotation or operator with the longest wait for launches."""
    named = places.drop_nulls("place")
    if named.is_empty():
        return ""
    share = int(named["waiting_ns"][0]) / int(places["waiting_ns"].sum())
    return f", {format_frac(share)} of it in {named['place'][0]}"


def _not_bound(result: Launches, device: Mapping[str, Any]) -> str:
    waits = device["waiting_frac"] or 0
    waiting = (
        f"{_device_label(result, device)} waits for the host's next launch for "
        f"{format_frac(waits)} of {result.of} in launch-bound stretches"
        if waits
        else "no device repeatedly runs out of work because of launches"
    )
    idle = largest_first(result.costs, "idle_frac", *DEVICE).row(0, named=True)
    free = idle["idle_frac"] or 0
    time = "it" if waits else result.of
    other = (
        f"; {_device_label(result, idle)} is idle for {_nearly(free)} of {time} (see gpu-idle)"
        if free - (idle["waiting_frac"] or 0) >= _IDLE
        else ""
    )
    return f"Not launch-bound: {waiting}{other}."


def _nearly(frac: float) -> str:
    """Format a share; one below 1 is never printed as 100 %."""
    text = format_frac(frac)
    return "more than 99.9 %" if frac < 1 and text == format_frac(1) else text


def _delays(result: Launches, device: Mapping[str, Any]) -> str:
    if device["median_delay_ns"] is None:
        return ""
    n, delay, waited = (device[key] for key in ("launches", "median_delay_ns", "waited_frac"))
    of_which = "" if result.devices.height == 1 else f" of {device['on']}"
    if n == 1:
        queued = " It was queued behind earlier work, which is normal." * (waited > 0)
        return f"The only launch{of_which} started {format_ns(delay)} after its call.{queued}"
    queued = (
        f" {format_frac(waited)} of launches were queued behind earlier work, which is normal."
        if waited >= _SOME
        else ""
    )
    return (
        f"Launch delay{of_which}: median {format_ns(delay)}, p99 "
        f"{format_ns(device['p99_delay_ns'])} ({n:,} launches).{queued}"
    )


def _short(device: Mapping[str, Any]) -> str:
    if (device["short_frac"] or 0) < _MOST:
        return ""
    return (
        f"{format_frac(device['short_frac'])} of its kernels are shorter than "
        f"{format_ns(SHORT_KERNEL_NS)}; the median launch call takes "
        f"{format_ns(device['median_call_ns'])}."
    )


def _loading(calls: Calls, program: Api) -> str:
    """Report launches that are slow because they load kernel code."""
    if not calls.loading_calls:
        return ""
    return program.named(
        f"Module loading slows down {calls.loading_calls:,} of "
        f"{format_count(calls.slow_calls, 'launch call')} over 50 us "
        f"({format_ns(calls.loading_ns)} in total): CUDA loads the code of a kernel at its first "
        "launch. Warm-up steps, or CUDA_MODULE_LOADING=EAGER, load it before the measured part."
    )


# --- synchronising ---------------------------------------------------------------------------


def _synchronising(calls: Synchronising, span_ns: int) -> str:
    places = calls.by_place
    idle = calls.synchronising_idle_ns + calls.synchronising_after_ns
    if places.is_empty():
        return ""
    counted = format_count(int(places["n"].sum()), "synchronising call")
    if idle < _WORTH * span_ns:
        leave = "leaves" if places["n"].sum() == 1 else "leave"
        return f"{counted} {leave} the devices idle for {format_ns(idle)} in total."
    worst = places.row(0, named=True)
    where = worst["operator"] or worst["annotation"] or worst["python"]
    place = f" in {where}" if where else ""
    return (
        f"The host spent {format_ns(calls.synchronising_ns)} in {counted}; devices were idle for "
        f"{format_ns(calls.synchronising_idle_ns)} of it, and for "
        f"{format_ns(calls.synchronising_after_ns)} afterwards until the next work. "
        f"{format_ns(worst['idle_ns'] + worst['idle_after_ns'])} of that idle time is at "
        f"{worst['call']}{place} ({format_count(worst['n'], 'call')})."
    )


# --- devices ---------------------------------------------------------------------------------


def _of(frame: pl.DataFrame, device: Mapping[str, Any]) -> pl.DataFrame:
    return frame.filter(*(pl.col(name).eq_missing(device[name]) for name in DEVICE))


def _device_label(result: Launches, device: Mapping[str, Any]) -> str:
    """Return ``the device``, or the label of one of several."""
    return "the device" if result.devices.height == 1 else str(device["on"])


# --- tables --------------------------------------------------------------------------------


def _tables(result: Launches) -> tuple[Table, ...]:
    """Build the tables; columns of devices and ranks only if there are several devices."""
    calls, graphs = result.calls, "Launch calls that started several device events"
    left_out = [] if calls.loading_calls else ["loading_calls"]
    left_out += [] if result.devices.height > 1 else ["on", "ranks"]
    left_out += [] if result.queue.streams["full_frac"].sum() else ["full_frac"]
    tables = {
        "devices": ("Devices", result.devices),
        "stretches": ("Launch-bound stretches", result.bound.stretches),
        "synchronising": ("Synchronising calls", result.synchronising.by_place),
        "streams": ("Launch queues of streams", result.queue.streams),
        "calls": ("Launch calls", calls.by_name),
        **({"graphs": (graphs, calls.graphs)} if calls.graphs.height else {}),
        "short": ("Kernels shorter than 10 us", result.short.by_name),
        "operators": ("Launches by operator", calls.by_operator),
        "steps": ("Steps", result.steps),
    }
    return tuple(
        display.table_of_known(name, title, frame, _columns(name, left_out), **_MORE.get(name, {}))
        for name, (title, frame) in tables.items()
    )


def _columns(name: str, left_out: Sequence[str]) -> dict[str, str]:
    """Return the columns of a table with their headings."""
    known = display.headings(_COLUMNS[name])
    return {key: known[key] for key in known if name == "devices" or key not in left_out}


# --- charts --------------------------------------------------------------------------------


def _charts(result: Launches) -> tuple[Chart, ...]:
    return _queues(result), _delay_classes(result.calls.delays)


def _queues(result: Launches) -> Chart:
    key = [*DEVICE, "process", "stream"]
    streams = result.queue.streams
    chosen = streams.head(_STREAMS).select(*key).with_row_index("_order")
    rows = result.queue.lengths.join(chosen, on=key, nulls_equal=True, maintain_order="left")
    frame = rows.sort("_order", maintain_order=True)
    label = pl.format("stream {}", "stream")
    if streams["process"].n_unique() > 1:
        label = pl.format("process {}, {}", "process", label)
    if result.devices.height > 1:
        label = pl.format("{}, {}", "on", label)
    more = streams.height - chosen.height
    busiest = f" ({chosen.height} streams with most launches)" if more else ""
    return Chart(
        "queue", f"Launch queues of streams{busiest}", "line",
        frame.select("at_ns", "length", label.alias("queue")), x="at_ns", y="length",
        x_label="time from the start", y_label="launches in the queue", panel="queue",
    )  # fmt: skip


def _delay_classes(delays: pl.DataFrame) -> Chart:
    labels = (
        pl.when("waited").then(pl.lit("earlier work of its stream")).otherwise(pl.lit("nothing"))
    )
    return display.stacked(
        "delays", "Delay from launch call to start, by what the launch waited for",
        delays.with_columns(labels.alias("waited_for")), "delay", y="n",
        x_label="delay (lower bound)", y_label="launches", color="waited_for",
    )  # fmt: skip
