"""Recordings of AMD GPUs: RPD files and databases of rocprofv3 (rocpd), both SQLite.

Input: a database file, possibly compressed, opened read-only. Output: a trace, which ``reader``
builds. RPD (``rocpd_op``) and rocprofv3 (``rocpd_kernel_dispatch``) use the same table prefix for
different tables: ``rpd`` reads the first, ``v3`` the second, each to a ``recording``.

Specification: <https://rocm.docs.amd.com/projects/rocprofiler-sdk/en/latest/how-to/using-rocpd-output-format.html>
"""

from traceanalyzer.parsers.contract import Format, on_use
from traceanalyzer.vocabulary import ROCPD

_MAGIC = b"SQLite format 3\0"
#: Prefix of all tables; their definitions are in a file's first pages.
_PREFIX = b"rocpd_"


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether this is an SQLite database with a table of RPD or of rocprofv3."""
    return head.startswith(_MAGIC) and _PREFIX in head


FORMAT: Format = Format(
    name=ROCPD,
    suffixes=(".rpd", ".rpd.gz", ".db"),
    description="AMD GPUs: RPD (rocmProfileData) and rocprofv3 (rocpd) databases",
    sniff=sniff,
    parse=on_use("traceanalyzer.parsers.rocpd.reader:parse"),
    priority=85,
)
