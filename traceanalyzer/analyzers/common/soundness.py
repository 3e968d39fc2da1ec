"""Whether recordings are sound: what is wrong with them, how it is corrected, what to do about it.

Each problem is an issue of the trace with the code of :data:`traceanalyzer.vocabulary`, the number
of records or calls, and the text ``problem; remedy``. :func:`repaired` corrects a trace when it is
read, so that every analysis is right; :func:`problems` finds what needs all events of a recording,
and :func:`between` compares the recordings of several ranks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer import vocabulary as words
from traceanalyzer.analyzers.common import replays
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.names import matching, named
from traceanalyzer.frames import intervals
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.trace import (
    Issue,
    Trace,
    is_truncated,
    issue_rows,
    of_kinds,
    record_hint,
    sort_events,
)
from traceanalyzer.units import NS_PER_S, format_count, format_ns, format_ranges

#: (severity, code, count, text).
_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]

_STREAM = ("rank", "pid", "device", "stream")

#: Work of one stream may overlap by the resolution of the clock, and by programmatic launches.
_OVERLAP_NS = 10_000
#: Records that overlap the next work are impossible if they take this many times as long as other
#: calls of the same kernel, or run beyond this number of later works of other launches.
_LONGER, _LATER = 3, 3
#: From this share of records on, the stream runs work concurrently, and no record is impossible.
_CONCURRENT_FRAC = 0.05
#: A record that lasts longer than all else is impossible from this length on, if it takes this many
#: times as long as other calls of its kernel.
_LONG_NS, _BEYOND = 10_000_000, 10
#: Minimum number of calls of a kernel, to compare them.
_CALLS = 3

_UPDATE = "update the GPU driver and the profiler if there are many"

#: Codes of the problems of recordings, most important first.
CODES = (
    words.FAILED_CALLS, words.NO_GPU_WORK, words.IMPOSSIBLE_TIMES, words.DEVICE_CLOCK,
    words.MISSING_KERNELS, words.UNLINKED_WORK, words.SAME_RANK, words.UNTRACED_PROCESSES,
    words.RECORDINGS_APART, words.NO_CACHING_ALLOCATOR, words.GRAPH_GAPS, words.SHARED_DEVICE,
    words.READY_LATE,
)  # fmt: skip


def repaired(trace: Trace, *, complete: bool = True) -> Trace:
    """Return a trace without impossible records, with the device on the clock of the host.

    The issues of the trace count what is corrected. Events that are not read are not checked.

    Args:
        trace: trace of one file.
        complete: whether kernels and launch calls were read, so that missing ones are missing.
    """
    trace = _without_shared_ids(trace)
    work = _work(trace)
    if not work.height:
        has_metrics = words.RANGE in trace.kinds
        return _without_gpu_work(trace) if complete or has_metrics else trace
    wrong, whys = _impossible(trace, work)
    if wrong.any():
        kept = np.ones(trace.events.height, np.bool_)
        kept[work["event"].to_numpy()[wrong]] = False
        count, whole = int(wrong.sum()), work.height
        verbs = "has impossible times and is" if count == 1 else "have impossible times and are"
        of_all = f"{count:,} of {format_count(whole, 'record')} of device work"
        text = f"{of_all} {verbs} left out ({whys}); {_UPDATE}"
        noted = _noted(trace, ("notice", words.IMPOSSIBLE_TIMES, count, text))
        trace = noted.select(pl.lit(pl.Series(kept)))
        work = _work(trace)
    return _on_host_clock(trace, work)


#: A correlation id of so many calls of a process links nothing; few may be reused after a wrap.
_SHARED = 16


def _without_shared_ids(trace: Trace) -> Trace:
    """Return the trace without correlation ids that many calls share, for example 0 for all.

    Ids are of a process. Work without a process may be of any that has its id.
    """
    keys = ["rank", "pid", "correlation"]
    rows = trace.events[["kind", *keys]]
    calls = rows.filter(of_kinds(words.LAUNCH_KINDS), pl.col("correlation").is_not_null())
    if calls["correlation"].n_unique() > calls.height - _SHARED + 1:
        return trace
    shared = calls.group_by(keys).agg(calls=pl.len()).filter(pl.col("calls") >= _SHARED)
    if shared.is_empty():
        return trace
    dropped = pl.concat([shared, shared.with_columns(pid=pl.lit(None, pl.Int64))])[keys]
    match = dropped.unique().with_columns(shared=pl.lit(value=True))
    rows = rows.join(match, on=keys, how="left", nulls_equal=True, maintain_order="left")
    events = trace.events.with_columns(pl.when(rows["shared"].is_null()).then("correlation"))
    work = rows.filter(of_kinds(words.DEVICE_WORK))
    lost = work["shared"].count()
    trace = replace(trace, events=events)
    if lost < max(_MISSING, _MISSING_FRAC * work.height):
        return trace
    ids, count = shared["correlation"].unique(), int(shared["calls"].sum())
    what = f"correlation id {ids[0]}" if ids.len() == 1 else f"{ids.len():,} correlation ids"
    text = f"{count:,} API calls share {what}, so {lost:,} of {work.height:,} kernels and copies "
    text += f"cannot be linked to their launch calls; {_LINK}"
    return _noted(trace, ("notice", words.UNLINKED_WORK, count, text))


_LINK = "update the profiler, and use the file as the profiler wrote it"


def _without_links(trace: Trace) -> Iterator[Issue]:
    """Yield that launch calls and kernels were recorded, but no id is both in a call and a kernel.

    Nothing if ids that many calls share were dropped: this is an issue already.
    """
    if trace.issues["code"].eq(words.UNLINKED_WORK).any():
        return
    calls = _kernel_launches(trace)["correlation"]
    work = trace.events[["kind", "correlation"]].filter(of_kinds(words.DEVICE_WORK))["correlation"]
    if min(calls.len(), work.len()) >= _MISSING and not calls.is_in(work.implode()).any():
        text = f"{calls.len():,} launch calls have no correlation id in common with {work.len():,} "
        text += f"kernels and copies, so these cannot be linked to their launch calls; {_LINK}"
        yield "notice", words.UNLINKED_WORK, calls.len(), text


def unlinked(trace: Trace) -> str | None:
    """Return why device work cannot be linked to the launch calls that were recorded, if so."""
    noted = trace.issues.filter(code=words.UNLINKED_WORK)["first"].to_list()
    return next(iter(noted or [text for *_, text in _without_links(trace)]), None)


def hints(trace: Trace, kinds: Iterable[str], *, linked: bool) -> dict[str, str]:
    """Return how to record missing data of these kinds; ``linked``: work has launch calls."""
    texts = {kind: record_hint(trace.meta, kind) for kind in kinds}
    if not linked and (problem := unlinked(trace)):
        texts["device work"] = problem.partition("; ")[2]
    return texts


def _work(trace: Trace) -> pl.DataFrame:
    """Return the device work: event (row) and the columns that place it."""
    is_work = of_kinds(words.DEVICE_WORK) & pl.col("dur").is_not_null()
    rows = trace.events.select(is_work.arg_true()).to_series()
    columns = [*_STREAM, "ts", "dur", "name", "correlation"]
    return trace.events[columns][rows].hstack([rows.alias("event")])


def _noted(trace: Trace, *issues: Issue) -> Trace:
    more = issue_rows(issues, trace.meta.rank)
    return replace(trace, issues=pl.concat([trace.issues, more]))


#: No rows of :func:`described`.
NO_PROBLEMS = pl.DataFrame(
    schema=dict.fromkeys(("code", "path", "text", "advice"), pl.String) | {"count": pl.Int64}
)


def described(issues: pl.DataFrame) -> pl.DataFrame:
    """Return the problems among the issues of all files, most important first.

    Args:
        issues: path, code, count, first.

    Returns:
        One row per code and file: code, path, count, text (a sentence), advice.
    """
    order = {code: place for place, code in enumerate(CODES)}
    rows = issues.filter(pl.col("code").is_in(CODES)).unique(maintain_order=True)
    parts = pl.col("first").str.splitn("; ", 2)
    texts = rows.with_columns(
        text=_sentence(parts.struct.field("field_0")),
        advice=_sentence(parts.struct.field("field_1")),
    )
    place = pl.col("code").replace_strict(order, default=None, return_dtype=pl.Int64)
    ordered = texts.sort(place, -pl.col("count"), maintain_order=True)
    return ordered.select("code", "path", "count", "text", "advice")


def sentences(problems: pl.DataFrame) -> list[str]:
    """Return one sentence per code; of several files, that with the highest count.

    Args:
        problems: rows of :func:`described`.
    """
    codes = problems.group_by("code", maintain_order=True)
    each = codes.agg(pl.col("text").first(), files=pl.col("path").n_unique())
    return [
        text if files == 1 else f"{text[:-1]} (and {format_count(files - 1, 'more file')})."
        for text, files in each.select("text", "files").iter_rows()
    ]


def _sentence(text: pl.Expr) -> pl.Expr:
    return text.str.slice(0, 1).str.to_uppercase() + text.str.slice(1) + "."


# --- impossible times ------------------------------------------------------------------------


def _impossible(trace: Trace, work: pl.DataFrame) -> tuple[_Bools, str]:
    """Return which records of device work have impossible times, and how many of each kind."""
    start, length = work["ts"].to_numpy(), work["dur"].to_numpy()
    zeros = (0, -(trace.meta.epoch_ns or 0))
    untimed = np.isin(start, zeros) & (length == 0)
    if untimed.any() and trace.meta.format != words.NSYS:  # CUPTI: both times are 0 if unknown
        untimed &= (work["correlation"] > 0).fill_null(value=False).to_numpy()
    backwards = length < 0
    timed = ~(untimed | backwards)
    beyond = np.zeros(len(timed), np.bool_)
    beyond[timed] = _too_long(trace, _only(work, timed))
    left = timed & ~beyond
    overlapping = np.zeros(len(timed), np.bool_)
    if trace.meta.format != words.NSYS or not work["pid"].null_count():  # streams are of a process
        overlapping[left] = _overlapping(_only(work, left))
    kinds = {
        "without a time": untimed,
        "with the end before the start": backwards,
        "longer than the recording": beyond,
        "overlapping the next work of the stream": overlapping,
    }
    counts = [f"{int(rows.sum()):,} {text}" for text, rows in kinds.items() if rows.any()]
    return untimed | backwards | beyond | overlapping, ", ".join(counts)


def _only(work: pl.DataFrame, chosen: _Bools) -> pl.DataFrame:
    return work if chosen.all() else work.filter(chosen)


def _longer(work: pl.DataFrame, candidates: _Bools, factor: float) -> _Bools:
    """Return which candidates take longer than other calls of their kernel by a factor."""
    longer = np.zeros(len(candidates), np.bool_)
    if not candidates.any():
        return longer
    rows = work[["name", "dur"]]
    others = rows.filter(~candidates).group_by("name")
    usual = others.agg(usual=pl.col("dur").median(), calls=pl.len())
    known = rows.filter(candidates).join(usual, on="name", how="left", maintain_order="left")
    enough = (pl.col("calls") >= _CALLS) & (pl.col("dur") >= factor * pl.col("usual"))
    longer[candidates] = known.select(enough.fill_null(value=False)).to_series().to_numpy()
    return longer


def _too_long(trace: Trace, work: pl.DataFrame) -> _Bools:
    """Return which records last longer than all else that was recorded."""
    length = work["dur"].to_numpy()
    candidates = length > _LONG_NS
    if not candidates.any() or length.max() <= _others_ns(trace, work, candidates):
        return np.zeros(length.size, np.bool_)
    candidates &= _longer(work, candidates, _BEYOND)
    too_long: _Bools = candidates & (length > _others_ns(trace, work, candidates))
    return too_long


def _others_ns(trace: Trace, work: pl.DataFrame, left_out: _Bools) -> int:
    """Return the time from the first to the last of all events but some records of work."""
    rest = np.ones(trace.events.height, np.bool_)
    rest[work["event"].to_numpy()[left_out]] = False
    if trace.events["ts"].null_count():
        rest &= trace.events["ts"].is_not_null().to_numpy()
    start, length = (intervals.integers(trace.events[name])[rest] for name in ("ts", "dur"))
    return int((start + length).max() - start.min()) if start.size else 0


def _overlapping(work: pl.DataFrame) -> _Bools:
    """Return which records run into the next work of their own stream without being able to."""
    nothing = np.zeros(work.height, np.bool_)
    if work.is_empty() or work["stream"].null_count() == work.height:
        return nothing
    _, stream = numbered([work[name] for name in _STREAM])
    order = np.argsort(stream, kind="stable")  # work is in order of start
    lane, start = stream[order], work["ts"].to_numpy()[order]
    end = start + work["dur"].to_numpy()[order]
    runs_into = np.zeros(work.height, np.bool_)
    runs_into[:-1] = (lane[1:] == lane[:-1]) & (end[:-1] - start[1:] > _OVERLAP_NS)
    if not runs_into.any():
        return nothing
    often = np.bincount(lane[runs_into], minlength=lane.max() + 1)
    is_serial = often <= _CONCURRENT_FRAC * np.bincount(lane)
    candidates = np.zeros(work.height, np.bool_)
    has_stream = work["stream"].is_not_null().to_numpy()
    candidates[order] = runs_into & is_serial[lane] & has_stream[order]
    later = np.zeros(work.height, np.bool_)
    later[order] = _over_later(work["correlation"].to_numpy()[order], lane, start, end)
    return candidates & (_longer(work, candidates, _LONGER) | later)


def _over_later(
    correlation: npt.NDArray[Any], lane: npt.NDArray[np.int32], start: _Ints, end: _Ints
) -> _Bools:
    """Return which records end after several later works of other launches in their stream."""
    place = np.minimum(np.arange(start.size) + _LATER, start.size - 1)
    known = ~np.isnan(correlation.astype(np.float64))
    is_other = known & known[place] & (correlation != correlation[place])
    is_later: _Bools = (lane[place] == lane) & (end > end[place]) & is_other
    return is_later


# --- clock of the device -----------------------------------------------------------------------

#: Work that starts before its launch call proves that the clocks differ: in most of it, or in this
#: share by this time or more.
_EARLY_FRAC, _EARLY_NS = 0.05, 100_000
_MOST = 0.5
#: Differences below this are the resolution of times.
_RESOLUTION_NS = 1_000
#: This share of the work, and this much of it, starts early by chance or by a wrong correlation id.
_CHANCE_FRAC, _CHANCE = 0.01, 2
#: If so much work starts on an idle device, only that is compared.
_PROMPT = 8
#: Work that is compared at first.
_SAMPLE = 4096


def _on_host_clock(trace: Trace, work: pl.DataFrame) -> Trace:
    """Return the trace with the times of each early device moved behind the launch calls."""
    if work.height <= _SAMPLE and not _any_early(trace, work):
        return trace
    ended = (pl.col("ts") + pl.col("dur")).cum_max().shift(1).over("device")
    work = work.with_columns(queued=(pl.col("ts") - ended < _OVERLAP_NS).fill_null(value=False))
    if work.height > _SAMPLE:
        parts = [queued.arg_true() for queued in (work["queued"], ~work["queued"])]
        sample = pl.concat([part.gather_every(max(part.len() // _SAMPLE, 1)) for part in parts])
        if not any(_clocks(trace, work[sample])):
            return trace
    for rank, device, shift_ns, early, linked in _clocks(trace, work):
        text = (
            f"the clock of device {device} is {format_ns(shift_ns)} behind the host's: {early:,} "
            f"of {linked:,} kernels and copies start before their launch call (corrected); update "
            "the GPU driver and the profiler, and record again"
        )
        noted = _noted(trace, ("notice", words.DEVICE_CLOCK, early, text))
        trace = _moved(noted, rank, device, shift_ns)
    return trace


def _any_early(trace: Trace, work: pl.DataFrame) -> bool:
    """Whether work may start before its launch call: of those with its id, the last one counts."""
    calls = trace.events[:, ["kind", "correlation", "ts"]].filter(of_kinds(words.LAUNCH_KINDS))
    known, of_work = (
        intervals.integers(calls["correlation"]),
        intervals.integers(work["correlation"]),
    )
    order = np.argsort(known, kind="stable")  # calls are in order of start
    place = np.searchsorted(known[order], of_work, side="right") - 1
    linked = np.flatnonzero((place >= 0) & (of_work > 0))
    last = order[place[linked]]
    early = work["ts"].to_numpy()[linked] < calls["ts"].to_numpy()[last]
    return bool((early & (known[last] == of_work[linked])).any())


def _clocks(trace: Trace, work: pl.DataFrame) -> Iterator[tuple[int | None, int, int, int, int]]:
    """Yield rank, device, delay in ns, early and all launched work of each device that is early.

    Work on an idle device starts right after its launch call; queued work shows less of the delay.
    """
    for rank, device, rows in _delays(trace, work):
        every, prompt = rows["delay"].to_numpy(), ~rows["queued"].to_numpy()
        delay = every[prompt] if prompt.sum() >= _PROMPT else every
        chance = min(max(int(_CHANCE_FRAC * delay.size), _CHANCE), delay.size - 1)
        early, shift = (delay < 0).mean(), -int(np.partition(delay, chance)[chance])
        near = (delay <= -shift + max(shift // 10, _EARLY_NS)).mean()
        often = early > _MOST and shift > _RESOLUTION_NS
        seldom = early > _EARLY_FRAC and shift > _EARLY_NS
        if (often or seldom) and near > _EARLY_FRAC:
            yield rank, device, shift, int((every < 0).sum()), rows.height


def _delays(trace: Trace, work: pl.DataFrame) -> Iterator[tuple[int | None, int, pl.DataFrame]]:
    """Yield rank, device, and queued, delay (after the launch call in ns) of work with a call."""
    work = work[["rank", "pid", "device", "correlation", "ts", "queued"]]
    work = work.filter(pl.col("correlation") > 0, pl.col("device").is_not_null())
    ids = work["correlation"].unique()
    is_call = of_kinds(words.LAUNCH_KINDS) & pl.col("correlation").is_in(ids.implode())
    keys = ["rank", "correlation"] if work["pid"].null_count() else ["rank", "pid", "correlation"]
    rows = trace.events[["kind", "rank", "pid", "correlation", "ts"]].filter(is_call)
    calls = rows.group_by(keys).agg(called=pl.col("ts").min())
    joined = work.join(calls, on=keys, nulls_equal=True)
    delays = joined.select("rank", "device", "queued", delay=pl.col("ts") - pl.col("called"))
    for (rank, device), rows in delays.partition_by("rank", "device", as_dict=True).items():
        yield rank, device, rows


def _moved(trace: Trace, rank: int | None, device: int, shift_ns: int) -> Trace:
    """Return the trace with all rows of one device later by ``shift_ns``."""
    of_rank = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
    on_device = of_kinds(words.DEVICE_KINDS) & (pl.col("device") == device) & of_rank
    later = pl.when(on_device.fill_null(value=False)).then(shift_ns).otherwise(0)
    moved = trace.events.with_columns(pl.col("ts") + later)
    bound = trace.events.select(on_device).to_series()
    flows = trace.flows
    if flows.height:
        is_bound = bound.gather(flows["event"].fill_null(0)) & flows["event"].is_not_null()
        shifted = pl.when(is_bound).then(shift_ns).otherwise(0)
        flows = flows.with_columns(pl.col("ts") + shifted)
    return sort_events(replace(trace, events=moved, flows=flows))


# --- missing kernels -----------------------------------------------------------------------------

#: Calls that launch one kernel each.
KERNEL_LAUNCHES = r"LaunchKernel|LaunchCooperativeKernel|ModuleLaunch"
#: Kernels are missing from this share of the launches on: fewer may run when the recording ends.
_MISSING_FRAC, _MISSING = 0.02, 3
#: This many launches before the first kernel are lost, whatever their share.
_LOST_FIRST = 20

#: Where kernels are missing that others enclose.
WITHIN = ", most of them between recorded kernels"

_SYNCHRONISE = "call torch.cuda.synchronize() before the profiler stops"
_CHECK_ERRORS = f"check that no CUDA call failed, and {_SYNCHRONISE}"
_WARM_UP = (
    "let the profiler warm up for some steps (torch.profiler.schedule(warmup=2)): CUPTI starts "
    "to record after the first launches"
)

#: Issues of files whose device work was recorded, but cannot be read.
_UNREAD = ("missing-column", "missing-table", "unreadable-rows", "bad-duration")


def _without_gpu_work(trace: Trace) -> Trace:
    """Return a trace without device work of a program on GPUs with the reason and an issue."""
    calls, totals = _kernel_launches(trace).height, trace.memory_totals
    allocated = "cpu_op" in trace.kinds and totals["device_type"].is_in(_ON_GPU).any()
    is_lost = is_truncated(trace) or trace.issues["code"].is_in(_UNREAD).any()
    has_metrics = words.RANGE in trace.kinds
    if not (calls or allocated or has_metrics) or trace.meta.no_gpu_work or is_lost:
        return trace
    if has_metrics:
        text = "the file has metrics of kernels in place of their times; record without "
        text += "profiler_metrics for times, and see the metrics with traceanalyzer roofline"
    elif calls:
        text = f"the file has {format_count(calls, 'kernel launch', 'es')}, so GPU "
        text += f"tracing was on, but no kernel; {_SYNCHRONISE}, and check that CUPTI can record "
        text += "(WSL2, driver version, another profiler)"
    else:
        text = f"{ALLOCATES_ON_GPU}, but the file has no kernel; record the GPU, too: "
        text += "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    severity = "notice" if has_metrics else "data_loss"
    noted = _noted(trace, (severity, words.NO_GPU_WORK, 1, text))
    sources = tuple(replace(meta, no_gpu_work=text) for meta in trace.sources)
    return replace(noted, sources=sources)


#: Device types of GPUs (CUDA, HIP) in records of allocations.
_ON_GPU = (1, 6)
ALLOCATES_ON_GPU = "the program allocates memory of a GPU"


def _calls(trace: Trace, pattern: str) -> pl.Expr:
    """Return the condition that an event is a CUDA or HIP call with such a name."""
    return of_kinds(words.CUDA_CALLS) & named(trace.names, [pattern])


def _kernel_launches(trace: Trace) -> pl.DataFrame:
    """Return calls that launch a kernel and are not captured in graphs: event, ts, correlation."""
    rows = trace.events[["kind", "name", "ts", "correlation"]].with_row_index("event")
    calls = rows.filter(_calls(trace, KERNEL_LAUNCHES))[["event", "ts", "correlation"]]
    if calls.is_empty():
        return calls
    return calls.join(replays.captured(trace), on="event", how="anti", maintain_order="left")


def _untimed_kernels(trace: Trace) -> Iterator[Issue]:
    """Yield kernels without a duration before others that have one: they are not idle time."""
    work = trace.events[["kind", "ts", "dur"]].filter(of_kinds(words.DEVICE_WORK))
    last = work.drop_nulls("dur")["ts"].max()
    count = work.filter(pl.col("dur").is_null(), pl.col("ts") < last).height if last else 0
    if count >= max(_MISSING, _MISSING_FRAC * work.height):
        text = f"{count:,} of {format_count(work.height, 'record')} of device work have no "
        text += f"duration{WITHIN}; record again, and write the file with torch.profiler's export"
        yield "notice", words.MISSING_KERNELS, count, text


def _missing_kernels(trace: Trace) -> Iterator[Issue]:
    """Yield kernels that were launched and are not recorded, by their place in the recording."""
    calls = _kernel_launches(trace).drop_nulls("correlation")
    is_work = of_kinds(words.DEVICE_WORK)
    known = trace.events[["kind", "correlation"]].filter(is_work)["correlation"].drop_nulls()
    linked = calls["correlation"].is_in(known.unique().implode()).fill_null(value=False)
    if not linked.any() or is_truncated(trace):
        return
    missing = calls.filter(~linked)
    if missing.height < _MISSING:
        return
    ends = calls.filter(linked).select(first=pl.col("ts").min(), last=pl.col("ts").max())
    removed = trace.issues.filter(pl.col("code") == words.IMPOSSIBLE_TIMES)["count"].sum()
    first = missing.filter(pl.col("ts") < ends["first"].item()).height
    count = missing.height - int(removed)
    if count < _MISSING or (count < _MISSING_FRAC * calls.height and first < _LOST_FIRST):
        return
    last = missing.filter(pl.col("ts") > ends["last"].item()).height
    where, remedy = WITHIN, "record fewer steps or fewer kinds of events: CUPTI drops records"
    if 2 * first > count:
        where, remedy = f", {first:,} of them before the first recorded kernel", _WARM_UP
    elif 2 * last > count:
        where, remedy = f", {last:,} of them after the last recorded kernel", _CHECK_ERRORS
    text = f"{count:,} of {calls.height:,} launched kernels are not in the recording{where}"
    yield "notice", words.MISSING_KERNELS, count, f"{text}; {remedy}"


# --- how the program was recorded ----------------------------------------------------------------

_ALLOCATING = r"^(?:cuda|hip)Malloc(?:Async|Managed)?$"
_FREEING = r"^(?:cuda|hip)Free(?:Async)?$"
#: With the caching allocator, later steps allocate nothing. Without it, there is an allocation and
#: a free for at least this share of the kernels, in the last quarter of the launches too.
_PER_KERNEL, _ALLOCATIONS = 0.2, 20


def problems(trace: Trace) -> list[Issue]:
    """Return the problems of a recording that need all of its events, as issues.

    Args:
        trace: the trace of one rank, with all kinds of events.
    """
    found = (
        _missing_kernels,
        _without_links,
        _untimed_kernels,
        _no_caching_allocator,
        _several_processes,
        _graph_gaps,
        _ready_late,
    )
    return [issue for find in found for issue in find(trace)]


def is_uncached(trace: Trace) -> bool:
    """Whether PyTorch allocates and frees memory of the device for each tensor."""
    return trace.once("uncached", lambda: any(_no_caching_allocator(trace)))


def _no_caching_allocator(trace: Trace) -> Iterator[Issue]:
    """Yield that PyTorch's caching allocator is off."""
    needed = ("^aten::", _ALLOCATING, _FREEING)
    if not all(matching(trace.names, [pattern]) for pattern in needed):
        return
    launched, allocated, freed = (
        trace.events[["kind", "name", "ts"]].filter(_calls(trace, pattern))["ts"]
        for pattern in (KERNEL_LAUNCHES, _ALLOCATING, _FREEING)
    )
    least = max(_PER_KERNEL * launched.len(), _ALLOCATIONS)
    if min(allocated.len(), freed.len()) < least:
        return
    late = launched.quantile(0.75)
    few = (allocated >= late).sum() < _PER_KERNEL * int((launched >= late).sum())
    bursts = launched.sort().search_sorted(freed).n_unique()  # of torch.cuda.empty_cache
    if few or bursts < _PER_KERNEL * freed.len():
        return
    text = (
        f"memory is allocated {allocated.len():,} times and freed {freed.len():,} times for "
        f"{format_count(launched.len(), 'kernel')}: PyTorch's caching allocator is off"
    )
    yield "notice", words.NO_CACHING_ALLOCATOR, allocated.len(), f"{text}; {_CACHE}"


_CACHE = "unset PYTORCH_NO_CUDA_MEMORY_CACHING, which is for debugging, and record again"


def _several_processes(trace: Trace) -> Iterator[Issue]:
    """Yield that a file of one rank has the operators of several processes."""
    if trace.meta.rank is None or trace.meta.backend is None:
        return
    operators = trace.events[["kind", "pid"]].filter(pl.col("kind") == "cpu_op")
    pids = operators["pid"].drop_nulls().unique().sort()
    if pids.len() > 1:
        text = f"the file of rank {trace.meta.rank} has operators of {pids.len()} processes"
        yield "notice", words.SAME_RANK, pids.len(), f"{text}; {_ONE_FILE_EACH}"


_ONE_FILE_EACH = (
    "write one file per rank, with the rank in its name: processes overwrite each other"
)


def _ready_late(trace: Trace) -> Iterator[Issue]:
    """Yield the rank that is ready last at most tensors of a timeline of Horovod, if all wait.

    Each tensor has a row, with a phase in which ranks become ready, and a mark named by each rank.
    The delay is from the median mark of a phase to its last one. The union of delays counts.
    """
    if not matching(trace.names, [_NEGOTIATE]):
        return
    end = pl.col("ts") + pl.col("dur").fill_null(0)
    rows = trace.events.select("pid", "ts", pl.col("name").cast(pl.String), end=end).sort("ts")
    phases = rows.filter(pl.col("name").str.contains(_NEGOTIATE))
    phases = phases.select("pid", "ts", phase=pl.int_range(pl.len()), until="end")
    at, is_mark = pl.col("end"), pl.col("name").str.contains(r"^\d{1,6}$")
    marks = rows.filter(is_mark, at == pl.col("ts")).drop("ts")
    placed = marks.join_asof(
        phases, left_on="end", right_on="ts", by="pid", check_sortedness=False
    ).filter(at <= pl.col("until"))
    last = placed.group_by("phase").agg(
        rank=pl.col("name").last(), start=at.quantile(0.5, "lower"), end=at.max()
    )
    length = pl.col("end") - pl.col("start")
    top = largest_first(last.group_by("rank").agg(ns=length.sum(), n=pl.len()), "ns", "rank")
    for rank, _, n in top.head(1).iter_rows():
        lost = int(intervals.measure(last.filter(pl.col("rank") == rank))["length"].sum())
        least = _MUCH_LATE * rows.select(pl.col("end").max() - pl.col("ts").min()).item()
        if 2 * n > last.height and lost >= least:
            which = f"rank {rank} is ready last at {n:,} of {format_count(last.height, 'tensor')}"
            text = f"{which}, and the others wait {format_ns(lost)} for it: profile this rank and "
            yield "notice", words.READY_LATE, n, f"{text}another one to see why"


_NEGOTIATE, _MUCH_LATE = "^NEGOTIATE_", 0.1


# --- gaps in graph replays ---------------------------------------------------------------------

#: The nodes of a graph follow each other in a few microseconds. Gaps of the median length, within
#: this share of it, between so many nodes are made by the recording of each node.
_NODE_GAP_NS, _SAME_LENGTH, _SAME_FRAC, _NODE_GAPS = 6_000, 0.25, 0.8, 50
_CHECK_GAPS = (
    "compare with the time of a step without a profiler, or, on NVIDIA GPUs, record graphs as a "
    "whole (nsys profile --cuda-graph-trace=graph)"
)


def has_graph_gaps(trace: Trace) -> bool:
    """Whether the gaps between the nodes of graph replays are probably made by the recording."""
    return trace.once("graph_gaps", lambda: any(_graph_gaps(trace)))


def _graph_gaps(trace: Trace) -> Iterator[Issue]:
    """Yield that the kernels of graph replays are the same time apart, whatever they are."""
    ids = replays.graph_launches(trace)
    if ids.is_empty():
        return
    work = _work(trace).filter(pl.col("correlation").is_in(ids.unique().implode()))
    keys = [*_STREAM, "correlation"]
    gap = pl.col("ts") - (pl.col("ts") + pl.col("dur")).shift(1).over(keys)
    gaps = work.select(gap).to_series().drop_nulls()
    usual = gaps.median()
    if not isinstance(usual, float) or usual < _NODE_GAP_NS or gaps.len() < _NODE_GAPS:
        return
    same = int(((gaps - usual).abs() <= _SAME_LENGTH * usual).sum())
    if same < _SAME_FRAC * gaps.len():
        return
    text = (
        f"{same:,} of {gaps.len():,} gaps between kernels of graph replays take about "
        f"{format_ns(usual)}: they are probably made by the recording"
    )
    yield "notice", words.GRAPH_GAPS, same, f"{text}; {_CHECK_GAPS}"


# --- several recordings --------------------------------------------------------------------------

#: Recordings of ranks that begin or end this far apart, and by this share of their usual length.
APART_NS, _APART_FRAC = NS_PER_S, 0.05
#: Recordings that are further apart are of different runs.
_OTHER_RUN_NS = 3_600 * NS_PER_S


def between(recordings: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the problems between the recordings of several ranks: rows of issues, with the path.

    Args:
        recordings: path, rank, epoch_ns (absolute time of the first event), span_ns.
    """
    rows = recordings.drop_nulls(["rank", "epoch_ns", "span_ns"])
    ends = pl.col("epoch_ns") + pl.col("span_ns")
    of_rank = rows.group_by("rank").agg(
        pl.col("path").first(), begin=pl.col("epoch_ns").min(), end=ends.max()
    )
    if of_rank.height < 2 or rows.height < recordings.height:
        return []
    ranks = of_rank.sort("rank").with_columns(
        (pl.col(name) - pl.col(name).quantile(0.5, "lower").cast(pl.Int64)).alias(f"{name}_off")
        for name in ("begin", "end")
    )
    usual = ranks.select((pl.col("end") - pl.col("begin")).median()).item()
    least = max(APART_NS, _APART_FRAC * usual)
    apart = {
        name: ranks.filter(pl.col(f"{name}_off").abs().is_between(least, _OTHER_RUN_NS))
        for name in ("begin", "end")
    }
    moved = apart["begin"].filter(pl.col("rank").is_in(apart["end"]["rank"].implode()))
    found = [_apart(rows, name) for name, rows in apart.items() if rows.height]
    return found[:1] if moved.height == max(rows.height for rows in apart.values()) else found


_REMEDIES = {
    "begin": "start the profiler on all ranks at once, after a barrier",
    "end": "stop the profiler in the same step on all ranks",
}


def _apart(ranks: pl.DataFrame, name: str) -> dict[str, Any]:
    """Return the issue of ranks whose recordings begin or end apart from the others."""
    worst = ranks.sort(pl.col(f"{name}_off").abs(), descending=True).row(0, named=True)
    off = worst[f"{name}_off"]
    numbers = format_ranges(ranks["rank"].to_list())
    who = f"recording of rank {numbers}" if ranks.height == 1 else f"recordings of ranks {numbers}"
    text = (
        f"the {who} {name}{'s' if ranks.height == 1 else ''} {format_ns(abs(off))} "
        f"{'after' if off > 0 else 'before'} the others"
    )
    return {
        "path": worst["path"],
        "severity": "notice",
        "code": words.RECORDINGS_APART,
        "count": ranks.height,
        "first": f"{text}; {_REMEDIES[name]}",
    }
