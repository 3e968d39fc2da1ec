"""Why a device may be idle, how each cause is recognised, what it is called and what may help.

A moment of idleness that fits several causes belongs to the first of them. What the host was at is
judged by the names of the slices that were running on the threads that launch the device's kernels.
"""

import polars as pl

from traceanalyzer.vocabulary import SYNCHRONISING_CALLS

BUSY = "busy"
PROFILER = "profiler_overhead"
SHORT_GAP = "short_gap"
DEVICE_WAIT = "device_wait"
DATALOADING = "dataloading"
BATCH_COPY = "batch_copy"
MODULE_LOADING = "module_loading"
SYNCHRONISATION = "synchronisation"
MEMORY_MANAGEMENT = "memory_management"
CHECKPOINT_IO = "checkpoint_io"
PEER = "waiting_for_peer"
LAUNCH = "launch_overhead"
HOST_CODE = "host_code"
UNKNOWN = "unknown"

#: Causes of idleness and their headings in tables; the first that fits counts.
NAMES = {
    PROFILER: "profiler overhead",
    SHORT_GAP: "short gaps",
    DEVICE_WAIT: "device-side wait",
    DATALOADING: "data loading",
    BATCH_COPY: "copying batches to the GPU",
    MODULE_LOADING: "module loading",
    SYNCHRONISATION: "synchronisation",
    MEMORY_MANAGEMENT: "memory management",
    CHECKPOINT_IO: "checkpoints and files",
    PEER: "waiting for other ranks",
    LAUNCH: "launch overhead",
    HOST_CODE: "other host code",
    UNKNOWN: "unknown",
}
CAUSES = tuple(NAMES)
CAUSE = pl.Enum(CAUSES)

#: Communication without compute: time that a device loses although it is busy.
EXPOSED = "exposed_communication"
#: Copies and sets beside which no kernel runs.
COPIES = "exposed_copies"
LOSS = pl.Enum([*CAUSES, EXPOSED, COPIES])

#: Work that starts later than this after its launch call although the device is idle waits for
#: something: an event, another process, another device. Less is the latency of a launch.
LAUNCH_LATENCY_NS = 20_000

_LOADING = (
    r"data[ _-]?load(?:er|ers|ing)?|load(?:ing)?[ _-]?(?:data|(?:mini)?batch(?:es)?)"
    r"|(?:next|get|fetch|prepare|wait)[ _-]?(?:for[ _-]?)?(?:next[ _-]?)?(?:data|(?:mini)?batch)"
    r"|(?:data|batch)[ _-]?(?:fetch(?:er|ing)?|generator|iterator|next|prep|wait)"
    r"|data[ _-]?(?:iter|time)|input[ _-]?pipeline"
)

#: Slices in which a thread waits for its data loader: PyTorch's own annotation of the iterator, the
#: modules of known loaders in a Python stack, and functions and ranges that are named for loading.
#: Folders of a path do not count by their names: models and kernels are loaded too.
DATALOADER = (
    r"^enumerate\((?:DataLoader|DataPipe)\)#",
    r"(?:^|[/\\])(?:torch[/\\]utils[/\\]data|torchdata|webdataset|ffcv|nvidia[/\\]dali)[/\\]",
    r"(?:^|[/\\])(?:petastorm|litdata|streaming[/\\]base|tensorflow[/\\]python[/\\]data)[/\\]",
    r"(?:^|[/\\])(?:accelerate[/\\]data_loader|datasets[/\\](?:arrow|iterable)_dataset)\.py\(",
    r"lightning[/\\](?:pytorch[/\\])?(?:loops[/\\]fetchers|utilities[/\\]combined_loader)\.py\(",
    rf"(?i)^(?:.*\(\d+\): |(?!.*\(\d+\): ))(?:.*[^a-z])?(?:{_LOADING})(?:$|[^a-z])",
    r"(?i)^(?:.*[^a-z_-])?(?:pre)?fetch(?:er)?(?:$|[^a-z _-])",
    r"DataLoader(?:$|[^a-z])",
)

#: Kinds of slices whose name may say that they are dataloading.
DATALOADER_KINDS = ("cpu_op", "user_annotation", "python_function", "nvtx", "other")

#: Operators around the copy of a batch to the device, the outermost first.
COPY_OPERATORS = ("aten::to", "aten::_to_copy", "aten::copy_")

#: Overhead of CUDA itself, which is there without a profiler too: it loads or compiles the code of
#: kernels when they are first used.
LOADS_CODE = r"(?i)(?:Module|Function) Loading|Driver Compiler|JIT compiler"

#: Overhead that is none: a launch call waits for room in the launch queue, so the device has work.
QUEUE_FULL = r"(?i)Command Buffer Full"

#: Copies from the host to a device, as CUPTI, ROCm, Intel's PTI and nsys name them.
HOST_TO_DEVICE = r"(?i)HtoD|\bM2D\b|host[ _-]?to[ _-]?device"

#: Copies from a device to the host, by the same tools.
DEVICE_TO_HOST = r"(?i)DtoH|\bD2M\b|device[ _-]?to[ _-]?host"

#: A copy of fewer bytes is a number or a flag, not a batch.
BATCH_BYTES = 64 * 1024

#: Calls and operators in which the host waits for the device.
SYNCHRONISING = (*SYNCHRONISING_CALLS, r"^aten::(?:item|_local_scalar_dense|is_nonzero)$")

#: Calls that get memory from the driver or give it back.
MANAGING_MEMORY = (
    r"^(?:cuda|hip)(?:Ext)?(?:Malloc|Free|Host(?:Alloc|Free|Malloc|Register|Unregister)|MemPool)",
    r"^cuMem(?:Alloc|Free|Create|Map|Unmap|Release|Address|SetAccess|HostAlloc|HostRegister)",
    r"^(?:(?:ur|pi)(?:ext)?USM(?:\w*Alloc|Free)|zeMem(?:Alloc|Free))",
)

#: Slices in which a model is saved or loaded, or a file written.
SAVING = (
    r"(?i)(?:save|load|write|store)[ _-]?(?:model|checkpoint|ckpt|state|(?:\w+_)?weights)",
    r"(?i)(?:save|from)_pretrained",
    r"(?i)checkpoint[ _-]?(?:save|saving|load|write)|^checkpoint(?:ing)?$",
    r"torch[/\\](?:serialization\.py|distributed[/\\]checkpoint[/\\])|safetensors[/\\]",
    r"^(?:fsync|fdatasync|write|pwrite64|fwrite)$",
)

#: Parts of names that only PyTorch's operators, kernels and annotations have.
OF_PYTORCH = ("aten::", "at::", "c10::", "torch", "ProfilerStep#", "DataLoader")

#: Calls of the OS runtime that access files; reads and writes of pipes and sockets too.
FILE_CALLS = (
    r"^(?:p?(?:read|write)(?:v2?|64)?|f(?:read|write|open|open64|close|flush|gets|sync|datasync)"
    r"|open(?:at)?(?:64)?|creat(?:64)?|close|f?l?stat(?:64)?|statx|getdents(?:64)?|readdir(?:64)?"
    r"|lseek(?:64)?|aio_\w+|sendfile(?:64)?|copy_file_range)$"
)

#: Names of operators, as opposed to ranges that people or optimisers mark, which PyTorch recorded
#: under the same category until 2021.
OPERATOR = r"::|Backward\d*$|^triton_"


# --- texts ---------------------------------------------------------------------------------

#: Causes in a sentence: "the largest part is waiting for the data loader".
WAITING = {
    PROFILER: "the profiler's own overhead, which is not there without it",
    SHORT_GAP: "the ordinary pause between kernels",
    DEVICE_WAIT: "waiting on the device side although the next work is queued",
    DATALOADING: "waiting for the data loader",
    BATCH_COPY: "waiting while the host copies batches to the GPU",
    MODULE_LOADING: "waiting while CUDA loads the code of kernels that are used for the first time",
    SYNCHRONISATION: "waiting while the host waits for results (synchronisation)",
    MEMORY_MANAGEMENT: "waiting while the host gets or frees device memory",
    CHECKPOINT_IO: "waiting for checkpoints or files",
    PEER: "waiting for other ranks",
    LAUNCH: "waiting for the host to launch kernels",
    HOST_CODE: "waiting for other code of the host",
    UNKNOWN: "waiting for something that was not recorded",
}
#: The same of all causes of lost time.
LOSING = {**WAITING, EXPOSED: "communication alone", COPIES: "copying while no kernel runs"}

#: What may help. ``code`` is what shows code that nothing was recorded of.
_ADVICE = {
    PROFILER: "Recording less (fewer kinds of events, fewer steps)",
    SHORT_GAP: "Fewer, larger kernels (torch.compile, CUDA graphs, fused optimizers)",
    DATALOADING: "More loader workers (num_workers, prefetch_factor, persistent_workers), "
    "cheaper transforms or faster storage",
    BATCH_COPY: "Pinned memory (DataLoader(pin_memory=True)) and .to(device, "
    "non_blocking=True) let copies run beside kernels, which",
    MODULE_LOADING: "Loading code before the part that counts (warm-up steps, "
    "CUDA_MODULE_LOADING=EAGER)",
    SYNCHRONISATION: "Not asking for values in the loop (.item(), .cpu(), print of a "
    "tensor, torch.cuda.synchronize) lets the host run ahead, which",
    MEMORY_MANAGEMENT: "A steady pattern of allocations (no empty_cache in the loop, "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True) avoids these calls, which",
    CHECKPOINT_IO: "Loading before the loop, and saving asynchronously or less often "
    "(torch.distributed.checkpoint.async_save),",
    PEER: "comm-outliers with the traces of all ranks shows the straggler; removing its delay",
    LAUNCH: "Launching less (CUDA graphs, torch.compile, larger batches, fused optimizers)",
    HOST_CODE: "Moving this code off the main thread",
}
#: The same where nothing of PyTorch was recorded, as far as it differs.
_ADVICE_ELSEWHERE = {
    SHORT_GAP: "Fewer, larger kernels (fusion, CUDA graphs)",
    DATALOADING: "More loader threads, reading further ahead, or faster storage",
    BATCH_COPY: "Pinned host memory (cudaMallocHost) and cudaMemcpyAsync on a separate stream let "
    "copies run beside kernels, which",
    SYNCHRONISATION: "Fewer calls that wait for the device (cudaDeviceSynchronize, "
    "cudaStreamSynchronize, synchronous copies) let the host run ahead, which",
    MEMORY_MANAGEMENT: "Allocating once before the loop, or from a pool (cudaMallocAsync), avoids "
    "these calls, which",
    CHECKPOINT_IO: "Reading files before the loop, and writing them from another thread,",
    LAUNCH: "Launching less (CUDA graphs, larger kernels, fusion)",
}
#: The same for copies that are not from pageable memory.
BATCH_COPY_PINNED = (
    "The host memory is pinned or managed already: copying the next batch ahead on a stream of its "
    "own (.to(device, non_blocking=True)) lets copies run beside kernels, which would save {saves} "
    "at most."
)
_WITHOUT_GAIN = {
    DEVICE_WAIT: "The next work was launched before the wait began: fewer synchronising calls or "
    "faster launches do not shorten it. Check what the stream waits for: an event of another "
    "stream (cudaStreamWaitEvent), another GPU, or another process on this GPU.",
    UNKNOWN: "Host activity was not recorded: {code} shows the code that runs in these gaps.",
}


def advice(cause: str, saves: str, *, code: str, pytorch: bool = True) -> str:
    """What may help against a cause of idle time, and the most that it can save.

    Args:
        cause: one of :data:`CAUSES`.
        saves: the idle time of the cause, as text.
        code: what to record to see more code; empty where Python stacks were recorded.
        pytorch: the program uses PyTorch, as far as is known.
    """
    if cause in _WITHOUT_GAIN:
        return _WITHOUT_GAIN[cause].format(code=code)
    where = ""
    if cause == HOST_CODE:
        where = "The longest gaps (gpu-idle lists them) show where. "
        where += f"{code[:1].upper()}{code[1:]} shows the code. " * bool(code)
    texts = _ADVICE if pytorch else _ADVICE | _ADVICE_ELSEWHERE
    return f"{where}{texts[cause]} would save {saves} at most."
