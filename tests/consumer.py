"""A program that uses the package with type checking; it is checked and run."""

from collections.abc import Sequence
from typing import Any, assert_type

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from numpy.typing import NDArray

import traceanalyzer as ta


def slowest_kernels(path: str) -> list[str]:
    """Return the names of the kernels with the most time."""
    trace = ta.read(path, kinds=["kernel", "gpu_memcpy"], since_ns=0)
    assert_type(trace, ta.Trace)
    assert_type(trace.events, pl.DataFrame)
    kernels = trace.kernels(by="stream", comm_patterns=("nccl",), until_ns=10**12)
    assert_type(kernels, ta.Kernels)
    assert_type(kernels.to_polars("names"), pl.DataFrame)
    return [str(name) for name in kernels.to_polars("names")["name"].head(3)]


def answers(trace: ta.Trace, inputs: Sequence[str | ta.Trace]) -> list[ta.Result]:
    """Return results of a trace and of paths."""
    idle = trace.gpu_idle(by="step")
    assert_type(idle, ta.GpuIdle)
    assert_type(idle.verdict, str)
    assert_type(idle.to_dict(), dict[str, Any])
    late = ta.comm_outliers(inputs, factor=4.0, rank=None)
    assert_type(late, ta.CommOutliers)
    assert_type(trace.info(), ta.Info)
    return [idle, late, trace.info()]


def drawn(result: ta.Result) -> str:
    """Return the title of the first axes."""
    axes = result.plot()
    assert_type(axes, NDArray[np.object_])
    first = result.plot(result.charts[0].name)
    ax = first if isinstance(first, Axes) else first[0]
    assert isinstance(ax, Axes)
    assert_type(result.plot(result.charts[-1].name, ax=ax), Axes)
    return ax.get_title()


def refused(path: str) -> str:
    """Return the error of a file."""
    try:
        ta.read(path)
    except ta.InputError as error:
        assert_type(error.what, str)
        return error.what
    return ""
