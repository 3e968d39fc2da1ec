"""What has to be read from a file, in up to three readings: each asks for as little as it can.

1. :data:`NEEDS`: device work, annotations and the host rows that describe collectives.
2. :data:`LAUNCHES`, only when a :class:`~.part.Part` wants them: older recordings join a
   communication kernel to its description through the launch call alone, and those are many.
3. :data:`CONTEXT`, only of the files and stretches that
   :func:`~traceanalyzer.analyzers.comm_outliers.late.windows` names: what a late rank was doing.
"""

from __future__ import annotations

from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.analyzers.step_marks import MARK_NAMES
from traceanalyzer.vocabulary import (
    DEVICE_WORK,
    HOST_COLLECTIVE_PREFIXES,
    LAUNCH_KINDS,
    NCCL_ANNOTATION_PREFIXES,
    PARAM_COMMS,
)

#: Until 2021 PyTorch recorded collectives, and its own marks of steps, as operators.
_AS_OPERATORS = (
    PARAM_COMMS, *HOST_COLLECTIVE_PREFIXES, *NCCL_ANNOTATION_PREFIXES, *MARK_NAMES,
)  # fmt: skip

NEEDS = Needs(frozenset((*DEVICE_WORK, "user_annotation", "nvtx", "mpi")), _AS_OPERATORS)

LAUNCHES = Needs(NEEDS.kinds | frozenset(LAUNCH_KINDS), NEEDS.names)

CONTEXT = Needs(LAUNCHES.kinds | frozenset(("cpu_op", "python_function", "osrt")))
