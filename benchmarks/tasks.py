"""Timed tasks, each run in a new process: ``python -I tasks.py TASK PATH``.

Imports are done before the clock starts, except where imports are the task. The last line printed
is JSON with ``seconds`` and ``rows``. It runs under any interpreter that has the library it times,
so it imports nothing from here.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

#: All that a command needs for one trace, but for its analysis.
MODULES = (
    "traceanalyzer.cli.main",
    "traceanalyzer.run",
    "traceanalyzer.parsers.chrome_trace.reader",
    "traceanalyzer.render.table",
    "numpy.ma",  # by polars, when it is given its first array
)

#: Commands on traces, and the analyzer that says what each needs of a file.
COMMANDS = {
    "comm-outliers": "comm_outliers",
    "gpu-idle": "gpu_idle",
    "kernels": "kernels",
    "launches": "launches",
    "operators": "operators",
    "overlap": "overlap",
    "steps": "steps",
}


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
    import traceanalyzer as ta
    from traceanalyzer.parsers.chrome_trace import reader  # noqa: F401 - loaded when it is used

    start = time.perf_counter()
    trace = ta.read(path)
    return time.perf_counter() - start, trace.events.height


def read_for(command: str) -> Callable[[str], tuple[float, int]]:
    """The file to the few events and columns that a command asks for first."""

    def read(path: str) -> tuple[float, int]:
        import traceanalyzer as ta
        from traceanalyzer.analyzers.registry import ENTRIES
        from traceanalyzer.parsers.chrome_trace import reader  # noqa: F401

        analyzer = ENTRIES[COMMANDS[command]].analyzer()
        needs = analyzer.needed(analyzer.options())
        start = time.perf_counter()
        trace = ta.read(path, kinds=needs.kinds, names=needs.names, columns=needs.columns)
        return time.perf_counter() - start, trace.events.height

    return read


def hta(folder: str) -> tuple[float, int]:
    """A folder with one trace, loaded by HTA."""
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    start = time.perf_counter()
    analysis = TraceAnalysis(trace_dir=folder)
    seconds = time.perf_counter() - start
    return seconds, sum(len(analysis.t.get_trace(rank)) for rank in analysis.t.get_ranks())


def orjson_pool(folder: str) -> tuple[float, int]:
    """Kernel time of each trace of a folder, by a process per core: the plainest loop."""
    from multiprocessing import Pool

    paths = sorted(str(path) for path in Path(folder).iterdir())
    start = time.perf_counter()
    with Pool(len(os.sched_getaffinity(0))) as pool:
        sums = pool.map(_kernel_time, paths, chunksize=1)
    return time.perf_counter() - start, len(sums)


def _kernel_time(path: str) -> float:
    import gzip

    import orjson

    text = Path(path).read_bytes()
    trace = orjson.loads(gzip.decompress(text) if path.endswith(".gz") else text)
    return sum(one["dur"] for one in trace["traceEvents"] if one.get("cat") == "kernel")


def plain_loop(path: str) -> tuple[float, int]:
    """Leaf and library frame of each stack, by the plainest loop that does not repeat itself.

    Every distinct frame is looked at once, and a stack only up to its first frame of the library.
    """
    library = b"torch"
    start = time.perf_counter()
    sums: dict[tuple[bytes, bytes | None], int] = {}
    cached: dict[bytes, bool] = {}
    with Path(path).open("rb") as file:
        for line in file:
            stack, _, count = line.rpartition(b" ")
            rest, innermost = stack, None
            leaf = stack.rpartition(b";")[2]
            while rest:
                rest, _, frame = rest.rpartition(b";")
                known = cached.get(frame)
                if known is None:
                    known = cached[frame] = library in frame.rpartition(b" (")[2]
                if known:
                    innermost = frame
                    break
            key = leaf, innermost
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


def imports_for(command: str) -> Callable[[str], tuple[float, int]]:
    """Only what a command loads; the caller takes the time of the whole process."""

    def imports(_: str) -> tuple[float, int]:
        start = time.perf_counter()
        for module in (*MODULES, f"traceanalyzer.analyzers.{COMMANDS[command]}.compute"):
            importlib.import_module(module)
        return time.perf_counter() - start, len(sys.modules)

    return imports


# --- databases ---

_KERNELS, _COPIES, _SETS = (f"CUPTI_ACTIVITY_KIND_{of}" for of in ("KERNEL", "MEMCPY", "MEMSET"))
#: The columns of an export that ``kernels`` looks at.
_WORK = ("start", '"end"', "deviceId", "globalPid")
_COLUMNS = {
    _KERNELS: (*_WORK, "demangledName"),
    _COPIES: (*_WORK, "bytes", "copyKind", "srcKind", "dstKind"),
    _SETS: (*_WORK, "bytes", "memKind"),
}


def adbc_columns(path: str) -> tuple[float, int]:
    """The fastest way we know to read columns of SQLite: ADBC, two threads by ranges of row ids."""
    from concurrent.futures import ThreadPoolExecutor

    import adbc_driver_manager as adbc
    import adbc_driver_sqlite
    import polars as pl

    start = time.perf_counter()
    database = adbc_driver_sqlite.connect(f"file:{path}?mode=ro&immutable=1")

    def rows(query: str) -> pl.DataFrame:
        with (
            adbc.AdbcConnection(database) as connection,
            adbc.AdbcStatement(connection) as statement,
        ):
            statement.set_options(**{"adbc.sqlite.query.batch_rows": "65536"})
            statement.set_sql_query(query)
            stream: Any = statement.execute_query()[0]
            return pl.DataFrame(stream)

    queries = []
    for table, columns in _COLUMNS.items():
        chosen = f"SELECT {', '.join(columns)} FROM {table}"
        if not rows(f"SELECT name FROM sqlite_schema WHERE name = '{table}'").height:
            continue
        last = rows(f"SELECT max(rowid) AS last FROM {table}")["last"].item() or 0
        step = max(-(-last // 8), 1)
        ranges = [(low + 1, low + step) for low in range(0, last, step)]
        queries += [f"{chosen} WHERE rowid BETWEEN {low} AND {high}" for low, high in ranges]
    with ThreadPoolExecutor(2) as pool:
        cached = list(pool.map(rows, queries))
    return time.perf_counter() - start, sum(frame.height for frame in cached)


def pandas_kernels(path: str) -> tuple[float, int]:
    """What ``kernels`` tells, as most people write it: ``pandas.read_sql`` and ``groupby``."""
    import sqlite3

    import pandas as pd  # type: ignore[import-untyped,import-not-found,unused-ignore]

    start = time.perf_counter()
    connection = sqlite3.connect(path)
    names = pd.read_sql("SELECT id, value FROM StringIds", connection).set_index("id")["value"]
    parts = []
    for table, columns in _COLUMNS.items():
        work = pd.read_sql(f"SELECT {', '.join(columns)} FROM {table}", connection)
        work["duration"] = work["end"] - work["start"]
        if table == _KERNELS:
            work["name"] = work["demangledName"].map(names)
        else:
            work["name"] = "copy" if table == _COPIES else "set"
        parts.append(work[["name", "duration"]].astype({"duration": "int64"}))
    by_name = pd.concat(parts).groupby("name")["duration"]
    sums = by_name.agg(["count", "sum", "mean", "median", "min", "max"])
    sums["p99"] = by_name.quantile(0.99)
    return time.perf_counter() - start, len(sums)


# --- pickles ---


def pickle_load(path: str) -> tuple[float, int]:
    """The yardstick: a snapshot to dicts and lists; garbage collection off."""
    import pickle

    gc.disable()
    start = time.perf_counter()
    with Path(path).open("rb") as file:
        snapshot = pickle.load(file)  # from our generator
    return time.perf_counter() - start, sum(map(len, snapshot["device_traces"]))


def read_snapshot(path: str) -> tuple[float, int]:
    """A snapshot to all tables, checked opcode by opcode."""
    import traceanalyzer as ta
    from traceanalyzer.parsers.memory_snapshot import reader  # noqa: F401 - loaded when it is used

    start = time.perf_counter()
    trace = ta.read(path)
    return time.perf_counter() - start, trace.events.height


def memory_page(path: str) -> tuple[float, int]:
    """``traceanalyzer memory`` from start to page; its "rows" are the page's bytes."""
    return _drawn([Path(sys.executable).with_name("traceanalyzer"), "memory", path])


def trace_plot(path: str) -> tuple[float, int]:
    """PyTorch's viewer from start to page; its "rows" are the page's bytes."""
    return _drawn([sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", path])


def _drawn(command: list[Any]) -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        start = time.perf_counter()
        subprocess.run([*command, "-o", page], check=True, capture_output=True)
        return time.perf_counter() - start, page.stat().st_size


# --- algebra ---------------------------------------------------------------------------------


def _nested(rows: int) -> pl.DataFrame:
    """Calls on 16 threads, nested up to 12 deep: one random hour of each, again and again."""
    import numpy as np
    import polars as pl

    threads, hour = 16, 50_000
    random = np.random.default_rng(7)
    start, end = np.empty(hour, np.int64), np.empty(hour, np.int64)
    open_: list[int] = []
    begun = clock = 0
    while begun < hour or open_:
        if begun < hour and (len(open_) < 2 or (random.random() < 0.5 and len(open_) < 12)):
            start[begun] = clock
            open_.append(begun)
            begun += 1
        else:
            end[open_.pop()] = clock
        clock += 10
    shift = clock * np.arange(max(rows // (threads * hour), 1))[:, None]
    start, end = (start + shift).ravel(), (end + shift).ravel()
    tid = np.repeat(np.arange(threads), start.size)
    columns = {"start": np.tile(start, threads), "end": np.tile(end, threads)}
    frame = pl.DataFrame({"pid": np.ones(tid.size, np.int64), "tid": tid, **columns})
    return frame.sort("start")


def _kernels(rows: int) -> pl.DataFrame:
    """Kernels of 8 devices in order of start, half of the time several at once."""
    import numpy as np
    import polars as pl

    random = np.random.default_rng(7)
    start = np.sort(random.integers(0, rows * 100, rows))
    end = start + random.integers(1, 1_000, rows)
    device = random.integers(0, 8, rows, dtype=np.int32)
    return pl.DataFrame({"device": device, "start": start, "end": end})


def union(rows: str) -> tuple[float, int]:
    """When is any kernel of each device running?"""
    from traceanalyzer.frames import intervals

    return _timed(intervals.union, _kernels(int(rows)), ["device"])


def gaps(rows: str) -> tuple[float, int]:
    """When is none?"""
    from traceanalyzer.frames import intervals

    return _timed(intervals.gaps, _kernels(int(rows)), ["device"])


def nest(rows: str) -> tuple[float, int]:
    """Which call lies in which?"""
    from traceanalyzer.frames import nesting

    return _timed(nesting.nest, _nested(int(rows)), ["pid", "tid"])


def link(rows: str) -> tuple[float, int]:
    """Which call launched which kernel?"""
    import numpy as np
    import polars as pl

    from traceanalyzer.frames import linking

    calls = pl.DataFrame({"correlation": np.random.default_rng(7).permutation(int(rows))})
    return _timed(linking.link, calls, calls.sort("correlation"), ["correlation"])


def _timed(function: Callable[..., pl.DataFrame], *arguments: object) -> tuple[float, int]:
    start = time.perf_counter()
    frame = function(*arguments)
    return time.perf_counter() - start, frame.height


TASKS = {
    **{
        task.__name__: task
        for task in (
            *(pickle_load, read_snapshot, memory_page, trace_plot),
            *(orjson_loads, orjson_pool, read, hta, plain_loop, itwinai_report),
            *(adbc_columns, pandas_kernels, union, gaps, nest, link),
        )
    },
    **{f"read_for_{command}": read_for(command) for command in COMMANDS},
    **{f"imports_for_{command}": imports_for(command) for command in COMMANDS},
}

if __name__ == "__main__":
    seconds, rows = TASKS[sys.argv[1]](sys.argv[2])
    print(json.dumps({"seconds": seconds, "rows": rows}), flush=True)
    os._exit(0)  # freeing millions of dicts is not part of it
