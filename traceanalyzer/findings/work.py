"""Rules for steps, code, memory, the host, and the input files."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.device_steps import fast_ns, usual_ns
from traceanalyzer.analyzers.common.kernel_names import ATTENTION, KV_CACHE
from traceanalyzer.analyzers.common.kernel_times import (
    LARGER_INPUTS,
    LONG_CALL,
    MORE_KERNELS,
    SLOW_GPU,
    Difference,
    compare,
)
from traceanalyzer.analyzers.common.names import frame_text, launched_by
from traceanalyzer.analyzers.common.step_marks import DECODE
from traceanalyzer.analyzers.common.waits import ADVICE, FILE_LOCK, wait_of
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.activities import advice_on_slice
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.info.compute import Info
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.kernels.training import TUNING
from traceanalyzer.analyzers.py_spy_report.result import LIBRARY, MAIN, LeafPaths
from traceanalyzer.analyzers.steps.engine import EAGER, GRAPH
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.analyzers.steps.slow_steps import ALL_OPERATORS, CODE, MOSTLY, SLOW
from traceanalyzer.findings import heavy_kernels, memory, straggling
from traceanalyzer.findings.busy import growing_copies, in_steps, is_found
from traceanalyzer.findings.device_time import WORK
from traceanalyzer.findings.rule import (
    MUCH_LEFT,
    Answers,
    Measured,
    explained_by,
    of_purpose,
    rule,
    without_others,
)
from traceanalyzer.findings.steps import RULES as OF_STEPS
from traceanalyzer.units import (
    format_count,
    format_first,
    format_frac,
    format_ns,
    format_ranges,
    format_ratio,
    format_weight,
)
from traceanalyzer.vocabulary import DATABASES, FAILED_CALLS, MEMORY_SNAPSHOT, NO_GPU_WORK


@rule(
    "steps",
    "steps that take longer than the median step",
    "time above the median step of each rank (of the fast steps, if most are much slower), as a "
    "share of the time of all steps",
    {"info": 0.02, "warning": 0.1, "critical": 0.3},
)
def _uneven_steps(result: Steps, answers: Answers) -> Iterator[Measured]:
    each = result.counted.unique(["rank", "path", "number"], maintain_order=True)
    each = _recorded_by_all(each, answers)
    # the duration of prefill depends on the prompts
    each = each.filter(pl.col("phase").fill_null(DECODE) == DECODE)
    each = each.join(_prefills(result, answers), on=_STEP, how="anti", nulls_equal=True)
    whole = int(each["duration_ns"].sum())
    length, computes_less = pl.col("duration_ns"), fast_ns(pl.col("compute_ns")).is_not_null()
    usual = pl.when(computes_less).then(length.median()).otherwise(usual_ns(length))
    over = length - usual.over("rank", "path", "batch")
    longer = _without_waits(each.with_columns(over=over.clip(0)), answers)
    cost = round(longer["over"].sum())
    if not cost or not whole:
        return
    worst = longer.row(0, named=True)
    grown = worst["grown"]
    grew = f", mostly {grown} ({format_ns(worst['grown_ns'])} more)" if grown else ""
    alike = longer.filter(
        pl.col("step") == worst["step"], pl.col("excess") >= _ALIKE * worst["excess"]
    )
    rank = "" if 2 * alike.height > result.ranks.height else f" of {worst['on']}"
    took = f"{rank}, {format_ns(worst['duration_ns'])} ({format_ratio(worst['ratio'])} the median)"
    slowest = f"Slowest: {worst['step']}{took}{grew}."
    kernels = _kernels_in(answers, worst)
    reason, remedy = _why_slow(result, answers, worst, kernels)
    explained = _growth(answers) | _of_tuning(answers, cost) | _of_one_kernel(answers, each, cost)
    if (kinds := answers.of(Kernels)) is not None and growing_copies(kinds, answers.time):
        explained["growing-copies"] = 1.0
    left = 1 - min(sum(explained.values()), 1.0)
    left = 1.0 if left < MUCH_LEFT else left
    if kernels and kernels.why == SLOW_GPU:
        explained["throttled-steps"] = 1.0
    size, period = left * cost / whole, _period(longer, worst)
    what = f"One step in {period} takes longer, which costs" if period else "Slow steps cost"
    if period and grown == "compute" and kernels and kernels.why == MORE_KERNELS:
        size, remedy = min(size, _OF_DESIGN), _LESS_OFTEN
        reason += _launched_in(answers, worst)
    elif kernels and kernels.why == LARGER_INPUTS:
        what, size = "Slow steps have larger inputs, which cost", min(size, _OF_DESIGN)
        remedy = f"If tokens per second are equal in all steps, nothing is lost. Else: {remedy}"
    on_device = answers.time.in_steps and answers.time.whole_ns > 0
    share = answers.time.frac(cost) if on_device else cost / whole
    sure = each.height >= _ENOUGH * result.ranks.height and not reason.startswith(_CHANCE)
    yield Measured(
        size=min(size, _OF_DESIGN) if reason.startswith(_CHANCE) else size,
        cost_frac=left * cost / whole,
        of="" if on_device else "step time",
        per="" if on_device else "step",
        title=f"{what} {format_frac(share)} of step time"
        f"{without_others(left * share, left)}{_named_steps(longer)}."
        f"{f' Cause: {reason}.' if reason else ''}",
        evidence=(slowest, *_other_slow(result, longer, worst)),
        advice=remedy,
        step=worst["step"],
        cost_ns=round(left * cost / each.height),
        total_ns=round(left * cost) if on_device else None,
        confidence="high" if sure else "low",
        explained=explained,
    )


#: The key of a step.
_STEP = ["path", "rank", "step"]

#: Work that the program runs in every Nth step is at most info: as much as this is.
_OF_DESIGN = 0.09
_LESS_OFTEN = (
    "This is probably intended (optimizer step after several micro-batches, lazy regularisation, "
    "an update of averages, an evaluation): if it costs too much, run it less often."
)


def _period(longer: pl.DataFrame, worst: Mapping[str, Any]) -> int:
    """Return N if exactly every Nth step of a rank is slow, 3 or (by more compute) 2; else 0."""
    same = pl.col("path") == worst["path"], pl.col("rank").eq_missing(worst["rank"])
    rows = longer.filter(*same).sort("number")
    slow = rows.filter(pl.col("ratio") >= SLOW)
    numbers, every = slow["number"].to_list(), rows["number"].to_list()
    busy = ((slow["grown"] == "compute") & (2 * slow["grown_ns"] >= slow["over"])).all()
    period = numbers[1] - numbers[0] if len(numbers) > 2 - busy else 0
    expected = [number for number in every if period and not (number - numbers[0]) % period]
    return period if period > 1 and numbers == expected else 0


def _launched_in(answers: Answers, step: Mapping[str, Any]) -> str:
    """Return what launches the longest kernel that at most every second step runs, as a phrase."""
    if (kernels := answers.of(Kernels)) is None or kernels.by_step is None:
        return ""
    rows = kernels.by_step.drop_nulls("step")
    rare = rows.filter(2 * pl.col("step").n_unique().over("kernel") <= rows["step"].n_unique())
    rare = rare.filter(step=step["step"]).group_by("kernel").agg(pl.col("total_ns").sum())
    most = largest_first(rare, "total_ns", "kernel")["kernel"].head(1)
    launched = [launched_by(kernels.place(kernel)) for kernel in most]
    return "".join(f", with kernels{text[1:]}" for text in launched if text)


def _prefills(result: Steps, answers: Answers) -> pl.DataFrame:
    """Return path, rank, step of steps that prefill, where their names do not say it.

    They are the steps of an inference with attention that run mostly kernels which less than half
    of the steps of the rank run: decode steps have kernels for few tokens. Or, if most steps replay
    CUDA graphs, those that launch the model eagerly and whose kernels take longer.
    """
    kernels = answers.of(Kernels)
    if kernels is None or (rows := kernels.by_step) is None or answers.program.trains:
        return answers.time.windows.select(_STEP).clear()
    if not kernels.families["family"].is_in([ATTENTION, KV_CACHE]).any():
        return rows.select(_STEP).clear()
    steps = pl.col("step").n_unique()
    is_usual = 2 * steps.over("path", "rank", "kernel") >= steps.over("path", "rank")
    # keys of several texts would be copied for each row
    rows = rows.cast(dict.fromkeys(("path", "step", "kernel"), pl.Categorical))
    rows = rows.drop_nulls("step").with_columns(usual_ns=pl.col("total_ns") * is_usual)
    sums = rows.group_by(_STEP).agg(pl.col("total_ns", "usual_ns").sum())
    sums = sums.cast({"path": pl.String, "step": pl.String})
    each = result.counted.unique(["rank", "path", "number"])[[*_STEP, "mode"]]
    sums = sums.join(each, on=_STEP, how="left", nulls_equal=True)
    mostly = (2 * (pl.col("mode") == GRAPH).sum() > pl.len()).over("path", "rank")
    usual = pl.col("total_ns").median().over("path", "rank")
    is_longer = (pl.col("mode") == EAGER) & mostly & (pl.col("total_ns") > SLOW * usual)
    return sums.filter((2 * pl.col("usual_ns") < pl.col("total_ns")) | is_longer).select(_STEP)


def _recorded_by_all(steps: pl.DataFrame, answers: Answers) -> pl.DataFrame:
    """Return the steps in which all ranks are recorded; all if none is."""
    if (comm := answers.of(CommOutliers)) is None or not comm.begin_apart:
        return steps
    recorded = steps.join(answers.time.windows, on=_STEP, how="semi", nulls_equal=True)
    return recorded if recorded.height else steps


def _without_waits(steps: pl.DataFrame, answers: Answers) -> pl.DataFrame:
    """Sort steps by ``excess``, time above the median without longer waits, slowest first.

    If no rank has such time in a slow step, all of them wait: steps are sorted by their duration.
    """
    waits = answers.time.losses.filter("waited").group_by(_STEP).agg(waited=pl.col("lost_ns").sum())
    known = steps.join(waits, on=_STEP, how="left", nulls_equal=True, maintain_order="left")
    waited = pl.col("waited").fill_null(0)
    longer = (waited - usual_ns(waited).over("rank", "path", "batch")).clip(0)
    known = known.with_columns(excess=pl.col("over") - longer).drop("waited")
    is_slow = pl.col("excess").max() >= _BY_ITSELF * pl.col("over").max()
    key = pl.when(is_slow).then("excess").otherwise("over")
    return known.sort(key, "over", descending=True, maintain_order=True)


#: A step is slow by itself if this share of its time above the median is no wait time.
_BY_ITSELF = 0.3

#: Ranks with this share of the excess time of the slowest one are as slow.
_ALIKE = 0.9


def _named_steps(longer: pl.DataFrame) -> str:
    """Return the names of slow steps as a phrase, in their order; empty if there are many."""
    slow = longer.filter(pl.col("ratio") >= SLOW).unique("step", keep="first", maintain_order=True)
    names = slow.sort("number", maintain_order=True)["step"].head(_NAMED).to_list()
    return f": {', '.join(names)}" if 0 < slow.height <= _NAMED else ""


def _why_slow(
    result: Steps, answers: Answers, worst: Mapping[str, Any], kernels: Difference | None
) -> tuple[str, str]:
    """Return cause and advice for a slow step: waits, code that runs longer, or other kernels."""
    if worst["excess"] < _BY_ITSELF * worst["over"]:
        return "wait time for another rank", "Shorten what the other ranks wait for."
    rows = _only_in(result, worst)
    is_code = rows.height > 0 and rows["kind"][0] in CODE
    each = _longer(rows, worst["over"])
    if rows.height and (by_chance := rows["name"][0].partition(MOSTLY))[0] == ALL_OPERATORS:
        times = format_ratio(rows["total_ns"][0] / rows["usual_ns"][0])
        which = "operators" if by_chance[1] else "no single operator, but all of them"
        return f"{_CHANCE}{which} take {times} their usual time{''.join(by_chance[1:])}", _ALONE
    if kernels and (kernels.why in (SLOW_GPU, LONG_CALL) or not is_code):
        host = f"; on the host: {each}" if each and kernels.why == MORE_KERNELS else ""
        return f"{kernels.text}{host}", kernels.advice(answers.program.clocks)
    if answers.program.xla and (compiling := _compilation(result)):
        return compiling
    idle = answers.of(GpuIdle)
    if not each or (idle is not None and idle.activity(causes.LAUNCH).pauses):
        return _grown_cause(answers, worst["grown"])
    name, only = rows["name"][0], rows["usual_ns"][0] is None
    if only:
        return each, advice_on_slice(name, pytorch=answers.program.pytorch)
    return each, _grown_cause(answers, frame_text(name))[1]


_CHANCE = "the machine was busy or throttled, or the inputs are larger: "
_ALONE = (
    "Look for other work on the machine (load, limits of the container, clocks) and for larger "
    "inputs, and record again on an idle machine."
)

#: The function of JAX that compiles, and the least share of step time that is worth it.
_JAX_COMPILES, _LONG_COMPILATION = r"compiler\.py\(\d+\): backend_compile", 0.05


def _compilation(result: Steps) -> tuple[str, str] | None:
    """Return cause and advice for compilation in steps; None if it takes little of their time."""
    if result.code is None:
        return None
    rows = result.code.filter(pl.col("name").str.contains(_JAX_COMPILES))
    rows = rows.group_by("name").agg(pl.col("total_ns", "n").sum())
    whole = int(result.counted["duration_ns"].sum())
    rows = largest_first(rows, "total_ns", "name").head(1)  # they call each other
    if (total := int(rows["total_ns"].sum())) < _LONG_COMPILATION * whole:
        return None
    n = int(rows["n"].sum())
    cause = f"{format_count(n, 'compilation')} in all steps take {format_ns(total)}"
    advice = advice_on_slice(rows["name"][0], pytorch=False)
    return f"{cause} ({format_frac(total / max(whole, 1))} of step time)", advice


_MORE_CODE = (
    "Why {name} takes longer in the slow steps was not recorded: ranges ({ranges}) or Python "
    "stacks ({stacks}) show what runs then."
)
_OF_PYTORCH = {"ranges": "record_function, NVTX", "stacks": "with_stack=True"}
_OF_XLA = {"ranges": "jax.profiler.TraceAnnotation", "stacks": "python_tracer_level=1"}


def _grown_cause(answers: Answers, name: str | None) -> tuple[str, str]:
    """Return the idle time that grows most in slow steps, and its advice; else what to record.

    Args:
        answers: all results.
        name: the code or part of a step that takes longer, if it is known.
    """
    if (idle := answers.of(GpuIdle)) is not None and answers.time.in_steps:
        grown = answers.time.growth.with_columns(pl.col("cause").cast(pl.String))
        known = largest_first(grown.drop_nulls(), "grown_ns", "cause")
        largest = grown.select(pl.col("grown_ns").max()).item()
        known = known.filter(pl.col("grown_ns") >= _BY_ITSELF * (largest or 0))
        for cause in known.filter(pl.col("cause").is_in(causes.CAUSES))["cause"].head(1):
            return idle.state(cause), idle.advice(cause)
    how = _OF_XLA if answers.program.xla else _OF_PYTORCH
    return "", _MORE_CODE.format(name=name or "the host", **how)


def _longer(rows: pl.DataFrame, over: int) -> str:
    """Return what only slow steps run, and what takes longer in them, with its time.

    Args:
        rows: see :func:`_only_in`.
        over: time of the step above the median in ns: more of a slice took the place of others.
    """
    if rows.is_empty():
        return ""
    parts = {"only slow steps run ": list[str](), "slow steps spend ": list[str]()}
    only, longer = parts.values()
    for row in rows.head(_NAMED).iter_rows(named=True):
        if row["usual_ns"] is None:
            only.append(_with_time(row))
        else:
            more = format_ns(min(row["total_ns"] - row["usual_ns"], over))
            longer.append(f"{more} more in {frame_text(row['name'])}")
    return "; ".join(f"{what}{', '.join(names)}" for what, names in parts.items() if names)


def _only_in(result: Steps, step: Mapping[str, Any]) -> pl.DataFrame:
    """Return host activity of one slow step that others hardly have: code, or else all slices."""
    if result.only_slow is None:
        return pl.DataFrame()
    same = pl.col("path") == step["path"], pl.col("rank").eq_missing(step["rank"])
    only = result.only_slow.filter(*same, pl.col("step") == step["step"])
    every = pl.col("name").str.starts_with(ALL_OPERATORS)
    chance = only.filter(every, ~pl.col("usual_ns").is_null().any())
    only = chance if chance.height else only.filter(~every)
    code = only.filter(pl.col("kind").is_in(CODE))
    return code if code.height else only


def _with_time(row: Mapping[str, Any]) -> str:
    """Return a name with its time, or with its time above the usual if other steps have it too."""
    if row["usual_ns"] is None:
        return f"{frame_text(row['name'])} ({format_ns(row['total_ns'])})"
    return f"{frame_text(row['name'])} ({format_ns(row['total_ns'] - row['usual_ns'])} more)"


def _kernels_in(answers: Answers, worst: Mapping[str, Any]) -> Difference | None:
    """Compare the kernels of the slowest step with those of the other steps of its rank."""
    if (kernels := answers.of(Kernels)) is None or kernels.by_step is None:
        return None
    same = pl.col("path") == worst["path"], pl.col("rank").eq_missing(worst["rank"])
    rows = kernels.by_step.filter(*same, pl.col("step").is_not_null())
    return compare(rows, "step", worst["step"], "in other steps")


def _other_slow(result: Steps, longer: pl.DataFrame, worst: Mapping[str, Any]) -> Iterator[str]:
    """Yield other slow steps, with the activity that explains most of each."""
    others = longer.filter(pl.col("ratio") >= SLOW, pl.col("step") != worst["step"])
    others = others.unique("step", keep="first", maintain_order=True)
    names = []
    for step in others.head(_NAMED).iter_rows(named=True):
        rows = _only_in(result, step).head(1).iter_rows(named=True)
        names.append(": ".join([step["step"], *map(_with_time, rows)]))
    if names:
        more = f" and {others.height - _NAMED} more" if others.height > _NAMED else ""
        yield f"Other slow steps: {', '.join(names)}{more}."


#: Maximum number of names in a list.
_NAMED = 3


def _growth(answers: Answers) -> dict[str, float]:
    """Return the shares of additional loss in slow steps, by the rule that explains it."""
    time = answers.time
    if not time.in_steps:
        return {}
    grown = time.growth
    whole = float(grown.filter(pl.col("cause").is_null())["grown_ns"].sum())
    # a straggler works longer by as much as each of the others waits for its work
    ranks = time.windows["rank"].n_unique()
    with_rank = pl.when(pl.col("cause") == WORK).then(ranks / max(ranks - 1, 1)).otherwise(1.0)
    causes = grown.drop_nulls("cause").filter(pl.col("grown_ns") > 0)
    causes = causes.with_columns(pl.col("grown_ns") * with_rank)
    return explained_by(causes, whole, "grown_ns") if whole else {}


def _of_tuning(answers: Answers, cost: int) -> dict[str, float]:
    """Return the share of the additional time in slow steps that measures kernels (tuning)."""
    if (kernels := answers.of(Kernels)) is None or not answers.time.in_steps:
        return {}
    tuned = int(of_purpose(kernels, TUNING, answers.time)["ns"].sum())
    return {"kernel-tuning": min(tuned / cost, 1.0)} if tuned else {}


def _of_one_kernel(answers: Answers, steps: pl.DataFrame, cost: int) -> dict[str, float]:
    """Return the share of the additional time in slow steps of the kernels of one-kernel."""
    kernels, one_kernel = answers.of(Kernels), heavy_kernels.one_kernel
    if kernels is None or not answers.time.in_steps or not is_found(one_kernel, answers):
        return {}
    names = heavy_kernels.kinds(kernels, answers.time)["names"].head(1).explode()
    rows = in_steps(kernels, answers.time).filter(pl.col("kernel").is_in(names.implode()))
    sums = rows.group_by(_STEP).agg(pl.col("total_ns").sum())
    each = steps.join(sums, on=_STEP, how="left", nulls_equal=True)
    ns = pl.col("total_ns").fill_null(0)
    grown = each.select((ns - ns.median().over("path", "rank")).clip(0).sum()).item()
    return {"one-kernel": min(grown / cost, 1.0)}


#: Minimum number of steps per rank for high confidence.
_ENOUGH = 5


@rule(
    "py_spy_report",
    "one line of your own code, or data loading in the main process, with many samples",
    "share of samples in or below the line, or in data loading",
    {"info": 0.1},
)
def _hot_line(result: LeafPaths, _: Answers) -> Iterator[Measured]:
    if not result.total_samples:
        return
    counted = result.paths.filter(pl.col("doing").is_null() | (pl.col("doing") == FILE_LOCK))
    running = float(counted["samples"].sum())
    idle = result.total_samples - running
    if share := result.loading_samples / result.total_samples:
        yield Measured(
            size=share,
            title=f"The main thread loads batches itself in {format_frac(share)} of all samples "
            "(DataLoader with num_workers=0).",
            advice="Load them in workers while the GPU works: DataLoader(num_workers=4).",
            of="samples",
        )
    of = "samples that run code" if idle else "samples"
    loading = _waits_for_loader(result)
    before = (
        f"The main process waits for the data loader in {format_frac(loading)} of its samples: "
    )
    is_bar = pl.col("path").str.contains(_OF_BARS).fill_null(value=False)
    saving = _saving(result)
    others = [
        *_lock_waits(result),
        *_progress_bars(counted.filter(is_bar), running, of),
        *_checkpoints(result, saving, running),
    ]
    yield from others
    rest_rows = counted.filter(~is_bar).join(saving, on=LIBRARY, how="anti", nulls_equal=True)
    for number, row in enumerate(_lines(rest_rows).head(_MOST_LINES).iter_rows(named=True)):
        if "run_backward" in row["name"] and any((one.size or 0) >= _WAITS for one in others):
            continue  # what the program is for
        if number and re.search(_IN_FRAMEWORK, "{path}: {name}: {}".format(row[LIBRARY[0]], **row)):
            continue  # what the program is for
        name, path, line, samples = (row[key] for key in (*LIBRARY, "samples"))
        what, place = ("function", path) if line is None else ("line", f"{path}:{line}")
        part, whole, rest = (format_weight(n, result.unit) for n in (samples, running, idle))
        yield Measured(
            size=samples / (running + float(result.locks["samples"].sum())),
            title=f"{before if loading and not number else ''}{format_frac(samples / running)} of "
            f"{of} are in or below one {what} of your own code: {name} ({place}).",
            evidence=(
                f"{part} in or below the {what}, {whole} in code that runs.",
                *[f"Not counted: {rest} that wait, import or run in background threads."]
                * (idle > 0),
            ),
            advice=_below(result, row),
            of=of,
        )


#: Calls that save checkpoints, and files of progress bars.
_SAVES = (
    r"(?:async_)?save\w* \((?:torch/serialization|safetensors|flax/training)"
    r"|\(torch/distributed/checkpoint/|\(orbax/checkpoint/"
)
_OF_BARS = r"^(?:.*[/\\])?tqdm[/\\]"


def _progress_bars(rows: pl.DataFrame, running: float, of: str) -> Iterator[Measured]:
    """Yield the samples in progress bars, summed over the lines that update them."""
    if share := float(rows["samples"].sum()) / running if running else 0.0:
        lines = _lines(rows).head(_NAMED)[LIBRARY].iter_rows()
        yield Measured(
            size=share,
            title=f"{format_frac(share)} of {of} update a progress bar (tqdm).",
            evidence=tuple(f"Called by {name} ({path}:{line})." for name, path, line in lines),
            advice="Write it less often: tqdm(mininterval=10), set_postfix(refresh=False) every N "
            "steps; disable=True where the output is a file.",
            of=of,
        )


def _saving(result: LeafPaths) -> pl.DataFrame:
    """Return the lines of own code (:data:`LIBRARY`) below which checkpoints are saved."""
    calls = pl.col("calls").str.contains(_SAVES)
    lines = result.lines.filter(calls).select("name", "path", "line").unique(maintain_order=True)
    return lines.rename(dict(zip(lines.columns, LIBRARY, strict=True)))


def _checkpoints(result: LeafPaths, lines: pl.DataFrame, running: float) -> Iterator[Measured]:
    """Yield the samples below lines that save checkpoints, with their waits for earlier saves."""
    rows = result.paths.join(lines, on=LIBRARY, how="semi", nulls_equal=True)
    waits = float(rows.filter(pl.col("doing").is_not_null())["samples"].sum())
    if share := float(rows["samples"].sum()) / ((running + waits) or 1):
        places = [f"{name} ({path}:{line})" for name, path, line in lines.head(_NAMED).iter_rows()]
        yield Measured(
            size=share,
            title=f"{format_frac(share)} of samples with your code save checkpoints: "
            f"{', '.join(places)}.",
            evidence=(
                *[f"{format_weight(waits, result.unit)} of it wait, such as for the save before."]
                * (waits > 0),
            ),
            advice="Save less often, and keep the host memory that the state is copied to, pinned "
            "(DefaultStager, cache_staged_state_dict); a save that waits for the one before needs "
            "more writers or a longer interval.",
            of="samples",
        )


def _lock_waits(result: LeafPaths) -> Iterator[Measured]:
    """Yield the lines in which threads wait for a lock, and who holds it."""
    for place, holder, samples in result.locks.iter_rows():
        share = samples / result.total_samples
        yield Measured(
            size=share,
            title=f"Threads wait for a lock in {place}: {format_frac(share)} of samples.",
            evidence=(f"Meanwhile one thread at a time is in {holder}.",),
            advice="Hold the lock for a shorter time: read, wait and compute outside of it, or use "
            "a lock for each entry.",
            of="samples",
            confidence="medium",
        )


def _lines(counted: pl.DataFrame) -> pl.DataFrame:
    """Return the lines of own code (:data:`LIBRARY`) with samples, most first.

    With name, path and ``below``, the samples, of the function below it with most of them.
    """
    used = counted.drop_nulls(LIBRARY[0]).filter(pl.col("samples") > 0)
    leaves = used.group_by(*LIBRARY, "name", "path")
    each = largest_first(leaves.agg(pl.col("samples").sum()), "samples", "name", "path")
    lines = each.group_by(LIBRARY, maintain_order=True)
    first = pl.col("name", "path").first(), pl.col("samples").first().alias("below")
    return largest_first(lines.agg(*first, pl.col("samples").sum()), "samples", *LIBRARY)


#: So many lines may have the least share of a finding.
_MOST_LINES = 10
#: Functions of frameworks, models and their steps: file and name, then the function of own code.
_IN_FRAMEWORK = (
    r"^(?:.*/)?(?:torch|jax|tensorflow|keras|transformers|diffusers|deepspeed|megatron|vllm)/"
    r"|^(?:.*/)?lib(?:torch|c10)|: (?:\w+\.)*(?:_?forward|backward|__call__|step)(?:$|: )"
)


def _waits_for_loader(result: LeafPaths) -> float:
    """Return the share of the main process that waits for workers of its data loader, or 0."""
    is_main = result.processes["role"] == MAIN
    if is_main.all():
        return 0.0
    of_loader = pl.col("calls").str.contains(r"(?i)data_?loader")
    rows = result.activities.filter(pl.col("activity").str.starts_with("waits"), of_loader)
    share = float((rows["samples"] * rows["place_frac"]).sum() or 0.0)
    share /= float(result.processes.filter(is_main)["samples"].sum()) or 1.0
    return min(share, 1.0) if share >= _WAITS else 0.0


#: Least share of the main process that is a wait for the loader.
_WAITS = 0.1
#: Files of functions that are not Python.
_NATIVE = r"\.(?:so[.\d]*|cpp|cc|cu|c|h)$"
_MAYBE_NATIVE = (
    "Or it calls functions written in C, such as .item(), which waits for the GPU: py-spy record "
    "--native shows them."
)
#: Functions and files of data sets.
_PREPARES = r"(?i)collate|__getitem__|data[_-]?set"


#: Advice by what is below a line, ``file: function``: environments of reinforcement learning, and
#: threads of OpenMP that spin.
_BELOW = {
    r"^(?:gymnasium|gym|mujoco|pybullet|dm_control)[/\\]": (
        "Step the environments in several processes (SubprocVecEnv of Stable-Baselines3, "
        "AsyncVectorEnv of Gymnasium), or simulate them on the GPU."
    ),
    r": (?:do_spin|do_wait|gomp_\w*(?:barrier|wait)\w*|__?kmpc?_\w*(?:barrier|wait|fork)\w*)": (
        "Threads of OpenMP wait for each other there: use as many as the process has CPUs "
        "(OMP_NUM_THREADS, torch.set_num_threads; a container may have fewer than the node)."
    ),
}
#: Advice on data sets that read a DataFrame.
_ARRAYS = "Convert the columns of the DataFrame to arrays once (to_numpy()) and index those."


def _below(result: LeafPaths, row: Mapping[str, Any]) -> str:
    """Return advice for a row of :func:`_lines`: by the function below it."""
    leaf, file, name = row["name"], row["path"] or "", row[LIBRARY[0]]
    called = f"{leaf} ({file})" if file else leaf
    share = format_frac(row["below"] / row["samples"])
    if "run_backward" in leaf:
        return "It waits for the backward pass: torch.profiler shows which operators take the time."
    if wait := wait_of(leaf, file or None):
        return f"It {wait} in {called}. {ADVICE[wait]}."
    workers = result.processes["role"].str.contains("worker").any()
    if re.search(_PREPARES, f"{name} {row[LIBRARY[1]]}") and not workers:
        arrays = f" {_ARRAYS}" * file.startswith("pandas")
        call = "call it in loader workers (num_workers=4)."
        return f"{name} runs in the main process: {call}{arrays}"
    for pattern, text in _BELOW.items():
        if re.search(pattern, f"{file}: {leaf}"):
            return f"{share} of it is in {called}. {text}"
    if leaf == name:
        part = "It" if row["below"] == row["samples"] else f"{share} of it"
        python = (
            f"{part} is in {name} itself: use NumPy or tensor operators instead of a loop, or call "
            "it less often."
        )
        if result.paths["path"].str.contains(_NATIVE).any():
            return python
        return f"{python} {_MAYBE_NATIVE}"
    return f"{share} of it is in {called}: call it less often, or with less data."


# --- the files -------------------------------------------------------------------------------

_LOSSES = ("error", "data_loss")


@rule(
    "info",
    "dropped events: a file is truncated or damaged",
    "files with dropped events",
    {"warning": 1},
    counts=True,
)
def _dropped_events(result: Info, _: Answers) -> Iterator[Measured]:
    lost = result.issues.filter(pl.col("severity").is_in(_LOSSES), pl.col("code") != NO_GPU_WORK)
    files = lost["path"].n_unique()
    if not files:
        return
    first, codes = lost.row(0, named=True), ", ".join(sorted(lost["code"].unique()))
    place = f", first at {first['first']}" if first["first"] else ""
    yield Measured(
        size=files,
        title=f"{_files(files, result)} dropped events: {codes}.",
        evidence=(f"{first['path']}: {first['code']}{place}.",),
        advice=f"{_complete(result, lost)} All numbers are without these events.",
    )


def _files(some: int, result: Info) -> str:
    count = result.files["path"].n_unique()
    each = "The file" if count == 1 else f"{some:,} of {count:,} files"
    return f"{each} {'has' if some == 1 else 'have'}"


#: Codes of files that end early or are damaged, and of tables that are missing or differ.
_INCOMPLETE = r"truncated|damaged|unreadable-rows|incomplete-row"
_OTHER_TABLES = r"missing-(?:table|column)"


def _complete(result: Info, lost: pl.DataFrame) -> str:
    """Return how to get a complete file, or what to do about the values that are dropped."""
    lost = lost.filter(pl.col("path") == lost["path"][0])
    if lost["code"].str.contains(_INCOMPLETE).any():
        formats = result.files.filter(pl.col("path") == lost["path"][0])["format"]
        if (formats == MEMORY_SNAPSHOT).any():
            return "Write the snapshot again: its _dump_snapshot() must end before the job."
        if formats.is_in(DATABASES).any():
            return "Copy the file again, or export the recording again."
        return "Stop the profiler before the job ends, so that it can write the complete file."
    if lost["code"].str.contains(_OTHER_TABLES).any():
        return "Export the recording with another version of the profiler: its tables differ."
    return (
        "The file is complete, but the profiler wrote invalid values (traceanalyzer info counts "
        "them): check them, and update the profiler if there are many."
    )


@rule(
    "info",
    "a program that failed: calls return errors of the GPU",
    "files in which the program failed",
    {"critical": 1},
    counts=True,
)
def _failed_program(result: Info, _: Answers) -> Iterator[Measured]:
    failed = result.problems.filter(pl.col("code") == FAILED_CALLS)
    for row in failed.head(1).iter_rows(named=True):
        yield Measured(
            size=failed.height,
            title=row["text"],
            evidence=(f"{row['path']}: {format_count(row['count'], 'call')} returned an error.",),
            advice=f"{row['advice']} The time until the failure says little about a sound run.",
        )


@rule(
    "info",
    "GPU work missing although the profiler was to record it",
    "files without GPU work",
    {"warning": 1},
    counts=True,
)
def _gpu_not_traced(result: Info, answers: Answers) -> Iterator[Measured]:
    failed = result.issues.filter(pl.col("code") == NO_GPU_WORK, pl.col("severity").is_in(_LOSSES))
    if failed.is_empty():
        if answers.one_job:
            yield from _ranks_without_gpu_work(result)
        return
    first = failed.row(0, named=True)
    reason, _sep, remedy = first["first"].rpartition("; ")
    yield Measured(
        size=failed.height,
        title=f"{_files(failed.height, result)} no GPU work although GPU tracing was on.",
        evidence=(f"{first['path']}: {reason}.",),
        advice=f"{remedy[:1].upper()}{remedy[1:]}.",
        explained={"failed-program": 1.0},
    )


def _ranks_without_gpu_work(result: Info) -> Iterator[Measured]:
    """Yield ranks without GPU work if others of the same format have it."""
    files = result.files.select("path", "rank", "format", "world_size")
    rows = result.contents.join(files, on=["path", "rank"], how="left", nulls_equal=True)
    alike = ("format", "world_size")
    rows = rows.filter((pl.col("device_work") > 0).any().over(alike), pl.col("events") > 0)
    without = rows.filter(pl.col("device_work") == 0, pl.col("world_size") > 1)
    if without.is_empty():
        return
    ranks = without["rank"].drop_nulls().sort().to_list()
    who = f"rank{'' if len(ranks) == 1 else 's'} {format_first(ranks, _NAMED)}"
    yield Measured(
        size=without.height,
        title=f"No GPU work was recorded on {who if ranks else without['path'][0]}, although "
        "the other ranks have it.",
        evidence=(f"{without['path'][0]} has {without['launch_calls'][0]:,} launch calls.",),
        advice="Record it with ProfilerActivity.CUDA as on the other ranks. Another profiler that "
        "runs at the same time (nsys, DCGM) blocks CUPTI.",
        rank=ranks[0] if len(ranks) == 1 else None,
    )


@rule(
    "info",
    "missing files of some ranks",
    "number of missing ranks",
    {"info": 1},
    counts=True,
    compares_ranks=True,
    uses=("comm_outliers", "gpu_idle"),
)
def _missing_ranks(result: Info, answers: Answers) -> Iterator[Measured]:
    world = result.recordings["world_size"].max()
    ranks = result.recordings["rank"].drop_nulls().unique()
    if not isinstance(world, int) or ranks.is_empty() or ranks.len() >= world:
        return
    title = f"Files of {world - ranks.len():,} of {world:,} ranks are missing"
    waits, evidence = straggling.waited_for_missing(answers)
    if waits:
        absent = format_ranges([rank for rank in range(world) if rank not in ranks])
        title += f" ({absent}), and the others wait for one of them: {answers.time.share(waits)}"
    yield Measured(
        size=world - ranks.len(),
        title=f"{title}.",
        evidence=evidence,
        advice="Add the files of all ranks to separate wait time for stragglers from slow "
        "communication.",
        total_ns=waits or None,
        cost_frac=answers.time.frac(waits) if waits else None,
    )


RULES = (
    _uneven_steps, *OF_STEPS, _hot_line,
    *memory.RULES, _dropped_events, _failed_program, _gpu_not_traced, _missing_ranks,
)  # fmt: skip
