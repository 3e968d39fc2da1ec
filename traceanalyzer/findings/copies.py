"""Rules for copies: exposed copies, and migrations of managed memory."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common import kernel_names
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.device_work import MEMORY
from traceanalyzer.analyzers.common.names import called_in, launched_by
from traceanalyzer.analyzers.gpu_idle.activities import GPU_AWARE, OF_PROVIDER
from traceanalyzer.analyzers.gpu_idle.causes import HOST_CODE, NO_OBJECTS, PEER, SENDS_OBJECTS
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.overlap.result import Overlap
from traceanalyzer.analyzers.transfers.result import (
    MIGRATIONS,
    OF_XLA,
    Transfers,
    advice as transfer_advice,
    page_faults,
)
from traceanalyzer.findings.device_time import COPIES, DeviceTime, intervals_of, main_ranks
from traceanalyzer.findings.idle import in_steps, including, main_steps, of_ranks
from traceanalyzer.findings.rule import OF_GLOO, OF_STEP, OPTIMIZER, Answers, Measured, Rule, rule
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns
from traceanalyzer.vocabulary import ON_CPU

#: What the CPU computes counts with its copies up to this multiple of them.
_OF_UPDATES, _OF_OPERATOR = 2, 10

#: Maximum number of items in a list.
_NAMED = 3


@rule(
    "overlap",
    "copies that are not overlapped with compute or communication",
    f"exposed copies and memsets, and wait time of other ranks for them, {OF_STEP}",
    {"warning": 0.05, "critical": 0.2},
    uses=("comm_outliers", "gpu_idle", "kernels", "transfers"),
)
def _exposed_copies(_: Overlap, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    losses = time.of_cause(COPIES)
    total = int(losses["lost_ns"].sum())
    if not total:
        return
    copies, whole = _without_migrations(_exposed(answers), total)
    if not whole:
        return
    cost = total = whole
    ranks = main_ranks(losses, time.windows["rank"].n_unique())
    slow, slower, rate = _slower_than_others(answers)
    slower = slower if {*ranks} <= {*slow} else ""
    ranks = slow if slower else ranks
    rank = ranks[0] if len(ranks) == 1 else None
    sums = _by_direction(copies)
    main, each = _directions(sums, total, time)
    steps = main_steps(losses, time, ranks)
    place = in_steps(steps, time)
    others = ""
    if slower or (ranks and losses["waited"].any()):
        place += f" on {answers.label(ranks)}"
        others = including(losses, ranks)
    where = called_in(answers.place(MEMORY)) or _operators(answers.place(MEMORY))
    theirs = pl.when("waited").then(1.0).when(pl.col("rank").is_in(slow)).then(1 - rate)
    of_slow = pl.col("waited").not_() | pl.col("root_rank").is_in(slow)
    most_ns = losses.filter(of_slow).select((pl.col("lost_ns") * theirs).sum()).item()
    updates = time.of_cause(HOST_CODE)
    updates_ns = int(updates["lost_ns"].sum())
    most = _OF_UPDATES if (on_cpu := answers.on_cpu) == OPTIMIZER else _OF_OPERATOR
    if on_cpu and 0 < updates_ns < most * total:
        losses, cost = pl.concat([losses, updates]), total + updates_ns
        others += f", and {on_cpu} on the CPU: {time.share(updates_ns)}"
    yield Measured(
        title=f"Exposed {main}{where}{place}{slower}: {time.share(total)}{each}{others}.",
        evidence=(
            *of_ranks(time, COPIES, ranks),
            *(_numbers(row) for row in copies.head(_NAMED).iter_rows(named=True)),
        ),
        advice=_SLOW_PATH if slower else _copying(copies, sums, total, answers),
        total_ns=cost,
        most_gain_ns=round(most_ns) if slower else _overlappable(copies, sums, answers),
        rank=rank,
        step=steps[0] if len(steps) == 1 else None,
        intervals=intervals_of(losses),
        explained={"host-code": 1.0} if answers.reads_copies else {},
    )


def _without_migrations(copies: pl.DataFrame, total: int) -> tuple[pl.DataFrame, int]:
    """Return copies, and their share of the exposed time, without those of managed memory."""
    moved = copies.filter(~pl.col("direction").str.starts_with("UVM "))
    ns, whole = (int(rows["exposed_ns"].sum()) for rows in (moved, copies))
    return moved, round(total * ns / whole) if whole else total


def _operators(place: Mapping[str, Any]) -> str:
    """Return the operators around nearly all copies as a phrase, unless they only copy."""
    names = dict.fromkeys(filter(None, (place.get("operator"), place.get("outer"))))
    return f" in {', '.join(names)}" if not all(map(_ONLY_COPIES.match, names)) else ""


#: Operators that copy tensors, wherever they are called.
_ONLY_COPIES = re.compile("^aten::(?:to|_to_copy|copy_|clone|contiguous|item|_local_scalar_dense)$")
#: Copies of a rank are slow if those of the other ranks are this many times as fast.
#: Sizes of copies are comparable up to this ratio.
_FASTER, _SIMILAR = 2.0, 2.0
_SLOW_PATH = (
    "Check the path between host and GPU: generation and width of its PCIe link (lspci -vv: "
    "LnkSta), whether process and memory are on the NUMA node of the GPU (numactl), and "
    "other processes that copy."
)


def _slower_than_others(answers: Answers) -> tuple[tuple[int, ...], str, float]:
    """Return the ranks whose copies are slower than those of others, at which rate, as a phrase.

    And its share of the rate of the others. Copies of the kind with most exposed time are compared,
    if they go from or to the host, and those of the slow ranks are exposed for longer.
    """
    if (transfers := answers.of(Transfers)) is None or transfers.by_device.is_empty():
        return (), "", 1.0
    kind = ["direction", "memory"]
    sums = transfers.by_device.group_by(*kind, "rank").agg(
        pl.col("n", "moved_bytes", "total_ns", "exposed_ns").sum()
    )
    most = largest_first(sums.group_by(kind).agg(pl.col("exposed_ns").sum()), "exposed_ns", *kind)
    rates = sums.join(most.head(1).select(kind), on=kind, nulls_equal=True).filter(
        pl.col("direction").is_in(_OF_HOST), pl.min_horizontal("moved_bytes", "total_ns") > 0
    ).drop_nulls("rank").with_columns(
        ns=pl.col("total_ns") / pl.col("moved_bytes"), each=pl.col("moved_bytes") / pl.col("n")
    )  # fmt: skip
    ranks = answers.slower(rates) if rates.height > 2 else rates.sort("ns")["rank"][1:].to_list()
    of_slow = pl.col("rank").is_in(ranks)
    (slow, each, exposed), (usual, usual_each, usual_exposed) = (
        rates.filter(which)[["ns", "each", "exposed_ns"]].median().row(0)
        for which in (of_slow, ~of_slow)
    )
    # small copies are slower on any path
    if not ranks or slow < _FASTER * usual or each * _SIMILAR < usual_each:
        return (), "", 1.0
    if exposed <= usual_exposed:
        return (), "", 1.0
    text = f" at {1 / slow:.3g} GB/s (other ranks {1 / usual:.3g} GB/s)"
    return tuple(ranks), text, usual / slow


#: Directions of copies between host and device.
_OF_HOST = ("HtoD", "DtoH")
#: The direction of memsets.
MEMSET = "memset"
#: Names of copies in a direction, and of the direction in a list.
_DIRECTIONS = {
    "HtoD": ("host-to-device copies", "host to device"),
    "DtoH": ("device-to-host copies", "device to host"),
    "DtoD": ("device-to-device copies", "device to device"),
    "PtoP": ("peer-to-peer copies", "peer to peer"),
    MEMSET: ("memsets", "memsets"),
}
#: From this share of the exposed time on, copies of one direction are nearly all.
_NEARLY_ALL = 0.9
#: Directions below this share are neither listed nor get advice.
_LEAST = 0.1
#: At this rate, host memory is pinned.
_PINNED_GBPS = 20
#: Times that differ by less have the same parts.
_SAME = 0.005


def _by_direction(copies: pl.DataFrame) -> dict[str, int]:
    """Return exposed time by direction, longest first."""
    if copies.is_empty():
        return {}
    sums = copies.group_by("direction").agg(pl.col("exposed_ns").sum())
    return dict(largest_first(sums, "exposed_ns", "direction").iter_rows())


def _directions(sums: Mapping[str, int], total: int, time: DeviceTime) -> tuple[str, str]:
    """Return the direction of nearly all exposed copies, or else the parts of the directions.

    The parts are times if all exposed copies count, else shares (steps are a part of the
    recording, and wait time for copies has no direction).
    """
    whole = sum(sums.values())
    if not whole:
        return "copies", ""
    main, ns = next(iter(sums.items()))
    if ns >= _NEARLY_ALL * whole:
        return _DIRECTIONS.get(main, ("copies", ""))[0], ""
    as_time = abs(whole - total) <= _SAME * total
    parts = ", ".join(
        f"{_DIRECTIONS.get(name, ('', name))[1]} "
        f"{time.text(ns) if as_time else format_frac(ns / whole)}"
        for name, ns in sums.items()
        if ns > _LEAST * whole
    )
    return "copies", f", {parts}"


def _exposed(answers: Answers) -> pl.DataFrame:
    """Return the kinds of copies with exposed time, longest first."""
    if (transfers := answers.of(Transfers)) is None:
        return pl.DataFrame()
    exposed = transfers.copies.filter(pl.col("exposed_ns") > 0)
    return largest_first(exposed, "exposed_ns", "direction", "memory")


def _numbers(row: Mapping[str, Any]) -> str:
    """Return count, size and exposed time of one kind of copies."""
    memory = f" ({row['memory']})" if row["memory"] else ""
    size = f", {format_bytes(row['moved_bytes'])} in total" if row["moved_bytes"] else ""
    count = f"{row['n']:,} {'copy' if row['n'] == 1 else 'copies'}"
    if row["direction"] == MEMSET:
        count = format_count(row["n"], "memset")
    return f"{row['direction']}{memory}: {count}{size}, {format_ns(row['exposed_ns'])} exposed."


def _large(sums: Mapping[str, int]) -> set[str]:
    """Return the directions with a large part of the exposed time."""
    least = _LEAST * sum(sums.values())
    return {name for name, ns in sums.items() if ns > least}


def _overlappable(copies: pl.DataFrame, sums: Mapping[str, int], answers: Answers) -> int | None:
    """Return the compute time that copies can be overlapped with, if nothing else shortens them.

    Copies from or to pageable memory are several times as fast from pinned memory, and copies on
    the device, there and back, or of offloaded parameters can be avoided: then it is None.
    """
    large = _large(sums)
    avoidable = large & {"DtoD", MEMSET} or any(_keeping(answers)) or answers.on_cpu
    if avoidable or not large or _are_pageable(copies, large):
        return None
    return int(answers.time.busy["busy_ns"].sum())


#: Advice by the functions and operators around nearly all copies.
_OFFLOADED = (
    "Weights are copied in each pass because they are offloaded: keep them on the GPU if they fit "
    "(quantized, or 16-bit), offload whole models rather than layers (enable_model_cpu_offload), "
    "or copy the next layer from pinned memory on another stream "
    "(enable_group_offload(use_stream=True))"
)
_OFFLOADED_TRAINING = (
    "Parameters and gradients are copied in each step because they are offloaded to the CPU, which "
    "also updates them (FSDP: CPUOffload, CPUOffloadPolicy; DeepSpeed: offload_param, "
    "offload_optimizer): keep them on the GPU if they fit (more GPUs, smaller micro-batches, "
    "activation checkpointing), or offload only the optimizer state"
)
_COMPUTE_THERE = (
    "{} runs on the CPU, on tensors that are copied to the host for it: run it on the GPU, and "
    "copy only the result, in the steps that need it"
)
_FALLS_BACK = (
    "The GPU has no kernel of {}, so PyTorch computes it on the CPU and copies its inputs and "
    "results: use an operator that the GPU has, a newer version, or compute it less often"
)
_SWAPPED = (
    "The engine moves the KV cache of preempted requests: give the cache more memory "
    "(gpu_memory_utilization, an FP8 cache), or limit the requests at a time (max_num_seqs)"
)
_GRAPH_INPUTS = (
    "CUDA graphs copy inputs that are not static before each replay: mark tensors that stay at "
    "their address (torch._dynamo.mark_static_address), and let one graph compute what the next "
    "one reads instead of passing activations between graphs"
)
_FLATTEN = (
    "The weights of the recurrent layer are not in one piece of memory, so each call copies them "
    "for cuDNN: call flatten_parameters() of the module after its weights were moved, shared or "
    "replaced"
)
_OF_NULL_STREAM = (
    "The copies wait for each kernel of the default stream, and its kernels for them: create their "
    "streams with cudaStreamNonBlocking, or compile with --default-stream per-thread."
)
_ONE_STEP_AHEAD = (
    "The copies have a stream of their own, but the kernels that are launched next wait for them: "
    "launch the copy of the next batch one step ahead, before the kernels of this step, into a "
    "second buffer"
)
_ON_DEVICE = (
    "Avoid device-to-device copies (clone, contiguous, cat, changes of layout or type), or fuse "
    "them into the kernels that use the data"
)
_DONATE = (
    "Donate the arguments that a compiled function returns changed, such as parameters and "
    "optimizer state (jax.jit(step, donate_argnums=...)): without that, XLA copies what it must "
    "not overwrite"
)
_OF_PLACE = {
    r"aten::(?:_cudnn_rnn|lstm|gru|rnn_\w+)(?: |$)": _FLATTEN,
    r"accelerate[/\\]hooks|set_module_tensor_to_device|group_offload": _OFFLOADED,
    r"swap_(?:blocks|out|in)\b": _SWAPPED,
    "CUDAGraphTree": _GRAPH_INPUTS,
    SENDS_OBJECTS: NO_OBJECTS.removesuffix("."),
}


def _copying(copies: pl.DataFrame, sums: Mapping[str, int], total: int, answers: Answers) -> str:
    """Return advice for exposed copies, for each direction with a large part."""
    place = answers.place(MEMORY)
    names = " ".join(str(name) for name in place.values() if name)
    texts = [OF_GLOO] if answers.by_gloo else []
    texts += [text for test, text in _OF_PLACE.items() if re.search(test, names)]
    if text := next(iter(texts), ""):
        return f"{text}; traceanalyzer transfers lists the copies."
    large, idle = _large(sums), answers.of(GpuIdle)
    if idle is not None and idle.program.null_stream:
        return idle.program.named(_OF_NULL_STREAM)
    if on_cpu := answers.on_cpu:
        if ON_CPU in on_cpu:
            return OF_PROVIDER.format(operator=on_cpu.split()[0])
        of_operator = _FALLS_BACK if on_cpu == place.get("outer") else _COMPUTE_THERE
        text = _OFFLOADED_TRAINING if on_cpu == OPTIMIZER else of_operator.format(on_cpu)
        return f"{text}; traceanalyzer transfers lists the copies."
    if not large or large - {"DtoD", MEMSET}:
        texts += _keeping(answers)
        text = _overlapping(copies, large - {"DtoD", MEMSET}, pytorch=answers.program.pytorch)
        late = large == {"HtoD"} and idle is not None and idle.program.late_copies
        text = _ONE_STEP_AHEAD if late and not _are_pageable(copies, large) else text
        text = f"{OF_XLA[:1].upper()}{OF_XLA[1:]}" if answers.program.xla else text
        compute = int(answers.time.busy["busy_ns"].sum())
        most = f" (overlap alone gains at most the compute time, {answers.time.text(compute)})"
        texts.append(f"{text}{most if compute < _NEARLY_ALL * total else ''}")
    if MEMSET in large:
        texts.append(
            "Set less memory to zero: torch.empty for buffers that are overwritten, "
            "zero_grad(set_to_none=True)"
            if answers.program.pytorch
            else "Set less memory: not what kernels overwrite, and only once what stays the same"
        )
    if "DtoD" in large:
        texts.append(_DONATE if answers.program.xla else _ON_DEVICE)
    return f"{'. '.join(texts)}; traceanalyzer transfers lists the copies."


def _keeping(answers: Answers) -> Iterator[str]:
    """Yield advice for data that goes to the device and back, without the full stop."""
    idle, transfers = answers.of(GpuIdle), answers.of(Transfers)
    if idle is not None and idle.activity(PEER).stages_for_mpi:
        yield GPU_AWARE.removesuffix(".")
    elif transfers is not None and transfers.round_trips:
        yield transfers.round_trips.removesuffix(".")


def _are_pageable(copies: pl.DataFrame, directions: Collection[str]) -> bool:
    """Whether copies of these directions use pageable memory, or unknown memory at a low rate.

    Only kinds with a large part count.
    """
    is_large = pl.col("exposed_ns") > _LEAST * pl.col("exposed_ns").sum()
    large = copies.filter(is_large, pl.col("direction").is_in(list(directions)))
    memory = large["memory"].fill_null("")
    unknown = memory.str.split(" -> ").list.contains("Host") | (memory == "")  # ROCm: "Host"
    unknown &= large["rate_gbps"].fill_null(0) < _PINNED_GBPS
    return not directions or bool((memory.str.contains("Pageable") | unknown).any())


def _overlapping(copies: pl.DataFrame, directions: Collection[str], *, pytorch: bool) -> str:
    """Return advice to overlap copies of these directions (none: unknown) with compute."""
    both = {"HtoD", "DtoH"} <= set(directions)
    only_back = "DtoH" in directions and not both
    pageable = _are_pageable(copies, directions)
    if not pageable:
        start = "start them earlier on a separate stream with"
    elif not pytorch:
        start = "pinned host memory (cudaMallocHost)"
    elif only_back:
        start = "pinned host memory for results (torch.empty(..., pin_memory=True))"
    else:
        start = "pinned host memory (DataLoader(pin_memory=True), tensor.pin_memory())"
    call = "cudaMemcpyAsync"
    if pytorch:
        call = "copy_(..., non_blocking=True)" if only_back else ".to(device, non_blocking=True)"
    text = f"Overlap copies with compute: {start} {call}"
    if pageable:
        text = (
            f"Use {start}: copies are several times as fast, and can overlap with compute ({call} "
            "on a separate stream)"
        )
    if not pytorch:
        return f"{text}, in both directions" if both else text
    later = "results copied to the host less often, or read one step later"
    return f"{text}; {later}" if "DtoH" in directions else text


def _while_running(result: Transfers, answers: Answers, cost: int) -> tuple[str, str]:
    """Return which kernel most of it delays, as a phrase, and the family of the kernel."""
    most = result.stalled.filter(2 * pl.col("total_ns") >= cost).head(1)
    if most.is_empty() or (kernels := answers.of(Kernels)) is None:
        return "", ""
    for kernel, family in (
        kernels.heaviest("name")
        .join(most, left_on="name", right_on="kernel")
        .select("kernel", "family")
        .iter_rows()
    ):
        return f", mostly while {kernel} runs{launched_by(kernels.place(kernel))}", family
    return "", ""


#: Optimizers that keep their state in managed memory.
_OF_PAGED = (
    ". A paged optimizer (bitsandbytes) moves its state so in each step: use the same one without "
    "paging if the state fits (8 bits, fewer live activations), or shard it (FSDP, ZeRO-1)"
)


@rule(
    "transfers",
    "migrations and page faults of managed memory",
    "time of migrations or of GPU page faults, whichever is larger, as a share of device time",
    {"info": 0.02, "warning": 0.1, "critical": 0.3},
    uses=("kernels",),
)
def _migrations(result: Transfers, answers: Answers) -> Iterator[Measured]:
    rows = result.findings.filter(pl.col("finding").cast(pl.String) == MIGRATIONS)
    faults = int(result.faults.filter("on_gpu")["total_ns"].sum())
    cost = max(int(rows["total_ns"].sum()), faults)
    if not cost or not result.span_ns:
        return
    advice = transfer_advice(result.program)[MIGRATIONS]
    n, size = int(rows["n"].sum()), format_bytes(int(rows["moved_bytes"].sum()))
    moved = [f"{format_count(n, 'migration')} move {size}"] * (n > 0)
    texts = [*moved, *filter(None, [page_faults(result.faults)])]
    where, stalled = _while_running(result, answers, cost)
    advice += _OF_PAGED * (stalled == kernel_names.OPTIMIZER and answers.program.pytorch)
    yield Measured(
        size=cost / result.span_ns,
        title=f"Migrations and page faults of managed memory{where}: {format_ns(cost)} "
        f"({format_frac(cost / result.span_ns)} of device time).",
        evidence=(f"{'; '.join(texts)}.",),
        advice=f"{advice[:1].upper()}{advice[1:]}.",
        total_ns=cost,
        of="device time",
    )


RULES: tuple[Rule, ...] = (_exposed_copies, _migrations)
