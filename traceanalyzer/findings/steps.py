"""Rules for steps: of inference engines, the time between them, and what grows in each."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.names import called_in, frame_text
from traceanalyzer.analyzers.common.step_marks import DECODE, MIXED, PREFILL
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.activities import advice_on_slice
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.steps import engine
from traceanalyzer.analyzers.steps.engine import EAGER
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.findings.device_time import DEVICE, intervals_of
from traceanalyzer.findings.rule import Answers, Measured, Rule, rule
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns

#: Maximum number of functions in the evidence.
_NAMED = 3


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
    each = int((few if few.height else known)["exposed_ns"].sum()) / (few.height or known.height)
    where = f"in {few.height:,} of {known.height:,} decode steps" if few.height else (
        "per decode step"
    )  # fmt: skip
    yield Measured(
        size=total / whole,
        title=f"The scheduler exposes {format_ns(each)} {where} "
        f"({format_frac(total / whole)} of the time from the first to the last step): the GPU "
        f"waits for host code{f', mostly {frame_text(main)}' if is_named else ''}.",
        evidence=(
            _functions(code, few.height),
            f"{format_count(known.height, 'decode step')} measured.",
            *_longest(few),
        ),
        advice=_of_few(main, is_named=is_named)
        if few.height
        else _advice(main)
        if is_named
        else _RECORD,
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


def _advice(function: str) -> str:
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
    yield Measured(
        size=worst["between_frac"],
        title=f"{format_ns(worst['between_ns'])} ({format_frac(worst['between_frac'])} of the "
        f"time) are between steps{rank}.",
        evidence=(*_running_between(result, worst), *_between_steps(answers)),
        advice=_less_between(result, worst, answers),
        total_ns=int(rows["between_ns"].sum()),
        of="the time from the first to the last step",
        confidence="medium",
        explained=_of_scheduler(result),
    )


def _of_scheduler(result: Steps) -> dict[str, float]:
    """Return the share of the time between steps in which the devices wait for a scheduler."""
    decode = result.engine_steps.filter(phase=DECODE)
    waits = int(decode.select(pl.min_horizontal("exposed_ns", "before_ns").sum()).item())
    between = int(result.ranks["between_ns"].sum())
    return {"exposed-scheduler": min(waits / between, 1.0)} if between and waits else {}


def _less_between(result: Steps, worst: Mapping[str, Any], answers: Answers) -> str:
    """Return advice for time between steps: by the host code that takes half of it."""
    rows = _host_between(result, worst).head(1)
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


def _host_between(result: Steps, worst: Mapping[str, Any]) -> pl.DataFrame:
    """Return the host activity between the steps of a rank, longest first."""
    if result.between is None:
        return pl.DataFrame(schema={"name": pl.String, "total_ns": pl.Int64, "n": pl.Int64})
    same = pl.col("path") == worst["path"], pl.col("rank").eq_missing(worst["rank"])
    return result.between.filter(*same)


def _running_between(result: Steps, worst: Mapping[str, Any]) -> Iterator[str]:
    """Yield host activity between the steps of a rank."""
    for row in _host_between(result, worst).head(_NAMED).iter_rows(named=True):
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


@rule(
    "steps",
    "matrix products of the CPU in double precision in a program that has others, too",
    "half of their time, which single precision saves, as a share of the time of all steps",
    {"info": 0.03, "warning": 0.1, "critical": 0.3},
)
def _double_products(result: Steps, _: Answers) -> Iterator[Measured]:
    rows = pl.DataFrame() if result.doubles is None else result.doubles
    for row in rows.iter_rows(named=True):
        place = f" in {frame_text(row['code'])}" if row["code"] else ""
        share = row["ns"] / row["steps_ns"]
        yield Measured(
            size=share / 2,
            title=f"{row['name']}{place} computes in double precision (float64): "
            f"{format_count(row['n'], 'matrix product')}, {format_frac(share)} of step time.",
            evidence=(
                f"{row['others']:,} others in lower precision take {format_ns(row['others_ns'])}.",
            ),
            advice="Find the tensor that is float64 (data from NumPy is by default) and convert it "
            "before the model (.float()): single precision takes about half as long.",
            cost_ns=round(row["ns"] / 2 / row["steps"]),
            of="step time",
            per="step",
            rank=row["rank"],
            confidence="medium",
        )


@rule(
    "steps",
    "operators or kernels of which each step runs more, and host memory that each step keeps",
    "self time of the calls beyond as many as in the first step, as a share of the time of all "
    "steps, or of the last one if this is more; growth of memory as a share of it",
    {"info": 0.02, "warning": 0.1},
)
def _growing_calls(result: Steps, _: Answers) -> Iterator[Measured]:
    rows = pl.DataFrame() if result.growing is None else result.growing
    for row in rows.iter_rows(named=True):
        # calls of several threads run at the same time
        mean = min(row["more_ns"] / row["steps_ns"], 1.0)
        last = min(row["last_ns"] / row["last_step_ns"], 1.0)
        yield Measured(
            size=max(mean, last),
            title=f"Each step runs more calls of {row['outer'] or row['name']}{called_in(row)}, "
            f"from {row['first']:,} to {row['last']:,}: {format_ns(row['last_ns'])} more in the "
            f"last step ({format_frac(last)}) than in the first.",
            advice="Find the list, history or cache that grows (losses, metrics, hooks, a retained "
            "graph), and clear it or keep a running value.",
            cost_ns=round(row["more_ns"] / row["steps"]),
            cost_frac=mean,
            of="step time",
            per="step",
            rank=row["rank"],
            confidence="high",
        )
    rows = pl.DataFrame() if result.host_memory is None else result.host_memory
    for row in rows.iter_rows(named=True):
        more = row["last_bytes"] - row["first_bytes"]
        each = format_bytes(more / (row["steps"] - 1))
        within = f" in {row['outer']}" if row["outer"] else ""
        yield Measured(
            size=more / row["last_bytes"],
            title=f"Each step keeps {each} of host memory that it allocates{within}"
            f"{called_in(row)}: {format_bytes(more)} in {row['steps'] - 1} steps.",
            advice="Find what keeps tensors or the graph of each step alive: a sum of losses (use "
            "loss.item() or .detach()), a list of outputs, retain_graph=True, hooks.",
            cost_bytes=more,
            of="the memory at the end",
            rank=row["rank"],
            confidence="high",
        )


RULES: tuple[Rule, ...] = (
    _double_products,
    _growing_calls,
    _eager_decode,
    _exposed_scheduler,
    _prefill_stalls,
    _time_between_steps,
)
