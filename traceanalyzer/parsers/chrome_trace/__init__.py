"""Chrome Trace Event JSON, the format of Kineto, Composer, JAX, viztracer and browsers.

Input: decompressed bytes. Output: the schema's tables. A file passes through the modules in this
order: ``reader`` (the steps, the file's metadata) -> ``container`` (bytes by offset, locates the
event arrays) -> ``arrays`` (splits them into pieces, reads these in threads, each by ``_scan.c``,
or by ``decode``, ``extract`` and ``points``; ``recover`` for damaged text) -> ``columns`` (of a
piece, of the file) -> ``assemble`` (tables; ``points`` pairs begin and end events, and builds
flows). ``samples``, ``producers`` and ``xla`` are imported only for files that need them.

Specification: <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>
"""

import re

from traceanalyzer.parsers.contract import Format, on_use

#: Keys that distinguish a trace from other JSON; most of them precede the events.
_LIKELY = re.compile(
    rb'"(?:traceEvents|ph|schemaVersion|deviceProperties|baseTimeNanoseconds|distributedInfo'
    rb'|displayTimeUnit|traceName|otherData|stackFrames|systemTraceEvents|viztracer_metadata)"'
)
#: The first key of what PyTorch and Composer write; no other format begins with it.
_FIRST = re.compile(rb'\s*+\{\s*+"(?:schemaVersion|distributedInfo|traceEvents)"\s*+:')


def is_kineto(head: bytes) -> bool:
    """Whether the first key shows that it is a Chrome trace, without a look at other formats."""
    return _FIRST.match(head) is not None


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether the first bytes look like a Chrome trace; the file name does not matter."""
    text = head.lstrip()
    if text.startswith(b"["):
        inner = text[1:].strip(b" \t\r\n,")
        return inner in (b"", b"]") or _LIKELY.search(head) is not None
    return text.startswith(b"{") and _LIKELY.search(head) is not None


FORMAT: Format = Format(
    name="chrome-trace",
    suffixes=(".json", ".json.gz", ".pt.trace.json", ".pfw", ".pfw.gz", ".json.zst", ".zip"),
    description="Chrome Trace Event JSON: PyTorch/Kineto, Composer, JAX, viztracer, dftracer",
    sniff=sniff,
    parse=on_use("traceanalyzer.parsers.chrome_trace.reader:parse"),
    priority=10,
)
