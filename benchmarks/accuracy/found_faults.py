"""Faults that ``diagnose`` once named wrongly, without their place, or with useless advice."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.accuracy import names
from benchmarks.accuracy.device_faults import fully_sharded
from benchmarks.accuracy.fault import Context, Expected, fault, reads_loss, some_steps
from benchmarks.accuracy.host_faults import LOADING
from benchmarks.accuracy.programs import ALL_GATHER, ALL_REDUCE, BROADCAST, read_loss
from benchmarks.accuracy.simulator import COMPUTE, Collective, Job, Program, Rank

found = partial(fault, kind="found")
EXPOSED = r"(?i)not overlapped|exposed"


def exposed(r: Rank, what: Collective, elements: int, op: str = "c10d::allreduce_") -> Program:
    """A collective that compute waits for."""
    group = next(iter(r.job.groups.values()))[0]
    with r.op(op):
        yield from r.collective(what, group, elements)
    r.wait_stream(COMPUTE, group.stream)


@found("data-parallel", worlds=(4, 8))
def synchronised_batch_norm(job: Job, context: Context) -> Expected:
    """SyncBatchNorm reduces the statistics of each norm, forward and backward."""
    count = max(2, int(context.cost_us / job.layers / 2 / 24))

    def forward(r: Rank, _step: int, _layer: int) -> Program:
        for _ in range(count):
            with r.op("SyncBatchNorm"):
                yield from exposed(r, ALL_GATHER, 4096, "c10d::_allgather_base_")

    def backward(r: Rank, _step: int, _layer: int) -> Program:
        for _ in range(count):
            node = "SyncBatchNormBackward"
            with r.op(f"autograd::engine::evaluate_function: {node}"), r.op(node):
                yield from exposed(r, ALL_REDUCE, 2048)

    job.at("layer_forward", forward)
    job.at("layer_backward", backward)
    return Expected(EXPOSED, place="all_?(gather|reduce)", advice="BatchNorm")


@found("data-parallel", worlds=(4, 8), record=("stacks",), prepare=reads_loss)
def norm_of_each_parameter(job: Job, context: Context) -> Expected:
    """Clip gradients by a norm that is reduced parameter by parameter."""

    def clip(r: Rank, _step: int, _layer: int) -> Program:
        with r.frame(
            "torchtitan/distributed/utils.py(286): clip_grad_norm_",
            "torch/distributed/tensor/_api.py(577): full_tensor",
        ):
            for _ in range(int(context.cost_us / 40)):
                with r.op("aten::linalg_vector_norm"):
                    r.launch(names.REDUCE, 5.0)
                yield from exposed(r, ALL_REDUCE, 2)

    job.at("after_backward", clip)
    place = "all_?reduce|clip_grad_norm_"
    return Expected(EXPOSED, place=place, advice="clip_grad_norm_|_foreach_norm")


def without_nvlink(job: Job) -> None:
    """GPUs without NVLink (25 GB/s); gradients are small compared with the work."""
    job.gpu, job.tokens, job.width = "NVIDIA GeForce RTX 4090", 16_384, 1024
    job.groups["data"] = [replace(group, gbps=25.0) for group in job.groups["data"]]


@found("data-parallel", worlds=(2, 4), record=("stacks",), prepare=without_nvlink)
def buffers_broadcast(job: Job, context: Context) -> Expected:
    """DDP broadcasts buffers such as masks before each forward pass, 10 MiB at a time."""
    elements = 5 * 2**20
    count = max(1, round(context.cost_us / (2 * elements / 25_000)))

    def broadcast(r: Rank, _step: int, _layer: int) -> Program:
        with r.frame("torch/nn/parallel/distributed.py(2072): _sync_buffers"):
            for _ in range(count):
                with r.op("aten::cat"):
                    r.launch(names.CAT, 12.0)
                yield from exposed(r, BROADCAST, elements, "c10d::_broadcast_coalesced")

    job.at("after_loader", broadcast)
    return Expected(EXPOSED, place="_sync_buffers|broadcast", advice="broadcast_buffers=False")


@found("sharded", worlds=(4, 8), prepare=fully_sharded)
def one_unit_of_shards(job: Job, _context: Context) -> Expected:
    """Wrap the whole model in FSDP and none of its blocks: all parameters are gathered at once."""
    job.options.prefetch, job.options.one_unit = False, True
    return Expected(EXPOSED, place="all_?gather", advice="auto_wrap_policy|fully_shard")


def attending(job: Job, factor: dict[int, float]) -> None:
    """Attend to the keys and values of all ranks: context parallelism, by zigzag order."""

    def attend(r: Rank, kernel: str, us: float) -> Program:
        yield from exposed(r, ALL_GATHER, 2 * 1024 * job.width, "c10d::_allgather_base_")
        with r.op("flash_attn::_flash_attn_varlen_forward"):
            r.launch(kernel, us * factor.get(r.rank, 1.0))

    job.hooks["layer_forward"] = [lambda r, *_: attend(r, names.FLASH, 1500.0)]
    job.hooks["layer_backward"] = [lambda r, *_: attend(r, names.FLASH_BACKWARD, 3600.0)]


@found("data-parallel", worlds=(4, 8), prepare=lambda job: attending(job, {}))
def sequence_in_contiguous_parts(job: Job, _context: Context) -> Expected:
    """Split sequences of causal attention in order: rank r attends to r + 1/2 parts."""
    last = job.world - 1
    attending(job, {rank: (2 * rank + 1) / job.world for rank in range(job.world)})
    return Expected(r"(?i)unequal[ -]work", rank=last, advice="(?i)balance|zigzag")


@found("data-parallel", "single", record=("stacks", "marks"), prepare=reads_loss)
def workers_started_each_epoch(job: Job, context: Context) -> Expected:
    """Start the worker processes of the DataLoader again in each epoch of three steps."""
    steps = tuple(job.steps)[1::3]

    def start(r: Rank, step: int, _layer: int) -> None:
        if step in steps:
            with r.frame(
                "torch/utils/data/dataloader.py(493): __iter__",
                "torch/utils/data/dataloader.py(424): _get_iterator",
                "torch/utils/data/dataloader.py(1089): __init__",
            ):
                for _ in range(8):
                    with r.frame("multiprocessing/process.py(110): start"):
                        r.pause(r.about(3 * context.cost_us / 8))

    job.at("step_start", start)
    return Expected(LOADING, steps=steps, advice="persistent_workers")


@found("data-parallel", worlds=(2, 4), record=("stacks",), prepare=reads_loss)
def batches_from_rank_0(job: Job, context: Context) -> Expected:
    """Rank 0 loads the batches of all ranks and broadcasts them (Accelerate: dispatch_batches)."""

    def dispatch(r: Rank, _step: int, _layer: int) -> Program:
        with r.frame(
            "accelerate/data_loader.py(828): __iter__",
            "accelerate/data_loader.py(770): _fetch_batches",
        ):
            if r.rank == 0:
                for _ in range(r.job.world):
                    with r.frame(names.LOADER_NEXT), r.range(names.LOADER_IN_PROCESS):
                        r.pause(r.about(context.cost_us / r.job.world))
            with r.frame("accelerate/utils/operations.py(556): broadcast_object_list"):
                yield from exposed(r, BROADCAST, 512, "c10d::broadcast_")
                r.synchronize(stream=COMPUTE)

    job.at("step_start", dispatch)
    return Expected(LOADING, rank=0, advice="dispatch_batches=False")


@found("data-parallel", "single")
def ctc_loss_without_cudnn(job: Job, context: Context) -> Expected:
    """Targets in int64: the kernels of PyTorch compute the CTC loss, each a part of the cost."""

    def forward(r: Rank, _step: int, _layer: int) -> None:
        with r.op("aten::ctc_loss"), r.op("aten::_ctc_loss"):
            r.launch(names.CTC.format("log_alpha"), 0.45 * context.cost_us)

    def backward(r: Rank, _step: int, layer: int) -> None:
        if layer == job.layers - 1:
            node = "autograd::engine::evaluate_function: CtcLossBackward0"
            with r.op(node), r.op("aten::_ctc_loss_backward"):
                r.launch(names.CTC.format("backward_log_beta"), 0.43 * context.cost_us)
                r.launch(names.CTC.format("backward_collect"), 0.12 * context.cost_us)

    job.at("after_forward", forward)
    job.at("layer_backward", backward)
    return Expected("(?i)ctc_?loss", advice="(?i)cuDNN")


@found("data-parallel", "single", record=("stacks",), prepare=reads_loss)
def gradients_watched(job: Job, context: Context) -> Expected:
    """Read extremes of each gradient in each step: a synchronisation empties the launch queue."""

    def watch(r: Rank, _step: int, _layer: int) -> None:
        with r.frame("train.py(140): watch_gradients"):
            for _ in range(max(8, int(context.cost_us / 75))):
                with r.frame("wandb/integration/torch/wandb_torch.py(99): log_tensor_stats"):
                    with r.op("aten::max"):
                        r.launch(names.REDUCE, 6.0)
                    read_loss(r)
                    with r.op("aten::histc"):
                        r.launch(names.REDUCE, 9.0)
                    r.pause(r.about(25))

    job.at("after_backward", watch)
    return Expected(r"(?i)synchron", place="log_tensor_stats")


@found("inference", record=("stacks", "marks"), steps=24)
def adapter_loaded_in_some_steps(job: Job, context: Context) -> Expected:
    """Read a LoRA adapter from disk in four steps of an engine."""
    steps = some_steps(job, context, 4)

    def load(r: Rank, step: int, _layer: int) -> None:
        if step in steps:
            with r.frame(
                "vllm/v1/worker/lora_model_runner_mixin.py(90): set_active_loras",
                "vllm/lora/models.py(180): from_local_checkpoint",
            ):
                r.pause(r.about(6 * context.cost_us))

    job.at("before_model", load)
    return Expected(r"from_local_checkpoint|set_active_loras", place=r"4 of 2\d")
