"""Time budget of all devices."""

import polars as pl

from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common.device_work import COMMUNICATION
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.overlap.result import Overlap
from traceanalyzer.findings.device_time import (
    COPIES,
    EXPOSED,
    LINK,
    OUTLIER,
    REPEATED,
    SLOW,
)
from traceanalyzer.findings.result import (
    BUSY,
    EXPOSED_COPIES,
    IDLE,
    IN_COLLECTIVES,
    OF_BUSY,
    WAIT,
)
from traceanalyzer.findings.rule import Answers

_TYPES = {"part": pl.String, "name": pl.String, "each_ns": pl.Int64, "time_frac": pl.Float64}

#: Copies and causes of idle time with a smaller share are left out.
_LEAST = 0.001

_TOP_KERNELS = 5


def budget(answers: Answers) -> pl.DataFrame:
    """Return the time budget of all devices.

    Returns:
        part, name, each_ns (mean per step and device, or per device), time_frac (of the time).
        The parts ``busy``, ``exposed communication`` (``communication`` without GPUs),
        ``exposed copies`` and ``idle`` add up to the time; ``of busy`` rows are parts of the busy
        time: overlapped communication, and the longest kernels.
    """
    time = answers.time
    if not time.whole_ns:
        return pl.DataFrame(schema=_TYPES)
    lost = time.losses.group_by("cause", "waited").agg(pl.col("lost_ns").sum())
    sums = {(cause, waited): int(ns) for cause, waited, ns in lost.iter_rows()}
    waits = sum(ns for (_, waited), ns in sums.items() if waited)
    transferring = (REPEATED, SLOW, OUTLIER, LINK, EXPOSED)
    transfers = sum(sums.get((cause, False), 0) for cause in transferring)
    idle = {cause: sums.get((cause, False), 0) for cause in causes.CAUSES}
    copies = sums.get((COPIES, False), 0)
    work = "operators" if time.on_host else "compute"
    rows = [(BUSY, work, time.whole_ns - waits - transfers - copies - sum(idle.values()))]
    overlap, kernels = answers.get("overlap"), answers.get("kernels")
    comm = answers.get("comm_outliers")
    if waits:
        rows.append((time.exposed, WAIT, waits))
    if transfers:
        name = comm.transfer_name if isinstance(comm, CommOutliers) else "transfer"
        rows.append((time.exposed, name, transfers))
    if isinstance(overlap, Overlap) and overlap.scalars["communication_ns"]:
        overlapped, span = (overlap.scalars[n] for n in ("overlapped_communication_ns", "span_ns"))
        ns = round(overlapped * time.whole_ns / span)
        rows.append((OF_BUSY, "overlapped communication", ns))
    least = _LEAST * time.whole_ns
    rows += [(EXPOSED_COPIES, "copies and memsets", copies)] * (copies >= max(least, 1))
    of_cause = sorted(idle.items(), key=lambda item: -item[1])
    names = causes.NAMES | {causes.PEER: IN_COLLECTIVES}
    rows += [(IDLE, names[cause], ns) for cause, ns in of_cause if ns >= least]
    if isinstance(kernels, Kernels) and kernels.span_ns:
        compute = kernels.heaviest("name").filter(pl.col("family") != COMMUNICATION)
        top = compute.head(_TOP_KERNELS).select("kernel", "total_ns")
        scale = time.whole_ns / kernels.span_ns
        rows += [(OF_BUSY, name, round(ns * scale)) for name, ns in top.iter_rows()]
    return pl.DataFrame(
        [(part, name, time.each_ns(ns), time.frac(ns)) for part, name, ns in rows],
        schema=_TYPES,
        orient="row",
    )
