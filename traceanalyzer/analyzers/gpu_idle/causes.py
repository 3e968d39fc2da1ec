"""Causes of idle time: how each is recognised, and (in ``causes.toml``) its heading and its advice.

An idle moment that matches several causes belongs to the first of them. Host activity is classified
by the names of the slices that run on the threads that launch the device's kernels.
"""

import polars as pl

from traceanalyzer.analyzers.common.gpu_api import Api
from traceanalyzer.files import packaged
from traceanalyzer.vocabulary import INFERENCE_ENGINES, SYNCHRONISING_CALLS

BUSY = "busy"
PROFILER = "profiler_overhead"
SHORT_GAP = "short_gap"
DEVICE_WAIT = "device_wait"
DATALOADING = "dataloading"
BATCH_COPY = "batch_copy"
SMALL_COPIES = "small_copies"
COMMUNICATOR = "communicator_setup"
MODULE_LOADING = "module_loading"
GRAPH_BUILDING = "graph_building"
SYNCHRONISATION = "synchronisation"
MEMORY_MANAGEMENT = "memory_management"
CHECKPOINT_IO = "checkpoint_io"
PEER = "waiting_for_peer"
API_CALLS = "api_calls"
LAUNCH = "launch_overhead"
HOST_CODE = "host_code"
UNKNOWN = "unknown"

#: Causes of idle time and their texts; the first that matches counts.
_TEXTS = packaged("analyzers/gpu_idle/causes.toml")
#: Their headings in tables.
NAMES: dict[str, str] = {cause: texts["heading"] for cause, texts in _TEXTS.items()}
CAUSES = tuple(NAMES)
#: Causes of gaps in which the operating system may have stopped the host.
STOPPED = (LAUNCH, HOST_CODE)
#: Columns of gaps that name the place of the host; the first that is known counts.
PLACES = ("own_code", "annotation", "host_event", "python")
#: What main threads do in transfers, apart from waits for other ranks.
IN_COLLECTIVES = "in collectives"
CAUSE = pl.Enum(CAUSES)

#: Communication without compute: lost time of a busy device.
EXPOSED = "exposed_communication"
#: Copies and memsets that no kernel overlaps.
COPIES = "exposed_copies"
LOSS = pl.Enum([*CAUSES, EXPOSED, COPIES])

#: A copy of a small buffer takes at most this long.
LITTLE_COPY_NS = 1_000_000

#: Work that starts later than this after its launch call on an idle device waits for an event,
#: another process or another device. A shorter delay is the latency of a launch.
LAUNCH_LATENCY_NS = 20_000

#: Shorter calls that launch nothing, such as queries before each launch, are part of launching.
LONG_CALL_NS = 10_000

_LOADING = (
    r"(?:data[ _-]?load(?:er|ers|ing)?|load(?:ing)?[ _-]?(?:data|(?:mini)?batch(?:es)?)"
    r"|(?:next|get|fetch|prepare|wait)[ _-]?(?:for[ _-]?)?(?:next[ _-]?)?(?:data|(?:mini)?batch)"
    r"|(?:data|batch)[ _-]?(?:fetch(?:er|ing)?|generator|iterator|next|prep|wait)"
    r"|data[ _-]?(?:iter|time)|input[ _-]?pipeline)"
)

#: What ends the file of a frame.
_FRAME = r"\(\d+\): "
#: Code of inference engines, and the range of a function of theirs.
_OF_ENGINE = rf".*(?:^|[/\\])(?:{INFERENCE_ENGINES})[/\\]|.*batch_to_run"
#: A range, or the function of a frame, that loads data; time is linear in its length.
_LOADS = (
    rf"(?i)^(?!{_OF_ENGINE})(?:.*{_FRAME})?(?:(?:(?!{_FRAME}).)*[^a-z])?{_LOADING}"
    rf"(?!.*{_FRAME})(?:$|[^a-z])"
)

#: TensorFlow: the operator in which a graph waits for the next element of a dataset, and stages of
#: tf.data (``Iterator::Root::Prefetch``).
NEXT_ELEMENT = r"^IteratorGetNext(?:$|[A-Z:])"
#: That, and a call of Python from code of XLA (jax.debug, io_callback): both on any thread.
GIVE_WORK = (NEXT_ELEMENT, r"^xla_(?:ffi_)?python_\w*callback")

#: Slices in which a thread waits for its data loader: PyTorch's annotation of the iterator, modules
#: of known loaders in a Python stack, and functions and ranges with names such as load_batch.
#: Names of folders do not count: models and kernels are loaded too. Inference engines have batches
#: of requests, which their scheduler chooses.
DATALOADER = (
    r"^enumerate\((?:DataLoader|DataPipe)\)#",
    r"(?:^|[/\\])(?:torch[/\\]utils[/\\]data|torchdata|webdataset|ffcv|nvidia[/\\]dali)[/\\]",
    r"(?:^|[/\\])(?:petastorm|litdata|streaming[/\\]base|tensorflow[/\\]python[/\\]data)[/\\]",
    r"(?:^|[/\\])(?:accelerate[/\\]data_loader|datasets[/\\](?:arrow|iterable)_dataset)\.py\(",
    r"lightning[/\\](?:pytorch[/\\])?(?:loops[/\\]fetchers|utilities[/\\]combined_loader)\.py\(",
    _LOADS,
    r"(?i)^(?:.*[^a-z_-])?(?:pre)?fetch(?:er)?(?:$|[^a-z _-])",
    r"DataLoader(?:$|[^a-z])",
    r"(?i)(?:^|[/\\])\w*data\w*\.py\(\d+\): (?:.*\.)?__(?:next|getitem)__$",
    NEXT_ELEMENT,
    r"^Iterator::\w",
)

#: Kinds of slices that are matched with the patterns of data loading.
DATALOADER_KINDS = ("cpu_op", "user_annotation", "python_function", "nvtx", "other")

#: Operators around the copy of a batch to the device, outermost first.
COPY_OPERATORS = ("aten::to", "aten::_to_copy", "aten::copy_")

#: Overhead of CUDA itself, also without a profiler: it loads or compiles the code of kernels at
#: their first use.
LOADS_CODE = r"(?i)(?:Module|Function) Loading|Driver Compiler|JIT compiler"

#: Not overhead: a launch call waits for room in the launch queue, so the device has work.
QUEUE_FULL = r"(?i)Command Buffer Full"

#: Copies from the host to a device, as CUPTI, ROCm, Intel's PTI and nsys name them.
HOST_TO_DEVICE = r"(?i)HtoD|\bM2D\b|host[ _-]?to[ _-]?device"

#: Copies from a device to the host, by the same tools.
DEVICE_TO_HOST = r"(?i)DtoH|\bD2M\b|device[ _-]?to[ _-]?host"

#: A copy of fewer bytes is a number or a flag, not a batch.
BATCH_BYTES = 64 * 1024

#: Calls and operators in which the host waits for the device.
SYNCHRONISING = (*SYNCHRONISING_CALLS, r"^aten::(?:item|_local_scalar_dense|is_nonzero)$")

#: Slices in which ranks set up their communication.
SETS_UP_COMMUNICATION = (
    r"^(?:pn|n|r)cclComm(?:Init|Split|Finalize|Abort|Destroy)|ncclGetUniqueId",
    r"(?i)init_process_group|new_group|communicator[ _-]?(?:init|creat)",
)

#: Operators that start a collective and return. One that takes longer than this, and this many
#: times as long as usual, creates the communicator first.
STARTS_COLLECTIVE = r"^c10d::(?!barrier|monitored_barrier|wait)"
SETUP_NS, SETUP_TIMES = 20_000_000, 20

#: Slices that save or load a model, or write a file; calls of the OS runtime: :data:`FILE_CALLS`.
SAVING = (
    r"(?i)(?:save|load|write|store)[ _-]?(?:model|checkpoint|ckpt|state|(?:\w+_)?weights)",
    r"(?i)(?:save|from)_pretrained",
    r"(?i)checkpoint[ _-]?(?:save|saving|load|write)",
    r"torch[/\\](?:serialization\.py|distributed[/\\]checkpoint[/\\])|safetensors[/\\]",
    r"^(?:fsync|fdatasync|write|pwrite64|fwrite)$",
)

#: Ranges that save a model, or run part of it again to save memory (activation checkpointing): the
#: latter are full of operators and launches.
SAVING_OR_RUNNING = r"(?i)^checkpoint(?:s|ing)?$"

#: Calls of the OS runtime that read a character or a line.
_READS_LINE = r"(?:_IO_)?f?getc|getchar|fgets|f?getwc|fgetws|_*getline|_*getdelim|f?scanf"
_READS = rf"(?:p?read(?:v2?)?(?:64)?(?:v2)?|fread|{_READS_LINE})(?:_unlocked)?"
#: Calls of the OS runtime that read, and those of them that read a line.
READS = rf"^{_READS}$"
READS_LINE = rf"^(?:{_READS_LINE})(?:_unlocked)?$"
#: A call that reads a line reads at most one block of a file: a longer one waits for a terminal or
#: a pipe.
LONG_LINE_NS = 100_000_000

#: Calls of the OS runtime that access files; ``read`` and ``write`` also access pipes and sockets.
FILE_CALLS = (
    rf"^(?:{_READS}|p?write(?:v2?)?(?:64)?(?:v2)?|(?:fwrite|fputs|f?putc|puts)(?:_unlocked)?"
    r"|f(?:open|open64|reopen|reopen64|close|flush|sync|datasync)|sync|syncfs|sync_file_range"
    r"|open(?:at)?(?:64)?|creat(?:64)?|close|f?l?stat(?:64)?|statx|getdents(?:64)?|readdir(?:64)?"
    r"|lseek(?:64)?|aio_\w+|sendfile(?:64)?|copy_file_range)$"
)
#: Calls that wait for pipes and sockets: a ``read`` that follows within this time reads from them.
POLLING = r"^(?:p?poll|p?select|epoll_p?wait2?|io_getevents)$"
AFTER_POLL_NS = 100_000
#: Ranges in which ``read`` and ``write`` access pipes and sockets.
TRANSPORT = (
    r"(?i)^(?:gloo|mpi|ucc|nccl|c10d)::?|^MPI_",
    r"(?i)(?:^|[^a-z])(?:recv|receive|send|sockets?|pipes?|queue|rpc|barrier|broadcast)(?:$|[^a-z])",
    r"(?i)all[ _-]?(?:reduce|gather)|reduce[ _-]?scatter",
)

#: Names of operators. Until 2021 PyTorch recorded ranges of users and optimisers under the same
#: category.
OPERATOR = r"::|Backward\d*$|^triton_"

#: Operators that compute; not nodes of the backward pass, which may run Python, or collectives.
COMPUTES = r"^(?!autograd::|_?c10d)[\w.]+::\w"

#: Operators in which a thread waits for a collective of another thread.
AWAITS_COLLECTIVE = (r"^(?:aten::wait|_?c10d(?:_functional)?(?:_autograd)?::wait)",)

#: The function in which TensorFlow traces a Python function.
TRACES = r"func_graph\.py\(\d+\): func_graph_from_py_func$"
#: That, and compilations of forward and backward passes by torch.compile.
MAKES_CODE = (TRACES, r"^(?:_compile\.compile_inner|backward\._backward_impl) \(dynamo_timed\)$")

#: A call of a graph that Inductor compiled: on a CPU its kernels run in it, not in operators.
COMPILED_GRAPH = r"^## Call CompiledFxGraph"
#: What is recorded for each call of a region that torch.compile compiled.
LOOKS_UP, REGION = "^TorchDynamo Cache Lookup", "^Torch-Compiled Region"


# --- texts ---------------------------------------------------------------------------------

#: Causes in a sentence: "the largest part is waiting for the data loader".
WAITING: dict[str, str] = {cause: texts["waiting"] for cause, texts in _TEXTS.items()}
#: Gaps of equal length in graph replays, and advice for them.
GRAPH_GAPS = "in gaps between the kernels of graph replays"
CHECK_GRAPH_GAPS = (
    "The gaps have nearly the same length, so the recording of each kernel probably makes them: "
    "before you change the program, compare with the time of a step without a profiler, or, on "
    "NVIDIA GPUs, record graphs as a whole (nsys profile --cuda-graph-trace=graph)."
)
#: Advice for short gaps between kernels that graphs launch.
FEWER_NODES = (
    "The kernels are nodes of CUDA graphs already, and the GPU needs this time between two nodes: "
    "only fewer, larger kernels shorten it (fused operators, torch.compile)."
)
#: Short gaps of a main thread without a GPU, and advice for them.
BETWEEN_OPERATORS = "in short gaps between operators"
FEWER_OPERATORS = "Use fewer, larger operators (torch.compile, larger batches)."
#: The same for all causes of lost time.
LOSING = {**WAITING, EXPOSED: "exposed communication", COPIES: "exposed copies"}

#: Advice on host code after a backward pass that torch.compile compiled.
OF_COMPILED = (
    "After a compiled backward pass the host passes gradients on and prepares the optimizer: "
    "torch.compile optimizer.step, too, or capture the whole step (torch.cuda.graph)."
)
#: Advice on CUDA graphs of PyTorch.
RECORD_ONCE = (
    'torch.compile(mode="reduce-overhead") records a graph for each new input shape: pad inputs to '
    'few shapes, mark sizes that change (torch._dynamo.mark_dynamic), or use mode="default". '
    "Record each graph (also of torch.cuda.graph) once, in a warm-up, and replay it."
)
FUSED_ALREADY = (
    "The optimizer is fused already: its thread probably had no CPU (other processes, a CPU quota, "
    "swap), or it prepares many tensors (torch.compile around optimizer.step)."
)
#: Advice for the call that drops gradients.
OF_ZERO_GRAD = (
    "Use zero_grad(set_to_none=True), the default, which computes nothing. If it is used, another "
    "cause stops the process there, such as too few CPUs: py-spy record --native or metrics of the "
    "host show it."
)
#: Advice for programs with an optimizer.
_OPTIMIZERS = ", fused optimizers"
#: Advice for a loader without workers.
IN_PROCESS = (
    "The DataLoader runs in the main process (num_workers=0): load data in worker processes "
    "(num_workers=4, persistent_workers=True), so that it overlaps with the step."
)
#: Launch calls that wait for their kernels, and advice.
BLOCKING = "waiting for launch calls that each wait for their own kernel (CUDA_LAUNCH_BLOCKING=1)"
UNBLOCK = (
    "Each launch call ends after its own kernel, so the host cannot run ahead: unset "
    "CUDA_LAUNCH_BLOCKING=1, which is for debugging."
)
#: Advice where operators without kernels are slow, too.
SLOW_HOST = (
    "The host itself is slow: operators that launch nothing (aten::view, aten::as_strided) take "
    "more than 15 us each, usually 1 to 4 us. Measure a step without the profiler first; if it is "
    "as slow: a debug build of PyTorch, or an overloaded or slow CPU. Then reduce the number of "
    "launches (CUDA graphs, torch.compile)."
)
#: Advice for another Python thread that slows launches down, and for one that saves a checkpoint.
OF_RIVAL = (
    "Python runs one thread at a time (GIL), so {rival} delays the launches: move it to another "
    "process (multiprocessing), or run it less often."
)
OF_SAVER = (
    "The checkpoint is saved asynchronously, but in a thread: Python runs one thread at a time "
    "(GIL), so {rival} delays the launches. Save in another process "
    "(torch.distributed.checkpoint.async_save with "
    "async_checkpointer_type=AsyncCheckpointerType.PROCESS), or less often."
)
#: Advice for datasets of TensorFlow.
TF_DATA = (
    "Let tf.data prepare elements in parallel and ahead: map(..., "
    "num_parallel_calls=tf.data.AUTOTUNE), interleave for several files, cache() before random "
    "transformations, and prefetch(tf.data.AUTOTUNE) at the end."
)
#: Functions of PyTorch's profiler itself.
PROFILES = r"(?:^|[/\\])torch[/\\]profiler[/\\]profiler\.py"
#: Advice for a loader that starts its workers in the loop, and the functions that start them.
PERSISTENT = "Start the workers once, not in each epoch: DataLoader(persistent_workers=True)."
STARTS_WORKERS = (
    r"multiprocessing[/\\](?:popen_\w+|process|context)\.py\(|(?:function|method) fork"
    r"|torch[/\\]utils[/\\]data[/\\]dataloader\.py\(\d+\): __init__"
)
#: For waits for data of programs that do not train.
PERHAPS_REQUESTS = " If requests or a timer end the wait, the load is low, not the program slow."
#: Advice for copies from pinned or managed memory.
BATCH_COPY_PINNED = (
    "Copy the next batch ahead on a separate stream (.to(device, non_blocking=True); the host "
    "memory is pinned or managed already)."
)
#: Calls that map physical memory at an address, and advice for a program that makes them.
MAPS_MEMORY = r"^(?:cu|hip)MemMap$"
#: Advice for calls that allocate from a memory pool of CUDA or HIP.
KEEP_IN_POOL = (
    "Memory that is freed leaves the pool at each synchronisation: keep it there "
    "(cudaMemPoolSetAttribute with cudaMemPoolAttrReleaseThreshold; release_threshold of RMM), or "
    "allocate once before the loop."
)
KEEP_MAPPED = (
    "Keep memory mapped (cuMemMap: expandable segments are on): no empty_cache in the loop, and "
    "tensors of the same sizes in all steps."
)
#: Advice for calls that allocate, register or free pinned host memory.
HOST_MEMORY = "Allocate and pin host memory once, and reuse it (a pool of pinned buffers)."
#: Advice for an import within a step.
IMPORT_FIRST = (
    "{place} imports a module: move the import to the top of the file, so that it runs once, "
    "before the loop (a module that is not found is searched for again in each call)."
)
PIN_BATCHES = (
    " DataLoader(pin_memory=True) pins batches in a thread of its own; copy them with "
    ".to(device, non_blocking=True)."
)
#: Advice for an operator that copies a tensor to pinned memory.
PINS = (
    "{place} copies to pinned memory on the main thread: DataLoader(pin_memory=True) does so in a "
    "thread of its own; or copy into a pinned buffer that is kept."
)
#: Collectives of Python objects.
SENDS_OBJECTS = (
    r"torch[/\\]distributed[/\\]distributed_c10d\.py(?:\(\d+\))?: [a-z]\w+_object(?:_list)?\b"
)
#: Advice for them.
NO_OBJECTS = (
    "Collectives of Python objects pickle them, copy them to the GPU and back, and wait for their "
    "sizes first: collect the numbers in one tensor and send that (all_reduce, all_gather), only "
    "in the steps that log them, or use a process group of gloo."
)
#: Advice for functions of TensorFlow that call Python.
NO_PY_FUNCTION = (
    "tf.py_function and tf.numpy_function call Python from the graph, which waits for it: use "
    "TensorFlow operators, or call it in the input pipeline (tf.data map, prefetch)."
)
#: Advice for a program that allocates and frees memory for each tensor.
UNCACHED = (
    "PyTorch's caching allocator is off: the driver allocates and frees each tensor. Unset "
    "PYTORCH_NO_CUDA_MEMORY_CACHING."
)
#: Advice for calls that read files, and for those that wait for a line of input.
READING = (
    "Read files ahead of their use (cache or prefetch them, or read them in a background "
    "thread){lines}."
)
READING_LINES = ", and do not wait for a terminal or pipe between GPU work"
#: Advice on idle time while another GPU of the process runs, and while one has more work.
EVENLY = "Divide the work between the GPUs evenly, by the time of its kernels."
LAUNCH_ON_ALL = (
    "Launch work on all GPUs before you wait for one of them: asynchronous copies from and to "
    "pinned host memory (cudaMemcpyAsync) on a stream of each GPU, or a host thread for each GPU."
)
ALL_GPUS = (
    'Layers that are divided between GPUs (device_map="auto") run on one GPU at a time. Use tensor '
    "parallelism, a pipeline with several micro-batches, or, if the model fits, a copy of it on "
    "each GPU."
)


#: Advice for collectives that are not compared.
ALONE = (
    "Add the files of all ranks: only together they show whether a straggler or the communication "
    "takes the time. Collectives that overlap with compute or move fewer bytes help in both cases."
)

#: Causes that are setup if they occur only in the first step, or in a few calls without steps.
FIRST_USE = (MODULE_LOADING, MEMORY_MANAGEMENT, COMMUNICATOR, GRAPH_BUILDING, API_CALLS)
#: Few late launches have nearly all launch overhead: one of a device, or at most so many of more
#: than so many.
FEW_LAUNCHES, MANY_LAUNCHES = 3, 6
#: In at most so many gaps of a device, idle time is setup.
SETUP_GAPS = dict.fromkeys(FIRST_USE, 3) | {LAUNCH: FEW_LAUNCHES}
#: Minimum share of a loss in the first step, or in a few calls, to count as setup.
SETUP_FRAC = 0.8
#: Advice for setup, of PyTorch or another framework.
ONCE = {
    True: "This is one-time setup, not a cost of each step: exclude it from the recording with "
    "torch.profiler.schedule(wait=1, warmup=1, active=N), or run warm-up steps before it.",
    False: "This is one-time setup: start the recording after a warm-up.",
}
#: Advice for few late launches of kernels that ran before, and of others.
LATE_AGAIN = (
    "{late} most of this time: fewer launches gain little. Look for what stopped the host then "
    "(another process on the cores, garbage collection, the profiler)."
)
LATE_FIRST = (
    "Few launches take most of the time (the longest launches {kernel}): the first launch of a "
    "kernel loads its code. Start the recording after a warm-up, or load all code at the start "
    "(CUDA_MODULE_LOADING=EAGER)."
)


def advice(cause: str, program: Api, *, code: str) -> str:
    """Return the advice for a cause of idle time if nothing else is known.

    Args:
        cause: one of :data:`CAUSES`, without host code.
        program: its API and framework.
        code: how to record the host, if the cause is unknown.
    """
    texts = _TEXTS[cause]
    if without_gain := texts.get("without_gain"):
        return str(without_gain).format(code=code)
    others = () if program.pytorch else (program.framework, "elsewhere")
    text = next(texts[name] for name in (*others, "advice") if name in texts)
    return f"{text.format(optimizers=_OPTIMIZERS if program.trains else '')}."
