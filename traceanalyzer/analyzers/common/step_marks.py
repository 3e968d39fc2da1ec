"""Steps: marked by annotations on the host, or detected as repeats of kernels."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from statistics import median
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.device_work import device_work
from traceanalyzer.analyzers.common.kernel_names import ATTENTION, GEMM, OPTIMIZER, families_of
from traceanalyzer.analyzers.common.launching import launch_rows
from traceanalyzer.analyzers.common.names import mapped, matcher, named
from traceanalyzer.frames import nesting, numbering
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.trace import Trace, is_truncated, of_kinds
from traceanalyzer.vocabulary import (
    DEVICE_WORK,
    ENGINE_STEPS,
    PROFILER_STEP,
    SEVERAL_STEPS,
    steps_pattern,
)

P = TypeVar("P")

#: Kinds of host slices that may mark a step; PyTorch recorded its steps as operators until 2021.
MARK_KINDS = ("user_annotation", "nvtx", "cpu_op", "other")

#: Start of the name of a call of a module in PyTorch.
_MODULE = "nn.Module: "

#: Substrings, one of which is in each default name of a step, or of a call around repeats.
MARK_NAMES = (PROFILER_STEP, _MODULE)

#: Steps that overlap by no more, or by this share of the later one, are consecutive: profilers
#: round times and durations.
_ROUNDING_NS, _ROUNDING_FRAC = 1_000, 0.01

#: The last step is incomplete if it takes less than this share of the median of the others.
_TAIL_FRAC = 0.05

#: Name of the slice of a batch in Composer, and its category in older versions.
_COMPOSER_BATCH = "event/batch"
_COMPOSER_BATCH_CATEGORY = "batch_start,batch_end"
_SEVERAL_STEPS = re.compile(f"{SEVERAL_STEPS}$")
_LANE = ("rank", "pid", "tid")
#: The number of a repetition: ``decode [3]``; and the name of a step without it.
REPETITION = re.compile(r" \[\d+\]$")
STEP = pl.col("step").str.replace(REPETITION.pattern, "")
_BATCHES = re.compile(r"(?:event/)?batch(?: \[\d+\])?")


def step_marks(trace: Trace, step_name: str | None = None) -> pl.DataFrame:
    """Return slices that mark steps: ``ProfilerStep#``, else user steps, else Composer's batches.

    Without them, the range around each step: :func:`_around_steps`.

    Steps of an inference engine come first, unless there are as many ``ProfilerStep#``. Only the
    first available kind is used. A mark inside another mark of its thread is ignored. Marks that
    overlap by at most 1 us, or 1 % (rounding), are both steps, and the first ends at the start of
    the second. Steps that are partly outside the time window of the trace are left out, as is a
    last ``ProfilerStep#`` that is much shorter than the others and has no device work. If several
    threads mark steps, the one with the most marked time is used. Steps with equal names are
    numbered: ``## train_step ## [2]``.

    Args:
        trace: trace with host slices of :data:`MARK_KINDS`.
        step_name: regular expression of the names of steps.

    Returns:
        rank, pid, tid, step, start, end, sorted by rank and start; steps of a rank do not overlap.

    Raises:
        OptionError: ``step_name`` is not a regular expression.
    """
    return trace.once(("step_marks", step_name), lambda: _step_marks(trace, step_name))


class _Mark(NamedTuple):
    """A slice that may mark a step. There are few of them, so they are rows, not columns."""

    kind: str
    name: str | None
    rank: int | None
    pid: int | None
    tid: int | None
    start: int
    end: int

    @property
    def lane(self) -> tuple[int | None, ...]:
        return self.rank, self.pid, self.tid

    @property
    def order(self) -> tuple[Any, ...]:
        """Key of the order by lane (null first) and start, the longest first."""
        return *((number is not None, number) for number in self.lane), self.start, -self.end


def _step_marks(trace: Trace, step_name: str | None) -> pl.DataFrame:
    is_mark = of_kinds(MARK_KINDS) & (pl.col("dur") > 0)
    marks = _marks(trace, _may_mark(trace.names, step_name) & is_mark & _complete(trace))
    if not marks and step_name is None:
        return _as_rows(_around_steps(trace), trace)
    steps = _without_tail(_in_order(_chosen(marks, step_name)), trace)
    return _as_rows(_recorded(steps, trace) if is_truncated(trace) else steps, trace)


def _in_order(marks: Iterable[_Mark]) -> list[_Mark]:
    """Return the outermost marks of the thread with the most marked time, by rank and start."""
    return _of_one_thread(_outermost(sorted(marks, key=lambda mark: mark.order)))


def _as_rows(steps: Sequence[_Mark], trace: Trace) -> pl.DataFrame:
    lane = {name: trace.events.schema[name] for name in _LANE}
    types = lane | {"step": pl.String, "start": pl.Int64, "end": pl.Int64}
    named_steps = zip(steps, _names(steps), strict=True)
    rows = [(*one.lane, name, one.start, one.end) for one, name in named_steps]
    return pl.DataFrame(rows, schema=types, orient="row")


#: Names of ranges around a step, such as ``timestep``, ``md_step 7``, ``cg_iteration``, and
#: those of parts of a step that end alike.
_AROUND = r"(?i)(?:step|iter|iteration|batch|frame|cycle)(?:\([^)]*\))?[ _:#=-]*\d*$"
_PARTS = r"(?i)optim|micro|sub[ _-]?step|load|next|get|fetch|prepare|read|copy"
_NUMBER = re.compile(r"[ _:#=-]*\d+$")


def _around_steps(trace: Trace) -> list[_Mark]:
    """Return the ranges of one name, besides numbers, around at least 80 % of the launches.

    They repeat at least four times. Of several such names, that with the most time. Without
    launches, ranges with 80 % of the time between the first and the last one. So ``step`` beside
    ``forward`` and ``backward``, which is that of the optimizer, marks no steps.
    """
    wanted = named(trace.names, [_AROUND]) & ~named(trace.names, [_PARTS])
    is_range = pl.col("kind").is_in(("user_annotation", "nvtx")) & (pl.col("dur") > 0)
    by_name: dict[str, list[_Mark]] = {}
    for mark in _marks(trace, wanted & is_range & _complete(trace)):
        by_name.setdefault(_NUMBER.sub("", mark.name or ""), []).append(mark)
    outer = map(_in_order, by_name.values())
    several = [marks for marks in outer if len(marks) >= _LEAST_STEPS]
    around = [marks for marks in several if _covers(marks, _launched(trace))]
    return max(around, key=lambda marks: sum(one.end - one.start for one in marks), default=[])


def _covers(marks: Sequence[_Mark], launched: Ints) -> bool:
    """Whether marks contain most launches between the first and the last one, or most time."""
    starts, ends = np.array(sorted((mark.start, mark.end) for mark in marks)).T
    between = launched[(launched >= starts[0]) & (launched < ends.max())]
    if not between.size:
        return bool((ends - starts).sum() >= _MOST_TIME * (ends.max() - starts[0]))
    inside = between < ends[np.searchsorted(starts, between, side="right") - 1]
    return bool(inside.mean() >= _MOST_TIME)


def _marks(trace: Trace, selected: pl.Expr) -> list[_Mark]:
    rows = trace.events[["kind", "category", "name", *_LANE, "ts", "dur"]].filter(selected)
    rows = rows.select("kind", "name", *_LANE, start="ts", end=pl.col("ts") + pl.col("dur"))
    return list(map(_Mark._make, rows.iter_rows()))


def _may_mark(names: Sequence[str], step_name: str | None) -> pl.Expr:
    """Return the filter of events with a name or category of steps."""
    if step_name is not None:
        return named(names, [step_name])
    batch = pl.col("category") == _COMPOSER_BATCH_CATEGORY
    return batch.fill_null(value=False) | named(names, [steps_pattern(), f"^{_COMPOSER_BATCH}$"])


def _complete(trace: Trace) -> pl.Expr:
    """Return which marks lie inside the time window and the complete part of the (first) file."""
    since, until = trace.meta.window
    end = pl.col("ts") + pl.col("dur")
    inside = pl.lit(value=True) if since is None else pl.col("ts") >= since
    for limit in (until, trace.meta.complete_until):
        inside = inside if limit is None else inside & (end <= limit)
    return inside


def _chosen(marks: list[_Mark], step_name: str | None) -> list[_Mark]:
    """Return the first available kind of steps; all of ``marks`` if the user chose."""
    if step_name is not None:
        return marks
    is_step = matcher([steps_pattern()])
    profiler = [mark for mark in marks if (mark.name or "").startswith(PROFILER_STEP)]
    annotations = [mark for mark in marks if mark.kind in ("user_annotation", "nvtx")]
    numbered = [mark for mark in annotations if is_step(mark.name or "")]
    engine = [mark for mark in annotations if described(mark.name or "")]
    if len(engine) > len(profiler):
        return engine
    return (
        profiler
        or [mark for mark in numbered if not _SEVERAL_STEPS.search(mark.name or "")]
        or numbered
        or [mark for mark in marks if not is_step(mark.name or "")]
    )


def _outermost(marks: Iterable[_Mark]) -> list[_Mark]:
    """Return the marks outside any other mark of their lane; each ends before the next begins.

    Args:
        marks: in their order.
    """
    outer: list[_Mark] = []
    reached: dict[tuple[int | None, ...], int] = {}
    for mark in marks:
        before = reached.get(mark.lane, mark.start)
        reached[mark.lane] = max(before, mark.end)
        rounding = max(_ROUNDING_NS, _ROUNDING_FRAC * (mark.end - mark.start))
        is_next = before - mark.start <= rounding and mark.end > before
        if mark.start < before and not is_next:
            continue
        if outer and outer[-1].lane == mark.lane:
            outer[-1] = outer[-1]._replace(end=min(outer[-1].end, mark.start))
        outer.append(mark)
    return outer


def _of_one_thread(steps: list[_Mark]) -> list[_Mark]:
    """Return the steps of the thread of each rank with the most marked time, by rank and start."""
    marked: Counter[tuple[int | None, ...]] = Counter()
    for step in steps:
        marked[step.lane] += step.end - step.start
    most = {rank: lane for lane, _ in reversed(marked.most_common()) for rank in lane[:1]}
    return [step for step in steps if step.lane == most[step.rank]]


def _without_tail(steps: list[_Mark], trace: Trace) -> list[_Mark]:
    """Drop the last step of the profiler if the recording ended at its start.

    It is much shorter than the others, and no device work starts in it or after it.
    """
    kept = []
    for rank, run in groupby(steps, key=lambda step: step.rank):
        *others, last = run
        kept += others
        if not (others and (last.name or "").startswith(PROFILER_STEP)):
            kept.append(last)
            continue
        usual = median(step.end - step.start for step in others)
        is_short = last.end - last.start < _TAIL_FRAC * usual
        if not is_short or _last_device_work(trace, rank) >= last.start:
            kept.append(last)
    return kept


def _recorded(steps: list[_Mark], trace: Trace) -> list[_Mark]:
    """Return the longest sequence of steps of a truncated file without missing launches.

    Other steps launch much less than usual: profilers do not write launches in order of time.
    """
    launched = np.sort(_launched(trace))
    if not launched.size or not steps:
        return steps
    edges = np.array([(step.start, step.end) for step in steps])
    counts = np.diff(np.searchsorted(launched, edges)).ravel()
    alike = all((step.name or "").startswith(PROFILER_STEP) for step in steps)
    usual = np.quantile(counts[counts > 0], _FULL, method="higher") if alike and counts.any() else 0
    known = zip(counts >= max(_MOST_TIME * usual, 1), steps, strict=True)
    runs = ([step for _, step in run] for is_full, run in groupby(known, lambda one: one[0])
            if is_full)  # fmt: skip
    return max(runs, key=len, default=[])


#: Less than this share of the steps of a truncated file are without some of their launches.
_FULL = 0.75


def _last_device_work(trace: Trace, rank: int | None) -> float:
    """Return the last start of device work of a rank; infinite if there is none."""
    is_work = of_kinds(DEVICE_WORK) & pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
    last = trace.events[["ts", "kind", "rank"]].filter(is_work)["ts"].max()
    return last if isinstance(last, int) else math.inf


def _names(steps: Sequence[_Mark]) -> list[str]:
    """Return the names of steps; equal ones of a rank are numbered."""
    keys = [(step.rank, step.name or "step") for step in steps]
    total, so_far = Counter(keys), Counter[tuple[int | None, str]]()
    names = []
    for key in keys:
        so_far[key] += 1
        names.append(f"{key[1]} [{so_far[key]}]" if total[key] > 1 else key[1])
    return names


def of_composer(steps: Iterable[str]) -> bool:
    """Whether all steps are batches of Composer, by name."""
    return all(_BATCHES.fullmatch(step) for step in steps)


#: Minimum number of repeats.
_LEAST_STEPS = 4
#: Before all times.
_NEVER = -(1 << 62)
#: Minimum length of the sequence: shorter ones are loops within a step.
_LEAST_KERNELS = 3
#: Minimum share of equal kernels in the next repeat.
_SAME_FRAC = 0.9
#: Note for detected steps.
INFERRED_STEPS = (
    "No steps are marked: each repeat of a sequence of kernels counts as a step. "
    "steps --step-every REGEX begins a step at each matching kernel."
)
#: Name of a detected step, by its number.
_DETECTED = "step {}"
#: Copies of a name with this share of the time of their stream are part of the sequence.
_LONG_COPIES = 0.1
#: Copies from and to the host, as profilers name them.
_HOST_COPIES = r"(?i)HtoD|DtoH|HostToDevice|DeviceToHost"
#: Maximum number of kernels tried as the one that occurs once per step, rarest first.
_MOST_TRIED = 50


def steps(trace: Trace, step_name: str | None = None) -> pl.DataFrame:
    """Return the marked steps; without marks and ``step_name``, steps detected from kernels.

    Returns:
        Rows of :func:`~.step_marks.step_marks`, or of :func:`repeated`.

    Raises:
        OptionError: ``step_name`` is not a regular expression.
    """
    marks = step_marks(trace, step_name)
    if marks.height or step_name is not None:
        return marks
    return trace.once("repeated", lambda: _of_calls(trace, repeated(trace)))


def by_kernels(steps: pl.DataFrame) -> bool:
    """Whether :func:`steps` detected the steps from kernels: they have no thread, and its names."""
    if steps.is_empty() or steps["tid"].null_count() < steps.height:
        return False
    names = steps["step"].cast(pl.String)
    return bool(names.str.contains(f"^{_DETECTED.format(r'[0-9]+')}$").all())


def repeated(trace: Trace, every: str | None = None) -> pl.DataFrame:
    """Detect the steps of each rank from the kernels on its stream with most kernels.

    A step lasts from its first kernel to the first kernel of the next step, the last step to the
    end of its last kernel; incomplete repeats are dropped. Without ``every``, steps are the longest
    repeating sequence of kernels and of copies that take 10 % of the stream's time: kernels that
    occur once in it are equally spaced, and 90 % of them are equal in the next repeat. It starts
    after the longest typical pause of the stream.
    Repeats without a longer pause between them, with other kernels before and after them that run
    once, are layers of one pass, not steps. So are several repeats in each launch of a CUDA graph,
    or between copies from or to the host: these are the steps, if their kernels repeat.

    Args:
        trace: trace with kernels.
        every: regular expression of the names of kernels that start a step.

    Returns:
        rank, pid, tid (null), step, start, end; empty where nothing repeats.

    Raises:
        OptionError: ``every`` is not a regular expression.
    """
    lane = ["rank", "pid", "device", "stream"]
    work = device_work(trace)[["kind", *lane, "name", "correlation", "start", "end"]]
    is_kernel = pl.col("kind") == "kernel"
    copies = work.filter(~is_kernel, named(trace.names, [_HOST_COPIES]))[["rank", "name", "start"]]
    ns = pl.col("end") - pl.col("start")
    long_copies = ns.sum().over(*lane, "kind", "name") >= _LONG_COPIES * ns.sum().over(lane)
    work = work.filter(is_kernel | long_copies)
    first, number = numbering.numbered(work[lane].get_columns())
    n = np.bincount(number, weights=(work["kind"] == "kernel").to_numpy(), minlength=first.size)
    streams = work[first].with_columns(number=pl.int_range(pl.len()), n=pl.Series(n))
    most = streams.filter(pl.col("n") > 0).sort(
        "n", "start", "number", descending=[True, False, False]
    )
    rows = []
    for stream in most.unique("rank", keep="first", maintain_order=True).iter_rows(named=True):
        of_stream = work.filter(pl.Series(number == stream["number"]))
        of_rank = copies.filter(pl.col("rank").eq_missing(pl.lit(stream["rank"], pl.Int32)))
        rows.append(_of_stream(of_stream, every, stream["rank"], of_rank))
    types = {"rank": pl.Int32, "pid": pl.Int64, "tid": pl.Int64, "step": pl.String}
    empty = pl.DataFrame(schema={**types, "start": pl.Int64, "end": pl.Int64})
    return pl.concat([empty, *rows])


def _of_stream(
    kernels: pl.DataFrame, every: str | None, rank: object, copies: pl.DataFrame
) -> pl.DataFrame:
    start, end = kernels["start"].to_numpy(), kernels["end"].to_numpy()
    if every is None:
        codes = _codes(kernels["name"])
        pauses = np.append(0, start[1:] - np.maximum.accumulate(end)[:-1])
        begins, period = _begins(codes, pauses)
        if begins.size:
            begins, period = _around_layers(kernels, copies, codes, (begins, period))
        if _are_of_several_kinds(end - start, begins):
            begins = begins[:0]
    else:
        begins = kernels.select(named(kernels, [every])).to_series().arg_true().to_numpy()
        period = start.size
    after = np.append(begins[1:], begins[-1:] + period)
    until = np.append(start, end.max())[np.minimum(after, start.size)]
    spans = {"start": start[begins], "end": until}
    return pl.DataFrame(spans, schema=dict.fromkeys(spans, pl.Int64)).select(
        rank=pl.lit(rank, pl.Int32), pid=pl.lit(None, pl.Int64), tid=pl.lit(None, pl.Int64),
        step=pl.format(_DETECTED, pl.int_range(pl.len())), start="start", end="end",
    )  # fmt: skip


def _are_of_several_kinds(length: Ints, begins: Ints) -> bool:
    """Whether some repeats have many times as much work as the others, and a large part of it all.

    Then other phases of a program follow the repeats (a decoder after all steps of diffusion).
    """
    if begins.size < _LEAST_STEPS:
        return False
    work = np.add.reduceat(length, begins)[:-1]  # the last one has what follows it
    long = work > _OTHER_KIND * np.median(work)
    return bool(long.sum() > 1 and work[long].sum() >= _LARGE_PART * work.sum())


#: Repeats with so many times the median of their work, and so much of all work, are no steps.
_OTHER_KIND, _LARGE_PART = 10, 0.1


def _codes(names: pl.Series) -> Ints:
    """Return the number of each name in alphabetical order, which is that of all ranks."""
    first, number = numbering.numbered([names])
    order = names[first].cast(pl.String).rank("ordinal").fill_null(0).to_numpy()
    return order.astype(np.int64)[number]


def _begins(codes: Ints, pauses: Ints, least: int = _LEAST_KERNELS) -> tuple[Ints, int]:
    """Return the start of each complete repeat of the longest repeating sequence, and its length.

    It has at least ``least`` kernels.

    Empty where nothing repeats.
    """
    names, counts = np.unique(codes, return_counts=True)
    often = counts >= _LEAST_STEPS
    rarest = names[often][np.argsort(counts[often], kind="stable")]
    for code in rarest[:_MOST_TRIED]:
        places = np.flatnonzero(codes == code)
        apart = np.diff(places)
        period = int(np.median(apart))
        if period < least or np.mean(apart == period) < _SAME_FRAC:
            continue
        same = codes[places[0] : -period] == codes[places[0] + period :]
        covered = (places[-1] - places[0] + period) / codes.size
        if covered >= _SAME_FRAC and same.size and same.mean() >= _SAME_FRAC:
            begins, is_apart = _after_pauses(places, period, pauses)
            if not is_apart and _is_one_pass(codes, begins, period):
                break
            first = codes[begins[0] :][:period] == codes[begins[1] :][:period]
            return begins[int(first.mean() < _SAME_FRAC) :], period
    return np.zeros(0, np.int64), 0


def _around_layers(
    kernels: pl.DataFrame, copies: pl.DataFrame, codes: Ints, repeats: tuple[Ints, int]
) -> tuple[Ints, int]:
    """Return the launches of graphs that contain several repeats; or the kernels after copies.

    These are copies from or to the host, at equal distances, around layers of a model: repeats
    with attention or matrix products, without an optimizer.
    """
    begins, period = repeats
    launch = kernels["correlation"]
    graphs = np.append(0, 1 + np.flatnonzero((launch != launch.shift(-1))[:-1].fill_null(True)))
    places = [graphs]
    families = {*families_of(kernels["name"][begins[0] :][:period].cast(pl.String)).values()}
    if families & {ATTENTION, GEMM} and OPTIMIZER not in families:
        for _, of_name in copies.group_by("name", maintain_order=True):
            after = np.searchsorted(kernels["start"].to_numpy(), of_name["start"].to_numpy())
            places.append(np.unique(after))
    for begin in places:
        longer = int(np.median(np.diff(begin))) if begin.size >= _LEAST_STEPS else 0
        if longer >= _SEVERAL * period and np.mean(np.diff(begin) == longer) >= _SAME_FRAC:
            begin = np.append(begin[0] - longer, begin)
            begin = begin[(begin >= 0) & (begin + longer <= codes.size)]
            if begin.size * longer >= _SAME_FRAC * codes.size:
                return begin, longer
    return repeats


def _is_one_pass(codes: Ints, begins: Ints, period: int) -> bool:
    """Whether other kernels run once before the repeats and after them.

    Then repeats without a pause between them are layers of one pass: embedding, layers, head.
    """
    repeat = codes[begins[begins.size // 2] :][:period]
    around = (codes[: begins[1]], codes[begins[-1] :])  # the outer repeats may be incomplete
    return all(np.isin(side, repeat, invert=True).any() for side in around)


#: A clear pause is this many times as long as the median pause within a repeat, at least 5 us.
_APART_FACTOR, _LEAST_PAUSE_NS = 5, 1_000


def _after_pauses(places: Ints, period: int, pauses: Ints) -> tuple[Ints, bool]:
    """Shift places by less than a period to the kernels after the longest pauses.

    Also return whether these pauses are clearly longer than the others.
    """
    usual = []
    for shift in range(period):
        moved = places + shift
        usual.append(np.median(pauses[moved[moved < pauses.size]]))
    moved = places + int(np.argmax(usual))
    both = np.append(moved[0] - period, moved)
    is_apart = bool(max(usual) >= _APART_FACTOR * max(float(np.median(usual)), _LEAST_PAUSE_NS))
    return both[(both >= 0) & (both + period <= pauses.size)], is_apart


# --- calls around repeats --------------------------------------------------------------------

#: A call contains several repeats if there are at least this many times as many repeats as calls.
_SEVERAL = 1.5
#: Least share of the time of modules or annotations in the calls, and of the launches.
_MOST_TIME, _MOST_LAUNCHES = 0.8, 0.5


def _of_calls(trace: Trace, repeats: pl.DataFrame) -> pl.DataFrame:
    """Return the repeats; the calls around them if each contains several: layers are no steps.

    Iterations of several annotations (rollout, reward, update) are steps, also without repeats.
    """
    if repeats["rank"].n_unique() > 1:
        return repeats
    is_module = (pl.col("kind") == "python_function") & named(trace.names, [f"^{_MODULE}"])
    is_range = pl.col("kind").is_in(("user_annotation", "nvtx"))
    launched = _launched(trace)
    iterations = _iterations(trace, is_range, launched)
    if iterations.height and not 0 < repeats.height < _SEVERAL * iterations.height:
        return iterations.select(repeats.columns)
    for wanted in (is_module, is_range) if repeats.height >= _LEAST_STEPS else ():
        calls = _repeated_calls(trace, wanted)
        starts, ends = calls["start"].to_numpy(), calls["end"].to_numpy()
        if starts.size < 2 or repeats.height < _SEVERAL * starts.size or not launched.size:
            continue
        number = np.searchsorted(starts, launched, side="right") - 1
        inside = (number >= 0) & (launched < ends[number])
        if inside.mean() >= _MOST_LAUNCHES and np.unique(number[inside]).size == starts.size:
            return calls.select(repeats.columns)
    return repeats


def _launched(trace: Trace) -> Ints:
    """Return when the known calls that launched device work began."""
    rows = launch_rows(trace, device_work(trace))
    launched: Ints = trace.events["ts"][rows[rows != nesting.ROOT]].to_numpy()
    return launched


def _outermost_calls(trace: Trace, wanted: pl.Expr) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return all calls, and those outside the others of their thread: name, lane, start, end."""
    is_call = wanted & pl.col("tid").is_not_null() & (pl.col("dur") > 0)
    rows = trace.events[["kind", "name", *_LANE, "ts", "dur"]].filter(is_call)
    rows = rows.select("name", *_LANE, start="ts", end=pl.col("ts") + pl.col("dur"))
    rows = rows.sort("start", "end", descending=[False, True])
    reached = pl.col("end").cum_max().shift(1).over(_LANE).fill_null(_NEVER)
    return rows, rows.filter(pl.col("start") + _ROUNDING_NS >= reached, pl.col("end") > reached)


def _iterations(trace: Trace, wanted: pl.Expr, launched: Ints) -> pl.DataFrame:
    """Return the repeats of a sequence of several outermost calls of the thread with most of them.

    They contain most launches; calls of one name do not have most launches and time. An iteration
    lasts until the next one begins.
    """
    _, rows = _outermost_calls(trace, wanted)
    most = rows.group_by(_LANE, maintain_order=True).len().sort("len", maintain_order=True).tail(1)
    rows = rows.join(most, on=_LANE, nulls_equal=True, maintain_order="left")
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    names = mapped(rows["name"], lambda name: _NUMBER.sub("", name, count=1))
    first, number = numbering.numbered([names])
    codes = first.astype(np.int64)[number]
    pauses = np.append(0, start[1:] - end[:-1])[: start.size] // _ROUNDING_NS
    begins, period = _begins(codes, pauses, 2)
    if begins.size:
        launched = pl.Series(launched).unique().to_numpy()  # a replayed graph counts once
        place = np.searchsorted(start, launched, side="right") - 1
        inside = codes[place[(place >= 0) & (launched < end[place])]]
        share = np.bincount(inside, minlength=codes.size) / max(launched.size, 1)
        time = np.bincount(codes, weights=end - start, minlength=codes.size) / (end - start).sum()
        several = np.minimum(share, time).max() < _MOST_TIME <= share.sum()
        begins = begins if several else begins[:0]
    ends = np.append(start[begins[1:]], end[begins[-1:] + period - 1])
    count = pl.int_range(1, begins.size + 1, eager=True)
    steps = rows[begins].with_columns(end=pl.Series(ends), step=pl.format("iteration {}", count))
    return steps.select(*_LANE, "step", "start", "end")


def _repeated_calls(trace: Trace, wanted: pl.Expr) -> pl.DataFrame:
    """Return the calls of one name with most of the time of all outermost ones, as steps.

    Of several such names that with most calls, and of these the one with most time.
    """
    rows, outer = _outermost_calls(trace, wanted)
    length = pl.col("end") - pl.col("start")
    whole = outer.select(length.sum()).item()
    sums = rows.group_by("name").agg(ns=length.sum(), n=pl.len())
    most = sums.filter(pl.col("ns") >= _MOST_TIME * max(whole, 1)).cast({"name": pl.String})
    name = most.sort("n", "ns", "name", descending=[True, True, False])["name"].head(1)
    calls = rows.filter(pl.col("name").is_in(name.implode()))
    plain = pl.col("name").cast(pl.String).str.strip_prefix(_MODULE)
    return calls.with_columns(step=pl.format("{} [{}]", plain, pl.int_range(1, pl.len() + 1)))


# --- steps of inference engines ------------------------------------------------------------

PREFILL, DECODE, MIXED, IDLE, DRAFT = "prefill", "decode", "mixed", "idle", "draft"
_PATTERNS = tuple(re.compile(rf"(?:{one.pattern})(?: \[\d+\])?") for one in ENGINE_STEPS)
#: Modes of SGLang by phase; a verified draft gives the next tokens.
_MODES = {
    "extend": PREFILL, "split_prefill": PREFILL, "target_verify": DECODE,
    "draft_loop": DRAFT, "draft_extend": DRAFT, "draft_extend_v2": DRAFT,
}  # fmt: skip


class Described(NamedTuple):
    """What the name of a step says; ``tokens`` is None where it does not."""

    phase: str
    batch: int
    tokens: int | None


@lru_cache(maxsize=16_384)
def described(name: str) -> Described | None:
    """Return phase, requests and tokens of an engine's step; None for other steps.

    A step with prefill and decode requests is mixed; its batch counts both. One without requests is
    idle. A decode request has one token if the name does not say more.
    """
    match = next((found for one in _PATTERNS if (found := one.fullmatch(name))), None)
    if match is None:
        return None
    groups = match.groupdict()
    known = {key: int(value) for key, value in groups.items() if value and key != "mode"}
    if "prefills" in groups:
        prefills, decodes = known["prefills"], known["decodes"]
        phase = PREFILL if prefills else DECODE if decodes else IDLE
        given = {"prefills": "prefill_tokens", "decodes": "decode_tokens"}
        counts = [known.get(key, None if known[of] else 0) for of, key in given.items()]
        counts[1] = decodes if counts[1] is None and "prefill_tokens" in known else counts[1]
        tokens = None if None in counts else sum(filter(None, counts))
        return Described(MIXED if prefills and decodes else phase, prefills + decodes, tokens)
    mode = groups["mode"].lower()
    one_each = known["batch"] if mode == DECODE else None
    return Described(_MODES.get(mode, mode), known["batch"], known.get("tokens", one_each))


def with_phases(steps: pl.DataFrame) -> pl.DataFrame:
    """Add ``phase``, ``batch`` and ``tokens`` to steps, null for steps not of an engine.

    A column that the steps have already is kept.
    """
    names = steps["step"].to_list()
    known = {name: described(name) for name in {*names} - {None}}
    rows = [known.get(name) or (None, None, None) for name in names]
    schema = {"phase": pl.String, "batch": pl.Int64, "tokens": pl.Int64}
    phases = pl.DataFrame(rows, schema=schema, orient="row")
    return steps.hstack([column for column in phases if column.name not in steps.columns])


def with_time_before(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of one rank; those that decode begin where the one before ends.

    Their requests were there: the time between is of the engine. A prefill step may wait for
    requests.
    """
    phases = with_phases(steps)["phase"]
    follows = phases.is_in([DECODE, MIXED, DRAFT]) & phases.shift(1).is_not_null()
    before = pl.min_horizontal("start", pl.col("end").shift(1))
    return steps.with_columns(start=pl.when(follows).then(before).otherwise("start"))
