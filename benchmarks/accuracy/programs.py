"""Programs for the simulation: four kinds of transformer training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from benchmarks.accuracy import names
from benchmarks.accuracy.operators import (
    VOCABULARY,
    Work,
    backward_layer,
    forward_layer,
    linear,
    linear_backward,
    memory_us,
    node,
    run,
)
from benchmarks.accuracy.simulator import COMPUTE, Collective, Group, Job, Program, Rank

ALL_REDUCE = Collective("allreduce", "nccl:all_reduce", names.ALL_REDUCE, lambda n: 2 * (n - 1) / n)
ALL_GATHER = Collective(
    "_allgather_base", "nccl:_all_gather_base", names.ALL_GATHER,
    lambda n: (n - 1) / n, gathers=True,
)  # fmt: skip
REDUCE_SCATTER = Collective(
    "_reduce_scatter_base", "nccl:_reduce_scatter_base", names.REDUCE_SCATTER,
    lambda n: (n - 1) / n, scatters=True,
)  # fmt: skip
BROADCAST = Collective("broadcast", "nccl:broadcast", names.BROADCAST, lambda _: 1.0)
SEND = Collective("send", "nccl:send {rank}->{peer}", names.SEND_RECV, lambda _: 1.0)
RECV = Collective("recv", "nccl:recv {rank}<-{peer}", names.SEND_RECV, lambda _: 1.0)


#: Requests of an inference engine that decode.
RUNNING = 32


@dataclass
class Request:
    """A request to an inference engine: times in us since the first schedule, and tokens.

    Results are ``began_us`` (the first schedule on the clock of the trace), ``scheduled_us``,
    ``token_us`` (when each of its tokens is known) and ``paused_us`` (when it was preempted and
    scheduled again).
    """

    arrival_us: float
    prompt: int
    tokens: int
    scheduled_us: float = 0.0
    began_us: float = 0.0
    token_us: list[float] = field(default_factory=list)
    paused_us: list[list[float]] = field(default_factory=list)

    @property
    def cached(self) -> int:
        """Tokens in the cache after the next step."""
        return self.prompt + len(self.token_us) + 1


@dataclass
class Options:
    """Options of training or inference; faults change them.

    Attributes:
        loader_us: time in the DataLoader by rank and step.
        loader: annotation of the DataLoader's iterator.
        batch_bytes: size of a batch; pinned: in page-locked memory.
        item: the loss is read at the end of each step (``loss.item()``).
        checks_gradients: each gradient is checked for NaN.
        pinned_scalars: ``.item()`` copies to pinned memory, as newer PyTorch does; else the
            host waits in cudaMemcpyAsync.
        tensor_cores: products run in bfloat16 on tensor cores, not in float32.
        fused_attention: scaled_dot_product_attention with a flash kernel.
        pointwise: further elementwise kernels after each layer.
        reduction: when gradients are reduced: ``overlapped`` with the backward pass, ``late``
            (after it), in one ``bucket``, ``inline`` (on the compute stream), or on the host by
            ``mpi``.
        reduces: whether a step reduces gradients and runs the optimizer, by step.
        prefetch: all_gather overlaps with the compute of the previous layer.
        one_unit: all layers are gathered and reduced at once.
        micro_batches: of a pipeline.
        one_forward_one_backward: its schedule is 1F1B.
        layers: layers of a rank, by rank and step.
        tokens: tokens of a rank, by rank and step.
        graphs: decode steps run as CUDA graphs, with up to ``captured`` requests.
        running: requests that decode, by step.
        requests: requests that are served until all have their tokens, in place of steps.
        cache_tokens: tokens of running requests that fit the cache; the last one is preempted.
        prefill_tokens: tokens of the prompts that an inference step processes, by step.
        optimizer: launches the kernels of the optimizer; by default a fused one.
        schedule_us: host time of the scheduler for each inference step.
        overlapped_sampling: the tokens of a step are read while the next one runs.
    """

    loader_us: Callable[[int, int], float] = lambda *_: 120.0
    loader: str = names.LOADER
    batch_bytes: int = 4_194_304
    pinned: bool = True
    item: bool = True
    pinned_scalars: bool = True
    checks_gradients: bool = False
    tensor_cores: bool = True
    fused_attention: bool = True
    pointwise: int = 0
    reduction: str = "overlapped"
    reduces: Callable[[int], bool] = lambda _: True
    prefetch: bool = True
    one_unit: bool = False
    micro_batches: int = 8
    one_forward_one_backward: bool = False
    layers: Callable[[int, int], int] | None = None
    tokens: Callable[[int, int], int] | None = None
    graphs: bool = True
    captured: int = RUNNING
    running: Callable[[int], int] = lambda _: RUNNING
    requests: list[Request] = field(default_factory=list)
    cache_tokens: int = 1 << 40
    prefill_tokens: Callable[[int], int] = lambda step: 2048 if step % 10 == 0 else 0
    optimizer: Callable[[Rank], None] | None = None
    schedule_us: Callable[[int], float] = lambda _: 150.0
    overlapped_sampling: bool = False


def shape(r: Rank) -> tuple[int, int, bool, bool, int]:
    """Return tokens, width, and kinds of kernels of a rank's layers in this step."""
    job, options = r.job, r.job.options
    tokens = options.tokens(r.rank, r.step) if options.tokens else job.tokens
    return tokens, job.width, options.tensor_cores, options.fused_attention, options.pointwise


def layers(r: Rank) -> int:
    """Return the number of layers that a rank runs in this step."""
    options = r.job.options
    return options.layers(r.rank, r.step) if options.layers else r.job.layers


# --- training --------------------------------------------------------------------------------


def train(r: Rank) -> Program:
    """Run a training loop; profiler steps follow each other without a gap."""
    step_of = {
        "data-parallel": data_parallel_step,
        "single": data_parallel_step,
        "sharded": sharded_step,
        "pipeline": pipeline_step,
    }[r.job.family]
    with r.frame(names.TRAIN, names.MAIN):
        for step in r.job.steps:
            r.step = step
            with r.range(r.job.mark.format(step)) if r.job.marks else nullcontext():
                yield from r.run_hooks("step_start")
                load(r)
                yield from r.run_hooks("after_loader")
                with r.frame(names.TRAIN_STEP):
                    yield from step_of(r)
                yield from r.run_hooks("step_end")
        r.synchronize("cudaDeviceSynchronize")


def load(r: Rank) -> None:
    """Get the next batch from the DataLoader, and copy it to the device."""
    options = r.job.options
    in_process = options.loader == names.LOADER_IN_PROCESS
    inner = (names.LOADER_GET, names.LOADER_QUEUE)
    if in_process:
        inner = (names.LOADER_FETCH, names.GET_ITEM)
    with r.frame(names.LOADER_NEXT), r.range(options.loader), r.frame(*inner):
        r.pause(r.about(options.loader_us(r.rank, r.step), 0.05))
    with r.op("aten::to"), r.op("aten::_to_copy"), r.op("aten::copy_"):
        r.copy("HtoD", options.batch_bytes, pinned=options.pinned, wait=not options.pinned)


def embed(r: Rank) -> None:
    """Token embedding."""
    tokens, width, *_ = shape(r)
    dims = ((VOCABULARY, width), (tokens,))
    kernels = ((names.EMBEDDING, memory_us(2 * tokens * width)),)
    run(r, [Work(("aten::embedding", "aten::index_select"), kernels, dims, tokens)])


def loss(r: Rank) -> None:
    """The output layer and the loss."""
    tokens, width, tc, *_ = shape(r)
    logits = tokens * VOCABULARY
    soft = ((names.LOG_SOFTMAX, memory_us(4 * logits)),)
    ops = ("aten::cross_entropy_loss", "aten::log_softmax", "aten::_log_softmax")
    picked = ("aten::nll_loss", "aten::nll_loss_forward")
    run(r, (
        linear(tokens, VOCABULARY, width, tc=tc),
        Work(ops, soft, ((tokens, VOCABULARY),), tokens),
        Work(picked, ((names.NLL, 6.0),), ((tokens, VOCABULARY), (tokens,)), 1),
    ))  # fmt: skip


def loss_backward(r: Rank) -> None:
    """The backward pass of the loss and the output layer."""
    tokens, width, tc, *_ = shape(r)
    us, op = memory_us(4 * tokens * VOCABULARY), "aten::_log_softmax_backward_data"
    run(r, (
        node("LogSoftmaxBackward0", op, names.LOG_SOFTMAX_BACKWARD, us, tokens, VOCABULARY),
        linear_backward(tokens, VOCABULARY, width, tc=tc),
    ))  # fmt: skip


def forward(r: Rank) -> Program:
    """All layers without communication."""
    with r.frame(names.CALL, "nn.Module: GPT_0"):
        embed(r)
        for layer in range(layers(r)):
            with r.frame(f"nn.Module: Block_{layer}"):
                run(r, forward_layer(*shape(r)))
                yield from r.run_hooks("layer_forward", layer)
        loss(r)


@contextmanager
def autograd(r: Rank) -> Iterator[None]:
    """Switch to the thread of the autograd engine."""
    r.tid = r.pid + 31
    r.pause(15)
    yield
    r.pause(10)
    r.tid = r.pid


def optimizer(r: Rank) -> None:
    """AdamW over the parameters of the rank."""
    count = parameters(r) // (r.job.world if r.job.family == "sharded" else 1)
    with r.frame(names.OPTIMIZER), r.range("Optimizer.step#AdamW.step"):
        (r.job.options.optimizer or partial(fused_adam, count=count))(r)
    with r.range("Optimizer.zero_grad#AdamW.zero_grad"):
        r.pause(20)


def fused_adam(r: Rank, count: int) -> None:
    """Run one optimizer operator with a few kernels for a number of parameters."""
    kernels = tuple((names.ADAM, memory_us(count * 14 // 4)) for _ in range(4))
    run(r, (Work(("aten::_fused_adamw_",), kernels, (), 2048),))


def parameters(r: Rank) -> int:
    """Return the number of parameters of a rank's layers."""
    return r.job.layers * 12 * r.job.width**2


def read_loss(r: Rank) -> None:
    """``loss.item()``."""
    with r.op("aten::item"), r.op("aten::_local_scalar_dense"):
        r.copy("DtoH", 4, pinned=r.job.options.pinned_scalars, wait=True)


def reduce_gradients(r: Rank, elements: int, stream: int | None = None) -> Program:
    """One bucket of DistributedDataParallel."""
    with r.op("c10d::allreduce_"):
        yield from r.collective(ALL_REDUCE, r.job.group("data", r.rank), elements, stream)


def data_parallel_step(r: Rank) -> Program:
    """Forward, backward with an all_reduce for each layer, optimizer."""
    parallel = r.job.world > 1
    way = r.job.options.reduction if parallel and r.job.options.reduces(r.step) else "none"
    with r.range("DistributedDataParallel.forward") if parallel else nullcontext():
        yield from forward(r)
    yield from r.run_hooks("after_forward")
    bucket = 12 * r.job.width**2
    with r.frame(names.BACKWARD, names.RUN_BACKWARD), autograd(r):
        loss_backward(r)
        for layer in reversed(range(layers(r))):
            run(r, backward_layer(*shape(r)))
            yield from r.run_hooks("layer_backward", layer)
            if way in ("overlapped", "inline") and layer < r.job.layers:
                yield from reduce_gradients(r, bucket, COMPUTE if way == "inline" else None)
        for size in {"late": [bucket] * r.job.layers, "bucket": [bucket * r.job.layers]}.get(
            way, []
        ):
            yield from reduce_gradients(r, size)
    if way in ("overlapped", "late", "bucket"):
        r.wait_stream(COMPUTE, r.job.group("data", r.rank).stream)
    if way == "mpi":
        yield from reduce_on_host(r, bucket * r.job.layers)
    yield from end_step(r)


def reduce_on_host(r: Rank, elements: int) -> Program:
    """Copy gradients to the host, reduce them by MPI, and copy them back."""
    size = 2 * elements // 16  # compressed
    r.copy("DtoH", size, wait=True)
    yield from r.host_collective("MPI_Allreduce", r.job.group("data", r.rank), 40 + size / 24_000)
    r.copy("HtoD", size)


def end_step(r: Rank) -> Program:
    """Optimizer, and the loss that is logged."""
    yield from r.run_hooks("after_backward")
    if r.job.options.reduces(r.step):
        optimizer(r)
    if r.job.options.item:
        read_loss(r)
    yield from r.run_hooks("after_optimizer")


def sharded_step(r: Rank) -> Program:
    """FSDP: parameters are gathered for each layer, gradients scattered, and reduced over hosts."""
    shard, prefetch = r.job.group("shard", r.rank), r.job.options.prefetch
    size = 12 * r.job.width**2
    count = r.job.layers
    yield from gather(r, 0, size, ready=prefetch, first=True)
    with r.frame(names.CALL, "nn.Module: FSDPGPT_0"), r.range("FSDP::root_pre_forward"):
        embed(r)
    for layer in range(count):
        ready = r.free[shard.stream]
        if prefetch and layer + 1 < count:
            yield from gather(r, layer + 1, size, ready=True)
        r.free[COMPUTE] = max(r.free[COMPUTE], ready)
        r.call("cudaStreamWaitEvent", 0.8)
        with r.range(f"FSDP::pre_forward (layers.{layer})"):
            run(r, forward_layer(*shape(r)))
        yield from r.run_hooks("layer_forward", layer)
        if not prefetch and layer + 1 < count:
            yield from gather(r, layer + 1, size, ready=False)
    loss(r)
    yield from r.run_hooks("after_forward")
    yield from sharded_backward(r, size)
    yield from end_step(r)


def gather(r: Rank, layer: int, size: int, *, ready: bool, first: bool = False) -> Program:
    """The all_gather of a layer's parameters; ``ready``: it does not wait for compute.

    If all layers are one unit, the ``first`` of a pass gathers them all.
    """
    if r.job.options.one_unit:
        if not first:
            return
        size *= r.job.layers
    shard = r.job.group("shard", r.rank)
    with r.range(f"FSDP::all_gather (layers.{layer})"), r.op("c10d::_allgather_base_"):
        yield from r.collective(ALL_GATHER, shard, size, after_compute=not ready)


def sharded_backward(r: Rank, size: int) -> Program:
    """Backward with overlapped all_gather, then reduce_scatter and all_reduce."""
    shard, prefetch = r.job.group("shard", r.rank), r.job.options.prefetch
    with r.frame(names.BACKWARD, names.RUN_BACKWARD), autograd(r):
        loss_backward(r)
        yield from gather(r, r.job.layers - 1, size, ready=prefetch, first=True)
        for layer in reversed(range(r.job.layers)):
            ready = r.free[shard.stream]
            if prefetch and layer:
                yield from gather(r, layer - 1, size, ready=True)
            r.free[COMPUTE] = max(r.free[COMPUTE], ready)
            r.call("cudaStreamWaitEvent", 0.8)
            with r.range(f"FSDP::pre_backward (layers.{layer})"):
                run(r, backward_layer(*shape(r)))
            yield from r.run_hooks("layer_backward", layer)
            if r.job.options.one_unit:
                if layer:
                    continue
                size *= r.job.layers
            with r.range(f"FSDP::post_backward_reduce (layers.{layer})"):
                with r.op("c10d::_reduce_scatter_base_"):
                    yield from r.collective(REDUCE_SCATTER, shard, size)
                if "replicate" in r.job.groups:
                    yield from replicate(r, shard, size // len(shard.ranks))
            if not prefetch and layer:
                yield from gather(r, layer - 1, size, ready=False)
    for purpose in r.job.groups:
        r.wait_stream(COMPUTE, r.job.group(purpose, r.rank).stream)


def replicate(r: Rank, shard: Group, size: int) -> Program:
    """The all_reduce of sharded gradients between hosts, after their reduce_scatter."""
    group = r.job.group("replicate", r.rank)
    r.wait_stream(group.stream, shard.stream)
    with r.op("c10d::allreduce_"):
        yield from r.collective(ALL_REDUCE, group, size)


def pipeline_step(r: Rank) -> Program:
    """All forward passes of the micro-batches, then all backward passes; or 1F1B."""
    options, early = r.job.options, r.job.options.micro_batches
    if options.one_forward_one_backward:
        early = min(early, r.job.world - r.rank - 1)
    for batch in range(early):
        yield from forward_pass(r, batch)
    if not options.one_forward_one_backward:
        yield from r.run_hooks("after_forward")
        with r.frame(names.BACKWARD, names.RUN_BACKWARD), autograd(r):
            for _ in range(options.micro_batches):
                yield from backward_pass(r)
    else:
        for batch in range(early, options.micro_batches + early):
            if batch < options.micro_batches:
                yield from forward_pass(r, batch)
            with r.frame(names.BACKWARD, names.RUN_BACKWARD), autograd(r):
                yield from backward_pass(r)
    yield from end_step(r)


def forward_pass(r: Rank, batch: int) -> Program:
    """Run the forward pass of a micro-batch on a stage."""
    stage, last = r.rank, r.job.world - 1
    with r.range(f"forward_step {batch}"):
        if stage:
            yield from exchange(r, RECV, stage - 1)
        elif batch == 0:
            embed(r)
        for layer in range(layers(r)):
            run(r, forward_layer(*shape(r)))
            yield from r.run_hooks("layer_forward", layer)
        if stage < last:
            yield from exchange(r, SEND, stage)


def backward_pass(r: Rank) -> Program:
    """Run the backward pass of a micro-batch on a stage."""
    stage, last = r.rank, r.job.world - 1
    if stage < last:
        yield from exchange(r, RECV, stage)
    for layer in reversed(range(layers(r))):
        run(r, backward_layer(*shape(r)))
        yield from r.run_hooks("layer_backward", layer)
    if stage:
        yield from exchange(r, SEND, stage - 1)


def exchange(r: Rank, what: Collective, edge: int) -> Program:
    """A send or receive between the stages ``edge`` and ``edge + 1``; a receive blocks compute."""
    group = r.job.groups["pipeline"][edge]
    tokens, width, *_ = shape(r)
    with r.op("c10d::send" if what is SEND else "c10d::recv_"):
        yield from r.collective(what, group, tokens * width)
    if what is RECV:
        r.wait_stream(COMPUTE, group.stream)


def new_job(family: str, seed: int, world: int, steps: int = 6) -> Job:
    """Return a healthy job of a family with its process groups."""
    job = Job(family, seed, world, range(10, 10 + steps), options=Options())
    everyone = tuple(range(world))
    if family == "data-parallel":
        gbps = 350.0 if world <= job.gpus_per_host else 180.0
        job.groups["data"] = [Group("0", "default_pg", everyone, 20, gbps)]
    elif family == "sharded":
        _shard(job)
    elif family == "pipeline":
        job.tokens = 1024
        job.options.micro_batches = 16
        job.groups["pipeline"] = [
            Group(str(i + 1), "mesh_pp", (i, i + 1), 24 + 4 * (i % 2), 300.0)
            for i in range(world - 1)
        ]
    return job


def _shard(job: Job) -> None:
    """Create shard groups of half the ranks (from four ranks on), and replica groups."""
    size = job.world // 2 if job.world >= 4 else job.world
    size = min(size, job.gpus_per_host)
    starts = range(0, job.world, size)
    job.groups["shard"] = [
        Group(str(1 + i), "mesh_shard", tuple(range(s, s + size)), 24, 350.0)
        for i, s in enumerate(starts)
    ]
    if len(starts) > 1:
        job.gpus_per_host = size
        job.groups["replicate"] = [
            Group(
                str(1 + len(starts) + i), "mesh_replicate", tuple(s + i for s in starts), 28, 150.0
            )
            for i in range(size)
        ]
