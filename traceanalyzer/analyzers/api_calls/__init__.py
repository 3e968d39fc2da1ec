"""What calls of the CUDA and HIP runtime and driver cost the host, and which hold it up.

Traces of one rank each come in; :func:`extract` takes of a rank its calls, joined to the copies and
sets they started, :func:`combine` puts the ranks together into a :class:`CudaApi`;
:func:`cuda_api` does both for traces in memory. ``sorts`` tells by name what a call does,
``findings`` what is to be said of it, ``result`` holds the answer, ``words`` says it.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceanalyzer.analyzers.api_calls.combine import combine
from traceanalyzer.analyzers.api_calls.extract import NEEDS, Part, extract
from traceanalyzer.analyzers.api_calls.result import CudaApi
from traceanalyzer.analyzers.ranks import by_rank
from traceanalyzer.trace import Trace

__all__ = ["NEEDS", "CudaApi", "Part", "combine", "cuda_api", "extract"]


def cuda_api(traces: Trace | Sequence[Trace]) -> CudaApi:
    """The calls of traces in memory; see :func:`traceanalyzer.cuda_api`.

    Raises:
        MissingData: a trace holds no call of the runtime or driver.
        OptionError: there is no trace.
    """
    return combine([extract(trace) for trace in by_rank(traces)])
