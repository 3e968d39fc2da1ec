"""Launches and calls of the host: evidence and advice for rules about idle time; compilation."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.device_work import MEMORY
from traceanalyzer.analyzers.common.display import listed, places
from traceanalyzer.analyzers.common.gpu_api import Api
from traceanalyzer.analyzers.common.kernel_names import ATTENTION
from traceanalyzer.analyzers.common.names import frame_text, one_name_for_numbers
from traceanalyzer.analyzers.common.waits import (
    DEVICE as GPU_WORK,
    SLEEPS,
    may_be_for_requests,
)
from traceanalyzer.analyzers.cuda_api.result import (
    ALLOC_IN_LOOP,
    ASYNC_PAGEABLE,
    FINDINGS,
    SYNC_MEMCPY,
    SYNC_PINNED,
    CudaApi,
)
from traceanalyzer.analyzers.gpu_idle import activities, causes
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.kernels.training import LEAST_CALLS, OF_A_BATCH
from traceanalyzer.analyzers.launches.calls import SHORT_KERNEL_NS
from traceanalyzer.analyzers.launches.result import Launches
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.findings.device_time import DEVICE, MOST, DeviceTime
from traceanalyzer.findings.rule import ADVICE, Answers, Measured, in_steps, rule, within
from traceanalyzer.frames import linking
from traceanalyzer.result import memoized
from traceanalyzer.units import (
    NS_PER_MS,
    format_bytes,
    format_count,
    format_first,
    format_frac,
    format_ns,
)
from traceanalyzer.vocabulary import ALLOCATES

_TEXTS = ADVICE["launching"]
#: Maximum number of items in a list.
_NAMED = 3

#: Equal numbers of launches count from this many steps and launches on.
_ENOUGH_STEPS, _MANY_LAUNCHES = 3, 10

#: Least share of launch overhead after synchronising calls that is worth a sentence.
_LEAST_SYNCHRONISED = 0.05


def at_rival(result: GpuIdle) -> tuple[GpuIdle, GpuIdle]:
    """Return the result with only gaps in which one thread holds the GIL, and without them.

    If it holds it in nearly all, as one cause already, nothing is set apart: shorter gaps are like
    these.
    """
    late = result.gaps.filter(pl.col("cause").cast(pl.String).is_in(causes.STOPPED))
    name = activities.main_place(late.drop_nulls("rival"), "rival")[0]
    chosen = (pl.col("rival") == name).fill_null(value=False)
    of_rival = late.filter(chosen, pl.col("cause") == causes.HOST_CODE)
    if of_rival["cause_ns"].sum() >= activities.NEARLY_ALL * int(late["cause_ns"].sum()):
        chosen = pl.lit(value=False)
    return _apart(result, chosen, causes.HOST_CODE)


def at_stops(result: GpuIdle) -> tuple[GpuIdle, GpuIdle]:
    """Return the result with only the gaps of its stops, as late launches, and without them."""
    return _apart(result, activities.IS_LONG & pl.lit(bool(result.stops[1])), causes.LAUNCH)


def _apart(result: GpuIdle, chosen: pl.Expr, cause: str) -> tuple[GpuIdle, GpuIdle]:
    """Return a result with chosen late launches and host code as one cause, and without them."""
    gaps, chosen = result.gaps, chosen & pl.col("cause").cast(pl.String).is_in(causes.STOPPED)
    inside = gaps.filter(chosen).with_columns(cause=pl.lit(cause, gaps["cause"].dtype))
    others = result if inside.is_empty() else replace(result, gaps=gaps.filter(~chosen))
    return replace(result, gaps=inside), others


#: What is set apart from late launches and host code, and the cause that it then has.
APART = ((at_stops, causes.LAUNCH), (at_rival, causes.HOST_CODE))


def at_gaps(losses: pl.DataFrame, gaps: pl.DataFrame) -> pl.Series:
    """Whether losses are in gaps, or half as long waits for a rank with a long gap in the step."""
    longest = gaps.filter(activities.IS_LONG).group_by("step", root_rank="rank")
    rows = losses.join(
        longest.agg(gap=(pl.col("end") - pl.col("start")).max()),
        on=["step", "root_rank"], how="left", nulls_equal=True, maintain_order="left",
    )  # fmt: skip
    waits = (rows["waited"] & (2 * rows["lost_ns"] > rows["gap"])).fill_null(value=False)
    return within(losses, gaps) | waits


def after_warm_up(cause: str, result: GpuIdle) -> GpuIdle:
    """Return a result without the gaps of a cause in steps of warm-up, if it has others."""
    of_cause = result.gaps.filter(pl.col("cause").cast(pl.String) == cause)
    first, key = result.steps.filter("warm_up"), ["path", "rank", "step"]
    counted = of_cause.join(first, on=key, how="anti", nulls_equal=True)
    if counted.drop_nulls("step").is_empty() or counted.height == of_cause.height:
        return result
    others = result.gaps.filter(pl.col("cause").cast(pl.String) != cause)
    return replace(result, gaps=pl.concat([counted, others]))


def by_place(
    result: GpuIdle, losses: pl.DataFrame, time: DeviceTime, least: float
) -> Iterator[tuple[GpuIdle, pl.DataFrame]]:
    """Yield gaps and losses of host code at each other place with this share, and last the rest.

    The rest is at the main place. Pauses may be anywhere; another thread may hold all places up.
    """
    gaps, one = result.of_cause(causes.HOST_CODE), result.activity(causes.HOST_CODE)
    losses = linking.divided(losses, gaps.select(*DEVICE, ts="start"), DEVICE).with_columns(
        lost_ns=pl.min_horizontal("lost_ns", pl.col("end") - pl.col("start"))
    )
    in_range = pl.when(annotation=activities.FALLBACK).then("phase").otherwise("annotation")
    place = pl.coalesce("own_code", in_range, "python")
    gaps = gaps.with_columns(place=place).filter(
        pl.col("place").is_not_null(), not (one.pauses or one.rival)
    )
    plain = one_name_for_numbers(gaps["place"].unique(maintain_order=True).to_list())
    gaps = gaps.with_columns(pl.col("place").replace(plain))
    sums = largest_first(gaps.group_by("place").agg(pl.col("cause_ns").sum()), "cause_ns", "place")
    for name in sums["place"][1:_NAMED]:
        rows = gaps.filter(place=name).drop("place")
        of_place = within(losses, rows) & ~losses["waited"]
        if time.frac(int(losses.filter(of_place)["lost_ns"].sum())) >= least:
            yield replace(result, gaps=rows), losses.filter(of_place)
            losses, keys = losses.filter(~of_place), [*DEVICE, "start"]
            result = replace(
                result, gaps=result.gaps.join(rows, on=keys, how="anti", nulls_equal=True)
            )
    yield result, losses


def by_range(gaps: pl.DataFrame) -> Iterator[str]:
    """Yield the sums of gaps by range, where neither steps nor code were recorded."""
    if any(gaps[name].count() for name in ("step", "own_code", "python")):
        return
    sums = gaps.group_by("annotation").agg(pl.col("cause_ns").sum()).drop_nulls()
    sums = largest_first(sums, "cause_ns", "annotation")
    if sums.height > 1:
        each = [f"{name} {format_ns(ns)}" for name, ns in sums.head(_NAMED).rows()]
        yield f"Longest gaps by range: {listed(each)} (all ranges: annotations)."


def pauses(rows: pl.DataFrame) -> str:
    """Return which rank pauses in which step."""
    rows = rows.sort("start")
    where = rows.with_columns(places(rows)).select("on", "step", pl.col("end") - pl.col("start"))
    each = [f"{on} in {step} ({format_ns(ns)})" for on, step, ns in where.iter_rows()]
    return f"Pauses: {format_first(each, _MOST_PAUSES)}."


#: Maximum number of pauses that are listed.
_MOST_PAUSES = 8


def launch_advice(result: GpuIdle, launches: Launches, answers: Answers) -> str:
    """Return advice for launch overhead: by its place, or graphs for launches that repeat."""
    of_host = result.program.slow_host or result.pauses_of(causes.LAUNCH)[1]
    known = result.slow_operator[0] or result.few_late.height
    if result.program.blocking or of_host or known:
        return result.advice(causes.LAUNCH)
    if pieces := in_pieces(result, answers)[1]:
        return pieces
    place, share = _waiting_place(launches)
    one, around = result.activity(causes.LAUNCH), answers.place(causes.LAUNCH)
    lost = answers.time.of_cause(causes.LAUNCH)
    drafted = lost.filter(pl.col("step").str.contains(_DRAFT))["lost_ns"].sum()
    names = f"{one.range} {one.phase} {around.get('called')} {around.get('code')}"
    if re.search(_DRAFT, names) or 2 * drafted > lost["lost_ns"].sum():
        return _TEXTS["graph_of_draft"]
    fitting = activities.advice_on_launches(one, place if share >= MOST else "", result.launched)
    if fitting and result.program.pytorch and answers.loops.is_empty():
        return fitting
    if more := launches.more_graphs:
        return f"{more[:1].upper()}{more[1:]}, or reduce their number."
    apart = result.program.pytorch and around.get("called") and around["code"]
    join = _JOIN.format(frame_text(around["called"])) if apart else ""
    return f"{join}{result.advice(causes.LAUNCH)}{_graph_advice(launches, result.program)}"


#: Where an inference engine runs a draft model.
_DRAFT = r"(?i)(?:^|[^a-z])draft|spec_decode|speculat|eagle_|medusa"
_JOIN = (
    "Join the kernels of {} (batched or grouped matrix products, a fused kernel, torch.compile). "
)


def in_pieces(result: GpuIdle, answers: Answers) -> tuple[str, str]:
    """Return into which small pieces a step is divided, and advice; or empty texts."""
    regions = compiled_regions(result, answers)
    return regions if regions[0] else recurrent_cells(answers)


def recurrent_cells(answers: Answers) -> tuple[str, str]:
    """Return that a loop calls a recurrent cell for each time step, and advice; or empty texts."""
    kernels, time = answers.of(Kernels), answers.time
    if kernels is None or not time.in_steps:
        return "", ""
    cell = pl.col("kernel").cast(pl.String).str.extract("(?i)(lstm|gru)_cell_forward")
    rows = in_steps(kernels, time).with_columns(cell=cell).drop_nulls("cell")
    calls = int(rows["n"].sum()) / time.windows.height
    if calls < _LEAST_CELLS:
        return "", ""
    name = rows["cell"][0].upper()
    return (
        f" in a loop that calls {name}Cell {calls:,.0f} times per step",
        (
            f"Call torch.nn.{name} once for the whole sequence: cuDNN runs all time steps in a few "
            "calls. Where each time step has code of its own: torch.compile, or CUDA graphs."
        ),
    )


#: So many calls of a recurrent cell in a step are a loop over time steps.
_LEAST_CELLS = 8


def compiled_regions(result: GpuIdle, answers: Answers) -> tuple[str, str]:
    """Return that launches are late between compiled regions, and advice; or empty texts."""
    one, around = result.activity(causes.LAUNCH), answers.place(causes.LAUNCH)
    names = f"{one.place} {one.called} {one.phase} {around.get('called')} {around.get('operator')}"
    n = result.host.regions / max(result.by_device.steps.height, 1)
    if n < _MANY_REGIONS or not answers.time.in_steps or not re.search(_OF_REGIONS, names):
        return "", ""
    where = f" in {one.line}" if one.line else ""
    return f" between {n:,.0f} compiled regions per step{where}", _TEXTS["graph_breaks"]


#: So many compiled regions in a step are more than a model, its loss and its optimizer.
_MANY_REGIONS = 5
_OF_REGIONS = (
    rf"torch[/\\]_dynamo|{causes.LOOKS_UP[1:]}|{causes.REGION[1:]}|Compiled(?:Fx|Function)"
)


def _waiting_place(launches: Launches) -> tuple[str, float]:
    """Return the place with most time waiting for launches, and its share."""
    named = launches.bound.places.drop_nulls("place")
    sums = named.group_by("place").agg(pl.col("waiting_ns").sum())
    ordered = sums.sort("waiting_ns", "place", descending=[True, False]).head(1)
    for place, waiting in ordered.iter_rows():
        return place, waiting / max(launches.bound.waiting_ns, 1)
    return "", 0.0


def synchronising_place(launches: Launches) -> Mapping[str, Any]:
    """Return the row of the synchronising call with most idle time, or nothing."""
    rows = launches.synchronising.by_place.head(1)
    return rows.row(0, named=True) if rows.height else {}


@memoized
def waits_before(answers: Answers, cause: str) -> tuple[str, float]:
    """Return the call that waits for the device before idle time of a cause, and the share of it.

    It is lost time without work in between. Empty if that is less than half of it, or if the host
    waits for a shorter time while the device works: it could not run that far ahead.
    """
    result, rows = answers.of(Launches), answers.time.of_cause(cause).filter(~pl.col("waited"))
    whole, after = (int(r["lost_ns"].sum()) for r in (rows, following_waits(answers, cause)))
    place = synchronising_place(result) if result else {}
    if not place or not whole or 2 * after < whole or place["host_ns"] - place["idle_ns"] < whole:
        return "", 0.0
    work = int(answers.time.busy["busy_ns"].sum()) / answers.time.windows.height
    each = rows.group_by(*DEVICE, "step").agg(ns=pl.col("lost_ns").sum())["ns"]
    if 2 * int(each.filter(each > work).sum()) > whole:  # the work of a step cannot overlap with it
        return "", 0.0
    where = place["operator"] or place["annotation"] or place["python"]
    return f"{place['call']}{f' in {frame_text(where)}' if where else ''}", after / whole


def following_waits(answers: Answers, cause: str) -> pl.DataFrame:
    """Return losses of a cause that follow waits for the device without work in between.

    Small copies that block the host wait, too.
    """
    is_wait = pl.col("cause").is_in([causes.SYNCHRONISATION, causes.SMALL_COPIES])
    follows = pl.when(is_wait).then("stretch").forward_fill() == pl.col("stretch")
    return answers.time.in_stretches(follows, pl.col("cause") == cause).drop("stretch")


def read_collectives(answers: Answers) -> tuple[str, str]:
    """Return which small collectives the host reads in each step, and advice; or empty texts.

    There are at least half as many as synchronising calls: metrics of all ranks, norms, flags.
    """
    compared, launches = answers.of(CommOutliers), answers.of(Launches)
    if compared is None or launches is None:
        return "", ""
    windows = answers.time.windows.drop_nulls("step")
    of_numbers = pl.col("collective").str.contains("reduce|gather")
    rows = compared.collectives.filter(of_numbers, pl.col("message_bytes") <= _SCALARS_BYTES)
    rows = rows.join(windows, on="step", how="semi")
    waits = launches.synchronising.by_place["n"].sum() / max(windows.height, 1)
    each = rows.height / max(windows["step"].n_unique(), 1)
    if each < _SEVERAL or 2 * each < waits:
        return "", ""
    name, size = rows["collective"].mode().sort()[0], int(rows["message_bytes"].max())  # type: ignore[arg-type]
    place = synchronising_place(launches)
    where = next(filter(None, (place.get("annotation"), place.get("python"))), "")
    inside = f" in {frame_text(where)}" if where else ""
    calls = f"{each:,.0f} {name} calls of at most {format_bytes(size)} in each step{inside}"
    return f" of {calls}", _TEXTS["reduce_together"]


#: Functions that count the tokens of sequences for attention without padding.
_LENGTHS = r": \w*(?:unpad|seq_?len|packed_seq)"
#: Collectives of so few bytes are of single numbers; so many in a step can be joined.
_SCALARS_BYTES, _SEVERAL = 64, 3


def called_at(result: GpuIdle, answers: Answers) -> str:
    """Return the frame or range that own code calls at nearly all waits for the device; or nothing.

    Nothing, too, if most idle time follows waits in another function of own code.
    """
    place = answers.place(causes.SYNCHRONISATION)
    return (place.get("called") or "") * (place.get("code") == result.waited["frame"])


def of_waits(result: GpuIdle, answers: Answers) -> str:
    """Return advice on waits for the device by the function that own code calls, or nothing.

    Functions of torch.distributed send pickled objects; others make what all layers could share.
    """
    launches, frame = answers.of(Launches), result.waited["frame"]
    if "_object" in (answers.place(causes.SYNCHRONISATION).get("called") or ""):
        return causes.NO_OBJECTS
    code = called_at(result, answers) or frame
    if launches is None or not re.search(f"{OF_A_BATCH}|{_LENGTHS}", code):
        return ""
    waits = launches.synchronising.by_place.filter(python=frame)["n"].sum()
    each = waits / max(answers.time.windows.height, 1)
    more = _TEXTS["no_padding"] * bool(re.search(_LENGTHS, code))
    text = _TEXTS["waits_again"].format(frame_text(code), each)
    return f"{text} {more}".rstrip() if each >= LEAST_CALLS else ""


def synchronising(answers: Answers) -> Iterator[str]:
    """Yield the longest synchronisation and host code after it, from the launches result."""
    if (result := answers.of(Launches)) is not None and (worst := synchronising_place(result)):
        where = worst["operator"] or worst["annotation"] or worst["python"]
        yield (
            f"Most synchronisation time: {worst['call']}{f' in {where}' if where else ''}, "
            f"{format_count(worst['n'], 'call')}."
        )
        losses = answers.time.of_cause(causes.SYNCHRONISATION)
        idle = int(losses.filter(~pl.col("waited"))["lost_ns"].sum())
        if 2 * result.synchronising.synchronising_idle_ns < idle:
            share = format_frac(1 - result.synchronising.synchronising_idle_ns / idle)
            yield (
                f"{share} of it is host code after such calls, before the next launch: without "
                "them, it would overlap with GPU work."
            )


def launching(answers: Answers) -> Iterator[str]:
    """Yield the share of short kernels, and the places of wait time, from the launches result."""
    if (result := answers.of(Launches)) is None or not result.bound.waiting_ns:
        return
    waiting_ns = result.bound.waiting_ns
    if result.short.short_kernels:
        short = result.short.short_kernels / result.short.kernels
        yield (
            f"{format_frac(short)} of the kernels are shorter than {format_ns(SHORT_KERNEL_NS)}."
        )
    lost = int(answers.time.of_cause(causes.LAUNCH)["lost_ns"].sum())
    elsewhere = "also outside steps and in gaps with another cause"
    basis = elsewhere if waiting_ns > lost else "launch-bound stretches only"
    yield f"The command launches counts {format_ns(waiting_ns)} in total: {basis}."
    place, share = _waiting_place(result)
    if place:
        yield f"{format_frac(share)} of the time waiting for launches is in {frame_text(place)}."
    if (share := result.bound.synchronised_ns / waiting_ns) >= _LEAST_SYNCHRONISED:
        yield f"{format_frac(share)} of it follows a synchronising call."
    if equal := _equal_launches(result):
        yield f"{equal}, without a CUDA graph."


def _equal_launches(result: Launches) -> str:
    """Return launches per step if all steps of a device have the same number, without graphs."""
    each = result.steps.group_by(DEVICE).agg(steps=pl.len(), n=pl.col("launches").unique())
    equal = (pl.col("n").list.len() == 1) & (pl.col("steps") >= _ENOUGH_STEPS)
    graphs = result.calls.by_name["launch_name"].cast(pl.String).str.contains("(?i)graph").any()
    counts: list[int] = each["n"].list.explode().sort().to_list()
    if graphs or not counts or counts[0] < _MANY_LAUNCHES or not each.select(equal.all()).item():
        return ""
    low, high = counts[0], counts[-1]
    number = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    devices = " (by device)" if low < high else ""
    steps = max(each["steps"].to_list())
    return f"All {steps:,} steps have {number} launches each{devices}"


def _graph_advice(launches: Launches, program: Api) -> str:
    """Return advice to replay steps of equal launches as CUDA graphs."""
    if program.framework or program.xpu or not _equal_launches(launches):
        return ""
    how = "a CUDA graph captured once (cudaStreamBeginCapture)"
    if program.pytorch:
        how = 'torch.compile(mode="reduce-overhead") or torch.cuda.graph'
    return program.named(f" If shapes do not change, {how} replays a step as one CUDA graph.")


#: Findings of ``cuda_api`` that are evidence for a cause.
CALLS = {
    causes.BATCH_COPY: (ASYNC_PAGEABLE, SYNC_MEMCPY, SYNC_PINNED),
    causes.MEMORY_MANAGEMENT: (ALLOC_IN_LOOP,),
}


def calls(answers: Answers, names: Sequence[str]) -> Iterator[str]:
    """Yield the findings of ``cuda_api`` with these names, and the calls that allocate."""
    if (result := answers.of(CudaApi)) is None:
        return
    rows = result.findings.filter(pl.col("finding").cast(pl.String).is_in(names))
    for row in rows.iter_rows(named=True):
        text = FINDINGS[row["finding"]].sentence(row["n"])
        moved = f", {format_bytes(row['moved_bytes'])}" if row["moved_bytes"] else ""
        yield f"Recorded: {row['n']:,} {text}{moved}."
    if ALLOC_IN_LOOP in names:
        rows = result.calls.filter(pl.col("class").is_in(ALLOCATES)).head(_NAMED)
        each = ", ".join(
            f"{name} {format_count(n, 'time')} ({format_ns(ns)})"
            for name, n, ns in rows.select("call", "n", "total_ns").iter_rows()
        )
        if each:
            yield f"Calls: {each}."


def pinning(result: GpuIdle, answers: Answers) -> tuple[str, str]:
    """Return what allocates pinned memory in half of data loading, as a phrase, and advice."""
    if (api := answers.of(CudaApi)) is None:
        return "", ""
    pinned = api.calls.filter(pl.col("call").str.contains("HostAlloc|MallocHost"))
    ns, waits = int(pinned["total_ns"].sum()), int(result.units["loader_ns"].sum())
    if pinned.is_empty() or 2 * ns < waits:
        return "", ""
    call, n = pinned["call"][0], format_count(int(pinned["n"].sum()), "call")
    advice = _TEXTS["pins_batches"] if result.has_loader else _TEXTS["pins_in_loop"]
    return f", mostly {call}", f"{call} takes {format_ns(ns)} ({n}): {advice}"


def copies_state(result: GpuIdle, answers: Answers) -> str:
    """Return the function that copies a checkpoint to the host in most of its time; or empty."""
    losses = answers.time.of_cause(causes.CHECKPOINT_IO).filter(~pl.col("waited"))
    place, idle = answers.place(MEMORY), result.idle_by_cause[causes.CHECKPOINT_IO]
    name = str(place.get("called") or place.get("code") or "")
    is_most = 2 * idle < losses["lost_ns"].sum()
    return name if is_most and re.search(_CHECKPOINTS, name) else ""


#: Functions that save checkpoints, and what they call.
_CHECKPOINTS = r"(?i)checkpoint|staging|save|snapshot|state_?dict"


def by_design(result: GpuIdle, answers: Answers, steps: Sequence[str], total_ns: int) -> bool:
    """Whether a program that does not train waits for a request, or mostly for a timer.

    It may wait for requests if it runs unknown code in few steps, and attention in others. Or the
    program waits for GPU work, which is not recorded.
    """
    one, kernels = result.activity(causes.HOST_CODE), answers.of(Kernels)
    if one.wait == GPU_WORK or result.program.trains:
        return one.wait == GPU_WORK
    if steps and kernels is not None and not (one.text or one.range):
        return bool((kernels.heaviest("family")["family"] == ATTENTION).any())
    names = f"{one.place} {one.called} {one.frame}"
    is_loop = not one.rival and may_be_for_requests(one.wait, names)
    gaps, is_most = result.of_cause(causes.HOST_CODE), 2 * answers.time.frac(total_ns) > 1
    long = gaps.filter(pl.col("end") - pl.col("start") >= _TIMER_NS)
    return is_loop or (one.wait == SLEEPS and is_most and 2 * long.height > gaps.height)


RECORD_GPU = (
    "Record the GPU, too (ProfilerActivity.CUDA), if the program uses it: this may be its time."
)
#: The shortest usual period of a timer.
_TIMER_NS = 10 * NS_PER_MS


def of_host_code(result: GpuIdle, answers: Answers, steps: Sequence[str]) -> str:
    """Return advice for work on copies of what the GPU computed, or for stalls; else empty.

    PyTorch's own code that takes many times as long in few steps stalls.
    """
    code, known = result.activity(causes.HOST_CODE), answers.of(Steps)
    rows = known.only_slow if known is not None else None
    name = re.search(_OF_OPTIMIZER, code.range or code.place)
    logs = activities.LOGS.search(f"{code.called} {code.frame}")  # which the GPU cannot do
    if answers.reads_copies and code.runs_python and not logs:
        return (
            activities.advice_on_collectives(code)
            if "_object" in code.called
            else _TEXTS["on_gpu"].format(code.text)
        )
    if rows is None or not steps or not name:
        return ""
    rows = rows.filter(pl.col("step").is_in(steps), pl.col("name") == name.string)
    longer = rows.filter(pl.col("total_ns") > _MANY_TIMES * pl.col("usual_ns")).height
    return _TEXTS["stalled"].format(name[0]) if longer else ""


#: Ranges of PyTorch whose code is the same in all steps; a stall is so many times as long.
_OF_OPTIMIZER, _MANY_TIMES = r"^Optimizer\.(?:zero_grad|step)(?=#)", 10


#: The function of JAX that compiles, and the operator of torch.compile.
_JAX_COMPILES = r"compiler\.py\(\d+\): backend_compile"
_TORCH_COMPILES = causes.MAKES_CODE[1]
_JIT_ONCE = "Create jitted functions once, outside of the loop."


@rule(
    "steps",
    "programs without GPU work that compile in steps",
    "time of JAX's compiler or torch.compile as a share of the time of all steps",
    {"warning": 0.05, "critical": 0.3},
)
def compiling_steps(result: Steps, answers: Answers) -> Iterator[Measured]:
    """Yield the time of compilation, if a program without GPU work compiles in its steps."""
    name, n, total = _compilation(result, answers)
    steps = result.counted.unique(["rank", "path", "number"])
    if n:
        share = min(total / max(int(steps["duration_ns"].sum()), 1), 1.0)
        yield Measured(
            size=share,
            title=f"Compilation takes {format_frac(share)} of step time: "
            f"{format_count(n, 'compilation')} in {format_count(steps.height, 'step')}.",
            advice=activities.advice_on_slice(name, pytorch=True)
            if answers.program.pytorch
            else f"{activities.advice_on_slice(name, pytorch=False)} {_JIT_ONCE}",
            cost_ns=round(total / steps.height),
            cost_frac=share,
            of="step time",
            per="step",
            confidence="high",
        )


def of_compilation(answers: Answers) -> dict[str, float]:
    """Return that compilation explains slow steps, if there is any."""
    result = answers.of(Steps)
    return {"compiling-steps": 1.0} if result and _compilation(result, answers)[1] else {}


def _compilation(result: Steps, answers: Answers) -> tuple[str, int, int]:
    """Return function, number and time of compilations in steps, if a GPU cannot wait for them."""
    if result.code is None or (answers.time.whole_ns and not answers.time.on_host):
        return "", 0, 0
    rows = result.code.filter(pl.col("name").str.contains(f"{_JAX_COMPILES}|{_TORCH_COMPILES}"))
    rows = rows.group_by("name").agg(pl.col("n", "total_ns").sum())
    rows = largest_first(rows, "total_ns", "name")  # they call each other
    return rows.row(0) if rows.height else ("", 0, 0)


def compiles_in_all(answers: Answers, place: str) -> bool:
    """Whether a place compiles code, and there is a compilation for each step."""
    steps = answers.of(Steps)
    n = _compilation(steps, answers)[1] if steps and re.search(_TORCH_COMPILES, place) else 0
    return steps is not None and n >= max(steps.counted["number"].n_unique(), 1)


def is_set_up(cause: str, result: GpuIdle, answers: Answers) -> bool:
    """Whether idle time of a cause in the first step is setup, by the cause or by names."""
    if compiles_in_all(answers, result.activity(cause).place):
        return False
    gaps = result.of_cause(cause)
    names = pl.concat_str("host_event", "python", "own_code", separator=" ", ignore_nulls=True)
    set_up = int(gaps.filter(names.str.contains(_SET_UP))["cause_ns"].sum())
    return cause in causes.FIRST_USE or 2 * set_up > int(gaps["cause_ns"].sum())


def are_first_launches(losses: pl.DataFrame, answers: Answers) -> bool:
    """Whether most of the loss is the time of first launches, which load the code of kernels."""
    if (launches := answers.of(Launches)) is None:
        return False
    return 2 * launches.calls.loading_ns > int(losses["lost_ns"].sum())


#: Setup calls: handles, communicators, compilation.
_SET_UP = (
    r"(?i)cu(?:blas|dnn|solver|sparse|fft)\w*Create|CommInit|init_process_group|new_group"
    r"|cu(?:Module|Library)Load|hipModuleLoad|_?dynamo|inductor|compil|autotun|lazy_init"
)


#: The key of a step.
STEP = ["path", "rank", "step"]


def rare_kernels(answers: Answers) -> pl.DataFrame:
    """Return the longest kernel of each step that at most every second step runs: STEP, kernel."""
    if (kernels := answers.of(Kernels)) is None or kernels.by_step is None:
        return answers.time.windows.select(*STEP, kernel=pl.lit("")).clear()
    rows = kernels.by_step.drop_nulls("step")
    rare = rows.filter(2 * pl.col("step").n_unique().over("kernel") <= rows["step"].n_unique())
    sums = rare.group_by(*STEP, "kernel").agg(pl.col("total_ns").sum())
    longest = largest_first(sums, "total_ns", "kernel").unique(STEP, keep="first")
    return longest.cast({pl.Categorical: pl.String}).drop("total_ns")


def place_of(answers: Answers, kernel: str) -> Mapping[str, Any]:
    """Return what launches a kernel."""
    return {} if (kernels := answers.of(Kernels)) is None or not kernel else kernels.place(kernel)
