"""Why a device may be idle, how each cause is recognised, what it is called and what may help.

A moment of idleness that fits several causes belongs to the first of them. What the host was at is
judged by the names of the slices that were running on the threads that launch the device's kernels.
"""

import polars as pl

from traceanalyzer.vocabulary import SYNCHRONISING_CALLS

BUSY = "busy"
PROFILER = "profiler_overhead"
SHORT_GAP = "short_gap"
DATALOADING = "dataloading"
BATCH_COPY = "batch_copy"
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
    DATALOADING: "data loading",
    BATCH_COPY: "copying batches to the GPU",
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

#: Slices in which a thread waits for its data loader: PyTorch's own annotation of the iterator, its
#: frames and those of other loaders, and ranges that people name for it.
DATALOADER = (
    r"^enumerate\((?:DataLoader|DataPipe)\)#",
    r"(?:torch[/\\]utils[/\\]data|torchdata|webdataset|ffcv|nvidia[/\\]dali)[/\\]",
    r"(?i)data[ _-]?load|load(?:ing)?[ _-]?(?:data|batch)|(?:^|[^a-z])loader",
    r"(?i)(?:next|get|fetch|prepare|wait)[ _-]?(?:for[ _-]?)?(?:data|batch)(?:$|[^a-z])",
    r"(?i)(?:^|[^a-z])data[ _-]?(?:fetch|iter|next|prep|time|wait)|prefetch",
)

#: Kinds of slices whose name may say that they are dataloading.
DATALOADER_KINDS = ("cpu_op", "user_annotation", "python_function", "nvtx", "other")

#: Operators around the copy of a batch to the device, the outermost first.
COPY_OPERATORS = ("aten::to", "aten::_to_copy", "aten::copy_")

#: Copies from the host to a device, as CUPTI, ROCm, Intel's PTI and nsys name them.
HOST_TO_DEVICE = r"(?i)HtoD|\bM2D\b|host[ _-]?to[ _-]?device"

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
    r"(?i)(?:save|load|write|store)[ _-]?(?:model|checkpoint|ckpt|state)",
    r"(?i)checkpoint[ _-]?(?:save|saving|load|write)|^checkpoint(?:ing)?$",
    r"torch[/\\](?:serialization\.py|distributed[/\\]checkpoint[/\\])|safetensors[/\\]",
    r"^(?:fsync|fdatasync|write|pwrite64|fwrite)$",
)

#: Names of operators, as opposed to ranges that people or optimisers mark, which PyTorch recorded
#: under the same category until 2021.
OPERATOR = r"::|Backward\d*$|^triton_"


# --- texts ---------------------------------------------------------------------------------

#: Causes in a sentence: "the largest part is waiting for the data loader".
WAITING = {
    PROFILER: "the profiler's own overhead, which is not there without it",
    SHORT_GAP: "the ordinary pause between kernels",
    DATALOADING: "waiting for the data loader",
    BATCH_COPY: "waiting while the host copies batches to the GPU",
    SYNCHRONISATION: "waiting while the host waits for results (synchronisation)",
    MEMORY_MANAGEMENT: "waiting while the host gets or frees device memory",
    CHECKPOINT_IO: "waiting for checkpoints or files",
    PEER: "waiting for other ranks",
    LAUNCH: "waiting for the host to launch kernels",
    HOST_CODE: "waiting for other code of the host",
    UNKNOWN: "waiting for something that was not recorded",
}

#: What may help; said of the largest cause only. ``code`` is what shows code that nothing tells of.
ADVICE = {
    PROFILER: "Recording less (fewer kinds of events, fewer steps)",
    SHORT_GAP: "Fewer, larger kernels (torch.compile, CUDA graphs, fused optimizers)",
    DATALOADING: "More loader workers (num_workers, prefetch_factor, persistent_workers), "
    "cheaper transforms or faster storage",
    BATCH_COPY: "Pinned memory (DataLoader(pin_memory=True)) and .to(device, "
    "non_blocking=True) let copies run beside kernels, which",
    SYNCHRONISATION: "Not asking for values in the loop (.item(), .cpu(), print of a "
    "tensor, torch.cuda.synchronize) lets the host run ahead, which",
    MEMORY_MANAGEMENT: "A steady pattern of allocations (no empty_cache in the loop, "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True) avoids these calls, which",
    CHECKPOINT_IO: "Saving asynchronously or less often",
    PEER: "comm-outliers with the traces of all ranks tells who is late; punctual ranks",
    LAUNCH: "Launching less (CUDA graphs, torch.compile, larger batches, fused optimizers)",
    HOST_CODE: "The longest gaps below tell where; {code} shows which. Moving it off the "
    "training loop",
    UNKNOWN: "",
}
