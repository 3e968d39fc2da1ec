"""Measure all inputs of an analysis: one by one, in worker processes, or on a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import PurePath
from typing import Any, Literal, TypeVar

import polars as pl

from traceanalyzer.errors import UnreadableFile
from traceanalyzer.inputs import How, Measures, OpenedInputs, bytes_of
from traceanalyzer.machine import cores, free_memory
from traceanalyzer.reading import is_summary
from traceanalyzer.trace import Meta, Trace

M = TypeVar("M", bound=Measures)

#: Files of up to this size are tasks of several files, to have fewer messages.
_SMALL_BYTES = 1 << 17
_TOGETHER = 8
#: Estimated time of a short analysis of a file and of its bytes, and to start the workers.
_FILE_SECONDS, _BYTE_SECONDS, _START_SECONDS = 0.03, 4e-9, 0.6
#: Estimated memory to analyze a file: of the program, and for each of its bytes.
_PROGRAM_BYTES, _BYTES_PER_BYTE = 150 << 20, 2
#: Estimated size of a compressed file when decompressed.
_INFLATED = {".gz": 10, ".zst": 10, ".zip": 10}

_Issues = list[tuple[tuple[Meta, ...], pl.DataFrame]]


def measure_all(opened: OpenedInputs, measures: Measures) -> None:
    """Measure all inputs in order, in worker processes or a cluster if allowed and worth it.

    A file that ends its worker is skipped.
    """
    paths = [one for one in opened.items if isinstance(one, str) and is_summary(one)]
    items = [one for one in opened.items if isinstance(one, Trace) or one not in paths]
    if paths:
        from traceanalyzer.summarized import join_summaries

        join_summaries(opened, measures, paths)
    apart = _apart(opened, items)
    if apart is None:
        for one in opened.each(items):
            measures.measure(opened, one)
        return
    from traceanalyzer.workers import Ended

    def task(items: Sequence[Trace | str]) -> tuple[OpenedInputs, Measures]:
        return opened.of(items), measures.empty()

    def take(items: Sequence[Trace | str], answer: Any) -> None:
        if isinstance(answer, Ended):
            if len(items) == 1:
                path = str(items[0])
                opened.fail(path, UnreadableFile(path, f"the process that read it {answer.why}"))
                return
            for item in items:  # one of them ended the worker
                with closing(apart([task([item])])) as alone:
                    take([item], next(alone))
        # recordings that files of different workers share are detected when read again here
        elif answer and not opened.repeats.repeated(answer[0].repeats):
            other, measured, issues = answer
            opened.join(other)
            measures.join(measured)
            _report(opened.how, items, issues)
        else:
            for one in opened.each(items):
                measures.measure(opened, one)

    chunks = _chunks(items)
    tasks = [task(items) for items, is_file in chunks if is_file]
    with closing(apart(tasks)) as answers:
        for items, is_file in chunks:
            take(items, next(answers) if is_file else None)


def _apart(
    opened: OpenedInputs, items: Sequence[Trace | str]
) -> Callable[[Sequence[Any]], Generator[Any]] | None:
    """Return the function that runs tasks in other processes; None if this one reads the inputs."""
    if opened.how.client is not None:
        from traceanalyzer import cluster

        return partial(cluster.each, opened.how.client, _measured_on_host)
    number = _number_of_workers(opened, items)
    if number == 1:
        return None
    from traceanalyzer import workers

    threads = max(1, cores() // number)
    return partial(workers.each, _measured_apart, number=number, threads=threads)


def _number_of_workers(opened: OpenedInputs, items: Sequence[Trace | str]) -> int:
    """Return the number of processes that read the inputs; 1 is this process."""
    files = [item for item in items if isinstance(item, str) and bytes_of(item) < math.inf]
    wanted = opened.how.workers
    if wanted != "auto":
        return max(1, min(wanted, len(files)))
    sizes = [bytes_of(file) * _INFLATED.get(PurePath(file).suffix.lower(), 1) for file in files]
    if len(files) < 2:
        return 1
    fitting = free_memory() // (_PROGRAM_BYTES + _BYTES_PER_BYTE * max(sizes))
    number = max(1, int(min(cores(), fitting, len(files))))
    seconds = len(files) * _FILE_SECONDS + sum(sizes) * _BYTE_SECONDS
    return number if seconds - seconds / number > _START_SECONDS else 1


def _chunks(items: Sequence[Trace | str]) -> list[tuple[list[Trace | str], bool]]:
    """Return the inputs in ordered groups, and whether a worker may measure each group."""
    chunks: list[tuple[list[Trace | str], bool]] = []
    for size, run_of in groupby(items, key=_size_class):
        run = list(run_of)
        length = _TOGETHER if size == "small" else 1
        apart = size != "unknown"
        chunks += [(run[i : i + length], apart) for i in range(0, len(run), length)]
    return chunks


def _size_class(item: Trace | str) -> Literal["small", "large", "unknown"]:
    size = bytes_of(item) if isinstance(item, str) else math.inf
    if size == math.inf:
        return "unknown"
    return "small" if size <= _SMALL_BYTES else "large"


def _measured_apart(task: tuple[OpenedInputs, M]) -> tuple[OpenedInputs, M, _Issues]:
    """Run a task in a worker; return it with all results, and the issues of its files."""
    opened, measures = task
    issues: _Issues = []
    how = opened.how
    opened.how = replace(how, on_trace=lambda trace: issues.append((trace.sources, trace.issues)))
    for one in opened:
        measures.measure(opened, one)
    opened.how = how
    return opened, measures, issues


def _measured_on_host(task: tuple[OpenedInputs, M]) -> tuple[OpenedInputs, M, _Issues]:
    """Run a task on a worker that may be another machine, without the files it cannot see."""
    from traceanalyzer.cluster import unseen

    opened, _ = task
    hidden = {path: why for path in opened.items if isinstance(path, str) and (why := unseen(path))}
    opened.items = [item for item in opened.items if item not in hidden]
    answer = _measured_apart(task)
    for path, why in hidden.items():
        answer[0].fail(path, UnreadableFile(path, why))
    return answer


def _report(how: How, items: Sequence[Trace | str], issues: _Issues) -> None:
    """Report progress and issues of files that a worker read."""
    for item in items:
        if how.progress and isinstance(item, str):
            size = int(bytes_of(item))
            how.progress(size, size)
    for sources, of_file in issues:
        if how.on_trace:
            how.on_trace(Trace(sources, issues=of_file))
