"""CUDA memory snapshots, pickled by ``torch.cuda.memory._dump_snapshot``.

``machine`` turns a pickle into a ``document``, columns of tagged 64-bit words; without a compiler
``unpickler`` helps it. ``tables`` builds the tables of a trace, ``reader`` combines them
and reports issues.

Specification: <https://docs.pytorch.org/docs/stable/torch_cuda_memory.html>
"""

import zipfile

from traceanalyzer.parsers.contract import Format, on_use
from traceanalyzer.parsers.source import Source
from traceanalyzer.vocabulary import MEMORY_SNAPSHOT

_PROTO = 0x80
_PROTOCOLS = (2, 3, 4, 5)
#: Keys at the beginning of a snapshot; keys of an old one, which is a list of segments.
_WHOLE = (b"segments", b"device_traces")
_LIST = (b"total_size", b"blocks")


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether this is a pickle with the keys of a snapshot."""
    return is_pickle(head) and (
        any(key in head[:256] for key in _WHOLE) or all(key in head for key in _LIST)
    )


def is_pickle(head: bytes) -> bool:
    """Whether these are the first bytes of a pickle."""
    return len(head) > 1 and head[0] == _PROTO and head[1] in _PROTOCOLS


def describe_pickle(source: Source) -> str | None:
    """Describe a pickle that is not a snapshot; None for other files."""
    if source.compression == "zip" and _contains_pickle(source.path):
        return "a torch.save checkpoint"
    return "a pickle" if is_pickle(source.head()) else None


def _contains_pickle(path: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("data.pkl") for name in archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


FORMAT: Format = Format(
    name=MEMORY_SNAPSHOT,
    suffixes=(".pickle", ".pkl", ".pickle.gz"),
    description="CUDA memory snapshots: torch.cuda.memory._dump_snapshot",
    sniff=sniff,
    parse=on_use("traceanalyzer.parsers.memory_snapshot.reader:parse"),
    priority=80,
)
