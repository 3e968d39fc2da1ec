"""Serving a language model: prefill and decode steps of an engine, and their faults."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from benchmarks.accuracy import names
from benchmarks.accuracy.fault import Context, Expected, fault
from benchmarks.accuracy.host_faults import LAUNCHES
from benchmarks.accuracy.operators import VOCABULARY, attention_us, memory_us, product_us
from benchmarks.accuracy.programs import RUNNING, Options, Request
from benchmarks.accuracy.simulator import COMPUTE, Job, Program, Rank

_VLLM = "c10::BFloat16"
NORM = (
    f"std::enable_if<(((8)>(0)))&&vllm::_typeConvert<{_VLLM}>::exists, void>::type vllm::"
    f"fused_add_rms_norm_kernel<{_VLLM}, 8>({_VLLM}*, long, {_VLLM}*, {_VLLM} const*, float)"
)
CACHE = (
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::"
    "Fp8KVCacheDataType)0>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*)"
)
ROTARY = (
    f"void vllm::rotary_embedding_kernel<{_VLLM}, true>(long const*, {_VLLM}*, {_VLLM}*, "
    f"{_VLLM} const*, int, long, long, long, int, int, int)"
)
SILU = (
    f"void vllm::act_and_mul_kernel<{_VLLM}, &({_VLLM} vllm::silu_kernel<{_VLLM}>({_VLLM} const&))"
    f", true>({_VLLM}*, {_VLLM} const*, int)"
)
GEMM = "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT"
PAGED = (
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, "
    "cutlass::bfloat16_t>, true, false, false, false, true, true, false, false>"
    "(flash::Flash_fwd_params)"
)
ENGINE = ("vllm/v1/engine/core.py(812): run_busy_loop", "vllm/v1/engine/core.py(288): step")


@lru_cache(256)
def decoder_kernels(
    tokens: int, running: int, width: int, layers: int
) -> tuple[tuple[str, str, float], ...]:
    """Operator, kernel and duration of a whole model; weights are read once."""

    def gemm(n: int, k: int) -> float:
        return max(product_us(tokens, n, k), memory_us(n * k), 4.0)

    attention = attention_us(tokens, width) if tokens > running else 28.0
    layer = (
        ("_C::fused_add_rms_norm", NORM, memory_us(3 * tokens * width)),
        ("aten::mm", GEMM, gemm(3 * width, width)),
        ("_C::rotary_embedding", ROTARY, memory_us(4 * tokens * width)),
        ("_C_cache_ops::reshape_and_cache_flash", CACHE, memory_us(4 * tokens * width)),
        ("_vllm_fa2_C::varlen_fwd", PAGED, attention),
        ("aten::mm", GEMM, gemm(width, width)),
        ("_C::fused_add_rms_norm", NORM, memory_us(3 * tokens * width)),
        ("aten::mm", GEMM, gemm(8 * width, width)),
        ("_C::silu_and_mul", SILU, memory_us(12 * tokens * width)),
        ("aten::mm", GEMM, gemm(width, 4 * width)),
    )
    return layer * layers + (("aten::mm", GEMM, memory_us(VOCABULARY * width)),)


def serve(r: Rank) -> Program:
    """The engine's loop: schedule, run the model, sample, send the tokens."""
    options: Options = r.job.options
    with r.frame(*ENGINE):
        if options.requests:
            run_requests(r, options.requests)
            return
        for step in r.job.steps:
            r.step = step
            schedule(r, step)
            yield from r.run_hooks("before_model")
            prompt = options.prefill_tokens(step)
            run_model(r, 1 if prompt else 0, prompt, options.running(step))
            yield from r.run_hooks("after_model")
        r.synchronize("cudaDeviceSynchronize")


def schedule(r: Rank, step: int) -> None:
    """Choose the requests of a step."""
    with r.frame("vllm/v1/core/sched/scheduler.py(176): schedule"):
        r.pause(r.about(r.job.options.schedule_us(step)))


def run_model(r: Rank, prompts: int, prompt: int, running: int) -> None:
    """Run the model for prompts with so many tokens, and for running requests."""
    name = f"execute_context_{prompts}({prompt})_generation_{running}({running})"
    with (
        r.frame("vllm/v1/worker/gpu_model_runner.py(1350): execute_model"),
        r.range(name) if r.job.marks else r.frame(),
    ):
        execute(r, prompt, running)
        sample(r, running + prompts)


def execute(r: Rank, prompt: int, running: int) -> None:
    """The forward pass: a CUDA graph for decoding, operators where prompts are processed."""
    for _ in range(3):
        with r.op("aten::copy_"):
            r.copy("HtoD", 4096)
    options: Options = r.job.options
    kernels = decoder_kernels(running + prompt, running, r.job.width, r.job.layers)
    if options.graphs and not prompt and running <= options.captured:
        r.graph([(kernel, us) for _, kernel, us in kernels])
        return
    for op, kernel, us in kernels:
        with r.op(op, [[running + prompt, r.job.width]]):
            r.launch(kernel, us, grid=[max(1, (running + prompt) // 2), 1, 1])


def sample(r: Rank, running: int) -> None:
    """Sampling; the token ids are copied to the host."""
    with r.op("aten::argmax", [[running, VOCABULARY]]):
        r.launch(names.REDUCE, 12.0)
    with r.op("aten::to"), r.op("aten::_to_copy"), r.op("aten::copy_"):
        if not r.job.options.overlapped_sampling:
            r.copy("DtoH", 8 * running, pinned=False, wait=True)
            return
        r.copy("DtoH", 8 * running)
    done = r.sampled
    r.sampled = r.free[COMPUTE]
    r.wait_until(done)


def run_requests(r: Rank, requests: Sequence[Request]) -> None:
    """Serve requests that arrive at known times, at most 8 at a time; note when each is served."""
    waiting, running = deque(sorted(requests, key=lambda one: one.arrival_us)), list[Request]()
    start = r.now
    while waiting or running:
        if not running and start + waiting[0].arrival_us > r.now:
            with r.frame("vllm/v1/engine/core.py(850): _process_input_queue"):
                r.pause(start + waiting[0].arrival_us - r.now)
        schedule(r, r.step)
        r.step += 1
        now = r.now - start
        preempt(r, waiting, running, now)
        admitted = list[Request]()
        while waiting and waiting[0].arrival_us <= now and len(running + admitted) < 8:
            if not fits(r, [*running, *admitted, waiting[0]]):
                break
            admitted.append(waiting.popleft())
            if admitted[-1].paused_us:
                admitted[-1].paused_us[-1].append(now)
            else:
                admitted[-1].scheduled_us, admitted[-1].began_us = now, start
        prompts = [one.prompt + len(one.token_us) for one in admitted]
        run_model(r, len(admitted), sum(prompts), len(running))
        for one in running + admitted:
            one.token_us.append(r.now - start)
        running = [one for one in running + admitted if len(one.token_us) < one.tokens]
    r.synchronize("cudaDeviceSynchronize")


def fits(r: Rank, requests: Sequence[Request]) -> bool:
    """Return whether the cache has room for the tokens of these requests; one alone always fits."""
    return len(requests) == 1 or sum(one.cached for one in requests) <= r.job.options.cache_tokens


def preempt(r: Rank, waiting: deque[Request], running: list[Request], now: float) -> None:
    """Return the last requests to the queue until the others fit the cache."""
    while not fits(r, running) and running:
        running[-1].paused_us.append([now])
        waiting.appendleft(running.pop())


def new_serving_job(seed: int, steps: int = 24) -> Job:
    """A healthy engine: decode steps as CUDA graphs, a short prompt now and then."""
    job = Job("inference", seed, 1, range(steps), options=Options())
    dice = random.Random(f"{seed} serving")
    job.layers, job.width = dice.choice((8, 10, 14)), dice.choice((3072, 4096))
    job.options.prefill_tokens = lambda step: 256 if step % 12 == 5 else 0
    return job


def narrow(job: Job) -> None:
    """A small model: a kernel takes about as long as its launch."""
    job.width, job.layers, job.op_us = 1024, 2 * job.layers, 6.0 + job.layers / 5


@fault("inference", prepare=narrow, steps=24)
def decode_without_graphs(job: Job, context: Context) -> Expected:
    """Decode steps launch each kernel."""
    job.options.graphs = False
    return Expected(LAUNCHES)


@fault("inference", prepare=narrow, record=("marks",), steps=24)
def eager_fallback(job: Job, context: Context) -> Expected:
    """Every third step has more requests than the largest graph."""
    job.options.running = lambda step: 40 if step % 3 == 1 else RUNNING
    return Expected(r"(?i)eager|without (CUDA )?graph")


@fault("inference", record=("marks",), steps=24)
def prefill_stalls_decode(job: Job, context: Context) -> Expected:
    """Long prompts are processed whole in three steps; all running requests wait."""
    steps = tuple(sorted(context.dice.sample(range(4, 22), 3)))
    job.options.prefill_tokens = lambda step: 2048 if step in steps else 0
    return Expected(
        r"(?i)prefill|prompt", place="|".join(rf"\b{s}\b|execute_context_1\(2048\)" for s in steps)
    )


@fault("inference", steps=24)
def slow_scheduler(job: Job, context: Context) -> Expected:
    """The engine's scheduler takes milliseconds between two steps."""
    job.options.schedule_us = lambda _: context.cost_us
    place = r"scheduler\.py|schedule" if job.stacks else ""
    return Expected(
        r"(?i)schedul|between (the )?steps|between-steps|host[ -]code|outside any", place=place
    )


def queueing_job(seed: int, every_us: float, *, requests: int = 24) -> Job:
    """An engine whose requests arrive at random times, ``every_us`` apart on average."""
    job = new_serving_job(seed)
    dice, at = random.Random(f"{seed} requests"), 0.0
    queue = []
    for _ in range(requests):
        at += dice.expovariate(1 / every_us)
        queue.append(Request(at, dice.randrange(64, 512), dice.randrange(4, 16)))
    job.stacks, job.options.requests = True, queue
    return job


@fault("inference", record=("stacks",), steps=24)
def tokenizer_on_main_thread(job: Job, context: Context) -> Expected:
    """Tokenize texts on the thread of the engine."""

    def tokenize(r: Rank, _step: int, _layer: int) -> None:
        with r.frame(
            "vllm/transformers_utils/tokenizer.py(88): encode",
            "transformers/tokenization_utils_fast.py(537): _batch_encode_plus",
        ):
            r.pause(r.about(context.cost_us))

    job.at("after_model", tokenize)
    return Expected(r"(?i)tokeniz", place=r"tokenizer\.py|tokenization_utils|_batch_encode_plus")


@fault("inference", record=("marks",), steps=24)
def draft_without_graphs(job: Job, context: Context) -> Expected:
    """Speculative decoding: the draft model launches each kernel, after a graph of the target."""
    kernels = decoder_kernels(RUNNING, RUNNING, 1024, 8)
    gap_us = context.cost_us / len(kernels)

    def draft(r: Rank, _step: int, _layer: int) -> None:
        with r.frame("vllm/v1/spec_decode/eagle.py(180): propose"):
            for op, kernel, _ in kernels:
                with r.op(op):
                    r.launch(kernel, 3.0)
                r.pause(gap_us)
        r.copy("DtoH", 1024, wait=True)

    job.at("after_model", draft)
    place = "propose" if job.stacks else ""
    return Expected(LAUNCHES, place=place, advice="draft" if job.stacks else "")


@fault("inference", record=("marks", "stacks"), steps=24)
def waits_for_transfers_of_kv_cache(job: Job, context: Context) -> Expected:
    """A decode instance polls for the KV cache of a prefill instance before each step."""

    def receive(r: Rank, _step: int, _layer: int) -> None:
        connector = "vllm/distributed/kv_transfer/kv_connector/v1/nixl_connector.py"
        with r.frame(f"{connector}(911): get_finished", "<built-in function sleep>"):
            r.pause(r.about(context.cost_us))

    job.at("before_model", receive)
    return Expected("KV cache", place="get_finished", advice="(?i)asynchronous connector")
