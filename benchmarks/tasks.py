"""What is timed, each in a process of its own: ``python -I tasks.py TASK PATH``.

Imports are done before the clock starts, except where imports are the task. The last line printed
is JSON with ``seconds`` and ``rows``. It runs under any interpreter that has the library it times,
so it imports nothing from here.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path

#: All that ``traceanalyzer comm-outliers`` needs for one trace.
MODULES = (
    "traceanalyzer.cli.main",
    "traceanalyzer.api",
    "traceanalyzer.parsers.chrome_trace.parser",
    "traceanalyzer.analyzers.comm_outliers",
    "traceanalyzer.render.table",
    "numpy.ma",  # by polars, when it is given its first array
)


def orjson_loads(path: str) -> tuple[float, int]:
    """The yardstick: the bytes, already in memory, to dicts and lists; garbage collection off."""
    import orjson

    gc.disable()
    text = Path(path).read_bytes()
    start = time.perf_counter()
    trace = orjson.loads(text)
    return time.perf_counter() - start, len(trace["traceEvents"])


def read(path: str) -> tuple[float, int]:
    """The file to the full event table and all side tables."""
    from traceanalyzer import api
    from traceanalyzer.parsers.chrome_trace import parser  # noqa: F401 - the registry loads it late

    start = time.perf_counter()
    trace = api.read(path)
    return time.perf_counter() - start, trace.events.height


def read_needs(path: str) -> tuple[float, int]:
    """The file to the few kinds of events that ``comm-outliers`` asks for first."""
    from traceanalyzer import api
    from traceanalyzer.analyzers.comm_outliers.needs import NEEDS
    from traceanalyzer.parsers.chrome_trace import parser  # noqa: F401

    start = time.perf_counter()
    trace = api.read(path, kinds=NEEDS.kinds, names=NEEDS.names)
    return time.perf_counter() - start, trace.events.height


def hta(folder: str) -> tuple[float, int]:
    """A folder with one trace, loaded by HTA."""
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    start = time.perf_counter()
    analysis = TraceAnalysis(trace_dir=folder)
    seconds = time.perf_counter() - start
    return seconds, sum(len(analysis.t.get_trace(rank)) for rank in analysis.t.get_ranks())


def imports(_: str) -> tuple[float, int]:
    """Only :data:`MODULES`; the caller takes the time of the whole process."""
    import importlib

    start = time.perf_counter()
    for module in MODULES:
        importlib.import_module(module)
    return time.perf_counter() - start, len(sys.modules)


TASKS = {task.__name__: task for task in (orjson_loads, read, read_needs, hta, imports)}

if __name__ == "__main__":
    seconds, rows = TASKS[sys.argv[1]](sys.argv[2])
    print(json.dumps({"seconds": seconds, "rows": rows}), flush=True)
    os._exit(0)  # freeing millions of dicts is not part of it
