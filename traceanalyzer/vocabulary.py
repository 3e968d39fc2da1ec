"""Vocabulary: event kinds, their spellings in each profiler, and names of communication.

Lists of words are in ``vocabulary.toml``.

Kinds use the spelling of Kineto's activity types. Sources: Kineto's ``ActivityType.cpp`` over the
years, NCCL's kernel names since 2.4, ``ParamCommsUtils.hpp``.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from traceanalyzer.files import packaged

#: Suffix of the damage text of a truncated compressed file.
TRUNCATED = "the file is truncated"

#: Code of the issue for missing GPU work although its recording was requested.
NO_GPU_WORK = "no-gpu-work"
#: Kind of the ranges of Kineto's range profiler, which have counters of kernels in place of times.
RANGE = "cuda_profiler_range"

#: Codes of issues about the whole recording, see :mod:`traceanalyzer.analyzers.common.soundness`.
IMPOSSIBLE_TIMES = "impossible-times"
DEVICE_CLOCK = "device-clock"
MISSING_KERNELS = "missing-kernels"
UNLINKED_WORK = "unlinked-work"
FAILED_CALLS = "failed-calls"
UNTRACED_PROCESSES = "untraced-processes"
NO_CACHING_ALLOCATOR = "no-caching-allocator"
GRAPH_GAPS = "graph-gaps"
RECORDINGS_APART = "recordings-apart"
SAME_RANK = "same-rank"
SHARED_DEVICE = "shared-device"
READY_LATE = "ready-late"
#: Text of that issue.
SHARING = "{} processes share a GPU and count as one device; give each process its own GPU"

#: Page faults of managed memory, on a device or, without one, on the host.
PAGE_FAULT = "page_fault"

_NAMES = packaged("vocabulary.toml")

#: Actions in the history of PyTorch's allocator, in the spelling of memory snapshots.
ALLOCATOR_KINDS: tuple[str, ...] = tuple(_NAMES["kinds"]["allocator"])

#: Values of the ``kind`` column, in the order of the Enum.
KINDS: tuple[str, ...] = tuple(kind for group in _NAMES["kinds"].values() for kind in group)

#: Ranges marked by users and libraries.
ANNOTATION_KINDS: tuple[str, ...] = ("user_annotation", "nvtx")

#: Pseudo-kinds: rows of other tables, selected like kinds.
TABLE_KINDS: tuple[str, ...] = ("counter", "flow", "lane", "metric")

#: Device work, without annotations and synchronisation.
DEVICE_WORK: tuple[str, ...] = ("kernel", "gpu_memcpy", "gpu_memset")

#: Kinds of rows on device streams.
DEVICE_KINDS: tuple[str, ...] = (*DEVICE_WORK, "gpu_user_annotation", "cuda_sync")

#: CUDA and HIP calls.
CUDA_CALLS: tuple[str, ...] = ("cuda_runtime", "cuda_driver")

#: Calls that launch device work and have its correlation id, for devices of any vendor.
LAUNCH_KINDS: tuple[str, ...] = tuple(
    kind for kind in KINDS if kind.endswith(("_runtime", "_driver"))
)

#: Slices on threads of the host.
HOST_KINDS: tuple[str, ...] = (
    *("cpu_op", "user_annotation", "python_function", "overhead"),
    *LAUNCH_KINDS,
    *("nvtx", "osrt", "mpi", "other"),
)

#: Spans of programs of which no more is known, on a thread or asynchronous.
SPAN_KINDS: tuple[str, ...] = ("other", "async")

#: Calls that block until the device is done, including synchronous copies.
SYNCHRONISING_CALLS: tuple[str, ...] = (
    r"^(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx|Thread)Synchronize",
    r"^(?:cuda|hip|cu)Memcpy(?!.*(?:Async|Peer))",
    r"^(?:(?:ur|pi)(?:QueueFinish|Events?Wait)|ze\w*Synchronize)$",  # Intel devices
)

# --- classes of calls

LAUNCH, COPY, MEMSET, SYNCHRONISE = "launch", "copy", "memset", "synchronise"
ALLOCATE_HOST, ALLOCATE_DEVICE = "allocate host memory", "allocate device memory"
LOAD_MODULE, BUILD_GRAPH, SHARE = "load module", "build graph", "share memory"
EVENT, CREATE, QUERY, OTHER_CALL = "event", "create stream or event", "query", "other"

_API = r"^(?:cuda|cu|hip)(?:Ext)?"

#: What a CUDA, HIP or driver call does, by pattern of its name; the first match counts. Only
#: launches, copies and memsets start device work (:data:`LAUNCHES_WORK`).
_CALL_CLASSES: dict[str, str] = {
    BUILD_GRAPH: rf"{_API}(?:Graph(?!Launch)|Stream(?:Begin|End|Update)Capture)",
    OTHER_CALL: r"(?i)HostFunc|CallConfiguration",
    LAUNCH: r"(?i)launch",
    LOAD_MODULE: rf"{_API}(?:Module(?:Load(?!ing)|Unload|GetFunction|GetGlobal)|Library(?:Load|Get)"
    r"|Func(?:Load|GetAttr|SetAttr|SetCache)|GetFuncBySymbol|Kernel(?:GetFunction|SetAttr)"
    r"|Link(?:Create|Add|Complete))|^__(?:cuda|hip)RegisterFatBinary|^hsa_(?:executable|code_obj)",
    COPY: r"Memcpy|MemPrefetch|MemoryCopy|MemBuffer(?:Copy|Read|Write)|^hsa_amd_memory_async_copy",
    MEMSET: r"Memset|MemoryFill|MemFill|MemBufferFill",
    SYNCHRONISE: rf"{SYNCHRONISING_CALLS[0]}|{SYNCHRONISING_CALLS[2]}|^hsa_signal_wait",
    ALLOCATE_HOST: rf"{_API}(?:MallocHost|FreeHost|Host(?:Alloc|Free|Malloc|Register|Unregister)"
    r"|Mem(?:HostAlloc|AllocHost|FreeHost|HostRegister|HostUnregister))",
    ALLOCATE_DEVICE: rf"{_API}(?:Malloc|Free|MemPool)|^hsa_(?:amd_)?memory_(?:pool_)?(?:alloc|free)"
    r"|^cuMem(?:Alloc|Free|Create|Map|Unmap|Release|Address|SetAccess)"
    r"|^(?:(?:ur|pi)(?:ext)?USM(?:\w*Alloc|Free)|zeMem(?:Alloc|Free))",
    CREATE: rf"{_API}(?:Stream|Event)(?:Create|Destroy)",
    EVENT: rf"{_API}(?:Event|StreamWait|StreamWriteValue)",
    SHARE: rf"{_API}(?:Ipc|Multicast|\w*EnablePeerAccess|\w*DisablePeerAccess)",
    QUERY: rf"{_API}\w*(?:Get|Query|CanAccess|Occupancy|IsCapturing|Peek|CaptureMode)",
}

#: Calls that make a stream wait for an event or a value, and calls that record an event.
STREAM_WAIT = rf"{_API}StreamWait(?:Event|Value)"
EVENT_RECORD = rf"{_API}EventRecord"

#: Classes of calls that start device work.
LAUNCHES_WORK = (LAUNCH, COPY, MEMSET)
#: Classes of calls that allocate or free memory of the driver.
ALLOCATES = (ALLOCATE_HOST, ALLOCATE_DEVICE)
#: Classes of calls that are no cause of their own.
OTHER_CALLS = (CREATE, EVENT, QUERY, OTHER_CALL)

#: All classes of calls.
CALL_CLASSES = tuple(_CALL_CLASSES)

_CLASS_TESTS = [(name, re.compile(pattern)) for name, pattern in _CALL_CLASSES.items()]


@lru_cache(maxsize=16_384)
def call_class(name: str) -> str:
    """Return what a CUDA, HIP or driver call does: one of :data:`CALL_CLASSES`, by its name."""
    return next((one for one, test in _CLASS_TESTS if test.search(name)), OTHER_CALL)


def allocates_host(name: str) -> bool:
    """Whether a call, or PyTorch's operator of this name around it, allocates host memory."""
    return call_class(name) == ALLOCATE_HOST or "pin_memory" in name


def _by_name(names: dict[str, list[str]]) -> dict[str, str]:
    """Return the key of each name in lists of names."""
    return {name: key for key, listed in names.items() for name in listed}


#: Kinds by lower-case ``cat`` of Chrome traces, if the spelling differs from the kind's name.
CATEGORY_ALIASES = _by_name(_NAMES["categories"])

#: All spellings of ``cat`` by kind, for byte searches.
SPELLINGS: dict[str, tuple[str, ...]] = {
    kind: (
        *([] if kind in CATEGORY_ALIASES else [kind]),
        *(alias for alias, of in CATEGORY_ALIASES.items() if of == kind),
    )
    for kind in KINDS
}

_KIND_SET = frozenset(KINDS)


@lru_cache(maxsize=4096)
def kind_of_category(category: str | None) -> str:
    """Return the kind of a Chrome trace event by its ``cat``; ``other`` if it is unknown."""
    if not category:
        return "other"
    word = category.strip().lower()
    return CATEGORY_ALIASES.get(word, word if word in _KIND_SET else "other")


# --- communication ---------------------------------------------------------------------------

#: Device work that is communication, by kernel name: NCCL and RCCL (old and new kernel names),
#: MSCCL, oneCCL, custom all-reduce of vLLM, SGLang, FlashInfer and TensorRT-LLM (one and two shots,
#: Lamport, quick reduce), DeepEP, MORI, NVSHMEM, and PyTorch's symmetric memory (multimem).
COMMUNICATION_PATTERN = (
    r"(?i)(?:^|[^a-z])(?:nccl|rccl|msccl|oneccl|ccl::|ccl_(?:all|bcast|broadcast|reduce|send|recv))"
    r"|cross_device_reduce|allreduce_fusion"
    r"|userbuffers|deep_ep|nvshmem|multimem|lamport|quickreduce|symmetric_memory|symm_mem"
    r"|(?:one|two)_?shot_?(?:all_?reduce|all_?gather|reduce_?scatter)|allreduce_(?:one|two)_?shot"
    r"|\bEp(?:Dispatch|Combine)"
    r"|^(?:all-(?:reduce|gather|to-all)|reduce-scatter|collective-permute)(?:-start|-done)?(?:\.\d+)*$"
)

#: Every name of communication, on device or host, contains at least one of these substrings. Other
#: names do too (``__amd_rocclr_copyBuffer``): :func:`is_communication` decides.
COMMUNICATION_TERMS: tuple[str, ...] = tuple(_NAMES["communication"]["terms"])

#: Host events that are a collective: CPU back ends run it, NCCL only enqueues it.
HOST_COLLECTIVE_PREFIXES: tuple[str, ...] = ("gloo:", "mpi:", "ucc:")
#: Host events of libraries that only enqueue a collective, by back end of torch.distributed.
NCCL_ANNOTATION_PREFIXES: tuple[str, ...] = (
    "nccl:", "rccl:", "xccl:", "ncclx:", "rcclx:", "mccl:", "hccl:"
)  # fmt: skip
PARAM_COMMS = "record_param_comms"
#: NVTX ranges of NCCL calls that communicate, without group and query calls.
NCCL_CALL = r"nccl(?:All|Broadcast|Bcast|Reduce|Send|Recv|Gather|Scatter)\w*$"

#: Names of point-to-point communication, in ``collectives`` beside the collectives.
POINT_TO_POINT = ("send", "recv")

#: NCCL's spelling of the collectives, by the letters of the name in a profiler.
_COLLECTIVES = _by_name(_NAMES["collectives"])

_KERNEL_COLLECTIVE = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|AllToAll|SendRecv|Broadcast|Reduce|Send|Recv)(?![a-z])"
)
_CUSTOM_COLLECTIVE = re.compile(r"(?i)all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all-to-all")
_DISPATCH = re.compile(r"(?i)(?:deep_ep.*?|\bep)(dispatch|combine)")


@lru_cache(maxsize=65_536)
def is_communication(kernel: str) -> bool:
    """Whether a kernel is communication by its name, see :data:`COMMUNICATION_PATTERN`."""
    return _COMMUNICATION.search(kernel) is not None


_COMMUNICATION = re.compile(COMMUNICATION_PATTERN)

#: Bytes per element, by lower-case dtype in the spelling of c10, NCCL and numpy.
DTYPE_BYTES = {dtype: int(size) for dtype, size in _by_name(_NAMES["dtypes"]).items()}


def dtype_bytes(dtype: str | None) -> int | None:
    """Return the bytes per element, or None for an unknown dtype."""
    return None if dtype is None else DTYPE_BYTES.get(dtype.strip().lower())


@lru_cache(maxsize=4096)
def collective_of_word(word: str | None) -> str | None:
    """Return NCCL's spelling of a name such as ``allreduce`` or ``nccl:all_to_all``, or None."""
    if not word:
        return None
    return _COLLECTIVES.get(re.sub(r"[^a-z]", "", word.rsplit(":", 1)[-1].lower()))


@lru_cache(maxsize=4096)
def collective_of_kernel(name: str) -> str | None:
    """Return the collective in the name of a communication kernel; None for generic kernels.

    ``ncclKernel_AllReduce_RING_LL_Sum_float(...)`` -> ``all_reduce``;
    ``ncclDevKernel_Generic(...)`` -> None.
    """
    match = _KERNEL_COLLECTIVE.search(name)
    if match:
        return _COLLECTIVES[match[1].lower()]
    if custom := _CUSTOM_COLLECTIVE.search(name):
        return collective_of_word(custom[0])
    if "cross_device_reduce" in name:
        return "all_reduce"
    return "all_to_all" if _DISPATCH.search(name) else None


def bus_factor(collective: str | None, group_size: int | None) -> float | None:
    """Return busbw / algbw of a collective among n ranks, as defined by nccl-tests.

    all_reduce 2(n-1)/n; all_gather, reduce_scatter and all_to_all (n-1)/n; all others 1.
    None if the group size is required but unknown.
    """
    if collective not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        return 1.0
    if group_size is None or group_size < 1:
        return None
    n = group_size
    return (2 if collective == "all_reduce" else 1) * (n - 1) / n


#: Patterns of Python function names, the first match is used: ``train.py(12): step`` of
#: torch.profiler (``thread (12): io`` is a thread), ``train.py(12).step`` of viztracer until 2020,
#: ``step (train.py:12)`` of later viztracer and of py-spy.
PYTHON_FRAMES = (
    r"^(?<file>.*\S)\((?<line>\d{1,9})\): (?<name>.+)$",
    r"^(?<file>.+\.py[xwi]?|<.+>)\((?<line>\d{1,9})\)\.(?<name>.+)$",
    r"^(?<name>.+?) \((?<file>.+\.py[xwi]?|<.+>)(?::(?<line>\d{1,9}))?\)$",
)

#: torch.profiler's name of a step annotation, without the number.
PROFILER_STEP = "ProfilerStep#"

#: Tables of nsys; ``--type parquetdir`` and ``arrowdir`` write one file per table.
NSYS_TABLE = re.compile(
    r"(?:StringIds|(?:CUPTI_ACTIVITY_|TARGET_INFO_|META_DATA_|ENUM_|CUDA_|NET_|NIC_|GPU_|NVTX_)\w+"
    r"|EXPORT_META_DATA|OSRT_API|OSRT_CALLCHAINS|MPI_\w+|SCHED_EVENTS|COMPOSITE_EVENTS|ThreadNames"
    r"|PROFILER_OVERHEAD|PROCESSES|ANALYSIS_\w+|DIAGNOSTIC_EVENT|SAMPLING_CALLCHAINS|UnwindMethodType"
    r"|GENERIC_\w+|SYSCALL|CUBLAS_EVENTS|CUDNN_EVENTS|ProcessStreams|SystemInfo)"
    r"\.(?:parquet|arrows?|feather)"
)
#: Formats of databases with a timeline: exports of Nsight Systems, and recordings of AMD GPUs.
NSYS = "nsys-sqlite"
ROCPD = "rocpd"
DATABASES = (NSYS, ROCPD)
#: Code of the issue that processes without recorded ranks are numbered.
RANKS_NUMBERED = "ranks-numbered"
#: Why data is missing in a truncated database, and what to do.
DAMAGED_TABLES = "its tables are damaged; copy or export it again"

#: Version of Chrome traces of ONNX Runtime's profiler, and its name for operators on the CPU.
ONNXRUNTIME = "ONNX Runtime"
ON_CPU = "CPUExecutionProvider"

#: The format of files with an allocator's history only.
MEMORY_SNAPSHOT = "memory-snapshot"

#: Name of the format of Flight Recorder dumps, and of ``py-spy dump``.
FLIGHT_RECORDER = "flight-recorder"
PY_SPY_DUMP = "py-spy-dump"
PRINTED_TEXT = "printed-text"
#: Scalability metrics of itwinai, as CSV or in MLflow's file store.
ITWINAI = "itwinai"

#: Format of NCCL Inspector, and the form of its rows in ``aggregates``.
NCCL_INSPECTOR = "nccl-inspector"
INSPECTOR_FORM = "nccl_inspector"

#: Format of request logs, and the form of their rows in ``aggregates``.
REQUEST_LOG = "request-log"
REQUEST_FORM = "requests"

#: Key of the metadata of a Chrome trace that ``traceanalyzer merge`` wrote.
MERGED = "traceanalyzer merge"

#: Formats without other device work, so that idle time and overlap are unknown.
ONLY_COMMUNICATION = (NCCL_INSPECTOR,)

#: Formats of Nsight Compute: its CSV and its own reports.
NCU_CSV = "ncu-csv"
NCU_REP = "ncu-rep"


class EngineStep(NamedTuple):
    """Names of the steps of an inference engine.

    Attributes:
        engine: the engine.
        since: the change that brought the names, and its month, where they are known.
        pattern: groups ``prefills``, ``decodes`` (requests of each kind) or ``mode``, ``batch``
            (requests), and ``prefill_tokens``, ``decode_tokens`` or ``tokens``.
    """

    engine: str
    since: str
    pattern: str


#: Packages of inference engines.
INFERENCE_ENGINES = "vllm|sglang|sgl_jax|tensorrt_llm|lmdeploy"
#: Annotations of inference engines around a step.
ENGINE_STEPS = tuple(EngineStep(**about) for about in _NAMES["engine_steps"])
#: A step of any engine, without groups.
ENGINE_STEP = "|".join(re.sub(r"\?P<\w+>", "?:", one.pattern) for one in ENGINE_STEPS)


#: The end of the name of a range of several iterations: ``Step 190 to 200``, ``iter 0-9``.
SEVERAL_STEPS = r"(?: ?(?:to|until|-|\.\.|:) ?\d+)"


_CUSTOM_STEP = r"(?i:(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?)[ _:#=-]*\d+)"
#: Annotations of one step: the profiler's, and ``step 3``, ``train_step_3``, ``iter: 3``.
NUMBERED_STEP = rf"^(?:{PROFILER_STEP}|{_CUSTOM_STEP}$)"


def steps_pattern() -> str:
    """Return the pattern of annotations that mark a step of training or of an inference engine.

    ``ProfilerStep#3``, Lightning's and nanotron's ``Iteration 3``, ``## train_step ##`` of older
    recipes, a run of a TensorRT engine or of ONNX Runtime, user annotations
    (:data:`NUMBERED_STEP`), those of several iterations (:data:`SEVERAL_STEPS`), and
    :data:`ENGINE_STEP`.
    """
    custom = rf"{_CUSTOM_STEP}(?:{SEVERAL_STEPS})?"
    tensorrt = r"ExecutionContext::(?:enqueue|execute)\w*"
    marked = rf"Iteration\b.*|## ?(?:train|step|iteration).*|{tensorrt}|model_run"
    return rf"^(?:{PROFILER_STEP}\d+|{marked}|{custom}|{ENGINE_STEP})$"
