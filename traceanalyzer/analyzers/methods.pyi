# Written by `make docs` from the lists in __init__.py and analyzers/commands.toml.

from typing import Any

import traceanalyzer as functions

class AnalysisMethods:
    annotations = functions.annotations
    comm_outliers = functions.comm_outliers
    critical_path = functions.critical_path
    cuda_api = functions.cuda_api
    diagnose = functions.diagnose
    efficiency = functions.efficiency
    flamegraph = functions.flamegraph
    gpu_idle = functions.gpu_idle
    hang = functions.hang
    host_metrics = functions.host_metrics
    info = functions.info
    kernels = functions.kernels
    launches = functions.launches
    memory = functions.memory
    memory_diff = functions.memory_diff
    memory_growth = functions.memory_growth
    memory_oom = functions.memory_oom
    modules = functions.modules
    operators = functions.operators
    overlap = functions.overlap
    printed = functions.printed
    py_spy_report = functions.py_spy_report
    query = functions.query
    report = functions.report
    requests = functions.requests
    roofline = functions.roofline
    steps = functions.steps
    timeline = functions.timeline
    transfers = functions.transfers
    what_if = functions.what_if
    def _repr_html_(self) -> str: ...
    @property
    def _inputs(self) -> Any: ...
