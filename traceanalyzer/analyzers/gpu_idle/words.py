"""Causes in plain words: what is said of each, and what may help."""

from __future__ import annotations

from traceanalyzer.analyzers.gpu_idle import causes

#: Headings of tables.
NAMES = {
    causes.PROFILER: "profiler overhead",
    causes.SHORT_GAP: "short gaps",
    causes.DATALOADING: "data loading",
    causes.BATCH_COPY: "copying batches to the GPU",
    causes.SYNCHRONISATION: "synchronisation",
    causes.MEMORY_MANAGEMENT: "memory management",
    causes.CHECKPOINT_IO: "checkpoints and files",
    causes.PEER: "waiting for other ranks",
    causes.LAUNCH: "launch overhead",
    causes.HOST_CODE: "other host code",
    causes.UNKNOWN: "unknown",
}

#: Causes in a sentence: "the largest part is waiting for the data loader".
WAITING = {
    causes.PROFILER: "the profiler's own overhead, which is not there without it",
    causes.SHORT_GAP: "the ordinary pause between kernels",
    causes.DATALOADING: "waiting for the data loader",
    causes.BATCH_COPY: "waiting while the host copies batches to the GPU",
    causes.SYNCHRONISATION: "waiting while the host waits for results (synchronisation)",
    causes.MEMORY_MANAGEMENT: "waiting while the host gets or frees device memory",
    causes.CHECKPOINT_IO: "waiting for checkpoints or files",
    causes.PEER: "waiting for other ranks",
    causes.LAUNCH: "waiting for the host to launch kernels",
    causes.HOST_CODE: "waiting for other code of the host",
    causes.UNKNOWN: "waiting for something that was not recorded",
}

#: What may help; said of the largest cause only. ``code`` is what shows code that nothing tells of.
ADVICE = {
    causes.PROFILER: "Recording less (fewer kinds of events, fewer steps)",
    causes.SHORT_GAP: "Fewer, larger kernels (torch.compile, CUDA graphs, fused optimizers)",
    causes.DATALOADING: "More loader workers (num_workers, prefetch_factor, persistent_workers), "
    "cheaper transforms or faster storage",
    causes.BATCH_COPY: "Pinned memory (DataLoader(pin_memory=True)) and .to(device, "
    "non_blocking=True) let copies run beside kernels, which",
    causes.SYNCHRONISATION: "Not asking for values in the loop (.item(), .cpu(), print of a "
    "tensor, torch.cuda.synchronize) lets the host run ahead, which",
    causes.MEMORY_MANAGEMENT: "A steady pattern of allocations (no empty_cache in the loop, "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True) avoids these calls, which",
    causes.CHECKPOINT_IO: "Saving asynchronously or less often",
    causes.PEER: "comm-outliers with the traces of all ranks tells who is late; punctual ranks",
    causes.LAUNCH: "Launching less (CUDA graphs, torch.compile, larger batches, fused optimizers)",
    causes.HOST_CODE: "The longest gaps below tell where; {code} shows which. Moving it off the "
    "training loop",
    causes.UNKNOWN: "",
}
