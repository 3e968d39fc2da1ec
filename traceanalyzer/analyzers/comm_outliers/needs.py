"""What has to be read from a file, in up to three readings: each asks for as little as it can.

1. :data:`NEEDS`: device work, annotations and the host rows that describe collectives.
2. :data:`LAUNCHES`, only when :func:`needs_launches`: older recordings join a communication
   kernel to its description through the launch call alone, and launch calls are many.
3. :data:`CONTEXT`, only of the files and stretches that
   :func:`~traceanalyzer.analyzers.comm_outliers.late.windows` names: what a late rank was doing.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.comm_outliers import describe
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH_KINDS, PARAM_COMMS


@dataclass(frozen=True)
class Needs:
    """Events an analysis reads: these kinds, and any event whose name holds one of ``names``."""

    kinds: frozenset[str]
    names: tuple[str, ...] = ()


NEEDS = Needs(frozenset((*DEVICE_WORK, "user_annotation", "nvtx")), (PARAM_COMMS,))

LAUNCHES = Needs(NEEDS.kinds | frozenset(LAUNCH_KINDS), NEEDS.names)

CONTEXT = Needs(LAUNCHES.kinds | frozenset(("cpu_op", "python_function", "osrt")))


def needs_launches(trace: Trace) -> bool:
    """Whether reading the launch calls too would tell more about this trace's collectives.

    True when communication kernels lack their message size, some host events describe
    collectives that no kernel is joined to yet, and no launch call has been read.
    """
    if trace.events["kind"].is_in(LAUNCH_KINDS).any():
        return False
    kernels = describe.device_communication(trace, ())
    calls = describe.host_calls(trace)
    joined = describe.by_external_id(kernels, calls)
    bare = kernels.filter(pl.col("elements_in").is_null()).join(joined, on="event", how="anti")
    spare = calls.filter(pl.col("elements_in") > 0).join(joined, on="call", how="anti")
    return bare.height > 0 and spare.height > 0
