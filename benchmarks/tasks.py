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


def plain_loop(path: str) -> tuple[float, int]:
    """Leaf and library frame of each stack, by the plainest loop that does not repeat itself.

    Every distinct frame is looked at once, and a stack only up to its first frame of the library.
    """
    library = b"torch"
    start = time.perf_counter()
    sums: dict[tuple[bytes, bytes | None], int] = {}
    held: dict[bytes, bool] = {}
    with Path(path).open("rb") as file:
        for line in file:
            stack, _, count = line.rpartition(b" ")
            rest, found = stack, None
            leaf = stack.rpartition(b";")[2]
            while rest:
                rest, _, frame = rest.rpartition(b";")
                known = held.get(frame)
                if known is None:
                    known = held[frame] = library in frame.rpartition(b" (")[2]
                if known:
                    found = frame
                    break
            key = leaf, found
            sums[key] = sums.get(key, 0) + int(count)
    rows = sorted(sums.items(), key=lambda row: -row[1])
    return time.perf_counter() - start, len(rows)


def itwinai_report(path: str) -> tuple[float, int]:
    """The functions behind ``itwinai generate-py-spy-report``, from the file to sorted rows."""
    from itwinai.torch.profiling import (  # type: ignore[import-not-found]
        py_spy_aggregation as peer,
    )

    start = time.perf_counter()
    stacks = peer.read_stack_traces(Path(path))
    peer.add_library_information(stacks, "torch")
    rows = sorted(peer.get_aggregated_paths([stack[-1] for stack in stacks]), reverse=True)
    return time.perf_counter() - start, len(rows)


def imports(_: str) -> tuple[float, int]:
    """Only :data:`MODULES`; the caller takes the time of the whole process."""
    import importlib

    start = time.perf_counter()
    for module in MODULES:
        importlib.import_module(module)
    return time.perf_counter() - start, len(sys.modules)


TASKS = {
    task.__name__: task
    for task in (orjson_loads, read, read_needs, hta, plain_loop, itwinai_report, imports)
}

if __name__ == "__main__":
    seconds, rows = TASKS[sys.argv[1]](sys.argv[2])
    print(json.dumps({"seconds": seconds, "rows": rows}), flush=True)
    os._exit(0)  # freeing millions of dicts is not part of it
