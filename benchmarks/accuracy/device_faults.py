"""Faults of devices and of communication: slow GPUs, imbalance, links, overlap, kernels."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.accuracy import names
from benchmarks.accuracy.fault import (
    PARALLEL,
    Context,
    Expected,
    fault,
    reads_loss,
    some_rank,
    some_steps,
)
from benchmarks.accuracy.operators import memory_us
from benchmarks.accuracy.programs import ALL_REDUCE
from benchmarks.accuracy.simulator import COMPUTE, Args, Group, Job, Program, Rank

SLOW_GPU = (
    r"(?i)slow(er)? (GPU|device)|slow-gpu|throttl|same (kernel|work)"
    r"|(kernels?|GPU) (takes?|runs?|is|are) [^.]*(longer|slower)|clock (rate|speed|frequency)"
)
IMBALANCE = (
    r"(?i)imbalanc|more (kernels|work|compute|tokens)|unequal|uneven work"
    r"|larger (shapes?|inputs?|kernels?|batch)"
)


# --- computation -----------------------------------------------------------------------------


@fault(*PARALLEL)
def slow_gpu(job: Job, context: Context) -> Expected:
    """All kernels of one GPU take 1.3 to 1.6 times as long."""
    rank = some_rank(job, context)
    factor = 1 / (1 - max(context.share, 0.22))
    job.kernel_factor = lambda r, *_: factor if r.rank == rank else 1.0
    return Expected(SLOW_GPU, rank=rank)


@fault(*PARALLEL)
def throttling_gpu(job: Job, context: Context) -> Expected:
    """From the middle of the recording on, all kernels of one GPU are slower."""
    rank = some_rank(job, context)
    factor = 1 / (1 - max(context.share, 0.3))
    start = job.steps[len(job.steps) // 2]
    job.kernel_factor = lambda r, _, step: factor if r.rank == rank and step >= start else 1.0
    return Expected(SLOW_GPU, rank=rank)


def busy_links(job: Job) -> None:
    """GPUs without NVLink: collectives take about as long as the backward pass."""
    job.gpu, job.layers, job.width = "NVIDIA GeForce RTX 4090", 6, 1024
    job.groups["data"] = [replace(job.groups["data"][0], gbps=25.0)]


@fault("data-parallel", worlds=(4, 8), prepare=busy_links)
def kernels_slowed_by_collectives(job: Job, context: Context) -> Expected:
    """Collectives take multiprocessors from the kernels that they overlap."""
    factor = 1 / (1 - max(context.share, 0.25))
    (group,) = job.groups["data"]
    job.kernel_factor = lambda r, at, _: factor if at < r.free[group.stream] else 1.0
    return Expected("slowed-compute", advice="NCCL_MAX_CTAS")


@fault("data-parallel")
def more_kernels_on_one_rank(job: Job, context: Context) -> Expected:
    """One rank runs more layers, for example an additional expert or adapter."""
    rank = some_rank(job, context)
    job.options.layers = lambda r, _: job.layers + (1 if r == rank else 0)
    return Expected(IMBALANCE, rank=rank)


@fault(*PARALLEL, record=("shapes",))
def larger_shapes_on_one_rank(job: Job, context: Context) -> Expected:
    """One rank gets longer sequences than the others."""
    rank = some_rank(job, context)
    tokens = int(job.tokens * (1 + context.share / (1 - context.share)) / 1024 + 1) * 1024
    job.options.tokens = lambda r, _: tokens if r == rank else job.tokens
    return Expected(IMBALANCE, rank=rank)


@fault("data-parallel", "single", record=("shapes", "marks"))
def longer_sequences_in_some_steps(job: Job, context: Context) -> Expected:
    """Two steps have twice the tokens of the others."""
    steps = some_steps(job, context)
    job.options.tokens = lambda _, step: (2 if step in steps else 1) * job.tokens
    return Expected(
        r"(?i)shapes?\b|sequence length|longer sequence|tokens|imbalanc|larger|more work",
        steps=steps,
    )


@fault("data-parallel", "single", "sharded")
def unfused_attention(job: Job, context: Context) -> Expected:
    """Attention as two products and a softmax over the full matrix of scores."""
    job.options.fused_attention = False
    return Expected(r"(?i)attention")


@fault("data-parallel", "single", "sharded")
def single_precision(job: Job, context: Context) -> Expected:
    """Products in float32 without tensor cores."""
    job.options.tensor_cores = False
    return Expected(r"(?i)tensor[ -]core|single precision|float32|TF32|FP32")


@fault("data-parallel", "single", "sharded")
def unfused_pointwise(job: Job, context: Context) -> Expected:
    """Long chains of elementwise operators that are not fused."""
    each = 3 * job.layers * memory_us(12 * job.tokens * job.width)  # forward and backward
    job.options.pointwise = max(2, round(context.cost_us / each))
    return Expected(r"(?i)elementwise|pointwise|memory[ -]bound")


@fault("data-parallel", "single", "sharded")
def device_copies(job: Job, context: Context) -> Expected:
    """Tensors are cloned in each layer: copies from device to device."""
    each = int(context.cost_us / job.layers / 8 * 1.2e6)

    def clone(r: Rank, _step: int, _layer: int) -> None:
        for _ in range(8):
            with r.op("aten::clone"), r.op("aten::copy_"):
                r.copy("DtoD", each)

    job.at("layer_forward", clone)
    return Expected(
        r"(?i)cop(y|ies)", place=r"(?i)DtoD|device[ -]to[ -]device|aten::clone|aten::copy_"
    )


@fault("data-parallel", "single")
def wait_for_event(job: Job, context: Context) -> Expected:
    """The compute stream waits for an event of a side stream that copies embeddings."""
    side = 13

    def fetch(r: Rank, _step: int, _layer: int) -> None:
        r.wait_stream(side, COMPUTE)
        with r.op("aten::copy_"):
            call = r.call("cudaMemcpyAsync")
            us = r.about(context.cost_us)
            start = max(call + 5, r.free[side])
            ids: Args = {
                "device": r.device,
                "context": 1,
                "stream": side,
                "bytes": int(us * 50_000),
            }
            ids |= {"correlation": r.correlation, "memory bandwidth (GB/s)": 50.0}
            name = "Memcpy HtoD (Pinned -> Device)"
            r.events.append(("gpu_memcpy", name, r.device, side, start, us, ids))
            r.free[side] = start + us
        r.wait_stream(COMPUTE, side)

    job.at("after_loader", fetch)
    return Expected(
        r"(?i)device[ -](side )?wait|waits? (for|on)|cop(y|ies)",
        place=r"(?i)stream 13|cudaStreamWaitEvent|HtoD|host[ -]to[ -]device|aten::copy_",
    )


@fault("data-parallel", "single")
def one_slow_kernel(job: Job, context: Context) -> Expected:
    """The backward pass of an index sorts the indices in one kernel: repeated rows are serial."""

    def index_backward(r: Rank, _step: int, layer: int) -> None:
        if layer == 0:
            ops = ("autograd::engine::evaluate_function: IndexBackward0", "IndexBackward0")
            with r.op(ops[0]), r.op(ops[1]), r.op("aten::_index_put_impl_"):
                r.launch(names.INDEX_BACKWARD, context.cost_us)

    job.at("layer_backward", index_backward)
    return Expected(r"(?i)indexing_backward|index_put|IndexBackward")


@fault("data-parallel", "single")
def fallback_kernel(job: Job, context: Context) -> Expected:
    """A layer runs the kernel that takes any input, as its type or layout does not suit others."""
    node, kernel, cause = context.dice.choice(names.FALLBACKS)

    def fall_back(r: Rank, _step: int, layer: int) -> None:
        if layer % 2 == 0:
            with r.op(f"autograd::engine::evaluate_function: {node}"), r.op(node):
                r.launch(kernel, 2 * context.cost_us / job.layers)

    job.at("layer_backward", fall_back)
    return Expected(cause)


@fault(*PARALLEL, record=("marks",), prepare=reads_loss)
def unequal_lengths(job: Job, context: Context) -> Expected:
    """Every rank gets other lengths in each step, so each time another one is last."""
    most = 1 + 2 * context.share / (1 - context.share)

    def tokens(rank: int, step: int) -> int:
        drawn = random.Random(f"{job.seed} {rank} {step}").uniform(1, most)
        return int(job.tokens * drawn / 256) * 256

    job.options.tokens = tokens
    return Expected(
        r"(?i)(lengths?|shapes?|tokens|work|inputs?) (differ|var)|different (lengths|work)"
        r"|unequal|uneven work|(an)?other ranks? in each step|different ranks"
    )


# --- communication ---------------------------------------------------------------------------

SLOW_LINK = (
    r"(?i)slow[ -](link|collective|network|communication)|bandwidth|GB/s|took long on all ranks"
)


@fault("sharded", worlds=(8,))
def slow_link_in_one_group(job: Job, context: Context) -> Expected:
    """The link of one shard group is slow: each of its collectives takes long, no rank is late."""
    group = context.dice.choice(job.groups["shard"])
    factor = 10 + 20 * context.share
    job.transfer_factor = lambda g, _: factor if g.name == group.name else 1.0
    low, high = group.ranks[0], group.ranks[-1]
    listed = ", ".join(str(rank) for rank in group.ranks)
    place = rf"group '?{group.name}\b|ranks? {low} ?(to|-|\.\.) ?{high}\b|{listed}"
    return Expected(SLOW_LINK, place=place)


@fault("data-parallel", worlds=(2, 4, 8), record=("marks",))
def slow_link_in_some_steps(job: Job, context: Context) -> Expected:
    """The network is shared with another job during two steps."""
    steps = some_steps(job, context)
    whole = transfer_per_step(job)
    factor = (3 * context.cost_us + context.step_us) / whole
    job.transfer_factor = lambda _, step: factor if step in steps else 1.0
    return Expected(SLOW_LINK, steps=steps)


def transfer_per_step(job: Job) -> float:
    """Transfer time of the all_reduces of one step."""
    group = job.groups["data"][0]
    size = 2 * 12 * job.width**2 * ALL_REDUCE.wire(len(group.ranks))
    return job.layers * size / group.gbps / 1000


@fault(*PARALLEL)
def slow_interconnect(job: Job, context: Context) -> Expected:
    """NCCL uses PCIe or sockets instead of NVLink: all collectives are slow."""
    gbps = context.dice.uniform(3, 8)
    job.transfer_factor = lambda group, _: group.gbps / gbps
    return Expected(SLOW_LINK, place="all_?reduce|all_?gather|reduce_?scatter")


def communicating(job: Job) -> None:
    """Few tokens for many parameters: gradients take about as long as the backward pass."""
    job.tokens, job.width, job.layers = 1536, 2560, 4


@fault("data-parallel", worlds=(2, 4, 8), prepare=communicating)
def collectives_on_compute_stream(job: Job, context: Context) -> Expected:
    """The all_reduces run on the compute stream, so nothing overlaps with them."""
    job.options.reduction = "inline"
    return Expected(r"(?i)(same|compute|share)[^.]*stream|stream 7|on the stream")


@fault("data-parallel", worlds=(2, 4, 8), prepare=communicating)
def reduction_after_backward(job: Job, context: Context) -> Expected:
    """Gradients are reduced by hand after the whole backward pass."""
    job.options.reduction = "late"
    return Expected(
        r"(?i)after (the )?(whole |entire )?(backward|compute)|launched (late|only|after)"
        r"|not (launched|overlapped) (during|with|until)"
    )


@fault("data-parallel", worlds=(2, 4, 8), prepare=communicating)
def one_bucket(job: Job, context: Context) -> Expected:
    """All gradients are in one bucket, which is ready at the end of the backward pass."""
    job.options.reduction = "bucket"
    return Expected(
        r"(?i)bucket|after (the )?(whole |entire )?(backward|compute)|launched (late|only|after)"
    )


@fault("data-parallel", worlds=(2, 4, 8))
def tiny_collectives(job: Job, context: Context) -> Expected:
    """Reduce each parameter with a separate all_reduce of a few KB."""
    count = max(20, int(context.cost_us / 22))

    def reduce_all(r: Rank, _step: int, _layer: int) -> Program:
        group = job.group("data", r.rank)
        for _ in range(count):
            with r.op("c10d::allreduce_"):
                yield from r.collective(ALL_REDUCE, group, 2048)
        r.wait_stream(COMPUTE, group.stream)

    job.at("after_backward", reduce_all)
    return Expected(
        r"(?i)tiny|small (message|collective)|short collective|latency|bucket|coalesc",
        place="all_?reduce",
    )


def fully_sharded(job: Job) -> None:
    """One group that shards over all ranks; parameters take almost as long to gather as to use."""
    communicating(job)
    job.tokens, job.gpus_per_host = 2048, 8
    everyone = tuple(range(job.world))
    job.groups = {"shard": [Group("1", "mesh_shard", everyone, 24, 350.0)]}


@fault("sharded", worlds=(2, 4, 8), prepare=fully_sharded)
def gather_without_prefetch(job: Job, context: Context) -> Expected:
    """Each all_gather starts when the layer before is done."""
    job.options.prefetch = False
    return Expected(r"(?i)prefetch|overlap|exposed", place="all_?gather")


# --- pipelines -------------------------------------------------------------------------------


def many_micro_batches(job: Job) -> None:
    """16 small micro-batches for each step."""
    job.options.micro_batches, job.tokens = 16, 1024


@fault("pipeline", worlds=(4,), prepare=many_micro_batches)
def pipeline_bubble(job: Job, context: Context) -> Expected:
    """Four micro-batches for four stages."""
    job.options.micro_batches, job.tokens = 4, 4096
    return Expected(r"(?i)bubble|micro-?batch|pipeline")


@fault("pipeline", worlds=(2, 4))
def slow_stage(job: Job, context: Context) -> Expected:
    """One stage has one layer more than the others."""
    rank = some_rank(job, context)
    job.options.layers = lambda r, _: job.layers + (r == rank)
    return Expected(IMBALANCE + r"|stage", rank=rank)
