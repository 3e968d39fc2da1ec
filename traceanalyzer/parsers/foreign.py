"""Known files that no parser reads, with advice for the user: of profilers, and summaries."""

import os
import re
import shlex
from functools import cache
from pathlib import PurePath
from typing import NamedTuple, NoReturn

from traceanalyzer import schema
from traceanalyzer.errors import UnknownFormat
from traceanalyzer.files import packaged
from traceanalyzer.parsers import perfetto
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.vocabulary import NSYS_TABLE


class Foreign(NamedTuple):
    """Description of a file, advice, and whether it contains a recording."""

    what: str
    hint: str
    is_recording: bool = False


_XPLANE = (
    "pass the .trace.json.gz next to it (JAX writes one), or convert it (pip install xprof): "
    'python -c "import sys; from xprof.convert.raw_to_tool_data import xspace_to_tool_data as f; '
    "print(f(sys.argv[1:], 'trace_viewer', {})[0])\" %s > trace.json"
)


@cache
def _known(kind: str) -> tuple[tuple[re.Pattern[bytes], Foreign], ...]:
    """Return the known files of ``foreign.toml``, ``text`` or ``binary``: how each begins."""
    return tuple(
        (
            re.compile(one["begins"].encode()),
            Foreign(one["is"], one["instead"], one.get("recording", False)),
        )
        for one in packaged("parsers/foreign.toml")[kind]
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
    starts = {"text": head.lstrip()[: 1 << 14], "binary": head[: 1 << 14]}
    every = (
        (one, test.match(start)) for kind, start in starts.items() for test, one in _known(kind)
    )
    if known := next((one for one, match in every if match), None):
        return known
    if path.lower().endswith((".log", ".out", ".err")) and b"\0" not in head:
        hint = "docs/printed.md lists the tables and messages of jobs that are read"
        return Foreign("text without a known table or error message", hint)
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
