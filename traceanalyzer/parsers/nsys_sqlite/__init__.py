"""Nsight Systems databases, written by ``nsys export --type sqlite``.

Input: a database file, possibly compressed, opened read-only. Output: a trace. ``reader`` opens the
file (:mod:`..sqlite`) as an export (``tables``), determines ranks, devices and what was not
captured (``identity``), and reads device work (``device``), host calls (``host``) and NVTX ranges
(``nvtx``).

Specifications: <https://docs.nvidia.com/nsight-systems/UserGuide/index.html#sqlite-schema-reference>,
<https://docs.nvidia.com/nsight-systems/UserGuide/index.html>
"""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from traceanalyzer import schema
from traceanalyzer.errors import UnknownFormat
from traceanalyzer.parsers.contract import Format, Progress, Selection, on_use
from traceanalyzer.parsers.source import Source, table_files
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import NSYS

_MAGIC = b"SQLite format 3\0"
#: Table names of nsys; the definitions of tables are in a file's first pages.
_LIKELY = re.compile(
    rb"StringIds|TARGET_INFO_|CUPTI_ACTIVITY|NVTX_EVENTS|META_DATA_EXPORT|EXPORT_META_DATA|ENUM_NSYS"
    rb"|ThreadNames|ANALYSIS_DETAILS"
)
_APPLICATION = slice(68, 72)
#: A table of the small database that an analysis result is exported to.
_ANSWER = b"CREATE TABLE about (key TEXT"
_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
_DATABASES = (".sqlite", ".sqlite3", ".db")


def sniff(head: bytes, path: str) -> bool:
    """Whether this is an SQLite database, or a folder, with a table that nsys writes."""
    if not head:
        return bool(table_files(path))
    return head.startswith(_MAGIC) and _LIKELY.search(head) is not None


def written_by_us(head: bytes) -> bool:
    """Whether traceanalyzer exported this SQLite database, from a trace or a result."""
    is_ours = head[_APPLICATION] == schema.SQLITE_APPLICATION.to_bytes(4) or _ANSWER in head
    return head.startswith(_MAGIC) and is_ours


def is_misnamed(head: bytes, path: str) -> bool:
    """Whether the file has the name of a database but different content."""
    return path.lower().endswith(_DATABASES) and not head.startswith(_MAGIC)


def sniff_report(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether the name is that of an nsys report, a format that only nsys can read."""
    return path.lower().endswith(_REPORTS)


def parse_report(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Export a report with ``nsys``, if it is on the PATH, and read the export.

    Raises:
        UnknownFormat: ``nsys`` is not installed or fails; the message has the command.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        raise UnknownFormat(
            source.path,
            "an Nsight Systems report, which only nsys can read",
            hint=f"nsys export --type sqlite {source.path}",
        )
    info = Path(source.path).stat()
    export = _exported(nsys, str(Path(source.path).resolve()), info.st_mtime_ns, info.st_size)
    if export.exit_code:
        raise UnknownFormat(
            source.path,
            f"an Nsight Systems report that nsys could not export: {export.message}",
            hint=f"nsys export --type sqlite {source.path}",
        )
    return FORMAT.parse(Source(f"{export.folder.name}/export.sqlite"), selection, progress)


class _Export(NamedTuple):
    """Result of ``nsys export``; the folder exists as long as this process."""

    folder: TemporaryDirectory[str]
    exit_code: int
    message: str


@cache
def _exported(nsys: str, report: str, _changed_ns: int, _size: int) -> _Export:
    """Run ``nsys export`` once for each report."""
    folder = TemporaryDirectory(prefix="traceanalyzer-")
    options = ["--type", "sqlite", "--include-blobs=true", "--force-overwrite=true"]
    output = f"--output={folder.name}/export.sqlite"
    done = subprocess.run(
        [nsys, "export", *options, output, report], capture_output=True, text=True, check=False
    )
    lines = (done.stderr or done.stdout).strip().splitlines()
    return _Export(folder, done.returncode, lines[-1] if lines else f"exit {done.returncode}")


FORMAT: Format = Format(
    name=NSYS,
    suffixes=(".sqlite", ".sqlite.gz", ".sqlite3", ".db"),
    description="Nsight Systems: nsys export --type sqlite, parquetdir or arrowdir",
    sniff=sniff,
    parse=on_use("traceanalyzer.parsers.nsys_sqlite.reader:parse"),
    priority=90,
    parse_ranks=on_use("traceanalyzer.parsers.nsys_sqlite.reader:parse_ranks"),
    ranks=on_use("traceanalyzer.parsers.nsys_sqlite.reader:ranks"),
)

REPORT: Format = Format(
    name="nsys-rep",
    suffixes=_REPORTS,
    description="Nsight Systems report; exported with nsys if it is on the PATH",
    sniff=sniff_report,
    parse=parse_report,
    priority=-1000,
)
