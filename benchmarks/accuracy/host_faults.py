"""Faults of the host: data loading, copies of batches, synchronisation, memory, pauses, files."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.accuracy import names
from benchmarks.accuracy.fault import (
    PARALLEL,
    TRAINING,
    Context,
    Expected,
    fault,
    reads_loss,
    small_kernels,
    some_rank,
    some_steps,
)
from benchmarks.accuracy.programs import forward
from benchmarks.accuracy.simulator import Job, Rank

LOADING = r"(?i)data[ -_]?load|loader|data-loading|__next__"


def slow_loader(job: Job, hit: Callable[[int, int], bool], us: float) -> None:
    """Slow the DataLoader down where ``hit`` returns true."""
    usual = job.options.loader_us
    job.options.loader_us = lambda rank, step: us if hit(rank, step) else usual(rank, step)


@fault(*TRAINING)
def loader_slow(job: Job, context: Context) -> Expected:
    """All ranks wait for the workers of their DataLoader in every step."""
    slow_loader(job, lambda *_: True, context.host_us(job))
    return Expected(LOADING)


@fault(*PARALLEL)
def loader_slow_on_one_rank(job: Job, context: Context) -> Expected:
    """One rank waits for its DataLoader, the others for the rank."""
    rank = some_rank(job, context)
    slow_loader(job, lambda r, _: r == rank, context.host_us(job))
    return Expected(LOADING, rank=rank)


@fault(*TRAINING, record=("marks",), prepare=reads_loss)
def loader_slow_in_some_steps(job: Job, context: Context) -> Expected:
    """The DataLoader is late in two steps."""
    steps = some_steps(job, context)
    slow_loader(job, lambda _, step: step in steps, 3 * context.cost_us)
    return Expected(LOADING, steps=steps)


@fault(*TRAINING)
def loader_in_main_process(job: Job, context: Context) -> Expected:
    """``num_workers=0``: the main thread reads and transforms each sample."""
    job.options.loader = names.LOADER_IN_PROCESS
    slow_loader(job, lambda *_: True, context.host_us(job))
    return Expected(LOADING, place=r"num_workers|_SingleProcess|dataset\.py|main (process|thread)")


@fault(*TRAINING)
def pageable_batch_copy(job: Job, context: Context) -> Expected:
    """Batches are copied from pageable memory, and the host waits."""
    job.options.pinned = False
    job.options.batch_bytes = int(context.cost_us * 6000)
    return Expected(r"(?i)pageable|pinned|page-locked|batch[- ]cop")


@fault("data-parallel", "single")
def item_in_loop(job: Job, context: Context) -> Expected:
    """A loop over samples calls ``.item()``: the host waits, then the device waits for launches."""
    count = max(1, int(context.cost_us / job.layers / 150))

    def select(r: Rank, _step: int, _layer: int) -> None:
        for _ in range(count):
            with r.op("aten::sum"):
                r.launch(names.REDUCE, 4.0)
            with r.op("aten::item"), r.op("aten::_local_scalar_dense"):
                r.copy("DtoH", 4, pinned=r.job.options.pinned_scalars, wait=True)
            r.pause(r.about(100, 0.3))

    job.at("layer_forward", select)
    return Expected(r"(?i)synchron|\.item\(\)", place=r"aten::item|_local_scalar_dense|\.item\(\)")


@fault(*TRAINING)
def synchronize_each_step(job: Job, context: Context) -> Expected:
    """``torch.cuda.synchronize`` around the phases of a step, for timers."""
    us = context.cost_us / 3

    def synchronize(r: Rank, _step: int, _layer: int) -> None:
        with r.frame("torch/cuda/__init__.py(985): synchronize"):
            r.synchronize("cudaDeviceSynchronize")
        with r.frame("timers.py(64): stop"):
            r.pause(r.about(us))

    for place in ("after_loader", "after_forward", "after_backward"):
        job.at(place, synchronize)
    return Expected(
        r"(?i)synchron", place=r"cudaDeviceSynchronize|torch\.cuda\.synchronize|timers\.py"
    )


@fault(*TRAINING)
def operator_on_cpu(job: Job, context: Context) -> Expected:
    """Embedding tables stay on the CPU: one operator for each before the batch is copied."""
    tables = context.dice.choice([1, 4, 26])

    def look_up(r: Rank, _step: int, _layer: int) -> None:
        for _ in range(tables):
            with r.op("aten::embedding_bag"), r.op("aten::_embedding_bag"):
                r.pause(r.about(context.host_us(job) / tables))

    job.at("after_loader", look_up)
    return Expected(r"CPU operator|on the CPU", place="embedding_bag")


@fault("data-parallel", "single")
def boolean_mask(job: Job, context: Context) -> Expected:
    """Indexing with boolean masks: ``nonzero`` copies its size to the host each time."""
    count = max(1, int(context.cost_us / job.layers / 120))

    def mask(r: Rank, _step: int, _layer: int) -> None:
        for _ in range(count):
            with r.op("aten::index"), r.op("aten::nonzero"):
                r.launch(names.NONZERO, 6.0)
                r.copy("DtoH", 8, pinned=r.job.options.pinned_scalars, wait=True)
            with r.op("aten::add"):
                r.launch(names.ADD, 5.0)
            r.pause(r.about(60, 0.3))

    job.at("layer_forward", mask)
    return Expected(r"(?i)synchron|mask|nonzero", place="aten::nonzero|aten::index")


@fault(*TRAINING)
def allocation_in_loop(job: Job, context: Context) -> Expected:
    """The caching allocator frees and allocates segments in each step (fragmentation)."""
    us = context.cost_us / 6

    def retry(r: Rank, _step: int, _layer: int) -> None:
        with r.op("aten::empty"):
            for _ in range(3):
                r.synchronize("cudaDeviceSynchronize")
                r.call("cudaFree", us)
            for _ in range(3):
                r.call("cudaMalloc", us)

    job.at("after_forward", retry)
    return Expected(
        r"(?i)memory[ -]management|allocat|cudaMalloc|cudaFree", place="cudaMalloc|cudaFree"
    )


@fault(*TRAINING, record=("marks",), prepare=reads_loss)
def allocator_flush_in_some_steps(job: Job, context: Context) -> Expected:
    """``torch.cuda.empty_cache`` in two steps, and the segments are allocated again."""
    steps = some_steps(job, context)
    us = 3 * context.cost_us / 40

    def flush(r: Rank, step: int, _layer: int) -> None:
        if step in steps:
            with r.frame("torch/cuda/memory.py(222): empty_cache"):
                r.synchronize("cudaDeviceSynchronize")
                for _ in range(20):
                    r.call("cudaFree", us)
            for _ in range(20):
                r.call("cudaMalloc", us)

    job.at("step_start", flush)
    cause = r"(?i)memory[ -]management|allocat|cudaMalloc|cudaFree|empty_cache"
    return Expected(cause, steps=steps)


@fault("data-parallel", "single", record=("stacks",), prepare=reads_loss)
def cache_emptied_in_each_step(job: Job, context: Context) -> Expected:
    """``torch.cuda.empty_cache`` in each step, and the segments are allocated again."""

    def flush(r: Rank, _step: int, _layer: int) -> None:
        with r.frame("train.py(133): log_memory", "torch/cuda/memory.py(222): empty_cache"):
            r.synchronize("cudaDeviceSynchronize")
            for _ in range(20):
                r.call("cudaFree", context.cost_us / 32)
        with r.op("aten::empty"):
            for _ in range(20):
                r.call("cudaMalloc", context.cost_us / 53)

    job.at("after_optimizer", flush)
    return Expected(r"(?i)memory[ -]management", place="log_memory", advice="empty_cache")


LAUNCHES = r"(?i)launch[ -](bound|overhead)|to launch|kernel launches|CUDA graph"


def tiny_kernels(job: Job) -> None:
    """A model so small that the device is always faster than the host."""
    job.tokens, job.width, job.layers, job.op_us, job.call_us = 256, 256, 8, 8.0, 6.0


@fault("single", "data-parallel", worlds=(1, 2, 4), prepare=tiny_kernels)
def launch_bound(job: Job, context: Context) -> Expected:
    """Operators are slow on the host, kernels take a few microseconds."""
    job.op_us *= context.dice.uniform(1.5, 3)
    return Expected(LAUNCHES)


PAUSE = (
    r"(?i)host (code|thread|pause|was|is|did|stall)|host-(code|pause|stall)|paus|garbage|\bGC\b"
    r"|no (event|operator)|outside any|nothing (was )?recorded|other process|descheduled|preempt"
)


@fault(*PARALLEL, prepare=reads_loss)
def garbage_collection_on_one_rank(job: Job, context: Context) -> Expected:
    """Python collects garbage on one rank in every second step, after forward."""
    rank = some_rank(job, context)

    def collect(r: Rank, step: int, _layer: int) -> None:
        if r.rank == rank and step % 2:
            r.pause(r.about(2 * context.cost_us + context.step_us / 2))

    job.at("after_forward", collect)
    return Expected(PAUSE, rank=rank)


@fault(*PARALLEL, prepare=small_kernels)
def host_contention_on_one_rank(job: Job, context: Context) -> Expected:
    """Another process takes the cores of one rank: each operator and each launch takes longer."""
    rank = some_rank(job, context)
    factor = 3 + 4 * context.share

    def contend(r: Rank, _step: int, _layer: int) -> None:
        if r.rank == rank:
            r.slower = factor

    job.at("step_start", contend)
    return Expected(
        r"(?i)launch-bound|launch(es|ing)? (calls? )?(take|are|is) |slow(er)? (host|launch|CPU)"
        r"|host (is|was) (slow|busy)|CPU (core|contention)|host operations|operators take",
        rank=rank,
    )


def save(r: Rank, us: float, annotation: str) -> None:
    """``torch.save``: parameters are copied to the host, then written."""
    with (
        r.frame("train.py(97): save_checkpoint"),
        r.range(annotation) if annotation else r.frame(),
        r.frame("torch/serialization.py(943): save", "torch/serialization.py(1176): _save"),
    ):
        for _ in range(6):
            with r.op("aten::to"), r.op("aten::_to_copy"), r.op("aten::copy_"):
                r.copy("DtoH", int(us * 0.5 / 6 * 6000), pinned=False, wait=True)
        with r.frame("<built-in method write_record of PyTorchFileWriter object at 0x7f1e0>"):
            r.pause(r.about(0.5 * us))


def annotation_of(context: Context, name: str) -> str:
    """Add a ``record_function`` around it in half of all programs."""
    return name if context.dice.random() < 0.5 else ""


SAVING = r"(?i)checkpoint|torch\.save|serializ|\bsav(e|ing)|DtoH|device[ -]to[ -]host"


@fault(*PARALLEL, record=("marks",), prepare=reads_loss)
def checkpoint_on_rank_0(job: Job, context: Context) -> Expected:
    """Rank 0 saves a checkpoint in two steps; all others wait for it."""
    steps = some_steps(job, context)
    name = annotation_of(context, "save_checkpoint")

    def checkpoint(r: Rank, step: int, _layer: int) -> None:
        if r.rank == 0 and step in steps:
            save(r, 3 * context.cost_us, name)

    job.at("step_start", checkpoint)
    return Expected(SAVING, rank=0)


@fault(*TRAINING, record=("marks",), prepare=reads_loss)
def checkpoint_on_all_ranks(job: Job, context: Context) -> Expected:
    """All ranks save their part of a checkpoint in one step."""
    steps = some_steps(job, context, 1)
    name = annotation_of(context, "save_checkpoint")

    def checkpoint(r: Rank, step: int, _layer: int) -> None:
        if step in steps:
            save(r, 6 * context.cost_us, name)

    job.at("after_optimizer", checkpoint)
    return Expected(SAVING, steps=steps)


@fault(*("data-parallel", "single"), record=("marks",), prepare=reads_loss)
def evaluation_in_some_steps(job: Job, context: Context) -> Expected:
    """A validation set is evaluated in one step."""
    steps = some_steps(job, context, 1)
    name = annotation_of(context, "evaluate")
    stacked = job.stacks or bool(name)

    def evaluate(r: Rank, step: int, _layer: int) -> None:
        if step not in steps:
            return
        end = r.now + 6 * context.cost_us
        with r.frame("train.py(140): evaluate"), r.range(name) if name else r.frame():
            while r.now < end:
                for _ in forward(r):
                    pass
                with r.op("aten::argmax"):
                    r.launch(names.REDUCE, 40.0)
                with r.op("aten::item"), r.op("aten::_local_scalar_dense"):
                    r.copy("DtoH", 4, pinned=r.job.options.pinned_scalars, wait=True)

    job.at("after_optimizer", evaluate)
    plain = r"|forward pass|no backward|aten::argmax"
    return Expected(r"(?i)evaluat|validation" + ("" if stacked else plain), steps=steps)


@fault(*TRAINING)
def logging_each_step(job: Job, context: Context) -> Expected:
    """Metrics are written to a file after the loss is read."""

    def log(r: Rank, _step: int, _layer: int) -> None:
        with r.frame(
            "train.py(166): log_metrics", "torch/utils/tensorboard/writer.py(394): add_scalar"
        ):
            r.pause(r.about(context.host_us(job)))

    job.at("after_optimizer", log)
    place = r"log_metrics|add_scalar" if job.stacks else ""
    # without the synchronisation that comes before it, the device would not wait
    synchronised = r"|synchron" if job.options.item else ""
    return Expected(
        r"(?i)host[ -]code|logging|log_metrics|add_scalar|writ|outside any|no operator"
        + synchronised,
        place=place,
    )


@fault("data-parallel", "single", record=("marks",), prepare=reads_loss)
def recompilation_in_some_steps(job: Job, context: Context) -> Expected:
    """A new input shape makes torch.compile compile the model again."""
    steps = some_steps(job, context)

    def compile_again(r: Rank, step: int, _layer: int) -> None:
        if step not in steps:
            return
        frames = (
            "torch/_dynamo/eval_frame.py(655): _fn",
            "torch/_dynamo/convert_frame.py(1414): __call__",
        )
        with (
            r.frame(*frames),
            r.op("_compile.compile_inner (dynamo_timed)"),
            r.op("OutputGraph.call_user_compiler (dynamo_timed)"),
            r.op("compile_fx_inner (dynamo_timed)"),
            r.frame("torch/_inductor/compile_fx.py(709): compile_fx_inner"),
        ):
            r.pause(r.about(3 * context.cost_us))

    job.at("after_loader", compile_again)
    return Expected(r"(?i)compil|dynamo|inductor", steps=steps)


@fault("data-parallel", "single", record=("marks",), prepare=reads_loss)
def autotuning_in_some_steps(job: Job, context: Context) -> Expected:
    """Triton measures the configurations of a kernel in one step."""
    steps = some_steps(job, context, 1)

    def autotune(r: Rank, step: int, _layer: int) -> None:
        if step not in steps:
            return
        end, config = r.now + 6 * context.cost_us, 0
        with (
            r.frame("torch/_inductor/runtime/triton_heuristics.py(1014): autotune_to_one_config"),
            r.op("CachingAutotuner.benchmark_all_configs (dynamo_timed)"),
        ):
            while r.now < end:
                for _ in range(8):
                    with r.op("aten::zero_"):
                        r.launch(names.FILL, 60.0)
                    r.call("cudaEventRecord", 1.0)
                    r.launch(names.TRITON.format(config % 7), 40.0)
                r.synchronize("cudaDeviceSynchronize")
                config += 1

    job.at("after_loader", autotune)
    return Expected(r"(?i)autotun|benchmark|triton", steps=steps)


@fault("data-parallel", "single", "sharded", prepare=reads_loss)
def profiler_overhead(job: Job, context: Context) -> Expected:
    """The profiler flushes its buffers in each step."""

    def flush(r: Rank, _step: int, _layer: int) -> None:
        r.synchronize("cudaDeviceSynchronize")
        for _ in range(2):
            r.overhead("Buffer Flush", r.about(context.cost_us / 2))

    job.at("after_forward", flush)
    return Expected(r"(?i)profiler")


@fault(*TRAINING, record=("marks",), prepare=reads_loss)
def module_loading_in_first_step(job: Job, context: Context) -> Expected:
    """CUDA loads the code of kernels when they are first used."""
    first = job.steps[0]
    us = 6 * context.cost_us / 20

    def lazy(r: Rank, step: int, layer: int) -> None:
        if step == first and layer == 0:
            r.synchronize("cudaStreamSynchronize", 7)
            for _ in range(20):
                with r.op("aten::empty"):
                    r.overhead("Lazy Function Loading", r.about(us))

    job.at("layer_forward", lazy)
    return Expected(r"(?i)module[ -]loading|lazy|code of kernels", steps=(first,))


@fault(*TRAINING)
def activation_offload(job: Job, context: Context) -> Expected:
    """Activations are copied to pinned host memory in each layer, and the host waits."""
    return offload(job, context, pinned=True)


@fault(*TRAINING)
def activation_offload_pageable(job: Job, context: Context) -> Expected:
    """The same to pageable memory."""
    return offload(job, context, pinned=False)


def offload(job: Job, context: Context, *, pinned: bool) -> Expected:
    """Copies between host and device in each layer."""
    us = context.cost_us / job.layers / 2
    size = int(us * (50_000 if pinned else 6_000))

    def out(r: Rank, _step: int, _layer: int) -> None:
        with r.op("aten::to"), r.op("aten::_to_copy"), r.op("aten::copy_"):
            r.copy("DtoH", size, pinned=pinned, wait=True)

    def back(r: Rank, _step: int, _layer: int) -> None:
        with r.op("aten::to"), r.op("aten::_to_copy"), r.op("aten::copy_"):
            r.copy("HtoD", size, pinned=pinned, wait=True)

    job.at("layer_forward", out)
    job.at("layer_backward", back)
    cause = r"(?i)cop(y|ies)|offload|transfer"
    return Expected(
        cause if pinned else r"(?i)pageable",
        place=r"(?i)DtoH|HtoD|device[ -]to[ -]host|host[ -]to[ -]device|pinned|pageable"
        r"|aten::copy_|aten::to\b",
    )


@fault("data-parallel", "sharded")
def gpu_not_traced_on_one_rank(job: Job, context: Context) -> Expected:
    """Block CUPTI on one rank, as another tool does."""
    rank = some_rank(job, context)
    job.untraced = frozenset({rank})
    return Expected(r"(?i)no GPU work|not traced|gpu-not-traced|no device work", rank=rank)


@fault("data-parallel", "sharded")
def truncated_file(job: Job, context: Context) -> Expected:
    """The process of one rank ended while it wrote its file."""
    rank = some_rank(job, context)
    job.truncated = frozenset({rank})
    return Expected(r"(?i)truncat|cut[ -]off|lost", place=rf"(?i)rank {rank}\b|\.{rank}\.pt\.trace")
