"""The idle time of all ranks by cause, and its display."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import polars as pl

from traceanalyzer.analyzers.common import display, kernel_names
from traceanalyzer.analyzers.common.columns import ratio
from traceanalyzer.analyzers.common.display import Basis, headings, known_columns, stacked
from traceanalyzer.analyzers.common.gpu_api import Api
from traceanalyzer.analyzers.common.step_marks import INFERRED_STEPS, STEP
from traceanalyzer.analyzers.common.waits import DATA, QUEUE, SLEEPS
from traceanalyzer.analyzers.gpu_idle import Options, activities, causes, gaps as losing
from traceanalyzer.analyzers.gpu_idle.activities import Activity, main_place
from traceanalyzer.analyzers.gpu_idle.host import HostTime
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View, memoized
from traceanalyzer.units import format_first, format_frac, format_ns
from traceanalyzer.vocabulary import allocates_host

#: Share of the time below which no action is needed.
_LITTLE = 0.05

#: For a truncated file with device work.
TRUNCATED = (
    "A file is truncated: the time after its last recorded GPU work does not count. If work is "
    "missing before that, idle time is too high."
)

#: Slices and calls named in texts.
_NAMED = 2

#: Columns that identify units.
_UNIT = ("rank", "path", "device", "pid")

_KEY = headings("rank, file, device, pid: process")

#: Columns of times that are left out if they are 0.
_OF_LOADER = ("dataloading_ns", "dataloading_frac", "loader_ns", "overlapped_loader_ns")
_IF_NONZERO = ("exposed_communication_ns", "batch_copy_ns", *_OF_LOADER)

#: Columns of gaps.
_GAPS = headings(
    "at_ns: start, gap_ns: gap, step, why: main cause, activity: host activity, "
    "own_code: own code, range: annotation, sampled: sampled most, waits_for: stream waits for, "
    "kernel_before: kernel before, kernel_after: kernel after"
)


@dataclass(frozen=True, eq=False, repr=False)
class GpuIdle(Result):
    """Idle time of each device by cause.

    Attributes:
        options: the options: ``by``, ``min_gap_ns`` (shorter gaps are ``short_gap``), ...
        coverage: what was recorded.
        program: its GPU API and framework; ``pytorch``: operators or kernels of it were recorded.
        host: data loading and file access on the host.
        units: one row per device (or process on a device, or main thread): rank, path, device, pid,
            start, end, ``busy_ns`` and a column per cause (``dataloading_ns`` ...), which add up to
            end - start; ``loader_ns`` and ``copy_ns``, the time of the loader and of the copies of
            batches, overlapped or not, and ``overlapped_loader_ns``, that of the loader while the
            device was busy.
        causes: one row per cause of each unit: rank, path, device, pid, cause, ``gaps``
            (intervals), ``idle_ns``, ``longest_ns``; no row for causes that do not occur.
        lost: all idle time, exposed communication and exposed copies as intervals: rank, path,
            device, pid, start, end, cause (``exposed_communication``, ``exposed_copies`` or a cause
            of idle time; copies of checkpoints are checkpoint_io). From 100,000 intervals of a
            rank on, short ones of one cause between two long ones are one row, see
            :func:`~.gaps.merged`. Only in a diagnosis or report, otherwise None.
        steps: one row per step of each unit: rank, path, device, pid, step, start, end,
            ``at_ns`` (start on the axis), the columns of times of ``units`` for the step on the
            device, see :func:`~traceanalyzer.analyzers.common.device_steps.device_steps`, and
            ``exposed_communication_ns`` (communication without compute, part of ``busy_ns``);
            ``warm_up``: not counted in any cost per step.
        gaps: the longest gaps, at most 200 per rank: rank, path, device, pid, start, end,
            ``at_ns`` (start on the axis), step, cause (of most of it), ``cause_ns``, before and
            after (device work on either side), first_run (a kernel follows that did not run
            before), waits_for (the call that makes the stream of the next work wait), sampled (the
            most frequent leaf function sampled in it), sampled_frac, host_event, python, own_code
            and annotation (innermost slices that ran for half of it or more), called (the frame
            that own_code calls), phase (the innermost annotation that launches work), innermost (of
            all of them), rival (a Python thread that holds the interpreter lock in most of it).
        gap_count: number of gaps that are not shorter than ``options.min_gap_ns``.
        one_clock: all ranks are on one axis, which begins with the first event of the first file:
            by absolute times, in a report also corrected by the ends of collectives. Otherwise the
            axis of each rank begins with its first event.
        whole: the result by device if units are processes: sums and shares are of devices.
    """

    options: Options
    coverage: losing.Coverage
    program: Api
    host: HostTime
    units: pl.DataFrame
    causes: pl.DataFrame
    lost: pl.DataFrame | None
    steps: pl.DataFrame
    gaps: pl.DataFrame
    gap_count: int
    one_clock: bool
    whole: GpuIdle | None = None

    @property
    def by_device(self) -> GpuIdle:
        """The result in which a GPU shared by processes is one unit."""
        return self.whole or self

    @cached_property
    def span_ns(self) -> int:
        """Sum of the devices' spans."""
        units = self.by_device.units
        return int((units["end"] - units["start"]).sum())

    @cached_property
    def busy_ns(self) -> int:
        """Sum of the devices' busy time."""
        return int(self.by_device.units[f"{causes.BUSY}_ns"].sum())

    @property
    def idle_ns(self) -> int:
        """Sum of the devices' idle time: span - busy."""
        return self.span_ns - self.busy_ns

    @cached_property
    def idle_by_cause(self) -> Mapping[str, int]:
        """Idle time of each cause in ns, summed over devices; adds up to ``idle_ns``."""
        units = self.by_device.units
        return {cause: int(units[f"{cause}_ns"].sum()) for cause in causes.CAUSES}

    @cached_property
    def counted_steps(self) -> pl.DataFrame:
        """The steps without warm-up."""
        return self.steps.filter(~pl.col("warm_up"))

    @cached_property
    def counted(self) -> pl.DataFrame:
        """The counted steps of each device; its whole time without steps."""
        steps = self.by_device.counted_steps
        return steps if steps.height else self.by_device.units

    @cached_property
    def basis(self) -> Basis:
        """The time of which costs are shares: of the counted steps."""
        whole = int((self.counted["end"] - self.counted["start"]).sum())
        steps = bool(self.by_device.counted_steps.height)
        return Basis(whole, self.counted.height, steps, self.coverage.on_host)

    @cached_property
    def counted_by_cause(self) -> Mapping[str, int]:
        """Idle time of each cause in the counted steps in ns, summed over devices."""
        return {cause: int(self.counted[f"{cause}_ns"].sum()) for cause in causes.CAUSES}

    @property
    def step_ns(self) -> int:
        """Time of all steps without warm-up, summed over devices; 0 without steps."""
        return self.basis.whole_ns if self.basis.in_steps else 0

    @property
    def step_idle_frac(self) -> float | None:
        """Idle share of step time; of the recorded time without steps; None if that is 0."""
        return self.basis.frac(sum(self.counted_by_cause.values())) if self.basis.whole_ns else None

    @property
    def step_dataloading_frac(self) -> float | None:
        """Share of step time in which devices waited for the data loader."""
        waited = self.counted_by_cause[causes.DATALOADING]
        return self.basis.frac(waited) if self.step_ns else None

    @memoized
    def of_cause(self, cause: str) -> pl.DataFrame:
        """Return the longest gaps with this main cause: those in steps, if any."""
        rows = self.gaps.filter(pl.col("cause").cast(pl.String) == cause)
        in_steps = rows.drop_nulls("step") if self.coverage.on_host or self.step_ns else rows
        return in_steps if in_steps.height else rows

    def waiting(self, cause: str) -> str:
        """Return the cause in a sentence, with the calls that read files if they are most of it."""
        if cause == causes.LAUNCH and self.program.blocking:
            return self.program.named(causes.BLOCKING)
        if cause == causes.LAUNCH and self.pauses_of(cause)[1]:
            return activities.doing(self.activity(cause), on_host=False)
        if cause == causes.LAUNCH and (slow := self.slow_operator[0]):
            return f"waiting while the host is in {slow} before its launch"
        if cause == causes.SHORT_GAP and self.coverage.on_host:
            return causes.BETWEEN_OPERATORS
        between = {causes.SHORT_GAP: self.program.replays}
        if (between | {causes.DEVICE_WAIT: self.coverage.graph_gaps}).get(cause):
            return causes.GRAPH_GAPS
        if cause == causes.MEMORY_MANAGEMENT and self.allocates_on_host:
            return "waiting while the host allocates or pins host memory"
        if cause == causes.API_CALLS and (call := self.activity(cause).text):
            return f"waiting while the host is in {call}"
        in_own_code = cause == causes.DATALOADING and not self.has_loader
        if in_own_code and (place := self.activity(cause).text):
            return f"waiting for data in {place}"
        if cause == causes.HOST_CODE or self._on_cpu(cause):
            one, known = self.activity(cause), self.coverage
            return activities.doing(one, on_host=known.on_host, stacks=known.stacks_known)
        if cause == causes.CHECKPOINT_IO and self.reads:
            return f"waiting while the host reads files or other input ({', '.join(self.reads)})"
        return causes.WAITING[cause]

    def state(self, cause: str) -> str:
        """Return the cause as a clause: ``idle, waiting for ...``, ``runs Python outside ...``."""
        return activities.clause(self.waiting(cause))

    @cached_property
    def names(self) -> dict[str, str]:
        """Names of the causes in tables and bars: host code with the place of most of it."""
        code, on_host = causes.HOST_CODE, self.coverage.on_host
        name = activities.heading(self.activity(code), on_host=on_host)
        is_most = 2 * self.of_cause(code)["cause_ns"].sum() >= self.idle_by_cause[code]
        names = causes.NAMES | ({code: name} if name and is_most else {})
        late = activities.heading(self.activity(causes.LAUNCH), on_host=on_host)
        return names | ({causes.LAUNCH: late} if self.pauses_of(causes.LAUNCH)[1] else {})

    @memoized
    def activity(self, cause: str) -> Activity:
        """Return what the host does in most of the time of the gaps with this main cause."""
        pauses, by = self.pauses_of(cause)
        known = pauses if cause == causes.HOST_CODE or pauses.height else None
        return activities.of_gaps(self.of_cause(cause), known, by)

    def pauses_of(self, cause: str) -> tuple[pl.DataFrame, str]:
        """Return single long gaps of a cause at any place, and what probably makes them."""
        rows, by = self.stops
        rows = rows.filter(pl.col("cause").cast(pl.String) == cause)
        most = activities.MOSTLY * int(self.of_cause(cause)["cause_ns"].sum())
        rows = rows if rows["cause_ns"].sum() >= most else rows.clear()
        is_code = cause == causes.HOST_CODE and rows.is_empty()
        return (self.pauses, activities.COLLECTOR) if is_code else (rows, by * (rows.height > 0))

    @cached_property
    def stops(self) -> tuple[pl.DataFrame, str]:
        """Pauses in which the operating system stops the host, see :func:`~.activities.stops`."""
        gaps = pl.concat(map(self.of_cause, causes.STOPPED))
        steps = self.by_device.counted_steps
        return activities.stops(gaps, steps, one_clock=self.one_clock)

    @cached_property
    def slow_operator(self) -> tuple[str, str]:
        """The operator that makes launches late, and advice; empty texts if there is none."""
        if self.program.slow_host or self.stops[1]:
            return "", ""  # all of them take long
        return losing.slow_operator(self.of_cause(causes.LAUNCH))

    @cached_property
    def pauses(self) -> pl.DataFrame:
        """Single long gaps in host code at any place, see :func:`~.activities.pauses`."""
        whole, counted = self.counted_by_cause[causes.HOST_CODE], self.by_device.counted_steps
        return activities.pauses(self.of_cause(causes.HOST_CODE), counted, whole)

    def _on_cpu(self, cause: str) -> bool:
        """Whether the host waited for the device to compute on the CPU: an optimizer step."""
        known = cause == causes.SYNCHRONISATION and self.coverage.launches_known
        return known and self.activity(cause).steps_on_cpu

    def is_once(self, cause: str) -> bool:
        """Whether setup has nearly all of its time in few gaps of each device, without steps.

        Late launches are setup if kernels follow that did not run before.
        """
        is_late = cause == causes.LAUNCH
        gaps = self.few_late.filter("first_run") if is_late else self.of_cause(cause)
        longest = pl.col("cause_ns").top_k(causes.SETUP_GAPS.get(cause, 0))
        rows = gaps.group_by("rank", "path", "device").agg(longest.sum())
        few = int(rows["cause_ns"].sum()) * (not self.basis.in_steps)
        return few >= max(causes.SETUP_FRAC * self.idle_by_cause[cause], 1)

    @cached_property
    def few_late(self) -> pl.DataFrame:
        """The few late launches with nearly all launch overhead, see :func:`~.gaps.few_late`."""
        rows = self.of_cause(causes.LAUNCH).filter(not self.pauses_of(causes.LAUNCH)[1])
        return losing.few_late(rows, self.by_device.causes, self.counted)

    def of_rank(self, rank: int | None) -> GpuIdle:
        """Return the result with the longest gaps of one rank; of all ranks for None."""
        rows = self.gaps if rank is None else self.gaps.filter(rank=rank)
        return replace(self, gaps=rows) if 0 < rows.height < self.gaps.height else self

    @property
    def allocates_on_host(self) -> bool:
        """Whether most of memory management is of host memory."""
        return allocates_host(self.activity(causes.MEMORY_MANAGEMENT).place)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The calls with most time that read files, if they are half of checkpoints and files."""
        calls = self.by_device.host.file_calls.filter(pl.col("name").str.contains(causes.READS))
        is_most = 2 * calls["idle_ns"].sum() > self.idle_by_cause[causes.CHECKPOINT_IO]
        return tuple(calls["name"].head(_NAMED)) if is_most else ()

    def advice(self, cause: str) -> str:
        """Return the advice for a cause of idle time, by what the host does in its gaps."""
        program, coverage = self.program, self.coverage
        if text := self._of_recorded(cause):
            return program.named(text)
        one = self.activity(cause)
        if cause == causes.HOST_CODE:
            code = "" if coverage.stacks_known else coverage.hints["other code"]
            if not program.pytorch:
                code = code.replace("with_stack=True", "with_stack=True (PyTorch)")
            on_host = coverage.on_host
            text = activities.advice_on_host_code(one, program, code=code, on_host=on_host)
            by_design = (one.wait in (DATA, QUEUE, SLEEPS) or not one.text) and not program.trains
            return text + causes.PERHAPS_REQUESTS * by_design
        if cause == causes.SYNCHRONISATION:
            most = self.waited
            one = replace(one, frame=most["frame"], range=most["range"])
            calls = most["call"], most["operator"]
            text = activities.advice_on_synchronisation(one, *calls, pytorch=program.pytorch)
            unknown = program.pytorch and not (coverage.stacks_known or one.where)
            text += f" A{coverage.hints['other code'][1:]} shows where." * bool(unknown and text)
        if cause == causes.MEMORY_MANAGEMENT:
            text = self.freeing[1]
        if cause == causes.GRAPH_BUILDING and program.pytorch:
            text = causes.RECORD_ONCE
        if cause == causes.DEVICE_WAIT:
            text = activities.advice_on_stream_wait(self.of_cause(cause))
        if cause == causes.DATALOADING and not self.has_loader:
            text = activities.advice_on_data(one, loader=program.pytorch and program.trains)
        if cause == causes.CHECKPOINT_IO:
            stages = one.called if "async_save" in one.called else ""
            place = stages or one.frame or one.range or one.place
            text = activities.advice_on_files(place, pytorch=program.pytorch)
        if cause == causes.PEER:
            alone = causes.ALONE * (self.units["rank"].n_unique() < 2)
            text = self._straggler() or alone or activities.GPU_AWARE * one.stages_for_mpi
        if cause == causes.LAUNCH:
            text = activities.advice_on_launches(one, one.range or one.place, self.launched)
        code = coverage.hints["device work"]
        return program.named(text or causes.advice(cause, program, code=code))

    @cached_property
    def launched(self) -> str:
        """The device work after late launches, in half of their time; empty if it differs.

        Gaps that are too short to be recorded one by one count as others.
        """
        name, ns, _ = main_place(self.of_cause(causes.LAUNCH), "after")
        return name if 2 * ns >= self.idle_by_cause[causes.LAUNCH] else ""

    @cached_property
    def waited(self) -> dict[str, str]:
        """Where the host waits for the device, see :func:`~.gaps.mostly`."""
        return losing.mostly(self.by_device.host.waits)

    @cached_property
    def freeing(self) -> tuple[str, str]:
        """Where the program frees device memory, and advice, see :func:`~.activities.freeing`."""
        return activities.freeing(self.of_cause(causes.MEMORY_MANAGEMENT))

    def _straggler(self) -> str:
        """Return advice on the rank that waits much less for others; empty if none does."""
        names = [f"{cause}_ns" for cause in causes.CAUSES]
        sums = self.counted.drop_nulls("rank").group_by("rank").agg(pl.col(names).sum())
        rows = sums.sort(f"{causes.PEER}_ns", "rank").rows(named=True)
        waits = [row.pop(f"{causes.PEER}_ns") for row in rows]
        if len(rows) < 2 or 2 * waits[0] > waits[1]:
            return ""
        rank, cause = rows[0].pop("rank"), max(rows[0], key=lambda name: rows[0][name])[:-3]
        text = self.of_rank(rank).activity(cause).text if cause == causes.HOST_CODE else ""
        return (
            f"Rank {rank} waits least, so the others probably wait for it; the largest cause there "
            f"is {text or causes.NAMES[cause]}."
        )

    @cached_property
    def has_loader(self) -> bool:
        """Whether most of data loading is in a loader or range, not in functions named so."""
        rows, name = self.host.loader, pl.col("name").str
        of_loader = name.contains("(?i)loader") | ~name.contains(r"\.py\(\d+\): ")
        longest = rows["total_ns"].sort(descending=True).head(1).sum()
        return bool(2 * rows.filter(of_loader)["total_ns"].sum() >= longest)

    def _of_recorded(self, cause: str) -> str:
        """Return advice by what was recorded besides gaps; empty if none fits."""
        program, host, on_host = self.program, self.host, self.coverage.on_host
        lines = causes.READING_LINES * (self.by_device.host.long_line is not None)
        texts = {
            causes.DATALOADING: causes.TF_DATA * host.loads_tf_data
            or causes.IN_PROCESS * (host.loads_in_process and program.pytorch)
            or causes.PERSISTENT * host.starts_workers,
            causes.LAUNCH: causes.UNBLOCK * program.blocking
            or causes.SLOW_HOST * (program.slow_host and not self.stops[1])
            or self.slow_operator[1]
            or losing.advice_on_few(self.few_late),
            causes.SHORT_GAP: causes.FEWER_OPERATORS * on_host
            or causes.FEWER_NODES * program.replays,
            causes.MEMORY_MANAGEMENT: causes.UNCACHED * program.uncached
            or (causes.HOST_MEMORY + causes.PIN_BATCHES * program.pytorch) * self.allocates_on_host
            or causes.KEEP_MAPPED * program.maps_memory
            or causes.KEEP_IN_POOL * ("Async" in self.activity(cause).place),
            causes.CHECKPOINT_IO: causes.READING.format(lines=lines) * bool(self.reads),
            causes.DEVICE_WAIT: causes.CHECK_GRAPH_GAPS * self.coverage.graph_gaps,
            causes.BATCH_COPY: causes.BATCH_COPY_PINNED * (host.copies_pinned and program.pytorch),
        }
        return texts.get(cause, "")

    def on_axis(self, shifts: pl.DataFrame, *, one_clock: bool) -> GpuIdle:
        """Return the result with the gaps on another axis, for example that of the timeline.

        Args:
            shifts: rank, path, device and shift (axis less clock of the file).
            one_clock: all ranks share that axis.
        """
        keys = ["rank", "path", "device"]
        placed = self.gaps.join(
            shifts.select(*keys, "shift"), keys, "left", nulls_equal=True, maintain_order="left"
        )
        at = pl.coalesce(pl.col("start") + pl.col("shift"), "at_ns").alias("at_ns")
        return replace(self, gaps=placed.with_columns(at).drop("shift"), one_clock=one_clock)

    def view(self) -> View:
        """Return causes, devices, steps, longest gaps; charts of idle time by cause and device."""
        title = f"Why is the {'main thread waiting' if self.coverage.on_host else 'GPU idle'}?"
        scalars = {
            **self.numbers("span_ns", "busy_ns", "idle_ns"),
            "idle_frac": self.idle_ns / self.span_ns if self.span_ns else None,
            "idle_ns_by_cause": dict(self.idle_by_cause),
            **self.numbers("step_ns", "step_idle_frac", "step_dataloading_frac"),
            "step_idle_ns_by_cause": dict(self.counted_by_cause) if self.step_ns else None,
            **{name: int(self.by_device.units[name].sum()) for name in _OF_LOADER[2:]},
            "gap_count": self.by_device.gap_count,
        }
        return self.view_from(_verdict, _notes, _tables, _charts, title=title, scalars=scalars)


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: GpuIdle) -> str:
    """Return the idle time, its largest cause, the cost of the loader, and advice."""
    if not result.span_ns:
        return "The recorded time is 0."
    basis, by_cause = result.basis, result.counted_by_cause
    idle = sum(by_cause.values())
    is_cut_off = result.coverage.work_lost and not result.coverage.on_host
    text = [f"{_who(result)} {basis.share(idle)}{_outside(result)}.", *[TRUNCATED] * is_cut_off]
    cause, lost = max(by_cause.items(), key=lambda item: item[1])
    if lost:
        more = _elsewhere(result.of_cause(cause)) * (cause == causes.HOST_CODE)
        text.append(f"The largest part is {result.waiting(cause)}: {_share(lost, basis)}{more}.")
    if basis.frac(lost) >= _LITTLE and cause != causes.UNKNOWN:
        once = result.is_once(cause)
        text.append(causes.ONCE[result.program.pytorch] if once else result.advice(cause))
    elif basis.frac(idle) < _LITTLE:
        more = "operators" if result.coverage.on_host else "kernels and overlap"
        text.append(f"Reducing idle time would gain little; see {more}.")
    return " ".join([*text, *_worst(result), *files_accessed(result), *_loading(result, cause)])


def _elsewhere(gaps: pl.DataFrame) -> str:
    """Return the share of host code outside of the place of most of it as a phrase."""
    part = activities.main_place(gaps)[1] / max(int(gaps["cause_ns"].sum()), 1)
    return f", {format_frac(1 - part)} of it in other code" if 0 < part < 1 - _LITTLE else ""


def _outside(result: GpuIdle) -> str:
    """Return the idle time in warm-up and outside steps as a phrase, if it is much."""
    outside = result.idle_ns - sum(result.counted_by_cause.values())
    if not result.basis.in_steps or outside < _LITTLE * result.span_ns:
        return ""
    idle, counted = result.idle_by_cause, result.counted_by_cause
    cause = result.names[max(idle, key=lambda name: idle[name] - counted[name])]
    return f". Warm-up and time outside steps add {format_ns(outside)} in total, mostly {cause}"


def _who(result: GpuIdle) -> str:
    if result.coverage.on_host:
        why = "No GPU work was recorded"
        if result.coverage.work_lost:
            why = "No GPU work is in the file (it is truncated, or the kernels were not recorded)"
        return f"{why}, so the main thread is analysed: it runs no operator for"
    devices = display.count_devices(result.units)
    return "The GPU is idle for" if devices == 1 else f"The {devices} GPUs are idle for"


def _worst(result: GpuIdle) -> list[str]:
    """Report the unit with the longest idle time if that is twice the median or more."""
    keys = ["rank", "path", "device"]
    length = pl.col("end") - pl.col("start")
    idle = (length - pl.col(f"{causes.BUSY}_ns")).mean().alias("idle_ns")
    units = result.counted.group_by(keys, maintain_order=True).agg(idle)
    units = units.sort("idle_ns", *keys, descending=[True] + [False] * 3)
    usual, worst = units["idle_ns"].median(), units.row(0, named=True)
    if not isinstance(usual, float) or (worst["idle_ns"] or 0) < max(2 * usual, 1):
        return []
    who = display.at_start(display.places(units)[0])
    per = " per step" * result.basis.in_steps
    longest, median = format_ns(round(worst["idle_ns"])), format_ns(round(usual))
    return [f"{who} stands out: idle for {longest}{per} (median {median})."]


def files_accessed(result: GpuIdle) -> list[str]:
    """Report the file calls of the host while the device is idle, if they take long.

    A call that reads a line returns after one block of a file.
    """
    host = result.by_device.host
    calls = host.file_calls
    total = int(calls.filter(pl.col("name").is_null())["idle_ns"].sum())
    if total < _LITTLE * result.span_ns or not total:
        return []
    named = calls.drop_nulls("name").head(_NAMED)[["name", "idle_ns"]].iter_rows()
    each = ", ".join(f"{name} {format_ns(idle_ns)}" for name, idle_ns in named)
    whole = f"{format_ns(total)}, {format_frac(total / result.span_ns)} of the time"
    text = f"The host is in file calls (OS runtime) for {whole}: {each}."
    line = f"One call of {host.long_line}: it waits for a terminal or pipe, not a file."
    return [text, *[line] * (host.long_line is not None)]


def _share(part: int, basis: Basis) -> str:
    return f"{format_ns(basis.each_ns(part))} ({format_frac(basis.frac(part))})"


def _loading(result: GpuIdle, largest: str) -> list[str]:
    """Report the share of the time spent waiting for the loader, if it is not the largest part."""
    waited, basis = result.counted_by_cause[causes.DATALOADING], result.basis
    if not result.units["loader_ns"].sum() or largest == causes.DATALOADING:
        return []
    who = "main thread" if result.coverage.on_host else "GPU"
    share = f"{format_frac(basis.frac(waited))} of {basis.of}"
    if basis.frac(waited) < _KEEPS_UP:
        return [f"The data loader keeps up: the {who} spends {share} waiting for it."]
    waits = f"The {who} spends {share} waiting for the data loader."
    if basis.frac(waited) < _LITTLE:
        return [waits]
    return [f"{waits} {result.advice(causes.DATALOADING)}"]


#: Below this share of the time spent waiting for it, a data loader keeps up.
_KEEPS_UP = 0.01


def _notes(result: GpuIdle) -> Iterator[str]:
    """Return notes on definitions and missing data."""
    recording = result.coverage.hints["device work"]
    waited = result.idle_by_cause[causes.DATALOADING]
    units = result.by_device.units
    loader, overlapped = (int(units[name].sum()) for name in ("loader_ns", "overlapped_loader_ns"))
    if loader:
        busy = f", {format_ns(overlapped)} of it while the GPU was busy" if overlapped else ""
        yield f"The data loader took {format_ns(loader)}{busy}."
    if waited and units["rank"].n_unique() > 1:
        yield "Idle time is that of each device; diagnose adds the waits of other ranks for it."
    copies = int(units["copy_ns"].sum())
    if copies:
        yield f"Copying data to the GPU took {format_ns(copies)} on the host."
    if result.coverage.on_host:
        yield (
            "The file has no GPU kernels: busy is the time of the main thread, and of the autograd "
            "thread that it waits for, in operators outside data loading. For the idle time of "
            f"the GPU {recording}."
        )
    elif not result.coverage.host_known:
        yield f"No host activity was recorded, so causes are unknown; {recording}."
    elif not result.coverage.launches_known:
        yield (
            "Device work could not be joined to launch calls: causes are taken from all threads "
            f"that launch or run operators; {recording}."
        )
    yield from _step_notes(result)
    loaders = result.host.loader["name"]
    if loaders.len() and waited:
        names = format_first(loaders.to_list(), _NAMED)
        yield f"Counted as data loading: {names}. --dataloader REGEX selects others."
    if not result.coverage.on_host:
        yield (
            "The span of a device is from its first work to its last, extended to the marked "
            "steps; `kernels` and `overlap` measure from the first work to the last."
        )
    if not result.one_clock:
        yield (
            "The ranks have no common clock (no absolute times, or recordings of different times): "
            "the starts of gaps count from the start of each rank."
        )
    if result.whole:
        yield (
            "The verdict and the causes count a GPU shared by processes once; the rows of "
            "processes add up to more."
        )
    yield from _gap_notes(result)


def _gap_notes(result: GpuIdle) -> Iterator[str]:
    short = result.by_device.causes.filter(pl.col("cause") == causes.SHORT_GAP)["gaps"].sum()
    if short:
        least = format_ns(result.options.min_gap_ns)
        yield f"Short gaps: {short:,} gaps below {least} (--min-gap), except before late launches."
    if _is_in_parts(result):
        yield (
            "A gap can have several causes, one after another: `gaps` and `longest` of a cause "
            "count its parts of gaps; the longest gaps are whole, with the cause of most of each."
        )


def _is_in_parts(result: GpuIdle) -> bool:
    """Whether the longest gap is much longer than any part of gaps with its main cause."""
    for start, end, cause in result.gaps.head(1).select("start", "end", "cause").iter_rows():
        parts = result.causes.filter(pl.col("cause").cast(pl.String) == cause)["longest_ns"]
        return bool(((end - start) > _MUCH_LONGER * parts).all())
    return False


#: From this multiple on, a gap is much longer than its parts.
_MUCH_LONGER = 1.5


def _step_notes(result: GpuIdle) -> Iterator[str]:
    warm_up = result.steps.filter("warm_up")["step"].unique(maintain_order=True)
    if warm_up.len():
        yield f"Costs per step do not count warm-up: {', '.join(warm_up.head(_NAMED))}."
    if result.coverage.steps_by_kernels:
        yield INFERRED_STEPS
    elif not result.steps.height:
        marking = result.coverage.hints["step"]
        yield (
            f"No steps are marked: shares are of the span. For shares of steps {marking}, or "
            "select other slices with --step-name."
            + " `steps --step-every REGEX` begins a step at each matching kernel."
            * (not result.coverage.on_host)
        )


# --- tables --------------------------------------------------------------------------------


def _tables(result: GpuIdle) -> tuple[Table, ...]:
    """Return causes, units, steps and longest gaps; with ``by="step"`` steps come first."""
    tables = [_causes(result), _units(result), _steps(result), _gaps(result)]
    if result.options.by == "step":
        tables.insert(0, tables.pop(2))
    return tuple(tables)


def _causes(result: GpuIdle) -> Table:
    summed = result.by_device.causes.group_by("cause").agg(
        pl.col("gaps", "idle_ns").sum(), pl.col("longest_ns").max()
    )
    frame = summed.with_columns(
        why=pl.col("cause").cast(pl.String).replace_strict(result.names),
        idle_frac=pl.col("idle_ns") / max(result.idle_ns, 1),
        span_frac=pl.col("idle_ns") / max(result.span_ns, 1),
    )
    columns = headings(
        "why: cause, idle_ns: idle, span_frac: share of time, idle_frac: share of idle, gaps, "
        "longest_ns: longest"
    )
    order = "idle_ns"
    if result.basis.in_steps:
        counted = pl.col("cause").cast(pl.String).replace_strict(result.counted_by_cause)
        frame = frame.with_columns(
            each_ns=(counted / result.basis.n).round().cast(pl.Int64),
            step_frac=counted / (result.basis.whole_ns or None),
        )
        columns = headings(
            f"why: cause, each_ns: per {result.basis.per or 'step'}, step_frac: of step time, "
            "idle_ns: in total, gaps, longest_ns: longest"
        )
        order = "each_ns"
    frame = frame.sort(order, "idle_ns", "why", descending=[True, True, False])
    waiting = "Waiting" if result.coverage.on_host else "Idle"
    ordered = frame.select("cause", "why", pl.exclude("cause", "why"))
    return Table("causes", f"{waiting} by cause", ordered, columns, empty="never idle")


def _units(result: GpuIdle) -> Table:
    frame = _with_idle(result.units, "span_ns", busy_frac=f"{causes.BUSY}_ns").with_columns(
        idle_frac=ratio("idle_ns", "span_ns")
    )
    columns = _nonzero(
        frame,
        "span_ns: span, busy_ns: busy, idle_ns: idle, idle_frac: idle, "
        "dataloading_ns: data loading, batch_copy_ns: batch copies, other_ns: other idle, "
        "loader_ns: loader time, overlapped_loader_ns: overlapped loader",
    )
    title = "Training threads" if result.coverage.on_host else "Devices, most idle first"
    frame = frame.sort("idle_frac", descending=True, nulls_last=True, maintain_order=True)
    return Table("units", title, frame, {**_identifying(result, frame), **columns})


def _steps(result: GpuIdle) -> Table:
    frame = _with_idle(result.steps, "step_ns", dataloading_frac=f"{causes.DATALOADING}_ns")
    columns = _nonzero(
        frame,
        "step, step_ns: step time, busy_ns: busy, exposed_communication_ns: exposed communication, "
        "dataloading_ns: data loading, dataloading_frac: data loading, "
        "batch_copy_ns: batch copies, other_ns: other idle, loader_ns: loader time",
    )
    if "loader_ns" in columns and frame["loader_ns"].equals(frame[f"{causes.DATALOADING}_ns"]):
        del columns["loader_ns"]
    title = "Steps"
    if result.units.height > 1:
        title += ", most idle first"
        frame = frame.sort("idle_ns", descending=True, maintain_order=True)
    if result.options.by == "step":
        columns.pop("other_ns", None)
        columns |= {
            f"{cause}_ns": causes.NAMES[cause]
            for cause in causes.CAUSES
            if cause not in (causes.DATALOADING, causes.BATCH_COPY) and result.idle_by_cause[cause]
        }
    empty = "no steps are marked"
    return Table("steps", title, frame, {**_identifying(result, frame), **columns}, empty=empty)


def _gaps(result: GpuIdle) -> Table:
    names = pl.concat([result.gaps["before"], result.gaps["after"]]).drop_nulls()
    short = kernel_names.short_names(names)
    frame = result.gaps.with_columns(
        file=_files(result.gaps),
        gap_ns=pl.col("end") - pl.col("start"),
        why=pl.col("cause").cast(pl.String).replace_strict(causes.NAMES),
        activity=activity(),
        range=pl.when(pl.col("annotation").ne_missing(activity())).then("annotation"),
        kernel_before=pl.col("before").replace(short),
        kernel_after=pl.col("after").replace(short),
    )
    title = "Longest waits" if result.coverage.on_host else "Longest gaps"
    empty = "none" if result.gap_count == 0 else "not analysed"
    columns = {**_identifying(result, frame), **(known_columns(frame, _GAPS) or _GAPS)}
    unimportant = "kernel_before", "kernel_after", "range", "sampled", "waits_for", "device", "file"
    hide_first = (*unimportant, "step", "own_code", "why", "gap_ns", "at_ns")
    return Table("gaps", title, frame, columns, empty=empty, hide_first=hide_first)


def _nonzero(frame: pl.DataFrame, text: str) -> dict[str, str]:
    """Return the columns of a text with their headings, without those that are 0.

    Idle time is all there is if none is data loading or copies of batches.
    """
    columns = known_columns(frame, headings(text), _IF_NONZERO) or headings(text)
    if not columns.keys() & {"dataloading_ns", "batch_copy_ns"}:
        columns.pop("other_ns", None)
        columns["idle_ns"] = "idle"
    return columns


def activity() -> pl.Expr:
    """Return the host event of a gap, or the innermost slice in it if the event is a range.

    Own code has another column, and a data loader is named by its range.
    """
    event, cause = pl.col("host_event"), pl.col("cause").cast(pl.String)
    is_step = (event == pl.col("step")) | (event == STEP)
    is_range = event.is_null() | (event == pl.col("annotation")) | is_step
    is_new = pl.col("innermost").ne_missing(pl.col("own_code"))
    inside = is_range & is_new & (cause != causes.DATALOADING)
    return pl.when(inside).then("innermost").otherwise("host_event")


def _with_idle(frame: pl.DataFrame, span_ns: str, **shares: str) -> pl.DataFrame:
    """Add file, span, idle time, and idle time other than data loading and batch copies.

    ``shares`` maps new columns to the columns that they are the share of the span of.
    """
    span = pl.col("end") - pl.col("start")
    idle = span - pl.col(f"{causes.BUSY}_ns")
    return frame.with_columns(
        _files(frame).alias("file"),
        span.alias(span_ns),
        idle.alias("idle_ns"),
        other_ns=idle - pl.col(f"{causes.DATALOADING}_ns") - pl.col(f"{causes.BATCH_COPY}_ns"),
        **{name: ratio(column, span) for name, column in shares.items()},
    )


def _files(frame: pl.DataFrame) -> pl.Series:
    return display.short_paths(frame["path"]) if frame.height else frame["path"]


def _identifying(result: GpuIdle, frame: pl.DataFrame) -> dict[str, str]:
    """Return the columns that identify units, if there are several."""
    if result.units.height < 2:
        return {}
    columns = known_columns(frame, _KEY)
    if display.identified_by_rank(result.units):
        columns.pop("file", None)
    return columns


# --- charts --------------------------------------------------------------------------------


def _charts(result: GpuIdle) -> tuple[Chart, ...]:
    """Return charts of idle time by cause per step, per device, and of the longest gaps."""
    return (
        *([_step_chart(result)] if result.steps.height else []),
        *([_unit_chart(result)] if result.units.height > 1 else []),
        _gap_chart(result),
    )


def _with_unit(result: GpuIdle, frame: pl.DataFrame) -> pl.DataFrame:
    """Add ``on``: the label of a unit."""
    units = pl.concat([result.units.select(_UNIT), frame.select(_UNIT)])
    labels = display.places(units).tail(frame.height)
    process = pl.format("{} process {}", labels, "pid")
    return frame.with_columns(on=pl.coalesce(process, labels))


def _colors(result: GpuIdle) -> pl.Enum:
    """Return the causes that occur, and busy: each has one colour in all charts."""
    occur = [causes.NAMES[cause] for cause, lost in result.idle_by_cause.items() if lost]
    return pl.Enum([*occur, causes.BUSY])


def _times(frame: pl.DataFrame, keep: list[str], colors: pl.Enum) -> pl.DataFrame:
    """Return a row per color, in order of ``colors``: ``keep``, ``cause`` and ``time_ns``."""
    columns = {f"{causes.BUSY}_ns": causes.BUSY} | {
        f"{cause}_ns": causes.NAMES[cause] for cause in causes.CAUSES
    }
    rows = frame.with_row_index("_row").unpivot(
        list(columns), index=["_row", *keep], variable_name="cause", value_name="time_ns"
    )
    cause = pl.col("cause").replace_strict(columns)
    rows = rows.with_columns(cause).filter(pl.col("cause").is_in(colors.categories.to_list()))
    return rows.with_columns(pl.col("cause").cast(colors)).sort("cause", "_row").drop("_row")


def _step_chart(result: GpuIdle) -> Chart:
    frame = _with_unit(result, result.steps)
    rows = _times(frame, ["step", "on"], _colors(result)).filter(pl.col("cause") != causes.BUSY)
    waiting = "Waiting" if result.coverage.on_host else "Idle"
    title, label = f"{waiting} time per step by cause", waiting.lower()
    panel = "on" if result.units.height > 1 else None
    return stacked("steps", title, rows, "step", y_label=label, color="cause", panel=panel)


def _unit_chart(result: GpuIdle) -> Chart:
    rows = _times(_with_unit(result, result.units), ["on"], _colors(result))
    return stacked("devices", "Time breakdown per device", rows, "on", color="cause")


def _gap_chart(result: GpuIdle) -> Chart:
    cause = pl.col("cause").cast(pl.String).replace_strict(causes.NAMES).cast(_colors(result))
    rows = _with_unit(result, result.gaps).with_columns(
        cause=cause, end_ns=pl.col("at_ns") + pl.col("end") - pl.col("start")
    )
    return Chart(
        "gaps", "Longest gaps by main cause", "span", rows.sort("rank", "device", "pid", "start"),
        x="at_ns", y="on" if result.units.height > 1 else "cause",
        x_label="time from the start" if result.one_clock else "time from the start of each rank",
        color="cause", x2="end_ns",
    )  # fmt: skip
