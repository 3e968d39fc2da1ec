"""The parser of Nsight Systems exports: a database in, a trace out."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from traceanalyzer import schema
from traceanalyzer.errors import UnknownFormat
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Trace

_MAGIC = b"SQLite format 3\0"
#: Words in the definitions of tables, which lie in a file's first pages.
_LIKELY = re.compile(
    rb"StringIds|TARGET_INFO_|CUPTI_ACTIVITY|NVTX_EVENTS|META_DATA_EXPORT|EXPORT_META_DATA|ENUM_NSYS"
    rb"|ThreadNames|ANALYSIS_DETAILS"
)
_APPLICATION = slice(68, 72)
#: The table that a database of an answer has; such a database is small.
_ANSWER = b"CREATE TABLE about (key TEXT"
_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
_DATABASES = (".sqlite", ".sqlite3", ".db")


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether this is an SQLite database with a table that nsys writes."""
    return head.startswith(_MAGIC) and _LIKELY.search(head) is not None


def written_by_us(head: bytes) -> bool:
    """Whether this is an SQLite database that our exporter wrote, or one of an answer."""
    made = head[_APPLICATION] == schema.SQLITE_APPLICATION.to_bytes(4) or _ANSWER in head
    return head.startswith(_MAGIC) and made


def no_database(head: bytes, path: str) -> bool:
    """Whether the name is that of a database and the content is not."""
    return path.lower().endswith(_DATABASES) and not head.startswith(_MAGIC)


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read an export; see :func:`traceanalyzer.parsers.nsys_sqlite.reader.parse`."""
    from traceanalyzer.parsers.nsys_sqlite import reader

    return reader.parse(source, selection, progress, FORMAT.name)


def sniff_report(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether the name is that of a report, whose format only nsys itself can read."""
    return path.lower().endswith(_REPORTS)


def parse_report(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Export a report with ``nsys``, where it is on the PATH, and read the export.

    Raises:
        UnknownFormat: there is no ``nsys``, or it fails; the message has the command.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        raise UnknownFormat(
            source.path,
            "a report of Nsight Systems, which only nsys can read",
            hint=f"nsys export --type sqlite {source.path}",
        )
    info = Path(source.path).stat()
    export = _exported(nsys, str(Path(source.path).resolve()), info.st_mtime_ns, info.st_size)
    if export.exit_code:
        raise UnknownFormat(
            source.path,
            f"a report of Nsight Systems, which nsys could not export: {export.message}",
            hint=f"nsys export --type sqlite {source.path}",
        )
    return parse(Source(f"{export.folder.name}/export.sqlite"), selection, progress)


class _Export(NamedTuple):
    """What nsys did; the folder exists as long as this process."""

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
    name="nsys-sqlite",
    suffixes=(".sqlite", ".sqlite.gz", ".sqlite3", ".db"),
    description="Nsight Systems: nsys export --type sqlite",
    spec_url="https://docs.nvidia.com/nsight-systems/UserGuide/index.html#sqlite-schema-reference",
    sniff=sniff,
    parse=parse,
    priority=90,
)

REPORT: Format = Format(
    name="nsys-rep",
    suffixes=_REPORTS,
    description="a report of Nsight Systems; exported with nsys where that is on the PATH",
    spec_url="https://docs.nvidia.com/nsight-systems/UserGuide/index.html",
    sniff=sniff_report,
    parse=parse_report,
    priority=-1000,
)
