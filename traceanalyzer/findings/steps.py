"""Rules for steps: slow ones, those of inference engines, and the time between them."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common import waits
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
from traceanalyzer.analyzers.common.names import called_in, frame_text, launched_by
from traceanalyzer.analyzers.common.step_marks import DECODE, MIXED, PREFILL, with_phases
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.activities import advice_on_slice
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.kernels.training import TUNING
from traceanalyzer.analyzers.steps import engine
from traceanalyzer.analyzers.steps.engine import EAGER, GRAPH
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.analyzers.steps.slow_steps import ALL_OPERATORS, CODE, FORWARD_ONLY, MOSTLY, SLOW
from traceanalyzer.findings import heavy_kernels
from traceanalyzer.findings.busy import growing_copies, is_found
from traceanalyzer.findings.device_time import DEVICE, WORK, intervals_of
from traceanalyzer.findings.launching import (
    STEP,
    compiling_steps,
    of_compilation,
    place_of,
    rare_kernels,
)
from traceanalyzer.findings.rule import (
    MUCH_LEFT,
    NEARLY_ALL_LEFT,
    Answers,
    Measured,
    Rule,
    explained_by,
    in_steps,
    of_purpose,
    rule,
    without_others,
)
from traceanalyzer.units import format_count, format_frac, format_ns, format_ratio

#: Maximum number of functions, kernels or steps that are named.
_NAMED = 3


@rule(
    "steps",
    "steps that take longer than the median step",
    "time above the median step of each rank (of the fast steps, if most are much slower), as a "
    "share of the time of all steps",
    {"info": 0.02, "warning": 0.1, "critical": 0.3},
)
def uneven_steps(result: Steps, answers: Answers) -> Iterator[Measured]:
    """Yield the time of slow steps above the usual one."""
    each = _judged(result, answers)
    whole = int(each["duration_ns"].sum())
    longer = _without_waits(each, answers)
    cost = round(longer["over"].sum())
    if not cost or not whole or cost < whole * answers.least.get(uneven_steps.id, 0.0):
        return
    worst = longer.row(0, named=True)
    kernels = _kernels_in(answers, worst)
    reason, remedy = _why_slow(result, answers, worst, kernels)
    explained = _growth(answers) | _of_tuning(answers, cost) | _of_one_kernel(answers, each, cost)
    if (kinds := answers.of(Kernels)) is not None and growing_copies(kinds, answers.time):
        explained["growing-copies"] = 1.0
    left = 1 - min(sum(explained.values()), 1.0)
    left = left if MUCH_LEFT <= left < NEARLY_ALL_LEFT else 1.0
    if kernels and kernels.why == SLOW_GPU:
        explained["throttled-steps"] = 1.0
    size, period = left * cost / whole, _period(longer, worst)
    what = f"One step in {period} takes longer, which costs" if period else "Slow steps cost"
    more = kernels and kernels.why == MORE_KERNELS and worst["grown"] == "compute"
    if more and (period or worst["encodes"]):
        size, remedy = min(size, _OF_DESIGN), _ENCODE_APART if worst["encodes"] else _LESS_OFTEN
        rare = rare_kernels(answers).filter(step=worst["step"])["kernel"]
        place = place_of(answers, rare[0] if rare.len() else "")
        if worst["encodes"] and (called := called_in(place)):
            reason = f"the encoder of images, audio or video{called}"
        elif launched := launched_by(place):
            reason += f", with kernels{launched[1:]}"
    elif kernels and kernels.why == LARGER_INPUTS and worst["grown"] != "idle":
        what, size = "Slow steps have larger inputs, which cost", min(size, _OF_DESIGN)
        remedy = f"If tokens per second are equal in all steps, nothing is lost. Else: {remedy}"
    on_device = answers.time.in_steps and answers.time.whole_ns > 0
    share = answers.time.frac(cost) if on_device else cost / whole
    sure = each.height >= _ENOUGH * result.ranks.height and not reason.startswith(_CHANCE)
    yield Measured(
        size=min(size, _OF_DESIGN) if reason.startswith(_CHANCE) else size,
        cost_frac=left * share,
        of="" if on_device else "step time",
        per="" if on_device else "step",
        title=f"{what} {format_frac(share)} of step time"
        f"{without_others(left * share, left)}{_named_steps(longer)}."
        f"{f' Cause: {reason}.' if reason else ''}",
        evidence=(_slowest(result, longer, worst), *_other_slow(result, longer, worst)),
        advice=remedy,
        step=worst["step"],
        cost_ns=round(left * cost / each.height),
        total_ns=round(left * cost) if on_device else None,
        confidence="low" if not sure else "medium" if remedy.startswith(_UNKNOWN) else "high",
        explained=explained,
    )


def _judged(result: Steps, answers: Answers) -> pl.DataFrame:
    """Return the steps with ``over``, the time above the usual one, and ``encodes``.

    Not those that prefill, which last as long as their prompts.
    """
    each = result.counted.unique(["rank", "path", "number"], maintain_order=True)
    each = _recorded_by_all(each, answers).filter(pl.col("phase").fill_null(DECODE) == DECODE)
    prefills = _prefills(result, answers).join(
        rare_kernels(answers), on=STEP, how="left", nulls_equal=True
    ).with_columns(pl.col("kernel").fill_null(""))  # fmt: skip
    places = {one: str(place_of(answers, one)) for one in prefills["kernel"].unique()}
    encodes = pl.col("kernel").replace_strict(places, default="").str.contains(_ENCODER)
    each = each.join(prefills, on=STEP, how="left", nulls_equal=True, maintain_order="left")
    each = each.with_columns(encodes=encodes).filter(pl.col("kernel").is_null() | encodes)
    length, computes_less = pl.col("duration_ns"), fast_ns(pl.col("compute_ns")).is_not_null()
    usual = pl.when(computes_less).then(length.median()).otherwise(usual_ns(length))
    over = (length - usual.over("rank", "path", "batch")).clip(0)
    return each.with_columns(over=over)


def _slowest(result: Steps, longer: pl.DataFrame, worst: Mapping[str, Any]) -> str:
    """Say which step is the slowest, on which rank unless most are as slow, and what grew."""
    alike = longer.filter(step=worst["step"]).filter(pl.col("excess") >= _ALIKE * worst["excess"])
    rank = "" if 2 * alike.height > result.ranks.height else f" of {worst['on']}"
    grown = f", mostly {worst['grown']} ({format_ns(worst['grown_ns'])} more)"
    times = f"{format_ns(worst['duration_ns'])} ({format_ratio(worst['ratio'])} the median)"
    return f"Slowest: {worst['step']}{rank}, {times}{grown if worst['grown'] else ''}."


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


#: Code that encodes images, audio or video before the language model runs.
_ENCODER = (
    r"(?i)(?:mm|vision|visual|image|audio|video)_?(?:encoder|tower|model)"
    r"|encode_(?:image|audio|video)|multi_?modal"
)
_ENCODE_APART = (
    "All requests wait meanwhile: keep encoded inputs (cache of the encoder), encode smaller ones "
    "or fewer in a step, or encode on another GPU (disaggregated encoder)."
)


def _prefills(result: Steps, answers: Answers) -> pl.DataFrame:
    """Return path, rank, step of steps that prefill, where their names do not say it.

    They are the steps of an inference with attention that run mostly kernels which less than half
    of the steps of the rank run: decode steps have kernels for few tokens. Or, if most steps replay
    CUDA graphs, those that launch the model eagerly and whose kernels take longer.
    """
    kernels = answers.of(Kernels)
    if kernels is None or (rows := kernels.by_step) is None or answers.program.trains:
        return answers.time.windows.select(STEP).clear()
    if not kernels.families["family"].is_in([ATTENTION, KV_CACHE]).any():
        return answers.time.windows.select(STEP).clear()
    steps = pl.col("step").n_unique()
    is_usual = 2 * steps.over("path", "rank", "kernel") >= steps.over("path", "rank")
    rows = rows.drop_nulls("step").with_columns(usual_ns=pl.col("total_ns") * is_usual)
    sums = rows.group_by(STEP).agg(pl.sum("total_ns", "usual_ns"))
    each = result.counted.unique(["rank", "path", "number"])[[*STEP, "mode"]]
    sums = sums.cast({pl.Categorical: pl.String}).join(each, on=STEP, how="left", nulls_equal=True)
    mostly = (2 * (pl.col("mode") == GRAPH).sum() > pl.len()).over("path", "rank")
    usual = pl.col("total_ns").median().over("path", "rank")
    is_longer = (pl.col("mode") == EAGER) & mostly & (pl.col("total_ns") > SLOW * usual)
    return sums.filter((2 * pl.col("usual_ns") < pl.col("total_ns")) | is_longer).select(STEP)


def _recorded_by_all(steps: pl.DataFrame, answers: Answers) -> pl.DataFrame:
    """Return the steps in which all ranks are recorded; all if none is."""
    if (comm := answers.of(CommOutliers)) is None or not comm.begin_apart:
        return steps
    recorded = steps.join(answers.time.windows, on=STEP, how="semi", nulls_equal=True)
    return recorded if recorded.height else steps


def _without_waits(steps: pl.DataFrame, answers: Answers) -> pl.DataFrame:
    """Sort steps by ``excess``, time above the median without longer waits, slowest first.

    If no rank has such time in a slow step, all of them wait: steps are sorted by their duration.
    """
    waits = answers.time.losses.filter("waited").group_by(STEP).agg(waited=pl.col("lost_ns").sum())
    known = steps.join(waits, on=STEP, how="left", nulls_equal=True, maintain_order="left")
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
    idle = answers.of(GpuIdle)
    if not each or (idle is not None and idle.activity(causes.LAUNCH).pauses):
        return _grown_cause(answers, worst["grown"])
    name, only = rows["name"][0], rows["usual_ns"][0] is None
    if only:
        return each, advice_on_slice(name, pytorch=answers.program.pytorch)
    if kernels and worst["grown"] == "compute":
        return f"{each}; {kernels.text}", kernels.advice(answers.program.clocks)
    return each, _grown_cause(answers, frame_text(name))[1]


_CHANCE = "the machine was busy or throttled, or the inputs are larger: "
_ALONE = (
    "Look for other work on the machine (load, limits of the container, clocks) and for larger "
    "inputs, and record again on an idle machine."
)

#: How this advice begins: what to record, because the reason is not known.
_UNKNOWN = "Why "
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
    named = code.filter(pl.col("name") != FORWARD_ONLY)  # the code that runs these passes
    code = named if named.height else code
    return code if code.height else only


def _with_time(row: Mapping[str, Any]) -> str:
    """Return a name with its time, or with its time above the usual if other steps have it too."""
    if row["usual_ns"] is None:
        return f"{frame_text(row['name'])} ({format_ns(row['total_ns'])})"
    return f"{frame_text(row['name'])} ({format_ns(row['total_ns'] - row['usual_ns'])} more)"


def _kernels_in(answers: Answers, worst: Mapping[str, Any]) -> Difference | None:
    """Compare the kernels of the slowest step with those of the other steps of its rank.

    Steps of an inference engine are compared with those of the same phase.
    """
    if (kernels := answers.of(Kernels)) is None or kernels.by_step is None:
        return None
    same = pl.col("path") == worst["path"], pl.col("rank").eq_missing(worst["rank"])
    rows = kernels.by_step.filter(*same, pl.col("step").is_not_null())
    steps = with_phases(rows.select(pl.col("step").cast(pl.String).unique()))
    alike = steps.filter(pl.col("phase").eq_missing(worst["phase"]))["step"]
    rows = rows.filter(pl.col("step").cast(pl.String).is_in(alike.implode()))
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


def _growth(answers: Answers) -> dict[str, float]:
    """Return the shares of additional loss in slow steps, by the rule that explains it."""
    time = answers.time
    if not time.in_steps or not time.whole_ns:
        return of_compilation(answers)
    grown = time.growth
    whole = float(grown.filter(pl.col("cause").is_null())["grown_ns"].sum())
    # a straggler works longer by as much as each of the others waits for its work
    ranks = time.windows["rank"].n_unique()
    with_rank = pl.when(pl.col("cause") == WORK).then(ranks / max(ranks - 1, 1)).otherwise(1.0)
    rows = grown.drop_nulls("cause").filter(pl.col("grown_ns") > 0)
    rows = rows.with_columns(pl.col("grown_ns") * with_rank)
    if (idle := answers.of(GpuIdle)) is not None and idle.stops[1]:  # one finding has both
        rows = rows.with_columns(pl.col("cause").replace(causes.HOST_CODE, causes.LAUNCH))
    return explained_by(rows, whole, "grown_ns") if whole else {}


def _of_tuning(answers: Answers, cost: int) -> dict[str, float]:
    """Return the share of the time in slow steps that measures kernels, or lacks CPUs."""
    if (kernels := answers.of(Kernels)) is None or not answers.time.in_steps:
        return answers.without_cpus
    tuned = int(of_purpose(kernels, TUNING, answers.time)["ns"].sum())
    return {"kernel-tuning": min(tuned / cost, 1.0)} if tuned else {}


def _of_one_kernel(answers: Answers, steps: pl.DataFrame, cost: int) -> dict[str, float]:
    """Return the share of the additional time in slow steps of the kernels of one-kernel."""
    kernels, one_kernel = answers.of(Kernels), heavy_kernels.one_kernel
    if kernels is None or not answers.time.in_steps or not is_found(one_kernel, answers):
        return {}
    names = heavy_kernels.kinds(kernels, answers.time)["names"].head(1).explode()
    rows = in_steps(kernels, answers.time).filter(pl.col("kernel").is_in(names.implode()))
    sums = rows.group_by(STEP).agg(pl.col("total_ns").sum()).cast({pl.Categorical: pl.String})
    each = steps.join(sums, on=STEP, how="left", nulls_equal=True)
    ns = pl.col("total_ns").fill_null(0)
    grown = each.select((ns - ns.median().over("path", "rank")).clip(0).sum()).item()
    return {"one-kernel": min(grown / cost, 1.0)}


#: Minimum number of steps per rank for high confidence.
_ENOUGH = 5


@rule(
    "steps",
    "decode steps that run without CUDA graphs although others run with them",
    "time of eager decode steps above that of decode steps with graphs and about as many requests, "
    "as a share of the time of all steps of the engine",
    {"info": 0.01, "warning": 0.05, "critical": 0.2},
)
def _eager_decode(result: Steps, _: Answers) -> Iterator[Measured]:
    rows = result.engine_steps
    decode = rows.filter(pl.col("phase") == DECODE).drop_nulls("mode").sort("batch")
    eager = result.fallen_back.sort("batch")
    graphs = decode.filter(pl.col("mode") != EAGER)
    if eager.is_empty():
        return
    usual = graphs.group_by("batch").agg(usual_ns=pl.col("duration_ns").median()).sort("batch")
    longer = eager.join_asof(usual, on="batch", strategy="nearest").with_columns(
        over=(pl.col("duration_ns") - pl.col("usual_ns")).clip(0)
    )
    cost = round(longer["over"].sum())
    requests, with_graphs = (frame["batch"].to_list() for frame in (eager, graphs))
    is_larger = min(requests) > max(with_graphs)
    each, each_usual = (
        format_ns(median(longer[name].to_list())) for name in ("duration_ns", "usual_ns")
    )
    yield Measured(
        size=cost / max(int(rows["duration_ns"].sum()), 1),
        title=f"{eager.height:,} of {format_count(decode.height, 'decode step')} fell back to "
        f"eager execution: {each} each (median), {each_usual} with CUDA graphs.",
        evidence=(
            f"Requests at a time: {_range(requests)} (eager), {_range(with_graphs)} (graphs).",
        ),
        advice=_LARGER_GRAPHS if is_larger else _OTHER_REQUESTS,
        total_ns=cost,
        confidence="medium" if is_larger else "high",
    )


def _range(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return f"{least}" if least == most else f"{least} to {most}"


_LARGER_GRAPHS = (
    "Capture graphs for more requests (vLLM cudagraph_capture_sizes, SGLang --cuda-graph-max-bs, "
    "TensorRT-LLM cuda_graph_config), or limit the requests at a time."
)
_OTHER_REQUESTS = (
    "Steps with about as many requests run as graphs: find what these requests have that the "
    "others do not (adapters, log probabilities, structured output, a size without a graph)."
)


@rule(
    "steps",
    "a scheduler that the GPU waits for: host code of an inference engine between decode steps",
    "idle time of the devices before decode steps, from the end of all earlier work to the first "
    "kernel of the step, as a share of the time from the first to the last step",
    {"info": 0.05, "warning": 0.1, "critical": 0.3},
)
def _exposed_scheduler(result: Steps, answers: Answers) -> Iterator[Measured]:
    rows = _alike(result.engine_steps)
    known = rows.filter(pl.col("phase") == DECODE).drop_nulls("exposed_ns")
    total = int(known["exposed_ns"].sum())
    whole = int(rows.select(pl.col("duration_ns").sum() + pl.col("before_ns").sum()).item())
    if not total or not whole:
        return
    keys = ["path", "rank"]
    exposed = result.before_decode.join(known[keys].unique(), on=keys, nulls_equal=True)
    code = engine.by_function(exposed.drop("phase"), known)
    main = code["function"][0]
    is_named = main not in (engine.IN_STEP, engine.BETWEEN)
    few = _few(known, total)
    devices = answers.time.windows[DEVICE].unique()
    who = "Receiving the KV cache" if waits.wait_of(main) == waits.KV_TRANSFER else "The scheduler"
    each = int((few if few.height else known)["exposed_ns"].sum()) / (few.height or known.height)
    where = f"in {few.height:,} of {known.height:,} decode steps" if few.height else (
        "per decode step"
    )  # fmt: skip
    yield Measured(
        size=total / whole,
        title=f"{who} exposes {format_ns(each)} {where} "
        f"({format_frac(total / whole)} of the time from the first to the last step): the GPU "
        f"waits for host code{f', mostly {frame_text(main)}' if is_named else ''}.",
        evidence=(
            _functions(code, few.height),
            f"{format_count(known.height, 'decode step')} measured.",
            *_longest(few),
        ),
        advice=_advice(main, few=few.height > 0, is_named=is_named),
        total_ns=total,
        of="the time from the first to the last step",
        confidence="high" if is_named and _WAITS_FOR_ENGINE not in main else "medium",
        intervals=intervals_of(exposed.join(devices, on=keys, nulls_equal=True)),
    )


def _alike(rows: pl.DataFrame) -> pl.DataFrame:
    """Return steps without those of ranks whose host is much slower, which is their own problem."""
    each = rows.group_by("rank").agg(ns=pl.col("exposed_ns").median()).drop_nulls("ns")
    usual = each["ns"].quantile(0.5, "lower") or 0
    slow = each.filter(pl.col("ns") > _MUCH_SLOWER * usual, usual > 0)["rank"]
    return rows.filter(~pl.col("rank").is_in(slow.implode()).fill_null(value=False))


#: From this multiple of the exposed time of other ranks on, a rank is slower.
_MUCH_SLOWER = 2
#: A few steps are at most this share of all, and have at least that share of exposed time.
_FEW, _NEARLY_ALL = 0.25, 0.75


def _few(known: pl.DataFrame, total: int) -> pl.DataFrame:
    """Return the few decode steps with most of the exposed time; no rows if many have it.

    In each of them more is exposed than a usual step takes, so that no step could hide it.
    """
    few = known.filter(pl.col("exposed_ns") > known["duration_ns"].median())
    is_most = few["exposed_ns"].sum() >= _NEARLY_ALL * total
    return few if is_most and few.height <= _FEW * known.height else few.clear()


def _longest(few: pl.DataFrame) -> Iterator[str]:
    if few.height:
        rows = few.sort("exposed_ns", descending=True).head(_NAMED).sort("at_ns")
        steps = ", ".join(
            f"{name} at {format_ns(at)} ({format_ns(ns)})"
            for name, at, ns in rows.select("step", "at_ns", "exposed_ns").iter_rows()
        )
        yield f"The longest: {steps}."


def _functions(code: pl.DataFrame, few: int) -> str:
    each_ns = pl.col("total_ns") / few if few else pl.col("each_ns")
    rows = code.select("function", each_ns).head(1 if few else _NAMED).iter_rows()
    each = ", ".join(f"{frame_text(name)} {format_ns(ns)}" for name, ns in rows)
    return f"{'In each of these steps' if few else 'Per decode step'}: {each}."


#: Module of vLLM in which a worker waits for the process of the scheduler.
_WAITS_FOR_ENGINE = "shm_broadcast.py"
_AHEAD = (
    "Let the engine prepare a step while the GPU runs the one before: vLLM --async-scheduling, the "
    "overlap scheduler of SGLang and TensorRT-LLM (on by default; not --disable-overlap-schedule)."
)
_RECORD = f"{_AHEAD} Python stacks (with_stack=True) name the functions that the GPU waits for."


def _of_few(function: str, *, is_named: bool) -> str:
    """Return advice for host code that is longer than a step: no other step can hide it."""
    if not is_named:
        return "Record Python stacks (with_stack=True): they name what runs in these steps only."
    lora = (
        " Load adapters before they are requested, and keep them in memory: vLLM --max-loras and "
        "--max-cpu-loras of at least the number of adapters in use, SGLang --max-loaded-loras."
    )
    return (
        f"Run {frame_text(function)} outside the loop of the engine (before serving, or in a "
        f"thread): it is longer than a step, so asynchronous scheduling cannot hide it."
        f"{lora if 'lora' in function.lower() else ''}"
    )


def _advice(function: str, *, few: bool, is_named: bool) -> str:
    if waits.wait_of(function) == waits.KV_TRANSFER:
        return f"{waits.advice(waits.KV_TRANSFER)}."
    if few or not is_named:
        return _of_few(function, is_named=is_named) if few else _RECORD
    if _WAITS_FOR_ENGINE in function:
        return f"The worker waits for the process that schedules: record that process too. {_AHEAD}"
    return (
        f"{_AHEAD} {frame_text(function)} has the most of it: make it faster, or run it elsewhere."
    )


@rule(
    "steps",
    "prefill that stalls decoding: steps with prompts are much longer than decode steps",
    "share of step time of prefill and mixed steps that take at least three times as long as the "
    "median decode step",
    {"info": 0.1, "warning": 0.25},
)
def _prefill_stalls(result: Steps, _: Answers) -> Iterator[Measured]:
    rows = result.engine_steps
    decode = rows.filter(phase=DECODE)["duration_ns"].median()
    whole = int(rows["duration_ns"].sum())
    if not isinstance(decode, float) or not decode:
        return
    is_long = pl.col("duration_ns") >= _STALL * decode
    long = rows.filter(pl.col("phase").is_in([PREFILL, MIXED]), is_long)
    if long.is_empty():
        return
    longest = long.sort("duration_ns", "step", descending=[True, False]).row(0, named=True)
    cost, usual = int(long["duration_ns"].sum()), float(long["duration_ns"].median() or 0)  # type: ignore[arg-type]
    steps = format_count(long.height, "prefill or mixed step")
    tokens = long["tokens"].drop_nulls().to_list()
    yield Measured(
        size=cost / whole,
        title=f"{steps} take {format_frac(cost / whole)} of step time, "
        f"{format_ns(usual)} each (median), {usual / decode:.1f} times as long as a decode step.",
        evidence=(
            f"The longest is {longest['step']}: {format_ns(longest['duration_ns'])}.",
            f"A decode step takes {format_ns(decode)} (median).",
            *([f"Such a step has {median(tokens):,.0f} tokens (median)."] if tokens else []),
        ),
        advice="Split long prompts (chunked prefill, a smaller limit of batched tokens), or run "
        "prefill and decode on separate GPUs.",
        total_ns=cost,
        confidence="medium",
    )


#: From this multiple of a decode step on, a prefill step stalls decoding.
_STALL = 3


@rule(
    "steps",
    "time between steps: evaluation, logging, checkpoints",
    "time between steps as a share of the time from the first to the last step",
    {"info": 0.05, "warning": 0.15, "critical": 0.3},
)
def _time_between_steps(result: Steps, answers: Answers) -> Iterator[Measured]:
    rows = largest_first(result.ranks.drop_nulls("between_frac"), "between_frac", "on")
    if rows.is_empty():
        return
    worst = rows.row(0, named=True)
    rank = f" on {worst['on']}" if result.ranks.height > 1 else ""
    waiting, by_design = _waiting_between(result, worst, answers)
    yield Measured(
        size=min(worst["between_frac"], _OF_DESIGN if by_design else 1.0),
        cost_frac=worst["between_frac"],
        title=f"{format_ns(worst['between_ns'])} ({format_frac(worst['between_frac'])} of the "
        f"time) are between steps{rank}.",
        evidence=(*_running_between(result, worst), *_between_steps(answers)),
        advice=waiting or _less_between(result, worst, answers),
        total_ns=int(rows["between_ns"].sum()),
        of="the time from the first to the last step",
        confidence="low" if by_design or waiting.startswith(_PACED) else "medium",
        explained=_of_scheduler(result),
    )


#: For waits between steps that may be by design: control loops, servers.
_PACED = (
    "If a timer or a request starts each step, the load is low, not the program slow. Otherwise "
)


def _waiting_between(result: Steps, worst: Mapping[str, Any], answers: Answers) -> tuple[str, bool]:
    """Return advice on the wait in most of the time between steps, and if it may be by design."""
    if (most := result.wait_between(worst)) is None:
        return "", False
    idle = answers.of(GpuIdle)
    meanwhile = "" if idle is None else idle.activity(causes.HOST_CODE).rival
    text = f"{waits.advice(most[0], meanwhile)}."
    sleeps = most[0] == waits.SLEEPS
    alone = not (meanwhile or answers.program.trains)
    by_design = alone and (sleeps or waits.may_be_for_requests(*most))
    paced = (sleeps or by_design) and most[0] != waits.REQUESTS
    return f"{_PACED}{text[0].lower()}{text[1:]}" if paced else text, by_design


@rule(
    "steps",
    "device work between some of the steps: evaluation, sampling, weight averages",
    "device work in at most half of the pauses between steps, as a share of the time from the "
    "first to the last step",
    {"info": 0.02, "warning": 0.1},
)
def _work_between_steps(result: Steps, answers: Answers) -> Iterator[Measured]:
    rows = largest_first(result.ranks.drop_nulls("extra_frac"), "extra_frac", "on")
    for worst in rows.filter(pl.col("extra_ns") > 0).head(1).iter_rows(named=True):
        code = result.host_between(worst).head(1)["name"].to_list()
        what = "".join(f": {frame_text(name)}" for name in code)
        pauses = format_count(worst["steps"] - 1, "pause")
        rank = f" on {worst['on']}" if result.ranks.height > 1 else ""
        yield Measured(
            size=min(worst["extra_frac"], _OF_DESIGN),
            cost_frac=worst["extra_frac"],
            title=f"{format_frac(worst['extra_frac'])} of the time is device work between steps"
            f"{rank}{what}.",
            evidence=(
                f"{format_ns(worst['extra_ns'])} in {worst['extra_count']} of {pauses}.",
                *_running_between(result, worst),
            ),
            advice="".join(advice_on_slice(one, pytorch=answers.program.pytorch) for one in code)
            or _LESS_OFTEN,
            total_ns=int(rows["extra_ns"].sum()),
            of="the time from the first to the last step",
            confidence="medium",
        )


def _of_scheduler(result: Steps) -> dict[str, float]:
    """Return the share of the time between steps in which the devices wait for a scheduler."""
    decode = result.engine_steps.filter(phase=DECODE)
    exposed = int(decode.select(pl.min_horizontal("exposed_ns", "before_ns").sum()).item())
    between = int(result.ranks["between_ns"].sum())
    return {"exposed-scheduler": min(exposed / between, 1.0)} if between and exposed else {}


def _less_between(result: Steps, worst: Mapping[str, Any], answers: Answers) -> str:
    """Return advice for time between steps: by the host code that takes half of it."""
    rows = result.host_between(worst).head(1)
    rows = rows.filter(2 * pl.col("total_ns") > worst["between_ns"])
    if rows.height:
        return advice_on_slice(rows["name"][0], pytorch=answers.program.pytorch)
    idle_causes = [cause for cause in causes.CAUSES if cause != causes.HOST_CODE]
    known = answers.time.outside.filter(pl.col("cause").is_in(idle_causes)).head(1)
    whole = int(answers.time.outside["idle_ns"].sum())
    idle = answers.of(GpuIdle)
    if idle is not None and known.filter(2 * pl.col("idle_ns") > whole).height:
        return idle.advice(known["cause"][0])
    if result.phases.height:
        return (
            "Between steps an inference engine schedules, samples and waits for requests: Python "
            "stacks show which of these takes the time."
        )
    return (
        "The host code between steps was not recorded: ranges (record_function, NVTX) around "
        "evaluation, logging and checkpoints, or Python stacks, show which one to call less often."
    )


def _running_between(result: Steps, worst: Mapping[str, Any]) -> Iterator[str]:
    """Yield host activity between the steps of a rank."""
    for row in result.host_between(worst).head(_NAMED).iter_rows(named=True):
        yield (
            f"The host runs {frame_text(row['name'])} for {format_ns(row['total_ns'])} of it "
            f"({format_count(row['n'], 'call')})."
        )


def _between_steps(answers: Answers) -> Iterator[str]:
    """Yield the main cause of idle time between steps, and the longest gap."""
    time = answers.time
    if (idle := answers.of(GpuIdle)) is None:
        return
    whole = time.outside["idle_ns"].sum()
    for cause, ns in time.outside.head(1).iter_rows():
        if ns:
            share = format_frac(ns / whole)
            yield f"{share} of the time lost outside steps: {causes.LOSING[cause]}."
    inside = pl.coalesce("own_code", "python", "host_event")
    gaps = idle.gaps.filter(pl.col("step").is_null()).with_columns(inside=inside)
    gaps = gaps.drop_nulls("inside")
    length = pl.col("end") - pl.col("start")
    for gap in gaps.sort(length, descending=True).head(1).iter_rows(named=True):
        took = format_ns(gap["end"] - gap["start"])
        where = frame_text(gap["inside"])
        yield f"Longest gap outside steps: {took}, while the host is in {where}."


RULES: tuple[Rule, ...] = (
    compiling_steps,
    _eager_decode,
    _exposed_scheduler,
    _prefill_stalls,
    _time_between_steps,
    _work_between_steps,
)
