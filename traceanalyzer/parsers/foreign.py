"""Known files that no parser reads, with advice for the user: of profilers, and summaries."""

import os
import re
import shlex
from pathlib import PurePath
from typing import NamedTuple, NoReturn

from traceanalyzer import schema
from traceanalyzer.errors import UnknownFormat
from traceanalyzer.parsers import perfetto
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.vocabulary import NSYS_TABLE


class Foreign(NamedTuple):
    """Description of a file, advice, and whether it contains a recording."""

    what: str
    hint: str
    is_recording: bool = False


_TRACE_INSTEAD = "prof.export_chrome_trace(FILE) of torch.profiler writes a timeline"
_SQLITE_INSTEAD = "export the report again: nsys export --type sqlite REPORT"

_STACKS_INSTEAD = "py-spy record -f raw -o stacks.txt -- python SCRIPT records stacks that are read"
_SPEEDSCOPE = "pyinstrument -r speedscope -o FILE SCRIPT writes stacks that are read"

_PACKED = "a compressed file in a compressed one, or of an unsupported compression"
_COLLAPSED = "perf script | stackcollapse-perf.pl > stacks.txt writes stacks that are read"

_XPLANE = (
    "pass the .trace.json.gz next to it (JAX writes one), or convert it (pip install xprof): "
    'python -c "import sys; from xprof.convert.raw_to_tool_data import xspace_to_tool_data as f; '
    "print(f(sys.argv[1:], 'trace_viewer', {})[0])\" %s > trace.json"
)

#: Pattern of the first bytes, description, advice.
_KNOWN = (
    (
        rb'\{\s*+"schema"\s*+:\s*+"\d[^"]*+"[^{]*?"nodes"\s*+:\s*+\[',
        "a PyTorch execution trace (the input of replay and of Chakra), not a timeline",
        _TRACE_INSTEAD,
    ),
    (
        rb"\[\s*+\[\s*+-?\d[\d.eE+-]*+\s*+,\s*+-?\d",
        "lists of numbers, like a torch.profiler memory timeline, without blocks and stacks",
        "torch.cuda.memory._dump_snapshot(FILE) writes a snapshot for the memory command",
    ),
    (
        rb"(?is)\s*+<(?:!doctype )?html\b.*?(?:memory timeline|data:image/png;base64)",
        "a torch.profiler memory timeline as HTML, which contains only a picture",
        "torch.cuda.memory._dump_snapshot(FILE) writes a snapshot for the memory command",
    ),
    (rb"(?i)\s*+<(?:!doctype )?html\b", "an HTML page", "pass the trace it was created from"),
    (
        rb'\{[^\n]*"(?:CudaEvent|NvtxEvent|TraceProcessEvent|globalVid|GpuEvent)"',
        "an nsys export of type jsonlines, which is not supported",
        _SQLITE_INSTEAD,
    ),
    (
        rb'\{[^{]*?"nodes"\s*+:\s*+\[\s*+\{[^}]*?"callFrame"',
        "a V8 CPU profile (.cpuprofile), which is not supported",
        "py-spy record -f speedscope profiles Python",
    ),
    (rb"PERFILE2", "a recording of perf (perf.data), which is not supported", _COLLAPSED),
    (
        rb"(?:#[^\n]*\n)*[^\s#][^\n]*?\s\d++(?:/\d+)?(?:\s+\[\d+\])?\s++\d+\.\d+:[\s\d]+[\w:/-]+:",
        "the text of perf script, which is not supported",
        _COLLAPSED,
    ),
    (
        rb'\{\s*+"rocprofiler-sdk-tool"',
        "rocprofv3 JSON, which is not supported",
        "pass the database of rocprofv3 --output-format rocpd (PID_results.db)",
    ),
    (
        rb'\{\s*+(?:"session"\s*+:\s*+\{\s*+)?"start_time"\s*+:[^{\[]*?"sample_count"\s*+:',
        "a session or JSON report of pyinstrument, which is not supported",
        _SPEEDSCOPE,
    ),
    (
        rb'\[\s*+\{\s*+"(?:children|frame|metrics)"\s*+:',
        "a profile of Triton's Proton as a tree, which is not supported",
        'proton.start(NAME, data="trace") writes a timeline that is read',
    ),
    (rb'\{\s*+"alloc_samples"\s*+:', "a scalene profile, which is not supported", _STACKS_INSTEAD),
    (
        (
            rb"(?:<\?xml[^>]*+>\s*+)?"
            rb"(?:<!DOCTYPE svg[^>]*+>\s*+|<!--[^-]*+(?:-(?!->)[^-]*+)*-->\s*+)*<svg\b"
        ),
        "a picture (SVG), such as a flame graph",
        "pass the stacks that it was drawn from, such as those of py-spy record -f raw",
    ),
    (
        rb'(?s).{0,4000}?Time ?\(%\)"?,?\s*+"?Total Time ?\((?:ns|us|ms|s|nsec)\)',
        "a table printed by nsys stats, which has sums and no times",
        "pass the report's database: nsys export --type sqlite REPORT",
    ),
    (
        (
            rb'"(?:Name","Calls","TotalDurationNs|Index","KernelName","gpu-id|(?:Guid",")?Kind","\w+'
            rb'|Domain","\w+|Correlation_Id","Dispatch_Id)"'
        ),
        "a table of rocprof or rocprofv3, which is not supported",
        "rocprofv3 --output-format rocpd writes a database that is read (PID_results.db)",
    ),
    (
        rb"(?s).{0,4000}?={4,}+ Serving Benchmark Result ={4,}+",
        "the text of a serving benchmark (vLLM, SGLang), which has means and no requests",
        "pass its JSON: vllm bench serve --save-detailed (SGLang: --output-details)",
    ),
    (
        rb"(?s).{0,4000}?\n    Section: GPU Speed Of Light",
        "the text of Nsight Compute (ncu)",
        "ncu --import REPORT --csv --page raw writes a table that is read",
    ),
    (
        rb"(?s).{0,4000}?==\d++== Profiling result:",
        "a summary printed by nvprof, which has sums and no times",
        "nsys profile, then nsys export --type sqlite, records what ran when",
    ),
    (
        rb"(?s)# nThread \d++ nGpus \d++|.{0,4000}?#\s*+out-of-place\s++in-place",
        "the output of nccl-tests, which measures a network and records no program",
        "record the program: torch.profiler, or nsys profile and nsys export --type sqlite",
    ),
    (
        (
            rb"(?s).{0,4000}?\bAction\s++\|\s++(?:Mean duration \(s\)|Num calls)"
            rb"|FIT Profiler Report\s++Profile stats for: "
        ),
        "a report of Lightning's profiler, which has sums and no times",
        'Trainer(profiler="pytorch") writes a timeline',
    ),
    (
        rb"(?s).{0,9000}?out of memory\. Tried to allocate",
        "an out-of-memory error without a memory snapshot",
        "record one: torch.cuda.memory._record_memory_history(), then _dump_snapshot(FILE)",
    ),
)

#: The same for files that are no text: nothing is stripped from their beginning.
_BINARY = (
    (
        rb"MOJ[\x00-\x09]",
        "a binary recording of austin",
        "mojo2austin FILE stacks.austin converts it",
    ),
    (rb"(?s).{0,20}?memray\x00", "a recording of memray, which is not supported", _STACKS_INSTEAD),
    (
        rb"[\xfb{]\)\x03[\xfaz\xdaZ]",
        "a cProfile profile (pstats), which has sums per function and no stacks",
        _STACKS_INSTEAD,
    ),
    (
        rb"[\nZ]\x04\x08[\x01-\x7f]\x10[\x01-\x7f]",
        "a pprof profile, which is not supported",
        "go tool pprof -raw FILE | stackcollapse-go.pl > stacks.txt writes stacks that are read",
    ),
    (
        rb"SQLite format 3\x00",
        "an SQLite database without the tables of nsys or rocprofv3",
        "nsys export --type sqlite REPORT writes one; if there is a file FILE-wal, copy it too",
    ),
    (rb"\x1f\x8b\x08|BZh\d|\xfd7zXZ|PK\x03\x04|\x28\xb5", _PACKED, "unpack it"),
)


def recognise(head: bytes, path: str) -> Foreign | None:
    """Describe a known file that no parser reads; None for any other file.

    Args:
        head: the first bytes after decompression.
        path: the file's name.
    """
    if perfetto.is_merged(head):
        hint = f"traceanalyzer view {path} shows it; pass the files that it was made from"
        return Foreign("a trace that traceanalyzer merge wrote", hint)
    if path.endswith(".xplane.pb") or perfetto.is_xplane(head):
        what = "an XPlane profile of JAX or TensorFlow, which is not supported"
        return Foreign(what, _XPLANE % shlex.quote(path))
    if path.lower().endswith(perfetto.SUFFIXES):
        return Foreign("not a Perfetto trace despite its name", "was the export complete?")
    if head[257:262] == b"ustar":
        hint = f"unpack it (tar -xf {path} -C FOLDER) and pass FOLDER"
        return Foreign("a tar archive", hint, is_recording=True)
    if is_nsys_table(path):
        return Foreign(
            "one table of an nsys export of type parquetdir or arrowdir",
            f"pass its folder, {PurePath(path).parent}",
            is_recording=True,
        )
    if path.lower().endswith((".log", ".out", ".err")) and b"\0" not in head:
        hint = "--input-format printed-text finds tables of PyTorch and DeepSpeed further down"
        return Foreign("text without a known table in its first 64 KiB", hint)
    text, binary = head.lstrip()[: 1 << 14], head[: 1 << 14]
    for known, start in ((_KNOWN, text), (_BINARY, binary)):
        for pattern, what, hint in known:
            if re.match(pattern, start):
                return Foreign(what, hint, is_recording=hint == _SQLITE_INSTEAD)
    return None


def is_nsys_table(path: str) -> bool:
    """Whether the file name is that of a table exported by nsys as Parquet or Arrow."""
    return NSYS_TABLE.fullmatch(PurePath(path).name) is not None


#: The footer of a Parquet file ends with its length and this magic.
_MAGIC, _END = b"PAR1", 8
_LONGEST = 1 << 20


def is_written_by_summarize(path: str) -> bool:
    """Whether a regular file is a summary, or the context that belongs to one."""
    return schema.SUMMARY.encode() in _footer(path)


def is_summary(path: str) -> bool:
    """Whether a regular file is a summary."""
    return is_written_by_summarize(path) and not path.endswith(schema.CONTEXT_SUFFIX)


def sniff(head: bytes, path: str) -> bool:
    """Whether a file is a summary."""
    return head.startswith(_MAGIC) and is_summary(path)


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> NoReturn:  # noqa: ARG001 - contract
    """Raise the error for a command that needs events.

    Raises:
        UnknownFormat: always.
    """
    if not is_written_by_summarize(source.path):
        raise UnknownFormat(
            source.path, "not a summary of traceanalyzer", hint="run without --input-format summary"
        )
    raise UnknownFormat(
        source.path,
        "a summary written by traceanalyzer summarize, which has no events",
        hint="pass the trace",
    )


def _footer(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - the name is kept as it was given
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - _END, 0))
            end = file.read(_END)
            length = int.from_bytes(end[:4], "little")
            if not end.endswith(_MAGIC) or length > min(size, _LONGEST):
                return b""
            file.seek(size - _END - length)
            return file.read(length)
    except (OSError, ValueError):
        return b""


FORMAT: Format = Format(
    name="summary",
    suffixes=(".parquet",),
    description="measured parts of one input, written by traceanalyzer summarize",
    sniff=sniff,
    parse=parse,
    priority=110,
)
