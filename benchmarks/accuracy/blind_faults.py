"""Faults that were written without knowledge of the rules of ``diagnose``.

The expected answers are those that an engineer would accept from a good tool.
"""

from __future__ import annotations

import random
from functools import partial

from benchmarks.accuracy import names
from benchmarks.accuracy.fault import (
    Context,
    Expected,
    fault,
    reads_loss,
    small_kernels,
    some_rank,
)
from benchmarks.accuracy.operators import (
    backward_layer,
    forward_layer,
    memory_us,
    run,
)
from benchmarks.accuracy.programs import (
    ALL_REDUCE,
    autograd,
    forward,
    load,
    loss_backward,
    parameters,
    read_loss,
    reduce_gradients,
    shape,
)
from benchmarks.accuracy.simulator import COMPUTE, Job, Program, Rank

#: Faults with :func:`fault` were added with knowledge of the rules, after others found them.
blind = partial(fault, kind="blind")


# --- training --------------------------------------------------------------------------------


def large_batches(job: Job) -> None:
    """Batches of images: 32 MiB from page-locked memory."""
    reads_loss(job)
    job.options.batch_bytes = 32 * 2**20


@blind("data-parallel", "sharded", prepare=large_batches)
def slow_host_copies_on_one_rank(job: Job, context: Context) -> Expected:
    """Halve the PCIe bandwidth of one GPU: its batches arrive late."""
    rank = some_rank(job, context)
    factor = 1 + context.cost_us / (job.options.batch_bytes / 50_000)
    job.copy_factor = lambda r, way: factor if r.rank == rank and way == "HtoD" else 1.0
    return Expected(
        r"(?i)HtoD|host[ -]to[ -]device|copy bandwidth|batch cop"
        r"|(slow|exposed|late)[^.]*cop(y|ies)",
        rank=rank,
    )


def micro_batch(r: Rank, *, reduce: bool) -> Program:
    """Forward and backward of a further micro-batch; its gradients are added."""
    with r.range("DistributedDataParallel.forward"):
        yield from forward(r)
    with r.frame(names.BACKWARD, names.RUN_BACKWARD), autograd(r):
        loss_backward(r)
        for _ in range(r.job.layers):
            run(r, backward_layer(*shape(r)))
            if reduce:
                yield from reduce_gradients(r, 12 * r.job.width**2)
    if reduce:
        r.wait_stream(COMPUTE, r.job.group("data", r.rank).stream)
    load(r)


def accumulate(job: Job, *, reduce: bool) -> None:
    """Four micro-batches for each step of the optimizer."""

    def three_more(r: Rank, _step: int, _layer: int) -> Program:
        for _ in range(3):
            yield from micro_batch(r, reduce=reduce)

    job.hooks["after_loader"] = [three_more]


def accumulating(job: Job) -> None:
    """Small micro-batches of a wide model; only the last of four reduces gradients."""
    job.tokens, job.width, job.layers = 1024, 2560, 4
    accumulate(job, reduce=False)


@blind("data-parallel", worlds=(4, 8), prepare=accumulating)
def accumulation_without_no_sync(job: Job, context: Context) -> Expected:
    """Gradients are reduced in each micro-batch, because ``no_sync`` is missing."""
    accumulate(job, reduce=True)
    return Expected(
        r"(?i)accumulat|no_sync|micro-?(batch|step)"
        r"|(several|multiple|\d+) (backward passes|times)[^.]*\b(a|per|each|every|in one) step"
        r"|(more than once|repeatedly|redundant|\d+ times)[^.]*(reduc|gradient|step)",
        place=r"(?i)all_?reduce|gradient",
    )


@blind("data-parallel", "single", prepare=reads_loss)
def optimizer_without_foreach(job: Job, context: Context) -> Expected:
    """Update parameters one by one in AdamW, with nine elementwise kernels each."""
    tensors = 4 * max(8, int(context.cost_us / 4 / 110))
    ops = ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_")

    def step_by_tensor(r: Rank) -> None:
        for number in range(tensors):
            # one of four is a matrix, the others are biases and weights of layer norms
            elements = 4 * parameters(r) // tensors if number % 4 == 0 else r.job.width
            with r.op("aten::add_"):
                r.launch(names.ADD, 1.6)
            for op in ops:
                with r.op(f"aten::{op}"):
                    r.launch(names.MUL, memory_us(6 * elements), grid=[1 + elements // 2048, 1, 1])

    job.options.optimizer = step_by_tensor
    return Expected(
        r"(?i)launch|(small|short|tiny|many) kernels|fused|fusion|foreach",
        place=r"(?i)optimizer|AdamW|aten::(lerp_|addcmul_|addcdiv_)",
    )


@fault("data-parallel", "single", prepare=reads_loss)
def moving_average_in_a_loop(job: Job, context: Context) -> Expected:
    """Average the weights with two small kernels for each tensor."""
    tensors = max(80, int(context.cost_us / 24))

    def update(r: Rank, _step: int, _layer: int) -> None:
        with r.range("ema_update"):
            for _ in range(tensors):
                for op in ("mul_", "add_"):
                    with r.op(f"aten::{op}"):
                        r.launch(names.MUL, 2.2)

    job.at("after_optimizer", update)
    return Expected(
        r"(?i)launch|(small|short|tiny|many) kernels|fused|fusion|foreach", place="ema_update"
    )


@blind("data-parallel", "sharded", "single", prepare=reads_loss)
def moving_average_on_host(job: Job, context: Context) -> Expected:
    """Average the weights on the host after each step."""
    tensors = 24
    us = context.cost_us / 2 / tensors

    def update(r: Rank, _step: int, _layer: int) -> None:
        with r.frame("train.py(151): update_ema", "ema.py(44): update"):
            for _ in range(tensors):
                with r.op("aten::to"), r.op("aten::_to_copy"), r.op("aten::copy_"):
                    r.copy("DtoH", int(us * 6000), pinned=False)
                with r.op("aten::lerp_", [[r.job.width, r.job.width]] * 2, "float"):
                    r.pause(r.about(us))

    job.at("after_optimizer", update)
    return Expected(
        r"(?i)\bema\b|update_ema|moving average|lerp_|cop(y|ies)|DtoH|device[ -]to[ -]host"
        r"|pageable",
        place=r"(?i)\bema\b|update_ema|lerp_|DtoH|device[ -]to[ -]host|pageable|aten::(copy_|to\b)",
    )


#: About the middle step of a recording.
_MIDDLE = 15


@fault("data-parallel", "single", record=("marks",), prepare=reads_loss)
def history_that_grows(job: Job, context: Context) -> Expected:
    """Plot a history of the loss that has one more entry in each step, on the host."""

    def plot(r: Rank, step: int, _layer: int) -> None:
        with r.range("plot_history"):
            r.pause(r.about(context.cost_us * step / _MIDDLE))

    job.at("after_optimizer", plot)
    return Expected(r"(?i)plot_history|longer in each step|grow", place="plot_history")


@fault("single", record=("marks",), prepare=reads_loss)
def tensor_that_grows(job: Job, context: Context) -> Expected:
    """Append features to a tensor with torch.cat in each step, which copies all of it."""

    def append(r: Rank, step: int, _layer: int) -> None:
        with r.op("aten::cat"):
            r.launch(names.CAT, 20 + context.cost_us * step / _MIDDLE)

    job.at("after_forward", append)
    return Expected(r"(?i)\bcat\b|CatArray|concat|grow")


@fault("data-parallel", "single")
def anomaly_detection(job: Job, _context: Context) -> Expected:
    """Leave ``torch.autograd.set_detect_anomaly(True)`` on."""
    job.options.checks_gradients = True
    return Expected(r"(?i)anomaly|isnan|\bNaN\b")


@blind("data-parallel", worlds=(2, 4, 8), prepare=reads_loss)
def metrics_reduced_each_step(job: Job, context: Context) -> Expected:
    """Reduce each metric with an all_reduce of one number and an ``.item()`` in each step."""
    count = max(10, int(context.cost_us / 110))

    def reduce_metrics(r: Rank, _step: int, _layer: int) -> Program:
        group = r.job.group("data", r.rank)
        with r.frame("train.py(159): reduce_metrics", "metrics.py(27): compute"):
            for _ in range(count):
                with r.op("aten::mean"):
                    r.launch(names.REDUCE, 4.0)
                with r.op("c10d::allreduce_"):
                    yield from r.collective(ALL_REDUCE, group, 1)
                r.wait_stream(COMPUTE, group.stream)
                read_loss(r)
                r.pause(r.about(20, 0.3))

    job.at("after_optimizer", reduce_metrics)
    return Expected(
        r"(?i)synchron|\.item\(\)|(tiny|small|short)[^.]*(message|collective|all_?reduce)|latency",
        place=r"(?i)aten::item|_local_scalar_dense|\.item\(\)|all_?reduce|reduce_metrics|metrics\.py",
    )


@blind("data-parallel", worlds=(4, 8), record=("shapes",))
def unbalanced_batches(job: Job, context: Context) -> Expected:
    """Batches of varying length: in each step another rank has the longest batch."""
    dice = random.Random(context.dice.random())
    longest = 1 / (1 - context.share)
    table = {
        (rank, step): round(job.tokens * dice.uniform(0.55, longest) / 512) * 512
        for step in job.steps
        for rank in range(job.world)
    }
    for number, step in enumerate(job.steps):
        table[number * 3 % job.world, step] = round(job.tokens * longest / 512) * 512
    job.options.tokens = lambda rank, step: table[rank, step]
    return Expected(
        r"(?i)imbalanc|unbalanc|(uneven|unequal|different|varying)[^.]*(batch|work|shapes?|length|load)"
        r"|(shapes?|lengths?|batch(es)?|inputs?) (differ|var(y|ies))|larger (shapes?|inputs?|batch)"
        r"|longer sequence|sequence length|more (work|tokens)|different ranks?\b"
    )


def deep(job: Job) -> None:
    """More layers of a smaller batch, so that activations would not fit."""
    job.tokens, job.layers = 4096, 6


@blind("data-parallel", "single", prepare=deep)
def activations_recomputed(job: Job, context: Context) -> Expected:
    """Activation checkpointing of all layers but the last, where memory would be enough."""

    def recompute(r: Rank, _step: int, layer: int) -> None:
        if layer:
            node = "CheckpointFunctionBackward"
            with r.op(f"autograd::engine::evaluate_function: {node}"), r.op(node):
                run(r, forward_layer(*shape(r)))

    job.at("layer_backward", recompute)
    return Expected(
        r"(?i)recomput|CheckpointFunction|activation checkpoint|gradient checkpoint"
        r"|forward[^.]*(twice|again|(in|during) (the )?backward)"
    )


def small_kernels_and_loss(job: Job) -> None:
    """Slow launches show: kernels are small, and the host is never a step ahead."""
    small_kernels(job)
    reads_loss(job)


@blind("data-parallel", "sharded", worlds=(2, 4), prepare=small_kernels_and_loss)
def one_core_for_backward_on_one_rank(job: Job, context: Context) -> Expected:
    """One rank is pinned to one core: the autograd thread shares it with the main thread."""
    rank = some_rank(job, context)
    factor = 5 + 6 * context.share

    def begin(r: Rank, _step: int, _layer: int) -> None:
        r.slower = factor if r.rank == rank else 1.0

    def end(r: Rank, _step: int, _layer: int) -> None:
        r.slower = 1.0

    job.at("after_forward", begin)
    job.at("after_backward", end)
    return Expected(
        r"(?i)launch-bound|launch(es|ing)?( calls?)?[^.]* (takes?|longer|slow)|to launch"
        r"|slow(er)? (host|launch|CPU)|host (is|was) (slow|busy)|CPU (core|contention|time)"
        r"|operators? takes?|backward[^.]*(slower|longer) on the host",
        rank=rank,
    )


@blind("data-parallel", "sharded", "single", record=("marks",), prepare=reads_loss)
def blocking_read_every_third_step(job: Job, context: Context) -> Expected:
    """The schedule of the learning rate is read from a network drive every third step."""
    steps = tuple(job.steps)[1::3]

    def read(r: Rank, step: int, _layer: int) -> None:
        if step in steps:
            with r.frame(
                "torch/optim/lr_scheduler.py(244): step",
                "schedule.py(31): get_lr",
                "<built-in method read of _io.TextIOWrapper object at 0x7f1de0c41a80>",
            ):
                r.pause(r.about(3 * context.cost_us))

    job.at("after_optimizer", read)
    place = r"lr_scheduler|schedule\.py|TextIOWrapper" if job.stacks else ""
    return Expected(
        r"(?i)host[ -](code|thread|pause|stall|side)|paus|lr_scheduler|schedule\.py|TextIOWrapper"
        r"|no (event|operator)|outside (any|of)|\bI/O\b|blocking",
        steps=steps,
        place=place,
    )


# --- serving ---------------------------------------------------------------------------------


@blind("inference", steps=24)
def cache_blocks_swapped(job: Job, context: Context) -> Expected:
    """Swap KV cache blocks to the host and back, for lack of memory."""
    steps = sorted(context.dice.sample(range(2, 23), 8))
    directions = {step: ("DtoH", "HtoD")[number % 2] for number, step in enumerate(steps)}
    block = 16 * 8 * 128 * 2  # tokens, heads, values of a head, bytes
    blocks = max(4, int(3 * context.cost_us / job.layers / 2 / (job.call_us + 0.5)))

    def swap(r: Rank, step: int, _layer: int) -> None:
        if step not in directions:
            return
        line = {"DtoH": "(118): swap_out", "HtoD": "(112): swap_in"}[directions[step]]
        with r.frame(f"vllm/worker/cache_engine.py{line}"):
            for _ in range(2 * r.job.layers):  # keys and values
                with r.op("_C_cache_ops::swap_blocks"):
                    for _ in range(blocks):
                        r.copy(directions[step], block)

    job.at("before_model", swap)
    return Expected(
        r"(?i)swap|cop(y|ies)|DtoH|HtoD|evict|KV[ -]cache",
        place=r"(?i)swap_|cache_engine|DtoH|HtoD|device[ -]to[ -]host|host[ -]to[ -]device",
    )
