"""Rules for communication: stragglers, slow collectives and links, missing overlap."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.outliers import (
    EXPOSED_NS,
    GROUP,
    NETWORK,
    is_small,
    place_in_steps,
    slow_pair,
    small_kind,
    small_name,
)
from traceanalyzer.analyzers.comm_outliers.result import (
    SLOW_LINK_FRAC,
    VALUES_BYTES,
    CommOutliers,
    at_step,
    fewer_collectives,
    slow_groups,
    slow_links,
    small_collectives,
    with_size,
)
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, COMPUTE
from traceanalyzer.analyzers.common.names import called_in, frame_text
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.activities import NO_BUFFERS
from traceanalyzer.analyzers.kernels import training
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.overlap.result import Overlap, advice, why_exposed
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.findings import straggling
from traceanalyzer.findings.device_time import (
    EXPOSED,
    LINK,
    OUTLIER,
    REPEATED,
    SLOW,
    intervals_of,
    only_rank,
)
from traceanalyzer.findings.rule import (
    ADVICE,
    OF_STEP,
    Answers,
    Measured,
    Rule,
    explained_by,
    of_purpose,
    rule,
)
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns, format_ratio

_TEXTS = ADVICE["communication"]
#: Maximum number of items in a list; shares that are nearly all, and most.
_NAMED, _NEARLY_ALL, _MOSTLY = 3, 0.8, 0.5


@rule(
    "comm_outliers",
    "gradients reduced in every micro-batch instead of once per step",
    "exposed time of the earlier reductions as a share of step time (or of the recorded time)",
    {"info": 0.02, "warning": 0.05, "critical": 0.2},
    uses=("gpu_idle", "kernels", "steps"),
)
def _repeated_reduction(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    kernels, claimed = answers.of(Kernels), straggling.claimed(answers, REPEATED)
    if claimed is None or kernels is None or kernels.training is None:
        yield from _repeated_on_hosts(result, answers)
        return
    losses, total = claimed
    rows = kernels.training.filter(purpose=training.REPEATED)
    passes = rows.select(pl.col("call").max()).item()
    place = " ".join(str(name) for name in answers.place(COMMUNICATION).values() if name)
    zero = "deepspeed" in place.lower()
    remedies = ("of_zero",) if zero else ("no_sync", "of_zero")[: 1 if ".py" in place else 2]
    yield Measured(
        title=f"Gradients are reduced {passes} times per optimizer step, once per accumulated "
        f"micro-batch{' (ZeRO-2 or ZeRO-3)' * zero}: all but the last cost "
        f"{answers.time.share(total)}.",
        evidence=(
            f"Each backward pass before Optimizer.step launches {losses['collective'][0]} again.",
        ),
        advice=" ".join(_TEXTS[name] for name in remedies),
        total_ns=total,
        intervals=intervals_of(losses),
    )


def _repeated_on_hosts(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    """Yield reductions on CPUs that each forward pass of an optimizer step repeats."""
    if (n := _passes(answers)) < 2:
        return
    is_sum = pl.col("collective").str.contains("all_reduce|reduce_scatter")
    rows = result.collectives.filter(is_sum).drop_nulls("step").sort("instance")
    steps = rows.group_by("step").agg("message_bytes")["message_bytes"].to_list()
    repeat = {one[: len(one) // n] * n == one for one in steps if len(one) >= n}
    of_calls = ~pl.col("waited") & pl.col("cause").is_in((causes.PEER, SLOW))
    calls = answers.time.losses.filter(of_calls)["lost_ns"]
    total = round(int(calls.sum()) * (1 - 1 / n)) if repeat == {True} else 0
    if total:
        yield Measured(
            title=f"Gradients are reduced in each of {n} forward and backward passes per optimizer "
            f"step: all but the last cost {answers.time.share(total)}.",
            advice=_TEXTS["no_sync"],
            total_ns=total,
            confidence="medium",
        )


def _passes(answers: Answers) -> int:
    """Return how often DDP or FSDP run a forward pass on CPUs per optimizer step; 0 if unknown."""
    if not answers.time.on_host or (steps := answers.of(Steps)) is None or steps.code is None:
        return 0
    passes, updates = (
        int(steps.code.filter(pl.col("name").str.contains(name))["n"].sum())
        for name in (_FORWARD, r"^Optimizer\.step#")
    )
    return round(passes / updates) if updates else 0


#: Ranges of DDP and FSDP around a forward pass.
_FORWARD = r"^(?:Distributed|FullySharded)DataParallel\.forward"


@rule(
    "comm_outliers",
    "collectives that are slow on all ranks after the last rank has arrived",
    "additional exposed time as a share of step time (or of the recorded time)",
    {"info": 0.005, "warning": 0.02, "critical": 0.1},
    uses=("gpu_idle",),
)
def _slow_collectives(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    slow = largest_first(result.collectives.filter("slow"), "slow_factor", "instance")
    if slow.is_empty() or not (claimed := straggling.claimed(answers, SLOW)):
        return
    worst, (losses, total) = slow.row(0, named=True), claimed
    yield Measured(
        title=f"{slow.height:,} of {format_count(result.totals.n_collectives, 'collective')} "
        f"{'was' if slow.height == 1 else 'were'} slow after {result.every_rank} had arrived"
        f"{slow_groups(result)}: this costs {answers.time.share(total)}{_with_waits(losses)}.",
        evidence=(_worst(worst, worst["transfer_ns"], worst["slow_factor"]),),
        advice=answers.program.slow_network(on_host=answers.time.on_host)
        if result.has_all_ranks
        else _TEXTS["more_files"],
        total_ns=total,
        confidence="high" if result.has_all_ranks else "low",
        step=answers.time.only_step(losses) or (worst["step"] if slow.height == 1 else None),
        intervals=intervals_of(losses),
        explained=answers.without_cpus,
    )


@rule(
    "comm_outliers",
    "collectives much longer than others of their kind, without a known cause",
    "additional exposed time as a share of step time (or of the recorded time)",
    {"info": 0.005, "warning": 0.02, "critical": 0.1},
    uses=("gpu_idle",),
)
def _collective_outliers(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    outliers = result.outliers().filter(pl.col("cause").is_null())
    if outliers.is_empty() or not (claimed := straggling.claimed(answers, OUTLIER)):
        return
    worst, (losses, total) = outliers.row(0, named=True), claimed
    alone = result.totals.n_ranks == 1
    place = place_in_steps(result.instances, outliers) if alone else None
    nth = f"{worst['collective']} number {(place or 0) + 1}"
    what = (
        f"{outliers.height:,} of {format_count(result.totals.n_events, 'collective')} took"
        if place is None
        else f"Another rank is probably late: {nth} of each step takes"
    )
    yield Measured(
        title=f"{what} much longer than others of the same kind: this costs "
        f"{answers.time.share(total)}.",
        evidence=(_worst(worst, worst["duration_ns"], worst["factor"]),),
        advice=_TEXTS["late_elsewhere"]
        if place is not None
        else _TEXTS["more_files"]
        if alone
        else answers.program.slow_network(on_host=answers.time.on_host),
        total_ns=total,
        confidence="low" if alone and place is None else "medium",
        rank=only_rank(losses),
        step=answers.time.only_step(losses),
        intervals=intervals_of(losses),
    )


@rule(
    "comm_outliers",
    f"large collectives below {SLOW_LINK_FRAC:.0%} of the bandwidth of their link",
    f"exposed time above that at {SLOW_LINK_FRAC:.0%} of the bandwidth as a share of step time (or "
    "of the recorded time)",
    {"info": 0.005, "warning": 0.02, "critical": 0.1},
    uses=("gpu_idle",),
)
def _slow_link(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    sentences = slow_links(result)
    if not sentences or not (claimed := straggling.claimed(answers, LINK)):
        return
    losses, total = claimed
    replicas = _between_replicas(result) and result.ranks["host"].has_nulls()  # on several hosts?
    waits = int(losses.filter("waited")["lost_ns"].sum())
    of_others = f"{answers.time.text(waits)} of this cost is wait time of other ranks."
    yield Measured(
        title=sentences[0],
        evidence=(*[of_others] * bool(waits), *sentences[1:_NAMED]),
        advice=_TEXTS["all_ranks"] * (not result.has_all_ranks)
        + (_TEXTS["hybrid"] if replicas else answers.program.slow_link),
        total_ns=total,
        confidence="medium" if result.has_all_ranks and not replicas else "low",
        intervals=intervals_of(losses),
    )


@rule(
    "comm_outliers",
    "device memory nearly full during slow collectives",
    "share of slow collectives during which device memory was nearly full",
    {"warning": 0.1, "critical": 0.5},
)
def _nearly_full_memory(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    if result.memory is None or result.memory.is_empty():
        return
    full = result.memory.filter("near_full").sort("taken_frac", "id", descending=[True, False])
    if full.is_empty():
        return
    worst = full.row(0, named=True)
    yield Measured(
        size=full.height / result.memory.height,
        title=f"Device memory was nearly full during {full.height:,} of {result.memory.height:,} "
        f"slow collectives (up to {format_frac(worst['taken_frac'])} used).",
        advice="Keep some memory free (a smaller batch or "
        "torch.cuda.memory.set_per_process_memory_fraction(0.9)): "
        f"{answers.program.library} has little memory for its buffers.",
        cost_bytes=worst["taken_bytes"],
        cost_frac=worst["taken_frac"],
        of="device memory",
        confidence="medium",
    )


@rule(
    "overlap",
    "communication that is not overlapped with compute",
    "exposed communication, except wait time and the excess of slow collectives, as a share of "
    "step time (or of the recorded time)",
    {"info": 0.05, "warning": 0.1, "critical": 0.3},
    uses=("comm_outliers", "kernels"),
)
def _exposed_communication(result: Overlap, answers: Answers) -> Iterator[Measured]:
    time, sums = answers.time, result.sums
    if not sums["exposed_communication_ns"]:
        return
    rest = time.of_cause(EXPOSED).filter(~pl.col("waited"))
    waits = time.losses.filter("waited")
    slow = time.losses.filter(
        ~pl.col("waited"), pl.col("cause").is_in((REPEATED, SLOW, OUTLIER, LINK))
    )
    missing, _ = straggling.waited_for_missing(answers)
    total = int(rest["lost_ns"].sum()) - missing
    whole = total + missing + sum(int(rows["lost_ns"].sum()) for rows in (waits, slow))
    if not whole:
        return
    waited_ns = int(waits["lost_ns"].sum()) + missing
    wait = f", plus {format_ns(time.each_ns(waited_ns))} of wait time for other ranks"
    comm = answers.of(CommOutliers)
    # the transfers of one rank of a job last until the ranks that were not recorded have arrived
    alone = comm is not None and comm.totals.n_ranks == 1 and comm.totals.world_size != 1
    wait = _WITH_WAITS if alone else wait * (waited_ns > 0)
    remedy = _exposing(result, answers, int(rest["lost_ns"].sum()), waits=not waited_ns)
    unmatched = remedy in (_TEXTS["pairs"], _TEXTS["kv_transfer"])  # they wait for partners
    small, are_most = _small(by_time := _by_exposed_time(answers))
    is_fewer = are_most or remedy.startswith(_FEWER)  # the host issues fewer, too
    has_slow_link = slow.filter(cause=LINK).height > 0
    most = _most_gain(remedy, total, answers, fewer=is_fewer, has_slow_link=has_slow_link)
    pairs = comm if remedy == _TEXTS["pairs"] else None
    pair = slow_pair(pairs.instances, pairs.totals.n_ranks) if pairs is not None else None
    if pair:
        remedy, most = f"{pair[0]}{answers.program.slow_link}", pair[1]
    in_small, of_small = "", ""
    if by_time is not None and small is not None and not are_most:
        in_small, of_small = _with_large(answers, by_time, small)
    yield Measured(
        title=f"Communication{_where(answers)} is not overlapped with compute: "
        f"{time.share(total)}{in_small}{wait}.",
        evidence=(
            *_kinds_of_collectives(answers),
            *filter(None, (why_exposed(result),)),
            f"{format_frac(sums['overlap_frac'])} of all communication is overlapped with compute.",
        ),
        advice=_TEXTS["all_ranks"] * alone + remedy + of_small,
        fix="fewer-calls" if is_fewer else "",
        confidence="low" if alone or (unmatched and not pair) else "medium" if pair else "high",
        total_ns=total,
        most_gain_ns=most,
        intervals=intervals_of(rest),
        explained=explained_by(pl.concat([waits, slow]), whole)
        | {"missing-ranks": missing / whole},
    )


def _small(comm: CommOutliers | None) -> tuple[dict[str, Any] | None, bool]:
    """Return what many small collectives cost, and whether that is most of the exposed time."""
    small = None if comm is None else small_kind(comm.instances, comm.totals.n_ranks)
    return small, small is not None and small["frac"] >= _MOSTLY


def _with_large(answers: Answers, comm: CommOutliers, small: Mapping[str, Any]) -> tuple[str, str]:
    """Return a phrase on small collectives among larger ones, and advice for them."""
    kind = small["collective"]
    of_kind = pl.col("collective") == kind if kind else pl.lit(value=True)
    rows = comm.instances.filter(of_kind, is_small())
    groups = comm.groups.filter(of_kind).join(rows, on=GROUP, how="semi", nulls_equal=True)
    of_small = replace(comm, instances=rows, groups=groups)
    text = _of_issuer(answers, of_small) or _of_values(answers, of_small)
    text = text or fewer_collectives(comm, small)
    what = f"{small['n']:,} {small_name(small)}"
    cost = answers.time.each_ns(small["ns"])
    each = " per step" if answers.time.in_steps else " per GPU"
    return (
        f", {format_ns(cost)} of it in {what}{each}",
        f" For the {what}: {text.rstrip('.')}.",
    )


def _where(answers: Answers) -> str:
    """Return the function that launches nearly all communication, or two of them, as a phrase."""
    kernels, where = answers.of(Kernels), called_in(answers.place(COMMUNICATION))
    if where or kernels is None or kernels.heavy is None:
        return where
    rows = kernels.heavy.filter(work_kind=COMMUNICATION)
    rows = rows.with_columns(at=pl.coalesce("called", "code"))
    sums = rows.drop_nulls(["name", "at"]).group_by("at").agg(pl.col("ns").sum())
    whole = int(rows.filter(pl.col("name").is_null())["ns"].sum())
    most = int(sums["ns"].sum()) >= _NEARLY_ALL * whole
    names = [frame_text(at) for at in largest_first(sums, "ns", "at")["at"]]
    return f" in {' and '.join(names)}" if most and len(names) == 2 else ""


#: Beginnings of advice for more bytes per collective.
_FEWER = tuple(_TEXTS[name].partition("{")[0] for name in ("larger_units", "larger_buckets"))
_WITH_WAITS = ", including wait time for ranks that were not recorded"


def _most_gain(
    remedy: str, total: int, answers: Answers, *, fewer: bool, has_slow_link: bool
) -> int | None:
    """Return what advice on exposed communication gains at most; None if all of it."""
    time = answers.time
    if remedy == _TEXTS["tensor_parallel"] and time.frac(total) < _MUCH:
        return 0  # overlap gains nothing, and a part is usual
    # fewer bytes, or fewer collectives, make all of them shorter
    shorter = fewer or remedy.startswith((_TEXTS["hybrid"], _TEXTS["one_parameter"]))
    last = 0 if shorter else _last_ns(answers)
    most = max(total - last, 0) if last else None
    if _OF_COMPUTE in remedy and has_slow_link:  # the link is the cause
        return min(time.busy_ns, total if most is None else most)
    return most


def _last_ns(answers: Answers) -> int:
    """Return the time of the last of several large reductions of a group in a step, of its ranks.

    It ends after the last compute that it could overlap with, however early the others start. What
    a slow one takes above the usual time is another finding.
    """
    if (compared := answers.of(CommOutliers)) is None or not answers.time.in_steps:
        return 0
    is_sum = pl.col("collective").str.contains("all_reduce|reduce_scatter")
    usual = pl.col("transfer_ns") / pl.when("slow").then("slow_factor").otherwise(1)
    rows = compared.collectives.filter(is_sum).drop_nulls("step").with_columns(ns=usual)
    keys = ["step", "group", "group_ranks"]
    large = rows.sort("instance").filter(pl.col("ns") >= pl.col("ns").max().over(keys) / 2)
    last = large.group_by(keys).agg((pl.col("ns") * pl.col("ranks")).last(), n=pl.len())
    return int(last.filter(pl.col("n") > 1)["ns"].sum())


#: Where communication takes longer than all compute, overlap cannot hide all of it.
_OF_COMPUTE = " Overlap alone gains at most the compute time, "


def _exposing(result: Overlap, answers: Answers, exposed_ns: int, *, waits: bool) -> str:
    """Return advice for exposed communication: by the kind of most collectives and their size."""
    comm, kind = _by_exposed_time(answers), ""
    if comm is not None:
        if comm.mostly_unknown_pairs:
            sender = " ".join(map(str, answers.place(COMMUNICATION).values()))
            return _TEXTS["kv_transfer"] if re.search(_KV_SENDS, sender) else _TEXTS["pairs"]
        kind = _main_kind(comm)
        if answers.program.pytorch and kind == "all_to_all":
            return _TEXTS["exchange"]
        if kind == "all_reduce" and _only_infers(answers, comm):
            return _across_hosts(comm) or _TEXTS["tensor_parallel"]
        if kind in _PARTS and answers.program.trains and _are_of_sequences(comm):
            return _across_hosts(comm) or _TEXTS["sequence_parallel"]
        if kind == "all_reduce" and _between_replicas(comm):
            return _TEXTS["hybrid"]
        if kind == "all_reduce" and _in_layers(answers, comm):
            return _across_hosts(comm) or _TEXTS["tensor_parallel_training"]
        if text := _of_place(answers, kind) or _of_issuer(answers, comm):
            return text
        if text := (
            _of_values(answers, comm)
            or _of_units(answers, comm, kind)
            or _of_buckets(answers, comm, kind)
        ):
            return text
        small, are_most = _small(comm)
        if small is not None and are_most:
            text = fewer_collectives(comm, small)
            return f"{text[:1].upper()}{text[1:]}: small messages take as long as larger ones."
    waits, program = waits and not (comm is not None and comm.totals.n_matched), answers.program
    text = advice(result, waits=waits, pytorch=program.pytorch, xla=program.xla, kind=kind)
    compute = answers.time.busy_ns
    return f"{text}{_OF_COMPUTE}{answers.time.text(compute)}." if 0 < compute < exposed_ns else text


def _by_exposed_time(answers: Answers) -> CommOutliers | None:
    """Return the collectives of devices (of the host without any), most exposed time first.

    The exposed time of a collective, ``exposed_ns`` of its group, is its duration without the wait
    for the last rank and without the time at which the device computes.
    """
    if (comm := answers.of(CommOutliers)) is None:
        return None
    on_device = comm.instances.drop_nulls("device")
    rows = comm.instances if on_device.is_empty() else on_device
    sums = rows.group_by(GROUP).agg(EXPOSED_NS.sum())
    groups = comm.groups.join(sums, on=GROUP, nulls_equal=True, maintain_order="left")
    groups = groups.sort("exposed_ns", descending=True, maintain_order=True)
    arrivals = comm.arrivals if on_device.is_empty() else comm.arrivals.drop_nulls("device")
    return replace(comm, instances=rows, groups=groups, arrivals=arrivals)


def _of_place(answers: Answers, kind: str) -> str:
    """Return advice for collectives of a norm, an optimizer step or generation; else empty."""
    place = answers.place(COMMUNICATION)
    if kind == "all_gather" and _gathers_to_generate(answers, place):
        return _TEXTS["gather_once"]
    return _of_name(place, kind)


def _of_name(place: Mapping[str, Any], kind: str) -> str:
    """Return advice for collectives of a kind by the name of the function that calls them."""
    name = str(place.get("called") or place.get("code") or "")
    if kind == "all_reduce" and re.search(_OF_NORM, name):
        return _TEXTS["one_norm"].format(frame_text(name))
    if kind == "broadcast" and "_sync_buffers" in name:
        return NO_BUFFERS
    return _TEXTS["after_step"] if kind == "all_gather" and re.search(_OF_OPTIMIZER, name) else ""


#: From this many sums of few numbers per step on, they are to be joined.
_MANY_VALUES = 3


def _of_values(answers: Answers, comm: CommOutliers) -> str:
    """Return advice for sums of few numbers (norms, flags, scales of FP8); or empty."""
    size, n_steps = pl.col("message_bytes"), max(answers.time.windows.height, 1)
    is_sum = pl.col("collective") == "all_reduce"
    rows = comm.groups.filter(is_sum, size.is_between(1, VALUES_BYTES))
    few = rows["n"].sum() < _MANY_VALUES * n_steps
    if few or 2 * rows["exposed_ns"].sum() < comm.groups["exposed_ns"].sum():
        return ""
    each = rows["n"].sum() / n_steps
    return _TEXTS["values"].format(each, format_bytes(int(rows["message_bytes"].max())))  # type: ignore[arg-type]


def _of_units(answers: Answers, comm: CommOutliers, kind: str) -> str:
    """Return advice for sharded parameters (FSDP), by what is gathered at a time; or empty."""
    gathers = comm.groups.filter(collective="all_gather")
    sums = comm.groups.filter(collective="reduce_scatter")
    steps = comm.instances.drop_nulls("step").n_unique(["path", "rank", "step"])
    if kind not in ("all_gather", "reduce_scatter") or 0 in (gathers.height, sums.height, steps):
        return ""
    n, size = int(gathers["n"].sum()), gathers["message_bytes"].fill_null(0)
    # both passes gather all parameters at once; gradients may have twice the bytes
    like = sums["message_bytes"].implode()
    whole = gathers.head(1).filter(size.head(1).is_in(like) | (2 * size.head(1)).is_in(like))
    most = int(whole["total_ns"].sum()) > _NEARLY_ALL * int(gathers["total_ns"].sum())
    passes = whole["n"].sum() / steps  # FSDP2 keeps the parameters of the root after forward
    if most and (passes == 2 or (passes == 1 and _of_fsdp(answers))):
        return _TEXTS["wrap_blocks"]
    moved = int((size * gathers["n"]).sum())
    if n >= _MANY_BUCKETS * steps and moved <= _SMALL_UNIT * n:
        return _TEXTS["larger_units"].format(n / steps, format_bytes(moved // n))
    peak, memory = answers.memory_use or (0, 0)
    if n == 2 * sums["n"].sum() and peak + moved // steps // 2 < _FREE * memory:
        return _TEXTS["keep_gathered"].format(format_bytes(peak), format_bytes(memory))
    return ""


def _of_fsdp(answers: Answers) -> bool:
    """Whether FSDP launches collectives, by the functions and ranges around them."""
    if (kernels := answers.of(Kernels)) is None or kernels.heavy is None:
        return False
    rows = kernels.heavy.filter(work_kind=COMMUNICATION)
    return bool(re.search("fsdp|fully_?shard", str(rows.rows()).lower()))


def _across_hosts(comm: CommOutliers) -> str:
    """Return advice for small groups between hosts that have room for a whole group; or empty."""
    hosts = comm.ranks.drop_nulls("host").group_by("host").len()["len"]
    for top in comm.groups.head(1).filter(link=NETWORK).iter_rows(named=True):
        if top["group_size"] and hosts.len() > 1 and hosts.min() >= top["group_size"]:
            return _TEXTS["one_host"].format(top["group_size"], hosts.min())
    return ""


def _gathers_to_generate(answers: Answers, place: Mapping[str, Any]) -> bool:
    """Whether sharded parameters are gathered while most compute is that of generated tokens."""
    kernels, names = answers.of(Kernels), " ".join(str(name) for name in place.values() if name)
    if kernels is None or kernels.heavy is None or not re.search(_OF_SHARDS, names):
        return False
    compute = kernels.heavy.filter(pl.col("work_kind") == COMPUTE)
    below = compute.filter(pl.col("called").str.contains(_OF_GENERATION))
    return bool(2 * below["ns"].sum() > compute["ns"].sum())


#: Names of code that gathers sharded parameters, and functions that generate tokens.
_OF_SHARDS = r"(?i)zero[/\\]|fetch_sub_module|fsdp|fully_?shard|unshard"
_OF_GENERATION = r": (?:generate|_sample|_greedy_search|_beam_search)$"
#: Functions that reduce the norm of gradients, and steps of optimizers.
_OF_NORM = r"clip_grad|grad_norm|total_norm"
_OF_OPTIMIZER = r"(?i)optim\w*[.#](?:.*\.)?step|(?:optim|zero)[^:]*: step$"
#: Units of parameters of less than this size, on average, are small.
_SMALL_UNIT = 8 << 20
#: Gathered parameters can be kept if less than this share of the memory is then in use.
_FREE = 0.8
#: Reductions of gradients of less than this size, and so many in a step, are in small buckets.
_SMALL_BUCKET, _MANY_BUCKETS = 4 << 20, 32
_SUMS = ["all_reduce", "reduce_scatter"]
#: A reduction of so many times the usual (and at least such) bytes is one parameter: buckets are
#: alike.
_LARGER, _LEAST_BUCKET = 8, 1 << 20


def _of_buckets(answers: Answers, comm: CommOutliers, kind: str) -> str:
    """Return advice for sums of gradients in small buckets, or of one large parameter; or empty."""
    if not answers.program.trains:
        return ""
    steps, is_sum = max(answers.time.windows.height, 1), pl.col("collective").is_in(_SUMS)
    top, sums = comm.groups.head(1).filter(is_sum), comm.groups.filter(is_sum)
    n, size = (int(top[name].sum()) for name in ("n", "message_bytes"))
    most = 2 * top["total_ns"].sum() > comm.groups["total_ns"].sum()
    if most and 0 < size <= _SMALL_BUCKET and n >= _MANY_BUCKETS * steps:
        return _TEXTS["larger_buckets"]
    usual = sums.select(pl.col("message_bytes").repeat_by("n").explode().median()).item()
    alone = answers.time.in_steps and kind == "all_reduce" and n == steps
    large = usual is not None and size >= _LARGER * max(usual, _LEAST_BUCKET)
    return _TEXTS["one_parameter"] if alone and large and answers.program.pytorch else ""


#: Functions of inference engines that send the KV cache from prefill to decode instances.
_KV_SENDS = r"kv_transfer|kv_connector|disaggregation|(?i:mooncake|nixl)"


def _of_issuer(answers: Answers, comm: CommOutliers) -> str:
    """Return advice for collectives of a part of the program other than the reducer; or empty."""
    kernels, top = answers.of(Kernels), comm.groups.drop_nulls("collective").head(1)
    if kernels is None or kernels.heavy is None or top.is_empty():
        return ""
    kind = top["collective"][0]
    names = comm.instances.filter(collective=kind)["name"].unique()
    places = kernels.heavy.filter(pl.col("name").is_in(names.implode()))
    if small_collectives(comm) and places["called"].str.contains(_OF_SYNC_NORM).any():
        return _TEXTS["sync_batch_norm"]
    for place in places.iter_rows(named=True):
        issuer = re.sub(_OF_LIBRARY, "", place["annotation"] or "")
        around = f"{place['outer']} {issuer} {place['code']}"
        if re.search(_OF_DATA_PARALLEL, around):
            return _TEXTS["no_data_parallel"]
        if text := _of_name(place, kind):
            return text
        if "SyncBatchNorm" in around:
            return _TEXTS["sync_batch_norm"]
        if kind == "broadcast" and issuer:
            return _TEXTS["broadcasts"].format(issuer, top["n"][0])
        if re.search(_LOGGING, around) and small_collectives(comm):
            return _TEXTS["of_metrics"].format(issuer or frame_text(str(place["code"])))
    return ""


#: The functions of SyncBatchNorm that communicate.
_OF_SYNC_NORM = r"nn[/\\]modules[/\\]_functions\.py"

#: Annotations of PyTorch and its libraries.
_OF_LIBRARY = r"^(?:nccl:|Optimizer\.|DistributedDataParallel\.|FullyShardedDataParallel).*"

#: Code that logs: ``log``, ``self.log_dict``, ``LoggerConnector``; not logits or log_softmax.
_LOGGING = r"(?i)(?<![a-z:])log(?:_(?:dict|metrics?)|ger|ging)?(?![a-z0-9_])|logger|metric"

#: Operators and files of torch.nn.DataParallel.
_OF_DATA_PARALLEL = r"ReduceAddCoalesced|^Broadcast|nn/parallel/(?:data_parallel|replicate)\.py"


#: From this share on, sums of tensor parallelism are more than usual on fast links.
_MUCH = 0.3
#: Kernels of inference engines that sum over the GPUs of one model.
_OF_ENGINES = r"(?i)(?:one|two)_?shot_?all_?reduce|cross_device_reduce|trtllm_all_?reduce"
#: Tensor parallelism sums in each layer: from so many all_reduces of a rank on.
_MANY_SUMS = 16
#: In training, sums of one size from the start of a step to its end: from so many on.
_MANY_IN_STEP = 8
#: Sums in the first and the last part of a step; gradients are reduced from its middle on.
_PART = 0.25


def _in_layers(answers: Answers, comm: CommOutliers) -> bool:
    """Whether most time of all_reduces in training is in sums of layers, not of gradients.

    They are of one size, and many from the start of each step to its end.
    """
    if not (answers.program.pytorch and answers.program.trains):
        return False
    keys, rows = ["path", "rank", "step"], comm.instances.filter(collective="all_reduce")
    kernels, length = answers.of(Kernels), (pl.col("end") - pl.col("start")).sum()
    if kernels is not None and kernels.training is not None:
        of_gradients = kernels.training.filter(purpose=training.GRADIENTS).select(length).item()
        if 2 * of_gradients > rows["duration_ns"].sum():
            return False
    sizes = rows.group_by("message_bytes").agg(ns=pl.col("duration_ns").sum())
    size = largest_first(sizes, "ns", "message_bytes")["message_bytes"][0]
    rows = rows.filter(pl.col("message_bytes").eq_missing(size))
    windows = answers.time.windows.select(*keys, begin="start", until="end")
    placed = rows.drop_nulls("step").join(windows, on=keys)
    place = (pl.col("ts") - pl.col("begin")) / (pl.col("until") - pl.col("begin"))
    each = placed.group_by(keys).agg(n=pl.len(), first=place.min(), last=place.max())
    n, first, last = each.select(pl.col("n", "first", "last").median()).row(0)
    return bool(n and n >= _MANY_IN_STEP and first < _PART and last > 1 - _PART)


#: Collectives of sequence parallelism, and so many gathers before the first sum of a step.
_PARTS, _FIRST = ("all_gather", "reduce_scatter"), 3


def _are_of_sequences(comm: CommOutliers) -> bool:
    """Whether each sum follows a gather, from the start of each step: they are of activations.

    In sequence parallelism, layers gather and scatter them. Parameters (FSDP) are gathered in the
    whole forward pass first.
    """
    keys, is_sum = ["path", "rank", "step"], pl.col("collective") == "reduce_scatter"
    rows = comm.instances[*keys, "group", "collective", "ts"].drop_nulls("step")
    rows = rows.filter(pl.col("collective").is_in(_PARTS))
    rows = rows.join(comm.groups.head(1), on="group", how="semi").sort("ts").select(
        *keys, is_sum=is_sum, after=is_sum & ~is_sum.shift(1).over(keys).fill_null(value=True),
        early=~is_sum & (is_sum.cum_sum().over(keys) == 0),
    )  # fmt: skip
    each = rows.group_by(keys).agg(pl.col("is_sum", "after", "early").sum()).drop(keys)
    n, after, early = each.median().row(0)
    return bool(n and n >= _MANY_IN_STEP and after >= _NEARLY_ALL * n and early <= _FIRST)


def _between_replicas(comm: CommOutliers) -> bool:
    """Whether most time is in sums of what reduce_scatters of other groups leave (HSDP)."""
    part = pl.col("message_bytes") / pl.col("group_size")
    parts = comm.groups.filter(collective="reduce_scatter").select(part=part, of="group")
    sums = comm.groups.head(1).filter(collective="all_reduce").join(parts, how="cross")
    alike = (pl.col("message_bytes") - pl.col("part")).abs() <= _PADDING * pl.col("part")
    return sums.filter(alike, pl.col("group") != pl.col("of")).height > 0


#: Sums of padded parts may differ by this share.
_PADDING = 0.05


def _only_infers(answers: Answers, comm: CommOutliers) -> bool:
    """Whether many collectives and operators of PyTorch were recorded, but no training.

    Or most collectives are kernels of inference engines, which replay them in graphs.
    """
    of_engines = comm.instances["name"].cast(pl.String).str.contains(_OF_ENGINES)
    if 2 * int(of_engines.sum()) > of_engines.len():
        return True
    many = comm.totals.n_events >= _MANY_SUMS * max(comm.totals.n_ranks, 1)
    known = many and (kernels := answers.of(Kernels)) is not None and kernels.has_operators
    return known and answers.program.pytorch and not answers.program.trains


def _main_kind(comm: CommOutliers) -> str:
    """Return the collective with most of the exposed time, else of all time; empty if none has."""
    for column in ("exposed_ns", "total_ns"):
        sums = comm.groups.group_by("collective").agg(pl.col(column).sum())
        top = largest_first(sums, column, "collective").head(1)
        if top[column].sum() > comm.groups[column].sum() / 2:
            return str(top["collective"][0])
    return ""


def _kinds_of_collectives(answers: Answers) -> Iterator[str]:
    """Yield the kind of collective with the most exposed time, and the share of wait time."""
    comm = _by_exposed_time(answers)
    if comm is None or not comm.totals.total_comm_ns:
        return
    for top in comm.groups.head(1).iter_rows(named=True):
        speed = top["transfer_busbw_gbps"] or top["busbw_gbps"]
        rate = f", bus bandwidth {speed:.3g} GB/s" if speed else ""
        if top["link_frac"] and top["link"] not in (None, NETWORK):
            rate += f" ({format_frac(top['link_frac'])} of {top['link']})"
        like = ["collective", "message_bytes", "group_size", "kernel", "link"]
        alike = comm.groups.join(comm.groups.head(1), on=like, how="semi", nulls_equal=True)
        n, several = int(alike["n"].sum()), alike.height > 1 and top["group_size"]
        groups = f" in {alike.height} groups of {top['group_size']} ranks" if several else ""
        groups += " between nodes" if top["link"] == NETWORK else ""
        calls = f"{n:,} calls"
        each = n / max(answers.time.windows.height, 1)
        calls += f" ({each:.3g} per step and GPU)" if answers.time.in_steps else ""
        total = format_ns(int(alike["total_ns"].sum()))
        most = "Most time" if top["total_ns"] == comm.groups["total_ns"].max() else "Most exposed"
        yield f"{most}: {with_size(top)}{groups}, {total} in {calls}{rate}."
    _, are_most = _small(comm)
    known = _of_place(answers, _main_kind(comm)) or _of_issuer(answers, comm) or not are_most
    if small := small_collectives(comm, advise=not known):
        yield small
    if comm.arrivals.height:
        share = int(comm.arrivals["once_ns"].sum()) / int(comm.instances["duration_ns"].sum())
        yield f"{format_frac(share)} of all communication is wait time for the last rank."


@rule(
    "kernels",
    "compute kernels that take longer while collectives run on the same GPU",
    f"time above that of the same calls without a collective, {OF_STEP}",
    {"info": 0.02, "warning": 0.08},
    uses=("gpu_idle",),
)
def _slowed_compute(result: Kernels, answers: Answers) -> Iterator[Measured]:
    rows, time = of_purpose(result, training.SLOWED, answers.time), answers.time
    total, usual = int(rows["ns"].sum()), int(rows.filter(pl.col("ns") > 0)["call"].sum())
    if not usual:
        return
    yield Measured(
        title=f"Compute kernels take {1 + total / usual:.2f} times as long while collectives run: "
        f"{time.share(total)}.",
        evidence=(
            "They are compared with calls of the same kernel and grid without a collective.",
        ),
        advice="Collectives take multiprocessors and memory bandwidth: give them fewer "
        "(NCCL_MAX_CTAS, for RCCL NCCL_MAX_NCHANNELS; user buffers that are registered, NVLS, or "
        "copy engines need fewer), as long as they still end within the compute.",
        total_ns=total,
        confidence="medium",
    )


def _with_waits(losses: pl.DataFrame) -> str:
    return ", including wait time of other ranks" if losses["waited"].any() else ""


def _worst(row: Mapping[str, Any], took_ns: int, factor: float) -> str:
    return (
        f"Slowest: {with_size(row)}{at_step(row['step'])}, {format_ns(took_ns)} "
        f"({format_ratio(factor)} the usual)."
    )


RULES: tuple[Rule, ...] = (
    *straggling.RULES, _repeated_reduction, _slow_collectives,
    _collective_outliers, _slow_link, _nearly_full_memory, _exposed_communication, _slowed_compute,
)  # fmt: skip
