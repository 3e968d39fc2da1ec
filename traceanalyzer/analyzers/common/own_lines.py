"""Which lines of own code take the time of sampled stacks, and what else the samples do.

A sample belongs to the innermost line of own code on its stack: the line is running, or waits for
the library code that it calls. Samples that import modules or wait are apart, and so are idle
threads: those that wait, or have no frame, without own code on their stack.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import libraries
from traceanalyzer.analyzers.common.waits import (
    DATA,
    DEVICE,
    EVENTS,
    FULL_QUEUE,
    LOCK,
    PROCESS,
    QUEUE,
    RANKS,
    REQUESTS,
    TAKES,
    THREAD,
    WAITS_FOR_REQUESTS,
    wait_of,
)
from traceanalyzer.frames import intervals, stack_weights
from traceanalyzer.units import format_frac

#: What a sample does that imports a module.
IMPORTS = "imports modules"
#: What a sample does that has no frame.
NO_FRAME = "has no Python frame"
#: Activities besides importing and the waits of :mod:`~.waits`.
RUNS, RUNS_OTHER, IDLE = "runs own code", "runs other code", "idle threads"
#: What threads without own code do, beside those with some: savers, loaders, servers of libraries.
BACKGROUND = "runs in background threads"
#: What the main thread does while it has no batch.
LOADER = "waits for the data loader"
_LOADER_CODE = r"[/\\]utils[/\\]data[/\\]"
_NEXT_BATCH = r"dataloader\.py: (?:\w+\.)*(?:__next__|_next_data|_(?:try_)?get_data)$"
#: Shorter than in findings.
_DATA = "waits for data"
#: What a sample does in which code is traced or compiled at run time, and where.
COMPILES = "compiles"
#: What a callback of asyncio does that waits, other than for the GPU, and where it is called.
BLOCKS, _CALLBACK = "blocks the event loop", r"asyncio[/\\]events\.py: (?:Handle\.)?_run$"
#: The kernel of a notebook runs each cell in a callback of asyncio.
_NOTEBOOK = r"(?:^|[/\\])ipykernel[/\\]"
_COMPILER = (
    r"(?:^|[/\\])(?:jax/_src/(?:compiler\.py: |interpreters/\w+\.py: (?:trace_to_jaxpr|lower_)\w*$)"
    r"|torch/(?:_dynamo/convert_frame\.py: |_inductor/compile_fx\.py: (?:\w+\.)*\w*compile)"
    r"|triton/compiler/compiler\.py: |numba/core/compiler\w*\.py: "
    r"|tensorflow/python/framework/func_graph\.py: func_graph_from_py_func$)"
)
#: Collectives, whose functions wait in calls of C that have no frame.
_COLLECTIVE = (
    r"(?:^|[/\\])torch[/\\]distributed[/\\]distributed_c10d\.py: "
    r"(?:all_|reduce|broadcast|gather|scatter|send|recv|batch_isend)"
)
_SYNCHRONISES = (
    r"(?:^|[/\\])(?:jax/_src/array\.py: (?:\w+\.)*block_until_ready"
    r"|torch(?:_npu)?/(?:cuda|xpu|npu|accelerator)/(?:__init__|streams|utils)\.py: "
    r"(?:\w+\.)*synchronize)$"
)
#: Functions of GPU runtimes that return when the GPU is done; copies, in which a wait is for the
#: GPU; and launches, which wait for room in the queue.
_IN_SYNC = (
    r": (?:(?:cuda|cu|hip|ze)[A-Z]\w*Synchronize\w*|(?:aclrt|rt)\w*Synchronize\w*"
    r"|hsa_(?:amd_)?signal_wait\w*"
    r"|rocr::.*Signal::Wait\w*)$"
)
_IN_COPY = r": (?:(?:cuda|cu|hip)Mem(?:cpy|set)\w*|(?:aclrt|rt)Mem(?:cpy|set)\w*)$"
_IN_LAUNCH = r": (?:cuda|cu|hip|aclrt|rt)(?:Module|Graph|Ext)?(?:Kernel)?Launch\w*$"
#: One turn of an event loop, and where :mod:`threading` starts a thread.
_LOOP = r"asyncio[/\\]base_events\.py: (?:\w+\.)*_run_once$"
_THREAD = r"(?:^|[/\\])threading\.py: (?:\w+\.)*_bootstrap(?:_inner)?$"
#: Waits for a thread or an event, by a lock below them.
_FOR_THREAD = r"(?:^|[/\\])threading\.py: (?:\w+\.)*(?:join|wait|wait_for|_wait_for_tstate_lock)$"
#: What is looked for on stacks.
_WITHIN = {
    "in_sync": _IN_SYNC, "in_copy": _IN_COPY, "in_launch": _IN_LAUNCH, "in_loop": _LOOP,
    "for_requests": WAITS_FOR_REQUESTS, "blocks": _CALLBACK, "cell": _NOTEBOOK,
    "compiles": _COMPILER, "takes": TAKES,
    "for_thread": _FOR_THREAD,
}  # fmt: skip

MODULE = "<module>"
_PROCESS = r"(?:^|[/\\])multiprocessing[/\\](?:process|forkserver|\w+_tracker)\.py$"
_ENTRY = r"^(?:.*\._bootstrap|_bootstrap|main)$"
#: Functions that only pass a call on, and those of the import system.
_PASSES_ON = (
    r"<locals>|(?:^|\.)(?:_?wrap(?:per|ped)\w*|_(?:wrapped_)?call_impl|decorate_\w+|_use_grad|inner|_?fn|__call__"
    r"|<lambda>|_?dispatch\w*)$"
)
_IMPORT_SYSTEM = "frozen importlib"

#: The part of a path before a package.
_UP_TO_PACKAGE = r"^.*(?:site|dist)-packages[/\\]|^.*[/\\]lib(?:64)?[/\\]python\d[\d.]*t?[/\\]"

#: Shares below this are not in a sentence.
_LEAST = 0.01
_MOST_LINES, _MOST_NUMBERS = 3, 5
#: Shares of a line that the call below it takes: below the first one it is not named.
_SMALL_PART, _HALF = 0.2, 0.5
#: From this share on, a wait is what the program does.
_MOST = 0.5


@dataclass(frozen=True)
class CallTree:
    """Sampled stacks as a tree of calls.

    Attributes:
        texts: ``name`` and ``file`` of each frame number.
        is_own_code: mask of the frames that are own code.
        parent: each node's caller, or ROOT.
        frame: each node's frame number.
        locked: numbers of the frames that are innermost while they wait for a lock.
    """

    texts: pl.DataFrame
    is_own_code: intervals.Bools
    parent: intervals.Ints
    frame: intervals.Ints
    locked: tuple[int, ...] = ()

    def on_stack(self, frames: intervals.Bools, node: intervals.Ints) -> intervals.Bools:
        """Whether the stack of each node has one of some frames."""
        found = at(stack_weights.nearest(self.parent, frames[self.frame]), node)
        has: intervals.Bools = found != stack_weights.ROOT
        return has


def starts_process(texts: pl.DataFrame) -> intervals.Bools:
    """Return a mask of the frames in which multiprocessing starts a child.

    In the stacks of a forked process the frames of its parent come before.
    """
    in_file = pl.col("file").fill_null("").str.contains(_PROCESS)
    starts = in_file & pl.col("name").str.contains(_ENTRY)
    mask: intervals.Bools = texts.select(starts.fill_null(value=False)).to_series().to_numpy()
    return mask


def doing(
    tree: CallTree, node: intervals.Ints, background: intervals.Bools | None = None
) -> pl.Series:
    """Return what a sample does instead of running code: wait, import, compile, or have no frame.

    Null for code that runs, but in background threads (a mask of the samples). A sample waits if
    its innermost function does, or the innermost one that is not native; below a wait for another
    process or for a batch of PyTorch's workers, it is that wait.
    """
    texts = tree.texts.select(pl.col("name").fill_null(""), "file").rows()
    waits = pl.Series([wait_of(*frame) for frame in texts], dtype=pl.String)
    native = np.array([bool(file) and libraries.is_native(file) for _, file in texts], np.bool_)
    source = at(stack_weights.nearest(tree.parent, ~native[tree.frame]), node)
    alone, above = (waits.gather(row_of(at(tree.frame, nodes))) for nodes in (node, source))
    begins = imports(tree.texts, _is_own_code(tree), tree.parent, tree.frame)
    inside = at(stack_weights.nearest(tree.parent, begins), node) != stack_weights.ROOT
    joins = tree.on_stack((waits == PROCESS).fill_null(value=False).to_numpy(), node)
    code = pl.Series([f"{file}: {name}" for name, file in texts], dtype=pl.String)
    of_ranks = (waits == RANKS).fill_null(value=False) | code.str.contains(_COLLECTIVE)
    ranks = tree.on_stack(of_ranks.to_numpy(), node)
    of_loader = code.str.contains(_LOADER_CODE).to_numpy()[tree.frame]
    loader = at(tree.frame, at(stack_weights.nearest(tree.parent, of_loader), node))
    loads = code.str.contains(_NEXT_BATCH).gather(row_of(loader)).fill_null(value=False)
    syncs = code.str.contains(_SYNCHRONISES).gather(row_of(at(tree.frame, source)))
    within = {
        name: tree.on_stack(code.str.contains(pattern).to_numpy(), node)
        for name, pattern in _WITHIN.items()
    }
    rows = pl.DataFrame(
        {"alone": alone, "above": above, "imports": inside, "joins": joins, "loads": loads,
         "ranks": ranks, "syncs": syncs.fill_null(value=False), **within}
    )  # fmt: skip
    apart = np.zeros(len(node), np.bool_) if background is None else background
    wait = _wait()
    return rows.select(
        doing=pl.when(pl.Series(node == stack_weights.ROOT))
        .then(pl.lit(NO_FRAME))
        .when("imports")
        .then(pl.lit(IMPORTS))
        .when("compiles")
        .then(pl.lit(COMPILES))
        .when(pl.Series(np.isin(at(tree.frame, node), tree.locked)))
        .then(pl.lit(LOCK))
        .when(pl.col("joins") & wait.is_not_null())
        .then(pl.lit(PROCESS))
        .when(pl.col("in_launch") & wait.is_not_null() & (wait != LOCK))
        .then(pl.lit(FULL_QUEUE))
        .when("ranks")
        .then(pl.lit(RANKS))
        .when(pl.col("loads") & wait.is_not_null())
        .then(pl.lit(LOADER))
        .when(pl.col("blocks") & ~pl.col("cell") & (wait != DEVICE))
        .then(pl.lit(BLOCKS))
        .when(pl.col("in_loop") & (wait == DATA))
        .then(pl.lit(EVENTS))
        .when(pl.Series(apart) & wait.is_null())
        .then(pl.lit(BACKGROUND))
        .otherwise(wait)
    ).to_series()


def _wait() -> pl.Expr:
    """Return the wait of the innermost function, by the call of a GPU runtime that it is in."""
    wait = pl.coalesce("alone", "above", pl.when("syncs").then(pl.lit(DEVICE)))
    is_wait = wait.is_not_null()
    return (
        pl.when(pl.col("in_sync") | (pl.col("in_copy") & is_wait))
        .then(pl.lit(DEVICE))
        .when(pl.col("for_requests") & is_wait)
        .then(pl.lit(REQUESTS))
        .when(pl.col("takes") & wait.is_in([THREAD, LOCK, DATA]))
        .then(pl.lit(QUEUE))
        .when(pl.col("for_thread") & (wait == LOCK))
        .then(pl.lit(THREAD))
        .otherwise(wait)
    )


def imports(
    texts: pl.DataFrame, in_own_code: intervals.Bools, parent: intervals.Ints, frame: intervals.Ints
) -> intervals.Bools:
    """Return a mask of the nodes of a call tree that import a module.

    These are calls of the import system, and a module below another one, or one of a library below
    any function but that of ``python -m``.

    Args:
        texts: ``name`` and ``file`` of each frame number.
        in_own_code: mask of the frames of own code.
        parent: each node's caller, or ROOT.
        frame: each node's frame number.
    """
    texts = texts.select(pl.col("name", "file").fill_null(""))
    is_module = (texts["name"] == MODULE).to_numpy()
    by_system = texts["file"].str.contains(_IMPORT_SYSTEM, literal=True).to_numpy()
    is_runner = texts["file"].str.contains("runpy").to_numpy()
    caller = np.where(is_module, 2, np.where(is_runner, 0, 1))[frame]
    below = np.maximum(at(caller, parent), 0)
    imported: intervals.Bools = is_module[frame] & (below > in_own_code[frame])
    return by_system[frame] | imported


def _is_own_code(tree: CallTree) -> intervals.Bools:
    rows = tree.texts.select("name", "file").rows()
    return np.array([libraries.is_own_code(*frame) for frame in rows], np.bool_)


def sums(
    tree: CallTree,
    node: intervals.Ints,
    weight: pl.Series,
    group: pl.Series,
    background: intervals.Bools | None = None,
) -> pl.DataFrame:
    """Return the weight by own line, the call below it, and what the samples do.

    The call is the outermost function below the line that does more than to pass the call on.

    Returns:
        ``group``, ``owner`` and ``call`` (frame numbers; without own code the innermost function
        of an installed package, else the innermost one; null for the line itself), ``doing``,
        ``idle`` (the sample is of an idle thread), ``started`` (it is of a thread that Python's
        threading started), ``samples``.
    """
    in_own_code = tree.is_own_code[tree.frame]
    passes_on = _passes_on(tree.texts)[tree.frame] & ~in_own_code
    nearest = stack_weights.nearest(tree.parent, in_own_code)
    above = at(stack_weights.nearest(tree.parent, ~passes_on), tree.parent)
    starts = ~in_own_code & ~passes_on & (at(in_own_code.astype(np.int64), above) == 1)
    call = at(stack_weights.nearest(tree.parent, starts | in_own_code), node)
    line = at(nearest, node)
    call = np.where(call == line, np.where(line == node, stack_weights.ROOT, node), call)
    call = np.where(line == stack_weights.ROOT, _in_package(tree, node), call)
    own_code, does = _is_own_code(tree), doing(tree, node, background)
    waits = (~does.is_in([IMPORTS, COMPILES, BACKGROUND])).fill_null(value=False).to_numpy()
    waits &= own_code.any() and ~tree.on_stack(own_code, node)
    rows = pl.DataFrame(
        {
            "group": group,
            "owner": row_of(at(tree.frame, line)),
            "call": row_of(at(tree.frame, call)),
            "doing": does,
            "idle": (does == NO_FRAME).fill_null(value=False) | pl.Series(waits),
            "started": tree.on_stack(starts_thread(tree.texts), node),
            "samples": weight,
        }
    )
    keys = ["group", "owner", "call", "doing", "idle", "started"]
    return rows.group_by(keys, maintain_order=True).agg(pl.col("samples").sum())


def starts_thread(texts: pl.DataFrame) -> intervals.Bools:
    """Return a mask of the frames in which Python's threading starts a thread."""
    code = pl.format("{}: {}", pl.col("file").fill_null(""), pl.col("name").fill_null(""))
    mask: intervals.Bools = texts.select(code.str.contains(_THREAD)).to_series().to_numpy()
    return mask


def _in_package(tree: CallTree, node: intervals.Ints) -> intervals.Ints:
    """Return the innermost function of an installed package above each node, or the node."""
    known = {file: libraries.package_of(file) for file in tree.texts["file"].unique()}
    package = [known[file] for file in tree.texts["file"]]
    mask = np.array([bool(one) and one != libraries.STANDARD_LIBRARY for one in package], np.bool_)
    found = at(stack_weights.nearest(tree.parent, mask[tree.frame]), node)
    return np.where(found == stack_weights.ROOT, node, found)


def _passes_on(texts: pl.DataFrame) -> intervals.Bools:
    name, file = (pl.col(column).fill_null("") for column in ("name", "file"))
    test = name.str.contains(_PASSES_ON) | file.str.contains(_IMPORT_SYSTEM, literal=True)
    mask: intervals.Bools = texts.select(test).to_series().to_numpy()
    return mask


# --- lines, activities, and the sentence about them --------------------------------------------


def lines(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per own line that runs code, most samples first.

    Args:
        rows: ``group``, ``place`` (the own line, null without own code), ``calls`` (null for the
            line itself), ``doing``, ``idle``, ``samples``; further columns of the line.

    Returns:
        ``group``, ``place``, further columns, ``calls`` (the call with most of its samples),
        ``calls_frac`` (its share of the line), ``samples``, ``samples_frac`` (of the samples that
        run code).
    """
    running = rows.filter(pl.col("doing").is_null())
    whole = running["samples"].sum()
    found = _with_largest_call(running.drop_nulls("place"), ["group", "place"])
    return found.with_columns(samples_frac=pl.col("samples") / (whole or 1)).sort(
        "samples", "group", "place", descending=[True, False, False]
    )


def activities(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per activity: what the samples do, most samples first.

    Args:
        rows: as of :func:`lines`.

    Returns:
        ``activity``, ``place`` (the own line with most of it, or null), ``calls`` (the call below
        it), ``place_frac`` (its share of the activity), ``samples``, ``samples_frac`` (of all).
    """
    has_line = pl.col("place").is_not_null()
    doing = pl.col("doing").str.replace(DATA, _DATA, literal=True)
    running = pl.when(has_line).then(pl.lit(RUNS)).otherwise(pl.lit(RUNS_OTHER))
    activity = pl.when("idle").then(pl.lit(IDLE)).otherwise(pl.coalesce(doing, running))
    rows = rows.with_columns(activity=activity)
    by_place = _with_largest_call(rows, ["activity", "place"])
    largest = pl.col("samples").sort_by(has_line, "samples", descending=True).first()
    total = rows["samples"].sum()
    return (
        by_place.sort(has_line, "samples", "place", descending=[True, True, False])
        .group_by("activity", maintain_order=True)
        .agg(
            pl.col("place", "calls").first(),
            place_frac=largest / pl.col("samples").sum(),
            samples=pl.col("samples").sum(),
        )
        .with_columns(samples_frac=pl.col("samples") / (total or 1))
        .sort("samples", "activity", descending=[True, False])
    )


def _with_largest_call(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Sum the rows by keys; ``calls`` is the one with most of the weight."""
    by_call = rows.group_by(*keys, "calls", maintain_order=True).agg(
        pl.exclude("samples").first(), pl.col("samples").sum()
    )
    by_call = by_call.sort("samples", "calls", descending=[True, False])
    share = pl.col("samples").first() / pl.col("samples").sum()
    return by_call.group_by(keys, maintain_order=True).agg(
        pl.exclude("samples").first(), calls_frac=share, samples=pl.col("samples").sum()
    )


def answer(rows: pl.DataFrame, acts: pl.DataFrame, unit: str, first: Sequence[str] = ()) -> str:
    """Return sentences on the lines of own code with most time, and on what is apart.

    Five numbers at most: up to three lines, then importing, waiting, idle threads and other code.
    If most of the time is a wait, it comes first, and the lines have their shares of the whole.

    Args:
        rows: result of :func:`lines`, not empty; groups are summed.
        acts: result of :func:`activities`.
        unit: unit of the weights.
        first: further shares of all samples, to come before those of importing and so on.
    """
    apart = [*first, *_apart(acts)]
    summed = rows.group_by("place", maintain_order=True).agg(
        pl.col("samples_frac").sum(), pl.col("calls", "calls_frac").first()
    )
    summed = summed.sort("samples_frac", descending=True, maintain_order=True)
    top = summed.head(max(1, min(_MOST_LINES, _MOST_NUMBERS - len(apart))))
    top = pl.concat([top.head(1), top.slice(1).filter(pl.col("samples_frac") >= _LEAST)])
    whole = {"ns": "the whole time", "samples": "all samples"}.get(unit, "the whole")
    if wait := _main_wait(acts, whole):
        runs = float(acts.filter(_RUNS)["samples_frac"].sum())
        each = [f"{place} {format_frac(share * runs)}" for place, share, *_ in top.iter_rows()]
        return f"{wait}. Your code: {', '.join(each)}."
    all_runs = acts.select(_RUNS.all()).item()
    line, *more = (
        f"{format_frac(share)}{_whole(unit, all_runs=all_runs) if not row else ''} "
        f"in {place}{_in_call(calls, part)}"
        for row, (place, share, calls, part) in enumerate(top.iter_rows())
    )
    sentence = "; ".join([line, *more]) + "."
    if not apart:
        return sentence
    return f"{sentence} Of {whole}: {', '.join(apart)}."


#: What runs code.
_RUNS = pl.col("activity").is_in([RUNS, RUNS_OTHER])
#: What is no wait.
_NO_WAIT = [IMPORTS, COMPILES, IDLE, RUNS, RUNS_OTHER, BACKGROUND, LOADER]
#: Waits for threads that the samples show, too.
_FOR_THREADS = [THREAD, QUEUE]


def _main_wait(acts: pl.DataFrame, whole: str) -> str:
    """Return ``93.0 % of all samples: waits for the GPU`` if most samples are one kind of wait."""
    is_wait = ~pl.col("activity").is_in([*_NO_WAIT, *_FOR_THREADS])
    rows = acts.filter(pl.col("samples_frac") >= _MOST, is_wait)
    for row in rows.head(1).iter_rows(named=True):
        activity = f"{row['activity']}{_waits_in(rows)}".replace(") (", ", ")
        return f"{format_frac(row['samples_frac'])} of {whole}: {activity}"
    return ""


def _whole(unit: str, *, all_runs: bool) -> str:
    """Return ``of samples that run code are``: what the shares of lines refer to."""
    if unit == "ns":
        return f" of the time{'' if all_runs else ' that code runs'} is"
    if unit == "samples":
        return f" of samples{'' if all_runs else ' that run code'} are"
    whole = f"the {unit or 'weight'}{'' if all_runs else ' of code that runs'}"
    return f" of {whole} {'are' if unit else 'is'}"


def _in_call(calls: str | None, part: float) -> str:
    if calls is None or part < _SMALL_PART:
        return ""
    return f", {'most of it' if part >= _HALF else 'the largest part'} in {calls}"


def _apart(acts: pl.DataFrame) -> Iterator[str]:
    """Return texts such as ``importing 22.0 %`` for what is not a line of own code."""
    what = pl.col("activity")
    labels = {
        "importing": what == IMPORTS,
        "compiling": what == COMPILES,
        "waiting": ~what.is_in([one for one in _NO_WAIT if one != LOADER]),
        "idle threads": what == IDLE,
        "other code": what == RUNS_OTHER,
        "background threads": what == BACKGROUND,
    }
    for label, which in labels.items():
        rows = acts.filter(which)
        share = float(rows["samples_frac"].sum())
        if share >= _LEAST:
            yield f"{label} {format_frac(share)}{_waits_in(rows)}"


def _waits_in(rows: pl.DataFrame) -> str:
    """Return the own line with most of it; of other code, the function of a library."""
    other = pl.when(pl.col("activity").is_in([RUNS_OTHER, BACKGROUND])).then("calls")
    places = rows.head(1).select(pl.coalesce("place", other), pl.coalesce("calls", "place"))
    for place, calls in places.drop_nulls("place").iter_rows():
        return f" (most of it in {place}{f', {calls}' if calls not in (None, place) else ''})"
    return ""


def unknown(files: pl.Series, names: Sequence[str] = ()) -> str:
    """Return why no frame is in own code, and how to name it.

    Args:
        files: the file of each function, those with most weight first.
        names: the libraries that count as own code, if any.
    """
    if files.null_count() == files.len():
        return (
            "The frames have no files, so own code is unknown (py-spy, austin, pyinstrument and "
            "torch.profiler with with_stack=True record files)."
        )
    if names:
        return f"No frame is in code of {' or '.join(names)}."
    if all(map(libraries.is_native, files.drop_nulls())):
        return (
            "The frames are of native code without source files, so own code is unknown (py-spy "
            "and nsys profile --python-sampling=true record Python files)."
        )
    packages = (libraries.package_of(file) for file in files.drop_nulls())
    known = [name for name in packages if name and name != libraries.STANDARD_LIBRARY]
    name = next((name for name in known if not libraries.is_native(name)), "NAME")
    return (
        "No frame is in own code: all files are of the standard library or of installed packages. "
        f"--library-name {name} names the code to look at."
    )


# --- helpers of trees ----------------------------------------------------------------------------


def at(values: intervals.Ints, node: intervals.Ints) -> intervals.Ints:
    """Return the values at nodes, ROOT for ROOT."""
    if not values.size:
        return node
    taken: intervals.Ints = np.where(node == stack_weights.ROOT, stack_weights.ROOT, values[node])
    return taken


def row_of(numbers: intervals.Ints) -> pl.Series:
    """Return row numbers with null for ROOT."""
    return intervals.nullable("n", numbers, numbers != stack_weights.ROOT).cast(pl.UInt32)


def place_of(name: pl.Expr, path: pl.Expr, line: pl.Expr) -> pl.Expr:
    """Return ``train_step (trainer.py:9)`` from the columns of a frame; null without a name."""
    place = pl.concat_str(path, line.cast(pl.String), separator=":", ignore_nulls=True)
    return pl.when(path.is_null()).then(name).otherwise(pl.format("{} ({})", name, place))


def call_of(name: pl.Expr, file: pl.Expr) -> pl.Expr:
    """Return ``Adam.step (torch/optim/adam.py)``: a called function and its file."""
    named = pl.when(~file.str.starts_with("<")).then(file)
    return place_of(name, named.str.replace(_UP_TO_PACKAGE, ""), pl.lit(None))
