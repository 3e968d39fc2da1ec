"""Files of profilers and clusters that hold no timeline, or none that is read: what they are."""

import re
from pathlib import PurePath
from typing import NamedTuple


class Foreign(NamedTuple):
    """What a file is, what to do instead, and whether it holds a recording that is not read."""

    what: str
    hint: str
    is_recording: bool = False


_TRACE_INSTEAD = "prof.export_chrome_trace(FILE) of torch.profiler writes a timeline"
_SQLITE_INSTEAD = "export the report again: nsys export --type sqlite REPORT"

#: Tables of nsys, of which ``--type parquetdir`` and ``arrowdir`` write a file each.
_NSYS_TABLE = re.compile(
    r"(?:StringIds|(?:CUPTI_ACTIVITY_|TARGET_INFO_|META_DATA_|ENUM_|CUDA_|NIC_|GPU_|NVTX_)\w+"
    r"|EXPORT_META_DATA|OSRT_API|OSRT_CALLCHAINS|MPI_\w+|SCHED_EVENTS|COMPOSITE_EVENTS|ThreadNames"
    r"|PROFILER_OVERHEAD|PROCESSES|ANALYSIS_\w+|DIAGNOSTIC_EVENT|SAMPLING_CALLCHAINS|UnwindMethodType"
    r"|GENERIC_\w+|SYSCALL|CUBLAS_EVENTS|CUDNN_EVENTS)\.(?:parquet|arrows?|feather)"
)
_TAR_MAGIC = slice(257, 262)

#: The first bytes of files, and what they are.
_KNOWN = (
    (
        rb'\{\s*+"schema"\s*+:\s*+"\d[^"]*+"[^{]*?"nodes"\s*+:\s*+\[',
        "a PyTorch execution trace (the input of replay and of Chakra), not a timeline",
        _TRACE_INSTEAD,
    ),
    (
        rb"\[\s*+\[\s*+-?\d[\d.eE+-]*+\s*+,\s*+-?\d",
        "lists of numbers, as a memory timeline of torch.profiler, without blocks and stacks",
        "torch.cuda.memory._dump_snapshot(FILE) writes a snapshot, which memory reads",
    ),
    (
        rb"(?is)\s*+<(?:!doctype )?html\b.*?(?:memory timeline|data:image/png;base64)",
        "a memory timeline of torch.profiler as HTML, a picture",
        "torch.cuda.memory._dump_snapshot(FILE) writes a snapshot, which memory reads",
    ),
    (rb"(?i)\s*+<(?:!doctype )?html\b", "an HTML page", "give the trace that it was made of"),
    (
        rb'\{[^\n]*"(?:CudaEvent|NvtxEvent|TraceProcessEvent|globalVid|GpuEvent)"',
        "an nsys export of type jsonlines, which is not read",
        _SQLITE_INSTEAD,
    ),
    (
        rb'\{[^{]*?"nodes"\s*+:\s*+\[\s*+\{[^}]*?"callFrame"',
        "a V8 CPU profile (.cpuprofile), which is not read",
        "py-spy record -f speedscope profiles Python",
    ),
    (
        rb'\{[^{]*?"(?:pg_config|comm_lib_version)"',
        "a dump of the NCCL flight recorder, not a timeline",
        "torch's torchfrtrace compares the dumps of all ranks",
    ),
    (
        rb'\{\s*+"rocprofiler-sdk-tool"',
        "JSON of rocprofv3, which is not read",
        "torch.profiler writes Chrome JSON on AMD GPUs too",
    ),
)


def recognise(head: bytes, path: str) -> Foreign | None:
    """What a file is that no parser reads, or None.

    Args:
        head: the first bytes after decompression.
        path: the file's name.
    """
    if head[_TAR_MAGIC] == b"ustar":
        hint = f"unpack it (tar -xf {path} -C FOLDER) and give FOLDER"
        return Foreign("a tar archive", hint, is_recording=True)
    if is_nsys_table(path):
        return Foreign(
            "a table of an nsys export of type parquetdir or arrowdir, which is not read",
            _SQLITE_INSTEAD,
            is_recording=True,
        )
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()[: 1 << 14]
    for pattern, what, hint in _KNOWN:
        if re.match(pattern, text):
            return Foreign(what, hint, is_recording=hint == _SQLITE_INSTEAD)
    return None


def is_nsys_table(path: str) -> bool:
    """Whether a file is named like a table that nsys exports as Parquet or Arrow."""
    return _NSYS_TABLE.fullmatch(PurePath(path).name) is not None
