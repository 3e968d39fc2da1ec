"""Kernel statistics of each rank, combined over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import polars as pl

from traceanalyzer import vocabulary
from traceanalyzer.analyzers.base import Analyzer, Needs, Reader, Reading
from traceanalyzer.analyzers.common import host_code, kernel_names, launching, replays
from traceanalyzer.analyzers.common.columns import largest_first, ratio, stacked, whole
from traceanalyzer.analyzers.common.device_steps import device_steps, launching_step
from traceanalyzer.analyzers.common.device_work import (
    COMMUNICATION,
    COMPUTE,
    DEVICE,
    MEMORY,
    device_work,
    runs,
)
from traceanalyzer.analyzers.common.kernel_names import (
    COPY,
    ELEMENTWISE,
    OTHER,
    families_of,
    family,
    is_fusible,
    short_names,
)
from traceanalyzer.analyzers.common.launching import launch_rows
from traceanalyzer.analyzers.common.names import frame_text, is_step, mapped, named
from traceanalyzer.analyzers.kernels import By, Options
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.kernels.training import (
    ATTENTION,
    AVOIDABLE,
    EXTENDED,
    JOIN,
    NORM,
    ONE_BY_ONE,
    TUNING,
    grids_of,
    of_others,
    training,
)
from traceanalyzer.analyzers.modules import assignment, compute as modules
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, linking, nesting, numbering, slice_tree
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace, of_kinds, record_hint

#: Columns to group by for each ``By``, the outer ones first.
GROUP: dict[By | None, tuple[str, ...]] = {
    None: (),
    "rank": ("rank",),
    "device": ("rank", "device"),
    "stream": ("rank", "device", "stream"),
    "operator": ("operator",),
    "annotation": ("annotation",),
    "module": ("module",),
    "code": ("code",),
}
#: Groups by what the host runs, and those that arguments of kernels may name.
_ON_HOST = ("operator", "annotation", "module", "code")
_IN_ARGUMENTS = ("module", "code")

#: Columns of the scope of shares: they are of the work of the row's rank or device if grouped by
#: it, else of all work.
_SCOPE: dict[By | None, tuple[str, ...]] = {
    "rank": ("rank",),
    "device": ("rank", "device"),
    "stream": ("rank", "device"),
}

#: Part of the names of PyTorch's annotations, which it recorded as operators until 2021.
PYTORCH_MARK = "#"

#: Kernels with a smaller share of the kernel time get no place; so there are at most 20.
_LEAST_FRAC = 0.05

#: Kinds of the calls that wait for a device, and of those that it waits for.
SYNCHRONISATION, LAUNCH = "synchronisation", "launch_overhead"
#: Idle time from this length on has another cause than launches.
_LONG_NS = 1_000_000
#: Most launch calls of a kernel that are looked up.
_MOST_CALLS = 128
#: From so many rows on, the kernels of one rank after another are sorted by step.
_MANY_ROWS = 1_000_000

_PLACES = {
    "name": pl.String,
    "work_kind": pl.String,
    "ns": pl.Int64,
    **dict.fromkeys(("operator", "outer", "annotation", "code", "called"), pl.String),
}


def needs(options: Options) -> Needs:
    """Device work, and launch calls with operators or annotations if grouped by those."""
    if options.by == "operator":
        return Needs({*vocabulary.DEVICE_WORK, *vocabulary.LAUNCH_KINDS, "cpu_op"})
    if options.by == "annotation":
        return Needs(
            {*vocabulary.DEVICE_WORK, *vocabulary.LAUNCH_KINDS, *vocabulary.ANNOTATION_KINDS},
            (PYTORCH_MARK,),
        )
    if options.by in _IN_ARGUMENTS:
        return replace(modules.NEEDS, columns=("args",))
    unused = {"tid", "correlation", "external_id", "bytes"}  # streams show impossible times
    return Needs({*vocabulary.DEVICE_WORK}, unused=tuple(unused - {options.by}), inputs_of={JOIN})


@dataclass(frozen=True)
class Part:
    """One rank's device work.

    Attributes:
        path: the file.
        work: one row per device event: kernel (row of ``kernels``), length_ns, and the columns to
            group by: rank, device, stream, or what the host runs at its launch, with
            ``is_named`` (whether arguments of the kernel have it).
        kernels: name and family of each kernel, copy and memset.
        devices: one row per device: rank, path, device, n, total_ns, busy_ns, span_ns.
        unfinished: number of device events without an end, which are not counted.
        before: see :func:`~traceanalyzer.analyzers.common.launching.launched_before`.
        replays: kernels replayed by graphs: their row of ``work`` and
            :data:`~.common.replays.CONTEXTS`; launchers: the result of
            :func:`~.common.replays.known` for the others. None unless grouped by operator, module
            or code.
        by_step: device, step, name, blocks, n, total_ns, max_ns, fusible_ns, local_memory of
            kernels without communication, tuning and those of other processes; None if not
            requested.
        training: rows of :func:`~.training.training`; None if not requested.
        heavy: rows of :func:`places`; None if not requested.
        has_operators: operators were recorded.
    """

    path: str
    work: pl.DataFrame
    kernels: pl.DataFrame
    devices: pl.DataFrame
    unfinished: int
    before: int | launching.Beginning | None
    replays: pl.DataFrame | None = None
    launchers: pl.DataFrame | None = None
    by_step: pl.DataFrame | None = None
    training: pl.DataFrame | None = None
    heavy: pl.DataFrame | None = None
    has_operators: bool = False


def measure(trace: Trace, options: Options) -> Part:
    """Return the device work of one rank.

    Raises:
        MissingData: device work or the data to group by was not recorded.
        OptionError: a pattern is not a regular expression.
    """
    _require(trace, vocabulary.DEVICE_WORK)
    if options.by == "module":
        trace = assignment.with_slices(trace)
    work = device_work(trace, options.comm_patterns)
    if work.is_empty():
        raise MissingData(f"{trace.meta.path}: all recorded device work lacks an end time")
    before = launching.launched_before(trace, work)
    length = (pl.col("end") - pl.col("start")).alias("length_ns")
    recorded = int(trace.events["kind"].is_in(vocabulary.DEVICE_WORK).sum())
    unfinished = recorded - work.height
    keys = [name for name in GROUP[options.by] if name in work.columns]
    number, kernels = _kernels(work)
    devices = _devices(trace, work)
    rows = work.select(*keys, length).with_columns(number)
    part = Part(trace.meta.path, rows, kernels, devices, unfinished, before)
    if options.by not in _ON_HOST:
        return part
    part = replace(part, work=rows.with_columns(_launched_in(trace, work, options.by)))
    return part if options.by == "annotation" else _with_replays(trace, work, part, options.by)


def measure_for_diagnosis(trace: Trace, options: Options) -> Part:
    """Return the part of :func:`measure` with kernels per step and work by its purpose.

    Raises:
        MissingData: no device work was recorded.
        OptionError: a pattern is not a regular expression.
    """
    part = trace.kept(measure(trace, options))
    work = device_work(trace, options.comm_patterns)
    of_purpose = training(trace, options.comm_patterns)
    saved = fusible_ns(work, part.kernels, part.work["kernel"], of_purpose)
    tuning = of_purpose.filter(purpose=TUNING)
    counted = intervals.overlap_with(work, tuning, ["device"])["overlap"] == 0
    counted &= ~of_others(trace, work)
    by_step = trace.kept(_kernels_of_steps(trace, work, saved, counted))
    has_operators = bool((trace.events["kind"] == "cpu_op").any())
    return replace(
        part, by_step=by_step, training=of_purpose, heavy=places(trace, options.comm_patterns),
        has_operators=has_operators,
    )  # fmt: skip


def combine(parts: Sequence[Part], options: Options) -> Kernels:
    """Sum the kernels of all ranks by family and by name."""
    work, kernels = _with_common_numbers(parts)
    work, replayed, matched = _with_operators_of_replays(work, parts, options.by or "")
    is_named = work["is_named"] if "is_named" in work.columns else pl.Series([False])
    devices = pl.concat([part.devices for part in parts]).sort(
        "rank", "path", "device", nulls_last=True
    )
    group = GROUP[options.by]
    scope = _SCOPE.get(options.by, ())
    labels = short_names(kernels["name"].unique().drop_nulls().cast(pl.String).to_list())
    families, names = _summed(work, kernels, group, scope)
    return Kernels(
        by=options.by,
        n=work.height,
        total_ns=int(devices["total_ns"].sum()),
        busy_ns=int(devices["busy_ns"].sum()),
        span_ns=int(devices["span_ns"].sum()),
        unfinished=sum(part.unfinished for part in parts),
        launched_before_ns=launching.known_ns(part.before for part in parts),
        beginnings=launching.beginnings(part.before for part in parts),
        replayed=replayed.height,
        replayed_ns=int(replayed["length_ns"].sum()),
        replayed_matched=matched.height,
        replayed_matched_ns=int(matched["length_ns"].sum()),
        named_ns=int(work["length_ns"].filter(is_named).sum()),
        families=families,
        names=names.insert_column(
            len(group), mapped(names["name"].cast(pl.String), labels.__getitem__).alias("kernel")
        ).with_columns(pl.col("name").cast(pl.String)),
        groups=_groups(work, kernels, group, scope) if group else None,
        devices=devices.with_columns(busy_frac=ratio("busy_ns", "span_ns")),
        by_step=_by_step(parts, labels),
        training=_training(parts),
        heavy=_heavy(parts, labels),
        has_operators=any(part.has_operators for part in parts),
    )


def refine(result: Kernels, _options: Options, reader: Reader) -> Kernels:
    """Read how much work was launched before the recordings started."""
    read_ns = launching.read_launched_before(result.beginnings, reader)
    before_ns = launching.known_ns((result.launched_before_ns, read_ns))
    return replace(result, launched_before_ns=before_ns, beginnings=())


KERNELS = Analyzer(
    "kernels",
    Options,
    needs,
    measure,
    combine,
    refine=refine,
    measure_for={"page": measure_for_diagnosis},
)


# --- one rank ------------------------------------------------------------------------------


def _kernels_of_steps(
    trace: Trace, work: pl.DataFrame, saved: pl.Series, counted: pl.Series
) -> pl.DataFrame:
    """Count the kernels by name, grid size and the step that launched them."""
    before = intervals.reached(work, ["device", "name"])
    length = pl.col("end") - pl.col("start")
    busy = (pl.col("end") - pl.max_horizontal("start", before)).clip(0)
    kernels = work.select("event", "device", "name", length=length, busy_ns=busy)
    kernels = kernels.hstack([saved, _launching_step(trace, work)])
    kernels = kernels.filter((work["work_kind"] == COMPUTE) & counted)
    grids = grids_of(trace)
    place = linking.first_match(grids, kernels, ["event"])
    grids = grids.drop("event")[nesting.row_numbers(place)]
    sums = (
        kernels.hstack(grids)
        .group_by("device", "step", "name", "blocks")
        .agg(
            pl.col("busy_ns").sum(),
            pl.min_horizontal("fusible_ns", "busy_ns").sum(),
            n=pl.len().cast(pl.Int64),
            total_ns=pl.col("length").sum(),
            max_ns=pl.col("length").max(),
            local_memory=pl.col("local_memory").max(),
        )
    )
    return sums.drop_nulls("name").with_columns(pl.col("step").cast(pl.String))


def fusible_ns(
    work: pl.DataFrame, kernels: pl.DataFrame, number: pl.Series, of_purpose: pl.DataFrame
) -> pl.Series:
    """Return the time of pointwise kernels that fusion could save, per row of device work.

    Elementwise and copy kernels that follow each other on a stream, without other work between
    them, read and write the same tensors again. Of such a sequence the longest kernel remains; the
    time of the others is an upper bound of the gain. Kernels of TorchInductor are fused already;
    those of attention, of loops with a kernel per tensor, growing copies, and changes of layout
    are findings of their own. Copies that join tensors are not fused with each other. Of an RMS
    norm (:data:`NORM`) all kernels but the first count, its reductions, too.

    Args:
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`.
        kernels: name and family of each kernel.
        number: the row of ``kernels`` of each row of ``work``.
        of_purpose: rows of :func:`~.training.training`.
    """
    pointwise = [
        family in (ELEMENTWISE, COPY) and name is not None and is_fusible(name)
        for name, family in kernels.select("name", "family").iter_rows()
    ]
    counts = np.array(pointwise, np.bool_)[number.to_numpy()]
    start, end = intervals.bounds(work)
    of_norms = _of_purposes(work, of_purpose, NORM)
    saved = np.where(of_norms, end - start, 0)
    if counts.any():
        _, (lane,) = numbering.group_numbers(("device", "stream"), work)
        order = intervals.stable_order(lane, start)
        lane, counts = lane[order], counts[order]
        changes = (counts[1:] != counts[:-1]) | (lane[1:] != lane[:-1])
        joins = (
            kernels["name"].cast(pl.String).str.contains(kernel_names.JOINS).fill_null(value=False)
        )
        joins = joins.to_numpy()[number.to_numpy()][order]
        changes |= joins[1:] & joins[:-1]
        sequence = np.cumsum(np.append(False, changes))
        # attention, loops with a kernel per tensor, and growing copies are findings of their own
        others = of_norms | _of_purposes(
            work, of_purpose, ATTENTION, ONE_BY_ONE, EXTENDED, AVOIDABLE
        )
        kept = counts & ~others[order]
        rows = order[kept]
        saved[rows] = _without_longest((end - start)[rows], sequence[kept])
    return pl.Series("fusible_ns", saved)


def _of_purposes(work: pl.DataFrame, of_purpose: pl.DataFrame, *purposes: str) -> intervals.Bools:
    """Mark the work of these purposes."""
    key = "device", "start", pl.col("end") - pl.col("start")  # lengths have a smaller range
    rows = of_purpose.filter(pl.col("purpose").is_in(purposes)).select(key)
    if rows.is_empty():
        return np.zeros(work.height, np.bool_)
    of: intervals.Bools = linking.first_match(rows, work.select(key), rows.columns) != nesting.ROOT
    return of


def _without_longest(length: intervals.Ints, sequence: intervals.Ints) -> intervals.Ints:
    """Return the lengths, with 0 for the (first) longest of each sequence of adjacent rows."""
    first = np.flatnonzero(np.diff(sequence, prepend=-1))
    if not first.size:
        return length
    longest = np.maximum.reduceat(length, first)
    sizes = np.diff(np.append(first, length.size))
    ties = np.flatnonzero(length == np.repeat(longest, sizes))
    remaining = length.copy()
    remaining[ties[np.diff(sequence[ties], prepend=-1) != 0]] = 0
    return remaining


def _launching_step(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """Return the step that launched device work; null for work launched before the recording.

    Work without a recorded launch call belongs to the step in which it starts.
    """
    steps = device_steps(trace)
    rows = launching.launch_rows(trace, work)
    known = pl.Series(rows != nesting.ROOT)
    launched = trace.events["ts"][nesting.row_numbers(rows)]
    names = steps["step"].cast(pl.Categorical)  # small, of millions of kernels
    step = names[launching_step(steps, launched, work["start"])]
    first = work["start"].filter(known).min()
    recorded = known | (work["start"] >= first) if first is not None else ~known
    return step.zip_with(recorded, pl.Series([None], dtype=step.dtype)).alias("step")


def _kernels(work: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
    """Return the kernel number of each device event, and name and family of the kernels."""
    keys = ["kind", "name", "work_kind"]
    first, number = numbering.numbered([work[key] for key in keys])
    distinct = work.select(keys)[first]
    of_kernel = families_of(distinct.filter(pl.col("kind") == "kernel")["name"].drop_nulls())
    of_work = [
        COMMUNICATION
        if work_kind == COMMUNICATION
        else OTHER
        if name is None
        else of_kernel[name]
        if kind == "kernel"
        else family(name, kind)
        for kind, name, work_kind in distinct.iter_rows()
    ]
    kernels = distinct.select("name", pl.Series("family", of_work, dtype=pl.String))
    return pl.Series("kernel", number), kernels


def _launched_in(trace: Trace, work: pl.DataFrame, of: str) -> list[pl.Series]:
    """Return what each piece of work counts for: what its arguments name, or runs at its launch."""
    if of not in _IN_ARGUMENTS:
        return [_around_launches(trace, work, of)]
    names, is_named = assignment.of_work(trace) if of == "module" else _code(trace, work)
    return [names.alias(of), pl.Series("is_named", is_named)]


def _code(trace: Trace, work: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return the code of each kernel as of :func:`.assignment.code_of`, and if it is recorded."""
    try:
        code = assignment.code_of_work(host_code.with_call_stacks(trace))
    except MissingData:  # no calls
        lines = host_code.recorded_lines(trace, work["event"])
        code = pl.DataFrame({"code": lines, "is_named": lines.is_not_null()})
    names = code["code"]
    if not names.count() and not assignment.are_launched(trace):
        hint = record_hint(trace.meta, "python_function") or "record Python frames"
        raise MissingData(f"{trace.meta.path}: no lines or functions were recorded; {hint}")
    return names, code["is_named"]


def _around_launches(trace: Trace, work: pl.DataFrame, of: str) -> pl.Series:
    """Return the name of the innermost operator or annotation around each launch call.

    Work without such a call belongs to the operator with its external id.
    """
    by_id = of == "operator" and work["external_id"].null_count() < work.height
    if not by_id and not trace.events["kind"].is_in(vocabulary.LAUNCH_KINDS).any():
        trace.require(*vocabulary.CUDA_CALLS)
    launched = launching.launches(trace, work).select(
        "work", "pid", "tid", "launch_name", ts="launch_start"
    )
    slices = _slices(trace, _operators(trace) if of == "operator" else _annotations(trace))
    inner = _innermost(launched, slices).cast(pl.Int32).fill_null(nesting.ROOT)
    caller = np.full(work.height, nesting.ROOT, np.int32)
    caller[launched["work"]] = inner
    if by_id:
        caller = launching.with_external_ids(caller, work, slices)
    names = slices["name"][nesting.row_numbers(caller)].cast(pl.String).alias(of)
    return _with_graph_launches(names, launched) if of == "operator" else names


def _slices(trace: Trace, wanted: pl.Expr) -> pl.DataFrame:
    chosen = trace.events.select(wanted & (pl.col("dur") >= 0)).to_series()
    end = pl.col("ts") + pl.col("dur")
    columns = ("pid", "tid", "name", "external_id")
    return trace.events.select(*columns, start="ts", end=end).filter(chosen)


def _innermost(points: pl.DataFrame, slices: pl.DataFrame) -> pl.Series:
    """Return the row of the innermost slice around each point (pid, tid, ts)."""
    return slice_tree.innermost(
        points, slice_tree.build_tree(slices, ("pid", "tid")), ("pid", "tid")
    )


def _with_replays(trace: Trace, work: pl.DataFrame, part: Part, by: str) -> Part:
    """Add the kernels that graphs replayed, and the data that identifies what they count for."""
    rows = replays.contexts(trace, work, launching.launch_rows(trace, work))
    rows = rows.hstack(part.work.drop("kernel")).with_row_index("row")
    each = [rows.filter(~pl.col("replayed"))]
    if by in _IN_ARGUMENTS:
        rows = rows.filter(~pl.col("is_named"))
    calls = replays.captured(trace)
    if calls.height and by == "operator":
        slices = _slices(trace, _operators(trace))
        points = trace.events[["pid", "tid", "ts"]][calls["event"]]
        names = slices["name"][_innermost(points, slices)].cast(pl.String)
        each.append(calls.with_columns(names.alias("operator")))
    known = [replays.known(one.drop_nulls(by), [by]) for one in each]
    replayed = rows.filter("replayed").select(*replays.CONTEXTS, "row", "length_ns")
    return replace(part, replays=replayed, launchers=pl.concat(known))


def _with_graph_launches(names: pl.Series, launched: pl.DataFrame) -> pl.Series:
    """Return the operators of work; for graphs without one, the call that launched the graph."""
    graphs = launched.filter(pl.col("launch_name").cast(pl.String).str.contains("GraphLaunch"))
    calls = pl.repeat(None, names.len(), dtype=pl.String, eager=True)
    calls = calls.scatter(graphs["work"], graphs["launch_name"].cast(pl.String))
    return names.to_frame().select(pl.coalesce(names.name, calls)).to_series()


def _require(trace: Trace, kinds: Sequence[str]) -> None:
    """Raise the error with a recording hint if none of these kinds was recorded."""
    if not trace.events["kind"].is_in(kinds).any():
        trace.require(*kinds)


def _operators(trace: Trace) -> pl.Expr:
    if not assignment.are_launched(trace):
        _require(trace, ("cpu_op",))
    return pl.col("kind") == "cpu_op"


def _annotations(trace: Trace) -> pl.Expr:
    """Select the annotations of user and PyTorch, without steps except of inference engines."""
    marks = pl.col("name").cast(pl.String).str.contains(PYTORCH_MARK, literal=True)
    annotated = of_kinds(vocabulary.ANNOTATION_KINDS) | ((pl.col("kind") == "cpu_op") & marks)
    names = trace.events.select(pl.col("name").filter(annotated).unique())
    kept = ~is_step(names) | named(names, [f"^(?:{vocabulary.ENGINE_STEP})$"])
    wanted = names.filter(kept)["name"].drop_nulls()
    if wanted.is_empty():
        hint = record_hint(trace.meta, "user_annotation")
        raise MissingData(
            f"{trace.meta.path}: no annotations other than steps were recorded; {hint}"
        )
    return annotated & pl.col("name").is_in(wanted.implode())


def _devices(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    sums = intervals.summary(work, DEVICE)
    path = pl.lit(trace.meta.path).alias("path")
    return sums.sort(DEVICE).select(
        "rank", path, "device", "n", total_ns="total", busy_ns="length",
        span_ns=pl.col("end") - pl.col("start"),
    )  # fmt: skip


# --- where kernels are launched ------------------------------------------------------------------


def places(trace: Trace, patterns: Sequence[str] = ()) -> pl.DataFrame:
    """Return where the host launched kernels with much of the time, and exposed work.

    Args:
        trace: of one rank.
        patterns: see :func:`~traceanalyzer.analyzers.common.device_work.device_work`.

    Returns:
        name (null for all communication, all copies, all :data:`SYNCHRONISATION` and all
        :data:`LAUNCH`), work_kind, ns (of compute the duration, of other work the exposed time, of
        synchronising calls the time until the next work starts, of late launches the idle time
        before their work) and the columns of :func:`~.host_code.common_places`; the annotation of
        kernels with recorded lines of the program are these.
    """
    work, running = device_work(trace, patterns), runs(trace, patterns)
    launch = nesting.row_numbers(launch_rows(trace, work), "launch")
    kind, hidden = pl.col("work_kind").cast(pl.Categorical()), pl.lit(0)
    for of, runs_of_others in ((COMMUNICATION, running.by_kind[0]), (MEMORY, running.kernels)):
        if (work["work_kind"] == of).any():
            overlap = intervals.overlap_with(work, runs_of_others, DEVICE)["overlap"]
            hidden = pl.when(kind == of).then(overlap).otherwise(hidden)
    exposed = pl.col("end") - pl.col("start") - hidden
    each = work.select("name", kind, ns=exposed).hstack([launch]).filter(pl.col("ns") > 0)
    named_work = each.filter(kind != MEMORY).drop_nulls("name")
    no_name = pl.lit(None, each.schema["name"]).alias("name")
    of_all = each.filter(kind != COMPUTE).with_columns(no_name)
    waits = _synchronising(trace, work["start"])
    late = _late_launches(trace, work.hstack([launch]), waits)
    hosts = [rows.select(no_name, kind, "ns", "launch") for rows in (waits, late)]
    each = pl.concat([named_work, of_all, *(rows.filter(pl.col("ns") > 0) for rows in hosts)])
    keys = ["name", "work_kind"]  # as texts they would take most of the memory
    sums = each.group_by(keys).agg(total=pl.col("ns").sum(), n=pl.col("launch").count())
    whole = pl.col("total").sum().over("work_kind", pl.col("name").is_null())
    sums = sums.filter(pl.col("total") >= _LEAST_FRAC * whole)
    sums = sums.sort(pl.col(keys).cast(pl.String)).with_row_index("group")
    calls = each.drop_nulls("launch").join(sums, on=keys, nulls_equal=True, maintain_order="left")
    part = pl.int_range(pl.len()).over("group") * _MOST_CALLS // pl.col("n")
    calls = calls.filter((part != part.shift(1).over("group")).fill_null(value=True))
    at = calls["group", "ns"].hstack(trace.events["pid", "tid", "ts"][calls["launch"]])
    around = host_code.common_places(trace, at)
    rows = sums.join(around, on="group", how="left", maintain_order="left").rename({"total": "ns"})
    rows = rows.join(_common_lines(trace, work), on="name", how="left", maintain_order="left")
    others = (pl.when(pl.col("lines").is_null()).then(k) for k in ("operator", "outer", "code"))
    rows = rows.with_columns(*others, annotation=pl.coalesce("lines", "annotation"))
    return rows.select(pl.col(name).cast(dtype) for name, dtype in _PLACES.items())


def _common_lines(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Return ``lines`` of the kernels (``name``) that have the same recorded ones in all calls.

    Without lines it is the module of all layers: ``layers.*.attention``.
    """
    if "args" not in trace.events.columns:
        return work[["name"]].clear().with_columns(lines=pl.lit(None, pl.String))
    modules = assignment.named_modules(trace, work["event"]).str.replace_all(r"\d+", "*")
    lines = mapped(host_code.recorded_lines(trace, work["event"]), frame_text).alias("lines")
    lines = lines.zip_with(lines.is_not_null(), modules)
    rows = work[["name"]].hstack([lines]).unique()
    return rows.filter(pl.len().over("name") == 1).drop_nulls("lines")


def _synchronising(trace: Trace, starts: pl.Series) -> pl.DataFrame:
    """Return the calls that wait for a device, and the time from their end to the next work."""
    end = (pl.col("ts") + pl.col("dur")).alias("end")
    calls = trace.events.select(end, "name").with_row_index("launch")
    calls = calls.filter(named(calls, vocabulary.SYNCHRONISING_CALLS)).drop_nulls("end").sort("end")
    following = pl.DataFrame({"next": starts.sort()})
    rows = calls.join_asof(following, left_on="end", right_on="next", strategy="forward")
    kind = pl.lit(SYNCHRONISATION).alias("work_kind")
    return rows.select(kind, (pl.col("next") - pl.col("end")).alias("ns"), "launch", "next")


def _late_launches(trace: Trace, work: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return launches that an idle device waited for, and how long, except after ``waits``."""
    returned = trace.events[["ts", "dur"]][work["launch"]].sum_horizontal()
    free = intervals.reached(work, DEVICE)
    rows = work.select("launch", next="start", ns=pl.col("start") - free, late=returned - free)
    late = rows.filter(pl.col("late") >= 0, pl.col("ns") <= _LONG_NS)
    return late.join(waits, on="next", how="anti").with_columns(work_kind=pl.lit(LAUNCH))


# --- all ranks -----------------------------------------------------------------------------


def _with_common_numbers(parts: Sequence[Part]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the work of all parts with common kernel numbers, and those kernels."""
    each = [part.kernels for part in parts]
    kernels = pl.concat(each)
    first, number = numbering.numbered(kernels.get_columns())
    before = np.cumsum([0, *(frame.height for frame in each[:-1])])
    work = stacked([part.work for part in parts], before=pl.Series(before, dtype=pl.Int64))
    of = work["kernel"].to_numpy() + work["before"].to_numpy()
    return work.drop("before").with_columns(kernel=pl.Series(number[of])), kernels[first]


def _by_step(parts: Sequence[Part], labels: Mapping[str, str]) -> pl.DataFrame | None:
    """Count the kernels of all parts by rank, step and name, with their time."""
    frames = [part.by_step for part in parts if part.by_step is not None]
    if len(frames) < len(parts):
        return None
    sources = _sources(parts)
    repeated = pl.DataFrame(sources).is_duplicated().any()
    if len(parts) > 1 and not repeated and sum(map(len, frames)) >= _MANY_ROWS:
        order = pl.DataFrame(sources).select(pl.arg_sort_by("rank", "path")).to_series()
        each = (_by_step([parts[row]], labels) for row in order)
        return pl.concat(rows for rows in each if rows is not None)
    keys = ("rank", "path", "device", "step", "name", "blocks")
    sums, most = ("n", "total_ns", "busy_ns", "fusible_ns"), ("max_ns", "local_memory")
    rows = stacked(frames, **sources)
    if repeated:
        rows = rows.group_by(keys).agg(pl.col(sums).sum(), pl.col(most).max())
    kernel = mapped(rows["name"], lambda name: labels.get(name, name)).alias("kernel")
    rows = rows.with_columns(kernel).select(*keys[:4], "kernel", "blocks", *sums, *most)
    texts = ["path", "step", "kernel"]
    for name in texts:  # texts are compared once, not for each row
        known = pl.Enum(rows[name].cast(pl.String).drop_nulls().unique().sort())
        rows = rows.with_columns(pl.col(name).cast(known))
    return rows.sort(pl.all()).with_columns(pl.col(texts).cast(pl.Categorical))


def _training(parts: Sequence[Part]) -> pl.DataFrame | None:
    """The work of some purposes of all parts, with its rank and path."""
    known = [part for part in parts if part.training is not None]
    tables = [part.training for part in known if part.training is not None]
    return stacked(tables, **_sources(known)) if known else None


def _heavy(parts: Sequence[Part], labels: Mapping[str, str]) -> pl.DataFrame | None:
    """Return where the kernels with most time are launched, in the part with most of it."""
    ordered = sorted(parts, key=lambda part: part.path)
    frames = [part.heavy for part in ordered if part.heavy is not None]
    if not frames:
        return None
    rows = pl.concat(frames).sort("ns", descending=True, maintain_order=True)
    rows = rows.unique(["name", "work_kind"], keep="first", maintain_order=True)
    return rows.with_columns(
        mapped(rows["name"], lambda name: labels.get(name, name)).alias("kernel")
    )


def _sources(parts: Sequence[Part]) -> dict[str, pl.Series]:
    """Return rank and path of each part."""
    return {
        "rank": pl.Series([part.devices["rank"].first() for part in parts], dtype=pl.Int32),
        "path": pl.Series([part.path for part in parts], dtype=pl.String),
    }


def _with_operators_of_replays(
    work: pl.DataFrame, parts: Sequence[Part], by: str
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Add the operators, modules or code of kernels that graphs replayed to the work of all parts.

    Returns:
        The work, the replayed kernels, and those of them with one.
    """
    each, offset = [pl.DataFrame(schema={"row": pl.UInt32, "length_ns": pl.Int64})], 0
    for part in parts:
        if part.replays is not None:
            each.append(part.replays.with_columns(pl.col("row") + offset))
        offset += part.work.height
    replayed = pl.concat(each, how="diagonal")
    known = [part.launchers for part in parts if part.launchers is not None]
    if replayed.is_empty() or not known:
        return work, replayed, replayed
    matched = replays.resolved(replayed, known, [by])
    return work.with_columns(work[by].scatter(matched["row"], matched[by])), replayed, matched


def _summed(
    work: pl.DataFrame, kernels: pl.DataFrame, group: Sequence[str], scope: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Sum the work by family and by name within each group, the largest total first.

    Args:
        work: one row per device event, with ``kernel``.
        kernels: name and family of each kernel.
        group: the columns of ``work`` to group by.
        scope: columns of the work that shares refer to.
    """
    number, labels = work["kernel"].to_numpy(), kernels
    if group:
        first, number = numbering.numbered([*(work[key] for key in group), work["kernel"]])
        keys = work[[*group, "kernel"]][first]
        labels = keys.drop("kernel").hstack(kernels[keys["kernel"]])
    first, within = numbering.numbered(labels.drop("name").get_columns())
    by_name, by_family = _statistics(work["length_ns"], number, within)
    return (
        _with_shares(_in_ns(labels.drop("name")[first], by_family), (*group, "family"), scope),
        _with_shares(_in_ns(labels, by_name), (*group, "name", "family"), scope),
    )


def _statistics(
    values: pl.Series, number: numbering.Numbers, within: numbering.Numbers
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return statistics of the values of each group, and of each group of groups.

    Args:
        values: whole numbers, none of them null.
        number: the group of each value, from 0.
        within: the group of groups that each group is part of, from 0.

    Returns:
        One row per group, in order: group, n, total, min, max, median, p99. Quantiles between two
        values are interpolated.
    """
    value = pl.col("value")
    rows = pl.DataFrame([pl.Series("group", number), values.alias("value")])
    sums = {"total": value.sum(), "min": value.min(), "max": value.max()}
    fine = rows.group_by("group").agg(n=pl.len().cast(pl.Int64), **sums)
    outer = fine.with_columns(pl.Series(within).gather(fine["group"]).alias("group"))
    ends = {"min": pl.col("min").min(), "max": pl.col("max").max()}
    coarse = outer.group_by("group").agg(pl.col("n", "total").sum(), **ends)
    # separate aggregations: quantiles of millions of values take a third less time
    quantiles = {"median": value.median(), "p99": value.quantile(0.99, "linear")}
    of_fine = rows.group_by("group").agg(**quantiles)
    of_coarse = (
        rows.with_columns(group=pl.Series(within[number])).group_by("group").agg(**quantiles)
    )
    return (
        fine.join(of_fine, on="group").sort("group"),
        coarse.join(of_coarse, on="group").sort("group"),
    )


def _in_ns(labels: pl.DataFrame, sums: pl.DataFrame) -> pl.DataFrame:
    """Join the labels of each row and its statistics in whole nanoseconds."""
    statistics = sums.with_columns(mean=pl.col("total") / pl.col("n"))
    order = ("mean", "min", "median", "p99", "max")
    columns = [whole(pl.col(name)).alias(f"{name}_ns") for name in order]
    return labels.hstack(statistics.select("n", pl.col("total").alias("total_ns"), *columns))


def _groups(
    work: pl.DataFrame, kernels: pl.DataFrame, group: Sequence[str], scope: Sequence[str]
) -> pl.DataFrame:
    """Return one row per group, with the family that takes most of its time."""
    families = work.group_by(*group, "kernel").agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("length_ns").sum()
    )
    labelled = families.with_columns(kernels["family"][families["kernel"]])
    summed = labelled.group_by(*group, "family").agg(pl.col("n", "total_ns").sum())
    ordered = summed.sort("total_ns", "family", descending=[True, False])
    total = pl.col("total_ns").sum()
    sums = ordered.group_by(group, maintain_order=True).agg(
        n=pl.col("n").sum(),
        total_ns=total,
        family=pl.col("family").first(),
        family_frac=pl.when(total > 0).then(pl.col("total_ns").first() / total),
    )
    return _with_shares(sums, group, scope)


def _with_shares(sums: pl.DataFrame, keys: Sequence[str], scope: Sequence[str]) -> pl.DataFrame:
    whole = pl.col("total_ns").sum()
    share = ratio("total_ns", whole.over(scope) if scope else whole)
    shares = sums.with_columns(device_frac=share)
    first = ["n", "total_ns", "device_frac"]
    rest = [name for name in shares.columns if name not in (*keys, *first)]
    return largest_first(shares[[*keys, *first, *rest]], "total_ns", *keys, nulls_last=True)


def kernels(
    inputs: Inputs,
    *,
    by: By | None = None,
    comm_patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Kernels:
    """Return which kernels, copies and memsets take device time, by family and by name.

    Only device work is read, and launch calls if grouped by operator or annotation.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        by: also group by ``device``, ``stream``, ``rank``, ``operator``, ``annotation``,
            ``module`` or ``code`` (the lines that a kernel was compiled of or captured from, else
            the function of own code around its launch call).
        comm_patterns: regular expressions of further kernel names that are communication.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: device work or the data to group by was not recorded.
        OptionError: ``by`` is unknown, or a pattern is not a regular expression.
    """
    return run(KERNELS, inputs, Options(by, comm_patterns), **reading)
