"""CUDA memory snapshots, as ``torch.cuda.memory._dump_snapshot`` pickles them.

``machine`` turns a pickle into a ``document``, columns of words; without a compiler ``scan`` goes
through the opcodes first. ``tables`` makes the tables of a trace, ``reader`` puts them together and
says what is missing or odd.
"""

import zipfile

from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Trace

_PROTO = 0x80
_PROTOCOLS = (2, 3, 4, 5)
#: Keys of a snapshot, all of which stand at its beginning; those of one that is a list of segments.
_WHOLE = (b"segments", b"device_traces")
_LIST = (b"total_size", b"blocks")


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether this is a pickle with the keys of a snapshot."""
    return is_pickle(head) and (
        any(key in head[:256] for key in _WHOLE) or all(key in head for key in _LIST)
    )


def is_pickle(head: bytes) -> bool:
    """Whether these are the first bytes of a pickle of any kind."""
    return len(head) > 1 and head[0] == _PROTO and head[1] in _PROTOCOLS


def no_snapshot(source: Source) -> str | None:
    """What a file is that was pickled and is no snapshot; None for all others."""
    if source.compression == "zip" and _holds_a_pickle(source.path):
        return "a checkpoint of torch.save"
    return "a pickle" if is_pickle(source.head()) else None


def _holds_a_pickle(path: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("data.pkl") for name in archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read a snapshot; see :func:`traceanalyzer.parsers.memory_snapshot.reader.parse`."""
    from traceanalyzer.parsers.memory_snapshot import reader

    return reader.parse(source, selection, progress, FORMAT.name)


FORMAT: Format = Format(
    name="memory-snapshot",
    suffixes=(".pickle", ".pkl", ".pickle.gz"),
    description="CUDA memory snapshots: torch.cuda.memory._dump_snapshot",
    spec_url="https://docs.pytorch.org/docs/stable/torch_cuda_memory.html",
    sniff=sniff,
    parse=parse,
    priority=80,
)
