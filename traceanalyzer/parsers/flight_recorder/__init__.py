"""PyTorch Flight Recorder dumps: the last collectives of each rank, as a pickle or JSON.

``reader`` reads a pickle without executing it, or JSON, to plain Python values, and builds the
tables of a trace.

Specification: <https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html>
"""

import re

from traceanalyzer.parsers.contract import Format, on_use
from traceanalyzer.parsers.memory_snapshot import is_pickle
from traceanalyzer.vocabulary import FLIGHT_RECORDER

#: Keys of a dump in a pickle; of entries and status in JSON.
_PICKLED = (b"pg_config", b"pg_status", b"profiling_name", b"nccl_version", b"comm_lib_version")
_JSON = (b'"profiling_name"', b'"pg_status"', b'"comm_lib_version"', b'"pg_config"')
#: JSON of other profilers, whose metadata has some of these keys.
_OTHERS = (b'"traceEvents"', b'"schemaVersion"', b'"distributedInfo"')
_FIRST_KEY = re.compile(
    rb'\{\s*+"(?:entries|version|comm_lib_version|nccl_version|nccl_comm_state|pg_config|pg_status'
    rb'|rank)"'
)


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether this is a pickle or a JSON object with the keys of a dump."""
    if is_pickle(head):
        return b"device_traces" not in head[:256] and any(key in head for key in _PICKLED)
    if not _FIRST_KEY.match(head.lstrip()) or any(key in head for key in _OTHERS):
        return False
    return any(key in head for key in _JSON)


FORMAT: Format = Format(
    name=FLIGHT_RECORDER,
    suffixes=("", ".json", ".pickle"),
    description="PyTorch Flight Recorder dumps of NCCL and gloo, pickle or JSON",
    sniff=sniff,
    parse=on_use("traceanalyzer.parsers.flight_recorder.reader:parse"),
    priority=75,
)
