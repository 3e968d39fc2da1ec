"""Modules of kernels that CUDA and HIP graphs launch: all of a replay share one launch call.

``torch.cuda.graph_annotations`` writes the module of a kernel into its arguments: that is exact.
Else the module is the one that launches the same kernel between the same kernels in a step without
replay, or in the capture (:mod:`traceanalyzer.analyzers.common.replays`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.common import replays
from traceanalyzer.analyzers.common.names import matching
from traceanalyzer.analyzers.modules.assignment import PHASES, Assigned
from traceanalyzer.frames import nesting
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import DEVICE_WORK

_MODULE = r'"module_fqn"\s*:\s*"([^"]+)"'
_BACKWARD = r'"autograd_phase"\s*:\s*"backward'
#: ``layers.0`` is one module: a container has no work of its own.
_LEVEL = re.compile(r"[^.]+(?:\.\d+)*")
#: Of rows outside of any module.
OUTSIDE = -1


def are_launched(trace: Trace) -> bool:
    """Whether graphs were launched."""
    return bool(matching(trace.names, [replays.GRAPH_LAUNCH]))


def are_annotated(trace: Trace) -> bool:
    """Whether device work has modules in its arguments."""
    return bool(_texts(trace).str.contains(_MODULE).any())


def _texts(trace: Trace) -> pl.Series:
    if "args" not in trace.events.columns:
        return pl.Series("args", [], pl.String)
    is_work = pl.col("kind").is_in(DEVICE_WORK)
    return trace.events.filter(is_work)["args"].cast(pl.String)


@dataclass(frozen=True)
class Placed:
    """Device work by module and phase.

    Attributes:
        modules: those of the calls, and after them those that kernels name: ``parent``, ``name``.
        module: row of ``modules`` of each row of the work; ROOT outside of any.
        phase: number of the phase in :data:`~.assignment.PHASES` of each row.
        is_named: whether the arguments of the row have the module.
    """

    modules: pl.DataFrame
    module: nesting.Rows
    phase: npt.NDArray[np.int8]
    is_named: npt.NDArray[np.bool_]


def placed(trace: Trace, work: pl.DataFrame, launch: nesting.Rows, assigned: Assigned) -> Placed:
    """Return the module of device work: the one that it names, else that of its launch call.

    Args:
        trace: trace of one rank, with ``args`` of events.
        work: rows of :func:`~traceanalyzer.analyzers.operators.call_tree.launched_work`.
        launch: call of each row; ROOT if unknown.
        assigned: modules and phases of the calls.
    """
    is_known = launch != nesting.ROOT
    module = np.where(is_known, np.append(assigned.module, nesting.ROOT)[launch], nesting.ROOT)
    phase = np.where(is_known, np.append(assigned.phase, 0)[launch], 0)
    if not are_annotated(trace):
        none = np.zeros(work.height, np.bool_)
        return Placed(assigned.modules, module.astype(np.int32), phase.astype(np.int8), none)
    texts = trace.events["args"].gather(work["event"]).cast(pl.String)
    names = texts.str.extract(_MODULE)
    is_named = names.is_not_null().to_numpy()
    distinct = names.drop_nulls().unique(maintain_order=True).to_list()
    modules, rows = _with_named(assigned.modules, distinct)
    number = names.replace_strict(distinct, rows, default=None, return_dtype=pl.Int32)
    module = np.where(is_named, number.fill_null(nesting.ROOT).to_numpy(), module)
    is_backward = texts.str.contains(_BACKWARD).fill_null(value=False).to_numpy()
    of_named = np.where(is_backward, PHASES.index("backward"), PHASES.index("forward"))
    phase = np.where(is_named, of_named, phase)
    return Placed(modules, module.astype(np.int32), phase.astype(np.int8), is_named)


def _with_named(modules: pl.DataFrame, names: Sequence[str]) -> tuple[pl.DataFrame, list[int]]:
    """Add modules by their qualified names; return the row of each name."""
    numbers: dict[tuple[int | None, str], int] = {}
    first, rows = modules.height, []
    for name in names:
        row: int | None = None
        for level in _LEVEL.findall(name) or [name]:
            row = numbers.setdefault((row, level), first + len(numbers))
        rows.append(row or 0)
    added = pl.DataFrame(list(numbers), schema=modules.schema, orient="row")
    return pl.concat([modules, added]), rows


def replayed(work: pl.DataFrame, place: Placed) -> pl.DataFrame:
    """Return the kernels of replays without a module of their own, by context and launch.

    Returns:
        :data:`~.replays.CONTEXTS`, ``module`` and ``phase`` of the launch call, ``n``,
        ``length_ns``.
    """
    rows = _with_place(work, place).filter(pl.col("replayed") & ~pl.Series(place.is_named))
    return rows.group_by(*replays.CONTEXTS, "module", "phase").agg(
        n=pl.len().cast(pl.Int64), length_ns=pl.col("length_ns").sum()
    )


def launchers(
    work: pl.DataFrame, place: Placed, captured: pl.DataFrame, in_capture: pl.DataFrame
) -> pl.DataFrame:
    """Return what is known of kernels that no graph launched: ``context``, ``to``, ``to_phase``.

    Args:
        work: all device work.
        place: its modules.
        captured: rows of :func:`~traceanalyzer.analyzers.operators.call_tree.captured_calls`.
        in_capture: ``module`` and ``phase`` of those.
    """
    alone = _with_place(work, place).filter(~pl.col("replayed"))
    both = (alone, captured.hstack(in_capture))
    renamed = [one.rename({"module": "to", "phase": "to_phase"}) for one in both]
    return pl.concat([replays.known(one, ["to", "to_phase"]) for one in renamed])


def _with_place(work: pl.DataFrame, place: Placed) -> pl.DataFrame:
    return work.with_columns(of_rows(place.module, place.phase))


def of_rows(module: nesting.Rows, phase: npt.NDArray[np.int8]) -> list[pl.Series]:
    """Return ``module``, :data:`OUTSIDE` for ROOT, and ``phase``."""
    numbers = np.where(module == nesting.ROOT, OUTSIDE, module).astype(np.int64)
    return [pl.Series("module", numbers), pl.Series("phase", np.array(PHASES)[phase], pl.String)]


def moved(
    replayed: Sequence[pl.DataFrame], launchers: Sequence[pl.DataFrame]
) -> tuple[pl.DataFrame, int]:
    """Return the device time of replays as changes of sums, and how much found its module.

    Args:
        replayed: rows of :func:`replayed` of all ranks, modules numbered over all.
        launchers: rows of :func:`launchers` of all ranks, likewise.

    Returns:
        ``module`` (null outside of any), ``phase``, ``device_ns``; and the time in ns.
    """
    found = replays.resolved(pl.concat(replayed), launchers, ["to", "to_phase"])
    time = pl.col("length_ns")
    changes = pl.concat(
        [
            found.select("module", "phase", device_ns=-time),
            found.select(module="to", phase="to_phase", device_ns=time),
        ]
    )
    is_inside = pl.col("module") != OUTSIDE
    rows = changes.with_columns(module=pl.when(is_inside).then("module"))
    return rows, int(found["length_ns"].sum())
