"""The launches of all ranks, and their verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.display import headings, sentences, stacked, table_of_known
from traceanalyzer.analyzers.common.launching import note_launched_before
from traceanalyzer.analyzers.common.step_patterns import FOUND_BY_KERNELS
from traceanalyzer.analyzers.launches.calls import DEVICE, SHORT_KERNEL_NS
from traceanalyzer.result import Chart, Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns

#: From this share of the recorded time on, waiting for launches is a fault worth naming, and the
#: fault of a training.
_SOME, _MUCH = 0.05, 0.2

#: From this share of the recorded time on, idleness of another cause is worth naming.
_IDLE = 0.1

#: From this share on one thing explains another.
_MOST = 0.5

#: From this share of the recorded time on, what synchronising calls cost is worth telling.
_WORTH = 0.01

_FASTER = (
    'fewer and larger launches: CUDA graphs, torch.compile(mode="reduce-overhead"), fused or '
    "foreach optimizers, larger batches"
)
_UNSYNCHRONISED = "fewer synchronising calls: .item(), .cpu(), .nonzero(), printing a loss"

_DELAYS = """launches, mean_delay_ns: mean delay, median_delay_ns: median, p99_delay_ns: p99,
    max_delay_ns: max"""

_QUEUED = "late: > 100 us, waited_frac: queued behind work"

_CALL = "median_call_ns: median call"

#: Columns of each table and their headings.
_COLUMNS = {
    "devices": f"""on: device, busy_frac: busy, waiting_frac: waits for launches, {_DELAYS},
        {_QUEUED}""",
    "stretches": """on: device, step, at_ns: at, length_ns: length, gaps, pieces, busy_frac: busy,
        synchronised_frac: after a sync, annotation: mostly in, operator""",
    "synchronising": """call, operator, annotation, python: Python, ranks, n, host_ns: host time,
        idle_ns: device idle, idle_after_ns: idle after""",
    "streams": """on: device, process, stream, launches, mean_queue: mean queue, max_queue: max,
        empty_frac: empty, full_frac: calls block""",
    "calls": f"""launch_name: launch call, {_DELAYS}, late: > 100 us, {_CALL},
        max_call_ns: max call, slow_calls: > 50 us, loading_calls: load code""",
    "graphs": f"""launch_name: launch call, launches, pieces: pieces of work,
        median_delay_ns: median delay to the first, max_delay_ns: max, {_CALL},
        max_call_ns: max call""",
    "short": """name: kernel, short_kernels: short, short_frac: of its kind,
        share_frac: of all kernels, short_ns: time in all, mean_ns: mean""",
    "operators": f"operator, waiting_ns: device waits, {_DELAYS}, {_QUEUED}, {_CALL}",
    "steps": """on: device, step, step_ns: length, launches, stretch_frac: in stretches,
        waiting_ns: waits for launches, waiting_frac: of the step""",
}

#: Streams whose queues are drawn: those with most launches.
_STREAMS = 6

_SCALARS = (
    "span_ns", "idle_ns", "stretch_ns", "waiting_ns", "synchronised_ns", "launches",
    "median_delay_ns", "p99_delay_ns", "slow_calls", "loading_calls", "loading_ns",
    "kernels", "short_kernels", "synchronising_ns",
    "synchronising_idle_ns", "synchronising_after_ns", "unlaunched", "launched_before_ns",
    "work_ns", "without_work",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Launches(Result):
    """How fast the host feeds the device.

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
        slow_calls: launch calls of more than 50 us; loading_calls: those that load the code of
            kernels for half of their time or more, loading_ns: how long.
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
        steps: rank, path, device, step, step_ns, launches (calls in the
            step that started work), stretch_frac, waiting_ns, waiting_frac.
        steps_by_kernels: steps are not marked but found by kernels that repeat.
        delays: waited, delay (a class), n: how many launches waited how long.
        queue: rank, path, device, process, stream, at_ns, length: the course of each queue.
        unlaunched: pieces of device work without a launch call; launched_before_ns: their time,
            summed up, and work_ns that of all work.
        without_work: launch calls without device work.
        after_last: synchronising calls after the last launch, not counted.
        clock_odd: launches whose work seems to start before their call.
    """

    span_ns: int
    idle_ns: int
    stretch_ns: int
    waiting_ns: int
    synchronised_ns: int
    launches: int
    median_delay_ns: float | None
    p99_delay_ns: float | None
    slow_calls: int
    loading_calls: int
    loading_ns: int
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
    steps_by_kernels: bool
    delays: pl.DataFrame
    queue: pl.DataFrame
    unlaunched: int
    launched_before_ns: int
    work_ns: int
    without_work: int
    after_last: int
    clock_odd: int

    def view(self) -> View:
        """Devices, stretches, synchronising calls, streams, launch calls; queues and delays."""
        return View(
            title="How fast does the host feed the device?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=_tables(self),
            scalars=self.numbers(*_SCALARS),
            charts=lambda: (_queues(self), _delay_classes(self)),
        )


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Launches) -> str:
    """Whether launches hold the devices up, how long they take, what synchronising costs."""
    order = result.devices.sort("waiting_ns", *DEVICE, descending=[True] + [False] * 3)
    worst = order.row(0, named=True)
    bound = (worst["waiting_frac"] or 0) >= _SOME
    return sentences(
        _bound(result, worst) if bound else _not_bound(result, worst),
        _delays(result, worst),
        _short(worst) if bound else "",
        _loading(result) if result.loading_ns >= _WORTH * result.span_ns else "",
        _synchronising(result),
    )


def _notes(result: Launches) -> tuple[str, ...]:
    """What was not counted, and how to read the numbers."""
    said = [FOUND_BY_KERNELS] if result.steps_by_kernels else []
    if result.synchronising_after_ns:
        said.append(
            "Idle after a synchronising call lasts until the next piece of work: what the host did "
            "in between made it long, not only the call."
        )
    if 0 < result.loading_ns < _WORTH * result.span_ns:
        said.append(_loading(result))
    said += note_launched_before(result.launched_before_ns, result.work_ns)
    if result.without_work:
        calls = format_count(result.without_work, "launch call")
        said.append(f"{calls} without device work in the recording.")
    if result.after_last:
        calls = format_count(result.after_last, "synchronising call")
        said.append(
            f"{calls} after the last launch, such as "
            "the profiler's own at the end of the recording: not counted."
        )
    if result.clock_odd:
        odd = format_count(result.clock_odd, "launch", "es")
        said.append(
            f"{odd} whose work starts before the call: the "
            "clocks of host and device differ; the delay counts as 0."
        )
    return tuple(said)


# --- waiting for launches --------------------------------------------------------------------


def _bound(result: Launches, device: Mapping[str, Any]) -> str:
    much = device["waiting_frac"] >= _MUCH
    own = _of(result.stretches, device)
    synchronised = int(own["synchronised_ns"].sum()) / int(own["waiting_ns"].sum())
    after = f"; {format_frac(synchronised)} of that around synchronising calls" * (synchronised > 0)
    cure = _UNSYNCHRONISED if synchronised >= _MOST else _FASTER
    return (
        f"{'Launch-bound' if much else 'Launch-bound in part'}: {_whose(result, device)} runs out "
        f"of work again and again in {format_count(own.height, 'stretch', 'es')}, "
        f"{format_frac(device['stretch_frac'])} of the recorded time{_in_steps(result, device)}, "
        f"and in their gaps waits {format_ns(device['waiting_ns'])} "
        f"({format_frac(device['waiting_frac'])} of the time) for the host's next launch"
        f"{_mostly(_of(result.places, device))}{after}. That is the most that faster launching can "
        f"save; what may help is {cure}.{_others(result)}{_other_idleness(device)}"
    )


def _others(result: Launches) -> str:
    """How many devices are held up, where there are several."""
    devices = result.devices
    if devices.height == 1:
        return ""
    held = devices.filter(pl.col("waiting_frac") >= _SOME).height
    return f" {held} of {devices.height} devices are held up so, this one for longest."


def _other_idleness(device: Mapping[str, Any]) -> str:
    """Idleness that is no matter of launching, where it is more."""
    other = 1 - device["busy_frac"] - device["waiting_frac"]
    if other < max(_IDLE, device["waiting_frac"]):
        return ""
    return f" It is idle for {format_frac(other)} of the time for other reasons: gpu-idle tells."


def _in_steps(result: Launches, device: Mapping[str, Any]) -> str:
    steps = _of(result.steps, device)
    held = steps.filter(pl.col("waiting_frac") >= _SOME)
    if held.is_empty():
        return ""
    if held.height == steps.height:
        return f", in all {steps.height} steps" if steps.height > 1 else ""
    return f", in {held.height} of {steps.height} steps"


def _mostly(places: pl.DataFrame) -> str:
    """The range or operator whose launches were waited for most."""
    named = places.drop_nulls("place")
    if named.is_empty():
        return ""
    share = int(named["waiting_ns"][0]) / int(places["waiting_ns"].sum())
    return f", {format_frac(share)} of it in {named['place'][0]}"


def _not_bound(result: Launches, device: Mapping[str, Any]) -> str:
    waits = device["waiting_frac"] or 0
    said = (
        f"{_whose(result, device)} waits for the host's next launch in {format_frac(waits)} of the "
        "recorded time"
        if waits
        else "no device runs out of work again and again for want of launches"
    )
    idlest = result.devices.sort("idle_ns", *DEVICE, descending=[True] + [False] * 3)
    idle = idlest.row(0, named=True)
    free = 1 - (1 if idle["busy_frac"] is None else idle["busy_frac"])
    time = "it" if waits else "the recorded time"
    other = (
        f", though {_whose(result, idle)} is idle in {_nearly(free)} of {time}: gpu-idle tells why"
        if free - (idle["waiting_frac"] or 0) >= _IDLE
        else ""
    )
    return f"Not launch-bound: {said}{other}."


def _nearly(frac: float) -> str:
    """A share; one that is less than all is not told as all of it."""
    told = format_frac(frac)
    return "more than 99.9 %" if frac < 1 and told == format_frac(1) else told


def _delays(result: Launches, device: Mapping[str, Any]) -> str:
    if device["median_delay_ns"] is None:
        return ""
    n, delay, waited = (device[key] for key in ("launches", "median_delay_ns", "waited_frac"))
    of_which = "" if result.devices.height == 1 else f" of {device['on']}"
    if n == 1:
        whose = f"The one launch{of_which}" if of_which else "Its one launch"
        queued = " It was queued behind earlier work, which is no fault." * (waited > 0)
        return f"{whose} started {format_ns(delay)} after its call.{queued}"
    launches = f"the {n:,} launches{of_which}" if of_which else f"its {n:,} launches"
    queued = (
        f" {format_frac(waited)} of them were queued behind earlier work, which is no fault."
        if waited >= _SOME
        else ""
    )
    return (
        f"Half of {launches} started within {format_ns(delay)} of their call, 99 % within "
        f"{format_ns(device['p99_delay_ns'])}.{queued}"
    )


def _short(device: Mapping[str, Any]) -> str:
    if (device["short_frac"] or 0) < _MOST:
        return ""
    return (
        f"{format_frac(device['short_frac'])} of its kernels are shorter than "
        f"{format_ns(SHORT_KERNEL_NS)}, while a launch call takes "
        f"{format_ns(device['median_call_ns'])} (median)."
    )


def _loading(result: Launches) -> str:
    """Why the first launches are slow."""
    if not result.loading_calls:
        return ""
    return (
        f"Module loading slows down {result.loading_calls:,} of "
        f"{format_count(result.slow_calls, 'launch call')} over 50 us "
        f"({format_ns(result.loading_ns)} in total): CUDA loads the code of a kernel at its first "
        "launch. Warm-up steps, or CUDA_MODULE_LOADING=EAGER, load it before the part that counts."
    )


# --- synchronising ---------------------------------------------------------------------------


def _synchronising(result: Launches) -> str:
    found = result.synchronising
    idle = result.synchronising_idle_ns + result.synchronising_after_ns
    if found.is_empty():
        return ""
    counted = format_count(int(found["n"].sum()), "synchronising call")
    if idle < _WORTH * result.span_ns:
        leave = "leaves" if found["n"].sum() == 1 else "leave"
        return f"{counted} {leave} the devices idle for {format_ns(idle)} in all."
    worst = found.row(0, named=True)
    where = worst["operator"] or worst["annotation"] or worst["python"]
    place = f" in {where}" if where else ""
    return (
        f"In {counted} the host spent {format_ns(result.synchronising_ns)}; devices were idle for "
        f"{format_ns(result.synchronising_idle_ns)} of it, and for "
        f"{format_ns(result.synchronising_after_ns)} after it until there was work again. "
        f"{format_ns(worst['idle_ns'] + worst['idle_after_ns'])} of that idleness is at "
        f"{worst['call']}{place}, {format_count(worst['n'], 'time')}."
    )


# --- words -----------------------------------------------------------------------------------


def _of(frame: pl.DataFrame, device: Mapping[str, Any]) -> pl.DataFrame:
    return frame.filter(*(pl.col(name).eq_missing(device[name]) for name in DEVICE))


def _whose(result: Launches, device: Mapping[str, Any]) -> str:
    """``the device``, or which of several."""
    return "the device" if result.devices.height == 1 else str(device["on"])


# --- tables --------------------------------------------------------------------------------


def _tables(result: Launches) -> tuple[Table, ...]:
    """Devices, stretches, synchronising calls, streams, launch calls, short kernels; details."""
    graphs = "Launch calls that started several pieces of work"
    return (
        _table(result, "devices", "Devices"),
        _table(result, "stretches", "Stretches in which a device ran out of work again and again"),
        _table(result, "synchronising", "Calls in which the host waits for the device"),
        _table(result, "streams", "Launches waiting in each stream"),
        _table(result, "calls", "Launch calls"),
        *([_table(result, "graphs", graphs)] if result.graphs.height else []),
        _table(result, "short", "Kernels shorter than 10 us"),
        _table(
            result, "operators", "Launches by operator", detail=True, missing={"operator": "(none)"}
        ),
        _table(result, "steps", "Steps", detail=True, empty="no steps are marked"),
    )


def _table(result: Launches, name: str, title: str, **more: Any) -> Table:
    """One table; what tells devices or ranks apart only where there are several devices."""
    left_out = [] if result.devices.height > 1 or name == "devices" else ["on", "ranks"]
    left_out += [] if result.loading_calls else ["loading_calls"]
    labels = headings(_COLUMNS[name])
    columns = {key: label for key, label in labels.items() if key not in left_out}
    return table_of_known(name, title, getattr(result, name), columns, **more)


# --- charts --------------------------------------------------------------------------------


def _queues(result: Launches) -> Chart:
    key = [*DEVICE, "process", "stream"]
    chosen = result.streams.head(_STREAMS).select(*key).with_row_index("_order")
    rows = result.queue.join(chosen, on=key, nulls_equal=True, maintain_order="left")
    frame = rows.sort("_order", maintain_order=True)
    label = pl.format("stream {}", "stream")
    if result.streams["process"].n_unique() > 1:
        label = pl.format("process {}, {}", "process", label)
    if result.devices.height > 1:
        label = pl.format("{}, {}", "on", label)
    more = result.streams.height - chosen.height
    busiest = f" (the {chosen.height} streams with most launches)" if more else ""
    return Chart(
        "queue",
        f"Launches waiting in each stream{busiest}",
        "line",
        frame.select("at_ns", "length", label.alias("queue")),
        x="at_ns",
        y="length",
        x_label="time since the first launch",
        y_label="launches in the queue",
        panel="queue",
    )


def _delay_classes(result: Launches) -> Chart:
    words = (
        pl.when("waited").then(pl.lit("earlier work of its stream")).otherwise(pl.lit("nothing"))
    )
    return stacked(
        "delays",
        "Delay from launch call to start, by what was before it",
        result.delays.with_columns(words.alias("waited_for")),
        "delay",
        y="n",
        x_label="delay: from this up to the next",
        y_label="launches",
        color="waited_for",
    )
