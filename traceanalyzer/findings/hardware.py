"""Rules for GPU speed: slower kernels in some steps or on a rank; metrics of GPU and host."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from traceanalyzer.analyzers.comm_outliers.arrivals import WARN_FRAC
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common.kernel_times import (
    MANY_CALLS,
    SLOW_GPU,
    Difference,
    compare,
    has_levels,
)
from traceanalyzer.analyzers.common.step_marks import with_phases
from traceanalyzer.analyzers.efficiency.peaks import peaks_of
from traceanalyzer.analyzers.host_metrics.result import BUSY_PERCENT, HostMetrics, gpu_metrics_text
from traceanalyzer.analyzers.info.compute import Info
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.kernels.training import SHARED
from traceanalyzer.findings.device_time import DEVICE
from traceanalyzer.findings.rule import OF_STEP, Answers, Measured, in_steps, of_purpose, rule
from traceanalyzer.frames import intervals
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ranges

#: From this multiple of the duration of the same kernels elsewhere on, kernels are slow.
_SLOW = 1.1
#: Minimum number of steps or ranks for a comparison.
_ENOUGH = 3
#: Steps of an engine have equal work if these agree; they are null for other steps.
_KIND = ("phase", "batch", "tokens")
#: What is slow: several GPUs, or one.
_GPUS = ("these GPUs and of their node", "this GPU")
#: Ranks are equally slow if their times differ by at most this factor.
_ALIKE = 1.15
_NAMED = 3
#: From this share of step time on, slow GPUs or hosts are a warning.
LEAST = 0.05


@rule(
    "kernels",
    "all kernels slower in some steps than in the fastest ones",
    "time above that of the same kernels in the fastest quarter of steps, as a share of step time",
    {"info": 0.05, "warning": 0.1},
    uses=("gpu_idle",),
)
def _throttled_steps(result: Kernels, answers: Answers) -> Iterator[Measured]:
    kernels = _by_step(result)
    every = _speeds(kernels, answers.time.windows)
    if every.is_empty() or not answers.time.whole_ns:
        return
    is_slow = (pl.col("speed") >= _SLOW * pl.col("fast")) & (pl.col("step") != _OUTSIDE)
    steps = every.filter(is_slow)
    if answers.time.in_steps:  # warm-up is in no cost
        windows = answers.time.windows.cast({pl.String: pl.Categorical})
        steps = steps.join(windows, on=[*DEVICE, "step"], how="semi", nulls_equal=True)
    if steps.is_empty() or _is_in_turn(steps, answers.time.windows):
        return
    over = steps.group_by(DEVICE).agg(pl.col("over_ns").sum())
    device = over.sort("over_ns", *DEVICE, descending=[True, False, False, False]).head(1)
    slow, every, of_device = (
        rows.join(device.select(DEVICE), on=DEVICE, how="semi", nulls_equal=True)
        for rows in (steps, every, kernels)
    )
    slow = slow.sort("step")
    slowest = slow.sort("speed", descending=True)
    slow_names, worst = slowest["step"].head(_NAMED).sort().to_list(), slowest["step"][0]
    equal = every.join(slowest.head(1), on=_KIND, how="semi", nulls_equal=True)
    fastest = equal.filter(pl.col("speed") <= pl.col("fast"))["step"].sort().to_list()
    compared = _as_one_step(of_device.filter(pl.col("step").is_in([*fastest, worst])), worst)
    label = _OUTSIDE if fastest == [_OUTSIDE] else "the fastest steps"
    difference = compare(compared, "step", worst, f"in {label}")
    if difference is not None and difference.by_speed and has_levels(every["speed"]):
        difference = difference.of_gpu()
    elif difference is None or difference.by_speed or difference.why != SLOW_GPU:
        return
    total, time = round(steps["over_ns"].sum()), answers.time
    alike = steps.filter(pl.col("step").is_in(slow["step"].implode())).group_by(DEVICE)
    most = alike.agg(pl.col("over_ns").sum())["over_ns"]
    shared = int((2 * most >= most.max()).sum())
    text, advice = difference.text, difference.advice(answers.program.clocks)
    advice += _ONE_CAUSE * (shared > 1)
    if other := _other_process(result, answers, slow["step"].to_list(), fastest):
        text, advice = f"{text.partition(' (slow or ')[0]}: {other}", _SEPARATE
    rank = device["rank"][0] if over.height > 1 and shared == 1 else None
    where = f" of rank {rank}" if rank is not None else f" of {shared:,} GPUs" * (shared > 1)
    which = f"{format_count(slow.height, 'step')}{where} ({', '.join(slow_names)})"
    n = over.height - shared
    apart = OTHER_GPUS.format(f"{format_count(n, 'other GPU')}, which {'is' if n == 1 else 'are'}")
    yield Measured(
        title=f"Slow kernels in {which}: {time.share(total)}. In {worst}, {text}.",
        evidence=(
            f"Kernels are fastest in {', '.join(fastest[:_NAMED])}.",
            *[apart] * (n > 0 and rank is not None),
        ),
        advice=advice,
        total_ns=total,
        rank=rank,
        step=worst,
        explained={"straggler": 1.0},
    )


def _is_in_turn(slow: pl.DataFrame, windows: pl.DataFrame) -> bool:
    """Whether GPUs have more work in turn: one is slow in most steps, mostly another one.

    A throttled GPU is slow in several steps in a row, and in other steps none is.

    Args:
        slow: path, rank, device and step of the slow steps.
        windows: path, rank, device, start and step of the counted steps.
    """
    gpus = slow.group_by("step").agg(n=pl.len(), gpu=pl.struct(DEVICE).first())
    order = windows.group_by(pl.col("step").cast(slow["step"].dtype)).agg(pl.col("start").min())
    every = order.sort("start").join(gpus, on="step", how="left", maintain_order="left")
    one = every.filter(n=1)["gpu"]
    another = int((one != one.shift(1)).sum())
    few = slow.n_unique(DEVICE) < _ROTATING or one.len() < _IN_MOST * every.height
    return not few and 2 * another >= one.len()


#: So many GPUs are slow in turn, in at least this share of the steps.
_ROTATING, _IN_MOST = 3, 0.5

#: Evidence about the other GPUs of a cost.
OTHER_GPUS = "The cost includes that of {} slow in other steps, or less slow."
_ONE_CAUSE = (
    " Several GPUs are slow in the same steps: look for one cause (power cap of the chassis, "
    "cooling, other jobs on the node)."
)
_SEPARATE = (
    "Another process computes on the same GPU in these steps (nvidia-smi lists it): give each a "
    "GPU of its own or a part of one (MIG), or run the other one between the steps."
)
#: Another process uses the GPU for at least this share of slow steps, in fast ones less by this.
_SHARES, _SELDOM = 0.3, 0.3


def _other_process(
    result: Kernels, answers: Answers, slow: Sequence[str], fastest: Sequence[str]
) -> str:
    """Return which process uses the GPU in the slow steps only, as a clause; or nothing."""
    rows = of_purpose(result, SHARED, answers.time)
    share = pl.col("overlap").sum() / (pl.col("end") - pl.col("start")).sum()
    for name, used in rows.group_by(pl.col("name").cast(pl.String), maintain_order=True):
        of_steps = intervals.overlap_with(answers.time.windows, used, DEVICE)
        in_slow, in_fast = (
            of_steps.filter(pl.col("step").is_in(some)).select(share).item() or 0.0
            for some in (slow, fastest)
        )
        if in_slow >= _SHARES and in_fast <= _SELDOM * in_slow:
            return f"{name[0]} uses the same GPU for {format_frac(in_slow)} of the slow steps"
    return ""


#: Name of the work that no marked step launched, for example before the recording.
_OUTSIDE = "work launched outside the steps"
#: This work is compared with the steps from this share of the work of a step on.
_LEAST_WORK = 0.5


def _as_one_step(kernels: pl.DataFrame, step: str) -> pl.DataFrame:
    """Scale the work outside steps to as many kernels as the step has."""
    outside, counted = pl.col("step") == _OUTSIDE, pl.col("n").sum()
    n, n_outside = (
        kernels.filter(rows).select(counted).item() for rows in (pl.col("step") == step, outside)
    )
    scale = pl.when(outside).then(n / max(n_outside, 1)).otherwise(1)
    return kernels.with_columns(pl.col("n", "total_ns") * scale)


def _by_step(result: Kernels) -> pl.DataFrame:
    """Return the kernels of each step, and those outside steps as one more step.

    ROCm records no grids of kernels that were launched before the recording; then kernels are the
    same if their names agree. Steps of an inference engine have their :data:`_KIND`.
    """
    if result.by_step is None:
        return pl.DataFrame(schema={"step": pl.String})
    rows = result.by_step.with_columns(pl.col("step").fill_null(_OUTSIDE))
    has_grid = pl.col("blocks").is_not_null().any().over("path", pl.col("step") == _OUTSIDE)
    blocks = pl.when(has_grid.all().over("path")).then("blocks")
    kinds = with_phases(rows.select(pl.col("step").cast(pl.String).unique()))
    alike = pl.col("batch", "tokens").log(2).floor()  # within a factor of 2
    rows = rows.join(kinds.with_columns(alike).cast({"step": pl.Categorical}), on="step")
    keys = [*DEVICE, "step", *_KIND, "kernel", "blocks"]
    sums = pl.col("n", "total_ns").sum(), pl.col("max_ns").max()
    return rows.with_columns(blocks).group_by(keys).agg(sums)


#: From this correlation of speed and number of a step on, in so many steps, kernels become slower.
_STEADY, _LEAST_STEPS = 0.95, 6


def _speeds(rows: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return how fast the kernels of each step of each device are; empty without steps.

    Args:
        rows: rows of :func:`_by_step`.
        windows: path, rank, device, start and step of the counted steps.

    Returns:
        path, rank, device, step, its kind, speed (time / time at the median duration), fast (the
        speed that the fastest quarter of such steps of the device reach; that of the fastest one
        if kernels become slower with each step), over_ns (above that).
    """
    if rows.filter(pl.col("step") != _OUTSIDE).is_empty():
        return pl.DataFrame()
    keys = [*DEVICE, *_KIND, "kernel", "blocks"]
    usual = (pl.col("total_ns") / pl.col("n")).median()
    known = rows.group_by(keys).agg(usual=usual, steps=pl.len()).filter(pl.col("steps") >= _ENOUGH)
    common = rows.join(known, on=keys, nulls_equal=True, maintain_order="left")
    over, usual = pl.col("max_ns") - pl.col("usual"), pl.col("usual") * pl.col("n")
    common = common.with_columns(over=over, usual=usual)
    each = common.group_by(*DEVICE, "step", *_KIND).agg(
        pl.col("total_ns", "usual", "n").sum(), pl.col("over").max()
    )
    # one long call among many is not a slow GPU
    steady = pl.col("total_ns") - pl.col("over")
    single = (pl.col("n") > MANY_CALLS) & (steady < _SLOW * pl.col("usual"))
    each = each.with_columns(total_ns=pl.when(single).then(steady).otherwise("total_ns"))
    much = pl.col("usual") >= _LEAST_WORK * pl.col("usual").median().over(DEVICE)
    each = each.filter(much | (pl.col("step") != _OUTSIDE))
    each = each.with_columns(speed=pl.col("total_ns") / pl.col("usual"))
    kind = [*DEVICE, *_KIND]
    starts = windows.select(*DEVICE, "step", "start").cast({pl.String: pl.Categorical})
    timed = each.join(starts, on=[*DEVICE, "step"], nulls_equal=True).group_by(kind)
    steady = (pl.len() >= _LEAST_STEPS) & (pl.corr("start", "speed") >= _STEADY)
    first = timed.agg(first=pl.when(steady).then(pl.col("speed").min()))
    each = each.join(first, on=kind, how="left", nulls_equal=True)
    fast = pl.col("speed").quantile(0.25, "lower").over(kind)
    each = each.with_columns(fast=pl.coalesce("first", fast)).drop("first")
    over = (pl.col("total_ns") * (1 - pl.col("fast") / pl.col("speed"))).alias("over_ns")
    return each.with_columns(over).sort(*DEVICE, "step")


@rule(
    "comm_outliers",
    "all kernels of some ranks slower than on the other ranks",
    f"time above that of the other ranks, {OF_STEP}",
    {"warning": LEAST, "critical": 0.2},
    uses=("gpu_idle", "info", "kernels"),
)
def slow_gpu(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    """Measure how much longer all kernels of some ranks take, which may share a cause."""
    kernels, time = answers.of(Kernels), answers.time
    if kernels is None or kernels.by_step is None or not time.whole_ns:
        return
    rows = in_steps(kernels, time).drop_nulls("rank")
    busy = time.busy.drop_nulls("rank").group_by("rank").agg(ns=pl.col("busy_ns").sum())
    sums = busy.filter(pl.col("ns") > 0)
    if not (ranks := answers.slower(sums)):
        return
    of_slow = pl.col("rank").is_in(ranks)
    slow, others = (sums.filter(which).sort("ns", "rank") for which in (of_slow, ~of_slow))
    alone = len(ranks) == 1
    difference = _slow_alike(rows, slow["rank"])
    stages = {result.stage_of(rank) for rank in ranks} - {None}
    calls = rows.group_by(is_slow=of_slow, rank="rank").agg(pl.col("n").sum())
    n_of = dict(calls.group_by("is_slow").agg(pl.col("n").median()).iter_rows())
    has_more = n_of.get(True, 0) > _SLOW * n_of.get(False, math.inf)
    text = "" if has_more else other_gpu(answers, ranks)
    if not (difference or text) or (not alone and len(stages) == 1):  # a stage has more work
        return
    length = pl.col("end") - pl.col("start")
    others_ns = int(time.windows.filter(~of_slow).select(length.sum()).item())
    if alone and time.waits_for(ranks[0])["lost_ns"].sum() >= WARN_FRAC * others_ns:
        return  # reported by straggler, with the wait time of the others
    more = float(np.mean(slow["ns"].to_numpy()) - np.median(others["ns"].to_numpy()))
    total = min(round(more * sums.height), time.whole_ns)
    yield Measured(
        title=f"Slow GPU{'s' * (not alone)} on {answers.label(ranks)}: "
        f"{text or (difference and difference.text)}: {time.share(total)}.",
        advice=EQUAL_GPUS
        if text or not difference
        else difference.advice(answers.program.clocks, _GPUS[alone]),
        total_ns=total,
        rank=ranks[0] if alone else None,
        ranks=() if alone else tuple(ranks),
    )


def other_gpu(answers: Answers, ranks: Sequence[int]) -> str:
    """Return the GPU of some ranks and that of most others, which is not slower; empty if equal."""
    if (info := answers.of(Info)) is None:
        return ""
    models = info.files.select("rank", gpu=pl.col("devices").str.replace_all(r"\b\d+x ", ""))
    is_mine = pl.col("rank").is_in(ranks)
    mine, others = (models.filter(one)["gpu"].drop_nulls() for one in (is_mine, ~is_mine))
    usual = "".join(others.mode().sort().head(1))
    if not usual or mine.n_unique() != 1 or mine[0] == usual:
        return ""
    rates = [peaks_of(name).tflops.get("bf16", 0) for name in (mine[0], usual)]
    alone, most = len(ranks) == 1, "most " * (mine[0] in others)
    who = "its GPU is" if alone else "their GPUs are"
    rest = f"{'that' if alone else 'those'} of {most or 'the '}other ranks"
    return f"{who} {mine[0]}, {rest} {usual}" if rates[0] <= (rates[1] or math.inf) else ""


EQUAL_GPUS = "Use GPUs of one model for all ranks, or give slower ones less work."


def slow_gpus(answers: Answers) -> list[int]:
    """Return several ranks whose GPUs are so slow that a finding warns of them."""
    measured = (one for one in answers.measured(slow_gpu) if (one.size or 0.0) >= LEAST)
    return [rank for one in measured for rank in one.ranks]


def _slow_alike(rows: pl.DataFrame, slow: pl.Series) -> Difference | None:
    """Return how the least slow of some ranks, ordered, differs; None if one is not a slow GPU.

    Also if they are not equally slow in most steps: they share no cause.
    """
    sums = rows.filter(pl.col("rank").is_in(slow.implode())).group_by("step", "rank")
    steps = sums.agg(pl.col("total_ns").sum()).group_by("step")
    apart = steps.agg(pl.col("total_ns").max() / pl.col("total_ns").min())["total_ns"].median()
    if not isinstance(apart, float) or apart > _ALIKE:
        return None
    others = ~pl.col("rank").is_in(slow.implode())
    every = [
        compare(rows.filter(others | (pl.col("rank") == rank)), "rank", rank, "on the other ranks")
        for rank in {slow[0]: None, slow[-1]: None}
    ]
    return every[0] if all(one and one.why == SLOW_GPU for one in every) else None


@rule(
    "info",
    "ranks that share a GPU while other GPUs of their host are free",
    f"time of all of them but the busiest one on this GPU, {OF_STEP}",
    {"warning": 0.1, "critical": 0.3},
    uses=("comm_outliers", "gpu_idle"),
    compares_ranks=True,
)
def _shared_gpu(result: Info, answers: Answers) -> Iterator[Measured]:
    count = pl.col("devices").str.extract(r"^(\d+)x [^,]*$").cast(pl.Int64)
    spans = result.files.select("path", "rank", begin="epoch_ns", listed=count)
    spans = spans.with_columns(end=pl.col("begin") + result.contents["span_ns"])
    rows = answers.time.busy.drop_nulls("rank").join(spans, on=["path", "rank"])
    host = pl.col("rank").replace_strict(answers.nodes, default=None, return_dtype=pl.String)
    rows = rows.with_columns(host=host).drop_nulls("host")
    is_free = pl.col("listed").min().over("host") > pl.col("device").n_unique().over("host")
    at_once = pl.col("begin").max() < pl.col("end").fill_null(0).min()
    shared = rows.filter(is_free).group_by("host", "device").agg(
        pl.col("rank").unique().sort(), ns=pl.sum("busy_ns") - pl.max("busy_ns"), at_once=at_once
    ).filter("at_once", pl.col("rank").list.len() > 1)  # fmt: skip
    has_all = (result.files["world_size"].fill_null(0) <= rows["rank"].n_unique()).all()
    for one in shared.sort("ns", "host", "device").tail(1).iter_rows(named=True):
        yield Measured(
            title=f"Ranks {format_ranges(one['rank'])} of {one['host']} share GPU {one['device']}, "
            f"and other GPUs of this host have no recorded rank: {answers.time.share(one['ns'])}.",
            evidence=(_NUMBERED,),
            advice=_ONE_EACH,
            total_ns=one["ns"],
            device=one["device"],
            confidence="medium" if has_all else "low",
        )


_NUMBERED = (
    "Each process numbers the GPUs that it sees: with other ones in CUDA_VISIBLE_DEVICES of each "
    "rank, they share none."
)
_ONE_EACH = (
    "Choose the GPU of each rank before it uses one: torch.cuda.set_device(int(os.environ["
    '"LOCAL_RANK"])), or one visible GPU per process (CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, '
    "srun --gpus-per-task=1)."
)


# --- metrics of GPU and host -----------------------------------------------------------------


@rule(
    "host_metrics",
    "kernels limited by DRAM bandwidth",
    "DRAM bandwidth in use while SMs are active, as a share of the peak",
    {"info": 0.6, "warning": 0.8},
)
def _memory_bound(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    busy = result.gpus().drop_nulls("dram_frac").sort("dram_frac", "gpu", descending=[True, False])
    for row in busy.head(1).iter_rows(named=True):
        yield Measured(
            size=row["dram_frac"],
            title=f"{row['gpu']} is memory-bound while active: {gpu_metrics_text(row)}.",
            advice="Move fewer bytes: fuse elementwise kernels (PyTorch: torch.compile), use "
            "16-bit types, avoid copies and layout changes; extra compute per byte is nearly free.",
            of="the peak DRAM bandwidth",
            confidence="medium",
        )


@rule(
    "host_metrics",
    "kernels that leave most SMs idle",
    "share of idle SMs while a kernel runs, if DRAM bandwidth is not the limit",
    {"info": 0.5, "warning": 0.8},
)
def _idle_multiprocessors(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    free = result.gpus().filter(pl.col("dram_frac").fill_null(0) < _MEMORY_BOUND)
    for row in free.sort("sm_frac", "gpu").head(1).iter_rows(named=True):
        yield Measured(
            size=1 - row["sm_frac"],
            title=f"Most SMs of {row['gpu']} are idle while kernels run: {gpu_metrics_text(row)}.",
            advice="Use larger batches, fused kernels, or several streams: kernels are too small "
            "for the GPU.",
            of="the SMs",
            confidence="medium",
        )


#: From this share of the bandwidth on, SMs wait for memory.
_MEMORY_BOUND = 0.6


@rule(
    "host_metrics",
    f"host CPU usage of {BUSY_PERCENT} % or more",
    "share of the time with this usage",
    {"warning": 0.05, "critical": 0.5},
)
def _busy_processors(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    usage = result.busy_processors()
    if usage is not None:
        share, mean = usage
        yield Measured(
            size=share,
            title=f"Host CPU usage was {BUSY_PERCENT} % or more for {format_frac(share)} of the "
            f"time ({mean:.0f} % on average).",
            advice="Use fewer loader workers than cores, limit OMP_NUM_THREADS, and run nothing "
            "else on the node: data loading and kernel launches compete for CPUs.",
            of="the time",
            confidence="medium",
        )


@rule(
    "host_metrics",
    "host memory nearly full",
    "maximum share of used memory",
    {"warning": 0.9, "critical": 0.98},
)
def _full_host_memory(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    row = result.fullest_memory()
    if row is not None:
        yield Measured(
            size=row["frac"],
            title=f"Host memory was up to {format_frac(row['frac'])} full: "
            f"{format_bytes(row['value'])} of {format_bytes(row['total'])}.",
            advice="Use fewer loader workers, less prefetching, or memory-mapped data.",
            cost_bytes=round(row["value"]),
            of="host memory",
        )


@rule("host_metrics", "swap in use", "maximum bytes in swap", {"warning": 1}, counts=True)
def _swapping(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    row = result.most_swap()
    if row is not None:
        yield Measured(
            size=row["max"],
            title=f"Swap is in use: up to {format_bytes(row['max'])}.",
            advice="Reduce the memory use of the processes: the host has too little memory.",
            cost_bytes=round(row["max"]),
            confidence="medium",
        )


@rule(
    "host_metrics",
    "a disk at its limit",
    "maximum share of the time in which it was busy",
    {"warning": 0.8},
)
def _busy_disk(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    row = result.busiest_disk()
    if row is not None:
        yield Measured(
            size=row["max"] / 1000,
            title=f"Disk {row['counter'].removeprefix('disk/')} was busy for up to "
            f"{format_frac(row['max'] / 1000)} of the time.",
            evidence=(f"{format_frac(row['mean'] / 1000)} on average.",),
            advice="Use faster or local storage, larger reads, or fewer small files.",
            of="the time",
            confidence="medium",
        )


RULES = (
    _throttled_steps, slow_gpu, _shared_gpu, _memory_bound, _idle_multiprocessors,
    _busy_processors, _full_host_memory, _swapping, _busy_disk,
)  # fmt: skip
