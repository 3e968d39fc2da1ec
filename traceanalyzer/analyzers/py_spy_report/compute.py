"""Sampled stacks of each file, combined to one report: frames, paths, sums, processes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import columns, libraries, own_lines, waits
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.own_lines import at, row_of
from traceanalyzer.analyzers.py_spy_report import By, GroupBy, Match, Options
from traceanalyzer.analyzers.py_spy_report.result import LIBRARY, MAIN, NO_FRAME, PATH, LeafPaths
from traceanalyzer.errors import OptionError
from traceanalyzer.frames import intervals, numbering, stack_weights
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace
from traceanalyzer.units import NS_PER_S, format_weight

#: Name of merged frames in sums: only a runaway recursion is this deep.
_DEEPER = "(deeper than 10,000 frames)"
_DEEPEST = 10_000

BUILT_IN = "built-in"
#: The format whose lines are rows of the report, as in itwinai's.
_LINES = "collapsed"

_WORKER = r"(?:^|[/\\])torch[/\\]utils[/\\]data[/\\]_utils[/\\]worker\.py$"

#: What loads a batch, and where that does not keep the main thread from its work.
_LOADS, _APART = r"torch[/\\]utils[/\\]data[/\\]_utils[/\\]fetch\.py$", rf"{_WORKER}|threading\.py$"

_LINE = ("group", "place", *PATH, "calls", "calls_frac", "samples", "samples_frac")
_ROLES = (MAIN, "child process", "DataLoader worker")


#: Samples, and the names of processes and threads.
NEEDS = Needs({"sample", "lane"}, samples=True)


@dataclass(frozen=True)
class Part:
    """The report of one file.

    Attributes:
        path: the file.
        unit: of the weights, or None.
        rows: ``group`` (of ``by``, or null), :data:`PATH`, :data:`LIBRARY`, ``library`` (the
            matching name), ``samples``, and ``doing`` (what it does instead of running code: it
            waits or imports); in the file's order.
        lines: weight by line of own code or of the libraries, with the call below it: ``group``,
            ``name``, ``path``, ``line`` (null without such a line), ``calls`` and ``calls_file``
            (null for the line itself), ``doing``, ``idle``, ``started``, ``samples``.
        groups: ``group``, ``key``, ``path``, ``self`` and ``total`` if sums are requested.
        locks: rows of :func:`_locks` without ``frame``.
        processes: ``pid``, ``command``, ``role``, ``samples``.
        loading: the lines of samples in which the main thread loads a batch of a DataLoader.
        total: the sum of counted weights.
        idle: weight of samples without a Python frame, counted or not.
        left_out: weight of samples that are not in ``total``.
    """

    path: str
    unit: str | None
    rows: pl.DataFrame
    lines: pl.DataFrame
    groups: pl.DataFrame | None
    locks: pl.DataFrame
    processes: pl.DataFrame
    loading: pl.DataFrame
    total: float
    idle: float
    left_out: float


def measure(trace: Trace, options: Options) -> Part:
    """Return the report of one file.

    Raises:
        MissingData: the trace has no samples.
    """
    samples = _weighted(trace.require("sample"))
    frames = frames_of(trace, options)
    locks = _locks(samples, frames)
    frames = replace(frames, locked=tuple(locks["frame"]))
    if trace.meta.format != _LINES or trace.meta.weight_unit != "samples":
        samples = _merged(samples)
    node = samples["stack"].cast(pl.Int64).fill_null(stack_weights.ROOT).to_numpy()
    leaf = at(stack_weights.nearest(frames.parent, frames.kept[frames.frame]), node)
    without = (leaf if options.drop_module else node) == stack_weights.ROOT
    out = without & (options.exclude_idle_process or options.drop_module)
    counted = pl.Series(~out)
    labels = _labels(samples, trace, options.by).filter(counted)
    processes = _processes(samples, trace, frames, node)
    idle = float(samples.filter(pl.Series(node == stack_weights.ROOT))["weight"].sum())
    left_out = float(samples.filter(pl.Series(out))["weight"].sum())
    background = _background(samples, frames, node)[~out] & (not options.library_names)
    samples, leaf = samples.filter(counted), leaf[~out]
    groups = None
    if options.group_by:
        groups = _sums(frames, leaf, samples["weight"], labels, options.group_by)
    return Part(
        path=trace.meta.path,
        unit=trace.meta.weight_unit,
        rows=_rows(frames, leaf, samples["weight"], labels, options, background),
        lines=_lines(frames, leaf, samples["weight"], labels, background),
        groups=groups,
        locks=locks.drop("frame"),
        processes=processes,
        loading=_loading(frames, leaf, samples["weight"], labels),
        total=float(samples["weight"].sum()),
        idle=idle,
        left_out=left_out,
    )


def combine(parts: Sequence[Part], options: Options) -> LeafPaths:
    """Combine the reports of all files with one unit.

    Raises:
        OptionError: the rate is invalid.
    """
    parts, skipped = columns.of_one_unit(parts)
    unit, scale = _unit(parts[0].unit or "", options.rate)
    total = math.fsum(part.total for part in parts) * scale
    rows = pl.concat([part.rows for part in parts]).with_columns(pl.col("samples") * scale)
    if not options.library_names and not rows["path"].count():
        tagged = rows.drop_nulls("library")["samples"].sum()
        if tagged < _LEAST_NATIVE * total:  # of a runtime that is not known
            rows = rows.with_columns(pl.when(pl.lit(value=False)).then(pl.col(*LIBRARY, "library")))
    if options.aggregate_leaf_paths and len(parts) > 1:
        keys = ["group", *PATH, *LIBRARY, "library"]
        sums = pl.col("samples").sum(), pl.col("doing", "caller").first()
        rows = rows.group_by(keys, maintain_order=True).agg(sums)
    share = _share("samples", total).alias("samples_frac")
    paths = rows.sort("samples", descending=True, maintain_order=True).with_columns(share)
    paths = paths.with_columns(proportion=_proportion(paths, unit))
    files = pl.concat(
        part.processes.with_columns(file=pl.lit(part.path if len(parts) > 1 else None, pl.String))
        for part in parts
    ).with_columns(pl.col("samples") * scale)
    tagged = rows.filter(pl.col("library").is_not_null())["samples"].sum()
    order = ("group", *PATH, *LIBRARY, "library", "samples", "samples_frac", "doing", "caller")
    processes = files.sort("samples", descending=True, maintain_order=True).select(
        "file", "pid", "command", "role", "samples", share
    )
    lines, loading = (
        pl.concat(each).with_columns(
            pl.col("samples") * scale,
            place=own_lines.place_of(*map(pl.col, PATH)),
            calls=own_lines.call_of(pl.col("calls"), pl.col("calls_file")),
        )
        for each in ([part.lines for part in parts], [part.loading for part in parts])
    )
    return LeafPaths(
        options=options,
        total_samples=total,
        unit=unit,
        tagged_samples=float(tagged),
        loading=_whole(_by_place(loading)),
        idle_samples=math.fsum(part.idle for part in parts) * scale,
        left_out_samples=math.fsum(part.left_out for part in parts) * scale,
        lines=_whole(own_lines.lines(lines).select(*_LINE)),
        activities=_whole(own_lines.activities(lines)),
        busy_samples=_busy(lines, one_process=processes["role"].eq(MAIN).all()),
        paths=_whole(paths.select(*order, "proportion")),
        groups=_whole(_groups(parts, total, scale)) if options.group_by else None,
        locks=pl.concat([part.locks for part in parts]).with_columns(pl.col("samples") * scale),
        waits=_whole(_waits(lines, one_process=processes["role"].eq(MAIN).all())),
        processes=_whole(processes),
        input_notes=skipped,
    )


PY_SPY_REPORT = Analyzer("py_spy_report", Options, NEEDS, measure, combine, split_ranks=False)


# --- libraries of frames ---------------------------------------------------------------------


@dataclass(frozen=True)
class Frames:
    """Distinct frames, and the call tree over them.

    Attributes:
        distinct: one row per distinct frame: ``name``, ``path``, ``line`` as in the report, and its
            ``file`` as the profiler wrote it.
        frame: each node's row of ``distinct``.
        parent: each node's caller, :data:`ROOT` for a root; callers come first.
        kept: mask of the frames that count; the others are skipped.
        library: each frame's index in the list of libraries, :data:`ROOT` for no match. Without a
            list, 0 for the user's own code.
        child: mask of the nodes that are the entry of a child process.
        worker: mask of the nodes that are the loop of a DataLoader worker.
        locked: rows of ``distinct`` that are innermost while they wait for a lock.
    """

    distinct: pl.DataFrame
    frame: intervals.Ints
    parent: intervals.Ints
    kept: intervals.Bools
    library: intervals.Ints
    child: intervals.Bools
    worker: intervals.Bools
    locked: tuple[int, ...] = ()

    @property
    def calls(self) -> own_lines.CallTree:
        """The stacks with the counted frames of the libraries, or of own code."""
        is_own_code = (self.library != stack_weights.ROOT) & self.kept
        texts = self.distinct.select("name", "file")
        return own_lines.CallTree(texts, is_own_code, self.parent, self.frame, self.locked)


def frames_of(trace: Trace, options: Options) -> Frames:
    """Return the frames of a trace, and their libraries.

    The stacks of a forked process begin with the frames of its parent; these are removed, so that
    the parent's code does not count the child's samples (not with ``match="substring"``, to match
    the numbers of the reference).
    """
    stacks = trace.stacks
    rows = stacks.select("name", "file", "line")
    first, frame = numbering.numbered(rows.get_columns())
    unique = rows[first].with_columns(pl.col("name", "file").cast(pl.String))
    file = pl.col("file").fill_null("")
    loop = file.str.contains(_WORKER) & (pl.col("name") == "_worker_loop")
    is_child = own_lines.starts_process(unique)[frame]
    is_worker = unique.select(loop.fill_null(value=False)).to_series().to_numpy()[frame]
    parent = stacks["parent"].cast(pl.Int64).fill_null(stack_weights.ROOT).to_numpy()
    if options.match != "substring":
        parent = np.where(is_child, stack_weights.ROOT, parent)
    frozen = file.str.contains("frozen importlib", literal=True)
    distinct = unique.select(  # as in itwinai's report: frozen modules are ``built-in``
        pl.col("name").fill_null(""),
        pl.when(frozen).then(pl.lit(BUILT_IN)).otherwise("file").alias("path"),
        pl.when(frozen).then(-1).otherwise("line").cast(pl.Int64).alias("line"),
        pl.col("file"),
    )
    return Frames(
        distinct=distinct,
        frame=frame.astype(np.int64),
        parent=parent,
        kept=_kept(distinct, options),
        library=_library(distinct, options, frame[parent == stack_weights.ROOT]),
        child=is_child,
        worker=is_worker,
    )


def _kept(distinct: pl.DataFrame, options: Options) -> intervals.Bools:
    if not options.drop_module:
        return np.ones(distinct.height, np.bool_)
    texts = pl.concat_str(pl.col("name"), pl.col("path").fill_null(""), separator="\n")
    in_module: intervals.Bools = (
        distinct.select(texts.str.contains(own_lines.MODULE, literal=True)).to_series().to_numpy()
    )
    return ~in_module


def _library(distinct: pl.DataFrame, options: Options, roots: intervals.Ints) -> intervals.Ints:
    """Return the index of the requested library of each frame, or :data:`ROOT`.

    Frames at the root of native stacks are names of processes.
    """
    if not options.library_names:
        frames = zip(distinct["name"].to_list(), distinct["file"].to_list(), strict=True)
        is_own_code = np.array([libraries.is_own_code(*frame) for frame in frames], np.bool_)
        if not distinct["file"].count():
            is_own_code = np.array(libraries.code_of_native(distinct["name"].to_list()), np.bool_)
            is_own_code[roots] = False
        return np.where(is_own_code, 0, stack_weights.ROOT)
    by = libraries.by_substring if options.match == "substring" else libraries.by_component
    match = by(options.library_names)
    paths = distinct["path" if options.match == "substring" else "file"].to_list()
    place = {name: number for number, name in enumerate(options.library_names)}
    numbers = {
        path: stack_weights.ROOT if (name := match(path)) is None else place[name]
        for path in set(paths)
    }
    return np.array([numbers[path] for path in paths], np.int64)


# --- one file --------------------------------------------------------------------------------


def _weighted(samples: pl.DataFrame) -> pl.DataFrame:
    """Return the samples with weights, without those of the base of a comparison.

    Each sample counts once if no weight is recorded; otherwise one without a weight lost it.
    """
    before = (pl.col("category") == "before").fill_null(value=False)
    counted = samples.filter(~before)
    if counted["weight"].null_count() == counted.height:
        return counted.with_columns(weight=pl.lit(1.0))
    return counted.drop_nulls("weight")


def _merged(samples: pl.DataFrame) -> pl.DataFrame:
    """Return one row per stack of each thread, in order of the first sample."""
    keys = ["pid", "tid", "stack"]
    weight = pl.col("weight").sum()
    return samples.group_by(keys, maintain_order=True).agg(pl.exclude("weight").first(), weight)


def _background(samples: pl.DataFrame, frames: Frames, node: intervals.Ints) -> intervals.Bools:
    """Return a mask of the samples of threads without own code, in processes that have some.

    Where threads are not recorded, stacks that begin where a thread starts are of other threads.
    """
    calls = frames.calls
    starts = calls.on_stack(own_lines.starts_thread(calls.texts), node)
    of_user = pl.Series(calls.on_stack(calls.is_own_code, node))
    rows = samples.select("pid", "tid", of_user=of_user, starts=pl.Series(starts))
    runs, unknown = pl.col("of_user").any(), pl.col("tid").is_null()
    runs_there = pl.when(unknown).then(pl.col("of_user") | ~pl.col("starts"))
    in_thread = runs_there.otherwise(runs.over("pid", "tid"))
    mask: intervals.Bools = rows.select(~in_thread & runs.over("pid")).to_series().to_numpy()
    return mask


def _rows(
    frames: Frames,
    leaf: intervals.Ints,
    weight: pl.Series,
    labels: pl.Series,
    options: Options,
    background: intervals.Bools,
) -> pl.DataFrame:
    """Return one row per sample, or per leaf and library frame with equal texts."""
    library_nodes = _library_nodes(frames, leaf, max(len(options.library_names), 1))
    numbers = pl.DataFrame(
        {"group": labels, "leaf": at(frames.frame, leaf), "lib": at(frames.frame, library_nodes)}
    ).with_columns(own_lines.doing(frames.calls, leaf, background), samples=weight)
    numbers = numbers.with_columns(caller=pl.Series(at(frames.frame, _callers(frames, leaf))))
    if options.aggregate_leaf_paths:
        one = _first_equal(frames.distinct)
        merged = [pl.Series(name, at(one, numbers[name].to_numpy())) for name in ("leaf", "lib")]
        keys = ("group", "leaf", "lib")
        groups = numbers.with_columns(merged).group_by(keys, maintain_order=True)
        numbers = groups.agg(pl.col("samples").sum(), pl.col("doing", "caller").first())
    lib = numbers["lib"].to_numpy()
    doing = numbers["doing"]
    named = at(frames.library, lib)
    names = pl.Series(options.library_names or ("own code",), dtype=pl.String)
    at_leaf, at_lib = row_of(numbers["leaf"].to_numpy()), row_of(lib)
    leaves = [frames.distinct[name].gather(at_leaf) for name in PATH]
    callers = [frames.distinct[name].gather(at_lib) for name in PATH]
    place = frames.distinct.select(own_lines.place_of(*map(pl.col, PATH))).to_series()
    return numbers.select("group", "samples").with_columns(
        leaves[0].fill_null(NO_FRAME),
        *leaves[1:],
        *(caller.alias(name) for name, caller in zip(LIBRARY, callers, strict=True)),
        doing=doing,
        library=names.gather(row_of(named)),
        caller=place.gather(row_of(numbers["caller"].to_numpy())),
    )


#: Most levels between a function of a library and its caller, and functions that run event loops.
_LEVELS, _RUNS = 100, r"(?:^|[/\\])(?:uvloop|gevent|eventlet|trio|anyio)[/\\]"


def _callers(frames: Frames, leaf: intervals.Ints) -> intervals.Ints:
    """Return the node that calls the library of each leaf, else its file; ROOT if it is unknown."""
    files, names = frames.distinct["file"].to_list(), frames.distinct["name"]
    packages = [libraries.package_of(file) for file in files]
    skipped = [one == libraries.STANDARD_LIBRARY or not file or bool(re.search(_RUNS, file))
               for one, file in zip(packages, files, strict=True)]  # fmt: skip
    skips = (np.array(skipped, np.bool_) | (names == own_lines.MODULE).to_numpy())[frames.frame]
    caller = np.full(leaf.size, stack_weights.ROOT)
    for texts in (files, packages):
        same = pl.Series(texts, dtype=pl.String).fill_null("").rank("dense").to_numpy()
        same, node = np.append(same[frames.frame], -1), leaf
        for _ in range(_LEVELS):
            inside = (node != stack_weights.ROOT) & (
                (same[node] == same[leaf]) | np.append(skips, False)[node]
            )
            if not inside.any():
                break
            node = np.where(inside, frames.parent[node], node)
        known = (node != stack_weights.ROOT) & ~inside
        caller = np.where(known, node, caller)
    return caller


#: Least share of samples in native functions of the program.
_LEAST_NATIVE = 0.1
#: Least threads in a line at once, and share of these instants in which one is in later lines.
_SEVERAL, _ONE = 2, 0.9
_LOCKS = {"frame": pl.Int64, "place": pl.String, "holder": pl.String, "samples": pl.Float64}


def _locks(samples: pl.DataFrame, frames: Frames) -> pl.DataFrame:
    """Return the lines of own code in which threads wait for a lock, by the times of samples.

    Python runs one thread at a time: if several are in a line at once, and exactly one other is in
    other lines of the function, they wait for the lock that this one holds.

    Returns:
        frame (row of ``distinct``), place, holder (the line of the function, and the innermost
        function below it, in which one thread is meanwhile), samples.
    """
    found: list[tuple[object, ...]] = []
    node = samples["stack"].cast(pl.Int64).fill_null(stack_weights.ROOT).to_numpy()
    instant = ["pid", "ts"]
    rows = samples.select(*instant, "tid", "weight", leaf=pl.Series(at(frames.frame, node)))
    of_user = np.flatnonzero(frames.calls.is_own_code)
    at_once = rows.filter(pl.col("leaf").is_in(of_user)).drop_nulls("ts").group_by("leaf", *instant)
    counts = at_once.agg(pl.col("tid").n_unique(), pl.col("weight").sum())
    usual = counts.group_by("leaf").agg(pl.col("tid").median(), pl.col("weight").sum())
    several = usual.filter(pl.col("tid") >= _SEVERAL).sort("weight", "leaf").tail(1)
    place = frames.distinct.select(own_lines.place_of(*map(pl.col, PATH))).to_series()
    function = (
        frames.distinct.select(pl.struct("name", "path").rank("dense")).to_series().to_numpy()
    )
    for leaf, _, weight in several.iter_rows():
        others = function == function[leaf]
        others[leaf] = False
        nearest = stack_weights.nearest(frames.parent, others[frames.frame])
        line = at(frames.frame, at(nearest, node))
        inside = rows.with_columns(line=pl.Series(line)).filter(pl.col("line") >= 0)
        holders = inside.group_by(instant).agg(is_one=pl.col("tid").n_unique() == 1)
        waits = counts.filter(leaf=leaf).join(holders, on=instant, how="left")
        if waits["is_one"].sum() >= _ONE * waits.height:
            most = inside.group_by("line", "leaf").len().sort("len", "line", "leaf").row(-1)
            holder = ", below it mostly in ".join(dict.fromkeys(place[row] for row in most[:2]))
            found.append((leaf, place[leaf], holder, weight))
    return pl.DataFrame(found, schema=_LOCKS, orient="row")


def _lines(
    frames: Frames,
    leaf: intervals.Ints,
    weight: pl.Series,
    labels: pl.Series,
    background: intervals.Bools,
) -> pl.DataFrame:
    """Return the weight by line, call below it, and what the samples do."""
    sums = own_lines.sums(frames.calls, leaf, weight, labels, background)
    texts = frames.distinct
    lined = pl.when(pl.col("line") >= 0).then("line").alias("line")
    owner = texts.select("name", "path", lined)[sums["owner"]]
    call = texts.select(calls="name", calls_file="file")[sums["call"]]
    keys = ["group", *PATH, "calls", "calls_file", "doing", "idle", "started"]
    rows = pl.concat([sums.drop("owner", "call"), owner, call], how="horizontal")
    return rows.group_by(keys, maintain_order=True).agg(pl.col("samples").sum())


def _by_place(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the lines with most samples first, and after them what is in no own line."""
    largest = rows.sort("samples", "calls", descending=[True, False], maintain_order=True)
    places = largest.group_by("place", *PATH, maintain_order=True)
    sums = places.agg(pl.col("calls").first(), pl.col("samples").sum())
    order = [pl.col("place").is_null(), -pl.col("samples"), pl.col("place")]
    return sums.sort(order, maintain_order=True)


#: What a process waits for that another recorded thread or process does.
_FOR_OTHERS = (
    own_lines.LOADER, own_lines.BACKGROUND, own_lines.NO_FRAME, waits.THREAD, waits.PROCESS,
    waits.QUEUE, waits.DATA, waits.ENGINE,
)  # fmt: skip


#: Waits of the main thread that have no other finding.
_OF_MAIN = (
    waits.SLEEPS, waits.RETRY, waits.DRIVER, waits.LOCK, waits.THREAD, waits.QUEUE, waits.PROCESS,
    waits.DATA, waits.DISK, waits.KV_TRANSFER, waits.UNKNOWN,
)  # fmt: skip


def _busy(lines: pl.DataFrame, *, one_process: bool) -> float:
    """Return the weight of main threads, and of the code that other threads and processes run.

    Waits of other threads do not count, nor waits for what other processes and threads run.
    """
    does, started = pl.col("doing"), pl.col("started")
    of_others = lines.filter(started, does.is_null()).height > 0
    blocked = [waits.LOCK, waits.FILE_LOCK, waits.RANKS, own_lines.BLOCKS]
    not_main = started & ~does.is_in(blocked)
    apart = (
        [own_lines.BACKGROUND, *[waits.THREAD, waits.QUEUE] * of_others]
        if one_process
        else _FOR_OTHERS
    )
    counts = does.is_null() | does.is_in([own_lines.IMPORTS, own_lines.COMPILES])
    counts |= ~does.is_in(apart) & ~not_main & ~pl.col("idle")
    return float(lines.filter(counts)["samples"].sum())


def _waits(lines: pl.DataFrame, *, one_process: bool) -> pl.DataFrame:
    """Return the waits of the main thread by line of own code, without those for recorded work.

    What it waits for in a thread is what a recorded thread runs or waits for, other than a thread.
    """
    does, samples = pl.col("doing"), pl.col("samples")
    runs = does.is_null() | (does == own_lines.BACKGROUND)
    started = lines.filter("started")
    outside = _HAS_PLACE & ~does.is_in(_OF_THREADS)
    recorded = [started.filter(one)["samples"].sum() for one in (runs, runs | outside)]
    others = pl.when(does.is_in(_OF_THREADS)).then(recorded[1]).otherwise(recorded[0])
    of_main = lines.filter(
        ~pl.col("started"), ~pl.col("idle"), does.ne_missing(own_lines.BACKGROUND)
    )
    rows = of_main.filter(does.is_in(_OF_MAIN), _HAS_PLACE, pl.lit(one_process))
    rows = rows.filter(samples.sum().over("doing") > 2 * others)
    places = largest_first(rows, "samples", "place", "calls").group_by(
        "place", activity="doing", maintain_order=True
    )
    whole = of_main["samples"].sum() or 1
    sums = places.agg(pl.col("calls").first(), samples.sum(), frac=samples.sum() / whole)
    return largest_first(sums, "samples", "activity", "place")


_HAS_PLACE = pl.col("place").is_not_null()
#: Waits for threads.
_OF_THREADS = (waits.LOCK, waits.THREAD, waits.QUEUE)


def _loading(
    frames: Frames, node: intervals.Ints, weight: pl.Series, labels: pl.Series
) -> pl.DataFrame:
    """Return the lines of stacks of the main thread that load a batch of a DataLoader."""
    file = frames.distinct["file"].cast(pl.String).fill_null("")
    masks = (file.str.contains(pattern).to_numpy() for pattern in (_LOADS, _APART))
    loads, apart = (frames.calls.on_stack(mask, node) for mask in masks)
    mask = loads & ~apart
    inside = pl.Series(mask)
    nothing = np.zeros(int(mask.sum()), np.bool_)
    return _lines(frames, node[mask], weight.filter(inside), labels.filter(inside), nothing)


def _first_equal(distinct: pl.DataFrame) -> intervals.Ints:
    """Return for each frame the first one with equal texts."""
    _, (same,) = numbering.group_numbers(PATH, distinct)
    _, first = np.unique(same, return_index=True)
    one: intervals.Ints = first[same]
    return one


def _library_nodes(frames: Frames, leaf: intervals.Ints, libraries_asked: int) -> intervals.Ints:
    """Return the innermost node of the first listed library in the stack."""
    nodes: intervals.Ints = np.full(leaf.size, stack_weights.ROOT)
    for number in range(libraries_asked):
        wanted = (frames.library == number) & frames.kept
        if wanted.any():
            inner = at(stack_weights.nearest(frames.parent, wanted[frames.frame]), leaf)
            nodes = np.where(nodes == stack_weights.ROOT, inner, nodes)
    return nodes


def _labels(samples: pl.DataFrame, trace: Trace, by: By | None) -> pl.Series:
    """Return the group label of each sample."""
    if by is None:
        return pl.repeat(None, samples.height, dtype=pl.String, eager=True).alias("group")
    if by == "file":
        return pl.repeat(trace.meta.path, samples.height, dtype=pl.String, eager=True)
    if by == "rank":
        return samples["rank"].cast(pl.String).fill_null(trace.meta.path)
    key = ["pid"] if by == "process" else ["pid", "tid"]
    joined = columns.left_join(samples.select(key), _named_lanes(trace, by), key)
    number = pl.col(key[-1]).cast(pl.String)
    text = pl.concat_str(number, pl.col("label"), separator=" ", ignore_nulls=True)
    unknown = pl.lit(f"(no {by})")
    return joined.select(
        pl.when(pl.col(key[-1]).is_null()).then(unknown).otherwise(text)
    ).to_series()


def _named_lanes(trace: Trace, by: By) -> pl.DataFrame:
    of_process = pl.col("tid").is_null() if by == "process" else pl.col("tid").is_not_null()
    return (
        trace.lanes.filter(of_process)
        .select("pid", "tid", "label")
        .unique(["pid", "tid"], keep="first", maintain_order=True)
        .drop(["tid"] if by == "process" else [])
    )


def _processes(
    samples: pl.DataFrame, trace: Trace, frames: Frames, node: intervals.Ints
) -> pl.DataFrame:
    """Return each process's samples and its role, from its stacks."""
    role = np.zeros(node.size, np.int64)
    for number, flags in ((1, frames.child), (2, frames.worker)):
        if flags.any():
            role[at(stack_weights.nearest(frames.parent, flags), node) != stack_weights.ROOT] = (
                number
            )
    return (
        samples.select("pid", samples="weight", role=pl.Series(role))
        .group_by("pid", maintain_order=True)
        .agg(pl.col("samples").sum(), pl.col("role").max())
        .join(_named_lanes(trace, "process"), on="pid", how="left", maintain_order="left")
        .select(
            "pid",
            command="label",
            role=pl.col("role").replace_strict(range(len(_ROLES)), _ROLES),
            samples="samples",
        )
    )


def _sums(
    frames: Frames, leaf: intervals.Ints, weight: pl.Series, labels: pl.Series, group_by: GroupBy
) -> pl.DataFrame:
    """Return self and total sums; repeated frames of a stack count once."""
    keys = frames.distinct.select(_key(frames.distinct, group_by))
    special = pl.DataFrame({"key": [_DEEPER, NO_FRAME]})
    distinct = pl.concat([keys, special], how="diagonal").unique(maintain_order=True)
    numbers = columns.left_join(keys, distinct.with_row_index("number"), keys.columns)["number"]
    parent, frame = _kept_tree(frames, numbers.cast(pl.Int64).to_numpy())
    forest, place = stack_weights.merge(parent, frame, _DEEPEST, distinct.height - 2)
    ends = at(np.append(place, stack_weights.ROOT)[_renumbered(frames)], leaf)
    frames_of_groups = [_no_sums(keys)]
    for label in labels.unique(maintain_order=True):
        mine = labels.eq_missing(label).to_numpy()
        node, inside = ends[mine], weight.to_numpy()[mine]
        self_weights = np.bincount(
            node[node != stack_weights.ROOT], inside[node != stack_weights.ROOT], forest.parent.size
        )
        float_weights = self_weights[None].astype(np.float64)
        alone, total = stack_weights.by_frame(forest, float_weights, distinct.height)
        for sums in (alone, total):
            sums[0, -1] += inside[node == stack_weights.ROOT].sum()
        frames_of_groups.append(
            distinct.with_columns(
                pl.lit(label, pl.String).alias("group"),
                pl.Series("self", alone[0]),
                pl.Series("total", total[0]),
            )
            .filter(pl.col("total") > 0)
            .select(frames_of_groups[0].columns)
        )
    return pl.concat(frames_of_groups)


def _no_sums(keys: pl.DataFrame) -> pl.DataFrame:
    sums = {"self": pl.Float64, "total": pl.Float64}
    return pl.DataFrame(schema={"group": pl.String, **keys.schema, **sums})


def _kept_tree(frames: Frames, number: intervals.Ints) -> tuple[intervals.Ints, intervals.Ints]:
    """Return the tree of the counted frames, and the number that each is summed by."""
    kept = frames.kept[frames.frame]
    above = np.full(frames.parent.size, stack_weights.ROOT)
    inner = frames.parent != stack_weights.ROOT
    above[inner] = stack_weights.nearest(frames.parent, kept)[frames.parent[inner]]
    renumbered = _renumbered(frames)
    parent = above[kept]
    return np.where(parent == stack_weights.ROOT, stack_weights.ROOT, renumbered[parent]), number[
        frames.frame[kept]
    ]


def _renumbered(frames: Frames) -> intervals.Ints:
    """Return the row of each kept node among the kept nodes."""
    numbers: intervals.Ints = np.cumsum(frames.kept[frames.frame]) - 1
    return numbers


def _key(distinct: pl.DataFrame, group_by: GroupBy) -> list[pl.Expr | pl.Series]:
    """Return the columns to sum by."""
    path = pl.col("path")
    if group_by == "function":
        return [pl.col("name").alias("key"), path]
    if group_by == "line":
        return [pl.col("name").alias("key"), path, pl.col("line")]
    if group_by == "file":
        return [path.fill_null("(no file)").alias("key")]
    if group_by == "module":
        module = path.str.replace(r"\.pyx?$", "").str.replace(r"[/\\]__init__$", "")
        dotted = module.str.replace_all(r"[/\\]", ".").str.strip_chars_start(".")
        return [
            pl.when(path.str.contains(r"\.pyx?$"))
            .then(dotted)
            .otherwise(path)
            .fill_null("(no file)")
            .alias("key")
        ]
    packages = [libraries.package_of(file) or "(scripts)" for file in distinct["file"].to_list()]
    return [pl.Series("key", packages, dtype=pl.String)]


# --- all files -------------------------------------------------------------------------------


def _unit(unit: str, rate: float | None) -> tuple[str, float]:
    """Return the unit of the result, and the factor of weights."""
    if rate is None or unit == "ns":
        return unit, 1.0
    if unit != "samples":
        raise OptionError(f"rate needs weights in samples (got {unit or 'an unknown unit'})")
    if not (math.isfinite(rate) and rate > 0):
        raise OptionError(f"rate must be > 0 and finite (got {rate:g})")
    return "ns", NS_PER_S / rate


def _groups(parts: Sequence[Part], total: float, scale: float) -> pl.DataFrame:
    sums = pl.concat([part.groups for part in parts if part.groups is not None])
    keys = [name for name in sums.columns if name not in ("self", "total")]
    return (
        sums.group_by(keys, maintain_order=True)
        .agg(pl.col("self", "total").sum() * scale)
        .sort("self", "total", *keys, descending=[True, True, *[False] * len(keys)])
        .with_columns(self_frac=_share("self", total), total_frac=_share("total", total))
    )


def _whole(frame: pl.DataFrame) -> pl.DataFrame:
    """Cast weights to integers if all are whole."""
    names = [name for name in ("samples", "self", "total") if name in frame.columns]
    if not all(columns.is_whole(frame[name]) for name in names):
        return frame
    return frame.with_columns(pl.col(names).cast(pl.Int64))


def _share(name: str, total: float) -> pl.Expr:
    return pl.col(name) / total if total else pl.lit(0.0)


def _proportion(paths: pl.DataFrame, unit: str) -> pl.Series:
    """Return texts such as ``53.05% (7468)``, as in itwinai's report."""
    percent = _texts(paths["samples_frac"], lambda value: f"{100 * value:.2f}%")
    return percent + " " + _texts(paths["samples"], lambda value: f"({_count(value, unit)})")


def _count(weight: float, unit: str) -> str:
    """Format samples without unit and commas, as in itwinai's report."""
    return format_weight(weight, unit) if unit in ("ns", "bytes") else f"{weight:.12g}"


def _texts(values: pl.Series, write: Callable[[float], str]) -> pl.Series:
    """Format numbers, each distinct one once."""
    texts = {value: write(value) for value in values.unique()}
    return values.replace_strict(texts, default=None, return_dtype=pl.String)


def py_spy_report(
    inputs: Inputs,
    *,
    library_names: str | Sequence[str] = (),
    match: Match = "component",
    aggregate_leaf_paths: bool = False,
    group_by: GroupBy | None = None,
    by: By | None = None,
    drop_module: bool = False,
    exclude_idle_process: bool = False,
    rate: float | None = None,
    **reading: Unpack[Reading],
) -> LeafPaths:
    """Return which lines of own code take the time of the samples.

    A stack counts for its innermost line of own code; as leaf path it counts for its leaf frame and
    is tagged by the innermost frame of a library. All formats with sampled stacks are supported.

    Args:
        inputs: a trace, a file or a folder, or several of them. In a folder or several inputs,
            files that cannot be read or have no samples are skipped and reported.
        library_names: libraries to tag by, the first listed wins; none: the user's own code, which
            is all code outside the standard library and the installed packages.
        match: ``component``: whole components of a path; ``substring``: anywhere in the path.
        aggregate_leaf_paths: one row for equal paths instead of one for each line of the file.
        group_by: self and total sums by ``function``, ``line``, ``file``, ``module`` or
            ``library``.
        by: also group by ``process``, ``thread``, ``rank`` or ``file``.
        drop_module: ignore module-level code, as itwinai's report does.
        exclude_idle_process: ignore samples without a Python frame.
        rate: samples per second; the result is then in seconds.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no file can be read.
        MissingData: no samples were recorded.
        OptionError: an option is invalid.
    """
    options = Options(
        library_names, match, aggregate_leaf_paths, group_by, by, drop_module,
        exclude_idle_process, rate,
    )  # fmt: skip
    return run(PY_SPY_REPORT, inputs, options, **reading)
