"""Perfetto's protobuf traces: PyTorch, rocprofv3, Perfetto's own SDK.

``wire`` reads the encoding, ``state`` the packets that describe others (texts, tracks, clocks),
``slices`` has the events of tracks and the work that the GPU's driver recorded, and ``reader``
passes all of it, as events of Chrome's JSON, to the parser of that format.

Specification: <https://perfetto.dev/docs/reference/synthetic-track-event>
"""

import re

from traceanalyzer.parsers.contract import Format, on_use

_PACKET = 0x0A
#: Endings of file names; detection is by content.
SUFFIXES = (".pftrace", ".perfetto-trace", ".pftrace.gz", ".perfetto-trace.gz")
#: The first packet of ``traceanalyzer merge``: a clock of the sequence 1, with a padded time.
_MERGED = re.compile(
    rb"\x0a.\x50\x01\x32.\x0a.\x08\x81\x01\x10[\x80-\xff]{9}.\x0a.\x08\x06\x10[\x80-\xff]{9}.", re.S
)


#: The first plane of an XPlane profile: its number and its name, such as ``/host:CPU``.
_XPLANE = re.compile(
    rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?\x12.(?:/host:|/device:)",
    re.S,
)


def sniff(head: bytes, path: str) -> bool:
    """Whether the first bytes are packets; in a file of Perfetto's suffix one is enough."""
    if not head or head[0] != _PACKET or _MERGED.match(head) or is_xplane(head):
        return False
    if path.lower().endswith(SUFFIXES):
        return True
    from traceanalyzer.parsers.perfetto.wire import are_packets

    return are_packets(head)


def is_merged(head: bytes) -> bool:
    """Whether ``traceanalyzer merge`` wrote the file."""
    return _MERGED.match(head) is not None


def is_xplane(head: bytes) -> bool:
    """Whether the file is an XPlane profile, whose first bytes look like packets."""
    return _XPLANE.match(head) is not None


FORMAT: Format = Format(
    name="perfetto",
    suffixes=(".pftrace", ".perfetto-trace", ".pftrace.gz"),
    description="Perfetto protobuf: PyTorch's .pftrace, rocprofv3 --output-format pftrace",
    sniff=sniff,
    parse=on_use("traceanalyzer.parsers.perfetto.reader:parse"),
    priority=35,
)
